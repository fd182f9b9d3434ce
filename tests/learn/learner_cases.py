"""The settings under which learners are held to what all learners promise."""

from __future__ import annotations

from typing import Any

import torch

from tests.learn.learners import SMALL_NETWORK, make_ppo, parameters_of, trading_worlds, without_times
from velodrome.learn.config import DQNConfig, NetworkConfig, SACConfig
from velodrome.learn.dqn import DQN
from velodrome.learn.ppo import PPO
from velodrome.learn.sac import SAC
from velodrome.rollout.disturbance import Strength

DROPPING = {"layer_norm": True, "dropout": 0.3}
DISTURBED = Strength(noise=0.3, mask_features=0.2, mask_bars=0.1)
REGULARISED = {"weight_decay": 2.0, "kl_penalty": 0.5}
NORMALISED = {"normalise_observations": True, "normalise_rewards": True}
# name: network, environment parameters, settings of PPO
PPO_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mlp, discrete": ({}, {}, {}),
    "mlp, discrete, normalised": ({}, {"disturb": DISTURBED}, NORMALISED),
    "mlp, continuous, normalised": (
        {},
        {"action": "continuous", "slippage": 0.01, "disturb": DISTURBED},
        {**NORMALISED, **REGULARISED, "average_weights": True, "critic_first": 96},
    ),
    "mlp, autograd, cosine": (DROPPING, {}, {"engine": "autograd", "schedule": "cosine", "entropy": 0.01}),
    "shared, relu, value clip": ({"shared": True, "activation": "relu"}, {}, {"value_clip": 0.2, "target_kl": 0.01}),
    "batch norm": ({"kind": "mlp_batch_norm"}, {}, {**NORMALISED, "average_weights": True}),
    "conv, per bar": ({"kind": "conv"}, {"disturb": DISTURBED}, {"per_bar": "always"}),
    "gru, discrete, normalised": ({"kind": "gru", **DROPPING}, {}, NORMALISED),
    "gru, continuous, shared": (
        {"kind": "gru", "shared": True},
        {"action": "continuous"},
        {"schedule": "linear", **REGULARISED},
    ),
}
# name: network, settings of DQN
DQN_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mlp": ({}, {}),
    "single, plain, linear": ({}, {"double": False, "duelling": False, "schedule": "linear"}),
    "three steps, normalised": ({}, {"n_step": 3, "weight_decay": 2.0, **NORMALISED}),
    "prioritised, two steps, normalised": (DROPPING, {"prioritised": True, "n_step": 2, **NORMALISED}),
    "batch norm": ({"kind": "mlp_batch_norm"}, NORMALISED),
    "conv, per bar": ({"kind": "conv"}, {"per_bar": "always"}),
    "no future": ({}, {"gamma": 0.0}),
}
DQN_DISTURBED = ("three steps, normalised", "conv, per bar")  # cases whose windows are disturbed
DQN_SETTINGS = {"rollout_length": 4, "updates": 3, "batch_size": 32, "buffer_size": 100, "learning_starts": 24,
                "target_every": 4, "learning_rate": 3e-3, "gamma": 0.9}  # fmt: skip
# name: network, settings of SAC
SAC_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mlp": ({}, {}),
    "normalised, linear": ({}, {"schedule": "linear", "weight_decay": 2.0, **NORMALISED}),
    "conv, layer norm, given weight": ({"kind": "conv", "layer_norm": True}, {"entropy": 0.1}),
    "no entropy, no future": ({}, {"entropy": 0.0, "gamma": 0.0}),
}
SAC_DISTURBED = ("normalised, linear",)  # cases whose windows are disturbed
SAC_SETTINGS = {"rollout_length": 4, "updates": 3, "batch_size": 32, "buffer_size": 100, "learning_starts": 24,
                "target_share": 0.1, "learning_rate": 3e-3, "gamma": 0.9, "normalise_rewards": False}  # fmt: skip


def ppo_of(case: str, worlds: Any = None, seed: int = 3) -> PPO:
    """Return a small learner of a case."""
    network, environment, config = PPO_CASES[case]
    worlds = trading_worlds(6, seed=seed, **environment) if worlds is None else worlds
    return make_ppo(worlds, network, seed=seed, learning_rate=3e-3, **config)


def make_dqn(
    worlds: Any = None, network: dict[str, Any] | None = None, seed: int = 3, total_steps: int = 1000, **config: Any
) -> DQN:
    """Return a small learner on a small market, whose ring of 16 rows wraps in the fifth iteration."""
    worlds = trading_worlds(6, seed=seed) if worlds is None else worlds
    settings = NetworkConfig(**{**SMALL_NETWORK, **(network or {})})
    return DQN(worlds, settings, DQNConfig(**{**DQN_SETTINGS, **config}), total_steps=total_steps, seed=seed)


def make_sac(
    worlds: Any = None, network: dict[str, Any] | None = None, seed: int = 3, total_steps: int = 1000, **config: Any
) -> SAC:
    """Return a small learner on a small market, whose ring of 16 rows wraps in the fifth iteration."""
    worlds = trading_worlds(6, seed=seed, action="continuous") if worlds is None else worlds
    settings = NetworkConfig(**{**SMALL_NETWORK, **(network or {})})
    return SAC(worlds, settings, SACConfig(**{**SAC_SETTINGS, **config}), total_steps=total_steps, seed=seed)


def iterated(learner: PPO | DQN | SAC, times: int) -> list[dict[str, float]]:
    """Return the metrics of some iterations, but for those that say how long they took."""
    return [without_times(learner.iterate()) for _ in range(times)]


def assert_same(one: PPO | DQN | SAC, other: PPO | DQN | SAC) -> None:
    """Compare the weights of two learners, to the bit."""
    ours, theirs = parameters_of(one), parameters_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
