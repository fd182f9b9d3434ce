"""`vd.tune`: begin, join or continue a study, and carry it out until it is over, interrupted or out of time."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError, JobError
from velodrome.outside import code
from velodrome.outside.screen import Screen
from velodrome.runs import setup
from velodrome.runs.config.files import Source, load_with_origins
from velodrome.runs.live.display import choose_mode
from velodrome.runs.trained import check_source
from velodrome.service.executors.named import executor_named
from velodrome.service.service import AgentTrainingService, legal_owner
from velodrome.service.studies import StudyKeeper
from velodrome.tune.beginning import (
    check_data,
    check_same,
    check_together,
    check_trials,
    data_hash,
    new_study,
    read_settings,
)
from velodrome.tune.listing import live_table, mark_of, told_line
from velodrome.tune.outcome import FREE
from velodrome.tune.search import import_optuna
from velodrome.tune.space import space_of
from velodrome.tune.study import Studies, Study, StudyError
from velodrome.tune.view import StudyView

if TYPE_CHECKING:
    from rich.console import Console

    from velodrome.runs.live.display import Mode

LOOK_SECONDS = 0.2  # between two looks at whether a study is over
VIEW_SECONDS = 1.0  # between two pictures of it
PLAIN_SECONDS = 10.0  # between two lines where nothing can be redrawn


def tune(
    config: Source = None,
    trials: int | None = None,
    *,
    study: str | None = None,
    workers: int | None = None,
    hours: float | None = None,
    search: Sequence[str] | Mapping[str, Any] = (),
    search_only: bool = False,
    settings: Mapping[str, Any] | None = None,
    folder: str | Path = "runs",
    store: str | None = None,
    cores: int = 1,
    memory: int | str | None = None,
    gpu_memory: int | str | None = None,
    owner: str | None = None,
    replace: bool = False,
    console: Console | None = None,
    mode: Mode | None = None,
    trust: bool = False,
    executor: str = "local",
    address: str | None = None,
    service: AgentTrainingService | None = None,
    **overrides: Any,
) -> StudyView:
    """Search for better settings by many short trainings, make sure of the best, and test the winner once.

    config, overrides: as for `vd.train`; a field that is given a value here is not searched. None, with the name of a
        study that is there: continue it, or join it while others carry it out.
    trials: how many in all. study: its name.
    workers: trainings at once on this machine; as many as it has cores if None.
    hours: after which it stops and saves; the same call continues it.
    search: ranges in place of those declared beside the fields: "ppo.learning_rate=1e-5:1e-2:log", or by key.
        search_only: search nothing else.
    settings: fields of `StudySettings`, such as {"seeds": 5, "score": "return"}.
    folder, store: of the runs. cores, memory, gpu_memory: that each training needs, as for the service.
    replace: stop a study of the same name, if there is one, and begin anew.
    executor: "local", or "ray" or "slurm", whose cluster is at an `address` (docs/many_machines.md).
    """
    import_optuna()
    console = console or Screen()
    mode = mode or choose_mode(console)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers}: at least one training at a time is needed.")
    if hours is not None and not hours > 0.0:
        raise ConfigError(f"hours = {hours:g}: give a time above 0, such as 0.5.")
    check_together(settings or {})
    at_once = None if workers is None else workers * cores
    own = service or AgentTrainingService(
        folder, store, cores=at_once, trust=trust, executor=executor_named(executor, folder, store, address, at_once)
    )
    try:
        needs = {"cores": cores, "memory": memory, "gpu_memory": gpu_memory}
        words: dict[str, Any] = {
            "search": search,
            "search_only": search_only,
            "settings": dict(settings or {}),
            "overrides": overrides,
        }
        found = _study(own, config, trials, study, replace, legal_owner(owner), needs, trust, **words)
        if found.is_free:
            screen = console if mode in ("live", "plain") else Screen(stderr=True)
            screen.print(f"warning: {FREE}", markup=False, highlight=False, soft_wrap=True)
        keeper = StudyKeeper(own, found)
        _carry_out(own, keeper, hours, console, mode)
        if keeper.promotion and mode != "quiet":
            console.print(keeper.promotion, markup=False, highlight=False)
        return StudyView.of(keeper.studies, keeper.studies.refreshed(found), own.folder)
    finally:
        if service is None:
            own.close()


def _study(
    service: AgentTrainingService,
    config: Source,
    trials: int | None,
    name: str | None,
    replace: bool,
    owner: str,
    needs: Mapping[str, Any],
    trust: bool,
    *,
    search: Sequence[str] | Mapping[str, Any],
    search_only: bool,
    settings: dict[str, Any],
    overrides: Mapping[str, Any],
) -> Study:
    """Return the study that is meant: a new one, or one that is there and is not another's."""
    studies = Studies(service.store)
    known = None if name is None else studies.find(name)
    replaced = known if replace else None
    known = None if replace else known
    if config is None and not overrides and known is None and name is not None and not replace:
        raise StudyError(_unknown(studies, name))
    if config is None and known is not None and not overrides:
        return _continued(service, studies, known, trials, search, settings)
    chosen, origins = load_with_origins(config, overrides)
    check_source(config, chosen, trust)
    service.check_folder(overrides)
    chosen = service.placed(chosen)
    chosen.usable_device()
    space = space_of(chosen, search, [key for key, origin in origins.items() if origin == "given"], search_only)
    if known is not None:
        merged = {**known.told.model_dump(), **settings}
        given = new_study(name, owner, chosen, space, merged, trials or known.trials, needs)
        check_same(known, given)
        return _more(service, studies, known, trials)
    made = new_study(name, owner, chosen, space, settings, trials, needs)
    code.trust(chosen.code_names())
    if replaced is not None:  # only now: what is refused replaces nothing
        stop(service, replaced)
    studies.create(made)
    return made


