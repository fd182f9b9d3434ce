"""The report of `check_bars`."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from velodrome.bars import check_bars, read_bars, synthetic_bars
from velodrome.bars.check import PrintedReport, find_gaps
from velodrome.bars.timeframe import DAY, HOUR, MINUTE, parse_timeframe


def write_bars(path, series, keep=None, volume=True) -> None:
    rows = range(len(series)) if keep is None else keep
    lines = ["time,open,high,low,close" + (",volume" if volume else "")]
    for i in rows:
        values = [series.time[i], series.open[i], series.high[i], series.low[i], series.close[i]]
        values += [series.volume[i]] * volume
        lines.append(",".join(repr(value.item()) for value in values))
    path.write_text("\n".join(lines) + "\n")


def found(report, rule):
    return next(finding for finding in report.findings if finding.rule == rule)


def test_clean_file(tmp_path):
    write_bars(tmp_path / "GBM.csv", synthetic_bars("gbm", 300)["gbm_0"])
    report = check_bars(tmp_path / "GBM.csv")
    assert report.ok
    assert {finding.severity for finding in report.findings} == {"ok"}
    (summary,) = report.symbols
    assert (summary.rows, summary.first, summary.last) == (300, "2020-01-01 00:00:00", "2020-01-01 04:59:00")
    assert (summary.timeframe, summary.missing_bars, summary.longest_gaps) == ("1m", 0, ())


def test_gaps(tmp_path):
    keep = [i for i in range(1000) if i not in (100, 500, 501, 502)]
    write_bars(tmp_path / "A.csv", synthetic_bars("gbm", 1000)["gbm_0"], keep)
    report = check_bars(tmp_path / "A.csv")
    assert report.ok
    finding = found(report, "gaps")
    assert (finding.severity, finding.count, finding.place) == ("note", 2, "line 500")
    assert (
        "4 bars are missing (0.40%); the longest gap lacks 3 bars, between 2020-01-01 08:19:00 and" in finding.message
    )
    (summary,) = report.symbols
    assert summary.missing_bars == 4
    assert summary.missing_share == pytest.approx(0.004)
    assert [gap.missing for gap in summary.longest_gaps] == [3, 1]


def market_minutes(days: int, zone_shift: int = 0) -> np.ndarray:
    """Return the minutes of a session from 14:30 to 21:00 UTC, Monday to Friday, from Monday 2020-01-06."""
    first = int(np.datetime64("2020-01-06T14:30", "ns").astype(np.int64)) + zone_shift
    dates = [day for day in range(days) if day % 7 < 5]
    return np.concatenate([first + day * DAY + np.arange(390) * MINUTE for day in dates])


def test_nights_weekends_and_holidays_are_session_breaks():
    time = market_minutes(28)
    gaps = find_gaps(time, parse_timeframe("1m"), "UTC")
    assert (len(gaps.before), gaps.session_breaks) == (0, 19)
    holiday = np.concatenate([time[: 390 * 7], time[390 * 8 :]])
    assert len(find_gaps(holiday, parse_timeframe("1m"), "UTC").before) == 0
    outage = np.delete(time, np.arange(1000, 1010))
    gaps = find_gaps(outage, parse_timeframe("1m"), "UTC")
    assert gaps.missing.tolist() == [10]
    assert gaps.before.tolist() == [999]
    month = np.concatenate([time, time + 56 * DAY])
    gaps = find_gaps(month, parse_timeframe("1m"), "UTC")
    assert len(gaps.before) == 1
    assert 390 * 10 < gaps.missing[0] < 390 * 30  # 31 days hold about 21 sessions


def test_weekends_of_daily_and_of_currency_bars():
    days = np.array([day for day in range(60) if day % 7 < 5]) * DAY
    days += int(np.datetime64("2020-01-06", "ns").astype(np.int64))
    assert len(find_gaps(days, parse_timeframe("1d"), "UTC").before) == 0
    assert find_gaps(np.delete(days, 12), parse_timeframe("1d"), "UTC").missing.tolist() == [1]
    hours = int(np.datetime64("2020-01-05T22:00", "ns").astype(np.int64)) + np.arange(24 * 28) * HOUR
    week_hour = np.arange(24 * 28) % 168
    gaps = find_gaps(hours[week_hour < 120], parse_timeframe("1h"), "UTC")
    assert (len(gaps.before), gaps.session_breaks) == (0, 3)


def test_round_the_clock_gaps_stay_gaps():
    time = np.delete(np.arange(24 * 70) * HOUR, [100, 333, 555, 777])
    gaps = find_gaps(time, parse_timeframe("1h"), "UTC")
    assert (gaps.missing.tolist(), gaps.session_breaks) == ([1, 1, 1, 1], 0)


def test_notes(tmp_path):
    lines = ["time,open,high,low,close,volume,spread,comment"]
    lines += [f"2020-01-01 {i // 60:02}:{i % 60:02},1,1,1,1,{i % 2},0.1,fine" for i in range(60)]
    lines += ["2020-01-01 01:01,1.5,1.5,1.5,1.5,1,,fine", "2020-01-01 01:00,1,1,1,1,1,0.1,fine", lines[1]]
    (tmp_path / "A.csv").write_text("\n".join(lines))
    report = check_bars(tmp_path / "A.csv")
    assert report.ok
    assert read_bars(tmp_path / "A.csv")["A"].volume.sum() == 32
    assert found(report, "order of time").place == "line 63"
    assert (found(report, "repeated rows").count, found(report, "repeated rows").place) == (1, "line 64")
    assert found(report, "volume").message.startswith("volume is zero in 49.2%")
    assert (found(report, "jumps").count, found(report, "jumps").place) == (1, "line 62")
    assert "+50.0%" in found(report, "jumps").message
    assert "longest for 60 bars from 2020-01-01 00:01:00" in found(report, "flat stretches").message
    assert (found(report, "missing value").column, found(report, "missing value").count) == ("spread", 1)
    assert found(report, "text column").column == "comment"
    assert report.symbols[0].nan_counts == {"spread": 1}
    assert all(finding.advice for finding in report.of("note"))


def test_no_volume_column(tmp_path):
    write_bars(tmp_path / "A.csv", synthetic_bars("gbm", 30)["gbm_0"], volume=False)
    report = check_bars(tmp_path / "A.csv")
    assert "no volume column" in found(report, "volume").message
    assert report.symbols[0].zero_volume_share == 1


def test_all_refusals_are_listed(tmp_path):
    lines = ["time,open,high,low,close,volume"]
    lines += [f"2020-01-0{i},1,2,0.5,1,1" for i in range(1, 6)]
    lines += ["2020-01-06,-1,2,0.5,1,1", "2020-01-07,1,2,3,1,1", "2020-01-08,1,2,0.5,x,1", "2020-01-05,1,2,0.5,1.1,1"]
    (tmp_path / "A.csv").write_text("\n".join(lines))
    report = check_bars(tmp_path / "A.csv")
    assert not report.ok
    assert [(finding.rule, finding.place, finding.column) for finding in report.of("refused")] == [
        ("price not positive", "line 7", "open"),
        ("not a number", "line 9", "close"),
        ("high below low", "line 8", "high"),
        ("open outside the bar", "line 7", "open"),
        ("conflicting rows", "line 10", "close"),
    ]
    assert report.symbols[0].nan_counts == {"close": 1}


def test_PrintedReport(tmp_path):
    write_bars(tmp_path / "A.csv", synthetic_bars("gbm", 30)["gbm_0"])
    (tmp_path / "B[1].csv").write_text("time,o,h,l,c\n2020-01-01,1,2,0.5,1\n2020-01-02,1,2,0.5,-1\n")
    console = Console(width=200, file=io.StringIO())
    for path in (tmp_path, tmp_path / "A.csv", tmp_path / "missing.csv"):
        console.print(PrintedReport(check_bars(path)))
    text = console.file.getvalue()
    assert "These bars would be refused" in text
    assert "These bars can be read" in text
    assert "B[1]" in text
    assert "no such file" in text


def printed(report, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(PrintedReport(report))
    return console.file.getvalue()


@pytest.mark.parametrize("name", ["A", "A_LONGER_NAME", "A_NAME_THAT_IS_LONGER_THAN_ANY_SYMBOL_SHOULD_BE"])
def test_a_narrow_terminal_cuts_nothing(tmp_path, name):
    keep = [hour for hour in range(300) if hour != 100]
    series = synthetic_bars("gbm", 300, timeframe="1h", symbols=[name])[name]
    write_bars(tmp_path / f"{name}.csv", series, keep)
    told = printed(check_bars(tmp_path), 80)
    assert all(len(line.rstrip()) <= 80 for line in told.splitlines())
    words = (name, "2020-01-01", "2020-01-13 11:00", "1 (0.33%)", "0.0%", "session", "breaks", "zero", "volume")
    assert all(word in told for word in words)
    assert "…" not in told


def test_findings_are_paragraphs_of_whole_words_in_a_narrow_terminal_and_a_table_in_a_wide_one(tmp_path):
    write_bars(tmp_path / "A.csv", synthetic_bars("gbm", 30, timeframe="1h")["gbm_0"], [*range(9), *range(10, 30)])
    report = check_bars(tmp_path)
    narrow = printed(report, 80)
    advice = "Fill short gaps from another source, or let windows end at long ones; single days may be holidays."
    assert advice in " ".join(narrow.split())
    assert len(narrow.splitlines()) < 14
    assert "what to do" in printed(report, 140)


def test_one_of_anything_is_not_many(tmp_path):
    write_bars(tmp_path / "A.csv", synthetic_bars("gbm", 30, timeframe="1h")["gbm_0"], [*range(9), *range(10, 30)])
    report = check_bars(tmp_path)
    assert "1 note, 0 refusals" in report.verdict
    told = "1 bar is missing (3.33%); the longest gap lacks 1 bar, between 2020-01-01 08:00:00 and 2020-01-01 10:00:00"
    assert told in found(report, "gaps").message


def test_the_number_of_files_of_each_symbol_is_shown(tmp_path):
    series = synthetic_bars("gbm", 48, timeframe="1h")["gbm_0"]
    write_bars(tmp_path / "A-1h-2020-01-01.csv", series, range(24))
    assert " files " not in printed(check_bars(tmp_path), 80)
    write_bars(tmp_path / "A-1h-2020-01-02.csv", series, range(24, 48))
    told = printed(check_bars(tmp_path), 80)
    assert " files " in told
    assert "A is 2 files, joined in order of time: A-1h-2020-01-01.csv and A-1h-2020-01-02.csv." in " ".join(
        told.split()
    )
