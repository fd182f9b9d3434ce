"""Real trainings under a service: how they end, each from a real cause; pause, resume, cancel, drain."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import velodrome as vd
from tests.contracts.executor import ExecutorContract, waited_for
from tests.contracts.queue import job as any_job
from tests.runs.small_runs import assert_equal_runs, one_thread  # noqa: F401
from tests.service.conftest import is_saved, submit
from velodrome import cli
from velodrome.errors import (
    ConfigError,
    JobError,
    LearningError,
    OutOfMemoryError,
    RunError,
    RunLockedError,
    StoreError,
    WriteError,
)
from velodrome.runs.config.files import load_run_config
from velodrome.runs.machine import disk
from velodrome.runs.store.store import open_store
from velodrome.runs.together import processes
from velodrome.service.budget import Budget, Gpu, Resources
from velodrome.service.executor import LocalExecutor
from velodrome.service.job import Job
from velodrome.service.listing import status_of
from velodrome.service.machine import handle_of, kill_session, session_processes, started_at
from velodrome.service.queue import Choice, Queue
from velodrome.service.scheduler import CALM_SECONDS, TICK_SECONDS, Patience, Scheduler
from velodrome.service.worker.task import Task
from velodrome.service.worker.trainer import kind_of
from velodrome.vector.cores import ENVIRONMENTS

LONG = {"steps": 64 * 10**6, "checkpoint.every_steps": 640, "evaluation.every_steps": 10**9}

ENVIRONMENT = """
import os
import time
import gymnasium
import numpy as np
import torch

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how="raise", after=200):
        self.how, self.left, self.kept = how, after, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        if self.left < 0:
            if self.how == "raise":
                raise ZeroDivisionError("the price was nought")
            if self.how == "tell":
                given = os.environ["VELODROME_CORES"], os.environ["VELODROME_ENVIRONMENTS"]
                raise LookupError("%s cores and %s environments" % given)
            if self.how == "hang":
                time.sleep(3600)
            if self.how == "nibble":
                time.sleep(0.001)
                self.kept.append(np.ones(2**17))
            if self.how == "gorge":
                self.kept.append(np.ones(2**28))
        return np.zeros(2, np.float32), 1.0, False, self.left % 10 == 0, {}

gymnasium.register("Broken-v0", entry_point=Broken)

