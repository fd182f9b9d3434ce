"""How a study begins: with which folds, and on which prices, by which trials of earlier studies count."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from velodrome.bars import synthetic_bars
from velodrome.bars.frame import BAR_COLUMNS, Series
from velodrome.errors import ConfigError
from velodrome.evaluation.sharpe import Trials
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.sections import SYNTHETIC
from velodrome.runs.store.store import open_store
from velodrome.tune.beginning import JUDGED, check_data, data_hash, new_study, on_same_prices
from velodrome.tune.outcome import PER_BAR
from velodrome.tune.space import space_of
from velodrome.tune.study import Studies, Study, StudyError
from velodrome.tune.trial import COMPLETE, Outcome, Trial
from velodrome.tune.verdict import chosen_among

MARKET = {
    "market.source": "gbm", "market.length": 2000, "market.windows": 8, "market.features": ("log_return",),
    "market.check_leaks": False,
}  # fmt: skip
NUMBERS = itertools.count()


def begun(settings: dict[str, Any] | None = None, **market: Any) -> Study:
    """Return a study of the trading environment, by settings of its market."""
    own = {**MARKET, **{f"market.{key}": value for key, value in market.items()}}
    if own["market.source"] not in SYNTHETIC:
        del own["market.length"]
    config = load_run_config("trading", own)
    space = space_of(config, ["ppo.learning_rate=1e-5:1e-2:log"], only=True)
    study = new_study(f"study-{next(NUMBERS)}", "me", config, space, settings or {"seeds": 1}, 4, {})
    return replace(study, created=float(next(NUMBERS)))


def write_prices(path: Path, series: Series, length: int) -> Path:
    """Write the first bars of an instrument as CSV."""
    columns = {"time": series.time.astype("datetime64[ns]"), **{name: series.column(name) for name in BAR_COLUMNS}}
    pl.DataFrame(columns).head(length).write_csv(path)
    return path


def older(study: Study) -> Study:
    """Return a study as versions wrote it that did not say when its trials were judged."""
    return replace(study, space={key: value for key, value in study.space.items() if key != JUDGED})


@pytest.fixture(scope="module")
def first() -> Study:
    return begun()


SAME = [
    {"windows": 24},
    {"features": ("log_return", "volatility_20")},
    {"embargo": 5},
    {"splits": {"train": 0.7, "validation": 0.1499, "test": 0.1501}},
    {"length": 1900},
    {"scaler": "none"},
]
OTHER = [
    {"seed": 1},
    {"source": "ar1"},
    {"volatility": 2e-3},
    {"start": "2021-01-01"},
    {"splits": {"train": [None, "2020-01-01 10:00"], "validation": ["2020-01-01 10:00", "2020-01-01 20:00"],
                "test": ["2020-01-01 20:00", None]}},
]  # fmt: skip


@pytest.mark.parametrize("changed", SAME)
def test_other_windows_features_and_cuts_are_the_same_prices(first, changed):
    assert on_same_prices(begun(**changed), first)


@pytest.mark.parametrize("changed", OTHER)
def test_prices_that_are_drawn_otherwise_or_lie_elsewhere_are_others(first, changed):
    assert not on_same_prices(begun(**changed), first)


def test_prices_between_the_splits_of_one_study_are_not_those_of_another(first):
    """The hash of all data is the same wherever contiguous splits are cut."""
    other = begun(**OTHER[-1])
    assert other.data_hash == first.data_hash
    assert not on_same_prices(other, first)
    assert on_same_prices(other, older(first))


def test_folds_are_judged_on_all_that_lies_before_the_test(first):
    folds = begun({"folds": 3})
    assert on_same_prices(folds, first)
    assert on_same_prices(folds, begun(**OTHER[-1]))
    ((since, until),) = folds.space[JUDGED]["spans"]["gbm_0"]
    ((later, last),) = first.space[JUDGED]["spans"]["gbm_0"]
    assert since < later < last <= until


def test_files_are_the_same_prices_wherever_they_lie(tmp_path):
    """By instrument and time: another file may have other instruments, and the same instrument a longer history."""
    prices = synthetic_bars("gbm", length=3000, symbols=2)

    def place(folder: str, *parts: tuple[str, int]) -> str:
        (tmp_path / folder).mkdir()
        for symbol, length in parts:
            write_prices(tmp_path / folder / f"{symbol}.csv", prices.series[symbol], length)
        return str(tmp_path / folder)

    first = begun(source=place("here", ("gbm_0", 3000)))
    assert on_same_prices(begun(source=place("there", ("gbm_0", 2900), ("gbm_1", 2900))), first)
    assert on_same_prices(begun(source=str(tmp_path / "here"), timeframe="5m"), first)
    other = begun(source=place("other", ("gbm_1", 3000)))
    assert not on_same_prices(other, first)
    # Nothing shows that an older study did not read the same files, if their names are the same.
    assert on_same_prices(begun(source=str(tmp_path / "here"), windows=16), older(first))
    assert not on_same_prices(other, older(first))


def test_studies_of_before_count_where_nothing_shows_that_their_prices_were_others(first):
    assert on_same_prices(begun(windows=24), older(first))
    assert on_same_prices(older(begun(windows=24)), first)
    assert not on_same_prices(begun(seed=1), older(first))
    less = {key: value for key, value in first.config["market"].items() if key != "volatility"}
    unknown = replace(older(first), config={**first.config, "market": less})  # a setting that came later
    assert on_same_prices(begun(windows=24), unknown)
    plain = {key: value for key, value in first.config.items() if key != "market"}
    without = replace(older(first), config=plain, data_hash="episodes")
    assert on_same_prices(without, without)
    assert not on_same_prices(first, without)


def test_a_study_is_continued_on_its_own_data_or_not_at_all(first):
    config = load_run_config(first.run_config, {"market.windows": 24})
    with pytest.raises(StudyError, match="was begun on other data"):
        check_data(first, data_hash(config, setup.build_market(config)))
    check_data(older(first), data_hash(first.run_config, setup.build_market(first.run_config)))


def test_a_winner_is_deflated_for_all_earlier_trials_on_its_prices(tmp_path):
    def enter(study: Study, *ratios: float) -> Study:
        trials = [Trial(number, {"ppo.learning_rate": 1e-3}, COMPLETE) for number in range(len(ratios))]
        ends = {(number, 0): Outcome(0.0, figures={PER_BAR: ratio}) for number, ratio in enumerate(ratios)}
        # Of a study with one seed this is a fresh one, which does not count; the last study has two.
        ends[0, 1] = Outcome(0.0, figures={PER_BAR: 99.0})
        studies.create(study)
        studies.enter(study, trials, ends)
        return study

    with open_store(tmp_path) as store:
        studies = Studies(store)
        enter(begun(), 0.01, 0.02, -0.01)
        enter(older(begun(windows=12)), 0.03, 0.04)
        enter(begun(seed=1), 0.5)
        last = enter(begun({"seeds": 2}, windows=24), 0.02, -0.03)
        broken = Outcome(float("nan"), "it broke", "error")
        studies.enter(last, [Trial(2, {}, "failed")], {(2, 0): broken})  # before it was played: no candidate
        enter(begun(windows=24), 0.7)  # later
        found = chosen_among(studies, last, tmp_path)
    assert (found.own, found.earlier) == (2, 5)
    assert found.trials == Trials.of([(0.02 + 99.0) / 2, -0.03, 0.01, 0.02, -0.01, 0.03, 0.04])


def test_bars_of_another_size_count_and_do_not_say_how_ratios_vary(tmp_path):
    prices = synthetic_bars("gbm", length=6000, symbols=1)
    source = str(write_prices(tmp_path / "gbm_0.csv", prices.series["gbm_0"], 6000))
    with open_store(tmp_path / "runs") as store:
        studies, made = Studies(store), [begun(source=source, timeframe="5m"), begun(source=source)]
        for study, scale in zip(made, (1.0, 0.01), strict=True):
            studies.create(study)
            trials = [Trial(number, {}, COMPLETE) for number in range(3)]
            ends = {(number, 0): Outcome(0.0, figures={PER_BAR: scale * number}) for number in range(3)}
            studies.enter(study, trials, ends)
        found = chosen_among(studies, made[1], tmp_path)
    assert found.trials is not None
    assert found.trials.count == 6
    assert math.sqrt(found.trials.variance) == pytest.approx(0.01)


# Folds


def test_folds_keep_the_embargo_of_the_configuration():
    study = begun({"folds": 3}, embargo=50)
    for step in (0, 2, 3):
        config = load_run_config(study.run_config, study.step_settings(step))
        assert config.market.embargo == 50
        splits = setup.build_market(config).splits
        assert splits["validation"][0][0] - splits["train"][0][1] == 50
    before = replace(study, space={key: value for key, value in study.space.items() if key != "embargo"})
    assert before.step_settings(0)["market.embargo"] == 0  # goes on as it began


def test_folds_that_an_embargo_would_empty_are_refused_before_anything_is_trained():
    with pytest.raises(ConfigError, match=r"folds = 9: .* with an embargo of 169 in each \(market.embargo\)"):
        begun({"folds": 9}, embargo=169)
