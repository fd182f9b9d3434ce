"""`monitor.csv`: a line for every episode, in the format of Stable-Baselines3's `load_results` and plotter."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from velodrome.errors import ConfigError

NAME = "monitor.csv"
COLUMNS = ("r", "l", "t")  # return, length in steps, seconds since the file was begun
LONGEST_LINE = 2**20  # bytes


def monitor_path(path: str | Path) -> Path:
    """Return the file that a path stands for: a folder's monitor.csv, or the name with that ending."""
    path = Path(path)
    if path.is_dir():
        return path / NAME
    return path if path.name.endswith(NAME) else path.with_name(f"{path.name}.{NAME}")


class MonitorFile:
    """An open file of episodes. An existing file is continued, with times counted from its own beginning.

    Lines reach the operating system in the step that ended their episodes, so a killed process loses no finished step.
    An incomplete line is removed when the file is continued.
    """

    def __init__(self, path: str | Path, info_keys: Sequence[str], env_id: str) -> None:
        self.path = monitor_path(path)
        self.columns = (*COLUMNS, *info_keys)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self._continued()
        self.t_start = time.time() if begun is None else begun  # seconds since 1970
        self._file = self.path.open("w" if begun is None else "a", encoding="utf-8", newline="\n")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if begun is None:
            self._file.write(f"#{json.dumps({'t_start': self.t_start, 'env_id': env_id})}\n")
            self._writer.writerow(self.columns)
            self._file.flush()

    def _continued(self) -> float | None:
        """Return when the file was begun, after cutting off an incomplete line; None if it is empty."""
        if not self.path.exists():
            return None
        with self.path.open("rb+") as file:
            first, second = file.readline(), file.readline()
            if not second.endswith(b"\n") and b"#".startswith(first[:1]):
                return None  # killed while it was begun
            begun = _time_of(first)
            if begun is None:
                raise ConfigError(
                    f"{self.path} is no file of episodes: its first line should be like "
                    f'#{{"t_start": 1700000000.0, "env_id": "CartPole-v1"}}. Choose another path.'
                )
            columns = tuple(next(csv.reader([second.decode()])))
            if columns != self.columns:
                raise ConfigError(
                    f"{self.path} has the columns {', '.join(columns)}; it cannot be continued with "
                    f"{', '.join(self.columns)}. Give the same info_keys, or another path."
                )
            from_here = max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE)
            file.seek(from_here)
            file.truncate(from_here + file.read().rfind(b"\n") + 1)
        return begun

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write episodes: values in the order of the columns; None is an empty cell."""
        self._writer.writerows(map(_cell, row) for row in rows)
        self._file.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _time_of(line: bytes) -> float | None:
    try:
        return float(json.loads(line[1:])["t_start"]) if line[:1] == b"#" else None
    except (ValueError, KeyError, TypeError):
        return None


def _cell(value: Any) -> Any:
    # A line break in a text would make two lines of one, and an incomplete line could not be recognised.
    return value if value is None or isinstance(value, int | float) else " ".join(str(value).splitlines())
