"""The compiled rule against the ledger of tests/oracles, step by step, over many sets of parameters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.markets import small_market
from tests.oracles.philox import uniform
from tests.oracles.trading_account import EXIT_CODES, ORDER_CODES
from tests.oracles.trading_ledger import TradingLedger
from velodrome.envs import trading
from velodrome.envs.margin_account import CLOSED_POSITION, CODE_NAMES, COUNT_MASK, WON_POSITION
from velodrome.envs.trading_config import TradingConfig, trading_config
from velodrome.envs.trading_world import trading_world
from velodrome.tables.market import Market
from velodrome.vector.native import NativeVectorEnv

ENVIRONMENTS = 64
STEPS = 68  # for each set of parameters: 64 · 68 · 24 sets are more than 100,000 steps of each action kind
SETS = 24
MONEY = 1e-9  # tolerance, relative to the initial cash or to the largest equity of the episode
SOFT = 1e-6  # equity below this part of the initial one may be rounding noise, and so is what is divided by it
FLOAT32 = 2.4e-7  # two roundings to float32

UNCOUNTED = ("none", "held_same", "held_band")
EXACT_COLUMNS = {"cursor": "cursor", "held": "hold_counter", "cooldown_left": "cooldown_left"}
MONEY_COLUMNS = {"cash": "cash", "equity": "equity", "peak": "peak", "session_equity": "session_start_equity"}
PRICE_COLUMNS = {"entry": "entry", "stop": "stop", "target": "target"}


def parameter_set(kind: str, index: int) -> dict[str, Any]:
    """Draw one set; what must occur whatever is drawn goes by the index."""
    rng = np.random.default_rng([trading.BRACKETS, len(kind), index])

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    values: dict[str, Any] = {
        "action": kind,
        "initial_cash": one_of(10_000.0, 10_000.0, 1.0, 1e6),
        "leverage": (1.0, 2.0, 5.0, 20.0, 100.0)[index % 5],
        "fee": one_of(0.0, 1e-4, 1e-3, 0.01),
        "fill": ("next_open", "close")[index % 2],
        "half_spread": one_of(0.0, 0.0, 5e-4, 0.01),
        "slippage": one_of(0.0, 1e-3, 0.02),
        "slippage_atr": one_of(0.0, 0.0, 0.1),
        "maintenance_margin": one_of(0.004, 0.004, 0.0, 0.2),
        "bankrupt_at": one_of(0.1, 0.1, 0.0, 0.6),
        "allow_short": bool(rng.random() < 0.75),
        "funding_side": one_of("holder", "perpetual"),
        "flat_at_session_end": bool(rng.random() < 0.3),
        "cooldown": one_of(0, 0, 1, 4),
        "turnover_cap": one_of(0.0, 0.0, 3.0, 20.0),
        "max_drawdown": one_of(0.0, 0.0, 0.0, 0.3),
        "daily_drawdown": one_of(0.0, 0.0, 0.2),
        "reward": ("log_return", "return", "differential_sharpe", "drawdown")[index % 4],
        "turnover_penalty": one_of(0.0, 0.01),
        "drawdown_penalty": one_of(1.0, 0.3),
        "sharpe_decay": one_of(0.01, 0.2),
        "episode_length": 1 if index == 9 else one_of(12, 40, (5, 60), None),
        "account_values": one_of("full", "full", "torchtrade"),
        "start": one_of("random", "sequential" if index % 3 else "random"),
    }
    if values["start"] == "sequential":
        values["episode_length"] = 20
    if rng.random() < 0.3:
        values["funding_column"] = "funding_rate"
    else:
        values["funding"] = one_of(0.0, 1e-4, -1e-3, 0.03)
    if kind == "brackets":
        values |= {
            "stop_loss": one_of((0.025, 0.05, 0.1), (0.005, 0.3)),
            "take_profit": one_of((0.05, 0.1, 0.2), (0.01,)),
            "include_hold": bool(rng.random() < 0.8),
            "include_close": bool(rng.random() < 0.8),
            "lock_position": index % 6 == 5,
            "trade_mode": ("fractional", "notional", "quantity", "fractional")[index % 4],
            "position_fraction": one_of(1.0, 0.3),
        }
        price = 100.0 if values["trade_mode"] == "quantity" else 1.0  # roughly
        part = one_of(0.1, 0.97, 0.97, 1.1)  # of what can be bought: a loss makes 0.97 too much
        values["quantity_per_trade"] = part * values["initial_cash"] * values["leverage"] / price
    else:
        values |= {
            "rebalance_band": one_of(0.0, 0.02, 0.3),
            "min_trade": one_of(0.0, 1.0, 1.0, 0.1 * values["initial_cash"]),
            "hold_on_same_action": (None, True, False)[index % 3],
        }
        if kind == "levels":
            values["levels"] = one_of((-1.0, 0.0, 1.0), (-1.0, -0.5, 0.0, 0.3, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    if index % 10 == 4 and kind != "brackets":
        # Opening and closing costs more than the margin: a switch closes and has nothing left to open with.
        values |= {"half_spread": 0.004, "fee": 0.003, "slippage": 0.0, "slippage_atr": 0.0, "maintenance_margin": 0.0}
        values |= {"flat_at_session_end": False, "cooldown": 0, "turnover_cap": 0.0, "allow_short": True}
        values |= {"episode_length": 12, "levels": (-1.0, 0.0, 1.0)}
    if index % 8 == 7:
        # Ranges: every episode of every environment then has numbers of its own.
        values |= {"fee": (0.0, 0.01), "leverage": (1.0, 50.0), "initial_cash": (10.0, 1e5), "cooldown": (0, 3)}
        values |= {"slippage": (0.0, 0.01), "max_drawdown": (0.05, 0.9), "maintenance_margin": (0.0, 0.1)}
    return values


def market_of(index: int) -> Market:
    return small_market(
        bars=240, seed=100 + index, instruments=1 + index % 2, windows=((2, 1),), session=(25, 7)[index % 2],
        # By leverage (1, 2, 5, 20, 100): a position should live for some bars, and then sometimes be jumped over.
        jump=(0.3, 0.1, 0.1, 0.05, 0.01)[index % 5], volatility=(0.03, 0.01, 0.01, 0.004, 0.001)[index % 5],
    )  # fmt: skip


LEDGER_PARAMETERS = {field.name for field in dataclasses.fields(TradingLedger) if field.init}


def ledgers_of(market: Market, config: TradingConfig) -> list[TradingLedger]:
    """Give the ledgers the same words; of a range they take the lower end until an episode begins."""
    shared = {name: getattr(config, name) for name in TradingConfig.model_fields if name in LEDGER_PARAMETERS}
    shared |= {name: value[0] for name, value in shared.items() if name in trading.NUMBERS and isinstance(value, tuple)}
    shared |= {
        "action_kind": config.action,
        "ohlc": market.ohlc.tolist(),
        "atr": market.atr.tolist(),
        "session_last": market.session_last.astype(bool).tolist(),
        "funding_column": market.columns[config.funding_column].tolist() if config.funding_column else None,
    }
    return [TradingLedger(**shared) for _ in range(ENVIRONMENTS)]


def random_actions(rng: np.random.Generator, space: gymnasium.Space, before: np.ndarray) -> np.ndarray:
    """Return actions that often stay the same: else nothing would be held for long."""
    if isinstance(space, gymnasium.spaces.Discrete):
        drawn = rng.integers(0, space.n, ENVIRONMENTS)
        # The first action is HOLD, short or flat: what makes room for the others.
        drawn[rng.random(ENVIRONMENTS) < 0.2] = 0
    else:
        drawn = rng.uniform(-1.0, 1.0, ENVIRONMENTS).astype(np.float32)
        round_number = rng.random(ENVIRONMENTS) < 0.3
        drawn[round_number] = rng.choice(np.float32([-1.0, 0.0, 1.0]), int(round_number.sum()))
    return np.where(rng.random(ENVIRONMENTS) < 0.4, before, drawn).astype(before.dtype)


class Comparison:
    """One batch of the compiled rule beside one ledger for each environment."""

    def __init__(self, kind: str, index: int) -> None:
        self.values = parameter_set(kind, index)
        self.label = f"set {index}: {self.values}"
        self.config = trading_config(**self.values)
        self.market = market_of(index)
        self.world = trading_world(self.market, **self.values)
        self.envs = NativeVectorEnv(
            self.world, ENVIRONMENTS, seed=index, observation="cursor", autoreset=False, threads=1
        )
        self.ledgers = ledgers_of(self.market, self.config)
        self.rng = np.random.default_rng(index)
        self.compared = 0
        self.skipped = 0
        self.codes: Counter[str] = Counter()
        # Environments whose ledger and rule parted at a near tie sit out the rest of the episode.
        self.parted = np.zeros(ENVIRONMENTS, bool)
        # Episodes with rewards of rounding noise have no sums to compare.
        self.was_soft = np.zeros(ENVIRONMENTS, bool)

    def begin(self, rows: np.ndarray) -> None:
        """Put the ledgers of environments that were reset at the start of the same episode."""
        start, last, numbers = self.envs.column("start"), self.envs.column("last"), self.envs.column("numbers")
        for row in rows:
            ledger = self.ledgers[row]
            if self.world.params.randomised:
                for name, value in zip(trading.NUMBERS, numbers[:, row].tolist(), strict=True):
                    if name in LEDGER_PARAMETERS:
                        setattr(ledger, name, value)
            ledger.reset(int(start[row]), int(last[row]))
        self.parted[rows] = False
        self.was_soft[rows] = False

    def draws(self) -> list[float]:
        """Return each environment's uniform number of the coming step, from its generator's columns."""
        keys, counters = self.envs.column("rng_key").tolist(), self.envs.column("rng_counter").tolist()
        return [
            uniform(key, counter) if ledger.slippage > 0.0 else 0.0
            for key, counter, ledger in zip(keys, counters, self.ledgers, strict=True)
        ]

    def run(self) -> None:
        self.envs.reset()
        self.begin(np.arange(ENVIRONMENTS))
        discrete = isinstance(self.world.action_space, gymnasium.spaces.Discrete)
        actions = np.zeros(ENVIRONMENTS, np.int64 if discrete else np.float32)
        for step in range(STEPS):
            actions = random_actions(self.rng, self.world.action_space, actions)
            draws = self.draws()
            soft_before = np.array([ledger.equity < SOFT * ledger.initial_cash for ledger in self.ledgers])
            results = [
                ledger.step(action, draw)
                for ledger, action, draw in zip(self.ledgers, actions.tolist(), draws, strict=True)
            ]
            observations, rewards, terminated, truncated, infos = self.envs.step(actions)
            ended = terminated | truncated
            wrong = self.differences(results, soft_before, observations["account"], rewards, terminated, truncated)
            for row in np.flatnonzero(ended & ~self.parted):
                if row not in wrong:
                    self.compare_statistics(row, infos["statistics"], wrong)
            for row, messages in wrong.items():
                if not self.ledgers[row].was_near_a_tie:
                    pytest.fail(f"environment {row}, step {step}: " + "; ".join(messages) + f"\n{self.label}")
                self.parted[row] = True
            self.skipped += int(self.parted.sum())
            self.compared += int((~self.parted).sum())
            # The ledger of a parted environment may end elsewhere: it is brought back with the rule's next episode.
            for row in np.flatnonzero(self.parted & ~ended):
                self.ledgers[row].reset(self.ledgers[row].start, self.ledgers[row].last)
            if ended.any():
                self.envs.reset(options={"reset_mask": ended})
                self.begin(np.flatnonzero(ended))

    def differences(
        self, results: list[Any], soft_before: np.ndarray, account: np.ndarray, rewards: np.ndarray,
        terminated: np.ndarray, truncated: np.ndarray,
    ) -> dict[int, list[str]]:  # fmt: skip
        """Return what differs after a step, by environment; environments that parted before are left out."""
        wrong: dict[int, list[str]] = {}
        ledgers = self.ledgers

        def of_ledgers(name: str) -> np.ndarray:
            return np.array([getattr(ledger, name) for ledger in ledgers], np.float64)

        def note(name: str, ours: Any, theirs: Any, differs: np.ndarray) -> None:
            for row in np.flatnonzero(differs & ~self.parted):
                wrong.setdefault(int(row), []).append(f"{name}: rule {ours[row]!r}, ledger {theirs[row]!r}")

        initial, equity = of_ledgers("initial_cash"), of_ledgers("equity")
        money = MONEY * np.maximum(initial, of_ledgers("peak"))
        for column, name in EXACT_COLUMNS.items():
            ours, theirs = self.envs.column(column), of_ledgers(name)
            note(name, ours, theirs, ours != theirs)
        for column, name in MONEY_COLUMNS.items():
            if column == "session_equity" and not (self.values["turnover_cap"] or self.values["daily_drawdown"]):
                continue  # then the rule does not keep it
            ours, theirs = self.envs.column(column), of_ledgers(name)
            note(name, ours, theirs, ~(np.abs(ours - theirs) <= money))
        ours, theirs = self.envs.column("units"), of_ledgers("units")
        price = self.market.ohlc[self.envs.column("cursor"), 3]
        note("units", ours, theirs, ~(np.abs(ours - theirs) <= np.maximum(MONEY * np.abs(theirs), money / price)))
        for column, name in PRICE_COLUMNS.items():
            ours, theirs = self.envs.column(column), of_ledgers(name)
            note(name, ours, theirs, ~(np.abs(ours - theirs) <= MONEY * np.abs(theirs)))
        ours = self.envs.column("previous_level")
        theirs = np.array([np.nan if led.previous_level is None else led.previous_level for led in ledgers])
        note("previous_level", ours, theirs, ~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))

        for column in ("order_code", "exit_code"):
            ours = [CODE_NAMES[code] for code in self.envs.column(column)]
            theirs = [getattr(ledger, column) for ledger in ledgers]
            note(column, ours, theirs, np.array([a != b for a, b in zip(ours, theirs, strict=True)]))
            self.codes.update(ours)
        for name, ours, theirs in (
            ("terminated", terminated, np.array([result.terminated for result in results])),
            ("truncated", truncated, np.array([result.truncated for result in results])),
        ):
            note(name, ours, theirs, ours != theirs)

        soft = soft_before | (equity < SOFT * initial)
        self.was_soft |= soft
        theirs = np.array([result.reward for result in results])
        differs = ~(np.abs(rewards - theirs) <= FLOAT32 * np.maximum(1.0, np.abs(theirs)))
        # The differential Sharpe ratio remembers a return of noise until the episode ends.
        remembers = self.values["reward"] == "differential_sharpe"
        note("reward", rewards, theirs, differs & ~(self.was_soft if remembers else soft))
        theirs = np.array([ledger.account_vector() for ledger in ledgers])
        differs = ~(np.abs(account - theirs) <= FLOAT32 * np.maximum(1.0, np.abs(theirs)))
        note("account vector", account, theirs, differs.any(axis=1) & ~soft)

        events = self.envs.column("events")
        for name, ours in (
            ("trades", events & COUNT_MASK),
            ("positions_closed", events // CLOSED_POSITION & COUNT_MASK),
        ):
            theirs = of_ledgers(name)
            note(name, ours, theirs, ours != theirs)
        won, theirs = events // WON_POSITION, of_ledgers("positions_won")
        note("positions_won", won, theirs, (won != theirs) & (of_ledgers("closest_win_tie") > MONEY))
        return wrong

    def compare_statistics(self, row: int, statistics: dict[str, np.ndarray], wrong: dict[int, list[str]]) -> None:
        ledger = self.ledgers[row]
        scale = max(ledger.initial_cash, ledger.peak)
        noisy = {"reward", "turnover", "sharpe"} if self.was_soft[row] else set()
        if ledger.closest_win_tie <= MONEY:
            noisy.add("win_rate")
        expected = ledger.statistics()
        # The rule's variance is a difference of sums, which loses as many digits as the square of the ratio has.
        relative = {"sharpe": MONEY + 1e-15 * expected["sharpe"] ** 2, "reward": 1e-7}
        absolute = {"fees": 10 * MONEY * scale * ledger.leverage, "funding": 10 * MONEY * scale * ledger.leverage}
        for name, value in expected.items():
            bound = relative.get(name, MONEY) * max(1.0, abs(value)) + absolute.get(name, 0.0)
            if name == "return":
                bound = MONEY * scale / ledger.initial_cash
            if name not in noisy and not abs(statistics[name][row] - value) <= bound:
                message = f"statistic {name}: rule {statistics[name][row]!r}, ledger {value!r}"
                wrong.setdefault(row, []).append(message)
        counts = ledger.order_counts + ledger.exit_counts
        for name in CODE_NAMES:
            count = 0 if name in UNCOUNTED else counts[name]
            if statistics[name][row] != count:
                wrong.setdefault(row, []).append(f"{name} counted {statistics[name][row]} times, ledger {count}")


@pytest.mark.parametrize("kind", ["levels", "continuous", "brackets"])
def test_the_rule_is_the_ledger_over_a_hundred_thousand_steps(kind):
    compared = skipped = 0
    codes: Counter[str] = Counter()
    for index in range(SETS):
        comparison = Comparison(kind, index)
        comparison.run()
        compared += comparison.compared
        skipped += comparison.skipped
        codes += comparison.codes
    assert compared >= 100_000
    assert skipped <= 0.02 * compared
    # What never happened was not compared.
    of_brackets = {"locked", "ignored", "stopped", "target"}
    of_levels = {"held_same", "held_band", "increased", "decreased"}
    expected = {*ORDER_CODES, *EXIT_CODES} - {"exhausted"} - (of_levels if kind == "brackets" else of_brackets)
    assert {name for name, count in codes.items() if count >= 20} == expected
