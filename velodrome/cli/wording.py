"""What errors and findings say, as it is typed on a command line: programs write day_first=True, a run's settings
market.day_first=true, and `data check` --day-first.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError, CycloptsPanel, UnusedCliTokensError

from velodrome.errors import DataError

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.text import Text

# An option of `read_bars` with its value as Python writes it, and the setting if that stands beside it already.
OPTION = re.compile(
    r"(?<![\w.])(?P<name>columns|day_first|timeframe|timezone|max_gap|adjust)=(?P<value>\{[^{}]*\}|'[^']*'|True|False|None)"
    r"(?: \(market\.\w+=[^)]*\))?"
)


def told_error(error: Exception) -> str:
    """Return the message of an error; in a terminal its lines end between words."""
    from velodrome.outside.screen import wrapped

    told = f"velodrome: {as_settings(str(error)) if isinstance(error, DataError) else error}"
    return wrapped(told, shutil.get_terminal_size().columns) if sys.stderr.isatty() else told


def told_usage(error: CycloptsError) -> Text | Panel:
    """Return what is said of a command line that is not legal; words too many say which command does not take them."""
    from rich.text import Text

    if not isinstance(error, UnusedCliTokensError):
        return CycloptsPanel(error)
    command = " ".join(("velodrome", *(error.command_chain or ())))
    words = ", ".join(map(repr, error.unused_tokens or ()))
    why = ""
    if command.endswith(" eval") and "=" in words:
        why = (
            " A run is evaluated with the settings that it was trained with; its report has the same actions at 0, 1, "
            "2 and 4 times the costs."
        )
    return Text(f"velodrome: `{command}` does not take {words}.{why} What it takes: {command} --help")


def as_settings(text: str) -> str:
    """Return a text with options of `read_bars` as settings of a run: adjust=False becomes market.adjust=false."""
    from velodrome.runs.config.explain import value_text

    return _reworded(text, lambda name, value: shlex.quote(f"market.{name}={value_text(value)}"))


def as_flags(text: str) -> str:
    """Return a text with options of `read_bars` as those of `data check`: max_gap='120d' becomes --max-gap 120d."""

    def flag(name: str, value: Any) -> str:
        option = name.replace("_", "-")
        if isinstance(value, bool):
            return f"--{option}" if value else f"--no-{option}"
        if isinstance(value, dict):
            return " ".join([f"--{option}", *(shlex.quote(f"{role}={column}") for role, column in value.items())])
        return f"--{option} {'none' if value is None else shlex.quote(value)}"

    return _reworded(text, flag)


def _reworded(text: str, write: Callable[[str, Any], str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        try:
            return write(found["name"], ast.literal_eval(found["value"]))
        except (ValueError, SyntaxError):  # no value after all
            return found[0]

    return OPTION.sub(replaced, text)
