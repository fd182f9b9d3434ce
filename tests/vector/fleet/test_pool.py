"""EnvPool: one budget for several trainings, in the order of asking; nothing is lost, nothing broken is handed out."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.markets import small_market
from tests.vector.fleet.pools import Dummies, DummyPool, Request, eventually, lease, trajectory
from tests.vector.foreign_envs import Counting, Faulty
from velodrome.errors import BackendError, ConfigError
from velodrome.vector.fleet.monitor import VecMonitor
from velodrome.vector.fleet.pool import EnvPool, PoolBusyError
from velodrome.vector.fleet.specification import specification_of


@pytest.fixture
def pool() -> Iterator[EnvPool]:
    with EnvPool(8) as made:
        yield made


def test_environments_serve_again_as_if_they_were_new(pool):
    first = lease(pool, 4, seed=1)
    envs, wanted = first.envs, trajectory(first.envs)
    trajectory(first.envs)
    first.release()
    assert pool.status().idle == 4
    again = lease(pool, 4, seed=1)
    assert again.envs is envs
    np.testing.assert_array_equal(trajectory(again.envs), wanted)
    again.release()
    smaller = lease(pool, 2, seed=1)
    assert smaller.envs is envs
    np.testing.assert_array_equal(trajectory(smaller.envs), wanted[:, :2])
    assert (pool.status().leased, pool.status().idle) == (2, 0)
    smaller.release()
    larger = lease(pool, 7, seed=1)
    assert larger.envs is envs
    fresh = vd.make_vec("template", 7, threads=1)
    fresh.reset(seed=1)
    np.testing.assert_array_equal(trajectory(larger.envs), trajectory(fresh))


def test_without_a_seed_each_lease_is_another(pool):
    found = []
    for _ in range(2):
        with lease(pool, 3) as envs:
            found.append(trajectory(envs))
    assert not np.array_equal(*found)


def test_other_environments_serve_again_too():
    maker = partial(Counting, 3)
    with EnvPool(4) as pool:
        first = pool.lease(maker, 3, backend="serial", seed=4)
        envs = first.envs
        seeds = envs.get_attr("np_random_seed")
        first.release()
        second = pool.lease(maker, 2, backend="serial", seed=4)
        assert second.envs is envs
        assert envs.get_attr("np_random_seed") == seeds[:2]
        assert [env.count for env in envs.envs] == [0, 0]


def test_only_environments_of_the_same_kind_serve_again(pool):
    first = lease(pool, 3, length=5)
    envs = first.envs
    first.release()
    with lease(pool, 3, length=6) as other:
        assert other is not envs
    with lease(pool, 3, length=5) as same:
        assert same is envs


def test_kinds_are_told_apart():
    market = small_market()
    twin = small_market()
    same = [
        ({"length": 5}, {"length": 5}), ({"market": market}, {"market": market}),
        ({"windows": [1, (2, 3)]}, {"windows": [1, (2, 3)]}), ({"a": 1, "b": {"c": 2.0}}, {"b": {"c": 2.0}, "a": 1}),
    ]  # fmt: skip
    different = [
        ({"length": 5}, {"length": 6}), ({"market": market}, {"market": twin}), ({"on": True}, {"on": 1}),
        ({"x": 1}, {"x": 1.0}), ({"x": [1, 2]}, {"x": (1, 2)}), ({"x": np.zeros(2)}, {"x": np.zeros(2)}),
        ({}, {"x": None}),
    ]  # fmt: skip
    for one, two in same:
        assert specification_of("e", one) == specification_of("e", two)
    for one, two in different:
        assert specification_of("e", one) != specification_of("e", two)
    assert specification_of(Counting, {}) == specification_of(Counting, {})
    assert specification_of(Counting, {}) != specification_of(lambda: Counting(), {})
    assert specification_of("e", {"x": 1}).by_value
    assert not specification_of("e", {"market": market}).by_value


def test_the_oldest_idle_environments_go_first():
    pool = DummyPool(9)
    leases = [pool.lease(kind, 3) for kind in "abc"]
    for each in leases:
        each.release()
    assert [idle.env for idle in pool.status().idle_leases] == ["a", "b", "c"]
    kept = pool.lease("b", 3)
    pool.lease("d", 4)
    assert kept.envs is pool.census.made[1]
    assert [envs.kind for envs in pool.census.made if envs.closed] == ["a", "c"]
    assert pool.status().idle_leases == ()
    assert (pool.status().leased, pool.census.most) == (7, 9)


def test_room_is_made_only_as_far_as_it_is_wanted():
    pool = DummyPool(9)
    for each in [pool.lease(kind, 3) for kind in "abc"]:
        each.release()
    pool.lease("d", 2)
    assert [idle.env for idle in pool.status().idle_leases] == ["b", "c"]


def test_what_is_being_closed_still_counts():
    pool = DummyPool(6)
    first = pool.lease("a", 6)
    old, closing, may_close = first.envs, threading.Event(), threading.Event()

    def close(**options: Any) -> None:
        closing.set()
        may_close.wait(5)
        Dummies.close(old)

    old.close = close
    first.release()
    one = Request(pool, "b", 1)
    assert closing.wait(5)
    five = Request(pool, "c", 5)
    assert eventually(lambda: pool.status().waiting == 1)
    assert pool.status().leased == 6
    may_close.set()
    assert eventually(lambda: one.done and five.done)
    assert pool.census.most == 6
    assert pool.status().leased == 6


def test_what_comes_back_after_the_budget_was_lowered_is_closed():
    pool = DummyPool(6)
    first, second = pool.lease("a", 4), pool.lease("b", 2)
    pool.resize(3)
    assert pool.status().leased == 6
    with pytest.raises(PoolBusyError):
        pool.lease("b", 1, timeout=0)
    first.release()
    assert (pool.status().leased, pool.status().idle, pool.census.now) == (2, 0, 2)
    second.release()
    assert (pool.status().leased, pool.status().idle) == (0, 2)
    pool.resize(1)
    assert (pool.status().idle, pool.census.now) == (0, 0)


@pytest.mark.parametrize("harm", ["closed", "fault", "exception"])
def test_broken_environments_are_replaced(harm):
    pool = DummyPool(4)
    with pytest.raises(KeyError) if harm == "exception" else warnings.catch_warnings(), pool.lease("a", 4) as envs:
        if harm == "closed":
            envs.close()
        elif harm == "fault":
            envs.faults.append("it broke")
        else:
            raise KeyError("in the middle of a step")
    assert envs.closed
    assert (pool.status().leased, pool.status().idle) == (0, 0)
    with pool.lease("a", 4) as other:
        assert other is not envs


def test_a_real_environment_that_failed_is_replaced():
    with EnvPool(3) as pool:
        maker = partial(Faulty, at=1)
        options = {"backend": "serial", "on_fault": "drop"}
        with pool.lease(maker, 2, **options) as envs:
            for _ in range(3):
                envs.step(np.zeros(2, np.int64))
            assert not envs.alive.any()
        assert envs.closed
        with pool.lease(maker, 2, **options) as other:
            assert other is not envs
            assert other.alive.all()


def test_idle_environments_that_cannot_be_reset_are_replaced():
    pool = DummyPool(4)
    first = pool.lease("a", 2)
    envs = first.envs
    first.release()

    def fail(**options: Any) -> None:
        raise OSError("the simulator went away")

    envs.reset = fail
    with pytest.warns(UserWarning, match="the simulator went away"):
        second = pool.lease("a", 2)
    assert second.envs is not envs
    assert envs.closed
    assert pool.census.now == 2


def test_what_cannot_be_made_leaves_the_budget_as_it_was(pool):
    with pytest.raises(ConfigError, match="no_such"):
        pool.lease("no_such_environment", 8)
    with pytest.raises(ConfigError):
        lease(pool, 8, length=-1)
    assert pool.status().leased == 0
    with lease(pool, 8) as envs:
        assert envs.num_envs == 8


def test_what_can_never_be_granted_is_refused_at_once(pool):
    held = lease(pool, 8)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"num_envs = 9.*at most 8.*pool\.resize\(9\)"):
        lease(pool, 9, timeout=None)
    with pytest.raises(ConfigError, match="num_envs = 0"):
        lease(pool, 0)
    with pytest.raises(ConfigError, match="num_envs = 9"):
        held.resize(9, timeout=None)
    assert time.monotonic() - started < 2
    with pytest.raises(ConfigError, match="max_concurrent_envs = 0"):
        EnvPool(0)
    with pytest.raises(ConfigError, match="memory_limit"):
        EnvPool(1, memory_limit=0)


def test_waiting_ends_with_the_timeout(pool):
    lease_of_all = lease(pool, 6)
    started = time.monotonic()
    with pytest.raises(PoolBusyError, match=r"no room for 3 environments of template: 6 of 8 are leased") as raised:
        lease(pool, 3, timeout=0.2)
    assert 0.2 <= time.monotonic() - started < 30  # late on a busy machine, but not never
    assert isinstance(raised.value, TimeoutError)
    assert pool.status().waiting == 0
    assert lease_of_all.most_envs == 8


def test_a_large_request_is_not_starved_by_small_ones():
    pool = DummyPool(4)
    small = [pool.lease("a", 1) for _ in range(2)]
    large = Request(pool, "a", 4)
    assert eventually(lambda: pool.status().waiting == 1)
    late = Request(pool, "a", 1)
    assert eventually(lambda: pool.status().waiting == 2)
    assert not late.done  # there would be room for it
    for each in small:
        each.release()
    assert eventually(lambda: large.done)
    assert large.lease is not None
    assert not late.done
    large.lease.release()
    assert eventually(lambda: late.done)
    assert late.lease is not None


def test_leases_grow_and_shrink_within_the_budget(pool):
    first, second = lease(pool, 4), lease(pool, 2)
    assert first.most_envs == 6
    assert len(first.resize(6)) == 6
    assert pool.status().leased == 8
    with pytest.raises(PoolBusyError, match="no room for 1 more environments of template"):
        second.envs.resize(3)
    assert len(first.envs.resize(1)) == 1
    assert len(second.envs.resize(7)) == 7
    assert second.num_envs == second.envs.num_envs == second.envs.action_space.shape[0] == 7
    first.release()
    second.release()
    # The environments are as they were made: no lease is asked any more.
    assert all("resize" not in vars(holding.envs) for holding in pool._budget.idle)


def test_a_learner_that_resizes_stays_within_the_budget(pool):
    from tests.learn.learners import make_ppo
    from velodrome.rollout.worlds import make_worlds

    held, other = lease(pool, 4, observation="cursor"), lease(pool, 2)
    learner = make_ppo(make_worlds(held.envs))
    learner.iterate()
    learner.resize(6)
    learner.iterate()
    assert (pool.status().leased, held.num_envs) == (8, 6)
    with pytest.raises(PoolBusyError):
        learner.resize(7)
    learner.iterate()
    other.release()
    learner.resize(7)
    learner.iterate()
    assert pool.status().leased == 7


def test_a_monitor_over_a_lease_resizes_it(pool):
    held = lease(pool, 4)
    envs = VecMonitor(held.envs)
    envs.reset()
    envs.resize(8)
    envs.step(np.zeros(8, np.int64))
    assert (pool.status().leased, envs.statistics().steps) == (8, 8)
    with pytest.raises(ConfigError):
        envs.resize(9)


def test_a_lease_waits_to_grow_until_another_is_given_back(pool):
    first, second = lease(pool, 4), lease(pool, 4)
    timer = threading.Timer(0.1, second.release)
    timer.start()
    first.resize(8, timeout=5)
    timer.join()
    assert pool.status().leased == 8
    assert pool.status().idle == 0


def test_leases_that_wait_for_each_other_to_shrink_are_told():
    pool = DummyPool(4)
    first, second = pool.lease("a", 2), pool.lease("a", 2)
    failed: list[Exception] = []

    def grow() -> None:
        try:
            first.resize(3, timeout=None)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=grow)
    thread.start()
    assert eventually(lambda: pool.status().waiting == 1)
    with pytest.raises(PoolBusyError, match="every lease of this pool waits to grow"):
        second.resize(3, timeout=None)
    assert thread.is_alive()
    second.release()
    thread.join(5)
    assert not failed
    assert first.num_envs == 3


def test_a_lease_that_nobody_refers_to_gives_back(pool):
    forgotten = lease(pool, 8)
    del forgotten
    with lease(pool, 8, timeout=2) as envs:
        assert envs.num_envs == 8


def test_a_lease_that_ended_does_not_keep_the_next_one_from_giving_back(pool):
    first = lease(pool, 8)
    first.release()
    second = lease(pool, 8)
    del second
    assert pool.status().leased == 0
    with pytest.raises(BackendError, match="released"):
        first.resize(2)


def test_environments_in_use_are_not_taken_away_because_the_lease_is_forgotten(pool):
    envs = lease(pool, 8).envs
    gc.collect()
    with pytest.raises(PoolBusyError):
        lease(pool, 8, timeout=0.3)
    assert envs.num_envs == 8
    assert not envs.closed


def test_a_training_that_died_gives_back(pool):
    class Trainer:
        def __init__(self) -> None:
            self.lease = lease(pool, 8)
            self.act = self.step  # refers to itself, as learners do

        def step(self) -> None:
            raise RuntimeError("out of luck")

    def train() -> None:
        with contextlib.suppress(RuntimeError):
            Trainer().act()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    with lease(pool, 8, timeout=5) as envs:
        assert envs.num_envs == 8


def test_closing_the_pool_closes_everything():
    pool = DummyPool(6)
    idle, out = pool.lease("a", 2), pool.lease("b", 4)
    idle.release()
    waiting = Request(pool, "b", 6)
    assert eventually(lambda: pool.status().waiting == 1)
    envs = out.envs
    pool.close()
    assert envs.closed
    assert pool.census.now == 0
    assert eventually(lambda: waiting.done)
    assert isinstance(waiting.error, BackendError)
    out.release()
    assert pool.status().leased == pool.status().idle == 0
    with pytest.raises(BackendError, match="closed"):
        pool.lease("a", 1)
    with pytest.raises(BackendError, match="released"):
        _ = out.envs
    pool.close()


def test_a_failure_to_close_does_not_hit_those_who_need_the_room():
    pool = DummyPool(2)
    first = pool.lease("a", 2)

    def fail(**options: Any) -> None:
        raise OSError("stuck")

    first.envs.close = fail
    first.release()
    with pytest.warns(UserWarning, match="closing environments of a failed: stuck"):
        pool.lease("b", 2)


# One for the process


def test_the_shared_pool_is_one_for_the_process():
    script = """
