"""Acting and learning of perceptrons on a GPU: cuBLAS products between a few kernels of our own, no autograd.

Rows of a minibatch are laid out as [windows, values, 1, 0 …], widths padded to what tensor cores like. With the
constant 1 among the inputs the first layer's bias is a column of its weights; the other biases' gradients are products
with ones, because torch's sums along the long side are several times slower. Weights are kept in float32; products are
in the precision asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from velodrome.learn.engines.autograd import AutogradEngine, Task
from velodrome.learn.engines.gpu import kernels
from velodrome.rollout.launch import Kernel
from velodrome.rollout.observation import Observation
from velodrome.rollout.ranks import Share, drawn
from velodrome.rollout.storage import Rollout

ALIGNED = 8  # tensor cores want rows of a multiple of this


def padded(count: int) -> int:
    """Return the next multiple of ALIGNED."""
    return -(-count // ALIGNED) * ALIGNED


class Stack:
    """Linear layers one after another, with their buffers."""

    def __init__(
        self, layers: list[list[nn.Linear]], inputs: int, rows: int, dtype: torch.dtype, activation: str
    ) -> None:
        """layers: at each depth, modules side by side that read the same input. inputs: width of padded input rows."""
        device = layers[0][0].weight.device
        self.layers, self.activation = layers, activation

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        widths = [padded(sum(module.out_features for module in modules)) for modules in layers]
        shapes = list(zip(widths, [inputs, *widths[:-1]], strict=True))  # [outputs, inputs], padded
        self.weights = [zeros(*shape) for shape in shapes]  # in the precision of the products
        self.gradients = [zeros(*shape) for shape in shapes]
        self.biases = [zeros(width) for width in widths]
        self.bias_gradients = [zeros(ALIGNED, width) for width in widths]  # the first row counts
        self.hidden = [zeros(rows, width) for width in widths]
        self.slopes = [zeros(rows, width) for width in widths]
        self.outputs, self.d_outputs = (torch.zeros((rows, widths[-1]), device=device) for _ in range(2))
        self.ones = zeros(ALIGNED, rows)
        self.ones[0] = 1.0

    def refresh(self) -> None:
        """Copy the modules' weights and biases into the layout of the products."""
        for depth, module, rows in self._modules():
            weight, bias, inputs = self.weights[depth], self.biases[depth], module.in_features
            weight[rows, :inputs].copy_(module.weight.detach())
            (bias[rows] if depth else weight[rows, inputs]).copy_(module.bias.detach())

    def _modules(self) -> Iterator[tuple[int, nn.Linear, slice]]:
        """Give every module with its depth and the outputs that are its own."""
        for depth, modules in enumerate(self.layers):
            at = 0
            for module in modules:
                yield depth, module, slice(at, at + module.out_features)
                at += module.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in float32, [m, padded]; hidden layers stay for the way back."""
        m = inputs.shape[0]
        *below, last = range(len(self.weights))
        for depth in below:
            target = self.hidden[depth][:m]
            weight, bias = self.weights[depth].t(), self.biases[depth]
            if self.activation == "relu":
                torch._addmm_activation(bias, inputs, weight, out=target)  # rectified in the product's last step
            else:
                torch.addmm(bias, inputs, weight, out=target).tanh_()
            inputs = target
        torch.addmm(self.biases[last], inputs, self.weights[last].t(), out=self.hidden[last][:m])
        self.outputs[:m].copy_(self.hidden[last][:m])
        return self.outputs[:m]

    def backward(self, inputs: Tensor) -> None:
        """Write the gradients of all weights, given `d_outputs`."""
        m = inputs.shape[0]
        slope = self.slopes[-1][:m]
        slope.copy_(self.d_outputs[:m])
        for depth in reversed(range(len(self.weights))):
            below = inputs if depth == 0 else self.hidden[depth - 1][:m]
            torch.mm(slope.t(), below, out=self.gradients[depth])
            if depth == 0:
                break
            torch.mm(self.ones[:, :m], slope, out=self.bias_gradients[depth])
            next_slope = self.slopes[depth - 1][:m]
            torch.mm(slope, self.weights[depth], out=next_slope)
            if self.activation == "relu":
                torch.ops.aten.threshold_backward.grad_input(next_slope, below, 0, grad_input=next_slope)
            else:
                torch.ops.aten.tanh_backward.grad_input(next_slope, below, grad_input=next_slope)
            slope = next_slope

    def give_gradients(self, first: bool) -> None:
        """Write the gradients into the modules' parameters; those of later parts of a minibatch are added."""
        put = Tensor.copy_ if first else Tensor.add_
        for depth, module, rows in self._modules():
            gradient, bias, inputs = self.gradients[depth], self.bias_gradients[depth], module.in_features
            assert module.weight.grad is not None
            assert module.bias.grad is not None
            put(module.weight.grad, gradient[rows, :inputs])
            put(module.bias.grad, bias[0, rows] if depth else gradient[rows, inputs])


