"""Velodrome's environments for TorchRL: one batched `EnvBase` whose batch is the environments.

A vector environment has begun the next episode when a step returns. TorchRL wants the last observation first, under
"next", and then asks for a reset: both are known, so that reset costs a copy and no second start. On the cuda backend
all of this is kernels on tensors of the device: nothing is read back, not even a flag.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv

from velodrome.adapters.gymnasium import from_gymnasium
from velodrome.adapters.library_class import with_base
from velodrome.adapters.tensor_episodes import DeviceEpisodes, Episodes, HostEpisodes
from velodrome.errors import BackendError, ConfigError
from velodrome.vector.rule_env import RuleVectorEnv

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torchrl.envs import EnvBase
else:
    EnvBase = object  # the class that `env_class` makes has the real one as its second base

DONE_KEYS = ("done", "terminated", "truncated")


def to_torchrl(envs: VectorEnv) -> VelodromeEnv:
    """Return environments as one `EnvBase` of TorchRL with batch size [num_envs].

    envs: what `vd.make_vec` returns, or any Gymnasium vector environment that `from_gymnasium` takes. On the cuda
        backend everything stays on the device; actions are then checked there as well, and one outside its space ends
        the process with a device-side assertion.

    A flat observation is "observation"; the parts of a dictionary have their own names. Discrete actions are whole
    numbers, not one-hot.
    """
    return env_class()(envs)


@functools.cache
def env_class() -> type[VelodromeEnv]:
    """Return the class of what `to_torchrl` returns; imports TorchRL."""
    return with_base(VelodromeEnv, "torchrl.envs", "EnvBase", "TorchRL", "to_torchrl")


class Shown(EnvBase):
    """What a batch of environments and a single one share: names, specifications, the end."""

    KEYS: ClassVar[Mapping[str, str]] = {}  # what parts of an observation are called, where not as in the space
    envs: VectorEnv

    def _set_specs(self, size: int) -> None:
        self._named = isinstance(self.envs.single_observation_space, spaces.Dict)
        for name, spec in specs_of(self.envs, size, self.device, self.KEYS).items():
            setattr(self, name, spec if self.batch_size else spec[0])

    def _as_dict(self, observations: Any) -> dict[str, Any]:
        if not self._named:
            return {"observation": observations}
        return {self.KEYS.get(name, name): part for name, part in observations.items()} if self.KEYS else observations

    def _tensordict(self, entries: dict[str, Any]) -> Any:
        from tensordict import TensorDict

        return TensorDict(entries, batch_size=self.batch_size, device=self.device)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments."""
        self.envs.close()
        self.is_closed = True


class VelodromeEnv(Shown):
    """Vector environments as TorchRL sees them; closing it closes them."""

    def __init__(self, envs: VectorEnv) -> None:
        envs = from_gymnasium(envs)
        size = envs.num_envs
        rule = envs.unwrapped if isinstance(envs.unwrapped, RuleVectorEnv) else None
        episodes = HostEpisodes(envs) if rule is None or not hasattr(rule, "device") else DeviceEpisodes(envs, rule)
        super().__init__(device=getattr(episodes, "device", "cpu"), batch_size=[size])
        self.envs = envs
        self.episodes: Episodes = episodes
        self._just_seeded = False
        self._done: tuple[Tensor, int] | None = None  # flags of the last step, and their version, which counts changes
        self._set_specs(size)
        self.is_closed = False

    def _step(self, tensordict: Any) -> Any:
        self._check_size()
        self._just_seeded = False
        stepped = self.episodes.step(tensordict.get("action"))
        terminated, truncated = stepped.terminated.unsqueeze(-1), stepped.truncated.unsqueeze(-1)
        done = terminated | truncated
        self._done = (done, done._version)
        flags = {"terminated": terminated, "truncated": truncated, "done": done}
        rewards = stepped.rewards.unsqueeze(-1)
        return self._tensordict({**self._as_dict(stepped.observations), "reward": rewards, **flags})

    def _reset(self, tensordict: Any = None, **options: Any) -> Any:
        import torch

        if options:
            raise ConfigError(f"reset() takes a tensordict with '_reset' at most, received {', '.join(options)}")
        self._check_size()
        rows = None if tensordict is None else tensordict.get("_reset", None)
        if rows is not None:
            self.episodes.restart(rows.reshape(self.batch_size))
        elif not self._just_seeded:
            self.episodes.begin(None)
        self._just_seeded, self._done = False, None
        shape = (*self.batch_size, 1)
        flags = {key: torch.zeros(shape, dtype=torch.bool, device=self.device) for key in DONE_KEYS}
        return self._tensordict({**self._as_dict(self.episodes.observations()), **flags})

    def maybe_reset(self, tensordict: Any) -> Any:
        """Begin new episodes where a tensordict is done; on a device, without reading whether any is."""
        import torch

        episodes = self.episodes
        if not isinstance(episodes, DeviceEpisodes) or episodes.device != self.device:
            return super().maybe_reset(tensordict)
        done = tensordict.get("done")
        if self._done is not None and done is self._done[0] and done._version == self._done[1]:
            # These are the flags of the last step: the episodes have begun already, and two launches are saved.
            episodes.settle()
        else:
            episodes.restart(done.reshape(self.batch_size))
        self._done = None
        for key, begun in self._as_dict(self.episodes.observations()).items():
            rows = done.reshape(-1, *[1] * (begun.ndim - 1))
            tensordict.set(key, torch.where(rows, begun, tensordict.get(key)))
        for key in DONE_KEYS:
            tensordict.set(key, tensordict.get(key) & ~done)
        return tensordict

    def _set_seed(self, seed: int | None) -> None:
        """Begin new episodes with a seed now; the next reset() returns them."""
        if seed is not None:
            self.episodes.begin(int(seed))
            self._just_seeded, self._done = True, None

    def _check_size(self) -> None:
        if self.envs.num_envs != self.batch_size[0]:
            raise BackendError(
                f"the environments were resized from {self.batch_size[0]} to {self.envs.num_envs}, but an EnvBase of "
                f"TorchRL keeps its batch size; call vd.to_torchrl again."
            )


