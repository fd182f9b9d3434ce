"""These tests run torch on one thread, and import TorchRL without what it warns of itself."""

from __future__ import annotations

import multiprocessing
import warnings

import pytest

from velodrome.vector.workers.worker.starting import PRELOADED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchrl.collectors
    import torchrl.objectives  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """Use it everywhere here."""


@pytest.fixture(scope="module", autouse=True)
def _workers_know_the_scripted_environment(a_fork_server_of_its_own: None) -> None:
    """Let the fork server import it once: each of some sixty workers would take half a second for that."""
    multiprocessing.set_forkserver_preload([*PRELOADED, "tests.adapters.scripted_env"])
