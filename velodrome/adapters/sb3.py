"""Velodrome's environments for Stable-Baselines3: a real `VecEnv`, on which its algorithms and wrappers work.

Stable-Baselines3 keeps references to what a step returns, so every step returns new arrays, whatever the backend.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from velodrome.adapters.episode_ends import FINAL_KEYS, last_observations, statistics_of
from velodrome.adapters.gymnasium import from_gymnasium
from velodrome.adapters.library_class import with_base
from velodrome.envs.contract import state_columns
from velodrome.errors import BackendError, ConfigError, VelodromeError, did_you_mean
from velodrome.vector.infos import take_apart
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.space_arrays import map_nested, on_host
from velodrome.vector.workers.env_host import has_layer
from velodrome.vector.workers.foreign_env import ForeignVectorEnv

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
else:
    VecEnv = object  # the class that `vec_env_class` makes has the real one as its second base

# Keys besides `final_info` that describe the episode that ended in a row, not the one that began.
ENDED_KEYS = ("statistics", "episode", "fault")
PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class NoAttributeError(VelodromeError, AttributeError):
    """Environments do not have this attribute or method."""


class UnsupportedSpaceError(ConfigError, NotImplementedError):
    """A space that Stable-Baselines3 does not take; it raises the latter."""


def to_sb3(envs: VectorEnv, *, monitor: bool = True) -> VelodromeVecEnv:
    """Return environments as a `VecEnv` of Stable-Baselines3.

    envs: what `vd.make_vec` returns, or any Gymnasium vector environment that `from_gymnasium` takes. Those of the
        cuda backend work too, but every step copies everything to the host, because SB3 reads it there.
    monitor: at the end of an episode add what SB3 logs as "episode": {"r": return, "l": length, "t": seconds}.
    """
    return vec_env_class()(envs, monitor=monitor)


@functools.cache
def vec_env_class() -> type[VelodromeVecEnv]:
    """Return the class of what `to_sb3` returns; imports Stable-Baselines3."""
    return with_base(VelodromeVecEnv, "stable_baselines3.common.vec_env", "VecEnv", "Stable-Baselines3", "to_sb3")


class VelodromeVecEnv(VecEnv):
    """Vector environments as Stable-Baselines3 sees them.

    Rewards are float32 and `dones` is terminated or truncated. Where an episode ended, the info has
    "terminal_observation", "TimeLimit.truncated" (cut off, but not terminated), "episode" if monitored, and the rule's
    "statistics" or the environment's own info of that step. Elsewhere it is the environment's own info, or empty.
    """

    def __init__(self, envs: VectorEnv, *, monitor: bool = True) -> None:
        envs = from_gymnasium(envs)
        check_spaces(envs)
        self.vector_env = envs
        self.monitor = monitor
        self.spec = envs.spec
        self._base = envs.unwrapped
        self._rule = self._base if isinstance(self._base, RuleVectorEnv) else None
        # A rule keeps its own sums, but a wrapper may change its rewards; all other sums are kept here.
        self._summed_by_rule = isinstance(envs, RuleVectorEnv) and {"reward", "length"} <= set(envs.world.statistics)
        self._returns = np.zeros(envs.num_envs, np.float64)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._started = time.time()
        self._seed: int | None = None
        self._actions: Any = None
        self._action_dtype = np.dtype(envs.single_action_space.dtype)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    # Episodes

    def reset(self) -> Any:
        """Begin new episodes of all environments, with the seed and options that were set before."""
        self._check_size()
        seed: Any = self._seed
        plans = self._reset_plans()
        if len(plans) > 1 and seed is not None:
            seed = [seed + row for row in range(self.num_envs)]
        self.reset_infos = [{} for _ in range(self.num_envs)]
        for rows, options in plans:
            observations, infos = self.vector_env.reset(seed=seed, options=options)
            for row, info in take_apart(infos, np.asarray(rows)).items():
                self.reset_infos[row] = info
        self._seed = None
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:] = 0.0, 0
        return self._copied(observations)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Choose the seed of the next reset(), which is passed to `envs.reset(seed=seed)`."""
        seeds = super().seed(seed)
        self._seed = seeds[0]
        return seeds

    def _reset_plans(self) -> list[tuple[list[int], dict[str, Any] | None]]:
        """Return rows with the options of set_options() as vector environments take them: one set for each reset."""
        given, rows = self._options, list(range(self.num_envs))
        if self._rule is not None:
            if any(own.keys() != given[0].keys() for own in given):
                raise ConfigError("options name other things for some environments; give the same names to each")
            return [(rows, {name: np.array([own[name] for own in given]) for name in given[0]} or None)]
        groups: list[tuple[list[int], dict[str, Any]]] = []
        for row, own in enumerate(given):
            same = next((group for group, options in groups if _equal(options, own)), None)
            if same is None:
                groups.append(([row], own))
            else:
                same.append(row)
        if len(groups) == 1:
            return [(rows, dict(given[0]) or None)]
        if not isinstance(self._base, ForeignVectorEnv):
            raise ConfigError(
                f"options differ between environments: {given[0]!r} … {given[-1]!r}; {type(self._base).__name__} takes "
                f"one set of options for all. Make the environments with vd.make_vec, or give set_options() one dict."
            )
        return [(group, {**own, "reset_mask": np.isin(rows, group)}) for group, own in groups]

    def step_async(self, actions: NDArray) -> None:
        """Keep the actions of the step that step_wait() takes."""
        given = np.asarray(actions)
        if given.dtype.kind == "f" and self._action_dtype.kind in "iu":
            # SB3's policies choose MultiBinary actions as floats. Those that are not whole are left to be refused.
            with np.errstate(invalid="ignore"):
                whole = given.astype(self._action_dtype)
            given = whole if np.array_equal(whole, given) else given
        self._actions = given

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict]]:
        """Step all environments; see the class for what comes back."""
        self._check_size()
        observations, rewards, terminated, truncated, infos = self.vector_env.step(self._actions)
        rewards, terminated, truncated = on_host(rewards), on_host(terminated), on_host(truncated)
        dones = np.logical_or(terminated, truncated)
        if not self._summed_by_rule:
            self._returns += rewards
            self._lengths += 1
        ended = np.flatnonzero(dones)
        row_infos = self._row_infos(infos, ended)
        if len(ended):
            last = last_observations(infos, ended)
            for row, observation in zip(ended.tolist(), last, strict=True):
                info = row_infos[row]
                info["terminal_observation"] = observation
                info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
                if self.monitor:
                    info["episode"] = self._episode(row, info)
            self._returns[ended], self._lengths[ended] = 0.0, 0
        return self._copied(observations), np.array(rewards, np.float32), dones, row_infos

    def _row_infos(self, infos: dict[str, Any], ended: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return an info for each environment, new in every step, because SB3's wrappers write into them."""
        if self.vector_env is self._rule:
            rows: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for row, told in zip(ended.tolist(), statistics_of(infos, ended), strict=True):
                rows[row]["statistics"] = told
            return rows
        begun_keys = [key for key in infos if key.removeprefix("_") not in FINAL_KEYS]
        said = {key: map_nested(_without_device, infos[key]) for key in begun_keys}
        rows = list(take_apart(said, np.arange(self.num_envs)).values())
        if len(ended):
            final = take_apart({"info": infos.get("final_info", {})}, ended)
            for row in ended.tolist():
                # Everything else about such a row belongs to the episode that began in this step.
                begun, info = rows[row], dict(final[row]["info"])
                info |= {key: begun.pop(key) for key in ENDED_KEYS if key in begun}
                self.reset_infos[row], rows[row] = begun, info
        return rows

    def _episode(self, row: int, info: dict[str, Any]) -> dict[str, Any]:
        if self._summed_by_rule:
            total, length = info["statistics"]["reward"], int(info["statistics"]["length"])
        else:
            total, length = float(self._returns[row]), int(self._lengths[row])
        return {"r": total, "l": length, "t": round(time.time() - self._started, 6)}

    def _copied(self, observations: Any) -> Any:
        return map_nested(lambda part: on_host(part) if hasattr(part, "detach") else part.copy(), observations)

    def _check_size(self) -> None:
        if self.vector_env.num_envs != self.num_envs:
            raise BackendError(
                f"the environments were resized from {self.num_envs} to {self.vector_env.num_envs}, but a VecEnv of "
                f"SB3 keeps its size; call vd.to_sb3 again and give the result to the algorithm with set_env()."
            )

    def close(self) -> None:
        """Close the environments."""
        self.vector_env.close()

    # Single environments

    @property
    def envs(self) -> list[Any]:
        """The environments themselves, where they are objects in this process, as DummyVecEnv has them."""
        single = getattr(self._base, "envs", None)
        if single is None:
            raise NoAttributeError(
                f"{type(self._base).__name__} has no environments in this process; get_attr, set_attr and env_method "
                "reach them where they are. `vector_env` is the vector environment."
            )
        return list(single)

    def _rows(self, indices: VecEnvIndices) -> list[int]:
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of environments; those of a rule have the columns of their state too."""
        rows = self._rows(indices)
        if self._rule is not None and attr_name in state_columns(self._rule.world.state_type):
            values = self._rule.column(attr_name)
            return [values[..., row] for row in rows]
        if self._rule is not None or attr_name == "render_mode":
            if not hasattr(self.vector_env, attr_name):
                raise self._missing(attr_name)
            return [getattr(self.vector_env, attr_name)] * len(rows)
        if isinstance(self._base, ForeignVectorEnv):
            return self._base.ask_some(rows, "get_attribute", attr_name)
        found = self._of_environments("get_attr")(attr_name)
        return [found[row] for row in rows]

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have an attribute; it is not sent here from where they run."""
        if isinstance(self._base, ForeignVectorEnv):
            return all(self._base.ask_some(range(self.num_envs), "has_attribute", attr_name))
        return super().has_attr(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of environments; the parameters of rule environments are fixed when they are made."""
        if self._rule is not None:
            raise ConfigError(
                f"set_attr({attr_name!r}): the parameters of rule environments are fixed when they are made. Make "
                f"others with vd.make_vec; set_options() chooses where the next episodes start."
            )
        rows = self._rows(indices)
        if isinstance(self._base, ForeignVectorEnv):
            self._base.set_some(rows, attr_name, value)
            return
        values = [value] * self.num_envs if len(set(rows)) == self.num_envs else list(self.get_attr(attr_name))
        for row in rows:
            values[row] = value
        self._of_environments("set_attr")(attr_name, values)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list:
        """Call a method of environments; rule environments have only `render`."""
        rows = self._rows(indices)
        if self._rule is not None:
            if method_name != "render":
                raise self._missing(method_name)
            lines = self._rule.render()
            return [None if lines is None else lines[row] for row in rows]
        if isinstance(self._base, ForeignVectorEnv):
            return list(self._base.call_some(rows, method_name, *method_args, **method_kwargs))
        single = getattr(self._base, "envs", None)
        if single is not None:
            return [single[row].get_wrapper_attr(method_name)(*method_args, **method_kwargs) for row in rows]
        if rows != list(range(self.num_envs)):
            raise BackendError(
                f"env_method({method_name!r}, indices={indices}): {type(self._base).__name__} calls a method of all "
                f"environments or of none; leave indices out, or make them with vd.make_vec."
            )
        return list(self._of_environments("call")(method_name, *method_args, **method_kwargs))

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """Return whether environments are wrapped with a class, wherever they run.

        With `monitor` they count as wrapped with SB3's Monitor, because the infos say what it would.
        """
        from stable_baselines3.common.monitor import Monitor

        rows = self._rows(indices)
        if self.monitor and issubclass(Monitor, wrapper_class):
            return [True] * len(rows)
        name = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        if isinstance(self._base, ForeignVectorEnv):
            return self._base.ask_some(rows, "has_layer", name)
        single = getattr(self._base, "envs", None)
        return [single is not None and has_layer(single[row], name) for row in rows]

    def _of_environments(self, name: str) -> Any:
        if not hasattr(self._base, name):
            raise NoAttributeError(f"{type(self._base).__name__} has no `{name}`: it cannot reach single environments.")
        return getattr(self._base, name)

    def _missing(self, name: str) -> NoAttributeError:
        assert self._rule is not None
        known = ("render", *state_columns(self._rule.world.state_type))
        return NoAttributeError(
            f"environments of the rule {self._rule.world.name!r} have no {name!r}; they have the method render and the "
            f"attributes of {type(self._rule).__name__}, and of their state {', '.join(known[1:])}."
            f"{did_you_mean(name, known)}"
        )

    def get_images(self) -> Sequence[NDArray | None]:
        """Return a picture of each environment, where they were made with render_mode="rgb_array"."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode is {self.render_mode!r}; pictures need 'rgb_array'", stacklevel=2)
            return [None] * self.num_envs
        images: Any = self.vector_env.render()
        return list(images)


def _equal(options: dict[str, Any], others: dict[str, Any]) -> bool:
    try:
        return bool(options == others)
    except ValueError:  # arrays are equal element by element, so they are given to each environment by itself
        return False


def _without_device(value: Any) -> Any:
    return on_host(value) if hasattr(value, "detach") else value


def check_spaces(envs: VectorEnv) -> None:
    """Refuse spaces that Stable-Baselines3 does not take."""
    observation, action = envs.single_observation_space, envs.single_action_space
    parts = observation.spaces.values() if isinstance(observation, spaces.Dict) else (observation,)
    for part in parts:
        _check_space("observation", part, observation)
    _check_space("action", action, action)
    base = envs.unwrapped
    if isinstance(base, RuleVectorEnv) and base.observation == "cursor":
        raise ConfigError(
            "observation = 'cursor' is a row number, which says nothing to SB3's networks; make the environments with "
            "observation='flat' or 'dict'."
        )


def _check_space(kind: str, part: Space, whole: Space) -> None:
    if not isinstance(part, PLAIN):
        raise UnsupportedSpaceError(
            f"the {kind} space is {whole}; Stable-Baselines3 takes Box, Discrete, MultiDiscrete and MultiBinary"
            f"{', and a Dict of those' if kind == 'observation' else ''}, no Tuple and nothing nested. Wrap the "
            f"environment so that it has such a space (gymnasium.wrappers.FlattenObservation, for one)."
        )
    start = getattr(part, "start", 0)
    if np.any(start != 0):
        raise UnsupportedSpaceError(f"the {kind} space {part} starts at {start}; Stable-Baselines3 counts from 0.")
