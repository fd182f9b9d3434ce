"""Distributions over actions, as functions of what a policy's last layer gives out."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from velodrome.errors import ConfigError

LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)


class Categorical:
    """One of `count` actions; parameters are logits [n, count], actions int64 [n]."""

    kind = "categorical"
    dtype = torch.int64
    shape: tuple[int, ...] = ()

    def __init__(self, count: int) -> None:
        self.width = count
        self.counts = (count,)

    def sample(self, logits: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw actions by the Gumbel-max trick: one pass, and legal inside a CUDA graph."""
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=generator)
        return (logits - noise.log()).argmax(1)

    def mode(self, logits: Tensor) -> Tensor:
        """Return the likeliest actions."""
        return logits.argmax(1)

    def log_prob(self, logits: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
        """Return the logarithm of the actions' probabilities, [n]."""
        return functional.log_softmax(logits, 1).gather(1, actions.unsqueeze(1)).squeeze(1)

    def evaluate(self, logits: Tensor, log_std: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, [n] each."""
        log_probs = functional.log_softmax(logits, 1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1), entropy


class MultiCategorical:
    """Several choices at once; parameters are all logits side by side, actions int64 [n, choices]."""

    kind = "multi_categorical"
    dtype = torch.int64

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = counts
        self.width = sum(counts)
        self.shape = (len(counts),)
        self._parts = [Categorical(count) for count in counts]

    def sample(self, logits: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw every choice."""
        drawn = [part.sample(own, None, generator) for part, own in zip(self._parts, self._split(logits), strict=True)]
        return torch.stack(drawn, 1)

    def mode(self, logits: Tensor) -> Tensor:
        """Return the likeliest actions."""
        return torch.stack([own.argmax(1) for own in self._split(logits)], 1)

    def log_prob(self, logits: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
        """Return the logarithm of the actions' probabilities, [n]."""
        return self.evaluate(logits, log_std, actions)[0]

    def evaluate(self, logits: Tensor, log_std: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, [n] each."""
        found = [
            part.evaluate(own, None, actions[:, k])
            for k, (part, own) in enumerate(zip(self._parts, self._split(logits), strict=True))
        ]
        return torch.stack([one for one, _ in found]).sum(0), torch.stack([one for _, one in found]).sum(0)

    def _split(self, logits: Tensor) -> tuple[Tensor, ...]:
        return logits.split(list(self.counts), 1)


class Gaussian:
    """Independent normal values; parameters are means [n, size], with one deviation each for all observations.

    Actions are not squashed; the environments receive them cut at the ends of their range.
    """

    kind = "gaussian"
    dtype = torch.float32

    def __init__(self, size: int) -> None:
        self.width = size
        self.counts: tuple[int, ...] = ()
        self.shape = (size,)

    def sample(self, mean: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw actions."""
        assert log_std is not None
        noise = torch.empty_like(mean, dtype=torch.float32).normal_(generator=generator)
        return mean.float() + noise * log_std.exp()

    def mode(self, mean: Tensor) -> Tensor:
        """Return the likeliest actions."""
        return mean.float()

    def log_prob(self, mean: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
        """Return the logarithm of the actions' density, [n]."""
        assert log_std is not None
        scaled = (actions - mean) * (-log_std).exp()
        return -(0.5 * scaled.square() + log_std + LOG_ROOT_2_PI).sum(1)

    def evaluate(self, mean: Tensor, log_std: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density and entropy, [n] each."""
        assert log_std is not None
        entropy = (log_std + 0.5 + LOG_ROOT_2_PI).sum().expand(mean.shape[0])
        return self.log_prob(mean, log_std, actions), entropy


Distribution = Categorical | MultiCategorical | Gaussian


def distribution_for(space: gymnasium.Space) -> Distribution:
    """Return the distribution over an action space."""
    if isinstance(space, gymnasium.spaces.Discrete):
        if space.start != 0:
            raise ConfigError(f"The action space {space} must count from 0.")
        return Categorical(int(space.n))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        if (np.asarray(space.start) != 0).any() or space.nvec.ndim != 1:
            raise ConfigError(f"The action space {space} must be one row of choices that count from 0.")
        return MultiCategorical(tuple(int(count) for count in space.nvec))
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return Gaussian(int(space.shape[0]))
    raise ConfigError(
        f"No distribution over the action space {space}; learners take Discrete, MultiDiscrete and one-dimensional Box."
    )
