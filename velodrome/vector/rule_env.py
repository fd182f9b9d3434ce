"""What every backend of a rule environment shares: spaces, seeding, options, observations and infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from velodrome.envs.contract import World, state_columns
from velodrome.envs.rng import seed_streams
from velodrome.errors import ActionError, ConfigError, did_you_mean
from velodrome.tables.windows import no_windows
from velodrome.vector.buffers import Buffers

ObservationKind = Literal["flat", "dict", "cursor"]


def single_observation_space(world: World, kind: ObservationKind) -> gymnasium.Space:
    """Return the observation space of one environment."""
    observed = len(world.observed)
    account = gymnasium.spaces.Box(-np.inf, np.inf, (observed,), np.float32)
    if kind == "cursor":
        cursor = gymnasium.spaces.Box(0, np.iinfo(np.int32).max, (), np.int32)
        return gymnasium.spaces.Dict({"account": account, "cursor": cursor})
    if kind == "dict":
        windows = {
            name: gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
            for name, shape in zip(world.window_names, world.window_shapes, strict=True)
        }
        return gymnasium.spaces.Dict({"account": account, **windows})
    if kind == "flat":
        floats = sum(rows * width for rows, width in world.window_shapes) + observed
        return gymnasium.spaces.Box(-np.inf, np.inf, (floats,), np.float32)
    raise ConfigError(f"observation = {kind!r}; legal: 'flat', 'dict', 'cursor'.{did_you_mean(kind, OBSERVATIONS)}")


OBSERVATIONS = ("flat", "dict", "cursor")


class RuleVectorEnv(gymnasium.vector.VectorEnv):
    """Many environments of one rule. Returned arrays are views that the next step overwrites, unless `copy` is set.

    Episodes that end are started anew in the same step. `infos` then holds `final_obs` and `statistics` (arrays over
    all environments) with the masks `_final_obs` and `_statistics` that say for which environments they are new.
    """

    def __init__(
        self, world: World, num_envs: int, *, seed: int | None, observation: ObservationKind, check_actions: bool,
        copy: bool, autoreset: bool,
    ) -> None:  # fmt: skip
        if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise ConfigError(f"num_envs = {num_envs!r}: needs a whole number of at least 1")
        self.world = world
        self.num_envs = int(num_envs)
        self.observation = observation
        self.check_actions = check_actions
        self.copy = copy
        self.autoreset = autoreset
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED,
            "render_modes": ["ansi"],
        }
        self.render_mode = "ansi" if world.describe_state else None
        self.single_action_space = world.action_space
        self.single_observation_space = single_observation_space(world, observation)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.windows = world.windows if observation != "cursor" else no_windows(world.windows.rows.shape[1])
        self._seed = seed
        self._seeded = False
        discrete = isinstance(world.action_space, gymnasium.spaces.Discrete)
        self._action_dtype = np.dtype(np.int64 if discrete else np.float32)
        self._scalar_action = discrete or world.action_space.shape == (1,)
        self._action_low, self._action_high = action_bounds(world.action_space)

    # What a backend supplies.

    buffers: Buffers

    def _write_state(self, column: str, rows: NDArray[np.int64], values: NDArray) -> None:
        raise NotImplementedError

    def column(self, name: str) -> Any:
        """Return a copy of one column of the state: [n], or [rows, n] where an environment has several values."""
        raise NotImplementedError

    def _reset_chosen(self, chosen: NDArray[np.bool_]) -> None:
        raise NotImplementedError

    # What they share.

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes of all environments, or of those in options["reset_mask"].

        An integer seed gives environment i the stream (seed, i); a list gives each environment its own seed.
        """
        options = dict(options or {})
        chosen = np.ones(self.num_envs, bool)
        if "reset_mask" in options:
            chosen = np.asarray(options.pop("reset_mask"), bool)
            if chosen.shape != (self.num_envs,) or not chosen.any():
                raise ConfigError(f"reset_mask must be {self.num_envs} booleans, at least one of them true")
        self._seed_chosen(seed, chosen)
        self._apply_options(options, chosen)
        self._reset_chosen(chosen)
        return self._observations(), {}

    def _seed_chosen(self, seed: int | Sequence[int | None] | None, chosen: NDArray[np.bool_]) -> None:
        if seed is None and not self._seeded:
            seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        if seed is None:
            return
        if isinstance(seed, int | np.integer):
            rows = np.flatnonzero(chosen)
            self._write_seeds(int(seed), rows, rows)
        else:
            if len(seed) != self.num_envs:
                raise ConfigError(f"seed has {len(seed)} entries for {self.num_envs} environments")
            for row, own in enumerate(seed):
                if own is not None and chosen[row]:
                    self._write_seeds(int(own), np.array([row]), np.array([0]))
        self._seeded = True

    def _write_seeds(self, seed: int, rows: NDArray[np.int64], indices: NDArray[np.int64]) -> None:
        if seed < 0:
            raise ConfigError(f"seed = {seed}: a seed is a whole number of at least 0")
        keys, counters = seed_streams(seed, indices)
        self._write_state("rng_key", rows, keys)
        self._write_state("rng_counter", rows, counters)
        if "episode" in state_columns(self.world.state_type):
            self._write_state("episode", rows, np.zeros(len(rows), np.int32))

    def _apply_options(self, options: dict[str, Any], chosen: NDArray[np.bool_]) -> None:
        legal = self.world.reset_options
        for name in options:
            if name not in legal:
                known = ("reset_mask", *legal)
                raise ConfigError(
                    f"unknown reset option {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}"
                )
        rows = np.flatnonzero(chosen)
        values = {name: np.broadcast_to(np.asarray(value), self.num_envs)[rows] for name, value in options.items()}
        if values and self.world.check_options:
            self.world.check_options(values)
        for name, value in values.items():
            self._write_state(legal[name], rows, value)

    def _check(self, actions: NDArray) -> None:
        """Raise if an action lies outside its space (NaN lies outside)."""
        legal = (actions >= self._action_low) & (actions <= self._action_high)
        if not legal.all():
            self._refuse(actions, int(np.argmin(legal.reshape(self.num_envs, -1).all(axis=1))))

    def _refuse(self, actions: NDArray, row: int) -> None:
        space = self.single_action_space
        raise ActionError(
            f"action of environment {row} is {actions[row]!r}, outside {space}. Nothing was stepped. "
            f"Clip or mask the policy's output; check_actions=False skips this check."
        )

    def _shape_of_actions(self) -> tuple[int, ...]:
        return (self.num_envs,) if self._scalar_action else (self.num_envs, *self.single_action_space.shape)  # type: ignore[misc]

    def _bad_shape(self, actions: Any) -> ActionError:
        return ActionError(
            f"actions have shape {tuple(np.shape(actions))} and type {getattr(actions, 'dtype', type(actions))}; "
            f"expected one for each of {self.num_envs} environments: {self.action_space}"
        )

    def _view(self, observations: Any, cursors: Any) -> Any:
        """Shape a buffer of observation rows as the observation space says, without copying."""
        if self.observation == "flat":
            return observations
        account = observations[:, self.buffers.out.window_floats :]
        if self.observation == "cursor":
            return {"account": account, "cursor": cursors}
        parts, at = {"account": account}, 0
        for name, (rows, width) in zip(self.world.window_names, self.world.window_shapes, strict=True):
            parts[name] = observations[:, at : at + rows * width].reshape(self.num_envs, rows, width)
            at += rows * width
        return parts

    def _observations(self) -> Any:
        raise NotImplementedError

    def render(self) -> tuple[str, ...] | None:
        """Return a line for people about each environment."""
        describe = self.world.describe_state
        if describe is None:
            return None
        columns = {name: np.asarray(self.column(name)) for name in state_columns(self.world.state_type)}
        return tuple(
            describe({name: values[..., row] for name, values in columns.items()}) for row in range(self.num_envs)
        )


def action_bounds(space: gymnasium.Space) -> tuple[Any, Any]:
    """Return the lowest and the highest legal action."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return 0, int(space.n) - 1
    if isinstance(space, gymnasium.spaces.Box):
        return (space.low.item(), space.high.item()) if space.shape == (1,) else (space.low, space.high)
    raise ConfigError(f"a rule's action space must be Discrete or Box, received {space}")
