"""`build_market` and `build_basket`: bars in, frozen arrays out, with a proof that nothing in them knows the future."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, read_only
from velodrome.bars.read import as_bars
from velodrome.tables.basket import Basket
from velodrome.tables.choices import Alone, Choices, FeatureChoice, OnGrid, WindowLengths, shows_options
from velodrome.tables.features import indicators
from velodrome.tables.features.clock import session_ends
from velodrome.tables.hashing import content_hash
from velodrome.tables.leaks import find_leaks
from velodrome.tables.market import CARRIED, NOTHING, OWN, Market
from velodrome.tables.prepare import Prepared, look_back, prepare
from velodrome.tables.windows import WindowPart, WindowTables, no_windows, stack_windows

if TYPE_CHECKING:
    from velodrome.bars.inspection import Source


@shows_options
def build_market(
    bars: Bars | Source,
    features: FeatureChoice = None,
    windows: WindowLengths = 32,
    timeframe: str | None = None,
    *,
    session: str = "day",
    check_leaks: bool = True,
    name: str | None = None,
    **options: Any,
) -> Market:
    """Turn bars into the frozen arrays that environments read, one instrument after another.

    bars: or what `read_bars` takes: a file, a folder, a DataFrame or several by symbol.
    features: names (`describe_features()` lists them), columns of the data, functions of the bars or ("name", function)
        pairs. One list for all windows, or one for each timeframe. The default is eight features that do not follow
        the price level.
    windows: bars to show of the execution timeframe, or {timeframe: bars}. A window ends at the last bar of its
        timeframe that had closed when the execution bar closed. {} shows no window.
    timeframe: of the bars that are traded; the default is that of `bars`. All timeframes are made from `bars`.
    session: "day" (in the time zone of the bars) or the pause that ends a session, such as "6h".
    check_leaks: raise `LeakError` if any feature or window changes when later bars are taken away or altered.

    Further options:
    splits: fractions or (from, to) dates by name, {} for none. The default is 70 % train, 15 % validation, 15 % test.
        Training that follows another split begins so late that it shows none of its bars.
    embargo: bars left out at the beginning of every split but the earliest.
    scaler: "standard", "robust", "minmax" or "none". It is fitted on what the split "train" can show: on all
        instruments together or, with per_instrument=True, on each by itself. `clip` bounds the scaled values.
    scalers: those of another market, applied as they are instead of fitting any.
    leak_seconds: longest time for the leak check of features that are functions. It ends earlier when all is proven.
    sums: further columns of the data of which coarser bars have the sum, such as the rate of funding that each bar
        costs; the others keep their last value.
    """
    prepared = _prepared(Choices(as_bars(bars), Alone(session), features, windows, timeframe, **options), check_leaks)
    choices = prepared.choices
    lines = [stretch.instruments[0].execution for stretch in prepared.stretches if stretch.instruments[0]]
    ends = [session_ends(line.series.time, line.close_time, session, choices.bars.timezone) for line in lines]
    every = [line.series for line in lines]
    arrays = {
        "time": np.concatenate([series.time for series in every]),
        "ohlc": np.concatenate([np.stack([s.open, s.high, s.low, s.close], axis=1) for s in every]),
        "volume": np.concatenate([series.volume for series in every]),
        "atr": np.concatenate([indicators.atr_from_first_row(s.high, s.low, s.close) for s in every]),
        "session_last": np.concatenate(ends),
    }
    columns = {key: _frozen(np.concatenate([series.extra[key] for series in every])) for key in choices.columns}
    chosen = {"session": session, "optimum": choices.bars.optimum}
    symbols = choices.bars.symbols
    return Market(
        **_content(prepared, arrays, chosen, {"columns": columns}),
        feature_names=tuple(rows.names for rows in prepared.stretches[0].windows),
        lasts=frozenset().union(*(series.lasts for series in every)),
        optimum=_optimum(prepared, "instrument"),
        name=name or (symbols[0] if len(symbols) == 1 else "market"),
    )


@shows_options
def build_basket(
    bars: Bars | Source,
    features: FeatureChoice = None,
    windows: WindowLengths = 32,
    timeframe: str | None = None,
    *,
    min_instruments: int = 1,
    check_leaks: bool = True,
    name: str | None = None,
    **options: Any,
) -> Basket:
    """Lay several instruments on one time grid and freeze what environments read of them.

    bars: of several symbols, a folder of their files, or their frames by symbol. They may begin and end at different
        times and have gaps.
    features: as for `build_market`, and comparisons of instruments: "rank:log_return_5", "zscore:rsi_14",
        "mean:log_return", "market_return".
    windows, timeframe, check_leaks and further options: as for `build_market`. A window shows every instrument's
        features in each row, and 0 for an instrument that has none yet.
    min_instruments: decisions begin when this many instruments have complete windows.
    """
    layout = OnGrid(min_instruments)
    prepared = _prepared(Choices(as_bars(bars), layout, features, windows, timeframe, **options), check_leaks)
    (grid,) = prepared.stretches
    arrays: dict[str, NDArray] = {"time": grid.time, "open": grid.open, "close": grid.close, "tradable": grid.tradable}
    return Basket(
        **_content(prepared, arrays),
        feature_names=tuple(
            tuple(f"{symbol} {feature}" for symbol in grid.symbols for feature in rows.names) for rows in grid.windows
        ),
        optimum=_optimum(prepared, "portfolio"),
        name=name or "basket",
        origins=_origins(prepared),
    )


def _prepared(choices: Choices, check_leaks: bool) -> Prepared:
    """Compute what was chosen, and prove that it does not know the future unless told not to."""
    prepared = prepare(choices)
    if check_leaks:
        report = find_leaks(prepared)
        report.raise_if_any()
        for note in report.rounding:
            warnings.warn(note, stacklevel=3)
    return prepared


def _frozen(array: NDArray) -> NDArray:
    """Write-protect an array that was made here."""
    array.flags.writeable = False
    return read_only(array)


def _content(
    prepared: Prepared, arrays: dict[str, NDArray], chosen: Mapping[str, Any] = {}, further: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return what a market and a basket have in common, and these arrays, frozen, with the hash of it all.

    chosen: further choices that enter the hash. further: what else is part of the content.
    """
    choices, spans = prepared.choices, prepared.spans
    arrays["begin"], arrays["end"] = np.array([span.begin for span in spans]), np.array([span.end for span in spans])
    arrays = {key: _frozen(array) for key, array in arrays.items()}
    windows = _stack(prepared)
    # Runs store the hash: keep names, order and types of all that it is made of.
    shown = []
    for window in choices.windows:
        features = [(feature.name, feature.function) for feature in window.features]
        compared = ([cross.name for cross in window.comparisons],) if choices.on_grid else ()
        shown.append((window.timeframe.text, window.length, features, *compared))
    record = {
        "symbols": choices.bars.symbols,
        "source": choices.source.text,
        "execution": choices.execution.text,
        "timezone": choices.bars.timezone,
        "windows": shown,
        "splits": prepared.splits,
        "scalers": [scaler.to_dict() for scaler in prepared.scalers],
        **chosen,
    }
    return {
        **arrays,
        **further,
        "symbols": choices.bars.symbols,
        "timeframe": choices.execution.text,
        "timezone": choices.bars.timezone,
        "windows": windows,
        "window_names": tuple(window.timeframe.text for window in choices.windows),
        "splits": prepared.splits,
        "scalers": prepared.scalers,
        "look_back": look_back(choices, prepared.stretches),
        "notes": (*choices.bars.notes, *prepared.notes),
        "close_only": tuple(symbol for symbol, series in choices.bars.series.items() if series.close_only),
        "content_hash": content_hash({"choices": record, "arrays": arrays, **further, "windows": tuple(windows)}),
    }


