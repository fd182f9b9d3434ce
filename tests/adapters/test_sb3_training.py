"""Stable-Baselines3 trains on our environments, logs our returns, and bootstraps where an episode was cut off."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

import velodrome as vd
from tests.adapters.scripted_env import ScriptedEnv
from tests.markets import small_market
from velodrome.adapters.sb3 import to_sb3

MARKET = small_market()
trading = partial(vd.make_vec, "trading", 4, market=MARKET, seed=0, episode_length=(6, 12))

ENVIRONMENTS = {
    "trading": trading,
    "trading, dict": partial(trading, observation="dict"),
    "trading, continuous": partial(trading, action="continuous"),
    "cartpole, serial": partial(vd.make_vec, "CartPole-v1", 4, backend="serial", seed=0),
    "cartpole, process": partial(vd.make_vec, "CartPole-v1", 4, backend="process", seed=0),
    "pendulum": partial(vd.make_vec, "Pendulum-v1", 4, backend="serial", seed=0, max_episode_steps=20),
}
ALGORITHMS = {
    "PPO": (PPO, {"n_steps": 32, "batch_size": 64, "n_epochs": 2}),
    "A2C": (A2C, {"n_steps": 16}),
    "DQN": (DQN, {"learning_starts": 64, "train_freq": 4}),
    "SAC": (SAC, {"learning_starts": 64, "train_freq": 8}),
}


def small(algorithm: str, venv: Any, policy: str = "MlpPolicy", **options: Any) -> Any:
    """Return a small model; SB3 writes into policy_kwargs, so each has its own."""
    kind, settings = ALGORITHMS[algorithm]
    return kind(policy, venv, policy_kwargs={"net_arch": [16]}, seed=0, device="cpu", **settings, **options)


class Recorder(VecEnvWrapper):
    """Adds up the rewards that pass by, in float64, and keeps the returns and lengths of the episodes that ended."""

    def reset(self) -> Any:
        self.sums, self.steps = np.zeros(self.num_envs), np.zeros(self.num_envs, int)
        self.episodes: list[tuple[float, int]] = []
        return self.venv.reset()

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        self.sums += rewards
        self.steps += 1
        for row in np.flatnonzero(dones):
            self.episodes.append((float(self.sums[row]), int(self.steps[row])))
            self.sums[row], self.steps[row] = 0.0, 0
        return observations, rewards, dones, infos


@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [
        ("PPO", "trading"),
        ("PPO", "trading, dict"),
        ("PPO", "trading, continuous"),
        ("A2C", "trading"),
        ("DQN", "trading"),
        ("SAC", "trading, continuous"),
        ("PPO", "cartpole, serial"),
        ("PPO", "cartpole, process"),
        ("A2C", "cartpole, serial"),
        ("DQN", "cartpole, serial"),
        ("SAC", "pendulum"),
        ("PPO", "pendulum"),
    ],
)
def test_it_trains_and_logs_our_returns(algorithm, environment, tmp_path):
    recorder = Recorder(to_sb3(ENVIRONMENTS[environment]()))
    policy = "MultiInputPolicy" if environment.endswith("dict") else "MlpPolicy"
    model = small(algorithm, recorder, policy)
    model.set_logger(configure(str(tmp_path), ["json"]))
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(384, log_interval=1)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.policy.parameters(), strict=True))
    logged = [(episode["r"], episode["l"]) for episode in model.ep_info_buffer]
    assert len(logged) > 8
    ours = recorder.episodes[-len(logged) :]
    np.testing.assert_allclose(logged, ours, rtol=1e-5, atol=1e-7)
    lines = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    means = [line["rollout/ep_rew_mean"] for line in lines if "rollout/ep_rew_mean" in line]
    # What was logged is the mean of the last hundred at some moment: it is one of our moving means.
    returns = np.array([episode[0] for episode in recorder.episodes])
    moving = [returns[max(0, end - 100) : end].mean() for end in range(1, len(returns) + 1)]
    assert means
    assert all(np.isclose(mean, moving, rtol=1e-5, atol=1e-7).any() for mean in means)
    recorder.close()


def test_the_statistics_of_a_rule_are_what_sb3_logs():
    """Played again without Stable-Baselines3, with the actions it chose."""
    chosen: list[np.ndarray] = []

    class Keep(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()

        def step_async(self, actions: np.ndarray) -> None:
            chosen.append(actions.copy())
            super().step_async(actions)

        def step_wait(self) -> Any:
            return self.venv.step_wait()

    model = small("PPO", Keep(to_sb3(trading())))
    model.learn(384)
    envs = trading()
    # SB3 seeds the environments with the seed of the algorithm.
    envs.reset(seed=0)
    ours: list[float] = []
    for actions in chosen:
        infos = envs.step(actions)[4]
        if infos:
            ours += infos["statistics"]["reward"][infos["_statistics"]].tolist()
    assert len(ours) > 20
    assert [episode["r"] for episode in model.ep_info_buffer] == ours[-100:]


# Bootstrapping


class Ending(ScriptedEnv):
    """Rewards nothing; ends every third step, cut off or terminated."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut

    def step(self, action: Any) -> Any:
        observation, _, _, _, _ = super().step(action)
        ended = self.time == 3
        return observation, 0.0, ended and not self.cut, ended and self.cut, {}


@pytest.mark.parametrize("cut", [True, False])
def test_ppo_adds_the_value_of_the_last_observation_where_an_episode_was_cut_off(cut):
    model = small("PPO", to_sb3(vd.make_vec(Ending, 2, backend="serial", cut=cut)), gamma=0.9)
    asked: list[np.ndarray] = []
    value_of = model.policy.predict_values

    def spied(observations: torch.Tensor) -> torch.Tensor:
        asked.append(observations.numpy().copy())
        return value_of(observations) * 0.0 + 7.0

    model.policy.predict_values = spied
    model.learn(64)
    rewards = model.rollout_buffer.rewards
    last = np.arange(len(rewards)) % 3 == 2
    assert (rewards[~last] == 0.0).all()
    np.testing.assert_allclose(rewards[last], 0.9 * 7.0 if cut else 0.0)
    terminal = [seen for seen in asked if len(seen) == 1]
    assert len(terminal) == (2 * last.sum() if cut else 0)
    assert all(seen[0, 1] == 3.0 for seen in terminal)  # the third step of its episode, not the first of the next


@pytest.mark.parametrize("cut", [True, False])
def test_the_replay_buffer_knows_what_was_cut_off(cut):
    model = small("DQN", to_sb3(vd.make_vec(Ending, 2, backend="serial", cut=cut)))
    model.learn(60)
    buffer = model.replay_buffer
    steps = buffer.pos
    last = np.arange(steps) % 3 == 2
    np.testing.assert_array_equal(buffer.dones[:steps].all(axis=1), last)
    np.testing.assert_array_equal(buffer.timeouts[:steps].all(axis=1), last & cut)
    assert (buffer.next_observations[:steps][last][..., 1] == 3.0).all()


def test_a_normalised_training_saves_and_loads(tmp_path):
    model = small("PPO", VecNormalize(to_sb3(trading())))
    model.learn(256)
    model.save(tmp_path / "model")
    model.get_env().save(str(tmp_path / "moments"))
    again = VecNormalize.load(str(tmp_path / "moments"), to_sb3(trading()))
    loaded = PPO.load(tmp_path / "model", env=again, device="cpu")
    observations = again.reset()
    np.testing.assert_array_equal(
        loaded.predict(observations, deterministic=True)[0], model.predict(observations, deterministic=True)[0]
    )
    loaded.learn(128)
