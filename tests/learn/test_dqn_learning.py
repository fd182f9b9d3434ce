"""What DQN learns: markets whose optimum is known, and CartPole."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest

from tests.learn.learners import foreign_worlds, learnable_market, share_of_optimum, trading_worlds
from velodrome.evaluation.play import play_episodes
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import DQNConfig, NetworkConfig
from velodrome.learn.dqn import DQN

# Among the account values is the number of bars for which a position was held, hence the normalisation.
MARKET = {"gamma": 0.5, "schedule": "linear", "batch_size": 4096, "updates": 4, "buffer_size": 500_000,
          "normalise_observations": True}  # fmt: skip
CARTPOLE = {
    "gamma": 0.98, "n_step": 5, "learning_rate": 2e-3, "schedule": "linear", "max_gradient_norm": 10.0,
    "rollout_length": 16, "updates": 32, "batch_size": 256, "buffer_size": 100_000, "learning_starts": 1000,
    "target_every": 100, "epsilon_fraction": 0.4, "normalise_observations": True,
}  # fmt: skip


def learned(worlds, steps, seed, hidden, config):
    learner = DQN(
        worlds, NetworkConfig(hidden=hidden, activation="relu"), DQNConfig(**config), total_steps=steps, seed=seed
    )
    while learner.steps < steps:
        learner.iterate()
    return TrainedPolicy.of(learner.policy, worlds, learner.moments)


def market_share(kind, steps, seed, **config):
    market = learnable_market(kind, seed=0)
    worlds = trading_worlds(256, seed, market, split="train", episode_length=256, leverage=1.0)
    return share_of_optimum(learned(worlds, steps, seed, (64, 64), {**MARKET, **config}), market)


def test_most_of_the_optimum_is_found_in_seconds():
    assert market_share("ar1", 150_000, 0, gamma=0.0, batch_size=1024, buffer_size=150_000) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["ar1", "ou"])
def test_nine_tenths_of_the_optimum_are_found_out_of_sample(kind, seed):
    assert market_share(kind, 1_000_000, seed) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_learned(seed):
    make = partial(gymnasium.make, "CartPole-v1")
    policy = learned(foreign_worlds(make, 16), 80_000, seed, (128, 128), CARTPOLE)
    assert play_episodes(policy, foreign_worlds(make, 20).envs, 40, seed=100).returns.mean() >= 400.0


@pytest.mark.slow
def test_cartpole_is_learned_from_prioritised_replay():
    make = partial(gymnasium.make, "CartPole-v1")
    policy = learned(foreign_worlds(make, 16), 80_000, 0, (128, 128), {**CARTPOLE, "prioritised": True})
    assert play_episodes(policy, foreign_worlds(make, 20).envs, 40, seed=100).returns.mean() >= 400.0
