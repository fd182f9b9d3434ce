"""A run that is good enough to be promoted, trained once for all tests of champions and of the paper loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.small_runs import small_run
from velodrome.runs.run import Run

# Prices that mostly undo what the last bar did, and a policy that begins as the regression that knows it.
GOOD = {
    "market.length": 2400, "market.phi": -0.6, "teacher.policy": "forecast", "teacher.samples": 2048,
    "teacher.epochs": 4, "params.fee": 0.0, "steps": 64, "evaluation.every_steps": 64,
}  # fmt: skip


@pytest.fixture(scope="session")
def good_run(tmp_path_factory) -> Run:
    """A run that passes all checks; its folder holds nothing else."""
    return small_run(tmp_path_factory.mktemp("champions"), **GOOD)


@pytest.fixture(scope="session")
def fresh_folder(tmp_path_factory):
    """Return a function that gives a folder of runs with a copy of the good run in it."""
    import shutil

    def make(run: Run) -> Path:
        folder = tmp_path_factory.mktemp("runs")
        shutil.copytree(run.path, folder / run.path.name)
        return folder

    return make
