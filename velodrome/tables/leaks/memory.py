"""Answers that do not come from the bars: a memory, a captured table. Do they know the future of the true bars?

A function is given other bars at the same times, which have nothing to do with the true ones. What it then still knows
of the true bars comes from elsewhere. That is legal, for a table of interest rates or of features made before, unless
it tells more of the true bars to come than the true bars so far do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.bars.frame import BAR_COLUMNS, Series
from velodrome.bars.timeframe import DAY
from velodrome.tables.leaks.probe import Probe, different

BLOCK = 300  # rows within which the past is taken out
FEWEST_BLOCKS = 4
EXPLAINED = 0.2  # share of the variance that later bars may explain
TOO_MUCH = 0.5  # and of what answers on the true bars themselves may have, in markets that nobody predicts so well
OPEN = 0.5  # share of the deviation of the next return that the past must leave open
FEWEST_PERIODS = 4
SAME = 0.999  # correlation with a function of later bars from which it is that function
EQUAL_ROWS = 20  # rows that may equal later bars by chance, at most
RECENT = 4  # bars back that answers may equal
STEPS = 12  # bars ahead that are looked at one by one
SPANS = (5, 10, 20, 30, 50, 60, 100)  # bars ahead that are looked at together
NOTHING_LEFT = 1e-7  # length of what the past leaves of answers, whose largest is 1: only rounding
ELSEWHERE = "and not from the bars that it is given: it answers from memory or from a table"
MOST_BLOCKS = 80  # that are looked at
MOST_EXTRA = 4  # further columns
HOUR = DAY // 24


def recall(probe: Probe) -> Iterator[None]:
    """Give the function bars that have nothing to do with the true ones: do its answers tell the true future?"""
    yield
    fresh, answers = probe.alterations.fresh, probe.fresh_answers
    if answers is None:
        fresh = probe.alterations.pair[0]
        answers = probe.call(fresh)
    if answers is None:
        return
    yield
    tell(probe, answers, [probe.series, fresh], EXPLAINED)


def recognise(probe: Probe) -> Iterator[None]:
    """Look for the future in the answers on the true bars: a table may know those by their prices, and no others."""
    yield
    rows = np.arange(len(probe.series) // 10, len(probe.series), 3)
    block = probe.call(probe.alterations.put(rows, probe.alterations.pair[0]))
    kept = block is not None and not different(probe.values, block).any()  # nothing follows the bars it is given
    tell(probe, probe.values, [probe.series], EXPLAINED if kept else TOO_MUCH)


def tell(probe: Probe, answers: NDArray[np.float64], known: list[Series], allowed: float) -> None:
    """Keep a finding if answers tell of the bars to come what the known bars so far do not."""
    for column in range(answers.shape[1]):
        if len(answers) > 4 * STEPS and (name := _equal(np.nan_to_num(answers[:, column]), probe.series)) is not None:
            probe.found("memory", f"gives {name}, {ELSEWHERE}", 0, 0, column)
            return
    if len(answers) < FEWEST_BLOCKS * BLOCK:
        return  # a share of a few smooth stretches says little
    rows = _rows(len(answers))
    past = [column[rows] for series in known for column in _past(series)]
    basis, _ = np.linalg.qr(np.stack([np.ones(rows.shape), *(_centred(column) for column in past)], axis=2))

    def unexplained(column: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the bars so far do not explain of a column, within each block."""
        shown = _centred(np.nan_to_num(column)[rows])
        return (shown - (basis @ (basis.transpose(0, 2, 1) @ shown[..., None]))[..., 0]).ravel()

    later = np.stack([unexplained(column) for column in _steps(probe.series)], axis=1)
    next_moves = _centred(next(_steps(probe.series))[rows])
    if np.linalg.norm(later[:, 0]) < OPEN * np.linalg.norm(next_moves):
        return  # prices that follow from those before, such as a sine: knowing the future proves nothing
    spans = [(name, unexplained(column)) for name, column in _spans(probe.series)]
    for column in range(answers.shape[1]):
        rest = unexplained(answers[:, column])
        if np.linalg.norm(rest) < NOTHING_LEFT:
            continue
        name = next((name for name, span in spans if _correlation(rest, span) > SAME), None)
        if name is not None:
            probe.found("memory", f"gives {name}, {ELSEWHERE}", 0, 0, column)
            return
        shared = _explained(rest, later)
        if shared > allowed:
            detail = f"tells {shared:.0%} of the bars to come, of what the bars so far leave open, {ELSEWHERE}"
            probe.found("memory", detail, 0, 0, column)
            return


