"""Velodrome's environments for ElegantRL: what its agents' `explore_vec_env` steps, torch tensors in and out.

Every step writes into the same tensors, as ElegantRL's own vectorised environments do; its agents copy what they keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from velodrome.adapters.gymnasium import from_gymnasium
from velodrome.errors import ActionError, ConfigError
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.workers.foreign_env import ForeignVectorEnv

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 12345  # steps of an episode that says no length; ElegantRL's own default


def to_elegantrl(envs: VectorEnv) -> ElegantRLEnv:
    """Return environments as ElegantRL's agents take them.

    envs: what `vd.make_vec` returns, or any Gymnasium vector environment that `from_gymnasium` takes, with flat
        observations and discrete or continuous actions. On the cuda backend everything stays on the device.

    Continuous actions are from −1 to 1, as ElegantRL's policies choose them, and stand for the range of the action
    space. `env_args` is what `Config(agent_class, env_class, env_args)` asks for.
    """
    return ElegantRLEnv(envs)


def most_steps(envs: VectorEnv) -> int:
    """Return how many steps an episode has at most, which is how many ElegantRL's evaluator plays."""
    base = envs.unwrapped
    found: Any = None
    if isinstance(base, RuleVectorEnv):
        found = base.world.shortest_truncation
    elif isinstance(base, ForeignVectorEnv):
        limit, rows = "_max_episode_steps", range(base.num_envs)  # of gymnasium's TimeLimit
        if all(base.ask_some(rows, "has_attribute", limit)):
            found = max(base.get_attr(limit))
    else:
        found = getattr(envs.spec, "max_episode_steps", None)
    return int(found or LONGEST)


class ElegantRLEnv:
    """Vector environments as ElegantRL sees them: reset() -> state, step(action) -> (state, reward, done, info).

    An episode begins in the step that ends another. scaled: whether continuous actions from −1 to 1 stand for the range
    of the action space. order: [state_dim] which observed value stands at each place of a state; None: as observed.
    """

    def __init__(self, envs: VectorEnv, *, scaled: bool = True, order: Any = None) -> None:
        import torch

        self.envs = from_gymnasium(envs)
        observed, action = self.envs.single_observation_space, self.envs.single_action_space
        if not isinstance(observed, spaces.Box) or len(observed.shape) != 1:
            raise ConfigError(
                f"observations are {observed}; to_elegantrl takes flat ones, a Box of one dimension. Make a rule's "
                f"environments with observation='flat', and wrap others (in gymnasium.wrappers.FlattenObservation)."
            )
        # ElegantRL chooses fractions, which mean nothing where actions are whole numbers.
        fractions = isinstance(action, spaces.Box) and len(action.shape) <= 1 and action.dtype.kind == "f"
        if not (fractions or isinstance(action, spaces.Discrete)):
            raise ConfigError(
                f"actions are {action}; to_elegantrl takes Discrete, and Box of floats and one dimension. Wrap the "
                f"environment so that it has such a space."
            )
        self.if_discrete = isinstance(action, spaces.Discrete)
        self._shape = (self.envs.num_envs, *(action.shape or ()))
        self._first = int(action.start) if isinstance(action, spaces.Discrete) else 0
        base = self.envs.unwrapped
        rule = base if isinstance(base, RuleVectorEnv) else None
        self.device = torch.device(getattr(rule, "device", None) or "cpu")
        self.num_envs = self.env_num = int(self.envs.num_envs)
        self.state_dim = int(observed.shape[0])
        self.action_dim = int(action.n) if isinstance(action, spaces.Discrete) else int(np.prod(action.shape or ()))
        self.env_name = rule.world.name if rule is not None else str(getattr(self.envs.spec, "id", "vector"))
        self.max_step = most_steps(self.envs)
        self.target_return = float("inf")
        about: Any = {"device": self.device}
        self._low = self._high = None
        if scaled and isinstance(action, spaces.Box) and np.all(np.isfinite(action.low) & np.isfinite(action.high)):
            self._low, self._high = (torch.as_tensor(bound, **about) for bound in (action.low, action.high))
        self._order = None if order is None else torch.as_tensor(np.asarray(order), **about)
        self.state = torch.zeros((self.num_envs, self.state_dim), dtype=torch.float32, **about)
        self.reward = torch.zeros(self.num_envs, dtype=torch.float32, **about)
        self.done = torch.zeros(self.num_envs, dtype=torch.bool, **about)

    @property
    def env_args(self) -> dict[str, Any]:
        """What ElegantRL's Config wants to know."""
        names = ("env_name", "num_envs", "max_step", "state_dim", "action_dim", "if_discrete")
        return {name: getattr(self, name) for name in names}

    def reset(self) -> Tensor:
        """Begin new episodes of all environments; return the states, [n, state_dim]."""
        observations, _ = self.envs.reset()
        return self._shown(observations)

    def step(self, action: Any) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all environments: states [n, state_dim], rewards [n], dones [n] (terminated or truncated), infos."""
        import torch

        chosen = torch.as_tensor(action, device=self.device).detach()
        numbers = self.num_envs * (1 if self.if_discrete else self.action_dim)
        if chosen.numel() != numbers:
            each = "one number" if self.if_discrete else f"{self.action_dim} numbers"
            raise ActionError(
                f"actions have shape {tuple(chosen.shape)}; {self.num_envs} environments need {each} each."
            )
        if self.if_discrete:
            chosen = chosen.reshape(self._shape).long() + self._first  # ElegantRL counts from 0
        else:
            chosen = chosen.reshape(self._shape).float()
            if self._low is not None and self._high is not None:
                chosen = self._low + (chosen.clamp(-1.0, 1.0) + 1.0) * 0.5 * (self._high - self._low)
        given = chosen if self.device.type == "cuda" else chosen.numpy()
        observations, rewards, terminated, truncated, infos = self.envs.step(given)
        self.reward.copy_(torch.as_tensor(rewards))
        self.done.copy_(torch.as_tensor(terminated) | torch.as_tensor(truncated))
        return self._shown(observations), self.reward, self.done, infos

    def _shown(self, observations: Any) -> Tensor:
        import torch

        found = torch.as_tensor(observations)
        if self._order is None:
            return self.state.copy_(found)
        return torch.index_select(found, 1, self._order, out=self.state)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
