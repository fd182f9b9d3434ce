"""A terminal on which names are shown and never obeyed, and tables and prose that fit it.

Control characters in names arrive escaped; no number of a table is ever cut, and no word of a sentence broken. What is
worth more than its output goes on without (`lasting`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from velodrome.errors import printable

LAID_OUT = 50  # rows of a table that rich lays out; longer ones have no sections after them


class Screen(Console):
    """Rich's console. What it prints comes from files of others too: names of columns, instruments and runs."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Yield the parts of what is to be printed; the console's own commands to the terminal stay as they are."""
        for part in super().render(renderable, options):
            yield part if part.control or part.text.isprintable() else Segment(printable(part.text), part.style)

    def on_broken_pipe(self) -> None:
        """Leave the decision to the caller; rich would end the program, whatever it is about to save."""
        raise

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as rich does. What is not to be broken into lines is, in a terminal, broken between words.

        The terminal itself would break inside them. Elsewhere a line stays one, for programs that read it.
        """
        if soft_wrap and self.is_terminal:
            objects = tuple(wrapped(each, self.width) if isinstance(each, str) else each for each in objects)
        super().print(*objects, soft_wrap=soft_wrap, **options)


class Lasting:
    """A file for output that nobody must read: once it cannot be written, what comes is dropped, which `tell` is told.

    A closed pipe, a full disk or a terminal that is gone is no reason to lose what a program has worked for.
    """

    def __init__(self, file: Any, tell: Callable[[OSError], None]) -> None:
        self._file, self._tell, self._lost = file, tell, False

    def write(self, text: str) -> int:
        """Write a text, if that can be done."""
        self._attempt(self._file.write, text)
        return len(text)

    def flush(self) -> None:
        """Write what was kept back, if that can be done."""
        self._attempt(self._file.flush)

    def _attempt(self, action: Callable[..., Any], *arguments: Any) -> None:
        if self._lost:
            return
        try:
            action(*arguments)
        except OSError as error:
            self._lost = True
            drop_output(self._file)
            self._tell(error)

    def __getattr__(self, name: str) -> Any:
        """Whether it is a terminal, its encoding and the like are those of the file."""
        return getattr(self._file, name)


def drop_output(file: Any) -> None:
    """Let what a file still holds, and all that follows, go nowhere: Python would complain of it when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a file of Python's own has no number
        number = file.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


@contextlib.contextmanager
def lasting(console: Console, tell: Callable[[OSError], None]) -> Iterator[None]:
    """Let a console go on when its output cannot be written any more; `tell` is told that, once."""
    before = console.file
    console.file = Lasting(before, tell)  # type: ignore[assignment]
    try:
        yield
    finally:
        console.file = before


def wrapped(text: str, width: int) -> str:
    """Return a text in lines of this width, indented as they were; a longer word, such as a path, stays whole."""
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))]
        shape: dict[str, Any] = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
        lines += textwrap.wrap(line, width, **shape) if cell_len(line) > width else [line]
    return "\n".join(lines)


@dataclass(frozen=True)
class ByWidth:
    """Something that is shown in one way where there is room for it, and in another where there is not."""

    wide: Any
    narrow: Any
    least: int  # columns from which on there is room

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the one that fits."""
        yield self.wide if options.max_width >= self.least else self.narrow


class Figures(NamedTuple):
    """A column of a table that fits the terminal."""

    heading: str
    cells: Sequence[str | Text]
    number: bool = True  # aligned on the right
    rank: int = 0  # columns of the highest rank are left out first; those of rank 0 stay

    def width(self, tight: bool) -> int:
        """Return the characters it needs; tight: its heading may be broken between words."""
        heading = self.heading.split() if tight else [self.heading]
        return max(cell_len(printable(str(part), kept="")) for part in (*heading, "", *self.cells))


class Spacing(NamedTuple):
    """How close columns stand."""

    padding: int  # spaces on both sides of a column, besides the one between two
    tight: bool

    def width(self, columns: Sequence[Figures]) -> int:
        """Return the characters that columns need side by side."""
        return sum(column.width(self.tight) for column in columns) + (len(columns) - 1) * (1 + 2 * self.padding)


SPACINGS = (Spacing(1, False), Spacing(0, False), Spacing(0, True))  # from the most readable to the closest


@dataclass(frozen=True)
class FittedTable:
    """A table in which no number is ever cut: what a narrow terminal has no room for is left out, or put below.

    Columns with a rank are left out, the highest first, and named under the table. Columns that still do not fit follow
    in further tables, each with the first column before them.
    """

    title: str
    columns: Sequence[Figures]
    sections: Sequence[int] = ()  # rows before which a line is left free

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits into the width that there is."""
        room, closest = options.max_width, SPACINGS[-1]
        shown, left_out = list(self.columns), list[str]()
        while (worst := max(shown, key=lambda column: column.rank)).rank and closest.width(shown) > room:
            shown.remove(worst)
            left_out.insert(0, worst.heading)
        spacing = next((one for one in SPACINGS if one.width(shown) <= room), closest)
        first, rest, title = shown[0], shown[1:], self.title
        while rest:
            # One at least, even where the terminal is too narrow for it.
            count = next((n for n in range(len(rest), 1, -1) if spacing.width([first, *rest[:n]]) <= room), 1)
            yield self._table(title, [first, *rest[:count]], spacing)
            yield from self._further_rows([first, *rest[:count]], spacing, console)
            rest, title = rest[count:], f"{self.title} (continued)"
        if left_out:
            yield Text(f"no room here for {', '.join(left_out)}: a wider terminal or --json shows them", style="dim")

    def _table(self, title: str, columns: Sequence[Figures], spacing: Spacing) -> Table:
        shape: dict[str, Any] = {"show_edge": False, "pad_edge": False, "padding": (0, spacing.padding)}
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", **shape)
        for column in columns:
            side: Literal["left", "right"] = "right" if column.number else "left"
            table.add_column(Text(column.heading), justify=side, width=column.width(spacing.tight))
        for place, cells in enumerate(itertools.islice(_rows(columns), LAID_OUT)):
            if place in self.sections:
                table.add_section()
            table.add_row(*cells)
        return table

    def _further_rows(self, columns: Sequence[Figures], spacing: Spacing, console: Console) -> Iterator[Segment]:
        """Yield the rows of a long table that are not laid out by rich, which takes a millisecond for each."""
        between = Segment(" " * (1 + 2 * spacing.padding))
        shape = [(column.width(spacing.tight), column.number) for column in columns]
        for cells in itertools.islice(_rows(columns), LAID_OUT, None):
            for place, (cell, (width, number)) in enumerate(zip(cells, shape, strict=True)):
                room = Segment(" " * (width - cell.cell_len))
                yield from (between,) if place else ()
                yield from (room, *cell.render(console)) if number else (*cell.render(console), room)
            yield Segment.line()


def _rows(columns: Sequence[Figures]) -> Iterator[list[Text]]:
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield [cell if isinstance(cell, Text) else Text(printable(cell, kept=""), end="") for cell in cells]
