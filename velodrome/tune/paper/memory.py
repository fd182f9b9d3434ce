"""The folder that a loop goes on from: the bars it took, where each account stands, and a line for each bar.

bars.jsonl     the tape
state.json     the accounts to the bit, and how long the log was then; replaced as a whole
log.jsonl      what happened; lines that are newer than the state are written again by who goes on
lock           held while a loop runs
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from velodrome.errors import ChampionError
from velodrome.outside.files import UNFIT, read_json
from velodrome.writing import replace_text, told_as_unwritten

FORMAT = 1
STATE, LOG, TAPE, LOCK = "state.json", "log.jsonl", "bars.jsonl", "lock"


class Memory:
    """A loop's folder, while it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with told_as_unwritten(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ChampionError(
                f"{folder}: another loop runs there. Stop it, or run this one in a folder of its own: --state FOLDER."
            ) from None
        self.state = self._read()
        length = 0 if self.state is None else int(self.state["log_bytes"])
        with told_as_unwritten(folder):
            self._log = open(folder / LOG, "ab")  # noqa: SIM115
            if self._log.tell() < length:
                raise ChampionError(
                    f"{folder / LOG}: it is shorter than {STATE} says; put a whole copy of the folder back."
                )
            self._log.truncate(length)
            self._log.seek(length)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()
        os.close(self._lock)

    def _read(self) -> dict[str, Any] | None:
        file = self.folder / STATE
        try:
            state = read_json(file)
            if state["format"] != FORMAT:
                raise ValueError(f"format {state['format']!r}, and this Velodrome reads {FORMAT}")
        except FileNotFoundError:
            return None
        except (OSError, *UNFIT) as error:
            raise ChampionError(
                f"{file}: cannot be read ({type(error).__name__}: {error}). Restore a copy, or begin anew: --state "
                "FOLDER."
            ) from error
        return state

    def log(self, entry: dict[str, Any]) -> None:
        """Add a line to the log."""
        with told_as_unwritten(self.folder / LOG):
            self._log.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())

    def keep(self, plain: dict[str, Any]) -> None:
        """Keep where all accounts stand; the log up to here is safe first."""
        with told_as_unwritten(self.folder / LOG):
            self._log.flush()
            os.fsync(self._log.fileno())
        state = {"format": FORMAT, "log_bytes": self._log.tell(), **plain}
        replace_text(self.folder / STATE, json.dumps(state))

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of the log of a kind."""
        self._log.flush()
        marker = f'"kind": "{kind}"'
        with open(self.folder / LOG, encoding="utf-8") as file:
            for line in file:
                if marker in line:
                    with contextlib.suppress(ValueError):
                        yield json.loads(line)
