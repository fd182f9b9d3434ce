"""Acting and learning of perceptrons on the CPU, by the compiled loops of `fused`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from velodrome.learn.config import PPOConfig
from velodrome.learn.engines import cpu as fused
from velodrome.learn.engines.autograd import ADAM_EPSILON
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import Observation, WindowBank
from velodrome.rollout.storage import Rollout


class FusedEngine:
    """The engine for perceptrons on the CPU; gives what AutogradEngine gives, to the rounding."""

    name = "fused"

    def __init__(
        self, policy: ActorCritic, bank: WindowBank | None, rollout: Rollout, config: PPOConfig, activation: str
    ) -> None:
        layers = policy.linear_layers()
        assert layers is not None
        self.policy, self.bank, self.config = policy, bank, config
        self.discrete = bool(policy.distribution.counts)
        self.network = fused.FusedActorCritic(
            *layers, activation=activation, sizes=policy.distribution.counts or None, log_std=policy.log_std
        )
        self.rate = config.learning_rate
        self.attach(rollout)

    def attach(self, rollout: Rollout) -> None:
        """Work on this rollout from now on; what was learnt stays."""
        self.rollout = rollout
        distribution = self.policy.distribution
        self.noise_shape = (rollout.num_envs, len(distribution.counts) or distribution.width)
        self.samples = fused.FlatRollout(
            self._observations(rollout.observations()), rollout.actions.flatten(0, 1), rollout.log_prob.view(-1),
            rollout.advantage.view(-1), rollout.returns.view(-1), rollout.value.view(-1),
        )  # fmt: skip

    def _observations(self, observation: Observation) -> Tensor | fused.WindowedObservations:
        if self.bank is None or observation.cursor is None:
            return observation.values.contiguous()
        return fused.WindowedObservations(
            self.bank.tables, observation.cursor.contiguous(), observation.values.contiguous()
        )

    def set_learning_rate(self, rate: float) -> None:
        """Set the step size of the next updates."""
        self.rate = rate

    def begin_rollout(self) -> None:
        """Prepare for a rollout: nothing to do."""

    def act(self, t: int, observation: Observation, memory: Tensor, generator: torch.Generator) -> Tensor:
        """Write actions, log-probabilities and values of step t into the rollout; return the memory after it."""
        rollout = self.rollout
        draw = torch.rand if self.discrete else torch.randn
        noise = draw(self.noise_shape, generator=generator)
        out = (rollout.actions[t], rollout.log_prob[t], rollout.value[t])
        self.network.sample(self._observations(observation), noise, out)
        return memory

    def value(self, observation: Observation, memory: Tensor) -> Tensor:
        """Return values, [n]."""
        return self.network.forward(self._observations(observation))[1].clone()

    def begin_update(self) -> None:
        """Prepare for an update: nothing to do."""

    def learn(self, rows: Tensor) -> Tensor:
        """Take one gradient step on some samples; return [6] numbers to report."""
        config = self.config
        losses = self.network.update_minibatch(
            rows, self.samples, clip=config.clip, value_clip=config.value_clip, entropy_weight=config.entropy,
            value_weight=config.value_weight, normalise_advantages=config.normalise_advantages,
        )  # fmt: skip
        norm = self.network.adam_step(self.rate, config.max_gradient_norm, eps=ADAM_EPSILON)
        return torch.tensor(
            [losses.policy, losses.value, losses.entropy, losses.approximate_kl, losses.clip_fraction, norm]
        )

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state by name, as `Optimiser` does: a run may go on with another engine."""
        steps = torch.tensor(float(self.network.adam_steps))
        found: dict[str, Tensor] = {}
        for name, first, second in self._moments():
            found |= {f"{name}.step": steps, f"{name}.exp_avg": first, f"{name}.exp_avg_sq": second}
        return found

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        if not tensors:  # nothing was learnt yet
            self.network.adam_steps = 0
        for name, first, second in self._moments():
            if tensors:
                first.copy_(tensors[f"{name}.exp_avg"])
                second.copy_(tensors[f"{name}.exp_avg_sq"])
                self.network.adam_steps = int(tensors[f"{name}.step"])
            else:
                first.zero_()
                second.zero_()

    def _moments(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Give every parameter's name and Adam's two moments of it, in place."""
        flat = self.network.flat
        for name, parameter in self.policy.named_parameters():
            shape = tuple(parameter.shape)
            yield (
                name,
                flat.view(flat.first_moment, (parameter,), shape),
                flat.view(flat.second_moment, (parameter,), shape),
            )


def cannot_serve(policy: ActorCritic, config: PPOConfig, activation: str) -> str | None:
    """Return why these loops cannot run a policy, or None."""
    layers = policy.linear_layers()
    if layers is None:
        return "the network is not a plain perceptron"
    if policy.distribution.kind == "dirichlet":
        return "network.head = dirichlet; these loops have discrete and Gaussian actions"
    if config.compile:
        return "compile = true asks for torch.compile"
    if config.precision != "float32":
        return f"precision = {config.precision} on a CPU"
    if config.per_bar == "always":
        return "per_bar = always"
    return fused.cannot_serve(
        *layers, activation=activation, sizes=policy.distribution.counts or None, log_std=policy.log_std
    )
