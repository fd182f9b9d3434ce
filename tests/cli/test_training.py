"""The commands that train and look at runs: each with its help, its JSON, its exit codes and its messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runs.small_runs import one_thread, signals_after, small_run, tiny  # noqa: F401
from velodrome import cli
from velodrome.runs import walk_forward
from velodrome.runs.folder import run_folders
from velodrome.runs.run import Run


@pytest.fixture(autouse=True)
def plain_output(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Run, Run]:
    """Two runs in one folder that differ in a setting; the first was evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    first = small_run(folder, evaluate=True, name="first", steps=192)
    return first, small_run(folder, name="second", steps=192, **{"ppo.learning_rate": 0.01})


def words(folder: Path, **settings) -> list[str]:
    chosen = tiny(folder, **settings)
    return [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in chosen.items()]


def refused(arguments: list[str], capsys) -> str:
    """Carry out a command that is to be refused, and return what it said."""
    assert cli.run(arguments) == cli.REFUSED
    captured = capsys.readouterr()
    assert captured.err.startswith("velodrome: ")
    assert "Traceback" not in captured.err
    return captured.err


# Help


def test_help_of_train_explains_every_setting(capsys):
    assert cli.run(["train", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(key in told for key in ("learning_rate", "num_envs", "source", "every_seconds", "final_split", "wandb"))


def test_runs_without_a_verb_shows_its_help(capsys):
    assert cli.run(["runs"]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("list", "show", "compare", "export"))


# train


def test_train_trains_evaluates_and_reports(tmp_path, capsys):
    assert cli.run(["train", "smoke", *words(tmp_path, steps=128)]) == 0
    told = capsys.readouterr().out
    run = Run.open("latest", tmp_path)
    assert "done: 128 of 128 steps" in told
    assert "Sharpe ratio" in told
    assert f"report: {run.folder.report_path}" in told
    assert run.status == "finished"


def test_train_as_json_prints_an_object_a_line(tmp_path, capsys):
    assert cli.run(["train", "smoke", *words(tmp_path, steps=128), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["steps"] for event in events if event["event"] == "update"] == [64, 128]
    assert [event["event"] for event in events][-2:] == ["end", "final"]
    assert events[-1]["split"] == "test"


def test_train_quietly_prints_nothing(tmp_path, capsys):
    assert cli.run(["train", "smoke", *words(tmp_path, steps=64), "--quiet", "--no-evaluation"]) == 0
    assert capsys.readouterr().out == ""


def test_train_by_a_file_and_settings(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "smoke"\nsteps = 1024\nseed = 3\n')
    assert cli.run(["train", str(path), *words(tmp_path / "runs", steps=64), "--quiet", "--no-evaluation"]) == 0
    config = Run.open("latest", tmp_path / "runs").config
    assert (config.steps, config.seed) == (64, 3)


def test_an_interrupted_train_exits_with_130_and_its_message_resumes_it(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patched:
        signals_after(patched, 2)
        assert cli.run(["train", "smoke", *words(tmp_path, steps=256), "--no-evaluation"]) == cli.INTERRUPTED
    captured = capsys.readouterr()
    assert "interrupted: 128 of 256 steps" in captured.out
    command = captured.err.partition("continue with: velodrome ")[2].split()
    assert command == ["train", "--resume", str(Run.open("latest", tmp_path).path)]
    assert cli.run([*command, "--quiet", "--no-evaluation"]) == 0
    assert Run.open("latest", tmp_path).status == "finished"
    assert cli.run([*command]) == 0
    assert "has finished: 256 steps. Nothing is left to do" in capsys.readouterr().out


def test_an_interrupted_evaluation_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("velodrome.runs.session.evaluate_run", interrupt)
        assert cli.run(["train", "smoke", *words(tmp_path, steps=64), "--quiet"]) == cli.INTERRUPTED
        run = Run.open("latest", tmp_path)
        assert run.status == "interrupted"
        told = capsys.readouterr().err
        assert told == f"velodrome: interrupted; continue with: velodrome train --resume {run.path}\n"
        patched.setattr("velodrome.runs.evaluate.evaluate", interrupt)
        assert cli.run(["eval", str(run.path)]) == cli.INTERRUPTED
        assert capsys.readouterr().err == "velodrome: interrupted\n"


def test_a_run_is_resumed_by_its_id_in_a_folder(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patched:
        signals_after(patched, 2)
        cli.run(["train", "smoke", *words(tmp_path, steps=256), "--quiet", "--no-evaluation"])
    (found,) = run_folders(tmp_path)
    capsys.readouterr()
    resume = ["train", "--resume", found.id, "--quiet", "--no-evaluation"]
    assert "no run" in refused(resume, capsys)
    assert cli.run([*resume, "--folder", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stepps=4"], "Did you mean 'steps'"),
        (["ppo.lerning_rate=1"], "ppo.learning_rate"),
        (["smoke", "steps=1"], "less than one rollout"),
        (["smok"], "Did you mean 'smoke'"),
        (["nowhere.yaml"], "there is no configuration file 'nowhere.yaml'"),
        (["smoke", "ou"], "one configuration, file or preset, can be named; received smoke ou"),
        (["smoke", "--resume", "latest"], "--resume continues a run with the configuration it has; received smoke bes"),
        (["--resume", "latest"], "there are no runs in runs"),
        (["smoke", "--json", "--quiet"], "Choose one"),
        (["smoke", "mode=quiet"], "unknown key 'mode'"),
        (["smoke", "bars=prices.csv"], "'bars' is written in full here: teacher.bars."),
        (["smoke", "market=prices/"], "it is a section; write settings in it, such as market.source"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_train_that_cannot_be_is_refused_and_leaves_nothing(arguments, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert told in refused(["train", *arguments], capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["tune", "workers=2", "--trials", "1"], "vector.workers"), (["cv", "trust=true"], "unknown key 'trust'")],
)
def test_settings_are_not_taken_for_options_of_a_command(arguments, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refused(arguments, capsys)
    assert told in message
    assert "Options of the command begin with --." in message


def test_a_gpu_that_is_not_there_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("velodrome.vector.cuda.unavailable_reason", lambda *device: "no GPU was found")
    told = refused(["train", "smoke", *words(tmp_path / "runs"), "device=cuda"], capsys)
    assert "device = 'cuda' cannot be used: no GPU was found" in told


def test_learning_that_breaks_exits_with_2_and_names_the_checkpoint(tmp_path, capsys):
    overflow = {"ppo.value_weight": 1e38, "ppo.engine": "autograd", "ppo.learning_rate": 1.0}
    told = refused(["train", "smoke", *words(tmp_path, **overflow)], capsys)
    assert "Learning broke at step 64" in told
    assert f"checkpoints/{0:012d}" in told


# eval


def test_eval_prints_the_table_and_writes_the_report(two, capsys):
    run = two[1]
    assert cli.run(["eval", str(run.path)]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("Sharpe ratio", "buy and hold", "random", "95% interval"))
    assert f"report: {run.folder.report_path}" in told
    assert run.folder.report_path.is_file()


def test_eval_as_json(two, capsys):
    run = two[0]
    arguments = ["eval", run.folder.id, "--folder", str(run.path.parent), "--split", "validation", "--json"]
    assert cli.run([*arguments, "--no-report", "--checkpoint", "latest"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["kind"]) == ("validation", "backtest")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--split", "tset"],
            "no split 'tset' in this market; there are train, validation, test. Did you mean 'test'?",
        ),
        (["--split", "train"], "or pass allow_training_split=True (velodrome eval --allow-training-split)"),
        (["--anchored"], "--anchored is for --walk-forward"),
        (["--folds", "3"], "--folds is for --walk-forward"),
        (["--checkpoint", "bets"], "checkpoint = 'bets'; legal: 'best', 'latest'"),
    ],
    ids=" ".join,
)
def test_an_eval_that_cannot_be_is_refused(arguments, told, two, capsys):
    assert told in refused(["eval", str(two[0].path), *arguments], capsys)


def test_eval_of_an_unknown_run_names_those_that_there_are(two, capsys):
    told = refused(["eval", "frist", "--folder", str(two[0].path.parent)], capsys)
    assert f"Near to that: {two[0].path.name}" in told


def test_eval_on_the_training_split_can_be_asked_for(two, capsys):
    assert cli.run(["eval", str(two[0].path), "--split", "train", "--allow-training-split", "--no-report"]) == 0
    assert "IN SAMPLE" in capsys.readouterr().out


def test_eval_walk_forward(two, capsys):
    run = two[0]
    arguments = ["eval", str(run.path), "--walk-forward", "--folds", "2"]
    assert cli.run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert len(found["folds"]) == 2
    assert "fold 1 of 2" in captured.err
    assert cli.run(arguments) == 0
    told = capsys.readouterr().out
    assert told.count("not trained again") == 2
    assert "2 folds, each tested on what follows" in told


def test_eval_walk_forward_may_be_anchored(two, monkeypatch, capsys):
    received: list[dict] = []
    told = SimpleNamespace(to_json=lambda: "{}")
    monkeypatch.setattr(walk_forward, "walk_forward", lambda *given, **named: (received.append(named), told)[1])
    for further in ((), ("--anchored",)):
        assert cli.run(["eval", str(two[0].path), "--walk-forward", "--json", *further]) == 0
    assert [named["anchored"] for named in received] == [False, True]


@pytest.mark.parametrize("flag", ["--folder", "--runs-folder", "--runs-folder="])
def test_the_folder_of_the_runs_has_one_flag_and_its_old_name_works(flag, two, capsys):
    folder = str(two[0].path.parent)
    given = [flag + folder] if flag.endswith("=") else [flag, folder]
    for command in (["runs", "show", "first"], ["eval", "first", "--no-report"]):
        assert cli.run([*command, *given, "--json"]) == 0
    capsys.readouterr()
    for command in (["train"], ["eval"], ["runs", "list"]):
        assert cli.run([*command, "--help"]) == 0
        told = capsys.readouterr().out
        assert "--folder" in told
        assert "--runs-folder" not in told


# runs


def test_runs_list(two, capsys):
    folder = ["--folder", str(two[0].path.parent)]
    assert cli.run(["runs", "list", *folder]) == 0
    told = capsys.readouterr().out
    assert all(run.folder.id in told for run in two)
    assert cli.run(["runs", "list", *folder, "--json", "--status", "finished"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {run.folder.id for run in two} <= {entry["id"] for entry in found}
    assert cli.run(["runs", "list", *folder, "--json", "--limit", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_runs_show_leaves_out_counters_that_never_counted(two, capsys):
    shown, compared = (["runs", "show", "first"], ["runs", "compare", "first", "second"])
    for command in (shown, compared):
        assert cli.run([*command, "--folder", str(two[0].path.parent)]) == 0
        told = capsys.readouterr().out
        assert "episode/opened" in told
        assert "episode/refused_cooldown" not in told
        assert "episode/liquidated" not in told
    assert cli.run([*shown, "--folder", str(two[0].path.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["episode/liquidated"] == 0.0


def test_runs_show(two, capsys):
    run = two[0]
    folder = ["--folder", str(run.path.parent)]
    assert cli.run(["runs", "show", "first", *folder]) == 0
    assert run.folder.id in capsys.readouterr().out
    assert cli.run(["runs", "show", run.folder.id, *folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == run.folder.id


def test_runs_compare(two, capsys):
    folder = ["--folder", str(two[0].path.parent)]
    assert cli.run(["runs", "compare", "first", "second", *folder]) == 0
    assert "learning_rate" in capsys.readouterr().out
    assert cli.run(["runs", "compare", "first", "second", *folder, "--json"]) == 0
    assert "learning_rate" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".onnx", ".pt"])
def test_runs_export(suffix, two, tmp_path, capsys):
    path = tmp_path / f"out{suffix}"
    assert cli.run(["runs", "export", "first", str(path), "--folder", str(two[0].path.parent)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.stat().st_size > 0


def test_what_cannot_be_shown_is_refused(two, tmp_path, capsys):
    folder = ["--folder", str(two[0].path.parent)]
    assert "no run 'frist'" in refused(["runs", "show", "frist", *folder], capsys)
    assert "there is no store" in refused(["runs", "list", "--folder", str(tmp_path)], capsys)
    told = refused(["runs", "list", "--status", "finisched", *folder], capsys)
    assert "running, finished, interrupted, failed" in told
    assert "Did you mean 'finished'?" in told
    assert ".xlsx" in refused(["runs", "export", "first", str(tmp_path / "out.xlsx"), *folder], capsys)
    assert "two" in refused(["runs", "compare", "first", *folder], capsys).lower()


# config and profile


def test_config_explains_everything_a_section_and_a_key(capsys):
    for arguments, told in (
        ([], "num_envs"), (["ppo"], "gae_lambda"), (["ppo.clip"], "probability ratio"), (["params"], "fee"),
    ):  # fmt: skip
        assert cli.run(["config", *arguments]) == 0
        assert told in capsys.readouterr().out
    assert "Did you mean" in refused(["config", "pppo"], capsys)


def test_config_prints_presets_that_can_be_trained(tmp_path, capsys):
    assert cli.run(["config", "--presets"]) == 0
    assert "smoke" in capsys.readouterr().out
    assert cli.run(["config", "--preset", "smoke"]) == 0
    path = tmp_path / "mine.yaml"
    path.write_text(capsys.readouterr().out)
    assert cli.run(["train", str(path), *words(tmp_path / "runs", steps=64), "--quiet", "--no-evaluation"]) == 0
    assert "Did you mean 'smoke'" in refused(["config", "--preset", "smok"], capsys)


def test_profile_shows_where_the_time_goes(tmp_path, capfd):
    arguments = ["--iterations", "2", "--folder", str(tmp_path / "profile")]
    assert cli.run(["profile", "smoke", *words(tmp_path), *arguments]) == 0
    told, errors = capfd.readouterr()
    shares = dict(re.findall(r"^ ?(environment|inference|learning|other) +([\d.]+)%", told, re.MULTILINE))
    assert all(float(shares[name]) > 0 for name in ("environment", "inference", "learning"))
    assert float(shares["other"]) < 90
    assert "USDT:" not in errors
    assert {path.name for path in (tmp_path / "profile").iterdir()} >= {"profile.html", "trace.json"}


# The process


def test_train_runs_as_a_process(tmp_path):
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "velodrome"]
    train = [*command, "train", "smoke", *words(tmp_path / "runs", steps=64), "--no-evaluation"]
    answer = subprocess.run(train, capture_output=True, text=True, timeout=120, env=here, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "done: 64 of 64 steps" in answer.stdout


def test_the_first_lines_say_which_settings_are_in_effect_and_why(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = [f"logging.folder={tmp_path}", "steps=1024", "ppo.gamma=0.7", "--no-evaluation"]
    assert cli.run(["train", "smoke", *words]) == 0
    told = capsys.readouterr().out.partition("everything else: defaults")[0]
    assert max(map(len, told.splitlines())) <= 80
    preset, given = told.split("given: ")
    assert preset.startswith("preset smoke: env=trading")
    assert "ppo.rollout_length=32" in preset
    assert "ppo.gamma=0.7" in given
    assert "ppo.gamma" not in preset


def test_config_shows_where_each_value_comes_from(capsys):
    assert cli.run(["config", "trading", "market.source=prices/", "fee=0.002"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  gamma: 0.8  # preset trading" in lines
    assert "  fee: 0.002  # given" in lines
    assert "  clip: 0.2  # default" in lines
