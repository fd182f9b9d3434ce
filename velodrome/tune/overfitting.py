"""The probability of backtest overfitting by combinatorially symmetric cross-validation (CSCV).

After Bailey, Borwein, López de Prado and Zhu: "The probability of backtest overfitting" (2015). The bars of all trials
are cut into blocks. Each half of the blocks in turn is what the best trial is chosen on, and the other half shows what
the choice was worth: the probability is how often the chosen trial ends in the lower half of all trials there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from velodrome.errors import ConfigError

MOST_BLOCKS = 20  # 184,756 splits; each two more quadruple them
CHUNK = 1 << 19  # performances that are held at once, on either side
NO_SPREAD = 1e-12  # a share of a column's variance below which a half's returns count as constant

Statistic = Literal["sharpe", "mean"]


@dataclass(frozen=True)
class Overfitting:
    """What choosing the best of the trials is worth outside the bars that it was chosen on."""

    probability: float  # that the best in sample is not above the median out of sample
    slope: float  # of the chosen trial's performance out of sample on that in sample; NaN if the latter never varies
    loss: float  # probability that the chosen trial's performance out of sample is below 0
    trials: int
    blocks: int
    bars: int  # that were used
    left_out: int  # the oldest, so that all blocks are equally long
    inside: NDArray[np.float64] = field(repr=False)  # [splits] performance of the chosen trial where it was chosen
    outside: NDArray[np.float64] = field(repr=False)  # [splits] and elsewhere
    rank: NDArray[np.float64] = field(
        repr=False
    )  # [splits] ω: 0 is the worst out of sample, 1 the best, neither reached

    @property
    def splits(self) -> int:
        """How many ways there are to choose half of the blocks."""
        return len(self.inside)

    @property
    def logits(self) -> NDArray[np.float64]:
        """[splits] the logarithm of the odds of the rank, λ of the paper."""
        return np.log(self.rank / (1.0 - self.rank))


def cscv(returns: ArrayLike, blocks: int = 16, statistic: Statistic = "sharpe") -> Overfitting:
    """Return the probability of backtest overfitting of trials by their returns on the same bars, [bars, trials].

    statistic: what makes a trial the best, its Sharpe ratio per bar or its mean return.
    Where several trials are the best in sample, each counts with its share; ties out of sample share their ranks. A
    trial whose returns do not vary in a half made no bet there: its Sharpe ratio is 0.
    """
    values = _checked(returns, blocks, statistic)
    bars, trials = values.shape
    length, left_out = divmod(bars, blocks)
    members = np.array(list(itertools.combinations(range(blocks), blocks // 2)))
    chosen = np.zeros((len(members), blocks))
    chosen[np.arange(len(members))[:, None], members] = 1.0
    performance = _Performance(values[left_out:], blocks, statistic)
    count = len(chosen)
    inside, outside, rank, below, lost = np.empty((5, count))
    # In the order of `combinations` the complement of split i is split count − 1 − i, so each pair is computed once.
    for rows in _chunks(count // 2, max(CHUNK // trials, 1)):
        mirror = slice(count - rows.stop, count - rows.start)
        here, there = performance(chosen[rows]), performance(chosen[mirror])[::-1]
        for place, best, other in ((rows, here, there), (slice(mirror.start, mirror.stop), there[::-1], here[::-1])):
            inside[place], outside[place], rank[place], below[place], lost[place] = _choose(best, other)
    return Overfitting(
        probability=float(below.mean()),
        slope=_slope(inside, outside),
        loss=float(lost.mean()),
        trials=trials,
        blocks=blocks,
        bars=length * blocks,
        left_out=left_out,
        inside=inside,
        outside=outside,
        rank=rank,
    )


def distinct(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the trials, [bars, trials], without those whose returns are an earlier one's to the bit.

    They are one policy: nothing was chosen between them. Counted twice, they would share the middle rank out of sample,
    which CSCV takes for a choice that failed.
    """
    _, first = np.unique(returns, axis=1, return_index=True)
    return returns[:, np.sort(first)]


