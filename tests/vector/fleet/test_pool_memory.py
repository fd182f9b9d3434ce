"""EnvPool under a limit of memory: measured, waited for, refused."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.markets import small_market
from tests.vector.fleet.pools import DummyPool, Request, eventually, lease
from velodrome.errors import ConfigError
from velodrome.vector.fleet import pool as pool_module
from velodrome.vector.fleet.pool import EnvPool, PoolBusyError


@pytest.fixture
def pool() -> Iterator[EnvPool]:
    with EnvPool(8) as made:
        yield made


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DummyPool]:
    """Return what makes pools in whose process environments of kind 'heavy' take 100 bytes, others 10."""

    def make(**options: Any) -> DummyPool:
        made = DummyPool(100, **options)
        monkeypatch.setattr(
            pool_module, "bytes_in_use",
            lambda: 5000 + sum(
                (0 if envs.closed else envs.num_envs) * (100 if envs.kind == "heavy" else 10)
                for envs in made.census.made
            ),
        )  # fmt: skip
        return made

    return make


def test_memory_is_measured_and_limits_what_is_lent(weighed):
    pool = weighed(memory_limit=1000)
    first = pool.lease("heavy", 6)
    assert pool.status().bytes == 600
    assert pool.status().leases[0].bytes == 600
    with pytest.raises(PoolBusyError, match="600 of 1,000 bytes"):
        pool.lease("heavy", 5, timeout=0.1)
    assert first.most_envs == 10
    light = pool.lease("light", 40, timeout=1)
    assert pool.status().bytes == 1000
    with pytest.raises(PoolBusyError):
        first.resize(7)
    light.release()
    first.resize(7)  # what lies idle makes room
    assert pool.status().bytes == 700
    assert pool.status().idle == 0
    with pytest.raises(ConfigError, match=r"takes 100 bytes.*at most 10 fit"):
        pool.lease("heavy", 11)


def test_what_turns_out_to_be_too_heavy_waits_for_room(weighed):
    pool = weighed(memory_limit=1000)
    first = pool.lease("light", 50)
    request = Request(pool, "heavy", 8)  # how heavy they are is not known before
    assert eventually(lambda: pool._budget.sizes and pool.status().waiting == 1 and pool.census.now == 50)
    assert not request.done
    first.release()
    assert eventually(lambda: request.done)
    assert request.lease is not None
    assert (pool.status().bytes, pool.census.now) == (800, 8)


def test_what_turns_out_to_be_too_heavy_for_all_of_it_is_refused(weighed):
    pool = weighed(memory_limit=1000)
    with pytest.raises(ConfigError, match=r"at most 10 fit into memory_limit = 1,000"):
        pool.lease("heavy", 20)
    assert pool.census.now == pool.status().leased == 0


MEASURING = """
import numpy as np
from tests.vector.foreign_envs import Counting
from velodrome.vector.fleet.pool import EnvPool

class Heavy(Counting):
    def __init__(self):
        super().__init__()
        self.ballast = np.ones(1 << 20)  # 8 MiB

with EnvPool(20, memory_limit=1 << 30) as pool:
    held = pool.lease(Heavy, 6, backend="serial")
    print(pool.status().bytes, held.most_envs)
"""


def test_real_memory_is_measured():
    # In a process of its own: here other tests' memory and workers come and go.
    answer = subprocess.run(
        [sys.executable, "-c", MEASURING], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    measured, most = map(int, answer.stdout.split())
    # Without the limit's warm-up the code that a first environment brings would count as well.
    assert 6 * 8e6 < measured < 6 * 12e6
    assert most == 20


def test_measurements_do_not_keep_a_market_alive(pool):
    import weakref

    market = small_market()
    with pool.lease("trading", 2, market=market, threads=1):
        pass
    assert len(pool._budget.sizes) == 1
    gone = weakref.ref(market)
    del market
    with lease(pool, 8):
        pass
    gc.collect()
    assert gone() is None
