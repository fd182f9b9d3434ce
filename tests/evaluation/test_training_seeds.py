"""Agents of several training seeds as one result: means over all, intervals that cover data and seeds, the spread."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from rich.console import Console

import velodrome as vd
from velodrome.errors import ConfigError
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.intervals import Bootstrap, percentile_interval
from velodrome.evaluation.named_policy import NamedPolicy, TrainedAgent
from velodrome.evaluation.result import Evaluation
from velodrome.evaluation.training_seeds import SeedDraws, averaged, stretch_of

SEEDS = (3, 4, 5, 6)


class Hold:
    """Takes one action always."""

    def __init__(self, action: int) -> None:
        self.action = action

    def begin(self, num_envs):
        self.count = num_envs

    def act(self, observation):
        return np.full(self.count, self.action)

    def forget(self, ended):
        pass


@pytest.fixture(scope="module")
def market():
    bars = vd.synthetic_bars("gbm", length=400, seed=1, volatility=0.01)
    splits = {"train": 0.5, "test": 0.5}
    return vd.build_market(bars, features=["return"], windows=4, splits=splits, check_leaks=False)


def evaluated(market, *actions: int, seeds=(), **options) -> Evaluation:
    policies = [Hold(action) for action in actions]
    named = NamedPolicy("latest", tuple(TrainedAgent(f"run{seed}", seed, 1, 1) for seed in seeds)) if seeds else None
    return evaluate_policy(policies, market, "test", {"fee": 0.0001}, samples=200, named=named, **options)


@pytest.fixture(scope="module")
def several(market):
    return evaluated(market, 0, 1, 2, 2, seeds=SEEDS)


def test_figures_are_means_over_all_seeds_and_each_seed_stands_by_itself(market, several):
    alone = [evaluated(market, action).metrics["return"] for action in (0, 1, 2, 2)]
    assert [one.seed for one in several.seeds] == list(SEEDS)
    assert [one.row("return").value for one in several.seeds] == alone
    assert several.metrics["return"] == pytest.approx(np.mean(alone))
    assert several.equity["agent"][-1] - 1.0 == pytest.approx(np.mean(alone))
    assert several.equity["agent_seed_3"][-1] - 1.0 == pytest.approx(alone[0])
    assert set(several.trades["training_seed"]) <= set(SEEDS)
    assert [share for _, share in several.actions] == pytest.approx([0.25, 0.25, 0.5])


def test_the_same_agent_again_says_no_more_than_one_of_it(market):
    again, single = evaluated(market, 2, 2, 2, 2), evaluated(market, 2)
    for name in ("return", "sharpe", "max_drawdown"):
        own, alone = again.row(name), single.row(name)
        # The data is drawn once for all of them, so that its chance is not averaged away.
        assert (own.value, own.low, own.high) == pytest.approx((alone.value, alone.low, alone.high))
    assert [one.share for one in again.spread] == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)
    assert again.spread[1].deviation == pytest.approx(0.0, abs=1e-12)


def test_agents_that_differ_have_a_wider_interval_than_their_data(market):
    several, data = evaluated(market, 1, 1, 2, 2), evaluated(market, 2)  # flat, flat, long, long; long
    row, long = several.row("mean_log_return"), data.row("mean_log_return")
    # The mean of two that hold and two that do not moves half as much with the data as holding does.
    assert row.high - row.low > 0.52 * (long.high - long.low)
    assert all(0.01 < one.share < 1.0 for one in several.spread[:2])


def test_the_spread_is_said_aloud_and_survives_its_file(several, tmp_path):
    text = console_text(several, 80)
    assert "4 training seeds: total return from" in text
    assert "chance in training" in text
    assert "interquartile mean" in text
    # One of them held nothing: it neither lost nor gained, and has no Sharpe ratio to take the mean of.
    gains = [one.row("return").value for one in several.seeds]
    told = (
        f"{sum(gain < 0.0 for gain in gains)} of 4 training seeds lost and {sum(gain > 0.0 for gain in gains)} gained"
    )
    assert sum(told in warning for warning in several.warnings) == 1
    known = [one.row("sharpe").value for one in several.seeds if not math.isnan(one.row("sharpe").value)]
    assert several.metrics["sharpe"] == pytest.approx(np.mean(known))
    (partly,) = (warning for warning in several.warnings if warning.startswith("not defined for every training seed"))
    assert "Sharpe ratio (3 of 4)" in partly
    several.save(tmp_path)
    again = Evaluation.load(tmp_path, "test", "latest")
    assert repr(again.seeds) == repr(several.seeds)
    assert repr(again.spread) == repr(several.spread)
    assert again.to_json() == several.to_json()


def console_text(evaluation: Evaluation, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(evaluation.table())
    return console.file.getvalue()


def test_one_seed_is_called_one_seed(market):
    found = evaluated(market, 2, seeds=(7,))
    assert found.seeds == ()
    assert any(
        note.startswith("one training seed (7): the intervals cover the data, not chance") for note in found.notes
    )
    assert not any("training seed" in note for note in evaluated(market, 2).notes)


@pytest.mark.parametrize("seeds", [(1,), (1, 1), (1, 2, 3)])
def test_each_policy_has_a_seed_of_its_own(market, seeds):
    with pytest.raises(ConfigError, match="of 2 policies: each needs one of its own"):
        evaluated(market, 1, 2, seeds=seeds)


# The interval


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("noise", "own"), [(0.0, 0.0), (0.3, 0.3), (1.0, 1.0), (0.3, 3.0)])
def test_intervals_cover_seeds_and_data_even_of_few_seeds(seeds, noise, own):
    """The deviation between seeds is 1; `noise` is that of the data for all seeds alike, `own` for each by itself."""
    rng = np.random.default_rng(seeds)
    covered, samples, times = 0, 200, 200
    for repeat in range(times):
        observed = rng.normal(0.0, 1.0, seeds) + rng.normal(0.0, noise) + rng.normal(0.0, own, seeds)
        resampled = observed[:, None] + rng.normal(0.0, noise, samples) + rng.normal(0.0, own, (seeds, samples))
        draws = SeedDraws(seeds, Bootstrap(samples, 0.95, repeat))
        found = percentile_interval(observed.mean(), draws.resampled("sharpe", observed, resampled), 0.95)
        covered += found.low <= 0.0 <= found.high
    assert covered / times >= 0.9


def test_seeds_are_stretched_to_students_interval():
    # t(0.975) with 4 degrees of freedom is 2.776, the normal quantile 1.960.
    assert stretch_of(5, 0.95) == pytest.approx(math.sqrt(5 / 4) * 2.776 / 1.960, rel=1e-3)
    assert stretch_of(1, 0.95) == 1.0


def test_no_more_can_be_lost_than_everything():
    values = np.repeat([[-0.9], [0.8]], 100, axis=1)
    found = SeedDraws(2, Bootstrap(100)).resampled("return", values[:, 0], values)
    assert found.min() >= -1.0


def test_the_interquartile_mean_leaves_out_the_ends():
    assert averaged(np.array([[100.0], [1.0], [2.0], [3.0], [-50.0]]), "iqm") == [2.0]
