"""Reading: one test for each format that exports come in."""

from __future__ import annotations

import gzip

import numpy as np
import polars as pl
import pytest

from velodrome.bars import read_bars
from velodrome.errors import DataError

PRICES = ("1,2,0.5,1.5,10", "1.5,2.5,1,2,20", "2,3,1.5,2.5,30")
MINUTES = ("2020-01-31 09:30:00", "2020-01-31 09:31:00", "2020-01-31 09:32:00")


def csv_text(times, header="time,open,high,low,close,volume", prices=PRICES) -> str:
    return "\n".join([header, *(f"{time},{price}" for time, price in zip(times, prices, strict=False))]) + "\n"


@pytest.fixture
def write(tmp_path):
    def write_file(content: str | bytes, name: str = "TEST.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def times_of(bars, symbol="TEST") -> list[str]:
    return bars[symbol].time.astype("datetime64[ns]").astype("datetime64[s]").astype(str).tolist()


def assert_standard(bars, symbol="TEST") -> None:
    series = bars[symbol]
    assert times_of(bars, symbol) == ["2020-01-31T09:30:00", "2020-01-31T09:31:00", "2020-01-31T09:32:00"]
    assert series.open.tolist() == [1, 1.5, 2]
    assert series.high.tolist() == [2, 2.5, 3]
    assert series.low.tolist() == [0.5, 1, 1.5]
    assert series.close.tolist() == [1.5, 2, 2.5]
    assert series.volume.tolist() == [10, 20, 30]
    assert bars.timeframe == "1m"


@pytest.mark.parametrize(
    "header",
    [
        "time,open,high,low,close,volume",
        "Date,Open,High,Low,Close,Volume",
        "TIMESTAMP,O,H,L,C,V",
        "datetime, Open , High , Low , Close , Vol",
        "open_time,open_price,high_price,low_price,close_price,base_volume",
        "Gmt time,Open,High,Low,Close,Volume",
        ",open,high,low,close,volume",
        "Unnamed: 0,open,high,low,close,volume",
        "timestamp,1. open,2. high,3. low,4. close,5. volume",
        "<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>",
        "Date,Open,High,Low,Close,Volume BTC",
        "Date,Open,High,Low,Close,Volume (USDT)",
    ],
)
def test_column_names(write, header):
    assert_standard(read_bars(write(csv_text(MINUTES, header))))


@pytest.mark.parametrize(
    "times",
    [
        MINUTES,
        [time.replace(" ", "T") + "Z" for time in MINUTES],
        [time + ".000" for time in MINUTES],
        [time[:-3] for time in MINUTES],
        [time + "+00:00" for time in MINUTES],
        [time + " UTC" for time in MINUTES],
        [time.replace("09:", "10:") + "+0100" for time in MINUTES],
        [time.replace("09:", "04:") + "-05:00" for time in MINUTES],
        [time.replace("-", ".") for time in MINUTES],
        [time.replace("-", "/") for time in MINUTES],
        [f"20200131 {clock}" for clock in ("093000", "093100", "093200")],
        [f"20200131 {clock}" for clock in ("09:30", "09:31", "09:32")],
        [f"20200131{clock}" for clock in ("093000", "093100", "093200")],
        [f"20200131{clock}" for clock in ("0930", "0931", "0932")],
        [f"31.01.2020 {clock}" for clock in ("09:30", "09:31", "09:32")],
        [f"31.01.2020 {clock}" for clock in ("09:30:00.000", "09:31:00.000", "09:32:00.000")],
        [f"31.01.2020 {clock} GMT+0100" for clock in ("10:30:00.000", "10:31:00.000", "10:32:00.000")],
        [f"31/01/2020 {clock}" for clock in ("09:30", "09:31", "09:32")],
        [f"01/31/2020 {clock}" for clock in ("09:30", "09:31", "09:32")],
        [f"1/31/2020 {clock}" for clock in ("9:30:00 AM", "9:31:00 AM", "9:32:00 AM")],
        [str(1580463000 + 60 * i) for i in range(3)],
        [str(float(1580463000 + 60 * i)) for i in range(3)],
        [f"{(1580463000 + 60 * i) * 1000}" for i in range(3)],
        [f"{(1580463000 + 60 * i) * 10**6}" for i in range(3)],
        [f"{(1580463000 + 60 * i) * 10**9}" for i in range(3)],
        ["1580463000000", "1580463060000", "1580463120000000"],  # the unit changes midway
        [f'"{time}"' for time in MINUTES],
    ],
    ids=lambda times: times[0],
)
def test_time_formats(write, times):
    assert_standard(read_bars(write(csv_text(times))))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["20200131", "20200201", "20200202"], "2020-01-31"),
        (["31.01.2020", "01.02.2020", "02.02.2020"], "2020-01-31"),
        (["02.01.2020", "03.01.2020", "04.01.2020"], "2020-01-02"),  # points: always the day first
        (["12/01/2020", "13/01/2020", "14/01/2020"], "2020-01-12"),
        (["01/12/2020", "01/13/2020", "01/14/2020"], "2020-01-12"),
        (["2020.01.30", "2020.01.31", "2020.02.01"], "2020-01-30"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_date_formats(write, times, expected):
    bars = read_bars(write(csv_text(times)))
    assert times_of(bars)[0] == f"{expected}T00:00:00"
    assert bars.timeframe == "1d"


def test_day_first_settles_what_the_values_do_not(write):
    path = write(csv_text(["01/02/2020", "02/02/2020", "03/02/2020"]))
    assert times_of(read_bars(path, day_first=True))[0] == "2020-02-01T00:00:00"
    assert times_of(read_bars(path, day_first=False))[0] == "2020-01-02T00:00:00"


def test_old_crypto_data_download_hours(write):
    times = ["2020-01-01 11-AM", "2020-01-01 12-PM", "2020-01-01 01-PM"]
    assert times_of(read_bars(write(csv_text(times)))) == [f"2020-01-01T{hour}:00:00" for hour in (11, 12, 13)]


def test_crypto_data_download(write):
    text = (
        "https://www.CryptoDataDownload.com\n"
        "unix,date,symbol,open,high,low,close,Volume BTC,Volume USDT,tradecount\n"
        "1577923200000,2020-01-02 00:00:00,BTC/USDT,2,3,1.5,2.5,20,50,7\n"
        "1577836800000,2020-01-01 00:00:00,BTC/USDT,1,2,0.5,1.5,10,25,6\n"
    )
    bars = read_bars(write(text, "Binance_BTCUSDT_d.csv"))
    series = bars["BTC/USDT"]
    assert series.volume.tolist() == [10, 20]
    assert {name: column.tolist() for name, column in series.extra.items()} == {
        "volume_usdt": [25, 50],
        "tradecount": [6, 7],
    }
    assert bars.timeframe == "1d"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_meta_trader(write, encoding):
    lines = ["<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>"]
    for time, price in zip(MINUTES, PRICES, strict=True):
        date, clock = time.replace("-", ".").split(" ")
        lines.append("\t".join([date, clock, *price.split(","), "0", "3"]))
    bars = read_bars(write("\r\n".join(lines).encode(encoding)))
    assert_standard(bars)  # tick volume stands in for a volume of zero
    assert bars["TEST"].extra["spread"].tolist() == [3, 3, 3]


def test_real_volume_comes_before_tick_volume(write):
    header = "<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<TICKVOL>"
    rows = [f"2020.01.31,09:3{i},{price},99" for i, price in enumerate(PRICES)]
    bars = read_bars(write("\n".join([header, *rows])))
    assert_standard(bars)
    assert bars["TEST"].extra["tickvol"].tolist() == [99, 99, 99]


def test_date_and_time_as_numbers(write):
    rows = [f"20200131,{93000 + 100 * i},{price}" for i, price in enumerate(PRICES)]
    assert_standard(read_bars(write("\n".join(["date,time,open,high,low,close,vol", *rows]))))


def test_semicolons_with_decimal_commas(write):
    text = csv_text(MINUTES).replace(",", ";").replace(".", ",")
    assert_standard(read_bars(write(text)))
    rows = ("2020-01-01;1.234,5;1.300;1.200,25;1.250,0", "2020-01-02;1.234;1.300,0;1.200;1250")
    text = "\n".join(["date;open;high;low;close", *rows])
    series = read_bars(write(text))["TEST"]
    assert (series.open[0], series.high[0], series.low[0], series.close[1]) == (1234.5, 1300, 1200.25, 1250)


def test_thousands_and_currency_signs(write):
    text = 'Date,Close/Last,Volume,Open,High,Low\n01/31/2020,"$1,250.5","1,000",$1200,"$1,300",$1100\n'
    text += '01/30/2020,"$1,250.5","2,000",$1200,"$1,300",$1100\n'
    series = read_bars(write(text))["TEST"]
    assert series.close.tolist() == [1250.5, 1250.5]
    assert series.volume.tolist() == [2000, 1000]


def test_volumes_in_thousands_and_millions(write):
    text = 'Date,Price,Open,High,Low,Vol.,Change %\n01/31/2020,"1,250.5","1,200","1,300","1,100",587.78K,0.1%\n'
    text += "01/30/2020,1250.5,1200,1300,1100,1.5M,0.2%\n01/29/2020,1250.5,1200,1300,1100,900,0.2%\n"
    assert read_bars(write(text))["TEST"].volume.tolist() == [900, 1_500_000, 587_780]
    with pytest.raises(DataError, match=r"column 'Price': close is '1250\.5K'"):  # a price has no such unit
        read_bars(write(text.replace("1250.5", "1250.5K")))


def test_tabs_gzip_parquet_and_folders(write, tmp_path):
    write(csv_text(MINUTES).replace(",", "\t"), "data/TABS.tsv")
    write(csv_text(MINUTES).replace(",", "\t"), "data/deep/TEXT.txt")
    write(gzip.compress(csv_text(MINUTES).encode()), "data/PACKED.csv.gz")
    frame = pl.read_csv(csv_text(MINUTES).encode(), try_parse_dates=True)
    frame.write_parquet(tmp_path / "data" / "COLUMNS.parquet")
    frame.with_columns(pl.col("time").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")).write_parquet(
        tmp_path / "data" / "ZONED.pq"
    )
    frame.with_columns(pl.col("time").dt.epoch("ms")).write_parquet(tmp_path / "data" / "EPOCH.parquet")
    frame.with_columns(pl.col("time").dt.to_string("%Y-%m-%d %H:%M")).write_parquet(tmp_path / "data" / "TEXTS.parquet")
    write("read me", "data/README.md")
    write("hidden", "data/.cache/x.csv")
    bars = read_bars(tmp_path / "data")
    assert bars.symbols == ("COLUMNS", "EPOCH", "PACKED", "TABS", "TEXT", "TEXTS", "ZONED")
    for symbol in bars:
        assert_standard(bars, symbol)
    assert read_bars(tmp_path / "data", symbols=["ZONED", "TABS"]).symbols == ("ZONED", "TABS")
    assert read_bars(tmp_path / "data", symbols="TABS").symbols == ("TABS",)


@pytest.mark.parametrize("column", ["symbol", "Ticker", "tic", "PAIR", "<TICKER>"])
def test_symbol_column(write, column):
    rows = [f"{time},{price},{symbol}" for time, price in zip(MINUTES, PRICES, strict=True) for symbol in ("B", "A")]
    bars = read_bars(write("\n".join([f"time,open,high,low,close,volume,{column}", *rows])))
    assert bars.symbols == ("A", "B")
    assert_standard(bars, "A")
    assert_standard(bars, "B")


def test_files_of_one_symbol_are_joined(write, tmp_path):
    write(csv_text(MINUTES[:2]), "2020/TEST.csv")
    write(csv_text(MINUTES[1:], prices=PRICES[1:]), "2021/TEST.csv")
    assert_standard(read_bars(tmp_path))


def test_extra_columns_are_kept_and_text_is_left_out(write):
    header = "Date,Open,High,Low,Close,Volume,Adj Close,Dividend,Comment,Comment"
    rows = [f"2020-01-0{i + 1},{price},{i}.25,{'' if i else 0.5},fine,fine" for i, price in enumerate(PRICES)]
    series = read_bars(write("\n".join([header, *rows])), adjust=False)["TEST"]
    assert series.close.tolist() == [1.5, 2, 2.5]
    assert list(series.extra) == ["adj_close", "dividend"]
    assert series.extra["adj_close"].tolist() == [0.25, 1.25, 2.25]
    assert np.isnan(series.extra["dividend"]).tolist() == [False, True, True]


def test_missing_volume_is_zero(write):
    rows = [f"{time},1,2,0.5,1" for time in MINUTES]
    assert read_bars(write("\n".join(["time,o,h,l,c", *rows])))["TEST"].volume.tolist() == [0, 0, 0]
    rows = [f"{time},1,2,0.5,1," for time in MINUTES]
    assert read_bars(write("\n".join(["time,o,h,l,c,v", *rows])))["TEST"].volume.tolist() == [0, 0, 0]


def test_preamble_blank_lines_newest_first_and_equal_rows(write):
    lines = csv_text(MINUTES).splitlines()
    text = "\n".join(["# exported", "", lines[0], "", lines[3], lines[2], "", lines[2], lines[1], "", ""])
    assert_standard(read_bars(write(text)))


def test_float_noise_is_widened(write):
    text = "time,o,h,l,c\n2020-01-01,1,1,1,1.0000000001\n2020-01-02,1,0.9999999999,1,1\n"
    series = read_bars(write(text))["TEST"]
    assert series.high.tolist() == [1.0000000001, 1]
    assert np.all(series.low <= series.open)


def test_naive_times_are_read_in_the_time_zone(write):
    path = write(csv_text(MINUTES))
    bars = read_bars(path, timezone="America/New_York")
    assert bars.timezone == "America/New_York"
    assert times_of(bars)[0] == "2020-01-31T14:30:00"
    aware = write(csv_text([time + "+00:00" for time in MINUTES]))
    assert_standard(read_bars(aware, timezone="America/New_York"))
    named = write(csv_text(MINUTES, "Gmt time,o,h,l,c,v"))
    assert_standard(read_bars(named, timezone="America/New_York"))


def test_clocks_going_back_take_the_first_of_two(write):
    times = ["2020-11-01 00:30", "2020-11-01 01:30", "2020-11-01 02:30"]
    bars = read_bars(write(csv_text(times)), timezone="America/New_York")
    assert times_of(bars) == ["2020-11-01T04:30:00", "2020-11-01T05:30:00", "2020-11-01T07:30:00"]


def test_dates_at_a_midnight_that_clocks_skip(write):
    bars = read_bars(write(csv_text(["2018-11-03", "2018-11-04", "2018-11-05"])), timezone="America/Sao_Paulo")
    assert times_of(bars) == ["2018-11-03T03:00:00", "2018-11-04T03:00:00", "2018-11-05T02:00:00"]
    assert bars.timeframe == "1d"


def test_timeframe_resamples(write):
    times = [f"2020-01-31 09:3{i}" for i in range(6)]
    path = write(csv_text(times, prices=PRICES * 2))
    bars = read_bars(path, timeframe="2min")
    assert bars.timeframe == "2m"
    assert bars["TEST"].volume.tolist() == [30, 40, 50]
    assert read_bars(path, timeframe="1Min").timeframe == "1m"


def test_different_sizes_meet_at_the_coarser(write, tmp_path):
    write(csv_text([f"2020-01-31 09:{i:02}" for i in range(60)], prices=PRICES * 20), "A.csv")
    write(csv_text([f"2020-01-31 09:{i:02}" for i in range(0, 60, 15)], prices=[*PRICES, PRICES[0]]), "B.csv")
    bars = read_bars(tmp_path, timeframe="15m")
    assert [len(bars[symbol]) for symbol in bars] == [4, 4]


def test_sparse_bars_may_be_finer_than_their_most_common_distance(write):
    path = write(csv_text([f"2020-01-31 09:{minute}" for minute in ("00", "05", "10", "11", "16")], prices=PRICES * 2))
    assert read_bars(path).timeframe == "5m"
    assert read_bars(path, timeframe="1m").timeframe == "1m"


def test_pandas_parquet_index(tmp_path):
    frame = pl.read_csv(csv_text(MINUTES).encode(), try_parse_dates=True)
    frame.rename({"time": "__index_level_0__"}).write_parquet(tmp_path / "TEST.parquet")
    # pandas writes the index last
    shuffled = frame.rename({"time": "__index_level_0__"}).select("open", "high", "low", "close", "volume", pl.first())
    shuffled.write_parquet(tmp_path / "LAST.parquet")
    bars = read_bars(tmp_path)
    assert_standard(bars)
    assert_standard(bars, "LAST")


@pytest.mark.parametrize("layout", ["%d-%b-%Y", "%d %b %Y", "%b %d, %Y"])
def test_names_of_months(write, layout):
    days = [np.datetime64(f"2020-01-0{i}").item().strftime(layout) for i in (1, 2, 3)]
    bars = read_bars(write(csv_text([f'"{day}"' for day in days])))
    assert times_of(bars)[2] == "2020-01-03T00:00:00"


def test_date_with_a_time_of_day_beside_a_clock(write, tmp_path):
    rows = [f"{time},{time[11:]},{price}" for time, price in zip(MINUTES, PRICES, strict=True)]
    assert_standard(read_bars(write("\n".join(["date,time,open,high,low,close,volume", *rows]))))
    frame = pl.read_csv(csv_text(MINUTES).encode(), try_parse_dates=True)
    split = frame.select(pl.col("time").dt.truncate("1d").alias("date"), pl.col("time").dt.time(), pl.exclude("time"))
    split.write_parquet(tmp_path / "TEST.parquet")
    assert_standard(read_bars(tmp_path / "TEST.parquet"))


def test_line_ends(write):
    for end in ("\r\n", "\r"):
        assert_standard(read_bars(write(csv_text(MINUTES).replace("\n", end))))
