"""The study behind the presets `trading` and `portfolio`: settings of PPO that hold out of sample, after costs.

python benchmarks/defaults.py [--env portfolio] [--draws 60] [--seeds 2] [--steps 200000] [--minutes 9] [--out FILE]

Processes whose next return can be foreseen a little (trading: ar1, ou and regimes; portfolio: factors), each as daily,
hourly and five-minute bars of realistic number and volatility, with a fee for that size. Every draw of settings is
trained on each of them with every seed. As in a run, the checkpoint that does best on validation is kept; its score is
the mean log return of a bar on the test split, in units of the bar's volatility. Settings are compared by their mean
rank over markets and seeds, so that no market counts more than another. The first draw is the preset of the built-in
market. --finalists compares the few that the draws left over, on seeds that no draw has seen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from velodrome.writing import replace_text

SIZES = {  # timeframe: bars, volatility of a bar, fee
    "1d": (2_500, 1e-2, 5e-4),
    "1h": (20_000, 3e-3, 2e-4),
    "5m": (100_000, 1e-3, 1e-4),
}
# Processes by environment, each with what makes it a little foreseeable.
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "trading": {"ar1": {"phi": 0.15}, "ou": {"reversion": 0.04}, "regimes": {"persistence": 0.98}},
    "portfolio": {"factors": {"phi": 0.15, "symbols": 5}},
}
GRID: dict[str, tuple[Any, ...]] = {
    "ppo.gamma": (0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
    "ppo.gae_lambda": (0.8, 0.9, 0.95),
    "ppo.learning_rate": (1e-4, 3e-4, 1e-3),
    "ppo.entropy": (0.0, 0.003, 0.01, 0.03),
    "ppo.epochs": (2, 4),
    "ppo.normalise_rewards": (True, True, True, False),
    "ppo.rollout_length": (32, 64),
    "market.windows": (8, 16, 32),
    "params.episode_length": (128, 256, 512),
    "network.hidden": ((32, 32), (64, 64)),
}
TOY = {
    "ppo.gamma": 0.5, "ppo.gae_lambda": 0.9, "ppo.learning_rate": 1e-3, "ppo.entropy": 0.0, "ppo.epochs": 4,
    "ppo.normalise_rewards": True, "ppo.rollout_length": 32, "market.windows": 8, "params.episode_length": 256,
    "network.hidden": (64, 64),
}  # fmt: skip
# What is changed of the built-in market's settings; chosen by the draws' ranks.
FINALISTS: tuple[dict[str, Any], ...] = (
    {},
    {"ppo.gamma": 0.8, "ppo.learning_rate": 3e-4, "params.episode_length": 128},
    {"ppo.gamma": 0.8, "market.windows": 16},
    {"ppo.gamma": 0.9, "market.windows": 16},
    {"ppo.gamma": 0.9, "market.windows": 16, "ppo.entropy": 0.003},
    {"ppo.gamma": 0.95, "market.windows": 16},
    {"ppo.gamma": 0.95, "market.windows": 32},
    {"ppo.gamma": 0.95, "ppo.learning_rate": 3e-4, "market.windows": 16},
)
FINAL_SEED = 50  # the first one of the finalists' markets and trainings
VALIDATIONS = 12  # during a training


def draws(count: int) -> Iterator[dict[str, Any]]:
    """Yield settings: those of the built-in market, then random ones."""
    yield TOY
    random = np.random.default_rng(0)
    for _ in range(count - 1):
        yield {key: values[random.integers(len(values))] for key, values in GRID.items()}


def trained(job: tuple[str, int, dict[str, Any], str, str, int, int]) -> dict[str, Any]:
    """Train once and return the scores on the test split: of the checkpoint chosen on validation and of the last."""
    import torch

    from velodrome.evaluation.validation import validate
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.runs import setup
    from velodrome.runs.config.files import load_run_config

    env, draw, settings, kind, size, seed, steps = job
    torch.set_num_threads(1)
    length, volatility, fee = SIZES[size]
    process: dict[str, Any] = {"source": kind, "length": length, "seed": 100 + seed, "volatility": volatility}
    process |= KINDS[env][kind]
    if kind == "regimes":
        process["states"] = [(0.15 * volatility, 0.8 * volatility), (-0.15 * volatility, 1.2 * volatility)]
    given = {f"market.{key}": value for key, value in process.items()}
    given |= {"env": env, "market.timeframe": size, "market.check_leaks": False, "ppo.schedule": "linear"}
    if env == "portfolio":
        given |= {"params.buy_fee": fee, "params.sell_fee": fee, "params.fill": "close", "network.kind": "instruments"}
    else:
        given["params.fee"] = fee
    given |= {"steps": steps, "seed": seed, "device": "cpu", "num_envs": 128, **settings}
    config = load_run_config({}, given)
    market = setup.build_market(config)
    assert market is not None
    begin, best, chosen, latest = time.perf_counter(), -np.inf, 0.0, 0.0
    with setup.learning_worlds(config, market, "cpu") as worlds:
        learner = setup.make_learner(config, worlds)
        due = steps // VALIDATIONS
        while learner.steps < steps:
            learner.iterate()
            if learner.steps < due:
                continue
            due += steps // VALIDATIONS
            policy = TrainedPolicy.of(learner.policy, learner.worlds, learner.moments)
            found = {
                split: validate(policy, config.env, market, split, config.params)["mean_log_return"]
                for split in ("validation", "test")
            }
            latest = found["test"] / volatility
            if found["validation"] > best:
                best, chosen = found["validation"], latest
    seconds = time.perf_counter() - begin
    return {"draw": draw, "market": f"{kind} {size}", "seed": seed, "chosen": chosen, "latest": latest, "s": seconds}


def ranks(scores: np.ndarray) -> np.ndarray:
    """Return ranks along the first axis from 0 (worst) to 1 (best)."""
    return scores.argsort(axis=0).argsort(axis=0) / max(1, len(scores) - 1)


def summary(rows: list[dict[str, Any]], settings: list[dict[str, Any]]) -> str:
    """Return the ten best draws, the first one, and what each value of each setting is worth on average."""
    columns = sorted({(row["market"], row["seed"]) for row in rows})
    place = {column: index for index, column in enumerate(columns)}
    scores = np.full((len(settings), len(columns)), np.nan)
    for row in rows:
        scores[row["draw"], place[row["market"], row["seed"]]] = row["chosen"]
    whole = np.flatnonzero(~np.isnan(scores).any(axis=1))
    rank = ranks(scores[whole]).mean(axis=1)
    mean = scores[whole].mean(axis=1)
    lines = [f"{len(whole)} draws on {len(columns)} markets and seeds", "", "rank  score  settings"]
    order = [*np.argsort(-rank)[:10], *np.flatnonzero(whole == 0)]
    lines += [f"{rank[k]:.3f} {mean[k]:+.4f}  {json.dumps(settings[whole[k]])}" for k in order]
    lines += ["", "mean rank and score of the draws with a value, and by size of bar"]
    for key, values in GRID.items():
        for value in dict.fromkeys(values):
            having = [index for index, draw in enumerate(whole) if settings[draw][key] == value]
            if not having:
                continue
            sizes = ""
            for size in SIZES:
                inside = [place[column] for column in columns if column[0].endswith(size)]
                sizes += f"  {size} {ranks(scores[whole][:, inside]).mean(axis=1)[having].mean():.3f}"
            lines.append(
                f"{key} = {value}: {rank[having].mean():.3f} {mean[having].mean():+.4f} ({len(having)}){sizes}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=tuple(KINDS), default="trading")
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--finalists", action="store_true")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop then, with what is done")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("bench-results/defaults.json"))
    given = parser.parse_args()
    settings = [{**TOY, **changed} for changed in FINALISTS] if given.finalists else list(draws(given.draws))
    first = FINAL_SEED if given.finalists else 0
    cells = itertools.product(enumerate(settings), range(first, first + given.seeds), KINDS[given.env], SIZES)
    jobs = [(given.env, draw, chosen, kind, size, seed, given.steps) for (draw, chosen), seed, kind, size in cells]
    end = time.monotonic() + 60 * given.minutes
    trained((*jobs[0][:6], 8192))  # fills the kernel cache, which the others share
    rows = []
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for row in pool.imap(trained, jobs):
            rows.append(row)
            if time.monotonic() > end:
                break
        pool.terminate()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(given.out, json.dumps({"settings": settings, "rows": rows}))
    print(summary(rows, settings))
    print(f"{len(rows)} trainings, {sum(row['s'] for row in rows) / len(rows):.1f} s each on average")


if __name__ == "__main__":
    main()
