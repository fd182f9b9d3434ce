"""Plain Python and compiled code agree to the bit on trading worlds, markets and actions that Hypothesis draws.

Numbers and modes are values at run time: nothing is compiled again for an example.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.markets import small_market
from tests.vector.scenarios import Scenario, assert_identical, record, trading
from velodrome.envs.parameters import ranged_names
from velodrome.envs.trading.config import TradingConfig

# Every numeric parameter in the range in which it does something: (low, high, whether it is a whole number).
NUMBERS: dict[str, tuple[float, float, bool]] = {
    "initial_cash": (10.0, 1e6, False),
    "fee": (0.0, 0.05, False),
    "half_spread": (0.0, 0.02, False),
    "slippage": (0.0, 0.02, False),
    "slippage_atr": (0.0, 1.0, False),
    "funding": (-0.05, 0.05, False),
    "leverage": (1.0, 125.0, False),
    "maintenance_margin": (0.0, 0.1, False),
    "bankrupt_at": (0.0, 0.9, False),
    "rebalance_band": (0.0, 0.5, False),
    "min_trade": (0.0, 1000.0, False),
    "position_fraction": (0.01, 1.0, False),
    "quantity_per_trade": (0.001, 1000.0, False),
    "cooldown": (0, 4, True),
    "turnover_cap": (0.0, 5.0, False),
    "max_drawdown": (0.0, 0.9, False),
    "daily_drawdown": (0.0, 0.9, False),
    "turnover_penalty": (0.0, 1.0, False),
    "drawdown_penalty": (0.0, 10.0, False),
    "sharpe_decay": (1e-4, 1.0, False),
}


def one_number(low: float, high: float, whole: bool) -> st.SearchStrategy[Any]:
    """A value, or a range that is drawn for every episode."""
    value = st.integers(int(low), int(high)) if whole else st.floats(low, high)
    return st.one_of(value, value, st.tuples(value, value).map(lambda ends: tuple(sorted(ends))))


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    """Some numeric parameters besides the defaults, and every mode."""
    names = draw(st.sets(st.sampled_from(sorted(NUMBERS)), max_size=len(NUMBERS)))
    values: dict[str, Any] = {name: draw(one_number(*NUMBERS[name]), label=name) for name in sorted(names)}
    values["action"] = draw(st.sampled_from(["levels", "continuous", "brackets"]))
    if values["action"] == "levels":
        levels = st.lists(st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.25, 0.5]), min_size=1, max_size=4, unique=True)
        # At least one above zero, or nothing can be traded without shorts.
        values["levels"] = (*draw(levels), 1.0)
    if values["action"] == "brackets":
        distance = st.floats(1e-3, 0.3)
        values["stop_loss"] = tuple(draw(st.lists(distance, min_size=1, max_size=2)))
        values["take_profit"] = tuple(draw(st.lists(distance, min_size=1, max_size=2)))
        values["trade_mode"] = draw(st.sampled_from(["fractional", "notional", "quantity"]))
        for name in ("include_hold", "include_close", "lock_position"):
            values[name] = draw(st.booleans(), label=name)
    values["allow_short"] = draw(st.booleans())
    values["fill"] = draw(st.sampled_from(["next_open", "close"]))
    values["hold_on_same_action"] = draw(st.sampled_from([None, True, False]))
    values["funding_side"] = draw(st.sampled_from(["holder", "perpetual"]))
    values["flat_at_session_end"] = draw(st.booleans())
    values["reward"] = draw(st.sampled_from(["log_return", "return", "differential_sharpe", "drawdown"]))
    values["start"] = draw(st.sampled_from(["random", "sequential", "first"]))
    values["account_values"] = draw(st.sampled_from(["full", "torchtrade"]))
    lengths = [st.none(), st.integers(1, 20)]
    if values["start"] != "sequential":
        lengths.append(st.tuples(st.integers(1, 8), st.integers(8, 20)))
    values["episode_length"] = draw(st.one_of(lengths))
    if "funding" not in values:
        values["funding_column"] = draw(st.sampled_from([None, "funding_rate"]))
    return values


MARKETS = st.fixed_dictionaries(
    {
        "bars": st.just(60),
        "seed": st.integers(0, 1000),
        "instruments": st.integers(1, 3),
        "session": st.integers(2, 25),
        "jump": st.sampled_from([0.0, 0.05, 0.5]),
        "volatility": st.sampled_from([0.0, 0.01, 0.1]),
    }
)


def assert_parity(scenario: Scenario) -> None:
    assert_identical(record(scenario.make("native"), scenario), record(scenario.make("python"), scenario))


def test_every_numeric_parameter_is_drawn():
    assert set(NUMBERS) == set(ranged_names(TradingConfig))


@settings(max_examples=25)
@given(market=MARKETS, values=parameters(), autoreset=st.booleans(), seed=st.integers(0, 2**40))
def test_plain_python_and_compiled_code_agree_to_the_bit(market, values, autoreset, seed):
    options = {"seed": seed, "autoreset": autoreset}
    assert_parity(Scenario(trading(market, **values), num_envs=3, steps=12, options=options))


@settings(max_examples=15)
@given(
    market=MARKETS,
    values=parameters(),
    seed=st.integers(0, 2**40),
    chosen=st.lists(st.booleans(), min_size=3, max_size=3).filter(any),
)
def test_masked_and_seeded_resets_agree_to_the_bit(market, values, seed, chosen):
    resets = {3: {"options": {"reset_mask": chosen}}, 6: {"seed": [seed, None, 2]}, 8: {"seed": seed + 1}}
    assert_parity(Scenario(trading(market, **values), num_envs=3, steps=10, resets=resets))


@settings(max_examples=10)
@given(market=MARKETS, values=parameters(), seed=st.integers(0, 1000))
def test_money_stays_finite_whatever_the_parameters(market, values, seed):
    envs = vd.make_vec("trading", 64, market=small_market(**market), backend="native", seed=seed, **values)
    envs.reset()
    envs.action_space.seed(seed)
    for _ in range(30):
        observations, rewards, *_ = envs.step(envs.action_space.sample())
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
    for name in ("cash", "units", "entry", "equity", "peak"):
        assert np.isfinite(envs.column(name)).all(), name


@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
def test_every_code_path_of_an_action_kind_agrees_over_many_steps(action):
    """A violent market: liquidations, brackets, bankruptcies and session ends all happen in these steps."""
    scenario = Scenario(
        trading(
            {"bars": 200, "seed": 4, "session": 9, "jump": 0.2, "volatility": 0.03}, action=action, leverage=8.0,
            fee=1e-3, slippage=1e-3, funding=1e-3, daily_drawdown=0.5, cooldown=1, flat_at_session_end=True,
            episode_length=30, turnover_cap=30.0,
        ),
        num_envs=8,
        steps=80,
    )  # fmt: skip
    plain = record(scenario.make("python"), scenario)
    assert_identical(record(scenario.make("native"), scenario), plain)
    ended = [entry for entry in plain if "_final_obs" in entry]
    assert sum(entry["terminated"].sum() for entry in ended) > 0
    assert sum(entry["statistics liquidations"].sum() for entry in ended) > 0
