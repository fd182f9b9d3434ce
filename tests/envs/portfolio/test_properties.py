"""What holds of a portfolio whatever the parameters and actions: cash, limits, refusals, and that no money is made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.baskets import small_basket
from tests.contracts.comparison import assert_same_bits, random_actions, run
from velodrome.envs.parameters import ranged_names
from velodrome.envs.portfolio.codes import COUNT_NAMES
from velodrome.envs.portfolio.config import PRESETS, PortfolioConfig, portfolio_config
from velodrome.envs.portfolio.sizing import simplex_threshold
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.errors import ConfigError
from velodrome.tables.basket import Basket
from velodrome.vector.native import NativeVectorEnv

SUM = 1e-9  # relative

# Every numeric parameter in the range in which it does something: (low, high, whether it is a whole number).
RANGES: dict[str, tuple[float, float, bool]] = {
    "initial_cash": (10.0, 1e6, False),
    "buy_fee": (0.0, 0.1, False),
    "sell_fee": (0.0, 0.1, False),
    "half_spread": (0.0, 0.1, False),
    "slippage": (0.0, 0.1, False),
    "funding": (0.0, 0.05, False),
    "cash_reserve": (0.0, 1.0, False),
    "max_weight": (0.01, 3.0, False),
    "max_gross": (0.05, 3.0, False),
    "trailing_stop": (0.0, 0.3, False),
    "max_holding": (0, 5, True),
    "decay": (0.0, 1.0, False),
    "softmax_scale": (0.1, 20.0, False),
    "order_scale": (0.5, 50.0, False),
    "trade_fraction": (0.01, 1.0, False),
    "buy_safety": (0.1, 1.0, False),
    "bankrupt_at": (0.0, 0.9, False),
    "turnover_penalty": (0.0, 1.0, False),
    "concentration_penalty": (0.0, 1.0, False),
    "concentration_limit": (0.0, 1.0, False),
    "few_positions_penalty": (0.0, 1.0, False),
    "min_positions": (0, 4, True),
    "position_floor": (0.0, 0.1, False),
    "evenness_bonus": (0.0, 1.0, False),
    "evenness_limit": (0.0, 1.0, False),
    "shortfall_penalty": (0.0, 1.0, False),
    "excess_weight": (0.0, 10.0, False),
    "return_weight": (0.0, 10.0, False),
    "cash_weight": (0.0, 10.0, False),
    "cash_floor": (0.0, 1.0, False),
    "time_decay_floor": (0.0, 1.0, False),
    "final_discount": (0.0, 1.0, False),
    "cash_unit": (1e-6, 1.0, False),
    "holding_unit": (1e-6, 1.0, False),
}


def test_every_numeric_parameter_is_drawn():
    assert set(RANGES) == set(ranged_names(PortfolioConfig))


@st.composite
def parameters(draw: st.DrawFn, with_ranges: bool = False) -> dict[str, Any]:
    """Some numeric parameters besides the defaults, and every mode."""
    values: dict[str, Any] = {}
    for name in sorted(draw(st.sets(st.sampled_from(sorted(RANGES)), max_size=14))):
        low, high, whole = RANGES[name]
        value = st.integers(int(low), int(high)) if whole else st.floats(low, high)
        if with_ranges:
            value = st.one_of(value, st.tuples(value, value).map(lambda ends: tuple(sorted(ends))))
        values[name] = draw(value, label=name)
    values["action"] = draw(st.sampled_from(["weights", "orders", "discrete"]))
    values["weighting"] = draw(st.sampled_from(["softmax", "simplex", "signed"]))
    may_short = values["action"] != "weights" or values["weighting"] == "signed"
    values["allow_short"] = may_short and draw(st.booleans(), label="allow_short")
    values["fill"] = draw(st.sampled_from(["next_open", "close", "next_close"]))
    values["reward"] = draw(st.sampled_from(["log_return", "excess", "blend"]))
    values["account_values"] = draw(st.sampled_from(["shares", "raw"]))
    for name in ("buys_restart_holding", "single_precision"):
        values[name] = draw(st.booleans(), label=name)
    if draw(st.booleans(), label="limits by instrument"):
        quantities = st.tuples(*[st.floats(0.0, 5.0)] * 3)
        values["min_quantity"], values["lot"] = draw(quantities), draw(quantities)
    if draw(st.booleans(), label="tiers") and not {"buy_fee", "sell_fee"} & set(values):
        values["fee_tiers"] = ((0.0, 0.01), (100.0, 0.005), (1e5, 0.0))
    values["episode_length"] = draw(st.one_of(st.none(), st.integers(1, 20)))
    return values


BASKETS = st.fixed_dictionaries(
    {
        "bars": st.just(60),
        "seed": st.integers(0, 1000),
        "halts": st.sampled_from([0.0, 0.1, 0.6]),
        "jump": st.sampled_from([0.0, 0.05, 0.5]),
        "volatility": st.sampled_from([0.0, 0.01, 0.1]),
    }
)


def quotes_of(basket: Basket, fill: str, cursor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [K, n] quotes of orders decided on at a cursor, and whether each can be traded."""
    row = cursor if fill == "close" else cursor + 1
    prices = basket.open if fill == "next_open" else basket.close
    return prices[row].T, basket.tradable[row].T.astype(bool)