class SingleVelodromeEnv(Shown):
    """One environment as TorchRL sees it, with TensorDicts of no batch.

    envs: a batch of one on the host that leaves it to TorchRL to begin the next episode (autoreset=False).
    """

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(device="cpu", batch_size=[])
        self.envs = envs
        self._seed_to_come: int | None = None
        self._set_specs(1)

    def _reward(self, reward: float) -> float:
        """Return the reward of the step that was just taken; a place for others to compute it."""
        return reward

    def _entries(self, observations: Any, **values: Any) -> Any:
        import torch

        parts = {key: torch.from_numpy(part[0].copy()) for key, part in self._as_dict(observations).items()}
        return self._tensordict({**parts, **{key: torch.tensor([value]) for key, value in values.items()}})

    def _step(self, tensordict: Any) -> Any:
        actions = tensordict.get("action").reshape(self.envs.action_space.shape).numpy()
        observations, rewards, terminated, truncated, _ = self.envs.step(actions)
        reward, ended, cut = self._reward(float(rewards[0])), bool(terminated[0]), bool(truncated[0])
        return self._entries(observations, reward=reward, terminated=ended, truncated=cut, done=ended or cut)

    def _reset(self, tensordict: Any = None, **options: Any) -> Any:
        seed, self._seed_to_come = self._seed_to_come, None
        observations, _ = self.envs.reset(seed=seed)
        return self._entries(observations, **dict.fromkeys(DONE_KEYS, False))

    def _set_seed(self, seed: int | None) -> None:
        self._seed_to_come = seed


def specs_of(envs: VectorEnv, size: int, device: Any, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the specifications of an EnvBase over environments, a batch of this size, by their names there.

    keys: what parts of an observation are called, where not as in the space.
    """
    import torch
    from torchrl.data import Categorical, Composite, Unbounded

    observed, action = envs.single_observation_space, envs.single_action_space
    parts = observed.spaces if isinstance(observed, spaces.Dict) else {"observation": observed}
    named = spaces.Dict({keys.get(name, name): part for name, part in parts.items()})
    if isinstance(action, spaces.Dict):
        raise _refusal("action", action)
    flag = Categorical(2, (size, 1), device=device, dtype=torch.bool)
    return {
        "observation_spec": spec_of("observation", named, size, device),
        "action_spec": spec_of("action", action, size, device),
        "reward_spec": Unbounded((size, 1), device=device, dtype=torch.float32),
        "done_spec": Composite({key: flag.clone() for key in DONE_KEYS}, shape=(size,), device=device),
    }


def spec_of(kind: str, space: Space, size: int, device: torch.device) -> Any:
    """Return the TorchRL specification of a batch of values of a space."""
    import torch
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

    if isinstance(space, spaces.Dict):
        parts = {name: spec_of(kind, part, size, device) for name, part in space.spaces.items()}
        return Composite(parts, shape=(size,), device=device)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise _refusal(kind, space)
    if np.any(getattr(space, "start", 0) != 0):
        raise ConfigError(f"the {kind} space {space} starts at {space.start}; TorchRL counts from 0.")  # type: ignore[union-attr]
    assert space.shape is not None
    shape, dtype = (size, *space.shape), torch.from_numpy(np.zeros(0, space.dtype)).dtype
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), shape, device=device, dtype=dtype)
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape[-1], shape, device=device, dtype=dtype)
    if isinstance(space, spaces.MultiDiscrete):
        if space.nvec.ndim != 1:
            raise _refusal(kind, space)
        return MultiCategorical(space.nvec.tolist(), shape, device=device, dtype=dtype)
    if not (space.bounded_above.any() or space.bounded_below.any()):
        return Unbounded(shape, device=device, dtype=dtype)
    low, high = (torch.tensor(bound, device=device).expand(shape) for bound in (space.low, space.high))
    return Bounded(low, high, shape, device=device, dtype=dtype)


def _refusal(kind: str, space: Space) -> ConfigError:
    return ConfigError(
        f"the {kind} space is or holds {space}; to_torchrl takes Box, Discrete, MultiDiscrete (of one dimension) and "
        f"MultiBinary{', and a Dict of those' if kind == 'observation' else ''}. Wrap the environment so that it has "
        f"such a space."
    )
