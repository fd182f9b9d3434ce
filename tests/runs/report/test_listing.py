"""What `velodrome runs` shows."""

from __future__ import annotations

import io
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from velodrome.errors import ConfigError
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.config.sections import HELD_OUT
from velodrome.runs.folder import RunError, RunFolder
from velodrome.runs.report.listing import (
    CHOOSING,
    age,
    compare_content,
    compare_view,
    config_differences,
    find_run,
    flattened,
    list_content,
    list_table,
    show_content,
    show_view,
)
from velodrome.runs.report.speed import SPEED, mean_speed
from velodrome.runs.store.rows import CheckpointRow, EvaluationRow, MetricRow, RunRecord
from velodrome.runs.store.store import SqlStore, open_store


def text_of(renderable: object, width: int = 140) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


def add(store: SqlStore, root: Path, name: str, seconds_old: float = 0.0, **fields) -> RunRecord:
    """A run with a folder, and a row that says the same."""
    folder = RunFolder.create(root, name)
    now = time.time()
    usual = {"config": RunConfig().content(), "data_hash": "d" * 64, "versions": {"python": "3.11", "torch": "2.13"}}
    run = RunRecord(
        folder.id, name, str(folder.path), env="trading", algorithm="ppo", created=now - seconds_old, updated=now,
        **{**usual, **fields},
    )  # fmt: skip
    store.create_run(run)
    return run


@pytest.fixture
def learned(store, tmp_path) -> RunRecord:
    """A finished run with metrics and an evaluation."""
    run = add(
        store, tmp_path, "learned", 7200.0, status="finished",
        config=RunConfig(seed=3, ppo={"learning_rate": 0.001}, steps=40_000).content(),
    )  # fmt: skip
    rows = [MetricRow(step, "episode/return", math.sqrt(step), 1.0) for step in range(0, 40_000, 500)]
    rows += [MetricRow(39_500, "time/steps_per_second", 81_234.0, 1.0), MetricRow(39_500, "loss/policy", math.nan, 1.0)]
    store.add_metrics(run.id, rows)
    store.update_run(run.id, steps=40_000)
    store.add_evaluations(
        run.id,
        [EvaluationRow(40_000, "test", "return", 0.125, -0.0625, 0.25), EvaluationRow(40_000, "test", "sharpe", 1.5)],
    )
    store.set_checkpoints(run.id, [CheckpointRow(40_000, f"{run.folder}/checkpoints/000000040000", False, 1.0)])
    return store.run(run.id)


def test_the_list_has_the_newest_first_with_what_matters(store, tmp_path, learned):
    failed = add(store, tmp_path, "newer", 90.0, status="failed", error="NaN in the loss")
    rows = list_content(store)
    assert [row["id"] for row in rows] == [failed.id, learned.id]
    assert [row["status"] for row in rows] == ["failed", "finished"]
    assert rows[1]["steps"] == rows[1]["total_steps"] == 40_000
    assert rows[1]["steps_per_second"] == 81_234.0
    about = {"split": "test", "label": "test", "policy": None}  # from before policies were named
    assert rows[1]["evaluation"] == {**about, "value": 0.125, "low": -0.0625, "high": 0.25}
    assert rows[0]["evaluation"] is rows[0]["steps_per_second"] is None
    json.dumps(rows, allow_nan=False)
    text = text_of(list_table(store))
    for shown in (
        learned.id,
        "learned",
        "finished",
        "ppo",
        "40.0 k of 40.0 k",
        "81.2 k",
        "+12.50% [−6.25% … +25.00%]",
        "2 h",
    ):
        assert shown in text
    assert text.index(failed.id) < text.index(learned.id)
    assert "1 min" in text
    assert [row["id"] for row in list_content(store, status="finished")] == [learned.id]


def test_an_empty_list_says_so(store):
    assert list_content(store) == []
    assert "no runs" in text_of(list_table(store))


