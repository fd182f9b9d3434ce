"""What ten times as many steps cost, and what agents do where nothing can be foreseen, with the preset `trading`.

    python benchmarks/longer_and_noise.py [--json FILE] [--processes N]

Each training is an ordinary run with the preset's own end (`evaluation.patience`); its best checkpoint plays 20,000
bars that nobody has seen. Longer: the problems of `velodrome bench generalise` with 300,000 and with 3,000,000 steps.
Noise: a random walk without drift, with a fee of 0.02 %; an agent should hold still there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from velodrome.bench.generalise import trainings
from velodrome.writing import replace_text

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
NOISE = trainings.Problem("gbm", cost=trainings.COST)
BARS = (2_000, 10_000)
WINDOWS = 32


class Case(NamedTuple):
    """One training."""

    problem: str  # of `bench generalise`, or noise
    bars: int
    market_seed: int
    seed: int
    steps: int


def cases() -> list[Case]:
    """Return all trainings, the longest first."""
    longer = [
        Case(problem, bars, market, 0, steps)
        for steps in (3_000_000, 300_000)
        for bars in BARS
        for problem in trainings.PROBLEMS
        for market in (600, 601)
    ]
    return longer + [Case("noise", bars, 500 + seed, seed, 300_000) for bars in BARS for seed in range(10)]


def played(case: Case) -> dict[str, Any]:
    """Train, and play the best checkpoint on bars that nobody has seen."""
    import torch

    import velodrome as vd
    from velodrome.evaluation.validation import validate
    from velodrome.rollout.observation import WindowBank
    from velodrome.runs import setup
    from velodrome.runs.config.files import load_run_config

    torch.set_num_threads(1)
    problem = trainings.PROBLEMS.get(case.problem, NOISE)
    about = trainings.Training(case.problem, case.bars, WINDOWS, "defaults", case.market_seed, case.seed, case.steps)
    with tempfile.TemporaryDirectory() as folder:
        given = trainings.settings_of(about, problem) | {"logging.folder": folder}
        began = time.perf_counter()
        run = vd.train(load_run_config(None, given, own_data=True), mode="quiet", evaluate=False)
        seconds = time.perf_counter() - began
        market = setup.build_market(run.config)
        assert market is not None
        policy, named = run.one_policy("best")
        policy = policy.with_bank(WindowBank(market.windows))
        found = validate(policy, "trading", market, "test", run.config.params, pieces=1)
    share = None
    if case.problem != "noise":
        share = found["mean_log_return"] / trainings.best_log_return(case.problem, market)
    figures = {"log_return": found["mean_log_return"], "turnover": found["turnover"], "share": share}
    return {**case._asdict(), **figures, "seconds": seconds, "policy": named.text}


def main() -> None:
    """Run everything and print a row for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="trainings at once")
    options = parser.parse_args()
    os.environ |= dict.fromkeys(THREADS, "1")
    rows = []
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(played, case) for case in cases()]):
            rows.append(row := done.result())
            share = "" if row["share"] is None else f"  {row['share']:.3f} of the best log return"
            where = f"{row['problem']}, {row['bars']:,} bars, market {row['market_seed']}, {row['steps']:,} steps"
            print(f"{where}: log return {row['log_return']:+.1e}, turnover {row['turnover']:,.0f}{share}", flush=True)
            if options.json is not None:
                replace_text(options.json, json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
