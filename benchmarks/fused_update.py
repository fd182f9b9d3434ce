"""Steps per second of PPO without its environments on the CPU: fused, by autograd, and what sgemm's speed would allow.

    python benchmarks/fused_update.py [--threads N] [--repeats N] [--json FILE]

Acting in 256 environments for 32 steps, then 4 epochs of 4 minibatches of 2,048 samples; separate actor and critic of
2 × 64 tanh each, 3 actions, 264 floats (a window of 32 bars × 8 features by cursor, 8 account values). The bound is the
rate of a square sgemm on as many threads, measured in the same repeats, over the floating-point operations of a step:
matrix products only, nothing else takes time. Equality comes first: gradients must be those of autograd.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from velodrome.bench.machine import machine_stamp
from velodrome.learn.engines.cpu import FlatRollout, FusedActorCritic, WindowedObservations, kernels, losses
from velodrome.learn.engines.cpu.network import TILE_ROWS
from velodrome.learn.engines.cpu.rollout import observation_reader, sample_reader
from velodrome.tables.windows import WindowPart, stack_windows

BARS, LENGTH, FEATURES, VALUES = 100_000, 32, 8, 8
ENVIRONMENTS, STEPS, EPOCHS, MINIBATCH = 256, 32, 4, 2048
HIDDEN, ACTIONS = 64, 3
SAMPLES = ENVIRONMENTS * STEPS
FLOATS = LENGTH * FEATURES + VALUES
CLIP, ENTROPY, VALUE_WEIGHT, RATE, MAX_NORM = 0.2, 0.01, 0.5, 3e-4, 0.5
SQUARE = 1536  # rows of the matrices by which sgemm is measured


def operations_per_step() -> dict[str, int]:
    """Floating-point operations of the matrix products for one step; a multiplication and an addition count two."""
    first = 2 * FLOATS * HIDDEN
    second = 2 * HIDDEN * HIDDEN
    heads = HIDDEN * (ACTIONS + 1)
    forward = 2 * (first + second + heads)
    # The gradient of every weight costs what its product did; that of the observation is not needed.
    backward = forward + 2 * (second + heads)
    return {"acting": forward, "update": EPOCHS * (forward + backward)}


def networks(seed: int = 0) -> tuple[list[nn.Linear], list[nn.Linear]]:
    torch.manual_seed(seed)
    return tuple(  # type: ignore[return-value]
        [nn.Linear(FLOATS, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, outputs)] for outputs in (ACTIONS, 1)
    )


def observations(seed: int = 0) -> WindowedObservations:
    """Cursors that advance bar by bar from random starts, as in a rollout."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(BARS, FEATURES)).astype(np.float32)
    windows = stack_windows([(LENGTH, [WindowPart(features, np.arange(BARS))])])
    cursors = rng.integers(LENGTH, BARS - STEPS, ENVIRONMENTS)[None, :] + np.arange(STEPS)[:, None]
    values = torch.from_numpy(rng.normal(size=(SAMPLES, VALUES)).astype(np.float32))
    return WindowedObservations(windows, torch.from_numpy(cursors.reshape(-1).astype(np.int32)), values)


