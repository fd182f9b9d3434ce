"""Statistics of all bars that a function holds: in a closure, a default, an attribute, an object that was fitted.

Taking bars away does not change a number that is held, so no cut finds it. But a number that equals the mean of all
closes to nine digits, and not that of the training split, was not fitted on the training split. What a fitted scaler
has been applied to is known by its values: mean 0 and deviation 1 over all bars, and over no others.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import BAR_COLUMNS, Bars, Series
from velodrome.tables.leaks.probe import Probe, different

DEPTH = 5  # how far into objects and the functions they call
MOST_OBJECTS = 2000
LONGEST = 128  # entries of a list or an array that are compared one by one
FEWEST_DIGITS = 6  # shorter numbers equal a statistic by chance
ROWS_SEEN = (".n_samples_seen_", ".n_samples_fit_", ".n_samples_")  # by which scikit-learn says what it was fitted on
CLOSE = 1e-9  # relative: NumPy, Polars and pandas add up in different orders
QUANTILES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99)
HORIZONS = (1, 2, 3, 5, 10, 15, 20, 30, 60, 100)  # bars ahead that people fit
FEWEST_VALUES = 100  # distinct values of a column that can show a fit


def check_fit(probes: Sequence[Probe], train: Sequence[int], ends: Sequence[Sequence[int]]) -> None:
    """Look at one function on all instruments.

    train, ends: by instrument, how many of its rows belong to the training split, and to it and those that follow.
    """
    every = [probe.series for probe in probes]
    # A table of values by time holds the highest and the median as well; only short lists are constants.
    numbers = held_numbers(probes[0].feature.function, min(LONGEST, min(len(series) for series in every) // 5))
    found = _rows_seen(numbers, every, train) or (_held_statistic(numbers, every, train, ends) if numbers else None)
    if found is not None:
        probes[0].found("fitted", found)
        return
    for column in range(probes[0].values.shape[1]):
        whole = [probe.values[:, column] for probe in probes]
        for probe, group, rows in [*((p, [w], [t]) for p, w, t in zip(probes, whole, train, strict=True)),
                                   (probes[0], whole, list(train))]:  # fmt: skip
            said = _fit_of(np.concatenate(group))
            if said is None or said == _fit_of(np.concatenate([w[:t] for w, t in zip(group, rows, strict=True)])):
                members = probes if len(group) > 1 else [probe]
                if (target := _fitted_target(group, [one.series for one in members])) is not None:
                    detail = f"is a fit by least squares of {target} over all bars: fit it on the training split"
                    probe.found("fitted", detail, 0, 0, column)
                    return
                continue
            again = [one.fresh_answers for one in (probes if len(group) > 1 else [probe])]
            is_data = any(not different(whole[0], data).any() for data in _data(probes[0].series).values())
            if any(one is None for one in again) or is_data:
                continue
            if said != _fit_of(np.concatenate([one[:, column] for one in again if one is not None])):
                detail = f"has {said} over all bars, and not over the training split: it was fitted on all bars"
                probe.found("fitted", detail, 0, 0, column)
                return


def held_numbers(function: Any, longest: int = LONGEST) -> dict[str, float]:
    """Return the numbers that a function can reach, by where they are; short ones and long lists are left out."""
    found: dict[str, float] = {}
    pending: list[tuple[str, Any, int]] = [("", function, 0)]
    seen: set[int] = set()
    while pending and len(seen) < MOST_OBJECTS:
        path, thing, depth = pending.pop()
        if isinstance(thing, bool | str | bytes | Series | Bars | types.ModuleType | type | None.__class__):
            continue
        if isinstance(thing, int | float | np.number):
            number = float(thing)
            long = np.isfinite(number) and float(f"{number:.{FEWEST_DIGITS}g}") != number
            if long or path.endswith(ROWS_SEEN):
                found[path] = number
            continue
        if id(thing) in seen or depth > DEPTH:
            continue
        seen.add(id(thing))
        with contextlib.suppress(Exception):  # of strangers' objects that do not like to be looked at
            pending += [(f"{path}{name}", part, depth + 1) for name, part in _parts(thing, longest)]
    return found


def _parts(thing: Any, longest: int) -> Iterator[tuple[str, Any]]:
    """Yield what an object is made of, as far as it can hold a fitted number."""
    if isinstance(thing, functools.partial):
        yield from (("", thing.func), *enumerate_parts(thing.args), *enumerate_parts(thing.keywords))
    elif isinstance(thing, types.MethodType):
        yield from (("", thing.__func__), ("self", thing.__self__))
    elif isinstance(thing, types.FunctionType):
        names = thing.__code__.co_freevars
        for name, cell in zip(names, thing.__closure__ or (), strict=True):
            try:
                yield f" {name}", cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from enumerate_parts(thing.__defaults__ or ())
        yield from enumerate_parts(thing.__kwdefaults__ or {})
        for code in _codes(thing.__code__):
            yield from ((f" {name}", thing.__globals__[name]) for name in code.co_names if name in thing.__globals__)
    elif hasattr(thing, "py_func"):  # compiled by Numba
        yield "", thing.py_func
    elif isinstance(thing, Mapping | list | tuple | set | frozenset):
        if len(thing) <= longest:
            yield from enumerate_parts(thing)
    elif hasattr(thing, "__array__"):
        array = np.asarray(thing)
        if array.size <= longest and array.dtype.kind in "fiuO":
            yield from enumerate_parts(array.ravel().tolist())
    else:
        attributes = [*getattr(thing, "__dict__", {}), *getattr(type(thing), "__slots__", ())]
        yield from ((f".{name}", getattr(thing, name, None)) for name in attributes)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a function's code and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def enumerate_parts(things: Any) -> Iterator[tuple[str, Any]]:
    named = things.items() if isinstance(things, Mapping) else enumerate(things)
    yield from ((f"[{name!r}]", part) for name, part in named)


def _data(series: Series) -> dict[str, NDArray[np.float64]]:
    return {name: getattr(series, name) for name in BAR_COLUMNS} | dict(series.extra)


def _columns(series: Series) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield what people take statistics of, with a value for each bar."""
    data, close = _data(series), series.close
    yield from data.items()
    ratio = np.append(np.nan, close[1:] / close[:-1])
    yield from (
        ("returns", ratio - 1.0),
        ("log returns", np.log(ratio)),
        ("changes", np.append(np.nan, np.diff(close))),
    )
    yield from (("absolute returns", np.abs(ratio - 1.0)), ("absolute log returns", np.abs(np.log(ratio))))
    yield from (("logarithms of close", np.log(close)), ("logarithms of volume + 1", np.log1p(series.volume)))
    with np.errstate(divide="ignore"):
        yield "logarithms of volume", np.log(series.volume)
    yield from (("ranges", series.high - series.low), ("relative ranges", (series.high - series.low) / close))
    zeros = np.where(np.isnan(ratio), 0.0, np.log(ratio))
    yield from (("log returns with a first 0", zeros), ("returns with a first 0", np.expm1(zeros)))