from velodrome.errors import ConfigError
from velodrome.vector.fleet.pool import shared_pool
try:
    shared_pool()
except ConfigError as error:
    assert "max_concurrent_envs" in str(error)
pool = shared_pool(8)
assert shared_pool() is pool and shared_pool(8) is pool
assert shared_pool(6) is pool and pool.status().max_concurrent_envs == 6
with pool.lease("template", 2, threads=1):
    try:
        shared_pool(4)
    except ConfigError as error:
        assert "has 6 and is in use (2 leased)" in str(error), error
    else:
        raise AssertionError
pool.close()
assert shared_pool(3) is not pool
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr


# Three trainings


@pytest.mark.parametrize("round_trips", [2])
def test_three_trainings_get_through_under_one_budget(round_trips):
    """Each needs 8 environments and there are 16: one of the three waits until another is done."""
    from velodrome.learn.config import NetworkConfig, PPOConfig
    from velodrome.learn.ppo import PPO
    from velodrome.rollout.worlds import make_worlds

    market = small_market()
    kinds: list[tuple[Any, dict[str, Any]]] = [
        ("template", {"observation": "cursor", "threads": 1}),
        ("trading", {"market": market, "observation": "cursor", "threads": 1, "episode_length": (3, 9)}),
        ("CartPole-v1", {"backend": "serial"}),
    ]
    problems: list[BaseException] = []
    steps: dict[str, int] = {}
    seen: list[tuple[int, int]] = []
    done = threading.Event()
    start = threading.Barrier(len(kinds))

    def train(name: str, options: dict[str, Any]) -> None:
        try:
            start.wait(30)
            for trip in range(round_trips):
                with pool.lease(name, 8, seed=trip, timeout=60, **options) as envs:
                    config = PPOConfig(rollout_length=8, epochs=1, minibatches=2)
                    learner = PPO(make_worlds(envs), NetworkConfig(hidden=(8,)), config, total_steps=256, seed=0)
                    while learner.steps < 256:
                        assert np.isfinite(learner.iterate()["loss/value"])
                    steps[name] = steps.get(name, 0) + learner.steps
        except BaseException as error:
            problems.append(error)

    def watch() -> None:
        while not done.is_set():
            status = pool.status()
            seen.append((status.leased + status.idle, status.waiting))
            time.sleep(0.001)

    with EnvPool(16) as pool:
        threads = [threading.Thread(target=train, args=kind) for kind in kinds]
        watcher = threading.Thread(target=watch)
        for thread in (*threads, watcher):
            thread.start()
        for thread in threads:
            thread.join(120)
        done.set()
        watcher.join()
        assert not problems
        assert steps == {name: 256 * round_trips for name, _ in kinds}
        assert max(total for total, _ in seen) == 16
        assert max(waiting for _, waiting in seen) >= 1
        assert pool.status().leased == 0
