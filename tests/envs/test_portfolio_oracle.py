"""The compiled rule against the ledger of tests/oracles, step by step, by kind of action and family of parameters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.baskets import small_basket
from tests.oracles.philox import uniform
from tests.oracles.portfolio_ledger import PortfolioLedger
from velodrome.envs.portfolio_config import PortfolioConfig, by_instrument, portfolio_config
from velodrome.envs.portfolio_numbers import COUNT_NAMES, NUMBERS
from velodrome.envs.portfolio_world import portfolio_world
from velodrome.vector.native import NativeVectorEnv

ENVIRONMENTS = 64
INSTRUMENTS = 3  # the size that the other tests have compiled
MONEY = 1e-9  # relative to the largest equity of the episode
FLOAT32 = 2.4e-7  # two roundings to float32
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


LEDGER_PARAMETERS = {field.name for field in dataclasses.fields(PortfolioLedger) if field.init}


def random_actions(rng: np.random.Generator, space: gymnasium.Space, before: np.ndarray) -> np.ndarray:
    """Return actions that often stay the same or are round."""
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        drawn = rng.integers(0, space.nvec, before.shape)
    else:
        drawn = rng.uniform(space.low, space.high, before.shape).astype(np.float32) * rng.choice([1.0, 0.1])
        drawn = np.where(rng.random(before.shape) < 0.2, rng.choice([0.0, 1.0]), drawn)
        drawn = np.clip(drawn, space.low, space.high)
    same = rng.random((len(before), 1)) < 0.2
    return np.where(same, before, drawn).astype(before.dtype)


class Comparison:
    """One batch of the compiled rule beside one ledger for each environment."""

    def __init__(self, kind: str, family: str, index: int) -> None:
        values = parameter_set(kind, family, index)
        self.label = f"{kind}, {family}, set {index}: {values}"
        self.config = portfolio_config(**values)
        self.basket = small_basket(
            bars=160, instruments=INSTRUMENTS, seed=100 + index, halts=(0.0, 0.1, 0.4)[index % 3],
            jump=(0.05, 0.3)[index % 2], volatility=(0.01, 0.03)[index % 2],
        )  # fmt: skip
        self.world = portfolio_world(self.basket, **values)
        self.envs = NativeVectorEnv(
            self.world, ENVIRONMENTS, seed=index, observation="cursor", autoreset=False, threads=1
        )
        self.ledgers = [self.ledger() for _ in range(ENVIRONMENTS)]
        self.rng = np.random.default_rng(index)
        self.compared = self.skipped = 0
        self.counts: Counter[str] = Counter()
        # Environments whose ledger and rule parted at a near tie sit out the rest of the episode.
        self.parted = np.zeros(ENVIRONMENTS, bool)

    def ledger(self) -> PortfolioLedger:
        config, basket = self.config, self.basket
        shared = {name: getattr(config, name) for name in PortfolioConfig.model_fields if name in LEDGER_PARAMETERS}
        shared |= {name: value[0] for name, value in shared.items() if name in NUMBERS and isinstance(value, tuple)}
        shared |= {name: by_instrument(name, shared[name], basket.symbols).tolist() for name in ("min_quantity", "lot")}
        shared |= {name: getattr(basket, name).tolist() for name in ("open", "close", "tradable")}
        return PortfolioLedger(**shared)

    def begin(self, rows: np.ndarray) -> None:
        """Put the ledgers of environments that were reset at the start of the same episode."""
        start, last, numbers = self.envs.column("start"), self.envs.column("last"), self.envs.column("numbers")
        for row in rows:
            ledger = self.ledgers[row]
            if self.world.params.randomised:
                for name, value in zip(NUMBERS, numbers[:, row].tolist(), strict=True):
                    if name in LEDGER_PARAMETERS:
                        setattr(ledger, name, value)
            ledger.reset(int(start[row]), int(last[row]))
        self.parted[rows] = False

    def draws(self) -> list[float]:
        keys, counters = self.envs.column("rng_key").tolist(), self.envs.column("rng_counter").tolist()
        return [
            uniform(key, counter) if ledger.slippage > 0.0 else 0.0
            for key, counter, ledger in zip(keys, counters, self.ledgers, strict=True)
        ]

    def run(self, steps: int) -> None:
        self.envs.reset()
        self.begin(np.arange(ENVIRONMENTS))
        space = self.world.action_space
        actions = np.zeros((ENVIRONMENTS, *space.shape), space.dtype)
        for step in range(steps):
            actions = random_actions(self.rng, space, actions)
            results = []
            for ledger, action, draw in zip(self.ledgers, actions.tolist(), self.draws(), strict=True):
                results.append(ledger.step(action, draw))
            observations, rewards, terminated, truncated, infos = self.envs.step(actions)
            ended = terminated | truncated
            wrong = self.differences(results, observations["account"], rewards, terminated, truncated)
            if ended.any():
                self.compare_statistics(ended, infos["statistics"], wrong)
            for row, messages in wrong.items():
                if not self.ledgers[row].near_tie:
                    pytest.fail(f"environment {row}, step {step}: " + "; ".join(messages) + f"\n{self.label}")
                self.parted[row] = True
            self.skipped += int(self.parted.sum())
            self.compared += int((~self.parted).sum())
            for row in np.flatnonzero(self.parted & ~ended):
                self.ledgers[row].reset(self.ledgers[row].start, self.ledgers[row].last)
            if ended.any():
                self.envs.reset(options={"reset_mask": ended})
                self.begin(np.flatnonzero(ended))

    def differences(
        self, results: list[Any], account: np.ndarray, rewards: np.ndarray, terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> dict[int, list[str]]:  # fmt: skip
        """Return what differs after a step, by environment; environments that parted before are left out."""
        wrong: dict[int, list[str]] = {}
        ledgers = self.ledgers

        def note(name: str, ours: Any, theirs: Any, differs: np.ndarray) -> None:
            for row in np.flatnonzero(differs & ~self.parted):
                wrong.setdefault(int(row), []).append(f"{name}: rule {ours[row]!r}, ledger {theirs[row]!r}")

        def of_ledgers(name: str) -> np.ndarray:
            return np.array([getattr(ledger, name) for ledger in ledgers], np.float64)

        money = MONEY * np.maximum(of_ledgers("initial"), of_ledgers("peak"))
        note("cursor", self.envs.column("cursor"), of_ledgers("cursor"),
             self.envs.column("cursor") != of_ledgers("cursor"))  # fmt: skip
        for column, name in {"cash": "cash", "equity": "equity", "peak": "peak", "fees": "fees", "volume": "volume",
                             "funding": "funding_paid"}.items():  # fmt: skip
            ours, theirs = self.envs.column(column), of_ledgers(name)
            scale = np.maximum(1.0, theirs / of_ledgers("initial")) if column in ("fees", "volume") else 1.0
            note(name, ours, theirs, ~(np.abs(ours - theirs) <= money * scale))
        if self.world.params.has_benchmark:
            ours, theirs = self.envs.column("benchmark"), of_ledgers("benchmark")
            note("benchmark", ours, theirs, ~(np.abs(ours - theirs) <= MONEY * theirs))

        prices = np.maximum(self.basket.close[self.envs.column("cursor")].T, 1e-12)  # [K, n]
        columns = {"units": "units", "entry": "entry", "extreme": "best", "holding": "bars"}
        if not self.world.params.has_stop:
            del columns["extreme"]  # nobody reads it then
        for column, name in columns.items():
            ours = self.envs.column(column)
            theirs = np.array([[getattr(position, name) for position in ledger.positions] for ledger in ledgers]).T
            allowed = MONEY * np.abs(theirs) + (money / prices if name == "units" else 0.0)
            if name == "entry":
                # The mean price of what little is left of a position hangs on the last digits of its quantity.
                worth = np.abs(self.envs.column("units")) * prices
                allowed = allowed + np.abs(theirs) * money / np.maximum(worth, money)
            note(name, ours.T, theirs.T, ~(np.abs(ours - theirs) <= allowed).all(axis=0))
        ours = self.envs.column("counts")
        theirs = np.array([[ledger.counts[name] for name in COUNT_NAMES] for ledger in ledgers]).T
        note("counts", ours.T, theirs.T, (ours != theirs).any(axis=0))
        self.counts.update(dict(zip(COUNT_NAMES, ours.sum(axis=1).tolist(), strict=True)))

        note("terminated", terminated, [result.terminated for result in results],
             terminated != np.array([result.terminated for result in results]))  # fmt: skip
        note("truncated", truncated, [result.truncated for result in results],
             truncated != np.array([result.truncated for result in results]))  # fmt: skip
        theirs = np.array([result.reward for result in results])
        note("reward", rewards, theirs, ~(np.abs(rewards - theirs) <= FLOAT32 * np.maximum(1.0, np.abs(theirs))))
        theirs = np.array([ledger.account_vector() for ledger in ledgers])
        differs = ~(np.abs(account - theirs) <= FLOAT32 * np.maximum(1.0, np.abs(theirs)))
        note("account vector", account, theirs, differs.any(axis=1))
        return wrong

    def compare_statistics(self, ended: np.ndarray, statistics: Any, wrong: dict[int, list[str]]) -> None:
        for row in np.flatnonzero(ended & ~self.parted):
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
                if abs(ours - value) > 1e-8 * max(1.0, abs(value)):
                    wrong.setdefault(int(row), []).append(f"statistic {name}: rule {ours!r}, ledger {value!r}")


def compare(kind: str, family: str, sets: int, steps: int) -> tuple[int, int, Counter[str]]:
    compared = skipped = 0
    counts: Counter[str] = Counter()
    for index in range(sets):
        comparison = Comparison(kind, family, index)
        comparison.run(steps)
        compared += comparison.compared
        skipped += comparison.skipped
        counts.update(comparison.counts)
    return compared, skipped, counts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_rule_and_ledger_agree(kind, family):
    compared, skipped, counts = compare(kind, family, QUICK_SETS, QUICK_STEPS)
    assert skipped < 0.02 * compared
    assert counts["buys"] > 0 < counts["sells"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_rule_and_ledger_agree_over_a_hundred_thousand_steps(kind, family):
    compared, skipped, counts = compare(kind, family, SLOW_SETS, SLOW_STEPS)
    assert compared >= 100_000
    assert skipped < 0.02 * compared
    assert counts["refused_untradable"] > 0
    if family == "limits":
        assert counts["dropped_minimum"] > 0 < counts["cut_cash"]
        assert counts["cut_limit"] > 0 or kind not in ("orders", "discrete")
    if family == "forced":
        assert counts["stopped"] > 0 < counts["decayed"]
