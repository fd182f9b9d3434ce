"""Figures of a curve against slow loops, and what they say of degenerate ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from velodrome.evaluation.comparison import WITHOUT_INTERVAL, _resampled
from velodrome.evaluation.intervals import Bootstrap, stationary_orders
from velodrome.evaluation.measures import (
    BY_NAME,
    EPISODE_METRICS,
    METRICS,
    PATH_FIGURES,
    Curve,
    PathMeter,
    bars_per_year,
    deepest_drawdown,
    drawdowns,
    format_figure,
    mean_of_known,
    path_figures,
)
from velodrome.evaluation.result import COMPARED
from velodrome.evaluation.trades import SCHEMA, trade_figures

BAR_FIGURES = ("turnover", "fees", "funding", "exposure", "in_market", "reward", "account_log_return")
DAY = 86_400_000_000_000
PER_YEAR = 252.0


def curve_of(growth: np.ndarray) -> Curve:
    growth = np.asarray(growth, float)
    growth = growth[:, None] if growth.ndim == 1 else growth
    bars = np.zeros((len(growth) - 1, growth.shape[1]))
    return Curve(np.arange(len(growth)) * DAY, growth, dict.fromkeys(BAR_FIGURES, bars + 0.5))


def figures_of(growth: np.ndarray) -> dict[str, float]:
    return dict(zip((*PATH_FIGURES, *BAR_FIGURES), PathMeter(curve_of(growth), PER_YEAR).figures(), strict=True))


def slow_figures(growth: list[float]) -> dict[str, float]:
    """The definitions, in plain loops."""
    returns = [b / a - 1 if a > 0 else 0.0 for a, b in itertools.pairwise(growth)]
    count = len(returns)
    mean = sum(returns) / count
    found = dict.fromkeys(PATH_FIGURES, math.nan)
    found["return"] = growth[-1] / growth[0] - 1
    found["annual_return"] = (growth[-1] / growth[0]) ** (PER_YEAR / count) - 1
    found["mean_log_return"] = math.log(growth[-1] / growth[0]) / count if growth[-1] > 0 else -math.inf
    if count > 1:
        variance = sum((r - mean) ** 2 for r in returns) / (count - 1)
        found["annual_volatility"] = math.sqrt(variance * PER_YEAR)
        if variance > 1e-20 * mean * mean:
            found["sharpe"] = mean / math.sqrt(variance) * math.sqrt(PER_YEAR)
    downside = math.sqrt(sum(min(r, 0.0) ** 2 for r in returns) / count)
    if downside > 0:
        found["sortino"] = mean / downside * math.sqrt(PER_YEAR)
    deepest = longest = under = 0
    for t, value in enumerate(growth):
        peak = max(growth[: t + 1])
        deepest = max(deepest, 1 - value / peak)
        under = under + 1 if value < peak else 0
        longest = max(longest, under)
    found["max_drawdown"], found["longest_under_water"] = deepest, longest
    if deepest > 0:
        found["calmar"] = found["annual_return"] / deepest
    return found


@given(arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats(-0.2, 0.25).map(lambda r: round(r, 3))))
def test_figures_equal_slow_loops(returns):
    growth = np.concatenate([[1.0], np.cumprod(1.0 + returns)])
    found, expected = figures_of(growth), slow_figures(growth.tolist())
    for name in PATH_FIGURES:
        if name == "longest_under_water" and (np.diff(np.sort(growth)) < 1e-12).any():
            continue  # whether a rounded return to the peak counts as a return differs between sums and products
        assert found[name] == pytest.approx(expected[name], rel=1e-7, abs=1e-10, nan_ok=True), name


def test_a_path_that_loses_everything_has_defined_figures():
    found = figures_of(np.array([1.0, 1.1, 0.4, 0.0, 0.0, 0.0]))
    assert found["return"] == -1.0
    assert found["annual_return"] == -1.0
    assert found["max_drawdown"] == 1.0
    assert found["mean_log_return"] == -math.inf
    assert found["longest_under_water"] == 4
    assert found["sharpe"] < 0


def test_a_flat_path_has_no_ratios_and_no_drawdown():
    found = figures_of(np.ones(20))
    assert found["return"] == found["annual_return"] == found["annual_volatility"] == found["max_drawdown"] == 0.0
    assert all(math.isnan(found[name]) for name in ("sharpe", "sortino", "calmar"))


def test_steady_growth_has_no_volatility_and_so_no_sharpe_ratio():
    found = figures_of(1.001 ** np.arange(50))
    assert math.isnan(found["sharpe"])
    assert found["annual_volatility"] == 0.0
    assert found["annual_return"] == pytest.approx(1.001**252 - 1)


def test_one_bar_and_none_are_defined():
    one = figures_of(np.array([1.0, 1.02]))
    assert one["return"] == pytest.approx(0.02)
    assert math.isnan(one["annual_volatility"])
    assert math.isnan(one["sharpe"])
    none = figures_of(np.array([1.0]))
    assert all(math.isnan(none[name]) for name in PATH_FIGURES)


def test_absurd_growth_is_infinite_not_an_error():
    assert figures_of(np.array([1.0, 1e300]))["annual_return"] == math.inf


def test_sums_and_means_of_bars():
    found = figures_of(np.ones(11))
    assert found["turnover"] == pytest.approx(5.0)
    assert found["exposure"] == pytest.approx(0.5)


def test_seeds_are_measured_each_and_averaged():
    rng = np.random.default_rng(0)
    growth = np.cumprod(np.r_[np.ones((1, 3)), 1 + rng.normal(0, 0.01, (30, 3))], axis=0)
    together = figures_of(growth)
    each = [figures_of(growth[:, k]) for k in range(3)]
    for name in PATH_FIGURES:
        assert together[name] == pytest.approx(np.mean([own[name] for own in each])), name


def test_a_figure_that_some_seeds_lack_is_the_mean_of_the_others():
    assert mean_of_known(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()[0] == 2.0
    assert mean_of_known(np.array([[1.0], [np.nan]]))[0] == 1.0
    assert math.isnan(mean_of_known(np.array([[np.nan], [np.nan]]))[0])


@given(arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(0.01, 10.0)))
def test_the_deepest_drawdown_lies_where_it_says(growth):
    found = deepest_drawdown(growth)
    falls = [1 - growth[t] / max(growth[: t + 1]) for t in range(len(growth))]
    assert np.allclose(drawdowns(growth), falls)
    if found is None:
        assert max(falls) == 0
        return
    assert found.depth == pytest.approx(max(falls))
    assert growth[found.begin] == max(growth[: found.trough + 1])
    assert 1 - growth[found.trough] / growth[found.begin] == pytest.approx(found.depth)
    after = growth[found.trough :] >= growth[found.begin]
    assert (found.end is None) == (not after.any())
    if found.end is not None:
        assert growth[found.end] >= growth[found.begin]
        assert (growth[found.trough : found.end] < growth[found.begin]).all()


def test_a_year_counts_the_bars_that_were_observed_not_those_that_a_clock_would_have():
    minute = 60_000_000_000
    session = np.arange(390) * minute
    days = [day for day in range(730) if day % 7 < 5]
    times = np.concatenate([day * DAY + session for day in days])
    assert bars_per_year(times) == pytest.approx(390 * 365.2425 * 5 / 7, rel=0.01)
    assert bars_per_year(np.arange(731) * DAY) == pytest.approx(365.2425)
    assert math.isnan(bars_per_year(np.array([5])))
    assert math.isnan(bars_per_year(np.array([], np.int64)))


def trades_with(profits: list[float]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "symbol": ["A"] * len(profits),
            "seed": [k % 2 for k in range(len(profits))],
            "profit": profits,
            "return": [p / 100 for p in profits],
            "spread_and_slippage": [1.0] * len(profits),
        },
        schema={name: SCHEMA[name] for name in ("symbol", "seed", "profit", "return", "spread_and_slippage")},
    )


def starts_with(*equity: float) -> pl.DataFrame:
    return pl.DataFrame({"symbol": ["A"] * len(equity), "seed": range(len(equity)), "start_equity": equity})


def test_figures_of_trades():
    found = trade_figures(trades_with([10.0, -5.0, 0.0, 20.0]), starts_with(1000.0, 1000.0))
    assert found == pytest.approx(
        {"trades": 2.0, "win_rate": 0.5, "average_trade": 0.0625, "profit_factor": 6.0, "spread_and_slippage": 0.002}
    )
    assert trade_figures(trades_with([1.0]), starts_with(1.0))["profit_factor"] == math.inf
    none = trade_figures(trades_with([]), starts_with(1.0))
    assert none["trades"] == 0
    assert math.isnan(none["win_rate"])
    assert math.isnan(none["profit_factor"])


def test_what_spread_takes_is_a_share_of_what_each_account_began_with():
    """Fees are counted like that, and all costs are their sum; what accounts begin with may be drawn."""
    found = trade_figures(trades_with([1.0, 1.0, 1.0]), starts_with(100.0, 1000.0))
    assert found["spread_and_slippage"] == pytest.approx((2 / 100 + 1 / 1000) / 2)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (math.nan, "change", "–"), (None, "ratio", "–"), (math.inf, "ratio", "∞"), (-math.inf, "rate", "−∞"),
        (0.1234, "change", "+12.34%"), (-0.1234, "change", "−12.34%"), (0.0, "change", "0.00%"),
        (5e62, "change", "> 10⁶%"), (12.5, "share", "1,250%"), (-1.5, "ratio", "−1.50"), (1e9, "ratio", "> 10⁶"),
        (1234.0, "count", "1,234"), (2.5, "count", "2.5"), (2.5e-4, "rate", "+0.0250%"), (0.0, "rate", "0%"),
        (-6.739e-5, "rate", "−0.00674%"), (1.234e-9, "rate", "+0.00000012%"), (1.5, "rate", "+150%"),
        (-1.2345e-4, "reward", "−0.000123"), (-1.2345e-4, "number", "−0.0001234"),
        (12.0, "times", "12.0 ×"), (475.25, "number", "475.2"), (-1e-6, "change", "−0.00%"),
    ],
)  # fmt: skip
def test_figures_for_people(value, unit, shown):
    assert format_figure(value, unit) == shown


def test_every_metric_is_declared_once_with_a_meaning():
    names = [metric.name for metric in (*METRICS, *EPISODE_METRICS)]
    assert len(names) == len(set(names)) == len(BY_NAME)
    assert set(PATH_FIGURES) <= set(names)
    assert all(metric.meaning and metric.label for metric in METRICS)


def test_resamples_are_measured_as_paths_are_bar_by_bar():
    rng = np.random.default_rng(3)
    steady, ruined = np.exp(np.cumsum(rng.normal(0.0, 0.01, (200, 3)), axis=0)), np.ones((200, 1))
    ruined[120:] = 0.0
    curves = [curve_of(growth) for growth in (steady[:, :1], ruined, steady[:, 1:])]
    for own in curves:
        own.per_bar["account_log_return"] = own.log_returns  # type: ignore[index]
    meters = [PathMeter(own, PER_YEAR) for own in curves]
    drawn = Bootstrap(40, 0.95, 5)
    found = _resampled(meters, 2, 7.5, drawn)
    chosen = np.random.default_rng([drawn.seed, 1])
    for sample, order in enumerate(stationary_orders(199, 7.5, drawn.samples, drawn.seed)):
        for place, meter in enumerate(meters):
            each = np.empty((meter.seeds, len(meter.names)))
            for seed, row in enumerate(each):
                path = meter.returns[seed], meter.logs[seed], meter.extras_of(seed)
                path_figures(*path, order, meter.centre[seed], PER_YEAR, row)
            if meter.seeds > 1:
                each = each[chosen.integers(0, meter.seeds, (meter.seeds,))]
            expected = dict(zip(meter.names, mean_of_known(each) * meter.scale, strict=True))
            for name in COMPARED if place == 2 else set(meter.names) - set(WITHOUT_INTERVAL):
                np.testing.assert_allclose(found[name][place, sample], expected[name], 1e-9, 1e-12, err_msg=name)
