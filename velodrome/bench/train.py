"""`velodrome bench train`: how fast an algorithm trains, and PPO beside the ways in which others run it.

Parity first: the peers' environment must be the native one, and all networks must have as many parameters. Then
contenders take turns, iteration by iteration, and sgemm beside them, which bounds what any of them could reach. Last, a
race to a fraction of the known optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, field_validator, model_validator
from rich.console import RenderableType
from rich.text import Text

from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.parity import ParityError
from velodrome.bench.peers.pufferl import PufferTrainer
from velodrome.bench.peers.pufferlib import NEEDS as NEEDS_PUFFERLIB
from velodrome.bench.peers.sb3 import StableBaselinesTrainer
from velodrome.bench.peers.torchrl import TorchRLTrainer
from velodrome.bench.peers.vectorisers import NEEDS_SB3
from velodrome.bench.plot import PHASE_COLOURS, Draw, by_speed
from velodrome.bench.problems.ar1 import OutOfSample, train_problem
from velodrome.bench.problems.trading import check_trading
from velodrome.bench.race import Race, draw_race, race_results, race_table, run_race
from velodrome.bench.report import OURS, PHASES, Comparison, Measurement, Report, median_ratio
from velodrome.bench.run import Benchmark, Turns
from velodrome.bench.sgemm import Bound, operations_per_step, sgemm_rate
from velodrome.bench.timing import Contender, take_turns
from velodrome.bench.trainer import Trainer, VelodromeTrainer, torch_threads
from velodrome.learn.catalog import ALGORITHMS
from velodrome.outside.extras import install
from velodrome.runs.live.progress import compact
from velodrome.vector.cores import available_cores

ACTIONS = 3  # short, flat, long
COMPARED = "ppo"  # what the peers train, and what the bound counts the operations of
AUTOGRAD = "velodrome, autograd"
DUMMY = Peer("SB3 DummyVecEnv", partial(StableBaselinesTrainer, "DummyVecEnv"), **NEEDS_SB3)
SERIAL = Peer("PufferLib Serial", partial(PufferTrainer, "Serial"), **NEEDS_PUFFERLIB)
SUBPROC = partial(StableBaselinesTrainer, "SubprocVecEnv")
TRAIN_PEERS: dict[str, Peer] = {
    "dummy": DUMMY,
    "dummy_1_thread": DUMMY._replace(label="SB3 DummyVecEnv, 1 thr."),
    "dummy64": DUMMY,
    "subproc": Peer("SB3 SubprocVecEnv", SUBPROC, **NEEDS_SB3, processes=True),
    "torchrl": Peer("TorchRL SerialEnv", TorchRLTrainer, ("torchrl",), install("torchrl")),
    # Its workers keep all cores busy, which leaves torch's threads to wait for each other.
    "puffer": Peer("PufferLib workers, 1 thr.", partial(PufferTrainer, "Multiprocessing"), **NEEDS_PUFFERLIB),
    "puffer_serial": SERIAL,
    "puffer_serial_1_thread": SERIAL._replace(label="PufferLib Serial, 1 thr."),
}
ENVIRONMENTS = dict.fromkeys(TRAIN_PEERS, 8) | {name: 64 for name in TRAIN_PEERS if "64" in name or "puffer" in name}
THREADS = {"dummy_1_thread": 1, "puffer": 1, "puffer_serial_1_thread": 1}  # of torch; else all cores
# Ratios are about the faster of these: matrices this small are often multiplied faster by one thread.
YARDSTICKS = ("dummy", "dummy_1_thread")
# Of each of these the faster races.
RIVALS = (YARDSTICKS, ("puffer", "puffer_serial", "puffer_serial_1_thread"))
WANTED_RATIO = 10.0  # times the yardstick
WANTED_SHARE = 0.5  # of what sgemm allows
# What is promised is about this setting.
STANDARD = {"algorithm": COMPARED, "batch": 8192, "epochs": 4, "minibatches": 4, "hidden": [64, 64]}
STANDARD_SIZE = 256


class TrainOptions(BenchmarkOptions):
    """How the speed of training is measured."""

    PEERS: ClassVar = TRAIN_PEERS
    QUICK: ClassVar = {
        "against": ("dummy", "dummy_1_thread", "dummy64"),
        "seconds": 1.5,
        "repeats": 3,
        "bars": 50_000,
        "race_seconds": 6.0,
        "race_seeds": 1,
    }

    algorithm: str = Field(COMPARED, description="algorithm to train with, by its name in the catalogue")
    sizes: tuple[int, ...] = Field(
        (STANDARD_SIZE, 1024), description="numbers of environments of Velodrome; what is promised is about the first"
    )
    seconds: float = Field(10.0, gt=0.0, le=600.0, description="seconds of training per contender, all repeats")
    repeats: int = Field(5, ge=3, le=100, description="rounds in which contenders take turns; medians count")
    batch: int = Field(8192, ge=64, le=1_000_000, multiple_of=64, description="steps in a rollout, all environments")
    epochs: int = Field(4, ge=1, le=100, description="passes over a rollout in an update")
    minibatches: int = Field(4, ge=1, le=64, description="parts of a rollout, each one gradient step")
    hidden: tuple[int, ...] = Field((64, 64), description="widths of the hidden layers of actor and critic, each")
    learning_rate: float = Field(3e-4, gt=0.0, description="of Adam")
    adam_epsilon: float = Field(1e-5, gt=0.0, description="of Adam")
    clip: float = Field(0.2, gt=0.0, description="by how much the ratio of probabilities may differ from 1")
    # Without costs an action changes nothing but the next reward, so there is little to look ahead to.
    gamma: float = Field(0.9, ge=0.0, le=1.0, description="what the next step's value counts")
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0, description="of generalised advantage estimation")
    value_weight: float = Field(0.5, ge=0.0, description="weight of the values' mean squared error in the loss")
    max_gradient_norm: float = Field(0.5, gt=0.0, description="to which gradients are cut")
    fraction: float = Field(0.8, gt=0.0, lt=1.0, description="share of the known optimum that is to be learned")
    race_seconds: float = Field(120.0, ge=0.0, le=86_400.0, description="seconds to learn it in, each; 0: not measured")
    race_seeds: int = Field(3, ge=1, le=100, description="how often learning is timed, with a new seed each time")
    evaluate_every: int = Field(2, ge=1, le=1000, description="iterations between two evaluations while learning")
    bars: int = Field(100_000, ge=10_000, le=10_000_000, description="bars of the market, 80 % of them to train on")
    episode_length: int = Field(1000, ge=1, le=2000, description="decisions in an episode")

    @field_validator("hidden")
    @classmethod
    def _widths_are_legal(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not widths or not all(1 <= width <= 65536 for width in widths):
            raise ValueError("needs one or more widths from 1 to 65536")
        return widths

    @model_validator(mode="after")
    def _sizes_divide_the_batch(self) -> Self:
        if not self.sizes or not all(size >= 1 and self.batch % size == 0 for size in self.sizes):
            raise ValueError(f"sizes {self.sizes}: needs one or more numbers that divide the batch of {self.batch}")
        if self.batch % self.minibatches:
            raise ValueError(f"{self.minibatches} minibatches do not divide the batch of {self.batch}")
        return self

    @property
    def minibatch(self) -> int:
        """Samples in a gradient step."""
        return self.batch // self.minibatches

    @property
    def peers(self) -> dict[str, Peer]:
        """The peers that are asked for; they train PPO only."""
        return super().peers if self.algorithm == COMPARED else {}


class TrainReport(Report):
    """Everything that a run found out."""

    parameters: int | None = Field(None, description="trainable numbers of the networks, the same for every contender")
    bound: Bound | None = None
    race: Race | None = None


def beside_sgemm(trainer: Any) -> Any:
    """Have sgemm on either side of a trainer's turns: a bound that held before and after counts."""
    train = trainer.time

    def time(calls: int) -> dict[str, float]:
        before = sgemm_rate()
        found = train(calls)
        return {**found, "flops": max(before, sgemm_rate())}

    trainer.time = time
    return trainer


