"""CAGE-2's own evaluation, and the simple policies beside which an agent is scored."""

from __future__ import annotations

import numpy as np

from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.cage2.official import ReactRemove, ReactRestore, play_official


def test_an_agent_of_the_reduced_set_is_scored_beside_policies_of_the_full_one():
    params = {"action_set": "reduced", "scan_memory": True, "decoy_memory": True}
    scores = play_official(ConstantPolicy(0), "restores a host for ever", params, episodes=20)
    assert scores.rule["action_set"] == "reduced"
    assert scores.of("restores a host for ever", "sleep", 30).mean == -30.0  # its first action is Restore
    assert scores.of("sleep", "sleep", 30).mean == 0.0


def test_the_same_agent_twice_is_scored_no_more_surely_than_once():
    scores = play_official([ConstantPolicy(0)] * 2, "two", {"action_set": "reduced"}, episodes=6, baselines=False)
    both, one = (scores.of(name, "b_line", 50) for name in ("two", "two, training 1 of 2"))
    assert one.low < one.high
    assert (both.mean, both.low, both.high) == (one.mean, one.low, one.high)
    assert (both.episodes, one.episodes) == (12, 6)


def test_policies_react_to_the_first_host_that_is_shown():
    bits = np.zeros((6, 13, 4), np.float32)
    bits[1, 8, 3] = 1  # Red's foothold is left alone
    bits[2, 5, 3] = bits[2, 9, 2] = 1  # user session on Op_Host1
    bits[3, 5, 2] = bits[3, 5, 3] = 1  # privileged
    bits[4, 5, 2] = bits[5, 5, 2] = 1  # unknown
    flat = bits.reshape(6, 52)
    assert ReactRestore().act(flat).tolist() == [0, 0, 137, 137, 137, 137]
    policy = ReactRemove()
    policy.begin(6)
    assert policy.act({"account": flat}).tolist() == [0, 0, 20, 137, 137, 137]
    policy.forget(np.array([False] * 5 + [True]))
    assert policy.act(flat).tolist() == [0, 0, 20, 137, 7, 137]
