"""How a policy acts and learns in plain torch, on any device. The other engines do the same, faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.optimiser import ADAM_EPSILON, Optimiser, Splitting
from velodrome.learn.networks.layers import DropoutMasks, worth_encoding
from velodrome.learn.policy import ActorCritic, Encoding, Outputs
from velodrome.rollout.observation import Observation, WindowBank
from velodrome.rollout.ranks import Share, sampled
from velodrome.rollout.storage import Rollout


class Batch(NamedTuple):
    """A minibatch of m samples."""

    actions: Tensor
    log_prob: Tensor  # [m] when the action was taken
    advantage: Tensor  # [m], scaled over the minibatch if that is wanted
    returns: Tensor  # [m]
    value: Tensor  # [m] when the action was taken
    entropy_weight: Tensor | None = None  # if it falls over the run; a graph would keep a number as it was


Loss = Callable[..., tuple[Tensor, Tensor]]


class Task(NamedTuple):
    """What an engine is to improve, and by which loss."""

    policy: ActorCritic
    bank: WindowBank | None
    config: PPOConfig
    activation: str
    loss: Loss


class AutogradEngine(Splitting):
    """Plain torch: any network, any device. Other engines have the same methods.

    Calls of one rollout follow one another; `learn` comes between rollouts.
    """

    name = "autograd"
    same_on_any_threads = False  # torch adds up in another order on another number of them

    def __init__(self, task: Task, rollout: Rollout) -> None:
        policy, config, loss = task.policy, task.config, task.loss
        self.policy, self.bank, self.config = policy, task.bank, config
        self.device = rollout.values.device
        self.optimiser = Optimiser(policy, config, epsilon=ADAM_EPSILON)
        constant = config.entropy_schedule == "constant"
        self.entropy_weight = None if constant else torch.tensor(config.entropy, device=self.device)
        self.dropout = DropoutMasks(policy, config.compile)
        self.forward: Callable[..., Outputs] = torch.compile(policy) if config.compile else policy
        self.loss: Loss = torch.compile(loss) if config.compile else loss
        self.attach(rollout)

    def attach(self, rollout: Rollout) -> None:
        """Work on this rollout from now on; what was learnt stays."""
        self.rollout = rollout
        samples, market = rollout.samples, (self.policy, self.bank, self.config.per_bar)
        self.encode_once = worth_encoding(*market, samples)
        self.encode_minibatches = worth_encoding(*market, samples // (self.config.minibatches * self.parts))
        self.encoding: Encoding | None = None
        # Units that are kept, by sample: a ratio of two probabilities under different masks would mean nothing.
        size = (rollout.steps, rollout.num_envs, self.dropout.width)
        self.kept = torch.ones(size, dtype=torch.bool, device=self.device) if self.dropout.width else None

    def let_go(self) -> None:
        """Give back what belongs to the rollout, before another is attached."""
        self.encoding = self.kept = None

    def _precision(self) -> Any:
        half = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False)

    def set_learning_rate(self, rate: float) -> None:
        """Set the step size of the next updates."""
        self.optimiser.set_rate(rate)

    def set_entropy_weight(self, weight: float) -> None:
        """Set the weight of the entropy bonus in the next updates."""
        assert self.entropy_weight is not None
        self.entropy_weight.fill_(weight)

    def begin_rollout(self) -> None:
        """Prepare for a rollout, during which the weights do not change."""
        self.policy.eval()
        if self.encode_once and self.bank is not None:
            self.encoding = None  # not both at once: they can be large
            with self._precision():
                self.encoding = self.policy.encode_bars(self.bank)

    def act(self, t: int, observation: Observation, memory: Tensor, generator: torch.Generator) -> Tensor:
        """Write actions, log-probabilities and values of step t into the rollout; return the memory after it."""
        kept = None if self.kept is None else self.dropout.draw(self.kept[t], generator)
        with self._precision(), self.dropout.applied(kept):
            outputs = self.forward(observation, self.bank, self.encoding, memory)
        distribution, log_std, rollout = self.policy.distribution, self.policy.log_std, self.rollout
        actions = sampled(distribution, outputs.parameters, log_std, generator)
        rollout.actions[t] = actions
        rollout.log_prob[t] = distribution.log_prob(outputs.parameters, log_std, actions)
        rollout.value[t] = outputs.value
        return outputs.memory

    def value(self, observation: Observation, memory: Tensor) -> Tensor:
        """Return values, [n]."""
        with self._precision():
            return self.policy(observation, self.bank, self.encoding, memory).value

    def begin_update(self) -> None:
        """Prepare for an update, given advantages and returns: nothing to do."""

    def learn(self, rows: Tensor, share: Share | None = None) -> Tensor:
        """Take one gradient step on some samples (environments, if there is memory); return [6] numbers to report."""
        self._begin_step(rows, share)
        whole, parts = len(rows) if share is None else share.whole, rows.tensor_split(self.parts)
        reports = [self._add_gradient(part, len(part) / whole, k == 0) for k, part in enumerate(parts) if len(part)]
        report = sum(reports, torch.zeros(5, device=self.device))
        if share is not None:
            report = share.add_up(self.optimiser.gradients(), report)
        return torch.cat([report, self.optimiser.step().reshape(1)])

    def _begin_step(self, rows: Tensor, share: Share | None = None) -> None:
        """Prepare for a gradient step: find out by what the advantages of a whole minibatch are scaled."""
        self.policy.train()
        self.optimiser.forget()
        if self.config.normalise_advantages:
            advantage = self._samples(self.rollout.advantage, rows)
            own = share and share.advantages
            self.advantages = own or (advantage.mean(), advantage.std(correction=0) + 1e-8)

    def _add_gradient(self, rows: Tensor, share: float, first: bool) -> Tensor:
        """Add the gradient of the mean loss of some samples, times their share; return [5] numbers, times it too."""
        kept = None if self.kept is None else self._samples(self.kept, rows)
        with self._precision(), self.dropout.applied(kept):
            outputs = self._outputs(rows)
        loss, report = self.loss(outputs, self.policy.log_std, self.policy.distribution, self._batch(rows), self.config)
        (loss if share == 1.0 else loss * share).backward()
        return report * share

    def _outputs(self, rows: Tensor) -> Outputs:
        rollout, bank = self.rollout, self.bank
        encoding = self.policy.encode_bars(bank) if self.encode_minibatches and bank is not None else None
        if not self.policy.recurrent:
            return self.forward(rollout.observations().select(rows), bank, encoding)
        cursor = None if rollout.cursor is None else rollout.cursor[:, rows].flatten()
        observation = Observation(rollout.values[:, rows].flatten(0, 1), cursor)
        memory, starts = rollout.first_memory[rows], rollout.starts[:, rows]
        return self.policy.sequence(observation, bank, encoding, memory, starts)

    def _batch(self, rows: Tensor) -> Batch:
        parts = [self._samples(getattr(self.rollout, name), rows) for name in Batch._fields[:-1]]
        batch = Batch._make([*parts, self.entropy_weight])
        if self.config.normalise_advantages:
            mean, deviation = self.advantages
            return batch._replace(advantage=(batch.advantage - mean) / deviation)
        return batch

    def _samples(self, part: Tensor, rows: Tensor) -> Tensor:
        """Return some samples of a part of the rollout; if there is memory, all of some environments."""
        return part[:, rows].flatten(0, 1) if self.policy.recurrent else part.flatten(0, 1)[rows]

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's state by name."""
        return self.optimiser.state()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self.optimiser.load_state(tensors)
