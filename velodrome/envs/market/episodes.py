"""Episodes on a market, for every environment that has one: where they begin and end, costs of fills, statistics.

A rule that uses it has a State derived from `MarketState`, the tables `begin` and `end`, and the parameters `start`,
`episode_length_low` and `episode_length_high`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Float64, Int32, UInt64
from velodrome.envs.parameters import EpisodeConfig
from velodrome.envs.rng import stream_index, uniform
from velodrome.errors import ConfigError
from velodrome.tables.logarithm import logarithm_of_growth
from velodrome.tables.market import WindowedRows

RANDOM, SEQUENTIAL, FIRST = 0, 1, 2
STARTS = {"random": RANDOM, "sequential": SEQUENTIAL, "first": FIRST}
RESET_OPTIONS = {"cursor": "next_start", "last": "next_last"}  # option of reset() -> state column
WORST_COST = 0.99  # a fill has a price above zero, whatever spread and slippage add up to

# What every episode on a market ends with, in the order of `write_statistics`; an environment adds its own.
STATISTICS = ("reward", "return", "length", "fees", "turnover", "funding", "sharpe", "max_drawdown")


class MarketState:
    """The columns of an account that lives on bars, one entry per environment."""

    rng_key: UInt64
    rng_counter: UInt64
    cursor: Int32  # the bar that was observed last
    start: Int32  # the episode's first bar
    last: Int32  # the episode's last bar
    next_start: Int32  # start and last bar that reset() was asked for; −1: none
    next_last: Int32
    episode: Int32  # episodes begun since seeding
    per_bar: Float64  # 1 / bars of the episode
    cash: Float64
    equity: Float64  # at the close of the cursor's bar
    initial: Float64
    peak: Float64
    drawdown: Float64  # from the peak, at that close
    reward_sum: Float64
    return_sum: Float64
    return_square_sum: Float64
    fees: Float64
    funding: Float64
    turnover: Float64
    worst_drawdown: Float64


def begin_episode(i: int, state: Any, tables: Any, params: Any) -> None:
    """Choose the start and the last bar of environment i's next episode."""
    length = params.episode_length_low
    if params.episode_length_high > length:
        length += int(uniform(i, state) * (params.episode_length_high - length + 1))
    index = stream_index(i, state)
    stretches = tables.begin.size
    shortest = max(1, length)
    start, last = tables.begin[index % stretches], tables.end[index % stretches] - 1
    if params.start != FIRST:
        blocks = params.start == SEQUENTIAL
        total = 0
        for k in range(stretches):
            free = tables.end[k] - shortest - tables.begin[k]
            if free > 0:
                total += ((free - 1) // length + 1 if length > 0 else 1) if blocks else free
        chosen = (index + state.episode[i]) % total if blocks else int(uniform(i, state) * total)
        for k in range(stretches):
            free = tables.end[k] - shortest - tables.begin[k]
            count = 0
            if free > 0:
                count = ((free - 1) // length + 1 if length > 0 else 1) if blocks else free
            if chosen < count:
                start = tables.begin[k] + (chosen * length if blocks else chosen)
                last = tables.end[k] - 1
                break
            chosen -= count
    if length > 0:
        last = min(last, start + length)
    if state.next_start[i] >= 0:
        start = state.next_start[i]
        for k in range(stretches):
            if start < tables.end[k]:
                last = tables.end[k] - 1
                break
        if length > 0:
            last = min(last, start + length)
    if state.next_last[i] >= 0:
        last = state.next_last[i]
    state.next_start[i] = -1
    state.next_last[i] = -1
    state.episode[i] += 1
    state.start[i] = start
    state.cursor[i] = start
    state.last[i] = last


def open_account(i: int, cash: float, state: Any) -> None:
    """Begin the books of an episode with cash only."""
    state.per_bar[i] = 1.0 / max(1, state.last[i] - state.start[i])
    state.cash[i] = cash
    state.equity[i] = cash
    state.initial[i] = cash
    state.peak[i] = cash
    state.drawdown[i] = 0.0
    state.reward_sum[i] = 0.0
    state.return_sum[i] = 0.0
    state.return_square_sum[i] = 0.0
    state.fees[i] = 0.0
    state.funding[i] = 0.0
    state.turnover[i] = 0.0
    state.worst_drawdown[i] = 0.0


def write_statistics(i: int, state: Any, out: NDArray[np.float64]) -> None:
    """Write what STATISTICS names into the first places of `out`."""
    length = state.cursor[i] - state.start[i]
    out[0] = state.reward_sum[i]
    out[1] = state.equity[i] / state.initial[i] - 1.0
    out[2] = length
    out[3] = state.fees[i]
    out[4] = state.turnover[i]
    out[5] = state.funding[i]
    out[6] = sharpe_ratio(state.return_sum[i], state.return_square_sum[i], max(1, length))
    out[7] = state.worst_drawdown[i]


def fill_cost(half_spread: float, slippage: float, draw: float, further: float) -> float:
    """Return how much worse than the quote a fill is, as a fraction of it."""
    return min(half_spread + slippage * draw + further, WORST_COST)


def log_return(growth: float, before: float) -> float:
    """Return the logarithm of equity after over equity before; of a ruin, as much as of a loss to e^−10."""
    if before <= 0.0:
        return 0.0
    return logarithm_of_growth(growth) if growth > 0.0 else -10.0


def sharpe_ratio(return_sum: float, square_sum: float, bars: int) -> float:
    """Return mean over deviation of the returns of an episode, given their sums."""
    mean = return_sum / bars
    variance = square_sum / bars - mean * mean
    # Rounding leaves a constant series a variance of the order of 1e-17 times its square.
    return mean / math.sqrt(variance) if variance > 1e-14 * mean * mean else 0.0


# When a world is assembled.


def check_that_an_episode_fits(market: WindowedRows, config: EpisodeConfig) -> None:
    """Refuse episodes for which there are too few bars."""
    longest = max(1, config.episode_lengths[1])
    bars = market.end - 1 - market.begin
    if config.start == "first" and (bars < 1).any():
        empty = market.stretches[int(np.argmin(bars))]
        raise ConfigError(
            f"start = 'first': {empty} has no bar to play in {market.name}; leave it out, or start at random"
        )
    if (bars < longest).all():
        raise ConfigError(
            f"no episode fits: episode_length = {config.episode_length!r} needs {longest} bars after the first with "
            f"complete windows, and {market.name} has at most {int(max(bars.max(), 0))}. "
            f"Use a shorter episode_length, shorter windows, or more data."
        )


def check_reset_options(options: Mapping[str, np.ndarray], market: WindowedRows) -> None:
    """Refuse a start without complete windows, and a last bar outside the start's stretch of bars."""
    if "cursor" not in options:
        raise ConfigError("the reset option 'last' needs 'cursor' beside it")
    cursors = options["cursor"].astype(np.int64)
    stretch = np.minimum(np.searchsorted(market.end, cursors, side="right"), len(market.end) - 1)
    legal = (cursors >= market.begin[stretch]) & (cursors < market.end[stretch])
    if not legal.all():
        spans = ", ".join(f"{begin} … {end - 1}" for begin, end in zip(market.begin, market.end, strict=True))
        raise ConfigError(f"cursor = {int(cursors[~legal][0])} is not a bar with complete windows; legal: {spans}")
    last = options.get("last", cursors)
    if not ((last >= cursors) & (last < market.end[stretch])).all():
        raise ConfigError("last must not lie before cursor or beyond the end of its instrument's bars")


def shortest_truncation(config: EpisodeConfig) -> int:
    """Return how many steps an episode that was truncated had at least."""
    # From the first bar on, an episode may find fewer bars than it is long.
    return 1 if config.start == "first" else max(1, config.episode_lengths[0])
