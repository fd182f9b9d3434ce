"""Recorded trajectories of the original, step by step: replay tests A and B of FORMAT.md."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles.cage2_episodes import mismatches, played
from tests.shared_data import shared_folder
from velodrome.envs import cage2
from velodrome.errors import DataError

FOLDER = shared_folder("data/cage2/public")
FILES = ("B_line", "B_line_green", "Meander", "Meander_green", "Sleep")
EPISODES = {"B_line": 1320, "B_line_green": 100, "Meander": 1320, "Meander_green": 100, "Sleep": 1320}
# Everything that the rule decides; blue_action and green are what it is given.
RULES = ("obs", "reward", "red_success", "blue_success", "host", "decoys", "ports", "misc", "exploit", "detect")
AGENT = ("red_type", "red_target", "fsm")
recorded = pytest.mark.skipif(FOLDER is None, reason="no recorded trajectories: ../shared/data/cage2 is not there")


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


@recorded
@pytest.mark.parametrize("name", FILES)
def test_a_the_rules_are_those_of_the_original(name):
    record = load(name)
    assert record["blue_action"].shape == (EPISODES[name], 100)
    assert mismatches(cage2.replay(record), {array: record[array] for array in RULES}) == {}


@recorded
@pytest.mark.parametrize("name", FILES)
def test_b_red_chooses_as_the_original(name):
    record = load(name)
    followed = cage2.replay(record, red="agent")
    assert mismatches(followed, {array: record[array] for array in (*RULES, *AGENT)}) == {}


@recorded
def test_the_recordings_tell_the_variants_apart():
    for name, variant, wrong in (
        ("B_line", {"observation_rule": "corrected"}, {"obs"}),
        ("Meander", {"observation_rule": "corrected"}, {"obs"}),
        ("B_line", {"impact_repeats": True}, {"reward", "misc"}),
    ):
        record = load(name)
        found = mismatches(cage2.replay(record, **variant), {array: record[array] for array in RULES})
        assert set(found) == wrong


@recorded
def test_another_agent_does_not_choose_as_recorded():
    record = load("Meander")
    followed = cage2.replay(record, red="agent", red_agent="b_line")
    assert mismatches(followed, {"red_type": record["red_type"], "red_target": record["red_target"]})


@recorded
def test_a_changed_action_of_blue_changes_the_rest():
    record = load("B_line_green")
    changed = {**record, "blue_action": record["blue_action"].copy()}
    changed["blue_action"][:, 10] = cage2.action("Restore", "Enterprise2")
    found = mismatches(cage2.replay(changed), {array: record[array] for array in RULES})
    assert {"obs", "reward", "host"} <= set(found)


@recorded
def test_a_file_can_be_replayed_as_it_is_loaded():
    with np.load(FOLDER / "Sleep.npz") as file:
        assert (cage2.replay(file)["reward"] == file["reward"]).all()


def test_arrays_have_the_recorded_types_and_shapes():
    record, _ = played(0, 2, 7, agent="meander")
    arrays = cage2.replay(record)
    assert arrays["obs"].shape == (2, 7, 7)
    assert {name: arrays[name].shape for name in ("host", "decoys", "ports")} == dict.fromkeys(
        ("host", "decoys", "ports"), (2, 7, 13)
    )
    assert arrays["reward"].dtype == np.int16
    assert all(array.dtype == np.uint8 for name, array in arrays.items() if name != "reward")
    assert not any(np.shares_memory(arrays[name], record[name]) for name in ("green", "blue_action"))


def small_record() -> dict[str, np.ndarray]:
    return played(1, 2, 5, agent="meander")[0]


def changed(name: str, value: int) -> dict[str, np.ndarray]:
    record = small_record()
    record[name][1, 3] = value
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (changed("blue_action", 145), r"blue_action\[1, 3\] = 145; legal: 0 … 144\. Nothing was replayed"),
        (changed("red_target", 13), r"red_target\[1, 3\] = 13; legal: 0 … 12 or 255"),
        (changed("exploit", 8), r"exploit\[1, 3\] = 8"),
        (changed("detect", 2), r"detect\[1, 3\] = 2"),
        (changed("red_target", 255), r"is no target of red_type"),
        ({name: array for name, array in small_record().items() if name != "green"}, r"the record has no 'green'"),
        ({**small_record(), "green": np.zeros((2, 4), np.uint8)}, r"green has shape \(2, 4\) and blue_action \(2, 5\)"),
        ({**small_record(), "detect": np.zeros((2, 5))}, r"detect has shape \(2, 5\) and type float64"),
    ],
)
def test_an_illegal_record_is_refused(record, message):
    with pytest.raises(DataError, match=message):
        cage2.replay(record)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"red": "agents"}, r"red = 'agents'; legal: record, agent\. Did you mean 'agent'"),
        ({"red_agent": "meandr"}, r"Did you mean 'meander'"),
        ({"observation_rule": "correct"}, r"Did you mean 'corrected'"),
    ],
)
def test_an_unknown_option_is_refused(options, message):
    with pytest.raises(DataError, match=message):
        cage2.replay(small_record(), **options)


def test_an_exploit_that_red_cannot_choose_is_not_chosen():
    record, _ = played(2, 30, 40, agent="meander")
    chosen = record["exploit"] != 255
    record["exploit"][chosen] = 5  # SQLInjection, which only User4 offers
    arrays = cage2.replay(record)
    elsewhere = chosen & (record["red_target"] != cage2.host("User4"))
    assert (arrays["exploit"][elsewhere] == 255).all()
    assert (arrays["red_success"][elsewhere] == 0).all()
