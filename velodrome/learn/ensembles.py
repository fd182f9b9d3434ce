"""`ensemble_of`: several policies as one, which acts by the mean of their distributions.

Members keep their own normalisation of observations and their own memory. `parameters` of such a policy are those of
all members side by side; a `Mixture` says what is done of them, and how far the members disagree about it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from velodrome.errors import ConfigError
from velodrome.learn.acting import TrainedPolicy, outputs_of
from velodrome.learn.actions import Dirichlet
from velodrome.learn.learner import Acting
from velodrome.learn.networks.layers import ACTIVATIONS
from velodrome.learn.networks.q_network import QNetwork
from velodrome.learn.networks.trunks import LinearFirst, Trunk
from velodrome.learn.policy import ActorCritic, Outputs
from velodrome.rollout.moments import LIMIT
from velodrome.rollout.observation import Observation

# What members act by together


class Mixture(nn.Module):
    """The mean of the distributions of M members; parameters are theirs side by side, [n, M · width].

    An action is drawn by drawing a member and then an action of its: that is a draw from the mean of all.
    """

    meaning = ""  # of `apart`, as the end of a sentence

    def __init__(self, own: Acting, members: int) -> None:
        super().__init__()
        self.own, self.members = own, members  # the distribution of each of so many
        self.kind, self.dtype, self.shape, self.counts = own.kind, own.dtype, own.shape, own.counts
        self.width = members * own.width

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the actions to take if none are drawn."""
        return self.own.mode(parameters) if self.members == 1 else self.taken(self.each(parameters))

    def sample(self, parameters: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw a member for every observation, and an action of its. log_std: [M, deviations], if there are any."""
        each = self.each(parameters)
        drawn = [
            self.own.sample(each[:, member], None if log_std is None else log_std[member], generator)
            for member in range(self.members)
        ]
        if self.members == 1:
            return drawn[0]
        rows = torch.arange(len(each), device=each.device)
        chosen = torch.empty(len(each), device=each.device).uniform_(0.0, self.members, generator=generator)
        return torch.stack(drawn)[chosen.long().clamp(max=self.members - 1), rows]

    def each(self, parameters: Tensor) -> Tensor:
        """Return the parameters by member, [n, M, width]."""
        return parameters.unflatten(1, (self.members, self.own.width))

    def modes(self, each: Tensor) -> Tensor:
        """Return what each member would do, [n, M, …]."""
        return self.own.mode(each.flatten(0, 1)).unflatten(0, (-1, self.members))

    def taken(self, each: Tensor) -> Tensor:
        """Return what they do together."""
        raise NotImplementedError

    def apart(self, each: Tensor, actions: Tensor) -> Tensor:
        """Return how far members are from what they do together, [n] from 0, where all agree, to 1."""
        raise NotImplementedError


class MeanChances(Mixture):
    """Of choices: the likeliest by the mean of the members' probabilities, each choice by itself."""

    meaning = "the share of members that would choose otherwise"

    def taken(self, each: Tensor) -> Tensor:
        counts = list(self.counts)
        if len(set(counts)) == 1:  # one tensor, for a hundred instruments too
            chances = functional.softmax(each.unflatten(2, (len(counts), counts[0])), 3).flatten(2)
        else:
            chances = torch.cat([functional.softmax(part, 2) for part in each.split(counts, 2)], 2)
        return self.own.mode(chances.mean(1))

    def apart(self, each: Tensor, actions: Tensor) -> Tensor:
        return (self.modes(each) != actions.unsqueeze(1)).float().flatten(1).mean(1)


class MeanValues(MeanChances):
    """Of action values: the best by their mean. All estimate the same, in the unit of the environment's reward."""

    def taken(self, each: Tensor) -> Tensor:
        return self.own.mode(each.mean(1))


class MeanNumbers(Mixture):
    """Of numbers: the mean of the members' means, each cut at the range of actions.

    Where a mean lies beyond the range says nothing: the environment cuts it there, so that training never sees it.
    """

    meaning = "the standard deviation of the members' actions, over half of their range where that has ends"
    low: Tensor
    high: Tensor
    reach: Tensor  # half of the range

    def __init__(self, own: Acting, members: int, low: Tensor, high: Tensor) -> None:
        super().__init__(own, members)
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        half = 0.5 * (high - low)
        self.register_buffer("reach", torch.where(half.isfinite() & (half > 0.0), half, torch.ones_like(half)))

    def modes(self, each: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(super().modes(each), self.low), self.high)

    def taken(self, each: Tensor) -> Tensor:
        return self.modes(each).mean(1)

    def apart(self, each: Tensor, actions: Tensor) -> Tensor:
        found = self.modes(each)
        # Around the first, so that members that are equal are exactly 0 apart.
        return ((found - found[:, :1]).std(1, correction=0) / self.reach).mean(1)


class MeanWeights(Mixture):
    """Of weights that add up to 1: their mean, which does so too."""

    meaning = "the part of the account that members would, on average, hold otherwise"

    def weights(self, each: Tensor) -> Tensor:
        """Return the weights of each member, [n, M, instruments]."""
        return self.modes(each)

    def taken(self, each: Tensor) -> Tensor:
        return self.weights(each).mean(1)

    def apart(self, each: Tensor, actions: Tensor) -> Tensor:
        found = self.weights(each)
        shifted = found - found[:, :1]
        return 0.5 * (shifted - shifted.mean(1, keepdim=True)).abs().sum(2).mean(1)


class MeanSoftmax(MeanWeights):
    """Of numbers whose softmax is the weights: those that give the mean of the members' weights."""

    def __init__(self, own: Acting, members: int, scale: float) -> None:
        super().__init__(own, members)
        self.scale = scale  # of the numbers in the exponent, which lie between −1 and 1

    def weights(self, each: Tensor) -> Tensor:
        return functional.softmax(self.scale * self.modes(each).clamp(-1.0, 1.0), 2)

    def taken(self, each: Tensor) -> Tensor:
        numbers = self.weights(each).mean(1).log() / self.scale
        # A constant changes no weight. The mean's numbers are no farther apart than a member's, and fit around 0.
        return numbers - 0.5 * (numbers.amax(1, keepdim=True) + numbers.amin(1, keepdim=True))


# The members' networks


class EnsembleNetwork(nn.Module):
    """Copies of the members' networks with their normalisation; their outputs and memories are side by side."""

    means: Tensor
    scales: Tensor

    def __init__(self, policies: Sequence[TrainedPolicy], distribution: Mixture) -> None:
        super().__init__()
        networks = [copy.deepcopy(policy.network).requires_grad_(False) for policy in policies]
        self.distribution, self.count = distribution, len(policies)
        self.normalises = [policy.normalisation is not None for policy in policies]
        means, scales = zip(*map(_normalisation, policies), strict=True)
        self.register_buffer("means", torch.stack(means))  # [M, values]
        self.register_buffer("scales", torch.stack(scales))
        self.units = [policy.value_unit if isinstance(distribution, MeanValues) else 1.0 for policy in policies]
        self.memories = [policy.memory_size for policy in policies]
        self.memory_size = sum(self.memories)
        if not isinstance(distribution, MeanValues):  # those that give values of actions cannot draw
            spread: list[Any] = [network.log_std for network in networks if network.log_std is not None]
            self.register_buffer("log_std", torch.stack(spread) if spread else None)  # [M, deviations]
        alike = len(set(self.normalises)) == 1 and self.count > 1
        stacked = StackedPerceptrons.of(networks) if alike else None
        self.members = nn.ModuleList([stacked] if stacked is not None else networks)
        self.eval()

    def forward(
        self, observation: Observation, bank: None = None, encoding: None = None, memory: Tensor | None = None
    ) -> Outputs | Tensor:
        """Return the parameters of all members, [n, M · width], and their memory after this step if there is any."""
        first = self.members[0]
        if isinstance(first, StackedPerceptrons):
            values = observation.values.unsqueeze(0)
            values = self._normalised(values, slice(None)) if self.normalises[0] else values.expand(self.count, -1, -1)
            found = first(observation.windows, values).transpose(0, 1)
            if any(unit != 1.0 for unit in self.units):
                found = found * found.new_tensor(self.units).unsqueeze(1)
            return found.flatten(1)
        rows = observation.values.shape[0]
        before = observation.values.new_zeros((rows, 0)) if memory is None else memory
        parameters, after = [], []
        for member, (network, own) in enumerate(zip(self.members, before.split(self.memories, 1), strict=True)):
            values = observation.values
            if self.normalises[member]:
                values = self._normalised(values, slice(member, member + 1))
            outputs, kept = outputs_of(network, observation._replace(values=values), own)
            parameters.append(outputs if self.units[member] == 1.0 else outputs * self.units[member])
            after.append(kept)
        together = torch.cat(parameters, 1)
        return Outputs(together, together.new_zeros(rows), torch.cat(after, 1)) if self.memory_size else together

    def _normalised(self, values: Tensor, members: slice) -> Tensor:
        """Return values as one or all members see them; of all, [M, n, values]."""
        mean, scale = self.means[members], self.scales[members]
        if values.ndim == 3:
            mean, scale = mean.unsqueeze(1), scale.unsqueeze(1)
        return ((values - mean) * scale).clamp(-LIMIT, LIMIT)


class StackedPerceptrons(nn.Module):
    """Perceptrons of one shape as one: their weights lie in one tensor for each layer, and multiply at once."""

    def __init__(self, by_member: Sequence[Sequence[Any]], window_floats: int) -> None:
        super().__init__()
        first, *further = zip(*by_member, strict=True)
        # All members see the same windows, so that their part of the first layers is one wide layer, [floats, M · out].
        wide = torch.cat([layer.weight[:, :window_floats] for layer in first]).T.contiguous()
        self.windows = nn.Parameter(wide, False)
        self.values = StackedLinear(first, window_floats)
        layers = (StackedLinear(own) if isinstance(own[0], nn.Linear) else copy.deepcopy(own[0]) for own in further)
        self.body = nn.Sequential(*layers)

    @classmethod
    def of(cls, networks: Sequence[nn.Module]) -> StackedPerceptrons | None:
        """Return the networks as one, None if they are not plain perceptrons of the same shape."""
        every = [own for own in map(_perceptron, networks) if own is not None]
        if len(every) < len(networks) or any(_shapes(own[0]) != _shapes(every[0][0]) for own in every):
            return None
        return cls([own[0] for own in every], every[0][1])

    def forward(self, windows: Tensor | None, values: Tensor) -> Tensor:
        """Return what the last layers give, [M, n, width]. windows: [n, floats]. values: [M, n, values]."""
        features = self.values(values)
        if windows is not None:
            seen = (windows @ self.windows).unflatten(1, (features.shape[0], features.shape[2]))
            features = features + seen.transpose(0, 1)
        return self.body(features)


class StackedLinear(nn.Module):
    """A linear layer of each member. begin: the first input that it looks at."""

    def __init__(self, layers: Sequence[nn.Linear], begin: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight[:, begin:] for layer in layers]).mT.contiguous(), False)
        self.bias = nn.Parameter(torch.stack([layer.bias for layer in layers]).unsqueeze(1), False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the layer's output, [M, n, out], given its inputs, [M, n, in]."""
        return torch.baddbmm(self.bias, features, self.weight)


def _perceptron(network: nn.Module) -> tuple[list[nn.Module], int] | None:
    """Return the layers from observation to parameters, and the floats of windows; None if it is more than that."""
    if isinstance(network, ActorCritic):
        trunk, head = network.actor, network.policy_head
    elif isinstance(network, QNetwork) and network.state_head is None:
        trunk, head = network.trunk, network.action_head
    else:
        return None
    if type(trunk) is not Trunk or type(trunk.first) is not LinearFirst:
        return None
    layers = [trunk.first.layer, *trunk.body, head]
    plain = all(type(layer) in (nn.Linear, *ACTIVATIONS.values()) for layer in layers)
    return (layers, trunk.first.window_floats) if plain else None


def _shapes(layers: Sequence[nn.Module]) -> list[Any]:
    return [layer.weight.shape if isinstance(layer, nn.Linear) else type(layer) for layer in layers]


def _normalisation(policy: TrainedPolicy) -> tuple[Tensor, Tensor]:
    """Return what is taken off values, and by what they are multiplied then."""
    if policy.normalisation is not None:
        return policy.normalisation
    like = torch.zeros(policy.shape.values, device=policy.device)
    return like, like + 1.0


# The policy


@dataclass(eq=False, repr=False)
class EnsemblePolicy(TrainedPolicy):
    """Acts as one policy, by the mean of its members' distributions; make one with `ensemble_of`."""

    disagreement: NDArray | None = None  # [n] between members about the last actions, from 0, where all agree, to 1

    @property
    def members(self) -> int:
        """How many there are."""
        mixture: Any = self.distribution
        return mixture.members

    @property
    def normalisation(self) -> tuple[Tensor, Tensor] | None:
        """That of the first member, for an idea of what values are like; each member applies its own."""
        network: Any = self.network
        return (network.means[0], network.scales[0]) if network.normalises[0] else None

    @property
    def disagreement_meaning(self) -> str:
        """What `disagreement` measures, in words."""
        mixture: Any = self.distribution
        return mixture.meaning

    @torch.no_grad()
    def decide(self, seen: Observation, memory: Tensor, deterministic: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, the parameters of all members, and the memory after them; note the disagreement."""
        actions, parameters, after = super().decide(seen, memory, deterministic)
        self.disagreement = disagreement(self.distribution, parameters).cpu().numpy()
        return actions, parameters, after


def disagreement(distribution: Any, parameters: Tensor) -> Tensor:
    """Return how far the members of a mixture are from what they do together if nothing is drawn, [n]."""
    return distribution.apart(distribution.each(parameters), distribution.mode(parameters))


def ensemble_of(policies: Sequence[TrainedPolicy], *, softmax: float | None = None) -> EnsemblePolicy:
    """Return a policy that acts by the mean of the distributions of several, which stay as they are.

    softmax: the environment makes weights of actions by a softmax, and multiplies them by this before; the members'
    weights are averaged then, not the numbers that they come from.
    """
    members = list(policies)
    if not members:
        raise ConfigError("policies = []: an ensemble needs at least one policy.")
    first = members[0]
    for number, other in enumerate(members[1:], 2):
        for what, own, wanted in zip(_COMPARED, _compared(other), _compared(first), strict=True):
            if own != wanted:
                raise ConfigError(
                    f"policies: the {what} of number {number} is {own}, and that of the first {wanted}; members of an "
                    "ensemble see the same and act in the same way. Leave out one of them."
                )
    own = first.distribution
    mixture: Mixture
    if not hasattr(first.network, "log_std"):
        mixture = MeanValues(own, len(members))
    elif own.counts:
        mixture = MeanChances(own, len(members))
    elif isinstance(own, Dirichlet):
        mixture = MeanWeights(own, len(members))
    elif softmax is not None:
        mixture = MeanSoftmax(own, len(members), softmax)
    else:
        assert first.low is not None and first.high is not None  # noqa: PT018
        mixture = MeanNumbers(own, len(members), first.low, first.high)
    network = EnsembleNetwork(members, mixture.to(first.device))
    shown: dict[str, Any] = {"window_names": first.window_names, "observation_space": first.observation_space}
    return EnsemblePolicy(network, first.shape, first.action_space, bank=first.bank, seed=first.seed, **shown)


_COMPARED = ("observation", "windows", "action space", "observation space", "device", "kind of action")


def _compared(policy: TrainedPolicy) -> tuple[Any, ...]:
    """Return what must be the same in all members."""
    gives = "chances" if hasattr(policy.network, "log_std") else "values"
    kind = (gives, policy.distribution.kind, policy.distribution.width)
    space = policy.action_space
    return (policy.shape, policy.window_names, space, policy.observation_space, policy.device, kind)