class CudaEngine(AutogradEngine):
    """The engine for perceptrons on a GPU; its values and checkpoints are the same as those of AutogradEngine."""

    name = "cuda"

    def __init__(self, task: Task, rollout: Rollout) -> None:
        policy, config = task.policy, task.config
        found = policy.linear_layers()
        assert found is not None
        self.activation = task.activation
        self.trunks = [[[module] for module in stack] for stack in found]
        if policy.shared:
            actor, critic = found
            self.trunks = [[[module] for module in actor[:-1]] + [[actor[-1], critic[-1]]]]
        self.value_column = policy.distribution.width if policy.shared else 0
        self.discrete = bool(policy.distribution.counts)
        self.gather = Kernel(kernels.gather_rows)
        self.sample = Kernel(kernels.sample_discrete if self.discrete else kernels.sample_gaussian)
        self.gradient = Kernel(kernels.discrete_gradient if self.discrete else kernels.gaussian_gradient)
        super().__init__(task, rollout)
        device = self.device
        counts = torch.tensor(policy.distribution.counts or (0,), dtype=torch.int64, device=device)
        self.head = counts if self.discrete else policy.log_std
        weights = (config.clip, config.value_clip or 0.0, config.entropy, config.kl_penalty, config.value_weight)
        self.scalars = torch.tensor([*weights, 0.0, 1.0], device=device)
        self.sums = torch.zeros(kernels.REPORTED, device=device)
        for parameter in policy.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def attach(self, rollout: Rollout) -> None:
        """Work on this rollout from now on; what was learnt stays."""
        super().attach(rollout)
        self.encode_once = False  # gathering rows and multiplying them is as quick here as looking encodings up
        device, distribution = self.device, self.policy.distribution
        dtype = torch.bfloat16 if self.config.precision == "bfloat16" else torch.float32
        values = rollout.values.shape[2]
        windows = 0 if self.bank is None else self.bank.floats
        width = padded(windows + values + 1)
        rows = max(-(-rollout.samples // (self.config.minibatches * self.parts)), rollout.num_envs)
        self.stacks = [Stack(trunk, width, rows, dtype, self.activation) for trunk in self.trunks]
        self.inputs = torch.zeros((rows, width), dtype=dtype, device=device)
        # Everything but the windows of an input row, [samples, values and 1 and 0 …]: of the rollout, and of others.
        self.tail, self.other_tail = (
            torch.zeros((count, width - windows), dtype=dtype, device=device) for count in (rollout.samples, rows)
        )
        self.tail[:, values] = self.other_tail[:, values] = 1.0
        self._prepare_words(dtype)
        self.all_rows = torch.arange(rollout.samples, device=device)
        components = len(distribution.counts) or distribution.width
        self.samples = torch.zeros((rollout.samples, kernels.ACTIONS + components), device=device)
        self.chances = torch.zeros((rollout.num_envs, distribution.width), device=device)
        self.d_log_std = torch.zeros((0 if self.discrete else rows, distribution.width), device=device)
        self.ones = torch.ones((1, len(self.d_log_std)), device=device)

    def set_entropy_weight(self, weight: float) -> None:
        """Set the weight of the entropy bonus in the next updates."""
        self.scalars[kernels.ENTROPY].fill_(weight)

    def let_go(self) -> None:
        """Give back what belongs to the rollout, before another is attached."""
        super().let_go()
        self.stacks = []
        self.inputs = self.tail = self.other_tail = self.samples = self.d_log_std = self.inputs.new_empty(0)

    def _prepare_words(self, dtype: torch.dtype) -> None:
        """Lay the bank out in the longest words on which all windows begin and end: 8 bytes, or fewer."""
        bank, size = self.bank, dtype.itemsize
        shapes = () if bank is None else bank.shapes
        words = (torch.int64, torch.int32, torch.int16)
        long_enough = (word for word in words if word.itemsize >= size)
        self.word = next(word for word in long_enough if all(width * size % word.itemsize == 0 for _, width in shapes))
        per_word = self.word.itemsize // size
        sizes = [rows * width // per_word for rows, width in shapes]
        self.words = torch.tensor(sizes, dtype=torch.int64, device=self.device)
        self.window_words = sum(sizes)
        if bank is None:
            self.table = torch.zeros(8, dtype=dtype, device=self.device).view(self.word)
            self.first_word = torch.zeros((0, 1), dtype=torch.int64, device=self.device)
            self.cursor = torch.zeros(self.rollout.samples, dtype=torch.int32, device=self.device)
            return
        assert self.rollout.cursor is not None
        self.cursor = self.rollout.cursor.view(-1)
        table = bank.table.to(dtype)
        self.table = torch.nn.functional.pad(table, (0, -len(table) % per_word)).view(self.word)
        first = [
            (base + first_row * width) // per_word
            for base, first_row, (_, width) in zip(bank.bases, bank.first_rows, bank.shapes, strict=True)
        ]
        self.first_word = torch.stack(first)

    def _rows(self, rows: Tensor, cursor: Tensor, tail: Tensor) -> Tensor:
        """Return input rows, given their cursors and tails."""
        inputs = self.inputs[: len(rows)]
        out = inputs.view(self.word)
        threads = len(rows) * ((out.shape[1] + 3) // 4)
        self.gather(
            threads, rows, cursor, self.first_word, self.table, tail.view(self.word), self.words, self.window_words, out
        )
        return inputs

    def value(self, observation: Observation, memory: Tensor) -> Tensor:
        """Return values, [n]; the weights are those of the last `begin_rollout`."""
        found = []
        for first in range(0, len(observation.values), len(self.other_tail)):
            values = observation.values[first : first + len(self.other_tail)]
            count = len(values)
            self.other_tail[:count, : values.shape[1]].copy_(values)
            cursor = self.cursor if observation.cursor is None else observation.cursor[first : first + count]
            inputs = self._rows(self.all_rows[:count], cursor.contiguous(), self.other_tail)
            found.append(self.stacks[-1].forward(inputs)[:, self.value_column].clone())
        return torch.cat(found)

    def begin_rollout(self) -> None:
        """Prepare for a rollout, during which the weights do not change."""
        for stack in self.stacks:
            stack.refresh()
        if self.bank is not None and self.bank.is_disturbed:
            self.table.view(self.inputs.dtype)[: len(self.bank.table)].copy_(self.bank.table)

    def act(self, t: int, observation: Observation, memory: Tensor, generator: torch.Generator) -> Tensor:
        """Write actions, log-probabilities and values of step t into the rollout; return the memory."""
        rollout = self.rollout
        n = rollout.num_envs
        self.tail[t * n : (t + 1) * n, : observation.values.shape[1]].copy_(observation.values)
        inputs = self._rows(self.all_rows[t * n : (t + 1) * n], self.cursor, self.tail)
        outputs = [stack.forward(inputs) for stack in self.stacks]
        actions = rollout.actions[t].view(n, -1)
        draw = torch.rand if self.discrete else torch.randn
        components = actions.shape[1]
        noise = drawn(lambda rows: draw((rows, components), generator=generator, device=self.device), n)
        written = (self.chances[:n], actions, rollout.log_prob[t], rollout.value[t])
        self.sample(n, outputs[0], outputs[-1], self.value_column, self.head, noise, *written)
        return memory

    def begin_update(self) -> None:
        """Put what the loss reads of each sample in one place."""
        rollout = self.rollout
        parts = (rollout.log_prob, rollout.advantage, rollout.returns, rollout.value)
        for column, part in enumerate(parts):
            self.samples[:, column].copy_(part.view(-1))
        self.samples[:, len(parts) :].copy_(rollout.actions.view(rollout.samples, -1))

    def _begin_step(self, rows: Tensor, share: Share | None = None) -> None:
        """Prepare for a gradient step: copy weights, and find out by what advantages are scaled."""
        for stack in self.stacks:
            stack.refresh()
        if self.config.normalise_advantages:
            if share is not None and share.advantages is not None:
                mean, deviation = share.advantages
            else:
                advantage = self.rollout.advantage.view(-1).index_select(0, rows)
                deviation, mean = torch.std_mean(advantage, correction=0)
                deviation = deviation + 1e-8
            self.scalars[kernels.MEAN].copy_(mean)
            self.scalars[kernels.SCALE].copy_(1.0 / deviation)

    def _add_gradient(self, rows: Tensor, share: float, first: bool) -> Tensor:
        """Add the gradient of the mean loss of some samples, times their share; return [5] numbers, times it too."""
        count, log_std = len(rows), self.policy.log_std
        inputs = self._rows(rows, self.cursor, self.tail)
        outputs = [stack.forward(inputs) for stack in self.stacks]
        slopes = [stack.d_outputs[:count] for stack in self.stacks]
        self.sums.zero_()
        read = (rows, outputs[0], outputs[-1], self.value_column, self.head, self.samples, self.scalars)
        written = (slopes[0], slopes[-1], *([] if log_std is None else [self.d_log_std]), self.sums)
        self.gradient(-(-count // kernels.STRIDE), *read, *written)
        if share != 1.0:
            for slope in (*slopes, self.d_log_std):
                slope.mul_(share)
        for stack in self.stacks:
            stack.backward(inputs)
            stack.give_gradients(first)
        if log_std is not None:
            assert log_std.grad is not None
            target, ones = log_std.grad.view(1, -1), self.ones[:, :count]
            torch.addmm(target, ones, self.d_log_std[:count], beta=0.0 if first else 1.0, out=target)
        return self.sums / (count / share)
