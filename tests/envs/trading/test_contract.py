"""The trading environment inherits the contract, once for each kind of action."""

from __future__ import annotations

import pytest

from tests.contracts.environment import EnvironmentContract
from tests.markets import small_market
from velodrome.envs.trading.world import trading_world


class TestLevels(EnvironmentContract):
    def world(self):
        return trading_world(small_market(instruments=2), fee=1e-3, episode_length=15)


class TestContinuousWithRanges(EnvironmentContract):
    def world(self):
        return trading_world(
            small_market(instruments=2), action="continuous", fee=(0.0, 0.01), leverage=(1.0, 20.0), slippage=1e-3,
            half_spread=1e-4, initial_cash=(100.0, 1e5), funding=1e-4, cooldown=(0, 2), episode_length=(5, 20),
        )  # fmt: skip

    # Compiles a loop of its own; drawn parameters are no constants, and levels and brackets show the others.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()


class TestBrackets(EnvironmentContract):
    def world(self):
        return trading_world(
            small_market(), action="brackets", leverage=10.0, fee=5e-4, episode_length=20, start="sequential",
            reward="differential_sharpe", flat_at_session_end=True,
        )  # fmt: skip


def reward_with_a_memory_of_the_peak(old, new):
    return (new.equity - old.equity) / new.peak - 0.1 * new.turnover


class TestOwnReward(EnvironmentContract):
    def world(self):
        return trading_world(small_market(), reward=reward_with_a_memory_of_the_peak, fee=1e-3, episode_length=15)

    # Compiles a loop of its own; the levels above show it of the same rule.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()
