"""Properties of reading: what is written is read, in any order of rows, and the check agrees with the reader."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.bars import Series, check_bars, read_bars
from velodrome.errors import DataError

COLUMNS = ("time", "open", "high", "low", "close", "volume")
price = st.floats(1e-6, 1e9)


@st.composite
def bars(draw) -> Series:
    steps = draw(st.lists(st.integers(1, 5), min_size=1, max_size=20))
    start = draw(st.integers(10**9, 2 * 10**9)) // 60 * 60
    time = (start + 60 * np.r_[0, np.cumsum(steps)]) * 10**9
    values = np.array([sorted(draw(st.tuples(price, price, price, price))) for _ in time])
    low, first, second, high = values.T
    swap = np.array([draw(st.booleans()) for _ in time])
    volume = np.array([draw(st.floats(0, 1e12)) for _ in time])
    return Series(time, np.where(swap, first, second), high, low, np.where(swap, second, first), volume)


def frame_of(series: Series) -> pl.DataFrame:
    return pl.DataFrame({name: getattr(series, name) for name in COLUMNS})


def assert_equal(one: Series, other: Series) -> None:
    for name in COLUMNS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def write_text(path: Path, frame: pl.DataFrame, layout: str, separator: str) -> None:
    text_time = pl.col("time").cast(pl.Datetime("ns")).dt.to_string(layout) if layout else pl.col("time")
    frame.with_columns(text_time).write_csv(path, separator=separator, decimal_comma=separator == ";")


@settings(max_examples=40, deadline=None)
@given(
    series=bars(),
    layout=st.sampled_from(["", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%Y%m%d %H%M%S", "%Y-%m-%dT%H:%M:%SZ"]),
    separator=st.sampled_from([",", ";", "\t"]),
    seed=st.integers(0, 99),
)
def test_written_bars_are_read_in_any_order(series, layout, separator, seed):
    frame = frame_of(series)
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_text(path / "STRAIGHT.csv", frame, layout, separator)
        write_text(path / "SHUFFLED.csv", pl.concat([shuffled, shuffled.head(1)]), layout, separator)
        shuffled.write_parquet(path / "PARQUET.parquet")
        read = read_bars(path)
    for symbol in read:
        assert_equal(read[symbol], series)


cell = st.sampled_from(["1", "2", "1.5", "3", "", "nan", "-1", "x", "inf", "2020-01-02", "1,5", "0"])
moment = st.sampled_from(
    ["2020-01-01", "2020-01-02", "2020-01-03 00:00", "03/04/2020", "13/04/2020", "", "7", "1577836800"]
)


@settings(max_examples=75, deadline=None)
@given(
    header=st.sampled_from(
        ["time,o,h,l,c,v", "Date,Open,High,Low,Close,Adj Close", "a,b,c,d,e,f", "date,time,o,h,l,c"]
    ),
    rows=st.lists(st.tuples(moment, cell, cell, cell, cell, cell), max_size=4),
    good=st.integers(0, 3),
    timeframe=st.sampled_from([None, "1h", "1d", "1w"]),
    timezone=st.sampled_from(["UTC", "America/New_York"]),
)
def test_check_is_ok_exactly_when_reading_succeeds(header, rows, good, timeframe, timezone):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "A.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header.split(","))
            writer.writerows([f"2020-02-0{i + 1}", "1", "2", "0.5", "1", "1"] for i in range(good))
            writer.writerows(rows)
        report = check_bars(path, timeframe=timeframe, timezone=timezone)
        try:
            read_bars(path, timeframe=timeframe, timezone=timezone)
            succeeded = True
        except DataError:
            succeeded = False
    assert report.ok == succeeded


@settings(max_examples=60, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.text('0123456789.,;:-/ \t\r\n"abTZ\x00', max_size=200).map(lambda text: f"time,o,h,l,c\n{text}".encode()),
    ),
    name=st.sampled_from(["A.csv", "A.tsv", "A.csv.gz", "A.parquet"]),
)
def test_check_survives_anything(content, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        check_bars(path)
