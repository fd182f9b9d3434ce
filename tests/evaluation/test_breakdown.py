"""What a result is made of, each figure against a slow computation of its own."""

from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from rich.console import Console

from tests.evaluation.backtests import backtest
from tests.learn.policies import Momentum, ar1_market, split_market
from tests.learn.portfolios import factors_basket
from tests.oracles.trading_ledger import TradingLedger
from tests.runs.report.report_cases import Drifting
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.breakdown import Replay, market_part, replayed_actions, rolling_sharpe, rolling_window
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.evaluator import evaluator_for, multiplied
from velodrome.evaluation.measures import BY_NAME, Curve, period_begins
from velodrome.evaluation.result import Evaluation

MARKET = ar1_market(timeframe="6h")
BASKET = factors_basket(3000)
FEE = 0.0003
QUICK = {"samples": 40, "random_seeds": 2, "seeds": 1}
HOUR = 3_600_000_000_000


@pytest.fixture(scope="module")
def traded() -> Evaluation:
    return evaluate_policy(Momentum(MARKET), MARKET, "test", {"fee": FEE, "half_spread": 1e-4}, **QUICK)


@pytest.fixture(scope="module")
def shared() -> Evaluation:
    params = {"weighting": "signed", "allow_short": True, "max_gross": 1.5, "buy_fee": 0.0005, "sell_fee": 0.0005}
    return evaluate_policy(Drifting(), BASKET, "test", params, **QUICK)


def growth_of(evaluation: Evaluation, name: str) -> pd.Series:
    """Equity over start equity by time, from the file that an evaluation writes."""
    return pd.Series(evaluation.equity[name].to_numpy(), pd.DatetimeIndex(evaluation.equity["time"].to_numpy()))


@pytest.mark.parametrize("which", ["traded", "shared"])
def test_months_equal_those_of_pandas_and_compound_to_the_whole(which, request):
    found = request.getfixturevalue(which)
    months = found.breakdown["months"]
    assert found.breakdown["benchmark"] == {"traded": "buy_and_hold", "shared": "equal_held"}[which]
    for ours, name in (("agent", "agent"), ("benchmark", found.breakdown["benchmark"])):
        last = growth_of(found, name).resample("ME").last()
        expected = last / last.shift(fill_value=1.0) - 1.0
        assert [row["month"] for row in months] == list(expected.index.strftime("%Y-%m"))
        assert np.allclose([row[ours] for row in months], expected)
    assert math.prod(1 + row["agent"] for row in months) - 1 == pytest.approx(found.row("return").value)


@pytest.mark.parametrize("which", ["traded", "shared"])
def test_falls_equal_a_slow_walk_along_the_curve(which, request):
    found = request.getfixturevalue(which)
    growth = growth_of(found, "agent")
    walked, peak, begin, fall = [], growth.iloc[0], growth.index[0], None
    for moment, value in growth.items():
        if value >= peak:
            if fall:
                walked.append((*fall, moment))
            peak, begin, fall = value, moment, None
        elif fall is None or 1 - value / peak > fall[0]:
            fall = (1 - value / peak, begin, moment)
    if fall:
        walked.append((*fall, None))
    walked.sort(key=lambda own: -own[0])
    place = {moment: row for row, moment in enumerate(growth.index)}
    assert len(walked) >= 3
    for ours, (depth, start, trough, end) in zip(found.breakdown["falls"], walked, strict=False):
        assert ours["depth"] == pytest.approx(depth)
        assert (ours["begin"], ours["trough"]) == (str(start), str(trough))
        assert ours["end"] == (None if end is None else str(end))
        assert ours["bars"] == (place[end] if end is not None else len(growth) - 1) - place[start]
        assert ours["bars_down"] == place[trough] - place[start]
    assert found.breakdown["falls"][0]["depth"] == pytest.approx(found.information["drawdown"]["depth"])
    assert len(found.breakdown["falls"]) == min(len(walked), 10)


def test_the_rolling_sharpe_ratio_equals_that_of_pandas(traded):
    about, per_year = traded.breakdown["rolling_sharpe"], traded.information["bars_per_year"]
    window = about["bars"]
    assert window == round(per_year / 52) == 28
    rolling = growth_of(traded, "agent").pct_change().iloc[1:].rolling(window)
    expected = (rolling.mean() / rolling.std() * math.sqrt(per_year)).dropna()
    returns = growth_of(traded, "agent").pct_change().to_numpy()[1:, None]
    assert np.allclose(rolling_sharpe(returns, window, per_year), expected)
    named = {"lowest": expected.min(), "median": expected.median(), "highest": expected.max()}
    named |= {"last": expected.iloc[-1], "below_zero": (expected < 0).mean()}
    assert {name: about[name] for name in named} == pytest.approx(named)


