"""Benchmarks: the same environment as others write it, first proven to be the same, then timed beside it.

`run_step_benchmark` is `velodrome bench step`. `peers.py` and `batched_peer.py` are the other ways to write the trading
rule, `parity.py` is the proof, `contenders.py` says who is timed, `report.py` what follows from it.
"""

from __future__ import annotations

from velodrome.bench.machine import MachineStamp, machine_stamp
from velodrome.bench.options import PEERS, StepBenchmarkOptions
from velodrome.bench.parity import ParityError
from velodrome.bench.report import StepReport
from velodrome.bench.step import run_step_benchmark

__all__ = [
    "PEERS",
    "MachineStamp",
    "ParityError",
    "StepBenchmarkOptions",
    "StepReport",
    "machine_stamp",
    "run_step_benchmark",
]
