"""A whole run: `vd.train` from keyword arguments to a policy, its metrics and its files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import velodrome as vd
from tests.runs.small_runs import assert_equal_runs, lines, one_thread, rows, small_run, tiny  # noqa: F401
from velodrome.errors import ConfigError, MetricsError, RunError
from velodrome.evaluation.result import Evaluation
from velodrome.runs import checkpoint
from velodrome.runs import evaluate as evaluating
from velodrome.runs.run import Run
from velodrome.runs.store.sinks import JsonLinesSink
from velodrome.runs.store.store import open_store


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was trained, evaluated and reported."""
    return small_run(tmp_path_factory.mktemp("runs"), evaluate=True)


def test_it_leaves_everything_in_its_folder(run):
    names = {path.name for path in run.path.iterdir()}
    assert names == {
        "config.yaml", "run.json", "status.json", "log.txt", "metrics.jsonl", "checkpoints", "evaluation",
        "report.html", "lock",
    }  # fmt: skip
    assert run.folder.information["data_hash"] == run.market.content_hash
    assert run.folder.information["seeds"] == {"run": 0}
    assert run.folder.information["actions"] == ["-1", "flat", "+1"]
    evaluated = {path.name for path in run.folder.evaluation_path.iterdir()}
    best = checkpoint.checkpoint_steps(checkpoint.pinned_checkpoints(run.path)[-1])
    parts = {".json", "-trades.csv", "-equity.png"}
    assert {f"test-best-{best}{part}" for part in parts} <= evaluated
    assert run.status == "finished"


def test_a_run_and_an_evaluation_show_themselves_in_a_line_and_in_a_notebook(run):
    assert repr(run) == f"Run {run.path.name}: ppo on trading, 640 steps, finished"
    assert f"<td>configuration</td><td>{run.config.hash}</td>" in run._repr_html_()
    evaluation = Evaluation.load(run.path, "test")
    assert repr(evaluation).startswith("Evaluation of ")
    assert all(len(line) < 300 for line in repr(evaluation).splitlines()[:1])
    assert "<th>agent</th>" in evaluation._repr_html_()
    gone = Run(replace(run.folder, path=run.path / "gone"))
    assert repr(gone).startswith("Run gone, which cannot be read: ")


def test_metrics_have_every_iteration_and_are_the_same_in_the_store_and_in_the_file(run):
    frame = run.metrics
    assert frame.columns == ["step", "name", "value", "time"]
    losses = frame.filter(pl.col("name") == "loss/policy")
    assert losses["step"].to_list() == list(range(64, 641, 64))
    evaluated = frame.filter(pl.col("name") == "evaluation/validation/return")
    assert evaluated["step"].to_list() == [192, 384, 576]
    assert repr(rows(run)) == repr(lines(run))


def test_the_store_knows_the_run_its_checkpoints_and_its_evaluation(run):
    with open_store(run.path.parent, create=False) as store:
        row = store.run(run.folder.id)
        kept = store.checkpoints(run.folder.id)
        evaluated = store.evaluations(run.folder.id)
    assert (row.status, row.steps, row.env, row.algorithm) == ("finished", 640, "trading", "ppo")
    assert row.config == run.config.content()
    assert [run.path / one.path for one in kept] == checkpoint.checkpoints(run.path)
    assert set(evaluated["split"]) == {"test"}
    assert set(evaluated["step"]) == {one.step for one in kept if one.pinned}


def test_keyword_arguments_change_the_configuration(tmp_path):
    settings = {**tiny(tmp_path), "steps": 128}
    run = vd.train("smoke", mode="quiet", evaluate=False, learning_rate=0.01, seed=5, name="mine", **settings)
    assert isinstance(run, vd.Run)
    assert (run.config.steps, run.config.seed, run.config.ppo.learning_rate) == (128, 5, 0.01)
    assert run.path.name.startswith("mine-")
    assert run.path.parent == tmp_path.resolve()


def test_the_section_market_can_be_given_as_a_mapping(tmp_path):
    settings = {key: value for key, value in tiny(tmp_path, steps=64).items() if not key.startswith("market.")}
    run = vd.train(
        "smoke", mode="quiet", evaluate=False, market={"length": 250, "windows": 3, "check_leaks": False}, **settings
    )
    assert (run.config.market.length, run.config.market.windows) == (250, 3)


def test_equal_seeds_give_equal_runs_and_others_do_not(tmp_path):
    first, second = (small_run(tmp_path, steps=256) for _ in range(2))
    assert_equal_runs(first, second)
    assert rows(small_run(tmp_path, steps=256, seed=1)) != rows(first)


def test_a_run_is_found_by_its_path_its_id_and_the_start_of_its_name(run):
    root = run.path.parent
    for text in (run.path, str(run.path), run.folder.id, run.folder.id[:5], "trading", "latest"):
        assert Run.open(text, root).path == run.path
    assert Run.open(run) is run


