"""`velodrome bench train`: how fast an algorithm trains, and PPO beside the ways in which others run it.

Parity first: the peers' environment must be the native one, and all networks must have as many parameters. Then
contenders take turns, iteration by iteration, and sgemm beside them, which bounds what any of them could reach. Last, a
race to a fraction of the known optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, Field, field_validator, model_validator
from rich.console import RenderableType
from rich.text import Text

from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.parity import ParityError
from velodrome.bench.peers.sb3 import NEEDS, train_with_dummy, train_with_subproc
from velodrome.bench.peers.torchrl import TorchRLTrainer
from velodrome.bench.plot import PHASE_COLOURS, Draw, by_speed
from velodrome.bench.problems.ar1 import OutOfSample, train_problem
from velodrome.bench.problems.trading import check_trading
from velodrome.bench.race import Race, draw_race, race_results, race_table, run_race
from velodrome.bench.render import compact
from velodrome.bench.report import OURS, PHASES, Comparison, Measurement, Report, median_ratio
from velodrome.bench.run import Benchmark, Turns
from velodrome.bench.sgemm import Operations, operations_per_step, perceptron, sgemm_rate
from velodrome.bench.timing import Contender, Timed, take_turns
from velodrome.bench.trainer import Settings, Trainer, VelodromeTrainer, torch_threads
from velodrome.learn.catalog import ALGORITHMS
from velodrome.vector.cores import available_cores

ACTIONS = 3  # short, flat, long
COMPARED = "ppo"  # what the peers train, and what the bound counts the operations of
AUTOGRAD = "velodrome, autograd"
TRAIN_PEERS: dict[str, Peer] = {
    "dummy": Peer("SB3 DummyVecEnv", train_with_dummy, **NEEDS),
    "dummy_1_thread": Peer("SB3 DummyVecEnv, 1 thr.", train_with_dummy, **NEEDS),
    "dummy64": Peer("SB3 DummyVecEnv", train_with_dummy, **NEEDS),
    "subproc": Peer("SB3 SubprocVecEnv", train_with_subproc, **NEEDS, processes=True),
    "torchrl": Peer("TorchRL SerialEnv", TorchRLTrainer, ("torchrl",), "pip install 'velodrome[torchrl]'"),
}
ENVIRONMENTS = dict.fromkeys(TRAIN_PEERS, 8) | {"dummy64": 64}
THREADS = {"dummy_1_thread": 1}  # of torch; else all cores
# Ratios are about the faster of these: matrices this small are often multiplied faster by one thread.
YARDSTICKS = ("dummy", "dummy_1_thread")
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
    fraction: float = Field(0.8, gt=0.0, lt=1.0, description="share of the known optimum that is to be learned")
    race_seconds: float = Field(
        120.0, ge=0.0, le=86_400.0, description="seconds of training to learn it in, each contender; 0: not measured"
    )
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
    def peers(self) -> dict[str, Peer]:
        """The peers that are asked for; they train PPO only."""
        return super().peers if self.algorithm == COMPARED else {}


class Bound(BaseModel):
    """What sgemm's speed allows if nothing but the matrix products took time."""

    threads: int
    operations: Operations
    flops: list[float] = Field(default_factory=list, description="operations per second of sgemm, round by round")
    best_flops: float = 0.0
    steps_per_second: float = Field(0.0, description="at the best of these rates")
    share: float | None = Field(None, description="reached by Velodrome: of each round's own bound, median")
    share_of_best: float | None = Field(None, description="reached by Velodrome's median, of the best round's bound")

    def conclude(self, own: Measurement) -> None:
        """Fill in what follows from the rounds."""
        self.flops = own.details.get("flops", [])
        if self.flops:
            self.best_flops = max(self.flops)
            self.steps_per_second = self.best_flops / self.operations.total
            self.share = median_ratio(own.rounds, [rate / self.operations.total for rate in self.flops])
            self.share_of_best = own.steps_per_second / self.steps_per_second


