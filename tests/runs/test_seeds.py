"""Several training seeds as one run: members that are ordinary runs, an end that can be resumed, one evaluation."""

from __future__ import annotations

import io
import json
import shutil

import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import last_tensors, one_thread, signals_after, small_run, tiny  # noqa: F401
from velodrome import cli
from velodrome.errors import ConfigError, RunError
from velodrome.evaluation.result import Evaluation
from velodrome.runs import setup
from velodrome.runs.folder import RunFolder, run_folders
from velodrome.runs.report import listing
from velodrome.runs.run import Run
from velodrome.runs.trained import SeedGroup
from velodrome.runs.walk_forward import walk_forward

SETTINGS = {"steps": 192, "params.fee": 0.0001}


@pytest.fixture(scope="module")
def group(tmp_path_factory) -> SeedGroup:
    folder = tmp_path_factory.mktemp("runs")
    found = small_run(folder, evaluate=True, seed=3, seeds=4, **SETTINGS)
    assert isinstance(found, SeedGroup)
    return found


@pytest.fixture(scope="module")
def evaluation(group) -> Evaluation:
    return Evaluation.load(group.path, "test")


def test_the_store_has_the_figures_of_each_member_when_the_training_ends(group, evaluation):
    with group.store() as store:
        (entry,) = listing.list_content(store)
    found = [one["evaluation"] and one["evaluation"]["value"] for one in entry["members"]]
    assert found == [next(row.value for row in one.rows if row.name == "return") for one in evaluation.seeds]


def test_members_are_ordinary_runs_that_differ_in_their_seed_alone(group):
    assert [run.config.seed for run in group.members] == [3, 4, 5, 6]
    assert {run.status for run in group.members} == {group.status} == {"finished"}
    settings = [run.config.model_dump(exclude={"seed", "name"}) for run in group.members]
    assert all(own == settings[0] for own in settings)
    alone = small_run(group.path / "elsewhere", seed=5, **SETTINGS)
    member = group.members[2]
    assert member.config.hash == alone.config.hash
    tensors, wanted = last_tensors(member), last_tensors(alone)
    assert all(tensor.numpy().tobytes() == wanted[name].numpy().tobytes() for name, tensor in tensors.items())


def test_the_data_is_read_and_checked_once(tmp_path, monkeypatch):
    built, build = [], setup.build_market
    monkeypatch.setattr(setup, "build_market", lambda *given: built.append(1) or build(*given))
    small_run(tmp_path, seeds=2, **SETTINGS)
    assert len(built) == 1


def test_the_evaluation_is_about_all_seeds(group, evaluation):
    alone = [vd.evaluate(run, report=False) for run in group.members]
    assert evaluation.metrics["return"] == pytest.approx(sum(one.metrics["return"] for one in alone) / 4)
    assert [one.seed for one in evaluation.seeds] == [3, 4, 5, 6]
    assert evaluation.policy is not None
    assert evaluation.policy.seeds == (3, 4, 5, 6)
    assert [agent.run for agent in evaluation.policy.agents] == [run.folder.id for run in group.members]
    # Each member's checkpoint was chosen by validation, and none of the members by anything.
    assert evaluation.policy.selected_on == "validation"
    assert any("means over all 4 training seeds, none of them chosen" in note for note in evaluation.notes)
    assert all("one training seed" in " ".join(one.notes) for one in alone)


def test_a_group_has_no_policy_of_its_own(group):
    with pytest.raises(RunError, match=r"group of 4 training seeds, and none of them is chosen for you.*seed 3"):
        _ = group.policy


def test_the_report_shows_each_seed(group):
    page = (group.path / "report.html").read_text(encoding="utf-8")
    assert 'id="seeds"' in page
    assert "4 training seeds: total return from" in page
    figures = json.loads(page.partition('id="figures-data">')[2].partition("</script>")[0].replace("<\\/", "</"))
    names = [line["name"] for line in figures["equity"]["data"]]
    assert [name for name in names if name.startswith("training seed")] == [f"training seed {k}" for k in (3, 4, 5, 6)]
    curves = [line["name"] for line in figures["training-0"]["data"]]
    assert curves[-1].endswith(", mean")
    assert len(curves) == 5