@settings(max_examples=30)
@given(values=parameters(), choices=BASKETS, seed=st.integers(0, 2**31))
def test_cash_limits_refusals_and_money(values, choices, seed):
    """The four promises of the rule, over drawn parameters, baskets and actions."""
    basket = small_basket(**choices)
    world = portfolio_world(basket, **values)
    envs = NativeVectorEnv(world, 8, seed=seed, autoreset=False, threads=1)
    envs.reset()
    config = portfolio_config(**values)
    single = 2e-7 if config.single_precision else 0.0
    ended = np.zeros(8, bool)
    for actions in random_actions(world.action_space, 8, 25, seed=seed):
        before = {
            name: envs.column(name) for name in ("cash", "units", "cursor", "fees", "volume", "funding", "counts")
        }
        _, rewards, terminated, truncated, _ = envs.step(actions)
        live = ~ended
        ended |= terminated | truncated
        after = {name: envs.column(name) for name in (*before, "equity")}
        quotes, tradable = quotes_of(basket, config.fill, np.minimum(before["cursor"], len(basket) - 2))
        closes = basket.close[after["cursor"]].T
        assert np.isfinite(rewards).all()

        assert (after["cash"] >= 0.0).all()
        change = after["units"] - before["units"]
        if not config.allow_short:
            assert (after["units"] >= 0.0).all()
        paid_in_units = (after["funding"] > before["funding"]) & (after["cash"] == 0.0)
        assert (change[~tradable & live & ~paid_in_units] == 0.0).all()

        # What the orders and the bar did to the money, from prices, units and costs alone.
        traded = after["volume"] - before["volume"]
        fees, funding = after["fees"] - before["fees"], after["funding"] - before["funding"]
        scale = np.maximum(envs.column("initial"), (np.abs(after["units"]) * closes).sum(axis=0)) + traded
        worth = (after["units"] * closes).sum(axis=0)
        np.testing.assert_allclose(after["equity"][live], (after["cash"] + worth)[live], rtol=0, atol=SUM * scale.max())
        spread = config.half_spread if isinstance(config.half_spread, float) else 0.0
        plain = live & ~paid_in_units & np.array([config.slippage == 0.0] * 8)
        gained = before["cash"] + (before["units"] * quotes).sum(axis=0)
        left = after["cash"] + funding + (after["units"] * quotes).sum(axis=0)
        # Notional at fill prices is (1 ± c) times that at quotes; spread is what lies between.
        most = fees + traded * spread / (1.0 - spread)
        least = fees + traded * spread / (1.0 + spread)
        slack = (SUM + single) * scale
        assert (gained - left <= most + slack)[plain].all()
        assert (gained - left >= least - slack)[plain].all()

        # Where something was bought or sold short, it is within its limit, but for what later orders of the step cost.
        weight = np.abs(after["units"]) * quotes
        grown = (np.abs(after["units"]) > np.abs(before["units"])) & live & ~paid_in_units & (left > 0.0)
        costs = (gained - left) + slack
        limit = config.max_weight * (left + costs) + slack
        assert (weight <= limit)[grown].all()
        gross = weight.sum(axis=0)
        opened = grown.any(axis=0)
        assert (gross <= config.max_gross * (left + costs) + slack)[opened].all()
        if ended.all():
            break


@settings(max_examples=12)
@given(values=parameters(with_ranges=True), choices=BASKETS, seed=st.integers(0, 2**31))
def test_plain_python_and_compiled_code_agree_to_the_bit(values, choices, seed):
    world = portfolio_world(small_basket(**choices), **values)
    plain = run(NativeVectorEnv(world, 2, seed=seed, compiled=False), 8)
    assert_same_bits(run(NativeVectorEnv(world, 2, seed=seed), 8), plain)


