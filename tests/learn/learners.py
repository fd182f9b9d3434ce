"""Small environments and learners that the tests of rollout and learn share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import velodrome as vd
from tests.baskets import small_basket
from tests.markets import small_market
from velodrome.evaluation.play import Policy
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.ppo import PPO
from velodrome.rollout.disturbance import Strength
from velodrome.rollout.worlds import ForeignWorlds, RuleWorlds, make_worlds
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market

SMALL_NETWORK = {"hidden": (16, 12), "memory": 10, "channels": (4, 5), "kernel": 3}


def trading_worlds(
    num_envs: int = 6,
    seed: int = 0,
    market: Market | None = None,
    threads: int = 1,
    disturb: Strength | None = None,
    **params: Any,
) -> RuleWorlds:
    """Return environments on a small wild market; episodes are short and some end in ruin."""
    values = {"episode_length": (3, 9), "leverage": 20.0, **params}
    market = small_market(bars=60, instruments=2, seed=1) if market is None else market
    envs = vd.make_vec("trading", num_envs, market=market, observation="cursor", seed=seed, threads=threads, **values)
    worlds = make_worlds(envs)
    assert isinstance(worlds, RuleWorlds)
    if disturb is not None:
        worlds.disturb(disturb, seed)
    return worlds


def portfolio_worlds(
    num_envs: int = 6, instruments: int = 3, basket: Basket | None = None, **params: Any
) -> RuleWorlds:
    """Return portfolios of a few wild instruments, some of them halted at times; episodes are short."""
    basket = small_basket(bars=80, instruments=instruments, seed=1) if basket is None else basket
    values = {"episode_length": (3, 9), "buy_fee": 0.001, "sell_fee": 0.001, **params}
    envs = vd.make_vec("portfolio", num_envs, market=basket, observation="cursor", seed=0, threads=1, **values)
    worlds = make_worlds(envs)
    assert isinstance(worlds, RuleWorlds)
    return worlds


def foreign_worlds(make: Callable[[], gymnasium.Env], num_envs: int) -> ForeignWorlds:
    """Return environments of another library as a learner sees them."""
    return ForeignWorlds(SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP))


def make_ppo(
    worlds: Any, network: dict[str, Any] | None = None, seed: int = 0, total_steps: int = 10_000, **config: Any
) -> PPO:
    """Return a small learner."""
    values = {"rollout_length": 8, "epochs": 2, "minibatches": 2, "normalise_rewards": False, **config}
    settings = NetworkConfig(**{**SMALL_NETWORK, **(network or {})})
    return PPO(worlds, settings, PPOConfig(**values), total_steps=total_steps, seed=seed)


def learnable_market(kind: str, seed: int) -> Market:
    """Return a market whose best return is known, half of it to learn on and half to test on, 200,000 bars each."""
    # The default features do not follow the price level, which is what the next return of an ou market depends on.
    features = {"ar1": ["log_return"], "ou": ["log_return", "close"]}[kind]
    return vd.build_market(
        vd.synthetic_bars(kind, 400_000, seed=seed), features=features, windows=4, splits={"train": 0.5, "test": 0.5},
        check_leaks=False,
    )  # fmt: skip


def share_of_optimum(
    policy: Policy, market: Market | Basket, split: str = "test", pieces: int = 500, **params: Any
) -> float:
    """Return the mean log return a bar over a whole split, as a share of the best; played in pieces side by side."""
    part = market.split(split)
    length = int(part.end[0] - 1 - part.begin[0]) // pieces
    first = part.begin[0] + length * np.arange(pieces)
    name = "portfolio" if isinstance(market, Basket) else "trading"
    envs = vd.make_vec(name, pieces, market=part, observation="cursor", autoreset=False, threads=1, **params)
    observation, _ = envs.reset(seed=0, options={"cursor": first, "last": first + length})
    policy.begin(pieces)
    total = 0.0
    for _ in range(length):
        observation, reward, terminated, _, _ = envs.step(policy.act(observation))
        assert not terminated.any()
        total += float(reward.sum(dtype=np.float64))
    assert market.optimum is not None
    return total / (pieces * length) / market.optimum


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


class Endless(gymnasium.Env):
    """Pays 1 for every step and shows the number of the step, one-hot; ends after `length` steps, one way or other."""

    def __init__(self, length: int, *, terminates: bool, shows_time: bool = True) -> None:
        self.length, self.terminates, self.shows_time = length, terminates, shows_time
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (length + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.step_number = 0

    def _observation(self) -> np.ndarray:
        shown = np.zeros(self.length + 1, np.float32)
        shown[self.step_number if self.shows_time else 0] = 1.0
        return shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.step_number += 1
        over = self.step_number == self.length
        return self._observation(), 1.0, over and self.terminates, over and not self.terminates, {}


class Cue(gymnasium.Env):
    """Shows a sign at first and asks for it `delay` steps later: nothing that is seen then tells the answer."""

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def _observation(self) -> np.ndarray:
        cue = (2.0 * self.sign - 1.0) if self.step_number == 0 else 0.0
        return np.array([cue, self.step_number == self.delay], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.sign, self.step_number = int(self.np_random.integers(2)), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        asked = self.step_number == self.delay
        reward = float(asked and int(action) == self.sign)
        self.step_number += 1
        return self._observation(), reward, asked, False, {}


class Bandit(gymnasium.Env):
    """One step; the reward says how well the actions match what is shown. Any action space."""

    def __init__(self, space: gymnasium.Space, size: int = 3) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.shown = self.np_random.normal(size=self.observation_space.shape).astype(np.float32)
        return self.shown, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype)), action
        chosen = np.atleast_1d(np.asarray(action, np.float64))
        wanted = (self.shown[: len(chosen)] > 0.0).astype(np.float64)
        return self.shown, float(-np.square(chosen - wanted).sum()), True, False, {}


def parameters_of(learner: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.policy.state_dict().items()}


def assert_the_first_encodes_and_both_learn_alike(always: PPO, never: PPO) -> None:
    """Compare two learners to the rounding, the first of which computes the market's part once for each bar."""
    assert [learner.engine.encode_minibatches for learner in (always, never)] == [True, False]
    for _ in range(2):
        ours, theirs = (without_times(learner.iterate()) for learner in (always, never))
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    expected = parameters_of(never)
    for name, tensor in parameters_of(always).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4, msg=name)
