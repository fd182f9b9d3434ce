"""A policy is taught what a rule does before it learns from rewards, so that it begins where the rule stands."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from velodrome.errors import ConfigError
from velodrome.learn.actions import Gaussian
from velodrome.learn.learner import Learner, Taught
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import Observation

RATE = 2e-3  # step size of Adam at the start; it falls to 0
MINIBATCH = 1024  # samples


class Lessons(NamedTuple):
    """What was seen in n moments, and what the rule would do there."""

    values: Tensor  # [n, V] float32, as the environments show them
    cursor: Tensor  # [n] the bar at which windows end
    targets: Tensor  # [n, actions] probabilities of discrete actions, or [n, size] continuous actions


def imitate(learner: Learner, lessons: Lessons, epochs: int, seed: int, hold: float = 0.0) -> float:
    """Bring a learner's policy close to the rule; return how far apart they are in the end, in nats a decision.

    The observed values' moments begin with those of the lessons, and the critic begins at 0. Nothing else changes.
    hold: share of the way back to what it was taught that the policy goes after every update.
    """
    bank, device = learner.worlds.true_bank, learner.worlds.device
    assert isinstance(learner.policy, ActorCritic)
    policy = copy.deepcopy(learner.policy).eval()  # an engine holds on to the gradients of its own
    assert bank is not None
    kind = policy.distribution.kind
    if policy.recurrent or kind not in ("categorical", "gaussian"):
        what = "a recurrent network" if policy.recurrent else f"actions of the kind {kind}"
        raise ConfigError(
            f"teacher.policy: {what} cannot be taught; networks without memory can, with Discrete actions or with "
            "normal ones of a Box. Leave teacher.policy out."
        )
    values, cursor, targets = (part.to(device) for part in lessons)
    if learner.moments is not None:
        learner.moments.update(values)
        values = learner.moments.normalise(values)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(policy.parameters(), lr=RATE)
    steps = epochs * -(-len(values) // MINIBATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(epochs):
        apart = 0.0
        for rows in torch.randperm(len(values), generator=generator).to(device).split(MINIBATCH):
            seen = Observation(values[rows], cursor[rows], bank.gather(cursor[rows]).float())
            loss = _distance(policy, policy(seen).parameters, targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            apart += float(loss.detach()) * len(rows)
    # A critic of random weights would value one position above another for no reason.
    for parameter in policy.value_head.parameters():
        nn.init.zeros_(parameter)
    learner.policy.load_state_dict(policy.state_dict())
    learner.taught = Taught(policy, hold) if hold else None
    return apart / len(values)


def _distance(policy: ActorCritic, parameters: Tensor, targets: Tensor) -> Tensor:
    """Return the mean KL divergence of the policy from the targets."""
    if policy.log_std is None:
        return functional.kl_div(functional.log_softmax(parameters, 1), targets, reduction="batchmean")
    assert isinstance(policy.distribution, Gaussian)
    # Of two normal distributions with the same deviation, which is not taught.
    deviation = policy.distribution.each(policy.log_std.detach()).exp()
    return (0.5 * ((parameters - targets) / deviation).square()).sum(1).mean()
