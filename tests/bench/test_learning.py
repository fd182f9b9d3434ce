"""`benchmarks/learning.py`: settings translated, measures taken, libraries compared; and (slow) nowhere behind."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import velodrome
from velodrome.runs.config.files import load_run_config

pytest.importorskip("stable_baselines3")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learning.py"
SEEDS = 5
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
        elif task.algorithm == "sac":
            assert (used.updates, used.rollout_length) == (given["gradient_steps"], given["train_freq"])
            assert (used.target_share, used.entropy, used.entropy_start) == (given["tau"], None, 1.0)
        else:
            assert (used.updates, used.epsilon_end) == (given["gradient_steps"], given["exploration_final_eps"])
            assert used.target_every * given["train_freq"] == used.updates * given["target_update_interval"]


CELLS = {"ppo": ("CartPole-v1", 8.0, 500.0), "dqn": ("CartPole-v1", 8.0, 500.0), "sac": ("Pendulum-v1", -2e3, 0.0)}


@pytest.mark.parametrize("algorithm", CELLS)
@pytest.mark.parametrize("library", ["velodrome", "sb3"])
def test_a_cell_trains_and_measures(learning, algorithm, library):
    env, least, most = CELLS[algorithm]  # returns
    task = next(task for task in learning.TASKS if task[:2] == (algorithm, env))
    small = task._replace(settings={**task.settings, "n_steps": 32} if algorithm == "ppo" else task.settings)
    found = learning.run_cell(learning.Cell(small, library, 1, 512))
    assert (found["algorithm"], found["library"], found["seed"], found["steps"]) == (algorithm, library, 1, 512)
    assert least <= found["last_quarter"] <= min(most, 100.0)
    assert least <= found["evaluated"] <= most
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


def test_the_longest_cells_come_first_and_a_failure_does_not_wait_for_the_rest(learning, tmp_path, monkeypatch, capsys):
    asked = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, processes, mp_context):
            super().__init__(1)

        def submit(self, function, cell):
            asked.append(cell)
            return super().submit(function, cell)

    def run_cell(cell):
        if cell.task.env == "Pendulum-v1":
            while not path.exists():  # the cell before this one was written
                time.sleep(0.001)
            raise RuntimeError("broken")
        return {**dict.fromkeys(learning.MEASURES, 1.0), "seconds": 1.0}

    monkeypatch.setattr(learning, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(learning, "run_cell", run_cell)
    monkeypatch.setattr(learning, "machine", dict)
    path = tmp_path / "learning.json"
    cells = learning.chosen_cells(["CartPole-v1", "Acrobot-v1", "Pendulum-v1"], 1, 0.5)
    with pytest.raises(RuntimeError, match="broken"):
        learning.run_missing(cells, path, 2)
    kinds = [(cell.task.algorithm, cell.task.env, cell.library) for cell in asked]
    assert kinds[:3] == [
        ("dqn", "Acrobot-v1", "sb3"),
        ("ppo", "Pendulum-v1", "sb3"),
        ("dqn", "Acrobot-v1", "velodrome"),
    ]
    assert kinds[-1] == ("ppo", "CartPole-v1", "velodrome")
    assert asked[0].seconds == 69.0
    assert list(json.loads(path.read_text(encoding="utf-8"))["cells"]) == [asked[0].name]
    assert "0 of 12 cells are in" in capsys.readouterr().out


# Slow: all trainings at once, some 7,000 seconds of a core


def hash_of_code() -> str:
    """Return a hash of all that results depend on, so that an interrupted run goes on with the same code only."""
    digest = hashlib.sha256(SCRIPT.read_bytes() + sys.version.encode())
    for path in sorted(Path(velodrome.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for name in ("gymnasium", "numba", "numpy", "stable_baselines3", "torch"):
        digest.update(importlib.metadata.version(name).encode())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="module")
def rows_by_env(learning, request, tmp_path_factory):
    """Train what the chosen tests look at, in one pool, and return the rows of the table for each environment.

    Cells are kept in pytest's cache, where a run that was interrupted finds them; `--cache-clear` forgets them.
    """
    chosen = sorted({item.callspec.params["env"] for item in request.session.items if is_about_learning(item)})
    cache = getattr(request.config, "cache", None)
    folder = Path(cache.mkdir("learning")) if cache else tmp_path_factory.mktemp("learning")
    path = folder / f"{hash_of_code()}.json"
    command = [sys.executable, str(SCRIPT), "--only", *chosen, "--seeds", str(SEEDS), "--json", str(path)]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # progress
        failed = subprocess.run(command).returncode
    if failed:
        pytest.fail(
            "benchmarks/learning.py failed; what it said stands above. What was trained is kept.", pytrace=False
        )
    rows = list(learning.rows_of(json.loads(path.read_text(encoding="utf-8"))))
    return {env: [row for row in rows if row["env"] == env] for env in chosen}


def is_about_learning(item: pytest.Item) -> bool:
    """Return whether a test is one of the last below."""
    return getattr(item, "function", None) is test_nowhere_behind_stable_baselines


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_nowhere_behind_stable_baselines(rows_by_env, env):
    if env.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    rows = rows_by_env[env]
    assert {row["seeds"] for row in rows} == {SEEDS}
    for row in rows:
        *_, most = row["difference"]
        assert math.isfinite(most)
        # Intervals of five seeds are narrow by chance now and then.
        assert most >= -0.05 * abs(row["sb3"][0]), f"behind; the table stands above. {row}"
