"""What a backtest amounts to: return, risk, costs and exposure, each defined once in METRICS.

Several instruments are several accounts with equal weight at the start. Their curve is the mean of equity over start
equity, at all times at which any of them has a bar. The pieces of a split are one account that stands still between
them. Each seed is measured by itself; then the seeds are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.intervals import Interval, Space
from velodrome.outside.kernels import cached_njit
from velodrome.tables.splits import distinct, distinct_times

if TYPE_CHECKING:  # a list of runs shows figures, and need not wait for environments
    from velodrome.evaluation.play import Track

YEAR = 365.2425 * 86_400e9  # nanoseconds
LARGEST_SHOWN = 1e6  # per cent or ratio; annualising a good day gives numbers of sixty digits
Unit = Literal["change", "share", "ratio", "count", "bars", "rate", "times", "number", "reward"]


@dataclass(frozen=True)
class Metric:
    """A figure of the table: how it is shown, and what it means."""

    name: str
    label: str
    unit: Unit
    meaning: str
    detail: bool = False  # not in the terminal's table


METRICS = (
    Metric("return", "Total return", "change", "equity at the end over equity at the start, less 1"),
    Metric("annual_return", "Annualised return", "change", "the total return per year of observed bars, compounded"),
    Metric("annual_volatility", "Annualised volatility", "share",
           "standard deviation (n − 1) of the bars' returns, times the root of the bars per year"),
    Metric("sharpe", "Sharpe ratio", "ratio",
           "mean over standard deviation of the bars' returns, times the root of the bars per year; no risk-free rate"),
    Metric("sortino", "Sortino ratio", "ratio",
           "mean return over the root of the mean squared loss (bars with a gain count as 0), annualised alike"),
    Metric("calmar", "Calmar ratio", "ratio", "annualised return over maximum drawdown"),
    Metric("max_drawdown", "Maximum drawdown", "share", "largest fall of equity from an earlier peak"),
    Metric("longest_under_water", "Longest under water", "bars",
           "most bars in a row with equity below an earlier peak"),
    Metric("mean_log_return", "Log return per bar", "rate", "mean logarithm of equity over equity a bar before"),
    Metric("of_optimum", "Share of optimum", "share",
           "an account's log return per bar over the best achievable without costs, known for some synthetic markets"),
    Metric("reward", "Reward per bar", "reward", "mean reward of the environment, what the agent was trained on"),
    Metric("turnover", "Turnover", "times", "traded value over equity, summed over bars"),
    Metric("fees", "Fees", "share", "fees paid, as a share of the start equity"),
    Metric("spread_and_slippage", "Spread and slippage", "share",
           "distance of order fills from the quoted price, as a share of the start equity"),
    Metric("funding", "Funding", "share", "funding paid (received if negative), as a share of the start equity"),
    Metric("costs", "All costs", "share", "fees, spread and slippage, and funding together"),
    Metric("exposure", "Mean exposure", "share", "mean value of the position, long or short, over equity"),
    Metric("in_market", "Time in market", "share", "share of the bars at whose close a position is held"),
    Metric("long_share", "Time long", "share", "share of the bars at whose close a long position is held", detail=True),
    Metric("short_share", "Time short", "share", "share of the bars at whose close a short position is held",
           detail=True),
    Metric("long_exposure", "Mean long exposure", "share", "mean value of long positions over equity", detail=True),
    Metric("short_exposure", "Mean short exposure", "share", "mean value of short positions over equity", detail=True),
    Metric("cash_share", "Mean cash", "share", "mean cash over equity"),
    Metric("positions", "Mean positions", "count", "mean number of positions with a weight above `position_floor`"),
    Metric("largest_weight", "Mean largest weight", "share", "mean of the largest weight, long or short"),
    Metric("orders", "Orders filled", "count", "purchases and sales of all instruments"),
    Metric("trades", "Trades", "count", "round trips, from flat or the opposite side back to it"),
    Metric("win_rate", "Win rate", "share", "share of the trades with a profit after all costs"),
    Metric("average_trade", "Average trade", "change", "mean return of a trade on the value entered, after costs"),
    Metric("profit_factor", "Profit factor", "ratio", "profits of winning trades over losses of the others"),
    Metric("winning_holdings", "Winning holdings", "share",
           "share of instruments and months (of short splits: weeks, days or hours) with a gain after costs"),
    Metric("holdings_profit_factor", "Profit factor", "ratio",
           "gains over losses of all instruments in all months (of short splits: weeks, days or hours), after costs"),
    Metric("disagreement", "Disagreement", "share",
           "mean disagreement between the members of an ensemble about each action, from 0 % (all agree) to 100 %"),
    Metric("beta", "Beta", "ratio", "slope of the bars' returns on those of the benchmark", detail=True),
    Metric("correlation", "Correlation", "ratio", "of the bars' returns with those of the benchmark", detail=True),
    Metric("alpha", "Alpha a year", "change",
           "mean return of a bar beyond beta times the benchmark's, times the bars per year", detail=True),
    Metric("probabilistic_sharpe", "P(true Sharpe > 0)", "share",
           "probabilistic Sharpe ratio: corrected for length, skewness and fat tails"),
    Metric("deflated_sharpe", "Deflated Sharpe ratio", "share",
           "probability that the true Sharpe ratio is above what the best of all trials had by luck"),
    Metric("minimum_track_record", "Minimum track record", "bars",
           "bars needed to be 95 % sure of a Sharpe ratio above 0"),
)  # fmt: skip
EPISODE_METRICS = (
    Metric("episode_return", "Episode return", "number", "mean sum of rewards of an episode"),
    Metric("episode_length", "Episode length", "number", "mean steps of an episode"),
    Metric("reward_per_step", "Reward per step", "number", "rewards of all episodes over their steps"),
    Metric("worst_episode", "Worst episode", "number", "smallest sum of rewards of an episode"),
    Metric("best_episode", "Best episode", "number", "largest sum of rewards of an episode"),
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in (*METRICS, *EPISODE_METRICS)}

# What `path_figures` writes first, in order.
PATH_FIGURES = (
    *("return", "annual_return", "annual_volatility", "sharpe", "sortino", "calmar", "max_drawdown"),
    *("longest_under_water", "mean_log_return"),
)
# Intervals of these are widened in logarithms, which keeps them within what is possible; see `intervals`.
# Of what is measured in each bar these are summed, the others averaged. The optimum is about `account_log_return`:
# several accounts together do better than each by itself.
SPACES: Mapping[str, Space] = {"return": "growth", "annual_return": "growth", "annual_volatility": "size"}
SUMMED = ("turnover", "fees", "spread_and_slippage", "funding")
# Last until the account's next bar; before its first bar and after its last there are none.
STATES = (
    *("exposure", "in_market", "cash_share", "positions", "largest_weight"),
    *("long_share", "short_share", "long_exposure", "short_exposure"),
)
PERIODS = ("M", "W", "D", "h")  # NumPy's calendar units
ENOUGH_PERIODS = 12


@dataclass(frozen=True)
class Curve:
    """A policy's accounts together, bar by bar, S seeds side by side."""

    time: NDArray[np.int64]  # [T + 1] nanoseconds UTC
    growth: NDArray[np.float64]  # [T + 1, S] equity over start equity
    per_bar: Mapping[str, NDArray[np.float64]]  # by name: [T, S]

    @property
    def returns(self) -> NDArray[np.float64]:
        """[T, S] relative change of equity in each bar; 0 once there is none left."""
        before = self.growth[:-1]
        alive = before > 0.0
        return np.where(alive, self.growth[1:] / np.where(alive, before, 1.0) - 1.0, 0.0)

    @property
    def log_returns(self) -> NDArray[np.float64]:
        """[T, S] logarithm of the change."""
        return log_changes(self.growth)


