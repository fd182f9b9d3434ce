"""Answers that do not come from the bars: a memory, a captured table. Do they know the future of the true bars?

A function is given other bars at the same times, which have nothing to do with the true ones. What it then still knows
of the true bars comes from elsewhere. That is legal, for a table of interest rates or of features made before, unless
it tells more of the true bars to come than the true bars so far do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.bars.timeframe import DAY
from velodrome.tables.leaks.probe import Probe, different

BLOCK = 300  # rows within which the past is taken out
EXPLAINED = 0.2  # share of the variance that later bars may explain
SAME = 0.995  # correlation with a function of later bars from which it is that function
EQUAL_ROWS = 20  # rows that may equal later bars by chance, at most
STEPS = 12  # bars ahead that are looked at one by one
SPANS = (5, 10, 20, 30, 50, 60, 100)  # bars ahead that are looked at together
MOST_ROWS = 60_000
EVERY, HOUR = 1, DAY // 24


def recall(probe: Probe) -> Iterator[None]:
    """Give the function bars that have nothing to do with the true ones, and look for the true future in its answers."""
    yield
    fresh, answers = probe.alterations.fresh, probe.fresh_answers
    if answers is None:
        fresh = probe.alterations.pair[0]
        answers = probe.call(fresh)
    if answers is None or len(answers) < 2 * BLOCK:
        return
    yield
    tell(probe, answers, [probe.series, fresh])
    if probe.leak is None and _ignores_its_bars(probe):
        tell(probe, probe.values, [probe.series])


def _ignores_its_bars(probe: Probe) -> bool:
    """Return whether nothing changes when every third bar does: an answer that was kept."""
    rows = np.arange(BLOCK, len(probe.series), 3)
    block = probe.call(probe.alterations.put(rows, probe.alterations.pair[0]))
    return block is not None and not different(probe.values, block).any()


def tell(probe: Probe, answers: NDArray[np.float64], known: list[Series]) -> None:
    """Keep a finding if answers tell of the bars to come what the known bars so far do not."""
    rows = min(len(answers), MOST_ROWS) // BLOCK * BLOCK
    past = _blocks(np.stack([column for series in known for column in _past(series)], axis=1), rows)
    past = np.concatenate([np.ones((*past.shape[:2], 1)), past], axis=2)
    basis, _ = np.linalg.qr(past - past.mean(axis=1, keepdims=True) * (np.arange(past.shape[2]) > 0))
    steps = _unexplained(_steps(probe.series), basis, rows)
    for column in range(answers.shape[1]):
        answer = np.nan_to_num(answers[:, column])
        if (name := _equal(answer, probe.series)) is not None:
            probe.found("memory", f"gives {name} although it was given other bars", 0, 0, column)
            return
        rest = _unexplained(answer[:, None], basis, rows)[:, 0]
        varies = np.abs(rest).max() > 1e-9 * max(np.abs(answer).max(), 1e-300)
        if not varies:
            continue
        shared = _explained(rest, steps)
        if shared > EXPLAINED:
            detail = (
                f"was given other bars and still tells {shared:.0%} of the true bars to come (of what the bars so far "
                "leave open): it answers from memory or from a table that knows the future"
            )
            probe.found("memory", detail, 0, 0, column)
            return
        for name, later in _spans(probe.series):
            future = _unexplained(later[:, None], basis, rows)[:, 0]
            lengths = np.linalg.norm(rest) * np.linalg.norm(future)
            if lengths > 0 and abs(rest @ future) > SAME * lengths:
                probe.found("memory", f"gives {name} although it was given other bars", 0, 0, column)
                return


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
    return column[np.minimum(np.arange(len(column)) + bars, len(column) - 1)]


def _steps(series: Series) -> NDArray[np.float64]:
    """Later bars one by one, [rows, columns]: they hardly depend on each other, so smooth answers do not fit them."""
    moves = np.diff(_logs(series), prepend=_logs(series)[:1])
    base = [moves, np.abs(moves), np.log1p(series.volume), (series.high - series.low) / series.close]
    base += [np.nan_to_num(column) for column in series.extra.values()]
    columns = [_ahead(column, lead) for column in base for lead in range(1, STEPS + 1)]
    columns += [_ahead(np.abs(moves), lead) for lead in range(STEPS + 1, 3 * STEPS)]
    return np.stack(columns, axis=1)


def _spans(series: Series) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Functions of many later bars at once, each with its name."""
    logs = _logs(series)
    moves = np.diff(logs, prepend=logs[:1])
    for span in SPANS:
        for start, words in ((0, "this bar and"), (1, "")):
            ahead = [_ahead(column, start) for column in (moves, series.high, series.low)]
            windows = [sliding_window_view(np.append(column, np.full(span - 1, column[-1])), span) for column in ahead]
            yield f"the deviation of {words} the next {span} returns", windows[0].std(axis=1)
            yield f"the high of {words} the next {span} bars", windows[1].max(axis=1)
            yield f"the low of {words} the next {span} bars", windows[2].min(axis=1)
        yield f"the return of {span} bars", _ahead(logs, span) - logs
    for period, word in ((HOUR, "hour"), (DAY, "day"), (7 * DAY, "week")):
        group = series.time // period
        first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        inside = np.cumsum(np.diff(group, prepend=group[0] - 1) != 0) - 1
        last = np.append(first[1:], len(group)) - 1
        yield f"the close of the {word}", series.close[last][inside]
        yield f"the return until the close of the {word}", logs[last][inside] - logs
        yield f"the high of the {word}", np.maximum.reduceat(series.high, first)[inside]
        yield f"the low of the {word}", np.minimum.reduceat(series.low, first)[inside]
        yield f"the volume of the {word}", np.add.reduceat(series.volume, first)[inside]


