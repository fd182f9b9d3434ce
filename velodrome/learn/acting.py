"""`TrainedPolicy`: a network that acts, given observations as the environments return them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray
from torch import Tensor, nn

from velodrome.errors import ConfigError
from velodrome.learn.actions import distribution_for
from velodrome.learn.learner import Acting
from velodrome.learn.networks import instruments, trunks
from velodrome.learn.networks.layers import ACTIVATIONS, Dropout
from velodrome.learn.networks.soft_actor_critic import SquashedActor, SquashedGaussian
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.moments import RunningMoments
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank
from velodrome.rollout.worlds import ForeignWorlds, Worlds, box_bounds

# Modules that do the same in training as in use.
WITHOUT_MODES = (
    *(
        ActorCritic,
        SquashedActor,
        SquashedGaussian,
        trunks.Trunk,
        trunks.RecurrentTrunk,
        trunks.LinearFirst,
        trunks.ConvolutionFirst,
    ),
    *(instruments.InstrumentTrunk, instruments.InstrumentFirst, instruments.InstrumentHead),
    *(instruments.ContextLinear, instruments.ContextHead, nn.Sequential, nn.ModuleList, nn.Linear, nn.Conv1d),
    *(nn.Flatten, nn.GRUCell, nn.LayerNorm, Dropout, *ACTIVATIONS.values()),
)


@dataclass(eq=False, repr=False)
class TrainedPolicy:
    """Acts for one environment or for many at once, and remembers by environment if its network does.

    It takes whatever the environments return: {"account", "cursor"} (which needs the bank that cursors point into),
    {"account", a window each}, flat rows of windows and then account, or what another library's environment shows.
    The weights are the network's own: if it is still being trained, so is the policy.
    """

    network: nn.Module  # called as network(observation, None, None[, memory]); returns `Outputs`, or action values
    shape: ObservationShape
    action_space: gymnasium.Space
    _: KW_ONLY
    moments: RunningMoments | None = None  # how values are normalised
    bank: WindowBank | None = None
    window_names: tuple[str, ...] = ()  # of the windows in observations with a part each
    observation_space: gymnasium.Space | None = None  # of one environment of another library, which is flattened
    seed: int = 0  # of the actions drawn by `act(…, deterministic=False)`
    value_unit: float = 1.0  # reward of the environment that an action value of 1 stands for

    def __post_init__(self) -> None:
        network, windows = self.network, self.shape.windows
        # A network of action values has none of its own.
        self.distribution: Acting = getattr(network, "distribution", None) or distribution_for(self.action_space)
        self.memory_size = int(getattr(network, "memory_size", 0))
        self.device = next(network.parameters()).device
        self.has_modes = any(type(module) not in WITHOUT_MODES for module in network.modules())
        self._generator = torch.Generator(self.device).manual_seed(self.seed)
        self._memory: Tensor | None = None  # [n, memory_size] once environments are known
        self._num_envs: int | None = None
        self.low, self.high = box_bounds(self.action_space, self.device)
        self._divisors = self.shape.divisors(self.device)
        if self.window_names and len(self.window_names) != len(windows):
            raise ConfigError(f"window_names = {self.window_names!r}: needs {len(windows)} names, one for each window.")
        if self.bank is not None:
            self._check_bank(self.bank)

    @classmethod
    def of(
        cls, network: nn.Module, worlds: Worlds, moments: RunningMoments | None = None, seed: int = 0
    ) -> TrainedPolicy:
        """Return the policy of a network that learns, or learned, in these environments."""
        shown: dict[str, Any] = (
            {"observation_space": worlds.envs.single_observation_space}
            if isinstance(worlds, ForeignWorlds)
            else {"window_names": worlds.envs.world.window_names}  # type: ignore[attr-defined]
        )
        return cls(
            network, worlds.shape, worlds.action_space, moments=moments, bank=worlds.true_bank, seed=seed, **shown
        )

    @property
    def normalisation(self) -> tuple[Tensor, Tensor] | None:
        """What is taken off values, and what they are multiplied by then, [values] each; None: neither."""
        return None if self.moments is None else (self.moments.mean.float(), self.moments.scale)

    def with_bank(self, bank: WindowBank) -> TrainedPolicy:
        """Return the same policy for cursors into another market of the same features, with a memory of its own."""
        return replace(self, bank=bank)

    def begin(self, num_envs: int) -> None:
        """Forget everything: new episodes start, in this number of environments."""
        if num_envs < 1:
            raise ConfigError(f"num_envs = {num_envs!r}: a policy acts for at least 1 environment")
        self._num_envs = num_envs
        self._memory = torch.zeros((num_envs, self.memory_size), device=self.device)

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Forget what belongs to these environments: they started a new episode."""
        if not self.memory_size or self._memory is None:
            return
        mask = torch.as_tensor(np.asarray(ended, bool), device=self.device)
        if mask.shape != (len(self._memory),):
            raise ConfigError(
                f"ended has the shape {tuple(mask.shape)}; the policy acts for {len(self._memory)} environments and "
                f"needs one boolean for each."
            )
        self._memory = torch.where(mask.unsqueeze(1), 0.0, self._memory)

    @property
    def memory(self) -> NDArray[np.float32]:
        """What it remembers of each environment, [n, memory_size]; a copy."""
        return self._memory_for(self._num_envs or 1).cpu().numpy().copy()

    def recall(self, memory: NDArray[np.float32]) -> None:
        """Go on with what it, or a copy of it, remembered of as many environments, [n, memory_size]."""
        self.begin(len(memory))
        if memory.shape != (len(memory), self.memory_size):
            raise ConfigError(
                f"a memory of shape {memory.shape}: the policy remembers {self.memory_size} numbers each."
            )
        self._memory = torch.as_tensor(memory, dtype=torch.float32, device=self.device).clone()

    @torch.no_grad()
    def act(self, observation: Any, deterministic: bool = True) -> NDArray:
        """Return an action for every environment, ready for `env.step`; for a single observation, a single action.

        deterministic: take the likeliest action; otherwise draw one, as in training.
        """
        seen, single = self._read(observation)
        memory = self._memory_for(seen.values.shape[0])
        actions, parameters, after = self.decide(seen, memory, deterministic)
        self._check_finite(parameters, seen)
        if self.memory_size:
            self._memory = after
        chosen = actions.cpu().numpy().astype(self.action_space.dtype, copy=False)
        return chosen[0] if single else chosen

    @torch.no_grad()
    def decide(self, seen: Observation, memory: Tensor, deterministic: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, the parameters of their distribution (or action values), and the memory after them."""
        if self.moments is not None:
            seen = seen._replace(values=self.moments.normalise(seen.values))
        # Changing the mode of every module takes as long as the network; most have none that differs by mode.
        with evaluating(self.network) if self.has_modes else nullcontext():
            parameters, after = outputs_of(self.network, seen, memory)
        if deterministic:
            actions = self.distribution.mode(parameters)
        else:
            actions = self.distribution.sample(parameters, self._log_std(), self._generator)
        if self.low is not None and self.high is not None:
            actions = torch.minimum(torch.maximum(actions, self.low), self.high)
        return actions, parameters, after

    # Reading observations

    def scaled(self, values: Tensor) -> Tensor:
        """Return values as environments give them as the network learnt from them."""
        return values if self._divisors is None else values / self._divisors

    def _read(self, observation: Any) -> tuple[Observation, bool]:
        """Return an observation as tensors, and whether it is of a single environment."""
        space = self.observation_space
        if space is not None and not isinstance(space, gymnasium.spaces.Box):
            return self._read_structured(space, observation)
        if isinstance(observation, Mapping):
            return self._read_parts(observation)
        rows = self._tensor(observation)
        own = (self.shape.floats,) if space is None or space.shape is None else space.shape
        single = tuple(rows.shape) == tuple(own)
        if not single and tuple(rows.shape[1:]) != tuple(own):
            raise ConfigError(
                f"The policy was trained on {self._trained_on()}; received an array of shape {tuple(rows.shape)}. "
                f"Pass {' × '.join(map(str, own))} floats, or one such row for each environment."
            )
        rows = rows.reshape(1 if single else len(rows), -1)
        at = self.shape.window_floats
        return Observation(self.scaled(rows[:, at:]), None, rows[:, :at] if at else None), single

    def _read_structured(self, space: gymnasium.Space, observation: Any) -> tuple[Observation, bool]:
        """Flatten the observations of a space that is no Box, as they were in training."""
        single = space.contains(observation)
        if not single and self._num_envs is None:
            raise ConfigError(
                f"The observation is not one of {space}; for those of many environments call begin(num_envs) first."
            )
        every = [observation] if single else iterate(batch_space(space, self._num_envs or 1), observation)
        rows = np.stack([np.asarray(gymnasium.spaces.flatten(space, one), np.float32) for one in every])
        return Observation(self.scaled(self._tensor(rows))), single

    def _read_parts(self, observation: Mapping[str, Any]) -> tuple[Observation, bool]:
        """Read {"account", "cursor"} or {"account", a window each}."""
        by_cursor = "cursor" in observation
        legal = ("account", "cursor") if by_cursor or not self.shape.windows else ("account", *self.window_names)
        if set(observation) - {"cursor"} != set(legal) - {"cursor"} or (not by_cursor and not self._names_known()):
            parts = ", ".join(("account", *self.window_names)) if self._names_known() else "account, a window each"
            raise ConfigError(
                f"An observation has the parts account, cursor or {parts}; received {', '.join(observation)}."
            )
        values = self._tensor(observation["account"])
        single = values.ndim == 1
        values = values.reshape(1 if single else len(values), -1)
        if values.shape[1] != self.shape.values:
            raise ConfigError(
                f"The policy was trained on {self._trained_on()}; received account values of shape "
                f"{tuple(np.shape(observation['account']))}."
            )
        if not self.shape.windows:
            return Observation(values), single
        if by_cursor:
            return Observation(values, None, self._gathered(observation["cursor"], len(values))), single
        windows = []
        for name, own in zip(self.window_names, self.shape.windows, strict=True):
            window = self._tensor(observation[name])
            if tuple(window.shape) != (own if single else (len(values), *own)):
                raise ConfigError(
                    f"The policy was trained on {self._trained_on()}; received the window {name!r} with the shape "
                    f"{tuple(window.shape)}, for {len(values)} environments it is {(len(values), *own)}."
                )
            windows.append(window.reshape(len(values), -1))
        return Observation(values, None, torch.cat(windows, 1)), single

    def _names_known(self) -> bool:
        return len(self.window_names) == len(self.shape.windows)

    def _gathered(self, cursor: Any, count: int) -> Tensor:
        if self.bank is None:
            raise ConfigError(
                "The observation has a cursor and the policy no market to look it up in; use with_bank(…), or pass "
                "observations that show the windows (observation='flat' or 'dict')."
            )
        bars = torch.as_tensor(cursor, device=self.device).reshape(-1)
        known = len(self.bank.position)
        if bars.is_floating_point() or len(bars) != count or not bool(((bars >= 0) & (bars < known)).all()):
            raise ConfigError(
                f"cursor must be {count} whole numbers from 0 to {known - 1}, the bars of the policy's market; "
                f"received {np.asarray(bars.cpu())!r}. If they point into other data, use with_bank(…)."
            )
        return self.bank.gather(bars).float()

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def _trained_on(self) -> str:
        windows = "".join(f"{rows} × {features} + " for rows, features in self.shape.windows)
        return f"{self.shape.floats} floats: {windows}{self.shape.values} values"

    def _check_bank(self, bank: WindowBank) -> None:
        if bank.shapes != self.shape.windows:
            raise ConfigError(
                f"The policy was trained on windows of {self.shape.windows} (bars, features); the market's are "
                f"{bank.shapes}. Build it with the same windows and features."
            )
        if bank.table.device != self.device:
            raise ConfigError(f"The market lies on {bank.table.device} and the policy on {self.device}.")

    # Around the network

    def _memory_for(self, count: int) -> Tensor:
        if self._memory is None and self.memory_size:
            self.begin(count)
        if not self.memory_size:
            return torch.zeros((count, 0), device=self.device)
        assert self._memory is not None
        if len(self._memory) != count:
            raise ConfigError(
                f"The policy remembers {len(self._memory)} environments; received {count} observations. Call "
                f"begin({count}) to start with as many."
            )
        return self._memory

    def _log_std(self) -> Tensor | None:
        if not hasattr(self.network, "log_std"):
            raise ConfigError("deterministic=False: the network gives values of actions, not chances; it cannot draw.")
        return self.network.log_std  # type: ignore[return-value]

    def _check_finite(self, parameters: Tensor, seen: Observation) -> None:
        bad = ~torch.isfinite(parameters).all(1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            shown = [seen.values[row]] if seen.windows is None else [seen.values[row], seen.windows[row]]
            where = "its observation" if not all(bool(part.isfinite().all()) for part in shown) else "its weights"
            raise ConfigError(f"No action for environment {row}: the policy gives NaN or infinity, from {where}.")


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Let batch norm use its running moments, and put the network back into its mode afterwards."""
    training = network.training
    if training:
        network.eval()
    try:
        yield
    finally:
        if training:
            network.train()


def outputs_of(network: nn.Module, observation: Observation, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parameters of the action distribution (or action values), and the memory after this step."""
    found = network(observation, None, None, memory) if memory.shape[1] else network(observation, None, None)
    return (found, memory) if isinstance(found, Tensor) else (found.parameters, found.memory)
