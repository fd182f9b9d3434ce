"""What a regression is shown of a market: the latest rows of its windows, of all bars or of some at a time."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from velodrome.tables.market import WindowedRows

MOST_INPUTS = 1024  # longer windows are cut to their latest rows
MOST_HELD = 2**25  # floats, 128 MB, of all inputs of all rows
Places = NDArray[np.int64]
ALL = slice(None)


def lag_choices(lags: int) -> list[int]:
    """Return 1, 2, 4 … and the most."""
    return [*(2**power for power in range(max(lags - 1, 0).bit_length())), lags]


class Choice(NamedTuple):
    """Some of the inputs of a regression."""

    lags: int  # how far they reach back
    places: Places
    means: bool = False


class Columns(NamedTuple):
    """Inputs that stand side by side: one row of a window, or a mean over some."""

    means: bool
    lag: int  # how far the row lies back, the latest being 1; or how many rows the mean is of
    window: int


class Inputs(NamedTuple):
    """What a regression is shown of a market's windows: their latest rows, and means over them.

    means: whether means over the latest 2, 4 … rows stand beside the rows. Six of them tell about as much as 32 rows
        where these tell much the same, as about the drift of a market, and need a fifth of the weights.
    """

    market: WindowedRows
    members: int = 1
    means: bool = False

    def columns(self, lags: int) -> list[Columns]:
        """Return what stands side by side, of the latest `lags` rows of each window.

        The latest row comes first. Means follow the rows, those over fewer of them first.
        """
        lengths = np.minimum(self.market.windows.length, lags).tolist()
        found = [Columns(False, lag, w) for w, most in enumerate(lengths) for lag in range(1, most + 1)]
        if self.means:
            found += [Columns(True, span, w) for w, most in enumerate(lengths) for span in lag_choices(most)[1:]]
        return sorted(found)

    def width(self, columns: Columns) -> int:
        """Return how many inputs these are."""
        return int(self.market.windows.width[columns.window]) // self.members

    def observed(
        self, rows: Places, lags: int, places: Places | slice = ALL, member: Places | None = None
    ) -> NDArray[np.float32]:
        """Return the inputs at some rows, of the latest `lags` rows of each window, [rows × members, inputs].

        places: of the inputs that are wanted. member: the one of each row, [rows]; None: all of them.
        """
        columns = self.columns(lags)
        if isinstance(places, slice):
            return self._gathered(rows, columns, member)
        ends = np.cumsum([self.width(own) for own in columns])
        wanted, of = np.unique(np.searchsorted(ends, places, side="right"), return_inverse=True)
        chosen = [columns[place] for place in wanted.tolist()]
        begins = np.cumsum([0, *map(self.width, chosen)])[of]
        within = places - np.concatenate([[0], ends])[wanted][of]
        found, at = self._gathered(rows, chosen, member), begins + within
        return found if np.array_equal(at, np.arange(found.shape[1])) else np.ascontiguousarray(found[:, at])

    def _gathered(self, rows: Places, columns: list[Columns], member: Places | None) -> NDArray[np.float32]:
        tables, found = self.market.windows, {}
        for w in {own.window for own in columns}:
            end = int(tables.base[w + 1]) if w + 1 < len(tables.base) else len(tables.values)
            width = int(tables.width[w]) // self.members
            table = tables.values[int(tables.base[w]) : end].reshape(-1, self.members, width)
            last = tables.rows[w, rows]
            own = {column for column in columns if column.window == w}
            spans = max((column.lag for column in own if column.means), default=0)
            total = np.float32(0.0)
            for lag in range(1, max(column.lag for column in own) + 1):
                single, mean = Columns(False, lag, w), Columns(True, lag, w)
                if lag > spans and single not in own:
                    continue
                at = last - (lag - 1)
                row = table[at].reshape(-1, width) if member is None else table[at, member]
                if single in own:
                    found[single] = row
                if lag <= spans:
                    total = total + row
                if mean in own:
                    found[mean] = total / np.float32(lag)
        return np.concatenate([found[own] for own in columns], axis=1) if len(columns) > 1 else found[columns[0]]

    def choices(self, lags: int) -> tuple[list[Choice], list[Choice]]:
        """Return the sets of inputs to choose from, up to 1, 2, 4 … rows back, and those for want of a better one.

        The latter are rows where there are means: one row far back that tells something by itself is rare.
        """
        lengths = np.minimum(self.market.windows.length, lags)
        widths = self.market.windows.width // self.members
        rows = [Choice(most, np.arange((np.minimum(lengths, most) * widths).sum())) for most in lag_choices(lags)]
        if not self.means:
            return rows, []
        first, last = rows[0], len(rows[-1].places)
        spans = [lag_choices(length)[1:] for length in lengths.tolist()]
        means = []
        for most in lag_choices(lags)[1:]:
            count = sum(sum(span <= most for span in spans[w]) * int(width) for w, width in enumerate(widths))
            means.append(Choice(most, np.r_[first.places, last + np.arange(count)], means=True))
        return [first, *means], rows[1:]

    def most_lags(self) -> int:
        """Return how many rows of the windows can be used without more than `MOST_INPUTS` of them."""
        lengths, widths = self.market.windows.length, self.market.windows.width // self.members
        wanted = np.arange(1, int(lengths.max()) + 1)
        counts = (np.minimum(lengths, wanted[:, None]) * widths).sum(axis=1)
        return max(int((counts <= MOST_INPUTS).sum()), 1)


class Rows(Protocol):
    """Inputs of rows that a regression is fitted to."""

    shape: tuple[int, int]  # [n, W]

    def some(self, rows: Places | slice, inputs: Places | slice = ALL) -> NDArray[np.float32]:
        """Return some inputs of some rows."""


class Held:
    """Inputs that are there as a table."""

    def __init__(self, table: NDArray[np.float32]) -> None:
        self.table = table
        self.shape: tuple[int, int] = table.shape

    def some(self, rows: Places | slice, inputs: Places | slice = ALL) -> NDArray[np.float32]:
        """Return some inputs of some rows."""
        return self.table[rows][:, inputs]


class Gathered:
    """Inputs that are gathered whenever they are asked for: of millions of rows a table would fill the memory.

    usable: which of the rows, each with all of its members, are meant; None: all.
    """

    def __init__(self, inputs: Inputs, rows: Places, lags: int, usable: NDArray[np.bool_] | None = None) -> None:
        self.inputs, self.lags = inputs, lags
        entries = np.arange(len(rows) * inputs.members) if usable is None else np.flatnonzero(usable)
        self.rows = rows[entries // inputs.members]
        self.member = None if inputs.members == 1 else entries % inputs.members
        self.shape = len(entries), sum(map(inputs.width, inputs.columns(lags)))

    def some(self, rows: Places | slice, inputs: Places | slice = ALL) -> NDArray[np.float32]:
        """Return some inputs of some rows."""
        if isinstance(inputs, slice) and inputs != ALL:
            inputs = np.arange(self.shape[1])[inputs]
        member = None if self.member is None else self.member[rows]
        return self.inputs.observed(self.rows[rows], self.lags, inputs, member)


def rows_to_fit(inputs: Inputs, rows: Places, lags: int, usable: NDArray[np.bool_]) -> Rows:
    """Return the inputs of the usable rows: as a table, unless it were too large."""
    gathered = Gathered(inputs, rows, lags, usable)
    if gathered.shape[0] * gathered.shape[1] > MOST_HELD:
        return gathered
    table = inputs.observed(rows, lags)
    return Held(table if usable.all() else table[usable])
