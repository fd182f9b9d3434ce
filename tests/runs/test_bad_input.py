"""What goes wrong before, in and after a training: each is told, and what was good stays."""

from __future__ import annotations

import errno
import os
import resource

import pytest
import torch

import velodrome as vd
from tests.runs.small_runs import assert_equal_runs, last_tensors, one_thread, rows, small_run  # noqa: F401
from velodrome.errors import BackendError, CheckpointError, ConfigError, LearningError, RunError, StoreError
from velodrome.runs import checkpoint, setup
from velodrome.runs.folder import RunFolder
from velodrome.runs.run import Run
from velodrome.runs.session import Session
from velodrome.runs.store.store import SqlStore


def at_iteration(monkeypatch, number, act) -> None:
    """Do something to the session before its n-th iteration, once the checkpoints so far are written."""
    iterate, done = Session._iterate, 0

    def counted(session, *arguments):
        nonlocal done
        done += 1
        if done == number:
            session._await_checkpoint()
            act(session)
        iterate(session, *arguments)

    monkeypatch.setattr(Session, "_iterate", counted)


# The configuration


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"stepps": 64}, "Did you mean 'steps'"),
        ({"ppo.learning_rat": 0.1}, r"ppo\.learning_rate"),
        ({"market.sorce": "ou"}, r"market\.source"),
        ({"params.feee": 0.1}, "fee"),
        ({"steps": 63}, r"steps = 63 is less than one rollout: num_envs × ppo\.rollout_length is 8 × 8 = 64"),
        ({"evaluation.final_split": "tset"}, "Did you mean 'test'"),
        ({"evaluation.split": "valid"}, r"evaluation\.split = 'valid'"),
        ({"market.splits": {"test": 0.5}}, "no 'train'"),
        ({"env": "CartPole-v2"}, "CartPole-v1"),
        ({"algorithm": "pop"}, "ppo"),
        ({"network.kind": "mpl"}, "Did you mean 'mlp'"),
        ({"algorithm": "dqn", "ppo.epochs": 2}, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_refused_before_there_is_a_folder(settings, told, tmp_path):
    if told is None:  # settings of the other algorithm that `tiny` would leave out
        with pytest.raises(ConfigError, match=r"ppo\.epochs is set and would have no effect: algorithm is dqn"):
            vd.train("smoke", mode="quiet", **settings, **{"logging.folder": tmp_path / "runs"})
    else:
        with pytest.raises(ConfigError, match=told):
            small_run(tmp_path / "runs", **settings)
    assert not (tmp_path / "runs").exists()


def test_a_typo_in_a_file_names_the_file_and_the_nearest_key(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("preset: smoke\nppo:\n  lerning_rate: 0.1\n")
    with pytest.raises(ConfigError, match=r"(?s)mine\.yaml.*lerning_rate.*learning_rate"):
        vd.train(path, **{"logging.folder": tmp_path / "runs"})


def test_a_gpu_that_is_not_there_is_told_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("velodrome.vector.cuda.unavailable_reason", lambda *device: "no GPU was found")
    with pytest.raises(BackendError, match="device = 'cuda' cannot be used: no GPU was found"):
        small_run(tmp_path / "runs", device="cuda")
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_learnt_together_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm = 'dqn' takes Discrete actions and .* or algorithm = 'ppo'"):
        small_run(tmp_path / "runs", **{"algorithm": "dqn", "dqn.buffer_size": 512, "params.action": "continuous"})
    with pytest.raises(ConfigError, match=r"algorithm = 'dqn' takes Discrete actions and the action space is Box"):
        vd.train("cartpole", algorithm="dqn", env="Pendulum-v1", mode="quiet", **{"logging.folder": tmp_path / "runs"})
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"the run's folder could not be made: .* Name a folder that can be written"):
        small_run(tmp_path / "file" / "runs")


# Numbers


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_policy_that_became_nan_stops_the_run_and_keeps_the_last_good_checkpoint(engine, tmp_path, monkeypatch):
    def poison(session):
        next(session.learner.policy.parameters()).data.view(-1)[0] = float("nan")

    at_iteration(monkeypatch, 4, poison)
    with pytest.raises(LearningError) as caught:
        small_run(tmp_path, **{"ppo.engine": engine})
    run = Run.open("latest", tmp_path)
    last = checkpoint.latest_checkpoint(run.path)
    told = str(caught.value)
    assert "Learning broke at step 256: loss/policy = nan" in told
    assert f"The last good checkpoint is kept ({last})" in told
    assert "try a smaller ppo.learning_rate" in told
    assert last.name == f"{192:012d}"
    assert all(tensor.isfinite().all() for tensor in last_tensors(run).values() if tensor.is_floating_point())
    assert run.status == "failed"
    assert max(step for step, _, _ in rows(run)) == 192
    assert told in run.folder.log_path.read_text()
    assert run.load_policy("latest") is not None


def test_a_policy_that_the_last_gradient_step_broke_is_not_kept(tmp_path, monkeypatch):
    def break_after_learning(session):
        iterate = session.learner.iterate

        def broken():
            metrics = iterate()
            next(session.learner.policy.parameters()).data.view(-1)[0] = float("inf")
            return metrics

        session.learner.iterate = broken

    at_iteration(monkeypatch, 4, break_after_learning)
    with pytest.raises(LearningError, match=r"Learning broke at step 256: .*weight of the network is not finite"):
        small_run(tmp_path, **{"evaluation.every_steps": None})
    run = Run.open("latest", tmp_path)
    assert checkpoint.latest_checkpoint(run.path).name == f"{128:012d}"
    assert run.status == "failed"


def test_a_loss_that_overflows_stops_the_run(tmp_path):
    with pytest.raises(LearningError, match=r"Learning broke at step 64: .*optimiser/gradient_norm = (inf|nan)"):
        small_run(tmp_path, **{"ppo.value_weight": 1e38, "ppo.engine": "autograd", "ppo.learning_rate": 1.0})
    run = Run.open("latest", tmp_path)
    assert checkpoint.latest_checkpoint(run.path).name == f"{0:012d}"


def test_a_run_that_broke_can_be_resumed_from_what_is_kept(tmp_path, monkeypatch):
    reference = small_run(tmp_path / "reference")

    def poison(session):
        next(session.learner.policy.parameters()).data.view(-1)[0] = float("nan")

    with monkeypatch.context() as patched:
        at_iteration(patched, 4, poison)
        with pytest.raises(LearningError):
            small_run(tmp_path / "runs")
    run = vd.resume("latest", root=tmp_path / "runs", mode="quiet", evaluate=False)
    assert_equal_runs(run, reference)


# The disk


def test_a_disk_that_is_really_full_ends_the_run_and_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    wide = {"network.hidden": (256, 256), "steps": 384}  # checkpoints far larger than all else that is written
    reference = small_run(tmp_path / "reference", **wide)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(session):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))

    with monkeypatch.context() as patched:
        at_iteration(patched, 4, fill)
        try:
            with pytest.raises(CheckpointError) as caught:
                small_run(tmp_path / "runs", **wide)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = str(caught.value)
    assert f"{256:012d}: could not be written" in told
    assert "The older ones are as they were (the last is of step 192)" in told
    assert "make room, or keep fewer checkpoints" in told
    run = Run.open("latest", tmp_path / "runs")
    assert run.status == "failed"
    assert not list(checkpoint.checkpoint_home(run.path).glob(".*"))
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"
    assert_equal_runs(run, reference)


