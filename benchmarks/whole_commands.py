"""Times whole commands, from Enter to the end, and the parts that are not learning: validation, evaluation, report.

    python benchmarks/whole_commands.py
    python benchmarks/whole_commands.py --commands "gpu steps=100_000_000" "portfolio device=cuda num_envs=4096"

Each command runs twice, in a folder of its own: the first run fills the cache of compiled kernels, the second counts.
"""

from __future__ import annotations

import argparse
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


def seconds_of(call: Callable[[], Any]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of a call, CPU of all threads and of processes that it waits for."""
    before, began = os.times(), time.perf_counter()
    call()
    after = os.times()
    return time.perf_counter() - began, sum(after[:4]) - sum(before[:4])


def timed(command: str, folder: Path) -> None:
    """Print what a command takes, and the parts of it that are not learning."""
    words = [sys.executable, "-m", "velodrome", "train", *shlex.split(command), f"logging.folder={folder}"]
    for _ in range(2):
        wall, cpu = seconds_of(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))
    print(f"velodrome train {command}: {wall:.1f} s, {cpu:.1f} s of CPU", flush=True)

    from velodrome.runs.evaluate import evaluate
    from velodrome.runs.trained import Run

    run = Run.open("latest", folder)
    market = run.market_for("to time it", None, None)
    each = [
        float(found) for found in re.findall(r"validation at step \d+ took ([\d.]+) s", run.folder.log_path.read_text())
    ]
    if each:
        print(f"  {len(each)} validations during training: {statistics.median(each):.3f} s, the first {each[0]:.3f} s")
    parts = {
        "evaluation": lambda: evaluate(run, market=market, report=False, to_store=False),
        "evaluation and report": lambda: evaluate(run, market=market, to_store=False),
    }
    for name, call in parts.items():
        call()  # loads what is compiled
        wall, cpu = map(statistics.median, zip(*(seconds_of(call) for _ in range(REPEATS)), strict=True))
        print(f"  {name}: {wall:.3f} s, {cpu:.3f} s of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="*", default=COMMANDS, help="what follows `velodrome train`")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for command in parser.parse_args().commands:
        with tempfile.TemporaryDirectory() as folder:
            timed(command, Path(folder))


if __name__ == "__main__":
    main()