class TrainBenchmark(Benchmark):
    """Collecting and learning together."""

    title = "training, same network, batch and epochs"
    report_type = TrainReport

    def __init__(self, options: TrainOptions) -> None:
        super().__init__("train", options)
        options = self.options
        self.algorithm = ALGORITHMS.get(options.algorithm)
        self.threads = available_cores()
        self.problem = train_problem(options, numbers="Discrete" not in self.algorithm.action_spaces)
        floats = self.report.facts["floats"] = self.problem.case.floats
        if options.algorithm == COMPARED:
            operations = operations_per_step(floats, options.hidden, (ACTIONS, 1), options.epochs)
            self.report.bound = Bound(threads=self.threads, operations=operations.total)
        elif set(options.against) - {"all", "none"}:
            self.report.notes.append(f"Peers train {COMPARED} only; none is measured beside {options.algorithm}.")

    # Who trains

    def contenders(self, seed: int) -> list[Contender]:
        """Return Velodrome in every layout that is asked for, by plain autograd in the first of them, and the peers."""
        problem, sizes = self.problem, self.options.sizes
        own = partial(VelodromeTrainer, problem, self.algorithm)
        found = [self.contender(OURS, OURS, size, partial(own, size, "auto", seed)) for size in dict.fromkeys(sizes)]
        has_engines = "engine" in self.algorithm.config_model().model_fields
        if has_engines and self.algorithm.reads(self.algorithm.name, "engine"):
            found.append(self.contender(OURS, AUTOGRAD, sizes[0], partial(own, sizes[0], "autograd", seed)))
        for name, peer in self.peers.items():
            size = ENVIRONMENTS[name]
            found.append(self.contender(name, peer.label, size, partial(peer.open, problem, size, seed)))
        return found

    def contender(self, peer: str, label: str, size: int, start: Callable[[], Trainer]) -> Contender:
        """Return somebody who trains in a layout."""
        batch, threads = self.options.batch, THREADS.get(peer)
        layout = {"num_envs": size, "rollout_length": batch // size, "steps_per_call": batch}
        processes = size if peer in self.peers and self.peers[peer].processes else 0
        row = Measurement(peer=peer, label=label, threads=threads or self.threads, processes=processes, **layout)

        def started() -> Trainer:
            trainer = start()
            trainer.threads, row.kind = threads, trainer.engine
            return trainer

        return Contender(row, started)

    # What is measured

    def measure(self, tell: Turns) -> None:
        """Prove parity, let everybody take turns, then race."""
        options, report = self.options, self.report
        with torch_threads(self.threads):
            contenders = self.contenders(options.seed)
            racers = 1 + sum(any(name in self.peers for name in names) for names in RIVALS)
            races = options.race_seeds * racers if options.race_seconds else 0
            tell.expect(1 + len(contenders) * options.repeats + races)
            name = self.algorithm.name.upper()
            comparison = report.begin(name, f"{name}: training steps per second; time: {'/'.join(PHASES)}")
            if self.peers:
                comparison.parity = check_trading(self.problem.case, options.seed)
            tell("parity")
            self.measure_speed(contenders, comparison, tell)
            if options.race_seconds:
                self.measure_race(comparison, tell)

    def measure_speed(self, contenders: list[Contender], comparison: Comparison, tell: Turns) -> None:
        """Let contenders take turns, with sgemm beside Velodrome's first layout if it bounds the algorithm."""
        if self.report.bound is not None:
            row, start = contenders[0]
            contenders = [Contender(row, lambda: beside_sgemm(start())), *contenders[1:]]
        take_turns(contenders, self.options, self.report, comparison.measurements, tell, self.same_parameters)

    def same_parameters(self, ready: Sequence[Any]) -> None:
        """Write down how many parameters every network has; raise if they differ."""
        counts = [trainer.parameters for trainer in ready]
        if len(set(counts)) > 1:
            listed = ", ".join(f"{type(trainer).__name__} {trainer.parameters:,}" for trainer in ready)
            raise ParityError(f"the contenders do not train the same network: {listed} parameters. Nothing was timed.")
        self.report.parameters = counts[0]

    def measure_race(self, comparison: Comparison, tell: Turns) -> None:
        """Race Velodrome in its first layout against the faster yardstick and the fastest of PufferLib."""
        options, found = self.options, [fastest(comparison, names) for names in RIVALS]
        rivals = {row.peer for row in found if row is not None}
        with closing(OutOfSample(self.problem.market, self.problem.case.values)) as judge:
            limits: dict[str, Any] = {"limit_seconds": options.race_seconds, "evaluate_every": options.evaluate_every}
            best = {"optimum": judge.optimum, "best_rule_share": judge.best_share()}
            race = self.report.race = Race(fraction=options.fraction, **limits, **best)
            for seed in range(options.seed, options.seed + options.race_seeds):
                first, *others = self.contenders(seed)
                racers = [first, *(one for one in others if one.row.peer in rivals)]
                run_race(race, racers, seed, judge, tell)

    # What follows

    def yardstick(self, comparison: Comparison) -> Measurement | None:
        """Return the measurement that ratios are about: the faster SB3 PPO with DummyVecEnv(8)."""
        return fastest(comparison, YARDSTICKS)

    def conclude(self) -> None:
        """Fill in ratios, the share of the bound, the race and the targets."""
        report = self.report
        if report.race is not None:
            report.race.results = race_results(report.race)
        for comparison in report.comparisons:
            yardstick = self.yardstick(comparison)
            comparison.relate({"sb3": yardstick} if yardstick else {})
            own = next(iter(comparison.rows(label=OURS)), None)
            if own is not None and report.bound is not None:
                report.bound.conclude(own)
                comparison.facts["bound"] = report.bound.steps_per_second
            report.targets = []
            # Another setting is not what was promised.
            standard = all(report.options[name] == value for name, value in STANDARD.items())
            if own is not None and standard and report.options["sizes"][0] == STANDARD_SIZE:
                self.judge(comparison, own)

    def judge(self, comparison: Comparison, own: Measurement) -> None:
        """Set what was reached beside what is promised."""
        for row in comparison.measurements:
            if row.peer in YARDSTICKS:
                threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
                name = f"velodrome {own.layout} over SB3 PPO with DummyVecEnv(8), torch on {threads}, steps per second"
                self.report.judge(name, median_ratio(own.rounds, row.rounds), WANTED_RATIO)
        if self.report.bound is not None:
            name = f"velodrome {own.layout} over the bound that sgemm sets"
            self.report.judge(name, self.report.bound.share, WANTED_SHARE)

    def more(self) -> Sequence[RenderableType]:
        """Return the race, what all contenders share, the bound and what the race means."""
        report, given = self.report, self.options
        hidden = " × ".join(str(width) for width in given.hidden)
        lines = [
            f"Everyone: {report.facts['floats']} floats, networks of {hidden} tanh with {report.parameters or 0:,} "
            f"parameters, batches of {given.batch:,}, {given.epochs} epochs in minibatches of {given.minibatch:,}, "
            f"Adam {given.learning_rate:g}, clip {given.clip:g}, gamma {given.gamma:g}, lambda {given.gae_lambda:g}, "
            f"as far as the algorithm has them; torch on {self.threads} threads (all cores) unless the label says "
            f"otherwise. Layout: environments × steps in a batch; × SB3: times the faster SB3 with DummyVecEnv(8)"
        ]
        bound = report.bound
        if bound is not None and bound.share is not None and bound.share_of_best is not None:
            lines.append(
                f"Bound: {bound.operations:,} floating-point operations a step at sgemm's best "
                f"{bound.best_flops / 1e9:.0f} GFLOP/s allow {compact(bound.steps_per_second)} steps/s; velodrome's "
                f"first layout reaches {bound.share:.0%} of it against the sgemm of its own round (median of "
                f"{len(bound.flops)}), {bound.share_of_best:.0%} against the best of all rounds"
            )
        if report.race is None:
            return [Text("\n".join(lines))]
        lines.append(
            f"Optimum: {report.race.optimum:.2e} log return a bar; following the sign of the last return, the best "
            f"rule, reaches {report.race.best_rule_share:.1%} of it on these test bars"
        )
        tables = [race_table(report.race)] if report.race.results else []
        return [*tables, Text("\n".join(lines))]

    def more_panels(self) -> Sequence[Draw]:
        """Return where the time goes, and the race."""
        race, comparison = self.report.race, self.report.comparisons[0]
        draws: list[Draw] = [lambda panel: draw_phases(comparison, panel)]
        if race is not None and race.runs:
            draws.append(lambda panel: draw_race(race, panel))
        return draws


def fastest(comparison: Comparison, peers: Collection[str]) -> Measurement | None:
    """Return the measurement of some peers that has the most steps per second."""
    rows = [row for row in comparison.measurements if row.peer in peers]
    return max(rows, key=lambda row: row.steps_per_second, default=None)


def draw_phases(comparison: Comparison, panel: Any) -> None:
    """Draw the share of each phase, in the order of the speeds."""
    rows = by_speed(comparison)
    seconds = np.array([[row.mean(phase) or 0.0 for row in rows] for phase in PHASES])
    shares = 100.0 * seconds / seconds.sum(axis=0)
    for phase, widths, ends in zip(PHASES, shares, shares.cumsum(axis=0), strict=True):
        panel.barh(range(len(rows)), widths, left=ends - widths, color=PHASE_COLOURS[phase], label=phase)
    panel.set(yticks=[], xlim=(0, 100), xlabel="% of the time", title="Where the time goes")
