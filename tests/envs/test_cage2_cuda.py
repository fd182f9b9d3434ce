"""CAGE-2 on the CUDA backend, in Numba's simulator or on a GPU, is CAGE-2 on the CPU, to the bit.

Run as `python test_cage2_cuda.py FILE` with NUMBA_ENABLE_CUDASIM=1, it plays the scenarios and pickles the records: the
variable must be set before Numba is imported, hence a process of its own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.oracles.cage2_rewards import everything
from tests.vector.scenarios import Scenario, assert_identical, record
from velodrome.envs.cage2 import cage2_world

SCENARIOS = {
    "B_line": Scenario(lambda: cage2_world(episode_length=18), steps=40, illegal=3),
    "Meander, green, memories": Scenario(
        lambda: cage2_world(
            red_agent="meander", green=True, episode_length=30, scan_memory=True, decoy_memory=True,
            observation_rule="corrected", impact_repeats=True,
        ),
        steps=35,
    ),
    "mixture, reduced, several blocks": Scenario(
        lambda: cage2_world(red_agent="mixture", mixture=(0.4, 0.4, 0.2), action_set="reduced", episode_length=6),
        num_envs=70,
        steps=10,
    ),
    "own reward, columns": Scenario(
        lambda: cage2_world(red_agent="meander", reward=everything, episode_length=20),
        steps=22,
        options={"observation": "cursor"},
    ),
}  # fmt: skip


def records_on_cuda() -> dict[str, Any]:
    """Play every scenario on the CUDA backend; a traceback where one fails."""
    records: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        try:
            records[name] = record(scenario.make("cuda"), scenario)
        except Exception:
            records[name] = traceback.format_exc()
    return records


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("cuda") / "records.pickle"
    answer = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", __file__, str(target)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return pickle.loads(target.read_bytes())


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_simulated_device_agrees_to_the_bit(name, simulated):
    assert isinstance(simulated[name], list), simulated[name]
    assert_identical(record(SCENARIOS[name].make("native"), SCENARIOS[name]), simulated[name])


def test_the_scenarios_reach_what_they_are_for(simulated):
    for name in SCENARIOS:
        steps = simulated[name]
        assert any("_final_obs" in step for step in steps)
        assert any((step.get("exploit", -1) >= 0).any() for step in steps if "exploit" in step), name


@pytest.mark.gpu
def test_a_gpu_agrees_to_the_bit():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for name, found in records_on_cuda().items():
        assert isinstance(found, list), found
        assert_identical(record(SCENARIOS[name].make("native"), SCENARIOS[name]), found)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(records_on_cuda()))
