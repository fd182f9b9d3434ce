"""The CAGE-2 "workflow" project's vectorised environments, over Velodrome's CAGE-2 (docs/migrate/workflow_rl.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.adapters.episode_ends import ended_episodes
from velodrome.envs.cage2.display import true_state
from velodrome.envs.cage2.names import HOSTS
from velodrome.errors import ConfigError, did_you_mean, reworded
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.make import make_vec

SCENARIO = "Scenario2"
RED_AGENTS = {"B_lineAgent": "b_line", "RedMeanderAgent": "meander", "SleepAgent": "sleep"}


class B_lineAgent:
    """Names the Red agent that goes straight for the operational server."""


class RedMeanderAgent:
    """Names the Red agent that takes one subnet after the other."""


class SleepAgent:
    """Names the Red agent that does nothing."""


class Stepped(NamedTuple):
    """What a step returned."""

    observations: NDArray[np.float32]  # [n, 52]; where an episode ended, the first of the next one
    rewards: NDArray[np.float32]  # [n]
    dones: NDArray[np.bool_]  # [n]
    infos: list[dict[str, Any]]


class Ready(NamedTuple):
    """The environments whose step is done, and what it returned."""

    env_ids: NDArray[np.int64]  # [n]
    observations: NDArray[np.float32]
    rewards: NDArray[np.float32]
    dones: NDArray[np.bool_]
    infos: list[dict[str, Any]]


class VectorizedCAGE2Envs:
    """Many CAGE-2 environments as ChallengeWrapper2 shows them; an episode begins in the step that ends another.

    red_agent_type: B_lineAgent, RedMeanderAgent or SleepAgent, those of CybORG too, or their names. max_steps: of an
    episode. params: further ones of vd.make_vec("cage2", …), such as seed=0.
    """

    def __init__(
        self,
        n_envs: int = 200,
        scenario_path: str | Path | None = None,
        red_agent_type: Any = RedMeanderAgent,
        *,
        max_steps: int = 100,
        **params: Any,
    ) -> None:
        self.n_envs = checked_count("n_envs", n_envs)
        check_scenario(scenario_path)
        self.scenario_path, self.red_agent_type = scenario_path, red_agent_type
        told = {"red_agent": red_agent(red_agent_type), "episode_length": max_steps, "observation_rule": "corrected"}
        with reworded({"episode_length": "max_steps"}):
            self.envs = make_vec("cage2", self.n_envs, copy=True, **{**told, **params})
        self.observation_space, self.action_space = self.envs.single_observation_space, self.envs.single_action_space
        self.observation_shape = self.observation_space.shape
        self._observations: NDArray[np.float32] | None = None

    def reset(self, env_ids: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Begin new episodes in some environments, all if none are named; return the observations of all."""
        if env_ids is None or self._observations is None:
            self._observations, _ = self.envs.reset()
        else:
            rows = np.zeros(self.n_envs, bool)
            rows[_legal_ids(env_ids, self.n_envs)] = True
            if rows.any():
                self._observations, _ = self.envs.reset(options={"reset_mask": rows})
        return np.array(self._observations)

    def step(self, actions: Any) -> Stepped:
        """Step all environments. Where an episode ends, its info has terminal_observation and episode (r, l)."""
        if self._observations is None:
            raise ConfigError("step() came before the first reset(); call reset() once.")
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        dones = terminated | truncated
        row_infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        for row, last, told in ended_episodes(infos, np.flatnonzero(dones)):
            episode = {"r": told["reward"], "l": int(told["length"])}
            row_infos[row] = {"terminal_observation": last, "episode": episode}
        self._observations = observations
        return Stepped(observations, rewards, dones, row_infos)

    def step_all(self, actions: Any) -> Stepped:
        """Step all environments and wait for them; the same as step()."""
        return self.step(actions)

    def step_async(self, actions: Any) -> Ready:
        """Step all environments and return those that are ready: all, because one compiled loop steps them at once."""
        return Ready(np.arange(self.n_envs), *self.step(actions))

    def get_true_states(self) -> list[dict[str, Any]]:
        """Return what is true of each environment by name (velodrome.envs.cage2.true_state says what there is)."""
        found = true_state(self.envs)
        return [{name: values[row] for name, values in found.items()} for row in range(self.n_envs)]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def red_agent(given: Any) -> str:
    """Return what Velodrome calls a Red agent that is named by its class or by a text."""
    name = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
    found = RED_AGENTS.get(name, name)
    if found not in (*RED_AGENTS.values(), "mixture"):
        raise ConfigError(
            f"red_agent_type = {name}: there is no such Red agent; there are {', '.join(RED_AGENTS)}, and 'mixture' of "
            f"them.{did_you_mean(name, RED_AGENTS)}"
        )
    return found


def check_scenario(path: str | Path | None) -> None:
    """Refuse a scenario other than Scenario2; its file is looked at if there is one."""
    if path is None:
        return
    given = Path(path)
    instead = f"Velodrome has the network of CAGE-2, {SCENARIO}, compiled in; play other scenarios with CybORG itself."
    if given.stem != SCENARIO:
        raise ConfigError(f"scenario_path = {given}: this is not {SCENARIO}.yaml. {instead}")
    if not given.is_file():
        return
    from velodrome.runs.config.files import read_file

    hosts = read_file(given).get("Hosts")
    if not isinstance(hosts, dict) or set(hosts) != set(HOSTS):
        there = ", ".join(map(str, hosts)) if isinstance(hosts, dict) else "none"
        raise ConfigError(f"scenario_path = {given}: its Hosts are {there[:200]}, not those of {SCENARIO}. {instead}")


def _legal_ids(env_ids: Sequence[int], n_envs: int) -> NDArray[np.int64]:
    found = np.atleast_1d(np.asarray(env_ids))
    if found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= n_envs):
        raise ConfigError(f"env_ids = {list(env_ids)!r}: needs whole numbers from 0 to {n_envs - 1}.")
    return found.astype(np.int64)