def _rows(bars: int) -> NDArray[np.int64]:
    """Return blocks of neighbouring rows, spread over the data, [blocks, BLOCK]."""
    begins = np.linspace(0, bars - BLOCK, min(MOST_BLOCKS, bars // BLOCK)).astype(np.int64)
    return begins[:, None] + np.arange(BLOCK)


def _centred(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = blocks - blocks.mean(axis=1, keepdims=True)
    return centred / (np.abs(centred).max() or 1.0)


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    return float(abs(left @ right) / ((np.linalg.norm(left) * np.linalg.norm(right)) or np.inf))


def _logs(series: Series) -> NDArray[np.float64]:
    return np.log(np.maximum(series.close, 1e-300))


def _past(series: Series) -> Iterator[NDArray[np.float64]]:
    """What bars so far say: level, last moves, range and volume, and the averages that features are made of."""
    logs = _logs(series)
    moves = np.diff(logs, prepend=logs[:1])
    yield logs
    for lag in range(4):
        yield np.roll(moves, lag)
    yield np.abs(moves)
    yield (series.high - series.low) / series.close
    yield np.log1p(series.volume)
    for span in (5, 20):
        yield np.convolve(moves, np.ones(span) / span)[: len(moves)]
        yield np.convolve(np.abs(moves), np.ones(span) / span)[: len(moves)]


def _ahead(column: NDArray[np.float64], bars: int) -> NDArray[np.float64]:
    return np.append(column[bars:], np.full(min(bars, len(column)), column[-1]))


def _steps(series: Series) -> Iterator[NDArray[np.float64]]:
    """Later bars one by one: they hardly depend on each other, so answers that are merely smooth do not fit them."""
    moves = np.diff(_logs(series), prepend=_logs(series)[:1])
    base = [moves, np.abs(moves), np.log1p(series.volume), (series.high - series.low) / series.close]
    base += list(series.extra.values())[:MOST_EXTRA]
    yield from (_ahead(column, lead) for column in base for lead in range(1, STEPS + 1))


def _spans(series: Series) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Functions of many later bars at once, each with its name."""
    logs = _logs(series)
    moves = np.diff(logs, prepend=logs[:1])
    for span in SPANS:
        for start, words in ((0, "this and "), (1, "")):
            backward = {
                name: pl.Series(_ahead(column, start)[::-1])
                for name, column in (("moves", moves), ("high", series.high), ("low", series.low))
            }
            deviation = backward["moves"].rolling_std(span, min_samples=1, ddof=0)
            highest = backward["high"].rolling_max(span, min_samples=1)
            lowest = backward["low"].rolling_min(span, min_samples=1)
            yield f"the deviation of {words}the next {span} returns", deviation.to_numpy()[::-1]
            yield f"the high of {words}the next {span} bars", highest.to_numpy()[::-1]
            yield f"the low of {words}the next {span} bars", lowest.to_numpy()[::-1]
        yield f"the return of {span} bars", _ahead(logs, span) - logs
    for period, word in ((HOUR, "hour"), (DAY, "day"), (7 * DAY, "week")):
        group = series.time // period
        first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        if len(first) < FEWEST_PERIODS:
            continue  # two days are told apart by any clock
        inside = np.cumsum(np.diff(group, prepend=group[0] - 1) != 0) - 1
        last = np.append(first[1:], len(group)) - 1
        yield f"the close of the {word}", series.close[last][inside]
        yield f"the return until the close of the {word}", logs[last][inside] - logs
        yield f"the high of the {word}", np.maximum.reduceat(series.high, first)[inside]
        yield f"the low of the {word}", np.minimum.reduceat(series.low, first)[inside]
        yield f"the volume of the {word}", np.add.reduceat(series.volume, first)[inside]


def _equal(answer: NDArray[np.float64], series: Series) -> str | None:
    """Return the name of a later bar's number that answers equal on more rows than chance allows."""
    ratio = np.append(1.0, series.close[1:] / series.close[:-1])
    columns = {name: getattr(series, name) for name in BAR_COLUMNS}
    columns |= {"return": ratio - 1.0, "log return": np.log(ratio)}
    middle = slice(2 * STEPS, -STEPS)
    shown = answer[middle]

    def equal(column: NDArray[np.float64], lead: int) -> NDArray[np.bool_]:
        numbers = np.roll(column, -lead)[middle]
        return (np.abs(shown - numbers) <= 1e-9 * np.abs(numbers)) & (shown != 0.0)

    # What a bar opens at is often what the last one closed at, and some prices stand still: that much was known.
    known = np.zeros(len(shown), bool)
    for column in columns.values():
        for lag in range(RECENT + 1):
            known |= equal(column, -lag)
    for name, column in columns.items():
        # Round numbers equal what has been as often as what will be.
        past = max(int((equal(column, -lag) & ~known).sum()) for lag in range(RECENT + 1, STEPS + 1))
        for lead in range(1, STEPS + 1):
            rows = equal(column, lead) & ~known
            count, distinct = int(rows.sum()), len(np.unique(shown[rows]))
            if count > EQUAL_ROWS + 2 * past and distinct > max(EQUAL_ROWS, count // 10):
                return f"the {name} {lead} bars later on {count:,} rows"
    return None


def _explained(rest: NDArray[np.float64], later: NDArray[np.float64]) -> float:
    """Return the share of the variance that later bars explain, less what as many random columns would."""
    size = np.sqrt((later**2).mean(axis=0))
    later = later / np.where(size > 0, size, 1.0)
    weights = np.linalg.solve(later.T @ later + 1e-6 * len(later) * np.eye(later.shape[1]), later.T @ rest)
    left = rest - later @ weights
    share = 1.0 - (left @ left) / (rest @ rest)
    return float(1.0 - (1.0 - share) * len(rest) / max(1, len(rest) - 2 * later.shape[1]))