def test_a_running_run_without_a_process_is_shown_as_killed(store, tmp_path):
    run = add(store, tmp_path, "gone")
    elsewhere = add(store, tmp_path, "elsewhere", 60.0)
    store.update_run(elsewhere.id, folder="/on/another/machine")
    assert {row["name"]: row["status"] for row in list_content(store)} == {"gone": "killed", "elsewhere": "running"}
    assert "killed" in text_of(list_table(store))
    with RunFolder.open(run.folder).lock():
        assert show_content(store, run)["status"] == "running"
    store.update_run(run.id, status="interrupted")
    assert show_content(store, store.run(run.id))["status"] == "interrupted"


def test_without_a_final_evaluation_the_last_of_training_is_shown(store, tmp_path):
    run = add(store, tmp_path, "training")
    store.add_metrics(run.id, [MetricRow(step, "evaluation/test/return", step / 10, 1.0) for step in (1, 2)])
    about = {"split": "test", "label": "test (used for selection)", "policy": None}
    assert list_content(store)[0]["evaluation"] == {**about, "value": 0.2, "low": None, "high": None}
    assert "+20.00% (used for selection)" in text_of(list_table(store), 160)


def test_the_speed_of_a_run_is_that_of_all_its_steps(store, tmp_path, learned):
    """Two iterations of which one takes nine times as long have half of the steps each, and not half of the time."""
    slow = add(store, tmp_path, "compiled-at-first", status="finished")
    speeds = [MetricRow(64 * (k + 1), SPEED, value, 1.0) for k, value in enumerate((10_000.0, 90_000.0))]
    store.add_metrics(slow.id, [*speeds, MetricRow(192, SPEED, math.nan, 1.0)])
    assert show_content(store, slow)["mean_steps_per_second"] == pytest.approx(18_000.0)
    assert show_content(store, learned)["mean_steps_per_second"] == pytest.approx(81_234.0)
    (told,) = (line for line in text_of(compare_view(store, [slow, learned])).splitlines() if "mean steps/s" in line)
    assert [cell.strip() for cell in told.split("│")[2:4]] == ["18.0 k", "81.2 k"]
    assert mean_speed(store, [slow.id, learned.id]) == pytest.approx((18_000.0 + 81_234.0) / 2)
    assert mean_speed(store, []) is None


@pytest.mark.parametrize(("number", "told"), [(1, "group (1 seed)"), (2, "group (2 seeds)")])
def test_seeds_are_counted_in_words(number, told, store, tmp_path):
    group = add(store, tmp_path, "group")
    for seed in range(number):
        store.add_member(group.id, add(store, tmp_path, f"seed{seed}").id)
    assert told in text_of(list_table(store), 200)


def test_seeds_that_have_not_begun_are_no_seeds_of_a_result(store, tmp_path):
    group = add(store, tmp_path, "group", config=RunConfig(seeds=3).content())
    for seed in range(2):
        store.add_member(group.id, add(store, tmp_path, f"seed{seed}").id)
    assert "group (2 of 3 seeds)" in text_of(list_table(store), 200)
    assert "2 of 3 training seeds from" in text_of(show_view(store, group))


def test_the_block_that_a_fold_leaves_out_is_no_test(store, tmp_path, learned):
    """Settings are chosen by it, so that its return would flatter whoever read it as a test's."""
    told = RunConfig().content()
    told["evaluation"]["final_split"] = HELD_OUT
    fold = add(store, tmp_path, "fold-1-of-5", status="finished", config=told)
    store.add_evaluations(fold.id, [EvaluationRow(64, HELD_OUT, "return", 8.75, 5.0, 13.5)])
    assert [row["evaluation"]["label"] for row in list_content(store)] == [CHOOSING, "test"]
    lines = text_of(list_table(store), 200).splitlines()
    (heading,) = (line for line in lines if "test return" in line)
    (own,) = (line for line in lines if fold.id in line)
    assert heading.index(CHOOSING) > heading.index("test return")
    assert own.index("+875.0%") > heading.index(CHOOSING)
    assert "13.5" not in own
    assert f"evaluation on {CHOOSING};" in text_of(show_view(store, fold))
    assert f"{CHOOSING}/return" in text_of(compare_view(store, [fold, learned]))
    assert CHOOSING not in text_of(list_table(store, name="learned"), 200)
    assert CHOOSING in text_of(list_table(store, name="fold-1-of-5"), 200)


