"""The crypto trainer's environments, with which ElegantRL trains, over the portfolio rule (docs/migrate/cappuccino.md).

`n_envs` stands in the signature of the vectorised ones, which is how its scripts tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.adapters.elegantrl import ElegantRLEnv
from velodrome.compat.alpaca_crypto import ACTION_LIMIT, alpaca_crypto_world, original_observation
from velodrome.envs.contract import World
from velodrome.errors import ConfigError
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.make import make_vec

if TYPE_CHECKING:
    from torch import Tensor

ARRAYS = ("price_array", "tech_array")
NORMS = ("lookback", "norm_cash", "norm_stocks", "norm_tech", "norm_reward", "norm_action")
CAPITAL, COST = 1_000.0, 0.0025


def crypto_world(
    config: Mapping[str, Any], env_params: Mapping[str, Any], capital: float, buy: float, sell: float, limits: Any
) -> World:
    """Return the environment that the arrays of a configuration and the parameters make.

    buy, sell: costs as parts of the price. limits: the least quantity of each coin, or None.
    """
    for needed, given, what in ((ARRAYS, config, "config"), (NORMS, env_params, "env_params")):
        missing = [name for name in needed if name not in (given or {})]
        if missing:
            raise ConfigError(f"{what} has no {', '.join(missing)}; it needs {', '.join(needed)}.")
    checked_count("lookback", env_params["lookback"])
    price, tech = (np.asarray(config[name], np.float64) for name in ARRAYS)
    if price.ndim != 2 or tech.ndim != 2:
        raise ConfigError(f"price_array is {price.shape}, tech_array {tech.shape}; both are [bars, columns].")
    coins = price.shape[1]
    quantities = np.zeros(coins) if limits is None else np.asarray(limits, np.float64)[:coins]
    if len(quantities) < coins:
        raise ConfigError(f"alpaca_limits has {len(quantities)} quantities for {coins} coins; give one for each.")
    told = {"initial_capital": capital, "fee": buy, "sell_fee": sell, "min_quantity": 1.1 * quantities}
    return alpaca_crypto_world(price, tech, {**env_params, **told})


class CryptoEnvAlpaca:
    """One environment with NumPy arrays: reset() -> state, step(actions) -> (state, reward, done, info)."""

    def __init__(
        self,
        config: Mapping[str, Any],
        env_params: Mapping[str, Any],
        initial_capital: float = CAPITAL,
        buy_cost_pct: float = COST,
        sell_cost_pct: float = COST,
        gamma: float = 0.99,
        if_log: bool = False,
        alpaca_limits: Any = None,
    ) -> None:
        self.config, self.env_params, self.gamma, self.if_log = config, env_params, gamma, if_log
        world = crypto_world(config, env_params, initial_capital, buy_cost_pct, sell_cost_pct, alpaca_limits)
        self.envs = make_vec(world, 1, autoreset=False, check_actions=False, seed=0)
        self.order = state_order(world, int(env_params["lookback"]))
        self.env_name, self.env_num, self.if_discrete, self.target_return = "MulticryptoEnv", 1, False, 10**8
        self.state_dim, self.action_dim = len(self.order), len(np.asarray(config["price_array"])[0])
        self.max_step = max_step(config, env_params)

    def reset(self) -> NDArray[np.float32]:
        """Begin an episode; return the state."""
        return self.envs.reset()[0][0, self.order]

    def step(self, actions: Any) -> tuple[NDArray[np.float32], float, bool, dict[str, Any]]:
        """Trade; return state, reward, done and info (total_asset, cash, stocks)."""
        chosen = np.clip(np.asarray(actions, np.float32), -ACTION_LIMIT, ACTION_LIMIT)
        if chosen.shape != (self.action_dim,) or not np.isfinite(chosen).all():
            raise ConfigError(f"actions = {chosen!r}: needs {self.action_dim} finite numbers, one for each coin.")
        observations, rewards, terminated, truncated, _ = self.envs.step(chosen[None])
        account = {"total_asset": "equity", "cash": "cash"}
        info: dict[str, Any] = {name: float(self.envs.column(column)[0]) for name, column in account.items()}
        info["stocks"] = np.array(self.envs.column("units")[:, 0])
        return observations[0, self.order], float(rewards[0]), bool(terminated[0] or truncated[0]), info

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()


class VectorizedCryptoEnvAlpaca(ElegantRLEnv):
    """Many of them in one compiled loop, with torch tensors [n_envs, …] on the device; written in place.

    gpu_id: the GPU, −1 for the CPU; None takes the first GPU if there is one that can be used.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        env_params: Mapping[str, Any],
        n_envs: int = 8,
        gpu_id: int | None = None,
        initial_capital: float = CAPITAL,
        buy_cost_pct: float = COST,
        sell_cost_pct: float = COST,
        alpaca_limits: Any = None,
    ) -> None:
        self.n_envs, self.config, self.env_params = checked_count("n_envs", n_envs), config, env_params
        world = crypto_world(config, env_params, initial_capital, buy_cost_pct, sell_cost_pct, alpaca_limits)
        options = {"check_actions": False, "seed": 0, **_backend(gpu_id)}
        order = state_order(world, int(env_params["lookback"]))
        super().__init__(make_vec(world, self.n_envs, **options), scaled=False, order=order)
        self.env_name, self.target_return = f"VectorizedMulticryptoEnv_x{self.n_envs}", 10**8
        self.max_step = max_step(config, env_params)

    def step(self, action: Any) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Trade in all environments: states, rewards, dones and infos."""
        import torch

        return super().step(torch.as_tensor(action, device=self.device).clamp(-ACTION_LIMIT, ACTION_LIMIT))


class VectorizedCryptoEnvAlpacaOptimized(VectorizedCryptoEnvAlpaca):
    """The same: tensors are allocated once in any case."""


def state_order(world: World, lookback: int) -> NDArray[np.int64]:
    """Return which observed value stands at each place of a state: account first, then rows from the newest back."""
    floats = sum(rows * width for rows, width in world.window_shapes) + len(world.observed)
    places = original_observation(np.arange(floats, dtype=np.float32)[None], lookback, len(world.observed))
    return places[0].astype(np.int64)


def max_step(config: Mapping[str, Any], env_params: Mapping[str, Any]) -> int:
    """Return the last bar of an episode, as the original counts it."""
    return len(config["price_array"]) - int(env_params["lookback"]) - 1


def _backend(gpu_id: int | None) -> dict[str, Any]:
    from velodrome.vector.cuda import unavailable_reason

    device = f"cuda:{max(gpu_id or 0, 0)}"
    if gpu_id == -1 or (gpu_id is None and unavailable_reason(device) is not None):
        return {"backend": "native"}
    return {"backend": "cuda", "device": device}
