"""Where episodes begin and end: random, sequential and first starts, reset options, splits, drawn parameters."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.markets import small_market
from tests.oracles.philox import uniform
from velodrome.envs.parameters import ranged_names
from velodrome.envs.trading.config import PRESETS, TradingConfig
from velodrome.envs.trading.state import TORCHTRADE_VALUES
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError
from velodrome.tables.market import Market
from velodrome.vector.native import NativeVectorEnv


def envs_of(market: Market, num_envs: int, seed: int = 0, **values: Any) -> NativeVectorEnv:
    return NativeVectorEnv(trading_world(market, **values), num_envs, seed=seed, threads=1)


def starts(envs: NativeVectorEnv, episodes: int = 1) -> np.ndarray:
    """Return the starts of some episodes of every environment, [episodes, n]."""
    found = []
    for _ in range(episodes):
        envs.reset()
        np.testing.assert_array_equal(envs.column("cursor"), envs.column("start"))
        found.append(envs.column("start"))
    return np.array(found)


def shortened(market: Market, kept: dict[int, int]) -> Market:
    """Return the market with this number of tradable bars left of some instruments."""
    end = market.end.copy()
    for instrument, bars in kept.items():
        end[instrument] = market.begin[instrument] + bars
    return dataclasses.replace(market, end=end)


def deviation_of_chi_square(counts: np.ndarray) -> float:
    """Return the statistic's distance from its mean in standard deviations."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (counts.size - 1)) / math.sqrt(2.0 * (counts.size - 1))


# Random


@pytest.mark.parametrize("length", [None, 1, 20])
def test_random_starts_are_uniform_over_all_legal_bars_of_all_instruments(length):
    market = shortened(small_market(bars=60, instruments=3, windows=((5, 1),)), {1: 40})
    shortest = length or 1  # without a length one bar must follow
    legal = np.concatenate([np.arange(b, e - shortest) for b, e in zip(market.begin, market.end, strict=True)])
    envs = envs_of(market, 4096, episode_length=length)
    found = starts(envs, episodes=8)
    assert set(found.ravel()) == set(legal)
    counts = np.bincount(found.ravel(), minlength=len(market))[legal]
    assert abs(deviation_of_chi_square(counts)) < 5
    # Neither an environment's neighbour nor its next episode follows from it.
    ranks = np.searchsorted(legal, found)
    assert abs(np.corrcoef(ranks[:, :-1].ravel(), ranks[:, 1:].ravel())[0, 1]) < 5 / math.sqrt(ranks.size)
    assert abs(np.corrcoef(ranks[:-1].ravel(), ranks[1:].ravel())[0, 1]) < 5 / math.sqrt(ranks.size)


def test_an_episode_has_its_whole_length_and_stays_in_its_instrument():
    market = small_market(bars=60, instruments=3)
    envs = envs_of(market, 2000, episode_length=20)
    start = starts(envs)[0]
    np.testing.assert_array_equal(envs.column("last"), start + 20)
    instrument = np.searchsorted(market.end, start, side="right")
    assert (envs.column("last") < market.end[instrument]).all()


def test_without_a_length_an_episode_runs_to_the_end_of_its_instrument():
    market = small_market(bars=60, instruments=3)
    envs = envs_of(market, 2000)
    start = starts(envs)[0]
    np.testing.assert_array_equal(envs.column("last"), market.end[np.searchsorted(market.end, start, side="right")] - 1)


def test_lengths_of_a_range_are_uniform_and_starts_fit_the_length_drawn():
    market = small_market(bars=40, windows=((5, 1),))
    envs = envs_of(market, 4096, episode_length=(3, 12))
    lengths, spans = [], []
    for _ in range(5):
        start = starts(envs)[0]
        lengths.append(envs.column("last") - start)
        spans.append(start)
    lengths, spans = np.concatenate(lengths), np.concatenate(spans)
    assert set(lengths) == set(range(3, 13))
    assert abs(deviation_of_chi_square(np.bincount(lengths - 3, minlength=10))) < 5
    for length in (3, 12):
        assert set(spans[lengths == length]) == set(range(int(market.begin[0]), int(market.end[0]) - length))


