"""Acting and learning of perceptrons on the CPU, by compiled loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from velodrome.learn.engines.autograd import Task
from velodrome.learn.engines.cpu.network import FusedActorCritic
from velodrome.learn.engines.cpu.perceptrons import Perceptrons
from velodrome.learn.engines.cpu.reading import FlatRollout, Observations, WindowedObservations
from velodrome.learn.engines.optimiser import ADAM_EPSILON, WeightDecay
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import Observation
from velodrome.rollout.ranks import Share, drawn
from velodrome.rollout.storage import Rollout


def perceptrons_of(policy: ActorCritic, activation: str) -> Perceptrons | None:
    """Return the layers of a policy, or None if it is not a plain perceptron."""
    layers, sizes = policy.linear_layers(), policy.distribution.counts or None
    return None if layers is None else Perceptrons(*layers, activation, sizes, policy.log_std)


class FusedEngine:
    """The engine for perceptrons on the CPU; gives what AutogradEngine gives, to the rounding."""

    name = "fused"
    same_on_any_threads = True

    def __init__(self, task: Task, rollout: Rollout) -> None:
        parts = perceptrons_of(task.policy, task.activation)
        assert parts is not None
        self.policy, self.bank, self.config = task.policy, task.bank, task.config
        self.draw = torch.randn if parts.sizes is None else torch.rand
        self.network = FusedActorCritic(parts)
        self.rate = task.config.learning_rate
        self.weight_decay = WeightDecay(task.policy, task.config.weight_decay)
        self.attach(rollout)

    def attach(self, rollout: Rollout) -> None:
        """Work on this rollout from now on; what was learnt stays."""
        self.rollout = rollout
        distribution = self.policy.distribution
        self.components = len(distribution.counts) or distribution.width  # of an action
        numbers = (rollout.log_prob, rollout.advantage, rollout.returns, rollout.value)
        self.samples = FlatRollout(
            self._observations(rollout.observations()),
            rollout.actions.flatten(0, 1),
            *(part.view(-1) for part in numbers),
        )

    def let_go(self) -> None:
        """Give back what belongs to the rollout, before another is attached."""
        vars(self).pop("samples", None)
        self.network.read = None

    def _observations(self, observation: Observation) -> Observations:
        values, cursor = observation.values.contiguous(), observation.cursor
        if self.bank is None or cursor is None:
            return values
        return WindowedObservations(self.bank.tables, cursor.contiguous(), values)

    def set_learning_rate(self, rate: float) -> None:
        """Set the step size of the next updates."""
        self.rate = rate

    def set_entropy_weight(self, weight: float) -> None:
        """Set the weight of the entropy bonus in the next updates."""
        self.config = self.config.model_copy(update={"entropy": weight})

    def begin_rollout(self) -> None:
        """Prepare for a rollout: nothing to do."""

    def act(self, t: int, observation: Observation, memory: Tensor, generator: torch.Generator) -> Tensor:
        """Write actions, log-probabilities and values of step t into the rollout; return the memory after it."""
        rollout = self.rollout
        noise = drawn(lambda rows: self.draw((rows, self.components), generator=generator), rollout.num_envs)
        out = (rollout.actions[t], rollout.log_prob[t], rollout.value[t])
        self.network.sample(self._observations(observation), noise, out)
        return memory

    def value(self, observation: Observation, memory: Tensor) -> Tensor:
        """Return values, [n]."""
        return self.network.forward(self._observations(observation))[1].clone()

    def begin_update(self) -> None:
        """Prepare for an update: nothing to do."""

    def learn(self, rows: Tensor, share: Share | None = None) -> Tensor:
        """Take one gradient step on some samples; return [6] numbers to report."""
        losses: Sequence[float] = self.network.update_minibatch(rows, self.samples, self.config, share)
        if share is not None:
            losses = share.add_up([self.network.flat.gradient], torch.tensor(losses)).tolist()
        self.weight_decay.shrink(self.rate)
        norm = self.network.adam_step(self.rate, self.config.max_gradient_norm, ADAM_EPSILON)
        return torch.tensor([*losses, norm])

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state by name, as `Optimiser` does: a run may go on with another engine."""
        steps = torch.tensor(float(self.network.adam_steps))
        found: dict[str, Tensor] = {}
        for name, first, second in self._moments():
            found |= {f"{name}.step": steps, f"{name}.exp_avg": first, f"{name}.exp_avg_sq": second}
        return found

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        saved = tensors or defaultdict(lambda: torch.zeros(()))  # empty: nothing was learnt yet
        for name, first, second in self._moments():
            first.copy_(saved[f"{name}.exp_avg"])
            second.copy_(saved[f"{name}.exp_avg_sq"])
            self.network.adam_steps = int(saved[f"{name}.step"])

    def _moments(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Give every parameter's name and Adam's two moments of it, in place."""
        flat = self.network.flat
        for name, parameter in self.policy.named_parameters():
            first, second = (flat.view(moment, (parameter,), tuple(parameter.shape)) for moment in flat.moments)
            yield name, first, second
