"""The forecaster on markets whose optimum is known, and that it never sees what it is judged on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import velodrome as vd
from tests.evaluation.backtests import backtest
from velodrome.envs.trading.config import trading_config
from velodrome.evaluation.baselines import FORECAST
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.forecast import inputs as shown
from velodrome.evaluation.forecast import regression
from velodrome.evaluation.forecast.forecast import Fitted, Part, fill_gains, rows_that_help
from velodrome.evaluation.forecast.inputs import Inputs, lag_choices
from velodrome.evaluation.trading.baselines import forecaster as trading_forecaster
from velodrome.tables.windows import no_windows, window_at

MARKET = vd.build_market(vd.synthetic_bars("ar1", 6_000, seed=1), windows=8, check_leaks=False)


def forecaster(market=MARKET, split="test", **params):
    return trading_forecaster(trading_config(**params), [Part(market, split)])


def share_of_optimum(policy, market, params=None):
    track = backtest(policy, market, "test", params or {}).tracks[0]
    return float(np.log(track.equity[-1, 0] / track.equity[0, 0])) / (len(track.time) - 1) / market.optimum


def test_what_it_sees_is_what_the_windows_show():
    rows = np.array([500, 77, 4000])
    x = Inputs(MARKET).observed(rows, 3)
    for place, row in enumerate(rows):
        assert np.array_equal(x[place].reshape(3, -1), window_at(MARKET.windows, 0, row)[-3:][::-1])
    assert [lag_choices(most) for most in (1, 6, 8)] == [[1], [1, 2, 4, 6], [1, 2, 4, 8]]
    assert [len(own.places) for own in Inputs(MARKET).choices(8)[0]] == [8, 16, 32, 64]


def test_means_over_the_latest_rows_stand_beside_them():
    rows, inputs = np.array([500, 77, 4000]), Inputs(MARKET, means=True)
    x = inputs.observed(rows, 6)
    means, single = inputs.choices(6)
    assert [(own.lags, own.means) for own in means] == [(1, False), (2, True), (4, True), (6, True)]
    assert [(own.lags, own.means) for own in single] == [(2, False), (4, False), (6, False)]
    for place, row in enumerate(rows):
        window = window_at(MARKET.windows, 0, row)[::-1]
        for own in [*means, *single]:
            spans = [span for span in (1, 2, 4, 6) if span <= own.lags]
            wanted = [window[:span].mean(axis=0) for span in spans] if own.means else window[: own.lags]
            assert np.allclose(x[place, own.places].reshape(len(wanted), -1), wanted, atol=1e-6)


def test_several_windows_and_several_instruments_have_means_of_their_own():
    bars = vd.synthetic_bars("factors", 400, symbols=3, seed=2)
    basket = vd.build_basket(bars, ["log_return"], {"1m": 8, "5m": 3}, check_leaks=False)
    rows, inputs = np.array([300, 333]), Inputs(basket, 3, means=True)
    x = inputs.observed(rows, 8).reshape(2, 3, -1)
    last = inputs.choices(8)[0][-1]
    minutes, more = (window_at(basket.windows, w, 333)[::-1] for w in (0, 1))
    wanted = [minutes[0], more[0], minutes[:2].mean(0), more[:2].mean(0), more[:3].mean(0), minutes[:4].mean(0)]
    assert np.allclose(x[1][:, last.places].T, [*wanted, minutes.mean(0)], atol=1e-6)


@pytest.mark.parametrize("refined", [False, True])
@pytest.mark.parametrize("symbols", [1, 3])
def test_inputs_that_no_table_holds_give_the_same_models(symbols, refined, monkeypatch):
    """Of 20 windows of 32 rows, say, and millions of bars a table would take gigabytes."""
    windows: dict[str, int] = {"1m": 6, "5m": 3}
    bars = vd.synthetic_bars("factors", 700, symbols=3, seed=2)
    if symbols == 1:
        market = vd.build_market(bars, ["log_return", "rsi_14"], windows, check_leaks=False)
    else:
        market = vd.build_basket(bars, ["log_return"], windows, check_leaks=False)
    gains = np.random.default_rng(0).normal(size=(len(market.time), symbols))
    gains[::7] = np.nan  # halts
    rows, found = np.arange(300, 330), []
    for most in (shown.MOST_HELD, 0):
        monkeypatch.setattr(shown, "MOST_HELD", most)
        monkeypatch.setattr(regression, "MOST_KEPT", most)
        fitted = Fitted(market, "train", gains, refined)
        models = [getattr(fitted.regression, kind)() for kind in ("ridge", "logistic")]
        found.append([fitted.regression.mean, fitted.regression.scale, *fitted.regression.known[-1]])
        found[-1] += [values for model in models for values in (model.unseen, fitted.expected(model, rows))]
    for held, gathered in zip(*found, strict=True):
        np.testing.assert_allclose(gathered, held, rtol=1e-9, atol=1e-12)  # added up in another order


def test_a_gain_goes_from_one_fill_to_the_next():
    gains = fill_gains(np.array([1.0, 2.0, 3.0, 5.0, 4.0]), np.array([0, 3]), np.array([3, 5]))
    assert gains[[0, 1, 3]].tolist() == [1.0, 0.5, pytest.approx(-0.2)]
    assert np.isnan(gains[[2, 4]]).all()


@pytest.mark.parametrize("params", [{}, {"action": "continuous"}, {"fill": "close"}])
def test_it_nearly_finds_the_best_on_a_market_where_a_linear_rule_is_best(params):
    own = forecaster(**params)
    assert own.name == FORECAST
    assert "regression of the next return" in own.note
    # With fills at the close the gain of the bar that is forecast is all there is; at the next open most of it.
    assert share_of_optimum(own.policy, MARKET, params) > 0.85


def test_with_costs_above_what_it_can_gain_it_stays_flat():
    own = forecaster(fee=0.01)
    assert own.note.endswith("so it stays flat")
    assert (backtest(own.policy, MARKET, "test", {"fee": 0.01}).tracks[0].units == 0.0).all()


def test_long_only_brackets_and_levels_without_flat_are_played():
    for params in ({"allow_short": False}, {"action": "brackets"}, {"levels": (-1.0, 1.0)}):
        track = backtest(forecaster(**params).policy, MARKET, "test", params).tracks[0]
        assert len(np.unique(np.sign(track.units))) > 1
        if not params.get("allow_short", True):
            assert (track.units >= 0.0).all()


def test_the_fit_does_not_know_what_came_after_the_training_split():
    ((begin, end),) = MARKET.splits["train"]
    changed = MARKET.ohlc.copy()
    changed[end:] *= np.random.default_rng(0).uniform(0.5, 2.0, (len(changed) - end, 1))
    other = replace(MARKET, ohlc=changed)
    rows = np.arange(begin, end)

    def said(market):
        gains = fill_gains(np.r_[market.ohlc[1:, 0], np.nan], market.begin, market.end - 1)
        fitted = Fitted(market, "train", gains[:, None])
        return fitted.expected(fitted.regression.ridge(), rows)

    assert np.array_equal(said(MARKET), said(other))


def test_a_market_without_windows_or_enough_to_fit_to_has_no_forecaster():
    short = vd.build_market(vd.synthetic_bars("ar1", 140, seed=0), windows=4, check_leaks=False)
    without = replace(MARKET, windows=no_windows(len(MARKET)), window_names=(), feature_names=())
    for market in (replace(MARKET, splits={"test": MARKET.splits["test"]}), short, without):
        own = forecaster(market)
        assert own.policy is None
        assert "120 bars or more" in own.note


def test_an_agent_that_is_not_ahead_of_it_is_told_so():
    own = forecaster()
    found = evaluate_policy(own.policy, MARKET, "test", {}, seeds=1, random_seeds=1, samples=50)
    assert any("a plain regression may do as well" in warning for warning in found.warnings)
    assert any(note.startswith("forecast: ") for note in found.notes)


def echo(lag, rows=4_000):
    """Return bars whose return repeats a part of the one `lag` bars ago; an order is filled at the next close."""
    rng = np.random.default_rng(lag)
    returns = 1e-3 * rng.standard_normal(rows)
    for row in range(lag, rows):
        returns[row] += 0.4 * returns[row - lag]
    close = 100.0 * np.exp(np.cumsum(returns))
    time = np.datetime64("2024-01-01", "ns") + np.arange(rows) * np.timedelta64(60, "s")
    return vd.read_bars(pl.DataFrame({"time": time, "close": close}))


@pytest.mark.parametrize(("lag", "rows"), [(2, 1), (3, 2), (5, 4), (8, 8)])
def test_as_many_rows_help_as_the_next_return_depends_on(lag, rows):
    market = vd.build_market(echo(lag), ["log_return"], 16, check_leaks=False)
    later = {**market.splits, "train": ((int(market.begin[0]), int(market.begin[0]) + 1_400),)}
    # As many again may seem to help by chance.
    assert {rows_that_help(own) for own in (market, replace(market, splits=later))} <= {rows, 2 * rows}


def test_on_noise_it_stays_flat_whatever_rows_seem_to_help():
    for seed in range(3):
        market = vd.build_market(vd.synthetic_bars("gbm", 2_000, seed=seed), windows=16, check_leaks=False)
        for refined in (False, True):
            own = trading_forecaster(trading_config(fee=2e-4), [Part(market, "test")], refined=refined)
            assert own.note.endswith("so it stays flat")


def test_where_the_drift_lasts_means_are_chosen_and_tell_more():
    states = [(1.5e-4, 8e-4), (-1.5e-4, 1.2e-3)]
    bars = vd.synthetic_bars("regimes", 7_000, seed=0, states=states, persistence=0.98)
    market = vd.build_market(bars, windows=32, check_leaks=False, splits={"train": 0.6, "test": 0.4})
    gains = fill_gains(np.r_[market.ohlc[1:, 0], np.nan], market.begin, market.end - 1)
    rows, told = Part(market, "test").rows[:-2], []
    for refined in (False, True):
        fitted = Fitted(market, "train", gains[:, None], refined)
        assert fitted.chosen.means == refined
        told.append(np.corrcoef(fitted.expected(fitted.regression.ridge(), rows)[:, 0], gains[rows])[0, 1])
    assert told[1] > 1.05 * told[0] > 0.0


def test_what_comes_after_the_training_split_does_not_choose_the_rows():
    market = vd.build_market(echo(5), ["log_return"], 16, check_leaks=False)
    end = market.splits["train"][0][1]
    ohlc, values = market.ohlc.copy(), market.windows.values.copy()
    ohlc[end:] *= np.random.default_rng(0).uniform(0.5, 2.0, (len(ohlc) - end, 1))
    values[market.windows.rows[0, end] :] = 7.0
    assert rows_that_help(replace(market, ohlc=ohlc, windows=market.windows._replace(values=values))) == 4


def test_the_rows_of_a_basket_and_of_nothing():
    basket = vd.build_basket(vd.synthetic_bars("factors", 1_500, symbols=3), windows=4, check_leaks=False)
    assert rows_that_help(basket) in (1, 2, 4)
    assert rows_that_help(replace(MARKET, windows=no_windows(len(MARKET)))) is None
