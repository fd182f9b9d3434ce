"""The portfolio environment inherits the contract, for each kind of action and of weights."""

from __future__ import annotations

import pytest

from tests.baskets import small_basket
from tests.contracts.environment import EnvironmentContract
from velodrome.envs.portfolio.world import portfolio_world

BASKET = small_basket()


class TestSoftmaxWeights(EnvironmentContract):
    def world(self):
        return portfolio_world(BASKET, buy_fee=1e-3, sell_fee=2e-3, episode_length=15)

    # Compiles a loop of its own; the benchmark's, which has one anyway, shows the same of it.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()


class TestSignedWeightsWithRanges(EnvironmentContract):
    def world(self):
        return portfolio_world(
            BASKET, weighting="signed", allow_short=True, max_gross=(0.5, 2.0), buy_fee=(0.0, 0.01), slippage=1e-3,
            half_spread=1e-4, initial_cash=(100.0, 1e5), funding=1e-4, reward="blend", episode_length=(5, 20),
            trailing_stop=0.05, evenness_bonus=0.1, concentration_penalty=0.1,
        )  # fmt: skip

    # As above, and drawn parameters are no constants.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()


class TestOrders(EnvironmentContract):
    def world(self):
        return portfolio_world(
            BASKET, preset="crypto", min_quantity=(0.01, 0.1, 1.0), lot={"S0": 0.0, "S1": 0.5, "S2": 1.0},
            cash_reserve=0.1, max_weight=0.4, max_holding=3, episode_length=20, order_scale=3.0,
        )  # fmt: skip

    # As above.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()


def reward_against_the_benchmark(old, new):
    return (new.equity - old.equity) / new.peak - (new.benchmark - old.benchmark) / new.initial - 0.1 * new.turnover


class TestDiscreteWithOwnReward(EnvironmentContract):
    def world(self):
        return portfolio_world(
            BASKET, action="discrete", reward=reward_against_the_benchmark, fill="close", trade_fraction=0.3,
            fee_tiers=((0.0, 0.003), (20_000.0, 0.001)), episode_length=15, start="sequential", allow_short=True,
            final_discount=0.9,
        )  # fmt: skip

    # As above.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()