def test_its_policy_acts_on_flat_observations_as_it_did_in_the_evaluation(run):
    evaluation = vd.evaluate(run, "test", report=False)
    env = vd.make_vec(
        "trading", 1, market=run.market.split("test"), observation="flat", autoreset=False,
        **{**run.config.params, "start": "first", "episode_length": None},
    )  # fmt: skip
    played = evaluation.bars["action"].drop_nulls().to_list()
    names = [name for name, _ in evaluation.actions]
    observation, _ = env.reset(seed=0)
    for name in played:
        action = run.policy.act(observation)
        assert names[int(action[0])] == name
        assert run.policy.act(observation[0]) == action[0]
        observation, *_ = env.step(action)
    env.close()
    assert len(set(played)) > 1


def test_the_best_and_the_latest_policy_are_those_of_their_checkpoints(run):
    evaluated = run.metrics.filter(pl.col("name") == "evaluation/validation/return").sort("step")
    best = evaluated["step"][int(evaluated["value"].arg_max())]
    kept = checkpoint.checkpoints(run.path)
    assert [checkpoint.checkpoint_steps(path) for path in kept if checkpoint.is_pinned(path)] == [best]
    for which, steps in (("best", best), ("latest", 640)):
        weights = checkpoint.load_checkpoint(run.path / "checkpoints" / f"{steps:012d}").tensors
        for name, tensor in run.load_policy(which).network.state_dict().items():
            assert np.array_equal(tensor.numpy(), weights[f"policy.{name}"].numpy())


def test_a_market_that_was_built_already_is_taken_and_asked_for_again(tmp_path):
    settings = tiny(tmp_path, steps=64)
    market = vd.build_market(vd.synthetic_bars("gbm", 300, seed=9), features=("return",), windows=4)
    run = vd.train("smoke", mode="quiet", evaluate=False, market=market, **settings)
    assert run.folder.information["data_hash"] == market.content_hash
    assert vd.evaluate(run, market=market, report=False).information["data_hash"] == market.content_hash
    with pytest.raises(RunError, match="the data has changed since this run began"):
        vd.evaluate(run, report=False)


def test_tensorboard_and_wandb_write_below_the_run(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = small_run(tmp_path, steps=128, **{"logging.tensorboard": True, "logging.wandb": True})
    assert list((run.path / "tensorboard").glob("events.out.tfevents.*"))
    assert list(run.path.glob("wandb/offline-run-*/*.wandb"))
    assert run.status == "finished"


def test_metrics_that_cannot_be_written_for_a_while_are_told_and_not_lost(tmp_path, monkeypatch):
    write, attempts = JsonLinesSink.write, 0

    def flaky(sink, entries):
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("the disk was away")
        write(sink, entries)

    monkeypatch.setattr(JsonLinesSink, "write", flaky)
    run = small_run(tmp_path, steps=256)
    assert attempts > 1
    assert "the disk was away" in run.folder.log_path.read_text()
    assert repr(rows(run)) == repr(lines(run))
    assert [step for step, name, _ in lines(run) if name == "loss/policy"] == [64, 128, 192, 256]


def test_metrics_that_cannot_be_written_at_all_cost_no_checkpoint_and_are_told_at_the_end(tmp_path, monkeypatch):
    def broken(sink, entries):
        raise OSError("the disk is gone")

    monkeypatch.setattr(JsonLinesSink, "write", broken)
    with pytest.raises(MetricsError, match=r"could not be written to .*metrics\.jsonl: OSError: the disk is gone"):
        small_run(tmp_path, steps=256)
    run = Run.open("latest", tmp_path)
    assert run.status == "failed"
    assert checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path)) == 256


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_environments_of_gymnasium_are_trained_and_evaluated(env, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluating, "EPISODES", 4)
    run = vd.train(
        {"env": env, "steps": 128, "num_envs": 4, "device": "cpu", "ppo.rollout_length": 16, "network.hidden": [8]},
        mode="quiet", **{"logging.folder": tmp_path, "evaluation.episodes": 4, "evaluation.every_steps": 64},
    )  # fmt: skip
    assert run.status == "finished"
    assert run.folder.report_path.is_file()
    (kept,) = run.folder.evaluation_path.glob("*.json")
    found = json.loads(kept.read_text())
    assert found["policy"]["selected_on"] == "validation episodes"
    assert not found["used_for_selection"]  # its episodes have other seeds
    assert found["information"]["episodes"] == 4
    images = {path.stem.rsplit("-", 1)[-1] for path in run.folder.evaluation_path.glob("*.png")}
    assert images == ({"episodes"} if env == "Pendulum-v1" else {"episodes", "actions"})
    assert run.market is None


def test_a_run_without_a_checkpoint_has_no_policy(run, tmp_path):
    from velodrome.runs.folder import RunFolder

    empty = Run(RunFolder.create(tmp_path, config=run.folder.config_path.read_text()))
    with pytest.raises(RunError, match="has no checkpoint yet"):
        empty.load_policy()


def test_the_top_level_names_are_these_functions():
    from velodrome.runs.evaluate import evaluate
    from velodrome.runs.run import resume, train

    assert (vd.train, vd.resume, vd.evaluate, vd.Run) == (train, resume, evaluate, Run)


def test_what_train_is_given_must_be_a_configuration():
    with pytest.raises(ConfigError, match="give the path of a file, the name of a preset, a mapping or a RunConfig"):
        vd.train(7)
