"""Splits by fraction and by date, the embargo, and walking forward."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from tests.tables.price_data import gappy_bars
from velodrome.bars import synthetic_bars
from velodrome.errors import ConfigError
from velodrome.tables import build_basket, build_market, walk_forward
from velodrome.tables.splits import fold_splits
from velodrome.tables.windows import window_at

CHOICES = {"features": ["log_return", "volume_z_10"], "windows": 5}


def market_of(bars, **choices):
    return build_market(bars, **{**CHOICES, **choices}, check_leaks=False)


def test_default_fractions():
    market = market_of(gappy_bars(1000))
    assert market.splits == {"train": ((13, 700),), "validation": ((700, 850),), "test": ((850, 1000),)}
    train = market.split("train")
    assert (train.begin[0], train.end[0]) == (13, 700)
    assert not train.begin.flags.writeable


def test_instruments_are_cut_at_the_same_moments():
    bars = gappy_bars(1000, symbols=("AAA", "BBB", "CCC"))
    market = market_of(bars, splits={"train": 0.5, "test": 0.25})
    cuts = [[market.time[begin] for begin, _ in rows] for rows in market.splits.values()]
    ends = [[market.time[end - 1] for _, end in rows] for rows in market.splits.values()]
    assert max(ends[0]) < min(cuts[1])
    # The unions meet: nobody has a bar between the last training bar and the first test bar of all.
    times = np.unique(market.time)
    assert np.searchsorted(times, min(cuts[1])) - np.searchsorted(times, max(ends[0])) == 1
    assert np.mean(times < min(cuts[1])) == pytest.approx(0.5, abs=0.01)


def test_fractions_do_not_move_with_the_windows():
    short, long = (market_of(gappy_bars(1000), windows=windows) for windows in (2, 50))
    assert short.splits["test"] == long.splits["test"]
    assert long.splits["train"][0][0] == 13 + 45


def test_embargo_drops_bars_at_the_begin_of_later_splits():
    market = market_of(gappy_bars(1000), embargo=20)
    assert market.splits == {"train": ((13, 700),), "validation": ((720, 850),), "test": ((870, 1000),)}


def test_dates_in_the_time_zone_of_the_bars():
    bars = gappy_bars(5000, missing=0.0, timezone="Asia/Tokyo")
    # Midnight of the fifth in Tokyo is 15:00 of the fourth in UTC: 900 minutes after the first bar.
    market = market_of(bars, splits={"train": (None, "2024-03-05"), "test": ("2024-03-05", "2024-03-06")})
    assert market.splits == {"train": ((13, 900),), "test": ((900, 900 + 1440),)}
    noon = datetime.datetime(2024, 3, 4, 12, tzinfo=datetime.UTC)
    market = market_of(bars, splits={"train": (None, noon), "test": (np.datetime64("2024-03-04T12:00"), None)})
    assert market.splits == {"train": ((13, 720),), "test": ((720, 5000),)}
    market = market_of(bars, splits={"train": (datetime.date(2024, 3, 5), "2024-03-06T00:00+09:00")}, embargo=9)
    assert market.splits == {"train": ((900, 2340),)}


def test_dates_given_out_of_order_still_embargo_the_later_one():
    bars = gappy_bars(3000, missing=0.0)
    market = market_of(bars, splits={"test": ("2024-03-05", None), "train": (None, "2024-03-05")}, embargo=5)
    assert market.splits == {"test": ((1445, 3000),), "train": ((13, 1440),)}


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": 0.8, "test": 0.3}, "add up to 1.1; they must not exceed 1"),
        ({"train": 1.2}, "must be above 0 and at most 1"),
        ({"train": 0.9, "test": 0.0}, "above 0"),
        ({"train": 0.9985, "test": 0.001}, "split 'test' is empty for AAA: 1 of its 1000 bars"),
        ({"train": 0.005, "test": 0.9}, "split 'train' is empty for AAA: 5 of its 1000 bars lie in it, and 0 are left"),
        ({"train": ("2024-03-05", "2024-03-04")}, "its end must be later"),
        ({"train": (None, "2024-03-05"), "test": ("2024-03-04", None)}, "'train' and 'test' overlap"),
        ({"train": ("2030-01-01", None)}, "split 'train' is empty for AAA: 0 of its"),
        ({"train": (None, "05/03/2024")}, "has the date '05/03/2024'; write it as '2022-01-31'"),
        ({"train": (None, 5)}, "give a text, a datetime or None"),
        ({"train": "2024"}, "give a fraction, or \\(from, to\\)"),
        ({"train": 0.5, "test": ("2024-03-05", None)}, "mixes fractions and dates"),
        ([0.5, 0.5], "give fractions"),
    ],
)
def test_refused_splits(splits, message):
    with pytest.raises(ConfigError, match=message):
        market_of(gappy_bars(1000), splits=splits)


@pytest.mark.parametrize("embargo", [-1, 2.5])
def test_refused_embargo(embargo):
    with pytest.raises(ConfigError, match="embargo is"):
        market_of(gappy_bars(1000), embargo=embargo)


def test_an_instrument_without_bars_in_a_split_is_named():
    bars = gappy_bars(1000, missing=0.0, symbols=("AAA", "BBB"))
    late = bars["BBB"].slice(800, 1037)
    with pytest.raises(ConfigError, match="split 'train' is empty for BBB"):
        market_of(type(bars)({"AAA": bars["AAA"], "BBB": late}, "1m"))


def test_unknown_split_is_refused():
    with pytest.raises(ConfigError, match=r"no split 'tset'.*Did you mean 'test'"):
        market_of(gappy_bars(1000)).split("tset")


def test_walking_forward_in_equal_parts():
    market = market_of(gappy_bars(1013, missing=0.0))
    folds = walk_forward(market, folds=4)
    assert [fold.splits for fold in folds] == [
        {"train": ((13 + 200 * index, 213 + 200 * index),), "test": ((213 + 200 * index, 413 + 200 * index),)}
        for index in range(4)
    ]
    assert len({fold.content_hash for fold in folds}) == 4
    assert folds[0].name == "AAA[fold 1 of 4]"


def test_walking_forward_with_lengths_anchor_and_embargo():
    market = market_of(gappy_bars(1013, missing=0.0))
    folds = walk_forward(market, train=500, test=0.2, embargo=7, anchored=True)
    assert [fold.splits for fold in folds] == [
        {"train": ((13, 613),), "test": ((620, 813),)},
        {"train": ((13, 813),), "test": ((820, 1013),)},
    ]
    inside = walk_forward(market.split("train"), folds=2, train=100, test=50)
    assert inside[-1].splits == {"train": ((559, 659),), "test": ((659, 709),)}


def test_each_fold_is_scaled_by_its_own_training_rows():
    bars = gappy_bars(1000, 4, symbols=("AAA", "BBB"))
    market = market_of(bars, windows={"1m": 5, "5m": 2})
    for kind in ("standard", "robust", "minmax"):
        for per_instrument in (False, True):
            market = market_of(bars, windows={"1m": 5, "5m": 2}, scaler=kind, per_instrument=per_instrument)
            fold = walk_forward(market, folds=3)[1]
            moments = {
                name: tuple(np.datetime64(int(moment), "ns") for moment in (
                    min(fold.time[begin] for begin, _ in rows), max(fold.time[end - 1] for _, end in rows) + 1,
                ))
                for name, rows in fold.splits.items()
            }  # fmt: skip
            direct = market_of(
                bars, windows={"1m": 5, "5m": 2}, scaler=kind, per_instrument=per_instrument, splits=moments
            )  # fmt: skip
            assert direct.splits == fold.splits
            for ours, theirs in zip(fold.scalers, direct.scalers, strict=True):
                np.testing.assert_allclose(ours.centre, theirs.centre, rtol=1e-5, atol=1e-7)
                np.testing.assert_allclose(ours.scale, theirs.scale, rtol=1e-5)
            for rows in fold.splits.values():
                for begin, end in rows:
                    for place in range(2):
                        for t in (begin, end - 1):
                            pair = (window_at(each.windows, place, t) for each in (fold, direct))
                            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-4)
    unscaled = market_of(bars, scaler="none")
    assert walk_forward(unscaled, folds=2)[0].windows.values is unscaled.windows.values


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "needs folds, or both train and test"),
        ({"folds": 0}, "folds is 0"),
        (
            {"folds": 3, "train": 900, "test": 100},
            "3 folds of 100 test bars after 900 training bars need 1200 bars, and 987",
        ),
        ({"folds": 3, "train": -5}, "train is -5"),
        ({"folds": 3, "test": 1.5}, "test is 1.5; a fraction must be below 1"),
    ],
)
def test_refused_walks(choices, message):
    with pytest.raises(ConfigError, match=message):
        walk_forward(market_of(gappy_bars(1000)), **choices)


def test_clipped_values_cannot_be_scaled_again():
    with pytest.raises(ConfigError, match=r"clip at 2\.0, which cannot be undone"):
        walk_forward(market_of(gappy_bars(1000), clip=2.0), folds=2)
    fold = walk_forward(market_of(gappy_bars(1000)), folds=2, clip=1.5)[0]
    assert np.abs(fold.windows.values).max() == 1.5


def test_folds_of_a_basket_are_those_of_its_grid_and_its_features_are_not_scaled_anew():
    basket = build_basket(synthetic_bars("gbm", 300, symbols=3), windows=4, check_leaks=False)
    plan = fold_splits(basket, 2, embargo=3)
    assert [set(splits) for splits in plan] == [{"train", "test"}] * 2
    for splits in plan:
        ((_, trained), (tested, _)) = splits["train"][0], splits["test"][0]
        assert tested == trained + 3
    assert plan[0]["test"][0][1] == plan[1]["train"][0][1]
    assert plan[1]["test"][0][1] == len(basket)
    with pytest.raises(ConfigError, match=r"market is a Basket.*build_basket\(splits="):
        walk_forward(basket, 2)