# Interruptions


def test_finished_seeds_are_kept_and_the_rest_is_resumed(tmp_path, monkeypatch):
    whole = small_run(tmp_path / "whole", seeds=2, **SETTINGS)
    with monkeypatch.context() as patched:
        signals_after(patched, 5)  # an agent takes three iterations
        stopped = small_run(tmp_path / "stopped", seeds=3, **SETTINGS)
    assert isinstance(stopped, SeedGroup)
    assert stopped.status == "interrupted"
    assert [run.status for run in stopped.members] == ["finished", "interrupted"]
    assert stopped.folder.id in stopped.resume_command or str(stopped.path) in stopped.resume_command
    assert stopped.members[1].resume_command == stopped.resume_command
    before = (stopped.members[0].path / "metrics.jsonl").stat().st_mtime_ns
    partly = vd.evaluate(stopped, report=False)
    assert any("1 of 3 training seeds have finished, and the result is about those alone" in w for w in partly.warnings)
    again = vd.resume(stopped, mode="quiet", evaluate=False)
    assert again.status == "finished"
    assert [run.status for run in again.members] == ["finished"] * 3
    assert (again.members[0].path / "metrics.jsonl").stat().st_mtime_ns == before
    for run, wanted in zip(again.members, whole.members, strict=False):
        tensors, reference = last_tensors(run), last_tensors(wanted)
        assert all(tensor.numpy().tobytes() == reference[name].numpy().tobytes() for name, tensor in tensors.items())


def test_a_single_run_does_not_become_a_group(tmp_path):
    run = small_run(tmp_path, **SETTINGS)
    with pytest.raises(ConfigError, match=r"seeds = 3: a run that goes on keeps seeds = 1: it is a single agent\."):
        vd.resume(run, seeds=3)


def test_a_group_of_which_nothing_has_finished_cannot_be_evaluated(tmp_path, monkeypatch):
    signals_after(monkeypatch, 1)
    stopped = small_run(tmp_path, seeds=2, **SETTINGS)
    with pytest.raises(RunError, match="no training seed of this group has finished"):
        vd.evaluate(stopped)


def test_a_group_moves_with_its_members(group, tmp_path):
    moved = SeedGroup(RunFolder.open(shutil.copytree(group.path, tmp_path / group.path.name)))
    assert moved.status == "finished"
    found = vd.evaluate(moved, report=False)
    assert found.metrics["return"] == vd.evaluate(group, report=False).metrics["return"]
    with moved.store() as store:
        assert [run.seed for run in store.members(moved.folder.id)] == [3, 4, 5, 6]
        assert store.run(moved.folder.id).steps == 4 * 192


# What people see of it


def test_the_display_says_which_seed(tmp_path):
    shown = Console(file=io.StringIO(), width=400)
    vd.train("smoke", console=shown, mode="plain", evaluate=False, seeds=2, **tiny(tmp_path, **SETTINGS))
    assert "ppo on trading, seed 0 (1 of 2)" in shown.file.getvalue()
    assert "ppo on trading, seed 1 (2 of 2)" in shown.file.getvalue()


