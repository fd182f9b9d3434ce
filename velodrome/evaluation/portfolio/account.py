"""The account of a portfolio bar by bar, and what each instrument gained and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.portfolio.config import PortfolioConfig
from velodrome.evaluation.measures import account_values, period_begins
from velodrome.evaluation.play import Backtest, Track
from velodrome.tables.basket import Basket

VALUES_IN_DETAIL = 20_000_000  # of one array [T, K, D]; there are about a dozen
CONTRIBUTIONS = {"contribution": "net", "gain": "gain", "costs": "costs"}  # by name: of `Flows`


@dataclass(frozen=True)
class PortfolioTrack(Track):
    """The account of a portfolio: K instruments, S seeds, the first D of them in detail.

    Shorts may ruin an account so that it owes more than it has: its equity is 0 then, and what it owes is kept apart.
    """

    symbols: tuple[str, ...]
    quote: NDArray[np.float64]  # [T, K] at which the orders of each decision fill, before costs
    fills_at_close: bool  # of the bar of the decision

    @property
    def owed(self) -> NDArray[np.float64]:
        """[S] at the end, beyond the whole account."""
        return np.maximum(-self.columns["equity"][-1], 0.0)

    @cached_property
    def cash(self) -> NDArray[np.float64]:
        """[T + 1, S] all of the equity after an early end."""
        on = np.arange(len(self.time))[:, None] <= self.bars
        return np.where(on, self.columns["cash"], self.equity)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """[T + 1, K, D] signed value of each position over the equity; 0 without equity."""
        equity = self.equity[:, None, : self.detailed]
        alive = equity > 0.0
        return np.where(alive, self.units * self.price[:, :, None] / np.where(alive, equity, 1.0), 0.0)

    @cached_property
    def notional(self) -> NDArray[np.float64]:
        """[T, K, D] what was traded, at the prices of the fills."""
        bought, sold = self.notes["bought"], self.notes["sold"]
        units = bought + sold
        # Purchases fill as far above the quote as sales below it.
        aside = np.divide(bought - sold, units, out=np.zeros_like(units), where=units > 0.0)
        return units * self.quote[:, :, None] + aside * self.notes["spread"]

    @cached_property
    def turnovers(self) -> NDArray[np.float64]:
        """[T, K, D] what was traded of each instrument over the equity before the bar."""
        before = self.equity[:-1, None, : self.detailed]
        return np.divide(self.notional, before, out=np.zeros_like(self.notional), where=before > 0.0)

    @cached_property
    def flows(self) -> Flows:
        """The change of equity in each bar, divided among instruments; funding by the value of positions."""
        kept, notes, units = self.detailed, self.notes, self.units
        close, quote = self.price[:, :, None], self.quote[:, :, None]
        paid = self.change("funding")[:, None, :kept]
        traded = notes["bought"] - notes["sold"]
        # Held before funding was paid, which may have taken units; without funding it is what is held after it.
        held = np.where(paid > 0.0, units[:-1] + traded, units[1:])
        # After an early end the account holds nothing, and nothing moves.
        on = self.played[:, None, :kept]
        held, before = np.where(on, held, 0.0), np.where(on, units[:-1], 0.0)
        gain = held * close[1:] - before * close[:-1] - traded * quote
        worth = np.abs(held * close[1:])
        total = worth.sum(axis=1, keepdims=True)
        funding = paid * np.divide(worth, total, out=np.zeros_like(worth), where=total > 0.0)
        in_units = np.where(on & (paid > 0.0), (held - units[1:]) * close[1:], 0.0)
        return Flows(gain, notes["buy_fees"] + notes["sell_fees"], notes["spread"], funding, funding - in_units)

    @property
    def per_bar(self) -> dict[str, NDArray[np.float64]]:
        """What is measured in each bar, [T, S], by name of a metric."""
        alive, gross = self.equity > 0.0, self.held("gross")[1:]
        cash_share = np.where(alive, self.cash / np.where(alive, self.equity, 1.0), 0.0)[1:]
        net = np.where(alive[1:], 1.0 - cash_share, 0.0)  # longs less shorts
        return {
            **account_values(self),
            "spread_and_slippage": self.change("spread_sum") / self.start_equity,
            "exposure": gross,
            "in_market": (gross > 0.0).astype(np.float64),
            "long_exposure": np.maximum(0.5 * (gross + net), 0.0),
            "short_exposure": np.maximum(0.5 * (gross - net), 0.0),
            "cash_share": cash_share,
            "positions": self.held("positions")[1:],
            "largest_weight": self.held("largest")[1:],
        }

    @property
    def involved(self) -> NDArray[np.bool_]:
        """[T, K, D] whether an instrument was held or traded."""
        return (self.units[:-1] != 0.0) | (self.units[1:] != 0.0) | (self.notional != 0.0)

    @property
    def owed_share(self) -> float:
        """What the account owed at the end as a share of the start equity: a mean over seeds in detail."""
        return float((self.owed / self.start_equity)[: self.detailed].mean())


@dataclass(frozen=True)
class Flows:
    """By bar, instrument and seed in detail, [T, K, D], in currency.

    gain − fees − spread − funding adds up to the change of equity, and to less where the account ends below 0.
    """

    gain: NDArray[np.float64]  # Σ units · change of price
    fees: NDArray[np.float64]
    spread: NDArray[np.float64]
    funding: NDArray[np.float64]
    funding_in_cash: NDArray[np.float64]  # the rest was paid in units

    @property
    def costs(self) -> NDArray[np.float64]:
        return self.fees + self.spread + self.funding

    @property
    def net(self) -> NDArray[np.float64]:
        """What the instrument added to the equity."""
        return self.gain - self.costs


def pieces_of(played: Backtest) -> list[PortfolioTrack]:
    """Return the one account of a portfolio's backtest, in the pieces of its split."""
    (tracks,) = played.accounts
    return [track for track in tracks if isinstance(track, PortfolioTrack)]


