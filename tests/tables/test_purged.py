"""Folds of cross-validation: what is trained on shows no bar of the block that is left out, and the other way round."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.tables.price_data import gappy_bars
from tests.tables.test_splits import market_of
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError
from velodrome.tables import build_basket
from velodrome.tables.folds import purged_folds, spans_of, with_splits
from velodrome.tables.purge import Purge, reach_of
from velodrome.tables.resampled import Resampling, with_resampled
from velodrome.tables.splits import rows_between
from velodrome.tables.windows import window_at

UNSCALED = {"features": ["log_return_5", "volume_z_10"], "scaler": "none", "splits": {}}
KINDS = {
    "one instrument": {"symbols": ("AAA",), "windows": 5},
    "longer bars": {"symbols": ("AAA", "BBB"), "windows": {"1m": 6, "5m": 4}},
    "basket": {"symbols": ("AAA", "BBB"), "windows": {"1m": 4, "5m": 3}},
    "no windows": {"symbols": ("AAA",), "windows": {}},
    "days": {"symbols": ("AAA", "BBB"), "windows": {"1h": 3, "1d": 2}},
    "basket of days": {"symbols": ("AAA", "BBB"), "windows": {"1h": 3, "1d": 2}},
}


def built(bars, kind):
    choices = {**UNSCALED, "windows": KINDS[kind]["windows"]}
    if "days" in kind:
        choices |= {"timeframe": "1h", "features": ["volume_z_5"]}
    return build_basket(bars, **choices, check_leaks=False) if "basket" in kind else market_of(bars, **choices)


def bars_of(kind):
    if "days" not in kind:
        return gappy_bars(700, 3, symbols=KINDS[kind]["symbols"])
    # Half-hours that begin in the middle of a day, so that the first days are short.
    bars = gappy_bars(1500, 5, symbols=KINDS[kind]["symbols"], minutes=30, hours=(3, 20), missing=0.2)
    return replace(bars, series={symbol: own.slice(25, len(own)) for symbol, own in bars.series.items()})


def altered(bars, since, until):
    """The same bars, those between two moments with other prices and volumes."""
    series = {}
    for symbol, own in bars.series.items():
        inside = (own.time >= since) & (own.time < until)
        noise = np.where(inside, 1.0 + 0.3 * np.random.default_rng(5).random(len(own)), 1.0)
        changed = {name: getattr(own, name) * noise for name in ("open", "high", "low", "close", "volume")}
        series[symbol] = replace(own, **changed)
    return replace(bars, series=series)


def splits_of(market, fold):
    moments = {"train": fold.train, "held_out": [fold.held_out]}
    return rows_between(moments | ({"validation": [fold.validation]} if fold.validation else {}), spans_of(market), 0)


def shown(market, row):
    return [window_at(market.windows, place, row) for place in range(len(market.windows.length))]


def same(one, other, row):
    return all(np.array_equal(*pair) for pair in zip(shown(one, row), shown(other, row), strict=True))


def rows_in(ranges):
    return [row for low, high in ranges for row in range(low, high)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_training_row_shows_anything_of_the_block_nor_the_block_of_training(kind):
    """By brute force: with other prices in the block, all that training shows stays, to the bit; and vice versa."""
    bars = bars_of(kind)
    market = built(bars, kind)
    for fold in purged_folds(market, 3, embargo=4):
        splits = splits_of(market, fold)
        changed = built(altered(bars, *fold.held_out), kind)
        train, held_out = rows_in(splits["train"]), rows_in(splits["held_out"])
        assert all(same(market, changed, row) for row in train)
        assert not any(map(same, itertools.repeat(market), itertools.repeat(changed), held_out)) or kind == "no windows"
        for piece in fold.train:
            changed = built(altered(bars, *piece), kind)
            assert all(same(market, changed, row) for row in held_out)
        # An order of a training row is filled, and marked, before the block begins.
        starts = [low for low, _ in splits["held_out"]]
        for low, high in splits["train"]:
            assert not any(low < start < high + 1 for start in starts)


def test_no_more_is_purged_than_overlaps():
    """A window of 5 of features that look back 9 bars before the oldest: 13 bars, and one to fill, on either side."""
    bars = gappy_bars(700, 3, missing=0.0)
    market = market_of(bars, **UNSCALED, windows=5)
    (low, high) = market.begin[0], market.end[0]
    assert low == 13
    for embargo in (0, 6):
        first, middle, last = purged_folds(market, 3, embargo=embargo)
        assert (first.purged, middle.purged, last.purged) == (14, 28, 14)
        assert (first.embargoed, middle.embargoed, last.embargoed) == (embargo, embargo, 0)
        splits = splits_of(market, middle)
        ((begin, end),) = splits["held_out"]
        assert splits["train"] == ((low, begin - 14), (end + 14 + embargo, high))
    changed = market_of(altered(bars, *middle.held_out), **UNSCALED, windows=5)
    assert not same(market, changed, end + 12)
    assert same(market, changed, end + 13)


def test_the_blocks_are_all_bars_once_and_only_those_asked_for():
    market = market_of(gappy_bars(700, 3, symbols=("AAA", "BBB")), windows=5)
    within = int(market.time[100]), int(market.time[500])
    folds = purged_folds(market, 7, within=within)
    assert [fold.held_out[0] for fold in folds[1:]] == [fold.held_out[1] for fold in folds[:-1]]
    assert (folds[0].held_out[0] >= within[0], folds[-1].held_out[1]) == (True, within[1])
    assert all(within[0] <= low < high <= within[1] for fold in folds for low, high in fold.train)


def test_bars_to_choose_checkpoints_by_are_the_last_of_training_and_purged_too():
    market = market_of(gappy_bars(1000, 3, missing=0.0), **UNSCALED, windows=5)
    purge = Purge(reach_of(market))
    for fold in purged_folds(market, 4, share=0.2):
        splits = splits_of(market, fold)
        low, high = fold.validation
        assert high == max(int(market.time[-1]) + 1, fold.train[-1][1]) or high == purge.before(fold.held_out[0])
        assert fold.train[-1][1] == purge.before(low)
        kept, trained = (sum(end - begin for begin, end in splits[name]) for name in ("validation", "train"))
        side = splits["validation"][-1][1] - splits["train"][-1][0]
        # A fifth, but no more than half of the side that it is taken from.
        assert kept == pytest.approx(min(0.2 * (kept + trained), side / 2), abs=4)


def test_scalers_are_fitted_to_what_the_pieces_show_whichever_way_a_fold_is_made():
    bars = gappy_bars(700, 3, symbols=("AAA", "BBB"))
    for scaler, per_instrument in itertools.product(("standard", "robust"), (False, True)):
        chosen = {"scaler": scaler, "per_instrument": per_instrument, "windows": {"1m": 5, "5m": 2}}
        market = market_of(bars, **chosen)
        fold = purged_folds(market, 3)[1]
        cut = with_splits(market, splits_of(market, fold))
        dates = {name: [[np.datetime64(one, "ns") for one in piece] for piece in pieces]
                 for name, pieces in (("train", fold.train), ("held_out", [fold.held_out]))}  # fmt: skip
        direct = market_of(bars, **chosen, splits=dates)
        assert direct.splits == cut.splits
        assert len(direct.splits["train"]) == 4
        changed = market_of(altered(bars, *fold.held_out), **chosen, splits=dates)
        for again, ours, theirs in zip(changed.scalers, direct.scalers, cut.scalers, strict=True):
            assert again == ours
            np.testing.assert_allclose(ours.centre, theirs.centre, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(ours.scale, theirs.scale, rtol=1e-5)


def test_no_episode_crosses_a_hole():
    market = market_of(gappy_bars(700, 3, symbols=("AAA", "BBB")), windows=5)
    fold = purged_folds(market, 3)[1]
    cut = with_splits(market, splits_of(market, fold))
    part = cut.split("train")
    assert part.stretches == ("AAA", "AAA", "BBB", "BBB")
    assert [list(pair) for pair in zip(part.begin, part.end, strict=True)] == [list(own) for own in cut.splits["train"]]
    legal = np.zeros(len(market), int)
    for number, (low, high) in enumerate(cut.splits["train"], 1):
        legal[low:high] = number
    world = trading_world(cut, split="train", episode_length=40)
    assert world.cursors == cut.splits["train"]
    import velodrome as vd

    envs = vd.make_vec(world, 64, backend="native", threads=1, seed=1, observation="cursor")
    envs.reset()
    seen = set()
    for _ in range(200):
        cursor, last = envs.column("cursor"), envs.column("last")
        assert (legal[cursor] > 0).all()
        assert (legal[cursor] == legal[last]).all()
        seen |= set(legal[cursor].tolist())
        envs.step(np.zeros(64, np.int64))
    assert seen == {1, 2, 3, 4}
    envs.close()
    with pytest.raises(ConfigError, match="not a bar with complete windows"):
        world.check_options({"cursor": np.array([cut.splits["held_out"][0][0]])})


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"folds": 1}, "folds is 1; give a whole number of at least 2"),
        ({"folds": True}, "folds is True"),
        ({"folds": 3, "embargo": -1}, "embargo is -1; give a whole number of at least 0"),
        ({"folds": 300}, "folds = 300: 287 bars may be cut into blocks, and a block needs 2; take at most 143 folds"),
        ({"folds": 2, "embargo": 500}, "fold 1 of 2: of 287 bars a block has 143, 14 beside it .* too few are left"),
    ],
)
def test_what_cannot_be_cut_is_refused(choices, message):
    market = market_of(gappy_bars(300, 3, missing=0.0), **UNSCALED, windows=5)
    with pytest.raises(ConfigError, match=message):
        purged_folds(market, **choices)


def test_splits_in_pieces_are_read_and_checked():
    bars = gappy_bars(5000, missing=0.0)
    noon, evening = "2024-03-04T12:00", "2024-03-04T18:00"
    market = market_of(bars, splits={"train": [(evening, None), (None, noon)], "test": (noon, evening)})
    assert market.splits["train"] == ((13, 720), (1080 + 14, 5000))  # what shows bars of the test is purged
    assert market.split("train").stretches == ("AAA", "AAA")
    with pytest.raises(ConfigError, match="pieces of 'train' overlap"):
        market_of(bars, splits={"train": [(None, evening), (noon, None)]})
    with pytest.raises(ConfigError, match="splits 'train' and 'test' overlap"):
        market_of(bars, splits={"train": [(None, noon), (evening, None)], "test": ("2024-03-04T11:00", noon)})
    with pytest.raises(ConfigError, match="or a list of several such pairs"):
        market_of(bars, splits={"train": []})


def test_other_histories_are_made_of_each_piece_by_itself():
    """Every bar of a copy moves as a bar of the piece that it was made of, so that none comes from the hole."""
    market = market_of(gappy_bars(700, 3, symbols=("AAA", "BBB")), windows=5)
    cut = with_splits(market, splits_of(market, purged_folds(market, 3)[1]))
    made = with_resampled(cut, Resampling(2, 10, 0.0), 1, ["log_return", "volume_z_10"], check_leaks=False)
    pieces = cut.splits["train"]
    assert len(made.begin) == 3 * len(pieces)
    assert made.stretches[:4] == ("AAA", "AAA", "BBB", "BBB")
    first = len(cut)
    for low, high in [pieces[k] for k in (0, 2, 1, 3)] * 2:  # the first of each instrument, then the second
        own, copy = cut.ohlc[low:high, 3], made.ohlc[first : first + high - low, 3]
        moves = np.log(own / np.r_[cut.ohlc[low, 0], own[:-1]])
        assert np.abs(np.log(copy[1:] / copy[:-1])[:, None] - moves).min(axis=1).max() < 1e-12
        first += high - low
    assert first == len(made)
