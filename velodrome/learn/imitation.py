"""A policy is taught what a rule does before it learns from rewards, so that it begins where the rule stands."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from velodrome.errors import ConfigError
from velodrome.learn.actions import Gaussian
from velodrome.learn.config import LearnerConfig
from velodrome.learn.engines.optimiser import Optimiser
from velodrome.learn.learner import Learner, Taught
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.launch import Captured
from velodrome.rollout.observation import Observation

if TYPE_CHECKING:
    from velodrome.learn.engines.cpu.imitation import FusedImitator

RATE = 2e-3  # step size of Adam at the start; it falls to 0
EPSILON = 1e-8  # of Adam
MINIBATCH = 1024  # samples


class Lessons(NamedTuple):
    """What was seen in n moments, and what the rule would do there."""

    values: Tensor  # [n, V] float32, as the environments show them
    cursor: Tensor  # [n] the bar at which windows end
    targets: Tensor  # [n, actions] probabilities of discrete actions, or [n, size] continuous actions


def cannot_imitate(learner: Learner) -> str:
    """Return why a learner's policy cannot be taught, for people; nothing if it can."""
    assert isinstance(learner.policy, ActorCritic)
    kind = learner.policy.distribution.kind
    if not learner.policy.recurrent and kind in ("categorical", "gaussian"):
        return ""
    what = "a recurrent network" if learner.policy.recurrent else f"actions of the kind {kind}"
    can = "networks without memory can, with Discrete actions or with normal ones of a Box"
    return f"{what} cannot be taught; {can}"


def imitate(learner: Learner, lessons: Lessons, epochs: int, seed: int, hold: float = 0.0) -> float:
    """Bring a learner's policy close to the rule; return how far apart they are in the end, in nats a decision.

    The observed values' moments begin with those of the lessons, and the critic begins at 0. Nothing else changes.
    hold: share of the way back to what it was taught that the policy goes after every update.
    """
    assert isinstance(learner.policy, ActorCritic)
    if reason := cannot_imitate(learner):
        raise ConfigError(f"teacher.policy: {reason}. Leave teacher.policy out.")
    policy = copy.deepcopy(learner.policy).eval()  # an engine holds on to the gradients of its own
    values, cursor, targets = (part.to(learner.worlds.device) for part in lessons)
    if learner.moments is not None:
        learner.moments.update(values)
        values = learner.moments.normalise(values)
    apart = _descend(learner, policy, Lessons(values, cursor, targets), epochs, seed)
    # A critic of random weights would value one position above another for no reason.
    for parameter in policy.value_head.parameters():
        nn.init.zeros_(parameter)
    learner.policy.load_state_dict(policy.state_dict())
    learner.taught = Taught(policy, hold) if hold else None
    return apart


def _descend(learner: Learner, policy: ActorCritic, lessons: Lessons, epochs: int, seed: int) -> float:
    """Bring a policy close to the rule, minibatch by minibatch; return the mean distance during the last epoch."""
    count = len(lessons.values)
    descent = _compiled(learner, policy, lessons) or _Autograd(learner, policy, lessons)
    generator = torch.Generator().manual_seed(seed)
    steps, done = epochs * -(-count // MINIBATCH), 0
    for _ in range(epochs):
        descent.distance = 0.0
        for rows in torch.randperm(count, generator=generator).to(lessons.values.device).split(MINIBATCH):
            descent.step(rows, RATE * (1.0 - done / steps))
            done += 1
    return float(descent.distance) / count


def _compiled(learner: Learner, policy: ActorCritic, lessons: Lessons) -> FusedImitator | None:
    """Return what teaches by the compiled loops of the CPU, if the learner's own updates are made by them."""
    engine: Any = getattr(learner, "engine", None)
    if getattr(engine, "name", "") != "fused":
        return None
    from velodrome.learn.engines.cpu.engine import perceptrons_of
    from velodrome.learn.engines.cpu.imitation import FusedImitator
    from velodrome.learn.engines.cpu.reading import WindowedObservations

    actor, bank = perceptrons_of(policy, engine.network.network.activation), learner.worlds.true_bank
    assert actor is not None
    assert bank is not None
    seen = WindowedObservations(bank.tables, lessons.cursor.contiguous(), lessons.values.contiguous())
    return FusedImitator(actor, seen, lessons.targets.contiguous(), EPSILON)


class _Autograd:
    """What teaches by torch. On a GPU a step is a graph: to launch a hundred small kernels one by one takes longer."""

    def __init__(self, learner: Learner, policy: ActorCritic, lessons: Lessons) -> None:
        bank, device = learner.worlds.true_bank, learner.worlds.device
        assert bank is not None
        # There: to ask for a number is to wait for it.
        self._distance = torch.zeros((), dtype=torch.float64, device=device)
        config = LearnerConfig(learning_rate=RATE, max_gradient_norm=math.inf)
        self.optimiser = optimiser = Optimiser(policy, config, epsilon=EPSILON)
        (values, cursor, targets), distance = lessons, self._distance

        def descend(rows: Tensor) -> None:
            seen = Observation(values[rows], cursor[rows], bank.gather(cursor[rows]).float())
            loss = _distance(policy, policy.decide(seen), targets[rows])
            optimiser.descend(loss)
            distance.add_(loss.detach().double() * len(rows))

        chosen = torch.empty(MINIBATCH, dtype=torch.int64, device=device)  # where the graph looks for its rows
        self._descend, self._chosen = descend, chosen
        graph = Captured(lambda: descend(chosen), learner.generator)  # not of self: it would outlive the lesson
        self._captured = graph if learner.captures_updates() else None

    @property
    def distance(self) -> float:
        """Of the policy from the rule, summed over the samples since it was set to 0."""
        return float(self._distance)

    @distance.setter
    def distance(self, value: float) -> None:
        self._distance.fill_(value)

    def step(self, rows: Tensor, rate: float) -> None:
        """Take a step of Adam down the mean distance of some rows."""
        self.optimiser.set_rate(rate)
        if self._captured is not None and len(rows) == MINIBATCH:
            self._chosen.copy_(rows)
            self._captured()
        else:
            self._descend(rows)


def _distance(policy: ActorCritic, parameters: Tensor, targets: Tensor) -> Tensor:
    """Return the mean KL divergence of the policy from the targets."""
    if policy.log_std is None:
        return functional.kl_div(functional.log_softmax(parameters, 1), targets, reduction="batchmean")
    assert isinstance(policy.distribution, Gaussian)
    # Of two normal distributions with the same deviation, which is not taught.
    deviation = policy.distribution.each(policy.log_std.detach()).exp()
    return (0.5 * ((parameters - targets) / deviation).square()).sum(1).mean()
