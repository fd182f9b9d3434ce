"""`build_market`: bars in, a frozen `Market` out, with a proof that nothing in it knows the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, read_only
from velodrome.tables.draft import Draft, make_draft
from velodrome.tables.features import indicators
from velodrome.tables.features.clock import session_ends, session_gap
from velodrome.tables.features.features import FeatureSpec
from velodrome.tables.hashing import content_hash
from velodrome.tables.leaks import find_leaks
from velodrome.tables.market import Market
from velodrome.tables.scaling import Scaler
from velodrome.tables.splits import DEFAULT_SPLITS, SplitChoice
from velodrome.tables.windows import WindowPart, WindowTables, no_windows, stack_windows


def build_market(
    bars: Bars,
    features: Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None = None,
    windows: int | Mapping[str, int] = 32,
    timeframe: str | None = None,
    splits: SplitChoice | None = None,
    embargo: int = 0,
    scaler: str = "standard",
    scalers: Sequence[Scaler] | None = None,
    session: str = "day",
    check_leaks: bool = True,
    name: str | None = None,
    clip: float | None = None,
    per_instrument: bool = False,
) -> Market:
    """Turn bars into the frozen arrays that environments read.

    features: names (`describe_features()` lists them), columns of the data, functions of the bars or ("name", function)
        pairs; one list for all windows or one by timeframe. Eight that do not follow the price level if not given.
    windows: bars to show of the execution timeframe, or {timeframe: bars}. A window ends at the last bar of its
        timeframe that had closed when the execution bar closed; {} shows no window.
    timeframe: of the bars that are traded; that of `bars` if not given. All are made from `bars`.
    splits: fractions or (from, to) dates by name, {} for none; 70, 15 and 15 % train, validation, test if not given.
    embargo: bars left out at the beginning of every split but the earliest.
    scaler: "standard", "robust", "minmax" or "none", fitted on what the split "train" can show, over all instruments
        together or, with per_instrument, each on its own. `clip` bounds scaled values.
    scalers: those of another market, applied as they are instead of fitting.
    session: "day" (in the bars' time zone) or the pause that ends a session, such as "6h".
    check_leaks: raise `LeakError` if any feature or window changes when later bars are taken away.
    """
    session_gap(session)
    chosen = DEFAULT_SPLITS if splits is None else splits
    draft = make_draft(
        bars, features, windows, timeframe, chosen, embargo, scaler, scalers, clip, per_instrument
    )  # fmt: skip
    if check_leaks:
        find_leaks(draft).raise_if_any()
    return _assemble(draft, session, name)


def _assemble(draft: Draft, session: str, name: str | None) -> Market:
    """Lay the draft out as a market."""
    bars, recipe = draft.bars, draft.recipe
    timelines = [instrument.execution for instrument in draft.instruments]
    every = [timeline.series for timeline in timelines]
    ohlc = np.empty((int(draft.end[-1]), 4))
    for column, price in enumerate(("open", "high", "low", "close")):
        ohlc[:, column] = np.concatenate([getattr(series, price) for series in every])
    arrays = {
        "time": np.concatenate([series.time for series in every]),
        "ohlc": ohlc,
        "volume": np.concatenate([series.volume for series in every]),
        "atr": np.concatenate(
            [indicators.atr_from_first_row(series.high, series.low, series.close) for series in every]
        ),
        "session_last": np.concatenate(
            [session_ends(line.series.time, line.close_time, session, recipe.timezone) for line in timelines]
        ),
        "begin": draft.begin,
        "end": draft.end,
    }
    arrays = {key: frozen(array) for key, array in arrays.items()}
    columns = {key: frozen(np.concatenate([series.extra[key] for series in every])) for key in recipe.columns}
    tables = _stack(draft)
    choices = {
        "symbols": bars.symbols,
        "source": recipe.source.text,
        "execution": recipe.execution.text,
        "timezone": recipe.timezone,
        "windows": [
            (choice.timeframe.text, choice.length, [(feature.name, feature.function) for feature in choice.features])
            for choice in recipe.windows
        ],
        "splits": draft.splits,
        "scalers": [scaler.to_dict() for scaler in draft.scalers],
        "session": session,
        "optimum": bars.optimum,
    }
    return Market(
        symbols=bars.symbols,
        timeframe=recipe.execution.text,
        timezone=recipe.timezone,
        **arrays,
        columns=columns,
        windows=tables,
        window_names=tuple(choice.timeframe.text for choice in recipe.windows),
        feature_names=tuple(table.names for table in draft.instruments[0].windows),
        splits=draft.splits,
        content_hash=content_hash({"choices": choices, "arrays": arrays, "columns": columns, "windows": tuple(tables)}),
        # Resampled bars have another best return, which is not known.
        optimum=bars.optimum if recipe.execution == recipe.source and bars.optimum_of == "instrument" else None,
        name=name or (bars.symbols[0] if len(bars.symbols) == 1 else "market"),
        scalers=draft.scalers,
    )


def frozen(array: NDArray) -> NDArray:
    """Write-protect an array that was made here."""
    array.flags.writeable = False
    return read_only(array)


def _stack(draft: Draft) -> WindowTables:
    """Scale the rows of every window and lay them out for the kernels."""
    if not draft.recipe.windows:
        tables = no_windows(int(draft.end[-1]))
        for array in tables:
            array.flags.writeable = False
        return tables
    windows = []
    for index, (choice, scaler) in enumerate(zip(draft.recipe.windows, draft.scalers, strict=True)):
        parts = [
            WindowPart(scaler.apply(instrument.windows[index].values, symbol), instrument.windows[index].last_row)
            for symbol, instrument in zip(draft.bars, draft.instruments, strict=True)
        ]
        windows.append((choice.length, parts))
    return stack_windows(windows)
