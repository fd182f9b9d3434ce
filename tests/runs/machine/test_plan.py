"""Memory that is planned: what a training needs is known before it starts, and num_envs=auto chooses what fits."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs.small_runs import last_tensors, one_thread, small_run, tiny  # noqa: F401
from velodrome.errors import ConfigError
from velodrome.learn.dqn import DQN
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.machine import plan
from velodrome.runs.run import Run, resume
from velodrome.vector import cores
from velodrome.vector.fleet.autoscale import Autoscaler

GIB = 1 << 30


def settings(folder: Path, **changed: Any) -> Any:
    return load_run_config("smoke", tiny(folder, **changed))


# What is needed


@pytest.mark.parametrize("changed", [{}, {"ppo.engine": "autograd"}], ids=["fused", "autograd"])
def test_two_small_trials_say_what_a_larger_one_needs(changed, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "TRIAL", 256)
    config = settings(tmp_path, **{"num_envs": 1024, "steps": 100_000, **changed})
    market = setup.build_market(config)
    line = plan.measured_needs(config, market, "cpu")[plan.HOST]
    found = plan._trial_bytes(config, market, "cpu", 1024)[plan.HOST]
    assert line.bytes(1024) == pytest.approx(found, rel=0.05)
    # No less than what the learner is known to keep: eight numbers of each sample at least.
    assert line.each > 8 * 8 * 4


@pytest.mark.parametrize("filled", [0, 500, 1_000], ids=["empty", "half", "full"])
def test_what_a_replay_buffer_will_hold_is_foreseen(filled, tmp_path):
    """A checkpoint copies all of it, and trials end long before it is full."""
    config = settings(tmp_path, **{"algorithm": "dqn", "num_envs": 8, "dqn.buffer_size": 8_000, "dqn.rounds": 1})
    with setup.learning_worlds(config, setup.build_market(config), "cpu", None, 8) as worlds:
        learner = setup.make_learner(config, worlds)
        learner.replay.filled.fill_(1_000)
        full = sum(tensor.nbytes for tensor in learner.state()[0].values())
        learner.replay.filled.fill_(filled)
        own = sum(tensor.nbytes for tensor in learner.state()[0].values())
        assert own + learner.bytes_to_come() == full


def test_trials_grow_until_environments_outweigh_what_is_needed_once(tmp_path, monkeypatch):
    """To save a large network takes so much that what 512 environments need is not seen."""
    tried = []

    def trial(config: Any, market: Any, device: str, num_envs: int) -> dict[str, float]:
        tried.append(num_envs)
        return {plan.HOST: max(5_000_000.0, 1_000_000.0 + 1_000.0 * num_envs)}

    monkeypatch.setattr(plan, "_trial_bytes", trial)
    config = settings(tmp_path, num_envs=1_000_000, steps=10**9)
    line = plan.measured_needs(config, None, "cpu")[plan.HOST]
    assert line.bytes(1_000_000) == pytest.approx(1_001_000_000.0, rel=0.01)
    assert tried == [256, 512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize("room", [10**9, 20_000])
def test_a_gpus_line_is_believed_once_it_foresaw_a_larger_trial(room, tmp_path, monkeypatch):
    """Tensors of some sizes take blocks of 20 MB on a GPU: between two small trials that looks like a steep line."""
    tried = []

    def trial(config: Any, market: Any, device: str, num_envs: int) -> dict[str, float]:
        tried.append(num_envs)
        if num_envs > room:
            raise ConfigError("The training does not fit")
        blocks = 0.0 if num_envs < 8192 else 100e6
        return {plan.HOST: 100.0 * num_envs, plan.GPU: 20e6 + blocks + 10_000.0 * num_envs}

    monkeypatch.setattr(plan, "_trial_bytes", trial)
    monkeypatch.setattr(plan, "_on_gpu", lambda device: True)
    config = settings(tmp_path, num_envs=1_000_000, steps=10**9)
    line = plan.measured_needs(config, None, "cuda")[plan.GPU]
    assert line.bytes(1_000_000) == pytest.approx(10.12e9, rel=0.1)
    assert tried == [4096, 8192, 16_384, 32_768]


def test_the_replay_buffer_counts(tmp_path):
    sizes = []
    for size in (2_000, 200_000):
        fast = {"dqn.learning_starts": 64, "dqn.updates": 1, "dqn.batch_size": 32}
        config = settings(tmp_path, algorithm="dqn", **{"dqn.buffer_size": size, **fast})
        market = setup.build_market(config)
        sizes.append(plan.measured_needs(config, market, "cpu")[plan.HOST].bytes(8))
    assert sizes[1] - sizes[0] > 198_000 * 4 * 4


def test_a_run_that_does_not_fit_says_what_it_needs_and_what_would_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "free_memory", lambda: 2 * GIB)
    monkeypatch.setattr(plan, "TRIAL", 64)
    with pytest.raises(ConfigError) as error:
        small_run(tmp_path, num_envs=5_000_000, steps=50_000_000)
    told = str(error.value)
    assert told.startswith("num_envs = 5,000,000: the training needs about ")
    assert "GiB of memory (environments, rollouts, minibatches, network and optimiser), and 2.0 GiB are free." in told
    assert "What takes less: shorter rollouts (ppo.rollout_length)" in told
    most = int(told.split("At most about ")[1].split(" fit")[0].replace(",", ""))
    config = settings(tmp_path, num_envs=most, steps=50_000_000)
    plan.check_that_it_fits(config, setup.build_market(config))  # what is named does fit
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_ones_own_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "TRIAL", 64)
    with pytest.raises(ConfigError, match=r"and 1 MiB may be taken \(vector.max_memory\)"):
        small_run(tmp_path, num_envs=4096, steps=40_000_000, **{"vector.max_memory": 1})


def test_what_no_number_of_environments_makes_fit_is_refused_without_being_killed(tmp_path, monkeypatch):
    """The trial itself is refused memory, where the system would end the process."""
    monkeypatch.setattr(plan, "free_memory", lambda: GIB // 2)
    with pytest.raises(
        ConfigError, match=r"does not fit: 512 MiB of memory are free, which is too little even for 4 en"
    ):
        small_run(tmp_path, algorithm="dqn", **{"dqn.buffer_size": 400_000_000})
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_a_small_run_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "measured_needs", lambda *arguments: pytest.fail("a start should take no time"))
    config = settings(tmp_path)
    assert plan.with_num_envs(config, setup.build_market(config)) == (config, "")


# Control groups


def test_limits_of_control_groups_count(tmp_path, monkeypatch):
    """Of a container, a service or a job, by either version, of any group above; cached files do not."""
    own = tmp_path / "own"
    own.write_text("4:cpu:/x\n3:memory:/job/step\n0::/slice/service\n")
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    monkeypatch.setattr(cores, "OWN_GROUPS", own)

    def group(path: str, files: tuple[str, str, str], limit: object, used: int, cached: int) -> None:
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / files[0]).write_text(f"{limit}\n")
        (folder / files[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{files[2]} {cached}\n")

    group("memory/job/step", cores.OLD, 9223372036854771712, 5, 0)
    assert cores.free_memory() > GIB // 8
    group("memory/job", cores.OLD, 1_000_000, 700_000, 200_000)
    assert cores.free_memory() == 500_000
    group("slice", cores.NEW, 2_000, 1_500, 100)
    group("slice/service", cores.NEW, "max", 1_500, 100)
    assert cores.free_memory() == 600
    group("slice", cores.NEW, 2_000, 3_000, 0)
    assert cores.free_memory() == 0


# The choice


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> tuple[Run, str]:
    """A run that chose its environments, and what its log says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FEWEST_UPDATES", 10)
        run = small_run(tmp_path_factory.mktemp("auto"), num_envs="auto")
    return run, run.folder.log_path.read_text()


