"""`velodrome bench step`: environment steps per second of any environment in the catalogue, beside other ways to do it.

An environment whose entry names no benchmark is measured as it stands here: its compiled rule against the same rule in
plain Python under Gymnasium's and SB3's loops, on synthetic prices if it needs any. A subclass of `StepBenchmark` says
more: other peers, a proof that they compute the same, what is promised.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Annotated, Any, ClassVar

import gymnasium
import numba
from pydantic import AfterValidator, Field, field_validator
from rich.console import RenderableType

from velodrome.bars import synthetic_bars
from velodrome.bench.hosts.batches import BatchSpec
from velodrome.bench.hosts.host import Host
from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.parity import compare_backends
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.render import terminal_plot
from velodrome.bench.report import OURS, Comparison, Measurement, Parity, ratio
from velodrome.bench.run import Benchmark, Turns
from velodrome.bench.timing import RING, Contender, Source, Stepper, action_ring, take_turns
from velodrome.envs.catalog import EnvEntry
from velodrome.envs.contract import LANES
from velodrome.registry import load
from velodrome.tables import build_basket, build_market
from velodrome.vector.make import make, make_vec

FEATURES = (
    *("log_return", "range", "rsi_14", "macd_hist_relative", "bollinger_20", "volatility_20", "volume_z_50"),
    *("sma_distance_50", "log_return_5", "log_return_20", "rsi_30"),
)
SMALLEST_TO_SHARE = 64  # environments from which a peer's batch is measured on all threads too


def whole_numbers(least: int, most: int) -> AfterValidator:
    """Return what puts numbers in order, each once, and refuses none at all and those out of range."""

    def check(numbers: tuple[int, ...]) -> tuple[int, ...]:
        if not numbers or not all(least <= number <= most for number in numbers):
            raise ValueError(f"needs one or more whole numbers from {least:,} to {most:,}")
        return tuple(sorted(set(numbers)))

    return AfterValidator(check)


Sizes = Annotated[tuple[int, ...], whole_numbers(1, 10_000_000)]
Instruments = Annotated[tuple[int, ...], whole_numbers(2, 1_000)]


class StepOptions(BenchmarkOptions):
    """How the stepping speed of an environment is measured."""

    PEERS: ClassVar = {name: VECTORISERS[name] for name in ("sync", "dummy")}
    QUICK: ClassVar = {"sizes": (64, 1_024), "seconds": 0.3, "repeats": 3}

    sizes: Sizes = Field((64, 1_024, 16_384), description="numbers of environments in a batch")
    threads: int | None = Field(None, ge=1, description="threads of the 'all threads' rows; if not given, all")

    @field_validator("threads")
    @classmethod
    def _machine_has_them(cls, threads: int | None) -> int | None:
        available = numba.config.NUMBA_NUM_THREADS
        if threads is not None and threads > available:
            raise ValueError(f"this machine offers 1 … {available}, received {threads}")
        return threads


class MarketOptions(StepOptions):
    """The same for an environment on prices."""

    bars: int = Field(20_000, ge=500, le=10_000_000, description="bars of each instrument")
    window: int = Field(32, ge=1, le=1_024, description="bars in an observation")
    features: int = Field(8, ge=1, le=len(FEATURES), description="features of each bar and instrument")


class BasketOptions(MarketOptions):
    """The same for an environment on the prices of several instruments."""

    instruments: Instruments = Field((7,), description="instruments of the basket")


@dataclass(frozen=True)
class Case:
    """What all contenders of a comparison step."""

    name: str
    values: dict[str, Any]  # what `make_vec` is told: the market and the environment's parameters
    plain: Callable[[], gymnasium.Env]  # one environment without Velodrome's loop
    tables: Any = None  # data and parameters for a peer that has no single environments

    @cached_property
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


class StepBenchmark(Benchmark):
    """Steps per second of one environment. An entry's `benchmark` is a subclass, or "module:name" of one."""

    title = "stepping speed"
    Options: ClassVar[type[StepOptions] | None] = None  # None: by the data that the environment needs
    # By the end of its label: what `make_vec` is told of each of Velodrome's rows.
    VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}, ", specialised": {"specialise": True}}
    WINDOWLESS: ClassVar[Mapping[str, Mapping[str, Any]]] = {", no windows": {"observation": "cursor"}}
    # By peer: how many times as fast Velodrome is to be, with the number of environments that this is about.
    PROMISED: ClassVar[Mapping[str, float]] = {}
    TARGET_SIZE: ClassVar[int] = 1_024
    TARGET_CASE: ClassVar[str | None] = None  # None: any
    PARITY_ENVS: ClassVar[int] = 16
    PARITY_STEPS: ClassVar[int] = 250
    PARITY_CASES: ClassVar[Sequence[Mapping[str, Any]]] = ({},)  # parameters with which rules are compared
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
            counts = self.options.instruments
            return [self.case(f"{count} instruments", {"market": self.market(count)}) for count in counts]
        return [self.case(self.entry.name, {"market": self.market()} if self.entry.data else {})]

    def case(self, name: str, values: dict[str, Any]) -> Case:
        """Return a case whose plain environment is the rule itself, uncompiled."""
        return Case(name, values, partial(make, self.entry.name, backend="python", **values))

    def market(self, instruments: int | None = None, window: int | None = None) -> Any:
        """Return synthetic prices of one instrument, or a basket of several, with windows of the given length."""
        options = self.options
        bars = synthetic_bars("gbm", options.bars, options.seed, symbols=instruments or 1)
        build: Any = build_basket if instruments else build_market
        return build(bars, FEATURES[: options.features], window or options.window, check_leaks=False, name="bench")

    def check_parity(self, case: Case) -> Parity:
        """Prove that contenders compute the same, or raise ParityError."""
        size, steps = self.PARITY_ENVS, self.PARITY_STEPS
        given = (self.entry.name, case.values, self.options.seed, self.PARITY_CASES)
        return compare_backends(*given, size=size, steps=steps)

    def measure(self, tell: Turns) -> None:
        """Prove parity, then let the contenders of each size take turns; those with processes follow one by one."""
        report, options = self.report, self.options
        pairs = [(report.begin(case.name, self.heading(case)), case) for case in self.cases()]
        groups = [(one, self.contenders(case, size)) for one, case in pairs for size in options.sizes]
        groups += self.more_groups()
        groups += [(one, [alone]) for one, case in pairs for alone in self.with_processes(case)]
        tell.expect(len(pairs) + options.repeats * sum(len(contenders) for _, contenders in groups))
        for comparison, case in pairs:
            comparison.parity = self.check_parity(case)
            tell("parity")
        for comparison, contenders in groups:
            take_turns(contenders, options, report, comparison.measurements, tell)
        self.finish(pairs, tell)

    def heading(self, case: Case) -> str:
        """Return the title of a case's table."""
        name = self.entry.name if case.name == self.entry.name else f"{self.entry.name}, {case.name}"
        return f"{name}: steps per second, {case.floats} floats observed"

    def more_groups(self) -> list[tuple[Comparison, list[Contender]]]:
        """Return further comparisons, and who takes turns in them."""
        return []

    def finish(self, pairs: Sequence[tuple[Comparison, Case]], tell: Turns) -> None:
        """Measure what does not take turns."""

    # Who is measured

    def contenders(self, case: Case, size: int) -> list[Contender]:
        """Return who steps batches of a size in this process."""
        actions = cache(lambda: action_ring(case.env.action_space, size, self.options.seed, self.ring))
        variants = {**self.VARIANTS, **(self.WINDOWLESS if case.window_floats else {})}
        found = []
        for threads in self.thread_counts(size):
            for end, given in variants.items():
                kind = given.get("observation", "flat")
                floats = case.floats - (case.window_floats if kind == "cursor" else 0)
                row = self.row(OURS, f"velodrome{end}", size, threads=threads, kind=kind, floats=floats)
                values = {**case.values, **given, "threads": threads}
                found.append(Contender(row, partial(self.open_native, size, values, actions)))
        for name, peer in self.peers.items():
            if not (peer.processes or peer.own_problem) and size <= peer.largest:
                row = self.row(name, peer.label, size, floats=case.floats)
                found.append(Contender(row, partial(self.open_peer, peer, case, size, actions)))
        return found

    def row(self, peer: str, label: str, size: int, **values: Any) -> Measurement:
        """Return a measurement that has no rounds yet."""
        return Measurement(peer=peer, label=label, num_envs=size, steps_per_call=size, **values)

    def thread_counts(self, size: int, smallest: int = LANES + 1) -> tuple[int, ...]:
        """Return one thread, and all of them where a batch is large enough to share, as ours is from two blocks on."""
        every = self.options.threads or numba.config.NUMBA_NUM_THREADS
        return tuple(sorted({1, every})) if size >= smallest else (1,)

    def open_native(self, size: int, values: Mapping[str, Any], actions: Callable[[], list[Any]]) -> Stepper:
        """Return what steps a native batch."""
        envs = make_vec(self.entry.name, size, backend="native", seed=self.options.seed, **values)
        envs.reset()
        return ring_stepper(envs, actions())

    def open_peer(self, peer: Peer, case: Case, size: int, actions: Callable[[], list[Any]]) -> Stepper:
        """Return what steps a peer's batch."""
        return self.open_batch(lambda: peer.open(Source([case.plain] * size, self.options.seed, case.tables)), actions)

    def open_batch(self, opens: Callable[[], Any], actions: Callable[[], list[Any]]) -> Stepper:
        """Return what steps a batch that is opened and reset first."""
        batch = opens()
        batch.reset(self.options.seed)
        return ring_stepper(batch, actions())

    def with_processes(self, case: Case) -> list[Contender]:
        """Return the peers that have a process for each environment, each in an interpreter of its own."""
        found = []
        for name, peer in ((name, peer) for name, peer in self.peers.items() if peer.processes):
            given: dict[str, Any] = {"env": case.name, "seed": self.options.seed, "pickled": pickle.dumps(case.plain)}
            # Those asked for and, in a full run, one for each environment.
            sizes = [size for size in self.options.sizes if 1 < size <= peer.largest and not self.options.quick]
            for count in sorted({*getattr(self.options, "processes", ()), *sizes}):
                spec = BatchSpec(name, num_envs=count, **given)
                found.append(Contender(spec.row(floats=case.floats), partial(Host, spec)))
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
            for peer_name, wanted in self.PROMISED.items() if self.TARGET_CASE in (None, comparison.name) else ():
                rows = comparison.rows(peer=peer_name, num_envs=self.TARGET_SIZE)
                reached = [row.ratios["native"] for row in rows if row.processes in (0, self.TARGET_SIZE)]
                if reached:
                    name = f"native over {rows[0].label} at n = {self.TARGET_SIZE:,}"
                    self.report.judge(name, min(reached), wanted)

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


def ring_stepper(envs: Any, actions: Sequence[Any]) -> Stepper:
    """Return what steps a batch through a ring of actions."""
    step, count = envs.step, len(actions)
    return Stepper(lambda k: step(actions[k % count]), close=envs.close)


def step_benchmark(entry: EnvEntry) -> type[StepBenchmark]:
    """Return what measures an environment: what its entry names, or the benchmark for any."""
    return load(entry.benchmark) if entry.benchmark else StepBenchmark
