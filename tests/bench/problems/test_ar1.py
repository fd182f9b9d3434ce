"""The problem of the training benchmark: what is out of sample, and what the optimum means there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from velodrome.bench.problems.ar1 import OutOfSample, TrainProblem, train_problem
from velodrome.bench.train import TrainOptions

LAST_RETURN = 31 * 8  # place of the last bar's log return, the first feature, in an observation


@pytest.fixture(scope="module")
def problem() -> TrainProblem:
    return train_problem(TrainOptions(bars=20_000))


@pytest.fixture(scope="module")
def judge(problem: TrainProblem) -> Iterator[OutOfSample]:
    judge = OutOfSample(problem.market, problem.case.values)
    yield judge
    judge.close()


def follow_the_last_return(observations: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.where(observations[:, LAST_RETURN] > 0.0, 2, 0)


def test_the_best_rule_reaches_the_optimum(judge: OutOfSample) -> None:
    closes = judge.closes[judge.starts[0] - 1 : judge.starts[-1] + judge.steps + 1]
    seen, gained = closes[1:-1] / closes[:-2], closes[2:] / closes[1:-1]
    set_at_each_bar = np.where(seen > 1.0, np.log(gained), np.log(2.0 - gained)).mean() / judge.optimum
    assert set_at_each_bar == pytest.approx(1.0, abs=0.12)  # 4,000 bars: noise of 6 %
    assert judge.best_share() == pytest.approx(set_at_each_bar, rel=0.05)
    # Returns are scaled by a mean that is not quite zero, so a few signs differ.
    assert judge.share(follow_the_last_return) == pytest.approx(judge.best_share(), rel=0.02)


def test_the_opposite_loses_and_nothing_earns_nothing(judge: OutOfSample) -> None:
    assert judge.share(lambda observations: 2 - follow_the_last_return(observations)) < -0.8
    assert judge.share(lambda observations: np.ones(len(observations), np.int64)) == 0.0


def test_training_never_sees_the_bars_of_the_test(problem: TrainProblem, judge: OutOfSample) -> None:
    tables = problem.case.tables
    assert tables.end <= judge.starts[0]
    assert judge.starts[-1] + judge.steps < len(problem.market)
    assert judge.steps * len(judge.starts) > 0.9 * 0.2 * len(problem.market)


def test_the_observation_is_that_of_the_promise(problem: TrainProblem) -> None:
    assert problem.case.floats == 264
    assert problem.market.optimum > 0.0
