"""Every example runs, as a script, with small arguments, and says what it is about."""

from __future__ import annotations

import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# Script -> small arguments, and words that its output has.
RUNS = {
    "demo.py": (
        [
            "steps=4_096",
            "num_envs=32",
            "market.length=3_000",
            "market.windows=8",
            "params.episode_length=64",
            "evaluation.every_steps=2_048",
            "evaluation.bootstrap_samples=50",
            "logging.folder={folder}",
        ],
        [
            "No leak found",
            "known optimum",
            "steps a second",
            "buy and hold",
            "always flat",
            "random",
            "report.html",
            "velodrome serve",
        ],
    ),
    "from_csv.py": (["--bars", "3000", "--steps", "120"], ["These bars can be read", "1d", "mean return"]),
    "own_reward.py": (["--bars", "2000", "--steps", "50"], ["cautious", "the same rewards: True"]),
    "sb3.py": (["--steps", "1200"], ["ppo on trading", "dqn on trading", "ppo on cartpole", "dqn on cartpole"]),
    "torchrl_ppo.py": (["--steps", "3000"], ["ppo on trading", "ppo on cartpole"]),
    "own_environment.py": (["--num-envs", "4", "--steps", "80"], ["steps/s", "episodes, mean return", "grown to 8"]),
    "portfolio.py": (
        # As many instruments as other tests' portfolios have, whose rule is compiled for that number.
        ["--instruments", "3", "--bars", "2000", "--steps", "10000", "--runs", "{folder}"],
        ["S3 90%", "equal, rebalanced", "best one (hindsight)", "mean weight", "report.html"],
    ),
    "service.py": (
        ["--folder", "{folder}", "--config", "smoke", "--trainings", "2", "--steps", "2048", "--no-evaluation"],
        ["running, 0 of 2,048 steps", "finished at attempt 1, last return"],
    ),
    "study.py": (
        [
            "--folder",
            "{folder}",
            "--config",
            "smoke",
            "--trials",
            "2",
            "--seeds",
            "1",
            "steps=2048",
            "market.length=1000",
        ],
        ["2 of 2 trials", "as configured", "winner: trial"],
    ),
    "debug_one_environment.py": (["--bars", "400", "--steps", "6"], ["equity", "truncated True", "episode:"]),
}


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


# Worker processes look for the environment in the main module, which must be the script itself.
AS_A_PROCESS = ("own_environment.py",)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    arguments, words = RUNS[name]
    command = [str(EXAMPLES / name), *(argument.format(folder=tmp_path) for argument in arguments)]
    if name in AS_A_PROCESS:
        given = [sys.executable, "-W", "error", *command]
        answer = subprocess.run(given, capture_output=True, text=True, timeout=300, cwd=EXAMPLES.parent)
        assert answer.returncode == 0, answer.stderr
        told = answer.stdout
    else:
        monkeypatch.setattr(sys, "argv", command)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runpy.run_path(command[0], run_name="__main__")
        told = capsys.readouterr().out
    assert [word for word in words if word not in told] == []
