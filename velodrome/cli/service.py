"""Commands about trainings in the queue: submit, jobs, serve."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from velodrome.cli.shared import (
    INTERRUPTED,
    PROBLEM_FOUND,
    REFUSED,
    Flag,
    Words,
    app,
    console,
    jobs,
    print_json,
    split_words,
)
from velodrome.cli.trained_runs import Place
from velodrome.cli.training import split_source
from velodrome.errors import ConfigError
from velodrome.outside.extras import install

if TYPE_CHECKING:
    from rich.console import Console

    from velodrome.service.job import Job
    from velodrome.service.service import AgentTrainingService


HERE = Place()
LISTED = 50  # jobs of a table, if nobody says how many


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
    """Put a training into the queue; `velodrome serve` carries it out, now or later.

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
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.config.parameters import price_data
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
    config = load_run_config(job.config)
    if price_data(config.env) and not config.market.is_synthetic and not Path(config.market.source).exists():
        told = f"warning: market.source = {config.market.source}: there is no such file or folder here"
        out.print(f"{told}. The training fails where it is not found.", soft_wrap=True, highlight=False)
    _tell_if_nobody_serves(service, place, out)


def _tell_if_nobody_serves(service: AgentTrainingService, place: Place, out: Console) -> None:
    """Say how to start a service, if none runs: what waits would wait for ever."""
    if not service.queue.services():
        out.print(f"no service runs; start one: velodrome serve --no-dashboard{told_place(place)}", soft_wrap=True)


@jobs.command(name="list")
def list_jobs(
    *,
    place: Place = HERE,
    status: str | None = None,
    owner: str | None = None,
    limit: int | None = None,
    json: Flag = False,
) -> None:
    """List trainings that were submitted, newest first.

    Parameters
    ----------
    status
        Only those that are waiting, running, paused, finished, cancelled or failed.
    owner
        Only those of one owner.
    limit
        Largest number to list; if not given, the table has the newest 50, and JSON all.
    json
        Print JSON.
    """
    from velodrome.service import listing

    if limit is not None and limit < 0:
        raise ConfigError(f"--limit {limit}: 0 or more are legal.")
    most = LISTED if limit is None and not json else limit
    service = service_at(place)
    found = service.list(status, owner, most)
    if json:
        print_json([listing.content(job) for job in found])
        return
    out = console()
    out.print(listing.list_table(found))
    if len(found) == most:
        every = sum(status in (None, job.status) for job in service.queue.brief(owner))
        if every > most:
            out.print(f"the newest {most} of {every:,}; --limit {every} shows all", soft_wrap=True, highlight=False)


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
        if not last and not job.is_over:
            _tell_if_nobody_serves(service, place, out)
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
    host: str = "127.0.0.1",
    port: int | None = None,
    prefix: str = "",
    allow_host: Words = None,
    allow_remote: Flag = False,
    no_open: Flag = False,
    link: Flag = False,
    benchmarks: Path | None = None,
    cores: int | None = None,
    max_concurrent_envs: int | None = None,
    memory: str | None = None,
    gpu_memory: str | None = None,
    executor: str = "local",
    address: str | None = None,
    policy: str = "fair",
    until_empty: Flag = False,
    trust: Flag = False,
) -> int:
    """Carry out the trainings in the queue, several at once, in the foreground; show everything in a browser.

    The link that is printed lets a browser in; who has it can run code as you. The dashboard's process and the
    scheduler's are two: if a scheduler runs on the store already, only the dashboard is started.
    Ctrl-C, SIGTERM and SIGUSR1 let running trainings save and stop; they go on when a service runs again. If the
    service is killed, they go on by themselves, and the next service takes them over.

    Parameters
    ----------
    no_dashboard
        Only the service.
    host
        Address of this machine to listen at; others than 127.0.0.1 only with --allow-remote.
    port
        Where to listen; 8700, or the next that is free, if not given. 0 takes any.
    prefix
        Path under which a reverse proxy shows the dashboard, such as /velodrome.
    allow_host
        Further names by which browsers call this server, such as that of a reverse proxy.
    allow_remote
        Listen at an address that others can reach. Put a proxy that speaks HTTPS before it.
    no_open
        Do not open a browser.
    link
        Print the link of a dashboard that runs at this host and port, and end.
    benchmarks
        Folder of results of velodrome bench to show; benchmarks/results if there is one.
    cores
        Cores for all trainings together; those of this machine if not given.
    max_concurrent_envs
        Environments of all trainings together; any number if not given.
    memory
        Memory for all trainings together, such as 16GB; 90 % of the machine's if not given.
    gpu_memory
        Memory of each GPU for all trainings together, such as 40GB; all of it if not given.
    executor
        Where trainings run: local (this machine), ray or slurm (docs/many_machines.md).
    address
        Of the Ray cluster's head, HOST:6379; the one that this machine belongs to if not given.
    policy
        Which training begins next: fair (the highest priority, then the owner who has least), fifo (who came first),
        priority (the highest, then who came first), or a function of yours as module:function.
    until_empty
        End when nothing waits or runs any more.
    trust
        Import code that a job names, though it was not used on this machine before.
    """
    budget = {"cores": cores, "max_concurrent_envs": max_concurrent_envs, "memory": memory, "gpu_memory": gpu_memory}
    where = {"executor": executor, "address": address, "policy": policy}
    if no_dashboard:
        return _serve_alone(place, budget, where, until_empty, trust)
    usual = {"executor": "local", "policy": "fair"}
    given = {name: value for name, value in (budget | where).items() if value not in (None, usual.get(name))}
    about = {"host": host, "prefix": prefix.rstrip("/"), "remote": allow_remote, "benchmarks": _results(benchmarks)}
    about |= {"allowed_hosts": split_words(allow_host) or ()}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    words += [*(["--until-empty"] if until_empty else []), *(["--trust"] if trust else [])]
    return _serve_both(place, about, port, words, link, no_open)


