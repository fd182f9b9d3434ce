"""Going on: an interrupted run continues to the bits of one that was left alone, whatever learns in it."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import assert_equal_runs, checkpoint_names, one_thread, rows, signals_after, small_run  # noqa: F401
from velodrome.errors import CheckpointError, RunError
from velodrome.runs import checkpoint
from velodrome.runs.live.display import LiveView
from velodrome.runs.run import Run

LEARNERS = {
    "plain": {},
    "shared": {
        "network.shared": True, "ppo.entropy": 0.01, "ppo.value_clip": 0.2, "ppo.target_kl": 0.001,
        "ppo.weight_decay": 1.0, "ppo.kl_penalty": 0.1,
    },
    "batch norm": {"network.kind": "mlp_batch_norm"},
    "convolution": {"network.kind": "conv", "network.channels": [4], "network.kernel": 2},
    "memory": {"network.kind": "gru", "network.memory": 8, "network.dropout": 0.2, "ppo.normalise_observations": True},
    "continuous": {
        "params.action": "continuous", "ppo.normalise_rewards": True, "ppo.schedule": "cosine", "augment.noise": 0.2,
        "augment.mask_bars": 0.1, "augment.mask_features": 0.1, "augment.copies": 2, "augment.bootstrap_block": 8,
    },
    "drawn parameters": {"params.fee": [0.0, 0.001], "params.slippage": 0.001},
    "dqn": {
        "algorithm": "dqn", "dqn.rollout_length": 8, "dqn.updates": 2, "dqn.batch_size": 16, "dqn.buffer_size": 512,
        "dqn.learning_starts": 64, "dqn.normalise_observations": True, "augment.noise": 0.3,
    },
    "sac": {
        "algorithm": "sac", "params.action": "continuous", "sac.rollout_length": 8, "sac.updates": 2,
        "sac.batch_size": 16, "sac.buffer_size": 512, "sac.learning_starts": 64, "augment.noise": 0.3,
    },
    "sac, dropout": {
        "algorithm": "sac", "params.action": "continuous", "sac.learning_starts": 64, "sac.buffer_size": 512,
        "sac.rollout_length": 8, "sac.updates": 1, "sac.batch_size": 16,
        "network.kind": "tests.runs.small_runs:Dropping",
    },
    "dropout": {"network.kind": "tests.runs.small_runs:Dropping"},
}  # fmt: skip


def interrupted_run(folder, monkeypatch, iterations=4, **settings) -> Run:
    with monkeypatch.context() as patched:
        signals_after(patched, iterations)
        run = small_run(folder, **settings)
    assert run.status == "interrupted"
    return run


@pytest.mark.parametrize("learner", LEARNERS)
def test_an_interrupted_run_continues_to_the_same_bits(learner, tmp_path, monkeypatch):
    settings = {"steps": 448, **LEARNERS[learner]}
    reference = small_run(tmp_path, **settings)
    run = interrupted_run(tmp_path, monkeypatch, 3, **settings)
    assert checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path)) == 192
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"
    # The interruption left a checkpoint of its own, which may still be kept.
    assert checkpoint_names(run)[-1][0] == checkpoint_names(reference)[-1][0]
    for path in checkpoint.checkpoints(run.path):
        if path.name not in dict(checkpoint_names(reference)):
            shutil.rmtree(path)
    assert_equal_runs(run, reference)


def test_a_run_interrupted_twice_continues_by_its_id(tmp_path, monkeypatch):
    reference = small_run(tmp_path / "reference")
    run = interrupted_run(tmp_path / "runs", monkeypatch)
    with monkeypatch.context() as patched:
        signals_after(patched, 2)
        again = vd.resume(run.folder.id, root=tmp_path / "runs", mode="quiet", evaluate=False)
    assert again.status == "interrupted"
    vd.resume("latest", root=tmp_path / "runs", mode="quiet", evaluate=False)
    assert rows(run) == rows(reference)


def test_a_resumed_run_says_where_it_goes_on_and_what_was_lost(tmp_path, capsys):
    run = small_run(tmp_path, **{"checkpoint.keep": 10})
    for path in checkpoint.checkpoints(run.path):
        if checkpoint.checkpoint_steps(path) > 384:
            shutil.rmtree(path)
    run.folder.note_state(replace(run.folder.state, status="running"))  # as a kill leaves it
    vd.resume(run, mode="plain", evaluate=False)
    lost = "it had come to step 640, and does what came after again."
    assert f"{run.path.name} goes on from its checkpoint at step 384; {lost}" in capsys.readouterr().out


def test_an_interrupted_run_has_lost_nothing_and_knows_its_checkpoint(tmp_path, monkeypatch, capsys):
    run = interrupted_run(tmp_path, monkeypatch, 3)
    told = []
    monkeypatch.setattr(LiveView, "__enter__", lambda view: told.append(view.progress.checkpoint) or view)
    vd.resume(run, mode="plain", evaluate=False)
    assert f"{run.path.name} goes on from its checkpoint at step 192.\n" in capsys.readouterr().out
    assert told[0][1] == "checkpoint at step 192, which it came from"


def test_a_finished_run_is_left_as_it_is_and_says_so(tmp_path):
    run = small_run(tmp_path, steps=128)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.name not in ("lock", "log.txt")}
    console = Console(record=True, width=300, file=open("/dev/null", "w"))  # noqa: SIM115
    again = vd.resume(run, console=console, mode="plain")
    assert again.status == "finished"
    told = console.export_text()
    assert f"{run.path.name} has finished: 128 steps. Nothing is left to do" in told
    assert f"velodrome eval {run.path}" in told
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path in before}
    console.file.close()


def test_a_run_whose_evaluation_failed_is_evaluated_when_it_is_resumed(tmp_path, monkeypatch):
    seen = []

    def fail(*arguments):
        seen.append(Run.open("latest", tmp_path).status)
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("velodrome.runs.evaluate._with_overfitting", fail)
        with pytest.raises(ZeroDivisionError):
            small_run(tmp_path, evaluate=True, steps=128)
    run = Run.open("latest", tmp_path)
    assert seen == ["running"]  # what a kill would leave there
    assert run.status == "failed"
    reference = rows(run)
    assert vd.resume(run, mode="quiet").status == "finished"
    assert run.folder.report_path.is_file()
    assert rows(run) == reference


@pytest.mark.parametrize("part", ["report.write_report", "images.write_images"])
def test_a_report_that_cannot_be_written_is_a_warning(part, tmp_path, monkeypatch, capsys, caplog):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"velodrome.runs.report.{part}", fail)
    run = small_run(tmp_path, evaluate=True, steps=128)
    assert run.status == "finished"
    assert list(run.folder.evaluation_path.glob("*.json"))
    told = capsys.readouterr()
    assert "warning: the report or its images could not be written (OSError: [Errno 28] No space left" in told.err
    assert f"velodrome eval {run.path}" in told.err
    assert ("report: " in told.out) == run.folder.report_path.is_file() == part.startswith("images")
    assert "Traceback" in run.folder.log_path.read_text()
    caplog.clear()
    vd.evaluate(run)
    assert "warning: the report or its images" in capsys.readouterr().err
    assert all(record.levelno < logging.WARNING for record in caplog.records)  # Python prints others where none logs


def test_a_damaged_checkpoint_is_passed_over(tmp_path, monkeypatch):
    reference = small_run(tmp_path / "reference")
    run = interrupted_run(tmp_path / "runs", monkeypatch, 6)
    last = checkpoint.latest_checkpoint(run.path)
    (last / checkpoint.TENSORS).write_bytes(b"half")
    vd.resume(run, mode="quiet", evaluate=False)
    assert "Looking for the one before it" in run.folder.log_path.read_text()
    assert_equal_runs(run, reference)


def test_what_a_kill_left_after_the_last_checkpoint_is_tidied_up(tmp_path):
    run = small_run(tmp_path)
    wanted = checkpoint_names(run)
    first = checkpoint.checkpoints(run.path)[0]
    shutil.copytree(first, first.with_name(f"{checkpoint.WRITING}{first.name}-0a1b"))
    earlier = checkpoint.checkpoint_home(run.path) / f"{64:012d}"
    shutil.copytree(first, earlier)
    checkpoint.pin_checkpoint(earlier)
    run.folder.note_state(replace(run.folder.state, status="running"))
    assert run.status == "killed"
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"
    assert checkpoint_names(run) == sorted([*wanted, (earlier.name, False)])


def test_environments_that_cannot_be_saved_begin_new_episodes(tmp_path, monkeypatch):
    settings = {
        "env": "CartPole-v1", "steps": 256, "num_envs": 4, "device": "cpu", "ppo.rollout_length": 16,
        "network.hidden": [8], "logging.folder": tmp_path, "evaluation.every_steps": None,
    }  # fmt: skip
    with monkeypatch.context() as patched:
        signals_after(patched, 2)
        run = vd.train(settings, mode="quiet", evaluate=False)
    assert run.status == "interrupted"
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"
    steps = run.metrics["step"].unique().sort().to_list()
    assert steps == [64, 128, 192, 256]


# What is refused


def test_a_run_that_is_being_trained_cannot_be_resumed(tmp_path, monkeypatch):
    run = interrupted_run(tmp_path, monkeypatch)
    before = rows(run)
    with run.folder.lock(), pytest.raises(RunError, match=r"has been training this run since .* stop it: kill \d+"):
        vd.resume(run, mode="quiet", evaluate=False)
    assert run.status == "interrupted"
    assert rows(run) == before


def test_other_data_is_refused(tmp_path, monkeypatch):
    prices = tmp_path / "prices.csv"

    def write(factor: float) -> None:
        text = "time,open,high,low,close,volume\n"
        for row in range(300):
            price = 100.0 + row % 7 * factor
            text += f"2024-01-{1 + row // 24:02d} {row % 24:02d}:00,{price},{price + 1},{price - 1},{price},5\n"
        prices.write_text(text)

    write(1.0)
    run = interrupted_run(tmp_path / "runs", monkeypatch, **{"market.source": str(prices)})
    write(1.5)
    with pytest.raises(RunError, match=r"the data has changed since this run began \(content hash \w+ then, \w+ now\)"):
        vd.resume(run.path, mode="quiet", evaluate=False)
    write(1.0)
    assert vd.resume(run.path, mode="quiet", evaluate=False).status == "finished"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"network.hidden": (16,)},
            r"another agent: network is .*'hidden': \[16\].* there and .*'hidden': \[8\].* here",
        ),
        ({"params.action": "continuous"}, "another agent: actions is .*box.* there and .*discrete.* here"),
        ({"market.windows": 5}, r"another agent: windows is \[\[5, 1\]\] there and \[\[4, 1\]\] here"),
        ({"seed": 4}, "was written by the run '(.*)' and lies in the folder of the run '(.*)'"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(settings, told, tmp_path, monkeypatch):
    run = interrupted_run(tmp_path / "runs", monkeypatch)
    other = small_run(tmp_path / "others", **settings)
    last = checkpoint.latest_checkpoint(other.path)
    shutil.copytree(last, checkpoint.checkpoint_home(run.path) / last.name)
    for go_on in (lambda: vd.resume(run, mode="quiet", evaluate=False), lambda: run.load_policy("latest")):
        with pytest.raises(CheckpointError, match=str(last.name)):
            go_on()
    with pytest.raises(CheckpointError, match=told):
        vd.resume(run, mode="quiet", evaluate=False)
    assert run.status == "failed"
    shutil.rmtree(checkpoint.checkpoint_home(run.path) / last.name)
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"


def test_the_checkpoint_of_another_environment_is_refused(tmp_path, monkeypatch):
    run = interrupted_run(tmp_path / "runs", monkeypatch)
    other = vd.train(
        {"env": "CartPole-v1", "steps": 1024, "num_envs": 8, "ppo.rollout_length": 64, "network.hidden": [8]},
        mode="quiet", evaluate=False, **{"logging.folder": tmp_path / "others", "evaluation.every_steps": None},
    )  # fmt: skip
    last = checkpoint.latest_checkpoint(other.path)
    shutil.copytree(last, checkpoint.checkpoint_home(run.path) / last.name)
    with pytest.raises(CheckpointError, match="another agent: env is 'CartPole-v1' there and 'trading' here"):
        vd.resume(run, mode="quiet", evaluate=False)


def test_an_unknown_run_names_those_that_there_are(tmp_path):
    small_run(tmp_path, steps=64, name="alpha")
    with pytest.raises(RunError, match=r"no run 'alpah' in .*, which has 1\. Near to that: alpha-"):
        vd.resume("alpah", root=tmp_path)
    with pytest.raises(RunError, match="there are no runs"):
        vd.resume("alpha", root=tmp_path / "nowhere")
