"""Commands about studies: tune, studies list and show."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from velodrome.cli.service import HERE, service_at, told_place
from velodrome.cli.shared import INTERRUPTED, PROBLEM_FOUND, Flag, app, console, print_json, studies
from velodrome.cli.trained_runs import Place
from velodrome.cli.training import settings_for, split_source

if TYPE_CHECKING:
    from velodrome.service.service import AgentTrainingService
    from velodrome.tune.study import Studies
    from velodrome.tune.view import StudyView

Trials = Annotated[int | None, Parameter(name=["--trials", "--n-trials"])]
Name = Annotated[str | None, Parameter(name=["--study", "--study-name"])]
Ranges = Annotated[list[str] | None, Parameter(negative="")]


@app.command
def tune(
    *words: str,
    trials: Trials = None,
    study: Name = None,
    workers: int | None = None,
    hours: float | None = None,
    search: Ranges = None,
    search_only: Flag = False,
    seeds: int | None = None,
    folds: int | None = None,
    score: str | None = None,
    sampler: str | None = None,
    search_seed: int | None = None,
    window: int | None = None,
    startup: int | None = None,
    no_pruning: Flag = False,
    confirm: int | None = None,
    confirm_seeds: int | None = None,
    final_seeds: int | None = None,
    no_test: Flag = False,
    auto_promote: Flag = False,
    replace: Flag = False,
    place: Place = HERE,
    cores: int = 1,
    memory: str | None = None,
    gpu_memory: str | None = None,
    owner: str | None = None,
    executor: str = "local",
    address: str | None = None,
    gpu: int | None = None,
    timeframe: str | None = None,
    data_dir: str | None = None,
    n_envs: int | None = None,
    json: Flag = False,
    quiet: Flag = False,
    trust: Flag = False,
) -> int:
    """Search for better settings by many trainings, make sure of the best, and test the winner once.

    Trials are compared by their score on the validation split, over several seeds or folds; hopeless ones are ended
    early. The best are trained again with fresh seeds, and the winner is trained anew and evaluated on the test split.
    Ctrl-C saves and stops. The same command, or --study NAME alone, continues a study, or joins it while it goes on.

    Parameters
    ----------
    words
        As for train: a YAML or TOML file or the name of a preset, then settings as key=value, which are not searched.
    trials
        Trials in all.
    study
        Its name.
    workers
        Trainings at once on this machine; as many as it has cores if not given.
    hours
        Stop and save after so many hours.
    search
        A range or a list to search, in place of what is declared beside the field: ppo.learning_rate=1e-5:1e-2:log,
        ppo.epochs=1:10, network.activation=tanh,relu. May be given several times.
    search_only
        Search nothing but what --search says.
    seeds
        Trainings of a trial that differ only in their seed; 3 if not given.
    folds
        Walk-forward folds before the test split to train and judge each trial on, in place of seeds.
    score
        Figure of the validation split to compare by: sharpe, return, mean_log_return, of_optimum or reward; of
        environments without an account: return.
    sampler
        What chooses after the first trials: model (of the landscape; the default), or tpe.
    search_seed
        Seed of the search; with the same seeds a study is the same study, on any number of workers.
    window
        Trials that are open at once at most; 8 if not given. More workers than that need a larger window.
    startup
        First trials, spread evenly over the space.
    no_pruning
        Let every trial do all its seeds or folds.
    confirm
        Best trials that are trained again with fresh seeds; 5 if not given.
    confirm_seeds
        Fresh seeds for each of them; 3 if not given.
    final_seeds
        Fresh seeds with which the winner is trained anew and tested; 5 if not given.
    no_test
        End with the winner; do not look at the test split.
    auto_promote
        Promote the winner at the end, if it passes.
    replace
        Stop a study of the same name, if there is one, and begin anew.
    cores
        Cores of each training.
    memory
        Memory of each training, such as 4GB; learnt from what it takes if not given.
    gpu_memory
        Memory of a GPU that must be free for each training, such as 8GB.
    owner
        Whose it is; this user if not given.
    executor
        Where trainings run: local (this machine), ray or slurm (docs/many_machines.md).
    address
        Of the Ray cluster's head, HOST:6379; the one that this machine belongs to if not given.
    gpu
        The same as device=cuda:N.
    timeframe
        The same as market.timeframe=….
    data_dir
        The same as market.source=….
    n_envs
        The same as num_envs=N.
    json
        Print the study as JSON at the end, and nothing before.
    quiet
        Print nothing until the end.
    trust
        Import the code that a configuration from another run's folder names.
    """
    from velodrome.runs.live.display import choose_mode
    from velodrome.service.tuning import tune as carry_out
    from velodrome.tune import listing
    from velodrome.tune.report import write_report
    from velodrome.vector.argument_checks import checked_count

    source, settings = split_source(words)
    others: dict[str, Any] = {"device": None if gpu is None else f"cuda:{gpu}", "market.timeframe": timeframe}
    others |= {"market.source": data_dir, "num_envs": n_envs if n_envs is None else checked_count("--n-envs", n_envs)}
    settings |= {key: value for key, value in others.items() if value is not None}
    given = {"seeds": seeds, "folds": folds, "score": score, "search_seed": search_seed, "window": window}
    given["sampler"] = sampler
    given |= {"startup": startup, "confirm": confirm, "confirm_seeds": confirm_seeds, "final_seeds": final_seeds}
    flags = {"pruning": False if no_pruning else None, "test": False if no_test else None}
    flags["auto_promote"] = True if auto_promote else None
    told = {key: value for key, value in {**given, **flags}.items() if value is not None}
    out = console()
    about: dict[str, Any] = {"study": study, "workers": workers, "hours": hours, "search": search or ()}
    about |= {"search_only": search_only, "settings": told, "folder": place.folder, "store": place.store}
    about |= {"cores": cores, "memory": memory, "gpu_memory": gpu_memory, "owner": owner, "replace": replace}
    about |= {"executor": executor, "address": address}
    about |= {"console": out, "mode": "quiet" if json else choose_mode(out, False, quiet), "trust": trust}
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _interrupt)
    view = carry_out(source, trials, **about, **settings_for(carry_out, settings))
    if json:
        print_json(view.to_dict())
    else:
        out.print(listing.show_view(view, str(write_report(view))))
    if view.study.status == "running":
        there = told_place(place) + ("" if executor == "local" else f" --executor {executor}")
        command = f"continue with: velodrome tune --study {shlex.quote(view.study.name)}{there}"
        sys.stderr.write(f"velodrome: stopped and saved; {command}\n")
        return INTERRUPTED
    return PROBLEM_FOUND if view.study.status == "failed" else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _studies(place: Place) -> tuple[Studies, Any]:
    from velodrome.tune.study import Studies

    service = service_at(place)
    return Studies(service.store), service


@studies.command(name="list")
def list_studies(*, place: Place = HERE, json: Flag = False) -> None:
    """List studies, newest first.

    Parameters
    ----------
    json
        Print JSON.
    """
    from velodrome.tune import listing
    from velodrome.tune.view import StudyView

    known, service = _studies(place)
    views = [StudyView.of(known, study, service.folder) for study in known.all()]
    if json:
        print_json([{key: value for key, value in view.to_dict().items() if key != "trials"} for view in views])
    else:
        console().print(listing.list_table(views))
        _tell_if_nobody_searches(views, service, place)


@studies.command
def show(study: str, *, place: Place = HERE, no_report: Flag = False, json: Flag = False) -> None:
    """Show a study: the best trials, what decided them, why others ended, and the winner with its test.

    History, importances and parallel coordinates are drawn in studies/NAME of the folder of runs, as a page and images.

    Parameters
    ----------
    study
        Its name, its id, the start of either, or latest.
    no_report
        Print only.
    json
        Print JSON, with all trials.
    """
    from velodrome.tune import listing
    from velodrome.tune.report import write_report
    from velodrome.tune.view import StudyView

    known, service = _studies(place)
    view = StudyView.of(known, known.get(study), service.folder)
    if json:
        print_json(view.to_dict())
    else:
        console().print(listing.show_view(view, "" if no_report else str(write_report(view))))
        _tell_if_nobody_searches([view], service, place)


def _tell_if_nobody_searches(views: Sequence[StudyView], service: AgentTrainingService, place: Place) -> None:
    """Say which studies are not over and wait until somebody goes on with them."""
    left = [view.study.name for view in views if view.study.status == "running"]
    if left and not service.queue.services():
        command = f"velodrome tune --study {shlex.quote(left[0])}{told_place(place)}"
        console().print(f"nothing is trained for {', '.join(left)}; go on: {command}", soft_wrap=True, highlight=False)