class Large(torch.nn.Module):
    def __init__(self, windows, values):
        raise MemoryError("8 TiB of weights")
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Returns the settings of a training on an environment of a user's own that breaks in some way."""
    (tmp_path / "user_worlds.py").write_text(textwrap.dedent(ENVIRONMENT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("user_worlds", None)

    def told(how: str, after: int = 200, **changed: object) -> dict[str, object]:
        about: dict[str, object] = {"params.after": after}
        about |= {
            "env": "user_worlds:Broken-v0",
            "vector.env_type": "serial",
            "params.how": how,
            "network.hidden": (8,),
        }
        about |= {"steps": 6400, "num_envs": 4, "ppo.rollout_length": 16, "checkpoint.every_steps": 64}
        return {**about, "evaluation.every_steps": 10**9, **changed}

    return told


class TestLocal(ExecutorContract):
    """The fixture `executor` is that of all tests here."""

    def test_where_trainings_end_with_their_owner_they_do_however_it_ends(self, queue, tmp_path):
        config = {"env": "CartPole-v1", "steps": 10**9, "logging": {"folder": str(tmp_path)}}
        executor = LocalExecutor(ends_with_its_owner=True)
        job = self.begin(executor, queue, tmp_path, config)
        waited_for(lambda: len(session_processes(job.process)) == 2)  # who keeps the lease, and who trains
        executor._nursery.kill()  # as Ray does, which lets nobody clear up
        waited_for(lambda: not session_processes(job.process))
        executor.close()


def ended(service, job: Job, seconds: float = 120.0) -> Job:
    (found,) = service.wait(job, seconds)
    assert found.is_over or found.status == "paused", found
    return found


def most_at_once(service) -> int:
    """How many ran at the same time, by the order of what happened."""
    events = [event for event in service.queue.events() if event.kind in ("started", "ended")]
    return max(itertools.accumulate(1 if event.kind == "started" else -1 for event in events))


def test_trainings_of_a_service_are_those_of_the_command_to_the_bit_and_keep_to_the_budget(service, left_alone):
    """Three at once where two fit: sampled while they run, and by what happened."""
    service.budget, service.patience = Budget(max_concurrent_envs=16), Patience()
    serving = service.__enter__()
    jobs = [submit(serving) for _ in range(3)]
    for _ in serving.watch(jobs, 120.0):
        running = serving.queue.running()
        assert sum(job.envs for job in running) <= 16
    finished = serving.queue.refreshed(jobs)
    assert most_at_once(serving) == 2
    assert [(job.status, job.ended, job.attempt, job.steps) for job in finished] == [
        ("finished", "finished", 1, 640)
    ] * 3
    for job in jobs:
        run = serving.run_of(job)
        assert run.folder.id == job.id
        assert run.path.name == job.folder
        assert_equal_runs(run, left_alone())
        assert "checkpoint at step" in serving.log_path(job).read_text()
    assert {run.id for run in serving.store.runs()} == {job.id for job in jobs}


@pytest.mark.parametrize(
    ("changed", "most", "at_once"),
    [
        ({"seeds": 5, "cores": 4}, None, 4),
        ({"seeds": 3, "cores": 4}, None, 2),  # after the first, which is trained alone
        ({"ensemble": 9, "cores": 2}, None, 2),
        ({"seeds": 5, "cores": 4}, 20, 2),
        ({"seeds": 5, "cores": 4}, 8, 1),
        ({"seeds": 5, "cores": 1}, None, 1),
        ({"cores": 4}, None, 1),
        ({"seeds": 5, "cores": 4, "vector.max_concurrent_envs": 8}, None, 1),
    ],
    ids=str,
)
def test_members_that_are_trained_side_by_side_count_and_are_no_more_than_fit(
    service, monkeypatch, changed, most, at_once
):
    service.budget = Budget(cores=4, max_concurrent_envs=most)
    job = submit(service, **changed)
    assert job.envs == at_once * 8
    monkeypatch.setattr(processes, "available_cores", lambda: changed["cores"])
    monkeypatch.setattr(processes, "free_memory", lambda: 1 << 40)
    config = load_run_config(job.config)
    monkeypatch.setenv(ENVIRONMENTS, str(job.envs))
    assert processes.processes_for(config, None, config.trainings - 1) == at_once
    monkeypatch.setenv(ENVIRONMENTS, "8")  # submitted when they were not counted
    assert processes.processes_for(config, None, config.trainings - 1) == 1


def test_a_training_knows_what_it_was_given(serving, broken):
    job = ended(serving, serving.submit({}, evaluate=False, cores=2, **broken("tell")))
    assert "LookupError: 2 cores and 4 environments" in job.message


def test_an_error_in_the_user_s_environment_ends_a_training_with_its_reason(serving, broken):
    job = ended(serving, serving.submit({}, evaluate=False, **broken("raise")))
    assert (job.status, job.ended, job.attempt) == ("failed", "error", 1)
    assert "ZeroDivisionError: the price was nought" in job.message


def test_a_loss_that_overflows_is_not_a_number_and_not_retried(serving):
    overflow = {"ppo.value_weight": 1e38, "ppo.engine": "autograd", "ppo.learning_rate": 1.0}
    job = ended(serving, submit(serving, **overflow))
    assert (job.status, job.ended, job.attempt) == ("failed", "not_a_number", 1)
    assert "Learning broke at step 64" in job.message


@pytest.mark.parametrize(
    ("how", "said"),
    [pytest.param("nibble", "of memory and was given", marks=pytest.mark.slow), ("gorge", "MemoryError")],
)
def test_who_takes_more_memory_than_told_is_out_of_memory_and_tried_once_more(serving, broken, how, said):
    job = ended(
        serving,
        serving.submit({}, evaluate=False, memory="500MB", **broken(how, after=0, **{"checkpoint.every_steps": 10**6})),
    )
    assert (job.status, job.ended, job.attempt) == ("failed", "out_of_memory", 2)
    assert said in job.message
    assert job.memory_used < 1.5e9


def test_a_training_with_no_less_to_go_on_with_is_out_of_memory_and_tried_once_more(serving, broken):
    """It goes on with half its environments as long as it can, and then says so by itself."""
    large = broken("raise", **{"network.kind": "user_worlds:Large"})
    job = ended(serving, serving.submit({}, evaluate=False, memory="2GB", **large))
    assert "memory ran out with 1 environments (8 TiB of weights), and the training needs 1." in job.message
    assert (job.status, job.ended, job.attempt) == ("failed", "out_of_memory", 2)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out_of_memory"),
        (OutOfMemoryError("memory ran out with 1 environments, and the training needs 1."), "out_of_memory"),
        (WriteError("metrics.jsonl: cannot be written", OSError(errno.ENOSPC, "no room")), "no_room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "no_room"),
        (StoreError("runs.db: OperationalError: database or disk is full"), "no_room"),
        (OSError(errno.EFBIG, "File too large"), "error"),
        (LearningError("Learning broke at step 64"), "not_a_number"),
        (RunLockedError("another process trains it"), "machine_lost"),
        (ConfigError("they take 8 GB, out of memory"), "error"),
        (ValueError("shape"), "error"),
    ],
    ids=repr,
)
def test_errors_are_of_the_kind_that_says_what_becomes_of_the_training(error, kind):
    assert kind_of(error) == kind
    later = RuntimeError("while it was written down")
    later.__context__ = error
    assert kind_of(later) == kind


def test_a_log_that_a_full_disk_does_not_take_hides_nothing(service, broken):
    job = service.submit({}, evaluate=False, **broken("raise"))
    service.log_path(job).parent.mkdir()
    service.log_path(job).symlink_to("/dev/full")
    job = ended(service.__enter__(), job)
    assert (job.ended, "the price was nought" in job.message) == ("error", True), job.message


def test_nothing_begins_without_room_on_the_disk_and_jobs_say_so_until_there_is_some(service, monkeypatch):
    free = [2**20]
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(total=2**40, free=free[0]))
    job, told, started = submit(service), [], []
    there = Resources(cores=1, memory=2**33)
    other = SimpleNamespace(
        machine="m|b|p", resources=lambda: there, prepare=lambda: None, start=started.append, poll=lambda *about: True
    )
    scheduler = Scheduler(service.queue, other, service.folder, tell=told.append)
    for _ in range(3):
        scheduler.tick()
    assert (started, len(told)) == ([], 1)
    assert f"no room on the disk: {service.folder} has less than 256 MiB left." in told[0]
    assert told[0].endswith(service.job(job).message)
    assert status_of(service.job(job)) == "waiting for disk space"
    free[0] = 2**30
    scheduler._nothing_at = None  # a second has passed
    scheduler.tick()
    assert [task.job for task in started] == [job.id]
    assert service.job(job).message == ""


