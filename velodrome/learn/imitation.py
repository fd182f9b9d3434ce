"""A policy is taught what a rule does before it learns from rewards, so that it begins where the rule stands."""

from __future__ import annotations

import copy
import math
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
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam
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
    bank, device = learner.worlds.true_bank, learner.worlds.device
    assert isinstance(learner.policy, ActorCritic)
    policy = copy.deepcopy(learner.policy).eval()  # an engine holds on to the gradients of its own
    assert bank is not None
    if reason := cannot_imitate(learner):
        raise ConfigError(f"teacher.policy: {reason}. Leave teacher.policy out.")
    values, cursor, targets = (part.to(device) for part in lessons)
    if learner.moments is not None:
        learner.moments.update(values)
        values = learner.moments.normalise(values)
    generator = torch.Generator().manual_seed(seed)
    optimiser = _Adam(list(policy.parameters()), epochs * -(-len(values) // MINIBATCH))
    for _ in range(epochs):
        apart = torch.zeros((), dtype=torch.float64, device=device)  # there: to ask for a number is to wait for it
        for rows in torch.randperm(len(values), generator=generator).to(device).split(MINIBATCH):
            seen = Observation(values[rows], cursor[rows], bank.gather(cursor[rows]).float())
            loss = _distance(policy, policy.decide(seen), targets[rows])
            optimiser.step(loss)
            apart += loss.detach().double() * len(rows)
    # A critic of random weights would value one position above another for no reason.
    for parameter in policy.value_head.parameters():
        nn.init.zeros_(parameter)
    learner.policy.load_state_dict(policy.state_dict())
    learner.taught = Taught(policy, hold) if hold else None
    return float(apart) / len(values)


class _Adam:
    """Adam as torch has it, with a rate that falls to 0. torch's own imports 800 modules first, for 2 seconds."""

    def __init__(self, parameters: list[nn.Parameter], steps: int) -> None:
        self.parameters, self.steps, self.done = parameters, steps, 0
        self.means, self.squares = ([torch.zeros_like(own) for own in parameters] for _ in range(2))

    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        """Go one step down the gradient of a loss; what it does not depend on stays as it is."""
        rate, self.done = RATE * (1.0 - self.done / self.steps), self.done + 1
        corrections = 1.0 - BETAS[0] ** self.done, math.sqrt(1.0 - BETAS[1] ** self.done)
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        moved = [place for place, gradient in enumerate(found) if gradient is not None]
        lists = ([each[place] for place in moved] for each in (found, self.parameters, self.means, self.squares))
        gradients, parameters, means, squares = lists
        # All parameters in one call: on a GPU each call takes as long as the arithmetic of many.
        torch._foreach_lerp_(means, gradients, 1.0 - BETAS[0])
        torch._foreach_mul_(squares, BETAS[1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - BETAS[1])
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_div_(sizes, corrections[1])
        torch._foreach_add_(sizes, EPSILON)
        torch._foreach_addcdiv_(parameters, means, sizes, -rate / corrections[0])


def _distance(policy: ActorCritic, parameters: Tensor, targets: Tensor) -> Tensor:
    """Return the mean KL divergence of the policy from the targets."""
    if policy.log_std is None:
        return functional.kl_div(functional.log_softmax(parameters, 1), targets, reduction="batchmean")
    assert isinstance(policy.distribution, Gaussian)
    # Of two normal distributions with the same deviation, which is not taught.
    deviation = policy.distribution.each(policy.log_std.detach()).exp()
    return (0.5 * ((parameters - targets) / deviation).square()).sum(1).mean()
