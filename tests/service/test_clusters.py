"""Executors on clusters: a real Ray cluster of local nodes, Slurm through submitit's executors on this machine."""

from __future__ import annotations

import builtins
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.executor import ExecutorContract, waited_for
from tests.ray_cluster import add_node, ray_cluster
from tests.service.conftest import settings
from velodrome import cli
from velodrome.errors import ConfigError, JobError, MissingDependencyError
from velodrome.outside.extras import install
from velodrome.runs.store.store import open_store
from velodrome.service.executors.named import executor_named
from velodrome.service.executors.ray import RayExecutor
from velodrome.service.executors.slurm import SlurmExecutor
from velodrome.service.executors.there import Attempt
from velodrome.service.job import Job
from velodrome.service.queue import Queue
from velodrome.service.service import AgentTrainingService
from velodrome.service.tuning import tune
from velodrome.service.worker.task import Task
from velodrome.tune.study import Studies


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def on_ray(cluster):
    made = RayExecutor(cluster.address)
    yield made
    made.close()


@pytest.mark.slow
class TestRay(ExecutorContract):
    @pytest.fixture
    def executor(self, on_ray):
        return on_ray


@pytest.mark.slow
class TestSlurmsLocalJobs(ExecutorContract):
    @pytest.fixture
    def executor(self, tmp_path):
        made = SlurmExecutor(tmp_path, 2, "local")
        yield made
        made.close()


@pytest.mark.slow
def test_slurms_signal_saves_and_the_training_goes_on_in_another_job(tmp_path):
    """submitit's own handler gets the signal that Slurm sends before it takes a machine away."""
    import psutil

    made = SlurmExecutor(tmp_path, 1, "local")
    service = AgentTrainingService(tmp_path, executor=made)
    told = settings(steps=640_000, **{"checkpoint.every_steps": 1_000_000})
    job = service.submit("smoke", evaluate=False, **told)
    serving = threading.Thread(target=service.run, daemon=True)
    serving.start()
    waited_for(lambda: service.job(job).steps >= 640)
    before = service.job(job)
    (task,) = psutil.Process(int(before.process.partition("/")[0])).children()
    task.send_signal(signal.SIGUSR2)
    waited_for(lambda: service.job(job).attempt > 1)
    waited_for(lambda: service.job(job).is_over)
    after, log = service.job(job), service.run_of(job).folder.log_path.read_text()
    service.ask_to_stop()
    serving.join()
    service.close()
    assert after.status == "finished", after.message
    assert after.process.partition("/")[0] != before.process.partition("/")[0]  # another of Slurm's jobs
    assert "preempted" in [event.data.get("end") for event in _events(tmp_path, job.id)]
    resumed = [int(line.split("resumed at step ")[1].split()[0]) for line in log.splitlines() if "resumed at" in line]
    assert len(resumed) == 1
    assert resumed[0] >= 640  # no checkpoint was due: the signal made it


def _events(folder: Path, job: str) -> list[Any]:
    with open_store(folder) as store:
        return list(Queue(store).events(job))


@pytest.mark.slow
def test_slurms_debug_executor_carries_out_one_training_after_the_other(tmp_path):
    service = AgentTrainingService(tmp_path, executor=SlurmExecutor(tmp_path, 1, "debug"))
    jobs = [service.submit("smoke", evaluate=False, **settings(seed=seed)) for seed in range(2)]
    service.run(until_empty=True)
    assert [(job.status, job.attempt) for job in service.queue.refreshed(jobs)] == [("finished", 1)] * 2
    service.close()


def test_what_a_cluster_has_is_what_its_nodes_have(on_ray):
    there = on_ray.resources()
    assert there.cores == 2
    assert there.memory == 4 << 30


def test_another_version_on_a_node_is_told_in_a_sentence(on_ray, monkeypatch, tmp_path):
    monkeypatch.setattr(Attempt.__init__, "__defaults__", ("0.0.1",))
    on_ray.start(Task("ab12cd34", 1, str(tmp_path), None, on_ray.machine))
    told = []

    def refused() -> bool:
        try:
            on_ray.prepare()
        except JobError as error:
            told.append(str(error))
        return bool(told)

    waited_for(refused)
    assert told[0].startswith("Velodrome 0.0.1 sent a task to")
    assert "Install the same version" in told[0]
    on_ray.prepare()  # once


