"""Every example runs, as a script, with small arguments, and says what it is about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# Script -> small arguments, and words that its output has.
RUNS = {
    "demo.py": (
        ["--bars", "3000", "--envs", "256", "--steps", "40", "--no-bench"],
        ["No leak found", "steps/s", "buy and hold", "always flat", "random", "Known optimum"],
    ),
    "from_csv.py": (["--bars", "3000", "--steps", "120"], ["These bars can be read", "1d", "mean return"]),
    "own_reward.py": (["--bars", "2000", "--steps", "50"], ["cautious", "the same rewards: True"]),
    "debug_one_environment.py": (["--bars", "400", "--steps", "6"], ["equity", "truncated True", "episode:"]),
}


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name):
    arguments, words = RUNS[name]
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True, text=True, timeout=300, cwd=EXAMPLES.parent,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert [word for word in words if word not in answer.stdout] == []


def test_the_flat_policy_of_the_demo_neither_earns_nor_pays():
    arguments, _ = RUNS["demo.py"]
    answer = subprocess.run([sys.executable, str(EXAMPLES / "demo.py"), *arguments], capture_output=True, text=True)
    (row,) = (line for line in answer.stdout.splitlines() if "always flat" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[2:] == ["+0.0%", "+0.0000", "0.0%", "0.0", "0.00"]
