"""What holds of the trading environment whatever the market, the parameters and the actions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.markets import small_market
from velodrome.bars.frame import Bars, Series
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import COUNT_MASK
from velodrome.envs.trading.config import Terms
from velodrome.envs.trading.world import trading_world
from velodrome.tables.market import Market
from velodrome.vector.native import NativeVectorEnv

ENVIRONMENTS = 32
STEPS = 100
ORDER_FILLS = (
    codes.OPENED, codes.CLOSED, codes.SWITCHED, codes.SWITCH_CLOSED, codes.INCREASED, codes.DECREASED
)  # fmt: skip
RECORDED = ("cursor", "start", "cash", "units", "entry", "equity", "initial", "fees", "funding", "turnover", "events",
            "order_code", "exit_code", "price", "previous_level")  # fmt: skip

many = settings(suppress_health_check=[HealthCheck.too_slow])  # as many examples as the profile says

markets = st.builds(
    small_market,
    bars=st.just(STEPS + 10),
    seed=st.integers(0, 10_000),
    windows=st.just(((2, 1),)),
    session=st.integers(3, 40),
    jump=st.sampled_from([0.0, 0.05, 0.3]),
    volatility=st.sampled_from([0.001, 0.01, 0.05]),
)
parameters = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["levels", "continuous", "brackets"]),
        "fill": st.sampled_from(["next_open", "close"]),
        "leverage": st.sampled_from([1.0, 1.5, 3.0, 10.0, 50.0, 125.0]),
        "fee": st.sampled_from([1e-5, 1e-3, 0.02]),
        "half_spread": st.sampled_from([0.0, 1e-3]),
        "slippage": st.sampled_from([0.0, 5e-3]),
        "slippage_atr": st.sampled_from([0.0, 0.2]),
        "funding": st.sampled_from([0.0, 1e-4, -1e-3, 0.05]),
        "funding_side": st.sampled_from(["holder", "perpetual"]),
        "maintenance_margin": st.sampled_from([0.0, 0.004, 0.1, 0.5]),
        "rebalance_band": st.sampled_from([0.0, 0.1]),
        "hold_on_same_action": st.booleans(),
        "flat_at_session_end": st.booleans(),
        "initial_cash": st.sampled_from([1.0, 1e4, 1e9]),
    }
)


def play(market: Market, seed: int, **values: Any) -> dict[str, np.ndarray]:
    """Play one long episode with random actions; return columns and results, [steps + 1, n], the reset first."""
    world = trading_world(market, start="first", **{"bankrupt_at": 0.0, **values})
    envs = NativeVectorEnv(world, ENVIRONMENTS, seed=seed, observation="cursor", autoreset=False, threads=1)
    envs.reset()
    rng = np.random.default_rng(seed)
    shape = (STEPS, ENVIRONMENTS)
    if isinstance(world.action_space, gymnasium.spaces.Discrete):
        actions = rng.integers(0, world.action_space.n, shape)
    else:
        actions = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        actions[rng.random(shape) < 0.1] = 0.0
    # Sticky, so that positions last.
    for step in range(1, STEPS):
        actions[step] = np.where(rng.random(ENVIRONMENTS) < 0.5, actions[step - 1], actions[step])
    none = np.zeros(ENVIRONMENTS)
    rows = [{name: envs.column(name) for name in RECORDED} | {"reward": none, "ended": none > 0, "action": none}]
    for chosen in actions:
        _, rewards, terminated, _, _ = envs.step(chosen)
        row = {name: envs.column(name) for name in RECORDED}
        rows.append(row | {"reward": rewards.copy(), "ended": terminated.copy(), "action": chosen})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


# Money


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000))
def test_equity_is_never_negative(market, values, seed):
    record = play(market, seed, **values)
    assert (record["equity"] >= -1e-9 * values["initial_cash"]).all()
    flat = record["units"] == 0.0
    assert (record["cash"][flat] >= 0.0).all()
    assert (record["equity"][flat] == record["cash"][flat]).all()


@pytest.mark.parametrize("fill", ["next_open", "close"])
@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
def test_jumps_of_a_third_at_the_highest_leverage_leave_nothing_and_no_debt(action, fill):
    market = small_market(bars=STEPS + 10, seed=1, windows=((2, 1),), jump=0.3, volatility=0.0005)
    record = play(market, 0, action=action, fill=fill, leverage=125.0, fee=5e-4, funding=1e-4)
    assert record["equity"].min() >= -1e-9 * 10_000.0
    assert (record["exit_code"] == codes.LIQUIDATED).sum() > 10
    assert record["equity"].min() < 1.0


@pytest.mark.parametrize("level", [1, 0], ids=["long", "short"])
def test_a_debt_larger_than_the_position_is_liquidated(level):
    # Funding leaves 45 of 10,000; the next order reduces the position to what 45 can carry, and the fee on what is sold
    # (905) makes a debt of twice the position's value: of a short liq = 100·(1 + 0.1 − 2.2) < 0.
    market = dataclasses.replace(small_market(bars=8, windows=((2, 1),)), ohlc=np.full((8, 4), 100.0))
    env = vd.make(
        "trading", market=market, levels=(-1.0, 1.0), leverage=10.0, fee=0.01, funding=0.0995, maintenance_margin=0.0,
        bankrupt_at=0.0, hold_on_same_action=False, start="first", seed=0,
    )  # fmt: skip
    env.reset()
    env.step(level)
    assert env.state()["equity"] == pytest.approx(10_000.0 * (1.0 - 0.01 / 0.11 - 0.0995 / 0.11))
    env.step(level)
    assert codes.CODE_NAMES[env.state()["order_code"]] == "decreased"
    assert env.state()["equity"] == 0.0
    assert codes.CODE_NAMES[env.state()["exit_code"]] == "liquidated"


def check_money(record: dict[str, np.ndarray], values: dict[str, Any]) -> float:
    """Check that equity moves by what prices did to the position, less fees and funding, and by nothing else.

    Return the part of the steps whose fills could be told apart.
    """
    before, after = ({name: column[part] for name, column in record.items()} for part in (np.s_[:-1], np.s_[1:]))
    margin = np.abs(record["units"]) * record["entry"] / values["leverage"]
    unrealised = (record["price"] - record["entry"]) * record["units"]
    scale = np.maximum.accumulate(np.maximum(record["equity"], values["initial_cash"]), axis=0)[1:]
    # Margin and position are multiples of the equity, and so are their roundings.
    slack = 1e-9 * scale
    whole = record["cash"] + margin + unrealised
    assert (np.abs(whole[1:] - after["equity"]) <= slack).all()

    paid = after["fees"] - before["fees"] + after["funding"] - before["funding"]
    traded = (after["fees"] - before["fees"]) / values["fee"]  # notional of the step's fills
    fills = (after["events"] & COUNT_MASK) - (before["events"] & COUNT_MASK)
    change = after["units"] - before["units"]
    # The price of a step's only fill follows from its notional; that of a switch's first from what the second left.
    switched = (after["order_code"] == codes.SWITCHED) & (after["exit_code"] == codes.NONE)
    of_exit = np.where(switched, traded - np.abs(after["units"]) * after["entry"], traded)
    gone = np.where(switched, before["units"], -change)  # units realised, signed
    reduces = np.abs(after["units"]) < np.abs(before["units"])
    with np.errstate(invalid="ignore", divide="ignore"):
        price = of_exit / np.abs(gone)
        realised = np.where((switched | reduces) & (gone != 0.0), (price - before["entry"]) * gone, 0.0)
    known = (fills == 0) | ((fills == 1) & ((change != 0.0) | (traded == 0.0))) | (switched & (fills == 2))
    expected = before["equity"] + realised + (unrealised[1:] - unrealised[:-1]) - paid
    difference = after["equity"] - expected
    # Of a price that was reconstructed, a rounding of the fees is magnified by 1/fee.
    bound = slack * (1.0 + np.where(fills > 0, 1e-6 / values["fee"], 0.0))
    # Negative-balance protection gives what is missing: only after a loss that left no cash. Funding comes after the
    # order and the bar, and before the close at a session's end.
    cash_before_funding = after["cash"] + after["funding"] - before["funding"]
    protected = (difference > 0.0) & (np.minimum(after["cash"], cash_before_funding) <= slack) & (fills > 0)
    assert ((np.abs(difference) <= bound) | protected | ~known).all()
    return float(known.mean())


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000))
def test_money_is_conserved(market, values, seed):
    check_money(play(market, seed, **values), values)


@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
def test_money_is_conserved_where_every_kind_of_fill_happens(action):
    market = small_market(bars=STEPS + 10, seed=2, windows=((2, 1),), jump=0.1)
    values = {"action": action, "leverage": 8.0, "fee": 1e-3, "funding": 1e-3, "initial_cash": 1e4}
    record = play(market, 5, **values)
    assert check_money(record, values) > 0.8
    met = set(record["order_code"].ravel()) | set(record["exit_code"].ravel())
    assert {codes.OPENED, codes.CLOSED, codes.SWITCHED, codes.LIQUIDATED} <= met


# The future


def with_another_future(series: Series, cut: int, seed: int) -> Series:
    """Return the series with every bar after `cut` replaced."""
    rng = np.random.default_rng(seed)
    rows = len(series) - cut - 1
    closed = series.close[cut] * np.exp(np.cumsum(rng.normal(0.0, 0.02, rows)))
    opened = closed * np.exp(rng.normal(0.0, 0.02, rows))
    new = {"open": opened, "close": closed, "high": np.maximum(opened, closed) * 1.01,
           "low": np.minimum(opened, closed) * 0.99, "volume": rng.uniform(1.0, 9.0, rows)}  # fmt: skip
    columns = {name: np.r_[getattr(series, name)[: cut + 1], values] for name, values in new.items()}
    return Series(series.time, **columns)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 100),
    cut=st.integers(130, 240),
    action=st.sampled_from(["levels", "continuous", "brackets"]),
    fill=st.sampled_from(["next_open", "close"]),
)
def test_nothing_observed_or_earned_depends_on_later_bars(seed, cut, action, fill):
    bars = vd.synthetic_bars("gbm", 300, seed=seed, volatility=0.01)
    other = Bars({"gbm_0": with_another_future(bars["gbm_0"], cut, seed)}, bars.timeframe, bars.timezone)
    records = []
    for source in (bars, other):
        market = vd.build_market(
            source, features={"1m": ["log_return", "rsi_14"], "5m": ["log_return"], "15m": ["log_return"]},
            windows={"1m": 6, "5m": 3, "15m": 2}, splits={}, scaler="none", check_leaks=False,
        )  # fmt: skip
        world = trading_world(
            market, action=action, fill=fill, leverage=3.0, fee=1e-3, slippage_atr=0.1, slippage=1e-3, bankrupt_at=0.0
        )
        envs = NativeVectorEnv(world, 4, seed=seed, copy=True, autoreset=False, threads=1)
        first = int(market.begin[0])
        assert first < 120
        observations, _ = envs.reset(options={"cursor": first, "last": 299})
        rng = np.random.default_rng(seed)
        record = [(first, observations, np.zeros(4))]
        for bar in range(first + 1, 299):
            discrete = isinstance(world.action_space, gymnasium.spaces.Discrete)
            drawn = rng.integers(0, 10**6, 4)
            chosen = drawn % world.action_space.n if discrete else (drawn / 5e5 - 1.0).astype(np.float32)
            observations, rewards, *_ = envs.step(chosen)
            record.append((bar, observations, rewards))
        records.append(record)
    differs = False
    for (bar, left, left_reward), (_, right, right_reward) in zip(*records, strict=True):
        if bar <= cut:
            np.testing.assert_array_equal(left, right, err_msg=f"observation of bar {bar}, cut {cut}")
            np.testing.assert_array_equal(left_reward, right_reward, err_msg=f"reward of bar {bar}, cut {cut}")
        differs |= not np.array_equal(left, right)
    assert differs


# Permissions and limits


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000))
def test_without_permission_nothing_is_sold_short(market, values, seed):
    values = {**values, "allow_short": False, "flat_at_session_end": False, "hold_on_same_action": False}
    record = play(market, seed, **values)
    assert (record["units"] >= 0.0).all()
    if values["action"] != "brackets":
        levels = record["action"][1:] if values["action"] == "continuous" else record["action"][1:] - 1.0
        assert (record["units"][1:][levels < 0.0] == 0.0).all()


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000), cooldown=st.integers(1, 6))
def test_a_cooldown_binds(market, values, seed, cooldown):
    record = play(market, seed, **{**values, "cooldown": cooldown})
    filled = np.diff(record["events"] & COUNT_MASK, axis=0) > 0
    ordered = np.isin(record["order_code"][1:], ORDER_FILLS)
    refused = record["order_code"][1:] == codes.REFUSED_COOLDOWN
    for step in range(STEPS):
        recently = filled[max(0, step - cooldown) : step].any(axis=0)
        assert not (ordered[step] & recently).any()
        assert not (refused[step] & ~recently).any()
    assert refused.any() or not filled[: STEPS // 2].any()


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000), cap=st.sampled_from([1e-6, 0.5, 2.0, 30.0]))
def test_a_turnover_cap_binds(market, values, seed, cap):
    record = play(market, seed, **{**values, "turnover_cap": cap})
    spent = np.zeros(ENVIRONMENTS)
    for step in range(1, STEPS + 1):
        if market.session_last[record["cursor"][step - 1, 0]]:
            spent[:] = 0.0
        code = record["order_code"][step]
        # Rounding apart: the sum here is of differences of a sum.
        slack = 1e-9 * cap + 1e-13 * record["turnover"][step]
        assert not (np.isin(code, ORDER_FILLS) & (spent > cap + slack)).any()
        assert not ((code == codes.REFUSED_TURNOVER) & (spent < cap - slack)).any()
        spent += record["turnover"][step] - record["turnover"][step - 1]


@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
def test_a_cap_that_every_fill_exceeds_leaves_one_order_a_session(action):
    market = small_market(bars=STEPS + 10, seed=2, windows=((2, 1),), session=10)
    record = play(market, 0, action=action, turnover_cap=1e-6)
    session = np.cumsum(market.session_last)[record["cursor"][:-1]]  # of the step's decision
    ordered = np.isin(record["order_code"][1:], ORDER_FILLS)
    orders = np.array([ordered[session[:, 0] == number].sum(axis=0) for number in np.unique(session[:, 0])])
    assert orders.max() == 1
    assert orders.sum() > 0.8 * orders.size
    assert (record["order_code"] == codes.REFUSED_TURNOVER).sum() > ENVIRONMENTS


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000))
def test_sessions_end_flat(market, values, seed):
    record = play(market, seed, **{**values, "flat_at_session_end": True})
    at_end = market.session_last[record["cursor"]] == 1
    assert (record["units"][at_end] == 0.0).all()
    if values["fill"] == "close":
        # An order at the last close would be held over the end.
        opened = np.isin(record["order_code"][1:], (codes.OPENED, codes.SWITCHED, codes.INCREASED))
        assert not (opened & at_end[:-1]).any()


@many
@given(
    market=markets,
    values=parameters,
    seed=st.integers(0, 1000),
    max_drawdown=st.sampled_from([0.0, 0.05, 0.3]),
    daily_drawdown=st.sampled_from([0.0, 0.02, 0.2]),
    bankrupt_at=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_drawdown_rules_end_the_episode_at_the_first_bar_that_breaks_them(
    market, values, seed, max_drawdown, daily_drawdown, bankrupt_at
):
    limits = {"max_drawdown": max_drawdown, "daily_drawdown": daily_drawdown, "bankrupt_at": bankrupt_at}
    record = play(market, seed, **values, **limits)
    equity, initial = record["equity"], values["initial_cash"]
    session_equity = equity[0].copy()
    for step in range(1, STEPS + 1):
        if market.session_last[record["cursor"][step - 1, 0]]:
            session_equity = equity[step - 1].copy()
        drawdown = 1.0 - equity[step] / equity[: step + 1].max(axis=0)
        loss = np.zeros(ENVIRONMENTS)
        np.divide(session_equity - equity[step], session_equity, out=loss, where=session_equity > 0.0)
        # Within rounding of a limit either is right.
        for sign in (1.0, -1.0):
            shift = sign * 1e-9
            breaks = equity[step] < (bankrupt_at + shift) * initial
            if max_drawdown:
                breaks |= drawdown >= max_drawdown - shift
            if daily_drawdown:
                breaks |= (loss >= daily_drawdown - shift) & (session_equity > 0.0)
            assert not (record["ended"][step] & ~breaks).any() or sign < 0.0
            assert not (breaks & ~record["ended"][step]).any() or sign > 0.0


@many
@given(market=markets, values=parameters, seed=st.integers(0, 1000), length=st.integers(1, 40))
def test_an_episode_has_exactly_as_many_decisions_as_asked_for(market, values, seed, length):
    # Funding may take all equity up to a rounding, and a rounding below 0 is below `bankrupt_at` = 0.
    world = trading_world(market, episode_length=length, bankrupt_at=0.0, **{**values, "funding": 0.0})
    envs = NativeVectorEnv(world, ENVIRONMENTS, seed=seed, threads=1)
    envs.reset()
    envs.action_space.seed(seed)
    for step in range(1, 2 * length + 1):
        *_, terminated, truncated, infos = envs.step(envs.action_space.sample())
        assert not terminated.any()
        assert (truncated == (step % length == 0)).all()
        if step % length == 0:
            assert (infos["statistics"]["length"] == length).all()


def test_an_episode_that_is_over_stands_still():
    # With autoreset off the batch goes on while some environments wait for their reset.
    market = small_market(bars=30, seed=4, windows=((2, 1),))
    world = trading_world(market, reward="differential_sharpe", sharpe_decay=0.2, episode_length=5)
    envs = NativeVectorEnv(world, 4, seed=0, copy=True, autoreset=False, threads=1)
    envs.reset()
    for _ in range(5):
        observations, _, _, truncated, _ = envs.step([2, 2, 0, 0])
    assert truncated.all()
    again, rewards, terminated, truncated, _ = envs.step([2, 0, 2, 1])
    assert truncated.all()
    assert not terminated.any()
    np.testing.assert_array_equal(rewards, 0.0)
    np.testing.assert_array_equal(again, observations)


# Own rewards


def own_log_return(old, new):
    return math.log(new.equity / old.equity)


def own_return(old, new):
    return new.equity / old.equity - 1.0


@pytest.mark.parametrize(("own", "name"), [(own_log_return, "log_return"), (own_return, "return")])
@pytest.mark.parametrize("compiled", [True, False], ids=["native", "python"])
def test_an_own_reward_that_computes_the_same_is_the_built_in(own, name, compiled):
    market = small_market(seed=4)
    shared = {"leverage": 2.0, "fee": 1e-3, "half_spread": 1e-3, "slippage": 1e-3, "episode_length": 25}
    left, right = (
        NativeVectorEnv(trading_world(market, reward=reward, **shared), 5, seed=3, compiled=compiled, threads=1)
        for reward in (own, name)
    )
    left.reset()
    right.reset()
    rng = np.random.default_rng(0)
    total = 0.0
    for _ in range(60):
        actions = rng.integers(0, 3, 5)
        ours, theirs = left.step(actions), right.step(actions)
        np.testing.assert_array_equal(ours[1], theirs[1])
        np.testing.assert_array_equal(ours[0], theirs[0])
        total += np.abs(ours[1]).sum()
    assert total > 0.0


def test_an_own_reward_sees_the_account_before_and_after():
    seen = []

    def noting(old, new):
        seen.append((old, new))
        return 0.0

    market = small_market(seed=4)
    env = vd.make("trading", market=market, backend="python", reward=noting, fee=1e-3, seed=0, leverage=2.0)
    env.reset()
    states = [env.state()]
    for action in (2, 2, 0, 1, 2):
        env.step(action)
        states.append(env.state())
    assert len(seen) == 5
    for (old, new), before, after in zip(seen, states[:-1], states[1:], strict=True):
        for account, state in ((old, before), (new, after)):
            for name in ("equity", "cash", "units", "entry", "peak", "price", "initial"):
                assert getattr(account, name) == state[name], name
        assert (old.turnover, old.fees) == (0.0, 0.0)
        assert new.turnover == pytest.approx(after["turnover"] - before["turnover"], abs=1e-12)
        assert new.fees == pytest.approx(after["fees"] - before["fees"], abs=1e-9)


# Ranges


def uniform_enough(drawn: np.ndarray, low: float, high: float, cells: int = 32) -> bool:
    counts = np.bincount(((drawn - low) / (high - low) * cells).astype(int).clip(0, cells - 1), minlength=cells)
    expected = drawn.size / cells
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return abs(statistic - (cells - 1)) < 5 * math.sqrt(2 * (cells - 1))


def test_ranges_are_drawn_uniformly_for_every_episode_of_every_environment():
    ranges = {"fee": (0.001, 0.01), "leverage": (1.0, 20.0), "initial_cash": (100.0, 200.0), "funding": (-0.01, 0.01)}
    world = trading_world(small_market(), cooldown=(2, 6), half_spread=0.003, **ranges)
    envs = NativeVectorEnv(world, 4096, seed=0, threads=1)
    episodes = []
    for _ in range(4):
        envs.reset()
        episodes.append(envs.column("drawn"))
        np.testing.assert_array_equal(envs.column("cash"), episodes[-1][Terms._fields.index("initial_cash")])
    numbers = np.array(episodes)  # [episodes, parameters, environments]
    for name, (low, high) in ranges.items():
        drawn = numbers[:, Terms._fields.index(name)]
        assert low <= drawn.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < drawn.max() < high
        assert uniform_enough(drawn.ravel(), low, high)
        assert len(np.unique(drawn)) == drawn.size
        assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.05
        assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.05
    cooldown = numbers[:, Terms._fields.index("cooldown")].ravel()
    assert set(cooldown) == {2.0, 3.0, 4.0, 5.0, 6.0}
    assert np.bincount(cooldown.astype(int))[2:].min() > 0.9 * cooldown.size / 5
    fixed = set(Terms._fields[:-2]) - set(ranges) - {"cooldown"}
    for name in fixed:
        expected = 0.003 if name == "half_spread" else type(world.params)._asdict(world.params)[name]
        assert (numbers[:, Terms._fields.index(name)] == expected).all()
    # Two parameters of one episode have nothing to do with each other.
    fee, leverage = (numbers[:, Terms._fields.index(name)].ravel() for name in ("fee", "leverage"))
    assert abs(np.corrcoef(fee, leverage)[0, 1]) < 0.05


def test_a_range_of_one_value_is_that_value():
    market = small_market()
    ranged = trading_world(market, fee=(0.002, 0.002), leverage=(3.0, 3.0))
    plain = trading_world(market, fee=0.002, leverage=3.0)
    assert ranged.params == plain.params
