"""Parameters of the trading environment: every one has a working default and an error that helps."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.markets import small_market
from velodrome.envs.parameters import ranged_names
from velodrome.envs.trading import codes
from velodrome.envs.trading.config import PRESETS, Terms, TradingConfig, trading_config
from velodrome.envs.trading.state import STATISTICS, Params
from velodrome.envs.trading.world import action_names, trading_world
from velodrome.errors import ConfigError, VelodromeError

FIELDS = TradingConfig.model_fields
RANGED = ranged_names(TradingConfig)
BOUNDS: dict[str, dict[str, Any]] = {name: FIELDS[name].json_schema_extra for name in RANGED}
CHOICES = {
    "action": ("levels", "continuous", "brackets"),
    "trade_mode": ("fractional", "notional", "quantity"),
    "fill": ("next_open", "close"),
    "funding_side": ("holder", "perpetual"),
    "reward": ("log_return", "return", "differential_sharpe", "drawdown"),
    "start": ("random", "sequential", "first"),
    "account_values": ("full", "torchtrade"),
}
SWITCHES = ("include_hold", "include_close", "lock_position", "allow_short", "hold_on_same_action",
            "flat_at_session_end")  # fmt: skip
LISTS = ("levels", "stop_loss", "take_profit")


@pytest.fixture(scope="module")
def market():
    return small_market(bars=60, windows=((5, 1),))


def refusal(**values: Any) -> str:
    """Return the message with which parameters are refused."""
    with pytest.raises(ConfigError) as error:
        trading_config(**values)
    return str(error.value)


def play(market: Any, **values: Any) -> None:
    """Play some steps of each of the three action kinds that the values allow."""
    envs = vd.make_vec("trading", 3, market=market, seed=0, threads=1, **values)
    envs.reset()
    envs.action_space.seed(0)
    for _ in range(8):
        observations, rewards, *_ = envs.step(envs.action_space.sample())
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()


# Declarations


def test_the_lists_of_this_file_name_every_parameter_once():
    named = [*BOUNDS, *CHOICES, *SWITCHES, *LISTS, "funding_column", "episode_length"]
    assert sorted(named) == sorted(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_parameter_has_a_description_and_a_default(name):
    assert len(FIELDS[name].description or "") > 10
    assert not FIELDS[name].is_required()


@pytest.mark.parametrize("name", RANGED)
def test_every_number_has_a_unit_and_a_default_in_its_range(name):
    bounds = BOUNDS[name]
    assert bounds["unit"]
    assert bounds["low"] <= FIELDS[name].default <= bounds["high"]


def test_the_terms_of_an_episode_are_the_numeric_parameters_in_the_order_of_declaration():
    assert list(RANGED) == [name for name in FIELDS if name in BOUNDS]
    assert Terms._fields == (*RANGED, "margin", "sizing")
    assert Params._fields[: len(RANGED)] == RANGED


def test_codes_and_their_names_are_in_the_same_order():
    for index, name in enumerate(codes.CODE_NAMES):
        assert getattr(codes, name.upper()) == index
    assert STATISTICS[-codes.CODES :] == codes.CODE_NAMES


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        trading_config().fee = 0.1


# Legal values


@pytest.mark.parametrize("action", CHOICES["action"])
def test_the_defaults_work(market, action):
    play(market, action=action)


@pytest.mark.parametrize("name", RANGED)
def test_both_ends_of_every_range_are_legal_and_a_range_is_too(market, name):
    low, high = BOUNDS[name]["low"], BOUNDS[name]["high"]
    for value in (low, high, (low, high), (low, low)):
        config = trading_config(**{name: value})
        assert getattr(config, name) == value
    play(market, action="continuous", **{name: low})
    play(market, action="brackets", trade_mode="notional", **{name: high})
    play(market, **{name: (low, high)})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_choice_works(market, name, value):
    values = {"start": "sequential", "episode_length": 5} if value == "sequential" else {name: value}
    play(market, **values)
    play(market, **{"action": "brackets", **values})


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_works(market, name, value):
    play(market, **{name: value})
    play(market, action="brackets", **{name: value})


@pytest.mark.parametrize("length", [1, 5, (1, 5), (3, 3), None, 55])
def test_every_kind_of_episode_length_works(market, length):
    play(market, episode_length=length)


def test_hold_on_same_action_defaults_by_kind():
    assert trading_config().holds_on_same_action
    assert not trading_config(action="continuous").holds_on_same_action
    assert trading_config(action="continuous", hold_on_same_action=True).holds_on_same_action
    assert not trading_config(hold_on_same_action=False).holds_on_same_action


def test_action_spaces_and_names_follow_the_parameters(market):
    assert trading_world(market, levels=(0.0, 0.5, 1.0, -1.0)).action_space.n == 4
    assert action_names(trading_config(levels=(0.0, 0.5, -1.0))) == ("flat", "+0.5", "-1")
    brackets = {"action": "brackets", "stop_loss": (0.01, 0.02), "take_profit": (0.03,)}
    assert action_names(trading_config(**brackets)) == (
        "hold", "close", "long stop 0.01 target 0.03", "long stop 0.02 target 0.03", "short stop 0.01 target 0.03",
        "short stop 0.02 target 0.03",
    )  # fmt: skip
    assert trading_world(market, **brackets, allow_short=False, include_hold=False).action_space.n == 3
    box = trading_world(market, action="continuous").action_space
    assert (box.shape, box.low[0], box.high[0]) == ((1,), -1.0, 1.0)


# Refusals


@pytest.mark.parametrize("name", RANGED)
def test_a_number_out_of_range_is_refused_with_value_range_and_unit(name):
    low, high, unit = (BOUNDS[name][key] for key in ("low", "high", "unit"))
    below, above = np.nextafter(low, -np.inf).item(), high * 1.5 + 1.0
    for bad in (below, above, float("nan"), float("inf"), (below, high), (low, above)):
        message = refusal(**{name: bad})
        assert message.startswith(f"{name} = {bad!r}: ")
        assert "legal: " in message or "whole number" in message
        assert f"{low:g} … {high:g} ({unit})" in message
        assert FIELDS[name].description in message


@pytest.mark.parametrize("name", RANGED)
@pytest.mark.parametrize("bad", ["much", None, [], {}, (1.0, 2.0, 3.0), ("a", "b"), 1j])
def test_a_number_of_the_wrong_type_is_refused(name, bad):
    message = refusal(**{name: bad})
    assert message.startswith(f"{name} = {bad!r}: ")
    assert FIELDS[name].description in message


@pytest.mark.parametrize("name", RANGED)
def test_a_range_the_wrong_way_round_is_refused(name):
    low, high = BOUNDS[name]["low"], BOUNDS[name]["high"]
    assert f"{name} = {(high, low)!r}: a range is written (low, high) with low ≤ high" in refusal(**{name: (high, low)})


@pytest.mark.parametrize("bad", [1.5, (0, 2.5), (0.5, 2)])
def test_a_cooldown_is_a_whole_number(bad):
    assert f"cooldown = {bad!r}: must be a whole number; legal: 0 … 1e+06 (bars)" in refusal(cooldown=bad)


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_choice_is_refused_with_the_legal_ones(name):
    message = refusal(**{name: "sideways"})
    assert message.startswith(f"{name} = 'sideways': ")
    for legal in CHOICES[name]:
        assert repr(legal) in message
    refusal(**{name: 3})


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_of_another_type_is_refused(name):
    assert refusal(**{name: "perhaps"}).startswith(f"{name} = 'perhaps': Input should be a valid boolean")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"levels": ()}, "levels = (): levels must be one or more different numbers in [−1, 1]"),
        ({"levels": (0.0, 1.5)}, "different numbers in [−1, 1]"),
        ({"levels": (0.0, float("nan"))}, "different numbers in [−1, 1]"),
        ({"levels": (0.5, 0.5)}, "different numbers"),
        ({"levels": 0.5}, "levels = 0.5: Input should be a valid tuple"),
        ({"stop_loss": ()}, "stop_loss = (): needs one or more positive fractions"),
        ({"stop_loss": (0.05, 0.0)}, "positive fractions of the price"),
        ({"stop_loss": (-0.05,)}, "positive fractions of the price"),
        ({"stop_loss": (1.0,)}, "distances below 1"),
        ({"take_profit": (0.1, -0.1)}, "positive fractions of the price"),
        ({"take_profit": (float("inf"),)}, "positive fractions of the price"),
        ({"episode_length": 0}, "episode_length = 0: needs at least 1 decision"),
        ({"episode_length": (0, 5)}, "needs at least 1 decision"),
        ({"episode_length": (5, 2)}, "a range is written (low, high) with low ≤ high"),
        ({"episode_length": 2.5}, "episode_length = 2.5: Input should be a valid integer"),
        ({"episode_length": "long"}, "episode_length = 'long': Input should be a valid integer"),
        ({"funding_column": 3}, "funding_column = 3: Input should be a valid string"),
        # Contradictions.
        ({"funding": 1e-4, "funding_column": "rate"}, "either funding or funding_column, not both"),
        ({"levels": (-1.0, 0.0), "allow_short": False}, "at least one level must be above 0"),
        ({"start": "sequential", "episode_length": (3, 9)}, "start='sequential' needs one episode_length"),
    ],
)
def test_illegal_and_contradictory_values_are_refused(values, message):
    assert message in refusal(**values)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("fees", "fee"), ("leverge", "leverage"), ("stoploss", "stop_loss"), ("episode_lenght", "episode_length")],
)
def test_an_unknown_name_suggests_the_nearest(name, meant):
    message = refusal(**{name: 1})
    assert f"unknown parameter {name!r}. Did you mean {meant!r}?" in message
    assert "Legal parameters: episode_length, start, initial_cash, fee, " in message


def test_an_unknown_preset_suggests_the_nearest():
    message = refusal(preset="torchtrad")
    assert message == "unknown preset 'torchtrad'; there are torchtrade, intraday. Did you mean 'torchtrade'?"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_legal_and_give_way(preset):
    for name, value in PRESETS[preset].items():
        assert getattr(trading_config(preset), name) == value
    assert trading_config(preset, fee=0.2).fee == 0.2


# What must agree with the market


@pytest.mark.parametrize("market", [None, "prices.csv", 3])
def test_no_market_says_how_to_make_one(market):
    with pytest.raises(ConfigError, match=re.escape(f"market = {market!r}: the trading environment needs a Market")):
        vd.make_vec("trading", 2, market=market)


def test_a_missing_market_says_how_to_make_one():
    with pytest.raises(ConfigError, match=r"vd\.build_market"):
        vd.make("trading")


def test_a_missing_funding_column_suggests_the_nearest(market):
    with pytest.raises(ConfigError, match=r"no such column; there are funding_rate\. Did you mean 'funding_rate'\?"):
        trading_world(market, funding_column="funding_rates")
    bare = dataclasses.replace(market, columns={})
    with pytest.raises(ConfigError, match="the market has no such column; there are none"):
        trading_world(bare, funding_column="funding_rate")


def test_funding_of_coarser_bars_is_that_of_all_bars_in_them():
    """A rate that only every second hour has, not the last of two: all of it is paid, or nothing is played."""
    made = vd.synthetic_bars("gbm", 240, timeframe="1h")
    (symbol,) = made.symbols
    rate = np.where(np.arange(240) % 2 == 0, 1e-4, 0.0)
    bars = dataclasses.replace(made, series={symbol: dataclasses.replace(made[symbol], extra={"rate": rate})})
    options = {"features": ["log_return"], "windows": 4, "splits": {}, "scaler": "none"}
    fine = vd.build_market(bars, **options)
    assert trading_world(fine, funding_column="rate").tables.funding.sum() == pytest.approx(120e-4)
    coarse = vd.build_market(bars, timeframe="2h", sums=["rate"], **options)
    assert trading_world(coarse, funding_column="rate").tables.funding.sum() == pytest.approx(120e-4)
    last = vd.build_market(bars, timeframe="2h", **options)
    assert last.columns["rate"].sum() == 0.0
    with pytest.raises(ConfigError, match=r"funding_column = 'rate': the bars of 2h were made of finer ones.*sums="):
        trading_world(last, funding_column="rate")
    with pytest.raises(ConfigError, match=r"no column 'rat' to be summed.*Did you mean 'rate'\?"):
        vd.build_market(bars, timeframe="2h", sums=["rat"], **options)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_funding_column_with_gaps_is_refused(market, bad):
    rates = market.columns["funding_rate"].copy()
    rates[30] = bad
    with pytest.raises(ConfigError, match="funding_column = 'funding_rate' has NaN or infinite values"):
        trading_world(dataclasses.replace(market, columns={"funding_rate": rates}), funding_column="funding_rate")


def test_an_episode_that_does_not_fit_is_refused_with_what_would(market):
    with pytest.raises(ConfigError) as error:
        trading_world(market, episode_length=56)
    assert "no episode fits: episode_length = 56 needs 56 bars" in str(error.value)
    assert "small has at most 55" in str(error.value)
    assert "Use a shorter episode_length, shorter windows, or more data" in str(error.value)
    with pytest.raises(ConfigError, match="no episode fits"):
        trading_world(market, episode_length=(5, 56))
    trading_world(market, episode_length=55)


def test_a_window_longer_than_the_data_is_refused():
    bars = vd.synthetic_bars("gbm", 50)
    with pytest.raises(VelodromeError):
        trading_world(vd.build_market(bars, features=["log_return"], windows=64, splits={}))
    # By hand, without build_market: no row has complete windows.
    with pytest.raises(ConfigError, match=r"no episode fits: .* needs 1 bars .* has at most 0"):
        trading_world(small_market(bars=20, windows=((32, 1),)))


def test_an_unknown_split_is_refused(market):
    with pytest.raises(ConfigError, match="no split 'train' in this market; there are none"):
        trading_world(market, split="train")


# Own rewards


class Callable:
    def __call__(self, old, new):
        return 0.0


@pytest.mark.parametrize("reward", [Callable(), max, Callable().__call__])
@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_reward_must_be_a_plain_function(market, reward, backend):
    with pytest.raises(ConfigError, match=r"reward must be a plain Python function \(def or lambda\), received"):
        vd.make_vec("trading", 2, market=market, reward=reward, backend=backend)


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_reward_takes_what_was_before_and_what_is_now(market, backend):
    with pytest.raises(ConfigError, match=r"^reward takes \(old, new\); .*<lambda> takes \(old, new, cash\): missing"):
        vd.make_vec("trading", 2, market=market, reward=lambda old, new, cash: 1.0, backend=backend)


def reward_of_wealth(old, new):
    return new.wealth


@pytest.fixture(scope="module")
def compiler_error(market):
    """What a reward that cannot be compiled gives; once, since the compiler takes its time to find out."""

    def begin_and_step() -> None:
        envs = vd.make_vec("trading", 2, market=market, reward=reward_of_wealth, threads=1)
        envs.reset(seed=0)
        envs.step([0, 0])

    with pytest.raises(Exception, match="wealth") as error:
        begin_and_step()
    return error.value


def test_a_reward_that_does_not_compile_shows_the_line(compiler_error):
    assert "Unknown attribute 'wealth' of type RewardAccount" in str(compiler_error)
    assert "test_config.py" in str(compiler_error)
    assert "return new.wealth" in str(compiler_error)


def test_a_reward_that_does_not_compile_is_an_error_of_ours(compiler_error):
    assert isinstance(compiler_error, VelodromeError)


def test_in_plain_python_the_same_reward_fails_at_its_own_line(market):
    envs = vd.make_vec("trading", 2, market=market, reward=reward_of_wealth, backend="python")
    envs.reset(seed=0)
    with pytest.raises(AttributeError, match="'RewardAccount' object has no attribute 'wealth'"):
        envs.step([0, 0])
