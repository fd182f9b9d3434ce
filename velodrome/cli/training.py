"""Commands that train, evaluate, explain settings and profile."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from velodrome.cli.shared import GIVEN, INTERRUPTED, Flag, app, console, without_option
from velodrome.errors import ConfigError, did_you_mean, printable

if TYPE_CHECKING:
    from velodrome.runs.config.run_config import RunConfig

TORCHTRADE = "torchtrade"  # the preset whose users bring settings of their own
NEIGHBOURS = {"jules": "velodrome.compat.intraday_jules:read_config"}  # by name: what reads their configuration files


@app.command
def train(
    *words: str,
    seeds: int | None = None,
    ensemble: int | None = None,
    resume: str | None = None,
    data: str | None = None,
    seed: int | None = None,
    n_envs: int | None = None,
    update_steps: int | None = None,
    max_episodes: int | None = None,
    total_episodes: int | None = None,
    neighbour: Annotated[str | None, Parameter(name="--from")] = None,
    nproc: int | None = None,
    folder: str = "runs",
    json: Flag = False,
    quiet: Flag = False,
    no_evaluation: Flag = False,
    trust: Flag = False,
) -> int:
    """Train an agent, evaluate it on data it never saw, and write a report.

    Without arguments: PPO on a built-in market whose best return is known. Ctrl-C saves and stops.

    Parameters
    ----------
    words
        A YAML or TOML file or the name of a preset (`velodrome config --presets`), then settings as key=value, such as
        steps=5_000_000 ppo.learning_rate=1e-3 market.source=prices/.
    seeds
        Train this many agents that differ only in their seed (also as seeds=5); their evaluation is about all of them.
    ensemble
        Train this many agents that differ only in their seed and act as one policy (also as ensemble=8).
    resume
        Continue a run, a group of seeds or an ensemble instead: its folder, id, the start of either, or latest. With
        steps=N it goes on to N steps, a group with --seeds N to N seeds, an ensemble with --ensemble N to N members;
        with another seed, learning rate or evaluation a child
        run begins at its last checkpoint (docs/runs.md).
    data
        With --resume: file or folder in which the run's data lies now, if it moved.
    seed
        The same as seed=N.
    n_envs
        The same as num_envs=N.
    update_steps
        Steps of every environment between two updates, the same as rollout_length=N.
    max_episodes
        Episodes of every environment, after which the training ends: episodes = this × the number of environments.
    total_episodes
        Episodes of all environments together, the same as episodes=N.
    neighbour
        The configuration file is another system's; there is jules, the intraday FX trainer's YAML.
    nproc
        Train one agent in this many processes of this machine (PPO), one for each GPU, or with cores to itself: they
        share the environments and add up their gradients. The same as torchrun --nproc-per-node N -m velodrome train
        (docs/many_machines.md); a run goes on with any other number.
    folder
        Folder of the runs, in which --resume looks; logging.folder=… is where a new one goes.
    json
        Print one JSON object per line instead of the live view.
    quiet
        Print nothing but the evaluation.
    no_evaluation
        Leave out the evaluation and the report at the end.
    trust
        Import the code that a run from elsewhere names, now and later; runs trained here need no such word.
    """
    if nproc is not None:
        from velodrome.runs.ranks.launch import launch

        return launch(nproc, without_option(GIVEN, "--nproc"))
    from velodrome.runs import run as running
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.live.display import choose_mode
    from velodrome.vector.argument_checks import checked_count

    out = console()
    shown: dict[str, Any] = {"console": out, "mode": choose_mode(out, json, quiet), "evaluate": not no_evaluation}
    for flag, count in (("--n-envs", n_envs), ("--update-steps", update_steps)):
        if count is not None:
            checked_count(flag, count)
    given = {"seed": seed, "seeds": seeds, "ensemble": ensemble, "num_envs": n_envs, "rollout_length": update_steps}

    def num_envs() -> int:
        if resume is not None:
            return running.Run.open(resume, folder).config.num_envs
        return load_run_config(*(neighbours_file(neighbour, words) if neighbour else split_source(words))).num_envs

    given["episodes"] = episode_budget(n_envs or num_envs, max_episodes, total_episodes)
    words += tuple(f"{name}={value}" for name, value in given.items() if value is not None)
    if resume is not None:
        if sources := [word for word in words if "=" not in word]:
            raise ConfigError(
                f"--resume continues a run with the configuration it has; received {' '.join(sources)} besides. Give "
                "settings to change, such as steps=1_000_000, or train a new run."
            )
        finished = running.resume(resume, words, root=folder, data=data, trust=trust, **shown)
    elif data is not None:
        raise ConfigError(f"--data {data} is for --resume; a new run is told market.source={data}")
    else:
        source, settings = neighbours_file(neighbour, words) if neighbour is not None else split_source(words)
        finished = running.train(source, trust=trust, **shown, **settings_for(running.train, settings))
    if os.environ.get("RANK", "0") != "0":  # the first rank tells
        return 0
    if finished.status == "interrupted":
        sys.stderr.write(f"velodrome: interrupted and saved; continue with: {finished.resume_command}\n")
        return INTERRUPTED
    return 0


def episode_budget(
    num_envs: int | Callable[[], int], max_episodes: int | None, total_episodes: int | None
) -> int | None:
    """Return the episodes of a training: the fewer of all together and of every environment; None for no budget.

    num_envs: how many there are, or what finds that out.
    """
    for flag, value in (("--max-episodes", max_episodes), ("--total-episodes", total_episodes)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} {value}: a training needs at least one episode.")
    if max_episodes is None:
        return total_episodes
    each = max_episodes * (num_envs if isinstance(num_envs, int) else num_envs())
    return each if total_episodes is None else min(each, total_episodes)


def neighbours_file(neighbour: str, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that the file of another system says, and those named beside it."""
    from velodrome.registry import load

    if neighbour not in NEIGHBOURS:
        known = ", ".join(NEIGHBOURS)
        raise ConfigError(f"--from {neighbour}: there is {known}.{did_you_mean(neighbour, NEIGHBOURS)}")
    source, settings = split_source(words)
    if source is None:
        raise ConfigError(f"--from {neighbour} needs its configuration file: velodrome train --from {neighbour} FILE")
    return load(NEIGHBOURS[neighbour])(source), settings


