"""Evaluations: what they refuse, what they say, and that they can be kept."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rich.console import Console

from tests.learn.policies import Momentum, ar1_market, split_market
from velodrome.errors import ConfigError, LeakError
from velodrome.evaluation.baselines import ConstantPolicy, RandomPolicy
from velodrome.evaluation.episodes import episode_resamples, evaluate_episodes
from velodrome.evaluation.evaluate import as_seeds, evaluate_policy
from velodrome.evaluation.intervals import Bootstrap
from velodrome.evaluation.measures import METRICS
from velodrome.evaluation.play import Episodes
from velodrome.evaluation.result import Evaluation
from velodrome.evaluation.sharpe import Trials

MARKET = ar1_market()
QUICK = {"samples": 60, "random_seeds": 3, "seeds": 3}


@pytest.fixture(scope="module")
def momentum() -> Evaluation:
    return evaluate_policy(Momentum(MARKET), MARKET, "test", {"fee": 1e-5}, trials=Trials(10, 1e-4), **QUICK)


def text_of(evaluation: Evaluation) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(evaluation.table())
    return console.export_text()


def test_an_agent_that_knows_the_market_beats_every_baseline_beyond_doubt(momentum):
    assert momentum.row("of_optimum").value > 0.7
    assert momentum.row("mean_log_return").low > 0
    compared = [own for own in momentum.differences if own.metric == "mean_log_return"]
    assert [own.baseline for own in compared] == ["forecast", "buy_and_hold", "always_flat", "random"]
    assert all(own.low > 0 for own in compared[1:])
    assert momentum.row("deflated_sharpe").value > 0.95
    # The forecaster knows it as well.
    (warning,) = [warning for warning in momentum.warnings if "includes 0" in warning]
    assert "agent − forecast" in warning


def test_the_table_agrees_with_the_curves_and_trades_behind_it(momentum):
    curve = momentum.equity
    assert momentum.row("return").value == pytest.approx(curve["agent"][-1] - 1)
    assert momentum.row("return").baselines["buy_and_hold"] == pytest.approx(curve["buy_and_hold"][-1] - 1)
    assert momentum.row("trades").value == momentum.trades.height
    assert momentum.row("fees").value == pytest.approx(momentum.trades["fees"].sum() / 10_000)
    assert momentum.trades["profit"].sum() == pytest.approx(10_000 * momentum.row("return").value)
    assert momentum.bars["equity"][-1] == pytest.approx(10_000 * curve["agent"][-1])
    assert momentum.row("mean_log_return").value == pytest.approx(math.log(curve["agent"][-1]) / (curve.height - 1))
    assert sum(share for _, share in momentum.actions) == pytest.approx(1.0)
    assert [name for name, _ in momentum.actions] == ["-1", "flat", "+1"]


def test_intervals_lie_around_their_values(momentum):
    for row in momentum.rows:
        if not math.isnan(row.low) and row.name != "max_drawdown":
            assert row.low <= row.value <= row.high, row.name


def test_every_row_is_a_declared_metric_in_order(momentum):
    declared = [metric.name for metric in METRICS]
    names = [row.name for row in momentum.rows]
    assert names == [name for name in declared if name in names]
    of_portfolios = {
        *("cash_share", "positions", "largest_weight", "orders", "winning_holdings", "holdings_profit_factor")
    }
    assert set(declared) - set(names) == {"disagreement", *of_portfolios}
    assert momentum.baseline_names == ("forecast", "buy_and_hold", "always_flat", "random")


def test_one_seed_stands_for_all_where_nothing_is_drawn(momentum):
    assert momentum.information["seeds"] == [0]
    assert any("one seed stands for all 3" in note for note in momentum.notes)
    drawn = evaluate_policy(Momentum(MARKET), MARKET, "test", {"slippage": 1e-4}, **QUICK)
    assert drawn.information["seeds"] == [0, 1, 2]
    assert set(drawn.trades["seed"]) == {0, 1, 2}
    assert "agent_low" in drawn.equity.columns
    assert drawn.row("spread_and_slippage").value > 0
    assert drawn.row("costs").value == pytest.approx(
        sum(drawn.row(name).value for name in ("fees", "spread_and_slippage", "funding"))
    )


def test_the_same_evaluation_twice_is_the_same_to_the_bit(momentum):
    again = evaluate_policy(Momentum(MARKET), MARKET, "test", {"fee": 1e-5}, trials=Trials(10, 1e-4), **QUICK)
    assert again.to_json() == momentum.to_json()
    assert again.equity.equals(momentum.equity)


# What is refused


def test_the_training_split_is_refused_unless_asked_for_and_then_labelled():
    with pytest.raises(LeakError, match=r"shares time with 'train'.*validation, test"):
        evaluate_policy(Momentum(MARKET), MARKET, "train", {}, **QUICK)
    found = evaluate_policy(Momentum(MARKET), MARKET, "train", {}, allow_training_split=True, **QUICK)
    assert found.in_sample
    assert "IN SAMPLE" in found.label
    assert "IN SAMPLE" in text_of(found)
    assert "in sample" in found.warnings[0]


def test_a_split_that_overlaps_the_training_split_under_another_name_is_refused():
    market = split_market(instruments=1)
    ((low, high),) = market.splits["train"]
    leaky = replace(market, splits={**market.splits, "sneaky": ((high - 5, high + 30),)})
    with pytest.raises(LeakError, match="sneaky"):
        evaluate_policy(ConstantPolicy(1), leaky, "sneaky", {}, **QUICK)
    assert not evaluate_policy(ConstantPolicy(1), leaky, "sneaky", {}, trained_on=None, **QUICK).in_sample
    assert low < high


def test_time_that_another_instrument_was_trained_on_counts_as_seen():
    market = split_market(instruments=2)
    train = market.splits["train"]
    crossed = replace(
        market, splits={"train": (train[0], (train[1][0], train[1][0] + 3)), "test": ((90, 100), train[1])}
    )
    with pytest.raises(LeakError):
        evaluate_policy(ConstantPolicy(1), crossed, "test", {}, **QUICK)


def test_missing_splits_and_nonsense_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        evaluate_policy(ConstantPolicy(1), MARKET, "tests", {}, **QUICK)
    bare = replace(MARKET, splits={"test": MARKET.splits["test"]})
    with pytest.raises(ConfigError, match="trained_on=None"):
        evaluate_policy(ConstantPolicy(1), bare, "test", {}, **QUICK)
    with pytest.raises(ConfigError, match="samples = 0"):
        evaluate_policy(ConstantPolicy(1), MARKET, "test", {}, samples=0)
    with pytest.raises(ConfigError, match="seeds = 0"):
        as_seeds(0)
    with pytest.raises(ConfigError, match="no metric 'sharp'"):
        evaluate_policy(ConstantPolicy(1), MARKET, "test", {}, **QUICK).row("sharp")


# What is said


def test_doubts_are_said():
    small = split_market(instruments=1)
    found = evaluate_policy(ConstantPolicy(2), small, "test", {}, trials=Trials(1000, 1.0), **QUICK)
    said = "\n".join(found.warnings)
    for doubt in ("bars only", "extrapolate", "1 trade is few", "interval of the agent's log return includes 0",
                  "agent − buy and hold (log return) includes 0", "after 1000 trials", "no trading costs"):  # fmt: skip
        assert doubt in said, doubt
    assert all(warning in " ".join(text_of(found).split()) for warning in found.warnings[:2])


def test_of_an_agent_that_never_traded_one_doubt_says_all():
    found = evaluate_policy(ConstantPolicy(1), split_market(instruments=1), "test", {}, **QUICK)  # level 0
    said = "\n".join(found.warnings)
    assert "the agent never traded on this split" in said
    assert "includes 0" not in said
    assert "are few" not in said


def test_autocorrelation_that_makes_intervals_doubtful_is_said_and_kept(momentum):
    assert momentum.information["autocorrelation"]["doubtful"] is False
    market = ar1_market(phi=0.9)
    found = evaluate_policy(ConstantPolicy(2), market, "test", {"fee": 1e-4}, **QUICK)
    about = found.information["autocorrelation"]
    assert about["doubtful"]
    assert 0.75 < about["correlation"] < 0.97
    assert about["effective_bars"] < 0.3 * found.information["bars"]
    (said,) = [warning for warning in found.warnings if "autocorrelated" in warning]
    assert f"as {about['effective_bars']:,.0f} independent ones" in said
    assert said in " ".join(text_of(found).split())
    assert json.loads(found.to_json())["information"]["autocorrelation"] == about
    assert about["widening"] > 1.1


def test_an_agent_that_loses_is_called_that():
    found = evaluate_policy(RandomPolicy(gymnasium.spaces.Discrete(3)), MARKET, "test", {"fee": 0.001}, **QUICK)
    said = "\n".join(found.warnings)
    assert "the agent lost" in said
    assert "always flat (log return) lies below 0: the agent did worse" in said


def test_an_episode_that_ends_early_is_said():
    wild = split_market(instruments=2)
    found = evaluate_policy(ConstantPolicy(2), wild, "test", {"leverage": 20.0, "max_drawdown": 0.05}, **QUICK)
    assert any("terminated early" in warning for warning in found.warnings)


def test_an_agent_that_never_trades_has_dashes_instead_of_ratios():
    found = evaluate_policy(ConstantPolicy(1), MARKET, "test", {"fee": 0.001}, **QUICK)
    assert math.isnan(found.row("sharpe").value)
    assert math.isnan(found.row("win_rate").value)
    assert found.row("return").value == 0.0
    assert found.information["drawdown"] is None
    assert "–" in text_of(found)
    json.loads(found.to_json())


def test_baselines_that_cannot_be_played_are_named_and_left_out():
    found = evaluate_policy(ConstantPolicy(0), MARKET, "test", {"action": "brackets"}, **QUICK)
    assert found.baseline_names == ("forecast", "always_flat", "random")
    assert any(note.startswith("buy and hold: not playable") for note in found.notes)


def test_continuous_actions_are_shown_in_bins():
    found = evaluate_policy(ConstantPolicy(0.95), MARKET, "test", {"action": "continuous"}, **QUICK)
    assert len(found.actions) == 21
    assert dict(found.actions)["+0.95"] == pytest.approx(1.0)


def test_several_instruments_are_one_table():
    market = ar1_market(1500, symbols=3)
    found = evaluate_policy(Momentum(market), market, "test", {}, **QUICK)
    assert found.bars["symbol"].unique(maintain_order=True).to_list() == list(market.symbols)
    assert found.row("return").value == pytest.approx(found.equity["agent"][-1] - 1)
    assert found.trades["profit"].sum() / 30_000 == pytest.approx(found.row("return").value)
    last = found.bars.group_by("symbol").last()["equity"]
    assert last.mean() / 10_000 == pytest.approx(found.equity["agent"][-1])


# Keeping


def test_what_was_saved_is_loaded(momentum, tmp_path):
    paths = momentum.save(tmp_path)
    assert paths["json"] == tmp_path / "evaluation" / "test.json"
    assert json.loads(paths["json"].read_text())["split"] == "test"
    assert pl.read_csv(paths["trades_csv"]).height == momentum.trades.height
    assert pl.read_parquet(paths["equity"]).columns[:2] == ["time", "agent"]
    loaded = Evaluation.load(tmp_path, "test")
    assert loaded.to_json() == momentum.to_json()
    assert loaded.trades.equals(momentum.trades)
    assert loaded.bars.equals(momentum.bars)
    assert text_of(loaded) == text_of(momentum)
    with pytest.raises(ConfigError, match="there are test"):
        Evaluation.load(tmp_path, "validation")


# Other environments


def cartpole() -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, autoreset_mode=AutoresetMode.SAME_STEP)


class Balance:
    """Pushes the cart towards where the pole falls, which keeps it up for a while."""

    def begin(self, num_envs):
        pass

    def act(self, observation):
        return (observation[:, 2] + 0.3 * observation[:, 3] > 0).astype(np.int64)

    def forget(self, ended):
        pass


def test_episodes_of_any_environment_are_measured_beside_random_actions(tmp_path):
    found = evaluate_episodes(Balance(), cartpole(), 8, title="CartPole-v1", samples=50)
    assert found.kind == "episodes"
    row = found.row("episode_return")
    assert row.value == pytest.approx(found.episodes["returns"].mean())
    assert row.low <= row.value <= row.high
    assert row.value > 100 > row.baselines["random"]
    assert any("episodes are few" in warning for warning in found.warnings)
    assert "CartPole-v1" in text_of(found)
    found.save(tmp_path)
    assert Evaluation.load(tmp_path, "episodes").to_json() == found.to_json()


def test_the_same_agent_again_says_no_more_about_episodes_than_one_of_it():
    """Agents play from the same seed: the chance of their episodes is no smaller for being counted three times."""
    once, thrice = (
        evaluate_episodes(own, cartpole(), 8, samples=50) for own in (ConstantPolicy(0), [ConstantPolicy(0)] * 3)
    )
    own, alone = thrice.row("episode_return"), once.row("episode_return")
    assert alone.low < alone.high
    assert (own.value, own.low, own.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_reward_per_step_weighs_episodes_by_their_length():
    played = Episodes(np.array([10.0, 2.0]), np.array([10, 1]), np.zeros(0, np.int64))
    found, _ = episode_resamples(played, Bootstrap(20))
    assert found["reward_per_step"] == pytest.approx(12 / 11)
    assert found["episode_return"] == 6.0
    assert found["worst_episode"] == 2.0