# Cases worked out by hand


def flat_basket(instruments: int = 3, bars: int = 12) -> Basket:
    """Return prices of 100 that do not move."""
    basket = small_basket(bars=bars, instruments=instruments, halts=0.0, listed_late=False)
    price = np.full((bars, instruments), 100.0)
    return Basket(**{**vars(basket), "open": price, "close": price})


def one(basket: Basket, **values: Any) -> Any:
    env = vd.make("portfolio", market=basket, backend="python", start="first", seed=0, **values)
    env.reset()
    return env


@pytest.mark.parametrize("fee", [0.0, 0.001, 0.0025, 0.1])
def test_the_equity_factor_is_the_closed_form_with_equal_fees(fee):
    """From cash to weights that add up to w: μ = 1 − f·w·μ, so μ = 1/(1 + f·w)."""
    basket = flat_basket()
    env = one(basket, weighting="simplex", buy_fee=fee, sell_fee=fee)
    env.step(np.array([0.2, 0.3, 0.1, 0.4], np.float32))
    state = env.state()
    factor = 1.0 / (1.0 + fee * 0.6)
    assert math.isclose(state["equity"], 10_000.0 * factor, rel_tol=1e-7)
    np.testing.assert_allclose(state["units"] * 100.0 / state["equity"], [0.2, 0.3, 0.1], rtol=2e-7)
    # Selling all of it: 1 − f of its worth comes back.
    env.step(np.array([0.0, 0.0, 0.0, 1.0], np.float32))
    sold = 10_000.0 * factor * (1.0 - fee * 0.6)
    assert math.isclose(env.state()["cash"], sold, rel_tol=1e-7)
    assert (env.state()["units"] == 0.0).all()


def test_a_rebalance_between_two_pays_for_both_sides():
    """From (1/2, 1/4) to (1/4, 1/2): μ = 1 − s·(1/2 − μ/4) − b·(μ/2 − 1/4), solved by hand."""
    buy, sell = 0.02, 0.05
    env = one(flat_basket(2), weighting="simplex", buy_fee=buy, sell_fee=sell)
    env.step(np.array([0.5, 0.25, 0.25], np.float32))
    before = float(env.state()["equity"])
    env.step(np.array([0.25, 0.5, 0.25], np.float32))
    factor = (1.0 - sell / 2.0 + buy / 4.0) / (1.0 - sell / 4.0 + buy / 2.0)
    assert math.isclose(float(env.state()["equity"]), before * factor, rel_tol=1e-11)


def test_an_order_is_money_and_a_purchase_leaves_the_reserve():
    env = one(flat_basket(2), action="orders", order_scale=2.0, buy_fee=0.01, cash_reserve=0.4, buy_safety=1.0)
    env.step(np.array([1.0, 1.0], np.float32))
    state = env.state()
    assert math.isclose(state["units"][0], 50.0)
    # 10,000 − 5,050 − 4,000 are left for the second.
    assert math.isclose(state["units"][1], 950.0 / 101.0)
    assert math.isclose(state["cash"], 4_000.0)
    assert dict(zip(COUNT_NAMES, state["counts"], strict=True))["cut_cash"] == 1


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("first", "then"), [((0, 1), (-0.5, 0.5)), ((0, -1), (1, 0)), ((-1, 0), (0, 1)), ((0.5, -0.5), (-0.5, 0.5))]
)
def test_signed_targets_are_reached_in_whatever_order_instruments_stand(first, then, mirrored):
    env = one(flat_basket(2), weighting="signed", allow_short=True)
    for target in (first, then):
        env.step(np.array(target[::-1] if mirrored else target, np.float32))
    state = env.state()
    reached = state["units"] * 100.0 / state["equity"]
    np.testing.assert_allclose(reached[::-1] if mirrored else reached, then, atol=1e-9)
    counts = dict(zip(COUNT_NAMES, state["counts"], strict=True))
    assert counts["cut_limit"] == counts["dropped_minimum"] == 0