def test_without_ray_or_submitit_it_is_said_what_to_install(monkeypatch, tmp_path, capsys):
    importing = builtins.__import__

    def missing(name, *arguments, **options):
        if name.partition(".")[0] in ("ray", "submitit"):
            raise ImportError(f"No module named {name!r}")
        return importing(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependencyError, match=re.escape(install("ray"))):
        executor_named("ray", tmp_path)
    with pytest.raises(MissingDependencyError, match=re.escape(install("slurm"))):
        executor_named("slurm", tmp_path, cores=1)
    assert cli.run(["serve", "--no-dashboard", "--executor", "ray", "--folder", str(tmp_path)]) == cli.REFUSED
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(MissingDependencyError):
        tune("demo", 4, folder=tmp_path, executor="ray")


@pytest.mark.parametrize(
    ("name", "address", "told"),
    [
        ("rai", None, "there are local, ray, slurm. Did you mean 'ray'"),
        ("local", "1.2.3.4:5", "is of a cluster"),
        ("ray", "ray://head:10001", "ray job submit"),
        ("slurm", "slrm", "slurm, local, debug"),
    ],
)
def test_what_cannot_be_meant_is_refused(name, address, told, tmp_path):
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        executor_named(name, tmp_path, address=address, cores=1)


def command_of(folder: Path, trials: int) -> list[str]:
    """The command of a study of one field, each of whose trials is one tiny training."""
    words = [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in settings().items()]
    command = [sys.executable, "-m", "velodrome", "tune", "smoke", *words, "--trials", str(trials), "--study", "s"]
    command += ["--search", "ppo.learning_rate=1e-4:1e-2:log", "--search-only", "--no-pruning", "--no-test"]
    command += ["--seeds", "1", "--confirm", "2", "--confirm-seeds", "1", "--folder", str(folder), "--quiet"]
    return command


def trials_in(folder: Path) -> tuple[list[Any], list[Job]]:
    """The trials of the study in a folder, with their settings and scores, and all its jobs."""
    with open_store(folder) as store:
        (study,) = Studies(store).all()
        assert study.status == "finished"
        trials = [
            (trial.number, trial.status, trial.params, {step: end.value for step, end in trial.outcomes.items()})
            for trial in Studies(store).trials(study)
        ]
        return trials, list(Queue(store).of_study(study.id).values())


@pytest.mark.slow
def test_a_study_loses_no_trial_when_nodes_are_killed_and_added(tmp_path):
    """60 trials on three nodes of one core, two of which are killed while they train, and another is added."""
    on_ray, on_this = tmp_path / "ray", tmp_path / "local"
    with ray_cluster(cores=0, nodes=3) as cluster:
        there = ["--executor", "ray", "--address", cluster.address]
        process = subprocess.Popen([*command_of(on_ray, 60), *there], stderr=subprocess.PIPE, text=True)
        for node, begun in zip(list(cluster.worker_nodes), (6, 14), strict=False):
            waited_for(lambda begun=begun: len(list(on_ray.glob("*/checkpoints"))) > begun, 400.0)
            cluster.remove_node(node, allow_graceful=False)
        add_node(cluster)
        _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said
    trials, jobs = trials_in(on_ray)
    assert [trial[0] for trial in trials] == list(range(60))
    assert {trial[1] for trial in trials} == {"complete"}
    assert {job.trial for job in jobs} == set(range(60))
    assert {job.status for job in jobs} == {"finished"}
    assert len(list(on_ray.glob("*/run.json"))) == len(jobs)  # none twice
    assert any(job.attempt > 1 for job in jobs)  # somebody was lost, and placed elsewhere
    subprocess.run([*command_of(on_this, 60), "--workers", "2"], check=True, timeout=900)
    assert trials == trials_in(on_this)[0]


@pytest.mark.slow
def test_without_its_head_a_study_stops_with_a_sentence_and_ends_from_the_store(tmp_path):
    command = command_of(tmp_path, 8)
    with ray_cluster(cores=0, nodes=2) as cluster:
        there = ["--executor", "ray", "--address", cluster.address]
        process = subprocess.Popen([*command, *there], stderr=subprocess.PIPE, text=True)
        waited_for(lambda: len(list(tmp_path.glob("*/checkpoints"))) > 2 or process.poll() is not None)
        cluster.head_node.kill_gcs_server(check_alive=False)
        _, told = process.communicate(timeout=240)
    assert process.returncode == cli.REFUSED, told
    assert "The head of the Ray cluster at" in told
    assert "the same command goes on" in told
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert len(trials_in(tmp_path)[0]) == 8
