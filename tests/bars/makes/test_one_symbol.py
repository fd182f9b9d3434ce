"""Files that are one instrument by their names, and files that only look so."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from velodrome.bars import check_bars, read_bars
from velodrome.bars.makes.file_names import parse_name, period_of
from velodrome.bars.timeframe import DAY, describe_time
from velodrome.errors import DataError

HEADER = "time,open,high,low,close,volume\n"


@pytest.fixture
def hours(tmp_path):
    """Write a file of hourly bars whose closes count up from a first one."""

    def write(name: str, begin: str, count: int = 48, first: float = 100.0, folder: str = "prices"):
        start = datetime.fromisoformat(begin)
        rows = []
        for hour in range(count):
            close = first + hour
            rows.append(f"{start + timedelta(hours=hour)},{close},{close + 1},{close - 1},{close},10\n")
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADER + "".join(rows))
        return path

    return write


@pytest.fixture
def prices(tmp_path):
    return tmp_path / "prices"


def found(report, rule):
    return [finding for finding in report.of("note") + report.of("refused") if finding.rule == rule]


@pytest.mark.parametrize(
    ("stem", "symbol", "interval", "date", "part"),
    [
        ("BTCUSDT-1m-2023-05", "BTCUSDT", "1m", "2023-05", None),
        ("BTCUSDT_230630-12h-2023-05-31", "BTCUSDT_230630", "12h", "2023-05-31", None),
        ("EURUSD_2020", "EURUSD", "", "2020", None),
        ("EUR-USD_M15_202003", "EUR-USD", "M15", "202003", None),
        ("gold.20200131", "gold", "", "20200131", None),
        ("gold 2020Q2", "gold", "", "2020Q2", None),
        ("gold_2020-01-01_2020-06-30", "gold", "", "2020-01-01", None),
        ("gold-1h-part02", "gold", "1h", "", 2),
        ("gold_part_3", "gold", "", "", 3),
        ("gold_7", "gold", "", "", 7),
        ("EURUSD.m_M15_202301020000_202303312345", "EURUSD.m", "M15", "202301020000", None),
        ("#AAPL_Daily_200001030000_202303310000", "#AAPL", "Daily", "200001030000", None),
    ],
)
def test_names_are_taken_apart(stem, symbol, interval, date, part):
    name = parse_name(stem)
    assert (name.symbol, name.interval, name.date, name.part) == (symbol, interval, date, part)


@pytest.mark.parametrize(
    "stem", ["BTCUSDT", "BTCUSDT-1h", "600519", "2020-01-01", "20200101_20201231", "SP500", "ES-H23"]
)
def test_names_without_a_date_or_number_at_their_end(stem):
    assert parse_name(stem) is None


@pytest.mark.parametrize(
    ("date", "begin", "days"),
    [
        ("2020", "2020-01-01", 366),
        ("2020Q4", "2020-10-01", 92),
        ("202002", "2020-02-01", 29),
        ("2020-12-31", "2020-12-31", 1),
    ],
)
def test_the_period_of_a_date(date, begin, days):
    first, last = period_of(date)
    assert (describe_time(first), (last - first) // DAY) == (f"{begin} 00:00:00", days)


def test_monthly_files_of_binance_are_one_symbol(hours, prices):
    for month in ("06", "05", "07"):
        hours(f"BTCUSDT-1h-2023-{month}.csv", f"2023-{month}-01", 720, first=int(month) * 1000)
    hours("ETHUSDT-1h-2023-05.csv", "2023-05-01")
    bars = read_bars(prices)
    assert bars.symbols == ("BTCUSDT", "ETHUSDT")
    assert len(bars["BTCUSDT"]) == 3 * 720
    assert bars["BTCUSDT"].close[[0, 720, 1440]].tolist() == [5000, 6000, 7000]
    assert bars.notes == ("BTCUSDT: several files are joined in order of time",)
    report = check_bars(prices)
    (note,) = found(report, "several files")
    assert "3 files" in note.message
    assert "BTCUSDT-1h-2023-05.csv, BTCUSDT-1h-2023-06.csv and BTCUSDT-1h-2023-07.csv" in note.message
    assert not found(report, "order of time")
    assert found(report, "gaps")[0].message.startswith("24 bars are missing")  # 31 May
    assert [len(summary.files) for summary in report.symbols] == [3, 1]


def test_rows_at_the_seam_that_agree_count_once_and_others_are_refused(hours, prices):
    hours("A-1h-2023-05-01.csv", "2023-05-01", 25)
    hours("A-1h-2023-05-02.csv", "2023-05-02", 24, first=124)
    assert len(read_bars(prices)["A"]) == 48
    (note,) = found(check_bars(prices), "repeated rows")
    assert "stands in two files; the other is A-1h-2023-05-01.csv, line 26" in note.message
    hours("A-1h-2023-05-02.csv", "2023-05-02", 24, first=125)
    with pytest.raises(DataError, match=r"A-1h-2023-05-02.csv, line 2.*the other is A-1h-2023-05-01.csv, line 26"):
        read_bars(prices)


def test_a_day_within_a_month_of_binance_is_the_same_instrument(hours, prices):
    hours("A-1h-2023-05.csv", "2023-05-01", 744)
    hours("A-1h-2023-05-02.csv", "2023-05-02", 24, first=124)
    assert len(read_bars(prices)["A"]) == 744
    assert found(check_bars(prices), "repeated rows")[0].count == 24


def test_one_symbol_in_two_bar_sizes_keeps_them_apart(hours, prices):
    for month in ("05", "06"):
        hours(f"A-1h-2023-{month}.csv", f"2023-{month}-01", 700)
        hours(f"A-1m-2023-{month}.csv", f"2023-{month}-01", 700)
    assert read_bars(prices).symbols == ("A-1h", "A-1m")


def test_a_file_of_the_bare_symbol_is_not_mixed_with_the_dated_ones(hours, prices):
    hours("A.csv", "2023-05-01")
    hours("A-1h-2023-05.csv", "2023-05-01", first=7)
    assert read_bars(prices).symbols == ("A", "A-1h")


@pytest.mark.parametrize(
    "names", [("A_2020-05-01", "A_2020-05-03"), ("A_20200501", "A_20200503"), ("A-part1", "A-part2"), ("A_0", "A_1")]
)
def test_other_names_are_joined_where_the_bars_bear_it_out(hours, prices, names):
    hours(f"{names[0]}.csv", "2020-05-01")
    assert read_bars(prices).symbols == (names[0],)  # alone it may be anything
    hours(f"{names[1]}.csv", "2020-05-03", first=148)
    bars = read_bars(prices)
    assert bars.symbols == ("A",)
    assert bars["A"].close.tolist() == [100 + hour for hour in range(96)]
    assert read_bars(prices, symbols="A").symbols == ("A",)


@pytest.mark.parametrize(
    ("names", "begins", "reason"),
    [
        (("A_2020", "A_2021"), ("2020-01-01", "2020-01-01"), "cover the same time"),
        (
            ("A_2020", "A_2021"),
            ("2020-01-01", "2020-02-01"),
            "A_2021.csv begin at 2020-02-01 00:00:00 UTC, not in 2021",
        ),
        (("A_202003", "A_202006"), ("2020-03-01", "2020-03-02"), "overlap, and there their prices differ"),
        (("A_part1", "A_part2"), ("2020-03-01", "2020-03-20"), "A_part2.csv does not go on where A_part1.csv ends"),
        (("A_part1", "A_part2"), ("2020-03-03", "2020-03-01"), "do not count up"),
    ],
)
def test_names_that_only_look_alike_are_kept_apart_and_that_is_said(hours, prices, names, begins, reason):
    for number, (name, begin) in enumerate(zip(names, begins, strict=True)):
        hours(f"{name}.csv", begin, first=100 + 7 * number)
    assert read_bars(prices).symbols == names
    (note,) = found(check_bars(prices), "names alike")
    assert reason in note.message
    assert "each is a symbol of its own" in note.message


def test_instruments_that_are_merely_numbered_are_no_finding(hours, prices):
    for number in range(3):
        hours(f"asset_{number}.csv", "2020-05-01", first=100 + number)
    assert read_bars(prices).symbols == ("asset_0", "asset_1", "asset_2")
    assert not check_bars(prices).of("note")


def test_a_part_that_cannot_be_read_is_not_left_out_in_silence(hours, prices):
    for month in ("05", "06", "07"):
        hours(f"A-1h-2023-{month}.csv", f"2023-{month}-01", 700)
    hours("B.csv", "2023-05-01")
    (prices / "A-1h-2023-06.csv").write_text("")
    with pytest.raises(DataError, match=r"A-1h-2023-06.csv: the file is empty"):
        read_bars(prices, symbols="A")
    assert read_bars(prices, symbols="B").symbols == ("B",)


def test_files_of_one_name_in_two_folders_say_so(hours, prices):
    hours("A.csv", "2021-05-01", folder="prices/2021")
    hours("A.csv", "2021-04-29", folder="prices/2020", first=52)
    (note,) = found(check_bars(prices), "several files")
    assert "2020/A.csv and 2021/A.csv" in note.message


def test_a_column_for_the_symbol_has_the_last_word(prices, hours):
    for day in ("01", "02"):
        path = hours(f"A-1h-2023-05-{day}.csv", f"2023-05-{day}", 24)
        lines = path.read_text().splitlines()
        path.write_text("\n".join([f"{lines[0]},symbol", *(f"{line},X{day}" for line in lines[1:])]))
    assert read_bars(prices).symbols == ("X01", "X02")


def test_a_note_on_every_file_is_one_note(hours, prices):
    for month in ("05", "06", "07"):
        path = hours(f"A-1h-2023-{month}.csv", f"2023-{month}-01", 700)
        lines = path.read_text().splitlines()
        path.write_text("\n".join([f"{lines[0]},remark", *(f"{line},fine" for line in lines[1:])]))
    (note,) = found(check_bars(prices), "text column")
    assert (note.symbol, note.count) == ("A", 3)


def test_exports_of_metatrader_are_their_symbol_alone_or_several(hours, prices):
    hours("EURUSD_H1_202301020000_202301032300.csv", "2023-01-02")
    assert read_bars(prices).symbols == ("EURUSD",)
    hours("EURUSD_H1_202301040000_202301052300.csv", "2023-01-04", first=148.0)
    assert len(read_bars(prices)["EURUSD"]) == 96
    assert found(check_bars(prices), "several files")
    hours("EURUSD_Daily_202301020000_202301052300.csv", "2023-01-02")
    assert check_bars(prices).ok
    assert [one.symbol for one in check_bars(prices).symbols] == ["EURUSD-Daily", "EURUSD-H1"]
