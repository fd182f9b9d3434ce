"""`walk_forward`: a configuration trained anew over rolling windows, and each agent tested on what follows its own.

Every fold is an ordinary run whose configuration names its splits by date, so that it can be resumed and evaluated like
any other. The tests follow one another; played one after the other on one account they are a single out-of-sample
result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.catalog import CATALOG
from velodrome.errors import ConfigError, RunError
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config, preset_names
from velodrome.runs.config.parameters import takes_market
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.evaluate import evaluate
from velodrome.runs.folder import RunFolder, run_folders
from velodrome.runs.live.display import choose_mode
from velodrome.runs.run import Run, resume, train

if TYPE_CHECKING:
    from rich.console import Console, Group

    from velodrome.evaluation.result import Evaluation
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market, WindowedRows

SPLIT = "walk_forward"  # of the joined tests
FILE = "walk_forward"
SHOWN = ("return", "sharpe", "max_drawdown", "turnover", "trades")  # metrics of a fold's line
Dates = tuple[str, str | None]  # from, to (not part of it); None: the data's end


@dataclass(frozen=True)
class Fold:
    """One window: the run that was trained on it, and how it did on what follows."""

    number: int
    run: Run
    splits: Mapping[str, Dates]
    evaluation: Evaluation


@dataclass(frozen=True)
class WalkForward:
    """All folds, and the tests joined into one."""

    path: Path  # folder with the report and the JSON file
    folds: tuple[Fold, ...]
    joined: Evaluation
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the long tables as JSON-able values."""
        return {
            "settings": dict(self.settings),
            "folds": [
                {
                    "fold": fold.number,
                    "run": fold.run.folder.id,
                    "folder": str(fold.run.path),
                    "splits": {name: list(dates) for name, dates in fold.splits.items()},
                    "evaluation": fold.evaluation.to_dict(),
                }
                for fold in self.folds
            ],
            "joined": self.joined.to_dict(),
        }

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def table(self) -> Group:
        """Return a line for each fold and one for all together, then the table of the joined tests."""
        from rich.console import Group
        from rich.table import Table

        from velodrome.evaluation.baselines import LABELS
        from velodrome.evaluation.measures import BY_NAME, format_figure

        names = self.joined.baseline_names
        table = Table(title=f"{self.joined.information['title']}: {len(self.folds)} folds, each tested on what follows")
        for heading in ("fold", "run", "trained from", "tested from", "to"):
            table.add_column(heading, no_wrap=True)
        for name in (*(BY_NAME[metric].label for metric in SHOWN), *(f"{LABELS[name]}: return" for name in names)):
            table.add_column(name, justify="right")

        def figures(found: Evaluation) -> list[str]:
            own = [format_figure(found.metrics.get(metric), BY_NAME[metric].unit) for metric in SHOWN]
            gains = found.row("return").baselines
            return [*own, *(format_figure(gains[name], BY_NAME["return"].unit) for name in names)]

        for fold in self.folds:
            begin, end = (fold.evaluation.information[key] for key in ("first_bar", "last_bar"))
            shown = (str(fold.number), fold.run.folder.id, fold.splits["train"][0][:19].replace("T", " "), begin, end)
            table.add_row(*shown, *figures(fold.evaluation))
        table.add_section()
        whole = self.joined.information
        table.add_row("all", "", "", whole["first_bar"], whole["last_bar"], *figures(self.joined))
        return Group(table, self.joined.table())


