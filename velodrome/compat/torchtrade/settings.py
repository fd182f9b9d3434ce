"""The words of TorchTrade's training example, such as env.train_envs=128, as settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from velodrome.compat.torchtrade import layout
from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.config.others import of_half_the_square
from velodrome.vector.argument_checks import checked_count

PRESET = "torchtrade"
NETWORKS = {"batchnorm_mlp": "mlp_batch_norm", "mlp": "mlp", "cnn": "conv"}
SAME = {  # their key -> ours, with the same value
    "env.train_envs": "num_envs",
    "env.num_envs": "num_envs",
    "env.seed": "seed",
    "env.symbol": "market.symbols",
    "env.data_path": "market.source",
    "env.initial_cash": "params.initial_cash",
    "env.slippage": "params.slippage",
    **{f"env.{theirs}": f"params.{ours}" for theirs, ours in layout.SAME.items()},
    "env.action_levels": "params.levels",
    "model.dropout": "network.dropout",
    "model.activation": "network.activation",
    "optim.lr": "ppo.learning_rate",
    "optim.max_grad_norm": "ppo.max_gradient_norm",
    "optim.weight_decay": "ppo.weight_decay",
    "optim.device": "device",
    "collector.total_frames": "steps",
    "loss.ppo_epochs": "ppo.epochs",
    "loss.gamma": "ppo.gamma",
    "loss.gae_lambda": "ppo.gae_lambda",
    "loss.clip_epsilon": "ppo.clip",
    "loss.entropy_coeff": "ppo.entropy",
    "loss.entropy_coef": "ppo.entropy",
    "logger.project_name": "logging.wandb_project",
    "logger.group_name": "logging.wandb_group",
    "logger.mode": "logging.wandb_mode",
    "logger.exp_name": "name",
    "logger.test_interval": "evaluation.every_steps",
    "compile.compile": "ppo.compile",
}
WEIGHTS = ("loss.critic_coeff", "loss.critic_coef")  # of the value's loss
CHANGED: dict[str, Callable[[Any], dict[str, Any]]] = {
    **dict.fromkeys(WEIGHTS, lambda weight: {"ppo.value_weight": of_half_the_square(weight)}),
    "model.network_type": lambda kind: {"network.kind": NETWORKS.get(kind, kind)},
    "optim.anneal_lr": lambda falls: {"ppo.schedule": "linear" if falls else "constant"},
    "logger.backend": lambda name: {"logging.wandb": name == "wandb", "logging.tensorboard": name == "tensorboard"},
}
ENVS = ("env.train_envs", "env.num_envs")
FRAMES, MINIBATCH = "collector.frames_per_batch", "loss.mini_batch_size"
WIDTH, DEPTH, LAYERS = "model.hidden_size", "model.num_layers", 2  # layers if only a width is given
SECTIONS = ("env.", "model.", "optim.", "collector.", "loss.", "logger.", "compile.")
OWN = ("env.id",)


def is_theirs(key: str) -> bool:
    """Return whether a key is one of TorchTrade's example."""
    return key.startswith(SECTIONS) and key not in OWN


def translated(settings: Mapping[str, Any], num_envs: int) -> tuple[dict[str, Any], list[str]]:
    """Return settings with ours in place of TorchTrade's, and a note for each that was one.

    num_envs: how many there are if none are given.
    """
    for key in (*ENVS, FRAMES, MINIBATCH, WIDTH, DEPTH):
        if key in settings:
            checked_count(key, settings[key])
    number = next((settings[key] for key in (*ENVS, "num_envs") if key in settings), num_envs)
    found: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in settings.items():
        ours = _one(key, value, number, settings) if is_theirs(key) else {key: value}
        found |= ours
        if is_theirs(key):
            notes.append(f"{key}={value} is {' '.join(f'{name}={told}' for name, told in ours.items())} here")
    return found, notes


def _one(key: str, value: Any, number: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    frames = settings.get(FRAMES)
    if key in SAME:
        return {SAME[key]: value}
    if key in CHANGED:
        return CHANGED[key](value)
    if key in (WIDTH, DEPTH):
        if WIDTH not in settings:
            raise ConfigError(f"{key} = {value}: needs {WIDTH} beside it, the width of each layer.")
        return {"network.hidden": [settings[WIDTH]] * settings.get(DEPTH, LAYERS)}
    if key == FRAMES:
        if value < number:
            raise ConfigError(f"{key} = {value}: less than one step of each of env.train_envs = {number}; give more.")
        return {"ppo.rollout_length": value // number}
    if key == MINIBATCH:
        if frames is None or value > frames:
            raise ConfigError(f"{key} = {value}: needs {FRAMES} beside it, and at most as many samples.")
        return {"ppo.minibatches": max(round(frames / value), 1)}
    legal = (*SAME, *CHANGED, FRAMES, MINIBATCH, WIDTH, DEPTH)
    raise ConfigError(
        f"{key} is not a setting of TorchTrade's example that means something here.{did_you_mean(key, legal)} There "
        f"are {', '.join(legal)}."
    )