def test_an_instrument_too_short_for_an_episode_is_never_chosen():
    market = shortened(small_market(bars=60, instruments=4), {0: 20, 2: 1, 3: 21})
    start = starts(envs_of(market, 2000, episode_length=20), episodes=3).ravel()
    assert set(np.searchsorted(market.end, start, side="right")) == {1, 3}
    assert set(start[start >= market.begin[3]]) == {market.begin[3]}  # 21 bars: one start
    sequential = starts(envs_of(market, 50, episode_length=20, start="sequential"), episodes=2).ravel()
    assert set(np.searchsorted(market.end, sequential, side="right")) == {1, 3}


def test_draws_come_in_the_documented_order():
    # Ranges in the order of declaration, the episode's length, the start.
    market = small_market(bars=80, instruments=2)
    values = {"cooldown": (0, 7), "fee": (0.001, 0.01), "leverage": (1.0, 50.0), "episode_length": (4, 9)}
    envs = envs_of(market, 100, seed=31, **values)
    envs.reset()
    counters = envs.column("rng_counter")
    envs.reset()
    keys, numbers = envs.column("rng_key"), envs.column("drawn")
    names = [name for name in ranged_names(TradingConfig) if name in values]
    assert names == ["fee", "leverage", "cooldown"]
    assert (envs.column("rng_counter") - counters == 5).all()
    for row in range(100):
        draws = [uniform(int(keys[row]), int(counters[row]) + k) for k in range(5)]
        drawn = dict(zip(ranged_names(TradingConfig), numbers[:, row], strict=True))
        assert drawn["fee"] == 0.001 + draws[0] * (0.01 - 0.001)
        assert drawn["leverage"] == 1.0 + draws[1] * 49.0
        assert drawn["cooldown"] == math.floor(draws[2] * 8)
        length = 4 + math.floor(draws[3] * 6)
        legal = np.concatenate([np.arange(b, e - length) for b, e in zip(market.begin, market.end, strict=True)])
        assert envs.column("start")[row] == legal[math.floor(draws[4] * len(legal))]
        assert envs.column("last")[row] - envs.column("start")[row] == length


# Sequential


def blocks_of(market: Market, length: int) -> list[int]:
    """Return the first bars of all blocks, end to end, instrument after instrument."""
    found = []
    for begin, end in zip(market.begin.tolist(), market.end.tolist(), strict=True):
        found += list(range(begin, end - length, length))
    return found


@pytest.mark.parametrize("length", [1, 7, 20, 55])
def test_sequential_episodes_begin_at_the_documented_blocks(length):
    market = shortened(small_market(bars=60, instruments=3, windows=((5, 1),)), {1: 41})
    blocks = blocks_of(market, length)
    envs = envs_of(market, 5, episode_length=length, start="sequential")
    found = starts(envs, episodes=len(blocks) + 2)
    for j, row in enumerate(found):
        assert row.tolist() == [blocks[(i + j) % len(blocks)] for i in range(5)]


def test_sequential_episodes_without_a_length_are_whole_instruments():
    market = small_market(bars=60, instruments=3)
    envs = envs_of(market, 4, start="sequential")
    assert starts(envs)[0].tolist() == [*market.begin, market.begin[0]]
    assert (envs.column("last") == [*(market.end - 1), market.end[0] - 1]).all()


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize(("start", "length"), [("first", None), ("sequential", 10), ("sequential", None)])
def test_each_row_has_its_place_however_it_was_seeded(start, length, backend):
    market = small_market(bars=60, instruments=3, windows=((5, 1),))
    options = {"market": market, "backend": backend, "threads": 1, "start": start, "episode_length": length}
    by_one, by_list = (vd.make_vec("trading", 4, seed=3, **options) for _ in range(2))
    by_one.reset(seed=5)
    by_list.reset(seed=[8, 8, 9, 9])
    for episode in range(3):
        places = by_one.column("start").tolist()
        assert by_list.column("start").tolist() == places, episode
        assert len(set(places)) >= 3
        by_one.reset()
        by_list.reset()
    # Which row has which seed does not move anything, and a new seed starts over.
    by_list.reset(seed=[None, 1, 2, None])
    by_one.reset(seed=6)
    assert by_list.column("start")[1:3].tolist() == by_one.column("start")[1:3].tolist()


