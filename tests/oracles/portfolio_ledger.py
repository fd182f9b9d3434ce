"""A slow ledger of the portfolio rule, written from docs/portfolio.md alone; it shares no code with the environment.

Positions are objects, the costs of every order are added up and audited after the step, and the equity factor is found
by a root finder. `was_near_a_tie` says that a decision of the step hung by less than two correct programs may round
apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scipy.optimize import brentq

NEAR = 1e-10  # relative distance of a near tie
DUST = 1e-12
AUDIT = 1e-9


class Result(NamedTuple):
    reward: float
    terminated: bool
    truncated: bool


@dataclass
class Position:
    units: float = 0.0
    entry: float = 0.0
    best: float = 0.0
    bars: int = 0


@dataclass(kw_only=True)
class PortfolioLedger:
    """One account. Call `reset`, then `step` until it says terminated or truncated."""

    # The grid: rows of K numbers.
    open: Sequence[Sequence[float]]
    close: Sequence[Sequence[float]]
    tradable: Sequence[Sequence[bool]]
    min_quantity: Sequence[float]
    lot: Sequence[float]

    initial_cash: float = 10_000.0
    buy_fee: float = 0.0
    sell_fee: float = 0.0
    half_spread: float = 0.0
    slippage: float = 0.0
    funding: float = 0.0
    cash_reserve: float = 0.0
    max_weight: float = 1.0
    max_gross: float = 1.0
    trailing_stop: float = 0.0
    max_holding: float = 0.0
    decay: float = 0.05
    softmax_scale: float = 5.0
    order_scale: float = 10.0
    trade_fraction: float = 0.1
    buy_safety: float = 0.99
    bankrupt_at: float = 0.1
    turnover_penalty: float = 0.0
    concentration_penalty: float = 0.0
    concentration_limit: float = 0.4
    few_positions_penalty: float = 0.0
    min_positions: float = 3
    position_floor: float = 0.01
    evenness_bonus: float = 0.0
    evenness_limit: float = 0.4
    shortfall_penalty: float = 0.0
    excess_weight: float = 0.5
    return_weight: float = 0.3
    cash_weight: float = 0.02
    cash_floor: float = 0.1
    time_decay_floor: float = 1.0
    final_discount: float = 0.0
    fee_tiers: Sequence[tuple[float, float]] = ()
    action: str = "weights"
    weighting: str = "softmax"
    allow_short: bool = False
    fill: str = "next_open"
    reference: str = "market"
    buys_restart_holding: bool = True
    decay_when_halted: bool = False
    reward: str = "log_return"

    positions: list[Position] = field(default_factory=list, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    was_near_a_tie: bool = field(default=False, init=False)

    def reset(self, start: int, last: int) -> None:
        self.start, self.cursor, self.last = start, start, last
        self.positions = [Position() for _ in self.close[0]]
        self.counts = Counter()
        self.cash = self.equity = self.peak = self.initial = self.initial_cash
        self.fees = self.funding_paid = self.volume = self.turnover = self.reward_sum = self.running = 0.0
        self.drawdown = self.worst_drawdown = 0.0
        self.gains: list[float] = []
        buy_fee, _ = self._fees()
        self.benchmark_cash, self.benchmark_units = 0.0, []
        for k in range(len(self.positions)):
            share = self.initial / len(self.positions)
            if self.reference == "first_bar":
                price = self.close[0][k]
            else:
                price = self.close[start][k] if self.tradable[start][k] else 0.0
            self.benchmark_units.append(share / (1.0 + buy_fee) / price if price else 0.0)
            self.benchmark_cash += 0.0 if price else share
        self.benchmark = self.benchmark_start = self._benchmark_at(start)

    # Small things

    def _benchmark_at(self, row: int) -> float:
        return self.benchmark_cash + math.fsum(
            units * price for units, price in zip(self.benchmark_units, self.close[row], strict=True)
        )

    def _fees(self) -> tuple[float, float]:
        if not self.fee_tiers:
            return self.buy_fee, self.sell_fee
        reached = [rate for volume, rate in self.fee_tiers if volume <= self.volume]
        for volume, _ in self.fee_tiers[1:]:
            self._tie(self.volume, volume)
        return reached[-1], reached[-1]

    def _tie(self, left: float, right: float, scale: float | None = None) -> None:
        """Remember a comparison that rounding may decide."""
        size = max(abs(left), abs(right)) if scale is None else scale
        if left != right and abs(left - right) <= NEAR * size:
            self.was_near_a_tie = True

    def _worth(self) -> float:
        return math.fsum(position.units * self.quotes[k] for k, position in enumerate(self.positions))

    def _gross(self) -> float:
        return math.fsum(abs(position.units) * self.quotes[k] for k, position in enumerate(self.positions))

    def _equity_now(self) -> float:
        return self.cash + self._worth()

    # A step

    def step(self, action: Sequence[float], u: float) -> Result:
        self.was_near_a_tie = False
        if self.cursor >= self.last:
            return Result(0.0, False, True)
        bar = self.cursor + 1
        before, benchmark_before = self.equity, self.benchmark
        row = self.cursor if self.fill == "close" else bar
        self.quotes = list((self.open if self.fill == "next_open" else self.close)[row])
        self.can = [bool(flag) for flag in self.tradable[row]]
        self.cost = min(self.half_spread + self.slippage * u, 0.99)
        self.rates = self._fees()
        self.step_fees = self.step_traded = self.step_costs = 0.0
        self.opening = self._equity_now()
        for position in self.positions:
            if position.units:
                position.bars += 1

        stopped = self._stops()
        equity = self._equity_now()
        rest = [0.0] * len(self.positions)
        if equity > 0.0:
            wanted = self._size(action, equity, stopped)
            rest = [order if self._passes(k, order) else 0.0 for k, order in enumerate(wanted)]
            self._close_some(rest, -1.0)
        self._decays()
        self._close_some(rest, 1.0)
        for side in (-1.0, 1.0):
            if self._equity_now() > 0.0:
                for k, order in enumerate(rest):
                    opens = side * order > 0.0 and side * self.positions[k].units >= 0.0
                    if opens and (side > 0.0 or self.allow_short):
                        self._enlarge(k, side, abs(order))

        kept = self._equity_now() + self.step_costs
        assert abs(kept - self.opening) <= AUDIT * max(self.initial, self._gross()), "orders make or lose money"

        self._pay_funding(bar)
        return self._mark(bar, before, benchmark_before)

    def _stops(self) -> set[int]:
        stopped = set()
        for k, position in enumerate(self.positions):
            if not self.trailing_stop or not position.units or not self.can[k]:
                continue
            quote = self.quotes[k]
            if position.units > 0:
                position.best = max(position.best, quote)
                level = position.best * (1.0 - self.trailing_stop)
                touched = quote < level
            else:
                position.best = min(position.best, quote)
                level = position.best * (1.0 + self.trailing_stop)
                touched = quote > level
            self._tie(quote, level)
            if touched:
                self.counts["stopped"] += 1
                stopped.add(k)
                self._reduce(k, -position.units)
        return stopped

    def _decays(self) -> None:
        for k, position in enumerate(self.positions):
            if not self.max_holding or not position.units or position.bars < self.max_holding:
                continue
            if self.can[k] or self.decay_when_halted:
                self.counts["decayed"] += 1
                position.bars = 0
                self._reduce(k, -position.units * self.decay)

    # Sizing

    def _size(self, action: Sequence[float], equity: float, stopped: set[int]) -> list[float]:
        if self.action == "weights":
            return self._size_weights(action, equity, stopped)
        wanted = []
        for k, number in enumerate(action):
            quote = self.quotes[k]
            if self.action == "orders":
                price = self.close[0][k] if self.reference == "first_bar" else quote
                money = number * self.initial / self.order_scale
            else:
                price = quote
                money = (number - 1) * self.trade_fraction * equity
            wanted.append(money / price if price else math.copysign(math.inf, money) if money else 0.0)
        return wanted

    def target_weights(self, action: Sequence[float], stopped: set[int]) -> list[float]:
        count = len(self.positions)
        if self.weighting == "softmax":
            top = max(action)
            powers = [math.exp(self.softmax_scale * (number - top)) for number in action]
            weights = [power / math.fsum(powers) for power in powers[:count]]
        elif self.weighting == "simplex":
            ordered = sorted(action, reverse=True)
            shift = 0.0
            for rank in range(1, len(ordered) + 1):
                trial = (math.fsum(ordered[:rank]) - 1.0) / rank
                if ordered[rank - 1] > trial:
                    shift = trial
            weights = [max(0.0, number - shift) for number in action[:count]]
        else:
            size = max(1.0, math.fsum(abs(number) for number in action))
            weights = [self.max_gross * number / size for number in action]
        weights = [0.0 if k in stopped else weight for k, weight in enumerate(weights)]
        return [max(-self.max_weight, min(self.max_weight, weight)) for weight in weights]

    def _size_weights(self, action: Sequence[float], equity: float, stopped: set[int]) -> list[float]:
        targets = self.target_weights(action, stopped)
        weights = [position.units * self.quotes[k] / equity for k, position in enumerate(self.positions)]
        free = [k for k in range(len(targets)) if self.can[k]]
        locked = [k for k in range(len(targets)) if not self.can[k]]
        buying = (1.0 + self.cost) * (1.0 + self.rates[0]) - 1.0
        selling = 1.0 - (1.0 - self.cost) * (1.0 - self.rates[1])

        def scaled(factor: float) -> list[float]:
            room = max(0.0, self.max_gross - math.fsum(abs(weights[k]) for k in locked) / factor)
            size = math.fsum(abs(targets[k]) for k in free)
            part = min(1.0, room / size) if size > 0.0 else 1.0
            longs = math.fsum(max(targets[k], 0.0) for k in free)
            shorts = part * math.fsum(max(-targets[k], 0.0) for k in free)
            room = max(0.0, 1.0 - math.fsum(weights[k] for k in locked) / factor + shorts)
            long_part = min(part, room / longs) if longs > 0.0 else 1.0
            return [target * (long_part if target > 0.0 else part) for target in targets]

        def surplus(factor: float) -> float:
            """Equity after the trades that aim at `factor`, less that factor."""
            goal = scaled(factor)
            cost = 0.0
            for k in free:
                change = goal[k] * factor - weights[k]
                cost += buying * change if change > 0.0 else -selling * change
            return 1.0 - cost - factor

        factor = 1.0 if surplus(1.0) >= 0.0 else brentq(surplus, 1e-3, 1.0, xtol=1e-15, rtol=1e-15)
        goal = scaled(factor)
        wanted = []
        for k, position in enumerate(self.positions):
            target = goal[k] if self.can[k] else targets[k]
            money = target * factor * equity - position.units * self.quotes[k]
            if self._is_dust(money, equity):
                wanted.append(0.0)
            elif target == 0.0:
                wanted.append(-position.units)
            else:
                wanted.append(money / self.quotes[k] if self.quotes[k] else math.copysign(math.inf, money))
        if self.cash_reserve:
            room = self.cash - self.cash_reserve * self.initial
            room += math.fsum(-wanted[k] * self.quotes[k] * (1.0 - selling) for k in free if wanted[k] < 0.0)
            needed = math.fsum(wanted[k] * self.quotes[k] * (1.0 + buying) for k in free if wanted[k] > 0.0)
            self._tie(needed, room, self.initial)
            if needed > max(0.0, room):
                for k in free:
                    if wanted[k] > 0.0:
                        wanted[k] *= max(0.0, room) / needed
                        if self._is_dust(wanted[k] * self.quotes[k], equity):
                            wanted[k] = 0.0
        return wanted

    # Orders

    def _passes(self, k: int, wanted: float) -> bool:
        """Tell whether an order is large enough and can be traded."""
        if wanted == 0.0:
            return False
        self._tie(abs(wanted), self.min_quantity[k])
        if abs(wanted) <= self.min_quantity[k]:
            self.counts["dropped_minimum"] += 1
            return False
        if not self.can[k]:
            self.counts["refused_untradable"] += 1
        return self.can[k]

    def _close_some(self, rest: list[float], side: float) -> None:
        """Carry out what orders of one side take off positions of the other; `rest` keeps what they still want."""
        if self._equity_now() <= 0.0:
            return
        for k, order in enumerate(rest):
            if side * order > 0.0:
                done = self._reduce(k, order)
                rest[k] = order - done if abs(done) < abs(order) else 0.0

    def _payable(self, quote: float) -> float:
        safety = 1.0 if self.action == "weights" else self.buy_safety
        free = max(0.0, self.cash - self.cash_reserve * self.initial)
        return safety * free / (1.0 + self.rates[0]) / (quote * (1.0 + self.cost))

    def _is_dust(self, money: float, equity: float) -> bool:
        if DUST * 1e-3 * equity < abs(money) < DUST * 1e3 * equity:
            self.was_near_a_tie = True
        return abs(money) <= DUST * equity

    def _cut(self, name: str, lost: float) -> None:
        """Count a cut of an order by more than a billionth of equity."""
        noticed = 1e-9 * self.opening
        if abs(lost - noticed) <= 0.1 * abs(noticed):
            self.was_near_a_tie = True
        if lost > noticed:
            self.counts[name] += 1

    def _whole(self, quantity: float, lot: float) -> float:
        if not lot:
            return quantity
        self._tie(quantity / lot, math.floor(quantity / lot + 1e-9))
        self._tie(quantity / lot, math.floor(quantity / lot + 1e-9) + 1.0 - 1e-9)
        return math.floor(quantity / lot + 1e-9) * lot

    def _reduce(self, k: int, wanted: float) -> float:
        """Trade what lies against the position; return how much of the order that was, signed."""
        held = self.positions[k].units
        if wanted * held >= 0.0:
            return 0.0
        part = min(abs(wanted), abs(held))
        if wanted > 0.0:
            payable = self._payable(self.quotes[k])
            self._cut("cut_cash", (part - payable) * self.quotes[k])
            part = min(payable, part)
        if self._is_dust((abs(held) - part) * self.quotes[k], self.opening):
            part = abs(held)
        else:
            part = self._whole(part, self.lot[k])
            if wanted > 0.0 and self._is_dust(part * self.quotes[k], self.opening):
                part = 0.0
        if part > 0.0:
            self._trade(k, math.copysign(part, wanted))
        return math.copysign(part, wanted)

    def _enlarge(self, k: int, side: float, size: float) -> None:
        quote, equity = self.quotes[k], self._equity_now()
        if side > 0:
            rate = (1.0 + self.cost) * (1.0 + self.rates[0]) - 1.0
        else:
            rate = 1.0 - (1.0 - self.cost) * (1.0 - self.rates[1])
        own = abs(self.positions[k].units) * quote
        limits = [
            (self.max_weight * equity - own) / (1.0 + self.max_weight * rate),
            (self.max_gross * equity - self._gross()) / (1.0 + self.max_gross * rate),
        ]
        if self.allow_short or self.max_weight < 1.0 or self.max_gross < 1.0:
            limit = max(0.0, min(limits)) / quote
            self._cut("cut_limit", (size - limit) * quote)
            size = min(limit, size)
        if side > 0:
            payable = self._payable(quote)
            self._cut("cut_cash", (size - payable) * quote)
            size = min(payable, size)
        size = self._whole(size, self.lot[k])
        self._tie(size, self.min_quantity[k])
        if size < self.min_quantity[k]:
            self.counts["dropped_minimum"] += 1
        elif not self._is_dust(size * quote, self.opening):
            self._trade(k, side * size)

    def _trade(self, k: int, change: float) -> None:
        position, quote = self.positions[k], self.quotes[k]
        buys = change > 0
        price = quote * (1.0 + self.cost if buys else 1.0 - self.cost)
        notional = abs(change) * price
        fee = notional * self.rates[0 if buys else 1]
        self.counts["buys" if buys else "sells"] += 1
        self.cash += -math.copysign(notional, change) - fee
        self.step_costs += abs(change) * quote * self.cost + fee
        self.step_fees += fee
        self.step_traded += notional
        held, now = position.units, position.units + change
        if abs(now) > abs(held):
            position.entry = (position.entry * abs(held) + notional) / (abs(held) + abs(change))
            if held == 0.0:
                position.best = quote
        if abs(now) < abs(held) or self.buys_restart_holding:
            position.bars = 0
        position.units = now
        if now == 0.0:
            self.positions[k] = Position()

    # The mark

    def _pay_funding(self, bar: int) -> None:
        if not self.funding:
            return
        values = [position.units * self.close[bar][k] for k, position in enumerate(self.positions)]
        due = self.funding * math.fsum(map(abs, values))
        longs = math.fsum(value for value in values if value > 0.0)
        paid = min(due, self.cash)
        self._tie(due, self.cash, self.initial)
        self.cash -= paid
        if due > paid and longs > 0.0:
            share = min(1.0, (due - paid) / longs)
            for position in self.positions:
                if position.units > 0.0:
                    position.units *= 1.0 - share
            paid += share * longs
        self.funding_paid += paid

    def _mark(self, bar: int, before: float, benchmark_before: float) -> Result:
        values = []
        for k, position in enumerate(self.positions):
            close = self.close[bar][k]
            values.append(position.units * close)
            if position.units:
                position.best = (max if position.units > 0 else min)(position.best, close)
        equity = self.cash + math.fsum(values)
        self.fees += self.step_fees
        self.volume += self.step_traded
        turnover = self.step_traded / before if before > 0.0 else 0.0
        self.turnover += turnover
        self.benchmark = self._benchmark_at(bar)
        self.equity, self.cursor = equity, bar
        self.gains.append(equity / before - 1.0 if before > 0.0 else 0.0)
        self.peak = max(self.peak, equity)
        self.drawdown = 1.0 - equity / self.peak
        self.worst_drawdown = max(self.worst_drawdown, self.drawdown)

        self.weights = [abs(value) / equity if equity > 0.0 else 0.0 for value in values]
        reward = self._base_reward(equity, before, benchmark_before) - self._penalties(turnover)
        terminated, truncated = equity < self.bankrupt_at * self.initial, bar >= self.last
        self._tie(equity, self.bankrupt_at * self.initial)
        if self.final_discount:
            self.running = self.final_discount * self.running + reward
            reward = self.running if terminated or truncated else reward
        self.reward_sum += reward
        return Result(reward, terminated, truncated)

    def _base_reward(self, equity: float, before: float, benchmark_before: float) -> float:
        gain, market = equity - before, self.benchmark - benchmark_before
        if self.reward == "log_return":
            if before <= 0.0:
                return 0.0
            return math.log(equity / before) if equity > 0.0 else -10.0
        excess = (gain - market) / self.initial
        if self.reward == "excess":
            return excess
        left = max(1.0 - (self.cursor - self.start) / (self.last - self.start), self.time_decay_floor)
        reward = (self.excess_weight * excess + self.return_weight * gain / self.initial) * left
        share = self.cash / equity if equity > 0.0 else 0.0
        self._tie(share, self.cash_floor)
        if market < 0.0 and share > self.cash_floor:
            reward += self.cash_weight * -market / benchmark_before * share
        return reward

    def _penalties(self, turnover: float) -> float:
        total = self.turnover_penalty * turnover
        total += self.shortfall_penalty * max(0.0, self.cash_reserve * self.initial - self.cash) / self.initial
        total += self.concentration_penalty * max(0.0, max(self.weights) - self.concentration_limit)
        counted = sorted(weight for weight in self.weights if weight > self.position_floor)
        for weight in self.weights:
            self._tie(weight, self.position_floor)
        total += self.few_positions_penalty * max(0.0, self.min_positions - len(counted))
        if self.evenness_bonus and counted and len(counted) >= self.min_positions:
            # Half of the mean absolute difference, over the mean.
            differences = math.fsum(abs(one - other) for one in counted for other in counted)
            gini = differences / (2.0 * len(counted) * math.fsum(counted))
            total -= self.evenness_bonus * max(0.0, self.evenness_limit - gini)
        return total

    def sharpe(self) -> float:
        """Return mean over deviation of the returns of the bars so far."""
        mean = math.fsum(self.gains) / len(self.gains)
        variance = math.fsum((gain - mean) ** 2 for gain in self.gains) / len(self.gains)
        return mean / math.sqrt(variance) if variance > 1e-13 * mean * mean else 0.0

    def account_vector(self) -> list[float]:
        positive = self.equity > 0.0
        values = [self.cash / self.equity if positive else 0.0]
        closes = self.close[self.cursor]
        values += [p.units * c / self.equity if positive else 0.0 for p, c in zip(self.positions, closes, strict=True)]
        for position, close in zip(self.positions, closes, strict=True):
            side = 1.0 if position.units > 0 else -1.0
            values.append(side * (close - position.entry) / position.entry if position.units else 0.0)
        values += [float(position.bars) for position in self.positions]
        return [*values, self.drawdown, (self.last - self.cursor) / (self.last - self.start)]
