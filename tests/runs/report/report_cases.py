"""Evaluations and training curves that the tests of the report share."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import polars as pl
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.learn.policies import Momentum, ar1_market
from tests.learn.portfolios import INSTRUMENTS, factors_basket
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.episodes import evaluate_episodes
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.result import Evaluation

INFORMATION = {"Run": "trading-0001", "Algorithm": "ppo, 200,000 steps, seed 0", "Unknown": None}


def momentum_evaluation(length: int = 3000, symbols: int = 1, **options) -> Evaluation:
    market = ar1_market(length, symbols)
    params = {"fee": 1e-5, "slippage": 2e-5}
    return evaluate_policy(Momentum(market), market, "test", params, seeds=2, random_seeds=3, samples=50, **options)


class Drifting:
    """Asks for weights that follow slow waves, one short at a time."""

    def begin(self, num_envs: int) -> None:
        self.count, self.bar = num_envs, 0

    def act(self, observation: Any) -> np.ndarray:
        self.bar += 1
        wave = np.sin(0.03 * self.bar + np.arange(INSTRUMENTS) * 2.0)
        return np.tile(np.where(wave > -0.5, np.maximum(wave, 0.0), -0.3), (self.count, 1)).astype(np.float32)

    def forget(self, ended: np.ndarray) -> None:
        pass


def portfolio_evaluation(length: int = 3000) -> Evaluation:
    params = {"weighting": "signed", "allow_short": True, "max_gross": 1.5, "buy_fee": 0.0005, "sell_fee": 0.0005}
    basket = factors_basket(length)
    return evaluate_policy(Drifting(), basket, "test", params, seeds=1, random_seeds=2, samples=50)


def cartpole_evaluation() -> Evaluation:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    return evaluate_episodes(ConstantPolicy(1), envs, 40, title="CartPole-v1", samples=50)


def training_metrics() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for step in range(1, 101):
        learnt = 1.0 - np.exp(-step / 20)
        rows.append((8192 * step, "episode/equity_return", float(0.2 * learnt + 0.02 * rng.normal())))
        rows.append((8192 * step, "episode/return", 7000.0 * learnt))
        rows.append((8192 * step, "time/steps_per_second", float(90_000 + 3_000 * rng.normal())))
        if step % 10 == 0:
            rows.append((8192 * step, "evaluation/validation/return", float(learnt + 0.05 * rng.normal())))
    rows.append((8192, "loss/policy", 0.1))
    return pl.DataFrame(rows, schema={"step": pl.Int64, "name": pl.String, "value": pl.Float64}, orient="row")
