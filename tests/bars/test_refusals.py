"""What `read_bars` refuses: each message names the place and the remedy, and `check_bars` agrees."""

from __future__ import annotations

import re
from datetime import date

import polars as pl
import pytest

from velodrome.bars import check_bars, read_bars
from velodrome.errors import ConfigError, DataError

HEADER = "time,open,high,low,close,volume"
GOOD = ("2020-01-01,1,2,0.5,1.5,10", "2020-01-02,1,2,0.5,1.5,10", "2020-01-03,1,2,0.5,1.5,10")


def refuse(path, *parts, **arguments) -> str:
    """Assert that reading refuses with all the parts in the message and that the check says so too."""
    with pytest.raises(DataError) as caught:
        read_bars(path, **arguments)
    message = str(caught.value)
    for part in parts:
        assert part in message
    report = check_bars(path, **arguments)
    assert not report.ok
    assert message.startswith(str(report.of("refused")[0]))
    return message


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("2020-01-04,1,0.4,0.5,1,10", ("column 'high'", "high 0.4 is below low 0.5", "impossible")),
        ("2020-01-04,3,2,0.5,1,10", ("column 'open'", "open 3.0 lies outside low 0.5 … high 2.0")),
        ("2020-01-04,1,2,0.5,0.4,10", ("column 'close'", "close 0.4 lies outside")),
        ("2020-01-04,1,2,0.5,1.00000001e1,10", ("column 'close'", "outside")),
        ("2020-01-04,0,2,0,1,10", ("column 'open'", "open is '0'", "above zero")),
        ("2020-01-04,1,2,-0.5,1,10", ("column 'low'", "low is '-0.5'", "above zero")),
        ("2020-01-04,1,2,0.5,nan,10", ("column 'close'", "close is 'nan'", "Repair the row")),
        ("2020-01-04,1,2,0.5,,10", ("column 'close'", "close is ")),
        ("2020-01-04,1,inf,0.5,1,10", ("column 'high'", "high is 'inf'")),
        ("2020-01-04,1,2,abc,1,10", ("column 'low'", "low is 'abc'")),
        ("2020-01-04,1,2,0.5", ("column 'close'", "close is empty")),
        ("2020-01-04,1,2,0.5,1,", ("column 'volume'", "volume is ")),
        ("2020-01-04,1,2,0.5,1,-3", ("column 'volume'", "volume is '-3'")),
        ("2020-01-03,1,2,0.5,1.6,10", ("column 'close'", "two rows for 2020-01-03", "the other is TEST.csv, line 4")),
        ("2020-01-03,1,2,0.5,1.5,11", ("column 'volume'", "two rows for 2020-01-03")),
        ("soon,1,2,0.5,1,10", ("column 'time'", "unreadable time: 'soon'", "2020-01-31 09:30:00")),
        (",1,2,0.5,1,10", ("column 'time'", "unreadable time")),
        ("2020-13-45,1,2,0.5,1,10", ("column 'time'", "unreadable time: '2020-13-45'")),
    ],
)
def test_bad_row(write, row, parts):
    path = write(HEADER, *GOOD, row)
    refuse(path, str(path), "line 5", *parts)
    shifted = write("preamble", HEADER, *GOOD, "", row)
    message = refuse(shifted, "line 7")
    assert message.endswith(".")


def test_parquet_rows_count_from_zero(tmp_path):
    frame = pl.DataFrame({"Date": ["2020-01-01", "2020-01-02"], "Open": [1.0, 1.0], "High": [2.0, 2.0]})
    path = tmp_path / "TEST.parquet"
    frame.with_columns(Low=pl.Series([0.5, 0.5]), Close=pl.Series([1.0, None])).write_parquet(path)
    refuse(path, "TEST.parquet, row 1 (counted from 0), column 'Close': close is empty")


