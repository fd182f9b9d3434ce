"""Backtests against a single environment stepped by hand, and curves of several instruments."""

from __future__ import annotations

import numpy as np
import pytest

from tests.evaluation.backtests import backtest
from tests.learn.policies import Recorded, split_market
from velodrome.envs.trading.config import trading_config
from velodrome.errors import ActionError, ConfigError
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.evaluator import Played, draws_anything, evaluator_for
from velodrome.vector.make import make_vec

MARKET = split_market()
COSTS = {"fee": 0.001, "half_spread": 0.0005, "funding": 1e-4}


def random_actions(bars: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 3, (bars, count))


@pytest.mark.parametrize("params", [COSTS, {**COSTS, "leverage": 3.0, "fill": "close"}], ids=["plain", "leverage"])
def test_a_backtest_equals_an_environment_stepped_by_hand(params):
    part = MARKET.split("test")
    bars = int((part.end - part.begin).max()) - 1
    actions = random_actions(bars, 2)
    played = backtest(Recorded(actions), MARKET, "test", params)
    for k, track in enumerate(played.tracks):
        envs = make_vec("trading", 1, market=part, start="first", seed=0, autoreset=False, **params)
        envs.reset(options={"cursor": part.begin[k]})
        rows = []
        for step in range(len(track.actions)):
            _, reward, terminated, truncated, infos = envs.step(actions[step, k : k + 1])
            rows.append([float(reward[0]), *(float(envs.column(c)[0]) for c in ("equity", "units", "fees", "funding"))])
            if terminated[0] or truncated[0]:
                break
        rewards, equity, units, fees, funding = np.array(rows).T
        count = len(rows)
        assert track.bars[0] == count
        assert np.array_equal(track.rewards[:count, 0], rewards)
        assert np.array_equal(track.equity[1 : count + 1, 0], equity)
        assert np.array_equal(track.units[1 : count + 1, 0], units)
        assert track.change("fees")[:, 0].sum() == pytest.approx(fees[-1])
        assert track.change("funding")[:, 0].sum() == pytest.approx(funding[-1])
        assert infos["statistics"]["turnover"][0] == pytest.approx(track.change("turnover")[:, 0].sum())
        assert infos["statistics"]["return"][0] == pytest.approx(track.equity[-1, 0] / track.equity[0, 0] - 1)


def test_a_track_covers_the_split_of_its_instrument_from_the_first_bar_to_the_last():
    played = backtest(ConstantPolicy(1), MARKET, "test", COSTS)
    for k, track in enumerate(played.tracks):
        low, high = MARKET.splits["test"][k]
        assert track.symbol == MARKET.symbols[k]
        assert np.array_equal(track.time, MARKET.time[low:high])
        assert np.array_equal(track.price, MARKET.ohlc[low:high, 3])
        assert track.equity.shape == (high - low, 1)
        assert track.actions.shape == (high - low - 1, 1)
        assert not track.ended_early.any()
    assert len(played.tracks[0].time) != len(played.tracks[1].time)


def test_an_episode_that_terminates_keeps_its_equity_and_holds_nothing():
    played = backtest(ConstantPolicy(2), MARKET, "test", {"leverage": 20.0, "max_drawdown": 0.05})
    early = [track for track in played.tracks if track.ended_early[0]]
    assert early, "the prices are wild enough for one of the instruments"
    for track in early:
        last = track.bars[0]
        assert 0 < last < len(track.actions)
        assert (track.equity[last:, 0] == track.equity[last, 0]).all()
        assert (track.units[last + 1 :, 0] == 0.0).all()
        assert (track.rewards[last:, 0] == 0.0).all()
        assert not track.played[last:, 0].any()


