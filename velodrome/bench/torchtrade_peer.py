"""TorchTrade 0.1.0's vectorised environment in its default configuration, and Velodrome with the same observation.

Both get the same bars, an hour apart, which is TorchTrade's default timeframe: a window of 10 bars of open, high, low,
close and volume, and six account values. TorchTrade is stepped through TorchRL's `step_and_maybe_reset`, which starts
ended episodes anew as Velodrome does.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack

import numpy as np

from velodrome.bars.frame import Series
from velodrome.bench.contenders import Contender, native_stepper, thread_counts
from velodrome.bench.options import PEERS, StepBenchmarkOptions
from velodrome.bench.problem import StepProblem, hourly_series
from velodrome.bench.timing import Stepper
from velodrome.compat.torchtrade import torchtrade_market

WINDOW = 10  # bars; TorchTrade's default
FLOATS = WINDOW * 5 + 6
LARGEST = 1024
DEFAULT_SIZE = 64  # of its configuration


def torchtrade_sizes(options: StepBenchmarkOptions) -> tuple[int, ...]:
    """Return the sizes at which TorchTrade is measured: of those asked for, up to 1,024."""
    return tuple(size for size in options.sizes if size <= LARGEST)


def torchtrade_contenders(options: StepBenchmarkOptions, problem: StepProblem, num_envs: int) -> list[Contender]:
    """Return TorchTrade and Velodrome at one size."""
    series = hourly_series(options)
    columns = ("open", "high", "low", "close", "volume")
    data = {"timestamp": series.time, **{name: getattr(series, name) for name in columns}}
    market = torchtrade_market(data, ["1h"], [WINDOW], "1h")
    actions = problem.actions(num_envs)
    found = []
    for threads in thread_counts(options):
        # TorchTrade's spot mode has no shorts: their level stands for flat, as with allow_short=False.
        native = native_stepper(
            num_envs, threads, actions, market=market, preset="torchtrade", allow_short=False, seed=problem.seed
        )
        found.append(
            Contender("native", "velodrome", "torchtrade default", num_envs, threads, "windows", FLOATS, native)
        )
        found.append(
            Contender(
                "torchtrade", PEERS["torchtrade"][0], "torchtrade default", num_envs, threads, "windows", FLOATS,
                lambda stack, threads=threads: _ready(series, num_envs, threads, actions, stack),  # type: ignore[misc]
            )
        )  # fmt: skip
    return found


def _ready(series: Series, num_envs: int, threads: int, actions: list, stack: ExitStack) -> Stepper:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies', about each other
        import pandas  # type: ignore[import-untyped]
        import torch
        from torchtrade.envs.offline import VectorizedSequentialTradingEnv, VectorizedSequentialTradingEnvConfig

        columns = {name: getattr(series, name) for name in ("open", "high", "low", "close", "volume")}
        frame = pandas.DataFrame({"timestamp": pandas.to_datetime(series.time), **columns})
        envs = VectorizedSequentialTradingEnv(frame, VectorizedSequentialTradingEnvConfig(num_envs=num_envs))
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    ring = [torch.from_numpy(np.array(batch)) for batch in actions]
    current = envs.reset()

    def step(k: int) -> None:
        nonlocal current
        current["action"] = ring[k % len(ring)]
        _, current = envs.step_and_maybe_reset(current)

    return Stepper(step, lambda: torch.set_num_threads(threads))
