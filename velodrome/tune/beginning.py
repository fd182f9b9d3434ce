"""How a study begins, and what must be the same for it to be continued: configuration, space, settings and data."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from velodrome.errors import ConfigError, sentence
from velodrome.runs import setup
from velodrome.runs.config.explain import value_text
from velodrome.runs.config.parameters import price_data
from velodrome.runs.config.run_config import RunConfig, dotted
from velodrome.runs.folder import new_identity
from velodrome.runs.folds.cross_validation import before_the_test
from velodrome.runs.folds.fold import date_text
from velodrome.tables.hashing import price_hash
from velodrome.tune.judged import JUDGED, judged_prices
from velodrome.tune.outcome import legal_score, trades_for_nothing
from velodrome.tune.space import Dimension
from velodrome.tune.study import Study, StudyError
from velodrome.tune.trial import StudySettings

if TYPE_CHECKING:
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")  # a run's name begins with it
MOST_TRIALS = 1_000_000
NOT_COMPARED = ("name", "logging", "resources", "checkpoint")


def check_together(given: Mapping[str, Any]) -> None:
    """Refuse settings that a person gave and that would have no effect beside each other."""
    folds, tested = given.get("folds"), given.get("test") is not False
    for key in ("seeds", "confirm_seeds"):
        if folds is not None and given.get(key) is not None:
            told = f"{key} = {given[key]} has no effect beside folds = {folds}"
            raise ConfigError(f"{told}: a trial has a training for each fold. Leave one of them out.")
    for key in ("final_seeds", "auto_promote"):
        if not tested and given.get(key):
            told = f"{key} = {given[key]} has no effect without the test"
            raise ConfigError(f"{told}, for which the winner is trained anew. Leave it or --no-test out.")


def read_settings(given: Mapping[str, Any]) -> StudySettings:
    """Return the settings of a study; what they refuse is told under the option's name."""
    try:
        return StudySettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        problem = sentence(str(first["msg"]).removeprefix("Value error, "))
        meaning = StudySettings.model_fields[name].description if name in StudySettings.model_fields else "unknown"
        raise ConfigError(f"{name} = {given[name]!r}: {problem} It is: {meaning}.") from error


def check_trials(trials: int | None) -> int:
    """Return how many trials are wanted."""
    if trials is None:
        raise ConfigError("how many trials? Give their number, such as --trials 100.")
    if isinstance(trials, bool) or not 1 <= trials <= MOST_TRIALS:
        raise ConfigError(f"trials = {trials}: a study has 1 to {MOST_TRIALS:,} trials, such as --trials 100.")
    return trials


