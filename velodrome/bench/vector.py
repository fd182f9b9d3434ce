"""`velodrome bench vector`: one environment under every vectoriser, and what is recommended for it.

Parity first: a contender that does not give the rewards and ends of gymnasium.vector.SyncVectorEnv stops the run. Then
contenders take turns, each in an interpreter of its own.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from velodrome.bench.files import write_files
from velodrome.bench.machine import machine_stamp
from velodrome.bench.process_peers import PeerFailedError
from velodrome.bench.progress import Turns, measuring
from velodrome.bench.timing import WARM_UP_SHARE, summary
from velodrome.bench.vector_contenders import Contender, missing_reason, own_contender, peer_contender
from velodrome.bench.vector_envs import STRAGGLER_FACTOR, prepare_environment
from velodrome.bench.vector_host import Host
from velodrome.bench.vector_options import VectorBenchmarkOptions
from velodrome.bench.vector_parity import check_trajectories, steps_to_compare
from velodrome.bench.vector_plot import write_vector_plot
from velodrome.bench.vector_render import show_vector_report
from velodrome.bench.vector_report import EnvironmentResult, StragglerResult, VectorMeasurement, VectorReport
from velodrome.errors import ConfigError
from velodrome.vector.cores import available_cores
from velodrome.vector.workers.autotune import worker_counts

LARGEST_SWEEP = 64  # workers


def run_vector_benchmark(options: VectorBenchmarkOptions, console: Console | None = None) -> VectorReport:
    """Measure, show the report on the console, and write the files that were asked for.

    Raises `ParityError` before an environment is timed if the contenders differ. Ctrl-C ends the measuring; what was
    measured until then is shown and written.
    """
    console = console or Console(stderr=True)
    options = options.resolved()
    check_policy(options.policy)
    report = VectorReport(machine=machine_stamp(), options=options.model_dump(mode="json"))
    report.note_missing((peer, missing_reason(peer)) for peer in options.peers)
    report.note_load("those of several processes most of all")
    with tempfile.TemporaryDirectory(prefix="velodrome-bench-") as name, measuring(report, console) as advance:
        advance.expect(count_turns(options))
        measure_all(options, Path(name), report, advance)
    show_vector_report(report, console)
    write_files(options, report, write_vector_plot, console)
    return report


def check_policy(device: str) -> None:
    """Refuse a policy on a GPU that is not there, before anything is started."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--policy cuda: torch sees no CUDA device here; legal: none, cpu")


def count_turns(options: VectorBenchmarkOptions) -> int:
    """Return how often the progress bar will move, or nearly."""
    own = 4 + (len(swept_counts(options.num_envs)) if options.sweep else 0)
    each = 2 + (len(options.peers) + own) * (1 + options.repeats)
    stragglers = len(straggler_settings()) * 2 * (1 + options.repeats) if options.straggler or options.suite else 0
    return len(options.environments) * each + stragglers


def measure_all(options: VectorBenchmarkOptions, folder: Path, report: VectorReport, advance: Turns) -> None:
    """Fill the report, measurement by measurement, so that an interrupted run keeps what it has."""
    for env in options.environments:
        result = EnvironmentResult(env=env, num_envs=options.num_envs)
        prepare_environment(env, folder, options.seed)
        report.environments.append(result)
        measure_environment(options, result, folder, report, advance)
    if options.straggler or options.suite:
        for setting in straggler_settings():
            report.stragglers.append(setting)
            measure_straggler(options, setting, folder, report, advance)


def measure_environment(
    options: VectorBenchmarkOptions, result: EnvironmentResult, folder: Path, report: VectorReport, advance: Turns
) -> None:
    """Ask for the recommendation, check parity, then time everybody in turns."""
    env, num_envs = result.env, result.num_envs
    with Host(folder) as host:
        seconds = min(2.0, max(0.5, options.seconds))
        # An environment that cannot be stepped ends the run here, with its fault.
        result.recommendation = host.ask("recommend", seconds, env=env, num_envs=num_envs, seconds=seconds,
                                         folder=str(folder))  # fmt: skip
    advance(f"{env}: recommendation")
    missing = {peer.peer for peer in report.missing}
    peers = [peer for peer in options.peers if peer not in missing]
    shared: dict[str, Any] = {"env": env, "num_envs": num_envs, "policy": options.policy, "seed": options.seed}
    contenders = [*own_contenders(options, result.recommendation, shared),
                  *(peer_contender(peer, **shared) for peer in peers)]  # fmt: skip
    with ExitStack() as stack:
        hosts = open_hosts(contenders, folder, stack, report, advance)
        reference = next((host for host in hosts if host.contender and host.contender.kind == "sync"), None)
        if reference is None:  # it was not asked for, and is needed all the same
            reference = open_hosts([peer_contender("sync", **shared)], folder, stack, report, lambda _: None)[0]
        steps = steps_to_compare(result.recommendation["step_seconds"], num_envs)
        result.parity = check_trajectories(reference, hosts, steps, folder)
        advance(f"{env}: parity")
        take_turns(hosts, options, result.measurements, report, advance)


