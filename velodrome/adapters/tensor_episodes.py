"""Vector environments as torch tensors: on the host, or on a device from which nothing is read back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from velodrome.adapters.episode_ends import last_observations
from velodrome.adapters.gymnasium import reset_rows
from velodrome.vector.rule_env import action_bounds
from velodrome.vector.space_arrays import flat_leaves, map_nested

if TYPE_CHECKING:
    from torch import Tensor

OUTSIDE = "an action lies outside its space; clip or mask the policy's output (check_actions=False skips this check)"


class Stepped(NamedTuple):
    """What a step returned, one row per environment; where an episode ended, `observations` has its last one."""

    observations: Any
    rewards: Tensor  # [n] float32
    terminated: Tensor  # [n] bool
    truncated: Tensor  # [n] bool


class Episodes(ABC):
    """Vector environments as tensors; the caller may keep what is returned."""

    def __init__(self, envs: VectorEnv, begun: Any) -> None:
        self.envs = envs
        self._seen: Any = None  # what the environments returned last; views that their next step overwrites
        self._begun = begun  # [n] bool: the last episode ended in the last step, so the next has begun

    def begin(self, seed: int | None) -> None:
        """Begin new episodes of all environments."""
        self._seen, _ = self.envs.reset(seed=seed)
        self.settle()

    def settle(self) -> None:
        """Accept the episodes that began in the last step, as `restart` of exactly these rows would."""
        self._begun = self._begun & False

    @abstractmethod
    def step(self, actions: Tensor) -> Stepped:
        """Step all environments."""

    @abstractmethod
    def restart(self, rows: Tensor) -> None:
        """Begin new episodes in rows, [n] bool, except where the last step has begun one already."""

    @abstractmethod
    def observations(self) -> Any:
        """Return the observations that the next step starts from."""


class HostEpisodes(Episodes):
    """Environments that take and return NumPy arrays: all but those of the cuda backend."""

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(envs, np.zeros(envs.num_envs, bool))

    def step(self, actions: Tensor) -> Stepped:
        import torch

        chosen = actions.detach().cpu().numpy().astype(self.envs.single_action_space.dtype, copy=False)
        self._seen, rewards, terminated, truncated, infos = self.envs.step(chosen)
        self._begun = np.logical_or(terminated, truncated)
        observations = map_nested(np.array, self._seen)
        rows = np.flatnonzero(self._begun)
        if len(rows):
            space = self.envs.single_observation_space
            targets = flat_leaves(space, observations)
            for row, last in zip(rows, last_observations(infos, rows), strict=True):
                for target, part in zip(targets, flat_leaves(space, last), strict=True):
                    target[row] = part
        return Stepped(
            map_nested(torch.from_numpy, observations),
            torch.from_numpy(np.array(rewards, np.float32)),
            torch.from_numpy(np.array(terminated, bool)),
            torch.from_numpy(np.array(truncated, bool)),
        )

    def restart(self, rows: Tensor) -> None:
        chosen = rows.detach().cpu().numpy()
        still = chosen & ~self._begun
        if still.any():
            self._seen, _ = reset_rows(self.envs, still, self._seen)
        self._begun = self._begun & ~chosen

    def observations(self) -> Any:
        import torch

        return map_nested(lambda part: torch.from_numpy(np.array(part)), self._seen)


class DeviceEpisodes(Episodes):
    """Environments of the cuda backend. Nothing here reads a value back, which would wait for the device."""

    def __init__(self, envs: VectorEnv, rule: Any) -> None:
        import torch

        self.device = rule.buffers.out.rewards.device
        super().__init__(envs, torch.zeros(envs.num_envs, dtype=torch.bool, device=self.device))
        self.rule = rule
        self._wrapped = envs is not rule
        # The environments' own check reads a flag back in every step; this one stays on the device.
        self._checks = rule.check_actions
        rule.check_actions = False
        low, high = action_bounds(rule.single_action_space)
        self._low, self._high = (torch.as_tensor(bound, device=self.device) for bound in (low, high))

    def step(self, actions: Tensor) -> Stepped:
        import torch

        actions = actions.to(self.device)
        if self._checks:
            torch._assert_async(((actions >= self._low) & (actions <= self._high)).all(), OUTSIDE)
        self._seen, rewards, terminated, truncated, infos = self.envs.step(actions)
        self._begun = terminated | truncated

        def last(final: Tensor, begun: Tensor) -> Tensor:
            return torch.where(self._begun.reshape(-1, *[1] * (begun.ndim - 1)), final, begun)

        final = infos["final_obs"]
        named = isinstance(final, dict)
        observations = {key: last(final[key], self._seen[key]) for key in final} if named else last(final, self._seen)
        return Stepped(observations, rewards.clone(), terminated.clone(), truncated.clone())

    def restart(self, rows: Tensor) -> None:
        rows = rows.to(self.device)
        still = rows & ~self._begun
        self._begun = self._begun & ~rows
        if not self._wrapped:
            begin_on_device(self.rule, still)
            self._seen = self.rule._observations()
        elif bool(still.any()):
            # A wrapper may change observations, so its own reset() must give the first ones; it takes no empty mask.
            self._seen, _ = self.envs.reset(options={"reset_mask": still})

    def observations(self) -> Any:
        return map_nested(lambda part: part.clone(), self._seen)


def begin_on_device(rule: Any, rows: Tensor) -> None:
    """Begin episodes in rows, [n] bool on the device, perhaps in none; reset() would read the mask on the host."""
    arguments = (rule._array(rows), rule._memory, rule._tables, rule._params, rule._out)
    rule._launch(rule._kernels.reset, rule._grid, *arguments)
    rule._gather(after_step=False)
