"""Adam as the learners use it: gradients that are too long are shortened, and its state goes by parameters' names.

The CPU's compiled loops have an Adam of their own, in the pass over their one buffer; it saves the same names.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from velodrome.learn.config import LearnerConfig


class Optimiser:
    """torch's Adam for a network; on CUDA everything stays where it is, so that a graph may hold its steps."""

    def __init__(self, network: nn.Module, config: LearnerConfig, *, epsilon: float) -> None:
        device = next(network.parameters()).device
        self.network, self.longest = network, config.max_gradient_norm
        self.fixed = device.type == "cuda"
        rate: Any = torch.tensor(config.learning_rate, device=device) if self.fixed else config.learning_rate
        self.adam = torch.optim.Adam(network.parameters(), rate, eps=epsilon, fused=True, capturable=self.fixed)

    def set_rate(self, rate: float) -> None:
        """Set the size of the next steps."""
        for group in self.adam.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def descend(self, loss: Tensor) -> Tensor:
        """Take a step down the gradient of a loss; return the length that the gradient had."""
        self.adam.zero_grad(set_to_none=not self.fixed)
        loss.backward()
        return self.step()

    def step(self) -> Tensor:
        """Take a step down the gradients that the parameters have; return the length that they had."""
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.longest)
        self.adam.step()
        return norm.detach()

    def state(self) -> dict[str, Tensor]:
        """Return the state by the names of the parameters; empty before the first step."""
        names = [name for name, _ in self.network.named_parameters()]
        return {
            f"{names[index]}.{key}": torch.as_tensor(value)
            for index, own in self.adam.state_dict()["state"].items()
            for key, value in own.items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        names = [name for name, _ in self.network.named_parameters()]
        state: dict[int, dict[str, Tensor]] = {}
        for full, tensor in tensors.items():
            name, _, key = full.rpartition(".")
            state.setdefault(names.index(name), {})[key] = tensor
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state})


def learning_rate(config: LearnerConfig, done: float) -> float:
    """Return the learning rate when a fraction `done` of the run is over."""
    left = 1.0 - min(max(done, 0.0), 1.0)
    factors = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1.0 - math.cos(math.pi * left))}
    return config.learning_rate * factors[config.schedule]
