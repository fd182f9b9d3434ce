"""Splits by fraction and by date, and the embargo."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from tests.tables.price_data import gappy_bars
from velodrome.errors import ConfigError
from velodrome.tables import build_market

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


def test_embargo_drops_bars_at_the_beginning_of_later_splits():
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
