"""Whose turn it is, by name or by a user's function: trainings that wait, and workers that take environments."""

from __future__ import annotations

import pytest

import velodrome as vd
from tests.vector.foreign_envs import Counting
from velodrome.errors import ConfigError
from velodrome.service.budget import Budget, Resources, choose
from velodrome.service.job import Job
from velodrome.service.queue import Waiting
from velodrome.turns import POLICIES, Turn, policy_of

JOBS = [
    Job("a", "a", "ann", {}, "", "", created=1.0, updated=1.0),
    Job("b", "b", "ann", {}, "", "", created=2.0, updated=2.0),
    Job("c", "c", "bob", {}, "", "", created=3.0, updated=3.0),
    Job("d", "d", "ann", {}, "", "", created=4.0, updated=4.0, priority=5),
]
ROOM = Resources(8, 1 << 40)


def latest_first(turn: Turn) -> float:
    """A policy of a user's own."""
    return -turn.arrived


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fair", "dcab"),
        ("fifo", "abcd"),
        ("priority", "dabc"),
        (latest_first, "dcba"),
        (f"{__name__}:latest_first", "dcba"),
    ],
)
def test_trainings_begin_in_the_order_of_a_policy(policy, order):
    found = choose(Waiting(JOBS, (), {}), Budget().within(ROOM), ROOM, 10.0, policy)
    assert "".join(choice.job.id for choice in found) == order


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("fare", "Did you mean 'fair'"),
        ("velodrome.turns:nothing", "cannot be imported"),
        ("json:__name__", "no function"),
    ],
)
def test_what_is_no_policy_is_refused(named, told):
    with pytest.raises(ConfigError, match=told):
        policy_of(named)


@pytest.mark.parametrize("placement", [*POLICIES, lambda turn: turn.share])
def test_workers_take_environments_in_the_order_of_a_policy(placement):
    envs = vd.make_vec(Counting, 5, backend="process", workers=2, placement=placement)
    try:
        assert [worker.rows for worker in envs.workers] == [[0, 2, 4], [1, 3]]
    finally:
        envs.close()


def test_a_worker_whose_environments_are_slow_is_left_alone_if_that_is_wanted():
    envs = vd.make_vec(Counting, 4, backend="process", workers=2, placement="priority")
    try:
        envs.reset(seed=0)
        envs.arrays.step_seconds[:] = [9.0, 0.1, 9.0, 0.1]
        envs.resize(6)
        assert [worker.rows for worker in envs.workers] == [[0, 2], [1, 3, 4, 5]]
    finally:
        envs.close()


def test_an_unknown_placement_is_refused():
    with pytest.raises(ConfigError, match="placement = 'fare'; legal: fair, fifo, priority"):
        vd.make_vec(Counting, 2, backend="process", placement="fare")
