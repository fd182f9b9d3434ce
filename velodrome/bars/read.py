"""`read_bars`: price files of many makes to `Bars`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from velodrome.bars.frame import Bars
from velodrome.bars.rules import REFUSED
from velodrome.errors import DataError


def read_bars(
    path: str | Path,
    symbols: str | Sequence[str] | None = None,
    timeframe: str | None = None,
    timezone: str = "UTC",
    day_first: bool | None = None,
) -> Bars:
    """Return the bars of a CSV, TSV, TXT (plain or .gz) or Parquet file, or of a folder of them.

    Args:
        path: A file, or a folder; its own files and those of the folders in it are read. A file holds one symbol, named
            as the file, or many by a column `symbol`, `ticker`, `tic`, `pair` or the like.
        symbols: Those to keep, in this order; None keeps all, by name.
        timeframe: Bar size of the result, such as "5m"; coarser than the data resamples it, finer is refused. None
            keeps the data's own: the most common distance between bars.
        timezone: IANA zone in which times without a zone are read and in which days begin. Epoch numbers and columns
            named GMT or UTC are UTC whatever this says.
        day_first: Whether 02/03/2020 is 2 March. None decides from the values, and refuses where none proves it.

    Rows are sorted and equal rows counted once. A missing volume column becomes zeros; further numeric columns are kept
    in `Series.extra` under lower-case names with underscores (`Adj Close` becomes `adj_close`), gaps in them as NaN.
    A local time that occurs twice when clocks go back is the first of the two; one that clocks skip is refused.
    Opens and closes less than 1e-9 (relative) outside the bar widen it.

    Raises:
        DataError: What would corrupt a result: the message names the file, the row and the column. `check_bars` lists
            all such places at once.
        ConfigError: An unknown symbol, time zone or timeframe.
    """
    from velodrome.bars.inspection import inspect_bars

    inspection = inspect_bars(path, symbols, timeframe, timezone, day_first)
    refusals = [finding for finding in inspection.findings if finding.severity == REFUSED]
    if inspection.bars is None:
        more = ""
        if len(refusals) > 1:
            others = "problem is" if len(refusals) == 2 else "problems are"
            more = f" {len(refusals) - 1} more {others} listed by `velodrome data check {path}`."
        raise DataError(f"{refusals[0]}{more}")
    return inspection.bars
