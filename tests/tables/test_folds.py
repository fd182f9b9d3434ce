"""Walking forward: the rows of each fold, and scalers that know the fold's training split alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.tables.price_data import gappy_bars, gappy_series
from tests.tables.test_splits import market_of
from velodrome.bars.frame import Bars
from velodrome.errors import ConfigError
from velodrome.tables import build_basket, walk_forward
from velodrome.tables.windows import window_at


def dates_of(fold):
    """The splits of a fold as dates, so that the same market can be built directly."""
    return {
        name: tuple(
            np.datetime64(int(moment), "ns")
            for moment in (min(fold.time[low] for low, _ in rows), max(fold.time[high - 1] for _, high in rows) + 1)
        )
        for name, rows in fold.splits.items()
    }


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
            choices = {"scaler": kind, "per_instrument": per_instrument, "splits": dates_of(fold)}
            direct = market_of(bars, windows={"1m": 5, "5m": 2}, **choices)
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
    with pytest.raises(ConfigError, match=r"clipped at 2\.0, which cannot be undone .* Build it with clip=None"):
        walk_forward(market_of(gappy_bars(1000), clip=2.0), folds=2)
    fold = walk_forward(market_of(gappy_bars(1000)), folds=2, clip=1.5)[0]
    assert np.abs(fold.windows.values).max() == 1.5


def ragged_bars() -> Bars:
    """Three instruments with gaps; the second is listed after the others, within the first fold's training split."""
    first, second, third = (gappy_series(600, seed) for seed in (1, 2, 3))
    return Bars({"AAA": first, "BBB": second.slice(60, 600), "CCC": third.slice(0, 560)}, "1m", "UTC")


@pytest.mark.parametrize("kind", ["standard", "robust", "minmax"])
@pytest.mark.parametrize("per_instrument", [False, True])
def test_a_fold_of_a_basket_is_the_basket_that_would_be_built_for_it(kind, per_instrument):
    """Carried values count once, and an instrument without a value yet still shows 0."""
    bars = ragged_bars()
    choices = {"features": ["log_return", "rsi_14", "rank:log_return", "market_return"], "check_leaks": False}
    choices |= {"windows": {"1m": 4, "5m": 2}, "scaler": kind, "per_instrument": per_instrument}
    basket = build_basket(bars, **choices)
    folds = walk_forward(pickle.loads(pickle.dumps(basket)), folds=3)
    assert [fold.name for fold in folds] == [f"basket[fold {number} of 3]" for number in (1, 2, 3)]
    assert len({fold.content_hash for fold in (basket, *folds)}) == 4
    for fold in folds:
        direct = build_basket(bars, **choices, splits=dates_of(fold))
        assert direct.splits == fold.splits
        for ours, theirs in zip(fold.scalers, direct.scalers, strict=True):
            assert ours.symbols == theirs.symbols
            np.testing.assert_allclose(ours.centre, theirs.centre, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(ours.scale, theirs.scale, rtol=1e-5)
        for place in range(2):
            for row in range(int(basket.begin[0]), int(basket.end[0])):
                pair = [window_at(each.windows, place, row) for each in (fold, direct)]
                np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-4)
                assert ((pair[1] == 0.0) <= (np.abs(pair[0]) < 1e-6)).all()
        assert not fold.windows.values.flags.writeable
    unscaled = build_basket(bars, **{**choices, "scaler": "none"})
    assert walk_forward(unscaled, folds=2)[0].windows.values is unscaled.windows.values


def test_folds_of_a_basket_are_those_of_its_grid():
    basket = build_basket(ragged_bars(), windows=4, check_leaks=False)
    folds = walk_forward(basket, 2, embargo=3)
    for fold in folds:
        ((_, trained), (tested, _)) = fold.splits["train"][0], fold.splits["test"][0]
        assert tested == trained + 3
    assert folds[0].splits["test"][0][1] == folds[1].splits["train"][0][1]
    assert folds[1].splits["test"][0][1] == len(basket)


def test_an_instrument_that_a_fold_cannot_train_on_is_named():
    late = Bars({"AAA": gappy_series(600, 1), "NEW": gappy_series(600, 2).slice(500, 600)}, "1m", "UTC")
    basket = build_basket(late, ["log_return"], 4, splits={"train": 0.9, "test": 0.1}, per_instrument=True)
    with pytest.raises(ConfigError, match="NEW has no bar with every feature"):
        walk_forward(basket, 3)
