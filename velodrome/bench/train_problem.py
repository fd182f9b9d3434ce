"""What every contender of the training benchmark learns, and how well it does out of sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars import synthetic_bars
from velodrome.bench.problem import FEATURES, StepProblem
from velodrome.bench.train_options import TrainBenchmarkOptions
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
class Settings:
    """PPO's settings, the same for every contender."""

    batch: int  # steps
    epochs: int
    minibatches: int
    hidden: tuple[int, ...]
    learning_rate: float = 3e-4
    adam_epsilon: float = 1e-5
    clip: float = 0.2
    # Without costs an action changes nothing but the next reward, so there is little to look ahead to.
    gamma: float = 0.9
    gae_lambda: float = 0.95
    value_weight: float = 0.5  # of the mean squared error
    max_gradient_norm: float = 0.5

    @property
    def minibatch(self) -> int:
        """Samples in a gradient step."""
        return self.batch // self.minibatches


@dataclass(frozen=True)
class TrainProblem:
    """A market with a known optimum, cut in bars to train on and bars to test on."""

    market: Market
    training: StepProblem
    settings: Settings

    @property
    def floats(self) -> int:
        """Floats in an observation."""
        return self.market.window_floats + 8

    @property
    def optimum(self) -> float:
        """Best expected log return a bar."""
        assert self.market.optimum is not None
        return self.market.optimum


def train_problem(options: TrainBenchmarkOptions) -> TrainProblem:
    """Return the problem of a benchmark: the market ar1 without costs, for which the optimum is known."""
    bars = synthetic_bars("ar1", options.bars, options.seed, volatility=VOLATILITY)
    market = build_market(bars, FEATURES, WINDOW, splits=SPLITS, check_leaks=False, name="ar1")
    training = StepProblem(
        market.split("train"), {"fee": 0.0, "episode_length": options.episode_length}, options.seed
    )  # fmt: skip
    settings = Settings(options.batch, options.epochs, options.minibatches, options.hidden)
    return TrainProblem(market, training, settings)


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
        parameters = {**problem.training.parameters, "episode_length": None}
        self.envs = make_vec("trading", EVALUATION_ENVS, market=test, backend="native", threads=1, **parameters)

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

        Not quite 1: the bars are a sample, and an account that keeps a short for several bars does not set it anew at
        each, as the optimum has it.
        """
        bars = iter(range(self.steps))

        def follow(_: NDArray[np.float32]) -> NDArray[np.int64]:
            rows = self.starts + next(bars)
            return np.where(self.closes[rows] > self.closes[rows - 1], LONG, SHORT)

        return self.share(follow)

    def close(self) -> None:
        """Give the environments back."""
        self.envs.close()