def test_auto_chooses_a_number_and_says_why(chosen):
    run, told = chosen
    number = run.config.num_envs
    assert f"num_envs = {number:,} (auto), which needs " in told
    assert "Steps per second by number: " in told
    assert "at most 8 leave 10 updates in 640 steps." in told
    assert 1 <= number <= 8


def test_the_choice_is_kept_so_that_a_resume_is_exact(chosen, tmp_path):
    run, _ = chosen
    plain = small_run(tmp_path, num_envs=run.config.num_envs)
    assert plain.config.hash == run.config.hash
    tensors, wanted = last_tensors(plain), last_tensors(run)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
    with pytest.raises(ConfigError, match=r"auto is measured when a training begins, and .* goes on with what it has"):
        resume(run.path, num_envs="auto", mode="quiet")


def test_memory_bounds_the_choice(tmp_path, monkeypatch):
    config = settings(tmp_path, num_envs="auto", steps=10_000_000)
    market = setup.build_market(config)
    monkeypatch.setattr(plan, "measured_needs", lambda *arguments: {plan.HOST: plan.Line(2 * GIB, GIB / 20)})
    monkeypatch.setattr(plan, "free_memory", lambda: 10 * GIB)
    found, told = plan.with_num_envs(config, market)
    assert found.num_envs <= 128  # 140 fit
    assert "at most 140 fit into 10.0 GiB of free memory." in told
    monkeypatch.setattr(plan, "free_memory", lambda: 2 * GIB)
    with pytest.raises(ConfigError, match=r"num_envs = 1: the training needs about 2\.0 GiB.*needed with any number"):
        plan.with_num_envs(config, market)