def test_a_service_turns_to_the_file_that_has_replaced_its_store(service):
    there, told, started = Resources(cores=1, memory=2**33), [], []
    other = SimpleNamespace(
        machine="m|b|p", resources=lambda: there, prepare=lambda: None, start=started.append, poll=lambda *about: True
    )
    scheduler = Scheduler(service.queue, other, service.folder, tell=told.append)
    scheduler.tick()
    for file in service.folder.glob("velodrome.db*"):
        file.rename(file.with_name(f"before-{file.name}"))
    with pytest.raises(StoreError, match="is gone"):
        scheduler.tick()
    with open_store(service.folder) as store:
        Queue(store).submit(any_job())
    scheduler.tick()
    assert [task.job for task in started] == ["ab12cd34"]
    assert "was replaced" in told[0]
    assert len(service.queue.services()) == 1


def test_who_waits_is_told_that_the_service_of_the_program_has_ended(tmp_path):
    def lost() -> None:
        raise RunError("The head of the Ray cluster does not answer.")

    there = Resources(cores=1, memory=2**33)
    lost_cluster = SimpleNamespace(machine="m|b|p", resources=lambda: there, prepare=lost, close=lambda: None)
    with vd.AgentTrainingService(tmp_path / "runs", executor=lost_cluster) as service:
        job = submit(service)
        with pytest.raises(JobError, match="has ended, and nothing carries out its trainings: The head of the Ray"):
            service.wait(job, seconds=20.0)
    assert service.job(job).status == "waiting"


def test_who_cannot_write_a_sign_of_life_because_the_disk_is_full_is_not_blamed(service, monkeypatch):
    job = submit(service)
    service.queue.claim("s", service.executor.machine, lambda waiting: [Choice(each) for each in waiting.jobs])
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(total=2**40, free=0))
    scheduler = Scheduler(service.queue, service.executor, service.folder)
    scheduler._give_up(service.job(job), alive=True, stopped=True)
    assert (service.job(job).status, service.job(job).ended) == ("waiting", "no_room")


