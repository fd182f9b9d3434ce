"""TorchTrade 0.1.0's vectorised environment in its default configuration.

It is given the bars an hour apart, its default timeframe, and observes a window of 10 bars of open, high, low, close
and volume, and six account values. It is stepped through TorchRL's `step_and_maybe_reset`, which starts the next
episode where one has ended, as Velodrome does.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack

import numpy as np

from velodrome.bars.frame import Series
from velodrome.bench.options import Peer
from velodrome.bench.timing import Stepper

COLUMNS = ("open", "high", "low", "close", "volume")
WINDOW = 10  # bars; TorchTrade's default
FLOATS = WINDOW * len(COLUMNS) + 6


def open_torchtrade(series: Series, num_envs: int, threads: int, actions: list, stack: ExitStack) -> Stepper:
    """Return what steps a batch, torch on a number of threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies', about each other
        import pandas  # type: ignore[import-untyped]
        import torch
        from torchtrade.envs.offline import VectorizedSequentialTradingEnv, VectorizedSequentialTradingEnvConfig

        columns = {name: getattr(series, name) for name in COLUMNS}
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


NEEDS = (("torchtrade",), "pip install 'velodrome[torchtrade]'")
TORCHTRADE = Peer("TorchTrade vectorised", open_torchtrade, *NEEDS, own_problem=True)