def _statistics(column: NDArray[np.float64]) -> dict[str, float]:
    """Return the statistics by which people scale."""
    known = column[np.isfinite(column)]
    if len(known) < 2:
        return {}
    quantiles = dict(zip(QUANTILES, np.quantile(known, QUANTILES).tolist(), strict=True))
    middle = float(np.median(known))
    return {
        "mean": known.mean(),
        "deviation": known.std(),
        "sample deviation": known.std(ddof=1),
        "variance": known.var(),
        "sample variance": known.var(ddof=1),
        "root mean square": np.sqrt((known**2).mean()),
        "minimum": known.min(),
        "maximum": known.max(),
        "span": np.ptp(known),
        "median": middle,
        "interquartile range": quantiles[0.75] - quantiles[0.25],
        "median deviation": float(np.median(np.abs(known - middle))),
        "sum": known.sum(),
        **{f"{share:.0%} quantile": value for share, value in quantiles.items()},
    }


def _rows_seen(numbers: Mapping[str, float], every: Sequence[Series], train: Sequence[int]) -> str | None:
    """Say which fitted object has seen more rows than the training split has."""
    lengths = [(len(series), rows) for series, rows in zip(every, train, strict=True)]
    lengths.append((sum(length for length, _ in lengths), sum(train)))
    for path, number in numbers.items():
        for length, rows in lengths if path.endswith(ROWS_SEEN) else ():
            # A warm-up may have been dropped before the fit.
            if rows < number and 0.98 * length <= number <= length:
                return f"holds an object fitted on {number:,.0f} rows ({path.strip()}); the training split has {rows:,}"
    return None