def test_a_hang_is_a_stall_and_is_retried(serving, broken):
    job = serving.submit({}, evaluate=False, stall_seconds=1.5, **broken("hang"))
    waited_for(lambda: [event for event in serving.events(job) if event.data.get("end") == "stalled"])
    assert "nothing happened for 1.5 seconds" in [event.text for event in serving.events(job)][-1]
    serving.cancel(job)


def test_a_config_that_is_not_valid_any_more_is_told_when_its_turn_comes(service, tmp_path):
    prices = tmp_path / "prices.csv"
    rows = "".join(
        f"2024-01-{1 + day // 24:02d}T{day % 24:02d}:00:00,1,2,1,{1 + day % 7 / 10},5\n" for day in range(600)
    )
    prices.write_text(f"time,open,high,low,close,volume\n{rows}")
    job = service.submit("smoke", **{"market.source": str(prices)})
    prices.unlink()
    service.__enter__()
    job = ended(service, job)
    assert (job.status, job.ended) == ("failed", "error")
    assert "prices.csv" in job.message


def test_pause_resume_and_cancel_act_within_seconds_and_lose_nothing_saved(serving):
    job = submit(serving, **LONG)
    waited_for(lambda: is_saved(serving, job))
    begin = time.monotonic()
    serving.pause(job)
    waited_for(lambda: serving.job(job).status == "paused")
    paused = time.monotonic() - begin
    saved = serving.job(job).steps
    assert saved > 0
    assert serving.run_of(job).status == "interrupted"
    begin = time.monotonic()
    serving.resume(job)
    waited_for(lambda: serving.job(job).status == "running" and serving.job(job).steps > saved)
    resumed = time.monotonic() - begin
    assert f"resumed at step {saved}" in serving.run_of(job).folder.log_path.read_text()
    begin = time.monotonic()
    serving.cancel(job)
    waited_for(lambda: serving.job(job).status == "cancelled")
    cancelled = time.monotonic() - begin
    # Five seconds, and what a machine that does other things besides may take.
    assert max(paused, resumed, cancelled) < 5.0 + 10.0
    assert serving.job(job).process == ""


def test_sigterm_and_sigusr1_save_and_the_training_waits_for_its_next_turn(serving):
    job = submit(serving, **LONG)
    waited_for(lambda: serving.job(job).process and is_saved(serving, job))
    for number in (signal.SIGTERM, signal.SIGUSR1):
        before = serving.job(job)
        for pid in session_processes(before.process):  # as a cluster does: to every process
            os.kill(pid, number)
        waited_for(lambda: serving.job(job).attempt > before.attempt)  # noqa: B023
        assert session_processes(before.process) == []
        end = [event.data for event in serving.events(job) if event.kind == "ended"][-1]
        assert end["end"] == "preempted"
        log = serving.run_of(job).folder.log_path
        waited_for(lambda: f"resumed at step {end['steps']} " in log.read_text())  # noqa: B023


def test_a_killed_process_is_told_and_goes_on_from_its_checkpoint(serving, monkeypatch, capsys):
    job = submit(serving, **LONG)
    waited_for(lambda: serving.job(job).process and is_saved(serving, job))
    keeper = int(serving.job(job).process.partition(":")[0])
    for pid in session_processes(serving.job(job).process):
        if pid != keeper:
            os.kill(pid, signal.SIGKILL)
    waited_for(lambda: serving.job(job).attempt == 2)
    serving.cancel(job)
    assert ended(serving, job).status == "cancelled"
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run(["jobs", "show", job.id, "--folder", str(serving.folder)]) == 0
    told = capsys.readouterr().out
    assert "attempt 1  its process was ended by SIGKILL, which nobody asked for" in told
    assert "machine or process lost 1 ×" in told


def test_draining_saves_and_the_service_ends(service):
    service.__enter__()
    job = submit(service, **LONG)
    waited_for(lambda: is_saved(service, job))
    assert [found.id for found in service.drain()] == [job.id]
    service._thread.join(40.0)
    assert not service._thread.is_alive()
    found = service.job(job)
    assert (found.status, found.ended) == ("waiting", "preempted")
    assert found.steps > 0