def test_a_run_is_shown_with_what_differs_from_the_defaults(store, learned):
    content = show_content(store, learned)
    assert content["config_differences"] == {
        "seed": (3, 0), "steps": (40_000, RunConfig().steps), "ppo.learning_rate": (0.001, 0.0003),
    }  # fmt: skip
    assert content["metrics"]["loss/policy"] is None
    assert content["metrics"]["episode/return"] == math.sqrt(39_500)
    json.dumps(content, allow_nan=False)
    text = text_of(show_view(store, learned))
    for shown in (
        "ppo.learning_rate",
        "0.001",
        "0.0003",
        "torch",
        "2.13",
        "81,234",
        "nan",
        "sharpe",
        "1.5",
        "1, the last of step 40,000",
    ):
        assert shown in text
    curve = next(line for line in text.splitlines() if line.startswith("episode/return  "))
    assert "▁" in curve
    assert "█" in curve


def test_shares_are_in_per_cent_and_names_say_what_has_to_be_known(store, tmp_path):
    run = add(store, tmp_path, "account", steps=9)
    account = {"return": -0.25, "max_drawdown": 0.5, "sharpe": 0.125}
    measured = {
        f"{group}/{name}": value for group in ("episode", "evaluation/validation") for name, value in account.items()
    }
    measured |= {"episode/return": 896.27, "episode/equity_return": -0.25}  # the sum of rewards, and what is earned
    store.add_metrics(run.id, [MetricRow(9, name, value, 1.0) for name, value in measured.items()])
    for view in (show_view(store, run), compare_view(store, [run, add(store, tmp_path, "other")])):
        lines = [line.split("│")[1:] for line in text_of(view).splitlines() if "│" in line]
        told = {cells[0].strip(): cells[1].strip() for cells in lines}
        assert told["episode/equity_return"] == told["evaluation/validation/return (used for selection)"] == "-25.00%"
        assert told["episode/return (sum of rewards)"] == "896.3"
        assert told["evaluation/validation/max_drawdown (used for selection)"] == "50.00%"
        assert told["episode/sharpe (per bar)"] == "0.125"
    assert text_of(show_view(store, run)).splitlines()[-1].endswith("-25.00% to -25.00%, best -25.00%")


def test_a_run_that_has_only_begun_is_shown(store, tmp_path):
    run = add(store, tmp_path, "begun", versions={}, error="")
    text = text_of(show_view(store, run))
    assert "configuration: the defaults" in text
    assert "none" in text


def test_the_error_of_a_failed_run_is_shown(store, tmp_path):
    run = add(store, tmp_path, "failed", status="failed", error="NaN in the loss [step 3]")
    assert "NaN in the loss [step 3]" in text_of(show_view(store, run))


def test_a_default_configuration_differs_in_nothing():
    assert config_differences(RunConfig().content()) == {}


def test_runs_are_compared_where_they_differ(store, tmp_path, learned):
    other = add(store, tmp_path, "other", config=RunConfig(seed=4, steps=40_000).content())
    store.add_metrics(other.id, [MetricRow(5, "loss/value", 2.0, 1.0)])
    content = compare_content(store, [learned, store.run(other.id)])
    assert content["config"] == {"seed": [3, 4], "ppo.learning_rate": [0.001, 0.0003]}
    assert content["metrics"]["loss/value"] == [None, 2.0]
    told = "+12.50% [−6.25% … +25.00%]"
    assert content["evaluations"]["test/return"] == [{"value": 0.125, "low": -0.0625, "high": 0.25, "text": told}, None]
    assert content["same_data"]
    json.dumps(content, allow_nan=False)
    text = text_of(compare_view(store, [learned, other]))
    for shown in ("learned", "other", "seed", "0.0003", "test/return", "+12.50% [−6.25% … +25.00%]", "loss/value"):
        assert shown in text
    assert "different data" not in text


