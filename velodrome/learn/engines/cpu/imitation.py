"""An actor follows a rule: the tiles, products and Adam of PPO's update, with the distance from the rule as loss."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from velodrome.learn.engines.cpu.compiled import loop
from velodrome.learn.engines.cpu.losses import POLICY, add_bias, softmax, sum_for_bias
from velodrome.learn.engines.cpu.network import TILE_ROWS, FusedActorCritic
from velodrome.learn.engines.cpu.perceptrons import Perceptrons
from velodrome.learn.engines.cpu.reading import Observations, expect, observation_reader
from velodrome.learn.engines.formulas import HALF, ZERO


@loop
def gather_targets(source, rows, target):
    """Copy what the rule does in some rows into a tile."""
    for i in range(rows.size):
        for k in range(source.shape[1]):
            target[i, k] = source[rows[i], k]


@loop
def discrete_distance(outputs, bias, sizes, targets, share, scratch, gradient, rows, accumulate):
    """Replace outputs by the slopes of −Σ t · log p, for probabilities t [rows, A]; that of the value is 0."""
    add_bias(outputs, bias, rows)
    actions = bias.size - 1
    totals = scratch[actions]
    softmax(outputs, 0, actions, scratch, totals, scratch[actions + 1], rows)
    totals[:rows] = ZERO  # of the targets, 1 but for their rounding
    distance = 0.0
    for k in range(actions):
        line = outputs[k]
        for i in range(rows):
            totals[i] += targets[i, k]
            distance -= np.float64(targets[i, k] * line[i])
    for k in range(actions):
        line, chances = outputs[k], scratch[k]
        for i in range(rows):
            line[i] = (chances[i] * totals[i] - targets[i, k]) * share
    outputs[actions, :rows] = ZERO
    gradient.sums[POLICY] += distance
    sum_for_bias(outputs, gradient.bias, rows, accumulate)


@loop
def gaussian_distance(outputs, bias, log_std, targets, share, scratch, gradient, rows, accumulate):
    """Replace outputs by the slopes of Σ ½ ((m − t) / σ)², for actions t [rows, A]; σ and the value have none."""
    add_bias(outputs, bias, rows)
    actions = log_std.size
    distance = 0.0
    for k in range(actions):
        line, precision = outputs[k], math.exp(-log_std[k])
        for i in range(rows):
            deviation = (line[i] - targets[i, k]) * precision
            distance += np.float64(HALF * deviation * deviation)
            line[i] = deviation * precision * share
    outputs[actions, :rows] = ZERO
    if not accumulate:
        gradient.log_std[:] = ZERO
    gradient.sums[POLICY] += distance
    sum_for_bias(outputs, gradient.bias, rows, accumulate)


class FusedImitator(FusedActorCritic):
    """The actor of a policy, taught what a rule does at some observations.

    targets: [n, A] probabilities of discrete actions, or [n, A] continuous actions.
    """

    def __init__(
        self,
        actor: Perceptrons,
        observations: Observations,
        targets: torch.Tensor,
        epsilon: float,
        threads: int | None = None,
    ) -> None:
        super().__init__(actor._replace(critic=_smallest_critic(actor)), threads)
        gather, count = observation_reader(observations, self.network.features)
        wanted = expect("targets", targets, (count, self.network.last.width - 1), torch.float32)

        def gather_wanted(rows: NDArray[np.int64], target: NDArray[np.float32]) -> None:
            gather_targets(wanted, rows, target)

        for tile in self._tiles:
            tile.loss = discrete_distance if self.network.sizes.size else gaussian_distance
            tile.samples = np.zeros((TILE_ROWS, wanted.shape[1]), np.float32)
        self._read, self.epsilon = (gather, gather_wanted), epsilon
        # The part of the divergence that does not depend on the policy: Σ t · log t.
        constant = torch.xlogy(targets, targets).sum(1) if self.network.sizes.size else torch.zeros(count)
        self._constant = constant.double().numpy()
        self.distance = 0.0  # summed over the samples since somebody set it to 0

    def step(self, rows: torch.Tensor, rate: float) -> None:
        """Take a step of Adam down the mean distance of some rows."""
        chosen = rows.numpy()
        sums = self._add_up(chosen, *self._read, np.float32(1.0 / len(chosen)))
        self.adam_step(rate, None, self.epsilon)
        self.distance += float(sums[POLICY]) + float(self._constant[chosen].sum())


def _smallest_critic(actor: Perceptrons) -> list[nn.Linear]:
    """Return a critic to be in the way as little as possible: it is not taught."""
    widths = [actor.actor[0].in_features, *[1] * len(actor.actor)]
    with torch.random.fork_rng(devices=[]):  # its weights are drawn, which must not change what is drawn later
        return [nn.Linear(before, after) for before, after in pairwise(widths)]
