"""The CUDA backend, in Numba's simulator, does what the Python and the native backend do, to the bit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vector.scenarios import SCENARIOS, assert_identical, record

SCRIPT = Path(__file__).with_name("simulated_cuda.py")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Records of all scenarios on the simulated device, by name; a traceback where one failed."""
    target = tmp_path_factory.mktemp("cuda") / "records.pickle"
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), str(target)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return pickle.loads(target.read_bytes())


@pytest.mark.parametrize("backend", ["python", "native"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_simulated_device_agrees_to_the_bit(name, backend, simulated):
    scenario = SCENARIOS[name]
    theirs = simulated[name]
    assert isinstance(theirs, list), theirs
    assert_identical(record(scenario.make(backend), scenario), theirs)


def test_the_scenarios_reach_what_they_are_for(simulated):
    """Parity of runs in which nothing happens would say nothing."""
    entries = {name: entries for name, entries in simulated.items() if isinstance(entries, list)}
    assert len(entries) == len(SCENARIOS) >= 12
    ended = {name for name, steps in entries.items() if any("_final_obs" in step for step in steps)}
    assert ended >= set(SCENARIOS)
    for name in ("levels", "continuous, cursor", "continuous, ranges, dict", "brackets", "own reward, copies"):
        units = np.stack([step["units"] for step in entries[name] if "units" in step])
        assert (units != 0.0).any(), name
    refusals = [step["refused"] for steps in entries.values() for step in steps if "refused" in step]
    assert len(refusals) >= 8
    for messages in refusals:
        assert all("action of environment" in message for message in messages[:2])
        assert all(message.startswith("action") for message in messages)


@pytest.mark.parametrize("name", SCENARIOS)
def test_refused_actions_leave_everything_as_it_was(name, simulated):
    entries = simulated[name]
    for number, entry in enumerate(entries):
        if "refused" in entry:
            before = entries[number - 1]
            for column, values in entry.items():
                if column != "refused":
                    np.testing.assert_array_equal(values, before[column], err_msg=column)


@pytest.mark.parametrize("name", SCENARIOS)
def test_copies_are_kept_and_views_are_overwritten(name, simulated):
    overwritten = simulated[name][-1]["overwritten"]
    if SCENARIOS[name].options.get("copy"):
        assert not overwritten.any()
    else:
        assert overwritten[:2].all()
        assert not overwritten[-1]