def log_changes(growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(after / before) of every bar: minus infinity in the one that took all, 0 after it."""
    before, after = growth[:-1], growth[1:]
    alive = (before > 0.0) & (after > 0.0)
    logs = np.log(np.where(alive, after, 1.0)) - np.log(np.where(alive, before, 1.0))
    return np.where((before > 0.0) & (after <= 0.0), -np.inf, logs)


def account_values(track: Track) -> dict[str, NDArray[np.float64]]:
    """Return what any account says of each bar, [T, S]: of its costs, those that were recorded."""
    initial = track.start_equity
    values = {name: track.change(name) / initial for name in ("fees", "funding") if name in track.columns}
    if "turnover" in track.columns:
        values["turnover"] = track.change("turnover")
    return {**values, "reward": track.rewards, "account_log_return": log_changes(track.equity)}


class _Account(NamedTuple):
    """The tracks of one account as one."""

    time: NDArray[np.int64]  # [T + 1]
    growth: NDArray[np.float64]  # [T + 1, S] equity over start equity
    per_bar: Mapping[str, NDArray[np.float64]]  # by name: [T, S]


def _joined(tracks: Sequence[Track], per_bar: Sequence[Mapping[str, NDArray[np.float64]]]) -> _Account:
    """Put pieces of which each goes on with what the one before left together; the bars between them are no bars."""
    first, *others = tracks
    if not others:
        return _Account(first.time, first.equity / first.equity[0], per_bar[0])
    time = np.concatenate([first.time, *(track.time[1:] for track in others)])
    equity = np.concatenate([first.equity, *(track.equity[1:] for track in others)])
    return _Account(
        time, equity / first.equity[0], {name: np.concatenate([own[name] for own in per_bar]) for name in per_bar[0]}
    )


def curve(tracks: Sequence[Track], per_bar: Sequence[Mapping[str, NDArray[np.float64]]]) -> Curve:
    """Put tracks on one time line; an account without a bar at a time stays as it was.

    tracks: those of an instrument after one another, as `carried_on` makes them.
    per_bar: for each track, what to average or to sum over bars, by name [T, S].
    """
    places = [list(own) for _, own in groupby(range(len(tracks)), lambda place: tracks[place].symbol)]
    accounts = [_joined([tracks[k] for k in own], [per_bar[k] for k in own]) for own in places]
    if len(accounts) == 1:
        return Curve(*accounts[0])
    time = distinct_times([account.time for account in accounts])
    growth = np.zeros((len(time), accounts[0].growth.shape[1]))
    sums = {name: np.zeros_like(growth[1:]) for name in accounts[0].per_bar}
    for account in accounts:
        at = np.searchsorted(account.time, time, side="right") - 1  # the last own bar at each time; −1: none yet
        growth += account.growth[np.maximum(at, 0)]
        own = np.isin(time[1:], account.time[1:])
        for name, values in account.per_bar.items():
            if name in STATES:
                held = (at[1:] > 0) & (time[1:] <= account.time[-1])
                sums[name] += np.where(held[:, None], values[np.maximum(at[1:] - 1, 0)], 0.0)
            elif name in SUMMED:
                sums[name][own] += values
            else:
                # A mean over the account's own bars: at the times of the others nothing was to be earned.
                sums[name][own] += values * (len(own) / max(len(values), 1))
    return Curve(time, growth / len(accounts), {name: values / len(accounts) for name, values in sums.items()})


def period_begins(time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first bar of each period, rows of `time` [T]: of the longest of PERIODS of which there are twelve."""
    moments = time.astype("datetime64[ns]")
    for unit in PERIODS:
        # NumPy's weeks begin on the weekday of 1970-01-01, a Thursday; ours on Mondays.
        own = (moments + np.timedelta64(3 if unit == "W" else 0, "D")).astype(f"datetime64[{unit}]")
        begins = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
        if len(begins) >= ENOUGH_PERIODS:
            break
    return begins


def bars_per_year(time: NDArray[np.int64]) -> float:
    """Return the observed bars of a year: sessions, weekends and gaps have none. NaN with fewer than two bars.

    time: of all bars, in any order; those of several instruments at the same moment count once.
    """
    time = distinct(time)
    if len(time) < 2:
        return math.nan
    return (len(time) - 1) / ((int(time[-1]) - int(time[0])) / YEAR)


@cached_njit
def path_figures(returns, logs, extras, order, centre, per_year, out):
    """Write the figures of a path that visits the bars `order` of a series: PATH_FIGURES, then the means of `extras`.

    returns, logs: [T]; extras: [T, M]; order: [n]; centre: a value near the mean return, against cancellation.
    """
    count = order.size
    shifted, squares, losses = 0.0, 0.0, 0.0
    level, peak, deepest = 0.0, 0.0, 0.0
    under, longest = 0, 0
    means = out[9:]
    means[:] = 0.0
    for k in range(count):
        j = order[k]
        gain = returns[j]
        distance = gain - centre
        shifted += distance
        squares += distance * distance
        if gain < 0.0:
            losses += gain * gain
        level += logs[j]
        if level >= peak:
            peak = level
            under = 0
        else:
            under += 1
            longest = max(longest, under)
            deepest = max(deepest, peak - level)
        for m in range(means.size):
            means[m] += extras[j, m]
    if count == 0:
        out[:] = np.nan
        return
    means /= count
    write_figures(count, per_year, centre, shifted, squares, losses, level, deepest, longest, out)


@cached_njit
def write_figures(count, per_year, centre, shifted, squares, losses, level, deepest, longest, out):
    """Write PATH_FIGURES, given sums over the bars of a path.

    shifted, squares: of returns less the centre, and of the squares of that; losses: of the squares of losses; level:
    of log returns; deepest: the largest fall of their running sum.
    """
    out[:9] = np.nan
    years_inverse = per_year / count
    mean = centre + shifted / count
    out[0] = math.expm1(level)
    out[1] = math.expm1(level * years_inverse)
    out[6] = -math.expm1(-deepest)
    out[7] = longest
    out[8] = level / count
    if count > 1:
        variance = max(0.0, (squares - shifted * shifted / count) / (count - 1))
        # Rounding leaves a constant series a variance of the order of 1e-26 times its square.
        if variance <= 1e-20 * mean * mean:
            variance = 0.0
        out[2] = math.sqrt(variance * per_year)
        if variance > 0.0:
            out[3] = mean / math.sqrt(variance) * math.sqrt(per_year)
    if losses > 0.0:
        out[4] = mean / math.sqrt(losses / count) * math.sqrt(per_year)
    if out[6] > 0.0:
        out[5] = out[1] / out[6]


@cached_njit
def write_resampled(count, per_year, centre, sums, deepest, out):
    """Write PATH_FIGURES of every seed and resample; sums as of `PathMeter.summed`, the last of them may be missing."""
    for s in range(out.shape[0]):
        for n in range(out.shape[1]):
            losses = sums[s, n, 3] if sums.shape[2] > 3 else 0.0
            known = (sums[s, n, 0], sums[s, n, 1], losses, sums[s, n, 2], deepest[s, n])
            write_figures(count, per_year, centre[s], *known, 0, out[s, n])


@cached_njit(nogil=True)
def walk_blocks(begin, row, logs, times, deepest):
    """Go through the bars of a resample: count how often it visits each bar, and find how far its P paths fall.

    begin, row: as of `Blocks`; a block wraps at the end. logs: [T, P]; times: [T] visits; deepest: [P] the largest fall
    of the running sum of log returns.
    """
    bars, paths = logs.shape
    levels, peaks = np.zeros(paths), np.zeros(paths)
    times[:] = 0.0
    deepest[:] = 0.0
    block, j = 0, 0
    for k in range(bars):
        j = j + 1 if j + 1 < bars else 0
        if block < begin.size and k == begin[block]:
            j = int(row[block])
            block += 1
        times[j] += 1.0
        for path in range(paths):
            level = levels[path] + logs[j, path]
            levels[path] = level
            peak = peaks[path]
            peak = peak if peak > level else level
            peaks[path] = peak
            fall = peak - level
            deepest[path] = fall if fall > deepest[path] else deepest[path]


class PathMeter:
    """Measures paths of one curve, resampled or as they were."""

    def __init__(self, measured: Curve, per_year: float) -> None:
        self.per_year = per_year
        self.names = (*PATH_FIGURES, *measured.per_bar)
        self.returns = np.ascontiguousarray(measured.returns.T)  # [S, T]
        self.logs = np.ascontiguousarray(measured.log_returns.T)
        self.extras = list(measured.per_bar.values())  # M of [T, S]
        self.centre = self.returns.mean(axis=1) if self.returns.shape[1] else np.zeros(len(self.returns))
        self.seeds, self.bars = self.returns.shape
        self.scale = np.array([self.bars if name in SUMMED else 1 for name in self.names], np.float64)

    def influences(self) -> dict[str, NDArray[np.float64]]:
        """Return how each bar moves the figures that have a derivative, [T] by name, means over seeds."""
        each = [influences(*path) for path in zip(self.returns, self.logs, strict=True)]
        common = [name for name in each[0] if all(name in own for own in each)]
        # Of one seed the arrays themselves: figures that move alike then share one.
        own = each[0]
        if self.seeds > 1:
            own = {name: np.mean([found[name] for found in each], axis=0) for name in common}
        further = (values[:, 0] if self.seeds == 1 else values.mean(axis=1) for values in self.extras)
        return {**own, **dict(zip(self.names[len(PATH_FIGURES) :], further, strict=True))}

    def possible(self, name: str, found: Interval) -> Interval:
        """Return an interval within what a figure can be: a mean over bars lies within the range of the bars."""
        place = self.names.index(name) - len(PATH_FIGURES) if name in self.names else -1
        if place < 0:
            return found
        values, scale = self.extras[place], self.scale[self.names.index(name)]
        return found._replace(low=max(found.low, values.min() * scale), high=min(found.high, values.max() * scale))

    def figures(self) -> NDArray[np.float64]:
        """Return the figures of `names`, means over the seeds for which they are defined."""
        order, found = np.arange(self.bars), np.empty((self.seeds, len(self.scale)))
        for seed, row in enumerate(found):
            path = self.returns[seed], self.logs[seed], self.extras_of(seed)
            path_figures(*path, order, self.centre[seed], self.per_year, row)
        return mean_of_known(found) * self.scale

    def extras_of(self, seed: int) -> NDArray[np.float64]:
        """Return what else is measured in each bar of a seed, [T, M]."""
        return (
            np.stack([values[:, seed] for values in self.extras], axis=1) if self.extras else np.empty((self.bars, 0))
        )

    def summed(self, seed: int, whole: bool) -> NDArray[np.float64]:
        """Return what `resampled_figures` takes the sums of, by column, [T, 4 + M] of a seed or [T, 3]."""
        returns = self.returns[seed][:, None]
        away = returns - self.centre[seed]
        further = (np.minimum(returns, 0.0) ** 2, self.extras_of(seed)) if whole else ()
        return np.concatenate([away, away**2, self.logs[seed][:, None], *further], axis=1)

    def resampled_figures(self, sums: NDArray[np.float64], deepest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the figures of N resamples of each seed, [S, N, names]; NaN for what is not known of them.

        sums: [S, N, …] of `summed`, over the bars that each visits; deepest: [S, N] as of `walk_blocks`, or NaN.
        """
        found = np.full((*deepest.shape, len(self.scale)), np.nan)
        found[:, :, len(PATH_FIGURES) :] = sums[:, :, 4:] / self.bars if sums.shape[2] > 3 else np.nan
        write_resampled(self.bars, self.per_year, self.centre, sums, deepest, found)
        found[:, :, PATH_FIGURES.index("longest_under_water")] = np.nan
        return found * self.scale


def influences(returns: NDArray[np.float64], logs: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return how each bar of a path moves its figures, [T] by name, up to a factor: derivatives by the bar's weight.

    A fall from a peak is no smooth function of the bars, so that drawdowns and what is made of them are missing.
    """
    if not len(returns):
        return {}
    mean, losses = returns.mean(), np.minimum(returns, 0.0) ** 2
    found = dict.fromkeys(("return", "annual_return", "mean_log_return"), logs)
    if (deviation := returns.std()) > 0.0:
        scaled = (returns - mean) / deviation
        found["annual_volatility"] = scaled**2
        found["sharpe"] = scaled - 0.5 * mean / deviation * (scaled**2 - 1.0)
    if (loss := losses.mean()) > 0.0:
        found["sortino"] = (returns - mean) - 0.5 * mean * (losses / loss - 1.0)
    return found


def mean_of_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean along the first axis of what is not NaN; NaN where all is."""
    if len(values) == 1:
        return values[0]
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    # Infinities of both signs have no mean.
    with np.errstate(invalid="ignore"):
        total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass(frozen=True)
class Drawdown:
    """The deepest fall of a curve; positions are rows of it."""

    depth: float
    begin: int  # of the peak
    trough: int
    end: int | None  # first row at or above the peak again; None: not within the data


def deepest_drawdown(growth: NDArray[np.float64]) -> Drawdown | None:
    """Return the deepest drawdown of one curve [T + 1], the first of equals; None if it never falls."""
    falls = drawdowns(growth)
    trough = int(np.argmax(falls))
    if not falls[trough] > 0.0:
        return None
    peak = growth[: trough + 1].max()
    begin = int(np.flatnonzero(growth[: trough + 1] == peak)[-1])
    recovered = np.flatnonzero(growth[trough:] >= peak)
    return Drawdown(float(falls[trough]), begin, trough, trough + int(recovered[0]) if len(recovered) else None)


def drawdowns(growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fall from the peak so far at every row of a curve, as a positive share."""
    peaks = np.maximum.accumulate(growth, axis=0)
    return 1.0 - growth / np.where(peaks > 0.0, peaks, 1.0)


def small_percent(value: float) -> str:
    """Return a small share in per cent: three digits that count, and no more than eight places."""
    if not value:
        return "0%"
    places = min(max(2 - math.floor(math.log10(abs(100.0 * value))), 0), 8)
    return f"{100.0 * value:+,.{places}f}%".replace("-", "−")


def written(value: float) -> float | str | None:
    """Return a figure as JSON can hold it: NaN is null, and an infinity a word."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else ("Infinity" if value > 0.0 else "-Infinity")


def format_figure(value: float | None, unit: Unit) -> str:
    """Return a figure for people; '–' where it is not defined."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0.0 else "−∞"
    if unit in ("change", "share"):
        percent = 100.0 * value
        size = abs(percent)
        if percent >= LARGEST_SHOWN:
            return "> 10⁶%"
        digits = f"{percent:,.{0 if size >= 1000 else 1 if size >= 100 else 2}f}"
        sign = "+" if unit == "change" and float(digits.replace(",", "")) > 0.0 else ""
        return f"{sign}{digits}%".replace("-", "−")
    if unit == "rate":
        return small_percent(value)
    if unit in ("number", "reward"):
        return f"{value:,.{4 if unit == 'number' else 3}g}".replace("-", "−")
    if unit == "times":
        return f"{value:,.1f} ×"
    if unit in ("count", "bars"):
        return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:,.1f}"
    if abs(value) >= LARGEST_SHOWN:
        return "> 10⁶" if value > 0.0 else "< −10⁶"
    return f"{value:,.{1 if abs(value) >= 100 else 2}f}".replace("-", "−")
