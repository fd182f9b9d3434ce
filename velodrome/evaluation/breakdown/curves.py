"""The curve of an account in pieces: months, falls below a peak, and the Sharpe ratio of a moving window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.measures import Curve, drawdowns

LISTED_FALLS = 10
WINDOWS = (1.0, 1 / 2, 1 / 4, 1 / 12, 1 / 52, 1 / 365)  # years of a rolling figure
FEWEST_IN_WINDOW, FEWEST_WINDOWS = 20, 4


def monthly_returns(own: Curve, benchmark: Curve | None = None) -> list[dict[str, Any]]:
    """Return month ("2024-03", UTC), the return in it, and the benchmark's; a bar belongs to the month it opens in."""
    months = own.time.astype("datetime64[ns]").astype("datetime64[M]")
    # The rows at which a month's last bar closes; row 0 is the start.
    last = np.flatnonzero(np.r_[months[1:] != months[:-1], True])
    last = last[last > 0]
    rows = np.r_[0, last]
    found = {"agent": own} if benchmark is None else {"agent": own, "benchmark": benchmark}
    returns = {name: _changes(each.growth[rows]).mean(axis=1) for name, each in found.items()}
    return [
        {"month": str(months[row]), **{name: float(values[k]) for name, values in returns.items()}}
        for k, row in enumerate(last)
    ]


def _changes(growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relative change from row to row, [N, S]; 0 once nothing is left."""
    before = growth[:-1]
    return np.where(before > 0.0, growth[1:] / np.where(before > 0.0, before, 1.0) - 1.0, 0.0)


def falls(own: Curve) -> Iterator[dict[str, Any]]:
    """Yield the deepest falls of the mean curve below an earlier peak, the deepest first."""
    depth = drawdowns(own.growth.mean(axis=1))
    under = depth > 0.0
    begins = np.flatnonzero(under & ~np.r_[False, under[:-1]])
    ends = np.flatnonzero(under & ~np.r_[under[1:], False])
    troughs = [begin + int(np.argmax(depth[begin : end + 1])) for begin, end in zip(begins, ends, strict=True)]
    for k in sorted(range(len(troughs)), key=lambda k: -depth[troughs[k]])[:LISTED_FALLS]:
        peak, trough, last = int(begins[k]) - 1, troughs[k], int(ends[k])
        over = last + 1 < len(depth)
        yield {
            "depth": float(depth[trough]),
            "begin": moment(own.time[peak]),
            "trough": moment(own.time[trough]),
            "end": moment(own.time[last + 1]) if over else None,
            "bars": (last + 1 if over else last) - peak,
            "bars_down": trough - peak,
        }


def moment(nanoseconds: Any) -> str:
    """Return a moment (UTC) for people."""
    return str(np.datetime64(int(nanoseconds), "ns").astype("datetime64[s]")).replace("T", " ")


def rolling_window(bars: int, per_year: float) -> int | None:
    """Return the bars of a rolling figure: the longest of WINDOWS that fits four times; None if there are too few."""
    fitting = [window for share in WINDOWS if FEWEST_IN_WINDOW <= (window := round(per_year * share)) <= bars // 4]
    if fitting:
        return fitting[0]
    return bars // FEWEST_WINDOWS if bars >= FEWEST_IN_WINDOW * FEWEST_WINDOWS else None


def rolling_sharpe(returns: NDArray[np.float64], window: int, per_year: float) -> NDArray[np.float64]:
    """Return the annualised Sharpe ratio of the last bars at every bar with a whole window behind it.

    returns: [T, S]. The result, [T − window + 1], is the mean over seeds that have one; NaN where returns are constant.
    """
    centre = returns.mean(axis=0)
    sums, squares = (
        np.cumsum(np.concatenate([np.zeros((1, returns.shape[1])), values]), axis=0)
        for values in (returns - centre, (returns - centre) ** 2)
    )
    mean = (sums[window:] - sums[:-window]) / window
    variance = ((squares[window:] - squares[:-window]) / window - mean**2) * window / (window - 1)
    # What differences of long sums leave of a constant stretch is no variance.
    known = variance > 1e-12 * (squares[-1] / len(returns) + centre**2)
    ratio = (mean + centre) / np.sqrt(np.where(known, variance, 1.0)) * math.sqrt(per_year)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, ratio, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)


def rolling_summary(own: Curve, per_year: float) -> dict[str, Any] | None:
    """Return the bars of a window, and lowest, median, highest and last of the ratios; None if there are too few."""
    window = rolling_window(len(own.time) - 1, per_year)
    if window is None:
        return None
    found = rolling_sharpe(own.returns, window, per_year)
    known = found[~np.isnan(found)]
    if not len(known):
        return {"bars": window}
    named = {"lowest": known.min(), "median": np.median(known), "highest": known.max(), "last": found[-1]}
    return {"bars": window, **{name: float(v) for name, v in named.items()}, "below_zero": float((known < 0.0).mean())}
