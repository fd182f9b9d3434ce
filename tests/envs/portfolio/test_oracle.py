"""The compiled rule against the ledger of tests/oracles, step by step, by kind of action and family of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.baskets import small_basket
from tests.oracles.ledger_comparison import ENVIRONMENTS, MONEY, LedgerComparison, Outcome, compare_all, shared_words
from tests.oracles.portfolio_ledger import PortfolioLedger
from velodrome.envs.parameters import ranged_names
from velodrome.envs.portfolio.codes import COUNT_NAMES
from velodrome.envs.portfolio.config import PortfolioConfig, by_instrument, portfolio_config
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.tables.basket import Basket

INSTRUMENTS = 3  # the size that the other tests have compiled
KINDS = ("softmax", "simplex", "signed", "orders", "discrete")
FAMILIES = ("costs", "limits", "forced", "shorts", "rewards", "ranges")
QUICK_SETS, QUICK_STEPS = 1, 30
SLOW_SETS, SLOW_STEPS = 12, 134  # 64 · 12 · 134 are more than 100,000 steps of each kind in each family


def parameter_set(kind: str, family: str, index: int) -> dict[str, Any]:
    """Draw one set; what must occur whatever is drawn goes by the index."""
    rng = np.random.default_rng([KINDS.index(kind), FAMILIES.index(family), index])

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    values: dict[str, Any] = {
        "action": kind if kind in ("orders", "discrete") else "weights",
        "weighting": kind if kind in ("softmax", "simplex", "signed") else "softmax",
        "initial_cash": one_of(10_000.0, 1.0, 1e6),
        "buy_fee": one_of(0.0, 1e-3, 0.01),
        "sell_fee": one_of(0.0, 2.5e-3, 0.01),
        "fill": ("next_open", "close", "next_close")[index % 3],
        "order_scale": one_of(2.0, 5.0, 20.0),
        "trade_fraction": one_of(0.1, 0.4, 1.0),
        "episode_length": one_of(12, 40, (5, 60), None),
        "reward": one_of("log_return", "excess", "blend"),
    }
    may_short = kind in ("signed", "orders", "discrete")
    if family == "costs":
        values |= {"half_spread": one_of(0.0, 5e-4, 0.02), "slippage": one_of(1e-3, 0.02)}
        values |= {"funding": one_of(0.0, 1e-4, 0.02), "buy_fee": one_of(0.0, 0.05), "sell_fee": one_of(1e-3, 0.1)}
        if index % 2 == 0:
            tiers = ((0.0, 0.01), (values["initial_cash"], 0.005), (3.0 * values["initial_cash"], 0.0))
            values |= {"fee_tiers": tiers, "buy_fee": 0.0, "sell_fee": 0.0}
    if family == "limits":
        unit = values["initial_cash"] / np.array([10.0, 100.0, 1000.0])  # about what the cash buys of each
        values |= {
            "min_quantity": tuple((one_of(0.0, 0.01, 0.1) * unit).tolist()),
            "lot": tuple((np.array([one_of(0.0, 0.01), one_of(0.0, 0.03), one_of(0.0, 0.1)]) * unit).tolist()),
            "cash_reserve": one_of(0.0, 0.1, 0.5),
            "max_weight": one_of(0.15, 0.4, 1.0),
            "max_gross": one_of(0.3, 0.7, 1.0),
            "buy_safety": one_of(0.99, 0.5, 1.0),
        }
    if family == "forced":
        values |= {"trailing_stop": one_of(0.01, 0.05, 0.2), "max_holding": one_of(1, 3, 8), "decay": one_of(0.05, 1.0)}
        values |= {"buys_restart_holding": bool(rng.integers(2)), "lot": one_of(0.0, values["initial_cash"] * 1e-5)}
        values |= {"allow_short": may_short and bool(rng.integers(2))}
    if family == "shorts" and may_short:
        values |= {"allow_short": True, "max_gross": one_of(0.8, 1.5, 3.0), "max_weight": one_of(0.3, 1.0, 3.0)}
        values |= {"funding": one_of(0.0, 1e-3), "bankrupt_at": one_of(0.1, 0.5, 0.9)}
    if family == "rewards":
        values |= {
            "reward": ("log_return", "excess", "blend")[index % 3],
            "turnover_penalty": one_of(0.0, 0.01),
            "concentration_penalty": one_of(0.0, 0.05),
            "few_positions_penalty": one_of(0.0, 0.02),
            "min_positions": one_of(0, 2, 3),
            "evenness_bonus": one_of(0.0, 0.01),
            "evenness_limit": one_of(0.4, 0.9),
            "shortfall_penalty": one_of(0.0, 0.5),
            "cash_reserve": one_of(0.0, 0.3),
            "time_decay_floor": one_of(0.0, 0.3, 1.0),
            "final_discount": one_of(0.0, 0.99),
            "cash_weight": 1.0,
        }
    if family == "ranges":
        # Every episode of every environment then has numbers of its own.
        values |= {
            "buy_fee": (0.0, 0.01),
            "initial_cash": (10.0, 1e5),
            "max_weight": (0.1, 1.0),
            "slippage": (0.0, 0.01),
        }
        values |= {"trailing_stop": (0.0, 0.3), "max_holding": (0, 5), "cash_reserve": (0.0, 0.3), "decay": (0.0, 1.0)}
        values |= {"order_scale": (1.0, 20.0), "trade_fraction": (0.01, 1.0)}
    return values


def ledgers_of(basket: Basket, config: PortfolioConfig) -> list[PortfolioLedger]:
    shared = shared_words(config, PortfolioLedger, ranged_names(PortfolioConfig))
    shared |= {name: by_instrument(name, shared[name], basket.symbols).tolist() for name in ("min_quantity", "lot")}
    shared |= {name: getattr(basket, name).tolist() for name in ("open", "close", "tradable")}
    return [PortfolioLedger(**shared) for _ in range(ENVIRONMENTS)]


class PortfolioComparison(LedgerComparison):
    def __init__(self, kind: str, family: str, index: int) -> None:
        values = parameter_set(kind, family, index)
        self.basket = small_basket(
            bars=160, instruments=INSTRUMENTS, seed=100 + index, halts=(0.0, 0.1, 0.4)[index % 3],
            jump=(0.05, 0.3)[index % 2], volatility=(0.01, 0.03)[index % 2],
        )  # fmt: skip
        world = portfolio_world(self.basket, **values)
        space = world.action_space
        super().__init__(
            f"{kind}, {family}, set {index}: {values}",
            world,
            ledgers_of(self.basket, portfolio_config(**values)),
            ranged_names(PortfolioConfig),
            np.zeros((ENVIRONMENTS, *space.shape), space.dtype),
            seed=index,
        )

    def random_actions(self, before: np.ndarray) -> np.ndarray:
        """Return actions that often stay the same or are round."""
        rng, space = self.rng, self.world.action_space
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            drawn = rng.integers(0, space.nvec, before.shape)
        else:
            drawn = rng.uniform(space.low, space.high, before.shape).astype(np.float32) * rng.choice([1.0, 0.1])
            drawn = np.where(rng.random(before.shape) < 0.2, rng.choice([0.0, 1.0]), drawn)
            drawn = np.clip(drawn, space.low, space.high)
        same = rng.random((len(before), 1)) < 0.2
        return np.where(same, before, drawn).astype(before.dtype)

    def compare_step(self, outcome: Outcome) -> None:
        envs, ledgers, of_ledgers = self.envs, self.ledgers, self.of_ledgers
        money = MONEY * np.maximum(of_ledgers("initial"), of_ledgers("peak"))
        self.note_column("cursor", "cursor")
        for column, name in {"cash": "cash", "equity": "equity", "peak": "peak", "fees": "fees", "volume": "volume",
                             "funding": "funding_paid"}.items():  # fmt: skip
            grows = column in ("fees", "volume")
            scale = np.maximum(1.0, of_ledgers(name) / of_ledgers("initial")) if grows else 1.0
            self.note_column(column, name, money * scale)
        if self.world.params.has_benchmark:
            self.note_column("benchmark", "benchmark", MONEY * of_ledgers("benchmark"))

        prices = np.maximum(self.basket.close[envs.column("cursor")].T, 1e-12)  # [K, n]
        columns = {"units": "units", "entry": "entry", "extreme": "best", "holding": "bars"}
        if not self.world.params.has_stop:
            del columns["extreme"]  # nobody reads it then
        for column, name in columns.items():
            ours = envs.column(column)
            theirs = np.array([[getattr(position, name) for position in ledger.positions] for ledger in ledgers]).T
            allowed = MONEY * np.abs(theirs) + (money / prices if name == "units" else 0.0)
            if name == "entry":
                # The mean price of what little is left of a position hangs on the last digits of its quantity.
                worth = np.abs(envs.column("units")) * prices
                allowed = allowed + np.abs(theirs) * money / np.maximum(worth, money)
            self.note(name, ours.T, theirs.T, ~(np.abs(ours - theirs) <= allowed).all(axis=0))
        ours = envs.column("counts")
        theirs = np.array([[ledger.counts[name] for name in COUNT_NAMES] for ledger in ledgers]).T
        self.note("counts", ours.T, theirs.T, (ours != theirs).any(axis=0))
        self.counts.update(dict(zip(COUNT_NAMES, ours.sum(axis=1).tolist(), strict=True)))
        self.note_outcome(outcome)

    def compare_statistics(self, row: int, statistics: dict[str, np.ndarray]) -> None:
        ledger = self.ledgers[row]
        expected = {
            "reward": ledger.reward_sum,
            "return": ledger.equity / ledger.initial - 1.0,
            "length": ledger.cursor - ledger.start,
            "turnover": ledger.turnover,
            "max_drawdown": ledger.worst_drawdown,
            "trades": ledger.counts["buys"] + ledger.counts["sells"],
            "fees": ledger.fees / ledger.initial,
            "funding": ledger.funding_paid / ledger.initial,
            "sharpe": ledger.sharpe(),
            "benchmark_return": ledger.benchmark / ledger.benchmark_start - 1.0,
        }
        in_money = {"fees", "funding"}
        for name, value in expected.items():
            ours = float(statistics[name][row]) / (ledger.initial if name in in_money else 1.0)
            if not abs(ours - value) <= 1e-8 * max(1.0, abs(value)):  # a NaN is none
                self.wrong.setdefault(row, []).append(f"statistic {name}: rule {ours!r}, ledger {value!r}")


def comparisons(kind: str, family: str, sets: int) -> Iterator[PortfolioComparison]:
    return (PortfolioComparison(kind, family, index) for index in range(sets))


# Discrete actions with drawn parameters would be compiled for this alone.
QUICK = [
    pytest.param(kind, family, marks=pytest.mark.slow if (kind, family) == ("discrete", "ranges") else ())
    for kind in KINDS
    for family in FAMILIES
]


@pytest.mark.parametrize(("kind", "family"), QUICK)
def test_rule_and_ledger_agree(kind, family):
    compared, skipped, counts = compare_all(comparisons(kind, family, QUICK_SETS), QUICK_STEPS)
    assert skipped < 0.02 * compared
    assert counts["buys"] > 0 < counts["sells"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_rule_and_ledger_agree_over_a_hundred_thousand_steps(kind, family):
    compared, skipped, counts = compare_all(comparisons(kind, family, SLOW_SETS), SLOW_STEPS)
    assert compared >= 100_000
    assert skipped < 0.02 * compared
    assert counts["refused_untradable"] > 0
    if family == "limits":
        assert counts["dropped_minimum"] > 0 < counts["cut_cash"]
        assert counts["cut_limit"] > 0 or kind not in ("orders", "discrete")
    if family == "forced":
        assert counts["stopped"] > 0 < counts["decayed"]
