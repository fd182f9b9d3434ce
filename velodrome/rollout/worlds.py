"""Environments as a learner sees them: tensors in, tensors out, on one device, whatever the backend.

After `step`, the attributes `observation`, `reward`, `terminated` and `truncated` are new; `final` holds the last
observation of the episodes that ended. They are views that the next step overwrites.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from velodrome.errors import BackendError, ConfigError
from velodrome.rollout.launch import capture
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.rule_env import RuleVectorEnv

# Names of a rule's statistics whose plain name would be mistaken for another metric.
METRIC_NAMES = {"reward": "return", "return": "equity_return"}


class Worlds:
    """What every kind shares: sizes, the action space and what became of the episodes that ended."""

    observation: Observation
    final: Observation
    reward: Tensor  # [n] float32
    terminated: Tensor  # [n] bool
    truncated: Tensor  # [n] bool

    def __init__(self, envs: VectorEnv, device: torch.device, shape: ObservationShape, names: tuple[str, ...]) -> None:
        self.envs = envs
        self.num_envs = envs.num_envs
        self.device = device
        self.shape = shape
        self.action_space = envs.single_action_space
        self.bank: WindowBank | None = None
        self.shortest_truncation = envs.world.shortest_truncation if isinstance(envs, RuleVectorEnv) else 1
        self.names = ("count", *(METRIC_NAMES.get(name, name) for name in names))
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        box = self.action_space if isinstance(self.action_space, gymnasium.spaces.Box) else None
        self.low = None if box is None else torch.from_numpy(box.low.astype(np.float32)).to(device)
        self.high = None if box is None else torch.from_numpy(box.high.astype(np.float32)).to(device)

    def legal(self, actions: Tensor) -> Tensor:
        """Return actions as the environments take them: continuous ones cut at the ends of their range."""
        if self.low is None or self.high is None:
            return actions
        return torch.minimum(torch.maximum(actions, self.low), self.high)

    def reset(self, seed: int) -> None:
        """Start all episodes; environment i draws from the stream (seed, i)."""
        raise NotImplementedError

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        raise NotImplementedError

    def take_episodes(self) -> dict[str, float]:
        """Return the mean of every statistic over the episodes that ended since the last call, and their count."""
        sums = self.sums.tolist()
        self.sums.zero_()
        count = sums[0]
        found = {"episode/count": count}
        if count:
            found |= {f"episode/{name}": value / count for name, value in zip(self.names[1:], sums[1:], strict=True)}
        return found

    def state(self) -> dict[str, Tensor]:
        """Return what a bit-identical continuation needs; empty if the environments cannot tell."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        raise NotImplementedError


