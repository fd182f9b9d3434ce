"""What the machine's matrix products allow: operations of a training step, and how fast sgemm does them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field

from velodrome.bench.report import Measurement, median_ratio

SQUARE = 1536  # rows of the matrices by which sgemm is measured: 18 MiB of operands, 7 GFLOP a product
PRODUCTS = 4  # the best of them counts


class Operations(NamedTuple):
    """Floating-point operations of matrix products for one environment step; a multiply-add counts two."""

    acting: int  # forward through actor and critic, in the rollout
    update: int  # forward, gradients of weights and of hidden layers' inputs, in all epochs

    @property
    def total(self) -> int:
        """Of a whole step."""
        return self.acting + self.update


def operations_per_step(inputs: int, hidden: Sequence[int], outputs: Sequence[int], epochs: int) -> Operations:
    """Count the matrix products of PPO for one step; a network for each of the outputs.

    The gradient of a weight costs what the layer's product did, and so does the gradient of the layer's input; that of
    the observation, the first layer's input, is not needed. Biases, activations, the loss and the optimiser are left
    out, and so are the few values that close a rollout.
    """
    layers = [pair for last in outputs for pair in itertools.pairwise((inputs, *hidden, last))]
    forward = sum(2 * before * after for before, after in layers)
    observed = len(outputs) * 2 * inputs * hidden[0]
    return Operations(forward, epochs * (3 * forward - observed))


def sgemm_rate(size: int = SQUARE, products: int = PRODUCTS) -> float:
    """Return floating-point operations per second of a square product on all of torch's threads, the best of some."""
    import torch

    left, right, out = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
    seconds = []
    for _ in range(products):
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


class Bound(BaseModel):
    """What sgemm's speed allows if nothing but the matrix products took time."""

    threads: int
    operations: int = Field(description="floating-point operations of one step")
    flops: list[float] = Field(default_factory=list, description="operations per second of sgemm, round by round")
    best_flops: float = 0.0
    steps_per_second: float = Field(0.0, description="at the best of these rates")
    share: float | None = Field(None, description="reached by Velodrome: of each round's own bound, median")
    share_of_best: float | None = Field(None, description="reached by Velodrome's median, of the best round's bound")

    def conclude(self, own: Measurement) -> None:
        """Fill in what follows from the rounds."""
        self.flops = own.details.get("flops", [])
        if self.flops:
            self.best_flops = max(self.flops)
            self.steps_per_second = self.best_flops / self.operations
            self.share = median_ratio(own.rounds, [rate / self.operations for rate in self.flops])
            self.share_of_best = own.steps_per_second / self.steps_per_second