def test_one_environment_sees_every_block_once_and_a_new_seed_starts_over():
    market = small_market(bars=60, instruments=2, windows=((5, 1),))
    blocks = blocks_of(market, 10)
    envs = envs_of(market, 1, episode_length=10, start="sequential")
    envs.reset()
    seen = [int(envs.column("start")[0])]
    while len(seen) < len(blocks):
        *_, ended, _ = envs.step([0])
        if ended[0]:
            seen.append(int(envs.column("start")[0]))
    assert seen == blocks
    envs.reset(seed=4)
    assert envs.column("start")[0] == blocks[0]


# First


def test_first_starts_are_the_first_bar_of_each_instrument_in_turn():
    market = small_market(bars=60, instruments=3)
    envs = envs_of(market, 7, episode_length=20, start="first")
    for _ in range(2):
        assert starts(envs)[0].tolist() == [market.begin[i % 3] for i in range(7)]
        np.testing.assert_array_equal(envs.column("last"), envs.column("start") + 20)
    whole = envs_of(market, 3, start="first")
    whole.reset()
    np.testing.assert_array_equal(whole.column("last"), market.end - 1)


# Reset options


def test_reset_takes_a_cursor_for_one_episode():
    market = small_market(bars=60, instruments=2)
    envs = envs_of(market, 4, episode_length=20)
    cursors = np.array([10, 30, 70, 100])
    envs.reset(options={"cursor": cursors})
    assert envs.column("cursor").tolist() == cursors.tolist()
    # An episode that would cross its instrument's end stops there.
    assert envs.column("last").tolist() == [30, 50, 90, 119]
    envs.reset()
    assert envs.column("cursor").tolist() != cursors.tolist()


def test_reset_takes_a_last_bar():
    market = small_market(bars=60, instruments=2)
    envs = envs_of(market, 3, episode_length=20, start="first")
    envs.reset(options={"cursor": [10, 11, 80], "last": [12, 11, 119]})
    assert envs.column("last").tolist() == [12, 11, 119]
    for step in range(3):
        *_, terminated, truncated, infos = envs.step([1, 1, 1])
        assert not terminated.any()
        if step == 0:
            # An episode of no bars: nothing happens and it is over.
            assert truncated.tolist() == [False, True, False]
            assert infos["statistics"]["length"][1] == 0
            assert infos["statistics"]["exhausted"][1] == 1
        if step == 1:
            assert truncated[0]
            assert infos["statistics"]["length"][0] == 2


def test_options_apply_to_the_environments_of_the_mask_only():
    envs = envs_of(small_market(bars=60), 3, episode_length=5)
    envs.reset()
    before = envs.column("cursor")
    envs.reset(options={"cursor": 9, "reset_mask": [False, True, False]})
    assert envs.column("cursor").tolist() == [before[0], 9, before[2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cursor": 3}, "cursor = 3 is not a bar with complete windows; legal: 4 … 59, 64 … 119"),
        ({"cursor": 60}, "cursor = 60 is not a bar"),
        ({"cursor": 120}, "cursor = 120 is not a bar"),
        ({"cursor": -1}, "cursor = -1 is not a bar"),
        ({"cursor": [5, 62]}, "cursor = 62 is not a bar"),
        ({"last": 10}, "'last' needs 'cursor'"),
        ({"cursor": 10, "last": 9}, "last must not lie before cursor"),
        ({"cursor": 10, "last": 60}, "beyond the end of its instrument's bars"),
        ({"cursr": 10}, "unknown reset option 'cursr'; there are reset_mask, cursor, last. Did you mean 'cursor'"),
    ],
)
def test_illegal_options_are_refused_and_nothing_is_reset(options, message):
    envs = envs_of(small_market(bars=60, instruments=2, windows=((5, 1),)), 2, episode_length=5)
    envs.reset()
    before = envs.column("cursor"), envs.column("episode")
    with pytest.raises(ConfigError) as error:
        envs.reset(options=options)
    assert message in str(error.value)
    np.testing.assert_array_equal(envs.column("cursor"), before[0])
    np.testing.assert_array_equal(envs.column("episode"), before[1])
    np.testing.assert_array_equal(envs.column("next_start"), -1)


# Windows and splits


