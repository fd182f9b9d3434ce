"""`velodrome bench step --env cage2`: steps per second of CAGE-2, after checking that compiled and plain rule agree."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from rich.console import Console

from velodrome.bench.cage2_peers import RECORDED, cyborg_stepper, mini_cage_stepper, missing_peer
from velodrome.bench.machine import machine_stamp
from velodrome.bench.parity import ParityError
from velodrome.bench.rates import RING, RateOptions, RateReport, Row, native_row, run_rate_benchmark, thread_choices
from velodrome.vector.make import make_vec

ACTIONS = 145
RED_AGENTS = ("b_line", "meander", "sleep", "mixture")
PARITY_ENVS, PARITY_STEPS = 64, 220
LARGEST_MINI_CAGE = 10_000
TARGET_SIZE, TARGET_RATE = 1_000, 5e6


class Cage2Options(RateOptions):
    """What to measure."""

    PEER_NAMES = ("cyborg", "mini_cage")
    QUICK = MappingProxyType({"seconds": 0.2, "repeats": 2})


class Cage2Report(RateReport):
    """Everything that a run of this benchmark found out."""

    kind: str = "step, cage2"

    def conclude(self) -> None:
        """Judge by what was promised; against rates on record where a peer is not installed."""
        ours = self.best("velodrome", TARGET_SIZE)
        if ours is None:
            return
        self.judge(f"steps per second, {TARGET_SIZE:,} environments", ours, TARGET_RATE)
        for name, prefix, wanted in (("CybORG through ChallengeWrapper", "CybORG", 15_000.0),
                                     ("mini-CAGE, best batch (1,000)", "mini-CAGE", 100.0)):  # fmt: skip
            here = self.best(prefix)
            rate = here or RECORDED[name][1]
            how = "measured here" if here else f"on record, {rate:,.0f}/s on 2 cores"
            self.judge(f"times {prefix} ({how})", ours / rate, wanted)


def run_cage2_benchmark(options: Cage2Options, console: Console | None = None) -> Cage2Report:
    """Check, measure, show and write; Ctrl-C ends the measuring and keeps what there is."""
    options = options.resolved()
    report = Cage2Report(machine=machine_stamp(), options=options.model_dump(mode="json"))
    report.note_missing((peer, missing_peer(peer)) for peer in options.peers)
    peers = report.active_peers(options)
    run_rate_benchmark(
        "CAGE-2", options, report, console or Console(stderr=True), lambda: check_parity(options.seed),
        lambda size: contenders(size, options, peers),
    )  # fmt: skip
    return report


def check_parity(seed: int) -> str:
    """Run the compiled and the plain rule side by side; raise if anything differs."""
    rng = np.random.default_rng(seed)
    steps = 0
    for red in RED_AGENTS:
        batches = [
            make_vec("cage2", PARITY_ENVS, backend=name, seed=seed, red_agent=red, green=red == "mixture", copy=True)
            for name in ("python", "native")
        ]
        for envs in batches:
            envs.reset()
        for k in range(PARITY_STEPS):
            actions = rng.integers(0, ACTIONS, PARITY_ENVS)
            plain, compiled = (envs.step(actions) for envs in batches)
            if not all(np.array_equal(one, other) for one, other in zip(plain[:4], compiled[:4], strict=True)):
                raise ParityError(f"compiled and plain CAGE-2 against {red} differ in step {k}")
            steps += PARITY_ENVS
        for envs in batches:
            envs.close()
    return f"compiled and plain rule agree to the bit over {steps:,} steps against {', '.join(RED_AGENTS)}"


def contenders(size: int, options: Cage2Options, peers: tuple[str, ...]) -> list[Row]:
    """Return who is measured at a size."""
    rng = np.random.default_rng((options.seed, size))
    actions = [rng.integers(0, ACTIONS, size) for _ in range(RING)]
    rows = [
        native_row(f"velodrome, {red}", "cage2", size, actions, threads, seed=options.seed, red_agent=red)
        for threads in thread_choices(size)
        for red in ("b_line", "meander")
    ]
    rows.append(
        native_row("velodrome, b_line, specialised", "cage2", size, actions, 1, seed=options.seed, red_agent="b_line",
                   specialise=True)
    )  # fmt: skip
    if "cyborg" in peers and size == 1:
        rows.append(Row("CybORG, b_line", 1, lambda stack: cyborg_stepper(stack, actions)))
    if "mini_cage" in peers and size <= LARGEST_MINI_CAGE:
        rows.append(Row("mini-CAGE, b_line", 1, lambda stack: mini_cage_stepper(stack, actions, size)))
    return rows
