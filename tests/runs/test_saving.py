"""Checkpoints are written beside learning: a slow disk holds nothing up, and nothing is lost by it."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import wait

import pytest

from tests.runs.small_runs import assert_equal_runs, one_thread, small_run  # noqa: F401
from velodrome.errors import CheckpointError, LearningError
from velodrome.learn.ppo import PPO
from velodrome.runs import checkpoint
from velodrome.runs import session as session_module
from velodrome.runs.run import Run
from velodrome.runs.session import Session

PATIENT = 60.0  # seconds; whoever waits longer waits for ever


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that is done with a checkpoint two iterations later, or when a later step waits for it."""
    write, iterate, finish = checkpoint.save_checkpoint, Session._iterate, Session._await_checkpoint
    moved, reached = threading.Condition(), {"iterated": 0, "waits": 0}  # steps

    def slow(folder, steps, *arguments, **named):
        def further():
            return reached["iterated"] >= steps + 128 or reached["waits"] > steps

        if steps in (256, 512):  # not the first and the last, for which a run waits
            with moved:
                assert moved.wait_for(further, PATIENT), "learning waits for the disk"
        return write(folder, steps, *arguments, **named)

    def iterating(session):
        iterate(session)
        with moved:
            reached["iterated"] = session.learner.steps
            moved.notify_all()

    def waiting(session):
        with moved:
            reached["waits"] = session.learner.steps
            moved.notify_all()
        finish(session)

    monkeypatch.setattr(checkpoint, "save_checkpoint", slow)
    monkeypatch.setattr(Session, "_iterate", iterating)
    monkeypatch.setattr(Session, "_await_checkpoint", waiting)


SPARSE = {"checkpoint.every_steps": 256, "evaluation.every_steps": None, "checkpoint.keep": 10}


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_learning_goes_on_while_a_checkpoint_is_written_and_changes_nothing_in_it(tmp_path, algorithm, request):
    how = {**SPARSE, "algorithm": algorithm}
    if algorithm == "dqn":
        how |= {"dqn.rollout_length": 8, "dqn.learning_starts": 64, "dqn.batch_size": 32, "dqn.rounds": 1}
    reference = small_run(tmp_path / "reference", **how)
    request.getfixturevalue("slow_disk")
    run = small_run(tmp_path / "slow", **how)
    assert_equal_runs(run, reference)
    names = [path.name for path in checkpoint.checkpoints(run.path)]
    assert len(names) > 3
    for name in names:
        found, wanted = (checkpoint.load_checkpoint(of.path / "checkpoints" / name) for of in (run, reference))
        assert found.plain["learner"] == wanted.plain["learner"]
        for part, tensor in found.tensors.items():
            assert tensor.numpy().tobytes() == wanted.tensors[part].numpy().tobytes(), (name, part)


def test_a_checkpoint_that_is_being_written_is_there_after_an_interruption(tmp_path, monkeypatch, slow_disk):
    iterate = Session._iterate

    def interrupted(session):
        iterate(session)
        if session.learner.steps == 320:
            assert session.saving is not None
            assert checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(session.run.path)) == 0
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Session, "_iterate", interrupted)
    run = small_run(tmp_path, **SPARSE)
    assert run.status == "interrupted"
    assert [checkpoint.checkpoint_steps(path) for path in checkpoint.checkpoints(run.path)] == [0, 256, 320]
    assert not list(checkpoint.checkpoint_home(run.path).glob(".*"))


def test_who_interrupts_the_waiting_does_not_leave_a_writer_behind(tmp_path, monkeypatch):
    """Once the folder is no longer locked, another process may go on with the run."""
    write, waited = checkpoint._write_tensors, []

    def slow(*arguments):
        time.sleep(0.1)
        write(*arguments)

    def impatient(futures):
        waited.append(futures)
        if len(waited) == 2:  # the first is for the checkpoint before the first iteration
            raise KeyboardInterrupt
        return wait(futures)

    monkeypatch.setattr(checkpoint, "_write_tensors", slow)
    monkeypatch.setattr(session_module, "wait", impatient)
    with pytest.raises(KeyboardInterrupt):
        small_run(tmp_path, **SPARSE)
    assert len(waited) == 3
    run = Run.open("latest", tmp_path)
    assert run.status == "interrupted"
    assert checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path)) == 256
    assert not list(checkpoint.checkpoint_home(run.path).glob(".*"))


@pytest.mark.parametrize("failing", [256, 640])
def test_a_checkpoint_that_cannot_be_written_ends_the_run_whenever_that_is_known(tmp_path, monkeypatch, failing):
    write = checkpoint.save_checkpoint

    def full(folder, steps, *arguments, **named):
        if steps == failing:
            raise CheckpointError(f"no room for {steps}")
        return write(folder, steps, *arguments, **named)

    monkeypatch.setattr(checkpoint, "save_checkpoint", full)
    with pytest.raises(CheckpointError, match=f"no room for {failing}"):
        small_run(tmp_path, **SPARSE)
    run = Run.open("latest", tmp_path)
    assert run.status == "failed"
    assert checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path)) < failing


@pytest.fixture
def waited_for(monkeypatch):
    """Whether learning stood still while a checkpoint was written, of each."""
    write, found = Session._write_checkpoint, []

    def watched(session, steps, *arguments):
        told = write(session, steps, *arguments)
        found.append(session.learner.steps == steps)
        return told

    monkeypatch.setattr(Session, "_write_checkpoint", watched)
    return found


def test_where_memory_is_short_each_checkpoint_is_waited_for(tmp_path, monkeypatch, waited_for):
    """Two copies of a replay buffer at once would be one too many."""
    init = Session.__init__

    def short(session, *arguments, **named):
        init(session, *arguments, **named)
        session.has_less = True

    monkeypatch.setattr(Session, "__init__", short)
    small_run(tmp_path, **SPARSE)
    assert waited_for == [True] * 4


def test_a_state_that_a_learner_of_somebody_elses_shares_with_it_is_written_first(tmp_path, monkeypatch, waited_for):
    state = PPO.state
    monkeypatch.setattr(PPO, "state", lambda learner: state(learner), raising=False)
    small_run(tmp_path, **SPARSE)
    assert waited_for == [True] * 4


def test_learning_that_broke_names_the_checkpoint_that_is_being_written(tmp_path, monkeypatch, slow_disk):
    iterate = PPO.iterate

    def broken(learner):
        found = iterate(learner)
        return {**found, "loss/value": float("nan")} if learner.steps == 320 else found

    monkeypatch.setattr(PPO, "iterate", broken)
    with pytest.raises(LearningError, match=r"at step 320: loss/value = nan.*is kept \(.*/000000000256\)"):
        small_run(tmp_path, **SPARSE)
