"""What every contender of `bench train` learns, and how well it does out of sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.bars import synthetic_bars
from velodrome.bench.problems.trading import trading_case
from velodrome.bench.step import FEATURES, Case
from velodrome.tables import build_market
from velodrome.tables.market import Market
from velodrome.vector.make import make_vec

WINDOW = 32  # bars
# Log returns of 2 % a bar: rewards of the size that PPO's defaults are made for, whoever runs it.
VOLATILITY = 0.02
SPLITS = {"train": 0.8, "test": 0.2}
SHORT, LONG = 0, 2  # actions
ONE = np.float32(1.0)  # position
EVALUATION_ENVS = 256  # stretches into which the test split is cut, played side by side

Act = Callable[[NDArray[np.float32]], NDArray[Any]]  # observations [n, floats] -> actions, [n] or [n, 1]


class TrainProblem(NamedTuple):
    """A market with a known optimum, cut in bars to train on and bars to test on."""

    market: Market
    case: Case  # the bars to train on
    settings: Any  # the `TrainOptions`, the same for every contender


def train_problem(options: Any, numbers: bool = False) -> TrainProblem:
    """Return the market ar1 without costs, for which the optimum is known. numbers: an action is any position."""
    prices = synthetic_bars("ar1", options.bars, options.seed, volatility=VOLATILITY)
    market = build_market(prices, FEATURES[:8], WINDOW, splits=SPLITS, check_leaks=False, name="ar1")
    params = {"fee": 0.0, "episode_length": options.episode_length, **({"action": "continuous"} if numbers else {})}
    case = trading_case(market.split("train"), params)
    return TrainProblem(market, case, options)


class OutOfSample:
    """Plays a policy over the test split, once over every bar but the few that do not fill a stretch."""

    def __init__(self, market: Market, params: Mapping[str, Any], stretches: int = EVALUATION_ENVS) -> None:
        test = market.split("test")
        first, last = int(test.begin[0]), int(test.end[0]) - 1
        assert market.optimum is not None
        self.optimum = market.optimum  # best expected log return a bar
        self.steps = (last - first) // stretches  # decisions in a stretch
        self.starts = first + self.steps * np.arange(stretches)
        self.closes = test.ohlc[:, 3]
        # Episodes run to the end of the data, so that none ends before its stretch does.
        values = {**params, "market": test, "episode_length": None}
        self.envs = make_vec("trading", stretches, backend="native", threads=1, **values)

    def share(self, act: Act) -> float:
        """Return the mean log return a bar that a policy reaches, over the known optimum."""
        observations, _ = self.envs.reset(options={"cursor": self.starts})
        total = 0.0
        for _ in range(self.steps):
            observations, rewards, *_ = self.envs.step(act(observations))
            total += float(rewards.sum(dtype=np.float64))
        return total / (self.steps * len(self.starts)) / self.optimum

    def best_share(self) -> float:
        """Return what the best rule, to follow the sign of the last return, reaches on these very bars.

        Not quite 1: the bars are a sample, and an account that keeps a short for several bars does not reset it to its
        full size at each, as the optimum does.
        """
        bars = iter(range(self.steps))

        is_choice = isinstance(self.envs.single_action_space, gymnasium.spaces.Discrete)

        def follow(_: NDArray[np.float32]) -> NDArray[Any]:
            rows = self.starts + next(bars)
            rises = self.closes[rows] > self.closes[rows - 1]
            return np.where(rises, LONG, SHORT) if is_choice else np.where(rises, ONE, -ONE)[:, None]

        return self.share(follow)

    def close(self) -> None:
        """Give the environments back."""
        self.envs.close()
