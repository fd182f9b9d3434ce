"""`velodrome bench scale`: what more cores, processes and ranks bring on this machine.

Stepping: as many environments on each of 1, 2, 4 … cores, and vectorisers that have a process for each environment.
Training: as many environments in each rank of `velodrome train --nproc`, and the same training without ranks. Every row
says which part of the ideal it reaches, which is the speed of one times how many there are.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numba
from pydantic import Field, field_validator

from velodrome.bench.hosts.batches import BatchSpec
from velodrome.bench.hosts.host import Host
from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.plot import OTHERS, OWN, QUIET, Draw
from velodrome.bench.report import OURS, Comparison, Measurement, median_ratio
from velodrome.bench.run import Benchmark, Turns
from velodrome.bench.scale.ranks import ROLLOUT, WARM_UP, RankedTraining
from velodrome.bench.step import Case, Sizes, StepBenchmark
from velodrome.bench.timing import Contender, action_ring, take_turns
from velodrome.envs.catalog import EnvEntry
from velodrome.errors import BackendError
from velodrome.vector.cores import available_cores

IDEAL = "ideal"  # ratio of a row: to the speed of one, times how many there are
STEPS, TRAINING = "steps", "training"
NO_RANKS = "velodrome, no ranks"
PARTS = (STEPS, TRAINING)
RANKED = "training in ranks"


def doubled(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 … and the most."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


class ScaleOptions(BenchmarkOptions):
    """How it is measured what more cores, processes and ranks bring."""

    PEERS: ClassVar[Mapping[str, Peer]] = {name: peer for name, peer in VECTORISERS.items() if peer.processes}
    QUICK: ClassVar = {"seconds": 0.3, "repeats": 1, "size": 256, "iterations": WARM_UP + 5, "against": ("none",)}

    parts: tuple[str, ...] = Field(PARTS, description="what is measured: steps, training, or both")
    cores: Sizes | None = Field(None, description="cores to step on; if not given, 1, 2, 4 … and all that there are")
    ranks: Sizes | None = Field(None, description="processes to train in; if not given, as many as cores")
    size: int = Field(1_024, ge=1, le=1_000_000, description="environments of each core, and of each rank")
    repeats: int = Field(3, ge=1, le=100, description="rounds in which contenders take turns; the median counts")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the ranks learn; steps are on cores in any case")
    iterations: int = Field(
        40, ge=WARM_UP + 1, le=100_000, description=f"of a training; the first {WARM_UP} are not counted"
    )
    hidden: tuple[int, ...] = Field((64, 64), description="widths of the hidden layers")
    threads: int = Field(1, ge=1, le=1_024, description="threads of each rank, and of the training without ranks")

    @field_validator("parts")
    @classmethod
    def _parts_are_known(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        if not parts or not set(parts) <= set(PARTS):
            raise ValueError(f"there are {', '.join(PARTS)}")
        return parts

    @field_validator("cores")
    @classmethod
    def _machine_has_them(cls, cores: tuple[int, ...] | None) -> tuple[int, ...] | None:
        available = numba.config.NUMBA_NUM_THREADS
        if cores is not None and max(cores) > available:
            raise ValueError(f"this machine offers 1 … {available}, received {max(cores)}")
        return cores


class ScaleBenchmark(Benchmark):
    """Speed by cores, by processes and by ranks, each beside the speed of one."""

    title = "what more cores and ranks bring"

    def __init__(self, entry: EnvEntry, options: ScaleOptions) -> None:
        super().__init__(f"scale, {entry.name}", options)
        options = self.options
        # One is what the others are compared with.
        self.cores = sorted({1, *(options.cores or doubled(numba.config.NUMBA_NUM_THREADS))})
        most = self.processors()
        self.ranks = options.ranks or doubled(most)
        self.training = RankedTraining(
            options.size, options.device, options.iterations, options.hidden, options.threads, options.seed
        )
        asked = StepBenchmark.options_for(entry)(against=("none",), seed=options.seed, sizes=(options.size,))
        self.stepping = StepBenchmark(entry, asked)

    def processors(self) -> int:
        """Return how many ranks have a core, or a GPU, of their own."""
        if self.options.device == "cpu":
            return max(1, available_cores() // self.options.threads)
        from velodrome.vector.cuda import unavailable_reason

        if self.options.parts != (STEPS,) and (reason := unavailable_reason("cuda")):
            raise BackendError(f"--device cuda: {reason}. Take cpu.")
        import torch

        return max(1, torch.cuda.device_count())

    def measure(self, tell: Turns) -> None:
        """Step, after the proof that all threads do the same, then train."""
        options, alone = self.options, [(name, cores) for name in self.peers for cores in self.cores]
        steps = STEPS in options.parts
        turns = steps * (1 + options.repeats * (len(self.cores) + len(alone)))
        tell.expect(turns + (TRAINING in options.parts) * options.repeats * (1 + len(self.ranks)))
        if steps:
            case, about = self.stepping.cases()[0], f"{self.stepping.entry.name}: steps per second"
            ours = self.report.begin(STEPS, f"{about}, {options.size:,} environments for each core")
            ours.parity = self.stepping.check_parity(case)
            tell("parity")
            take_turns([self.on_cores(case, n) for n in self.cores], options, self.report, ours.measurements, tell)
            others = self.report.begin("processes", f"{about}, a process for each environment") if alone else ours
            for name, processes in alone:
                contender = self.in_processes(case, name, processes)
                take_turns([contender], options, self.report, others.measurements, tell)
        if TRAINING in options.parts:
            self.train(tell)

    def on_cores(self, case: Case, cores: int) -> Contender:
        """Return our environments on so many cores."""
        size, stepping = self.options.size * cores, self.stepping
        row = stepping.row(OURS, OURS, size, threads=cores, kind="flat", floats=case.floats)
        actions = partial(action_ring, case.env.action_space, size, self.options.seed, stepping.ring)
        return Contender(row, partial(stepping.open_native, size, {**case.values, "threads": cores}, actions))

    def in_processes(self, case: Case, name: str, processes: int) -> Contender:
        """Return a peer's environments, each in a process, in an interpreter of their own."""
        made = pickle.dumps(case.plain)
        spec = BatchSpec(name, env=case.name, num_envs=processes, seed=self.options.seed, pickled=made)
        return Contender(spec.row(floats=case.floats), partial(Host, spec))

    def train(self, tell: Turns) -> None:
        """Train without ranks and with them, in turn."""
        options = self.options
        title = f"demo on {options.device}: steps per second, {options.size:,} environments in each rank"
        comparison = self.report.begin(TRAINING, title)
        rows = {ranks: self.rank_row(ranks) for ranks in (0, *self.ranks)}
        for _ in range(options.repeats):
            for ranks, row in rows.items():
                row.rounds.append(self.training.rate(ranks))
                row.calls += options.iterations - WARM_UP
                if len(row.rounds) == 1:
                    comparison.measurements.append(row)
                tell(row.label)

    def rank_row(self, ranks: int) -> Measurement:
        """Return the measurement of a training that has no rounds yet. 0: without ranks."""
        label = f"velodrome, {ranks} rank{'s' * (ranks > 1)}" if ranks else NO_RANKS
        envs, threads = self.options.size * max(1, ranks), self.options.threads
        sizes = {"num_envs": envs, "rollout_length": ROLLOUT, "steps_per_call": envs * ROLLOUT}
        return Measurement(peer=OURS, label=label, threads=threads, processes=ranks, **sizes)

    def conclude(self) -> None:
        """Say which part of the ideal each row reaches."""
        for comparison in self.report.comparisons:
            for row in comparison.measurements:
                share = median_ratio(row.rounds, self.one(comparison, row).rounds)
                if share is not None:
                    row.ratios[IDEAL] = share / many(row)
            comparison.lines.append("of ideal: beside the speed of one, times how many there are; medians of rounds")

    def one(self, comparison: Comparison, row: Measurement) -> Measurement:
        """Return the row that another one is compared with: the same on one core, in one process, or without ranks."""
        if row.rollout_length:
            return comparison.rows(label=NO_RANKS)[0]
        return next(other for other in comparison.rows(label=row.label) if many(other) == 1)

    def more_panels(self) -> Sequence[Draw]:
        """Return how many times as fast as one each number of cores, processes or ranks is."""
        return [self.draw_growth]

    def draw_growth(self, panel: Any) -> None:
        """Draw speeds beside that of one, and the ideal."""
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in (row for one in self.report.comparisons for row in one.rows_to_show if IDEAL in row.ratios):
            if row.label != NO_RANKS:
                name = f"{row.label}, {'processes' if row.processes else 'cores'}"
                points = lines.setdefault(RANKED if row.rollout_length else name, [])
                points.append((many(row), row.ratios[IDEAL] * many(row)))
        if not lines:  # interrupted before there was one
            return
        counts = sorted({count for points in lines.values() for count, _ in points})
        panel.plot([1, counts[-1]], [1, counts[-1]], color=QUIET, linestyle="--", label="ideal")
        own, others = itertools.cycle(OWN), itertools.cycle(OTHERS)
        for name, points in lines.items():
            colour = next(own if name.startswith((OURS, RANKED)) else others)
            panel.plot(*zip(*sorted(points), strict=True), marker="o", color=colour, label=name)
        panel.set(xlabel="cores, processes or ranks", ylabel="times as fast as one", title="growth", ylim=(0, None))
        panel.set_xticks(counts)


def many(row: Measurement) -> int:
    """Return how many cores, processes or ranks a row has."""
    return max(1, row.processes) if row.rollout_length or row.processes else row.threads
