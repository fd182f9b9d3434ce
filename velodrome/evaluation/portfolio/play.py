"""Plays a policy over a split of a basket in one account, and says what each instrument brought and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import World
from velodrome.envs.portfolio.config import PortfolioConfig, portfolio_config
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.envs.terms import draws_terms
from velodrome.evaluation.measures import Curve, log_changes
from velodrome.evaluation.play import WHOLE_SPLIT, Policy, Records, check_seeds, play_through, stream_seed
from velodrome.evaluation.portfolio.recording import NOTED, recording_world
from velodrome.evaluation.threads import one_thread
from velodrome.tables.basket import Basket

RECORDED = (
    "equity", "cash", "gross", "largest", "positions", "fees", "funding", "turnover", "spread_sum", "fills", "units",
)  # fmt: skip
VALUES_IN_DETAIL = 20_000_000  # of one array [T, K, D]; there are about a dozen


@dataclass(frozen=True)
class PortfolioBacktest:
    """An account bar by bar, S seeds side by side, the first D of them in detail. Row 0 is before any decision.

    An episode that terminated early (bankrupt) keeps its last equity to the end, without a position. One that shorts
    have ruined may owe more than it has: its equity is 0 then, and what it owes is kept apart.
    """

    symbols: tuple[str, ...]
    time: NDArray[np.int64]  # [T + 1] nanoseconds UTC at which the bar opens; equity is at its close
    close: NDArray[np.float64]  # [T + 1, K]
    quote: NDArray[np.float64]  # [T, K] at which the orders of each decision fill, before costs
    equity: NDArray[np.float64]  # [T + 1, S] at least 0
    owed: NDArray[np.float64]  # [S] at the end, beyond that
    cash: NDArray[np.float64]  # [T + 1, S]
    gross: NDArray[np.float64]  # [T + 1, S] Σ |weights|
    largest: NDArray[np.float64]  # [T + 1, S] |weight|
    positions: NDArray[np.float64]  # [T + 1, S] weights above `position_floor`
    fees: NDArray[np.float64]  # [T, S] currency, as are the next two
    funding: NDArray[np.float64]  # [T, S] paid
    spread: NDArray[np.float64]  # [T, S] distance of fills from the quote
    turnover: NDArray[np.float64]  # [T, S] traded notional over the equity before the bar
    fills: NDArray[np.float64]  # [S] orders that were filled
    rewards: NDArray[np.float64]  # [T, S]
    bars: NDArray[np.int64]  # [S] bars until the episode ended; T unless it terminated early
    units: NDArray[np.float64]  # [T + 1, K, D] signed, held at the close
    notes: Mapping[str, NDArray]  # by name of NOTED: [T, K, D]
    actions: NDArray  # [T, D, A] what the policy asked for, int64 or float32
    seeds: tuple[int, ...]
    config: PortfolioConfig
    world: World

    @property
    def played(self) -> NDArray[np.bool_]:
        """[T, S] whether the episode was still on."""
        return np.arange(len(self.rewards))[:, None] < self.bars

    @property
    def detailed(self) -> int:
        """The number of seeds that are known in detail."""
        return self.units.shape[2]

    @property
    def weights(self) -> NDArray[np.float64]:
        """[T + 1, K, D] signed value of each position over the equity; 0 without equity."""
        equity = self.equity[:, None, : self.detailed]
        alive = equity > 0.0
        return np.where(alive, self.units * self.close[:, :, None] / np.where(alive, equity, 1.0), 0.0)

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
        """What each instrument brought and cost in each bar."""
        return _flows(self)


@dataclass(frozen=True)
class Flows:
    """By bar, instrument and seed in detail, [T, K, D], in currency.

    gain − fees − spread − funding adds up to the change of equity; where that is below 0 in the end, to less.
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


def draws_anything(config: PortfolioConfig) -> bool:
    """Tell whether two seeds can differ from the same first bar: by ranges of parameters or by slippage."""
    return config.slippage != 0.0 or draws_terms(config)


@one_thread()
def portfolio_backtest(
    policy: Policy, basket: Basket, split: str, params: Mapping[str, Any], seeds: Sequence[int] = (0,),
    progress: Callable[[int, int], None] | None = None, detailed: int | None = None,
) -> PortfolioBacktest:  # fmt: skip
    """Play a policy over a whole split of a basket, in one account for each seed.

    params: of the portfolio environment; where episodes start and how long they are is replaced by the whole split.
    seeds: differ in drawn parameters and slippage; without either they are all alike.
    detailed: of how many seeds instruments and actions are kept; of all if None.
    """
    check_seeds(seeds)
    part = basket.split(split)
    values = {**params, **WHOLE_SPLIT}
    config = portfolio_config(**values)
    plain = portfolio_world(part, **values)
    kept = len(seeds) if detailed is None else min(detailed, len(seeds))
    records = play_through(
        policy, recording_world(plain, len(part.symbols)), np.tile(part.begin, len(seeds)),
        np.tile(part.end - 1, len(seeds)), [stream_seed(seed, 0) for seed in seeds], RECORDED, progress, NOTED, kept,
    )  # fmt: skip
    begin, end = int(part.begin[0]), int(part.end[0])
    rows = np.arange(end - begin)[:, None]
    at = np.minimum(rows, records.bars)  # [T + 1, S]: an ended episode stays as it ended
    account = {name: np.take_along_axis(records.columns[name], at, 0) for name in RECORDED if name != "units"}
    on = rows <= records.bars  # [T + 1, S]
    return PortfolioBacktest(
        symbols=part.symbols,
        time=part.time[begin:end],
        close=part.close[begin:end],
        quote=quotes(part, config)[begin : end - 1],
        equity=np.maximum(account["equity"], 0.0),
        owed=np.maximum(-account["equity"][-1], 0.0),
        cash=np.where(on, account["cash"], np.maximum(account["equity"], 0.0)),
        **{name: np.where(on, account[name], 0.0) for name in ("gross", "largest", "positions")},
        fees=np.diff(account["fees"], axis=0),
        funding=np.diff(account["funding"], axis=0),
        spread=np.diff(account["spread_sum"], axis=0),
        turnover=np.diff(account["turnover"], axis=0),
        fills=account["fills"][-1],
        rewards=np.where(on[1:], records.rewards, 0.0),
        bars=records.bars,
        units=np.where(on[:, None, :kept], records.columns["units"], 0.0),
        notes=_while_on(records, on[1:, None, :kept]),
        actions=records.actions,
        seeds=tuple(int(seed) for seed in seeds),
        config=config,
        world=plain,
    )


