"""What recording resources costs a training: iterations with it and without, in turns, in one run.

    python benchmarks/resources.py [--preset NAME] [--every SECONDS] [--pairs N] [--seconds S] [--json FILE] [KEY=VALUE]

One learner trains. For S seconds the machine is sampled and rows are written as in a run, for S it is not, and so on;
which of both begins a pair alternates. The cost is the median over pairs of what an iteration takes longer, by the
clock and by the CPU time of the process, in percent; the interval is that of 95 of 100 resamples of the pairs. A busy
machine makes both useless; what a sample takes of a core is told besides. By default the machine is sampled every
second, five times as often as a quiet run does by default.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.bench.machine import machine_stamp
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.machine.resources import ResourceMetrics
from velodrome.runs.machine.use import MachineSampler
from velodrome.runs.metrics import MetricsWriter
from velodrome.runs.store.sinks import JsonLinesSink
from velodrome.writing import replace_text


def block(
    learner: Any, seconds: float, writer: MetricsWriter, resources: ResourceMetrics | None
) -> tuple[float, float]:
    """Train for some seconds; return what an iteration took by the clock and of the process's CPU time."""
    begin, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        metrics = learner.iterate()
        if resources is not None:
            metrics |= resources.take()
        writer.add(learner.steps, metrics)
        count += 1
    return (time.perf_counter() - begin) / count, (time.process_time() - cpu) / count


class TimedSampler(MachineSampler):
    """Counts the CPU seconds that its thread takes; other programs do not disturb that."""

    samples_taken, cpu_seconds = 0, 0.0  # of all of them

    def _sample(self, *arguments: Any) -> Any:
        began = time.thread_time()
        found = super()._sample(*arguments)
        TimedSampler.cpu_seconds += time.thread_time() - began
        TimedSampler.samples_taken += 1
        return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was found."""
    config = load_run_config(options.preset, options.settings)
    device, costs = config.usable_device(), []
    with (
        tempfile.TemporaryDirectory() as folder,
        setup.learning_worlds(config, setup.build_market(config), device) as worlds,
        MetricsWriter([JsonLinesSink(Path(folder) / "metrics.jsonl")]) as writer,
    ):
        learner = setup.make_learner(config, worlds)
        for _ in range(5):
            learner.iterate()

        def with_resources() -> tuple[float, float]:
            with TimedSampler(folder, device, options.every) as sampler:
                return block(learner, options.seconds, writer, ResourceMetrics(sampler, options.every))

        for pair in range(options.pairs):
            if pair % 2:
                on, off = with_resources(), block(learner, options.seconds, writer, None)
            else:
                off, on = block(learner, options.seconds, writer, None), with_resources()
            costs.append([100.0 * (one / other - 1.0) for one, other in zip(on, off, strict=True)])
    sample = TimedSampler.cpu_seconds / max(TimedSampler.samples_taken, 1)
    return {"device": device, "every_seconds": options.every, "sample_seconds": sample, **summary(np.array(costs))}


def summary(costs: np.ndarray) -> dict[str, Any]:
    """Return the medians of costs, [pairs, 2] in percent, with their intervals."""
    rows = np.random.default_rng(0).integers(len(costs), size=(10_000, len(costs)))
    found = {}
    for name, column in zip(("clock", "cpu"), costs.T, strict=True):
        low, high = np.quantile(np.median(column[rows], axis=1), [0.025, 0.975])
        median = float(np.median(column))
        found[name] = {"percent": median, "low": float(low), "high": float(high), "pairs": column.tolist()}
    return found


def main() -> None:
    """Measure, print and perhaps write a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=None)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    found = measure(options)
    print(f"Recording resources every {options.every:g} s, on {found['device']}, costs, in percent of an iteration:")
    for name in ("clock", "cpu"):
        own = found[name]
        print(f"  {name:5} {own['percent']:+.2f} ({own['low']:+.2f} to {own['high']:+.2f})")
    share = 100.0 * found["sample_seconds"] / options.every
    print(f"A sample takes {1e3 * found['sample_seconds']:.2f} ms of a core, {share:.2f} percent of one.")
    if options.json is not None:
        replace_text(options.json, json.dumps({"machine": machine_stamp(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
