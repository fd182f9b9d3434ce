"""`read_bars`: price files of many makes, and frames of pandas and Polars, to `Bars`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.bars.frame import Bars
from velodrome.bars.gaps import AUTO
from velodrome.errors import DataError

if TYPE_CHECKING:
    from velodrome.bars.inspection import Source


def read_bars(
    source: Source,
    symbols: str | Sequence[str] | None = None,
    timeframe: str | None = None,
    timezone: str = "UTC",
    day_first: bool | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    adjust: bool = True,
    max_gap: str | None = AUTO,
    sums: Collection[str] | None = None,
) -> Bars:
    """Return the bars of a file (CSV, TSV, TXT, plain or .gz, or Parquet), of a folder of files, or of a frame.

    Args:
        source: A file, or a folder; its own files and those of the folders in it are read. A file holds one symbol,
            named as the file, or many by a column `symbol`, `ticker`, `tic`, `pair` or the like. Files whose names
            differ only in a date or a part number at the end, such as Binance's BTCUSDT-1m-2023-05 and -06, are one
            symbol if their bars bear that out (docs/data_path.md); `Bars.notes` says so. Or a pandas or Polars
            DataFrame, a pandas Series of closes, or several by symbol: {"AAPL": frame, "MSFT": frame}. In pandas an
            index of dates is the time, and columns of two levels (price and ticker) hold several symbols.
        symbols: Those to keep, in this order; None keeps all, by name. One name is also that of a frame without any.
        timeframe: Bar size of the result, such as "5m"; coarser than the data resamples it, finer is refused. None
            keeps the data's own: the most common distance between bars.
        timezone: IANA zone in which times without a zone are read and in which days begin. Epoch numbers and columns
            named GMT or UTC are UTC whatever this says.
        day_first: Whether 02/03/2020 is 2 March. None decides from the values, and refuses where none proves it.
        columns: Which column holds what, where its name does not say: {"time": "Day", "close": "Mid"}. There are time,
            open, high, low, close, volume, symbol and adj_close.
        adjust: Multiply all prices by adjusted close over close where there is a column such as `Adj Close`, so that
            splits and dividends are no jumps. False keeps prices as they are.
        max_gap: Longest time without a bar, such as "30d"; nights, weekends and holidays do not count. A longer hole is
            refused. "auto" is 90 days, or 10 bars if they are longer; None lets any pass.
        sums: Further columns, by their names in `Series.extra`, of which coarser bars have the sum, such as the rate of
            funding that each bar costs; the others keep their last value.

    Rows are sorted and equal rows counted once. A missing volume column becomes zeros; further numeric columns are kept
    in `Series.extra` under lower-case names with underscores (`Adj Close` becomes `adj_close`), gaps in them as NaN.
    Where there is no price but the close, all four are the close (`Series.close_only`): orders then fill at closes, and
    environments that need highs and lows refuse such bars. `Bars.notes` says so, and that prices were adjusted.
    A local time that occurs twice when clocks go back is the first of the two; one that clocks skip is refused.
    Opens and closes less than 1e-9 (relative) outside the bar widen it.

    Raises:
        DataError: What would corrupt a result: the message names the file, the row and the column. `check_bars` lists
            all such places at once.
        ConfigError: An unknown symbol, time zone or timeframe, or a source that is none.
    """
    from velodrome.bars.inspection import Reading, inspect_bars

    reading = Reading(symbols, timeframe, timezone, day_first, columns, adjust, max_gap, sums)
    inspection = inspect_bars(source, reading)
    if inspection.bars is None:
        refusals, more = inspection.refusals, ""
        if len(refusals) > 1:
            others = "problem is" if len(refusals) == 2 else "problems are"
            command = f"velodrome data check {source}" if isinstance(source, str | Path) else "vd.check_bars(…)"
            more = f" {len(refusals) - 1} more {others} listed by `{command}`."
        raise DataError(f"{refusals[0]}{more}")
    return inspection.bars


def as_bars(bars: Bars | Source) -> Bars:
    """Return bars as they are, and read anything else."""
    return bars if isinstance(bars, Bars) else read_bars(bars)
