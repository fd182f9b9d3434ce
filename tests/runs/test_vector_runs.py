"""Runs on environments of other libraries, under a budget, and with a number of environments that changes."""

from __future__ import annotations

import threading
import time

import gymnasium
import pytest

import velodrome as vd
from tests.runs.small_runs import small_run
from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.run_config import RunConfig
from velodrome.vector.fleet.pool import shared_pool

FOREIGN = {"env.id": "CartPole-v1", "steps": 512, "num_envs": 4, "device": "cpu", "ppo.rollout_length": 16,
           "network.hidden": [8], "evaluation.every_steps": None}  # fmt: skip


def foreign_run(folder, **changes):
    settings = {**FOREIGN, "logging.folder": str(folder), **changes}
    return vd.train(settings, mode="quiet", evaluate=False)


def weights(run):
    return {name: tensor.clone() for name, tensor in run.load_policy("latest").network.state_dict().items()}


def test_the_backend_changes_no_result(tmp_path):
    first = None
    for backend in ("DummyVecEnv", "process", "async"):
        options = {} if backend == "DummyVecEnv" else {"vector.workers": 2}
        run = foreign_run(tmp_path, **{"vector.env_type": backend, **options})
        found = weights(run)
        first = first or found
        assert all(bool((found[name] == first[name]).all()) for name in first)
    monitor = (run.path / "monitor.csv").read_text().splitlines()
    assert monitor[1] == "r,l,t"
    assert len(monitor) > 4
    assert {"monitor/steps_per_second", "monitor/restarts"} <= set(run.metrics["name"].to_list())


def test_monitoring_can_be_left_out(tmp_path):
    run = foreign_run(tmp_path, **{"vector.env_type": "serial", "vector.enable_monitoring": False})
    assert not (run.path / "monitor.csv").exists()


def test_a_run_under_a_budget_gives_back_what_it_used(tmp_path):
    foreign_run(tmp_path, **{"vector.env_type": "serial", "vector.max_concurrent_envs": 8})
    assert shared_pool().status().leased == 0


def test_three_trainings_share_one_budget(tmp_path):
    """Each wants 4 of 8 environments: no more than two run at once, and all finish."""
    seen, failures = [], []

    def go(seed: int) -> None:
        try:
            run = foreign_run(
                tmp_path, seed=seed, **{"vector.env_type": "serial", "vector.max_concurrent_envs": 8, "steps": 2048}
            )
            seen.append(run.status)
        except BaseException as error:
            failures.append(error)

    shared_pool(8)
    trainings = [threading.Thread(target=go, args=(seed,)) for seed in range(3)]
    for training in trainings:
        training.start()
    most = 0
    while any(training.is_alive() for training in trainings):
        most = max(most, shared_pool().status().leased)
        time.sleep(0.002)
    assert failures == []
    assert seen == ["finished"] * 3
    assert 4 <= most <= 8


def test_environments_grow_while_a_run_goes_on(tmp_path):
    settings = {"vector.autoscale": True, "vector.min_envs": 2, "vector.max_envs": 64, "steps": 6_000,
                "checkpoint.every_steps": 2_000}  # fmt: skip
    run = small_run(tmp_path, **settings)
    assert run.status == "finished"
    log = (run.path / "log.txt").read_text()
    assert "resized from 8 to 16 environments" in log


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"vector.env_type": "native"}, "env_type = 'native': CartPole-v1 is no rule of Velodrome, which runs on"),
        ({"vector.on_fault": "drop"}, "a learner has a row for every environment"),
        ({"vector.max_concurrent_envs": 2}, "num_envs = 4 is more than max_concurrent_envs = 2"),
        ({"vector.autoscale": True, "vector.min_envs": 8}, "lies outside min_envs = 8"),
        ({"vector.env_typ": "serial"}, "Did you mean 'vector.env_type'"),
        ({"vector.env_type": "serial", "vector.workers": 2}, "vector.workers is set and would have no effect"),
        ({"vector.max_envs": 9}, "vector.max_envs is set and would have no effect: vector.autoscale is off"),
        ({"vector.num_envs": 4}, "num_envs and vector.num_envs are one setting"),
    ],
)  # fmt: skip
def test_settings_that_contradict_are_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        load_run_config({**FOREIGN, **settings})


def test_rules_have_no_workers():
    with pytest.raises(ConfigError, match=r"vector.workers is set and would have no effect: env is trading, a rule"):
        load_run_config({"vector.workers": 2})
    with pytest.raises(ConfigError, match="contradict each other"):
        load_run_config({"vector.env_type": "native", "device": "cuda"})


def test_other_spellings_are_understood():
    assert load_run_config({"env": {"id": "CartPole-v1"}}).env == "CartPole-v1"
    assert load_run_config(None, ["env.id=CartPole-v1", "num_envs=8"]).num_envs == 8
    for spelling, name in (("DummyVecEnv", "serial"), ("SubprocVecEnv", "process"), ("ShmemVecEnv", "process")):
        assert vd.VectorizedEnvConfig(env_type=spelling).env_type == name
    assert RunConfig(num_envs=8) == RunConfig(vector={"num_envs": 8})


def test_a_configuration_makes_environments():
    config = vd.VectorizedEnvConfig(env_type="DummyVecEnv", num_envs=3)
    envs = config.make("CartPole-v1", seed=1)
    assert isinstance(envs, vd.VecMonitor)
    assert (envs.num_envs, envs.backend) == (3, "serial")
    envs.close()
    envs = vd.VectorizedEnvConfig(env_type="serial", num_envs=2, enable_monitoring=False).make(
        lambda: gymnasium.make("CartPole-v1")
    )
    assert envs.num_envs == 2
    envs.close()
    rule = vd.VectorizedEnvConfig(num_envs=5).make("template", seed=0)
    assert rule.backend == "native"


class Flaky(gymnasium.wrappers.TimeLimit):
    """CartPole that raises now and then."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1").unwrapped, 100)

    def step(self, action):
        if self.np_random.random() < 0.01:
            raise RuntimeError("no answer from the cart")
        return super().step(action)


def test_faults_are_seen_to_in_training_and_in_evaluation(tmp_path):
    gymnasium.register("Flaky-v0", entry_point=Flaky)
    try:
        run = foreign_run(
            tmp_path, **{"env.id": "Flaky-v0", "vector.env_type": "serial", "vector.on_fault": "restart",
                         "vector.max_restarts": 1000, "evaluation.every_steps": 256}
        )  # fmt: skip
        assert run.status == "finished"
        assert "evaluation/episodes/return" in run.metrics["name"].to_list()
    finally:
        gymnasium.registry.pop("Flaky-v0")


def test_a_rule_without_a_market_is_trained_and_evaluated(tmp_path):
    settings = {**FOREIGN, "env.id": "template", "evaluation.every_steps": 256, "logging.folder": str(tmp_path)}
    run = vd.train(settings, mode="quiet", evaluate=True)
    assert run.status == "finished"
    assert run.folder.report_path.exists()
