"""Episodes on a market: how long they are, where they begin and where they end.

A rule that uses this has a State derived from `account.MarketState`, the tables `begin` and `end`, and the parameters
`start`, `episode_length_low` and `episode_length_high`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import field_validator, model_validator

from velodrome.envs.parameters import EnvConfig, option
from velodrome.envs.rng import stream_index, uniform
from velodrome.errors import ConfigError

if TYPE_CHECKING:
    from velodrome.tables.market import WindowedRows

RANDOM, SEQUENTIAL, FIRST = 0, 1, 2
STARTS = {"random": RANDOM, "sequential": SEQUENTIAL, "first": FIRST}


class EpisodeConfig(EnvConfig):
    """Base of the parameters of an environment on a market: how long episodes are and where they begin."""

    episode_length: int | tuple[int, int] | None = option(
        None, "decisions in an episode, or a range drawn per episode; None: until the data ends"
    )
    start: Literal["random", "sequential", "first"] = option("random", "where episodes begin")

    @field_validator("episode_length")
    @classmethod
    def _length_is_legal(cls, length: int | tuple[int, int] | None) -> int | tuple[int, int] | None:
        ends = length if isinstance(length, tuple) else (length, length)
        if length is not None and not (1 <= ends[0] <= ends[1]):  # type: ignore[operator]
            raise ValueError("needs at least 1 decision; a range is written (low, high) with low ≤ high")
        return length

    @model_validator(mode="after")
    def _start_suits_the_length(self) -> EpisodeConfig:
        if self.start == "sequential" and isinstance(self.episode_length, tuple):
            raise ValueError("start='sequential' needs one episode_length, not a range")
        return self

    @property
    def episode_lengths(self) -> tuple[int, int]:
        """(low, high) of the episode length; (0, 0) when episodes run until the data ends."""
        if self.episode_length is None:
            return (0, 0)
        return self.episode_length if isinstance(self.episode_length, tuple) else (self.episode_length,) * 2


def begin_episode(i: int, state: Any, tables: Any, params: Any) -> None:
    """Choose the start and the last bar of environment i's next episode."""
    length = params.episode_length_low
    if params.episode_length_high > length:
        length += int(uniform(i, state) * (params.episode_length_high - length + 1))
    place = stream_index(i, state) + state.episode[i]
    stretches = tables.begin.size
    shortest = max(1, length)
    start, last = tables.begin[place % stretches], tables.end[place % stretches] - 1
    if params.start != FIRST:
        state.episode[i] += 1
        blocks = params.start == SEQUENTIAL
        total = 0
        for k in range(stretches):
            free = tables.end[k] - shortest - tables.begin[k]
            if free > 0:
                total += ((free - 1) // length + 1 if length > 0 else 1) if blocks else free
        chosen = place % total if blocks else int(uniform(i, state) * total)
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
    state.start[i] = start
    state.cursor[i] = start
    state.last[i] = last


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


def world_of_episodes(market: WindowedRows, config: EpisodeConfig) -> dict[str, Any]:
    """Return what a World on a market is given besides its rule; refuse episodes for which there are too few bars."""
    check_that_an_episode_fits(market, config)
    first, last = int(market.begin.min()), int(market.end.max()) - 1
    rows = dict.fromkeys(("cursor", "start", "last"), (first, last))
    return {
        "windows": market.windows,
        "window_names": market.window_names,
        "cursors": tuple((int(begin), int(end)) for begin, end in zip(market.begin, market.end, strict=True)),
        "in_turn": config.start != "random",
        # From the first bar on, an episode may find fewer bars than it is long.
        "shortest_truncation": 1 if config.start == "first" else max(1, config.episode_lengths[0]),
        "reset_options": {"cursor": "next_start", "last": "next_last"},
        "index_ranges": rows | dict.fromkeys(("next_start", "next_last"), (-1, last)),
        "check_options": lambda options: check_reset_options(options, market),
    }
