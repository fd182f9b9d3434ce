"""`benchmarks/learning.py`: settings translated, measures taken, libraries compared; and (slow) nowhere behind."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from velodrome.runs.config.files import load_run_config

pytest.importorskip("stable_baselines3")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learning.py"
ENVIRONMENTS = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "LunarLander-v3"]


@pytest.fixture(scope="module")
def learning():
    spec = importlib.util.spec_from_file_location("learning", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_task_has_settings_that_both_libraries_take(learning):
    assert {task.env for task in learning.TASKS} == set(ENVIRONMENTS)
    for task in learning.TASKS:
        config = load_run_config(learning.velodrome_config(task, task.steps, 3, "runs"), {})
        given, used = task.settings, config.learner
        assert (config.seed, config.num_envs, used.gamma) == (3, given["num_envs"], given["gamma"])
        if task.algorithm == "ppo":
            assert used.rollout_length * config.num_envs == used.minibatches * given["batch_size"]
        else:
            assert (used.updates, used.epsilon_end) == (given["gradient_steps"], given["exploration_final_eps"])
            assert used.target_every * given["train_freq"] == used.updates * given["target_update_interval"]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("library", ["velodrome", "sb3"])
def test_a_cell_trains_and_measures(learning, algorithm, library):
    task = next(task for task in learning.TASKS if task[:2] == (algorithm, "CartPole-v1"))
    small = task._replace(settings={**task.settings, "n_steps": 32} if algorithm == "ppo" else task.settings)
    found = learning.run_cell(learning.Cell(small, library, 1, 512))
    assert (found["algorithm"], found["library"], found["seed"], found["steps"]) == (algorithm, library, 1, 512)
    assert 8.0 <= found["last_quarter"] <= 100.0
    assert 8.0 <= found["evaluated"] <= 500.0
    assert found["seconds"] > 0.0


def test_the_last_quarter_is_counted_in_steps(learning, tmp_path):
    episodes = tmp_path / "monitor.csv"
    episodes.write_text('#{"t_start": 0}\nr,l,t\n1.0,50,0.1\n2.0,25,0.2\n5.0,20,0.3\n7.0,5,0.4\n', encoding="utf-8")
    assert learning.mean_of_last_quarter(episodes) == 6.0


def test_the_interquartile_mean_leaves_out_the_outer_quarters(learning):
    assert learning.interquartile_mean(np.array([900.0, 3.0, 1.0, 4.0, 2.0, -900.0, 2.0, 800.0])) == (2 + 2 + 3 + 4) / 4
    # Of five, the second and the fourth count by three quarters of what the middle one does.
    assert learning.interquartile_mean(np.array([9.0, 1.0, 2.0, 4.0, -9.0])) == pytest.approx(
        0.3 * 1 + 0.4 * 2 + 0.3 * 4
    )


@pytest.mark.parametrize(("ours", "verdict"), [([1, 2, 3, 2, 1], "behind"), ([8, 9, 8, 9, 8], "ahead")])
def test_who_is_ahead_is_told_from_the_interval_of_the_difference(learning, ours, verdict):
    def cell(library, seed, value):
        about = {"algorithm": "dqn", "env": "CartPole-v1", "steps": 9, "library": library, "seed": seed}
        return {**about, "last_quarter": value, "evaluated": 5.0, "seconds": 2.0}

    theirs = {f"their {seed}": cell("sb3", seed, value) for seed, value in enumerate((5, 6, 5, 6, 5))}
    own = {f"our {seed}": cell("velodrome", seed, value) for seed, value in enumerate(ours)}
    first, second = learning.rows_of({"cells": own | theirs})
    assert (first["verdict"], second["verdict"], second["difference"]) == (verdict, "level", (0.0, 0.0, 0.0))
    assert first["velodrome"][1] <= first["velodrome"][0] <= first["velodrome"][2]
    assert f"| {verdict} | 2 : 2 |" in learning.table({"cells": own | theirs})
    (few, _) = learning.rows_of({"cells": {name: cells for name, cells in (own | theirs).items() if cells["seed"] < 2}})
    assert few["verdict"] == "too few seeds"


def test_cells_in_the_file_are_not_run_again(learning, tmp_path, capsys):
    cells = learning.chosen_cells(["ppo", "CartPole-v1"], 2, 1.0)
    assert len(cells) == 4
    kept = {"machine": {}, "cells": {cell.name: {} for cell in cells}}
    path = tmp_path / "learning.json"
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert learning.run_missing(cells, path, 1) == kept
    assert "4 of 4 cells are in" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"CartPole-v2: there are .*CartPole-v1"):
        learning.chosen_cells(["CartPole-v2"], 2, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_nowhere_behind_stable_baselines(learning, env, tmp_path):
    if env.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    path = tmp_path / "learning.json"
    command = [sys.executable, str(SCRIPT), "--only", env, "--seeds", "5", "--json", str(path)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    rows = list(learning.rows_of(json.loads(path.read_text(encoding="utf-8"))))
    assert {row["seeds"] for row in rows} == {5}
    for row in rows:
        *_, most = row["difference"]
        # Intervals of five seeds are narrow by chance now and then.
        assert most >= -0.05 * abs(row["sb3"][0]), row
        assert math.isfinite(most)
