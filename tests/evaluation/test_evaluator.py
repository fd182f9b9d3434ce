"""Evaluation through an environment's entry: the general evaluator, one of an environment's own, and rewards alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

import velodrome as vd
from tests.learn.policies import split_market
from tests.learn.portfolios import split_basket
from velodrome.envs._template import TemplateConfig, template_world
from velodrome.envs.catalog import CATALOG
from velodrome.envs.portfolio.config import PortfolioConfig
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.envs.trading.config import TradingConfig
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError, LeakError
from velodrome.evaluation.baselines import BUY_AND_HOLD, Baseline, ConstantPolicy, RandomPolicy
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.evaluator import Evaluator
from velodrome.evaluation.validation import validate
from velodrome.runs.report.images import write_images
from velodrome.runs.report.report import write_report
from velodrome.runs.walk_forward import walk_forward

MARKET = split_market(bars=240)
BASKET = split_basket()
QUICK = {"samples": 20, "random_seeds": 2, "seeds": 2}


@pytest.fixture(autouse=True)
def entries_of_one_test(monkeypatch):
    monkeypatch.setattr(CATALOG, "_entries", dict(CATALOG._entries))


def guess_world(market, split=None, **values):
    """An environment on a market that keeps no account: the template, for as many steps as it is told."""
    return template_world(**values)


class Outspoken(Evaluator):
    """An evaluator that knows a baseline and the names of actions."""

    def baselines(self, agent, seed):
        return (Baseline(BUY_AND_HOLD, ConstantPolicy(2), "level +1 always"), *super().baselines(agent, seed))

    def action_names(self, space):
        return ("short", "flat", "long")


@pytest.mark.parametrize("params", [{"fee": 0.001, "funding": 1e-4}, {"slippage": 0.002, "fee": (0.0, 0.002)}])
def test_what_the_general_evaluator_measures_of_trading_is_what_tradings_own_measures(params):
    vd.register_env("plain", trading_world, parameters=TradingConfig, data="market")
    policy = RandomPolicy(trading_world(MARKET).action_space, 4)
    own = evaluate_policy(policy, MARKET, "test", params, env="trading", **QUICK)
    general = evaluate_policy(
        policy, MARKET, "test", params, env="plain", **{**QUICK, "seeds": own.information["seeds"]}
    )
    assert general.baseline_names == ("random",)
    assert set(own.metrics) - set(general.metrics) == {
        *("trades", "win_rate", "average_trade", "profit_factor", "spread_and_slippage", "costs")
    }
    for row in general.rows:
        assert row.value == own.row(row.name).value or row.value != row.value, row.name
        assert row.baselines["random"] == own.row(row.name).baselines["random"] or row.value != row.value, row.name
    shared = [name for name in general.bars.columns if name != "action"]
    assert general.bars.select(shared).equals(own.bars.select(shared))
    assert [share for _, share in general.actions] == [share for _, share in own.actions]
    found, wanted = (validate(policy, env, MARKET, "test", params, 6) for env in ("plain", "trading"))
    assert found == wanted


def test_a_basket_is_one_account(tmp_path):
    vd.register_env("plain", portfolio_world, parameters=PortfolioConfig, data="basket")
    policy = RandomPolicy(portfolio_world(BASKET).action_space, 4)
    own = evaluate_policy(policy, BASKET, "test", {"buy_fee": 0.001}, **QUICK)
    general = evaluate_policy(policy, BASKET, "test", {"buy_fee": 0.001}, env="plain", **{**QUICK, "seeds": 1})
    assert general.information["accounts"] == 1
    for name in ("return", "sharpe", "max_drawdown", "fees", "turnover", "reward"):
        assert general.row(name).value == own.row(name).value, name
    assert "exposure" not in general.metrics
    page = write_report(general, tmp_path / "report.html", "plain").read_text(encoding="utf-8")
    assert "the mean of their accounts" not in page
    drawn = {path.stem for path in write_images(general, tmp_path)}
    assert drawn >= {"test-equity", "test-drawdown", "test-actions"}


def test_an_entry_may_name_an_evaluator_of_its_own(tmp_path):
    vd.register_env("plain", trading_world, parameters=TradingConfig, data="market", evaluator=Outspoken)
    found = evaluate_policy(ConstantPolicy(2), MARKET, "test", {}, env="plain", **QUICK)
    assert found.baseline_names == ("buy_and_hold", "random")
    assert dict(found.actions) == {"short": 0.0, "flat": 0.0, "long": 1.0}
    assert found.row("return").value == found.row("return").baselines["buy_and_hold"]
    assert "buy and hold: level +1 always" in found.notes
    found.save(tmp_path)
    assert type(found).load(tmp_path, "test").to_json() == found.to_json()


def test_without_an_account_episodes_on_the_split_are_measured_by_their_rewards(tmp_path):
    vd.register_env("guess", guess_world, parameters=TemplateConfig, data="market")
    found = evaluate_policy(ConstantPolicy(1), MARKET, "test", {"length": 12}, env="guess", notes=["a note"], **QUICK)
    assert (found.kind, found.split, found.in_sample) == ("episodes", "test", False)
    assert found.information["environment"] == "guess"
    assert "a note" in found.notes
    assert found.row("episode_length").value <= 12
    assert np.isfinite(found.row("episode_return").baselines["random"])
    assert set(validate(ConstantPolicy(1), "guess", MARKET, "test", {"length": 12}, 4)) == {"return", "length"}
    write_report(found, tmp_path / "report.html", "guess")
    with pytest.raises(LeakError, match="shares time with 'train'"):
        evaluate_policy(ConstantPolicy(1), MARKET, "train", {}, env="guess", **QUICK)
    seen = evaluate_policy(ConstantPolicy(1), MARKET, "train", {}, env="guess", allow_training_split=True, **QUICK)
    assert seen.in_sample
    assert seen.warnings[0].startswith("in sample")


def test_a_run_without_an_account_chooses_its_checkpoint_by_rewards(tmp_path):
    vd.register_env("guess", guess_world, parameters=TemplateConfig, data="market")
    small = {"steps": 256, "num_envs": 8, "ppo.rollout_length": 8, "market.length": 400, "evaluation.every_steps": 128}
    own = {"env": "guess", "params": {"length": 12}, "logging.folder": str(tmp_path)}
    run = vd.train("smoke", mode="quiet", **small, **own)
    validated = run.metrics.filter(run.metrics["name"] == "evaluation/validation/return")
    assert validated.height == 2
    (kept_at,) = run.folder.evaluation_path.glob("test-best-*.json")
    kept = json.loads(kept_at.read_text(encoding="utf-8"))
    assert kept["kind"] == "episodes"
    assert "Episode returns" in run.folder.report_path.read_text(encoding="utf-8")
    assert vd.evaluate(run, "validation", report=False).split == "validation"


def test_the_wrong_data_is_refused():
    with pytest.raises(ConfigError, match="market is a Market, and env = 'portfolio' plays on a basket"):
        evaluate_policy(ConstantPolicy(1), MARKET, "test", {}, env="portfolio")
    with pytest.raises(ConfigError, match="env = 'template' plays on no market; use evaluate_episodes"):
        evaluate_policy(ConstantPolicy(1), MARKET, "test", {}, env="template")
    with pytest.raises(ConfigError, match=r"unknown environment 'tradign'.*Did you mean 'trading'"):
        evaluate_policy(ConstantPolicy(1), MARKET, "test", {}, env="tradign")


def test_walk_forward_needs_an_account(tmp_path):
    vd.register_env("guess", guess_world, parameters=TemplateConfig, data="market")
    config = {"env": "guess", "market.length": 400, "market.windows": 4, "logging.folder": str(tmp_path)}
    with pytest.raises(ConfigError, match="env = 'guess' keeps no account to play the tests of all folds in"):
        walk_forward(config, 2)
