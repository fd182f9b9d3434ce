"""Kills and freezes at random moments: each training ends once, with the bits of one that nobody disturbed."""

from __future__ import annotations

import functools
import os
import random
import signal
import sqlite3
import time

import pytest

from tests.contracts.executor import waited_for
from tests.runs.small_runs import assert_equal_runs, checkpoint_names, lines, one_thread, rows  # noqa: F401
from tests.service.conftest import QUICK, is_saved, submit
from tests.service.disturbing import COURSE, Disturbance, all_over, disturb, frozen_in_the_middle, serve
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore
from velodrome.service.machine import session_processes
from velodrome.service.scheduler import Patience
from velodrome.service.service import AgentTrainingService


def assert_undisturbed(service: AgentTrainingService, jobs, reference) -> None:
    """Check that every job ended once, that its run is the reference to the bit, and that the store is whole."""
    found = service.queue.refreshed(jobs)
    assert [job.status for job in found] == ["finished"] * len(found), [(job.ended, job.message) for job in found]
    assert service.queue.running() == []
    for job in found:
        ends = [event.data["end"] for event in service.events(job) if event.kind == "ended"]
        assert ends.count("finished") == 1
        assert ends[-1] == "finished"
        assert_equal_runs(service.run_of(job), reference)
    folders = [path.name for path in service.folder.iterdir() if path.is_dir() and path.name != "jobs"]
    assert sorted(folders) == sorted(job.folder for job in found)
    with sqlite3.connect(service.folder / "velodrome.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_killed_and_frozen_trainings_end_once_and_to_the_bit(serving, left_alone, monkeypatch):
    monkeypatch.setattr("velodrome.service.job.FIRST_PAUSE", 0.05)
    jobs = [submit(serving, **COURSE) for _ in range(2)]
    again = functools.partial(submit, serving, **COURSE)
    disturbance = disturb(serving, jobs, 5, random.Random(18), pause=(0.1, 0.5), another=again)
    all_over(serving, jobs, disturbance)
    assert len(disturbance.done) == 5
    assert_undisturbed(serving, jobs, left_alone(**COURSE))


def test_a_frozen_training_that_wakes_up_after_its_work_was_given_away_changes_nothing(serving, left_alone):
    """Its processes are frozen in the middle, and cannot be killed until the next attempt has ended."""
    left, members = frozen_in_the_middle(serving, lambda: submit(serving, **COURSE))
    job = left.id
    begin = time.monotonic()
    waited_for(lambda: serving.job(job).attempt == 2)
    assert time.monotonic() - begin > QUICK.lease / 2
    end = next(event for event in serving.events(job) if event.kind == "ended")
    assert end.data["end"] == "stalled"
    assert "gave no sign of life for 5 seconds" in end.text
    for pid in members:  # they were ended before the next attempt began, so that nobody is there to wake up
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    serving.wait(job, 120.0)
    assert_undisturbed(serving, serving.list(), left_alone(**COURSE))


@pytest.mark.slow
def test_a_training_on_another_machine_goes_on_here_in_a_folder_of_its_own(service, left_alone, executor, monkeypatch):
    """A frozen process there cannot be ended from here: what it writes later is refused, or read by nobody."""
    from velodrome.service.machine import this_machine

    monkeypatch.setattr(executor, "machine", "elsewhere|other-boot|pid:[1]")
    service.__enter__()
    left, members = frozen_in_the_middle(service, lambda: submit(service, **COURSE))
    job = left.id
    service.stop(save=False)
    monkeypatch.setattr(executor, "machine", str(this_machine()))
    service.__enter__()
    waited_for(lambda: service.job(job).attempt == 2 and service.job(job).folder != left.folder)
    for pid in members:
        os.kill(pid, signal.SIGCONT)
    (found,) = service.wait(job, 120.0)
    waited_for(lambda: session_processes(left.process) == [])  # the lost lease has ended them
    assert [event.data["end"] for event in service.events(job) if event.kind == "ended"] == ["machine_lost", "finished"]
    aside = [path.name for path in service.folder.iterdir() if path.name.startswith(".left-")]
    assert aside == [f".left-2-{left.folder}"]
    (service.folder / aside[0]).rename(service.folder.parent / "aside")
    assert found.attempt == 2
    assert_undisturbed(service, service.list(), left_alone(**COURSE))


def test_a_training_whose_service_died_goes_on_and_is_picked_up(service, left_alone, executor):
    """The service is a process of its own, and is killed with the one that starts trainings."""
    jobs = [submit(service, **COURSE) for _ in range(2)]
    process = serve(service.folder, "--cores", "2")
    waited_for(lambda: any(is_saved(service, job) for job in jobs))
    for pid in (process.pid, *_children(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    before = service.queue.refreshed(jobs)
    service.patience = Patience()  # a busy machine is no lost one
    service.__enter__()
    service.wait(jobs, 120.0)
    after = service.queue.refreshed(jobs)
    assert [job.attempt for job in after] == [job.attempt or 1 for job in before]  # none was begun anew
    assert_undisturbed(service, jobs, left_alone(**COURSE))


@pytest.mark.slow
def test_on_postgresql_killed_and_frozen_trainings_end_once_and_to_the_bit(
    tmp_path, postgres_url, executor, left_alone
):
    with SqlStore(postgres_url) as store, store._engine.begin() as connection:
        tables().metadata.drop_all(connection)
    service = AgentTrainingService(tmp_path / "runs", postgres_url, cores=2, patience=QUICK, executor=executor)
    service.__enter__()
    jobs = [submit(service, **COURSE) for _ in range(3)]
    disturbance = disturb(service, jobs, 10, random.Random(7), pause=(0.2, 1.0))
    all_over(service, jobs, disturbance)
    service.stop()
    assert [job.status for job in service.queue.refreshed(jobs)] == ["finished"] * 3
    reference = left_alone(**COURSE)
    for job in jobs:
        run = service.run_of(job)
        assert repr(rows(run)) == repr(rows(reference)) == repr(lines(run))
        assert repr(lines(run)) == repr(lines(reference))
        assert checkpoint_names(run) == checkpoint_names(reference)
    assert not (service.folder / "velodrome.db").exists()
    service.store.close()


@pytest.mark.slow
def test_a_group_of_seeds_whose_processes_are_killed_ends_as_one_that_nobody_disturbed(
    serving, left_alone, monkeypatch
):
    monkeypatch.setattr("velodrome.service.job.FIRST_PAUSE", 0.05)
    told = {**COURSE, "seeds": 3, "steps": 12_800}
    job = submit(serving, cores=2, **told)
    disturbance = disturb(serving, [job], 8, random.Random(3), pause=(0.5, 1.5))
    all_over(serving, [job], disturbance)
    found = serving.job(job)
    assert (found.status, found.steps) == ("finished", 38_400)
    run, reference = serving.run_of(job), left_alone(**told)
    for own, wanted in zip(run.members, reference.members, strict=True):
        assert repr(rows(own)) == repr(rows(wanted)) == repr(lines(own))


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_fifty_kills_and_freezes_of_trainings_services_and_all(tmp_path, left_alone, seed):
    """Trainings, services (two on one store), whole sessions: each is hit at random moments, ten times and more."""
    chance = random.Random(seed)
    folder = tmp_path / "runs"
    service = AgentTrainingService(folder, patience=QUICK)
    jobs = [submit(service, **COURSE) for _ in range(4)]
    services = [serve(folder, "--cores", "2") for _ in range(2)]

    def strike_services(disturbance: Disturbance) -> None:
        for number, process in enumerate(services):
            if chance.random() < 0.1:
                whom = [process.pid, *_children(process.pid)]
                signalled = chance.choice([signal.SIGKILL, signal.SIGSTOP])
                disturbance.hit(whom if chance.random() < 0.7 else whom[:1], signalled, wake_after=8.0)
                if signalled == signal.SIGKILL:
                    process.kill()
                    process.wait()
                    services[number] = serve(folder, "--cores", "2")

    try:
        again = functools.partial(submit, service, **COURSE)
        disturbance = disturb(service, jobs, 11, chance, strike_services, pause=(0.5, 3.0), another=again)
        all_over(service, jobs, disturbance, 900.0)
        assert_undisturbed(service, jobs, left_alone(**COURSE))
        assert len(disturbance.done) >= 11
    finally:
        for process in services:
            for pid in (process.pid, *_children(process.pid)):
                os.kill(pid, signal.SIGKILL)
            process.wait()
        for job in service.queue.running():
            service.executor.stop(job.machine, job.process)
        service.close()
