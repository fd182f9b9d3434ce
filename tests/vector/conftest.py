"""Workers of these tests find the small environments imported."""

from __future__ import annotations

import multiprocessing

import pytest

from velodrome.vector.workers.worker.starting import PRELOADED


@pytest.fixture(scope="module", autouse=True)
def _workers_know_the_small_environments(a_fork_server_of_its_own: None) -> None:
    """Let the fork server import them once for some five hundred workers."""
    multiprocessing.set_forkserver_preload([*PRELOADED, "tests.vector.foreign_envs"])