class RuleWorlds(Worlds):
    """Rule environments on the CPU, read in place."""

    def __init__(self, envs: NativeVectorEnv) -> None:
        world = envs.world
        super().__init__(envs, torch.device("cpu"), rule_shape(envs), world.statistics)
        if world.window_shapes:
            self.bank = WindowBank(world.windows, world.cursors)
        out = envs.buffers.out
        self.observation = rule_observation(self, out.observations, out.cursors)
        self.final = rule_observation(self, out.final_observations, out.final_cursors)
        self.reward, self.terminated, self.truncated = map(
            torch.from_numpy, (out.rewards, out.terminated, out.truncated)
        )

    def reset(self, seed: int) -> None:
        """Start all episodes; environment i draws from the stream (seed, i)."""
        self.envs.reset(seed=seed)

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        infos = self.envs.step(self.legal(actions).numpy())[4]
        if infos:
            ended = infos["_statistics"]
            self.sums[0] += int(ended.sum())
            statistics = self.envs.buffers.out.statistics  # type: ignore[attr-defined]
            self.sums[1:] += torch.from_numpy(statistics[ended].sum(axis=0))

    def state(self) -> dict[str, Tensor]:
        """Return the state of all environments and the last observations."""
        buffers = self.envs.buffers  # type: ignore[attr-defined]
        out = buffers.out
        return {
            "blocks": torch.from_numpy(buffers.blocks.view(np.ndarray).view(np.uint8).copy()),
            "observations": torch.from_numpy(out.observations.copy()),
            "cursors": torch.from_numpy(out.cursors.copy()),
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self.envs.reset(seed=0)  # marks every environment as begun
        buffers = self.envs.buffers  # type: ignore[attr-defined]
        blocks = buffers.blocks.view(np.ndarray).view(np.uint8)
        if tensors["blocks"].shape != blocks.shape:
            raise ConfigError(
                f"The saved state of the environments has {tensors['blocks'].numel()} bytes and these have "
                f"{blocks.size}: another environment, other parameters or another num_envs made it."
            )
        blocks[:] = tensors["blocks"].numpy()
        buffers.out.observations[:] = tensors["observations"].numpy()
        buffers.out.cursors[:] = tensors["cursors"].numpy()


class CudaWorlds(Worlds):
    """Rule environments on a GPU; a step is kernel launches and nothing else, so that a CUDA graph can hold it."""

    def __init__(self, envs: Any, dtype: torch.dtype = torch.float32) -> None:
        world = envs.world
        super().__init__(envs, envs.device, rule_shape(envs), world.statistics)
        if world.window_shapes:
            self.bank = WindowBank(world.windows, world.cursors, envs.device, dtype)
        out = envs.buffers.out
        self.observation = rule_observation(self, out.observations, out.cursors)
        self.final = rule_observation(self, out.final_observations, out.final_cursors)
        self.reward, self.terminated, self.truncated = out.rewards, out.terminated, out.truncated
        self.statistics = out.statistics
        self.actions_taken = envs._shape_of_actions()  # [n], or [n, size]
        from velodrome.rollout.cuda_rows import count_ended

        self.count_ended = count_ended

    def reset(self, seed: int) -> None:
        """Start all episodes; environment i draws from the stream (seed, i)."""
        self.envs.reset(seed=seed)

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        self.envs.step_kernels(self.legal(actions).reshape(self.actions_taken))  # type: ignore[attr-defined]
        self.count_ended(self.num_envs, self.terminated, self.truncated, self.statistics, self.sums)

    def seconds_of_steps(self, actions: Tensor) -> float:
        """Return how long these steps, [steps, n], take on the device as a graph; everything is then put back."""
        saved, sums = self.state(), self.sums.clone()
        graph = torch.cuda.CUDAGraph()
        with capture(graph):
            for t in range(len(actions)):
                self.step(actions[t])
        graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        self.load_state(saved)
        self.sums.copy_(sums)
        return begin.elapsed_time(end) / 1e3

    def state(self) -> dict[str, Tensor]:
        """Return the state of all environments and the last observations."""
        out = self.envs.buffers.out  # type: ignore[attr-defined]
        blocks = self.envs.buffers.blocks  # type: ignore[attr-defined]
        return {
            "blocks": blocks.cpu().clone(),
            "observations": out.observations.cpu().clone(memory_format=torch.contiguous_format),
            "cursors": out.cursors.cpu().clone(),
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self.envs.reset(seed=0)
        buffers = self.envs.buffers  # type: ignore[attr-defined]
        if tensors["blocks"].shape != buffers.blocks.shape:
            raise ConfigError("The saved state is of another environment, other parameters or another num_envs.")
        buffers.blocks.copy_(tensors["blocks"])
        buffers.out.observations.copy_(tensors["observations"])
        buffers.out.cursors.copy_(tensors["cursors"])


class ForeignWorlds(Worlds):
    """Any gymnasium VectorEnv that starts the next episode in the step that ends one; observations are flattened.

    Such environments cannot be saved: a run that resumes starts new episodes.
    """

    def __init__(self, envs: VectorEnv, device: torch.device | str = "cpu") -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise BackendError(
                f"autoreset_mode is {mode}; learners need AutoresetMode.SAME_STEP, which keeps the last observation of "
                f"an episode. Make the environments with vd.make_vec, or with autoreset_mode=AutoresetMode.SAME_STEP."
            )
        self.space = envs.single_observation_space
        size = gymnasium.spaces.flatdim(self.space)
        super().__init__(envs, torch.device(device), ObservationShape(size), ("reward", "length"))
        n = self.num_envs
        self.observation = Observation(torch.zeros((n, size), device=self.device))
        self.final = Observation(torch.zeros((n, size), device=self.device))
        self.reward = torch.zeros(n, device=self.device)
        self.terminated = torch.zeros(n, dtype=torch.bool, device=self.device)
        self.truncated = torch.zeros(n, dtype=torch.bool, device=self.device)
        self.returns, self.lengths = np.zeros(n), np.zeros(n, np.int64)

    def _flat_one(self, observation: Any) -> NDArray[np.float32]:
        return np.asarray(gymnasium.spaces.flatten(self.space, observation), np.float32)

    def _flat(self, observations: Any) -> Tensor:
        if isinstance(self.space, gymnasium.spaces.Box):
            rows = np.asarray(observations, np.float32).reshape(len(observations), -1)
        else:
            parts = gymnasium.vector.utils.iterate(self.envs.observation_space, observations)
            rows = np.stack([self._flat_one(part) for part in parts])
        return torch.from_numpy(rows)

    def reset(self, seed: int) -> None:
        """Start all episodes; environment i is seeded with seed + i, as gymnasium does."""
        self.observation.values.copy_(self._flat(self.envs.reset(seed=seed)[0]))
        self.returns[:], self.lengths[:] = 0.0, 0

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        legal = self.legal(actions).cpu().numpy()
        observations, rewards, terminated, truncated, infos = self.envs.step(legal)
        self.observation.values.copy_(self._flat(observations))
        for target, array in ((self.reward, rewards), (self.terminated, terminated), (self.truncated, truncated)):
            target.copy_(torch.from_numpy(np.asarray(array)))
        self.returns += rewards
        self.lengths += 1
        rows = np.flatnonzero(terminated | truncated)
        if len(rows):
            last = infos["final_obs"]
            for row in rows:
                self.final.values[int(row)] = torch.from_numpy(self._flat_one(last[row])).to(self.device)
            self.sums += torch.tensor(
                [len(rows), self.returns[rows].sum(), self.lengths[rows].sum()], dtype=torch.float64, device=self.device
            )
            self.returns[rows], self.lengths[rows] = 0.0, 0


def rule_shape(envs: RuleVectorEnv) -> ObservationShape:
    """Return the size of a rule environment's observations; they must be asked for by cursor."""
    if envs.observation != "cursor":
        raise BackendError(f"observation = {envs.observation!r}: a learner reads windows by cursor; use 'cursor'.")
    return ObservationShape(len(envs.world.observed), envs.world.window_shapes)


def rule_observation(worlds: Worlds, observations: Any, cursors: Any) -> Observation:
    """Return a rule environment's buffers as an observation, without a copy."""
    values, bars = (part if isinstance(part, Tensor) else torch.from_numpy(part) for part in (observations, cursors))
    return Observation(values, bars if worlds.bank is not None else None)


def make_worlds(envs: VectorEnv, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Worlds:
    """Return the learner's view of environments; `dtype` is that of market windows on a GPU."""
    if isinstance(envs, NativeVectorEnv):
        return RuleWorlds(envs)
    if isinstance(envs, RuleVectorEnv):
        return CudaWorlds(envs, dtype)
    return ForeignWorlds(envs, device)
