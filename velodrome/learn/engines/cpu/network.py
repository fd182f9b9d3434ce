"""Actor-critic perceptrons whose forward pass, PPO gradients and Adam step are laid out for the CPU's caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from velodrome.errors import ConfigError
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.cpu import kernels, losses, reading
from velodrome.learn.engines.cpu.lanes import Lanes
from velodrome.learn.engines.cpu.perceptrons import Perceptrons, lay_out
from velodrome.learn.engines.cpu.tile import LaneGradient, Tile
from velodrome.rollout.ranks import Share

# Most rows of a tile: its buffers nearly fit 1 MiB of cache, and Python is a few hundredths of its time.
TILE_ROWS = 512
# A batch is cut into at least this many tiles, as long as each has rows enough for a good matrix product.
FEWEST_TILES, FEWEST_ROWS = 4, 128
# Gradients that are summed apart; more would let more cores work on a minibatch, and each costs a pass to add it up.
LANES = 8
BETAS = (0.9, 0.999)  # of Adam


class Losses(NamedTuple):
    """Means over a minibatch, before its gradient step."""

    policy: float
    value: float
    entropy: float
    approximate_kl: float
    clip_fraction: float


class FusedActorCritic:
    """An actor and a critic, trained by PPO and Adam without autograd.

    The modules' parameters become views of one buffer here and see every update. The same inputs give the same bits
    with any number of threads (None: one per core). Calls are for one thread at a time. A rollout's tensors are looked
    at once: make one `FlatRollout` and write new samples into its tensors.
    """

    def __init__(self, parts: Perceptrons, threads: int | None = None) -> None:
        reason = parts.cannot_be_served()
        if reason:
            raise ConfigError(f"the fused update cannot serve this network: {reason}")
        self._workers = Lanes(threads)
        self.threads = self._workers.threads
        self.flat, self.network = lay_out(parts)
        self._lane_gradients = torch.zeros(LANES, self.flat.size)
        self._lane_sums = np.zeros((LANES, losses.SUMS))
        self._lanes = [self._lane(lane) for lane in range(LANES)]
        self._tiles = [Tile(self.network, TILE_ROWS) for _ in range(self.threads)]
        self._policy, self._values = torch.zeros(0, self.network.last.width - 1), torch.zeros(0)
        self.read: tuple[reading.FlatRollout, Any] | None = None  # the last rollout, and what reads it
        self.adam_steps = 0

    def _lane(self, lane: int) -> LaneGradient:
        flat, last, at = self._lane_gradients[lane], self.network.last, self.network.log_std_offset
        bias = flat.numpy()[last.bias_offset : last.bias_offset + last.width]
        log_std = flat.numpy()[at : at + self.network.log_std.size]
        return LaneGradient(flat, losses.HeadGradient(bias, log_std, self._lane_sums[lane]))

    # Act

    def forward(self, observations: reading.Observations) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits or means [n, A] and values [n]; the next call writes into the same tensors."""
        gather, count = reading.observation_reader(observations, self.network.features)
        if len(self._values) != count:
            self._policy, self._values = torch.zeros(count, self.network.last.width - 1), torch.zeros(count)
        policy, values, bias = self._policy.numpy(), self._values.numpy(), self.network.last.bias

        def finish(tile: Tile, first: int, rows: int) -> None:
            losses.write_outputs(tile.outputs_array, bias, first, rows, policy, values)

        self._act(gather, count, finish)
        return self._policy, self._values

    def sample(
        self, observations: reading.Observations, noise: torch.Tensor, out: tuple[torch.Tensor, ...] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Return actions as a rollout has them, their log-probabilities [n] and values [n]; in `out`, if it is given.

        `noise` is float32, [n, components] uniform in [0, 1) for discrete actions, [n, A] standard normal for others.
        """
        gather, count = reading.observation_reader(observations, self.network.features)
        network = self.network
        continuous = network.sizes.size == 0
        columns = network.last.width - 1 if continuous else network.sizes.size
        numbers = reading.expect("noise", noise, (count, columns), torch.float32)
        dtype = torch.float32 if continuous else torch.int64
        if out is None:
            shape = (count,) if network.sizes.size == 1 else (count, columns)
            out = torch.zeros(shape, dtype=dtype), torch.zeros(count), torch.zeros(count)
        drawn = (
            reading.expect("actions", out[0].view(count, columns), (count, columns), dtype),
            reading.expect("log_prob", out[1], (count,), torch.float32),
            reading.expect("values", out[2], (count,), torch.float32),
        )
        draw = losses.draw_gaussian if continuous else losses.draw_discrete
        bias, head = network.last.bias, network.head

        def finish(tile: Tile, first: int, rows: int) -> None:
            draw(tile.outputs_array, bias, head, tile.scratch, numbers, *drawn, first, rows)

        self._act(gather, count, finish)
        return out

    def _act(self, gather: reading.Gather, count: int, finish: Callable[[Tile, int, int], None]) -> None:
        """Take all observations through the network, a tile at a time, and hand the outputs to `finish`."""
        self.flat.check()
        everyone, bounds = np.arange(count), tile_bounds(count)

        def work(thread: int, lane: int) -> None:
            tile, first, rows = self._tiles[thread], bounds[lane], bounds[lane + 1] - bounds[lane]
            gather(everyone[first : first + rows], tile.inputs_array)
            for operation in tile.forward_plan(rows):
                operation.call()
            finish(tile, first, rows)

        self._workers.run(work, len(bounds) - 1)

    # Learn

    def update_minibatch(
        self, rows: torch.Tensor, rollout: reading.FlatRollout, config: PPOConfig, share: Share | None = None
    ) -> Losses:
        """Write the gradient of PPO's loss over some rows [m] int64 of a rollout, and return the parts of the loss."""
        if not isinstance(rows, torch.Tensor) or rows.dtype != torch.int64 or rows.ndim != 1 or not len(rows):
            raise ConfigError("rows must be a tensor [m] of int64 with at least one row")
        chosen = rows.contiguous().numpy()
        gather, gather_samples, advantages = self._readers_of(rollout)
        whole, mean, scale = len(chosen) if share is None else share.whole, 0.0, 1.0
        if config.normalise_advantages:
            mean, deviation = share.moments if share else kernels.mean_and_deviation(advantages, chosen)
            scale = 1.0 / (deviation + 1e-8)
        weights = (config.clip, config.value_clip or 0.0, config.entropy, config.kl_penalty, config.value_weight)
        scalars = losses.LossScalars(*map(np.float32, (*weights, mean, scale, 1.0 / whole)))
        return Losses(*(self._add_up(chosen, gather, gather_samples, scalars) / whole).tolist()[:5])

    def _add_up(self, chosen: Any, gather: reading.Gather, gather_samples: Any, scalars: Any) -> Any:
        """Write the gradient of the tiles' loss over some rows; return the sums of the loss."""
        self.flat.check()
        bounds = tile_bounds(len(chosen))
        lanes = min(LANES, len(bounds) - 1)
        self._lane_sums[:] = 0.0

        def work(thread: int, lane: int) -> None:
            tile, gradient = self._tiles[thread], self._lanes[lane]
            for index in range(lane, len(bounds) - 1, lanes):
                part = chosen[bounds[index] : bounds[index + 1]]
                gather(part, tile.inputs_array)
                gather_samples(part, tile.samples)
                for operation in tile.forward_plan(len(part)):
                    operation.call()
                loss, backward = tile.backward_plan(len(part), lane, gradient, index >= lanes)
                loss(scalars)
                for operation in backward:
                    operation.call()

        self._workers.run(work, lanes)
        kernels.sum_lanes(self._lane_gradients.numpy(), lanes, self.flat.gradient_array)
        return self._lane_sums[:lanes].sum(0)

    def _readers_of(self, rollout: reading.FlatRollout) -> Any:
        """Return what reads a rollout; it is kept, because the next minibatch usually comes from the same one."""
        if self.read is None or self.read[0] is not rollout:
            gather, count = reading.observation_reader(rollout.observations, self.network.features)
            samples = reading.sample_reader(rollout, count, self.network.sizes, self.network.last.width - 1)
            self.read = rollout, (gather, *samples)
        return self.read[1]

    def adam_step(self, learning_rate: float, max_gradient_norm: float | None = None, epsilon: float = 1e-5) -> float:
        """Shorten the gradient to the norm given, take one step of Adam, and return the norm that it had before."""
        norm = math.sqrt(kernels.squared_norm(self.flat.gradient_array))
        # As torch's clip_grad_norm_ has it.
        scale = 1.0 if max_gradient_norm is None else min(1.0, max_gradient_norm / (norm + 1e-6))
        self.adam_steps += 1
        beta1, beta2 = BETAS
        step = learning_rate / (1.0 - beta1**self.adam_steps)
        correction = 1.0 / math.sqrt(1.0 - beta2**self.adam_steps)
        numbers = (scale, beta1, 1.0 - beta1, beta2, 1.0 - beta2, step, correction, epsilon)
        kernels.adam(*self.flat.arrays, tuple(map(np.float32, numbers)))
        return norm


def tile_bounds(rows: int) -> list[int]:
    """Return where the tiles of a batch begin, and its end; their sizes differ by one at most."""
    tiles = max(1, -(-rows // TILE_ROWS), min(FEWEST_TILES, rows // FEWEST_ROWS))
    return [index * rows // tiles for index in range(tiles + 1)]
