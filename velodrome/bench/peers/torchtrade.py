"""TorchTrade 0.1.0's vectorised environment in its default configuration, and its scalar one under ParallelEnv.

It is given the bars an hour apart, its default timeframe, and observes a window of 10 bars of open, high, low, close
and volume, and six account values. It is stepped through TorchRL's `step_and_maybe_reset`, which starts the next
episode where one has ended, as Velodrome does.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from velodrome.bars.frame import Series
from velodrome.bench.options import Peer
from velodrome.bench.timing import Stepper
from velodrome.outside.extras import install
from velodrome.vector.argument_checks import check_that_they_fit
from velodrome.vector.cores import free_memory

COLUMNS = ("open", "high", "low", "close", "volume")
WINDOW = 10  # bars; TorchTrade's default
FLOATS = WINDOW * len(COLUMNS) + 6
# What a forked process of ParallelEnv takes for itself (Private_* of /proc/PID/smaps_rollup): 27 MB with 20,000 bars,
# 56 MB with 100,000. The 400 MB besides that it seems to take are pages of the parent, which all of them share.
WORKER_BYTES, BYTES_OF_A_BAR = 30e6, 400.0


def open_torchtrade(series: Series, num_envs: int, threads: int, actions: Callable[[], list]) -> Stepper:
    """Return what steps a batch, torch on a number of threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies', about each other
        from torchtrade.envs.offline import VectorizedSequentialTradingEnv, VectorizedSequentialTradingEnvConfig

        config = VectorizedSequentialTradingEnvConfig(num_envs=num_envs)
        envs = VectorizedSequentialTradingEnv(frame_of(series), config)
    return stepper_of(envs, threads, actions)


def open_parallel(series: Series, num_envs: int, threads: int, actions: Callable[[], list]) -> Stepper:
    """Return what steps the scalar environment in a process each, as TorchRL's ParallelEnv does."""
    import torch

    check_that_they_fit(num_envs, WORKER_BYTES + BYTES_OF_A_BAR * len(series), free_memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.envs import ParallelEnv
        from torchtrade.envs.offline import SequentialTradingEnv, SequentialTradingEnvConfig

        class Scalar(SequentialTradingEnv):
            """One that any version of TorchRL can close; later ones give a keyword."""

            def close(self, **_: Any) -> None:
                super().close()

        frame, before = frame_of(series), torch.get_num_threads()
        torch.set_num_threads(1)  # a process that is forked while torch has threads may wait for them for ever
        make = functools.partial(Scalar, frame, SequentialTradingEnvConfig())
        envs = ParallelEnv(num_envs, make, mp_start_method="fork")
        gc.collect()
        gc.freeze()  # no process looks through the parent's objects for garbage, which would copy their pages
        try:
            stepper = stepper_of(envs, threads, actions)
        finally:
            gc.unfreeze()
            torch.set_num_threads(before)
    return stepper


def frame_of(series: Series) -> Any:
    """Return bars as a DataFrame of the columns that TorchTrade wants."""
    import pandas  # type: ignore[import-untyped]

    columns = {name: getattr(series, name) for name in COLUMNS}
    return pandas.DataFrame({"timestamp": pandas.to_datetime(series.time), **columns})


def stepper_of(envs: Any, threads: int, actions: Callable[[], list]) -> Stepper:
    """Return what steps an environment of TorchRL through a ring of actions, torch on a number of threads."""
    import torch

    before = torch.get_num_threads()
    ring = [torch.from_numpy(np.array(batch)) for batch in actions()]
    current = envs.reset()

    def step(k: int) -> None:
        nonlocal current
        current["action"] = ring[k % len(ring)]
        _, current = envs.step_and_maybe_reset(current)

    def close() -> None:
        torch.set_num_threads(before)
        envs.close()

    return Stepper(step, lambda: torch.set_num_threads(threads), close)


NEEDS = (("torchtrade",), install("torchtrade"))
TORCHTRADE = Peer("TorchTrade vectorised", open_torchtrade, *NEEDS, own_problem=True)
PARALLEL = Peer("TorchTrade under ParallelEnv", open_parallel, *NEEDS, largest=256, own_problem=True)
