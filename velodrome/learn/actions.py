"""Distributions over actions, as functions of the outputs of a policy's last layer."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from velodrome.errors import ConfigError
from velodrome.learn.config import Head

LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
EDGE = 1e-20  # smallest weight that is drawn
FLOOR = 0.2  # smallest concentration
OFFSET = 2.0  # parameters of 0 are concentrations of FLOOR + exp(-OFFSET)
LINEAR = 5.0  # logarithm of the growth at which it goes on linearly


class Categorical:
    """One of `count` actions; parameters are logits [n, count], actions int64 [n]."""

    kind = "categorical"
    dtype = torch.int64
    shape: tuple[int, ...] = ()

    def __init__(self, count: int) -> None:
        self.width = count
        self.counts: tuple[int, ...] = (count,)

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
        self.shape: tuple[int, ...] = (len(counts),)
        # Choices of the same size are one tensor: a hundred instruments then take as many kernels as one.
        self._size = counts[0] if len(set(counts)) == 1 else None
        self._parts = [Categorical(count) for count in counts]

    def sample(self, logits: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw every choice."""
        if self._size is not None:
            return self._parts[0].sample(logits.reshape(-1, self._size), None, generator).view(-1, len(self.counts))
        drawn = [part.sample(own, None, generator) for part, own in zip(self._parts, self._split(logits), strict=True)]
        return torch.stack(drawn, 1)

    def mode(self, logits: Tensor) -> Tensor:
        """Return the likeliest actions."""
        if self._size is not None:
            return logits.unflatten(1, (len(self.counts), self._size)).argmax(2)
        return torch.stack([own.argmax(1) for own in self._split(logits)], 1)

    def log_prob(self, logits: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
        """Return the logarithm of the actions' probabilities, [n]."""
        return self.evaluate(logits, log_std, actions)[0]

    def evaluate(self, logits: Tensor, log_std: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, [n] each."""
        if self._size is not None:
            each = self._parts[0].evaluate(logits.reshape(-1, self._size), None, actions.reshape(-1))
            log_prob, entropy = (part.view(-1, len(self.counts)).sum(1) for part in each)
            return log_prob, entropy
        found = [
            part.evaluate(own, None, actions[:, k])
            for k, (part, own) in enumerate(zip(self._parts, self._split(logits), strict=True))
        ]
        return torch.stack([one for one, _ in found]).sum(0), torch.stack([one for _, one in found]).sum(0)

    def _split(self, logits: Tensor) -> tuple[Tensor, ...]:
        return logits.split(list(self.counts), 1)


class Gaussian:
    """Independent normal values; parameters are means [n, size], with one deviation each for all observations.

    Actions are not squashed; the environments receive them cut at the ends of their range. The first `tied` values
    share one deviation, which is then the first of `log_std`.
    """

    kind = "gaussian"
    dtype = torch.float32

    def __init__(self, size: int, tied: int = 1) -> None:
        self.width = size
        self.counts: tuple[int, ...] = ()
        self.shape: tuple[int, ...] = (size,)
        self.tied = tied

    @property
    def deviations(self) -> int:
        """How many deviations there are."""
        return self.width - self.tied + 1

    def sample(self, mean: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw actions."""
        noise = torch.empty_like(mean, dtype=torch.float32).normal_(generator=generator)
        return mean.float() + noise * self.each(log_std).exp()

    def mode(self, mean: Tensor) -> Tensor:
        """Return the likeliest actions."""
        return mean.float()

    def log_prob(self, mean: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
        """Return the logarithm of the actions' density, [n]."""
        log_std = self.each(log_std)
        scaled = (actions - mean) * (-log_std).exp()
        return -(0.5 * scaled.square() + log_std + LOG_ROOT_2_PI).sum(1)

    def evaluate(self, mean: Tensor, log_std: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density and entropy, [n] each."""
        entropy = (self.each(log_std) + 0.5 + LOG_ROOT_2_PI).sum().expand(mean.shape[0])
        return self.log_prob(mean, log_std, actions), entropy

    def each(self, log_std: Tensor | None) -> Tensor:
        """Return the logarithm of every value's deviation, [size]."""
        assert log_std is not None
        return log_std if self.tied == 1 else torch.cat([log_std[:1].expand(self.tied), log_std[1:]])


class Dirichlet:
    """Points of the simplex: numbers above 0 that add up to 1, as weights do; parameters are any numbers, [n, size].

    The concentrations are FLOOR + growth(parameters). Below 1 they draw points near the corners of the simplex, from
    which far more is learnt about single instruments than from the even mixtures that concentrations above 1 draw; such
    a density has no likeliest point, so what is played is the one in the proportions of the growth.
    """

    kind = "dirichlet"
    dtype = torch.float32

    def __init__(self, size: int) -> None:
        self.width = size
        self.counts: tuple[int, ...] = ()
        self.shape: tuple[int, ...] = (size,)

    def sample(self, parameters: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw actions; they are kept off the boundary, where the density has no finite logarithm."""
        drawn = torch._sample_dirichlet(self.concentration(parameters.float()), generator).clamp(min=EDGE)
        return drawn / drawn.sum(1, keepdim=True)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the actions to play if none are drawn."""
        return functional.softmax(log_growth(parameters.float()), 1)

    def log_prob(self, parameters: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
        """Return the logarithm of the actions' density, [n]."""
        # In float64, here and below: of large concentrations, large numbers cancel.
        return self._log_prob(self.concentration(parameters.double()), actions).to(parameters.dtype)

    def evaluate(self, parameters: Tensor, log_std: Tensor | None, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density and entropy, [n] each."""
        concentration = self.concentration(parameters.double())
        total = concentration.sum(1)
        entropy = (
            torch.lgamma(concentration).sum(1)
            - torch.lgamma(total)
            + (total - self.width) * torch.digamma(total)
            - ((concentration - 1.0) * torch.digamma(concentration)).sum(1)
        )
        return self._log_prob(concentration, actions).to(parameters.dtype), entropy.to(parameters.dtype)

    def concentration(self, parameters: Tensor) -> Tensor:
        """Return the concentrations, above 0."""
        return FLOOR + log_growth(parameters).exp()

    def _log_prob(self, concentration: Tensor, actions: Tensor) -> Tensor:
        logs = actions.double().clamp(min=EDGE).log()
        constant = torch.lgamma(concentration.sum(1)) - torch.lgamma(concentration).sum(1)
        return constant + ((concentration - 1.0) * logs).sum(1)


def log_growth(parameters: Tensor) -> Tensor:
    """Return the logarithm of a growth that is exponential at first and linear above, where it could run away."""
    raised = parameters - OFFSET
    return raised.clamp(max=LINEAR) + torch.log1p((raised - LINEAR).clamp(min=0.0))


Distribution = Categorical | MultiCategorical | Gaussian | Dirichlet


def distribution_for(space: gymnasium.Space, head: Head = "auto", tied: int = 1) -> Distribution:
    """Return the distribution over an action space.

    head: which one, where there is a choice. tied: how many of the first values of a Gaussian share a deviation.
    """
    if head == "dirichlet":
        return Dirichlet(_simplex_size(space))
    if head == "gaussian" and not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(
            f"network.head = 'gaussian' draws from a Box, and the action space is {space}; leave it at 'auto'."
        )
    if isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
        return Categorical(int(space.n))
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return MultiCategorical(tuple(int(count) for count in space.nvec))
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return Gaussian(int(space.shape[0]), tied)
    raise ConfigError(
        f"the action space is {space}; learners take Discrete, MultiDiscrete of one dimension (both counted from 0) "
        "and Box of one dimension, of floats. Wrap the environment so that it has one of these "
        "(gymnasium.wrappers.TransformAction)."
    )


def _simplex_size(space: gymnasium.Space) -> int:
    """Return how many weights an action has, if it can be a point of the simplex."""
    fits = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.shape[0] > 1
    if not fits or (space.low != 0.0).any() or (space.high != 1.0).any():  # type: ignore[attr-defined]
        raise ConfigError(
            f"network.head = 'dirichlet' draws weights that add up to 1, and needs a one-dimensional Box from 0 to 1 "
            f"in two or more places; the action space is {space}. Use 'auto', or in the portfolio environment "
            f"action = 'weights' with weighting = 'simplex'."
        )
    return int(space.shape[0])  # type: ignore[index]
