"""What all backends for rules share: spaces, seeds, the options of reset, observations and infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from velodrome.envs.contract import World, state_columns
from velodrome.envs.rng import seed_streams
from velodrome.errors import ActionError, ActionTypeError, ConfigError, EnvironmentFaultError, Fault, did_you_mean
from velodrome.tables.windows import no_windows
from velodrome.vector.argument_checks import check_seed, check_that_they_fit, checked_count, seed_of_each
from velodrome.vector.buffers import Buffers, bytes_of_buffers
from velodrome.vector.cores import free_memory
from velodrome.vector.space_arrays import about_fractions, leaves, map_nested, on_host, resized

ObservationKind = Literal["flat", "dict", "cursor"]
OBSERVATIONS = get_args(ObservationKind)
RULE_ADVICE = (
    "The others were stepped; reset() begins new episodes. check_values=False lets such values pass, to the learner."
)


class ResetNeededError(ConfigError, gymnasium.error.ResetNeeded):
    """A step of environments that have no episode."""


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
    legal = ", ".join(map(repr, OBSERVATIONS))
    raise ConfigError(f"observation = {kind!r}; legal: {legal}.{did_you_mean(str(kind), OBSERVATIONS)}")


def has_code_of_others(world: World) -> bool:
    """Return whether a rule, or a reward in it, is not Velodrome's own, whose values are proven by its tests."""
    functions = (*world.rule, *world.substitutions.values())
    return any(not (function.__module__ or "").startswith("velodrome.") for function in functions)


