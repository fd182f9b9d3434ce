"""`velodrome bench train`: how fast PPO trains, beside the ways in which others run it.

Parity first: the peers' environment must be the native one, and all networks must have as many parameters. Then
contenders take turns, iteration by iteration, and sgemm beside them, which bounds what any of them could reach. Last, a
race to a fraction of the known optimum.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console

from velodrome.bench.benchmark import MissingPeer
from velodrome.bench.files import write_files
from velodrome.bench.machine import machine_stamp
from velodrome.bench.parity import ParityError, check_parity
from velodrome.bench.progress import Turns, measuring
from velodrome.bench.sgemm import operations_per_step, perceptron, sgemm_rate
from velodrome.bench.train_contenders import (
    PHASES,
    TrainContender,
    Trainer,
    native_contenders,
    peer_contender,
    torch_threads,
)
from velodrome.bench.train_options import TRAIN_PEERS, YARDSTICKS, TrainBenchmarkOptions, missing_train_peer
from velodrome.bench.train_plot import write_train_plot
from velodrome.bench.train_problem import OutOfSample, TrainProblem, train_problem
from velodrome.bench.train_race import new_race, run_race
from velodrome.bench.train_render import show_train_report
from velodrome.bench.train_report import Bound, TrainMeasurement, TrainReport
from velodrome.vector.cores import available_cores

ACTIONS = 3  # short, flat, long


def run_train_benchmark(options: TrainBenchmarkOptions, console: Console | None = None) -> TrainReport:
    """Measure, show the report on the console, and write the files that were asked for.

    Raises `ParityError` before anything is timed if the contenders differ. Ctrl-C ends the measuring; what was measured
    until then is shown and written.
    """
    console = console or Console(stderr=True)
    options = options.resolved()
    problem = train_problem(options)
    report = new_report(options, problem)
    with measuring(report, console) as say, torch_threads(report.bound.threads):
        contenders = native_contenders(options, problem) + [
            peer_contender(peer, options, problem) for peer in report.active_peers(options)
        ]
        rivals = any(contender.peer in YARDSTICKS for contender in contenders)
        races = options.race_seeds * (1 + rivals) if options.race_seconds else 0
        say.expect(1 + len(contenders) * (1 + options.repeats) + races)
        report.parity = check_parity(problem.training)
        say("parity")
        measure_speed(contenders, options, report, say)
        if options.race_seconds:
            measure_race(contenders, options, problem, report, say)
    show_train_report(report, console)
    write_files(options, report, write_train_plot, console)
    return report


def new_report(options: TrainBenchmarkOptions, problem: TrainProblem) -> TrainReport:
    """Return a report that knows what will be measured, and nothing yet of what was."""
    networks = [perceptron(problem.floats, options.hidden, outputs) for outputs in (ACTIONS, 1)]
    bound = Bound(threads=available_cores(), operations=operations_per_step(networks, options.epochs), flops=[])
    report = TrainReport(
        machine=machine_stamp(), options=options.model_dump(mode="json"),
        settings={**asdict(problem.settings), "hidden": list(options.hidden)},
        observation_floats=problem.floats, bound=bound,
    )  # fmt: skip
    report.note_missing((peer, missing_train_peer(peer)) for peer in options.peers)
    report.note_load("and those that share work among threads suffer most, which distorts the ratios")
    return report


def measure_speed(
    contenders: list[TrainContender], options: TrainBenchmarkOptions, report: TrainReport, say: Turns
) -> None:  # fmt: skip
    """Let all contenders take turns; after each turn the report holds what is known of it."""
    with ExitStack() as stack:
        turns: list[tuple[TrainContender, Trainer, int]] = []
        for contender in contenders:
            say(f"starting {contender.label}", 0)
            trainer = open_trainer(contender, options, report, stack)
            if trainer is not None:
                turns.append((contender, trainer, iterations_per_turn(trainer, options)))
            say(f"warmed up {contender.label}", 1)
        report.parameters = same_parameters(turns)
        rows: dict[int, TrainMeasurement] = {}
        for _ in range(options.repeats):
            report.bound.flops.append(sgemm_rate())
            for index, (contender, trainer, iterations) in enumerate(turns):
                if index not in rows:
                    rows[index] = new_measurement(contender, trainer)
                    report.measurements.append(rows[index])
                take_turn(rows[index], trainer, iterations, options.batch)
                if index == 0:  # a bound that held before and after Velodrome's turn
                    report.bound.flops[-1] = max(report.bound.flops[-1], sgemm_rate())
                say(f"{contender.label}, {contender.num_envs:,} environments", 1)


def open_trainer(
    contender: TrainContender, options: TrainBenchmarkOptions, report: TrainReport, stack: ExitStack
) -> Trainer | None:
    """Return a contender that has trained once; a peer that fails is reported and the rest goes on."""
    try:
        trainer = contender.ready(options.seed)
        stack.callback(trainer.close)
        trainer.iterate()
    except Exception as error:
        if contender.peer not in TRAIN_PEERS:
            raise
        report.missing.append(MissingPeer(peer=contender.peer, reason=f"failed: {type(error).__name__}: {error}"))
        return None
    return trainer


def iterations_per_turn(trainer: Trainer, options: TrainBenchmarkOptions) -> int:
    """Return how many iterations fill a turn."""
    seconds = sum(trainer.iterate().values())
    return max(1, round(options.seconds / options.repeats / seconds))


def same_parameters(turns: list[tuple[TrainContender, Trainer, int]]) -> int:
    """Return how many parameters every network has; raise if they differ."""
    counts = {f"{contender.label} {contender.num_envs}": trainer.parameters for contender, trainer, _ in turns}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise ParityError(f"the contenders do not train the same network: {listed} parameters. Nothing was timed.")
    return next(iter(counts.values()))


def new_measurement(contender: TrainContender, trainer: Trainer) -> TrainMeasurement:
    return TrainMeasurement(
        peer=contender.peer, label=contender.label, num_envs=contender.num_envs,
        rollout_length=contender.rollout_length, processes=contender.processes,
        threads=contender.threads or available_cores(), engine=trainer.engine,
        steps_per_second=0.0, slowest=0.0, fastest=0.0, rounds=[], iterations=0,
        phases=dict.fromkeys(PHASES, 0.0),
    )  # fmt: skip


def take_turn(row: TrainMeasurement, trainer: Trainer, iterations: int, batch: int) -> None:
    """Train so many iterations and add what they took to the measurement."""
    phases = dict.fromkeys(PHASES, 0.0)
    for _ in range(iterations):
        for phase, seconds in trainer.iterate().items():
            phases[phase] += seconds
    row.rounds.append(iterations * batch / sum(phases.values()))
    before, row.iterations = row.iterations, row.iterations + iterations
    row.phases = {phase: (row.phases[phase] * before + phases[phase]) / row.iterations for phase in PHASES}
    row.steps_per_second = statistics.median(row.rounds)
    row.slowest, row.fastest = min(row.rounds), max(row.rounds)


def measure_race(
    contenders: list[TrainContender],
    options: TrainBenchmarkOptions,
    problem: TrainProblem,
    report: TrainReport,
    say: Turns,
) -> None:
    """Race Velodrome in its first layout against the faster yardstick."""
    yardstick = report.yardstick()
    racers = [
        contenders[0],
        *(contender for contender in contenders if yardstick is not None and contender.peer == yardstick.peer),
    ]
    judge = OutOfSample(problem)
    try:
        report.race = new_race(problem, options, judge)
        run_race(report.race, racers, options, judge, say)
    finally:
        judge.close()
