"""A run that goes on as something else: more steps, a child with a parent, refusals, other threads, another place."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest
import torch
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import assert_equal_runs, last_tensors, lines, one_thread, rows, small_run, tiny  # noqa: F401
from velodrome import cli
from velodrome.errors import ConfigError, RunError
from velodrome.runs import checkpoint
from velodrome.runs.run import Run
from velodrome.runs.session import Session
from velodrome.runs.store.store import open_store
from velodrome.runs.walk_forward import walk_forward

QUIET = {"mode": "quiet", "evaluate": False}


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Run:
    """A finished run of 256 steps, for tests that leave it as it is."""
    return small_run(tmp_path_factory.mktemp("runs"), steps=256)


@pytest.fixture(scope="module")
def child(parent) -> Run:
    return vd.resume(parent, seed=7, steps=384, **QUIET)


def prices(folder, factor: float = 1.0):
    folder.mkdir(parents=True, exist_ok=True)
    text = "time,open,high,low,close,volume\n"
    for row in range(300):
        price = 100.0 + row % 7 * factor
        text += f"2024-01-{1 + row // 24:02d} {row % 24:02d}:00,{price},{price + 1},{price - 1},{price},5\n"
    (folder / "ABC.csv").write_text(text)
    return folder


# More steps


def test_an_extended_run_is_to_the_bit_one_that_was_told_all_steps_at_once(tmp_path):
    reference = small_run(tmp_path / "whole", steps=512)
    run = small_run(tmp_path / "extended", steps=256)
    before = run.config.hash
    again = vd.resume(run, steps=512, **QUIET)
    assert again.path == run.path
    assert again.status == "finished"
    assert again.config == vd.Run.open(run.path).config
    assert again.config.steps == 512
    assert_equal_runs(again, reference)
    with open_store(run.path.parent) as store:
        row = store.run(run.folder.id)
    assert (row.config["steps"], row.steps, row.config_hash) == (512, 512, reference.config.hash)
    assert row.config_hash != before


def test_schedules_go_on_as_in_a_run_of_the_new_length_and_that_is_told(tmp_path):
    run = small_run(tmp_path, steps=256, **{"ppo.schedule": "linear", "ppo.learning_rate": 0.01})
    console = Console(record=True, width=300, file=open("/dev/null", "w"))  # noqa: SIM115
    vd.resume(run, steps=512, console=console, mode="plain", evaluate=False)
    console.file.close()
    told = console.export_text()
    assert f"{run.path.name} goes on at step 256: steps 256 → 512." in told
    assert "at step 256 of a run of 512 steps, and falls to its end as there: learning_rate 0 → 0.005." in told
    rates = vd.Run.open(run.path).metrics.filter(pl.col("name") == "optimiser/learning_rate")["value"].to_list()
    shares = [1.0, 0.75, 0.5, 0.25, *(1.0 - step / 512 for step in range(256, 512, 64))]
    assert rates == pytest.approx([0.01 * share for share in shares])
    (entry,) = run.folder.lineage
    assert (entry["step"], entry["parent"], entry["changes"]) == (256, None, {"steps": [256, 512]})


def test_other_ways_to_save_and_log_are_taken_by_the_run_itself(tmp_path):
    run = small_run(tmp_path, steps=128)
    again = vd.resume(run, ["steps=256", "checkpoint.keep=1"], **QUIET)
    assert again.path == run.path
    assert Run.open(run.path).config.checkpoint.keep == 1
    assert len(checkpoint.checkpoints(run.path)) <= 2  # one of them is the best


def test_a_run_killed_after_its_steps_were_changed_goes_on_to_them(tmp_path, monkeypatch):
    run = small_run(tmp_path, steps=128)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_train", lambda session: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vd.resume(run, steps=256, **QUIET)
    with open_store(tmp_path) as store:  # as a kill leaves it
        store.update_run(run.folder.id, status="finished")
    assert vd.resume(run.path, **QUIET).status == "finished"
    assert Run.open(run.path).metrics["step"].max() == 256


# A child


def test_a_child_begins_where_its_parent_is_and_says_whose_it_is(parent, child):
    assert child.path != parent.path
    assert child.path.parent == parent.path.parent
    assert child.metrics["step"].unique().sort().to_list() == [320, 384]
    (entry,) = child.folder.lineage
    assert (entry["step"], entry["parent"]) == (256, parent.folder.id)
    assert entry["changes"] == {"seed": [0, 7], "steps": [256, 384]}
    assert child.config.seed == 7
    assert parent.config.steps == 256
    begun = checkpoint.load_checkpoint(checkpoint.checkpoints(child.path)[0])
    assert (begun.steps, begun.plain["run"]) == (256, child.folder.id)
    theirs = last_tensors(parent)
    assert all(
        torch.equal(begun.tensors[name], theirs[name]) for name in theirs if name.startswith(("policy", "engine"))
    )
    assert not torch.equal(begun.tensors["learner.generator"], theirs["learner.generator"])


def test_the_store_the_list_and_the_report_know_the_lineage(parent, child, capsys):
    where = ["--folder", str(parent.path.parent)]
    assert cli.run(["runs", "show", child.folder.id, *where, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["lineage"]
    assert (entry["parent"], entry["step"]) == (parent.folder.id, 256)
    assert cli.run(["runs", "show", parent.folder.id, *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["children"] == [{"id": child.folder.id, "step": 256}]
    assert cli.run(["runs", "show", child.folder.id, *where]) == 0
    told = f"child of {parent.folder.id} at step 256: seed 0 → 7, steps 256 → 384"
    assert told in " ".join(capsys.readouterr().out.replace("│", " ").split())
    vd.evaluate(child)
    assert told in child.folder.report_path.read_text()


def test_without_another_seed_a_child_goes_on_in_the_same_episodes_and_numbers(parent):
    child = vd.resume(parent, steps=320, **{"ppo.learning_rate": parent.config.ppo.learning_rate / 2}, **QUIET)
    begun = checkpoint.load_checkpoint(checkpoint.checkpoints(child.path)[0])
    theirs = last_tensors(parent)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in begun.tensors.items())


def test_equal_children_are_equal_and_may_have_other_numbers_of_environments(parent):
    one, other = (vd.resume(parent, steps=384, seed=3, num_envs=16, **QUIET) for _ in range(2))
    assert repr(rows(one)) == repr(rows(other))
    assert one.metrics["step"].unique().to_list() == [384]


def test_a_child_of_dqn_goes_on_with_its_replay(tmp_path):
    settings = {"dqn.rollout_length": 8, "dqn.updates": 2, "dqn.batch_size": 16, "dqn.buffer_size": 512}
    run = small_run(tmp_path, algorithm="dqn", steps=128, **settings, **{"dqn.learning_starts": 64})
    child = vd.resume(run, steps=256, seed=1, **{"dqn.epsilon_end": 0.1}, **QUIET)
    begun = checkpoint.load_checkpoint(checkpoint.checkpoints(child.path)[0])
    stored = last_tensors(run)["replay.reward"]
    assert torch.equal(begun.tensors["replay.reward"][: len(stored)], stored)
    told = "falls to its end as there: epsilon 0.05 → 0.1. The steps before were those of a run of 128."
    assert told in child.folder.log_path.read_text()


def test_a_child_of_sac_goes_on_with_its_replay_and_another_weight_of_the_entropy(tmp_path):
    settings = {"sac.rollout_length": 8, "sac.updates": 2, "sac.batch_size": 16, "sac.buffer_size": 512}
    settings |= {"sac.learning_starts": 64, "params.action": "continuous"}
    run = small_run(tmp_path, algorithm="sac", steps=128, **settings)
    child = vd.resume(run, steps=256, **{"sac.entropy": 0.5}, **QUIET)
    begun = checkpoint.load_checkpoint(checkpoint.checkpoints(child.path)[0])
    stored = last_tensors(run)["replay.actions"]
    assert stored.is_floating_point()
    assert torch.equal(begun.tensors["replay.actions"][: len(stored)], stored)
    weights = child.metrics.filter(pl.col("name") == "policy/entropy_weight").sort("step")["value"].to_list()
    assert weights[-1] == 0.5


def test_a_child_killed_before_its_first_checkpoint_begins_at_its_parents(parent, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_save", lambda session, best=False: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vd.resume(parent, seed=7, steps=384, name="late", **QUIET)
    late = Run.open("late", parent.path.parent)
    assert checkpoint.checkpoints(late.path) == []
    vd.resume(late, **QUIET)
    reference = vd.resume(parent, seed=7, steps=384, **QUIET)
    assert repr(rows(late)) == repr(rows(reference))


# What is refused


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"env": "cage2"},
            "env = cage2: a run that goes on keeps env = trading: its agent learnt in that environment.",
        ),
        ({"network.hidden": [16]}, "network.hidden = [16]: a run that goes on keeps network.hidden = [8]: its weights"),
        ({"market.length": 400}, "market.length = 400: a run that goes on keeps market.length = 300: its agent learnt"),
        ({"params.fee": 0.1}, "params.fee = 0.1: a run that goes on keeps params.fee = "),
        (
            {"algorithm": "dqn"},
            "algorithm = dqn: a run that goes on keeps algorithm = ppo: its state is that of this a",
        ),
        (
            {"ppo.normalise_rewards": False},
            "the state that it goes on from depends on that. It takes steps, episodes, checkpoint, ",
        ),
        (
            {"seed": 1},
            "steps = 256: {name} has done 256, and a child that begins there needs more. Give more, such as ",
        ),
        (
            {"steps": 128},
            "steps = 128: {name} has done 256, and it cannot go back. Give more, such as steps=512, or tr",
        ),
        ({"stesp": 300}, "unknown key 'stesp'. Did you mean 'steps'?"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(changes, told, parent):
    before = sorted(parent.path.parent.iterdir())
    with pytest.raises(ConfigError) as error:
        vd.resume(parent, **changes, **QUIET)
    assert told.format(name=parent.path.name) in str(error.value)
    assert sorted(parent.path.parent.iterdir()) == before


def test_the_refusal_says_which_command_trains_a_new_run(parent):
    with pytest.raises(
        ConfigError, match=r"a child of it takes seed, .*, clip, .* For another network.hidden train a "
    ):
        vd.resume(parent, ["network.hidden=[16]"], **QUIET)
    with pytest.raises(ConfigError, match=rf"velodrome train {parent.folder.config_path} 'network.hidden=\[16\]'"):
        vd.resume(parent, ["network.hidden=[16]"], **QUIET)


def test_the_command_extends_and_begins_children(tmp_path, capsys):
    run = small_run(tmp_path, steps=128)
    words = ["--no-evaluation", "--runs-folder", str(tmp_path)]
    assert cli.run(["train", "--resume", run.folder.id, "steps=192", *words]) == 0
    assert (
        "No setting falls over the run: where resuming is exact, what it becomes is to the bit what a run of 192 steps"
        in capsys.readouterr().out
    )
    assert cli.run(["train", "--resume", run.folder.id, "steps=256", "--seed", "5", *words]) == 0
    out = capsys.readouterr().out
    assert f"is a child of {run.folder.id} at step 192: seed 0 → 5, steps 192 → 256." in out
    assert "New episodes and random numbers begin there" in out
    assert cli.run(["train", "--resume", run.folder.id, "smoke", *words]) != 0
    assert "received smoke besides" in capsys.readouterr().err
    assert cli.run(["train", "smoke", "--data", "x"]) != 0
    assert "a new run is told market.source=x" in capsys.readouterr().err


# Threads and older checkpoints


def test_another_number_of_threads_is_told_where_it_changes_bits(tmp_path):
    run = small_run(tmp_path, steps=128, **{"ppo.engine": "autograd"})
    torch.set_num_threads(2)
    vd.resume(run, steps=192, **QUIET)
    assert "it goes on on 2 threads, and the checkpoint was written on 1" in run.folder.log_path.read_text()


def test_compiled_loops_go_on_to_the_same_bits_on_any_number_of_threads(tmp_path):
    settings = {"steps": 8192, "num_envs": 64, "ppo.rollout_length": 32, "evaluation.every_steps": None}
    reference = small_run(tmp_path, **settings)
    run = small_run(tmp_path, **settings | {"steps": 4096})
    torch.set_num_threads(2)
    vd.resume(run, steps=8192, **QUIET)
    assert "threads" not in run.folder.log_path.read_text()
    assert repr(lines(run)) == repr(lines(reference))
    # And from the beginning.
    other = small_run(tmp_path, **settings)
    assert repr(lines(other)) == repr(lines(reference))


def test_a_checkpoint_without_torchs_generators_is_read_and_what_that_means_is_told(tmp_path):
    run = small_run(tmp_path, steps=128, **{"network.kind": "tests.runs.small_runs:Dropping"})
    last = checkpoint.load_checkpoint(checkpoint.latest_checkpoint(run.path))
    kept = {name: tensor for name, tensor in last.tensors.items() if not name.startswith("torch.")}
    assert len(kept) == len(last.tensors) - 1
    plain = {
        **last.plain,
        "learner": {name: value for name, value in last.plain["learner"].items() if name != "threads"},
    }
    checkpoint.save_checkpoint(run.path, last.steps, kept, plain)
    vd.resume(run, steps=192, **QUIET)
    assert (
        "before torch's generators were part of it: if Dropping draws random numbers" in run.folder.log_path.read_text()
    )


# Another place


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A run on files, trained by a path from the working directory, moved together with its data; and the data."""
    old, new = tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("new")
    prices(old / "prices")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(old)
        run = small_run("runs", steps=128, **{"market.source": "prices"})
    for name in ("runs", "prices"):
        shutil.move(old / name, new / name)
    return Run.open(run.folder.id, new / "runs"), new / "prices"