class Fused:
    """The fused network at work."""

    def __init__(self, seen: WindowedObservations, threads: int | None) -> None:
        self.actor, self.critic = networks()
        self.network = FusedActorCritic(self.actor, self.critic, sizes=[ACTIONS], threads=threads)
        self.seen = seen
        zeros = torch.zeros(SAMPLES)
        generator = torch.Generator().manual_seed(1)
        advantages = torch.randn(SAMPLES, generator=generator)
        actions = torch.zeros(SAMPLES, dtype=torch.int64)
        self.rollout = FlatRollout(seen, actions, zeros, advantages, advantages + 1.0, zeros.clone())

    def act(self) -> None:
        _, actions, log_prob, _, _, values = self.rollout
        for step in range(STEPS):
            rows = slice(step * ENVIRONMENTS, (step + 1) * ENVIRONMENTS)
            seen = WindowedObservations(self.seen.windows, self.seen.cursors[rows], self.seen.values[rows])
            self.network.sample(seen, torch.rand(ENVIRONMENTS, 1), (actions[rows], log_prob[rows], values[rows]))

    def update(self) -> None:
        for _ in range(EPOCHS):
            for rows in torch.randperm(SAMPLES).split(MINIBATCH):
                self.minibatch(rows)
                self.network.adam_step(RATE, MAX_NORM)

    def minibatch(self, rows: Tensor) -> None:
        self.network.update_minibatch(
            rows, self.rollout, clip=CLIP, entropy_weight=ENTROPY, value_weight=VALUE_WEIGHT
        )  # fmt: skip

    def split(self) -> dict[str, float]:
        """Seconds of one epoch on one core by what they go to, measured around every operation."""
        seconds: dict[str, float] = defaultdict(float)
        network = self.network
        tile, lane = network._tiles[0], network._lanes[0]
        gather, count = observation_reader(self.seen, FLOATS)
        gather_samples, _ = sample_reader(self.rollout, count, network.network.sizes, ACTIONS)
        scalars = losses.LossScalars(
            *map(np.float32, (CLIP, 0.0, ENTROPY, VALUE_WEIGHT, 0.0, 1.0, 1.0 / MINIBATCH))
        )  # fmt: skip

        def timed(kind: str, call: Callable[[], object]) -> None:
            began = time.perf_counter()
            call()
            seconds[kind] += time.perf_counter() - began

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        rows = torch.randperm(SAMPLES).numpy()
        for first in range(0, SAMPLES, TILE_ROWS):
            part = rows[first : first + TILE_ROWS]
            timed("gather", lambda part=part: gather(part, tile.inputs_array))  # type: ignore[misc]
            timed("gather", lambda part=part: gather_samples(part, tile.samples))  # type: ignore[misc]
            loss, backward = tile.backward_plan(len(part), 0, lane, False)
            for operation in tile.forward_plan(len(part)):
                timed(operation.kind, operation.call)
            timed("loss", lambda loss=loss: loss(scalars))  # type: ignore[misc]
            for operation in backward:
                timed(operation.kind, operation.call)
        lanes = -(-MINIBATCH // TILE_ROWS)
        for _ in range(SAMPLES // MINIBATCH):
            gradients, total = network._lane_gradients.numpy(), network.flat.gradient.numpy()
            timed("sum of lanes", lambda: kernels.sum_lanes(gradients, lanes, total))  # noqa: B023
            timed("norm and adam", lambda: network.adam_step(RATE, MAX_NORM))
        torch.set_num_threads(before)
        return seconds


class Autograd:
    """The same in plain torch: windows picked from an overlapping view, torch's fused Adam, all cores per operation."""

    def __init__(self, like: Fused) -> None:
        self.actor, self.critic = networks()
        self.rollout, seen = like.rollout, like.seen
        table = torch.from_numpy(np.array(seen.windows.values))
        self.view = table.as_strided((BARS + 1, LENGTH * FEATURES), (FEATURES, 1))
        self.first = torch.from_numpy(seen.windows.rows[0].astype(np.int64) - LENGTH + 1)
        self.parameters = [parameter for layer in (*self.actor, *self.critic) for parameter in layer.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, RATE, eps=1e-5, fused=True)

    def outputs(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        seen = self.rollout.observations
        assert isinstance(seen, WindowedObservations)
        windows = self.view.index_select(0, self.first.index_select(0, seen.cursors[rows]))
        inputs = torch.cat([windows, seen.values[rows]], 1)
        found = []
        for first, second, head in (self.actor, self.critic):
            found.append(head(torch.tanh(second(torch.tanh(first(inputs))))))
        return torch.log_softmax(found[0], 1), found[1][:, 0]

    @torch.no_grad()
    def act(self) -> None:
        for step in range(STEPS):
            rows = slice(step * ENVIRONMENTS, (step + 1) * ENVIRONMENTS)
            log_probs, values = self.outputs(rows)
            actions = torch.multinomial(log_probs.exp(), 1)
            self.rollout.actions[rows] = actions[:, 0]
            self.rollout.old_log_prob[rows] = log_probs.gather(1, actions)[:, 0]
            self.rollout.old_values[rows] = values

    def update(self) -> None:
        for _ in range(EPOCHS):
            for rows in torch.randperm(SAMPLES).split(MINIBATCH):
                self.minibatch(rows)
                nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
                self.optimiser.step()

    def minibatch(self, rows: Tensor) -> None:
        _, actions, old_log_prob, advantages, returns, _ = self.rollout
        log_probs, values = self.outputs(rows)
        ratio = (log_probs.gather(1, actions[rows, None])[:, 0] - old_log_prob[rows]).exp()
        advantage = advantages[rows]
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(1.0 - CLIP, 1.0 + CLIP)).mean()
        value = 0.5 * (values - returns[rows]).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        self.optimiser.zero_grad()
        (policy + VALUE_WEIGHT * value - ENTROPY * entropy).backward()


def check_parity(fused: Fused, plain: Autograd) -> float:
    """Return the largest difference of gradients relative to the largest gradient; too much of it ends the program."""
    fused.act()
    rows = torch.arange(MINIBATCH)
    fused.minibatch(rows)
    plain.minibatch(rows)
    ours = torch.cat([p.grad.flatten() for layer in (*fused.actor, *fused.critic) for p in layer.parameters()])
    theirs = torch.cat([parameter.grad.flatten() for parameter in plain.parameters])
    worst = float((ours - theirs).abs().max() / theirs.abs().max())
    assert worst < 1e-5, f"gradients differ by {worst:.1e} of the largest"
    return worst


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sgemm_rate(threads: int) -> float:
    """Floating-point operations per second of one square product on so many threads, the best of a few."""
    left, right, out = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE), torch.empty(SQUARE, SQUARE)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return 2 * SQUARE**3 / min(seconds_of(lambda: torch.mm(left, right, out=out)) for _ in range(4))
    finally:
        torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=None, help="threads of everything; one per core if not given")
    parser.add_argument("--repeats", type=int, default=15, help="the best of so many is reported")
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    options = parser.parse_args()
    machine = machine_stamp()
    fused = Fused(observations(), options.threads)
    plain = Autograd(fused)
    threads = fused.network.threads
    torch.set_num_threads(threads)
    worst = check_parity(fused, plain)
    plain.update()
    best: dict[str, float] = defaultdict(lambda: float("inf"))
    rates: dict[int, float] = defaultdict(float)
    parts: dict[str, float] = {}
    for repeat in range(options.repeats):
        for count in {1, threads}:
            rates[count] = max(rates[count], sgemm_rate(count))
        # Training finds its windows in the cache; after the large matrices they are not.
        fused.act()
        for name, call in {"acting": fused.act, "update": fused.update}.items():
            best[name] = min(best[name], seconds_of(call))
        if repeat % 5 == 0:
            for name, call in {"autograd acting": plain.act, "autograd update": plain.update}.items():
                best[name] = min(best[name], seconds_of(call))
        split = fused.split()
        parts = split if not parts or sum(split.values()) < sum(parts.values()) else parts
    operations = operations_per_step()
    bound = rates[threads] / sum(operations.values())
    total = SAMPLES / (best["acting"] + best["update"])
    plain_total = SAMPLES / (best["autograd acting"] + best["autograd update"])
    found = {
        "threads": threads,
        "sgemm_gflops": {str(count): round(rate / 1e9, 1) for count, rate in rates.items()},
        "operations_per_step": operations,
        "bound_steps_per_second": round(bound),
        "steps_per_second": round(total),
        "share_of_bound": round(total / bound, 3),
        "acting_milliseconds": round(1e3 * best["acting"], 2),
        "update_milliseconds": round(1e3 * best["update"], 2),
        "autograd_steps_per_second": round(plain_total),
        "times_autograd": round(total / plain_total, 2),
        "gradient_difference": worst,
        "one_core_split": {name: round(part / sum(parts.values()), 3) for name, part in parts.items()},
        "one_core_epoch_milliseconds": round(1e3 * sum(parts.values()), 2),
    }
    print(f"{machine.cpu}, {machine.cores} cores, load {machine.load_average[0]:.1f}, {machine.git_commit}")
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.model_dump(), "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