def test_a_window_without_movement_has_no_ratio_and_a_short_split_no_window():
    returns = np.r_[np.zeros(30), np.random.default_rng(0).normal(size=30)][:, None] * 0.01
    found = rolling_sharpe(returns, 20, 252.0)
    assert np.isnan(found[:11]).all()
    assert not np.isnan(found[11:]).any()
    assert rolling_window(79, 252.0) is None
    assert rolling_window(80, 252.0) == 20
    assert rolling_window(2000, 252.0) == 252
    assert rolling_window(600, 252.0) == 126


def test_beta_correlation_and_alpha_equal_a_regression_of_numpys(traded):
    own, market = (growth_of(traded, name).pct_change().to_numpy()[1:] for name in ("agent", "buy_and_hold"))
    slope, start = np.polyfit(market, own, 1)
    assert traded.row("beta").value == pytest.approx(slope)
    assert traded.row("correlation").value == pytest.approx(np.corrcoef(own, market)[0, 1])
    assert traded.row("alpha").value == pytest.approx(start * traded.information["bars_per_year"])
    assert traded.row("beta").baselines["buy_and_hold"] == pytest.approx(1.0)
    assert traded.row("correlation").baselines["buy_and_hold"] == pytest.approx(1.0)
    assert traded.row("beta").baselines["always_flat"] == 0.0
    assert math.isnan(traded.row("correlation").baselines["always_flat"])


def test_the_correlation_of_an_account_with_itself_is_one_and_no_more():
    rng = np.random.default_rng(0)
    for bars in range(3, 60):
        growth = np.exp(np.cumsum(rng.normal(0.0, 0.02, (bars, 1)), axis=0))
        same = Curve(np.arange(bars) * HOUR, growth, {})
        assert abs(market_part(same, same, 1.0, None)["correlation"].value) <= 1.0


def test_their_intervals_are_about_those_of_independent_bars_where_bars_are_independent():
    rng = np.random.default_rng(1)
    market = rng.normal(0.0, 0.01, 2000)
    own = 0.5 * market + rng.normal(0.0, 0.01, 2000) + 1e-4
    curves = [Curve(np.arange(2001), np.cumprod(np.r_[1.0, 1 + r])[:, None], {}) for r in (own, market)]
    found = market_part(*curves, 1.0, 0.95)
    left = own - np.polyval(np.polyfit(market, own, 1), market)
    error = left.std() / market.std() / math.sqrt(2000)
    assert found["beta"].high - found["beta"].value == pytest.approx(1.96 * error, rel=0.2)
    assert found["alpha"].high - found["alpha"].value == pytest.approx(1.96 * left.std() / math.sqrt(2000), rel=0.2)
    rho = np.corrcoef(own, market)[0, 1]
    fisher = [math.tanh(math.atanh(rho) + side * 1.96 / math.sqrt(2000)) for side in (-1, 1)]
    assert [found["correlation"].low, found["correlation"].high] == pytest.approx(fisher, abs=0.01)
    assert found["beta"].low < 0.5 < found["beta"].high


def test_the_price_is_the_benchmark_where_actions_cannot_buy_and_hold():
    found = evaluate_policy(ConstantPolicy(1), MARKET, "test", {"action": "brackets"}, **QUICK)
    assert found.breakdown["benchmark"] == "price"
    price = found.bars["price"].to_numpy()
    own = growth_of(found, "agent").pct_change().to_numpy()[1:]
    assert found.row("beta").value == pytest.approx(np.polyfit(price[1:] / price[:-1] - 1, own, 1)[0])


def test_sides_are_those_of_the_bars(traded, shared):
    units, exposure = (traded.bars[name].to_numpy()[1:] for name in ("units", "exposure"))
    expected = {"long_share": (units > 0).mean(), "short_share": (units < 0).mean()}
    expected |= {"long_exposure": exposure.clip(0).mean(), "short_exposure": (-exposure).clip(0).mean()}
    assert {name: traded.row(name).value for name in expected} == pytest.approx(expected)
    assert expected["long_share"] + expected["short_share"] == pytest.approx(traded.row("in_market").value)
    sides = shared.bars.group_by("time", maintain_order=True).agg(
        long=pl.col("weight").clip(0).sum(), short=(-pl.col("weight")).clip(0).sum()
    )
    assert shared.row("long_exposure").value == pytest.approx(sides["long"][1:].mean())
    assert shared.row("short_exposure").value == pytest.approx(sides["short"][1:].mean()) != 0.0
    assert "long_share" not in shared.metrics