def walk_forward(
    run_or_config: str | Path | Run | RunConfig | Mapping[str, Any], folds: int = 4, *, root: str | Path = "runs",
    console: Console | None = None, train: int | float | None = None, test: int | float | None = None,
    anchored: bool = False, embargo: int = 0, market: Market | Basket | None = None,
) -> WalkForward:  # fmt: skip
    """Train a configuration anew on each of several windows, test it on what follows, and join the tests.

    run_or_config: a run whose configuration is taken, or a configuration as `vd.train` takes it.
    root: folder in which a run is looked for; what is made lies beside the run, or in `logging.folder`.
    train, test: bars or fractions of the data; without them it is cut into folds + 1 equal parts.
    anchored: every fold trains from the first bar on. embargo: bars left out between two neighbouring splits.
    market: the one that the run was given, if it was given one. Each fold cuts it anew and fits its scalers again,
        which can be done with a market without `clip`, and with a basket that was built with scaler="none".
    The end of each window is a validation split, if the configuration evaluates during training, to choose the best
    checkpoint by. Called again, it goes on where it stopped: folds that have finished are not trained again.
    """
    from rich.console import Console

    from velodrome.evaluation.evaluator import keeps_account, world_on
    from velodrome.tables.splits import fold_splits

    config, folder, run_before = _configuration(run_or_config, root)
    if not takes_market(config.env):
        raise ConfigError(
            f"env = {config.env!r} plays on no market, so that nothing follows its data; walk-forward is for trading "
            "and portfolios."
        )
    console = console or Console()
    given = market is not None
    if market is None:
        market = setup.build_market(config)
        assert market is not None
    else:
        setup.check_market(config, market)
    if not keeps_account(world_on(CATALOG.get(config.env), market, config.params, whole=True)):
        raise ConfigError(
            f"env = {config.env!r} keeps no account to play the tests of all folds in, one after the other."
        )
    if run_before is not None:
        run_before.check_data(market, "to walk it forward")
    parts = fold_splits(market, folds, train, test, embargo, anchored)
    share = _validation_share(config, market)
    plan = [_dates(market, splits, share) for splits in parts]
    settings = {
        "configuration": config.hash, "data": market.content_hash, "folds": len(plan), "embargo": embargo,
        "splits": plan,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    done: list[Fold] = []
    policies: list[TrainedPolicy] = []
    for number, splits in enumerate(plan, 1):
        # The fold first: what a person calls the run by its start must still mean that run.
        name = f"fold-{number}-of-{len(plan)}-{(config.name or config.env)[:60]}-{key}"
        chosen = _fold_config(config, folder, name, splits, embargo)
        own = _cut_anew(market, splits, embargo) if given else setup.build_market(chosen)
        assert own is not None
        trained_on, tested_on = splits["train"][0][:19], splits["test"][0][:19]
        console.print(f"fold {number} of {len(plan)}: trained from {trained_on}, tested from {tested_on}")
        run = _finished_run(chosen, own, folder, name, console)
        evaluation = evaluate(run, "test", market=own, report=False)
        done.append(Fold(number, run, splits, evaluation))
        policies.append(_with_windows(run, own))
    joined = _evaluate_joined(config, market, [splits["test"] for splits in parts], policies, embargo)
    result = WalkForward(folder / f"walk-forward-{key}", tuple(done), joined, settings)
    _write(result, config)
    console.print(f"report: {result.path / FILE}.html", soft_wrap=True)
    return result


# What to train


def _configuration(
    given: str | Path | Run | RunConfig | Mapping[str, Any], root: str | Path
) -> tuple[RunConfig, Path, Run | None]:
    """Return the configuration that is meant, the folder for what is made of it, and the run that it is of."""
    if isinstance(given, str | Path) and not Path(given).is_file():
        try:
            given = Run.open(given, root)
        except RunError:
            if str(given) not in preset_names():
                raise
    if isinstance(given, Run):
        return given.config, given.path.parent, given
    config = load_run_config(given)
    return config, Path(config.logging.folder).resolve(), None


def _cut_anew(market: Market | Basket, splits: Mapping[str, Dates], embargo: int) -> Market | Basket:
    """Return a market that was built already with the splits of a fold, and scalers that know its training part."""
    from velodrome.tables.basket import Basket
    from velodrome.tables.hashing import content_hash
    from velodrome.tables.scaling import refit
    from velodrome.tables.splits import make_splits

    rows = make_splits(
        splits, market.time, market.begin, market.end, market.begin, market.stretches, market.timezone, embargo
    )
    fitted = [scaler.kind for scaler in market.scalers if scaler.kind != "none"]
    if isinstance(market, Basket) and fitted:
        raise ConfigError(
            f"the basket was scaled ({fitted[0]}) by the training split that it was built with, and features that are "
            "carried over gaps cannot be scaled anew for each fold. Build it with scaler='none', or name its files as "
            "market.source, from which walk-forward builds a basket for each fold."
        )
    windows, scalers = market.windows, market.scalers
    if fitted:
        windows, scalers = refit(windows, scalers, market.symbols, market.begin, market.end, rows["train"])
    record = {"of": market.content_hash, "splits": rows, "scalers": [scaler.to_dict() for scaler in scalers]}
    return dataclasses.replace(market, windows=windows, scalers=scalers, splits=rows, content_hash=content_hash(record))


def _validation_share(config: RunConfig, market: WindowedRows) -> float:
    """Return the part of a window that is kept for validation: as large as the configuration's own, beside training."""
    split = config.evaluation.split
    if split is None or config.evaluation.every_steps is None:
        return 0.0
    train, kept = (int((part.end - part.begin).sum()) for part in map(market.split, ("train", split)))
    return kept / (kept + train)


def _dates(market: WindowedRows, splits: Mapping[str, Sequence[tuple[int, int]]], share: float) -> dict[str, Dates]:
    """Return a fold's splits by date, the end of its training part as validation."""
    time = market.time
    seen = np.unique(np.concatenate([time[low:high] for low, high in splits["train"]]))
    middle = _first_after(market, splits["train"])
    assert middle is not None
    end = _first_after(market, splits["test"])
    dates: dict[str, Dates]
    if share > 0.0:
        cut = seen[min(round(len(seen) * (1.0 - share)), len(seen) - 1)]
        dates = {"train": (_text(seen[0]), _text(cut)), "validation": (_text(cut), _text(middle))}
    else:
        dates = {"train": (_text(seen[0]), _text(middle))}
    return {**dates, "test": (_text(middle), None if end is None else _text(end))}


def _first_after(market: WindowedRows, rows: Sequence[tuple[int, int]]) -> int | None:
    """Return the time of the first bar after some rows, None if they reach the data's end."""
    following = [market.time[high] for (_, high), end in zip(rows, market.end, strict=True) if high < end]
    return int(min(following)) if following else None


def _text(nanoseconds: int | np.int64) -> str:
    return f"{np.datetime64(int(nanoseconds), 'ns').astype('datetime64[us]')}+00:00"


def _fold_config(config: RunConfig, folder: Path, name: str, splits: Mapping[str, Dates], embargo: int) -> RunConfig:
    return load_run_config(
        config,
        {
            "name": name, "logging.folder": str(folder), "market.splits": dict(splits), "market.embargo": embargo,
            "evaluation.split": "validation" if "validation" in splits else None, "evaluation.final_split": "test",
        },
    )  # fmt: skip


def _finished_run(config: RunConfig, market: Market | Basket, folder: Path, name: str, console: Console) -> Run:
    """Return the run of a fold: the one that has finished, the one that was begun and now is, or a new one."""
    mode = choose_mode(console)
    begun = [Run(found) for found in run_folders(folder) if found.information["name"] == name]
    if begun:
        begun.sort(key=lambda run: (run.status == "finished", _created(run.folder)))
        run = begun[-1]
        if run.status == "finished":
            console.print(f"{run.path.name} has finished: not trained again", soft_wrap=True)
        else:
            run = resume(run, console=console, mode=mode, evaluate=False, market=market)
    else:
        run = train(config, console=console, mode=mode, evaluate=False, market=market)
    if run.status != "finished":
        console.print(f"{run.path.name} was interrupted and saved; the same call goes on with it", soft_wrap=True)
        raise KeyboardInterrupt
    return run


def _created(folder: RunFolder) -> float:
    return folder.candidate.created


# The tests as one


class FoldsPolicy:
    """Acts by the policy of the fold in which an environment's bar lies; each begins without memory.

    Each sees what is left of its own test, as it does when it is tested alone, and not what is left of all of them.
    """

    def __init__(self, policies: Sequence[TrainedPolicy], tests: Sequence[Sequence[tuple[int, int]]], rows: int,
                 left_at: int | None) -> None:  # fmt: skip
        """Make a policy.

        tests: by fold and instrument, begin and end row. left_at: place of "episode_left" among the account's values.
        """
        self.policies, self.left_at = policies, left_at
        self.fold_of_row = np.zeros(rows, np.int64)
        self.left_of_row = np.zeros(rows, np.float32)
        for fold, instruments in enumerate(tests):
            following = tests[fold + 1] if fold + 1 < len(tests) else instruments
            for (low, high), (_, last) in zip(instruments, following, strict=True):
                self.fold_of_row[low:last] = fold  # bars of the embargo after it are its own until the next begins
                self.left_of_row[low:high] = np.arange(high - 1 - low, -1, -1) * (1.0 / (high - 1 - low))
        self.playing = np.empty(0, np.int64)  # [n] fold of each environment, −1 before its first action

    def begin(self, num_envs: int) -> None:
        """Forget everything; so many environments start."""
        self.playing = np.full(num_envs, -1)
        for policy in self.policies:
            policy.begin(num_envs)

    def act(self, observation: Mapping[str, NDArray]) -> NDArray:
        """Return an action for every environment."""
        cursor = np.asarray(observation["cursor"])
        folds = self.fold_of_row[cursor]
        if self.left_at is not None:
            account = np.array(observation["account"])
            account[:, self.left_at] = self.left_of_row[cursor]
            observation = {**observation, "account": account}
        entered, self.playing = folds != self.playing, folds
        actions: NDArray | None = None
        for fold in np.unique(folds):
            policy, here = self.policies[fold], folds == fold
            # What it saw of environments that were not its own yet does not count.
            policy.forget(entered & here)
            own = policy.act(observation)
            actions = own if actions is None else np.where(here.reshape(-1, *[1] * (own.ndim - 1)), own, actions)
        assert actions is not None
        return actions

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Forget what belongs to these environments: they started a new episode."""
        for policy in self.policies:
            policy.forget(ended)


def _with_windows(run: Run, market: WindowedRows) -> TrainedPolicy:
    from velodrome.rollout.observation import WindowBank

    return run.policy.with_bank(WindowBank(market.windows))


def _evaluate_joined(
    config: RunConfig, market: Market | Basket, tests: Sequence[Sequence[tuple[int, int]]],
    policies: Sequence[TrainedPolicy], embargo: int,
) -> Evaluation:  # fmt: skip
    """Play all tests one after the other on one account, each bar by the agent of its fold."""
    from velodrome.evaluation.evaluate import evaluate_policy
    from velodrome.evaluation.evaluator import world_on

    observed = world_on(CATALOG.get(config.env), market, config.params, whole=True).observed
    left_at = observed.index("episode_left") if "episode_left" in observed else None
    policy = FoldsPolicy(policies, tests, len(market), left_at)
    whole = tuple((first[0], last[1]) for first, last in zip(tests[0], tests[-1], strict=True))
    notes = [
        f"{len(tests)} folds: each part is played by the agent that was trained on what lies before it; positions are "
        "carried from one to the next"
    ]
    if embargo:
        notes.append(f"the {embargo} bars of the embargo after a window are played by the agent of the fold before")
    return evaluate_policy(
        policy, dataclasses.replace(market, splits={SPLIT: whole}), SPLIT, config.params,
        seeds=config.evaluation.seeds, samples=config.evaluation.bootstrap_samples,
        confidence=config.evaluation.confidence, trained_on=None, notes=notes, env=config.env,
    )  # fmt: skip


# Writing down


def _write(result: WalkForward, config: RunConfig) -> None:
    from velodrome.evaluation.measures import BY_NAME, format_figure
    from velodrome.runs.report.report import write_report

    result.path.mkdir(parents=True, exist_ok=True)
    result.joined.save(result.path)
    information = {
        "algorithm": f"{config.algorithm}, {config.network.kind} {list(config.network.hidden)}",
        "environment steps": f"{config.steps:,} in each of {len(result.folds)} folds",
        "seed": str(config.seed),
        "configuration": config.hash,
    }
    for fold in result.folds:
        found = fold.evaluation
        gain = format_figure(found.row("return").value, BY_NAME["return"].unit)
        begin, end = found.information["first_bar"], found.information["last_bar"]
        information[f"fold {fold.number}"] = f"{fold.run.path.name}, tested {begin} … {end}: return {gain}"
    write_report(result.joined, result.path / f"{FILE}.html", f"{config.env}: walk-forward", information)
    (result.path / f"{FILE}.json").write_text(result.to_json() + "\n", encoding="utf-8")