def test_a_run_that_moved_with_its_data_finds_it(moved):
    run, _ = moved
    assert run.folder.information["data"] == "../../prices"
    assert vd.evaluate(run, report=False).split == "test"
    with open_store(run.path.parent) as store:
        assert store.run(run.folder.id).folder == str(run.path)
        assert [row.path for row in store.checkpoints(run.folder.id)][-1] == "checkpoints/000000000128"


def test_data_that_lies_elsewhere_is_pointed_to_once(moved, tmp_path, capsys):
    run, place = moved
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    with pytest.raises(RunError, match=rf"its data is not where it was; looked for {place} and .*--data PATH"):
        vd.evaluate(run.path)
    words = ["--runs-folder", str(run.path.parent)]
    assert cli.run(["eval", run.folder.id, "--data", str(elsewhere), "--no-report", *words]) == 0
    assert cli.run(["train", "--resume", run.folder.id, "steps=192", "--quiet", "--no-evaluation", *words]) == 0
    walked = walk_forward(run.path, 2, console=Console(file=open("/dev/null", "w")))  # noqa: SIM115
    assert [json.loads((walked.path / "walk_forward.json").read_text())["folds"][0]["folder"]] == [
        f"../{walked.folds[0].run.path.name}"
    ]
    assert walked.folds[0].run.folder.data_place == elsewhere
    elsewhere.rename(place)
    assert vd.evaluate(run.path, data=place, report=False).split == "test"


