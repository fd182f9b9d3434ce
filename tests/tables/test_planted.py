"""Every planted leak must be found and every honest feature must pass; on many bars among the slow tests.

`python -m benchmarks.leak_detection` prints the table of docs/leaks.md from the same features.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import velodrome as vd
from benchmarks import leak_detection
from benchmarks.leak_detection import kind_of
from tests.tables.honest import HONEST
from tests.tables.planted import (
    LEAKS,
    ahead,
    average,
    by_time,
    close,
    hysteresis,
    next_close,
    planted_bars,
    returns,
    some,
)
from velodrome.bars.frame import Bars
from velodrome.errors import ConfigError, LeakError
from velodrome.runs.config.sections import MarketConfig
from velodrome.tables import build_basket, build_market, check_leaks
from velodrome.tables.leaks import LeakReport, functions
from velodrome.tables.leaks.fitted import held_numbers
from velodrome.tables.leaks.probe import different

ROUNDED = ("convolution", "one-sided Fourier filter", "windows times weights")
AWKWARD = (*ROUNDED, "expanding z-score", "hysteresis", "joined own past")  # the others are slow tests
LONG_ENOUGH = 1e9  # seconds: what is found must not depend on the machine


@pytest.fixture(scope="module")
def bars() -> Bars:
    return planted_bars(1500, 2)


def checked(bars: Bars, name: str, seconds: float = LONG_ENOUGH, **options) -> LeakReport:
    return check_leaks(bars, [(name, {**LEAKS, **HONEST}[name].make(bars))], 4, leak_seconds=seconds, **options)


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_found(bars, name):
    report = checked(bars, name)
    assert {leak.feature.removesuffix("_1").removesuffix("_0") for leak in report.findings} == {name}


@pytest.mark.parametrize(
    "name", [name if name in AWKWARD else pytest.param(name, marks=pytest.mark.slow) for name in HONEST]
)
def test_an_honest_feature_passes(bars, name):
    report = checked(bars, name)
    assert report.findings == ()
    assert report.notes == ()
    if name in ROUNDED:
        assert "it is rounding" in report.rounding[0]


def test_the_suite_is_large_enough():
    assert len(LEAKS) >= 60
    assert len(HONEST) >= 30


def test_the_page_has_a_table_of_the_whole_suite():
    page = (Path(__file__).parents[2] / "docs" / "leaks.md").read_text(encoding="utf-8")
    kinds = [kind_of(name, planted) for name, planted in {**LEAKS, **HONEST}.items()]
    for kind in set(kinds):
        assert re.search(rf"\| {re.escape(kind)} \| {kinds.count(kind)} \|", page), "run benchmarks.leak_detection"


def test_the_table_is_continued_only_with_what_was_measured_alike(tmp_path, monkeypatch, capsys):
    path = tmp_path / "leaks.json"
    name, result = "next close", {"kind": "on all rows", "right": True, "seconds": 0.5}
    found = leak_detection.read_results(path, {"rows": 700, "symbols": 2, "leak_seconds": 3.0})
    path.write_text(json.dumps({**found, "results": {name: result}}), encoding="utf-8")
    monkeypatch.setattr(leak_detection, "FEATURES", {name: LEAKS[name]})
    for variable in leak_detection.THREADS:  # which it sets for its processes
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("sys.argv", ["leak_detection", "700", "2", "3", "--json", str(path)])
    leak_detection.main()
    assert "1 of 1 features are there" in (told := capsys.readouterr().out)
    assert "| on all rows | 1 | 1 | 0.5 s | 0.5 s |" in told
    with pytest.raises(SystemExit, match=r"has leak_seconds 3\.0, this call 4\.0: name another file"):
        leak_detection.read_results(path, {"rows": 700, "symbols": 2, "leak_seconds": 4.0})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["on all rows", "on 1 % of the rows or more", "honest features"])
def test_many_bars_within_the_budget(monkeypatch, kind):
    """The promise, in seconds of the processor, so that other work on the machine does not break it."""
    monkeypatch.setattr(functions, "clock", time.process_time)
    many = planted_bars(100_000, 6)
    names = [name for name, planted in {**LEAKS, **HONEST}.items() if kind_of(name, planted) == kind]
    found = sum(not checked(many, name, 20.0).passed for name in names)
    least, most = {"on all rows": (1.0, 1.0), "honest features": (0.0, 0.0)}.get(kind, (0.95, 1.0))
    assert least * len(names) <= found <= most * len(names)


def test_every_row_of_a_bounded_feature_is_proven(bars):
    (coverage,) = checked(bars, "rolling mean").coverage
    assert (coverage.look_back, coverage.proven, coverage.rows) == (19, pytest.approx(1, abs=1e-3), 3037)
    assert "look-back 19 bars" in str(coverage)


def test_a_leak_in_two_rows_of_one_instrument_is_found(bars):
    chosen = bars["BBB"].time[[700, 1201]]

    def twice(series):
        rows = np.isin(series.time, chosen) & (series.extra["code"] == 1)
        return np.where(rows, next_close(series), series.close)

    (leak,) = check_leaks(bars, [twice], 4, leak_seconds=LONG_ENOUGH).findings
    assert (leak.symbol, leak.row) in {("BBB", 700), ("BBB", 1201)}


def test_rounding_passes_with_a_note_where_a_market_is_built(bars):
    feature = ("mean of seven", lambda s: np.convolve(s.close, np.ones(7) / 7)[: len(s)])
    with pytest.warns(UserWarning, match="mean of seven of 1m differs in its last digits"):
        build_market(bars, [feature], 4, leak_seconds=LONG_ENOUGH)


def test_a_small_column_is_no_rounding(bars):
    report = check_leaks(bars, [("small", lambda s: 1e-14 * ahead(returns(s)))], 4)
    assert not report.passed


def test_a_basket_is_checked_on_all_instruments():
    basket = planted_bars(700, 3)
    build_basket(basket, [("average", average), "rank:average"], 4, leak_seconds=LONG_ENOUGH)
    peek = some(0.05, next_close, close)
    third = ("third", lambda s: peek(s) if 2.0 in s.extra["code"][:1] else s.close)
    with pytest.raises(LeakError, match="'third' of 1m, CCC"):
        build_basket(basket, [third, "rank:third"], 4, leak_seconds=LONG_ENOUGH)


def test_time_that_is_up_is_said(bars, monkeypatch):
    ticks = iter(range(10**9))
    monkeypatch.setattr(functions, "clock", lambda: 0.1 * next(ticks))
    report = checked(bars, "expanding z-score", 20.0)
    assert report.passed
    assert "time was up after 20 s" in report.notes[0]
    assert report.comparisons > 0
    assert report.seconds == pytest.approx(20, abs=2)


@pytest.mark.parametrize("seconds", [-1, "long", True, float("nan")])
def test_a_time_that_is_none_is_refused(bars, seconds):
    with pytest.raises(ConfigError, match="leak_seconds"):
        build_market(bars, ["close"], 4, leak_seconds=seconds)


def test_the_configuration_hands_the_time_on():
    assert MarketConfig(leak_seconds=3)._choices()["leak_seconds"] == 3.0


def test_no_time_leaves_the_cuts_of_everything_that_is_built(bars):
    assert checked(bars, "rolling mean", 0.0).passed
    assert not checked(bars, "next close", 0.0).passed


def test_a_bar_is_shown_where_somebody_waits(bars, monkeypatch, capsys):
    monkeypatch.setattr(functions, "PATIENCE", -1.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    checked(bars, "lagged close", 0.5)
    assert "looking for leaks" in capsys.readouterr().err


def test_the_same_leak_is_found_each_time(bars):
    first, second = (checked(bars, "1 of 1,000 rows of an average").findings for _ in range(2))
    assert first == second


def test_prices_that_stand_still_and_prices_that_follow_a_curve_raise_no_alarm():
    series = planted_bars(1300, 1)["AAA"]
    stale = np.repeat(series.close[::2], 2)[: len(series)]
    curve = 100 + np.sin(np.arange(len(series)) / 40)
    for prices in (stale, curve):
        made = replace(series, open=prices, high=prices, low=prices, close=prices)
        data = Bars({"AAA": made}, "1m")
        table = by_time(data, close)
        joined = ("joined", lambda s, table=table: np.array([table[time] for time in s.time.tolist()]))
        assert check_leaks(data, [joined, ("average", average)], 4).findings == ()


@pytest.mark.parametrize(("kind", "length"), [("ou", 300), ("gbm", 1300)])
def test_bars_that_open_where_the_last_closed_and_short_data_raise_no_alarm(kind, length):
    data = vd.synthetic_bars(kind, length, seed=3)
    table = by_time(data, returns)
    features = {
        "close": close,
        "running volume": lambda s: np.cumsum(s.volume),
        "joined": lambda s: np.array([table[time] for time in s.time.tolist()]),
        "hysteresis": lambda s: hysteresis(returns(s)),
    }
    assert check_leaks(data, list(features.items()), 4, leak_seconds=LONG_ENOUGH).findings == ()


def test_a_number_is_found_wherever_a_function_keeps_it():
    class Kept:
        __slots__ = ("deep",)

        def __init__(self):
            self.deep = {"a": [np.float64(1.23456789), (7.0, np.array([2.3456789]))]}

        def __call__(self, series):
            return series.close

    assert set(held_numbers(Kept()).values()) == {1.23456789, 2.3456789}
    assert set(held_numbers(Kept().__call__).values()) == {1.23456789, 2.3456789}
    assert held_numbers(lambda series, scale=3.3333333: series.close / scale) == {"[0]": 3.3333333}


def test_one_nan_is_as_good_as_another():
    assert not different(np.array([np.nan, 1.0]), np.array([-np.nan, 1.0])).any()
    assert different(np.array([np.nan, 0.0]), np.array([1.0, -0.0])).all()