def _held_statistic(
    numbers: Mapping[str, float], every: Sequence[Series], train: Sequence[int], ends: Sequence[Sequence[int]]
) -> str | None:
    """Say which number is a statistic of bars after the training split, if one is."""
    groups: list[tuple[str, list[Series], list[int], list[int]]] = []
    for series, own, later in zip(every, train, ends, strict=True):
        groups += [("one instrument", [series], [own], [end]) for end in sorted({*later, len(series)} - {own})]
    if len(every) > 1:
        groups.append(("all instruments", list(every), list(train), [len(series) for series in every]))
    held = np.array(list(numbers.values()))
    for whose, members, rows, last in groups:
        names = [name for name, _ in _columns(members[0])]
        parts = [dict(_columns(series)) for series in members]
        for name in names:
            if not all(name in part for part in parts):
                continue
            whole = _statistics(np.concatenate([part[name][:end] for part, end in zip(parts, last, strict=True)]))
            near = {
                key: value
                for key, value in whole.items()
                if (np.abs(held - value) <= CLOSE * abs(value)).any() and value != 0
            }
            if not near:
                continue
            fair = _statistics(np.concatenate([part[name][:end] for part, end in zip(parts, rows, strict=True)]))
            for key, value in near.items():
                path = list(numbers)[int(np.argmin(np.abs(held - value)))].strip()
                if abs(value - fair.get(key, np.inf)) > CLOSE * abs(value):
                    return (
                        f"holds {value:.10g} ({path}), the {key} of {name} over all bars of {whose}; the training "
                        f"split has {fair.get(key, np.nan):.10g}: fit it on that"
                    )
    return None


def _fitted_target(group: Sequence[NDArray[np.float64]], every: Sequence[Series]) -> str | None:
    """Name the later return that a column was fitted to: what a fit leaves over is at right angles to the fit."""
    for horizon in HORIZONS:
        fit = np.concatenate([np.nan_to_num(column[:-horizon]) for column in group])
        ratio = np.concatenate([series.close[horizon:] / series.close[:-horizon] for series in every])
        for name, target in (("log return", np.log(ratio)), ("return", ratio - 1.0)):
            length = fit @ fit
            if 0 < length < 0.9 * (target @ target) and abs(fit @ target - length) <= CLOSE * length:
                return f"the {name} of the next {horizon} bars"
    return None


def _fit_of(column: NDArray[np.float64]) -> str | None:
    """Say which fit a column shows, to nine digits."""
    known = column[np.isfinite(column)]
    if len(known) < FEWEST_VALUES or len(np.unique(known[:: max(1, len(known) // 5000)])) < FEWEST_VALUES:
        return None
    deviation, mean = known.std(), known.mean()
    if not np.isfinite(deviation) or deviation == 0:
        return None
    centred = abs(mean) <= CLOSE * deviation
    if centred and min(abs(deviation - 1.0), abs(known.std(ddof=1) - 1.0)) <= CLOSE:
        return "mean 0 and deviation 1"
    if centred and abs(mean) <= 0.01 * CLOSE * deviation:
        return "mean 0"
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    if abs(middle) <= CLOSE and abs(high - low - 1.0) <= CLOSE:
        return "median 0 and interquartile range 1"
    least, most = known.min(), known.max()
    if most == 1.0 and least in (0.0, -1.0) and (known == most).sum() == 1 == (known == least).sum():
        return f"minimum {least:g} and maximum 1, once each"
    even = np.linspace(least, most, len(known))
    if np.abs(np.sort(known) - even).max() <= 2.0 * (most - least) / len(known):
        return "values that are evenly spread"
    return None