def test_a_run_that_is_moved_by_itself_is_entered_into_the_store_of_its_new_place(child, tmp_path):
    copy = Run.open(shutil.copytree(child.path, tmp_path / "archive" / child.path.name))
    assert copy.status == "finished"
    assert repr(rows(copy)) == repr(rows(child))
    with open_store(tmp_path / "archive") as store, child.store() as before:
        found, known = store.run(child.folder.id), before.run(child.folder.id)
        assert store.lineage(found.id) == before.lineage(found.id)
        assert store.checkpoints(found.id) == before.checkpoints(found.id)
    for name in ("config", "config_hash", "data_hash", "seed", "steps", "status"):
        assert getattr(found, name) == getattr(known, name)
    vd.resume(copy, steps=448, **QUIET)
    assert vd.evaluate(copy.path, report=False).split == "test"


def test_other_data_is_refused_with_both_hashes(moved, parent, tmp_path):
    run, _ = moved
    known, other = run.folder.information["data_hash"], prices(tmp_path / "prices", 1.5)
    with pytest.raises(
        RunError, match=rf"not the data .* its content hash is \w+, and to evaluate it it must be {known}"
    ):
        vd.evaluate(run, data=other)
    with pytest.raises(RunError, match=rf"{known}"):
        vd.resume(run, data=other, **QUIET)
    with pytest.raises(RunError, match=rf"{known}"):
        walk_forward(run, 2, data=other)
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        vd.evaluate(run, data=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"come from no files \(the process 'ar1', or market=…\)\. Leave it out"):
        vd.evaluate(parent, data=other)
