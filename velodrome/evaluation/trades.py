"""Round trips: what a trade is, for every environment that lists its trades, and the figures of a list of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

ORDER, STOP, TARGET_REACHED, LIQUIDATION = "order", "stop", "target", "liquidated"
SESSION_END, DECAY, END = "session end", "decay", "end"

SCHEMA: Mapping[str, Any] = {
    "symbol": pl.String,
    "seed": pl.Int64,
    "side": pl.String,
    "entry_time": pl.Datetime("ns", "UTC"),
    "exit_time": pl.Datetime("ns", "UTC"),
    "entry_price": pl.Float64,  # average of the fills that built the position
    "exit_price": pl.Float64,  # average of the fills that took it down; the last close for what was still open
    "units": pl.Float64,  # signed, all that was entered
    "bars": pl.Int64,  # from the bar of the first fill to that of the last; 0: within one bar
    "profit": pl.Float64,  # currency, after costs
    "return": pl.Float64,  # profit over the value entered
    "fees": pl.Float64,
    "spread_and_slippage": pl.Float64,
    "funding": pl.Float64,  # paid; below zero it was received
    "reason": pl.String,  # of the last fill
}


@dataclass
class Trip:
    """A position while it is held."""

    side: float  # +1 long, −1 short
    entry_step: int
    entry_time: int
    entered: float = 0.0  # units
    entry_value: float = 0.0
    exit_value: float = 0.0
    profit: float = 0.0
    fees: float = 0.0
    slippage: float = 0.0
    funding: float = 0.0

    def fill(self, size: float, value: float, gain: float, fee: float, slippage: float, *, closes: bool) -> None:
        """Book a fill of some units; `value` is theirs at its price, `gain` the change of cash without margins."""
        if closes:
            self.exit_value += value
        else:
            self.entered += size
            self.entry_value += value
        self.profit += gain
        self.fees += fee
        self.slippage += slippage

    def row(self, symbol: str, seed: int, bar: int, moment: int, reason: str) -> tuple:
        """Return the trip, ended at a bar, as a row of SCHEMA."""
        return (
            *(symbol, seed, "long" if self.side > 0.0 else "short", self.entry_time, moment),
            *(self.entry_value / self.entered, self.exit_value / self.entered, self.side * self.entered),
            *(bar - self.entry_step, self.profit, self.profit / self.entry_value),
            *(self.fees, self.slippage, self.funding, reason),
        )


def profit_factor(profit: NDArray[np.float64]) -> float:
    """Return the profits of winning trades over the losses of the others; NaN without either."""
    gains, losses = float(profit[profit > 0.0].sum()), float(-profit[profit < 0.0].sum())
    return gains / losses if losses > 0.0 else (math.inf if gains > 0.0 else math.nan)


def holding_figures(gains: NDArray[np.float64]) -> dict[str, float]:
    """Return the figures of what instruments gained in periods; NaN where one was not held."""
    known = gains[~np.isnan(gains)]
    won = float((known > 0.0).mean()) if len(known) else math.nan
    return {"winning_holdings": won, "holdings_profit_factor": profit_factor(known)}


def trade_figures(trades: pl.DataFrame, starts: pl.DataFrame) -> dict[str, float]:
    """Return the figures of the trades of some seeds together.

    starts: columns "symbol", "seed" and "start_equity", a row for each account, those without a trade too.
    """
    profit, seeds = trades["profit"].to_numpy(), max(starts["seed"].n_unique(), 1)
    lost = trades.join(starts, on=["symbol", "seed"]).select(pl.col("spread_and_slippage") / pl.col("start_equity"))
    known = len(profit) > 0
    return {
        "trades": len(profit) / seeds,
        "win_rate": float((profit > 0.0).mean()) if known else math.nan,
        "average_trade": float(trades["return"].to_numpy().mean()) if known else math.nan,
        "profit_factor": profit_factor(profit),
        "spread_and_slippage": float(lost.to_series().sum()) / max(len(starts), 1),
    }
