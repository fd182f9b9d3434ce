"""Peers with one process per environment, measured in a process of their own.

A fresh interpreter without threads can fork its workers: they start at once and share the market's memory, which is
the best case for these peers. A thousand processes are not possible on an ordinary machine, and would not be faster:
beyond the number of cores, more processes give no more steps per second. So a few counts are tried and the best stands
for every size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.bench.peers import PlainTradingEnv
from velodrome.bench.portfolio_peer import PlainPortfolioEnv, PortfolioTables
from velodrome.bench.problem import RING, PeerTables, load_peer_tables, save_peer_tables
from velodrome.bench.timing import Stepper, Timing, take_turns
from velodrome.errors import VelodromeError

SETUP_SECONDS = 120  # allowed for starting and ending the workers of one count
# A plain environment by the name of what it reads, which is what a fresh interpreter is sent.
ENVIRONMENTS: dict[str, tuple[type, Any]] = {
    "PeerTables": (PeerTables, PlainTradingEnv),
    "PortfolioTables": (PortfolioTables, PlainPortfolioEnv),
}


class PeerFailedError(VelodromeError):
    """A peer that is installed but could not be measured."""


def measure_process_peer(
    peer: str, processes: int, tables: PeerTables | PortfolioTables, *, seconds: float, repeats: int, seed: int
) -> Timing:  # fmt: skip
    """Return the timing of one peer with so many worker processes."""
    with tempfile.TemporaryDirectory(prefix="velodrome-bench-") as name:
        folder = Path(name)
        save_peer_tables(tables, folder / "tables.npz")
        request = {
            "peer": peer, "tables": type(tables).__name__, "processes": processes, "seconds": seconds,
            "repeats": repeats, "seed": seed,
        }  # fmt: skip
        (folder / "request.json").write_text(json.dumps(request))
        run_python("from velodrome.bench.process_peers import serve; serve()", folder, SETUP_SECONDS + 2 * seconds)
        return Timing(*json.loads((folder / "timing.json").read_text()))


def run_python(code: str, folder: Path, timeout: float) -> str:
    """Run code in a fresh interpreter that finds this Velodrome; return what it printed."""
    source = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PeerFailedError(f"not finished after {timeout:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        named = [line for line in lines if "Error" in line]
        raise PeerFailedError(f"failed: {(named or lines)[-1]}")
    return done.stdout


def serve() -> None:
    """Measure what the request in the current folder asks for: what the fresh interpreter runs."""
    folder = Path.cwd()
    request = json.loads((folder / "request.json").read_text())
    tables_type, environment = ENVIRONMENTS[request["tables"]]
    tables = load_peer_tables(folder / "tables.npz", tables_type)
    processes = request["processes"]
    envs = _open(request["peer"], lambda: environment(tables), processes)
    try:
        space = environment(tables).action_space
        space.seed(request["seed"])
        actions = [np.stack([space.sample() for _ in range(processes)]) for _ in range(RING)]
        envs.reset()
        stepper = Stepper(lambda k: envs.step(actions[k % RING]))
        timing = None
        for _, latest in take_turns([stepper], [processes], request["seconds"], request["repeats"]):
            timing = latest
    finally:
        envs.close()
    (folder / "timing.json").write_text(json.dumps(timing))


def _open(peer: str, make: Callable[[], Any], processes: int) -> Any:
    makers: list[Any] = [make] * processes
    if peer == "subproc":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        return SubprocVecEnv(makers, start_method="fork")
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode

    return AsyncVectorEnv(makers, context="fork", autoreset_mode=AutoresetMode.SAME_STEP)
