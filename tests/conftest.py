"""Settings of every test run."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests import postgres
from velodrome.envs.catalog import CATALOG
from velodrome.learn.catalog import ALGORITHMS

# The same examples in every run and in every worker process; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# The list of code that is trusted is a user's own; tests have one of theirs, and so have the programs they start.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="velodrome-tests-")

# Where every core has a worker, torch's further threads, and those of the programs that tests start, would take turns
# with them on the same cores and wait for one another. Tests of several threads ask for them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Numba tries many signatures for one that fits, and paints the message of each that does not: a twentieth of compiling.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

# What a process of tests has imported stays: looked through for garbage again and again, it takes a tenth of the time.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from here on, seldom, and not among what is imported by now."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


# Files that compile rules, one after the other in one process: what is compiled of a rule there is not compiled again
# for its next variant, which then takes a fifth of the time.
COMPILING = (
    "test_readme", "envs/portfolio/test_contract", "envs/portfolio/test_properties", "bench/problems/test_portfolio",
    "compat/test_alpaca_crypto", "envs/portfolio/test_cuda", "evaluation/test_breakdown", "envs/trading/test_contract",
    "envs/trading/test_properties", "runs/test_resume", "bench/test_step", "test_examples", "cli/test_cli",
    "envs/cage2/test_contract", "bench/problems/test_cage2", "envs/cage2/test_cage2", "envs/cage2/test_oracle",
    "envs/test_template", "vector/compile/test_inlining", "runs/test_old_runs",
)  # fmt: skip
# The other files that take longest, some 10 s and more: begun last, one of them would keep a single process busy while
# the others have nothing left to do. Those at first need no rules; the rest finds compiled what it needs.
LONGEST = (
    "dashboard/browser/test_pages", "service/test_clusters", "service/test_study_kills", "service/test_studies",
    "runs/ranks/test_ranks",
    "vector/workers/test_faults", "vector/test_backend_contract", "vector/compile/test_cache", "runs/test_kill",
    "service/test_kill", "service/test_trainings", "envs/test_outside_environment", "runs/test_seeds",
    "envs/trading/test_oracle", "runs/test_portfolio_runs", "cli/test_training", "learn/test_ppo",
    "test_distribution", "learn/test_policy_files", "tables/test_planted", "runs/report/test_browser",
    "runs/test_walk_forward", "bench/test_vector", "learn/test_resize", "runs/store/test_store",
    "learn/test_ppo_contract", "learn/test_dqn_contract", "learn/test_outside_algorithm", "learn/engines/test_gpu",
    "vector/test_cuda_simulated", "envs/cage2/test_cuda", "bench/test_train", "compat/test_torchtrade_envs",
    "runs/machine/test_memory", "vector/fleet/test_pool", "vector/workers/test_pending", "test_traders_path",
    "test_doctor",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first: xdist hands files out in this order."""
    places = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(COMPILING + LONGEST)}
    missing = [str(path) for path in places if not path.exists()]
    if missing:
        raise pytest.UsageError(f"{__file__} names files that are not there: {', '.join(missing)}")
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files, those that compile together."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "compiling" if file.removeprefix("tests/").removesuffix(".py") in COMPILING else file

    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="module", autouse=True)
def a_fork_server_of_its_own() -> Iterator[None]:
    """End a module's fork server with it: a process has one, which imports what the first to start it asked for.

    Workers that had to import for themselves what their server did not took half a second each, runs two.
    """
    yield
    server = multiprocessing.forkserver._forkserver
    if server._forkserver_pid is not None:
        # What a test that failed has left open: the server would wait for it, and the failure never be told.
        for left in psutil.Process(server._forkserver_pid).children():
            left.kill()
    server._stop()
    server._preload_modules = ["__main__"]


@pytest.fixture(scope="module", autouse=True)
def registrations_of_its_own() -> Iterator[None]:
    """Forget what a module registered: a table of all algorithms would show another module's."""
    before = [(registry, dict(registry._entries)) for registry in (CATALOG, ALGORITHMS)]
    yield
    for registry, entries in before:
        registry._entries = entries


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave what is written to the system: only a machine that fails loses it, and none of these tests is about that.

    A small run waits a hundred times for the disk. Programs that tests start do so as ever.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        if store := sys.modules.get("velodrome.runs.store.store"):
            prepare = store._prepare_sqlite

            def prepare_without_waiting(connection: Any, record: Any) -> None:
                prepare(connection, record)
                connection.execute("PRAGMA synchronous=OFF").close()

            patch.setattr(store, "_prepare_sqlite", prepare_without_waiting)
        yield


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """Keep what other modules left behind out of `gc.collect`, which else takes seconds in a process that ran many."""
    gc.collect()
    gc.freeze()  # for good: what is in use by now is little beside all that is imported


class Unpainted:
    """A chart that is drawn but not painted."""

    def savefig(self, path: Path, dpi: int) -> None:
        path.write_bytes(f"a chart at {dpi} dots per inch".encode())


@pytest.fixture(scope="module")
def unpainted_charts() -> Iterator[None]:
    """Let evaluations draw their charts and leave the painting, which takes two thirds of their time, to other tests.

    Those of tests/runs/report paint, those of README and of the examples, and programs that tests start.
    """
    from velodrome.runs.report import images

    draw = images.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "draw", lambda *given: (draw(*given), Unpainted())[1])
        yield


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """One thread for torch: the tensors of tests are tiny, and waking a second core costs more than it does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty PostgreSQL database that tests may fill."""
    with postgres.server() as url:
        if url is None:
            pytest.skip(postgres.NO_SERVER)
        yield url
