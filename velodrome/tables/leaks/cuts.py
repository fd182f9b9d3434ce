"""Where the leak check takes the future away: at places chosen to be awkward, always the same, at a bounded cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import PRICE_COLUMNS, Series
from velodrome.bars.timeframe import DAY
from velodrome.tables.choices import Choices
from velodrome.tables.splits import distinct_times
from velodrome.tables.stretches import Stretch, source_close_time

SEED = 20_240_229  # cuts are pseudo-random and always the same
PREFIX_COST = 2.5  # prefixes may take this many times the bars of a stretch in all …
FEWEST_PREFIX_BARS = 40_000  # … or this many bars, whichever is more
RANDOM_CUTS = 8
DENSE_CUTS = 48  # cuts in one stretch of bars
AWKWARD = 8  # rows of each kind that look awkward or suspicious
LOCAL = 100  # rows over which values are compared with the next returns
FEWEST_CUTS = 512  # of a function on one instrument, where it has that many rows and time is left
DENSE_BARS = 100_000  # bars that all stretches of one function may take, unless the data is longer


class Source:
    """The source bars of a stretch, and when they closed."""

    def __init__(self, choices: Choices, symbols: Sequence[str]) -> None:
        self.series = {symbol: choices.bars[symbol] for symbol in symbols}
        self.closed = {
            symbol: np.maximum.accumulate(source_close_time(series.time, choices.source, choices.bars.timezone))
            for symbol, series in self.series.items()
        }
        self.moments = distinct_times(list(self.closed.values()))

    def count(self, symbol: str, moment: int) -> int:
        """Return how many bars of an instrument had closed by a moment."""
        return int(np.searchsorted(self.closed[symbol], moment, side="right"))

    def until(self, moment: int) -> dict[str, Series]:
        """Return the bars that had closed by a moment."""
        return {symbol: series.slice(0, self.count(symbol, moment)) for symbol, series in self.series.items()}

    def altered_after(self, moment: int) -> dict[str, Series]:
        """Return the bars, everything that had not closed by a moment changed."""
        return {symbol: altered_after(series, self.count(symbol, moment)) for symbol, series in self.series.items()}

    def altered_between(self, gaps: Sequence[tuple[int, int]]) -> dict[str, Series]:
        """Return the bars, those changed that closed after the first and up to the second of some pairs of moments."""
        altered = dict(self.series)
        for symbol in altered:
            for since, until in gaps:
                altered[symbol] = altered_after(altered[symbol], self.count(symbol, since), self.count(symbol, until))
        return altered

    def bars_left(self, moments: Any) -> NDArray[np.int64]:
        """Return how many bars had closed by some moments, those of several instruments at one time counted once."""
        return np.searchsorted(self.moments, moments, side="right")

    def cuts(self, stretch: Stretch) -> list[int]:
        """Return moments at which to cut: awkward ones first, then random ones, until the cost is reached."""
        bars = len(self.moments)
        generator = np.random.default_rng(SEED + bars)
        gap = int(np.argmax(np.diff(self.moments))) if bars > 1 else 0
        wanted = [bars - 1, gap + 1, gap + 2]
        for known_at in (stretch.decided_at, *(window.known_at for window in stretch.windows)):
            if 1 < len(known_at) < bars:
                # Squared, so that most cuts are early and cheap.
                row = 1 + int(generator.random() ** 2 * (len(known_at) - 1))
                before, here = self.bars_left(known_at[row - 1 : row + 1]).tolist()
                wanted += [(before + here) // 2, here - 1, here]
        absent = np.flatnonzero(stretch.tradable.min(axis=1) == 0)
        if len(absent):
            latest = int(np.argmax(stretch.tradable, axis=0).max())  # the first bar of what was listed last
            rows = [latest, latest - 1, int(absent[-1]), int(absent[len(absent) // 2])]
            wanted += self.bars_left(stretch.decided_at[rows]).tolist()
        wanted += [int(share**2 * bars) for share in generator.random(RANDOM_CUTS)]
        budget = max(PREFIX_COST * bars, FEWEST_PREFIX_BARS / len(stretch.symbols))
        cuts: list[int] = []
        for cut in wanted:
            if 0 < cut < bars and cut not in cuts and sum(cuts) + cut <= budget:
                cuts.append(cut)
        return [int(self.moments[cut - 1]) for cut in cuts]


def altered_after(source: Series, keep: int, until: int | None = None) -> Series:
    """Return the bars with everything from row `keep` on changed, up to a row: prices, volume and further columns."""

    def changed(column: NDArray[np.float64], factor: float, offset: float = 0.0) -> NDArray[np.float64]:
        end = len(column) if until is None else until
        return np.concatenate([column[:keep], column[keep:end] * factor + offset, column[end:]])

    altered: dict[str, Any] = {name: changed(getattr(source, name), 1.375) for name in PRICE_COLUMNS}
    altered["extra"] = {name: changed(column, -0.5, 1.0) for name, column in source.extra.items()}
    return replace(source, **altered, volume=changed(source.volume, 0.5, 3.0))


def short_runs(series: Series, warm_up: int, places: Iterator[int] | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield short runs of bars as begin, end and the step between cuts: at both ends, around odd bars, at random.

    places: take these instead, each by the number of the run.
    """
    bars = len(series)
    length = min(bars, warm_up + 1 + DENSE_CUTS)
    if places is not None:
        for number in places:
            begin = min(bars - length, number * DENSE_CUTS)
            yield begin, begin + length, 1
        return
    generator = np.random.default_rng(SEED - bars)
    centres = [warm_up, bars]
    if bars > 2:
        change = np.abs(np.diff(series.close))
        centres += [int(np.argmax(np.diff(series.time))) + 1, int(np.argmax(change)) + 1, int(np.argmax(series.volume))]
        days = np.flatnonzero(np.diff(series.time // DAY)) + 1
        centres += [int(days[len(days) // 2])] if len(days) else []
    centres += [int(centre) for centre in generator.integers(0, bars, 3)]
    begins = {max(0, min(bars - length, centre - warm_up - DENSE_CUTS // 2)) for centre in centres}
    allowed = max(DENSE_BARS, bars) / (len(begins) * length)  # cuts in each run
    for begin in sorted(begins):
        yield begin, begin + length, max(1, round(DENSE_CUTS / allowed))


def suspicious_rows(series: Series, values: NDArray[np.float64]) -> Iterator[int]:
    """Yield rows to cut after, the most telling first: nights, days' ends, places where values fit the next return."""
    bars = len(series)
    if bars < 3:
        return
    gaps = np.diff(series.time)
    yield from np.argsort(gaps)[::-1][:AWKWARD].tolist()
    days = np.flatnonzero(np.diff(series.time // DAY))
    yield from days[:: max(1, len(days) // AWKWARD)][:AWKWARD].tolist()
    blocks = bars // LOCAL
    if blocks > 1:
        after = np.append(np.diff(np.log(np.maximum(series.close, 1e-300))), 0.0)[: blocks * LOCAL].reshape(
            blocks, LOCAL
        )
        fit = np.zeros(blocks)
        for column in values.T:
            known = np.nan_to_num(column)
            for shown in (known, np.diff(known, prepend=known[:1])):
                shown = shown[: blocks * LOCAL].reshape(blocks, LOCAL)
                centred, moved = (x - x.mean(axis=1, keepdims=True) for x in (shown, after))
                size = np.linalg.norm(centred, axis=1) * np.linalg.norm(moved, axis=1)
                fit = np.maximum(fit, np.abs((centred * moved).sum(axis=1)) / np.where(size > 0, size, np.inf))
        yield from (np.argsort(fit)[::-1][:AWKWARD] * LOCAL + LOCAL // 2).tolist()


def even_rows(bars: int, apart: int) -> Iterator[int]:
    """Yield rows to cut after, evenly from the beginning on, until they are so many bars apart."""
    count = min(max(bars - 1, 1), max(FEWEST_CUTS, bars // apart))
    for number in spread(count):
        yield int((number + 0.5) * (bars - 1) / count)


def spread(count: int) -> Iterator[int]:
    """Yield 0 … count − 1 in an order that covers the range evenly from the beginning."""
    step = max(1, round(0.618 * count))
    while np.gcd(step, count) > 1:
        step += 1
    yield from ((number * step) % count for number in range(count))
