"""`velodrome bench step`: environment steps per second of any environment in the catalogue, beside other ways to do it.

An environment whose entry names no benchmark is measured as it stands here: its compiled rule against the same rule in
plain Python under Gymnasium's and SB3's loops, on synthetic prices if it needs any. A subclass of `StepBenchmark` says
more: other peers, a proof that they compute the same, what is promised.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numba
from pydantic import Field, field_validator
from rich.console import RenderableType

from velodrome.bars import synthetic_bars
from velodrome.bench.hosts.batches import BatchSpec, peer_spec
from velodrome.bench.hosts.environments import store_environment
from velodrome.bench.hosts.host import Host
from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.parity import compare_backends
from velodrome.bench.peers.gymnasium import SYNC
from velodrome.bench.peers.sb3 import DUMMY
from velodrome.bench.render import terminal_plot
from velodrome.bench.report import OURS, Comparison, Measurement, Parity, Report, ratio
from velodrome.bench.run import Benchmark, Turns
from velodrome.bench.timing import RING, Contender, Source, Stepper, Timed, action_ring, take_turns
from velodrome.envs.catalog import EnvEntry
from velodrome.registry import load
from velodrome.tables import build_basket, build_market
from velodrome.vector.make import make, make_vec

FEATURES = (
    *("log_return", "range", "rsi_14", "macd_hist_relative", "bollinger_20", "volatility_20", "volume_z_50"),
    *("sma_distance_50", "log_return_5", "log_return_20", "rsi_30"),
)
SMALLEST_TO_SHARE = 64  # environments from which a batch is measured on all threads too
PARITY_ENVS, PARITY_STEPS = 16, 250


def whole_numbers(counts: tuple[int, ...], least: int, most: int) -> tuple[int, ...]:
    """Return the numbers in order, each once; raise if one is out of range or there is none."""
    if not counts or not all(least <= count <= most for count in counts):
        raise ValueError(f"needs one or more whole numbers from {least:,} to {most:,}")
    return tuple(sorted(set(counts)))


class StepOptions(BenchmarkOptions):
    """How the stepping speed of an environment is measured."""

    PEERS: ClassVar = {"sync": SYNC, "dummy": DUMMY}
    QUICK: ClassVar = {"sizes": (64, 1_024), "seconds": 0.3, "repeats": 3}

    sizes: tuple[int, ...] = Field((64, 1_024, 16_384), description="numbers of environments in a batch")
    threads: int | None = Field(None, ge=1, description="threads of the 'all threads' rows; if not given, all")

    @field_validator("sizes")
    @classmethod
    def _sizes_are_legal(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return whole_numbers(sizes, 1, 10_000_000)


class MarketOptions(StepOptions):
    """The same for an environment on prices."""

    bars: int = Field(20_000, ge=500, le=10_000_000, description="bars of each instrument")
    window: int = Field(32, ge=1, le=1_024, description="bars in an observation")
    features: int = Field(8, ge=1, le=len(FEATURES), description="features of each bar and instrument")


class BasketOptions(MarketOptions):
    """The same for an environment on the prices of several instruments."""

    instruments: tuple[int, ...] = Field((7,), description="instruments of the basket")

    @field_validator("instruments")
    @classmethod
    def _instruments_are_legal(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        return whole_numbers(counts, 2, 1_000)


@dataclass(frozen=True)
class Case:
    """What all contenders of a comparison step."""

    name: str
    values: dict[str, Any]  # what `make_vec` is told: the market and the environment's parameters
    plain: Callable[[], gymnasium.Env]  # one environment without Velodrome's loop
    tables: Any = None  # data and parameters for a peer that has no single environments

    @functools.cached_property
    def env(self) -> gymnasium.Env:
        """One plain environment, for its spaces."""
        return self.plain()

    @property
    def floats(self) -> int:
        """Floats in an observation."""
        return gymnasium.spaces.flatdim(self.env.observation_space)

    @property
    def window_floats(self) -> int:
        """How many of them are windows of the market."""
        return int(self.values["market"].window_floats) if "market" in self.values else 0


class StepBenchmark(Benchmark[StepOptions, Report]):
    """Steps per second of one environment. An entry's `benchmark` is a subclass, or "module:name" of one."""

    title = "stepping speed"
    Options: ClassVar[type[StepOptions] | None] = None  # None: by the data that the environment needs
    # By the end of its label: what `make_vec` is told of each of Velodrome's rows.
    VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}, ", specialised": {"specialise": True}}
    WINDOWLESS: ClassVar[Mapping[str, Mapping[str, Any]]] = {", no windows": {"observation": "cursor"}}
    # By peer: how many times as fast Velodrome is to be, with the number of environments that this is about.
    PROMISED: ClassVar[Mapping[str, float]] = {}
    TARGET_SIZE: ClassVar[int] = 1_024
    ring: ClassVar[int] = RING

    def __init__(self, entry: EnvEntry, options: StepOptions) -> None:
        self.entry = entry
        super().__init__(f"step, {entry.name}", options)

    @classmethod
    def options_for(cls, entry: EnvEntry) -> type[StepOptions]:
        """Return the model of what this benchmark can be asked for."""
        if cls.Options is not None:
            return cls.Options
        models: dict[str | None, type[StepOptions]] = {"market": MarketOptions, "basket": BasketOptions}
        return models.get(entry.data, StepOptions)

    def cases(self) -> list[Case]:
        """Return what is stepped: the environment with its default parameters, on synthetic prices if it needs any."""
        if self.entry.data == "basket":
            counts = self.options.instruments  # type: ignore[attr-defined]
            return [self.case(f"{count} instruments", {"market": self.basket(count)}) for count in counts]
        return [self.case(self.entry.name, {"market": self.market()} if self.entry.data else {})]

    def case(self, name: str, values: dict[str, Any]) -> Case:
        """Return a case whose plain environment is the rule itself, uncompiled."""
        return Case(name, values, functools.partial(make, self.entry.name, backend="python", **values))

    def market(self) -> Any:
        """Return synthetic prices of one instrument."""
        options: Any = self.options
        bars = synthetic_bars("gbm", options.bars, options.seed)
        return build_market(bars, FEATURES[: options.features], options.window, check_leaks=False, name="bench")

    def basket(self, instruments: int) -> Any:
        """Return synthetic prices of several instruments."""
        options: Any = self.options
        bars = synthetic_bars("gbm", options.bars, options.seed, symbols=instruments)
        return build_basket(bars, FEATURES[: options.features], options.window, check_leaks=False, name="bench")

    def check_parity(self, case: Case) -> Parity:
        """Prove that contenders compute the same, or raise ParityError."""
        seed = self.options.seed
        return compare_backends(self.entry.name, case.values, seed, size=PARITY_ENVS, steps=PARITY_STEPS)

    def measure(self, tell: Turns) -> None:
        """Prove parity, then let the contenders of each size take turns; those with processes follow one by one."""
        report, options = self.report, self.options
        pairs = [(report.begin(case.name, self.heading(case)), case) for case in self.cases()]
        with tempfile.TemporaryDirectory(prefix="velodrome-bench-") as folder:
            groups = [(one, self.contenders(case, size)) for one, case in pairs for size in options.sizes]
            groups += self.more_groups()
            groups += [(one, [alone]) for one, case in pairs for alone in self.with_processes(case, Path(folder))]
            tell.expect(len(pairs) + options.repeats * sum(len(contenders) for _, contenders in groups))
            for comparison, case in pairs:
                comparison.parity = self.check_parity(case)
                tell("parity")
            for comparison, contenders in groups:
                take_turns(contenders, options, report, comparison.measurements, tell)
        self.finish(pairs, tell)

    def heading(self, case: Case) -> str:
        """Return the title of a case's table."""
        return f"{case.name}: steps per second, {case.floats} floats observed"

    def more_groups(self) -> list[tuple[Comparison, list[Contender]]]:
        """Return further comparisons, and who takes turns in them."""
        return []

    def finish(self, pairs: Sequence[tuple[Comparison, Case]], tell: Turns) -> None:
        """Measure what does not take turns."""

    # Who is measured

    def contenders(self, case: Case, size: int) -> list[Contender]:
        """Return who steps batches of a size in this process."""
        actions = functools.cache(lambda: action_ring(case.env.action_space, size, self.options.seed, self.ring))
        variants = {**self.VARIANTS, **(self.WINDOWLESS if case.window_floats else {})}
        found = []
        for threads in self.thread_counts(size):
            for end, given in variants.items():
                kind = given.get("observation", "flat")
                floats = case.floats - (case.window_floats if kind == "cursor" else 0)
                row = self.row(OURS, f"velodrome{end}", size, threads=threads, kind=kind, floats=floats)
                values = {**case.values, **given, "threads": threads}
                found.append(Contender(row, self.native_opener(size, values, actions)))
        for name, peer in self.peers.items():
            if not (peer.processes or peer.own_problem) and size <= peer.largest:
                row = self.row(name, peer.label, size, floats=case.floats)
                found.append(Contender(row, self.peer_opener(peer, case, size, actions)))
        return found

    def row(self, peer: str, label: str, size: int, **values: Any) -> Measurement:
        """Return a measurement that has no rounds yet."""
        return Measurement(peer=peer, label=label, num_envs=size, steps_per_call=size, **values)

    def thread_counts(self, size: int) -> tuple[int, ...]:
        """Return one thread, and all of them where a batch is large enough to share."""
        available = numba.config.NUMBA_NUM_THREADS
        every = min(self.options.threads or available, available)
        return tuple(sorted({1, every})) if size >= SMALLEST_TO_SHARE else (1,)

    def native_opener(
        self, size: int, values: Mapping[str, Any], actions: Callable[[], list[Any]]
    ) -> Callable[[ExitStack], Timed]:
        """Return how to open a native batch."""

        def start(stack: ExitStack) -> Timed:
            envs = make_vec(self.entry.name, size, backend="native", seed=self.options.seed, **values)
            stack.callback(envs.close)
            envs.reset()
            ring, count = actions(), self.ring
            return Stepper(lambda k: envs.step(ring[k % count]))

        return start

    def peer_opener(
        self, peer: Peer, case: Case, size: int, actions: Callable[[], list[Any]]
    ) -> Callable[[ExitStack], Timed]:
        """Return how to open a peer's batch."""

        def start(stack: ExitStack) -> Timed:
            batch = peer.open(Source([case.plain] * size, self.options.seed, case.tables))
            stack.callback(batch.close)
            return batch.stepper(actions(), self.options.seed)

        return start

    def process_counts(self, peer: Peer) -> list[int]:
        """Return how many worker processes to try: those asked for and, in a full run, one for each environment."""
        sizes = [size for size in self.options.sizes if 1 < size <= peer.largest and not self.options.quick]
        return sorted({*getattr(self.options, "processes", ()), *sizes})

    def with_processes(self, case: Case, folder: Path) -> list[Contender]:
        """Return the peers that have a process for each environment, each in an interpreter of its own."""
        found = []
        for name, peer in ((name, peer) for name, peer in self.peers.items() if peer.processes):
            store_environment(case.name, case.plain, folder)
            for count in self.process_counts(peer):
                spec = peer_spec(name, env=case.name, num_envs=count, seed=self.options.seed)

                def start(stack: ExitStack, spec: BatchSpec = spec) -> Timed:
                    host = stack.enter_context(Host(folder, spec))
                    host.answer()
                    return host

                found.append(Contender(spec.row().model_copy(update={"floats": case.floats}), start))
        return found

    # What follows

    def conclude(self) -> None:
        """Fill in how many times as fast Velodrome is, and judge what is promised."""
        for comparison in self.report.comparisons:
            for name, peer in self.peers.items():
                if peer.processes:
                    self.place_process_rows(comparison, name, peer)
            for row in comparison.rows_to_show:
                own = ratio(self.own_rate(comparison, row.num_envs), row.steps_per_second)
                if own is not None:
                    row.ratios["native"] = own
            for peer_name, wanted in self.PROMISED.items() if self.is_promised(comparison) else ():
                rows = comparison.rows(peer=peer_name, num_envs=self.TARGET_SIZE)
                reached = [row.ratios["native"] for row in rows if row.processes in (0, self.TARGET_SIZE)]
                if reached:
                    name = f"native over {rows[0].label} at n = {self.TARGET_SIZE:,}"
                    self.report.judge(name, min(reached), wanted)

    def is_promised(self, comparison: Comparison) -> bool:
        """Return whether the promised ratios are about this comparison."""
        return True

    def own_rate(self, comparison: Comparison, size: int) -> float | None:
        """Return Velodrome's steps per second with whole observations, however it was fastest."""
        return comparison.best(peer=OURS, kind="flat", num_envs=size)

    def place_process_rows(self, comparison: Comparison, name: str, peer: Peer) -> None:
        """Set a process per environment beside each size, and the best of fewer processes, which is faster in all."""
        measured = {row.processes: row for row in comparison.rows(peer=name)}
        if not measured:
            return
        tried = ", ".join(f"{count:,} processes {row.steps_per_second:,.0f}/s" for count, row in measured.items())
        comparison.lines.append(f"{peer.label}: {tried}")
        comparison.measurements = [row for row in comparison.measurements if row.peer != name]
        for size in [size for size in self.options.sizes if size <= peer.largest] or [min(self.options.sizes)]:
            fewer = [row for count, row in measured.items() if count < size]
            if size in measured:
                comparison.measurements.append(measured[size])
            if fewer or size not in measured:
                best = max(fewer or measured.values(), key=lambda row: row.steps_per_second)
                changed = {"num_envs": size, "label": f"{peer.label}, {'fewer' if fewer else 'more'}", "ratios": {}}
                comparison.measurements.append(best.model_copy(update=changed))

    def more(self) -> Sequence[RenderableType]:
        """Return bars for the first comparison."""
        first = next((one for one in self.report.comparisons if one.rows_to_show), None)
        return [terminal_plot(first)] if first else []


def step_benchmark(entry: EnvEntry) -> type[StepBenchmark]:
    """Return what measures an environment: what its entry names, or the benchmark for any."""
    return load(entry.benchmark) if entry.benchmark else StepBenchmark
