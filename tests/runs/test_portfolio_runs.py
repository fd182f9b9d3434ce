"""Runs on baskets: trained, resumed, evaluated, walked forward and listed as those on markets are."""

from __future__ import annotations

import io
import json

import polars as pl
import pytest
from rich.console import Console

import velodrome as vd
from tests.learn.portfolios import INSTRUMENTS
from tests.runs.small_runs import assert_equal_runs, one_thread, signals_after  # noqa: F401
from velodrome import cli
from velodrome.errors import ConfigError, RunError
from velodrome.evaluation.baselines import BEST_SINGLE
from velodrome.runs import checkpoint, setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.runs.run import Run, resume, train
from velodrome.runs.walk_forward import walk_forward

# 128 steps an iteration, 8 iterations, an evaluation every second one.
TINY = {
    "env": "portfolio", "steps": 1024, "num_envs": 8, "ppo.rollout_length": 16, "network.hidden": (8,),
    "market.source": "factors", "market.symbols": INSTRUMENTS, "market.length": 600, "market.windows": 4,
    "market.features": ("log_return",), "market.volatility": 0.01, "market.check_leaks": False,
    "params.episode_length": 32, "params.buy_fee": 1e-4, "checkpoint.every_steps": 256, "evaluation.every_steps": 256,
    "evaluation.episodes": 4, "evaluation.bootstrap_samples": 20, "device": "cpu",
}  # fmt: skip
# Remedies, with which a run has to go on to the same bits as well.
REMEDIES = {
    "augment.noise": 0.2, "augment.mask_bars": 0.1, "ppo.weight_decay": 1.0, "ppo.kl_penalty": 0.1,
    "ppo.average_weights": True, "teacher.policy": "forecast", "teacher.hold": 0.1, "teacher.samples": 512,
    "teacher.epochs": 1,
}  # fmt: skip


def tiny(folder, **settings) -> dict:
    return {**TINY, "logging.folder": str(folder), **settings}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    settings = tiny(tmp_path_factory.mktemp("runs"), **REMEDIES)
    return train(mode="quiet", console=Console(file=io.StringIO()), **settings)


def test_a_run_is_trained_validated_evaluated_and_reported(run):
    assert run.status == "finished"
    names = set(run.metrics["name"])
    assert {"evaluation/validation/return", "evaluation/validation/of_optimum", "episode/return"} <= names
    (kept_at,) = run.folder.evaluation_path.glob("test-best-*.json")
    kept = json.loads(kept_at.read_text())
    assert kept["information"]["environment"] == "portfolio"
    assert kept["information"]["hindsight"] == [BEST_SINGLE]
    assert len(kept["information"]["contributions"]) == INSTRUMENTS
    bars = pl.read_parquet(kept_at.with_name(f"{kept_at.stem}-bars.parquet"))
    assert {"symbol", "time", "weight", "units", "equity", "cash", "action"} <= set(bars.columns)
    assert "Weights" in run.folder.report_path.read_text("utf-8")
    assert kept_at.with_name(f"{kept_at.stem}-weights.png").exists()


def test_another_split_and_the_latest_checkpoint_can_be_evaluated(run):
    assert isinstance(run.market, vd.Basket)
    found = vd.evaluate(run, "validation", checkpoint="latest", report=False)
    assert found.split == "validation"
    assert found.information["data_hash"] == run.market.content_hash


def test_the_best_checkpoint_is_the_one_that_validated_best(run):
    validated = run.metrics.filter(pl.col("name") == "evaluation/validation/return")
    best = validated.sort("value", descending=True, maintain_order=True)["step"][0]
    (pinned,) = checkpoint.pinned_checkpoints(run.path)
    assert checkpoint.checkpoint_steps(pinned) == best


def test_commands_show_and_evaluate_it(run, capsys):
    root = str(run.path.parent)
    assert cli.run(["runs", "show", run.folder.id, "--folder", root]) == 0
    assert "portfolio" in capsys.readouterr().out
    assert cli.run(["eval", run.folder.id, "--runs-folder", root, "--split", "validation", "--no-report"]) == 0
    shown = capsys.readouterr().out
    assert "equal, held" in shown
    assert "hindsight" in shown


def test_an_interrupted_run_goes_on_to_the_same_bits(run, tmp_path, monkeypatch):
    signals_after(monkeypatch, 3)
    stopped = train(mode="quiet", **tiny(tmp_path, **REMEDIES))
    assert stopped.status == "interrupted"
    monkeypatch.undo()
    resume(stopped, mode="quiet", console=Console(file=io.StringIO()))
    assert stopped.status == "finished"
    assert_equal_runs(stopped, run)