@pytest.fixture(scope="module")
def split_market() -> Market:
    bars = vd.synthetic_bars("gbm", 900, seed=3, symbols=2)
    splits = {"train": 0.6, "validation": 0.2, "test": 0.2}
    return vd.build_market(bars, features=["log_return"], windows={"1m": 16, "15m": 4}, splits=splits, scaler="none")


def test_windows_are_complete_at_every_start(split_market):
    envs = NativeVectorEnv(trading_world(split_market), 2000, seed=0, observation="dict", threads=1)
    observations, _ = envs.reset()
    start = envs.column("start")
    returns = np.log(split_market.ohlc[1:, 3] / split_market.ohlc[:-1, 3])  # of bar 1 on
    assert start.min() == split_market.begin.min()
    for row in range(0, 2000, 7):
        wanted = returns[start[row] - 16 : start[row]]
        np.testing.assert_allclose(observations["1m"][row, :, 0], wanted, rtol=1e-5, atol=1e-9)
        assert np.isfinite(observations["15m"][row]).all()
        assert (observations["15m"][row] != 0.0).all()  # of a continuous price: an empty row would be zero


@pytest.mark.parametrize("name", ["train", "validation", "test"])
@pytest.mark.parametrize("length", [None, 25])
def test_a_split_restricts_starts_and_ends(split_market, name, length):
    spans = split_market.splits[name]
    envs = NativeVectorEnv(trading_world(split_market, split=name, episode_length=length), 3000, seed=1, threads=1)
    envs.reset()
    start, last = envs.column("start"), envs.column("last")
    inside = np.zeros(3000, bool)
    seen = set()
    for begin, end in spans:
        begin = max(begin, int(split_market.begin[np.searchsorted(split_market.end, begin, side="right")]))
        inside |= (start >= begin) & (last < end) & (last > start)
        seen |= set(range(begin, end - (length or 1)))
    assert inside.all()
    assert set(start) == seen if len(seen) < 400 else set(start) <= seen
    with pytest.raises(ConfigError, match="is not a bar with complete windows"):
        envs.reset(options={"cursor": int(spans[0][1])})


def test_the_splits_do_not_meet(split_market):
    rows = [np.arange(begin, end) for spans in split_market.splits.values() for begin, end in spans]
    assert len(np.unique(np.concatenate(rows))) == sum(map(len, rows))


def test_an_instrument_with_no_bars_in_a_split_is_never_chosen():
    market = small_market(bars=60, instruments=2, windows=((5, 1),))
    market = dataclasses.replace(market, splits={"late": ((60, 60), (90, 120))})
    for start in ("random", "sequential"):
        envs = envs_of(market, 200, split="late", start=start, episode_length=5)
        assert starts(envs).min() >= 90


def test_a_first_start_needs_an_instrument_with_bars():
    market = small_market(bars=60, instruments=2, windows=((5, 1),))
    market = dataclasses.replace(market, splits={"late": ((60, 60), (90, 120))})
    with pytest.raises(ConfigError, match=r"start = 'first': S0 has no bar to play"):
        envs_of(market, 2, split="late", start="first", episode_length=5)


# Presets


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_plays_and_gives_way_to_what_is_said_besides(preset):
    market = small_market(bars=60, jump=0.0, volatility=1e-4)  # quiet: no drawdown ends an episode
    envs = envs_of(market, 3, preset=preset, episode_length=10, start="first")
    envs.reset()
    assert (envs.column("start") == market.begin[0]).all()
    for _ in range(10):
        *_, truncated, infos = envs.step([2, 0, 1])
    assert truncated.all()
    assert (infos["statistics"]["length"] == 10).all()
    other = trading_world(market, preset=preset, fill="next_open", fee=0.25)
    assert (other.params.fill_at_close, other.params.fee) == (False, 0.25)


def test_the_presets_say_what_their_names_promise():
    market = small_market(bars=60)
    torchtrade = trading_world(market, preset="torchtrade", action="brackets")
    assert torchtrade.observed == TORCHTRADE_VALUES
    assert torchtrade.params.fill_at_close
    assert torchtrade.params.hold_on_same_action
    assert torchtrade.tables.side.tolist().count(2.0) == 0  # no CLOSE
    intraday = trading_world(market, preset="intraday").params
    assert intraday.flat_at_session_end
    assert (intraday.cooldown, intraday.fee, intraday.daily_drawdown) == (5.0, 0.001, 0.02)