# Costs


def test_cost_levels_equal_the_slow_ledger_that_repeats_the_actions(traded):
    ((low, high),) = MARKET.splits["test"]
    names = [name for name, _ in traded.actions]
    actions = [names.index(action) for action in traded.bars["action"].drop_nulls()]
    levels = traded.breakdown["cost_levels"]
    assert [level["times"] for level in levels] == [0, 1, 2, 4]
    for level in levels:
        times = level["times"]
        ledger = TradingLedger(ohlc=MARKET.ohlc.tolist(), fee=FEE * times, half_spread=1e-4 * times)
        ledger.reset(low, high - 1)
        curve = [ledger.equity]
        for action in actions:
            ledger.step(action)
            curve.append(ledger.equity)
        assert level["return"] == pytest.approx(curve[-1] / 10_000 - 1)
        returns = pd.Series(curve).pct_change().dropna()
        assert level["sharpe"] == pytest.approx(
            returns.mean() / returns.std() * math.sqrt(traded.information["bars_per_year"])
        )
        assert level["max_drawdown"] == pytest.approx((1 - pd.Series(curve) / pd.Series(curve).cummax()).max())
    assert levels[1]["return"] == traded.row("return").value
    assert levels[0]["return"] > levels[1]["return"] > levels[2]["return"] > levels[3]["return"]


@pytest.mark.parametrize(("policy", "data", "params"), [
    (Momentum(ar1_market(1500, symbols=3)), ar1_market(1500, symbols=3), {"fee": FEE, "slippage": 1e-4}),
    (Drifting(), BASKET, {"weighting": "signed", "allow_short": True, "buy_fee": (0.0, 0.001), "slippage": 1e-4}),
])  # fmt: skip
def test_the_same_actions_at_the_same_costs_are_the_same_to_the_bit(policy, data, params):
    first = backtest(policy, data, "test", params, (0, 1))
    again = backtest(Replay(replayed_actions(first.tracks)), data, "test", params, (0, 1))
    for own, other in zip(first.tracks, again.tracks, strict=True):
        assert (own.equity == other.equity).all()
        assert (own.actions == other.actions).all()


def test_cost_levels_of_a_portfolio_are_evaluations_at_those_costs(shared):
    params = {"weighting": "signed", "allow_short": True, "max_gross": 1.5, "buy_fee": 0.001, "sell_fee": 0.001}
    found = evaluate_policy(Drifting(), BASKET, "test", params, **QUICK)  # its actions do not depend on the account
    double = shared.breakdown["cost_levels"][2]
    for name in ("return", "annual_return", "sharpe", "max_drawdown", "turnover"):
        assert double[name] == pytest.approx(found.row(name).value)


def test_an_account_that_ended_is_followed_no_further():
    wild = split_market(instruments=1)
    params = {"leverage": 10.0, "max_drawdown": 0.05, "fee": 0.001}
    found = evaluate_policy(ConstantPolicy(2), wild, "test", params, **QUICK)
    assert any("terminated early" in warning for warning in found.warnings)
    played = int(found.bars["action"].count())
    ((low, _),) = wild.splits["test"]
    ledger = TradingLedger(ohlc=wild.ohlc.tolist(), atr=wild.atr.tolist(), leverage=10.0)
    ledger.reset(low, low + played)
    for _ in range(played):
        ledger.step(2)
    assert found.breakdown["cost_levels"][0]["return"] == pytest.approx(ledger.equity / 10_000 - 1)


def test_costs_of_every_shape_are_multiplied_and_presets_count():
    assert multiplied(0.1, 2.0) == 0.2
    assert multiplied((0.1, 0.2), 2.0) == (0.2, 0.4)
    assert multiplied(((0.0, 0.1), (1e6, 0.05)), 2.0) == ((0.0, 0.2), (1e6, 0.1))
    assert evaluator_for(None, MARKET, "test", {"preset": "intraday"}).at_costs(4.0)["fee"] == 0.004
    assert evaluator_for(None, MARKET, "test", {"funding": 0.001}).at_costs(4.0) is None
    tiers = evaluator_for(None, BASKET, "test", {"fee_tiers": ((0.0, 0.002), (1e6, 0.001))}).at_costs(2.0)
    assert tiers["fee_tiers"] == ((0.0, 0.004), (1e6, 0.002))