def test_conflict_between_files(tmp_path, write):
    (tmp_path / "more").mkdir()
    write(HEADER, *GOOD)
    write(HEADER, "2020-01-03,1,2,0.5,1.6,10", name="more/TEST.csv")
    refuse(tmp_path, "more/TEST.csv, line 2", "the other is TEST.csv, line 4")


DAYS = [f"2020-01-{day:02d}" for day in range(1, 13)]


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("Name", ("AAL", "MSFT"), "If 'Name' says which instrument a row is of: columns={'symbol': 'Name'}."),
        ("hour", ("9:00", "13:00"), "Column 'hour' holds the time of day: call it 'time'"),
        ("room", ("same", "same"), "say which column names them: columns={'symbol': 'NAME'}"),
    ],
)
def test_what_many_rows_with_one_time_lack(write, column, values, told):
    rows = [f"{day},{price},2,0.5,1,{value}" for price, value in zip((1, 1.5), values, strict=True) for day in DAYS]
    message = refuse(write(f"date,o,h,l,c,{column}", *rows), "two rows for 2020-01-01", "(12 times in all)", told)
    assert "Delete the wrong row" not in message


def test_where_instruments_are_named_only_a_time_of_day_can_be_missing(write):
    rows = [f"{day},{price},2,0.5,1,AAL" for price in (1, 1.5) for day in DAYS]
    message = refuse(write("date,o,h,l,c,symbol", *rows), "(12 times in all). If times of day are missing, write date")
    assert "columns=" not in message


def test_day_or_month(write):
    path = write("Date,o,h,l,c", "01/02/2020,1,2,0.5,1", "01/03/2020,1,2,0.5,1")
    refuse(path, "line 2, column 'Date'", "'01/02/2020'", "pass day_first=True or day_first=False")
    proven_otherwise = write("Date,o,h,l,c", "13/02/2020,1,2,0.5,1", "14/02/2020,1,2,0.5,1")
    refuse(proven_otherwise, "unreadable time: '13/02/2020'", day_first=False)


def test_local_time_that_clocks_skip(write):
    path = write(
        "time,o,h,l,c", "2020-03-08 01:30,1,2,0.5,1", "2020-03-08 02:30,1,2,0.5,1", "2020-03-08 03:30,1,2,0.5,1"
    )
    refuse(path, "line 3, column 'time'", "'2020-03-08 02:30'", "Clocks skip", timezone="America/New_York")
    assert read_bars(path).timeframe == "1h"


def test_hour_that_occurs_twice(write):
    path = write(
        "time,o,h,l,c", *(f"2020-11-01 01:30,{price},2,0.5,1" for price in (1, 1.5)), "2020-11-01 02:30,1,2,1,1"
    )
    refuse(path, "line 3", "two rows for 2020-11-01 05:30:00", "export the file in UTC", timezone="America/New_York")


def test_row_numbers_are_not_times(write):
    refuse(write(",open,high,low,close", *(f"{i},1,2,0.5,1" for i in range(5))), "line 2", "too small for an epoch")


def test_missing_columns(write):
    path = write("when,open,high,close", "2020-01-01,1,2,1")
    message = refuse(path, "no column for time, low", "'when', 'open', 'high', 'close'", "low: low, l, lowprice")
    assert "open: open" not in message
    refuse(write("2020-01-01,1,2,0.5,1", "2020-01-02,1,2,0.5,1"), "Put a header line above the data")


def test_empty_and_short(write, tmp_path):
    (tmp_path / "EMPTY.csv").write_bytes(b"")
    refuse(tmp_path / "EMPTY.csv", "the file is empty")
    refuse(write(HEADER), "no rows below the header")
    refuse(write(HEADER, GOOD[0]), "TEST has 1 bar; at least 2 are needed")
    refuse(write(HEADER, GOOD[0]), "TEST has 1 bar; at least 2 are needed", timeframe="1d")
    refuse(write(HEADER, *GOOD), "at least 2 are needed", timeframe="1mo")