def seeds_in_detail(basket: Basket, split: str) -> int:
    """Return how many seeds an evaluation can know in detail without filling the memory; at least one."""
    part = basket.split(split)
    return max(1, VALUES_IN_DETAIL // (int(part.end[0] - part.begin[0]) * len(part.symbols)))


def _while_on(records: Records, on: NDArray[np.bool_]) -> dict[str, NDArray]:
    return {name: np.where(on, values, values.dtype.type(0)) for name, values in records.noted.items()}


def quotes(basket: Basket, config: PortfolioConfig) -> NDArray[np.float64]:
    """Return the price [T, K] at which the orders of a decision on each row fill, before costs; the last has none."""
    if config.fill == "close":
        return basket.close
    table = basket.open if config.fill == "next_open" else basket.close
    return np.concatenate([table[1:], table[-1:]])


def _flows(played: PortfolioBacktest) -> Flows:
    """Divide the change of equity in each bar among instruments; funding by the value of positions."""
    kept = played.detailed
    notes, units = played.notes, played.units
    close, quote = played.close[:, :, None], played.quote[:, :, None]
    paid = played.funding[:, None, :kept]
    traded = notes["bought"] - notes["sold"]
    # Held before funding was paid, which may have taken units; without funding it is what is held after it.
    held = np.where(paid > 0.0, units[:-1] + traded, units[1:])
    # After an early end the account holds nothing, and nothing moves.
    on = played.played[:, None, :kept]
    held, before = np.where(on, held, 0.0), np.where(on, units[:-1], 0.0)
    gain = held * close[1:] - before * close[:-1] - traded * quote
    worth = np.abs(held * close[1:])
    total = worth.sum(axis=1, keepdims=True)
    funding = paid * np.divide(worth, total, out=np.zeros_like(worth), where=total > 0.0)
    in_units = np.where(on & (paid > 0.0), (held - units[1:]) * close[1:], 0.0)
    return Flows(gain, notes["buy_fees"] + notes["sell_fees"], notes["spread"], funding, funding - in_units)


def curve(played: PortfolioBacktest) -> Curve:
    """Return the account's curve with what is measured of it in each bar."""
    initial = played.equity[0]
    equity = np.where(played.equity > 0.0, played.equity, 1.0)
    return Curve(
        played.time,
        played.equity / initial,
        {
            "turnover": played.turnover,
            "fees": played.fees / initial,
            "spread_and_slippage": played.spread / initial,
            "funding": played.funding / initial,
            "exposure": played.gross[1:],
            "in_market": (played.gross[1:] > 0.0).astype(np.float64),
            "cash_share": np.where(played.equity > 0.0, played.cash / equity, 0.0)[1:],
            "positions": played.positions[1:],
            "largest_weight": played.largest[1:],
            "reward": played.rewards,
            "account_log_return": log_changes(played.equity),
        },
    )


def contributions(played: PortfolioBacktest) -> list[dict[str, Any]]:
    """Return what each instrument added to the return, as a share of the start equity: means over seeds in detail.

    `contribution` is `gain` (units times the change of price) less `costs`; over all instruments it adds up to the
    total return, less `owed_share` where an account was ruined below zero.
    """
    start = played.equity[0, : played.detailed]
    flows = played.flows
    by_instrument = {
        "contribution": (flows.net.sum(axis=0) / start).mean(axis=1),
        "gain": (flows.gain.sum(axis=0) / start).mean(axis=1),
        "costs": (flows.costs.sum(axis=0) / start).mean(axis=1),
        "mean_weight": played.weights[1:].mean(axis=(0, 2)),
        "turnover": played.turnovers.sum(axis=0).mean(axis=1),
    }
    return [
        {"symbol": symbol, **{name: float(values[k]) for name, values in by_instrument.items()}}
        for k, symbol in enumerate(played.symbols)
    ]


def owed_share(played: PortfolioBacktest) -> float:
    """Return what the account owed at the end as a share of the start equity: a mean over seeds in detail."""
    kept = played.detailed
    return float((played.owed[:kept] / played.equity[0, :kept]).mean())