def _checked(returns: ArrayLike, blocks: int, statistic: str) -> NDArray[np.float64]:
    """Return the returns as [bars, trials], or say what is wrong with them."""
    if statistic not in ("sharpe", "mean"):
        raise ConfigError(f"statistic = {statistic!r}: known are 'sharpe' and 'mean'")
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks % 2 or not 2 <= blocks <= MOST_BLOCKS:
        raise ConfigError(f"blocks = {blocks!r}: needs an even number from 2 to {MOST_BLOCKS}")
    try:
        values = np.asarray(returns, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            "returns: they are not a table of numbers; give [bars, trials], each trial with a return for each bar"
        ) from None
    if values.ndim != 2:
        raise ConfigError(f"returns of shape {values.shape}: needs [bars, trials], a column for each trial")
    bars, trials = values.shape
    if trials < 2:
        raise ConfigError(
            f"returns of {trials} trial(s): nothing was chosen among fewer than 2, so nothing can overfit"
        )
    if bars < 2 * blocks:
        raise ConfigError(
            f"returns of {bars} bars: {blocks} blocks need at least {2 * blocks}, two bars each; take fewer blocks"
        )
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        bar, trial = wrong[0]
        raise ConfigError(
            f"returns: trial {trial} has {values[bar, trial]} at bar {bar} ({len(wrong)} such values in all); every "
            "trial needs a finite return for each bar, 0 where it held nothing"
        )
    return values


class _Performance:
    """How well each trial did on any choice of blocks, from its sums over single blocks."""

    def __init__(self, values: NDArray[np.float64], blocks: int, statistic: Statistic) -> None:
        self.by_sharpe = statistic == "sharpe"
        self.count = len(values) // 2
        self.centre = np.zeros(values.shape[1])
        self.still = np.zeros(values.shape[1], bool)
        if self.by_sharpe:
            # Sharpe ratios do not depend on scale, and differences from the mean keep all digits of the variance.
            mean, deviation = values.mean(axis=0), values.std(axis=0)
            self.still = ~(deviation > 1e-10 * np.abs(mean)) | (np.ptp(values, axis=0) == 0.0)
            deviation = np.where(self.still, 1.0, deviation)
            values, self.centre = (values - mean) / deviation, mean / deviation
        cut = values.reshape(blocks, -1, values.shape[1])
        self.sums, self.squares = cut.sum(axis=1), np.square(cut).sum(axis=1)  # [blocks, trials]

    def __call__(self, chosen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the performance [splits, trials] for choices of half of the blocks, [splits, blocks] of 0 and 1."""
        mean = chosen @ self.sums
        mean /= self.count
        if not self.by_sharpe:
            return mean
        variance = chosen @ self.squares
        variance -= self.count * np.square(mean)
        variance /= self.count - 1
        mean += self.centre
        flat = variance <= NO_SPREAD
        flat |= self.still
        np.sqrt(variance, out=variance, where=~flat)
        variance[flat] = np.inf  # a Sharpe ratio of 0
        mean /= variance
        return mean


def _chunks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _choose(here: NDArray[np.float64], there: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Choose the best of each row on one side and look at it on the other: [splits] each.

    Returns its performance on either side, its rank there, whether that is not above the median, whether it lost.
    """
    rows, trials = np.arange(len(here)), here.shape[1]
    first = here.argmax(axis=1)
    best, found = here[rows, first], there[rows, first]
    rank = _rank(there, found)
    below, lost = (rank <= 0.5).astype(np.float64), (found < 0.0).astype(np.float64)
    for row in np.flatnonzero((here == best[:, None]).sum(axis=1) > 1):
        tied = np.flatnonzero(here[row] == best[row])
        others = there[row, tied]
        ranks = _rank(np.broadcast_to(there[row], (len(tied), trials)), others)
        found[row], rank[row] = others.mean(), ranks.mean()
        below[row], lost[row] = (ranks <= 0.5).mean(), (others < 0.0).mean()
    return best, found, rank, below, lost


def _rank(performances: NDArray[np.float64], of: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of a performance within its row over the number of trials plus one; ties share theirs."""
    lower = (performances < of[:, None]).sum(axis=1)
    equal = (performances == of[:, None]).sum(axis=1)
    return (lower + 0.5 * (equal + 1)) / (performances.shape[1] + 1)


def _slope(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """Return the slope of the line through the pairs by least squares; NaN if `inside` never varies."""
    apart = inside - inside.mean()
    spread = float(apart @ apart)
    if not spread > 1e-20 * max(float(inside @ inside), 1e-280):
        return float("nan")
    return float(apart @ (outside - outside.mean())) / spread
