"""What every contender of `bench train` learns, and how well it does out of sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.bars import synthetic_bars
from velodrome.bench.problems.trading import trading_case
from velodrome.bench.step import FEATURES, Case
from velodrome.bench.trainer import Settings
from velodrome.tables import build_market
from velodrome.tables.market import Market
from velodrome.vector.make import make_vec

WINDOW = 32  # bars
# Log returns of 2 % a bar: rewards of the size that PPO's defaults are made for, whoever runs it.
VOLATILITY = 0.02
SPLITS = {"train": 0.8, "test": 0.2}
SHORT, LONG = 0, 2  # actions
EVALUATION_ENVS = 256  # stretches into which the test split is cut, played side by side

Act = Callable[[NDArray[np.float32]], NDArray[np.int64]]  # observations [n, floats] -> actions [n]


@dataclass(frozen=True)
class TrainProblem:
    """A market with a known optimum, cut in bars to train on and bars to test on."""

    market: Market
    case: Case  # the bars to train on
    settings: Settings
    seed: int

    @property
    def training(self) -> dict[str, Any]:
        """What `make_vec` is told to make the environments that are trained in."""
        return self.case.values

    @property
    def plain(self) -> Callable[[], gymnasium.Env]:
        """What makes one of them as a plain environment; only what it needs travels to a worker process."""
        return self.case.plain

    @property
    def floats(self) -> int:
        """Floats in an observation."""
        return self.case.floats

    @property
    def optimum(self) -> float:
        """Best expected log return a bar."""
        assert self.market.optimum is not None
        return self.market.optimum


def train_problem(bars: int, episode_length: int, settings: Settings, seed: int) -> TrainProblem:
    """Return the market ar1 without costs, for which the optimum is known."""
    prices = synthetic_bars("ar1", bars, seed, volatility=VOLATILITY)
    market = build_market(prices, FEATURES[:8], WINDOW, splits=SPLITS, check_leaks=False, name="ar1")
    case = trading_case(market.split("train"), {"fee": 0.0, "episode_length": episode_length})
    return TrainProblem(market, case, settings, seed)


class OutOfSample:
    """Plays a policy over the test split, once over every bar but the few that do not fill a stretch."""

    def __init__(self, problem: TrainProblem) -> None:
        test = problem.market.split("test")
        first, last = int(test.begin[0]), int(test.end[0]) - 1
        self.optimum = problem.optimum
        self.steps = (last - first) // EVALUATION_ENVS  # decisions in a stretch
        self.starts = first + self.steps * np.arange(EVALUATION_ENVS)
        self.closes = test.ohlc[:, 3]
        # Episodes run to the end of the data, so that none ends before its stretch does.
        values = {**problem.training, "market": test, "episode_length": None}
        self.envs = make_vec("trading", EVALUATION_ENVS, backend="native", threads=1, **values)

    def share(self, act: Act) -> float:
        """Return the mean log return a bar that a policy reaches, over the known optimum."""
        observations, _ = self.envs.reset(options={"cursor": self.starts})
        total = 0.0
        for _ in range(self.steps):
            observations, rewards, *_ = self.envs.step(act(observations))
            total += float(rewards.sum(dtype=np.float64))
        return total / (self.steps * EVALUATION_ENVS) / self.optimum

    def best_share(self) -> float:
        """Return what the best rule, to follow the sign of the last return, reaches on these very bars.

        Not quite 1: the bars are a sample, and an account that keeps a short for several bars does not reset it to its
        full size at each, as the optimum does.
        """
        bars = iter(range(self.steps))

        def follow(_: NDArray[np.float32]) -> NDArray[np.int64]:
            rows = self.starts + next(bars)
            return np.where(self.closes[rows] > self.closes[rows - 1], LONG, SHORT)

        return self.share(follow)

    def close(self) -> None:
        """Give the environments back."""
        self.envs.close()
