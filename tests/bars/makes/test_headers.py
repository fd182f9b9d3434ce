"""Files without a header, and headers of three lines."""

from __future__ import annotations

import pytest

from velodrome.bars import check_bars, read_bars
from velodrome.bars.makes.headers import KLINES
from velodrome.errors import DataError

MINUTE = 60_000  # milliseconds


def klines(count: int = 40, begin: int = 1_682_899_200_000, scale: int = 1) -> list[str]:
    rows = []
    for number in range(count):
        opened = (begin + number * MINUTE) * scale
        close = 27_000 + number
        times = (opened, opened + MINUTE * scale - 1)
        rows.append(
            f"{times[0]},{close}.10,{close}.90,{close}.00,{close}.50,1.25,{times[1]},33750.1,{number},0.5,1.5,0"
        )
    return rows


@pytest.mark.parametrize("scale", [1, 1000], ids=["milliseconds", "microseconds"])
def test_klines_without_a_header_are_read_as_those_with_one(write, scale):
    rows = klines(scale=scale)
    bare = read_bars(write(*rows, name="BTCUSDT-1m-2023-05.csv"))
    headed = read_bars(write(",".join(KLINES), *rows, name="headed.csv"))["headed"]
    assert (bare.symbols, bare.timeframe) == (("BTCUSDT",), "1m")
    assert len(bare["BTCUSDT"]) == 40
    for name in ("time", "open", "high", "low", "close", "volume"):
        assert getattr(bare["BTCUSDT"], name).tolist() == getattr(headed, name).tolist()
    assert list(bare["BTCUSDT"].extra) == list(headed.extra)


def test_klines_without_a_header_are_a_note_and_faults_have_their_line(write):
    rows = klines()
    rows[35] = rows[35].replace("27035.50", "oops")
    path = write(*rows, name="A-1m-2023-05.csv")
    assert "Binance's klines" in next(note.message for note in check_bars(path).of("note"))
    with pytest.raises(DataError, match="line 36, column 'close'"):
        read_bars(path)


def test_months_with_and_without_a_header_are_one_symbol(write, tmp_path):
    write(*klines(), name="A-1m-2023-05.csv")
    write(",".join(KLINES), *klines(begin=1_682_899_200_000 + 40 * MINUTE), name="A-1m-2023-06.csv")
    assert len(read_bars(tmp_path)["A"]) == 80


@pytest.mark.parametrize(
    "row",
    [
        "1682899200000,27000.00,27020.53,26999.45,27010.38,856.58983",
        "2020-01-01,1,2,0.5,1",
        "20200101 170000;1.12;1.13;1.11;1.12;0",
        "2020-01-01T00:00:00Z,1,2,0.5,1,100",
        # Twelve columns, but the high is below the low; no epochs; a close time before the open time.
        "1682899200000,2,1,3,2,9,1682899259999,5,8,4,1,0",
        "1,2,3,1,2,9,2,5,8,4,1,0",
        "1682899200000,2,3,1,2,9,1682899199999,5,8,4,1,0",
    ],
)
def test_other_files_without_a_header_are_told_to_get_one_and_nothing_else(write, row):
    with pytest.raises(DataError, match="Put a header line above the data") as caught:
        read_bars(write(row, row))
    assert "there is no header" in str(caught.value)
    assert "columns=" not in str(caught.value)
    assert "spellings" not in str(caught.value)


@pytest.mark.parametrize("header", ["date,600519,000001", "time,o,h,l,c", "Date,Adj Close"])
def test_a_header_with_numbers_in_it_is_a_header(write, header):
    values = ",1" * header.count(",")
    with pytest.raises(DataError) as caught:
        read_bars(write(header, f"2020-01-01{values}"))
    assert "no header" not in str(caught.value)


def test_no_arbitrary_column_is_named(write):
    with pytest.raises(DataError) as caught:
        read_bars(write("day,open,high,low,foo", "2020-01-01,1,2,0.5,1", "2020-01-02,1,2,0.5,1"))
    assert "columns={'close': 'NAME'}" in str(caught.value)
    assert "'close': 'foo'" not in str(caught.value)


# yfinance

ONE = ("Price,Close,High,Low,Open,Volume", "Ticker,AAPL,AAPL,AAPL,AAPL,AAPL", "Date,,,,,")
ROWS = [f"2020-01-0{day},{10 + day},{12 + day},{9 + day},{10 + day},{100 * day}" for day in (2, 3, 6)]


def test_the_three_lines_of_yfinance(write):
    bars = read_bars(write(*ONE, *ROWS, name="apple.csv"))
    assert bars.symbols == ("AAPL",)
    assert bars["AAPL"].close.tolist() == [12, 13, 16]
    assert bars["AAPL"].volume.tolist() == [200, 300, 600]


def test_faults_below_three_lines_have_their_line(write):
    with pytest.raises(DataError, match="line 5, column 'Close': close is 'x'"):
        read_bars(write(*ONE, ROWS[0], ROWS[1].replace("13", "x", 1), ROWS[2]))


def test_several_tickers_with_holes(write):
    header = ("Price,Close,Close,High,High,Low,Low,Open,Open", "Ticker,A,B,A,B,A,B,A,B", "Date,,,,,,,,")
    full, hole = "10,20,12,22,9,19,10,20", "11,,12,,9,,10,"
    bars = read_bars(write(*header, *(f"2020-01-0{day},{hole if day == 4 else full}" for day in range(1, 8))))
    assert bars.symbols == ("A", "B")
    assert [len(bars[symbol]) for symbol in bars] == [7, 6]
    assert bars["A"].close[3] == 11


def test_tickers_above_prices(write):
    header = ("Ticker,A,A,A,A", "Price,Open,High,Low,Close", "Date,,,,")
    bars = read_bars(write(*header, "2020-01-02,10,12,9,11", "2020-01-03,11,12,9,10"))
    assert (bars.symbols, bars["A"].close.tolist()) == (("A",), [11, 10])


def test_as_pandas_writes_it(tmp_path):
    pandas = pytest.importorskip("pandas")
    columns = pandas.MultiIndex.from_product([["Close", "High", "Low", "Open"], ["A", "B"]], names=["Price", "Ticker"])
    index = pandas.DatetimeIndex(["2020-01-02", "2020-01-03"], name="Date")
    frame = pandas.DataFrame([[10.0, 20, 12, 22, 9, 19, 10, 20]] * 2, index, columns)
    frame.to_csv(tmp_path / "both.csv")
    from_file, from_frame = read_bars(tmp_path / "both.csv"), read_bars(frame)
    assert from_file.symbols == from_frame.symbols == ("A", "B")
    for symbol in from_file:
        assert from_file[symbol].close.tolist() == from_frame[symbol].close.tolist()


def test_three_lines_that_are_no_levels(write):
    with pytest.raises(DataError, match="no column for time"):
        read_bars(write("Price,Open,High,Low,Close", "Ticker,A,A,A,A", "2020-01-02,10,12,9,11"))
