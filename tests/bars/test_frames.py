"""Bars from frames of pandas and Polars: the same bars, the same checks and the same words as from files."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest

import velodrome as vd
from velodrome.errors import ConfigError, DataError

PRICES = ("open", "high", "low", "close")
SERIES = vd.synthetic_bars("gbm", 300, seed=3, timeframe="1h", volatility=0.01)["gbm_0"]


@pytest.fixture
def frame():
    """Prices as yfinance gives them for one ticker: an index of dates without a zone, capital letters."""
    index = pd.DatetimeIndex(SERIES.time.astype("datetime64[ns]"), name="Datetime")
    columns = {name.title(): getattr(SERIES, name) for name in (*PRICES, "volume")}
    return pd.DataFrame(columns, index=index)


def same(series, expected=SERIES, rows=slice(None)) -> bool:
    """Whether bars are equal to the bit."""
    names = ("time", *PRICES, "volume")
    return all(np.array_equal(getattr(series, name), getattr(expected, name)[rows]) for name in names)


def as_polars(frame):
    return pl.DataFrame({"time": SERIES.time, **{name: frame[name.title()].to_numpy() for name in (*PRICES, "volume")}})


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame,
        lambda frame: frame.iloc[::-1],
        lambda frame: frame.rename_axis(None),
        lambda frame: frame.rename_axis("whatever"),
        lambda frame: frame.reset_index(),
        lambda frame: frame.tz_localize("UTC").tz_convert("America/New_York"),
        lambda frame: frame.tz_localize("UTC").reset_index(),
        lambda frame: frame.set_index(frame.index.to_period("h")),
        lambda frame: frame.set_index(SERIES.time // 10**9),
        lambda frame: frame.set_index(frame.index.as_unit("s")),
        lambda frame: frame.convert_dtypes(),
        lambda frame: frame.astype(object),
        lambda frame: frame.astype({"Close": "string[python]"}),
        lambda frame: frame.set_index(frame.index.astype(str)),
        as_polars,
        lambda frame: as_polars(frame).lazy(),
    ],
)
def test_one_frame(frame, change):
    bars = vd.read_bars(change(frame), "AAPL")
    assert bars.symbols == ("AAPL",)
    assert bars.timeframe == "1h"
    assert same(bars["AAPL"])


def test_a_naive_index_is_in_the_time_zone_given(frame):
    local = frame.tz_localize("UTC").tz_convert("Asia/Tokyo").tz_localize(None)
    assert same(vd.read_bars(local, timezone="Asia/Tokyo")["frame"])


@pytest.mark.parametrize("ticker_first", [True, False])
def test_columns_of_two_levels_hold_several_symbols(frame, ticker_first):
    both = pd.concat({"MSFT": frame.iloc[50:], "AAPL": frame}, axis=1, names=["Ticker", "Price"], sort=True)
    assert both.isna().any().any()  # pandas fills the bars that MSFT does not have
    bars = vd.read_bars(both if ticker_first else both.swaplevel(axis=1))
    assert bars.symbols == ("AAPL", "MSFT")
    assert same(bars["AAPL"])
    assert same(bars["MSFT"], rows=slice(50, None))


def test_tickers_that_are_spelled_like_prices(frame):
    assert vd.read_bars(pd.concat({"C": frame, "O": frame}, axis=1)).symbols == ("C", "O")
    four = pd.concat(dict.fromkeys("OHLC", frame[["Open", "High", "Low", "Close"]]), axis=1, names=["Ticker", "Price"])
    assert vd.read_bars(four).symbols == ("C", "H", "L", "O")


def test_an_index_of_two_levels_holds_several_symbols(frame):
    stacked = pd.concat({"MSFT": frame.iloc[50:], "AAPL": frame})
    for source in (stacked, stacked.swaplevel(), stacked.rename_axis(["symbol", "timestamp"]).reset_index()):
        bars = vd.read_bars(source)
        assert bars.symbols == ("AAPL", "MSFT")
        assert same(bars["MSFT"], rows=slice(50, None))


def test_frames_by_symbol(frame):
    named = as_polars(frame).with_columns(symbol=pl.lit("other"))
    bars = vd.read_bars({"B/USD": frame, "A": named, "C": frame["Close"]}, ["C", "B/USD", "A"])
    assert bars.symbols == ("C", "B/USD", "A")
    assert same(bars["A"])
    assert bars["C"].close_only
    assert not bars["A"].close_only


def test_tables_are_made_of_frames(frame):
    market = vd.build_market({"A": frame, "B": frame}, windows=4)
    basket = vd.build_basket({"A": frame, "B": frame * 2}, windows=4)
    report = vd.check_leaks(frame, windows=4)
    assert (market.symbols, basket.symbols, report.passed) == (("A", "B"), ("A", "B"), True)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda frame: frame.assign(High=1.0), ("the frame, row 0 (counted from 0), column 'High'", "below low")),
        (lambda frame: frame.assign(Close=np.nan), ("column 'Close'", "close is nan")),
        (lambda frame: pd.concat([frame, frame.iloc[[7]] * 2]), ("row 300", "two rows for 2020-01-01 07:00")),
        (lambda frame: frame.iloc[:0], ("no rows",)),
        (lambda frame: frame.reset_index(drop=True), ("too small for an epoch", "column with times")),
        (lambda frame: frame[["Close"]].rename(columns={"Close": "AAPL"}), ("{name: frame[name]",)),
        (lambda frame: pd.concat({"A": frame, "B": frame}, axis=1).add_prefix("x", axis=1), ("one of two must name",)),
        (lambda frame: {"A": as_polars(frame).with_columns(tic=SERIES.time)}, ("frame of A", "300 symbols")),
    ],
)
def test_frames_meet_the_checks_of_files(frame, change, parts):
    with pytest.raises(DataError) as caught:
        vd.read_bars(change(frame))
    assert [part for part in parts if part not in str(caught.value)] == []
    assert not vd.check_bars(change(frame)).ok


@pytest.mark.parametrize(
    ("source", "part"), [([1, 2], "received a list"), ({}, "mapping is empty"), ({"A": 1}, "frame of A is a int")]
)
def test_what_is_no_source_is_said_to_be_none(source, part):
    with pytest.raises(ConfigError, match=part):
        vd.read_bars(source)


def test_pandas_is_not_imported_for_files_and_polars(tmp_path):
    code = (
        "import json, sys, polars as pl, velodrome as vd\n"
        "frame = pl.DataFrame({'time': ['2020-01-01', '2020-01-02'], 'close': [1.0, 2.0]})\n"
        f"frame.write_csv({str(tmp_path / 'A.csv')!r})\n"
        f"print(vd.read_bars(frame), vd.check_bars({str(tmp_path / 'A.csv')!r}), file=sys.stderr)\n"
        "print(json.dumps('pandas' in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(answer.stdout) is False
