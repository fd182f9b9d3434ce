"""Single Gymnasium environments: one of a rule, by the same compiled loop over a batch of one; one drawn of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np

from velodrome.envs.contract import World, state_columns
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.space_arrays import map_nested


class RuleEnv(gymnasium.Env):
    """One environment. `compiled=False` runs the rule as plain Python, so that a debugger can step into it.

    `shared` are seed, observation and check_actions of `RuleVectorEnv`.
    """

    def __init__(self, world: World, *, render_mode: Literal["ansi"] | None = None, **shared: Any) -> None:
        self.metadata = {"render_modes": ["ansi"], "render_fps": 0}
        self.render_mode = render_mode
        self.envs = NativeVectorEnv(world, 1, autoreset=False, threads=1, copy=True, **shared)
        self.action_space = self.envs.single_action_space
        self.observation_space = self.envs.single_observation_space

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; options["cursor"] and options["last"] choose where, if the environment has such options."""
        super().reset(seed=seed)
        observations, _ = self.envs.reset(seed=seed, options=options)
        return _first(observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; at the end of an episode info["statistics"] holds its statistics by name."""
        actions = np.asarray(action)[None]
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        info = {}
        if "statistics" in infos:
            info["statistics"] = {name: float(values[0]) for name, values in infos["statistics"].items()}
        return _first(observations), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def state(self) -> dict[str, Any]:
        """Return a copy of the state's columns by name, for people and debuggers."""
        names = state_columns(self.envs.world.state_type)
        return {name: self.envs.column(name)[..., 0] for name in names}

    def render(self) -> str | None:
        """Return a line about the environment."""
        lines = self.envs.render() if self.render_mode == "ansi" else None
        return lines[0] if lines else None

    def close(self) -> None:
        self.envs.close()


def _first(observations: Any) -> Any:
    return map_nested(lambda part: np.asarray(part[0]), observations)


class DrawnEnv(gymnasium.Env):
    """Several environments with the same spaces as one: an episode is played in one of them, drawn at random."""

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        self.envs = list(envs)
        self.current = self.envs[0]
        self.observation_space, self.action_space = self.current.observation_space, self.current.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Draw an environment and begin an episode in it."""
        super().reset(seed=seed)
        self.current = self.envs[int(self.np_random.integers(len(self.envs)))]
        return self.current.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take a step in it."""
        return self.current.step(action)

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()
