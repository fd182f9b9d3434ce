"""`velodrome bench vector`: one environment under every vectoriser, and what is recommended for it.

Parity first: a contender that does not give the rewards and ends of gymnasium.vector.SyncVectorEnv stops the run. Then
contenders take turns, each in an interpreter of its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field
from rich.console import RenderableType
from rich.text import Text

from velodrome.bench.hosts.batches import PEERS, BatchSpec
from velodrome.bench.hosts.environments import STRAGGLER_FACTOR, environment_source
from velodrome.bench.hosts.host import Host
from velodrome.bench.options import BenchmarkOptions
from velodrome.bench.parity import check_trajectories, steps_to_compare
from velodrome.bench.peers import pufferlib
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.problems.trading import TradingBenchmark, TradingOptions
from velodrome.bench.report import OURS, Comparison, Measurement, median_ratio
from velodrome.bench.run import Benchmark, Turns
from velodrome.bench.timing import Contender, excused, take_turns
from velodrome.envs.catalog import CATALOG
from velodrome.errors import ConfigError
from velodrome.vector.cores import available_cores
from velodrome.vector.messages import seconds_text
from velodrome.vector.workers.autotune import worker_counts

PLAIN_TRADING = "trading-plain"
SUITE = (PLAIN_TRADING, "burn:20us", "burn:200us", "burn:2ms", "sleep:2ms")
CHEAP = (PLAIN_TRADING, "burn:20us")  # what is promised of these is more than not to be slower
LARGEST_SWEEP = 64  # workers
STRAGGLERS = f"One environment {STRAGGLER_FACTOR:.0f} × slower than the rest"
# Steps of milliseconds leave nothing for a vectoriser to gain: two that are equal differ by noise of about this much.
NOISE = 0.03
# Who is to be how many times as fast as whom, on environments of microseconds.
WANTED_OF_CHEAP = (("process", "subproc", 3.0), ("process", "async", 2.0), ("serial", "dummy", 1.0))
WANTED_OF_ASYNC = 3.0  # over process, where one environment holds up the others
# What a recommendation was measured by, for people.
ADVICE: dict[str, Callable[[float], str]] = {
    "reset_seconds": lambda seconds: f"reset {seconds_text(seconds)}",
    "episode_length": lambda steps: f"episodes of {steps:,.0f} steps",
    "bytes_per_worker": lambda size: f"a worker {size / 2**20:,.0f} MiB",
    "bytes_per_environment": lambda size: f"each further environment {size / 2**20:,.1f} MiB",
    "cores": lambda cores: f"{cores} cores",
}


class VectorOptions(BenchmarkOptions):
    """How vectorisers are measured."""

    PEERS: ClassVar = PEERS
    QUICK: ClassVar = {"seconds": 0.5, "repeats": 3}

    env: str | None = Field(
        None, description="Gymnasium id, module:Class, module:function, trading-plain, burn:20us or sleep:2ms"
    )
    num_envs: int = Field(16, ge=1, le=1024, description="environments of every contender")
    policy: Literal["none", "cpu", "cuda"] = Field(
        "none", description="where a small network computes the actions; none: a ring of sampled ones"
    )
    seconds: float = Field(3.0, gt=0.0, le=600.0, description="seconds of stepping per contender, all repeats")
    repeats: int = Field(7, ge=1, le=100, description="rounds in which contenders take turns; medians count")
    sweep: bool = Field(False, description="measure process with every sensible number of workers")
    straggler: bool = Field(False, description="measure async beside process where one environment is 10 × slower")
    suite: bool = Field(False, description=f"measure {', '.join(SUITE)} and the straggler, and judge what is promised")

    @property
    def environments(self) -> tuple[str, ...]:
        """Names of the environments to measure."""
        return SUITE if self.suite else (self.env,) if self.env is not None else ()

    def resolved(self) -> Self:
        """Return the options, those of a quick run in place of every default if it is one; refuse contradictions."""
        if self.suite and self.env is not None:
            raise ConfigError(f"--suite measures environments of its own; leave out {self.env}, or --suite")
        if not (self.environments or self.straggler):
            raise ConfigError("nothing to measure: name an environment, such as CartPole-v1, or --suite or --straggler")
        if self.policy == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ConfigError("--policy cuda: torch sees no CUDA device here; legal: none, cpu")
        return super().resolved()


class Straggling(NamedTuple):
    """A setting in which async is compared with process."""

    env: str  # the environments that are not slow
    num_envs: int
    workers: int
    received: int  # environments that one recv of async waits for
    note: str
    judged: bool = True  # whether something is promised of it

    @property
    def name(self) -> str:
        """The setting, for people."""
        return f"{self.num_envs} × {self.env}"


class VectorBenchmark(Benchmark):
    """Vectorisers on environments that are no rules of Velodrome."""

    title = "batches (* recommended)"

    def __init__(self, options: VectorOptions) -> None:
        super().__init__("vector", options)

    def measure(self, tell: Turns) -> None:
        """Measure each environment, then the stragglers."""
        options = self.options
        own = 4 + (len(swept_counts(options.num_envs)) if options.sweep else 0)
        settings = straggler_settings() if options.straggler or options.suite else []
        each = 2 + (len(self.peers) + own) * options.repeats
        tell.expect(len(options.environments) * each + len(settings) * 2 * options.repeats)
        for env in options.environments:
            self.measure_environment(env, tell)
        if settings:
            comparison = self.report.begin(STRAGGLERS, f"{STRAGGLERS}: steps per second")
            for setting in settings:
                self.measure_straggler(setting, comparison, tell)

    def measure_environment(self, env: str, tell: Turns) -> None:
        """Ask for the recommendation, check parity, then time everybody in turns."""
        options, num_envs = self.options, self.options.num_envs
        shared: dict[str, Any] = {"env": env, "num_envs": num_envs, "policy": options.policy, "seed": options.seed}
        if env == PLAIN_TRADING:
            (case,) = TradingBenchmark(CATALOG.get("trading"), TradingOptions(seed=options.seed)).cases()
            shared["pickled"] = pickle.dumps(case.plain)
        else:
            environment_source(env)  # a name that means nothing is refused here
        comparison = self.report.begin(env, f"{env}: steps per second of {num_envs} environments")
        with Host(BatchSpec(OURS, **shared)) as host:
            seconds = min(2.0, max(0.5, options.seconds))
            # An environment that cannot be stepped ends the run here, with its fault.
            advice = comparison.facts["recommendation"] = host.ask("recommend", seconds, seconds=seconds)
        tell(f"{env}: recommendation")
        specs = [*own_specs(options, advice, shared), *peer_specs(self.peers, advice, shared)]
        with ExitStack() as stack:
            hosts = self.open_hosts(specs, stack)
            reference = next((host for host in hosts if host.spec.peer == "sync"), None)
            if reference is None:  # it was not asked for, and is needed all the same
                reference = self.open_hosts([BatchSpec("sync", **shared)], stack)[0]
            comparison.parity = check_trajectories(reference, hosts, steps_to_compare(advice["step_seconds"], num_envs))
            tell(f"{env}: parity")
            self.take_turns(hosts, comparison, tell)

    def open_hosts(self, specs: Sequence[BatchSpec], stack: ExitStack) -> list[Host]:
        """Start an interpreter for each contender; a peer that cannot be opened is reported, ours is an error."""
        started = [stack.enter_context(Host(spec)) for spec in specs]  # they import at the same time
        hosts = []
        for host in started:
            with excused(host.spec.row(), self.report):
                host.ask("open")
                hosts.append(host)
        return hosts

    def take_turns(self, hosts: Sequence[Host], comparison: Comparison, tell: Turns) -> None:
        """Time each host once per round."""
        rows = {host: host.spec.row() for host in hosts}
        contenders = [Contender(row, lambda host=host: host) for host, row in rows.items()]  # type: ignore[misc]

        def look(ready: Sequence[Any]) -> None:
            for host in ready:
                rows[host].memory, gpu_missing = host.ask("memory")
                note = f"GPU use is not known: {gpu_missing}"
                if gpu_missing and note not in self.report.notes:
                    self.report.notes.append(note)

        take_turns(contenders, self.options, self.report, comparison.measurements, tell, look)

    def measure_straggler(self, setting: Straggling, comparison: Comparison, tell: Turns) -> None:
        """Time async beside process, the same environments and workers."""
        env, num_envs, workers, received, *_ = setting
        own: dict[str, Any] = {"env": env, "num_envs": num_envs, "workers": workers, "seed": self.options.seed}
        own["straggler"] = True
        specs = [BatchSpec(OURS, kind="process", **own), BatchSpec(OURS, kind="async", received=received, **own)]
        comparison.facts[f"{setting.name}, {workers} workers"] = setting._asdict()
        with ExitStack() as stack:
            self.take_turns(self.open_hosts(specs, stack), comparison, tell)

    # What follows

    def conclude(self) -> None:
        """Fill in ratios, the lines below the tables, and the targets."""
        # Promises are about the suite, without a policy.
        judged = self.options.suite and self.options.policy == "none"
        for comparison in self.report.comparisons:
            if comparison.name == STRAGGLERS:
                self.conclude_stragglers(comparison, judged)
            elif comparison.measurements:
                conclude_environment(comparison, self.options.sweep)
                if judged:
                    self.judge_environment(comparison)

    def judge_environment(self, comparison: Comparison) -> None:
        """Set what was reached beside what is promised of process, as a user gets it, and of serial."""
        cheap = comparison.name in CHEAP
        what = "over" if cheap else f"not slower, within {NOISE:.0%}, than"
        for kind, peer, wanted in WANTED_OF_CHEAP:
            # With the workers that are recommended, else one for each core.
            rows = sorted(comparison.rows(kind=kind), key=lambda row: not row.recommended)
            if rows and peer in rows[0].ratios:
                who = f"{kind} ({rows[0].processes} workers)" if rows[0].processes else kind
                name = f"{comparison.name}: {who} {what} {VECTORISERS[peer].label}"
                self.report.judge(name, rows[0].ratios[peer], wanted if cheap else 1.0 - NOISE)

    def conclude_stragglers(self, comparison: Comparison, judged: bool) -> None:
        """Fill in how much faster async is than process, setting by setting."""
        for facts in comparison.facts.values():
            setting = Straggling(**facts)
            who = f"{setting.name}, {setting.workers} workers"
            rows = comparison.rows(processes=setting.workers)
            by_kind = {row.kind: row for row in rows if row.label.startswith(f"{setting.name}, ")}
            if {"process", "async"} <= by_kind.keys():
                gain = median_ratio(by_kind["async"].rounds, by_kind["process"].rounds)
                by_kind["async"].ratios["process"] = gain or 0.0
                if judged and setting.judged:
                    name = f"one of {setting.name} {STRAGGLER_FACTOR:.0f} × slower: async over process"
                    self.report.judge(f"{name}, {setting.workers} workers", gain, WANTED_OF_ASYNC)
            comparison.lines.append(f"{who}: {setting.note}")

    def more(self) -> Sequence[RenderableType]:
        """Return how to read the tables."""
        lines = []
        if any(comparison.parity for comparison in self.report.comparisons):
            lines.append(
                "Everyone steps the same number of environments; SubprocVecEnv and AsyncVectorEnv have a process for "
                "each, forked from a fresh interpreter, their best case. cores: kept busy by all processes of a "
                "contender; MiB: what they grew by with the environments; ×Dummy, ×Subp, ×Async: times the speed of, "
                "median of the rounds"
            )
        if self.options.policy != "none":
            policy = f"a network of 64 × 64 on {self.options.policy} (torch, one thread)"
            lines.append(f"Actions: {policy}; its time is in the steps")
        return [Text("\n".join(lines))] if lines else []


def beside_pufferlib(by_speed: Sequence[Measurement]) -> list[str]:
    """Return how many times as fast as the fastest of PufferLib ours are; its columns would not fit in the table."""
    theirs = [row for row in by_speed if row.peer in pufferlib.PUFFERLIB]
    if not theirs:
        return []
    best = theirs[-1]
    ours = [
        f"{row.label.removeprefix(OURS).strip()}{f' ({row.processes} workers)' if row.processes else ''} {ratio:.2f}"
        for row in reversed(by_speed)
        if row.peer == OURS and (ratio := median_ratio(row.rounds, best.rounds)) is not None
    ]
    workers = f" with {best.processes} workers" if best.processes else ""
    return [f"  Times the fastest of PufferLib, {best.label}{workers}: {', '.join(ours)}"]


def swept_counts(num_envs: int) -> list[int]:
    """Return the numbers of workers of a sweep."""
    return [count for count in (1, *worker_counts(num_envs)) if count <= LARGEST_SWEEP]


def own_specs(options: VectorOptions, advice: dict[str, Any], shared: dict[str, Any]) -> list[BatchSpec]:
    """Return serial, process with the recommended workers and with one for each core, and async."""
    num_envs, counts = shared["num_envs"], set(counts_of_workers(advice, shared))
    # Steps that wait are best served by as many workers as are recommended; others by one for each core.
    most = max(counts)
    if options.sweep:
        counts |= set(swept_counts(num_envs))
    processes = [BatchSpec(OURS, kind="process", workers=count, **shared) for count in sorted(counts)]
    waiting = BatchSpec(OURS, kind="async", workers=most, received=max(1, num_envs // 2), **shared)
    return [BatchSpec(OURS, kind="serial", **shared), *processes, waiting]


def counts_of_workers(advice: dict[str, Any], shared: dict[str, Any]) -> list[int]:
    """Return one worker for each core, and as many as are recommended."""
    counts = {min(available_cores(), shared["num_envs"])}
    return sorted(counts | {advice["workers"]} if advice["backend"] == "process" else counts)


def peer_specs(peers: Iterable[str], advice: dict[str, Any], shared: dict[str, Any]) -> list[BatchSpec]:
    """Return the peers: those that are told how many workers to have in as many as ours, the others as they are."""
    counts = counts_of_workers(advice, shared)
    found = []
    for peer in peers:
        told = pufferlib.layouts(peer, shared["num_envs"], counts) if peer in pufferlib.PUFFERLIB else [{}]
        found += [BatchSpec(peer, **given, **shared) for given in told]
    return found


def straggler_settings() -> list[Straggling]:
    """Return the settings in which async is compared with process.

    Environments that wait have a worker each, and any number of them can wait at once. Environments that compute share
    the cores: a worker for each, with one environment, shows what a straggler costs; with many environments for each
    core the cores are busy either way, and there is little to gain.
    """
    few = max(2, available_cores())
    # Steps that cost as much as (n − 1 + 10) others give n; without the slow one, the same time gives as many as that.
    bound = (16 - 1 + STRAGGLER_FACTOR) / 16
    little = f"many environments for each core: spread evenly, async could gain {bound:.2g} × at most"
    return [
        Straggling("sleep:2ms", 16, 16, 4, "a worker for each environment"),
        Straggling("burn:2ms", few, few, max(1, few // 2), "an environment for each core"),
        Straggling("burn:2ms", 16, few, 4, little, judged=False),
    ]


def conclude_environment(comparison: Comparison, sweep: bool) -> None:
    """Fill in ratios, what is recommended, and how near it comes to the best of a sweep."""
    by_speed = sorted(comparison.measurements, key=lambda row: row.steps_per_second)
    comparison.relate({row.peer: row for row in by_speed if row.peer != OURS})  # the fastest layout of each peer
    advice = comparison.facts["recommendation"]
    own = next(iter(comparison.rows(kind=advice["backend"], processes=advice["workers"])), None)
    facts = [told(advice[name]) for name, told in ADVICE.items() if advice[name] is not None]
    comparison.lines += [f"* recommended: {advice['sentence']}", f"  {', '.join(facts)}"]
    if own is not None:
        own.recommended = True
        rows = [row for row in comparison.measurements if row.kind in ("serial", "process")]
        if sweep:
            best = max(rows, key=lambda row: row.steps_per_second)
            name = f"{best.kind}, {best.processes} workers" if best.processes else best.kind
            share = comparison.facts["sweep_share"] = median_ratio(own.rounds, best.rounds) or 0.0
            comparison.lines.append(f"  Sweep: what is recommended reaches {share:.0%} of the best of all, {name}")
    comparison.lines += beside_pufferlib(by_speed)
    if comparison.parity is None:
        comparison.lines.append(
            "  No parity: the environment gives something else for the same seeds and actions each time"
        )
