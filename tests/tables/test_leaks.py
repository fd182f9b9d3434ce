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
from velodrome.tables.leaks import check


def closes(series: Series) -> pl.Series:
    return pl.Series("close", series.close)


def over(series: Series, expression: pl.Expr, bars: int) -> np.ndarray:
    """An expression of the closes within groups of so many minutes."""
    group = pl.Series("group", series.time // (bars * MINUTE))
    volume = pl.Series("volume", series.volume)
    return pl.DataFrame([closes(series), volume, group]).select(expression.over("group")).to_series().to_numpy()


def ahead(series: Series, bars: int) -> np.ndarray:
    """The close so many bars later; the last one where there is none."""
    return series.close[np.minimum(np.arange(len(series)) + bars, len(series) - 1)]


def next_close(series: Series) -> np.ndarray:
    return ahead(series, 1)


LEAKY = {
    "shift": lambda s: closes(s).shift(-1).fill_null(strategy="forward"),
    "next_return": lambda s: np.append(np.diff(s.close), 0.0),
    "centred_mean": lambda s: closes(s).rolling_mean(5, center=True, min_samples=1),
    "whole_sample_z": lambda s: (s.close - s.close.mean()) / s.close.std(),
    "whole_sample_max": lambda s: s.close / s.close.max(),
    "whole_sample_rank": lambda s: closes(s).rank(),
    "future_max": lambda s: closes(s).reverse().rolling_max(10, min_samples=1).reverse(),
    "gradient": lambda s: np.gradient(s.close) if len(s) > 1 else np.zeros(len(s)),
    "backward_mean": lambda s: closes(s).reverse().ewm_mean(span=5).reverse(),
    "wrapped": lambda s: np.roll(s.close, 3),
    "filled_from_behind": lambda s: closes(s).zip_with(pl.Series(s.volume < 400), closes(s).shift(-1)).fill_null(0.0),
    "close_of_the_day": lambda s: over(s, pl.col("close").last(), 24 * 60),
    "high_of_the_day": lambda s: over(s, pl.col("close").max(), 24 * 60),
    "coarse_bar_early": lambda s: over(s, pl.col("close").last(), 15),
    "every_40th_row": lambda s: np.where(np.arange(len(s)) % 40 == 7, next_close(s), s.close),
    "high_volume_only": lambda s: np.where(s.volume > np.exp(8), next_close(s), s.close),
    "far_ahead": lambda s: ahead(s, 200),
    "before_a_gap_only": lambda s: np.where(np.append(np.diff(s.time) > 60 * MINUTE, False), next_close(s), s.close),
    "number_of_bars": lambda s: np.full(len(s), float(len(s))),
    "time_to_the_end": lambda s: (s.time[-1] - s.time) / MINUTE,
    "second_column": lambda s: np.stack([s.close, next_close(s)], axis=1),
}

HONEST = {
    "lagged": lambda s: closes(s).shift(1),
    "rolling": lambda s: closes(s).rolling_mean(20),
    "expanding_max": lambda s: np.maximum.accumulate(s.close),
    "ewm": lambda s: closes(s).ewm_mean(span=10),
    "strided_mean": lambda s: np.append(
        np.full(9, np.nan), np.lib.stride_tricks.sliding_window_view(s.close, 10).mean(1)
    ),
    "running_volume": lambda s: over(s, pl.col("volume").cum_sum(), 24 * 60),
    "two_columns": lambda s: np.stack([s.high / s.close, s.low / s.close], axis=1),
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
    build_market(bars, [(name, HONEST[name])], {"1m": 8, "15m": 2})


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
    assert "rows differ" in leak.detail


def open_time_alignment(window, execution):
    """The classic mistake: a coarse bar is looked up by when it opened."""
    return np.searchsorted(window.series.time, execution.series.time, side="right") - 1


@pytest.mark.parametrize("without_rule", [False, True])
def test_a_coarse_bar_that_is_shown_before_it_closed_is_caught(bars, monkeypatch, without_rule):
    monkeypatch.setattr(stretches, "last_closed_rows", open_time_alignment)
    if without_rule:
        monkeypatch.setattr(check, "_check_closed", lambda *arguments: None)
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


def test_rounding_is_told_apart(bars):
    report = check_leaks(bars, [("mean", lambda s: s.close * (1 + 1e-13 * len(s)))], 4)
    assert "it is rounding" in report.findings[0].detail


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