def _equal(answer: NDArray[np.float64], series: Series) -> str | None:
    """Return the name of a later bar's number that answers equal on more rows than chance allows."""
    ratio = series.close[1:] / series.close[:-1]
    for lead in range(1, STEPS + 1):
        later = {name: getattr(series, name)[lead:] for name in ("open", "high", "low", "close", "volume")}
        later |= {"return": ratio[lead - 1 :] - 1.0, "log return": np.log(ratio[lead - 1 :])}
        for name, numbers in later.items():
            equal = np.isclose(answer[:-lead], numbers, rtol=1e-9, atol=0.0) & (answer[:-lead] != 0.0)
            # A number that was there already, such as a volume of 100 or a price that stands still, tells nothing.
            if equal.sum() > EQUAL_ROWS and len(np.unique(answer[:-lead][equal])) > max(EQUAL_ROWS, equal.sum() // 2):
                return f"the {name} {lead} bars later on {equal.sum():,} rows"
    return None


def _blocks(matrix: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Return the last rows [rows, columns] as [blocks, BLOCK, columns], each column by its own size."""
    last = matrix[len(matrix) - rows :]
    size = np.abs(last).max(axis=0)
    return (last / np.where(size > 0, size, 1.0)).reshape(-1, BLOCK, matrix.shape[1])


def _unexplained(matrix: NDArray[np.float64], basis: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Return what the past does not explain within each block, [rows, columns]."""
    blocks = _blocks(matrix, rows)
    rest = blocks - basis @ (basis.transpose(0, 2, 1) @ blocks)
    return rest.reshape(rows, -1)


def _explained(rest: NDArray[np.float64], steps: NDArray[np.float64]) -> float:
    """Return the share of the variance that later bars explain, less what as many random columns would."""
    size = np.sqrt((steps**2).mean(axis=0))
    steps = steps / np.where(size > 0, size, 1.0)
    weights = np.linalg.solve(steps.T @ steps + 1e-6 * len(steps) * np.eye(steps.shape[1]), steps.T @ rest)
    left = rest - steps @ weights
    share = 1.0 - (left @ left) / (rest @ rest)
    return 1.0 - (1.0 - share) * len(rest) / max(1, len(rest) - 2 * steps.shape[1])
