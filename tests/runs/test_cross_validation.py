"""Cross-validation in time: folds that see nothing of their blocks, their spread, and what a stop leaves behind."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import last_tensors, one_thread, signals_after, tiny  # noqa: F401
from velodrome import cli
from velodrome.errors import ConfigError, RunError
from velodrome.runs.config.explain import to_yaml
from velodrome.runs.config.files import load_run_config
from velodrome.runs.folder import RunFolder, run_folders
from velodrome.runs.folds import cross_validation
from velodrome.runs.folds.cross_validation import FILE, HELD_OUT, CrossValidation, Figure, cross_validate
from velodrome.runs.folds.fold import begun_run
from velodrome.runs.run import Run
from velodrome.runs.together import processes
from velodrome.runs.together.processes import Seen
from velodrome.tables.folds import PurgedFold

SETTINGS = {"steps": 192, "market.length": 600, "params.fee": 0.0001}
PURGED = 5  # 3 bars before in a window, one more in their returns, and the bar with which an order is filled


def silent() -> Console:
    return Console(file=io.StringIO(), width=400)


def config_in(folder, **settings):
    return load_run_config("smoke", tiny(folder, **{**SETTINGS, **settings}))


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return cross_validate(config_in(folder), 3, embargo=2, processes=1, console=silent())


def bits(result):
    return [{name: own.numpy().tobytes() for name, own in last_tensors(fold.run).items()} for fold in result.folds]


def test_blocks_cover_all_that_lies_before_the_test_and_nothing_of_it(judged):
    whole = config_in("anywhere").market.build()
    ((first, _),), ((_, last),) = whole.splits["train"], whole.splits["validation"]
    blocks = []
    for fold in judged.folds:
        market = fold.run.market
        assert np.array_equal(market.time, whole.time)
        assert list(market.splits) == ["train", "validation", HELD_OUT]
        blocks += market.splits[HELD_OUT]
        assert all(first <= low < high <= last for ranges in market.splits.values() for low, high in ranges)
        (begin, end), used = market.splits[HELD_OUT][0], np.zeros(len(market), bool)
        for low, high in (*market.splits["train"], *market.splits["validation"]):
            used[low:high] = True
        assert not used[max(begin - PURGED, 0) : end + PURGED + 2].any()
        assert begin - PURGED <= first or used[begin - PURGED - 1]
        assert end + PURGED + 2 >= last or used[end + PURGED + 2]
    assert (blocks[0][0], blocks[-1][1]) == (first, last)
    assert [low for low, _ in blocks[1:]] == [high for _, high in blocks[:-1]]
    assert judged.settings["purged"] == [PURGED, 2 * PURGED, PURGED]
    assert judged.settings["embargoed"] == [2, 2, 0]


def test_the_scalers_of_a_fold_know_its_training_rows_alone(judged):
    for fold in judged.folds:
        market = fold.run.market
        close = market.ohlc[:, 3]
        returns = np.r_[np.nan, close[1:] / close[:-1] - 1.0]
        shown = np.concatenate([returns[low - 3 : high] for low, high in market.splits["train"]])
        assert market.scalers[0].centre[0, 0] == pytest.approx(shown.mean(), rel=1e-9)
        assert market.scalers[0].scale[0, 0] == pytest.approx(shown.std(), rel=1e-9)
    assert len(judged.folds[1].run.market.splits["train"]) == 2


def test_checkpoints_are_not_chosen_by_the_block(judged):
    for fold in judged.folds:
        assert fold.evaluation.split == HELD_OUT
        assert (fold.evaluation.in_sample, fold.evaluation.used_for_selection) == (False, False)
        assert fold.run.config.evaluation.split == "validation"


def test_mean_deviation_and_error_are_over_folds(judged):
    values = np.array([fold.evaluation.metrics["return"] for fold in judged.folds])
    figure = judged.figures["return"]
    assert figure[:2] == pytest.approx((values.mean(), values.std(ddof=1)))
    assert figure.error == pytest.approx(values.std(ddof=1) / 3**0.5)
    assert judged.mean["return"] == figure.mean
    nan = float("nan")
    assert Figure.of([1.0, nan, 3.0]) == (2.0, pytest.approx(2.0**0.5), pytest.approx(1.0), 2)
    assert str(Figure.of([nan, nan])) == "Figure(mean=nan, deviation=nan, error=nan, folds=0)"
    assert Figure.of([1.0, float("inf")]).mean == float("inf")


def test_what_is_shown_and_written(judged):
    written = json.loads((judged.path / FILE).read_text())
    assert written == json.loads(judged.to_json())
    assert written["figures"]["sharpe"]["mean"] == judged.mean["sharpe"]
    screen = Console(file=io.StringIO(), width=80)
    screen.print(judged.table())
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert [line.split()[0] for line in lines[7:10]] == ["mean", "deviation", "error"]
    told = " ".join(" ".join(lines).split())
    assert "for choosing settings only, never a backtest" in told
    assert "20 bars were purged" in told
    assert "4 embargoed" in told
    assert repr(judged).startswith("CrossValidation over 3 folds in cross-validation-")
    assert "<th>deviation</th>" in judged._repr_html_()
    assert "never a backtest" in judged._repr_html_()


def test_the_command_says_the_same_and_trains_no_fold_twice(judged, capsys, monkeypatch, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(config_in(judged.path.parent)))
    monkeypatch.setattr(cross_validation, "finished_run", None)
    monkeypatch.setenv("COLUMNS", "80")
    command = ["cv", str(path), "evaluation.folds=3", "--embargo", "2"]
    assert cli.run(command) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 folds have finished: not trained again" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert cli.run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(judged.to_json())


def test_how_much_is_to_be_trained_is_said_first(judged, tmp_path, monkeypatch):
    begun, told = judged.path.parent, silent()
    monkeypatch.setattr(cross_validation, "finished_run", None)
    cross_validate(config_in(begun), 3, embargo=2, processes=1, console=told)
    assert told.file.getvalue().startswith("3 folds: 3 trainings of 192 steps; a fold is judged on a block of ")
    part = PurgedFold((0, 1), (), None, purged=92, embargoed=0, bars=12)
    plan, warning = cross_validation._told_plan(config_in(begun, seeds=2), [part] * 400)
    assert plan == "400 folds: 800 trainings, 2 of each, of 192 steps; a fold is judged on a block of 12 bars"
    assert "fewer bars are judged in a block (12) than are purged beside it (92)" in warning
    assert len(list(cross_validation._told_plan(config_in(begun), [part._replace(bars=92)] * 4))) == 1


def test_a_block_without_bars_of_an_instrument_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = vd.synthetic_bars("gbm", 600, seed=0, symbols=["OLD", "NEW"])
    frames = {name: pl.DataFrame({"time": both[name].time, "close": both[name].close}) for name in both.symbols}
    frames["NEW"] = frames["NEW"][300:]
    market = vd.build_market(frames, features=["return"], windows=3, check_leaks=False)
    told = "fold 1 of 5 leaves out 2020-01-01 00:0. to .* UTC: split 'held_out' is empty for NEW: .* Fewer folds"
    with pytest.raises(ConfigError, match=told):
        cross_validate("smoke", 5, market=market, console=silent())


def test_how_long_the_other_folds_take_is_said_when_some_have_ended():
    jobs = [processes.Job("one", print, (), 100, lambda: Seen(50)), processes.Job("two", print, (), 100, Seen)]
    pace = processes._Pace(jobs)
    pace.began -= 60.0
    assert pace.told_left(2) == "; 2 left"
    pace.steps = {jobs[0]: 100, jobs[1]: 40}  # 90 steps in a minute, 60 to do
    assert pace.told_left(1) == "; 1 left, about 40 s"
    assert pace.told_left(0) == ""


def test_a_process_that_is_stopped_while_its_run_begins_ends_as_interrupted():
    with pytest.raises(SystemExit) as ended, processes._stopped_by_a_signal():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == processes.INTERRUPTED


def test_a_fold_looks_at_no_other_runs(judged, monkeypatch):
    """Hundreds of folds that read the folders of all the others take minutes before anything is trained."""
    read, config = [], judged.folds[0].run.config
    monkeypatch.setattr(RunFolder, "_read", classmethod(lambda cls, path: read.append(path) or cls(path, "0" * 8)))
    assert begun_run(config).path == judged.folds[0].run.path
    assert read == [judged.folds[0].run.path]


def test_a_stop_loses_nothing(judged, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        signals_after(patch, 4)  # three iterations a fold
        with pytest.raises(KeyboardInterrupt):
            cross_validate(config_in(tmp_path), 3, embargo=2, processes=1, console=silent())
    assert [Run.of(folder).status for folder in run_folders(tmp_path)] == ["finished", "interrupted"]
    told = silent()
    again = cross_validate(config_in(tmp_path), 3, embargo=2, processes=1, console=told)
    assert "1 of 3 folds have finished: not trained again" in told.file.getvalue()
    assert bits(again) == bits(judged)
    assert again.figures["return"] == judged.figures["return"]
    assert len(run_folders(tmp_path)) == 3


def test_the_number_of_folds_is_in_the_configuration_and_no_part_of_older_hashes():
    default = load_run_config("smoke")
    assert default.evaluation.folds == 5
    assert default.hash == load_run_config("smoke", {"evaluation.folds": 5}).hash
    with pytest.raises(ConfigError, match=r"evaluation\.folds"):
        load_run_config("smoke", {"evaluation.folds": 1})
    with pytest.raises(ConfigError, match=r"evaluation\.folds is set and would have no effect"):
        load_run_config("cartpole", {"evaluation.folds": 3})


DATES = {"train": (None, "2020-01-01T04:00"), "validation": ("2020-01-01T05:00", "2020-01-01T07:00")}


@pytest.mark.parametrize(
    ("given", "named", "told"),
    [
        ("cartpole", {}, "env = 'CartPole-v1' plays on no market"),
        ("smoke", {"folds": 1}, "folds is 1; give a whole number of at least 2"),
        ("smoke", {"folds": 5000}, "folds = 5,000: .* may be cut into blocks, and a block needs 2; take at most"),
        ("smoke", {"embargo": -1}, "embargo is -1; give a whole number of at least 0"),
        ("smoke", {"embargo": 10**6}, "embargoed; too few are left to train on"),
        ("smoke", {"processes": 0}, "processes is 0; give a whole number of at least 1"),
        ("smoke", {"data": "elsewhere"}, "data = 'elsewhere' is for a run that was trained"),
        (
            "smoke",
            {"market.splits": {**DATES, "test": ("2020-01-01T07:00", None)}},
            "leaves out 60 bars between the splits before the test",
        ),
        (
            "smoke",
            {"market.splits": {"test": (None, "2020-01-01T05:00"), "train": ("2020-01-01T05:00", None)},
             "evaluation.split": None},
            "nothing before the test split",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_cross_validated_is_refused(given, named, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = {"market.check_leaks": False} if given == "smoke" else {}
    with pytest.raises(ConfigError, match=told):
        cross_validate(given, console=silent(), **named, **more)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_basket_is_cut_and_a_given_one_is_scaled_again(tmp_path):
    config = load_run_config("portfolio", {
        "logging.folder": str(tmp_path), "steps": 256, "num_envs": 8, "ppo.rollout_length": 8, "market.length": 500,
        "market.windows": 4, "market.check_leaks": False, "network.hidden": (8,), "evaluation.every_steps": 128,
        "evaluation.bootstrap_samples": 20, "params.episode_length": 16,
    })  # fmt: skip
    built = cross_validate(config, 3, processes=1, console=silent())
    given = cross_validate(config, 3, processes=1, console=silent(), market=config.market.build_basket())
    for own, other in zip(built.folds, given.folds, strict=True):
        assert own.splits == other.splits
        assert own.run.folder.id == other.run.folder.id or own.run.path != other.run.path
        assert own.evaluation.metrics.keys() == other.evaluation.metrics.keys()
    assert len(built.folds[1].run.market.splits["train"]) == 2
    assert built.folds[1].run.market.split("train").stretches == ("the grid",) * 2


# Several processes


@pytest.mark.slow
def test_folds_that_are_trained_at_once_are_the_same(judged, tmp_path, capfd):
    told = silent()
    apart = cross_validate(config_in(tmp_path), 3, embargo=2, processes=2, console=told)
    assert "3 folds, 2 at a time in processes of their own" in told.file.getvalue()
    assert bits(apart) == bits(judged)
    assert apart.figures == judged.figures or repr(apart.figures) == repr(judged.figures)
    assert not capfd.readouterr().err


@pytest.mark.slow
def test_an_interruption_reaches_folds_that_are_trained_at_once(tmp_path):
    settings = {"steps": 64 * 500, "checkpoint.every_steps": 640, "evaluation.every_steps": 32_000}

    def interrupt() -> None:
        while sum((path / "metrics.jsonl").is_file() for path in tmp_path.glob("fold-*")) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        cross_validate(config_in(tmp_path, **settings), 2, processes=2, console=silent())
    assert [Run.of(folder).status for folder in run_folders(tmp_path)] == ["interrupted"] * 2
    again = cross_validate(config_in(tmp_path, **settings), 2, processes=2, console=silent())
    alone = cross_validate(config_in(tmp_path / "alone", **settings), 2, processes=1, console=silent())
    assert bits(again) == bits(alone)


@pytest.mark.slow
def test_a_fold_that_fails_in_its_process_says_why(tmp_path):
    with pytest.raises(RunError, match=r"A fold could not be trained: fold \d: no episode fits"):
        cross_validate(config_in(tmp_path, **{"params.episode_length": 400}), 3, processes=2, console=silent())


def test_a_mean_over_some_of_the_folds_says_so():
    def fold(sharpe):
        return SimpleNamespace(evaluation=SimpleNamespace(metrics={"return": 0.1, "sharpe": sharpe}))

    settings = {"purged": [1], "embargoed": [0]}
    some = CrossValidation(Path("."), (fold(float("nan")), fold(1.0), fold(float("nan"))), settings)
    assert any("the mean is that of the others: Sharpe ratio (1 of 3)" in note for note in some.notes)
    every = CrossValidation(Path("."), (fold(1.0), fold(2.0)), settings)
    assert not any("not defined" in note for note in every.notes)
