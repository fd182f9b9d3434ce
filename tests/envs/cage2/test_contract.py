"""CAGE-2 inherits the contract, with the defaults, with everything switched on, and with a reward of the user's own."""

from __future__ import annotations

import pytest

from tests.contracts.environment import EnvironmentContract
from tests.oracles.cage2_rewards import everything
from velodrome.envs.cage2 import cage2_world


class TestDefaults(EnvironmentContract):
    def world(self):
        return cage2_world(episode_length=15)


class TestEverything(EnvironmentContract):
    most_bytes = 2400  # it observes 266 values, which are kept twice

    def world(self):
        return cage2_world(
            red_agent="mixture", mixture=(0.4, 0.5, 0.1), green=True, episode_length=25, observation_rule="corrected",
            impact_repeats=True, scan_memory=True, decoy_memory=True, activity_memory=True, attack_memory=True,
            port_memory=True, step_memory=True, red_memory=True, action_set="reduced",
        )  # fmt: skip


class TestOwnReward(EnvironmentContract):
    def world(self):
        return cage2_world(red_agent="meander", episode_length=15, reward=everything)

    # Compiles a loop of its own; the two above show it of the same rule.
    @pytest.mark.slow
    def test_specialised_parameters_change_nothing(self):
        super().test_specialised_parameters_change_nothing()
