"""`walk_forward`: a configuration trained on several windows of the data, each agent tested on what follows its own.

Every fold is an ordinary run whose configuration names its splits by date, so that it can be resumed and evaluated like
any other. The tests follow one another; played in a row on one account they are a single out-of-sample result.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.summary import Summarised, Summary
from velodrome.envs.catalog import CATALOG
from velodrome.errors import ConfigError
from velodrome.outside.screen import Screen
from velodrome.runs import setup
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.evaluate import evaluate
from velodrome.runs.folds.fold import Dates, Fold, date_text, finished_run, validation_share, wanted_by
from velodrome.runs.report.folds import FILE, folds_table, write_folds
from velodrome.runs.run import Run

if TYPE_CHECKING:
    from rich.console import Console, Group

    from velodrome.evaluation.forecast.forecast import Part
    from velodrome.evaluation.named_policy import NamedPolicy
    from velodrome.evaluation.result import Evaluation
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market, WindowedRows
    from velodrome.tables.splits import RowRanges

SPLIT = "walk_forward"  # of the joined tests


@dataclass(frozen=True, repr=False)
class WalkForward(Summarised):
    """All folds, and the tests joined into one."""

    path: Path  # folder with the report and the JSON file
    folds: tuple[Fold, ...]
    joined: Evaluation
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the long tables as JSON-able values."""
        folds = [fold.to_dict() for fold in self.folds]
        return {"settings": dict(self.settings), "folds": folds, "joined": self.joined.to_dict()}

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook: the joined tests."""
        joined = self.joined.summary()
        return joined._replace(line=f"WalkForward over {len(self.folds)} folds in {self.path.name}. {joined.line}")

    def table(self) -> Group:
        """Return a line for each fold and one for all together, then the table of the joined tests."""
        return folds_table(self)


def walk_forward(
    run_or_config: str | Path | Run | RunConfig | Mapping[str, Any],
    folds: int = 4,
    *,
    root: str | Path = "runs",
    console: Console | None = None,
    market: Market | Basket | None = None,
    data: str | Path | None = None,
    embargo: int = 0,
    trust: bool = False,
    **lengths: Any,
) -> WalkForward:
    """Train a configuration on each of several windows, test it on what follows, and join the tests.

    run_or_config: a run whose configuration is taken, or a configuration as `vd.train` takes it.
    root: folder in which a run is looked for. Results lie beside the run, or in `logging.folder`.
    market: the market or basket that the run was given, if it was given one. Each fold cuts it again and fits its
        scalers again, which needs one that was built without `clip`.
    data: file or folder in which the run's data lies now, if it moved.
    embargo: bars left out between two neighbouring splits.
    trust: code that the run names may be imported, though it was not used here before (docs/security.md).
    lengths: `train`, `test` and `anchored`, as `vd.walk_forward` takes them.
    If the configuration evaluates during training, the end of each window is a validation split by which the best
    checkpoint is chosen. A second call goes on where the first stopped: finished folds are not trained again.
    """
    from velodrome.evaluation.evaluator import keeps_account, world_on
    from velodrome.evaluation.forecast.forecast import Part
    from velodrome.rollout.observation import WindowBank
    from velodrome.tables.folds import fold_splits, spans_of, with_splits
    from velodrome.tables.splits import make_splits

    console = console or Screen()
    wanted = wanted_by(run_or_config, "to walk it forward", root=root, market=market, data=data, trust=trust)
    config, whole = wanted.config, wanted.whole
    if not keeps_account(world_on(CATALOG.get(config.env), whole, config.params, whole=True)):
        raise ConfigError(
            f"env = {config.env!r} keeps no account to play the tests of all folds in, one after the other."
        )
    parts = fold_splits(whole, folds, embargo=embargo, **lengths)
    share = validation_share(config, whole)
    plan = [_dates(whole, splits, share) for splits in parts]
    settings = {"configuration": config.hash, "data": whole.content_hash, "folds": len(plan)}
    settings |= {"embargo": embargo, "splits": plan}
    if lengths.get("anchored"):  # named only then: the key of others stays what it was
        settings["anchored"] = True
    key = wanted.key(settings)
    done: list[Fold] = []
    policies: list[list[TrainedPolicy]] = []  # of each fold, by training seed
    markets: list[Market | Basket] = []  # of each fold
    for number, dates in enumerate(plan, 1):
        chosen = wanted.fold_config(number, len(plan), key, dates, embargo, "test")
        if market is None:
            # As the fold's run will build it again, from its configuration alone.
            chosen, own, _ = setup.market_to_train_on(chosen)
        else:
            own = with_splits(market, make_splits(dates, spans_of(market), market.timezone, embargo))
        assert own is not None
        trained, tested = (dates[name][0][:16].replace("T", " ") for name in ("train", "test"))
        console.print(f"fold {number} of {len(plan)}: trained from {trained}, tested from {tested} (UTC)")
        run = finished_run(chosen, own, console)
        done.append(Fold(number, run, dates, evaluate(run, "test", market=own, report=False)))
        bank = WindowBank(own.windows)
        markets.append(own)
        policies.append([policy.with_bank(bank) for policy in run.policies()[0]])
    named = _joined_name([fold.evaluation.policy for fold in done if fold.evaluation.policy is not None])
    tests = [splits["test"] for splits in parts]
    joined = _evaluate_joined(config, whole, tests, policies, embargo, named, [Part(own, "test") for own in markets])
    parted = [str(fold.number) for fold in done if fold.evaluation.information["overfitting"]]
    if parted:
        warning = f"overfitting in {len(parted)} of {len(done)} folds ({', '.join(parted)}): their evaluations say when"
        joined = dataclasses.replace(joined, warnings=(warning, *joined.warnings))
    result = WalkForward(wanted.folder / f"walk-forward-{key}", tuple(done), joined, settings)
    write_folds(result, config)
    console.print(f"report: {result.path / FILE}.html", soft_wrap=True)
    return result


def _dates(market: WindowedRows, splits: Mapping[str, RowRanges], share: float) -> dict[str, Dates]:
    """Return a fold's splits by date, the end of its training part as validation."""
    seen = np.unique(np.concatenate([market.time[low:high] for low, high in splits["train"]]))
    middle = _first_after(market, splits["train"])
    assert middle is not None
    dates: dict[str, Dates] = {"train": (date_text(seen[0]), middle)}
    if share > 0.0:
        cut = date_text(seen[min(round(len(seen) * (1.0 - share)), len(seen) - 1)])
        dates = {"train": (date_text(seen[0]), cut), "validation": (cut, middle)}
    return {**dates, "test": (middle, _first_after(market, splits["test"]))}


