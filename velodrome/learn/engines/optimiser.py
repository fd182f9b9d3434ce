"""How weights follow their gradients: Adam, and before each of its steps the decay of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from velodrome.errors import ConfigError
from velodrome.learn.config import LearnerConfig

ADAM_EPSILON = 1e-5  # of PPO
BETAS = (0.9, 0.999)  # of Adam
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # torch's names: steps so far, mean gradient, mean square
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
    """Adam for a network: gradients that are too long are shortened, and its state goes by parameters' names.

    The arithmetic is torch's own, in one call. Its class `torch.optim.Adam` makes the same call and imports 800 modules
    first, for 2 seconds. On CUDA everything stays where it is, so that a graph may hold its steps.
    """

    def __init__(self, network: nn.Module, config: LearnerConfig, *, epsilon: float) -> None:
        self.parameters = dict(network.named_parameters())
        device = next(iter(self.parameters.values())).device
        self.longest, self.epsilon = config.max_gradient_norm, epsilon
        self.fixed = device.type == "cuda"
        rate: Any = torch.tensor(config.learning_rate, device=device) if self.fixed else config.learning_rate
        self.rate = rate
        self.moments: dict[str, dict[str, Tensor]] = {}  # by parameter: MOMENTS, once it has had a gradient
        self.weight_decay = WeightDecay(network, config.weight_decay)

    def set_rate(self, rate: float) -> None:
        """Set the size of the next steps."""
        self.rate = self.rate.fill_(rate) if self.fixed else rate

    def descend(self, loss: Tensor) -> Tensor:
        """Take a step down the gradient of a loss; return the length that the gradient had."""
        self.forget()
        loss.backward()
        return self.step()

    def forget(self) -> None:
        """Forget the gradients of the last step."""
        for own in self.parameters.values():
            if own.grad is not None and self.fixed:
                own.grad.detach_().zero_()
            else:
                own.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters, in place; 0 where a loss had none."""
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]

    @torch.no_grad()
    def step(self) -> Tensor:
        """Take a step down the gradients that the parameters have; return the length that they had."""
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.longest)
        self.weight_decay.shrink(self.rate)
        moved = [(name, own) for name, own in self.parameters.items() if own.grad is not None]
        for dtype in dict.fromkeys(own.dtype for _, own in moved):  # one call takes one kind of numbers
            self._move([(name, own) for name, own in moved if own.dtype == dtype])
        return norm.detach()

    def _move(self, moved: list[tuple[str, nn.Parameter]]) -> None:
        for name, own in moved:
            if name not in self.moments:
                self.moments[name] = self._no_moments(own)
        counts, means, squares = ([self.moments[name][key] for name, _ in moved] for key in MOMENTS)
        torch._foreach_add_(counts, 1)
        how: Any = {"lr": self.rate, "beta1": BETAS[0], "beta2": BETAS[1], "eps": self.epsilon}
        how |= {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
        parameters: list[Tensor] = [own for _, own in moved]
        gradients = [own.grad for own in parameters if own.grad is not None]  # all have one
        torch._fused_adam_(parameters, gradients, means, squares, [], counts, **how)

    def _no_moments(self, parameter: Tensor) -> dict[str, Tensor]:
        count = torch.zeros((), device=parameter.device)
        return dict(zip(MOMENTS, (count, torch.zeros_like(parameter), torch.zeros_like(parameter)), strict=True))

    def state(self) -> dict[str, Tensor]:
        """Return the state by the names of the parameters; empty before the first step."""
        return {f"{name}.{key}": tensor for name, own in self.moments.items() for key, tensor in own.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` returned, in place: graphs hold on to what there is."""
        found: dict[str, dict[str, Tensor]] = {}
        for full, tensor in tensors.items():
            name, _, key = full.rpartition(".")
            found.setdefault(name, {})[key] = tensor
        for name, own in found.items():
            if name not in self.parameters:
                raise ConfigError(f"The saved optimiser has numbers of {name}, which this network does not have.")
            shape = self.parameters[name].shape
            if {key: tensor.shape for key, tensor in own.items()} != dict(
                zip(MOMENTS, ((), shape, shape), strict=True)
            ):
                raise ConfigError(f"The saved optimiser has other numbers of {name} than Adam keeps.")
            self.moments.setdefault(name, self._no_moments(self.parameters[name].detach()))
        for name, own in self.moments.items():
            for key, tensor in own.items():
                tensor.copy_(found[name][key]) if name in found else tensor.zero_()


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
