"""What ten times as many steps cost, and what agents do where nothing can be foreseen, with the preset `trading`.

    python benchmarks/longer_and_noise.py [--json FILE] [--processes N] [--seed 900] [--longer 2] [--noise 10] [--gpu]
        [--problems ar1 ou …]

Each training is an ordinary run with the preset's own end (`evaluation.patience`); its best checkpoint plays 20,000
bars that nobody has seen. Longer: the problems of `velodrome bench generalise` with 300,000 and with 3,000,000 steps.
Noise: a random walk without drift, with a fee of 0.02 %; an agent should hold still there. With --gpu, two of the
problems are trained on a GPU as well. What is in the file is not trained again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from velodrome.bench.generalise import trainings
from velodrome.writing import replace_text

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
NOISE = trainings.Problem("gbm", cost=trainings.COST)
BARS = (2_000, 10_000)
WINDOWS = 32
ON_GPU = ("ou", "ar1-with-costs")


class Case(NamedTuple):
    """One training."""

    problem: str  # of `bench generalise`, or noise
    bars: int
    market_seed: int
    seed: int
    longer: int  # times the steps of the preset
    device: str = "cpu"


def cases(problems: Sequence[str], first: int, markets: int, seeds: int, gpu: bool) -> list[Case]:
    """Return all trainings on markets whose seeds follow the first, the longest of them first."""
    asked = {"cpu": problems, **({"cuda": [own for own in problems if own in ON_GPU]} if gpu else {})}
    longer = [
        Case(problem, bars, market, 0, times, device)
        for times in (10, 1)
        for device, own in asked.items()
        for bars in BARS
        for problem in own
        for market in range(first, first + markets)
    ]
    return longer + [Case("noise", bars, first + seed, seed, 1) for bars in BARS for seed in range(seeds)]


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
    about = trainings.Training(case.problem, case.bars, WINDOWS, "defaults", case.market_seed, case.seed, 0)
    with tempfile.TemporaryDirectory() as folder:
        given = trainings.settings_of(about, problem) | {"logging.folder": folder, "device": case.device}
        config = load_run_config(None, given, own_data=True)
        given["steps"] = case.longer * config.steps
        began = time.perf_counter()
        run = vd.train(load_run_config(None, given, own_data=True), mode="quiet", evaluate=False)
        seconds = time.perf_counter() - began
        market = setup.build_market(run.config)
        assert market is not None
        ended = run.find_checkpoint("latest").steps
        policy, named = run.one_policy("best")
        policy = policy.with_bank(WindowBank(market.windows))
        found = validate(policy, config.env, market, "test", run.config.params, pieces=1)
    share = None
    if case.problem != "noise":
        share = found["mean_log_return"] / trainings.best_log_return(case.problem, market)
    figures = {"log_return": found["mean_log_return"], "turnover": found["turnover"], "share": share}
    return {**case._asdict(), **figures, "ended": ended, "seconds": seconds, "policy": named.text}


def main() -> None:
    """Run everything and print a row for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="trainings at once")
    parser.add_argument("--seed", type=int, default=900, help="of the first market")
    parser.add_argument("--longer", type=int, default=2, help="markets of each kind that are trained for longer")
    parser.add_argument("--noise", type=int, default=10, help="markets of noise")
    parser.add_argument("--gpu", action="store_true", help="two problems on a GPU as well")
    known = tuple(trainings.PROBLEMS)
    parser.add_argument("--problems", nargs="+", choices=known, default=known, help="those that are trained for longer")
    options = parser.parse_args()
    os.environ |= dict.fromkeys(THREADS, "1")
    rows = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else []
    done_before = {tuple(row[name] for name in Case._fields) for row in rows}
    asked = cases(options.problems, options.seed, options.longer, options.noise, options.gpu)
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(played, case) for case in asked if tuple(case) not in done_before]):
            rows.append(row := done.result())
            share = "" if row["share"] is None else f"  {row['share']:.3f} of the best log return"
            where = f"{row['problem']}, {row['bars']:,} bars, market {row['market_seed']}, on {row['device']}"
            told = f"log return {row['log_return']:+.1e}, turnover {row['turnover']:,.0f}{share}"
            print(f"{where}, {row['longer']} times the steps: {told}", flush=True)
            if options.json is not None:
                replace_text(options.json, json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
