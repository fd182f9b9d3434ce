"""Settings of every test run."""

from __future__ import annotations

import multiprocessing.forkserver
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples in every run and in every worker process; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="module", autouse=True)
def a_fork_server_of_its_own() -> Iterator[None]:
    """End a module's fork server with it: a process has one, which imports what the first to start it asked for.

    Workers that had to import for themselves what their server did not took half a second each, runs two.
    """
    yield
    server = multiprocessing.forkserver._forkserver
    server._stop()
    server._preload_modules = ["__main__"]


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """One thread for torch: the tensors of tests are tiny, and waking a second core costs more than it does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
