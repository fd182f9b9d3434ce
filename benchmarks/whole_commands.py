"""Times whole commands, from Enter to the end, and the parts that are not learning: validation, evaluation, report.

    python benchmarks/whole_commands.py
    python benchmarks/whole_commands.py --commands "gpu steps=100_000_000" "portfolio device=cuda num_envs=4096"
    python benchmarks/whole_commands.py --scaling

Each command runs twice, in a folder of its own: the first run fills the cache of compiled kernels, the second counts.
With --once it runs once, after a shorter command that filled the cache. A lesson by a teacher is learning. With
--scaling: what the final evaluation and its report take for more bars, seeds and instruments.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMANDS = ("", "market.length=1000000 steps=500000")
REPEATS = 3
LEARNING, OTHER = ("time/environment", "time/inference", "time/learning"), "time/other"  # seconds of each iteration


def seconds_of(call: Callable[[], Any]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of a call, CPU of all threads and of processes that it waits for."""
    before, began = os.times(), time.perf_counter()
    call()
    after = os.times()
    return time.perf_counter() - began, sum(after[:4]) - sum(before[:4])


def timed(command: str, folder: Path, repeats: int, times: int) -> None:
    """Print what a command takes and, if they are timed at all, the parts of it that are not learning."""
    words = [sys.executable, "-m", "velodrome", "train", *shlex.split(command), f"logging.folder={folder}"]
    # Python's own cache of what it compiles is warm, too, wherever its packages lie.
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "velodrome-python")}
    how: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": {**os.environ, **kept}}

    def train() -> None:
        if code := subprocess.run(words, **how).returncode:
            sys.exit(f"velodrome train {command}: ended with exit code {code}, so that there is nothing to time.")

    for _ in range(times):
        wall, cpu = seconds_of(train)
    print(f"velodrome train {command}: {wall:.1f} s, {cpu:.1f} s of CPU", flush=True)

    import polars as pl

    from velodrome.runs.evaluate import evaluate
    from velodrome.runs.trained import Run

    run = Run.open("latest", folder)
    log = run.folder.log_path.read_text()
    noted = run.metrics.filter(pl.col("name").is_in((*LEARNING, OTHER)))

    def logged(what: str) -> list[float]:
        return [float(found) for found in re.findall(rf"{what} took ([\d.]+) s", log)]

    each, saved = logged(r"validation at step \d+"), logged(r"checkpoint at step \d+")
    within = logged(r"validation at step [1-9]\d*")  # between two iterations
    learnt = float(noted.filter(pl.col("name") != OTHER)["value"].sum()) + sum(logged("lesson"))
    print(f"  {learnt:.1f} s of it learning, {1.0 - learnt / wall:.0%} everything else", flush=True)
    # From the first iteration to the last, `other` is all that is no phase of learning, validations among it.
    other = float(noted.filter(pl.col("name") == OTHER)["value"].sum())
    between, around = max(other - sum(within), 0.0), max(wall - learnt - other, 0.0)
    print(f"  {len(each)} validations {sum(each):.1f} s, else between iterations {between:.1f} s", flush=True)
    if each:
        print(f"  a validation {statistics.median(each):.3f} s (median), the first {each[0]:.3f} s", flush=True)
    print(f"  start, final evaluation, report and end {around:.1f} s", flush=True)
    print(f"  {len(saved)} checkpoints, written beside that, {sum(saved):.1f} s", flush=True)
    if not repeats:
        return
    market = run.market_for("to time it", None, None)
    parts = {
        "evaluation": lambda: evaluate(run, market=market, report=False, to_store=False),
        "evaluation and report": lambda: evaluate(run, market=market, to_store=False),
    }
    for name, call in parts.items():
        call()  # loads what is compiled
        wall, cpu = map(statistics.median, zip(*(seconds_of(call) for _ in range(repeats)), strict=True))
        print(f"  {name}: {wall:.3f} s, {cpu:.3f} s of CPU", flush=True)


SCALED = {  # what grows: the settings that stay, and the one that is doubled again and again, from and to
    "test bars of one instrument": ("demo", {}, "market.length", 100_000, 1_600_000),
    "seeds": ("demo", {"market.length": 100_000, "params.slippage": 1e-4}, "evaluation.seeds", 2, 32),
    "instruments of 3,000 test bars each": ("demo", {"market.length": 20_000}, "market.symbols", 1, 32),
    "instruments of a portfolio": ("demo_portfolio", {"market.length": 20_000}, "market.symbols", 2, 32),
}


def scaled(repeats: int) -> None:
    """Print what an evaluation and its report take as its data grows."""
    import velodrome as vd
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.evaluate import evaluate

    untaught = {"teacher.policy": None, "market.check_leaks": False, "market.shorten": False, "device": "cpu"}
    short = {"steps": 1_024, "num_envs": 32, "ppo.rollout_length": 32, "evaluation.every_steps": None}
    for about, (preset, stays, grows, size, most) in SCALED.items():
        print(f"{about} ({preset}, {grows}):", flush=True)
        while size <= most:
            with tempfile.TemporaryDirectory() as folder:
                given = {**untaught, **short, **stays, grows: size, "logging.folder": folder}
                run = vd.train(load_run_config(preset, given), mode="quiet", evaluate=False)
                market = run.market_for("to time it", None, None)
                play = functools.partial(evaluate, run, market=market, to_store=False)
                play()  # loads what is compiled
                wall, cpu = map(statistics.median, zip(*(seconds_of(play) for _ in range(repeats)), strict=True))
            print(f"  {size:>9,}: {wall:.2f} s, {cpu:.2f} s of CPU", flush=True)
            size *= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="*", default=COMMANDS, help="what follows `velodrome train`")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="times that each part is timed; the median counts")
    parser.add_argument("--whole", action="store_true", help="time the commands alone, not what they consist of")
    parser.add_argument("--once", action="store_true", help="run each command once; what it compiles is there already")
    parser.add_argument("--scaling", action="store_true", help="time evaluations of more and more data instead")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    chosen = parser.parse_args()
    if chosen.scaling:
        scaled(chosen.repeats)
        return
    for command in chosen.commands:
        with tempfile.TemporaryDirectory() as folder:
            timed(command, Path(folder), 0 if chosen.whole else chosen.repeats, 1 if chosen.once else 2)


if __name__ == "__main__":
    main()