def _optimum(prepared: Prepared, of: str) -> float | None:
    """Return the best return of the bars if it is that of an instrument alone or of a portfolio, as asked for."""
    # Resampled bars have another one, which is not known.
    bars, same_bars = prepared.choices.bars, prepared.choices.execution == prepared.choices.source
    return bars.optimum if same_bars and bars.optimum_of == of else None


def _stack(prepared: Prepared) -> WindowTables:
    """Scale the rows of every window and lay them out for the kernels."""
    windows = []
    for index, (choice, scaler) in enumerate(zip(prepared.choices.windows, prepared.scalers, strict=True)):
        parts = []
        for stretch in prepared.stretches:
            rows = stretch.windows[index]
            scaled = np.empty(rows.values.shape, np.float32)
            for column, symbol in enumerate(stretch.symbols):
                scaled[:, column] = scaler.apply(rows.values[:, column], symbol)
            parts.append(WindowPart(scaled.reshape(len(scaled), -1), rows.last_row))
        windows.append((choice.length, parts))
    return stack_windows(windows) if windows else no_windows(prepared.spans[-1].end)


def _origins(prepared: Prepared) -> tuple[NDArray[np.uint8], ...]:
    """Return where each value of a grid's windows comes from, so that scalers can be fitted again."""
    (grid,) = prepared.stretches
    origins = []
    for choice, rows in zip(prepared.choices.windows, grid.windows, strict=True):
        known = np.where(rows.present[..., None], OWN, CARRIED)
        origin = np.where(np.isnan(rows.values), NOTHING, known).astype(np.uint8)
        # A table begins with rows of zeros, for windows that reach back before the first bar.
        origins.append(_frozen(np.concatenate([np.zeros((choice.length, *origin.shape[1:]), np.uint8), origin])))
    return tuple(origins)