def _unknown(studies: Studies, name: str) -> str:
    try:
        found = studies.get(name)
        return f"no study is called {name!r}; did you mean {found.name!r}?"
    except StudyError as error:
        return f"{error} To begin one, give a configuration: velodrome tune demo --study {name} --trials 100"


def _continued(
    service: AgentTrainingService,
    studies: Studies,
    known: Study,
    trials: int | None,
    search: Sequence[str] | Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Study:
    """Continue or join a study as it is."""
    if search:
        told = space_of(known.run_config, search, only=True)
        same = {one.key: one.told() for one in known.dimensions}
        for one in told:
            if same.get(one.key) != one.told():
                was = same.get(one.key, "not searched")
                raise StudyError(
                    f"study {known.name!r} searches another space: {one.key} is {was} there and {one.told()} here. "
                    "Continue it without --search, or begin a study of another name."
                )
    own = known.told.model_dump()
    for key, value in read_settings({**own, **settings}).model_dump().items():
        if value != own[key]:
            raise StudyError(
                f"study {known.name!r} searches in another way: {key} is {own[key]} there and {value} here. "
                "Continue it without that, or begin a study of another name."
            )
    config = known.run_config
    check_data(known, data_hash(config, setup.build_market(config)))
    return _more(service, studies, known, trials)


def _more(service: AgentTrainingService, studies: Studies, known: Study, trials: int | None) -> Study:
    """Let a study go on, with another number of trials if one is given."""
    if known.status == "replaced":
        raise StudyError(f"study {known.name!r} was replaced by another; begin a new one.")
    changes: dict[str, Any] = {}
    if trials is not None and check_trials(trials) != known.trials:
        begun = sum(studies.counts(known).values())
        if trials < begun:
            raise StudyError(f"study {known.name!r} has begun {begun} trials; {trials} in all are fewer than that.")
        if known.status == "finished" and known.told.test:
            raise StudyError(
                f"study {known.name!r} has finished, and its winner was tested: more trials would be chosen with that "
                "in mind. Begin a study of another name; the ledger counts both."
            )
        changes["trials"] = trials
    if known.status == "failed":
        changes["status"] = "running"
    return studies.change(known, **changes) if changes else known


def stop(service: AgentTrainingService, study: Study) -> Study:
    """Stop a study for good, and give its name free; its runs stay."""
    studies = Studies(service.store)
    for job in service.queue.of_study(study.id).values():
        if not job.is_over:
            try:
                service.queue.cancel(job.id)
            except JobError:  # it has ended, or is being cancelled
                continue
    return studies.change(study, status="replaced", name=f"{study.name}.{study.id}")


# Carrying it out


def _carry_out(
    service: AgentTrainingService, keeper: StudyKeeper, hours: float | None, console: Console, mode: str
) -> None:
    """Serve the trainings of a study in a thread, and show how it goes."""
    failed: list[BaseException] = []

    def tell(text: str) -> None:
        if text.startswith("warning:") and mode in ("live", "plain"):  # such as why nothing begins
            console.print(text, soft_wrap=True, highlight=False, markup=False)

    def serve() -> None:
        try:
            service.run(beside=keeper.advance, study=keeper.study.id, tell=tell)
        except BaseException as error:
            failed.append(error)

    service.allow_to_run()
    thread = threading.Thread(target=serve, name="velodrome study", daemon=True)
    deadline = math.inf if hours is None else time.monotonic() + 3600.0 * hours
    thread.start()
    try:
        _watch(keeper, thread, deadline, console, mode, service.folder)
    except KeyboardInterrupt:
        if mode in ("live", "plain"):
            console.print("stopping: what is being trained is saved first", soft_wrap=True)
    finally:
        service.ask_to_stop()
        thread.join()
        service.save_own(keeper.study.id)
    if failed:
        raise failed[0]


def _watch(
    keeper: StudyKeeper, thread: threading.Thread, deadline: float, console: Console, mode: str, folder: Path
) -> None:
    """Show a study until it is over, or time is up."""
    from rich.live import Live

    studies = keeper.studies
    live = Live(console=console, auto_refresh=False, transient=True) if mode == "live" else None
    shown: tuple[object, ...] = ()
    next_look = 0.0
    with live or contextlib.nullcontext():
        while thread.is_alive() and time.monotonic() < deadline:
            study = studies.refreshed(keeper.study)
            if mode in ("live", "plain") and time.monotonic() >= next_look:
                view = StudyView.of(studies, study, folder)
                next_look = time.monotonic() + (VIEW_SECONDS if live is not None else PLAIN_SECONDS)
                if live is not None:
                    live.update(live_table(view), refresh=True)
                elif mark_of(view) != shown:
                    shown = mark_of(view)
                    console.print(told_line(view), soft_wrap=True, highlight=False, markup=False)
            if study.status != "running":
                return
            thread.join(LOOK_SECONDS)
