"""Evaluations and training curves that the tests of the report share."""

from __future__ import annotations

import gymnasium
import numpy as np
import polars as pl
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.learn.policies import Momentum, ar1_market
from velodrome.learn.baselines import ConstantPolicy
from velodrome.learn.evaluate import Evaluation, evaluate_episodes, evaluate_policy

INFORMATION = {"Run": "trading-0001", "Algorithm": "ppo, 200,000 steps, seed 0", "Unknown": None}


def momentum_evaluation(length: int = 3000, symbols: int = 1, **options) -> Evaluation:
    market = ar1_market(length, symbols)
    params = {"fee": 1e-5, "slippage": 2e-5}
    return evaluate_policy(Momentum(market), market, "test", params, seeds=2, random_seeds=3, samples=50, **options)


def cartpole_evaluation() -> Evaluation:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    return evaluate_episodes(ConstantPolicy(1), envs, 40, title="CartPole-v1", samples=50)


def training_metrics() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for step in range(1, 101):
        learnt = 1.0 - np.exp(-step / 20)
        rows.append((8192 * step, "episode/return", float(0.2 * learnt + 0.02 * rng.normal())))
        rows.append((8192 * step, "time/steps_per_second", float(90_000 + 3_000 * rng.normal())))
        if step % 10 == 0:
            rows.append((8192 * step, "evaluation/validation/return", float(learnt + 0.05 * rng.normal())))
    rows.append((8192, "loss/policy", 0.1))
    return pl.DataFrame(rows, schema={"step": pl.Int64, "name": pl.String, "value": pl.Float64}, orient="row")
