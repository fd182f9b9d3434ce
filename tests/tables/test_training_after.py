"""Training that follows another split shows none of its bars, and the leak check would notice if it did."""

from __future__ import annotations

import numpy as np
import pytest

import velodrome as vd
from velodrome.bars.frame import Bars, Series
from velodrome.errors import ConfigError, LeakError
from velodrome.tables import prepare
from velodrome.tables.windows import window_at

FEATURES, WINDOWS = ["log_return", "volatility_20"], {"1h": 32}
SPLITS = {"train": [(0, 1000), (1500, 2000)], "test": (1000, 1500)}


def dated(bars: Bars, splits: dict) -> dict:
    time = bars[bars.symbols[0]].time.astype("datetime64[ns]")

    def piece(edges):
        return tuple(None if row >= len(time) else str(time[row]) for row in edges)

    return {
        name: [piece(own) for own in rows] if isinstance(rows, list) else piece(rows) for name, rows in splits.items()
    }


def altered(bars: Bars, low: int, high: int) -> Bars:
    """Other prices and volumes in some rows of every instrument."""

    def of(series: Series) -> Series:
        factor = np.ones(len(series))
        factor[low:high] = np.exp(np.random.default_rng(5).normal(0.0, 0.05, high - low))
        opened, close = series.open * factor, series.close * factor
        edges = np.maximum(opened, close), np.minimum(opened, close)
        high_, low_ = np.maximum(series.high * factor, edges[0]), np.minimum(series.low * factor, edges[1])
        return Series(series.time, opened, high_, low_, close, series.volume * factor, series.extra, series.close_only)

    return Bars({symbol: of(bars[symbol]) for symbol in bars.symbols}, bars.timeframe, bars.timezone)


BARS = vd.synthetic_bars("gbm", 2000, seed=1, symbols=["A", "B"], timeframe="1h")


@pytest.mark.parametrize("build", [vd.build_market, vd.build_basket])
@pytest.mark.parametrize(
    ("splits", "windows"),
    [
        (SPLITS, WINDOWS),
        (SPLITS, {"1h": 8, "4h": 5}),
        ({"test": (0, 800), "train": (800, 2000)}, WINDOWS),
        ({"train": [(0, 600), (900, 1300), (1500, 2000)], "validation": (600, 900), "test": (1300, 1500)}, WINDOWS),
    ],
    ids=["two sides", "two timeframes", "test first", "three sides"],
)
def test_nothing_of_other_splits_reaches_training(build, splits, windows):
    options = {"features": FEATURES, "windows": windows, "splits": dated(BARS, splits)}
    true = build(BARS, **options)
    for name in set(splits) - {"train"}:
        other = build(altered(BARS, *splits[name]), **options)
        assert other.splits == true.splits
        assert other.scalers == true.scalers
        rows = np.concatenate([np.arange(low, high) for low, high in true.splits["train"]])
        for index in range(len(windows)):
            assert all(
                np.array_equal(window_at(true.windows, index, row), window_at(other.windows, index, row))
                for row in rows
            )
    assert len(true.notes) == 1
    assert true.notes[0].startswith(tuple("123456789"))
    assert "bars of training that follow another split were left out" in true.notes[0]


def test_no_more_bars_are_left_out_than_are_needed():
    market = vd.build_market(BARS, FEATURES, WINDOWS, splits=dated(BARS, SPLITS))
    # The window of 32 bars, the 20 that volatility looks back on, and the bar in which an order is filled.
    assert market.splits["train"][1] == (1500 + 31 + 20 + 1, 2000)
    assert market.notes[0].startswith("52 bars")
    apart = vd.build_market(BARS, FEATURES, WINDOWS, splits=dated(BARS, SPLITS), embargo=10)
    assert apart.splits["train"][1] == (1552 + 10, 2000)


def test_the_usual_order_keeps_its_rows():
    for splits in (None, {"train": 0.5, "validation": 0.2, "test": 0.3}, dated(BARS, {**SPLITS, "train": (0, 1000)})):
        market = vd.build_market(BARS, FEATURES, WINDOWS, splits=splits)
        assert not market.notes
        assert market.splits["train"][0][0] == 51


def test_too_little_training_after_another_split_is_refused():
    splits = dated(BARS, {"test": (0, 1960), "train": (1960, 2000)})
    with pytest.raises(ConfigError, match=r"split 'train' is empty for A: all of its 40 bars follow another split"):
        vd.build_market(BARS, FEATURES, WINDOWS, splits=splits)


@pytest.mark.parametrize("build", [vd.build_market, vd.build_basket])
def test_the_leak_check_would_notice(build, monkeypatch):
    monkeypatch.setattr(prepare, "purged_training", lambda splits, *_: (splits, ()))
    with pytest.raises(LeakError, match="is shown in training, and is another when bars of the split before it"):
        build(BARS, FEATURES, WINDOWS, splits=dated(BARS, SPLITS))
    build(BARS, FEATURES, WINDOWS, splits=dated(BARS, SPLITS), check_leaks=False)


def test_recursive_features_pass_with_a_note():
    options = {"features": ["rsi_14", "log_return"], "windows": WINDOWS, "splits": dated(BARS, SPLITS)}
    vd.build_market(BARS, **options)
    report = vd.check_leaks(BARS, **options)
    assert report.passed
    assert [note.split()[0] for note in report.notes] == ["rsi_14"]
