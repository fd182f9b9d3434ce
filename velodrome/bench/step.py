"""`velodrome bench step`: environment steps per second, beside the ways in which others do it.

Parity first: a peer that does not compute the same thing stops the run. Then contenders of one size take turns.
"""

from __future__ import annotations

from contextlib import ExitStack

from rich.console import Console

from velodrome.bench.benchmark import MissingPeer
from velodrome.bench.contenders import Contender, missing_reason, same_rule_contenders
from velodrome.bench.files import write_files
from velodrome.bench.machine import machine_stamp
from velodrome.bench.memory import memory_contenders, memory_use
from velodrome.bench.options import LARGEST_IN_PROCESS, PEERS, StepBenchmarkOptions
from velodrome.bench.parity import check_parity
from velodrome.bench.plot import write_plot
from velodrome.bench.problem import StepProblem, step_problem
from velodrome.bench.process_peers import PeerFailedError, measure_process_peer
from velodrome.bench.progress import Turns, measuring
from velodrome.bench.render import show_report
from velodrome.bench.report import Measurement, StepReport
from velodrome.bench.startup import time_to_first_step
from velodrome.bench.timing import Timing, take_turns
from velodrome.bench.torchtrade_peer import torchtrade_contenders, torchtrade_sizes

PROCESS_PEERS = ("async", "subproc")


def run_step_benchmark(options: StepBenchmarkOptions, console: Console | None = None) -> StepReport:
    """Measure, show the report on the console, and write the files that were asked for.

    Raises `ParityError` before anything is timed if the contenders differ. Ctrl-C ends the measuring; what was measured
    until then is shown and written.
    """
    console = console or Console(stderr=True)
    options = options.resolved()
    problem = step_problem(options)
    report = StepReport(
        machine=machine_stamp(), options=options.model_dump(mode="json"), parameters=problem.parameters,
        observation_floats=int(problem.market.window_floats) + 8,
    )  # fmt: skip
    report.note_missing((peer, missing_reason(peer)) for peer in options.peers)
    report.note_load("those of several threads most of all")
    with measuring(report, console) as advance:
        advance.expect(count_turns(options, report))
        measure_all(options, problem, report, advance)
    show_report(report, console)
    write_files(options, report, write_plot, console)
    return report


def count_turns(options: StepBenchmarkOptions, report: StepReport) -> int:
    """Return how often the progress bar will move, or nearly."""
    peers = report.active_peers(options)
    turns = 3  # parity, memory and the first step
    for size in options.sizes:
        in_process = sum(
            peer == "numpy" or size <= LARGEST_IN_PROCESS for peer in peers if peer in ("numpy", "dummy", "sync")
        )
        turns += (12 + in_process) * options.repeats
    turns += len(process_counts(options)) * sum(peer in PROCESS_PEERS for peer in peers)
    return turns + 4 * options.repeats * len(torchtrade_sizes(options)) * ("torchtrade" in peers)


def measure_all(options: StepBenchmarkOptions, problem: StepProblem, report: StepReport, advance: Turns) -> None:
    """Fill the report, measurement by measurement, so that an interrupted run keeps what it has."""
    report.parity = check_parity(problem)
    advance("parity")
    for size in options.sizes:
        contenders = same_rule_contenders(options, problem, size) + memory_contenders(options, problem, size)
        measure_together(contenders, options, report, advance)
    if "torchtrade" in report.active_peers(options):
        for size in torchtrade_sizes(options):
            try:
                measure_together(torchtrade_contenders(options, problem, size), options, report, advance)
            except ImportError as error:
                report.missing.append(MissingPeer(peer="torchtrade", reason=f"cannot be imported: {error}"))
                break
    for peer in PROCESS_PEERS:
        if peer in report.active_peers(options):
            measure_processes(peer, options, problem, report, advance)
    report.memory = memory_use(problem)
    advance("memory")
    if not options.quick:
        try:
            report.first_step = time_to_first_step()
        except PeerFailedError as error:
            report.notes.append(f"Time to first step: {error}")
    advance("first step")


def measure_together(
    contenders: list[Contender], options: StepBenchmarkOptions, report: StepReport, advance: Turns
) -> None:
    """Let the contenders of one group and size take turns."""
    with ExitStack() as stack:
        steppers = [contender.ready(stack) for contender in contenders]
        sizes = [contender.num_envs for contender in contenders]
        rows: dict[int, int] = {}  # contender -> its place among the measurements
        for index, timing in take_turns(steppers, sizes, options.seconds, options.repeats):
            row = measurement(contenders[index], timing)
            if index in rows:
                report.measurements[rows[index]] = row
            else:
                rows[index] = len(report.measurements)
                report.measurements.append(row)
            advance(f"{row.num_envs:,} × {row.label}")


def measurement(contender: Contender, timing: Timing) -> Measurement:
    return Measurement(
        peer=contender.peer, label=contender.label, group=contender.group, num_envs=contender.num_envs,
        measured_envs=contender.num_envs, threads=contender.threads, observation=contender.observation,
        floats=contender.floats, steps_per_second=timing.median, slowest=timing.low, fastest=timing.high,
        repeats=timing.repeats, calls=timing.calls,
    )  # fmt: skip


def process_counts(options: StepBenchmarkOptions) -> tuple[int, ...]:
    """Return how many worker processes to try: those asked for and, in a full run, one for each environment."""
    sizes = () if options.quick else tuple(size for size in options.sizes if size <= LARGEST_IN_PROCESS)
    return tuple(sorted({*options.processes, *sizes}))


def measure_processes(
    peer: str, options: StepBenchmarkOptions, problem: StepProblem, report: StepReport, advance: Turns
) -> None:
    """Measure a process per environment at each size, and beside it the best of some smaller numbers of processes."""
    label = PEERS[peer][0]
    timings: dict[int, Timing] = {}
    for processes in process_counts(options):
        try:
            timings[processes] = measure_process_peer(
                peer,
                processes,
                problem.peer_tables,
                seconds=options.seconds,
                repeats=options.repeats,
                seed=options.seed,
            )
        except PeerFailedError as error:
            report.notes.append(f"{label} with {processes} processes: {error}")
        advance(f"{label}, {processes} processes")
    if not timings:
        report.missing.append(MissingPeer(peer=peer, reason="failed with every number of processes, see the notes"))
        return
    tried = ", ".join(f"{count:,} processes {timing.median:,.0f}/s" for count, timing in timings.items())
    report.notes.append(f"{label}: {tried}")
    best = max(timings, key=lambda count: timings[count].median)
    for size in [size for size in options.sizes if size <= LARGEST_IN_PROCESS] or [min(options.sizes)]:
        if size in timings:
            report.measurements.append(process_row(peer, label, size, size, timings[size], report))
        if best != size:
            report.measurements.append(process_row(peer, f"{label}, fewer", size, best, timings[best], report))


def process_row(
    peer: str, label: str, size: int, processes: int, timing: Timing, report: StepReport
) -> Measurement:  # fmt: skip
    return Measurement(
        peer=peer, label=label, group="same rule", num_envs=size, measured_envs=processes, threads=1,
        processes=processes, observation="windows", floats=report.observation_floats, steps_per_second=timing.median,
        slowest=timing.low, fastest=timing.high, repeats=timing.repeats, calls=timing.calls,
    )  # fmt: skip
