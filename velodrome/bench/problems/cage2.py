"""`velodrome bench step --env cage2`: CAGE-2 beside CybORG and mini-CAGE."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from velodrome.bench.peers.cyborg import CYBORG, MINI_CAGE
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.report import ratio
from velodrome.bench.step import Sizes, StepBenchmark, StepOptions

RED_AGENTS = ("b_line", "meander", "sleep", "mixture")
# By peer: how many times as fast Velodrome is to be, and the best rate of the original on 2 shared cores, in steps per
# second, measured when the rule was written down: it stands in where a peer is not installed, and is said to.
PEERS = {"cyborg": ("CybORG", 15_000.0, 429.0), "mini_cage": ("mini-CAGE", 100.0, 54_000.0)}
TARGET_RATE = 5e6


class Cage2Options(StepOptions):
    """What to measure."""

    # The last steps the same rule in plain Python, one environment after the other.
    PEERS: ClassVar = {"cyborg": CYBORG, "mini_cage": MINI_CAGE, "sync": VECTORISERS["sync"]}
    QUICK: ClassVar = {"seconds": 0.2, "repeats": 2}

    sizes: Sizes = Field((1, 100, 1_000, 10_000), description="numbers of environments in a batch")


class Cage2Benchmark(StepBenchmark):
    """Compiled and plain rule must agree against every red agent."""

    Options = Cage2Options
    VARIANTS: ClassVar = {
        ", b_line": {"red_agent": "b_line"},
        ", meander": {"red_agent": "meander"},
        ", b_line, specialised": {"red_agent": "b_line", "specialise": True},
    }
    TARGET_SIZE = 1_000
    PARITY_ENVS, PARITY_STEPS = 64, 220
    # Green agents beside the last red one.
    PARITY_CASES: ClassVar = [{"red_agent": red, "green": red == "mixture"} for red in RED_AGENTS]

    def conclude(self) -> None:
        """Judge by what was promised; against rates on record where a peer is not installed."""
        super().conclude()
        for comparison in self.report.comparisons:
            own = self.own_rate(comparison, self.TARGET_SIZE)
            self.report.judge(f"steps per second, {self.TARGET_SIZE:,} environments", own, TARGET_RATE)
            for peer, (name, wanted, on_record) in PEERS.items():
                here = comparison.best(peer=peer)
                how = "measured here" if here else f"on record, {on_record:,.0f}/s on 2 cores"
                self.report.judge(f"times {name} ({how})", ratio(own, here or on_record), wanted)
