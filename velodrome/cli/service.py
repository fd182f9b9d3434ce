"""Commands about trainings in the queue: submit, jobs, serve."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from velodrome.cli.shared import INTERRUPTED, PROBLEM_FOUND, Flag, app, console, jobs, print_json
from velodrome.cli.trained_runs import Place
from velodrome.cli.training import split_source
from velodrome.errors import ConfigError

if TYPE_CHECKING:
    from velodrome.service.job import Job
    from velodrome.service.service import AgentTrainingService


HERE = Place()


def service_at(place: Place, must_exist: bool = True, **budget: Any) -> AgentTrainingService:
    """Open the queue of a folder of runs."""
    from velodrome.errors import JobError
    from velodrome.runs.store.store import store_file
    from velodrome.service.service import AgentTrainingService

    if must_exist and place.store is None and not store_file(place.folder).exists():
        raise JobError(
            f"{place.folder}: nothing was submitted there. Submit a training (velodrome submit CONFIG), or name its "
            "folder (--folder)."
        )
    return AgentTrainingService(place.folder, place.store, **budget)


@app.command
def submit(
    *words: str,
    place: Place = HERE,
    owner: str | None = None,
    priority: int = 0,
    cores: int = 1,
    memory: str | None = None,
    gpu_memory: str | None = None,
    stall_seconds: float | None = None,
    no_evaluation: Flag = False,
    trust: Flag = False,
    json: Flag = False,
) -> None:
    """Put a training into the queue; `velodrome serve --no-dashboard` carries it out, now or later.

    Parameters
    ----------
    words
        As for train: a YAML or TOML file or the name of a preset, then settings as key=value.
    owner
        Whose it is; this user if not given. Owners share a machine fairly.
    priority
        Higher ones begin first.
    cores
        Cores that it may use.
    memory
        Memory that it may take at most, such as 4GB; if not given, it is learnt from what the training takes.
    gpu_memory
        Memory of a GPU that must be free for it, such as 8GB.
    stall_seconds
        Without anything new in its folder, after which it is given up and tried again; 1800 if not given.
    no_evaluation
        Leave out the evaluation and the report at the end.
    trust
        Import the code that a configuration from another run's folder names.
    json
        Print the job as JSON.
    """
    from velodrome.service import listing

    source, settings = split_source(words)
    about: dict[str, Any] = {} if stall_seconds is None else {"stall_seconds": stall_seconds}
    about |= {"memory": memory, "gpu_memory": gpu_memory, "evaluate": not no_evaluation, "trust": trust}
    service = service_at(place, must_exist=False)
    job = service.submit(source, settings, owner=owner, priority=priority, cores=cores, **about)
    if json:
        print_json(listing.content(job))
        return
    out = console()
    out.print(f"job {job.id} ({job.name}) waits", soft_wrap=True, highlight=False)
    if not service.queue.services():
        out.print(f"no service runs; start one: velodrome serve --no-dashboard{_flags(place)}", soft_wrap=True)


@jobs.command(name="list")
def list_jobs(
    *, place: Place = HERE, status: str | None = None, owner: str | None = None, limit: int = 50, json: Flag = False
) -> None:
    """List trainings that were submitted, newest first.

    Parameters
    ----------
    status
        Only those that are waiting, running, paused, finished, cancelled or failed.
    owner
        Only those of one owner.
    limit
        Largest number to list.
    json
        Print JSON.
    """
    from velodrome.service import listing

    found = service_at(place).list(status, owner, limit)
    if json:
        print_json([listing.content(job) for job in found])
    else:
        console().print(listing.list_table(found))


@jobs.command
def show(job: str, *, place: Place = HERE, json: Flag = False) -> None:
    """Show a training: how far it is, why it ended, and what happened to it.

    Parameters
    ----------
    job
        Its id, the start of it, its name, or latest.
    json
        Print JSON.
    """
    from velodrome.service import listing

    service = service_at(place)
    found = service.job(job)
    if json:
        print_json(listing.content(found, service.events(found)))
    else:
        console().print(listing.show_view(found, service.events(found), str(service.folder / found.folder)))


@jobs.command
def watch(*jobs: str, place: Place = HERE, seconds: float | None = None) -> int:
    """Print what becomes of trainings until all of them are over; exit code 1 if one failed.

    Parameters
    ----------
    jobs
        Those to watch; all that wait or run if none is given.
    seconds
        At most so long.
    """
    from velodrome.service import listing

    service, out = service_at(place), console()
    last: dict[str, Job] = {}
    for job in service.watch(list(jobs) or None, seconds):
        last[job.id] = job
        out.print(listing.line(job), soft_wrap=True, highlight=False, markup=False)
    if not last:
        out.print("nothing waits or runs")
    return PROBLEM_FOUND if any(job.status == "failed" for job in last.values()) else 0


@jobs.command
def logs(job: str, *, place: Place = HERE, follow: Flag = False, lines: int | None = None) -> None:
    """Print what the processes of a training printed.

    Parameters
    ----------
    job
        Its id, the start of it, its name, or latest.
    follow
        Go on until the training is over.
    lines
        Only so many from the end.
    """
    service = service_at(place)
    found = service.job(job)
    path, at = service.log_path(found), 0
    if not path.exists() and not follow:
        console().print(f"job {found.id} is {found.status} and has printed nothing yet", soft_wrap=True)
        return
    if lines is not None and path.exists():
        text = path.read_text(encoding="utf-8", errors="replace")
        sys.stdout.write("".join(text.splitlines(keepends=True)[-lines:] if lines > 0 else []))
        at = len(text.encode("utf-8", "replace"))
    while True:
        over = service.job(found).is_over
        if path.exists():
            with path.open("rb") as file:
                file.seek(at)
                part = file.read()
            at += len(part)
            sys.stdout.write(part.decode("utf-8", "replace"))
            sys.stdout.flush()
        if over or not follow:
            return
        time.sleep(0.5)


def _each(jobs: tuple[str, ...], what: str, place: Place, work: Callable[[AgentTrainingService, str], Job]) -> None:
    """Do something with each job and print what it is then."""
    from velodrome.service import listing

    if not jobs:
        raise ConfigError(f"name a job to {what}; velodrome jobs list shows them.")
    service, out = service_at(place), console()
    for job in jobs:
        out.print(listing.line(work(service, job)), soft_wrap=True, highlight=False, markup=False)


@jobs.command
def pause(*jobs: str, place: Place = HERE) -> None:
    """Let trainings save and stop until they are resumed.

    Parameters
    ----------
    jobs
        Their ids, the starts of them, names, or latest.
    """
    _each(jobs, "pause", place, lambda service, job: service.pause(job))


@jobs.command
def resume(*jobs: str, place: Place = HERE) -> None:
    """Let trainings that are paused, or that failed, go on from their last checkpoint.

    Parameters
    ----------
    jobs
        Their ids, the starts of them, names, or latest.
    """
    _each(jobs, "resume", place, lambda service, job: service.resume(job))


@jobs.command
def cancel(*jobs: str, place: Place = HERE) -> None:
    """Stop trainings for good; their runs stay.

    Parameters
    ----------
    jobs
        Their ids, the starts of them, names, or latest.
    """
    _each(jobs, "cancel", place, lambda service, job: service.cancel(job))


@jobs.command
def priority(job: str, value: int, *, place: Place = HERE) -> None:
    """Say how early a training begins.

    Parameters
    ----------
    job
        Its id, the start of it, its name, or latest.
    value
        Higher ones begin first; 0 is usual, and negative ones (-- -1) begin last.
    """
    _each((job,), "give a priority", place, lambda service, one: service.set_priority(one, value))


@jobs.command
def drain(*, place: Place = HERE, seconds: float = 35.0) -> int:
    """Let running trainings save and stop, and services end; a service that is started later goes on with them.

    Parameters
    ----------
    seconds
        How long to wait for them.
    """
    service, out = service_at(place), console()
    asked = service.drain()
    out.print(f"{len(asked)} running: asked to save and stop", soft_wrap=True)
    deadline = time.monotonic() + seconds
    while left := [job for job in service.queue.refreshed(asked) if job.status == "running"]:
        if time.monotonic() > deadline:
            out.print(f"{len(left)} of them still run: {', '.join(job.id for job in left)}", soft_wrap=True)
            return PROBLEM_FOUND
        time.sleep(0.2)
    out.print("drained", soft_wrap=True)
    return 0


@app.command
def serve(
    *,
    place: Place = HERE,
    no_dashboard: Flag = False,
    cores: int | None = None,
    max_concurrent_envs: int | None = None,
    memory: str | None = None,
    gpu_memory: str | None = None,
    until_empty: Flag = False,
    trust: Flag = False,
) -> int:
    """Carry out the trainings in the queue, several at once, in the foreground.

    Ctrl-C, SIGTERM and SIGUSR1 let running trainings save and stop; they go on when a service runs again. If the
    service is killed, they go on by themselves, and the next service takes them over.

    Parameters
    ----------
    no_dashboard
        Only the service; the dashboard is not part of this version yet.
    cores
        Cores for all trainings together; those of this machine if not given.
    max_concurrent_envs
        Environments of all trainings together; any number if not given.
    memory
        Memory for all trainings together, such as 16GB; 90 % of the machine's if not given.
    gpu_memory
        Memory of each GPU for all trainings together, such as 40GB; all of it if not given.
    until_empty
        End when nothing waits or runs any more.
    trust
        Import code that a job names, though it was not used on this machine before.
    """
    if not no_dashboard:
        raise ConfigError(
            "the dashboard is not part of this version yet; run the service alone: velodrome serve --no-dashboard"
        )
    budget = {"cores": cores, "max_concurrent_envs": max_concurrent_envs, "memory": memory, "gpu_memory": gpu_memory}
    service, out = service_at(place, must_exist=False, trust=trust, **budget), console()

    def tell(text: str) -> None:
        out.print(text, soft_wrap=True, highlight=False, markup=False)
        out.file.flush()

    interrupted = threading.Event()

    def receive(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():  # a second one: leave at once, trainings go on
            raise KeyboardInterrupt
        interrupted.set()
        service.ask_to_stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, receive)
    whole = service.budget.within(service.executor.resources())
    tell(f"serving {service.store.place}: {whole.told()}. Ctrl-C saves and stops")
    try:
        service.run(until_empty=until_empty, tell=tell)
        if interrupted.is_set():
            tell("stopping: trainings save and stop; they go on when a service runs again")
            service.stop()
    finally:
        service.close()
    return INTERRUPTED if interrupted.is_set() else 0


def _flags(place: Place) -> str:
    import shlex

    given = {"--folder": None if place.folder == HERE.folder else str(place.folder), "--store": place.store}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value is not None)