def legal_name(name: str) -> str:
    """Return the name of a study."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"study = {name!r}: a name has letters, digits, '.', '_' and '-', 60 at most.")
    return name


def new_study(
    name: str | None,
    owner: str,
    config: RunConfig,
    space: tuple[Dimension, ...],
    settings: Mapping[str, Any],
    trials: int | None,
    needs: Mapping[str, Any],
) -> Study:
    """Return a study that nobody has begun yet. needs: cores and memory of each training."""
    if config.trainings > 1:
        many = "seeds" if config.seeds > 1 else "ensemble"
        raise ConfigError(
            f"{many} = {config.trainings}: a study trains one agent at a time, and repeats each trial with several "
            f"seeds itself (--seeds). Leave {many} out."
        )
    market = setup.build_market(config)
    told = dict(settings)
    told["score"] = legal_score(told.get("score"), config, market)
    chosen = read_settings(told)
    if market is not None and config.evaluation.split is None:
        raise ConfigError("evaluation.split = null: trials are compared on that split. Name one, such as validation.")
    if chosen.test and market is not None and config.evaluation.final_split in (None, config.evaluation.split):
        raise ConfigError(
            f"evaluation.final_split = {config.evaluation.final_split}: the winner is tested on a split that no trial "
            "was chosen by. Name one, or leave the test out (--no-test)."
        )
    searched: dict[str, Any] = {"dimensions": [one.content() for one in space], "needs": dict(needs)}
    if chosen.folds is not None:
        searched["folds"] = fold_dates(config, market, chosen.folds)
        searched["embargo"] = config.market.embargo
    if market is not None:
        searched[JUDGED] = judged_prices(config, market, chosen.folds)
    searched["free"] = trades_for_nothing(config, market)
    now = time.time()
    identity = new_identity()
    given = legal_name(name or f"{config.name or config.env.replace('/', '-').replace(':', '-')}-{identity[:4]}")
    wanted = check_trials(trials)
    about: dict[str, Any] = {"data_hash": data_hash(config, market), "trials": wanted, "created": now, "updated": now}
    return Study(identity, given, owner, config.content(), searched, chosen.model_dump(), **about)


def data_hash(config: RunConfig, market: Market | Basket | None) -> str:
    """Return a hash of the prices of all splits, as they are cut: a study is continued on the same or not at all.

    Windows and features change it, because the first decision is taken later. Which trials count as tried on the same
    prices is another question (`on_same_prices`).
    """
    if market is None:
        return hashlib.sha256(f"episodes of {config.env}".encode()).hexdigest()
    return price_hash(market, *market.splits)


def fold_dates(config: RunConfig, market: Market | Basket | None, folds: int) -> list[dict[str, Any]]:
    """Return the splits of walk-forward folds before the test: each learns on a part and is judged on the next."""
    if market is None or price_data(config.env) is None:
        raise ConfigError(f"folds = {folds}: {config.env!r} has no data to cut into folds; give --seeds instead.")
    span = before_the_test(config, market)
    times = np.unique(
        np.concatenate([market.time[low:high] for low, high in zip(market.begin, market.end, strict=True)])
    )
    if span is not None:
        times = times[(times >= span[0]) & (times < span[1])]
    edges = np.linspace(0, len(times) - 1, folds + 2).astype(np.int64)
    embargo = config.market.embargo
    if int(np.diff(edges).min(initial=len(times))) < 2 + embargo:
        left = f" with an embargo of {embargo:,} in each (market.embargo)" if embargo else ""
        raise ConfigError(f"folds = {folds}: {len(times):,} bars before the test split are too few for so many{left}.")
    moments = [date_text(times[edge]) for edge in edges]
    return [
        {"train": [moments[fold], moments[fold + 1]], "validation": [moments[fold + 1], moments[fold + 2]]}
        for fold in range(folds)
    ]


# Continuing


def check_same(study: Study, given: Study) -> None:
    """Refuse to continue a study with what is another's."""
    other = "Continue it as it is (velodrome tune --study NAME), or give the new one a name of its own."
    mine, theirs = (_compared(one.config) for one in (study, given))
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            told = f"{key} is {value_text(mine.get(key))} there and {value_text(theirs.get(key))} here"
            raise StudyError(f"study {study.name!r} has another configuration: {told}. {other}")
    known, wanted = ({one.key: one.told() for one in each.dimensions} for each in (study, given))
    for key in sorted(known.keys() | wanted.keys()):
        if known.get(key) != wanted.get(key):
            told = f"{key} is {known.get(key, 'not searched')} there and {wanted.get(key, 'not searched')} here"
            raise StudyError(f"study {study.name!r} searches another space: {told}. {other}")
    for key, value in study.settings.items():
        if given.settings.get(key) != value:
            told = f"{key} is {value} there and {given.settings.get(key)} here"
            raise StudyError(f"study {study.name!r} searches in another way: {told}. {other}")
    check_data(study, given.data_hash)


def check_data(study: Study, found: str) -> None:
    """Refuse to continue a study on other data."""
    if found != study.data_hash:
        raise StudyError(
            f"study {study.name!r} was begun on other data: prices or splits are not what they were (data "
            f"{study.data_hash[:12]} then, {found[:12]} now). Bring the data back, or begin a study of another name."
        )


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = dotted({key: value for key, value in config.items() if key not in NOT_COMPARED})
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
