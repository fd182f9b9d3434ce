"""How a study begins, and what must be the same for it to be continued: configuration, space, settings and data.

And on which prices its trials are judged, by which they are counted together with those of other studies.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from velodrome.errors import ConfigError, sentence
from velodrome.runs import setup
from velodrome.runs.config.explain import value_text
from velodrome.runs.config.parameters import price_data
from velodrome.runs.config.run_config import RunConfig, dotted
from velodrome.runs.config.sections import SYNTHETIC
from velodrome.runs.folder import new_identity
from velodrome.runs.folds.cross_validation import before_the_test
from velodrome.runs.folds.fold import date_text
from velodrome.tables.hashing import price_hash
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
JUDGED = "judged"  # in the space of a study; older ones do not have it

Spans = Mapping[str, list[list[int]]]  # by instrument: first and last bar of each piece, nanoseconds UTC


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
    """Return a hash of the prices of all splits together: a study is continued on the same ones or not at all.

    Longer windows and slower features change it, because the first decision is taken later. Which trials were judged on
    the same prices is another question (`on_same_prices`).
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


# On which prices trials are judged. Those that were judged on the same ones are all part of one search, whatever they
# were shown of them, and however the splits were cut. So studies are compared by instrument and time: a hash is changed
# by one bar.


def judged_prices(config: RunConfig, market: Market | Basket, folds: int | None) -> dict[str, Any]:
    """Return the size of the bars, and when each instrument is judged: in the validation split, or in the folds."""
    split = None if folds is not None else config.evaluation.split
    part = market if split is None else market.split(split)
    limits = None if split is not None else before_the_test(config, market)
    spans: dict[str, list[list[int]]] = {}
    for low, high, members in zip(part.begin, part.end, part.members, strict=True):
        times = part.time[low:high]
        if limits is not None:
            times = times[(times >= limits[0]) & (times < limits[1])]
        for symbol in members if len(times) else ():
            spans.setdefault(symbol, []).append([int(times[0]), int(times[-1])])
    return {"timeframe": market.timeframe, "spans": spans}


def on_same_prices(study: Study, other: Study) -> bool:
    """Return whether the trials of two studies were judged on the same prices, or on some of them.

    A study that does not say when it was judged counts if all its data is the same, or if it reads files of the same
    name: nothing shows that its prices were others, and to count too many trials is safer than to count too few.
    """
    mine, its = (one.config.get("market", {}) for one in (study, other))  # empty where there are no prices
    may_be = bool(mine and its) and _may_be_same(mine, its)
    if JUDGED in study.space and JUDGED in other.space:
        return may_be and _overlap(study.space[JUDGED]["spans"], other.space[JUDGED]["spans"])
    same_name = may_be and PurePath(mine["source"]).name == PurePath(its["source"]).name
    return same_name or (bool(study.data_hash) and study.data_hash == other.data_hash)


def on_same_bars(study: Study, other: Study) -> bool:
    """Return whether two studies trade bars of one size, as far as they say: else ratios per bar are not comparable."""
    sizes = {_bar_size(study), _bar_size(other)} - {None}
    return len(sizes) < 2


def _bar_size(study: Study) -> str | None:
    """Return the size of a study's bars; None: that of its data, whichever it was."""
    judged = study.space.get(JUDGED) or study.config.get("market") or {}
    return judged.get("timeframe")


def _may_be_same(mine: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    """Return whether both markets are read from files, or are drawn by the same process in the same way."""
    process = {market["source"] if market["source"] in SYNTHETIC else None for market in (mine, its)}
    if len(process) > 1 or process == {None}:
        return process == {None}
    # A shorter series is the beginning of a longer one. What an older version did not know of was at its default.
    known = [key for key in SYNTHETIC[mine["source"]] if key != "length" and key in mine and key in its]
    sizes = {market.get("timeframe") or "1m" for market in (mine, its)}
    return len(sizes) == 1 and all(mine[key] == its[key] for key in known)


def _overlap(mine: Spans, its: Spans) -> bool:
    pairs = ((own, other) for symbol in mine.keys() & its.keys() for own in mine[symbol] for other in its[symbol])
    return any(own[0] <= other[1] and other[0] <= own[1] for own, other in pairs)
