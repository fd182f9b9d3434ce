"""The leak check must name every feature that peeks, and must let every honest one pass."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables.price_data import MINUTE, gappy_bars
from velodrome.bars.frame import Bars, Series
from velodrome.errors import LeakError
from velodrome.tables import build_market, check_leaks, leaks, prepare, stretches
from velodrome.tables.features.families import DEFAULT_FEATURES
from velodrome.tables.leaks import check as leak_check


def closes(series: Series) -> pl.Series:
    return pl.Series("close", series.close)


def ahead(series: Series, bars: int) -> np.ndarray:
    """The close so many bars later; the last one where there is none."""
    return series.close[np.minimum(np.arange(len(series)) + bars, len(series) - 1)]


def next_close(series: Series) -> np.ndarray:
    return ahead(series, 1)


LEAKY = {
    "shift": lambda s: closes(s).shift(-1).fill_null(strategy="forward"),
    "every_40th_row": lambda s: np.where(np.arange(len(s)) % 40 == 7, next_close(s), s.close),
    "second_column": lambda s: np.stack([s.close, next_close(s)], axis=1),
}

HONEST = {
    "lagged": lambda s: closes(s).shift(1),
    "loop": lambda s: [s.close[max(0, t - 3)] for t in range(len(s))],
    "needs_forty_bars": lambda s: s.close if len(s) >= 40 else [][1],
}


@pytest.fixture(scope="module")
def bars() -> Bars:
    return gappy_bars(1500, 3, hours=(9, 16))


@pytest.mark.parametrize("name", LEAKY)
def test_a_leaky_feature_is_caught(bars, name):
    with pytest.raises(LeakError, match=name) as caught:
        build_market(bars, ["log_return", (name, LEAKY[name]), "rsi_14"], 8)
    assert "rsi_14" not in str(caught.value)
    assert "check_leaks=False" in str(caught.value)
    build_market(bars, ["log_return", (name, LEAKY[name])], 8, check_leaks=False)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_feature_passes(bars, name):
    report = check_leaks(bars, [(name, HONEST[name])], {"1m": 8, "15m": 2})
    assert report.findings == ()
    assert report.comparisons > 10


def test_the_features_with_names_pass_with_several_timeframes_and_instruments():
    several = gappy_bars(4500, 1, ("AAA", "BBB"), hours=(9, 16))
    report = check_leaks(several, DEFAULT_FEATURES, {"1m": 32, "5m": 8, "1h": 1}, timeframe="5m", splits={"train": 0.8})
    assert report.passed
    report.raise_if_any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0.03, 1.0), horizon=st.integers(1, 40))
def test_a_leak_on_some_rows_only_is_caught(seed, rate, horizon):
    data = gappy_bars(2000, seed)

    # A hash of the time, so that the same rows leak whichever bars are left.
    def sometimes(series):
        mixed = (series.time // MINUTE).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        draw = (mixed >> np.uint64(32)) / 2**32
        return np.where(draw < rate, ahead(series, horizon), series.close)

    report = check_leaks(data, [sometimes], 4)
    assert [leak.feature for leak in report.findings] == ["sometimes"]


def test_a_leak_in_a_coarse_timeframe_is_caught_there(bars):
    report = check_leaks(bars, {"1m": ["close"], "15m": [("peek", next_close)]}, {"1m": 8, "15m": 2})
    assert [(leak.feature, leak.timeframe, leak.symbol) for leak in report.findings] == [("peek", "15m", "AAA")]
    leak = report.findings[0]
    assert leak.kind == "feature"
    assert leak.time.startswith("2024-03-")
    assert "1 row differs" in leak.detail


def open_time_alignment(window, execution):
    """The classic mistake: a coarse bar is looked up by when it opened."""
    return np.searchsorted(window.series.time, execution.series.time, side="right") - 1


@pytest.mark.parametrize("without_rule", [False, True])
def test_a_coarse_bar_that_is_shown_before_it_closed_is_caught(bars, monkeypatch, without_rule):
    monkeypatch.setattr(stretches, "last_closed_rows", open_time_alignment)
    if without_rule:
        monkeypatch.setattr(leak_check, "_check_closed", lambda *arguments: None)
    with pytest.raises(LeakError, match="window 15m"):
        build_market(bars, ["close"], {"1m": 4, "15m": 2})


def test_an_unfinished_coarse_bar_is_caught(bars, monkeypatch):
    honest = stretches.make_timeline

    def hasty(source, choices, timeframe, until):
        """Keep the last bar although its bin has not ended, and call it closed with its last source bar."""
        if timeframe == choices.source:
            return honest(source, choices, timeframe, until)
        series, _ = stretches.resample(source, timeframe, choices.bars.timezone)
        last = np.append(np.searchsorted(source.time, series.time[1:]), len(source)) - 1
        return stretches.Timeline(series, series.time + MINUTE, last, series.time + MINUTE)

    monkeypatch.setattr(stretches, "make_timeline", hasty)
    monkeypatch.setattr(stretches, "last_closed_rows", open_time_alignment)
    assert not check_leaks(bars, ["close"], {"1m": 4, "15m": 2}).passed


def test_a_scaler_that_is_fitted_on_everything_is_caught(bars, monkeypatch):
    def everything(made, spans, train, index, length):
        return {each.symbols[0]: each.windows[index].values[60:, 0] for each in made}

    monkeypatch.setattr(prepare, "training_rows", everything)
    report = check_leaks(bars, ["rsi_14"], 4)
    assert [(leak.kind, leak.feature) for leak in report.findings] == [("scaler", "rsi_14")]


def test_a_random_feature_is_named_as_such(bars):
    generator = np.random.default_rng(0)
    report = check_leaks(bars, [("noise", lambda s: generator.normal(size=len(s)))], 4)
    assert "noise" in {leak.feature for leak in report.findings}
    assert "at random" in " ".join(leak.detail for leak in report.findings)


def test_a_function_that_refuses_every_cut_cannot_pass(bars):
    def stubborn(series):
        if len(series) < 1500:
            raise ValueError("too few")
        return series.close

    report = check_leaks(bars, [stubborn, ("fine", HONEST["lagged"])], 4)
    assert [(leak.kind, leak.feature) for leak in report.findings] == [("unchecked", "stubborn")]
    assert "stubborn" in report.skipped


def test_the_report_can_be_shown(bars):
    from rich.console import Console

    report = check_leaks(bars, [("peek", next_close)], 4)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(leaks.rich_table(report))
    console.print(leaks.rich_table(check_leaks(bars, ["close"], 4)))
    console.file.close()
    text = console.export_text()
    assert "peek" in text
    assert "No leak found" in text


def test_many_findings_are_counted():
    finding = leaks.Leak("feature", "f", "1m", "A", "differs", 1, 2, "now")
    with pytest.raises(LeakError, match="and 3 more"):
        leaks.LeakReport((finding,) * 11, 1, ()).raise_if_any()


def test_the_check_costs_a_few_builds():
    data = gappy_bars(120_000, 0)
    choices = {"bars": data, "windows": {"1m": 32, "15m": 8}}
    build_market(**choices)
    times = []
    for check in (False, True):
        begin = time.perf_counter()
        build_market(**choices, check_leaks=check)
        times.append(time.perf_counter() - begin)
    # About twice; the slack is for a busy machine.
    assert times[1] < 10 * times[0]
