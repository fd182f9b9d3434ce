"""What fits into a budget, and whose turn it is."""

from __future__ import annotations

import pytest

from tests.contracts.queue import job
from velodrome.errors import ConfigError
from velodrome.service import budget
from velodrome.service.budget import PASSING_SECONDS, Budget, Gpu, Resources, choose, why_never
from velodrome.service.job import read_bytes
from velodrome.service.queue import Waiting

GIB = 2**30
THERE = Resources(cores=4, memory=16 * GIB)
BUDGET = Budget(memory=8 * GIB).within(THERE)


def chosen(waiting, running=(), served=None, budget=BUDGET, there=THERE, now=200.0) -> list[str]:
    found = choose(Waiting(waiting, running, served or {}), budget, there, now)
    return [choice.job.id for choice in found]


@pytest.mark.parametrize(
    ("about", "budget", "count"),
    [
        ({"cores": 1}, BUDGET, 4),
        ({"cores": 2}, BUDGET, 2),
        ({"memory": 3 * GIB}, BUDGET, 2),
        ({"envs": 100}, Budget(max_concurrent_envs=250).within(THERE), 2),
        ({"cores": 1}, Budget(cores=3).within(THERE), 3),
    ],
)
def test_as_many_begin_as_fit(about, budget, count):
    waiting = [job(f"{number:08d}", **about) for number in range(6)]
    assert len(chosen(waiting, budget=budget)) == count
    running, rest = waiting[:1], waiting[1:]
    assert len(chosen(rest, running, budget=budget)) == count - 1


def test_higher_priorities_begin_first_and_then_who_came_first():
    waiting = [job("a", created=1.0), job("b", created=2.0), job("c", created=3.0, priority=1)]
    assert chosen(waiting, budget=Budget(cores=1).within(THERE)) == ["c"]
    assert chosen(waiting) == ["c", "a", "b"]


def test_owners_share_the_machine_whoever_submitted_more():
    many = [job(f"a{number}", owner="alice", created=float(number)) for number in range(10)]
    few = [job(f"b{number}", owner="bob", created=100.0) for number in range(2)]
    assert chosen(many + few) == ["a0", "b0", "a1", "b1"]


def test_where_one_fits_at_a_time_owners_take_turns():
    many = [job(f"a{number}", owner="alice", created=float(number)) for number in range(10)]
    late = job("b", owner="bob", created=100.0)
    one = Budget(cores=1).within(THERE)
    assert chosen([*many, late], served={"alice": 50.0}, budget=one) == ["b"]
    assert chosen(many, served={"alice": 50.0, "bob": 60.0}, budget=one) == ["a0"]


def test_small_ones_pass_a_large_one_but_not_for_ever():
    large, small = job("large", cores=4, created=1000.0), job("small", cores=1, created=1001.0)
    running = [job("other", cores=1)]
    assert chosen([large, small], running, now=1001.0) == ["small"]
    assert chosen([large, small], running, now=1001.0 + PASSING_SECONDS) == []
    assert chosen([large, small], now=1001.0 + PASSING_SECONDS) == ["large"]


def test_what_can_never_fit_holds_nobody_up():
    assert chosen([job("never", cores=99, created=0.0), job("small")], now=1e6) == ["small"]


def test_a_gpu_that_others_fill_is_not_taken():
    gpus = (Gpu("full", 80 * GIB, 3 * GIB), Gpu("free", 80 * GIB, 70 * GIB))
    needs = [job(f"g{number}", gpu_memory=30 * GIB) for number in range(4)]
    there = Resources(8, 64 * GIB, gpus)
    found = choose(Waiting(needs, (), {}), Budget().within(there), there, 1.0)
    assert [(choice.job.id, choice.gpu) for choice in found] == [("g0", "free"), ("g1", "free")]
    full = Resources(8, 64 * GIB, gpus[:1])
    assert chosen(needs, budget=Budget().within(full), there=full) == []


def test_memory_of_a_gpu_counts_from_the_beginning_of_a_training_though_it_takes_it_later():
    there = Resources(8, 64 * GIB, (Gpu("one", 80 * GIB, 79 * GIB),))
    running = [job("first", gpu_memory=60 * GIB, gpu="one")]
    assert chosen([job("second", gpu_memory=30 * GIB)], running, budget=Budget().within(there), there=there) == []


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"cores": 5}, r"it needs 5 cores, and the budget has 4 cores\. Give it less \(--cores\)"),
        ({"memory": 9 * GIB}, r"it needs 9\.0 GiB of memory, and the budget has 8\.0 GiB of memory"),
        ({"gpu_memory": GIB}, "there is no GPU. Use device=cpu"),
    ],
)
def test_what_can_never_fit_is_told_with_what_to_do(about, said):
    import re

    assert re.search(said, why_never(job(**about), BUDGET) or "")


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="cores = 0: a budget is 1 or more"):
        Budget(cores=0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("512MiB", 512 * 2**20), ("1.5 gib", 3 * 2**29), (1000, 1000), ("1_000", 1000)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert read_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "2 parsecs", "nan", "inf", "1e99TB", "GB", 0])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="a size is a number of bytes"):
        read_bytes(text, "--memory")


def test_thousands_that_wait_are_not_compared_each_with_each(monkeypatch):
    waiting = [job(f"{number:08d}", owner=f"o{number % 7}", created=float(number)) for number in range(1_000)]
    compared: list[str] = []
    turn = budget._turn
    monkeypatch.setattr(budget, "_turn", lambda each, *about: compared.append(each.id) or turn(each, *about))
    large = Resources(cores=100, memory=4_000 * GIB)
    assert len(chosen(waiting, budget=Budget().within(large), there=large)) == 100
    assert len(compared) == 7 * 100  # the first of each owner, for each that begins