def holdings(pieces: Sequence[PortfolioTrack]) -> NDArray[np.float64]:
    """Return what each instrument gained in each period after costs, [periods, K · D]; NaN where it was not held."""
    begins = period_begins(np.concatenate([piece.time[1:] for piece in pieces]))
    gained = np.add.reduceat(np.concatenate([piece.flows.net for piece in pieces]), begins, axis=0)
    held = np.logical_or.reduceat(np.concatenate([piece.involved for piece in pieces]), begins, axis=0)
    return np.where(held, gained, np.nan).reshape(len(begins), -1)


def contributions(pieces: Sequence[PortfolioTrack]) -> list[dict[str, Any]]:
    """Return what each instrument added to the return, as a share of the start equity: means over seeds in detail.

    `contribution` is `gain` (units times the change of price) less `costs`; over all instruments it adds up to the
    total return, less `owed_share` where an account was ruined below zero.
    """
    first = pieces[0]
    start = first.start_equity[: first.detailed]

    def total(name: str) -> NDArray[np.float64]:
        return sum((getattr(piece.flows, name).sum(axis=0) for piece in pieces), np.zeros(1)) / start

    by_instrument = {
        **{name: total(of).mean(axis=1) for name, of in CONTRIBUTIONS.items()},
        "mean_weight": np.concatenate([piece.weights[1:] for piece in pieces]).mean(axis=(0, 2)),
        "turnover": np.sum([piece.turnovers.sum(axis=0).mean(axis=1) for piece in pieces], axis=0),
    }
    return [
        {"symbol": symbol, **{name: float(values[k]) for name, values in by_instrument.items()}}
        for k, symbol in enumerate(first.symbols)
    ]


def seeds_in_detail(part: Basket) -> int:
    """Return how many seeds an evaluation can know in detail without filling the memory; at least one."""
    return max(1, VALUES_IN_DETAIL // (int((part.end - part.begin).sum()) * len(part.symbols)))


def quotes(basket: Basket, config: PortfolioConfig) -> NDArray[np.float64]:
    """Return the price [T, K] at which the orders of a decision on each row fill, before costs; the last has none."""
    if config.fill == "close":
        return basket.close
    table = basket.open if config.fill == "next_open" else basket.close
    return np.concatenate([table[1:], table[-1:]])