def test_lines_of_json_name_their_seed_and_a_group_takes_more_seeds_and_steps(tmp_path, capsys):
    words = [f"{key}={list(v) if isinstance(v, tuple) else v}" for key, v in tiny(tmp_path, **SETTINGS).items()]
    assert cli.run(["train", "smoke", *words, "--seeds", "2", "--json", "--no-evaluation"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seed"] for line in lines if line["event"] == "end"] == [0, 1]
    (found,) = run_folders(tmp_path)
    resumed = ["train", "--resume", str(found.path), "--no-evaluation", "--json"]
    assert cli.run([*resumed, "--seeds", "3"]) == 0  # one more
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seed"] for line in lines if line["event"] == "end"] == [2]
    assert cli.run([*resumed, "--seeds", "2"]) == cli.REFUSED
    assert "the group has 3, and none of them is left out" in capsys.readouterr().err
    assert cli.run([*resumed, "ppo.learning_rate=0.1"]) == cli.REFUSED
    assert (
        "its agents differ in nothing but their seeds. It takes steps, episodes, checkpoint," in capsys.readouterr().err
    )
    assert cli.run([*resumed, "steps=256"]) == 0
    group = Run.open(found.path)
    assert group.status == "finished"
    assert [run.config.steps for run in (group, *group.members)] == [256] * 4
    with group.store() as store:
        assert [run.steps for run in store.members(found.id)] == [256] * 3


def test_lists_show_a_group_as_one(group, capsys):
    with group.store() as store:
        (entry,) = listing.list_content(store)
        assert entry["id"] == group.folder.id
        assert entry["steps"] == entry["total_steps"] == 4 * 192
        assert [one["seed"] for one in entry["members"]] == [3, 4, 5, 6]
        assert all(one["evaluation"]["low"] is not None for one in entry["members"])
        assert listing.find_run(store, "latest").id == group.folder.id
        assert len(store.metrics(group.folder.id)["seed"].unique()) == 4
    place = ["--folder", str(group.path.parent)]
    assert cli.run(["runs", "list", "--members", *place]) == 0
    assert "seed 6" in capsys.readouterr().out
    assert cli.run(["runs", "show", group.folder.id, *place]) == 0
    assert "4 training seeds from 3 on" in capsys.readouterr().out
    member = group.members[0].folder.id
    assert cli.run(["runs", "compare", group.folder.id, member, *place]) == 0
    assert cli.run(["runs", "export", group.folder.id, str(group.path / "metrics.csv"), *place]) == 0
    assert (group.path / "metrics.csv").read_text().startswith("seed,step,")


def test_a_member_is_found_by_its_id_and_the_latest_run_is_the_group(group):
    member = group.members[1]
    assert Run.open(member.folder.id, group.path.parent).path == member.path
    assert isinstance(Run.open("latest", group.path.parent), SeedGroup)
    assert member.root == group.root == group.path.parent


def test_episodes_of_several_seeds_are_one_result(tmp_path):
    settings = {"env": "CartPole-v1", "steps": 128, "num_envs": 4, "seeds": 2, "ppo.rollout_length": 16}
    found = vd.train(mode="quiet", **settings, **{"logging.folder": str(tmp_path), "network.hidden": (8,)})
    evaluation = Evaluation.load(found.path, "episodes")
    assert [one.seed for one in evaluation.seeds] == [0, 1]
    assert evaluation.row("episode_return").low < evaluation.metrics["episode_return"]


# Walk-forward


@pytest.mark.slow
def test_walk_forward_trains_each_fold_by_every_seed(tmp_path):
    settings = tiny(tmp_path, **SETTINGS, **{"market.length": 600}, seeds=2)
    walked = walk_forward({"preset": "smoke", **settings}, 2, console=Console(file=io.StringIO()))
    assert [len(fold.run.members) for fold in walked.folds] == [2, 2]
    assert [one.seed for one in walked.joined.seeds] == [0, 1]
    assert walked.joined.policy is not None
    assert len(walked.joined.policy.agents) == 4
    for seed in (0, 1):  # each seed's account goes through all folds
        tests = [fold.evaluation.seeds[seed].row("return").value for fold in walked.folds]
        joined = walked.joined.seeds[seed].row("return").value
        assert joined == pytest.approx((1.0 + tests[0]) * (1.0 + tests[1]) - 1.0, abs=0.02)
    again = walk_forward({"preset": "smoke", **settings}, 2, console=Console(file=io.StringIO()))
    assert [fold.run.path for fold in again.folds] == [fold.run.path for fold in walked.folds]
