"""CAGE-2 on the CUDA backend, in Numba's simulator or on a GPU, is CAGE-2 on the CPU, to the bit.

Run as `python test_cage2_cuda.py FILE` with NUMBA_ENABLE_CUDASIM=1, it plays the scenarios and pickles the records: the
variable must be set before Numba is imported, hence a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.contracts.cuda import CudaContract, write_records
from tests.oracles.cage2_rewards import everything
from tests.vector.scenarios import Scenario
from velodrome.envs.cage2 import cage2_world

SCENARIOS = {
    "B_line": Scenario(lambda: cage2_world(episode_length=18), steps=40, illegal=3),
    "Meander, green, memories": Scenario(
        lambda: cage2_world(
            red_agent="meander", green=True, episode_length=30, scan_memory=True, decoy_memory=True,
            activity_memory=True, attack_memory=True, port_memory=True, step_memory=True, red_memory=True,
            observation_rule="corrected", episode_end="terminated",
            impact_repeats=True,
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


class TestCage2OnCuda(CudaContract):
    scenarios = SCENARIOS
    module = __file__

    def test_the_scenarios_reach_what_they_are_for(self, simulated):
        for name in SCENARIOS:
            steps = [step for step in simulated[name] if "exploit" in step]
            assert any((step["exploit"] >= 0).any() for step in steps), name


if __name__ == "__main__":
    write_records(SCENARIOS, Path(sys.argv[1]))
