"""What the leak check found, how much it has proven, and both as a table for the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from velodrome.errors import LeakError

LISTED = 8  # findings that an error shows
HELD = ("memory", "fitted")  # kinds of findings that belong to no row


@dataclass(frozen=True)
class Leak:
    """One difference between what was known at a bar and what follows from all bars."""

    # "feature", "window", "scaler"; of a function also "random" (disagrees with itself), "unchecked", "memory" (answers
    # with the future of the true bars although it was given others) and "fitted" (holds a statistic of all bars).
    kind: str
    feature: str  # or the window's name
    timeframe: str
    symbol: str
    detail: str
    cut: int = 0  # bars that were left
    row: int = 0  # first differing row of the timeframe
    time: str = ""  # its open time, UTC

    def __str__(self) -> str:
        row = f", row {self.row} ({self.time} UTC)" if self.kind not in HELD else ""
        return f"{self.kind} {self.feature!r} of {self.timeframe}, {self.symbol}{row}: {self.detail}"


@dataclass(frozen=True)
class Coverage:
    """How far a user's function was looked at, over all instruments."""

    feature: str
    timeframe: str
    rows: int
    look_back: int | None  # bars that a value depends on before its own; None: no bound was found
    proven: float  # share of rows that stayed the same while the bars right after them were altered, up and down
    screened: float  # share of rows whose dependence on later bars was tested at random, all at once
    cuts: int  # rows after which everything was taken away
    seconds: float

    def __str__(self) -> str:
        bound = "no bound" if self.look_back is None else f"{self.look_back:,} bars"
        return (
            f"{self.feature} of {self.timeframe}: look-back {bound}, {self.proven:.1%} of {self.rows:,} rows proven, "
            f"{self.screened:.1%} screened, cuts {self.cuts:,}, {self.seconds:.1f} s"
        )


@dataclass(frozen=True)
class LeakReport:
    """What the check compared and what it found: at most one finding for each feature, timeframe and instrument."""

    findings: tuple[Leak, ...]
    comparisons: int  # tables compared
    skipped: tuple[str, ...]  # features whose function refused short data, so that only longer cuts checked them
    coverage: tuple[Coverage, ...] = ()  # of each user's function
    rounding: tuple[str, ...] = ()  # what differs in its last digits only, and passes: a sentence each
    notes: tuple[str, ...] = ()  # what else deserves a word: time that was up
    seconds: float = 0.0  # that the functions took

    @property
    def passed(self) -> bool:
        return not self.findings

    def raise_if_any(self) -> None:
        """Raise `LeakError` that names what leaks and says what to do."""
        if self.passed:
            return
        shown = "\n".join(f"- {leak}" for leak in self.findings[:LISTED])
        more = f"\n… and {len(self.findings) - LISTED} more" if len(self.findings) > LISTED else ""
        held = all(leak.kind in HELD for leak in self.findings)
        what = "made of bars that had not come yet" if held else "not the same when later bars are taken away"
        raise LeakError(
            f"{', '.join(dict.fromkeys(leak.feature for leak in self.findings))}: {what}.\n{shown}{more}\n"
            "Let row t of a feature depend on rows up to t only: no shift(-1), no centred window, no statistic of the "
            "whole column, no bar before it has closed, no constant or table fitted on more than the training split. "
            "If the value is right all the same, build with check_leaks=False."
        )


def rich_table(report: LeakReport) -> Any:
    """Return the report as a table for the terminal."""
    from rich.table import Table

    title = "No leak found" if report.passed else f"{len(report.findings)} leaks"
    lines = [*map(str, report.coverage), *report.rounding, *report.notes]
    table = Table(title=f"{title} ({report.comparisons} comparisons)", caption="\n".join(lines) or None)
    table.caption_justify = "left"
    for heading in ("leak", "where", "what"):
        table.add_column(heading)
    for leak in report.findings:
        row = "" if leak.kind in HELD else f"\nrow {leak.row}, {leak.time} UTC"
        table.add_row(leak.kind, f"{leak.feature}\n{leak.timeframe} of {leak.symbol}{row}", leak.detail)
    return table