def test_a_reserve_is_kept_at_the_cost_of_all_alike():
    env = one(flat_basket(4), weighting="simplex", cash_reserve=0.5, buy_fee=0.01)
    env.step(np.array([0.25, 0.25, 0.25, 0.25, 0.0], np.float32))
    state = env.state()
    np.testing.assert_allclose(state["units"], 5_000.0 / 4 / 101.0, rtol=1e-9)
    assert math.isclose(state["cash"], 5_000.0)
    # It is for purchases to leave alone; nothing is sold for it.
    env.step(np.array([0.25, 0.25, 0.25, 0.25, 0.0], np.float32))
    np.testing.assert_allclose(env.state()["units"], 5_000.0 / 4 / 101.0, rtol=1e-9)


def test_orders_below_the_minimum_are_counted_and_those_without_cash_are_not_among_them():
    env = one(flat_basket(2), action="orders", order_scale=20.0, min_quantity=20.0)
    env.step(np.array([1.0, 1.0], np.float32))  # 5 units each
    assert dict(zip(COUNT_NAMES, env.state()["counts"], strict=True))["dropped_minimum"] == 2
    env = one(flat_basket(2), action="orders", order_scale=1.0, buy_safety=1.0)
    env.step(np.array([1.0, 1.0], np.float32))
    counts = dict(zip(COUNT_NAMES, env.state()["counts"], strict=True))
    assert (counts["dropped_minimum"], counts["cut_cash"] + counts["cut_limit"], counts["buys"]) == (0, 1, 1)


@pytest.mark.parametrize("reward", ["log_return", "excess"])
def test_the_benchmark_is_told_whatever_the_reward_and_holds_what_can_be_traded(reward):
    basket = flat_basket(2)
    close = basket.close.copy()
    close[6:, 0] = 150.0  # the first one rises by half, the second is halted from the start
    tradable = basket.tradable.copy()
    tradable[:, 1] = 0
    env = one(
        Basket(**{**vars(basket), "close": close, "tradable": tradable}), action="orders", reward=reward,
        episode_length=6,
    )  # fmt: skip
    for _ in range(6):
        *_, truncated, info = env.step(np.zeros(2, np.float32))
    assert truncated
    assert math.isclose(info["statistics"]["benchmark_return"], 0.25)


def test_a_halted_instrument_keeps_its_units_and_the_refusal_is_counted():
    basket = flat_basket(2)
    tradable = basket.tradable.copy()
    tradable[5, 0] = 0
    env = one(Basket(**{**vars(basket), "tradable": tradable}), weighting="simplex")
    env.step(np.array([0.6, 0.4, 0.0], np.float32))
    env.step(np.array([0.1, 0.9, 0.0], np.float32))
    state = env.state()
    np.testing.assert_allclose(state["units"] * 100.0, [6_000.0, 4_000.0], rtol=1e-6)
    assert dict(zip(COUNT_NAMES, state["counts"], strict=True))["refused_untradable"] == 1


def test_a_position_that_nobody_trades_decays():
    env = one(flat_basket(2), action="discrete", trade_fraction=0.5, max_holding=2, decay=0.25, buy_safety=1.0)
    env.step(np.array([2, 1]))
    held = [float(env.step(np.array([1, 1])) and env.state()["units"][0]) for _ in range(4)]
    np.testing.assert_allclose(held, [50.0, 37.5, 37.5, 28.125])


def test_a_trailing_stop_sells_everything_and_nothing_is_bought_back_in_the_step():
    basket = flat_basket(2)
    price = basket.close.copy()
    price[5:, 0] = [110.0, 104.0, 98.0, 98.0, 98.0, 98.0, 98.0]
    env = one(Basket(**{**vars(basket), "open": price, "close": price}), weighting="simplex", trailing_stop=0.1)
    for _ in range(4):
        env.step(np.array([0.5, 0.0, 0.5], np.float32))
        units = env.state()["units"][0]
    assert units == 0.0
    env.step(np.array([0.5, 0.0, 0.5], np.float32))
    assert env.state()["units"][0] > 0.0


def test_fees_follow_the_traded_volume():
    env = one(flat_basket(2), action="orders", order_scale=1.0, fee_tiers=((0.0, 0.01), (4_000.0, 0.001)))
    env.step(np.array([0.5, 0.0], np.float32))
    assert math.isclose(env.state()["fees"], 50.0)
    env.step(np.array([-0.5, 0.0], np.float32))
    assert math.isclose(env.state()["fees"], 55.0)


