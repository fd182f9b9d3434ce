"""Train many variants of a preset side by side and compare what they reach, and how soon: how GPU presets were tuned.

    python benchmarks/time_to_quality.py VARIANTS.json [--processes 8] [--seconds 200] [--json FILE]

VARIANTS.json is a list of objects: {"preset": "gpu", "seed": 0, "set": {"num_envs": 4096}}. They are trained in that
order, several at once in processes of their own, until the seconds are over; what has not ended by then is told. On a
market the result is the share of the known optimum on validation and test, in CAGE-2 the official scores. Seconds are
those of the training alone and of everything from reading the configuration to its last checkpoint; beside other
trainings they say little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from velodrome.writing import replace_text

SCORED = ("b_line", "meander")


def trained(variant: dict[str, Any], folder: str, episodes: int) -> dict[str, Any]:
    """Train one variant and return what it reached."""
    import polars as pl

    import velodrome as vd

    began = time.monotonic()
    settings = {"seed": variant.get("seed", 0), "logging.folder": folder, **variant.get("set", {})}
    run = vd.train(variant["preset"], mode="quiet", evaluate=False, **settings)
    seconds = time.monotonic() - began
    metrics = run.metrics
    latest = run.find_checkpoint("latest").plain
    found: dict[str, Any] = {"whole_seconds": seconds, "steps": int(metrics["step"].max())}
    speed = metrics.filter(pl.col("name") == "time/steps_per_second")["value"]
    found["steps_per_second"] = float(speed[len(speed) // 2 :].median())
    found["best"] = latest["best"]
    curve = metrics.filter(pl.col("name").str.starts_with("evaluation/"))
    for name in ("of_optimum", "return"):
        rows = curve.filter(pl.col("name").str.ends_with(f"/{name}"))
        found[f"curve/{name}"] = list(rows.select("step", "value").iter_rows())
    if run.config.env == "cage2":
        from velodrome.evaluation.cage2.official import LENGTHS, play_official

        scores = play_official(run.policy, "agent", run.config.params, episodes, seed=settings["seed"], baselines=False)
        found["scores"] = {red: [scores.of("agent", red, length).mean for length in LENGTHS] for red in SCORED}
    else:
        for split in ("validation", "test"):
            figures = vd.evaluate(run, split, report=False, to_store=False).metrics
            found[split] = figures.get("of_optimum")
    found["all_seconds"] = time.monotonic() - began
    return found


def told(variant: dict[str, Any], found: dict[str, Any]) -> str:
    """Return a line about a result."""
    settings = " ".join(f"{key}={value}" for key, value in variant.get("set", {}).items()) or "as it is"
    line = f"{variant['preset']} seed {variant.get('seed', 0)} {settings}: "
    if "error" in found:
        return line + found["error"]
    if "scores" in found:
        line += "; ".join(f"{red} " + " / ".join(f"{mean:.2f}" for mean in found["scores"][red]) for red in SCORED)
    else:
        line += f"validation {found['validation']:.3f}, test {found['test']:.3f}"
    speed = found["steps_per_second"]
    return f"{line} ({found['steps']:,} steps, {speed / 1e6:.2f} M steps/s, {found['whole_seconds']:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--episodes", type=int, default=1_000, help="of each CAGE-2 score")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    variants = json.loads(options.variants.read_text())
    deadline = time.monotonic() + options.seconds
    results: list[dict[str, Any]] = []
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        pool = ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn"))
        running: dict[Future, dict[str, Any]] = {
            pool.submit(trained, variant, folder, options.episodes): variant for variant in variants
        }
        while running and (left := deadline - time.monotonic()) > 0.0:
            for future in wait(running, left, FIRST_COMPLETED).done:
                variant, error = running.pop(future), future.exception()
                found = {"error": f"{type(error).__name__}: {error}"} if error else future.result()
                results.append({**variant, **found})
                print(told(variant, found), flush=True)
                if options.json:
                    replace_text(options.json, json.dumps(results, indent=1) + "\n")
        for variant in running.values():
            print(told(variant, {"error": "not ended in time"}), flush=True)
        workers = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
            worker.join()


if __name__ == "__main__":
    main()