class TrainReport(Report):
    """Everything that a run found out."""

    settings: dict[str, Any] = Field(default_factory=dict, description="the same for every contender")
    parameters: int | None = Field(None, description="trainable numbers of the networks, the same for every contender")
    bound: Bound | None = None
    race: Race | None = None


class BesideSgemm(NamedTuple):
    """A trainer whose turns have sgemm on either side of them: a bound that held before and after counts."""

    trainer: Timed

    def warm_up(self, seconds: float) -> float:
        """Train for the first time."""
        return self.trainer.warm_up(seconds)

    def time(self, calls: int) -> dict[str, float]:
        """Return what the trainer took, and sgemm's operations per second."""
        before = sgemm_rate()
        found = self.trainer.time(calls)
        return {**found, "flops": max(before, sgemm_rate())}


class TrainBenchmark(Benchmark[TrainOptions, TrainReport]):
    """Collecting and learning together."""

    title = "training, same network, batch and epochs"
    report_type = TrainReport

    def __init__(self, options: TrainOptions) -> None:
        super().__init__("train", options)
        options = self.options
        self.algorithm = ALGORITHMS.get(options.algorithm)
        self.threads = available_cores()
        settings = Settings(options.batch, options.epochs, options.minibatches, options.hidden)
        self.problem = train_problem(options.bars, options.episode_length, settings, options.seed)
        self.report.settings = {**asdict(settings), "hidden": list(options.hidden), "floats": self.problem.floats}
        if options.algorithm == COMPARED:
            networks = [perceptron(self.problem.floats, options.hidden, outputs) for outputs in (ACTIONS, 1)]
            self.report.bound = Bound(threads=self.threads, operations=operations_per_step(networks, options.epochs))
        elif set(options.against) - {"all", "none"}:
            self.report.notes.append(f"Peers train {COMPARED} only; none is measured beside {options.algorithm}.")

    # Who trains

    def contenders(self, seed: int) -> list[Contender]:
        """Return Velodrome in every layout that is asked for, by plain autograd in the first of them, and the peers."""
        options, problem = self.options, self.problem
        found = [self._own(OURS, size, "auto", seed) for size in dict.fromkeys(options.sizes)]
        if "engine" in self.algorithm.config_model().model_fields:
            found.append(self._own(AUTOGRAD, options.sizes[0], "autograd", seed))
        for name, peer in self.peers.items():
            number = ENVIRONMENTS[name]
            row = self._row(name, peer.label, number, THREADS.get(name), number if peer.processes else 0)

            def start(name: str = name, peer: Peer = peer, number: int = number) -> Trainer:
                trainer = peer.open(problem, number, seed)
                trainer.threads = THREADS.get(name)
                return trainer

            found.append(Contender(row, _closed_later(start)))
        return found

    def _own(self, label: str, size: int, engine: str, seed: int) -> Contender:
        row = self._row(OURS, label, size, None, 0)

        def start() -> Trainer:
            trainer = VelodromeTrainer(self.problem, self.algorithm, size, engine, seed)
            row.kind = trainer.engine
            return trainer

        return Contender(row, _closed_later(start))

    def _row(self, peer: str, label: str, size: int, threads: int | None, processes: int) -> Measurement:
        batch, counts = self.options.batch, {"threads": threads or self.threads, "processes": processes}
        layout = {"num_envs": size, "rollout_length": batch // size, "steps_per_call": batch}
        return Measurement(peer=peer, label=label, **layout, **counts)

    # What is measured

    def measure(self, tell: Turns) -> None:
        """Prove parity, let everybody take turns, then race."""
        options, report = self.options, self.report
        with torch_threads(self.threads):
            contenders = self.contenders(options.seed)
            racers = 1 + any(name in self.peers for name in YARDSTICKS)
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
            contenders = [Contender(row, lambda stack: BesideSgemm(start(stack))), *contenders[1:]]
        take_turns(contenders, self.options, self.report, comparison.measurements, tell, self.same_parameters)

    def same_parameters(self, ready: Sequence[Any]) -> None:
        """Write down how many parameters every network has; raise if they differ."""
        trainers = [getattr(timed, "trainer", timed) for timed in ready]
        counts = [trainer.parameters for trainer in trainers]
        if len(set(counts)) > 1:
            listed = ", ".join(f"{type(trainer).__name__} {trainer.parameters:,}" for trainer in trainers)
            raise ParityError(f"the contenders do not train the same network: {listed} parameters. Nothing was timed.")
        self.report.parameters = counts[0]

    def measure_race(self, comparison: Comparison, tell: Turns) -> None:
        """Race Velodrome in its first layout against the faster yardstick."""
        options, rival = self.options, self.yardstick(comparison)
        judge = OutOfSample(self.problem)
        race = self.report.race = Race(
            fraction=options.fraction,
            limit_seconds=options.race_seconds,
            evaluate_every=options.evaluate_every,
            optimum=self.problem.optimum,
            best_rule_share=judge.best_share(),
        )
        try:
            for seed in range(options.seed, options.seed + options.race_seeds):
                first, *others = self.contenders(seed)
                racers = [first, *(one for one in others if rival is not None and one.row.peer == rival.peer)]
                run_race(race, racers, seed, judge, tell)
        finally:
            judge.close()

    # What follows

    def yardstick(self, comparison: Comparison) -> Measurement | None:
        """Return the measurement that ratios are about: the faster SB3 PPO with DummyVecEnv(8)."""
        rows = [row for row in comparison.measurements if row.peer in YARDSTICKS]
        return max(rows, key=lambda row: row.steps_per_second, default=None)

    def conclude(self) -> None:
        """Fill in ratios, the share of the bound, the race and the targets."""
        report = self.report
        if report.race is not None:
            report.race.results = race_results(report.race)
        for comparison in report.comparisons:
            yardstick = self.yardstick(comparison)
            for row in comparison.measurements:
                found = median_ratio(row.rounds, yardstick.rounds) if yardstick else None
                if found is not None:
                    row.ratios["sb3"] = found
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
        report, settings = self.report, self.report.settings
        hidden = " × ".join(str(width) for width in settings["hidden"])
        lines = [
            f"Everyone: {settings['floats']} floats, networks of {hidden} tanh with {report.parameters or 0:,} "
            f"parameters, batches of {settings['batch']:,}, {settings['epochs']} epochs in minibatches of "
            f"{settings['batch'] // settings['minibatches']:,}, Adam {settings['learning_rate']:g}, clip "
            f"{settings['clip']:g}, gamma {settings['gamma']:g}, lambda {settings['gae_lambda']:g}, as far as the "
            f"algorithm has them; torch on {self.threads} threads (all cores) unless the label says otherwise. Layout: "
            f"environments × steps in a batch; × SB3: times the faster SB3 with DummyVecEnv(8)"
        ]
        bound = report.bound
        if bound is not None and bound.share is not None and bound.share_of_best is not None:
            lines.append(
                f"Bound: {bound.operations.total:,} floating-point operations a step at sgemm's best "
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


def _closed_later(start: Callable[[], Trainer]) -> Callable[[ExitStack], Timed]:
    def opened(stack: ExitStack) -> Timed:
        trainer = start()
        stack.callback(trainer.close)
        return trainer

    return opened


def draw_phases(comparison: Comparison, panel: Any) -> None:
    """Draw the share of each phase, in the order of the speeds."""
    rows = by_speed(comparison)
    left = [0.0] * len(rows)
    for phase in PHASES:
        totals = [sum(row.mean(name) or 0.0 for name in PHASES) for row in rows]
        widths = [100.0 * (row.mean(phase) or 0.0) / total for row, total in zip(rows, totals, strict=True)]
        panel.barh(range(len(rows)), widths, left=left, color=PHASE_COLOURS[phase], label=phase)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    panel.set_yticks([])
    panel.set_xlim(0, 100)
    panel.set_xlabel("% of the time")
    panel.set_title("Where the time goes", fontsize=10)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, fontsize=8, frameon=False, handlelength=1.2)
