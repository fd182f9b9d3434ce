"""Environments as a learner sees them: tensors in and out, on one device, whatever the backend.

After `step`, the attributes `observation`, `reward`, `terminated` and `truncated` are new; `final` holds the last
observation of the episodes that ended. They are views that the next step overwrites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from velodrome.errors import BackendError, ConfigError
from velodrome.rollout.disturbance import Disturbance, Strength
from velodrome.rollout.flattening import byte_columns, flat_size, row_writer, stacked
from velodrome.rollout.launch import capture
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank
from velodrome.rollout.ranks import summed
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.seeding import spread_seeds

# Statistics of a rule whose own name would be mistaken for another metric.
METRIC_NAMES = {"reward": "return", "return": "equity_return"}


class Worlds(ABC):
    """What all kinds share: sizes, the action space and the statistics of ended episodes."""

    observation: Observation
    final: Observation
    reward: Tensor  # [n] float32
    terminated: Tensor  # [n] bool
    truncated: Tensor  # [n] bool

    def __init__(self, envs: VectorEnv, device: torch.device, shape: ObservationShape, names: tuple[str, ...]) -> None:
        self.envs = envs
        self.num_envs = envs.num_envs
        self.first = self.others = 0  # environments of other ranks: those before these, and all
        self.device = device
        self.shape = shape
        self.action_space = envs.single_action_space
        self.bank: WindowBank | None = None  # of what the learner sees
        self.disturbance: Disturbance | None = None
        self.true_bank: WindowBank | None = None  # the same, undisturbed: for everything but learning
        self.shortest_truncation = envs.world.shortest_truncation if isinstance(envs, RuleVectorEnv) else 1
        self.names = ("count", *(METRIC_NAMES.get(name, name) for name in names))
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self.low, self.high = box_bounds(self.action_space, device)

    @property
    def all_envs(self) -> int:
        """The environments of all ranks that learn together."""
        return self.num_envs + self.others

    def join(self, first: int, total: int) -> None:
        """Be the environments from this number on, of so many that several ranks have together; before `reset`."""
        self.first, self.others = first, total - self.num_envs
        if isinstance(self.envs, RuleVectorEnv):
            self.envs.first = first

    def legal(self, actions: Tensor) -> Tensor:
        """Return actions as the environments take them: continuous ones are clipped to their range."""
        if self.low is None or self.high is None:
            return actions
        return torch.minimum(torch.maximum(actions, self.low), self.high)

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Start all episodes; what environment i draws depends only on (seed, i)."""

    @abstractmethod
    def step(self, actions: Tensor) -> None:
        """Step all environments."""

    @abstractmethod
    def resize(self, num_envs: int) -> None:
        """Go on with this many environments: the first keep their episodes, new ones begin theirs.

        The tensors are replaced. Statistics of episodes that have ended stay until they are taken.
        """

    def disturb(self, strength: Strength, seed: int) -> None:
        """Show the learner disturbed windows from now on; numbers depend on the seed and on what `renew` is told."""
        true = self.true_bank
        if true is None:
            raise ConfigError(
                "augment: noise and masks are for the windows of a market, and these environments show none. Leave it "
                "out, or give market.windows."
            )
        world = self.envs.world  # type: ignore[attr-defined]
        self.bank = WindowBank(world.windows, world.cursors, self.device, true.table.dtype)
        self.bank.is_disturbed = True
        self.disturbance = Disturbance(true, self.bank, world.cursors, strength, seed)

    def renew(self, steps: int) -> None:
        """Disturb the windows in another way, before the rollout that begins after this many steps."""
        if self.disturbance is not None:
            self.disturbance.write(steps)

    def take_sums(self) -> Tensor:
        """Return the count of episodes that ended since the last call, and the sum of each of their statistics."""
        taken = summed(self.sums).clone()
        self.sums.zero_()
        return taken

    def mean_episode(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the count and the mean of each statistic, given what `take_sums` returned."""
        count = sums[0]
        found = {"episode/count": count}
        if count:
            found |= {f"episode/{name}": value / count for name, value in zip(self.names[1:], sums[1:], strict=True)}
        return found

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what a bit-identical continuation needs; empty if the environments cannot be saved."""

    @abstractmethod
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""

    def check_cursors(self, cursors: Tensor) -> None:
        """Refuse saved cursors at which these environments show nothing."""
        raise ConfigError(f"The saved state has {cursors.numel()} cursors; environments of other libraries have none.")


class RuleWorlds(Worlds):
    """Rule environments, read in place: here on the CPU, in `CudaWorlds` on a GPU.

    device: where the learner is, if not where they are. Each step is then copied there: AMD's GPUs run no rules.
    """

    envs: Any

    def __init__(
        self, envs: RuleVectorEnv, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> None:
        world, own = envs.world, getattr(envs, "device", torch.device("cpu"))
        device = own if device is None else device
        self._is_copied = device != own
        if envs.observation != "cursor":
            raise BackendError(f"observation = {envs.observation!r}: a learner reads windows by cursor; use 'cursor'.")
        shape = ObservationShape(len(world.observed), world.window_shapes, world.instruments)
        super().__init__(envs, device, shape, world.statistics)
        if world.window_shapes:
            self.bank = self.true_bank = WindowBank(world.windows, world.cursors, device, dtype)
        if self._is_copied:
            self.sums = self.sums.cpu()  # episodes are counted where the environments are
        self._attach()

    def _attach(self) -> None:
        self.num_envs = self.envs.num_envs
        self._copies: list[tuple[Tensor, Tensor]] = []
        blocks, out = self.envs.buffers.blocks, self.envs.buffers.out
        cursors = (None, None) if self.bank is None else map(as_tensor, (out.cursors, out.final_cursors))
        observed = map(as_tensor, (out.observations, out.final_observations))
        self.observation, self.final = map(Observation, observed, cursors)
        results = (out.rewards, out.terminated, out.truncated, out.statistics)
        self.reward, self.terminated, self.truncated, self.statistics = map(as_tensor, results)
        # As bytes; what is on a device is bytes already.
        self._blocks = as_tensor(blocks if isinstance(blocks, Tensor) else blocks.view(np.ndarray).view(np.uint8))
        self._saved = {"observations": as_tensor(out.observations), "cursors": as_tensor(out.cursors)}
        if self._is_copied:
            self.observation, self.final = (
                Observation(self._copied(seen.values), None if seen.cursor is None else self._copied(seen.cursor))
                for seen in (self.observation, self.final)
            )
            self.reward, self.terminated, self.truncated = map(
                self._copied, (self.reward, self.terminated, self.truncated)
            )

    def _copied(self, tensor: Tensor) -> Tensor:
        """Return a copy where the learner is; `_send` brings it up to date."""
        copy = torch.empty_like(tensor, device=self.device).copy_(tensor)
        self._copies.append((copy, tensor))
        return copy

    def _send(self) -> None:
        """Copy what was written to the learner's device, if that is another."""
        for target, source in self._copies:
            target.copy_(source)

    def reset(self, seed: int) -> None:
        """Start all episodes; environment i draws from the stream (seed, i)."""
        self.envs.reset(seed=seed)
        self._send()

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        infos = self.envs.step(self.legal(actions).cpu().numpy())[4]
        self._send()
        if infos:
            ended = infos["_statistics"]
            self.sums[0] += int(ended.sum())
            self.sums[1:] += torch.from_numpy(self.envs.buffers.out.statistics[ended].sum(axis=0))

    def resize(self, num_envs: int) -> None:
        """Go on with this many environments; graphs captured before belong to the old ones."""
        self.envs.resize(num_envs)
        self._attach()

    def state(self) -> dict[str, Tensor]:
        """Return the state of all environments and the last observations."""
        saved = {"blocks": self._blocks, **self._saved}
        return {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in saved.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        if tensors["blocks"].shape != self._blocks.shape:
            raise ConfigError(
                f"The saved state of the environments has {tensors['blocks'].numel()} bytes and these have "
                f"{self._blocks.numel()}: another environment, other parameters or another num_envs made it."
            )
        self.check_cursors(tensors["cursors"])
        for name, tensor in {"blocks": self._blocks, **self._saved}.items():
            tensor.copy_(tensors[name])
        for name, (low, high) in self.envs.world.index_ranges.items():
            column = self.envs.column(name)
            _refuse_beyond(f"the state column {name}", column.min(), column.max(), low, high)
        self.envs.mark_begun()
        self._send()

    def check_cursors(self, cursors: Tensor) -> None:
        """Refuse saved cursors that are at no bar of this market."""
        spans = self.envs.world.cursors
        if spans and cursors.numel():
            low, high = min(begin for begin, _ in spans), max(end for _, end in spans) - 1
            _refuse_beyond("a cursor", cursors.min(), cursors.max(), low, high)


def _refuse_beyond(what: str, least: Any, most: Any, low: int, high: int) -> None:
    """Refuse numbers by which compiled code would read where there is nothing of an environment's."""
    if not low <= int(least) <= int(most) <= high:
        raise ConfigError(
            f"The saved state of the environments has {what} at {int(least)} … {int(most)}; these have {low} … {high}. "
            "It was made on other data, or is damaged; use a checkpoint that this run wrote."
        )


class CudaWorlds(RuleWorlds):
    """Rule environments on a GPU; a step is nothing but kernel launches, so that a CUDA graph can hold it."""

    def __init__(self, envs: RuleVectorEnv, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(envs, dtype)
        from velodrome.rollout.cuda_rows import count_ended

        self.count_ended = count_ended

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        shape = (self.envs.num_envs, *self.envs._action_shape)  # [n], or [n, size]
        self.envs.step_kernels(self.legal(actions).reshape(shape))
        self.count_ended(self.num_envs, self.terminated, self.truncated, self.statistics, self.sums)

    def seconds_of_steps(self, actions: Tensor) -> float:
        """Return how long these steps, [steps, n], take on the device as a graph; the state is restored afterwards."""
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


class ForeignWorlds(Worlds):
    """Any gymnasium VectorEnv that starts the next episode in the step that ends one; observations are flattened.

    Such environments cannot be saved, so a resumed run starts new episodes.
    """

    def __init__(self, envs: VectorEnv, device: torch.device | str = "cpu") -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise BackendError(
                f"autoreset_mode is {mode}; learners need AutoresetMode.SAME_STEP, which keeps the last observation of "
                f"an episode. Make the environments with vd.make_vec, or with autoreset_mode=AutoresetMode.SAME_STEP."
            )
        self.space = envs.single_observation_space
        shape = ObservationShape(flat_size(self.space), bytes=byte_columns(self.space))
        super().__init__(envs, torch.device(device), shape, ("reward", "length"))
        self.write_rows = row_writer(self.space)
        self.sums = self.sums.cpu()  # episodes are counted on the host, where the environments are
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._attach()

    def _attach(self) -> None:
        n = self.num_envs = self.envs.num_envs
        # Written on the host; a GPU gets copies. The order is that of the tensors below.
        rows = [torch.zeros((n, self.shape.values)) for _ in range(2)]
        host = [*rows, torch.zeros(n), torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)]
        self._rows, self._final_rows, *self._results = (tensor.numpy() for tensor in host)
        self._ended = np.zeros(n, bool)
        placed = [tensor.to(self.device) for tensor in host]  # the same tensors on the CPU
        self._copies = [(one, other) for one, other in zip(placed, host, strict=True) if one is not other]
        self.observation, self.final = Observation(placed[0]), Observation(placed[1])
        self.reward, self.terminated, self.truncated = placed[2:]

    def _send(self) -> None:
        """Copy what was written on the host to the device, if that is another."""
        for target, source in self._copies:
            target.copy_(source)

    def reset(self, seed: int) -> None:
        """Start all episodes; environment i has the seed `spread_seed(seed, i)`."""
        seeds: Any = spread_seeds(
            seed, self.num_envs, self.first
        )  # lists are legal, though Gymnasium's annotation omits them
        self.write_rows(self.envs.reset(seed=seeds)[0], self._rows)
        self.returns[:], self.lengths[:] = 0.0, 0
        self._send()

    def step(self, actions: Tensor) -> None:
        """Step all environments."""
        observations, *results, infos = self.envs.step(self.legal(actions).cpu().numpy())
        self.write_rows(observations, self._rows)
        for target, result in zip(self._results, results, strict=True):
            np.copyto(target, result, casting="same_kind")
        self.returns += results[0]
        self.lengths += 1
        np.logical_or(self._results[1], self._results[2], out=self._ended)
        if self._ended.any():
            self._finish(np.flatnonzero(self._ended), infos["final_obs"])
        self._send()

    def _finish(self, rows: NDArray[np.int64], final: Any) -> None:
        """Keep the last observations of the episodes that ended in these rows, and count them."""
        if isinstance(final, np.ndarray) and final.dtype == object:  # Gymnasium keeps them one by one
            last = np.empty((len(rows), self.shape.values), np.float32)
            self.write_rows(stacked(self.space, list(final[rows])), last)
            self._final_rows[rows] = last
        else:  # as a batch, old where no episode ended
            self.write_rows(final, self._final_rows)
        self.sums.numpy()[:] += (len(rows), self.returns[rows].sum(), self.lengths[rows].sum())
        self.returns[rows], self.lengths[rows] = 0.0, 0

    def resize(self, num_envs: int) -> None:
        """Go on with this many environments."""
        # Not getattr(envs, …): Gymnasium's wrappers pass it on but keep arrays of the old size themselves.
        if not hasattr(type(self.envs), "resize"):
            raise BackendError(
                f"{type(self.envs).__name__} cannot change its number of environments from {self.num_envs} to "
                f"{num_envs}; make them with vd.make_vec(…, backend='serial', 'process' or 'async')."
            )
        before, results = self._final_rows, self._results
        observations = self.envs.resize(num_envs)  # type: ignore[attr-defined]
        self._attach()
        kept, new = min(len(before), self.num_envs), max(self.num_envs - len(before), 0)
        if observations is not None:  # None before the first reset
            self.write_rows(observations, self._rows)
        for target, source in zip((self._final_rows, *self._results), (before, *results), strict=True):
            target[:kept] = source[:kept]
        self.returns = np.concatenate([self.returns[:kept], np.zeros(new)])
        self.lengths = np.concatenate([self.lengths[:kept], np.zeros(new, np.int64)])
        self._send()

    def state(self) -> dict[str, Tensor]:
        """Return nothing: the state of these environments is not known."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Refuse: `state` has nothing to continue from."""
        raise BackendError("environments of other libraries cannot be saved or continued; reset them")


def box_bounds(space: gymnasium.Space, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return the ends of a Box, None for other spaces."""
    if not isinstance(space, gymnasium.spaces.Box):
        return None, None
    low, high = (torch.from_numpy(end).to(device) for end in float32_ends(space.low, space.high))
    return low, high


def float32_ends(low: NDArray, high: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the ends of a range as float32 within it: as such, 0.1 is more than 0.1, which some refuse."""
    lower, upper = low.astype(np.float32), high.astype(np.float32)
    infinity = np.float32(np.inf)
    return (
        np.where(lower < low, np.nextafter(lower, infinity), lower),
        np.where(upper > high, np.nextafter(upper, -infinity), upper),
    )


def as_tensor(buffer: Any) -> Tensor:
    """Return a buffer as a tensor, without a copy."""
    return buffer if isinstance(buffer, Tensor) else torch.from_numpy(buffer)


def make_worlds(envs: VectorEnv, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Worlds:
    """Return the learner's view of environments; `dtype` is that of market windows on a GPU."""
    if isinstance(envs, NativeVectorEnv):
        return RuleWorlds(envs, dtype, torch.device(device))
    if isinstance(envs, RuleVectorEnv):
        return CudaWorlds(envs, dtype)
    return ForeignWorlds(envs, device)
