"""A few hundred rows on their way through the network and back, in buffers that stay in a core's second-level cache.

What has to be done to a tile is written down once for each number of rows, as a list of operations. Each is a matrix
product or a compiled kernel with its arguments, so that a minibatch costs little Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from velodrome.learn.engines.cpu import losses
from velodrome.learn.engines.cpu.kernels import ACTIVATIONS
from velodrome.learn.engines.cpu.perceptrons import Block, Network, round_up

MOST_PLANS = 256  # of a tile: two sizes for every lane of a few minibatch sizes
Loss = Callable[[Any], None]


class Operation(NamedTuple):
    """One step of a tile; the kind is what a profile groups by."""

    kind: str  # "product" | "elementwise" | "loss"
    call: Callable[[], Any]


class LaneGradient(NamedTuple):
    """Where a lane adds up: a flat buffer laid out like the parameters, and the sums of the loss."""

    flat: torch.Tensor  # [size]
    heads: losses.HeadGradient  # views of it, and the sums


class Tile:
    """The buffers of one thread, and the operations on them."""

    def __init__(self, network: Network, rows: int) -> None:
        self.network = network
        self.rows = rows
        width = round_up(max(layer.width for layer in network.hidden))
        # 64-byte rows and one buffer per layer. The last is for the gradient of the last hidden layer; that of a layer
        # before is written over the activations of the layer after it, which are no longer needed by then.
        self.inputs = torch.zeros(rows, round_up(network.features))
        self.hidden = [torch.zeros(rows, width) for _ in range(len(network.hidden) + 1)]
        self.outputs = torch.zeros(network.last.width, rows)
        self.inputs_array = self.inputs.numpy()
        self._hidden_arrays = [buffer.numpy() for buffer in self.hidden]
        self.outputs_array = self.outputs.numpy()
        sizes = network.sizes
        continuous = sizes.size == 0
        columns, dtype = (network.last.width - 1, np.float32) if continuous else (sizes.size, np.int64)
        numbers = (np.zeros(rows, np.float32) for _ in range(4))
        self.samples: Any = losses.Samples(np.zeros((rows, columns), dtype), *numbers)
        self.scratch = np.zeros((network.last.width - 1 + losses.SCRATCH, round_up(rows)), np.float32)
        self.loss: Any = losses.gaussian_loss if continuous else losses.discrete_loss
        self._activation = ACTIVATIONS[network.activation]
        shape = (rows, width) if self._activation.stores_slopes else (0, 0)
        self._slopes = [np.zeros(shape, np.float32) for _ in network.hidden]
        self._plans: dict[Any, Any] = {}

    def forward_plan(self, rows: int) -> list[Operation]:
        """Return the operations from gathered inputs to outputs without their biases, for the first rows."""
        return self._plan(("forward", rows), lambda: self._forward_operations(rows))

    def backward_plan(
        self, rows: int, lane: int, gradient: LaneGradient, accumulate: bool
    ) -> tuple[Loss, list[Operation]]:
        """Return the loss, a function of its weights, and the operations from its gradient to that of the parameters.

        They write to a lane's gradient and replace what it holds, unless they are to accumulate.
        """
        return self._plan(("backward", rows, lane, accumulate), lambda: self._backward(rows, gradient, accumulate))

    def _plan(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._plans:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = make()
        return self._plans[key]

    def _forward_operations(self, rows: int) -> list[Operation]:
        operations = []
        before = self.inputs[:rows]
        for k, layer in enumerate(self.network.hidden):
            buffer, array = self.hidden[k], self._hidden_arrays[k]
            for block in layer.blocks:
                operations.append(_product(before[:, block.inputs], block.weight.t(), buffer[:rows, block.outputs]))
            forward = functools.partial(self._activation.forward, array, self._slopes[k], layer.bias, rows)
            operations.append(Operation("elementwise", forward))
            before = buffer[:rows]
        for block in self.network.last.blocks:
            operations.append(_product(block.weight, before[:, block.inputs].t(), self.outputs[block.outputs, :rows]))
        return operations

    def _backward(self, rows: int, lane: LaneGradient, accumulate: bool) -> tuple[Loss, list[Operation]]:
        operations = []
        gradient, array = lane.flat, lane.flat.numpy()
        beta = 1 if accumulate else 0
        # Not `self` below: a tile that its own plans referred to would outlive its network for a while.
        read = (self.outputs_array, self.network.last.bias, self.network.head, self.samples)
        kernel, written = self.loss, (self.scratch, lane.heads, rows, accumulate)

        def loss(scalars: Any) -> None:
            kernel(*read, scalars, *written)

        def add_to_weight(block: Block, slopes: torch.Tensor, inputs: torch.Tensor) -> None:
            target = gradient[block.offset : block.offset + block.weight.numel()].view(block.weight.shape)
            product = functools.partial(torch.addmm, target, slopes, inputs, beta=beta, out=target)
            operations.append(Operation("product", product))

        depth = len(self.network.hidden)
        for block in self.network.last.blocks:
            slopes = self.outputs[block.outputs, :rows]
            add_to_weight(block, slopes, self.hidden[depth - 1][:rows, block.inputs])
            operations.append(_product(slopes.t(), block.weight, self.hidden[depth][:rows, block.inputs]))
        for k in reversed(range(depth)):
            layer = self.network.hidden[k]
            slopes = self.hidden[k + 1][:rows]
            bias_gradient = array[layer.bias_offset : layer.bias_offset + layer.width]
            arrays = (self._hidden_arrays[k + 1], self._hidden_arrays[k], self._slopes[k], bias_gradient)
            backward = functools.partial(self._activation.backward, *arrays, rows, accumulate)
            operations.append(Operation("elementwise", backward))
            before = self.hidden[k - 1][:rows] if k else self.inputs[:rows]
            for block in layer.blocks:
                add_to_weight(block, slopes[:, block.outputs].t(), before[:, block.inputs])
            if k:
                for block in layer.blocks:
                    target = self.hidden[k][:rows, block.inputs]
                    operations.append(_product(slopes[:, block.outputs], block.weight, target))
        return loss, operations


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Operation:
    return Operation("product", functools.partial(torch.mm, left, right, out=out))