def test_a_training_that_began_while_somebody_drained_saves_and_stops_too(service):
    """The service looked for requests before, and claims after: else it would wait for the end of the training."""
    job = submit(service)
    there = Resources(cores=1, memory=2**33)
    other = SimpleNamespace(
        machine="m|b|p", resources=lambda: there, prepare=lambda: None, start=lambda task: "", poll=lambda *about: True
    )
    asked: list[list[Job]] = []
    scheduler = Scheduler(service.queue, other, service.folder, beside=lambda: asked.append(service.drain()))
    scheduler.tick()
    assert asked == [[]]
    assert (service.job(job).status, service.job(job).wanted) == ("running", "")
    scheduler.tick()
    assert scheduler.draining
    assert service.job(job).wanted == "drain"


def test_a_training_that_cannot_fit_is_refused_at_once(service):
    with pytest.raises(JobError, match="can never begin: it needs 99 cores, and the budget has 3 cores"):
        submit(service, cores=99)
    assert service.list() == []


def test_a_service_with_a_smaller_budget_says_so_and_begins_the_others(service):
    large, small = submit(service, cores=2), submit(service)
    told: list[str] = []
    started: list[Task] = []
    there = Resources(cores=1, memory=2**33)
    other = SimpleNamespace(machine="m|b|p", resources=lambda: there, prepare=lambda: None, start=started.append)
    scheduler = Scheduler(service.queue, other, service.folder, tell=told.append)
    scheduler.tick()
    assert [task.job for task in started] == [small.id]
    assert f"job {large.id} (trading) cannot begin here: it needs 2 cores, and the budget has 1 core." in told[0]
    assert service.job(large).status == "waiting"


def test_a_service_takes_longer_turns_while_nothing_waits(service):
    there = Resources(cores=1, memory=2**33)
    other = SimpleNamespace(machine="m|b|p", resources=lambda: there, prepare=lambda: None, start=lambda task: None)
    studies: list[str] = []
    scheduler = Scheduler(service.queue, other, service.folder, beside=lambda: bool(studies))
    pauses: list[float] = []

    def turn() -> float:
        stop = SimpleNamespace(is_set=lambda: bool(pauses), wait=pauses.append)
        pauses.clear()
        scheduler.run(stop)
        return pauses.pop()

    assert turn() == CALM_SECONDS
    studies.append("a study that has more to begin")
    assert turn() == TICK_SECONDS
    studies.clear()
    submit(service, cores=2)  # does not fit, until another ends
    assert turn() == TICK_SECONDS


def test_a_number_of_a_process_that_is_another_s_by_now_is_left_alone():
    own = os.getpid()
    assert handle_of(own).startswith(f"{own}:")
    assert session_processes(f"{own}:1") == []
    assert kill_session(f"{own}:1")
    assert started_at(2**22 + 1) == ""


def test_gpus_are_those_that_may_be_seen_with_what_is_free_of_them(monkeypatch):
    sizes = {0: ("GPU-a", 80, 3), 1: ("GPU-b", 80, 70)}
    nvml = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda number: SimpleNamespace(total=sizes[number][1], free=sizes[number][2]),
        nvmlDeviceGetUUID=lambda number: sizes[number][0],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    both = (Gpu("GPU-a", 80, 3), Gpu("GPU-b", 80, 70))
    for visible, wanted in ((None, both), ("1", both[1:]), ("GPU-a", both[:1]), ("", ()), ("-1", ())):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert LocalExecutor().resources().gpus == wanted


def test_prices_of_a_program_are_kept_for_the_training(service):
    bars = vd.synthetic_bars("gbm", 300, seed=1)
    job = service.submit("smoke", bars=bars, evaluate=False)
    assert Path(job.config["market"]["source"]).is_relative_to(service.folder)


def test_code_that_nobody_here_trusts_is_not_imported(serving, broken, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))  # submitted by another user, or on another machine
    monkeypatch.setattr("velodrome.outside.code._now", set())
    found = ended(serving, serving.submit({}, evaluate=False, **broken("raise")))
    assert (found.status, found.ended) == ("failed", "error")
    assert "names code that was not used here before" in found.message


@pytest.mark.slow
def test_a_nursery_whose_service_stopped_while_it_warmed_up_ends_without_a_word():
    command = [sys.executable, "-m", "velodrome.service.worker.nursery"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes)
    for pipe in (process.stdin, process.stdout):
        pipe.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