def _results(given: Path | None) -> tuple[Path, ...]:
    """Return the folders of results of benchmarks."""
    if given is not None and not given.is_dir():
        raise ConfigError(
            f"--benchmarks {given}: there is no such folder. velodrome bench step --json FILE writes one."
        )
    usual = Path("benchmarks", "results")
    return (given,) if given is not None else (usual,) if usual.is_dir() else ()


def _tell(out: Console, text: str) -> None:
    out.print(text, soft_wrap=True, highlight=False, markup=False)
    out.file.flush()


def _serve_both(
    place: Place, about: dict[str, Any], port: int | None, words: list[str], link: bool, no_open: bool
) -> int:
    """Serve the dashboard, and start a scheduler beside it if none is there."""
    from functools import partial

    from velodrome.dashboard.settings import PORT, Settings
    from velodrome.errors import MissingDependencyError

    try:
        import starlette  # noqa: F401
        import tsdownsample  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"the dashboard needs {error.name}: {install('dashboard')}; without it: velodrome serve --no-dashboard"
        ) from error
    from velodrome.dashboard.login import own_token
    from velodrome.dashboard.server import Scheduler, link_of, listen, open_browser
    from velodrome.dashboard.server import serve as serve_pages

    settings = Settings(place.folder, place.store, port=PORT if port is None else port, token=own_token(), **about)
    out = console()
    tell = partial(_tell, out)
    if link:
        tell(link_of(settings))
        return 0
    at, settings = listen(settings, chosen=port is not None)
    with at:
        service = service_at(place, must_exist=False)
        runs_already = bool(service.queue.services())
        service.close()
        scheduler = None
        if not runs_already:
            flags = ["--folder", str(place.folder), *([] if place.store is None else ["--store", place.store])]
            scheduler = Scheduler([*flags, *words], tell)
        tell(f"dashboard: {link_of(settings)}")
        if runs_already:
            ignored = f", and {' '.join(words)} {'has' if len(words) == 1 else 'have'} no effect on it" if words else ""
            tell(f"a scheduler runs on this store already; it stays when the dashboard ends{ignored}")
        if not no_open and sys.stdout.isatty():
            open_browser(link_of(settings))
        interrupted = serve_pages(settings, at, scheduler, tell)
        refused = scheduler is not None and scheduler.was_refused
        return INTERRUPTED if interrupted else REFUSED if refused else 0


def _serve_alone(place: Place, budget: dict[str, Any], where: dict[str, Any], until_empty: bool, trust: bool) -> int:
    """Carry out trainings without a dashboard."""
    from velodrome.service.executors.named import executor_named
    from velodrome.service.machine import PARENT, leave_with_parent

    chosen = executor_named(where["executor"], place.folder, place.store, where["address"], budget["cores"])
    more = {"executor": chosen, "policy": where["policy"], **budget}
    service, out = service_at(place, must_exist=False, trust=trust, **more), console()
    beside = PARENT in os.environ  # the dashboard that started it has said at once that it stops
    interrupted = threading.Event()

    def receive(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():  # a second one: leave at once, trainings go on
            raise KeyboardInterrupt
        interrupted.set()
        service.ask_to_stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, receive)
    leave_with_parent(lambda: receive(signal.SIGTERM, None))
    whole = service.budget.within(service.executor.resources())
    _tell(out, f"serving {service.store.place}: {whole.told()}. Ctrl-C saves and stops")
    try:
        service.run(until_empty=until_empty, tell=lambda text: _tell(out, text))
        if interrupted.is_set():
            if not beside:
                _tell(out, "stopping: trainings save and stop; they go on when a service runs again")
            service.stop()
    finally:
        service.close()
    return INTERRUPTED if interrupted.is_set() else 0


@app.command
def top(*, place: Place = HERE, seconds: float = 2.0, once: Flag = False, json: Flag = False) -> None:
    """Show what runs, what waits, how studies come along and what the machine does; q quits.

    Where the output is no terminal, the page is printed once.

    Parameters
    ----------
    seconds
        Between two looks.
    once
        Print the page once, and end.
    json
        Print it once as JSON.
    """
    from velodrome.dashboard.settings import Settings
    from velodrome.dashboard.site import Site
    from velodrome.dashboard.top import show, show_once

    if not 0.2 <= seconds <= 3600.0:
        raise ConfigError(f"--seconds {seconds:g}: 0.2 … 3600 are legal.")
    site, out = Site(Settings(place.folder, place.store)), console()
    try:
        if json or once or not sys.stdout.isatty():
            show_once(site, out, json)
        else:
            show(site, out, seconds)
    finally:
        site.close()


def told_place(place: Place) -> str:
    """Return the flags that say where the runs are, as they are typed; none of what is so by itself."""
    import shlex

    given = {"--folder": None if place.folder == HERE.folder else str(place.folder), "--store": place.store}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value is not None)