def test_infinite_figures_are_shown_as_their_evaluation_shows_them(store, tmp_path, learned):
    """A profit factor without a loss, or a track record that is never long enough, is known: no dash."""
    other = add(store, tmp_path, "other")
    infinite = {"profit_factor": math.inf, "mean_log_return": -math.inf}
    store.add_evaluations(
        other.id, [EvaluationRow(5, "test", name, value, math.nan, math.nan) for name, value in infinite.items()]
    )
    found = compare_content(store, [learned, store.run(other.id)])["evaluations"]
    own = {key: values[1] for key, values in found.items() if values[1] is not None}
    assert {key: row["value"] for key, row in own.items()} == {
        "test/profit_factor": "Infinity",
        "test/mean_log_return": "-Infinity",
    }
    assert own["test/mean_log_return"]["low"] is None
    assert [own[f"test/{name}"]["text"] for name in infinite] == ["∞", "−∞"]
    json.dumps(show_content(store, store.run(other.id)), allow_nan=False)
    text = text_of(show_view(store, store.run(other.id)))
    assert "∞" in text
    assert "−∞" in text


def test_runs_on_other_data_are_compared_with_a_warning(store, tmp_path, learned):
    other = add(store, tmp_path, "other", data_hash="e" * 64, config=learned.config)
    text = text_of(compare_view(store, [learned, other]))
    assert "They saw different data" in text
    assert "configuration: the same" in text


def test_a_run_is_not_compared_with_itself(store, learned):
    with pytest.raises(ConfigError, match="two different runs or more, and got 1"):
        compare_content(store, [learned, learned])


def test_a_run_is_found_by_what_a_person_writes(store, tmp_path, learned):
    newer = add(store, tmp_path, "newer")
    for text in (learned.id, learned.id[:6], "learned", learned.folder, Path(learned.folder).name):
        assert find_run(store, text) == learned
    assert find_run(store, "latest").id == newer.id
    with pytest.raises(RunError, match="Near to that: learned-"):
        find_run(store, "learnd")


def test_a_narrow_terminal_shows_every_row(store, tmp_path, learned):
    add(store, tmp_path, "newer")
    told = text_of(list_table(store), width=60)
    assert all(run.id in told for run in store.runs())
    assert "+12.50% [−6.25% … +25.00%]" in told


def test_names_with_brackets_are_text_not_markup(store, tmp_path):
    run = add(store, tmp_path, "plain")
    store.create_run(replace(run, id="other", name="[bold]name[/bold]", folder="/x/[red]"))
    assert "[bold]" in text_of(list_table(store), width=200)


def test_nested_values_by_dotted_key():
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (172800, "2 d")]
)
def test_an_age_in_its_largest_unit(seconds, text):
    assert age(seconds) == text


def test_the_list_of_many_runs_asks_the_store_no_more_often_than_that_of_few(store, tmp_path):
    from sqlalchemy import event

    asked: list[str] = []
    event.listen(store._engine, "before_cursor_execute", lambda *about: asked.append(about[2]))

    def questions() -> int:
        asked.clear()
        list_content(store)
        return len(asked)

    add(store, tmp_path, "first")
    few = questions()
    for number in range(30):
        run = add(store, tmp_path, f"run{number}", status="finished")
        store.add_metrics(run.id, [MetricRow(step, "time/steps_per_second", float(step), 1.0) for step in (64, 128)])
    assert questions() == few
    assert {entry["steps_per_second"] for entry in list_content(store)} == {None, 128.0}
