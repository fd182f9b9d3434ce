"""The compiled rule against the ledger of tests/oracles, step by step, over many sets of parameters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.markets import small_market
from tests.oracles.ledger_comparison import ENVIRONMENTS, MONEY, LedgerComparison, Outcome, compare_all, shared_words
from tests.oracles.trading_account import EXIT_CODES, ORDER_CODES
from tests.oracles.trading_ledger import TradingLedger
from velodrome.envs.parameters import ranged_names
from velodrome.envs.trading.account import CLOSED_POSITION, COUNT_MASK, WON_POSITION
from velodrome.envs.trading.codes import BRACKETS, CODE_NAMES
from velodrome.envs.trading.config import TradingConfig, trading_config
from velodrome.envs.trading.world import trading_world
from velodrome.tables.market import Market

SETS = 24
# For each set of parameters: 64 · 24 · 24 sets, of the three action kinds, are more than 100,000 steps together.
QUICK_STEPS = 24
SLOW_STEPS = 68  # of each kind
SOFT = 1e-6  # equity below this part of the initial one may be rounding noise, and so is what is divided by it

UNCOUNTED = ("none", "held_same", "held_band")
EXACT_COLUMNS = {"cursor": "cursor", "held": "hold_counter", "cooldown_left": "cooldown_left"}
MONEY_COLUMNS = {"cash": "cash", "equity": "equity", "peak": "peak", "session_equity": "session_start_equity"}
PRICE_COLUMNS = {"entry": "entry", "stop": "stop", "target": "target"}


def parameter_set(kind: str, index: int) -> dict[str, Any]:
    """Draw one set; what must occur whatever is drawn goes by the index."""
    rng = np.random.default_rng([BRACKETS, len(kind), index])

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


def ledgers_of(market: Market, config: TradingConfig) -> list[TradingLedger]:
    shared = shared_words(config, TradingLedger, ranged_names(TradingConfig)) | {
        "action_kind": config.action,
        "ohlc": market.ohlc.tolist(),
        "atr": market.atr.tolist(),
        "session_last": market.session_last.astype(bool).tolist(),
        "funding_column": market.columns[config.funding_column].tolist() if config.funding_column else None,
    }
    return [TradingLedger(**shared) for _ in range(ENVIRONMENTS)]


class TradingComparison(LedgerComparison):
    def __init__(self, kind: str, index: int) -> None:
        self.values = parameter_set(kind, index)
        self.market = market_of(index)
        super().__init__(
            f"set {index}: {self.values}",
            trading_world(self.market, **self.values),
            ledgers_of(self.market, trading_config(**self.values)),
            ranged_names(TradingConfig),
            np.zeros(ENVIRONMENTS, np.float32 if kind == "continuous" else np.int64),
            seed=index,
        )
        # Episodes with rewards of rounding noise have no sums to compare.
        self.was_soft = np.zeros(ENVIRONMENTS, bool)

    def random_actions(self, before: np.ndarray) -> np.ndarray:
        """Return actions that often stay the same: else nothing would be held for long."""
        rng, space = self.rng, self.world.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            drawn = rng.integers(0, space.n, ENVIRONMENTS)
            # The first action is HOLD, short or flat: what makes room for the others.
            drawn[rng.random(ENVIRONMENTS) < 0.2] = 0
        else:
            drawn = rng.uniform(-1.0, 1.0, ENVIRONMENTS).astype(np.float32)
            round_number = rng.random(ENVIRONMENTS) < 0.3
            drawn[round_number] = rng.choice(np.float32([-1.0, 0.0, 1.0]), int(round_number.sum()))
        return np.where(rng.random(ENVIRONMENTS) < 0.4, before, drawn).astype(before.dtype)

    def begin(self, rows: np.ndarray) -> None:
        super().begin(rows)
        self.was_soft[rows] = False

    def is_soft(self) -> np.ndarray:
        return self.of_ledgers("equity") < SOFT * self.of_ledgers("initial_cash")

    def step_ledgers(self, actions: np.ndarray) -> list[Any]:
        self.soft_before = self.is_soft()
        return super().step_ledgers(actions)

    def compare_step(self, outcome: Outcome) -> None:
        envs, ledgers, of_ledgers = self.envs, self.ledgers, self.of_ledgers
        money = MONEY * np.maximum(of_ledgers("initial_cash"), of_ledgers("peak"))
        for column, name in EXACT_COLUMNS.items():
            self.note_column(column, name)
        for column, name in MONEY_COLUMNS.items():
            if column == "session_equity" and not (self.values["turnover_cap"] or self.values["daily_drawdown"]):
                continue  # then the rule does not keep it
            self.note_column(column, name, money)
        price = self.market.ohlc[envs.column("cursor"), 3]
        self.note_column("units", "units", np.maximum(MONEY * np.abs(of_ledgers("units")), money / price))
        for column, name in PRICE_COLUMNS.items():
            self.note_column(column, name, MONEY * np.abs(of_ledgers(name)))
        ours = envs.column("previous_level")
        theirs = np.array([np.nan if led.previous_level is None else led.previous_level for led in ledgers])
        self.note("previous_level", ours, theirs, ~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))

        for column in ("order_code", "exit_code"):
            ours = [CODE_NAMES[code] for code in envs.column(column)]
            theirs = [getattr(ledger, column) for ledger in ledgers]
            self.note(column, ours, theirs, np.array([a != b for a, b in zip(ours, theirs, strict=True)]))
            self.counts.update(ours)

        soft = self.soft_before | self.is_soft()
        self.was_soft |= soft
        # The differential Sharpe ratio remembers a return of noise until the episode ends.
        remembers = self.values["reward"] == "differential_sharpe"
        self.note_outcome(outcome, noisy_reward=self.was_soft if remembers else soft, noisy_account=soft)

        events = envs.column("events")
        for name, ours in (
            ("trades", events & COUNT_MASK),
            ("positions_closed", events // CLOSED_POSITION & COUNT_MASK),
        ):
            theirs = of_ledgers(name)
            self.note(name, ours, theirs, ours != theirs)
        won, theirs = events // WON_POSITION, of_ledgers("positions_won")
        self.note("positions_won", won, theirs, (won != theirs) & (of_ledgers("closest_win_tie") > MONEY))

    def compare_statistics(self, row: int, statistics: dict[str, np.ndarray]) -> None:
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
                self.wrong.setdefault(row, []).append(message)
        counts = ledger.order_counts + ledger.exit_counts
        for name in CODE_NAMES:
            count = 0 if name in UNCOUNTED else counts[name]
            if statistics[name][row] != count:
                self.wrong.setdefault(row, []).append(f"{name} counted {statistics[name][row]} times, ledger {count}")


@pytest.mark.parametrize("steps", [QUICK_STEPS, pytest.param(SLOW_STEPS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["levels", "continuous", "brackets"])
def test_the_rule_is_the_ledger_over_a_hundred_thousand_steps(kind, steps):
    compared, skipped, codes = compare_all((TradingComparison(kind, index) for index in range(SETS)), steps)
    assert compared >= (100_000 if steps == SLOW_STEPS else 100_000 / 3)
    assert skipped <= 0.02 * compared
    # What never happened was not compared.
    of_brackets = {"locked", "ignored", "stopped", "target"}
    of_levels = {"held_same", "held_band", "increased", "decreased"}
    expected = {*ORDER_CODES, *EXIT_CODES} - {"exhausted"} - (of_levels if kind == "brackets" else of_brackets)
    assert {name for name, count in codes.items() if count >= 20} == expected
