"""The rule of CAGE-2 against a slow machine of sets and dictionaries that was written from the specification alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.oracles import cage2_machine as oracle
from tests.oracles.cage2_episodes import RED_TYPES, SUCCESS, mismatches, played
from velodrome.envs import cage2
from velodrome.envs.cage2.nibbles import count, kth, mask

SEEDS = st.integers(0, 2**32 - 1)
FLAGS = st.booleans()


@settings(max_examples=12)
@given(seed=SEEDS, corrected=FLAGS, impact_repeats=FLAGS)
def test_any_moves_of_red_have_the_same_consequences(seed, corrected, impact_repeats):
    record, expected = played(seed, 6, 60, agent=None, corrected=corrected, impact_repeats=impact_repeats)
    rule = "corrected" if corrected else "official"
    ours = cage2.replay(record, observation_rule=rule, impact_repeats=impact_repeats, red_agent="sleep")
    given_and_found = {**expected, **{name: record[name] for name in ("exploit", "detect", "red_type", "red_target")}}
    assert mismatches(ours, given_and_found) == {}


@pytest.mark.parametrize("agent", ["b_line", "meander", "sleep"])
@settings(max_examples=12)
@given(seed=SEEDS, corrected=FLAGS, impact_repeats=FLAGS, green=FLAGS)
def test_agents_choose_alike(agent, seed, corrected, impact_repeats, green):
    record, expected = played(
        seed, 3, 100, agent=agent, corrected=corrected, impact_repeats=impact_repeats, green=green
    )
    rule = "corrected" if corrected else "official"
    ours = cage2.replay(
        record, red="agent", red_agent=agent, observation_rule=rule, impact_repeats=impact_repeats
    )  # fmt: skip
    names = ("exploit", "detect", "red_type", "red_target")
    assert mismatches(ours, {**expected, **{name: record[name] for name in names}}) == {}


class GivenDraws:
    """Draws that have been made already; what cannot have been drawn is an error."""

    def __init__(self) -> None:
        self.chosen_exploit, self.was_detected, self.chosen_target = "", False, ""

    def exploit(self, preferred: str, others: list[str]) -> str:
        assert self.chosen_exploit in (preferred, *others)
        return self.chosen_exploit

    def detected(self) -> bool:
        return self.was_detected

    def target(self, candidates: list[str]) -> str:
        assert self.chosen_target in candidates
        return self.chosen_target


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("agent", ["b_line", "meander", "sleep"])
@pytest.mark.parametrize("variant", [False, True])
def test_an_environment_with_draws_of_its_own_is_the_machine_with_these_draws(agent, variant, backend):
    rule = "corrected" if variant else "official"
    envs = vd.make_vec(
        "cage2", 4, backend=backend, seed=5, red_agent=agent, green=variant, observation_rule=rule,
        impact_repeats=variant, episode_length=60,
    )  # fmt: skip
    observations, _ = envs.reset()
    assert not observations.any()
    machines = [oracle.Machine(variant, variant) for _ in range(4)]
    minds: list[Any] = [oracle.AGENTS[agent]() for _ in range(4)]
    draws = GivenDraws()
    rng = np.random.default_rng(8)
    for step in range(59):
        actions = rng.integers(0, 145, 4)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        assert not (terminated | truncated).any()
        names = ("exploit", "detected", "red_target", "green", "red_action", "red_result", "blue_success", "stage")
        columns = {name: envs.column(name) for name in names}
        truth = cage2.true_state(envs)
        for k, (machine, mind) in enumerate(zip(machines, minds, strict=True)):
            column = {name: int(values[k]) for name, values in columns.items()}
            draws.chosen_exploit = cage2.EXPLOITS[column["exploit"]]
            draws.was_detected = column["detected"] == 1
            draws.chosen_target = cage2.HOSTS[max(column["red_target"], 0)]
            green = cage2.HOSTS[column["green"]] if column["green"] >= 0 else None
            red = mind.choose(machine, draws)
            assert RED_TYPES.index(red[0]) == column["red_action"]
            if red[0] == "DiscoverRemoteSystems":
                assert list(oracle.SUBNETS).index(red[1]) == column["red_target"]
            elif red[1]:
                assert red[1] == draws.chosen_target
            reward, mind.success = machine.step(int(actions[k]), green, red, draws)
            assert rewards[k] == np.float32(reward / 10)
            assert observations[k].astype(int).tolist() == machine.observation(), (step, k)
            assert min(column["red_result"], 3) == (3 if mind.success == "EMPTY" else SUCCESS[mind.success])
            assert column["blue_success"] == machine.blue_success
            for host, name in enumerate(cage2.HOSTS):
                assert truth["privileged"][k, host] == (name in machine.privileged)
                assert truth["file"][k, host] == (name in machine.files)
                assert truth["decoys"][k, host] == machine.decoy_byte(name)
                assert truth["ports"][k, host] == machine.port_byte(name)
                if name not in machine.privileged:
                    assert truth["user"][k, host] == (name in machine.removable | machine.stubborn)
                    assert truth["removable"][k, host] == (name in machine.removable)
            assert truth["service_up"][k] == machine.service["present"]


@given(hosts=st.sets(st.integers(0, 12)), bit=st.integers(0, 3))
def test_words_count_choose_and_shrink(hosts, bit):
    word = sum(1 << 4 * host for host in hosts)
    assert count(word) == len(hosts)
    assert [kth(word, k) for k in range(len(hosts))] == sorted(hosts)
    assert mask(word << bit, bit) == sum(1 << host for host in hosts)
