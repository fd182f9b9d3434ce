"""Frames of a program as tables: Polars and pandas, one or several by symbol. pandas is never imported here.

What pandas has and Polars has not becomes columns: an index of dates is the time, a level of the index beside it the
symbol, and two levels of columns (as yfinance gives them: price and ticker) one table for each ticker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

from velodrome.bars.columns import A_FRAME, SYMBOL_SPELLINGS, count_price_names, spelling_key
from velodrome.bars.files import Table, unique_names
from velodrome.errors import ConfigError, DataError

NO_NAME = "frame"  # symbol of a frame that says none
UNNAMED_INDEX = "__index_level_{}__"


def is_frame(source: Any) -> bool:
    """Return whether this is a frame, or a column with its index, of Polars or pandas."""
    of_pandas = any(kind.__module__.partition(".")[0] == "pandas" for kind in type(source).__mro__)
    return isinstance(source, pl.DataFrame | pl.LazyFrame) or (of_pandas and hasattr(source, "index"))


def joined_frames(frames: Sequence[Any]) -> Any:
    """Return frames, all of Polars or all of pandas, one after the other."""
    return import_module(type(frames[0]).__module__.partition(".")[0]).concat(list(frames))


def describe_source(source: Any) -> str:
    """Return what the bars came from, in a few words: the path, or the kind of frame."""
    if isinstance(source, Mapping):
        return f"{len(source)} frame{'' if len(source) == 1 else 's'}"
    if is_frame(source):
        return f"a {type(source).__module__.partition('.')[0]} {type(source).__name__}"
    return str(source)


def frame_tables(source: Any, name: str | None = None) -> list[Table]:
    """Return the tables of a frame, or of several by symbol.

    name: symbol of a frame that says none, such as the only one that the caller asks for.
    """
    if not isinstance(source, Mapping):
        return _tables(source, None, name)
    if not source:
        raise ConfigError("there are no frames to read: the mapping is empty. Give {symbol: frame}.")
    return [table for symbol, frame in source.items() for table in _tables(frame, str(symbol), None)]


def _tables(frame: Any, symbol: str | None, default: str | None) -> list[Table]:
    origin = A_FRAME if symbol is None else f"{A_FRAME} of {symbol}"
    if not is_frame(frame):
        raise ConfigError(
            f"{origin} is a {type(frame).__name__}; give a pandas or Polars DataFrame, or a pandas Series of closes."
        )
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, pl.DataFrame):
        tables = [_table(frame, origin, {}, default or NO_NAME)]
    elif frame.ndim == 1:
        default = default or (frame.name if isinstance(frame.name, str) else NO_NAME)
        tables = [_of_pandas(frame.to_frame("close"), origin, default, with_holes=True)]
    elif frame.columns.nlevels > 1:
        tables = _by_ticker(frame, origin)
        if symbol is not None and len(tables) > 1:
            raise DataError(f"{origin}: it holds {len(tables)} symbols in its columns. Give it without a symbol.")
    else:
        tables = [_of_pandas(frame, origin, default or NO_NAME)]
    return tables if symbol is None else [replace(table, symbol=symbol, named=True) for table in tables]


def _table(frame: pl.DataFrame, origin: str, roles: Mapping[str, str], symbol: str, with_holes: bool = False) -> Table:
    """Return the table; where frames of several symbols share an index, a row without values is no row."""
    row = np.arange(len(frame))
    if with_holes:
        values = [name for name in frame.columns if name not in roles.values()]
        filled = frame.select(~pl.all_horizontal(pl.col(values).is_null() | pl.col(values).cast(pl.String).eq("NaN")))
        frame, row = frame.filter(filled.to_series()), row[filled.to_series().to_numpy()]
    if len(frame) == 0:
        raise DataError(f"{origin}: no rows. Check what it was made from.")
    return Table(origin, frame, row, None, symbol, roles=roles)


def _by_ticker(frame: Any, origin: str) -> list[Table]:
    """Return a table for each ticker of a frame whose columns have two levels: prices and tickers, in either order."""
    levels = [list(map(str, frame.columns.get_level_values(level).unique())) for level in range(frame.columns.nlevels)]
    # A ticker may be spelled like a price (C, O): the level with more of them, or that is called so, has the prices.
    named = [
        (count_price_names(names), title == "Price") for names, title in zip(levels, frame.columns.names, strict=True)
    ]
    prices = named.index(max(named))
    if len(levels) != 2 or named[0] == named[1]:
        raise DataError(
            f"{origin}: its columns have {len(levels)} levels, {' and '.join(map(str, levels))}; one of two must name "
            "prices (open, high, low, close) and the other symbols. Give {symbol: frame} instead."
        )
    tables = []
    for ticker in frame.columns.get_level_values(1 - prices).unique():
        own = frame.xs(ticker, axis=1, level=1 - prices)
        tables.append(_of_pandas(own, f"{origin}, {ticker}", str(ticker), with_holes=True))
    return [replace(table, named=True) for table in tables]


def _of_pandas(frame: Any, origin: str, symbol: str, with_holes: bool = False) -> Table:
    """Return a pandas frame as a table, its index among the columns."""
    index, roles = _index_columns(frame.index)
    values = [_column(frame.iloc[:, position]) for position in range(frame.shape[1])]
    plain = unique_names([*index, *map(str, frame.columns)])
    if "symbol" in roles and any(spelling_key(name) in SYMBOL_SPELLINGS for name in plain[len(index) :]):
        del roles["symbol"]
    columns = dict(zip(plain, [*index.values(), *values], strict=True))
    return _table(pl.DataFrame(columns), origin, roles, symbol, with_holes)


def _index_columns(index: Any) -> tuple[dict[str, pl.Series], dict[str, str]]:
    """Return the levels of an index as columns, and which of them are the time and the symbol."""
    columns: dict[str, pl.Series] = {}
    roles: dict[str, str] = {}
    for number in range(index.nlevels):
        level = index.get_level_values(number)
        if hasattr(level, "to_timestamp"):  # periods
            level = level.to_timestamp()
        name = UNNAMED_INDEX.format(number) if level.name is None else str(level.name)
        columns[name] = _column(level.to_series(index=range(len(level))))
        if columns[name].dtype.is_temporal():
            roles.setdefault("time", name)
        elif columns[name].dtype == pl.String and index.nlevels > 1:
            roles.setdefault("symbol", name)
    return columns, roles


def _column(values: Any) -> pl.Series:
    """Return a pandas column as Polars has it: moments in UTC where they have a zone, whole numbers exact, else floats.

    Objects are taken as they are, and all as text if one of them is.
    """
    kind = getattr(values.dtype, "kind", "O")
    if kind == "M":
        zone = values.dt.tz
        moments = (values if zone is None else values.dt.tz_convert(None)).to_numpy()
        if np.datetime_data(moments.dtype)[0] not in ("ns", "us", "ms"):
            moments = moments.astype("datetime64[us]")
        column = pl.Series(moments)
        return column if zone is None else column.dt.replace_time_zone("UTC")
    missing = values.isna().to_numpy(dtype=bool)
    if kind in "iub" and not missing.any():
        return pl.Series(values.to_numpy(dtype="bool" if kind == "b" else "int64"))
    if kind in "iufb":
        return pl.Series(values.to_numpy(dtype="float64", na_value=np.nan))
    objects: Sequence[Any] = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    if any(isinstance(value, str) for value in objects):
        return pl.Series([None if value is None else str(value) for value in objects], dtype=pl.String)
    return pl.Series(objects, strict=False)
