"""How weights follow their gradients: Adam, and before each of its steps the decay of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from velodrome.errors import ConfigError
from velodrome.learn.config import LearnerConfig

ADAM_EPSILON = 1e-5  # of PPO
FEWEST_SAMPLES = 64  # in a part of a minibatch: smaller ones would save no memory worth mentioning


class WeightDecay:
    """Decoupled weight decay (Loshchilov and Hutter, 2019): w ← (1 − rate · decay) · w before every step of Adam.

    It shrinks matrices and the kernels of convolutions; vectors are biases, deviations and the scales of norms.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        weights: list[Tensor] = [parameter for parameter in network.parameters() if parameter.ndim > 1]
        self.weights = weights if decay else []

    @torch.no_grad()
    def shrink(self, rate: Any) -> None:
        """Shrink the weights before a step of this size, a number or a scalar on the device."""
        if self.weights:
            torch._foreach_mul_(self.weights, 1.0 - rate * self.decay)


class Optimiser:
    """torch's Adam for a network: gradients that are too long are shortened, and its state goes by parameters' names.

    On CUDA everything stays where it is, so that a graph may hold its steps.
    """

    def __init__(self, network: nn.Module, config: LearnerConfig, *, epsilon: float) -> None:
        device = next(network.parameters()).device
        self.network, self.longest = network, config.max_gradient_norm
        self.names = [name for name, _ in network.named_parameters()]
        self.fixed = device.type == "cuda"
        rate: Any = torch.tensor(config.learning_rate, device=device) if self.fixed else config.learning_rate
        self.adam = torch.optim.Adam(network.parameters(), rate, eps=epsilon, fused=True, capturable=self.fixed)
        self.weight_decay = WeightDecay(network, config.weight_decay)

    def set_rate(self, rate: float) -> None:
        """Set the size of the next steps."""
        (group,) = self.adam.param_groups
        group["lr"] = group["lr"].fill_(rate) if self.fixed else rate

    def descend(self, loss: Tensor) -> Tensor:
        """Take a step down the gradient of a loss; return the length that the gradient had."""
        self.forget()
        loss.backward()
        return self.step()

    def forget(self) -> None:
        """Forget the gradients of the last step."""
        self.adam.zero_grad(set_to_none=not self.fixed)

    def step(self) -> Tensor:
        """Take a step down the gradients that the parameters have; return the length that they had."""
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.longest)
        self.weight_decay.shrink(self.adam.param_groups[0]["lr"])
        self.adam.step()
        return norm.detach()

    def state(self) -> dict[str, Tensor]:
        """Return the state by the names of the parameters; empty before the first step."""
        return {
            f"{self.names[index]}.{key}": torch.as_tensor(value)
            for index, own in self.adam.state_dict()["state"].items()
            for key, value in own.items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        state: dict[int, dict[str, Tensor]] = {}
        for full, tensor in tensors.items():
            name, _, key = full.rpartition(".")
            state.setdefault(self.names.index(name), {})[key] = tensor
        for index, own in enumerate(self.network.parameters()):
            kept = {key: tensor.shape for key, tensor in state.get(index, {}).items()}
            if kept and kept != {"step": (), "exp_avg": own.shape, "exp_avg_sq": own.shape}:
                raise ConfigError(f"The saved optimiser has other numbers of {self.names[index]} than Adam keeps.")
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state})


class Splitting:
    """An engine whose minibatches are cut into parts, gradients added up: the same step in less memory."""

    parts = 1
    policy: Any
    rollout: Any
    config: Any
    attach: Any
    let_go: Any

    def can_split(self) -> bool:
        """Return whether twice as many parts give the same step; batch norms take means of what they see at once."""
        rollout, parts = self.rollout, 2 * self.parts * self.config.minibatches
        whole = rollout.num_envs if self.policy.recurrent else rollout.samples // FEWEST_SAMPLES
        return whole >= parts and not any(isinstance(module, BatchNorm) for module in self.policy.modules())

    def split(self, parts: int) -> None:
        """Learn from each minibatch in this many parts."""
        self.parts = parts
        self.let_go()
        self.attach(self.rollout)
