"""Which column is which price: a user's mapping, closes alone, adjusted closes. And long holes, the future, commas."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import velodrome as vd
from velodrome.errors import ConfigError, DataError

YAHOO = (
    "Date,Open,High,Low,Close,Adj Close,Volume",
    "2020-01-01,10,12,8,11,5.5,100",
    "2020-01-02,11,14,10,12,6.0,100",
    "2020-01-03,6,7,5,6.5,6.5,200",
)
CLOSES = ("Day;Mid;Spread", "2020-01-01;10,5;1", "2020-01-02;11,25;1", "2020-01-03;10;2")


def finding(path, rule, **options):
    (found,) = [one for one in vd.check_bars(path, **options).findings if one.rule == rule and one.severity != "ok"]
    return found


# Adjusted prices


@pytest.mark.parametrize("options", [{}, {"columns": {"close": "Adj Close"}}, {"columns": {"adj_close": "adj close"}}])
def test_all_prices_are_adjusted_by_the_ratio(write, options):
    bars = vd.read_bars(write(*YAHOO), **options)
    series = bars["TEST"]
    assert series.open.tolist() == [5.0, 5.5, 6.0]
    assert series.high.tolist() == [6.0, 7.0, 7.0]
    assert series.low.tolist() == [4.0, 5.0, 5.0]
    assert series.close.tolist() == [5.5, 6.0, 6.5]
    assert series.volume.tolist() == [100, 100, 200]
    assert bars.notes == ("TEST: prices are multiplied by adjusted close over close",)
    note = finding(write(*YAHOO), "adjusted prices", **options)
    assert "multiplied by adjusted close over close, 0.5 … 0.5" in note.message
    assert (note.severity, note.count, note.column) == ("note", 2, "Adj Close")
    assert "adjust=False" in note.advice


def test_adjusting_can_be_switched_off(write):
    bars = vd.read_bars(write(*YAHOO), adjust=False)
    assert bars["TEST"].close.tolist() == [11, 12, 6.5]
    assert bars["TEST"].extra["adj_close"].tolist() == [5.5, 6.0, 6.5]
    assert bars.notes == ()


def test_an_adjusted_close_with_holes_is_refused_and_an_empty_one_is_left_out(write):
    path = write(*YAHOO, "2020-01-04,6,7,5,6,,100")
    with pytest.raises(DataError, match=r"line 5, column 'Adj Close': the adjusted close is empty.*adjust=False"):
        vd.read_bars(path)
    empty = write(*(",".join(x for i, x in enumerate(line.split(",")) if i != 5) + "," for line in YAHOO[1:]))
    empty.write_text("Date,Open,High,Low,Close,Volume,Adj Close\n" + empty.read_text())
    assert vd.read_bars(empty)["TEST"].close.tolist() == [11, 12, 6.5]


# Columns by name


def test_columns_say_what_a_column_holds(write):
    bars = vd.read_bars(write(*CLOSES), columns={"time": "Day", "close": "mid", "volume": "Spread"})
    assert bars["TEST"].close.tolist() == [10.5, 11.25, 10]
    assert bars["TEST"].volume.tolist() == [1, 1, 2]


def test_a_header_is_found_by_the_columns_named(write):
    path = write("Source: my bank", "", "Tag,SP500", "2020-01-01,10", "2020-01-02,11")
    assert vd.read_bars(path, columns={"time": "Tag", "close": "SP500"})["TEST"].close.tolist() == [10, 11]


def test_a_column_that_is_not_there(write):
    with pytest.raises(DataError, match=r"no column 'Midd', which columns= names for close;.*Did you mean 'Mid'\?"):
        vd.read_bars(write(*CLOSES), columns={"close": "Midd"})
    with pytest.raises(ConfigError, match=r"'closing'; there are time, open, .*Did you mean 'close'\?"):
        vd.read_bars(write(*CLOSES), columns={"closing": "Mid"})
    with pytest.raises(ConfigError, match="give the column's name as a text"):
        vd.read_bars(write(*CLOSES), columns={"close": 2})


def test_columns_in_a_run_and_on_the_command_line(write, capsys):
    from velodrome import cli
    from velodrome.runs.config.files import load_run_config

    path = write(*CLOSES)
    words = [f"market.source={path}", "market.columns={close: Mid}", "market.windows=1", "market.features=[return]"]
    config = load_run_config(None, words)
    assert config.market.bars()["TEST"].close_only
    assert load_run_config(config.content()) == config
    with pytest.raises(ConfigError, match="'klose'"):
        load_run_config(None, [words[0], "market.columns={klose: Mid}"])
    assert cli.run(["data", "check", str(path), "--columns", "close=Mid"]) == 0
    assert cli.run(["data", "check", str(path)]) == 1
    assert cli.run(["data", "check", str(path), "--columns", "Mid"]) == 2
    assert "such as close=Mid" in capsys.readouterr().err


# Closes alone


def test_bars_of_closes(write):
    bars = vd.read_bars(write("date,close", "2020-01-01,10", "2020-01-02,11", "2020-01-03,9"))
    series = bars["TEST"]
    assert series.close_only
    assert [getattr(series, name).tolist() for name in ("open", "high", "low", "close")] == [[10, 11, 9]] * 4
    assert "there are closes and no other price" in repr(bars)
    coarse = vd.read_bars(write("date,close", "2020-01-01,10", "2020-01-02,11", "2020-02-03,9"), timeframe="1mo")[
        "TEST"
    ]
    assert coarse.close_only
    assert [coarse.high.tolist(), coarse.open.tolist()] == [[11, 9], [11, 9]]  # no price between closes is made up


def test_other_columns_beside_closes_are_kept(write):
    bars = vd.read_bars(write("date,settle,Open Interest,52w high", "2020-01-01,10,7,12", "2020-01-02,11,8,12"))
    assert bars["TEST"].close_only
    assert list(bars["TEST"].extra) == ["open_interest", "52w_high"]


@pytest.mark.parametrize("header", ["date,close,highest", "date,close,opening", "date,close,low,high"])
def test_a_bar_with_some_of_its_prices_is_not_taken_for_closes(write, header):
    row = ",10" * header.count(",")
    with pytest.raises(DataError, match="no column for open"):
        vd.read_bars(write(header, f"2020-01-01{row}", f"2020-01-02{row}"))


def close_only_market(**options):
    series = vd.synthetic_bars("gbm", 400, timeframe="1h", volatility=0.02)["gbm_0"]
    bars = vd.read_bars(pl.DataFrame({"time": series.time, "close": series.close}))
    return vd.build_market(bars, ["return"], 2, splits={}, scaler="none", check_leaks=False, **options)


def test_orders_fill_at_closes_only():
    market = close_only_market()
    assert market.close_only == ("frame",)
    with pytest.raises(
        ConfigError, match=r"'brackets': stops and targets fill inside a bar, .* frame are made of clos"
    ):
        vd.make("trading", market=market, action="brackets")
    env = vd.make("trading", market=market, backend="python", start="first", leverage=5.0, seed=0)
    env.reset()
    generator, fills = np.random.default_rng(0), 0
    for _ in range(120):
        *_, terminated, _, _ = env.step(int(generator.integers(3)))
        state = env.state()
        if state["units"] and state["held"] == 1:
            fills += 1
            assert state["entry"] == market.ohlc[int(state["cursor"]), 3]
        if terminated:
            env.reset()
    assert fills > 20


def test_coarser_execution_bars_are_closes_too():
    market = close_only_market(timeframe="4h")
    assert market.close_only == ("frame",)
    assert (market.ohlc == market.ohlc[:, 3:]).all()


# Holes, the future, commas


def holed(before: int, hole_days: int, after: int, step="h"):
    first = np.datetime64("2010-01-01T00", "s") + np.arange(before) * np.timedelta64(1, step)
    second = first[-1] + np.timedelta64(hole_days, "D") + np.arange(1, after + 1) * np.timedelta64(1, step)
    return ["time,close", *(f"{moment},10" for moment in np.concatenate([first, second]))]


def test_a_hole_of_years_is_refused(write):
    path = write(*holed(100, 5 * 365, 100))
    with pytest.raises(DataError) as caught:
        vd.read_bars(path)
    message = str(caught.value)
    assert "TEST.csv, line 101, column 'time': there is no bar between 2010-01-05 03:00:00 and 2015-01-04 04" in message
    assert "max_gap lets 90d pass" in message
    assert "max_gap='1826d'" in message
    assert finding(path, "long gap").severity == "refused"
    assert len(vd.read_bars(path, max_gap="1826d")) == len(vd.read_bars(path, max_gap=None)) == 200


@pytest.mark.parametrize(
    ("lines", "max_gap", "legal"),
    [
        (holed(100, 30, 100), "auto", True),
        (holed(100, 91, 100), "auto", False),
        (holed(100, 30, 100), "20d", False),
        (holed(60, 300, 60, step="W"), "auto", False),
        (holed(60, 60, 60, step="W"), "auto", True),
    ],
)
def test_max_gap(write, lines, max_gap, legal):
    assert vd.check_bars(write(*lines), max_gap=max_gap).ok is legal


def test_nights_and_weekends_are_no_gaps(write):
    days = [day for day in range(60) if day % 7 < 5]  # from a Monday
    hours = [
        np.datetime64("2020-01-06T09", "s") + np.timedelta64(24 * day + hour, "h") for day in days for hour in range(8)
    ]
    path = write("time,close", *(f"{moment},10" for moment in hours))
    assert vd.check_bars(path, max_gap="1d").ok
    with pytest.raises(ConfigError, match="max_gap is 'soon', which is no length of time"):
        vd.read_bars(path, max_gap="soon")


def test_max_gap_of_a_run(write):
    from velodrome.runs.config.files import load_run_config

    source = f"market.source={write(*holed(100, 5 * 365, 100))}"
    with pytest.raises(DataError, match="there is no bar between"):
        load_run_config(None, [source]).market.bars()
    assert len(load_run_config(None, [source, "market.max_gap=null"]).market.bars()) == 200
    with pytest.raises(ConfigError, match=r"market\.max_gap = 'soon'"):
        load_run_config(None, [source, "market.max_gap=soon"])


def test_dates_in_the_future_are_found(write):
    path = write("time,close", "2200-01-01,10", "2200-01-02,10", "2200-01-03,10")
    note = finding(path, "in the future")
    assert (note.severity, note.count, note.place) == ("note", 3, "line 2")
    assert "'2200-01-01' is 2200-01-01 00:00:00 UTC, which lies in the future" in note.message
    assert "in the future" in repr(vd.read_bars(path))
    with pytest.raises(DataError, match="no bar between"):  # one such row among others is a hole of centuries
        vd.read_bars(write("time,close", "2020-01-01,10", "2020-01-02,10", "2200-01-03,10"))


@pytest.mark.parametrize(
    "lines",
    [
        ("time;open;high;low;close", "2020-01-01;1,5;1,5;1,5;1,5", "2020-01-02;1.5;1.5;1.5;1.5"),
        ("time;open;high;low;close", "2020-01-01;1,5;1,5;1,5;1,5", "2020-01-02;1,5;1,5;1,5;1.5123"),
        ("time,open,high,low,close", '2020-01-01,"1,5","1,5","1,5","1,5"', "2020-01-02,1.5,1.5,1.5,1.5"),
    ],
)
def test_commas_and_points_in_one_file_are_named(write, lines):
    with pytest.raises(
        DataError, match=r"line 3, column '(open|close)': decimal commas and decimal points in one file"
    ):
        vd.read_bars(write(*lines))


@pytest.mark.parametrize(
    ("lines", "close"),
    [
        (("2020-01-01;1.234,5", "2020-01-02;1.234"), [1234.5, 1234]),
        (("2020-01-01;1,234.5", "2020-01-02;999.5"), [1234.5, 999.5]),
        (('2020-01-01,"1,234"', "2020-01-02,999.5"), [1234, 999.5]),
    ],
)
def test_thousands_are_not_decimals(write, lines, close):
    header = f"time{lines[1][10]}close"
    assert vd.read_bars(write(header, *lines))["TEST"].close.tolist() == close
