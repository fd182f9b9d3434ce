"""A split in several pieces is one account: it compounds, is invested throughout, and its trades add up to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import velodrome as vd
from tests.evaluation.backtests import backtest
from tests.runs.report.report_cases import INFORMATION, training_metrics
from velodrome.evaluation.baselines import ConstantPolicy, Memoryless
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.evaluator import evaluator_for
from velodrome.evaluation.measures import PathMeter, curve
from velodrome.evaluation.portfolio.account import contributions, pieces_of
from velodrome.evaluation.trades import SCHEMA
from velodrome.evaluation.validation import FIGURES, validate
from velodrome.runs.report.portfolio_charts import by_bar
from velodrome.runs.report.report import write_report

LONG, FLAT, SHORT = 2, 1, 0
QUICK = {"samples": 20, "random_seeds": 1}
COSTS = {"fee": 0.002, "half_spread": 0.001}
PORTFOLIO_COSTS = {"buy_fee": 0.002, "sell_fee": 0.002, "half_spread": 0.001, "action": "weights"}
PIECES = (600, 800), (950, 1190)
DAY = 86_400_000_000_000


def dates(bars, *edges: tuple[int, int]) -> list[tuple[str, str]]:
    time = bars[bars.symbols[0]].time.astype("datetime64[ns]")
    return [(str(time[low]), str(time[high])) for low, high in edges]


def market_of(*pieces: tuple[int, int], symbols=("A", "B")):
    bars = vd.synthetic_bars("gbm", 1200, seed=4, symbols=list(symbols))
    splits = {"train": dates(bars, (0, 600))[0], "test": dates(bars, *pieces)}
    return vd.build_market(bars, features=["log_return"], windows=4, splits=splits, check_leaks=False)


def basket_of(*pieces: tuple[int, int]):
    bars = vd.synthetic_bars("gbm", 900, seed=4, symbols=["A", "B"])
    splits = {"train": dates(bars, (0, 500))[0], "test": dates(bars, *pieces)}
    return vd.build_basket(bars, features=["log_return"], windows=4, splits=splits, check_leaks=False)


class Restless(Memoryless):
    """Changes its mind every few bars, by the bar alone."""

    def __init__(self, market) -> None:
        rng = np.random.default_rng(3)
        self.sides = np.repeat(rng.integers(0, 3, len(market) // 5 + 1), 5)

    def act(self, observation):
        return self.sides[np.asarray(observation["cursor"])]


class Shifting(Restless):
    """Shifts the weights of two instruments every few bars."""

    def act(self, observation):
        side = super().act(observation)[:, None]
        return np.where(side == np.arange(3), 0.9, -0.3).astype(np.float32)


@pytest.fixture(scope="module")
def market():
    return market_of(*PIECES)


@pytest.fixture(scope="module")
def basket():
    return basket_of((500, 620), (700, 880))


def test_what_is_always_invested_compounds_and_is_so_throughout(market):
    found = evaluate_policy(ConstantPolicy(LONG), market, "test", {}, **QUICK)
    grown = np.array([market.ohlc[high - 1, 3] / market.ohlc[low + 1, 0] for low, high in market.splits["test"]])
    assert found.metrics["return"] == pytest.approx(grown.reshape(2, 2).prod(axis=1).mean() - 1.0)
    assert found.metrics["in_market"] == found.metrics["long_share"] == 1.0
    assert found.metrics["exposure"] == pytest.approx(1.0)
    assert found.information["bars"] == 200 + 240 - 2
    alone = [evaluate_policy(ConstantPolicy(LONG), market_of(piece), "test", {}, **QUICK) for piece in PIECES]
    volatilities = [own.metrics["annual_volatility"] for own in alone]
    assert min(volatilities) < found.metrics["annual_volatility"] < max(volatilities)
    assert found.metrics["max_drawdown"] >= max(own.metrics["max_drawdown"] for own in alone) / 2
    assert found.information["years"] == pytest.approx(sum(own.information["years"] for own in alone))
    assert any(note.startswith("the split has 2 pieces") for note in found.notes)


@pytest.mark.parametrize("which", ["market", "basket"])
def test_evaluation_and_validation_agree(which, request):
    data = request.getfixturevalue(which)
    env, params = ("trading", COSTS) if which == "market" else ("portfolio", PORTFOLIO_COSTS)
    policy = Restless(data) if which == "market" else Shifting(data)
    told = validate(policy, env, data, "test", params, pieces=len(data.splits["test"]))
    found = evaluate_policy(policy, data, "test", params, **QUICK).metrics
    assert set(told) == set(FIGURES) - {"of_optimum"}
    assert told == pytest.approx({name: found[name] for name in told}, rel=1e-9)


def test_neighbouring_pieces_are_the_whole_but_for_the_cut():
    whole, cut = (
        evaluator_for("trading", data, "test", {}).play("agent", ConstantPolicy(LONG), (0,), 1, None).curve
        for data in (market_of((600, 1100), symbols="A"), market_of((600, 800), (800, 1100), symbols="A"))
    )
    # The bar from one piece to the next is missing, and the first bar of a piece begins at its open.
    kept = ~np.isin(whole.time[1:], whole.time[200])
    assert np.array_equal(cut.time[1:], whole.time[1:][kept])
    apart = np.flatnonzero(~np.isclose(cut.log_returns[:, 0], whole.log_returns[kept, 0], rtol=1e-9, atol=1e-13))
    assert set(apart.tolist()) <= {199}


@pytest.mark.parametrize("which", ["market", "basket"])
def test_trades_costs_and_bars_add_up_to_the_account(which, request):
    data = request.getfixturevalue(which)
    params = COSTS if which == "market" else PORTFOLIO_COSTS
    policy = Restless(data) if which == "market" else Shifting(data)
    evaluator = evaluator_for(None, data, "test", params)
    played = evaluator.play("agent", policy, (0,), 1, None)
    starts = [pieces[0].equity[0, 0] for pieces in played.backtest.accounts]
    for (first, second), start in zip(played.backtest.accounts, starts, strict=True):
        assert second.equity[0, 0] == pytest.approx(first.equity[-1, 0])
        own = played.trades if which == "basket" else played.trades.filter(pl.col("symbol") == first.symbol)
        assert own["profit"].sum() == pytest.approx(second.equity[-1, 0] - start)
    found = dict(zip((meter := PathMeter(played.curve, 252.0)).names, meter.figures(), strict=True))
    assert found["fees"] == pytest.approx(played.trades["fees"].sum() / sum(starts))
    spread = played.figures if which == "market" else found
    assert spread["spread_and_slippage"] == pytest.approx(played.trades["spread_and_slippage"].sum() / sum(starts))
    bars = evaluator.bars(played)
    last = bars.group_by("symbol", maintain_order=True).last()["equity"]
    assert last.mean() / np.mean(starts) == pytest.approx(played.curve.growth[-1, 0])


def test_what_instruments_contribute_adds_up_to_the_return(basket):
    played = backtest(Shifting(basket), basket, "test", PORTFOLIO_COSTS, seeds=(0, 1))
    pieces = pieces_of(played)
    total = pieces[-1].equity[-1].mean() / pieces[0].equity[0, 0] - 1.0
    assert sum(row["contribution"] for row in contributions(pieces)) == pytest.approx(total)
    assert pieces[0].equity[-1, 0] != pytest.approx(pieces[0].equity[0, 0], rel=1e-3)


@pytest.mark.parametrize("which", ["market", "basket"])
def test_intervals_baselines_costs_and_the_report_are_made_of_it(which, request, tmp_path):
    data = request.getfixturevalue(which)
    params = COSTS if which == "market" else PORTFOLIO_COSTS
    policy = Restless(data) if which == "market" else Shifting(data)
    found = evaluate_policy(policy, data, "test", params, **QUICK)
    row = found.row("return")
    assert row.low < row.value < row.high
    held = "buy_and_hold" if which == "market" else "equal_held"
    assert row.baselines[held] == pytest.approx(found.equity[held][-1] - 1.0)
    assert found.breakdown["benchmark"] == held
    (same,) = (level for level in found.breakdown["cost_levels"] if level["times"] == 1.0)
    assert same["return"] == pytest.approx(row.value)
    page = write_report(found, tmp_path / "report.html", "pieces", INFORMATION, training_metrics())
    assert "the split has 2 pieces" in page.read_text(encoding="utf-8")
    assert found.trades.columns == list(SCHEMA)
    if which == "basket":
        time, symbols, weights = by_bar(found, "weight")
        assert weights.shape == (len(time), len(symbols)) == (120 + 180, 2)
        assert time.is_sorted()


def test_baskets_that_are_held_are_bought_in_every_piece(basket):
    evaluator = evaluator_for(None, basket, "test", PORTFOLIO_COSTS)
    agent = evaluator.play("agent", Shifting(basket), (0,), 1, None)
    for baseline in evaluator.baselines(agent, 0):
        if baseline.name in ("equal_held", "best_single"):
            for piece in evaluator.backtest(baseline.policy, (0,), 1, None, baseline.params).tracks:
                assert (piece.units[2:, :, 0] != 0.0).sum() >= len(piece.units) - 2


def test_nothing_is_done_once_nothing_is_left():
    basket = basket_of((500, 620), (700, 880))
    factor = np.where(np.arange(len(basket)) >= 520, 20.0, 1.0)[:, None]  # shorts are ruined within the first piece
    ruinous = replace(basket, open=basket.open * factor, close=basket.close * factor)
    params = {**PORTFOLIO_COSTS, "weighting": "signed", "allow_short": True}
    short = ConstantPolicy(np.array([-0.5, 0.0], np.float32))
    played = evaluator_for(None, ruinous, "test", params).play("agent", short, (0,), 1, None)
    first, second = pieces_of(played.backtest)
    assert first.equity[-1, 0] == 0.0 < first.owed[0]
    assert second.bars[0] == 0
    assert not any(values.any() for values in (second.equity, second.units, second.rewards, second.flows.net))
    assert played.trades["profit"].sum() == pytest.approx(-first.equity[0, 0] - first.owed[0])
    found = evaluate_policy(short, ruinous, "test", params, **QUICK)
    assert found.metrics["return"] == -1.0
    assert found.metrics["turnover"] == pytest.approx(first.change("turnover").sum())
    told = validate(short, "portfolio", ruinous, "test", params, pieces=2)
    assert told["return"] == -1.0
    assert np.isfinite(told["mean_log_return"])


def test_the_price_as_a_benchmark_leaves_out_what_lies_between_pieces(market):
    found = evaluate_policy(ConstantPolicy(0), market, "test", {"action": "brackets"}, **QUICK)
    assert found.breakdown["benchmark"] == "price"
    months = np.prod([1.0 + month["benchmark"] for month in found.breakdown["months"]])
    close = market.ohlc[:, 3]
    grown = np.array([close[high - 1] / close[low] for low, high in market.splits["test"]])
    assert months == pytest.approx(grown.reshape(2, 2).prod(axis=1).mean())


def test_means_are_over_the_bars_of_each_account():
    """Accounts with other calendars: each earns the same in every bar of its own."""
    every = np.arange(701) * DAY
    accounts = [
        SimpleNamespace(symbol=name, time=time, equity=np.exp(0.001 * np.arange(len(time)))[:, None])
        for name, time in (("daily", every), ("weekdays", every[np.arange(701) % 7 < 5]))
    ]
    bars = [np.full((len(account.time) - 1, 1), 0.001) for account in accounts]
    names = ("reward", "account_log_return", "fees")
    measured = curve(accounts, [dict.fromkeys(names, own) for own in bars])
    meter = PathMeter(measured, 365.0)
    found = dict(zip(meter.names, meter.figures(), strict=True))
    assert found["reward"] == found["account_log_return"] == pytest.approx(0.001)
    assert found["fees"] == pytest.approx(0.001 * np.mean([len(own) for own in bars]))


def test_who_has_no_bars_yet_or_any_more_holds_nothing():
    """As its trades say: what is open at an account's last bar ends there."""
    every = np.arange(11) * DAY
    times = {"whole": every, "late": every[5:], "early": every[:6]}
    accounts = [SimpleNamespace(symbol=name, time=time, equity=np.ones((len(time), 1))) for name, time in times.items()]
    measured = curve(accounts, [{"in_market": np.ones((len(account.time) - 1, 1))} for account in accounts])
    assert measured.per_bar["in_market"][:, 0] == pytest.approx([2 / 3] * 10)