class RuleVectorEnv(gymnasium.vector.VectorEnv):
    """Many environments of one rule. Returned arrays are views that the next step overwrites, unless `copy` is set.

    When an episode ends, the next one starts in the same step. `infos` then holds `final_obs` and `statistics` (arrays
    over all environments), and the masks `_final_obs` and `_statistics` say for which environments they are new.
    """

    def __init__(
        self,
        world: World,
        num_envs: int,
        *,
        seed: int | None = None,
        observation: ObservationKind = "flat",
        check_actions: bool = True,
        check_values: bool | None = None,
        copy: bool = False,
        autoreset: bool = True,
    ) -> None:
        """Set up what does not depend on the backend; `make_vec` says what the options mean."""
        self.world = world
        self.num_envs = checked_count("num_envs", num_envs)
        self.observation = observation
        self.check_actions = check_actions
        self.check_values = has_code_of_others(world) if check_values is None else check_values
        self.copy = copy
        self.autoreset = autoreset
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED,
            "render_modes": ["ansi"],
        }
        self.render_mode = "ansi" if world.describe_state else None
        self.single_action_space = world.action_space
        self.single_observation_space = single_observation_space(world, observation)
        self._check_memory(self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.windows = world.windows if observation != "cursor" else no_windows(world.windows.rows.shape[1])
        if seed is not None:
            check_seed(seed)
        self._seed = seed
        self.first = 0  # number of the first environment, where others of the same training are in other processes
        self._seeded = np.zeros(self.num_envs, bool)
        self._started = np.zeros(self.num_envs, bool)
        self._ready = False  # every environment has an episode
        whole = isinstance(world.action_space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
        self._action_dtype = np.dtype(np.int64 if whole else np.float32)
        shape = world.action_space.shape or ()
        self._action_shape = () if shape == (1,) else shape
        self._action_low, self._action_high = action_bounds(world.action_space)

    # What a backend supplies

    backend: str
    buffers: Buffers
    _copy_array: Any  # copies one array, or one tensor

    def _write_state(self, column: str, rows: NDArray[np.int64], values: NDArray) -> None:
        raise NotImplementedError

    def column(self, name: str) -> Any:
        """Return a copy of one column of the state: [n], or [rows, n] where an environment has several values."""
        raise NotImplementedError

    def _reset_chosen(self, chosen: NDArray[np.bool_]) -> None:
        raise NotImplementedError

    def _move(self, num_envs: int, kept: int) -> None:
        """Move to memory for another number of environments; the first `kept` keep their state and outputs."""
        raise NotImplementedError

    # What they share

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes of all environments, or of those in options["reset_mask"].

        An integer seed gives environment i the stream (seed, i); a list gives each environment its own seed, so that
        it draws the same in any row. Where episodes begin in turn (start="sequential" or "first" on a market), its row
        is its place in both cases. An integer for all environments is also the seed of those that `resize` adds later.
        """
        self._check_open()
        options = dict(options or {})
        chosen = self._chosen(options.pop("reset_mask", None))
        values = self._option_values(options, chosen)
        seeds = self._seeds(seed)
        # Nothing has been written so far, so a refused reset changes nothing.
        self._write_seeds(seeds, chosen)
        if isinstance(seeds, int) and chosen.all():
            self._seed = seeds
        rows = np.flatnonzero(chosen)
        for name, value in values.items():
            self._write_state(self.world.reset_options[name], rows, value)
        self._reset_chosen(chosen)
        if self.check_values:
            self._look(rows, "reset")
        self._started |= chosen
        self._ready = bool(self._started.all())
        return self._observations(), {}

    def resize(self, num_envs: int) -> Any:
        """Go on with this many environments and return the observations of all; None before the first reset.

        The first environments keep their state and their episodes to the bit. A new environment i begins an episode
        and draws from the start of the stream (seed, i), where the batch was made or last reset with that seed. Arrays
        returned before belong to the old batch and are no longer written.
        """
        self._check_open()
        num_envs = checked_count("num_envs", num_envs)
        if num_envs != self.num_envs:
            self._check_memory(num_envs)
            kept = min(num_envs, self.num_envs)
            self._move(num_envs, kept)
            self.num_envs = num_envs
            self.action_space = batch_space(self.single_action_space, num_envs)
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self._seeded, self._started = resized(self._seeded, num_envs), resized(self._started, num_envs)
            if self._ready and kept < num_envs:
                self.reset(options={"reset_mask": ~self._started})
            self._ready = bool(self._started.all())
        return self._observations() if self._ready else None

    def _check_memory(self, num_envs: int) -> None:
        """Refuse more environments than fit, before anything is allocated."""
        values = sum(int(np.prod(leaf.shape)) for leaf in leaves(self.single_observation_space, "observation"))
        # Gymnasium's space of a batch holds two bounds of each value, and whether there are any.
        check_that_they_fit(num_envs, 2 * (4 + 1) * values + self._host_bytes(num_envs), free_memory)

    def _host_bytes(self, num_envs: int) -> float:
        """Return the bytes per environment that the backend takes of the host's memory."""
        return bytes_of_buffers(self.world, num_envs, with_windows=self.observation != "cursor")

    def mark_begun(self) -> None:
        """Say that all environments are in episodes, after their state was written from outside."""
        self._seeded[:] = self._started[:] = True
        self._ready = True

    def close_extras(self, **options: Any) -> None:
        """Refuse steps from now on. The memory is that of the arrays, which a caller may still read."""
        self._ready = False

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("these environments were closed; make new ones")

    def _check_ready(self) -> None:
        if not self._ready:
            self._check_open()
            raise ResetNeededError("call reset() before the first step(), for every environment")

    def _chosen(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, bool)
        chosen = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask, bool)
        if chosen.shape != (self.num_envs,) or not chosen.any():
            raise ConfigError(f"reset_mask must be {self.num_envs} booleans, at least one of them true")
        return chosen

    def _seeds(self, seed: Any) -> list[int | None] | int | None:
        """Check seeds: one for all environments, or one (or None) for each."""
        if seed is None or isinstance(seed, int | np.integer):
            return None if seed is None else check_seed(seed)
        return seed_of_each(seed, self.num_envs)

    def _write_seeds(self, seeds: list[int | None] | int | None, chosen: NDArray[np.bool_]) -> None:
        """Seed the chosen environments, and those that never had a seed from the seed that the batch was made with."""
        keys = np.zeros(self.num_envs, np.uint64)
        counters = np.zeros(self.num_envs, np.uint64)
        episodes = np.zeros(self.num_envs, np.int32)
        written = np.zeros(self.num_envs, bool)

        def give(seed: int, rows: NDArray[np.int64], indices: NDArray[np.int64]) -> None:
            keys[rows], counters[rows] = seed_streams(seed, indices)
            if self.world.in_turn:
                episodes[rows] = rows + self.first - indices
            written[rows] = True

        new = np.flatnonzero(~self._seeded)
        if len(new):
            if self._seed is None:
                self._seed = int(np.random.SeedSequence().generate_state(1)[0])
            give(self._seed, new, new + self.first)
        if isinstance(seeds, int):
            rows = np.flatnonzero(chosen)
            give(seeds, rows, rows + self.first)
        for row, own in enumerate(seeds if isinstance(seeds, list) else ()):
            if own is not None and chosen[row]:
                give(own, np.array([row]), np.array([0]))
        rows = np.flatnonzero(written)
        if len(rows):
            self._write_state("rng_key", rows, keys[rows])
            self._write_state("rng_counter", rows, counters[rows])
            if "episode" in state_columns(self.world.state_type):
                self._write_state("episode", rows, episodes[rows])
        self._seeded |= written

    def _option_values(self, options: dict[str, Any], chosen: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
        """Check the options of reset() and return their values for every chosen environment."""
        legal = self.world.reset_options
        values: dict[str, NDArray[np.int64]] = {}
        for name, given in options.items():
            if name not in legal:
                known = ("reset_mask", *legal)
                raise ConfigError(
                    f"unknown reset option {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}"
                )
            array = np.asarray(given.cpu() if hasattr(given, "cpu") else given)
            if array.shape not in ((), (self.num_envs,)):
                raise ConfigError(f"{name} must be one number or {self.num_envs}, one for each; received {array.shape}")
            if array.dtype.kind not in "iuf" or (array != np.floor(array)).any():
                raise ConfigError(f"{name} = {given!r}: needs whole numbers")
            values[name] = np.broadcast_to(array.astype(np.int64), self.num_envs)[chosen]
        if values and self.world.check_options:
            self.world.check_options(values)
        return values

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

    def _bad_shape(self, actions: Any) -> ActionError:
        fractions = about_fractions(actions) if self._action_dtype.kind == "i" else ""
        kind = ActionTypeError if np.ndim(actions) == 0 else ActionError
        return kind(
            f"actions have shape {tuple(np.shape(actions))} and type {getattr(actions, 'dtype', type(actions))}; "
            f"expected one for each of {self.num_envs} environments: {self.action_space}. Nothing was stepped."
            f"{fractions}"
        )

    def _look(self, rows: NDArray[np.int64], moment: str) -> None:
        """Raise if a reward, or something that the rule's `observe` wrote, is NaN or infinite in one of these rows.

        Windows are copies of tables, which are checked when they are built.
        """
        out, observed = self.buffers.out, slice(self.buffers.out.window_floats, None)
        parts = {"the observation": on_host(out.observations)[rows, observed]}
        if moment == "step":
            ended = (on_host(out.terminated) | on_host(out.truncated))[rows]
            finals = np.where(ended[:, None], on_host(out.final_observations)[rows, observed], np.float32(0.0))
            parts |= {"the last observation": finals, "the reward": on_host(out.rewards)[rows, None]}
        wrong: dict[int, str] = {}
        for name, values in parts.items():
            for at, place in np.argwhere(~np.isfinite(values)).tolist():
                which = "" if name == "the reward" else f" {self.world.observed[place]!r}"
                wrong.setdefault(int(rows[at]), f"{name}{which} is {values[at, place]}; expected a finite number")
        if wrong:
            faults = [Fault(row, None, "wrong value", text, "", moment) for row, text in sorted(wrong.items())]
            raise EnvironmentFaultError(faults, f"The rule of {self.world.name} is at fault. {RULE_ADVICE}")

    def _view(self, observations: Any, cursors: Any) -> Any:
        """Shape a buffer of observation rows as the observation space says, without copying."""
        if self.observation == "flat":
            return observations
        account = observations[:, self.buffers.out.window_floats :]
        if self.observation == "cursor":
            return {"account": account, "cursor": cursors}
        parts, at = {"account": account}, 0
        for name, (rows, width) in zip(self.world.window_names, self.world.window_shapes, strict=True):
            parts[name] = observations[:, at : at + rows * width].reshape(len(observations), rows, width)
            at += rows * width
        return parts

    def _set_views(self, buffers: Buffers) -> None:
        """Take these buffers, and shape what a step returns from them."""
        self.buffers, out = buffers, buffers.out
        self._observation_view = self._view(out.observations, out.cursors)
        self._final_view = self._view(out.final_observations, out.final_cursors)
        self._statistics_view = {name: out.statistics[:, k] for k, name in enumerate(self.world.statistics)}

    def _infos_of_ended(self, ended: Any) -> dict[str, Any]:
        final, statistics = self._final_view, self._statistics_view
        return {"final_obs": final, "_final_obs": ended, "statistics": statistics, "_statistics": ended}

    def _observations(self) -> Any:
        return map_nested(self._copy_array, self._observation_view) if self.copy else self._observation_view

    def render(self) -> tuple[str, ...] | None:
        """Return a line about each environment."""
        describe = self.world.describe_state
        if describe is None:
            return None
        columns = {name: np.asarray(self.column(name)) for name in state_columns(self.world.state_type)}
        return tuple(
            describe({name: values[..., row] for name, values in columns.items()}) for row in range(self.num_envs)
        )


def action_bounds(space: gymnasium.Space) -> tuple[Any, Any]:
    """Return the lowest and the highest legal action: numbers, or arrays if the parts of an action differ."""
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete) and np.any(space.start):
        raise ConfigError(
            f"a rule's actions count from 0, received {space}; leave `start` out and let the rule add it to the action"
        )
    if isinstance(space, gymnasium.spaces.Discrete):
        return 0, int(space.n) - 1
    if isinstance(space, gymnasium.spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, gymnasium.spaces.MultiDiscrete):
        low, high = np.zeros_like(space.nvec), space.nvec - 1
    else:
        low, high = np.zeros(0), np.zeros(0)
    if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return low.flat[0].item(), high.flat[0].item()
    if low.size:
        return low, high
    raise ConfigError(f"a rule's action space must be Discrete, MultiDiscrete or Box, received {space}")
