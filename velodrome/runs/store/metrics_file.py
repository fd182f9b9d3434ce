"""A run's metrics as a file for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.store.store import SqlStore
from velodrome.writing import replacing, write_frame

FORMATS = (".csv", ".parquet")
LAYOUTS = ("long", "wide")


def export_metrics(
    store: SqlStore,
    run: str,
    path: Path | str,
    layout: Literal["long", "wide"] = "wide",
    names: Sequence[str] | None = None,
) -> Path:
    """Write the metrics of the run with this id to a CSV or Parquet file and return its path.

    path: its suffix, .csv or .parquet, says which kind. An existing file is replaced.
    layout: 'wide' is a row for each step and a column for each metric, empty where a step has none; 'long' is a row for
        each number, with columns step, name, value and time.
    names: metrics to write; all if not given.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        nearest = did_you_mean(path.suffix, FORMATS)
        raise ConfigError(f"{path}: the file's suffix says how it is written: {' or '.join(FORMATS)}.{nearest}")
    if layout not in LAYOUTS:
        raise ConfigError(f"layout={layout!r}: it is {' or '.join(LAYOUTS)}.{did_you_mean(layout, LAYOUTS)}")
    store.run(run)  # an unknown one is an error, not an empty file
    frame = store.metrics(run, names)
    if frame.is_empty():
        raise ConfigError(
            f"run {run} has no metrics{' of these names' if names else ''} to write{_known(store, run, names)}"
        )
    with replacing(path) as new:
        write_frame(widened(frame) if layout == "wide" else frame, new)
    return path


def widened(frame: pl.DataFrame) -> pl.DataFrame:
    """Return metrics with a row for each step: its number, the time of its last metric, a column for each name.

    Those of a group have a row for each training seed and step.
    """
    index = [name for name in ("seed", "step") if name in frame.columns]
    times = frame.group_by(index).agg(pl.col("time").max())
    wide = frame.pivot("name", index=index, values="value", sort_columns=True)
    return times.join(wide, on=index).sort(index)


def _known(store: SqlStore, run: str, names: Sequence[str] | None) -> str:
    known = sorted(store.last_metrics(run))
    if not names or not known:
        return "."
    return f". It has {', '.join(known)}.{did_you_mean(names[0], known)}"