def test_ragged_line(write):
    refuse(
        write(HEADER, *GOOD, "2020-01-04,1,5,2,0,0,5,1,5,10"), "line 5 has 10 fields under a header of 6", "semicolons"
    )


def test_not_what_the_ending_says(tmp_path):
    for name, content in (("A.parquet", b"no"), ("A.csv.gz", b"no"), ("A.xlsx", b"no")):
        (tmp_path / name).write_bytes(content)
    refuse(tmp_path / "A.parquet", "not a Parquet file")
    refuse(tmp_path / "A.csv.gz", "not a complete gzip file")
    refuse(tmp_path / "A.xlsx", "must end in .csv")


def test_paths(tmp_path, write):
    write(HEADER, *GOOD, name="EURUSD.csv")
    refuse(tmp_path / "EURUSB.csv", "no such file or folder", "Did you mean 'EURUSD.csv'?")
    refuse(tmp_path / "nowhere" / "EURUSD.csv", "no such file or folder", "nor is")
    (tmp_path / "bare").mkdir()
    refuse(tmp_path / "bare", "no data files in this folder")


def test_symbols(tmp_path, write):
    write(HEADER, *GOOD, name="EURUSD.csv")
    write(HEADER, "broken", name="GBPUSD.csv")
    with pytest.raises(ConfigError, match=re.escape("no symbol 'EURUSB'")) as caught:
        read_bars(tmp_path, symbols="EURUSB")
    assert "Did you mean 'EURUSD'?" in str(caught.value)
    with pytest.raises(ConfigError, match="symbols is empty"):
        read_bars(tmp_path, symbols=[])
    assert read_bars(tmp_path, symbols="EURUSD").symbols == ("EURUSD",)
    refuse(tmp_path, "GBPUSD.csv, line 2")
    nameless = write(f"{HEADER},symbol", *(f"{row},A" for row in GOOD), f"{GOOD[0]},", name="all.csv")
    refuse(nameless, "line 5, column 'symbol': no symbol")


def test_bar_sizes(tmp_path, write):
    write(HEADER, *GOOD, name="DAYS.csv")
    write(HEADER, *(f"2020-01-01 0{i}:00,1,2,0.5,1,1" for i in range(5)), name="HOURS.csv")
    refuse(tmp_path, "DAYS 1d, HOURS 1h", "Pass timeframe='1d'")
    refuse(tmp_path / "DAYS.csv", "finer than the bars of DAYS, which are 1d", timeframe="1h")
    refuse(tmp_path / "HOURS.csv", "no multiple of HOURS's bar size 1h", timeframe="90m")


def test_wrong_arguments(write):
    path = write(HEADER, *GOOD)
    for arguments, message in (
        ({"timeframe": "1M"}, "minutes or months"),
        ({"timezone": "Mars/Olympus"}, "not an IANA time zone"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_bars(path, **arguments)
        with pytest.raises(ConfigError, match=message):
            check_bars(path, **arguments)


def test_further_problems_are_counted(write):
    path = write(HEADER, *GOOD, "soon,1,2,0.5,1,1", "2020-01-05,-1,2,0.5,1,1")
    refuse(path, "2 more problems are listed by `velodrome data check")


def test_years_beyond_64_bit_nanoseconds(tmp_path, write):
    refuse(write(HEADER, *GOOD, "3000-01-01,1,2,0.5,1,1"), "line 5", "unreadable time: '3000-01-01'")
    refuse(write(HEADER, "99999999999,1,2,0.5,1,1", "1577836800,1,2,0.5,1,1"), "line 2", "unreadable time")
    frame = pl.DataFrame({"time": [date(2020, 1, 1), date(3000, 1, 1)]})
    path = tmp_path / "TEST.parquet"
    frame.with_columns(open=1.0, high=1.0, low=1.0, close=1.0).write_parquet(path)
    refuse(path, "row 1 (counted from 0)", "unreadable time")
