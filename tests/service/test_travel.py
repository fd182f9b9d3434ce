"""Nodes that share no folder with the service: files reach them through Ray, runs go to a bucket and come back."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.contracts.executor import waited_for
from tests.ray_cluster import SIZE, ray_cluster
from tests.runs.bucket.s3_server import s3  # noqa: F401
from tests.service.conftest import settings
from velodrome.bars.files import write_bars
from velodrome.bars.synthetic import synthetic_bars
from velodrome.runs.bucket.place import SCRATCH
from velodrome.runs.folder import run_folders
from velodrome.runs.run import Run
from velodrome.service.executors.ray import RayExecutor
from velodrome.service.queue import Choice
from velodrome.service.scheduler import Patience, Scheduler
from velodrome.service.service import AgentTrainingService

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"),
]

NETWORK = """
import torch


class Net(torch.nn.Module):
    out_features = 8

    def __init__(self, windows, values):
        super().__init__()
        inputs = sum(rows * features for rows, features in windows) + values
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.Tanh())

    def forward(self, windows, values):
        return self.layers(torch.cat([*(window.flatten(1) for window in windows), values], 1))
"""


def add_machine(cluster, folder: Path):
    """Add a node whose processes have a folder of their own for what comes from elsewhere."""
    return cluster.add_node(num_cpus=1, env_vars={SCRATCH: str(folder / "buckets")}, **SIZE)


def test_data_and_code_of_the_service_alone_reach_each_node_once(tmp_path, monkeypatch):
    own = tmp_path / "only-here"
    own.mkdir()
    write_bars(synthetic_bars("ar1", 400, 0), own / "prices")
    (own / "own_net_of_a_test.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)  # where Ray's processes begin, too
    monkeypatch.syspath_prepend(str(own))
    told = settings(**{"market.source": "prices", "network.kind": "own_net_of_a_test:Net"})
    del told["market.length"], told["network.hidden"]
    with ray_cluster(cores=0) as cluster:
        machines = [tmp_path / "one", tmp_path / "two"]
        for machine in machines:
            add_machine(cluster, machine)
        executor = RayExecutor(cluster.address)
        service = AgentTrainingService(tmp_path / "runs", executor=executor)
        monkeypatch.chdir(own)
        jobs = [service.submit("smoke", evaluate=False, **told, seed=seed) for seed in range(4)]
        scheduler = Scheduler(service.queue, executor, service.place)
        begun = service.queue.claim(scheduler.id, executor.machine, lambda w: [Choice(each) for each in w.jobs])
        for job in begun:
            scheduler._start(job)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(own)  # whoever needs it now has it from the object store

        def all_over() -> bool:
            executor.prepare()
            return all(job.is_over for job in service.queue.refreshed(jobs))

        waited_for(all_over, 200.0)
        ended = service.queue.refreshed(jobs)
        executor.close()
        service.store.close()
    assert [(job.status, job.message) for job in ended] == [("finished", "")] * 4
    used = [machine for machine in machines if (machine / "parcels").is_dir()]
    assert len(used) == 2  # one core each, four trainings
    for machine in used:
        unpacked = [path for path in (machine / "parcels").iterdir() if path.is_dir()]
        assert len(unpacked) == 2  # prices and the module, whatever the number of trainings
        assert {path.name for home in unpacked for path in home.iterdir()} == {"prices", "own_net_of_a_test.py"}
    assert Run.of(run_folders(tmp_path / "runs")[0]).config.market.source == "prices"


def test_a_training_whose_node_dies_goes_on_from_the_bucket(s3, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(SCRATCH, str(tmp_path / "service"))
    with ray_cluster(cores=0) as cluster:
        first = add_machine(cluster, tmp_path / "one")
        executor = RayExecutor(cluster.address)
        store = f"sqlite:///{tmp_path / 'store.db'}"
        service = AgentTrainingService(s3, store, executor=executor, patience=Patience(lease=30.0))
        job = service.submit("smoke", evaluate=False, **settings(steps=64_000, **{"checkpoint.every_steps": 1280}))
        serving = threading.Thread(target=service.run, daemon=True)
        serving.start()
        there = tmp_path / "one" / "buckets"
        waited_for(lambda: len(list(there.rglob("checkpoints/0*"))) > 2 and list(there.rglob(".sent.json")), 200.0)
        add_machine(cluster, tmp_path / "two")
        cluster.remove_node(first, allow_graceful=False)
        waited_for(lambda: service.job(job).is_over, 300.0)
        ended = service.job(job)
        run = service.run_of(job)
        service.ask_to_stop()
        serving.join()
        executor.close()
        service.store.close()
    assert ended.status == "finished", ended.message
    assert ended.attempt == 2
    log = run.folder.log_path.read_text()
    assert "began at step 0" in log
    resumed = [int(line.split("resumed at step ")[1].split()[0]) for line in log.splitlines() if "resumed at" in line]
    assert len(resumed) == 1
    assert resumed[0] >= 1280
    assert run.path.is_relative_to(tmp_path / "service")
    assert sorted(run.metrics["step"].unique().to_list()) == list(range(64, 64_001, 64))