def test_seeds_share_a_batch_and_differ_in_what_is_drawn_only():
    plain = backtest(ConstantPolicy(2), MARKET, "test", COSTS, seeds=(0, 1, 5))
    assert all((track.equity == track.equity[:, :1]).all() for track in plain.tracks)
    drawn = {"slippage": 0.001, "fee": (0.0, 0.002)}
    policy = Recorded(random_actions(60, 6))
    several = backtest(policy, MARKET, "test", drawn, seeds=(0, 1, 5))
    assert policy.calls == [("begin", 6)]
    finals = {float(equity) for track in several.tracks for equity in track.equity[-1]}
    assert len(finals) == 6, "neither seeds nor instruments share their draws"
    again = backtest(Recorded(random_actions(60, 6)), MARKET, "test", drawn, seeds=(0, 1, 5))
    assert all(np.array_equal(a.equity, b.equity) for a, b in zip(several.tracks, again.tracks, strict=True))


def test_a_seed_means_the_same_alone_and_among_others():
    drawn = {"slippage": 0.001}
    alone = backtest(ConstantPolicy(2), MARKET, "test", drawn, seeds=(5,))
    among = backtest(ConstantPolicy(2), MARKET, "test", drawn, seeds=(0, 5))
    for one, two in zip(alone.tracks, among.tracks, strict=True):
        assert np.array_equal(one.equity[:, 0], two.equity[:, 1])


def test_what_can_differ_between_seeds():
    assert not draws_anything(trading_config(**COSTS))
    assert draws_anything(trading_config(slippage=0.001))
    assert draws_anything(trading_config(leverage=(1.0, 2.0)))


def test_continuous_actions_come_in_either_shape():
    flat = backtest(ConstantPolicy(0.5), MARKET, "test", {"action": "continuous"})

    class Column(ConstantPolicy):
        def act(self, observation):
            return super().act(observation)[:, None]

    column = backtest(Column(0.5), MARKET, "test", {"action": "continuous"})
    assert np.array_equal(flat.tracks[0].equity, column.tracks[0].equity)
    assert flat.tracks[0].actions.dtype == np.float32


def test_illegal_actions_seeds_and_splits_are_refused():
    with pytest.raises(ActionError, match="outside"):
        backtest(ConstantPolicy(3), MARKET, "test", {})
    with pytest.raises(ConfigError, match="different whole numbers"):
        backtest(ConstantPolicy(1), MARKET, "test", {}, seeds=(1, 1))
    with pytest.raises(ConfigError, match=r"no split 'tset'.*Did you mean 'test'"):
        backtest(ConstantPolicy(1), MARKET, "tset", {})


def test_progress_is_told_to_the_end():
    told = []
    backtest(ConstantPolicy(1), MARKET, "test", {}, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (39, 39)


# Curves of several instruments


def play(market) -> Played:
    policy = Recorded(random_actions(60, len(market.symbols)))
    return evaluator_for("trading", market, "test", COSTS).play("agent", policy, (0,), 1, None)


def test_the_curve_of_several_instruments_is_the_mean_of_their_accounts_at_every_time():
    found = play(MARKET)
    together, played = found.curve, found.backtest
    for position, time in enumerate(together.time):
        parts = []
        for track in played.tracks:
            row = max(int((track.time <= time).sum()) - 1, 0)
            parts.append(track.equity[row, 0] / track.equity[0, 0])
        assert together.growth[position, 0] == pytest.approx(np.mean(parts))
    traded = [track.change("turnover").sum() for track in played.tracks]
    earned = [track.rewards.mean() for track in played.tracks]
    assert together.per_bar["turnover"][:, 0].sum() == pytest.approx(np.mean(traded))
    assert together.per_bar["reward"][:, 0].mean() == pytest.approx(np.mean(earned))


def test_the_curve_of_one_instrument_is_its_own():
    found = play(split_market(instruments=1))
    together, track = found.curve, found.backtest.tracks[0]
    assert np.array_equal(together.growth, track.equity / track.equity[0])
    assert np.array_equal(together.per_bar["in_market"], track.units[1:] != 0)
    assert np.allclose(together.per_bar["reward"].sum(), np.log(together.growth[-1, 0]), atol=1e-5)
