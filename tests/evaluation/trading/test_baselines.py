"""Baselines in every kind of action space, and what is said where a space cannot express one."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import polars as pl
import pytest

from tests.evaluation.backtests import backtest
from tests.learn.policies import split_market
from velodrome.envs.trading.config import trading_config
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import BUY_AND_HOLD, FLAT, FORECAST, RANDOM, Baseline, Memoryless, RandomPolicy
from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.trading.baselines import _cost
from velodrome.evaluation.trading.baselines import baselines as trading_baselines
from velodrome.evaluation.trading.trades import round_trips

MARKET = split_market(instruments=1)


def baselines(**params):
    world = trading_world(MARKET, **params)
    config = trading_config(**params)
    found = {own.name: own for own in trading_baselines(config, world.action_space, [Part(MARKET, "test")], 3)}
    assert list(found) == [FORECAST, BUY_AND_HOLD, FLAT, RANDOM]
    return found


@pytest.mark.parametrize("params", [{}, {"levels": (1.0, 0.5, 0.0)}, {"action": "continuous"}, {"levels": (0.0, 0.4)}])
def test_buy_and_hold_buys_once_and_keeps(params):
    own = baselines(**params)[BUY_AND_HOLD]
    track = backtest(own.policy, MARKET, "test", params).tracks[0]
    level = max(params.get("levels", (1.0,)))
    expected = level * track.price[1:] / MARKET.ohlc[track.first_row + 1, 0] + 1.0 - level
    assert np.allclose(track.equity[1:, 0] / track.equity[0, 0], expected, rtol=2e-2 if level < 1 else 1e-9)
    assert (track.units[1:, 0] > 0).all()


@pytest.mark.parametrize(
    "params",
    [
        {}, {"levels": (0.0, 1.0)}, {"action": "continuous"}, {"action": "brackets"},
        {"action": "brackets", "include_hold": False}, {"levels": (-1.0, 1.0), "allow_short": False},
    ],
)  # fmt: skip
def test_always_flat_never_trades(params):
    own = baselines(**params)[FLAT]
    track = backtest(own.policy, MARKET, "test", {**params, "fee": 0.01}).tracks[0]
    assert (track.units == 0.0).all()
    assert (track.equity == track.equity[0]).all()


def test_what_the_actions_cannot_express_is_said_and_not_faked():
    brackets = baselines(action="brackets")[BUY_AND_HOLD]
    assert brackets.policy is None
    assert "stop and a target" in brackets.note
    assert baselines(levels=(-1.0, 0.0))[BUY_AND_HOLD].policy is None
    no_flat = baselines(levels=(-1.0, 1.0))[FLAT]
    assert no_flat.policy is None
    assert "no level 0" in no_flat.note
    assert baselines(action="brackets", include_hold=False, include_close=False)[FLAT].policy is None


class InAndOut(Memoryless):
    """Buys in one bar and sells in the next."""

    def begin(self, num_envs):
        self.actions, self.bar = np.ones(num_envs, np.int64), 0

    def act(self, observation):
        self.bar += 1
        return (1 + self.bar % 2) * self.actions


@pytest.mark.parametrize(
    "params",
    [{"slippage_atr": 0.5}, {"slippage": 0.01}, {"fee": 0.002, "half_spread": 0.001, "slippage_atr": 0.2}],
    ids=["by range", "drawn", "all"],
)
def test_the_forecaster_reckons_with_the_costs_that_the_rule_charges(params):
    # The second instrument moves four times as much as the first, so that one of them alone tells a wrong cost.
    market = split_market(instruments=2)
    rows, later = np.arange(len(market)), np.arange(len(market)) >= len(market) // 2
    market = replace(market, atr=market.ohlc[:, 3] * 0.002 * np.where(later, 4.0, 1.0) * (1.0 + rows % 7 / 10))
    params = {"fee": 0.0, **params}
    trades = round_trips(backtest(InAndOut(), market, "train", params, seeds=range(8)))
    trades = trades.filter(pl.col("reason") == "order")  # what is open at the end has paid for its entry alone
    assert len(trades) > 500
    turned_over = trades["units"] * (trades["entry_price"] + trades["exit_price"])
    charged = ((trades["fees"] + trades["spread_and_slippage"]) / turned_over).mean()
    assert _cost(trading_config(**params), market) == pytest.approx(charged, rel=0.02)


def test_leverage_is_named():
    assert "leverage of 3.0" in baselines(leverage=3.0)[BUY_AND_HOLD].note


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(3, start=-1), gymnasium.spaces.MultiDiscrete([2, 5]),
        gymnasium.spaces.Box(-1.0, 2.0, (1,), np.float32), gymnasium.spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    ],
    ids=str,
)  # fmt: skip
def test_random_actions_fill_their_space_and_repeat_with_their_seed(space):
    policy = RandomPolicy(space, seed=5)
    policy.begin(200)
    first = np.array([policy.act(None) for _ in range(5)])
    assert all(space.contains(action) for action in first.reshape(1000, *space.shape)[:100])
    assert first.std(axis=(0, 1)).min() > 0.2
    policy.begin(200)
    assert np.array_equal(first[0], policy.act(None))
    other = RandomPolicy(space, seed=6)
    other.begin(200)
    assert not np.array_equal(first[0], other.act(None))


def test_a_space_that_is_no_choice_and_no_box_has_no_random_actions():
    with pytest.raises(ConfigError, match="Discrete, MultiDiscrete or Box"):
        RandomPolicy(gymnasium.spaces.MultiBinary(3))


def test_a_baseline_has_a_name_that_every_chart_knows():
    with pytest.raises(ConfigError, match=r"no baseline is called 'buy_and_holt'.*Did you mean 'buy_and_hold'\?"):
        Baseline("buy_and_holt", None, "")