def test_a_multiple_that_the_environment_refuses_is_left_out():
    found = evaluate_policy(ConstantPolicy(1), MARKET, "test", {"fee": 0.2}, **QUICK)
    assert [level["times"] for level in found.breakdown["cost_levels"]] == [0, 1, 2]
    with pytest.raises(ConfigError, match="out of range"):
        evaluate_policy(ConstantPolicy(1), MARKET, "test", {"fee": 0.8}, **QUICK)
    assert not evaluate_policy(ConstantPolicy(1), MARKET, "test", {}, **QUICK).breakdown["cost_levels"]


def test_agents_of_several_training_seeds_are_averaged_and_their_distances_widen_the_intervals(traded):
    params = {"fee": FEE, "half_spread": 1e-4}
    policies = [Momentum(MARKET), ConstantPolicy(2), ConstantPolicy(0)]
    alone = [evaluate_policy(policy, MARKET, "test", params, **QUICK) for policy in policies[1:]]
    each = [traded, *alone]
    found = evaluate_policy(policies, MARKET, "test", params, **QUICK)
    for place, level in enumerate(found.breakdown["cost_levels"]):
        assert level["return"] == pytest.approx(np.mean([o.breakdown["cost_levels"][place]["return"] for o in each]))
    betas = [one.row("beta").value for one in each]
    beta = found.row("beta")
    assert beta.value == pytest.approx(np.mean(betas))
    assert beta.high - beta.value > 2 * np.std(betas, ddof=1), "their data hardly matters beside the seeds"
    assert -1.0 <= found.row("correlation").low < found.row("correlation").high <= 1.0
    for own, one in zip(found.seeds, each, strict=True):
        assert own.row("beta").value == one.row("beta").value
        assert own.row("beta").high == one.row("beta").high
    for place, month in enumerate(found.breakdown["months"]):
        assert month["agent"] == pytest.approx(np.mean([one.breakdown["months"][place]["agent"] for one in each]))


# Portfolios: by instrument and period


def test_holdings_are_the_instruments_of_a_portfolio_month_by_month(shared):
    bars = shared.bars.with_columns(month=pl.col("time").dt.truncate("1mo"))
    held = bars.with_columns(held=(pl.col("units") != 0) | (pl.col("units").shift(1).over("symbol").fill_null(0) != 0))
    after = held.filter(pl.col("time") > pl.col("time").min())
    cells = after.group_by("symbol", "month").agg(pl.col("contribution").sum(), pl.col("held").any())
    gains = cells.filter("held")["contribution"].to_numpy()
    assert len(gains) > 40
    assert shared.row("winning_holdings").value == pytest.approx((gains > 0).mean())
    assert shared.row("holdings_profit_factor").value == pytest.approx(gains[gains > 0].sum() / -gains[gains < 0].sum())
    assert gains.sum() == pytest.approx(shared.row("return").value)
    for name in ("winning_holdings", "holdings_profit_factor"):
        row = shared.row(name)
        assert row.low < row.value < row.high
    assert not {"trades", "win_rate", "average_trade", "profit_factor"} & set(shared.metrics), "rebalancing has none"


def test_periods_are_the_longest_of_which_there_are_enough():
    day = np.datetime64("2024-01-01", "ns").astype(np.int64)  # a Monday
    years = day + np.arange(365 * 24) * HOUR
    assert len(period_begins(years)) == 12
    weeks = day + np.arange(13 * 7 * 24) * HOUR
    assert period_begins(weeks).tolist() == [7 * 24 * k for k in range(13)]
    assert len(period_begins(day + np.arange(20 * 24) * HOUR)) == 20
    assert len(period_begins(day + np.arange(30) * HOUR)) == 30


# Where it is told


def test_details_are_in_the_json_and_not_in_the_terminals_table(traded, tmp_path):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(traded.table())
    shown = console.export_text()
    assert "Sharpe ratio" in shown
    for name in ("beta", "correlation", "alpha", "long_share", "short_exposure"):
        assert BY_NAME[name].label not in shown
        assert name in {row["name"] for row in traded.to_dict()["rows"]}
    traded.save(tmp_path)
    assert Evaluation.load(tmp_path, "test").breakdown == traded.to_dict()["breakdown"]
