"""PPO learns to hold the instrument that rises: portfolios whose best is known, judged on bars that it never saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.learn.learners import share_of_optimum
from velodrome.evaluation.play import Policy
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.ppo import PPO
from velodrome.rollout.observation import WindowBank
from velodrome.rollout.worlds import make_worlds
from velodrome.tables.basket import Basket

INSTRUMENTS = 7
TRAINED, TESTED = 20_000, 100_000  # bars
ENVIRONMENT: dict[str, Any] = {"fill": "close"}
# Trades do not move prices and cost nothing, so a decision is judged by the next bar alone.
SETTINGS: dict[str, Any] = {
    "gamma": 0.0, "gae_lambda": 0.0, "rollout_length": 8, "epochs": 4, "minibatches": 4, "learning_rate": 1e-3,
    "schedule": "linear", "normalise_rewards": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def basket() -> Basket:
    train = TRAINED / (TRAINED + TESTED)
    bars = vd.synthetic_bars("factors", TRAINED + TESTED, seed=0, symbols=INSTRUMENTS, volatility=0.01)
    return vd.build_basket(
        bars, features=["log_return"], windows=4,
        splits={"train": train, "test": 1.0 - train}, check_leaks=False,
    )  # fmt: skip


def learned(basket: Basket, network: dict[str, Any], steps: int, **params: Any) -> Policy:
    """Return what PPO learns on the first bars in so many steps."""
    envs = vd.make_vec(
        "portfolio", 512, market=basket, split="train", observation="cursor", threads=1, check_actions=False,
        episode_length=128, start="random", **ENVIRONMENT, **params,
    )  # fmt: skip
    learner = PPO(make_worlds(envs), NetworkConfig(**network), PPOConfig(**SETTINGS), total_steps=steps, seed=0)
    while learner.steps < steps:
        learner.iterate()
    return TrainedPolicy.of(learner.policy, learner.worlds).with_bank(WindowBank(basket.windows))


class EqualWeights:
    """Holds the same of every instrument and no cash."""

    def begin(self, num_envs: int) -> None:
        self.action = np.ones((num_envs, INSTRUMENTS + 1), np.float32)
        self.action[:, -1] = -1.0

    def act(self, observation: Any) -> np.ndarray:
        return self.action

    def forget(self, ended: np.ndarray) -> None:
        """Has nothing to forget."""


@pytest.mark.slow
def test_one_network_for_all_instruments_comes_close_to_the_best_out_of_sample(basket):
    policy = learned(basket, {"kind": "instruments", "hidden": (32, 32)}, 120_000)
    reached = share_of_optimum(policy, basket, **ENVIRONMENT)
    assert reached >= 0.88
    assert reached > share_of_optimum(EqualWeights(), basket, **ENVIRONMENT) + 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "params", "steps", "share"),
    [
        ({"kind": "instruments", "hidden": (32, 32)}, {}, 400_000, 0.93),
        ({"kind": "instruments", "hidden": (32, 32), "head": "dirichlet"}, {"weighting": "simplex"}, 500_000, 0.91),
        ({"kind": "instruments", "hidden": (32, 32)}, {"weighting": "simplex"}, 400_000, 0.89),
        ({"hidden": (64, 64)}, {}, 1_000_000, 0.86),
    ],
    ids=["instruments, softmax", "instruments, dirichlet", "instruments, simplex", "flat, softmax"],
)
def test_portfolios_come_close_to_the_best_out_of_sample(network, params, steps, share, basket):
    policy = learned(basket, network, steps, **params)
    assert share_of_optimum(policy, basket, **ENVIRONMENT, **params) >= share
