"""Where the time of PPO's update on the CPU goes, on one core: products, activations, loss, gathering, adding up, Adam.

    python benchmarks/fused_update.py [--repeats N] [--json FILE]

One epoch over 256 environments × 32 steps in minibatches of 2,048 samples; separate actor and critic of 2 × 64 tanh
each, 3 actions, 264 floats (a window of 32 bars × 8 features by cursor, 8 account values). `velodrome bench train`
measures whole training, against autograd and against what sgemm's speed would allow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from velodrome.bench.machine import machine_stamp
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.cpu import kernels, losses
from velodrome.learn.engines.cpu.network import TILE_ROWS, FusedActorCritic
from velodrome.learn.engines.cpu.perceptrons import Perceptrons
from velodrome.learn.engines.cpu.reading import FlatRollout, WindowedObservations, observation_reader, sample_reader
from velodrome.tables.windows import WindowPart, stack_windows
from velodrome.writing import replace_text

BARS, LENGTH, FEATURES, VALUES = 100_000, 32, 8, 8
ENVIRONMENTS, STEPS, MINIBATCH = 256, 32, 2048
HIDDEN, ACTIONS = 64, 3
SAMPLES = ENVIRONMENTS * STEPS
FLOATS = LENGTH * FEATURES + VALUES
CONFIG = PPOConfig(entropy=0.01)


def layers(outputs: int) -> list[nn.Linear]:
    return [nn.Linear(*pair) for pair in itertools.pairwise([FLOATS, HIDDEN, HIDDEN, outputs])]


def rollout() -> FlatRollout:
    """Cursors that advance bar by bar from random starts, and random outcomes."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(BARS, FEATURES)).astype(np.float32)
    windows = stack_windows([(LENGTH, [WindowPart(features, np.arange(BARS))])])
    cursors = rng.integers(LENGTH, BARS - STEPS, ENVIRONMENTS)[None, :] + np.arange(STEPS)[:, None]
    values = torch.from_numpy(rng.normal(size=(SAMPLES, VALUES)).astype(np.float32))
    seen = WindowedObservations(windows, torch.from_numpy(cursors.reshape(-1).astype(np.int32)), values)
    actions = torch.from_numpy(rng.integers(0, ACTIONS, SAMPLES))
    return FlatRollout(seen, actions, *(torch.randn(SAMPLES) for _ in range(4)))


def epoch_seconds(network: FusedActorCritic, samples: FlatRollout) -> dict[str, float]:
    """Return the seconds of one epoch by what they go to, measured around every operation."""
    seconds: dict[str, float] = defaultdict(float)
    tile, lane = network._tiles[0], network._lanes[0]
    gather, count = observation_reader(samples.observations, FLOATS)
    gather_samples, _ = sample_reader(samples, count, network.network.sizes, ACTIONS)
    weights = (CONFIG.clip, 0.0, CONFIG.entropy, CONFIG.value_weight, 0.0, 1.0, 1.0 / MINIBATCH)
    scalars = losses.LossScalars(*map(np.float32, weights))

    def timed(kind: str, call: Callable[..., object], *arguments: object) -> None:
        began = time.perf_counter()
        call(*arguments)
        seconds[kind] += time.perf_counter() - began

    rows = torch.randperm(SAMPLES).numpy()
    for first in range(0, SAMPLES, TILE_ROWS):
        part = rows[first : first + TILE_ROWS]
        timed("gather", gather, part, tile.inputs_array)
        timed("gather", gather_samples, part, tile.samples)
        loss, backward = tile.backward_plan(len(part), 0, lane, False)
        for operation in tile.forward_plan(len(part)):
            timed(operation.kind, operation.call)
        timed("loss", loss, scalars)
        for operation in backward:
            timed(operation.kind, operation.call)
    for _ in range(SAMPLES // MINIBATCH):
        gradients, lanes = network._lane_gradients.numpy(), -(-MINIBATCH // TILE_ROWS)
        timed("sum of lanes", kernels.sum_lanes, gradients, lanes, network.flat.gradient_array)
        timed("norm and Adam", network.adam_step, CONFIG.learning_rate, CONFIG.max_gradient_norm)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="the fastest of this many epochs is reported")
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    options = parser.parse_args()
    machine = machine_stamp()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = FusedActorCritic(Perceptrons(layers(ACTIONS), layers(1), sizes=[ACTIONS]), threads=1)
    samples = rollout()
    epochs = [epoch_seconds(network, samples) for _ in range(options.repeats + 1)][1:]  # the first compiles
    best = min(epochs, key=lambda epoch: sum(epoch.values()))
    total = sum(best.values())
    shares = {kind: round(part / total, 3) for kind, part in best.items()}
    found = {"one_core_split": shares, "one_core_epoch_milliseconds": round(1e3 * total, 2)}
    load = machine["load_average"][0]
    print(f"{machine['cpu']}, {machine['cores']} cores, load {load:.1f}, {machine['git_commit']}")
    print(json.dumps(found, indent=2))
    if options.json:
        replace_text(options.json, json.dumps({"machine": machine, "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