def own_contenders(options: VectorBenchmarkOptions, advice: dict[str, Any], shared: dict[str, Any]) -> list[Contender]:
    """Return serial, process with the recommended workers and with one for each core, and async."""
    num_envs = shared["num_envs"]
    counts = {min(available_cores(), num_envs)}
    if advice["backend"] == "process":
        counts.add(advice["workers"])
    # What waits is best served by as many workers as are recommended; else by one for each core.
    most = max(counts)
    if options.sweep:
        counts |= set(swept_counts(num_envs))
    found = [own_contender("serial", **shared)]
    found += [own_contender("process", count, **shared) for count in sorted(counts)]
    return [*found, own_contender("async", most, max(1, num_envs // 2), **shared)]


def swept_counts(num_envs: int) -> list[int]:
    """Return the numbers of workers of a sweep."""
    return [count for count in (1, *worker_counts(num_envs)) if count <= LARGEST_SWEEP]


def open_hosts(
    contenders: list[Contender], folder: Path, stack: ExitStack, report: VectorReport, advance: Callable[[str], None]
) -> list[Host]:
    """Start an interpreter for each contender; a peer that cannot be opened is reported, one of ours is an error."""
    started = []
    for contender in contenders:  # all at the same time: most of it is importing
        host = stack.enter_context(Host(folder, contender))
        host.tell("open", contender=contender.model_dump(mode="json"), folder=str(folder))
        started.append((host, contender))
    hosts = []
    for host, contender in started:
        try:
            host.answer()
            hosts.append(host)
        except PeerFailedError as error:
            if contender.peer == "velodrome" or contender.kind == "sync":
                raise
            report.notes.append(f"{contender.env}, {contender.label}: {str(error).splitlines()[0]}")
        advance(f"{contender.env}: {contender.label}")
    return hosts


def take_turns(
    hosts: list[Host], options: VectorBenchmarkOptions, rows: list[VectorMeasurement], report: VectorReport,
    advance: Turns,
) -> None:  # fmt: skip
    """Time each contender once per round, in rounds; `rows` has what is known after each."""
    calls: dict[int, int] = {}
    for index, host in enumerate(hosts):
        warm = host.ask("warm_up", options.seconds, seconds=WARM_UP_SHARE * options.seconds)
        calls[index] = max(1, round(options.seconds / options.repeats / warm["seconds"]))
        note = f"GPU use is not known: {warm['gpu_missing']}"
        if warm["gpu_missing"] and note not in report.notes:
            report.notes.append(note)
    memory = [host.ask("memory") for host in hosts]
    found: list[list[dict[str, Any]]] = [[] for _ in hosts]
    places: dict[int, int] = {}  # contender -> its place among the measurements
    for _ in range(options.repeats):
        for index, host in enumerate(hosts):
            found[index].append(host.ask("time", options.seconds, calls=calls[index]))
            assert host.contender is not None
            row = measurement(host.contender, calls[index], found[index], memory[index])
            if index in places:
                rows[places[index]] = row
            else:
                places[index] = len(rows)
                rows.append(row)
            advance(f"{row.label} × {row.num_envs}")


def measurement(contender: Contender, calls: int, found: list[dict[str, Any]], memory: int) -> VectorMeasurement:
    """Return what some rounds of a contender say."""
    rates = [calls * contender.steps_per_call / turn["seconds"] for turn in found]
    timing = summary(rates, calls)
    busy = [turn["gpu"] for turn in found if turn["gpu"] is not None]
    return VectorMeasurement(
        peer=contender.peer, kind=contender.kind, label=contender.label, num_envs=contender.num_envs,
        workers=contender.workers, received=contender.received, steps_per_second=timing.median, slowest=timing.low,
        fastest=timing.high, rounds=rates, calls=timing.calls,
        cores=statistics.fmean(turn["cores"] for turn in found), memory=memory,
        gpu=statistics.fmean(busy) if busy else None,
    )  # fmt: skip


# One environment that is slower than the rest


def straggler_settings() -> list[StragglerResult]:
    """Return the settings in which async is compared with process.

    Environments that wait have a worker each, and any number of them can wait at once. Environments that compute share
    the cores: a worker for each, with one environment, shows what a straggler costs; with many environments for each
    core the cores are busy either way, and there is little to gain.
    """
    cores = available_cores()
    few = max(2, cores)
    settings = [
        StragglerResult(env="sleep:2ms", num_envs=16, workers=16, received=4, judged=True,
                        note="a worker for each environment"),
        StragglerResult(env="burn:2ms", num_envs=few, workers=few, received=max(1, few // 2), judged=True,
                        note="an environment for each core"),
    ]  # fmt: skip
    # Steps that cost as much as (n − 1 + 10) others give n; without the slow one, the same time gives as many as that.
    bound = (16 - 1 + STRAGGLER_FACTOR) / 16
    settings.append(
        StragglerResult(
            env="burn:2ms", num_envs=16, workers=few, received=4, judged=False,
            note=f"many environments for each core: spread evenly, async could gain {bound:.2g} × at most",
        )
    )  # fmt: skip
    return settings


def measure_straggler(
    options: VectorBenchmarkOptions, setting: StragglerResult, folder: Path, report: VectorReport, advance: Turns
) -> None:
    """Time async beside process, the same environments and workers."""
    shared: dict[str, Any] = {"env": setting.env, "num_envs": setting.num_envs, "seed": options.seed, "straggler": True}
    contenders = [
        own_contender("process", setting.workers, **shared),
        own_contender("async", setting.workers, setting.received, **shared),
    ]
    with ExitStack() as stack:
        hosts = open_hosts(contenders, folder, stack, report, advance)
        take_turns(hosts, options, setting.measurements, report, advance)
