"""Walk-forward: folds that never see their tests, runs that are not trained twice, tests joined into one curve."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import one_thread, signals_after, small_run, tiny  # noqa: F401
from velodrome import tables
from velodrome.errors import ConfigError, RunError
from velodrome.evaluation.measures import BY_NAME, format_figure
from velodrome.evaluation.result import Evaluation
from velodrome.runs.config.files import load_run_config
from velodrome.runs.folder import run_folders
from velodrome.runs.report.folds import digits_shown, folds_table
from velodrome.runs.run import Run
from velodrome.runs.walk_forward import SPLIT, FoldsPolicy, walk_forward
from velodrome.tables.folds import spans_of, with_splits
from velodrome.tables.splits import make_splits

SETTINGS = {"steps": 192, "market.length": 600, "params.fee": 0.0001}


def silent() -> Console:
    return Console(file=io.StringIO(), width=400)


def config_in(folder, **settings):
    return load_run_config("smoke", tiny(folder, **{**SETTINGS, **settings}))


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return walk_forward(config_in(folder), 3, console=silent())


def test_no_fold_sees_its_test_or_anything_after_it(walked):
    for fold in walked.folds:
        market = fold.run.market
        assert list(market.splits) == ["train", "validation", "test"]
        times = {name: market.time[low:high] for name, ((low, high),) in market.splits.items()}
        assert times["train"].max() < times["validation"].min()
        assert times["validation"].max() < times["test"].min()


def test_the_scalers_of_a_fold_know_its_training_rows_alone(walked):
    for fold in walked.folds:
        market = fold.run.market
        close = market.ohlc[:, 3]
        returns = np.r_[np.nan, close[1:] / close[:-1] - 1.0]
        ((low, high),) = market.splits["train"]
        # A window at the first training row shows the three bars before it as well.
        assert market.scalers[0].centre[0, 0] == pytest.approx(returns[low - 3 : high].mean(), rel=1e-9)
        later = market.splits["validation"][0][1]
        assert market.scalers[0].centre[0, 0] != pytest.approx(returns[low - 3 : later].mean(), rel=1e-6)


def test_the_tests_are_those_of_the_tables_and_follow_one_another(walked):
    market = config_in("anywhere").market.build()
    parts = tables.walk_forward(market, 3)
    for fold, part in zip(walked.folds, parts, strict=True):
        own = fold.run.market.splits
        assert own["test"] == part.splits["test"]
        ((low, high),) = part.splits["train"]
        assert own["train"][0][0] == low
        assert own["validation"][0][1] == high
        share = (own["validation"][0][1] - own["validation"][0][0]) / (high - low)
        assert share == pytest.approx(0.15 / 0.85, abs=0.02)
    ends = [fold.run.market.splits["test"][0] for fold in walked.folds]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
    assert ends[-1][1] == len(market)


def test_the_joined_curve_runs_over_all_tests(walked):
    joined = walked.joined
    first, last = walked.folds[0].run.market.splits["test"][0][0], walked.folds[-1].run.market.splits["test"][0][1]
    time = walked.folds[0].run.market.time[first:last]
    assert joined.equity["time"].cast(pl.Int64).to_list() == time.tolist()
    assert joined.split == SPLIT
    assert not joined.in_sample
    assert joined.baseline_names == walked.folds[0].evaluation.baseline_names
    assert any(f"forecast: fitted again for each of {len(walked.folds)} parts" in note for note in joined.notes)
    assert all(np.isfinite([row.low, row.high]).all() for row in joined.rows if row.name == "mean_log_return")


def test_every_fold_is_played_by_its_own_agent_as_in_its_own_test(walked):
    """The first fold begins as the joined account does, so that they are equal to the bit."""
    fold = walked.folds[0].evaluation
    both = fold.bars.join(walked.joined.bars, on="time", suffix="_joined")
    assert len(both) == len(fold.bars)
    decided = both.filter(pl.col("action").is_not_null())
    assert decided["action"].to_list() == decided["action_joined"].to_list()
    assert both["equity"].to_list() == both["equity_joined"].to_list()


def test_one_fold_joined_is_that_fold(tmp_path):
    one = walk_forward(config_in(tmp_path), 1, console=silent())
    assert [repr(row) for row in one.joined.rows] == [repr(row) for row in one.folds[0].evaluation.rows]


def test_what_is_written_is_what_is_returned(walked):
    content = json.loads((walked.path / "walk_forward.json").read_text())
    assert content == json.loads(walked.to_json())
    assert [fold["run"] for fold in content["folds"]] == [fold.run.folder.id for fold in walked.folds]
    assert content["joined"]["split"] == SPLIT
    page = (walked.path / "walk_forward.html").read_text()
    assert all(fold.run.path.name in page for fold in walked.folds)
    assert Evaluation.load(walked.path, SPLIT).metrics["return"] == walked.joined.metrics["return"]
    agents = walked.joined.policy.agents
    assert [agent.run for agent in agents] == [fold.run.folder.id for fold in walked.folds]
    assert walked.joined.policy.text.startswith("3 agents, best of 1 on validation: step 192 of 192")
    assert walked.joined.policy.text in page


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_of_the_table_is_cut(walked, width):
    def wide(found: Evaluation) -> Evaluation:
        return replace(found, rows=tuple(replace(row, value=-12_345.6) for row in found.rows))

    folds = tuple(replace(fold, evaluation=wide(fold.evaluation)) for fold in walked.folds)
    console = Console(file=io.StringIO(), width=width)
    console.print(folds_table(replace(walked, folds=folds, joined=wide(walked.joined))))
    told = console.file.getvalue().splitlines()
    assert max(map(len, told)) <= width
    table = told[: next(place for place, line in enumerate(told) if line.startswith("all ")) + 1]
    assert all("…" not in line for line in table)
    for place, fold in enumerate(folds, 1):
        (line,) = (line for line in table if line.startswith(f"{place} "))
        cells = [format_figure(-12_345.6, BY_NAME[name].unit) for name in ("return", "sharpe", "max_drawdown")]
        assert all(cell in line for cell in cells)
        assert fold.evaluation.information["first_bar"][:16] in line  # all tests are of one day: minutes are shown
        shown = [format_figure(gain, "change") for gain in fold.evaluation.row("return").baselines.values()]
        assert all(gain in line for gain in shown[: 0 if width == 80 else 3])


def test_dates_are_short_where_days_tell_them_apart():
    assert digits_shown(["2020-01-31 14:30:00", "2020-02-01 14:30:00", "", "2021-02-01 14:30:00"]) == 10
    assert digits_shown(["2020-01-31 14:30:00", "2020-01-31 15:30:00", "2020-01-31 16:30:00"]) == 16


def test_the_table_has_a_line_for_each_fold_and_one_for_all(walked):
    console = Console(file=io.StringIO(), width=250)
    console.print(walked.table())
    told = console.file.getvalue()
    assert all(fold.run.folder.id in told for fold in walked.folds)
    assert "3 folds, each tested on what follows" in told
    assert "\nall " in told
    assert "positions are carried from one to the next" in told


def test_a_fold_is_an_ordinary_run(walked):
    run = walked.folds[1].run
    found = vd.evaluate(run, "test", report=False)
    assert found.to_json() == walked.folds[1].evaluation.to_json()
    assert Run.open(run.folder.id, run.path.parent).status == "finished"


def test_finished_folds_are_not_trained_again(walked):
    root = walked.folds[0].run.path.parent
    before = {folder.path.name for folder in run_folders(root)}
    console = silent()
    again = walk_forward(config_in(root), 3, console=console)
    assert console.file.getvalue().count("has finished: not trained again") == 3
    assert {folder.path.name for folder in run_folders(root)} == before
    assert again.to_json() == walked.to_json()


def test_an_interrupted_fold_goes_on_where_it_stopped(walked, tmp_path, monkeypatch):
    config = config_in(tmp_path)
    with monkeypatch.context() as patched:
        signals_after(patched, 5)  # a fold has three iterations
        with pytest.raises(KeyboardInterrupt):
            walk_forward(config, 3, console=silent())
    statuses = [Run(folder).status for folder in run_folders(tmp_path)]
    assert sorted(statuses) == ["finished", "interrupted"]
    console = silent()
    whole = walk_forward(config, 3, console=console)
    assert console.file.getvalue().count("has finished: not trained again") == 1
    assert len(run_folders(tmp_path)) == 3
    assert [agent.step for agent in whole.joined.policy.agents] == [agent.step for agent in walked.joined.policy.agents]
    assert replace(whole.joined, policy=None).to_json() == replace(walked.joined, policy=None).to_json()


def test_a_run_lends_its_configuration_and_its_folder(tmp_path):
    run = small_run(tmp_path, **{**SETTINGS, "evaluation.every_steps": None})
    result = walk_forward(run.folder.id, 2, root=tmp_path, console=silent(), anchored=True, embargo=3)
    assert result.settings["anchored"]
    assert result.path.parent == run.path.parent
    first, second = (fold.run.market.splits for fold in result.folds)
    assert "validation" not in first  # nothing is evaluated during training, so nothing is kept back for it
    assert first["train"][0][0] == second["train"][0][0]
    assert first["test"][0][0] == first["train"][0][1] + 3
    assert any("3 bars of the embargo" in note for note in result.joined.notes)


def test_a_preset_and_a_file_are_configurations_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text("preset: smoke\nsteps: 512\nevaluation: {every_steps: null}\n")
    result = walk_forward(path, 1, console=silent())
    assert result.path.parent == tmp_path / "runs"
    assert result.folds[0].run.config.steps == 512


@pytest.mark.parametrize(
    ("given", "named", "error", "told"),
    [
        ("cartpole", {}, ConfigError, "env = 'CartPole-v1' plays on no market"),
        ("nowhere", {}, RunError, "no run 'nowhere'"),
        ("smoke", {"folds": 0}, ConfigError, "folds is 0; give a whole number of at least 1"),
        ("smoke", {"folds": 5000}, ConfigError, "5000 folds"),
        ("smoke", {"folds": 2, "train": 0.9, "test": 0.9}, ConfigError, "take fewer folds or shorter parts"),
    ],
)
def test_what_cannot_be_walked_is_refused(given, named, error, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=told):
        walk_forward(given, console=silent(), **named)
    assert not (tmp_path / "runs").exists()


class Remembers:
    """Answers its number and counts what it has seen of every environment."""

    def __init__(self, number):
        self.number, self.seen, self.left = number, None, []

    def begin(self, num_envs):
        self.seen = np.zeros(num_envs, np.int64)

    def act(self, observation):
        self.seen = self.seen + 1
        self.left.append(np.array(observation["account"][:, 1]))
        return np.full(len(self.seen), self.number)

    def forget(self, ended):
        self.seen[ended] = 0


def test_instruments_change_folds_each_at_its_own_row_and_begin_without_memory():
    tests = [[(0, 4), (10, 12)], [(4, 8), (12, 18)]]
    policies = [Remembers(0), Remembers(1)]
    joined = FoldsPolicy(policies, tests, 20, left_at=1)
    joined.begin(2)
    played = []
    for bar in range(7):
        cursor = np.array([bar, 10 + bar])
        played.append(joined.act({"account": np.ones((2, 3), np.float32), "cursor": cursor}).tolist())
    assert played == [[0, 0], [0, 0], [0, 1], [0, 1], [1, 1], [1, 1], [1, 1]]
    assert policies[1].seen.tolist() == [3, 5]  # since each came to it
    assert np.allclose([left[0] for left in policies[0].left[:4]], [1.0, 2 / 3, 1 / 3, 0.0])
    assert np.allclose([left[1] for left in policies[1].left], [1.0, 0.8, 0.6, 0.4, 0.2])


def test_bars_of_an_embargo_belong_to_the_fold_before():
    joined = FoldsPolicy([Remembers(0), Remembers(1)], [[(0, 4)], [(6, 9)]], 9, left_at=None)
    assert joined.fold_of_row.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_a_given_market_is_cut_and_scaled_again_for_each_fold(tmp_path):
    config = config_in(tmp_path)
    bars = vd.synthetic_bars("gbm", 600, seed=5)
    market = vd.build_market(bars, windows=4, check_leaks=False)
    walked = walk_forward(config, 2, console=silent(), market=market)
    assert walked.joined.information["data_hash"] == market.content_hash
    parts = tables.walk_forward(market, 2)
    for fold, part in zip(walked.folds, parts, strict=True):
        low, high = part.splits["test"][0]
        found = fold.evaluation.information
        assert found["bars"] == high - low - 1
        own = with_splits(market, make_splits(fold.splits, spans_of(market), market.timezone, 0))
        assert found["data_hash"] == own.content_hash != market.content_hash
        built = vd.build_market(bars, windows=4, check_leaks=False, splits=fold.splits)
        assert own.splits == built.splits
        assert np.allclose(own.scalers[0].centre, built.scalers[0].centre, atol=1e-6)
        assert np.allclose(own.scalers[0].scale, built.scalers[0].scale, rtol=1e-4)
    basket = vd.build_basket(vd.synthetic_bars("gbm", 100, symbols=2), windows=4, check_leaks=False)
    with pytest.raises(ConfigError, match="market is a Basket"):
        walk_forward(config, 2, console=silent(), market=basket)