@pytest.mark.parametrize(
    ("changed", "number", "said"),
    [
        ({}, 1, "at least 1 is needed, which leaves fewer than 200 updates in 640 steps."),
        ({"vector.min_envs": 4}, 4, "at least 4 are wanted (vector.min_envs), which leaves fewer than 200 updates in"),
        ({"steps": 64_000, "vector.max_envs": 2}, 2, "at most 2 are wanted (vector.max_envs)."),
    ],
    ids=str,
)
def test_only_bounds_that_were_obeyed_are_named(changed, number, said, tmp_path):
    config = settings(tmp_path, num_envs="auto", **changed)
    found, told = plan.with_num_envs(config, setup.build_market(config))
    assert said in told
    assert found.num_envs <= number
    assert told.count("at most") + told.count("at least") == 1


def test_bounds_that_contradict_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "measured_needs", lambda *arguments: {plan.HOST: plan.Line(0.0, 1.0)})
    changed = {"network.kind": "gru", "ppo.minibatches": 4, "vector.max_envs": 2, "steps": 64_000}
    config = settings(tmp_path, num_envs="auto", **changed)
    said = r"auto: at least 4 are needed, and at most 2 are wanted \(vector\.max_envs\)\. Change one"
    with pytest.raises(ConfigError, match=said):
        plan.with_num_envs(config, setup.build_market(config))


def test_a_learner_that_fills_its_buffer_first_is_measured_once_it_learns(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "FEWEST_UPDATES", 10)
    fast = {
        "dqn.learning_starts": 96,
        "dqn.updates": 2,
        "dqn.batch_size": 32,
        "dqn.buffer_size": 200,
    }  # of 200 environments
    config = settings(tmp_path, algorithm="dqn", num_envs="auto", **fast)
    happened: list[str] = []
    observe, iterate = Autoscaler.observe, DQN.iterate

    def noted(scaler: Autoscaler, *arguments: Any) -> int | None:
        happened.append("observed")
        return observe(scaler, *arguments)

    def watched(learner: DQN) -> dict[str, float]:
        metrics = iterate(learner)
        happened.append("learnt" if metrics["time/learning"] else "filled")
        return metrics

    monkeypatch.setattr(Autoscaler, "observe", noted)
    monkeypatch.setattr(DQN, "iterate", watched)
    _, told = plan.with_num_envs(config, setup.build_market(config))
    assert "at most 16 leave 10 updates in 640 steps." in told
    assert ("filled", "learnt") in pairwise(happened)
    assert ("learnt", "observed") in pairwise(happened)
    assert ("filled", "observed") not in pairwise(happened)


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"num_envs": "many"}, "whole number 1 … 10,000,000, or auto"), ({"num_envs": 0}, "or auto"),
     ({"vector.max_envs": 64}, "vector.autoscale is off and vector.num_envs is a number"),
     ({"num_envs": "auto", "vector.min_envs": 9, "vector.max_envs": 8}, "min_envs = 9"),
     ({"num_envs": "auto", "vector.min_envs": 9, "vector.max_concurrent_envs": 8}, "could never begin")],
    ids=repr,
)  # fmt: skip
def test_what_is_not_legal_is_said(changed, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        settings(tmp_path, **changed)


def test_no_trial_has_more_environments_than_are_allowed_at_once(tmp_path):
    config = settings(tmp_path, **{"num_envs": "auto", "steps": 100_000, "vector.max_concurrent_envs": 4})
    chosen, told = plan.with_num_envs(config, setup.build_market(config))
    assert chosen.num_envs <= 4
    assert "at most 4 are allowed at once (vector.max_concurrent_envs)" in told


@pytest.mark.slow
@pytest.mark.parametrize(("mebibytes", "pairs"), [(200, 1), (110, 2)])
def test_a_run_under_a_limit_of_the_system_ends_with_all_its_steps(mebibytes, pairs, tmp_path):
    """What is not foreseen: the process may have so much more than it has when learning begins."""
    code = """
import resource, sys
import psutil, torch
import velodrome as vd
from velodrome.learn.ppo import PPO
from velodrome.runs.machine import plan
plan.check_that_it_fits = lambda *arguments: None
torch.set_num_threads(1)
make = PPO.__init__
def limited(self, *arguments, **options):
    make(self, *arguments, **options)
    limit = psutil.Process().memory_info().data + int(sys.argv[2]) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    PPO.__init__ = make
PPO.__init__ = limited
run = vd.train("smoke", mode="plain", evaluate=False, steps=1_100_000, num_envs=32768, engine="autograd",
               **{"ppo.rollout_length": 32, "logging.folder": sys.argv[1], "network.kind": "mlp_batch_norm",
                  "evaluation.every_steps": None})
print(run.status, run.config.num_envs)
"""
    words = [sys.executable, "-c", code, str(tmp_path), str(mebibytes)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    for fewer, more in [(16_384, 32_768), (8_192, 16_384)][:pairs]:
        assert f"memory ran out with {more:,} environments (" in printed
        assert f"with {fewer:,}." in printed
    done_steps = re.search(r"done: ([\d,]+) of 1,100,000 steps", printed)
    assert done_steps is not None
    assert int(done_steps[1].replace(",", "")) >= 1_100_000
    assert printed.endswith("finished 32768")