def loaded(words: Sequence[str]) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration that words give, and where its settings come from."""
    from velodrome.runs.config.files import load_with_origins

    return load_with_origins(*split_source(words))


def settings_for(called: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that are given as keywords, but refuse those that would be taken for arguments of their own."""
    from velodrome.runs.config.messages import all_fields, unknown_key
    from velodrome.runs.config.run_config import Choices, RunConfig

    choices = Choices.among(settings)
    for name in inspect.signature(called).parameters.keys() & settings.keys() - RunConfig.model_fields.keys():
        full = [key for key in all_fields(choices.env) if key.partition(".")[2] == name]
        told = f"{name!r} is written in full here: {' or '.join(full)}." if full else unknown_key(name, choices)
        raise ConfigError(f"{told.rstrip('.')}. Options of the command begin with --.")
    return settings


def split_source(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Return the file or preset among words, of which there is one at most, and the settings.

    Those of TorchTrade's example, such as env.train_envs=128, become ours with the preset torchtrade, each with a note.
    """
    from velodrome.runs.config.files import load_run_config, read_overrides

    sources = [word for word in words if "=" not in word]
    if len(sources) > 1:
        raise ConfigError(f"one configuration, file or preset, can be named; received {' '.join(sources)}")
    source, settings = sources[0] if sources else None, read_overrides([word for word in words if "=" in word])
    if source == TORCHTRADE:
        from velodrome.compat.torchtrade.settings import is_theirs, translated

        if any(map(is_theirs, settings)):
            settings, notes = translated(settings, load_run_config(TORCHTRADE).num_envs)
            for note in notes:
                sys.stderr.write(f"note: {note}\n")
    return source, settings


@app.command(name="eval")
def evaluate(
    run: str,
    *,
    split: str | None = None,
    checkpoint: str = "best",
    folder: str = "runs",
    allow_training_split: Flag = False,
    no_report: Flag = False,
    json: Flag = False,
    walk_forward: Flag = False,
    folds: int | None = None,
    anchored: Flag = False,
    data: str | None = None,
    official: Flag = False,
    episodes: int | None = None,
    trust: Flag = False,
) -> None:
    """Evaluate a run on a split it did not learn from, beside simple policies such as buy and hold.

    Prints the table with confidence intervals and writes a report and images into the run's folder; those of another
    split or checkpoint lie beside them.

    Parameters
    ----------
    run
        Its folder, id, the start of either, or latest.
    split
        The split; evaluation.final_split of its configuration if not given.
    checkpoint
        best (on the validation split) or latest.
    folder
        Folder of the runs.
    allow_training_split
        Allow a split that the agent learnt from; the result is labelled so.
    no_report
        Print only.
    json
        Print the evaluation as JSON.
    walk_forward
        Train again over rolling windows with the run's configuration, and evaluate each on what follows it.
    folds
        Windows of --walk-forward; 4 if not given.
    anchored
        --walk-forward: every window begins with the first bar and grows, instead of moving on.
    data
        File or folder in which the run's data lies now, if it moved.
    official
        The environment's own evaluation, if it has one. CAGE-2's: three lengths against each Red agent, beside
        published scores.
    episodes
        Episodes of each entry of --official; as many as that asks for (CAGE-2: 1,000) if not given.
    trust
        Import the code that a run from elsewhere names, now and later; runs trained here need no such word.
    """
    from velodrome.runs import evaluate as evaluating

    out = console()
    if (folds is not None or anchored) and not walk_forward:
        raise ConfigError(
            f"{'--anchored' if anchored else '--folds'} is for --walk-forward; add that, or leave it out."
        )
    if episodes is not None and not official:
        raise ConfigError("--episodes is for --official; evaluation.episodes of the configuration sets the others'.")
    if official:
        others = {"--split": split, "--walk-forward": walk_forward, "--no-report": no_report}
        others |= {"--allow-training-split": allow_training_split, "--data": data}
        if given := [flag for flag, value in others.items() if value]:
            raise ConfigError(f"--official plays episodes of its own; leave out {given[0]}")
        from velodrome.runs.official import official_evaluation

        with evaluating.shown_progress(not json and out.is_terminal) as tell:
            played: dict[str, Any] = {"progress": tell, "episodes": episodes, "trust": trust}
            scores = official_evaluation(run, root=folder, checkpoint=checkpoint, **played)
        _show(scores, out, json)
        return
    if walk_forward:
        from velodrome.outside.screen import Screen
        from velodrome.runs.walk_forward import walk_forward as walk

        # What is printed on the way must not get between the lines of JSON.
        told = Screen(stderr=True) if json else out
        shown: dict[str, Any] = {"console": told, "anchored": anchored, "trust": trust}
        result = walk(run, 4 if folds is None else folds, root=folder, data=data, **shown)
        _show(result, out, json)
        return
    found = evaluating.evaluate(
        run,
        split,
        root=folder,
        checkpoint=checkpoint,
        data=data,
        allow_training_split=allow_training_split,
        report=not no_report,
        progress=not json and out.is_terminal,
        trust=trust,
    )
    _show(found, out, json)
    if not (json or no_report):
        from velodrome.runs.run import Run

        if where := evaluating.told_report(Run.open(run, folder), found):
            out.print(where, soft_wrap=True)


@app.command(name="cv")
def cross_validate(
    *words: str,
    folds: int | None = None,
    embargo: int | None = None,
    processes: int | None = None,
    folder: str = "runs",
    data: str | None = None,
    json: Flag = False,
    trust: Flag = False,
) -> None:
    """Cross-validate settings in time: train without each block of the data before the test, and judge it there.

    Prints each fold's figures, their mean and how they are spread. For choosing settings; it is no backtest. Ctrl-C
    saves and stops, and the same command goes on.

    Parameters
    ----------
    words
        A YAML or TOML file, the name of a preset, or a run whose configuration is taken; then settings as key=value.
    folds
        Blocks of time; evaluation.folds of the configuration if not given.
    embargo
        Bars left out after each block, beside those whose windows overlap it; market.embargo if not given.
    processes
        Folds to train at once; as many as there are cores and memory for if not given.
    folder
        Folder of the runs, in which a run is looked for; logging.folder=… is where the folds go.
    data
        File or folder in which a run's data lies now, if it moved.
    json
        Print the result as JSON.
    trust
        Import the code that a run from elsewhere names, now and later; runs trained here need no such word.
    """
    from velodrome.outside.screen import Screen
    from velodrome.runs.folds.cross_validation import cross_validate as validate

    out, (source, settings) = console(), split_source(words)
    about: dict[str, Any] = {"embargo": embargo, "processes": processes, "root": folder, "data": data, "trust": trust}
    # What is printed on the way must not get between the lines of JSON.
    told = Screen(stderr=True) if json else out
    _show(validate(source, folds, console=told, **about, **settings_for(validate, settings)), out, json)


def _show(result: Any, out: Any, json: bool) -> None:
    if json:
        sys.stdout.write(printable(result.to_json()) + "\n")
    else:
        out.print(result.table())


@app.command
def config(*words: str, preset: str | None = None, presets: Flag = False, env: str = "trading") -> None:
    """Explain the fields of a configuration, or print a whole one with the place that each value comes from.

    Parameters
    ----------
    words
        A section to explain (run: the fields outside any), or one dotted key such as ppo.clip; all if not given. Or the
        words of `velodrome train`, with at least one key=value or file among them: what that would train with, as YAML.
    preset
        Print this preset, all defaults filled in, as a YAML file to start from.
    presets
        List the presets.
    env
        Environment whose parameters are explained under params.
    """
    from velodrome.runs.config import explain
    from velodrome.runs.config.files import SUFFIXES, describe_presets

    if presets:
        for name, meaning in describe_presets().items():
            sys.stdout.write(f"{name:<14} {meaning}\n")
    elif preset is not None or any("=" in word or word.endswith(SUFFIXES) for word in words):
        chosen, origins = loaded([preset, *words] if preset else words)
        sys.stdout.write(printable(explain.to_yaml(chosen, origins=origins)))
    elif len(words) > 1:
        raise ConfigError(f"one section or key can be explained; received {' '.join(words)}")
    else:
        console().print(explain.explain(words[0] if words else None, env))


@app.command
def profile(*words: str, iterations: int = 10, folder: Path = Path("profile"), trust: Flag = False) -> None:
    """Show where the time of a training goes: phases, operations and a flame graph.

    Parameters
    ----------
    words
        A configuration file or preset, then settings as key=value; as for `velodrome train`.
    iterations
        Iterations to measure.
    folder
        Folder for profile.html (a flame graph to open in a browser) and trace.json.
    trust
        Import the code that the configuration of a run from elsewhere names.
    """
    from velodrome.runs import setup
    from velodrome.runs.machine import plan
    from velodrome.runs.profile import profile_iterations
    from velodrome.runs.trained import check_source

    chosen, _ = loaded(words)
    check_source(split_source(words)[0], chosen, trust)
    market = setup.build_market(chosen)
    chosen, _ = plan.with_num_envs(chosen, market)
    with setup.learning_worlds(chosen, market, chosen.usable_device()) as worlds:
        learner = setup.make_learner(chosen, worlds)
        console().print(profile_iterations(learner.iterate, learner.clock, iterations, folder).table())