def test_a_disk_that_is_full_for_the_store_too_does_not_hide_what_happened(tmp_path, monkeypatch):
    reference = small_run(tmp_path / "reference")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(session):
        def refuse(*arguments, **named):
            raise full

        def refuse_row(*arguments, **named):
            raise StoreError("database or disk is full")

        patched.setattr(checkpoint, "_write_tensors", refuse)
        patched.setattr(RunFolder, "note_state", lambda *arguments: refuse())
        patched.setattr(SqlStore, "put_run", refuse_row)

    with monkeypatch.context() as patched:
        at_iteration(patched, 4, fill)
        with pytest.raises(CheckpointError, match="No space left on device"):
            small_run(tmp_path / "runs")
    run = Run.open("latest", tmp_path / "runs")
    told = run.folder.log_path.read_text()
    assert "the folder does not say that the run failed: " in told
    assert "database or disk is full" in told
    assert run.status == "killed"
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"
    assert_equal_runs(run, reference)


# Checkpoints by hand


def test_a_checkpoint_of_more_environments_is_refused(tmp_path):
    run = small_run(tmp_path, steps=128)
    last = checkpoint.load_checkpoint(checkpoint.latest_checkpoint(run.path))
    with setup.learning_worlds(run.config, run.market, "cpu") as worlds:
        learner = setup.make_learner(run.config, worlds)
        blocks = torch.cat([last.tensors["worlds.blocks"]] * 2)
        with pytest.raises(ConfigError, match="another environment, other parameters or another num_envs"):
            learner.load_state({**last.tensors, "worlds.blocks": blocks}, last.plain["learner"])