def test_a_basket_that_was_built_already_is_learnt_on(tmp_path):
    bars = vd.synthetic_bars("gbm", 400, symbols=INSTRUMENTS, volatility=0.01)
    basket = vd.build_basket(bars, windows=4, features=["log_return", "market_return"], check_leaks=False)
    settings = {key: value for key, value in tiny(tmp_path).items() if not key.startswith("market.")}
    made = train(mode="quiet", evaluate=False, market=basket, **settings)
    assert vd.evaluate(made, market=basket, report=False).information["optimum"] is None
    with pytest.raises(ConfigError, match=r"the run.s own basket"):
        vd.evaluate(made, report=False)
    other = vd.build_basket(bars, windows=5, features=["log_return", "market_return"], check_leaks=False)
    with pytest.raises(RunError, match="the data has changed"):
        vd.evaluate(made, market=other, report=False)


def test_data_of_the_wrong_kind_is_refused_before_there_is_a_folder(tmp_path):
    bars = vd.synthetic_bars("gbm", 400, symbols=INSTRUMENTS)
    market = vd.build_market(bars, windows=4, check_leaks=False)
    basket = vd.build_basket(bars, windows=4, check_leaks=False)
    with pytest.raises(ConfigError, match=r"market is a Market, and env = 'portfolio': .* vd.build_basket"):
        train(mode="quiet", env="portfolio", market=market, **{"logging.folder": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"market is a Basket, and env = 'trading': .* vd.build_market"):
        train("smoke", mode="quiet", market=basket, **{"logging.folder": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_walk_forward_trains_each_fold_anew_and_joins_the_tests(tmp_path):
    settings = tiny(tmp_path, steps=256, **{"evaluation.every_steps": 128})
    config = load_run_config(None, settings)
    walked = walk_forward(config, 2, console=Console(file=io.StringIO(), width=300))
    assert [fold.number for fold in walked.folds] == [1, 2]
    joined = walked.joined
    assert joined.information["environment"] == "portfolio"
    assert joined.information["bars"] > sum(fold.evaluation.information["bars"] for fold in walked.folds) - 3
    assert joined.row("of_optimum").value == pytest.approx(
        joined.row("mean_log_return").value / walked.folds[0].run.market.optimum
    )
    assert (walked.path / "walk_forward.html").exists()


def test_walk_forward_walks_on_the_basket_that_the_run_was_given_or_not_at_all(tmp_path):
    bars = vd.synthetic_bars("gbm", 400, symbols=INSTRUMENTS, volatility=0.01)
    choices = {"windows": 4, "features": ["log_return"], "check_leaks": False}
    basket = vd.build_basket(bars, scaler="none", **choices)
    # The configuration's own market could be built as well: other data, on which it must not walk.
    made = train(mode="quiet", evaluate=False, market=basket, **tiny(tmp_path, steps=256))
    with pytest.raises(RunError, match="the data has changed"):
        walk_forward(made, 2, console=Console(file=io.StringIO()))
    walked = walk_forward(made, 2, console=Console(file=io.StringIO(), width=300), market=basket)
    assert walked.settings["data"] == basket.content_hash
    assert walked.joined.information["data_hash"] == basket.content_hash
    for fold in walked.folds:
        assert fold.evaluation.information["data_hash"] != basket.content_hash, "its splits are its own"
        assert fold.evaluation.information["optimum"] is None
    scaled = vd.build_basket(bars, **choices)
    made = train(mode="quiet", evaluate=False, market=scaled, **tiny(tmp_path, steps=256))
    with pytest.raises(RunError, match="the data has changed"):
        walk_forward(made, 2, console=Console(file=io.StringIO()), market=basket)
    walked = walk_forward(made, 2, console=Console(file=io.StringIO(), width=300), market=scaled)
    for fold, part in zip(walked.folds, vd.walk_forward(scaled, 2), strict=True):
        assert fold.evaluation.information["bars"] == part.splits["test"][0][1] - part.splits["test"][0][0] - 1
        assert fold.evaluation.information["data_hash"] != scaled.content_hash


def test_what_the_live_view_is_told(tmp_path):
    config = load_run_config(None, tiny(tmp_path))
    assert RunFacts.of(config, "cpu").rule_environment
    with setup.learning_worlds(config, setup.build_market(config), "cpu") as worlds:
        assert worlds.envs.world.action_names == ()
    assert load_run_config("portfolio", ["params.action=discrete"]).params["action"] == "discrete"