def _first_after(market: WindowedRows, rows: RowRanges) -> str | None:
    """Return the time of the first bar after some rows, None if they reach the data's end."""
    following = [market.time[high] for (_, high), end in zip(rows, market.end, strict=True) if high < end]
    return date_text(min(following)) if following else None


# The tests as one


class FoldsPolicy:
    """Acts by the policy of the fold that an environment's bar lies in; each policy begins without memory.

    Each sees how much is left of its own test, as when it is tested alone, not how much is left of all tests.
    """

    def __init__(
        self, policies: Sequence[TrainedPolicy], tests: Sequence[RowRanges], rows: int, left_at: int | None
    ) -> None:
        """Make a policy for a market of a number of rows, with the rows of each fold's test.

        left_at: place of "episode_left" among the account's values.
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
        self.disagreement: NDArray | None = None  # of ensembles, about the last actions, [n]
        self.disagreement_meaning = getattr(policies[0], "disagreement_meaning", "")

    def begin(self, num_envs: int) -> None:
        """Forget everything: a number of environments start."""
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
            # What it saw of environments before they came to it does not count.
            policy.forget(entered & here)
            own = policy.act(observation)
            actions = own if actions is None else np.where(here.reshape(-1, *[1] * (own.ndim - 1)), own, actions)
            if (apart := getattr(policy, "disagreement", None)) is not None:
                self.disagreement = apart if self.disagreement is None else np.where(here, apart, self.disagreement)
        assert actions is not None
        return actions

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Forget what belongs to these environments: they started a new episode."""
        for policy in self.policies:
            policy.forget(ended)


def _joined_name(policies: Sequence[NamedPolicy]) -> NamedPolicy:
    """Return the name of the agents of all folds together."""
    agents = tuple(agent for policy in policies for agent in policy.agents)
    return dataclasses.replace(policies[0], agents=agents)


def _evaluate_joined(
    config: RunConfig,
    market: Market | Basket,
    tests: Sequence[RowRanges],
    policies: Sequence[Sequence[TrainedPolicy]],
    embargo: int,
    named: NamedPolicy,
    refitted: Sequence[Part],
) -> Evaluation:
    """Play all tests one after the other on one account, each bar by the agent of its fold.

    policies: of each fold, by training seed; each seed has an account of its own. refitted: the folds, for baselines
        that are fitted.
    """
    from velodrome.evaluation.evaluate import evaluate_policy
    from velodrome.evaluation.evaluator import world_on

    observed = world_on(CATALOG.get(config.env), market, config.params, whole=True).observed
    left_at = observed.index("episode_left") if "episode_left" in observed else None
    by_seed = [FoldsPolicy(agents, tests, len(market), left_at) for agents in zip(*policies, strict=True)]
    whole = tuple((first[0], last[1]) for first, last in zip(tests[0], tests[-1], strict=True))
    notes = [
        f"{len(tests)} folds: each part is played by the agent that was trained on what lies before it; positions are "
        "carried from one to the next"
    ]
    if embargo:
        notes.append(f"the {embargo} bars of the embargo after a window are played by the agent of the fold before")
    joined = dataclasses.replace(market, splits={SPLIT: whole})
    told = config.evaluation
    how: dict[str, Any] = {"seeds": told.seeds, "samples": told.bootstrap_samples, "confidence": told.confidence}
    how |= {"named": named, "refitted": refitted}
    return evaluate_policy(by_seed, joined, SPLIT, config.params, env=config.env, **how, trained_on=None, notes=notes)