# Parameters


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"buy_fees": 0.1}, "Did you mean 'buy_fee'"),
        ({"buy_fee": 0.2}, r"legal: 0 … 0.1"),
        ({"fee_tiers": ((5.0, 0.1),)}, "begin with 0 and increase"),
        ({"fee_tiers": ((0.0, 0.1),), "buy_fee": 0.01}, "not both"),
        ({"allow_short": True}, "needs 'signed'"),
        ({"min_quantity": (1.0, 2.0)}, "has 2 numbers, and the basket has 3"),
        ({"min_quantity": {"S0": 1.0, "S1": 1.0, "SS2": 1.0}}, "Did you mean 'S2'"),
        ({"lot": -1.0}, "at least 0"),
        ({"episode_length": 10_000}, "no episode fits"),
        ({"preset": "cripto"}, "Did you mean 'crypto'"),
    ],
)
def test_wrong_parameters_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        portfolio_world(small_basket(), **values)


def test_a_market_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"needs a Basket; make one with vd\.build_basket"):
        vd.make_vec("portfolio", 2, market=None)
    with pytest.raises(ConfigError, match="at least 2 instruments; with S0 alone use 'trading'"):
        portfolio_world(small_basket(instruments=1))
    with pytest.raises(ConfigError, match=r"S2 has no price on the first bar; take 'market'"):
        portfolio_world(small_basket(), reference="first_bar")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_legal_and_give_way(preset):
    for name, value in PRESETS[preset].items():
        assert getattr(portfolio_config(preset), name) == value
    assert portfolio_config(preset, buy_fee=0.05).buy_fee == 0.05


def fees_of(**params) -> tuple[Any, Any]:
    config = portfolio_config(**params)
    return config.buy_fee, config.sell_fee


def test_a_fee_is_paid_on_both_sides():
    assert fees_of(fee=0.003) == (0.003, 0.003)
    assert fees_of(fee=(0.001, 0.002)) == ((0.001, 0.002), (0.001, 0.002))
    assert fees_of(preset="crypto", fee=0.001) == (0.001, 0.001)
    assert fees_of(preset="crypto", buy_fee=0.001) == (0.001, 0.0025)
    kept = portfolio_config("crypto", fee=(0.001, 0.002)).model_dump(mode="json")
    assert portfolio_config(**kept).sell_fee == (0.001, 0.002)
    both, apart = (
        vd.make_vec("portfolio", 3, market=small_basket(), backend="python", seed=0, **fees)
        for fees in ({"fee": 0.01}, {"buy_fee": 0.01, "sell_fee": 0.01})
    )
    assert_same_bits(run(both, 20), run(apart, 20))


def test_a_fee_beside_others_or_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"fee = 0\.01 stands for buy_fee and sell_fee, and sell_fee = 0\.02"):
        portfolio_config(fee=0.01, sell_fee=0.02)
    with pytest.raises(ConfigError, match=r"^fee = 5: out of range; legal: 0 … 0\.1"):
        portfolio_config(fee=5)
    with pytest.raises(ConfigError, match=r"give either fee \(or buy_fee and sell_fee\) or fee_tiers"):
        portfolio_config(fee=0.01, fee_tiers=((0, 0.01),))
    with pytest.raises(ConfigError, match="Did you mean 'fee'"):
        portfolio_config(fees=0.01)


def test_an_account_is_described_for_people():
    env = one(flat_basket(2), weighting="simplex", render_mode="ansi")
    assert env.render().endswith("equity 10000.00 cash 10000.00 nothing held")
    env.step(np.array([0.25, 0.5, 0.25], np.float32))
    assert env.render().endswith("cash 2500.00 S1 50.0%, S0 25.0%")


# Pieces


@given(st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=8))
def test_the_nearest_point_of_the_simplex_is_on_it_and_no_neighbour_is_nearer(numbers):
    threshold = simplex_threshold(np.array(numbers), len(numbers))
    point = np.maximum(np.array(numbers) - threshold, 0.0)
    assert math.isclose(point.sum(), 1.0, rel_tol=1e-12)
    distance = ((point - numbers) ** 2).sum()
    for k in range(len(numbers)):
        corner = np.zeros(len(numbers))
        corner[k] = 1.0
        nearer = 0.999 * point + 0.001 * corner
        assert distance <= ((nearer - numbers) ** 2).sum() + 1e-12


def test_a_thousand_instruments_work():
    """State is sized by the basket; uncompiled, because the point is the size."""
    env = one(flat_basket(1000, bars=8), weighting="simplex")
    action = np.zeros(1001, np.float32)
    action[[3, 999]] = 0.5
    env.step(action)
    units = env.state()["units"]
    np.testing.assert_allclose(units[[3, 999]], 50.0)
    assert units.sum() == units[3] + units[999]
