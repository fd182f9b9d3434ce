"""How data, runs and results show themselves: a line or a few in a terminal, a small table in a notebook."""

from __future__ import annotations

import html
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LISTED = 30  # rows of a table; of more, the first and the number of the others


class Summary(NamedTuple):
    """What is worth a look at first."""

    line: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()  # of the notebook's table
    notes: tuple[str, ...] = ()
    called: str = "note"  # what a note is
    in_rows: bool = False  # the rows say what the notes say


class Summarised:
    """Base of what shows itself by its summary. A dataclass needs `repr=False` beside it."""

    def summary(self) -> Summary:
        """Return what to show."""
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = self.summary()
        return "\n".join([shown.line, *(f"  {shown.called}: {note}" for note in listed(shown.notes, 3))])

    def _repr_html_(self) -> str:
        shown = self.summary()

        def row(cells: tuple[str, ...], tag: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        parts = [f"<p>{html.escape(shown.line)}</p>"]
        if shown.rows:
            body = "".join(row(cells, "td") for cells in shown.rows[:LISTED])
            parts.append(f"<table><thead>{row(shown.headings, 'th')}</thead><tbody>{body}</tbody></table>")
        if len(shown.rows) > LISTED:
            parts.append(f"<p>and {len(shown.rows) - LISTED:,} more</p>")
        notes = () if shown.in_rows else shown.notes
        parts += [f"<p>{shown.called}: {html.escape(note)}</p>" for note in listed(notes, LISTED)]
        return "".join(parts)


def counted(number: int, what: str) -> str:
    """Return '1 bar' or '1,200 bars'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(texts: tuple[str, ...], most: int) -> list[str]:
    """Return the first texts, and how many more there are."""
    return [*texts[:most], *([f"and {len(texts) - most:,} more"] if len(texts) > most else [])]


def day_span(*times: NDArray[np.int64]) -> str:
    """Return the first and the last day (UTC) of columns of nanoseconds: '2020-01-01 … 2024-12-31'."""
    filled = [time for time in times if len(time)]
    if not filled:
        return "no bars"
    ends = np.array([min(time[0] for time in filled), max(time[-1] for time in filled)]).astype("datetime64[ns]")
    return " … ".join(str(day) for day in ends.astype("datetime64[D]"))
