"""`check_bars`: everything worth knowing about price files before you trust them; none is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from velodrome.bars.frame import BAR_COLUMNS, Series
from velodrome.bars.gaps import AUTO, describe_length, find_gaps
from velodrome.bars.rules import NOTE, OK, REFUSED, Finding, SymbolRows
from velodrome.bars.summary import Summarised, Summary
from velodrome.bars.timeframe import Timeframe, describe_time, infer_timeframe

if TYPE_CHECKING:
    from velodrome.bars.inspection import Source

JUMP = 0.2  # relative change from close to close that is worth a look
FLAT_BARS = 20  # bars in a row without any movement that are worth a look
LISTED_GAPS = 5
DATE = 10  # characters of a date, which a narrow terminal must not cut


@dataclass(frozen=True)
class GapExample:
    """One of the longest gaps."""

    after: str  # UTC open time of the last bar before it
    before: str  # UTC open time of the first bar after it
    missing: int  # bars


@dataclass(frozen=True)
class SymbolSummary:
    """The figures of one symbol."""

    symbol: str
    files: tuple[str, ...]
    rows: int  # as in the files, duplicates and faulty rows included
    first: str  # UTC, '' without a readable time, as are `last` and `timeframe`
    last: str
    timeframe: str
    missing_bars: int
    missing_share: float  # of the bars that a series without gaps would have
    session_breaks: int
    longest_gaps: tuple[GapExample, ...]
    nan_counts: dict[str, int]  # by column, those without NaN left out
    zero_volume_share: float


@dataclass(frozen=True, repr=False)
class BarsReport(Summarised):
    """What a check found."""

    path: str
    findings: tuple[Finding, ...]
    symbols: tuple[SymbolSummary, ...]

    @property
    def ok(self) -> bool:
        """Whether `read_bars` with the same arguments succeeds."""
        return all(finding.severity != REFUSED for finding in self.findings)

    def of(self, severity: str) -> tuple[Finding, ...]:
        """Return the findings of one severity: 'refused', 'note' or 'ok'."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def verdict(self) -> str:
        """Whether bars can be read, and what was found, in a line."""
        counts = f"{len(self.of(OK))} checks passed, {len(self.of(NOTE))} notes, {len(self.of(REFUSED))} refusals"
        return f"These bars {'can be read' if self.ok else 'would be refused'}. {counts}"

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        found = (*self.of(REFUSED), *self.of(NOTE))
        rows = tuple((one.severity, one.symbol, one.rule, f"{one.count:,}", str(one)) for one in found)
        headings = ("", "symbol", "rule", "count", "what, and what to do")
        return Summary(f"{self.path}: {self.verdict}", headings, rows, tuple(map(str, found)), "finding", True)


def check_bars(
    source: Source,
    symbols: str | Sequence[str] | None = None,
    timeframe: str | None = None,
    timezone: str = "UTC",
    day_first: bool | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    adjust: bool = True,
    max_gap: str | None = AUTO,
) -> BarsReport:
    """Return all that `read_bars` with the same arguments would refuse, and notes on what it would let pass.

    Data never raises here, nor does a path without data; a wrong argument raises `ConfigError` as in `read_bars`.
    """
    from velodrome.bars.dataframes import describe_source
    from velodrome.bars.inspection import Reading, inspect_bars

    reading = Reading(symbols, timeframe, timezone, day_first, columns, adjust, max_gap)
    inspection = inspect_bars(source, reading)
    findings = list(inspection.findings)
    summaries = []
    for symbol, rows in inspection.rows.items():
        summary, notes = describe(rows, inspection.series[symbol], timezone)
        summaries.append(summary)
        findings.extend(notes)
    return BarsReport(describe_source(source), tuple(findings), tuple(summaries))


def describe(rows: SymbolRows, series: Series, timezone: str) -> tuple[SymbolSummary, list[Finding]]:
    """Return a symbol's figures and the notes on them."""
    notes = [note_order(rows), note_volume(rows), *note_missing_extra(rows)]
    size = infer_timeframe(series.time) if len(series) >= 2 else None
    missing, breaks = 0, 0
    examples: tuple[GapExample, ...] = ()
    if size is not None:
        missing, breaks, examples, gap_note = summarise_gaps(rows, series, size, timezone)
        notes.extend([gap_note, note_jumps(rows, series), note_flat(rows, series)])
    volume = rows.values["volume"]
    summary = SymbolSummary(
        rows.symbol,
        tuple(table.origin for table in rows.tables),
        len(rows),
        describe_time(series.time[0]) if len(series) else "",
        describe_time(series.time[-1]) if len(series) else "",
        size.text if size is not None else "",
        missing,
        missing / (missing + len(series)) if len(series) else 0.0,
        breaks,
        examples,
        {name: int(count) for name, values in rows.values.items() if (count := np.isnan(values).sum())},
        float(np.mean(volume == 0)) if len(volume) else 0.0,
    )
    return summary, notes


def note_order(rows: SymbolRows) -> Finding:
    backwards = np.flatnonzero((np.diff(rows.time) < 0) & rows.timed[1:] & rows.timed[:-1]) + 1
    message = "the row is older than the one before"
    if len(backwards) == len(rows) - 1:
        backwards, message = backwards[:1], "the newest row comes first"
    advice = "Rows are sorted when read; nothing to do."
    return rows.found(NOTE, "order of time", backwards, "time", lambda row: message, advice)


def note_volume(rows: SymbolRows) -> Finding:
    if not rows.has_volume:
        advice = "Volumes are read as zero; features that use them will be constant."
        file = rows.tables[0].origin
        return Finding(NOTE, "volume", rows.symbol, 1, file, message="there is no volume column", advice=advice)
    empty = np.flatnonzero(rows.values["volume"] == 0)
    message = f"volume is zero in {len(empty) / max(len(rows), 1):.1%} of the rows"
    advice = "No trade could have been made in such a bar; leave them out if they are many."
    return rows.found(NOTE, "volume", empty, "volume", lambda row: message, advice)


def note_missing_extra(rows: SymbolRows) -> list[Finding]:
    advice = "It is kept as NaN; fill it before it becomes a feature."
    return [
        rows.finding(NOTE, "missing value", int(missing[0]), name, f"{name} is missing", advice, len(missing))
        for name, values in rows.values.items()
        if name not in BAR_COLUMNS and len(missing := np.flatnonzero(np.isnan(values)))
    ]


def summarise_gaps(
    rows: SymbolRows, series: Series, size: Timeframe, timezone: str
) -> tuple[int, int, tuple[GapExample, ...], Finding]:
    """Return the missing bars, the session breaks, the longest gaps, and a note at the longest."""
    gaps = find_gaps(series.time, size, timezone)
    if len(gaps.before) == 0:
        return 0, gaps.session_breaks, (), Finding(OK, "gaps", rows.symbol)
    longest = np.argsort(-gaps.length, kind="stable")[:LISTED_GAPS]
    before, after = series.time[gaps.before[longest]], series.time[gaps.before[longest] + 1]
    examples = tuple(
        GapExample(describe_time(last), describe_time(first), int(missing))
        for last, first, missing in zip(before, after, gaps.missing[longest], strict=True)
    )
    missing = int(gaps.missing.sum())
    message = (
        f"{missing} bars are missing ({missing / (missing + len(series)):.2%}); the longest gap is "
        f"{describe_length(int(gaps.length[longest[0]]))}, after {examples[0].after} UTC"
    )
    advice = "Fill short gaps from another source, or let windows end at long ones; single days may be holidays."
    note = note_at(rows, series.time[gaps.before[longest[0]]], "gaps", "time", message, advice, len(gaps.before))
    return missing, gaps.session_breaks, examples, note


def note_jumps(rows: SymbolRows, series: Series) -> Finding:
    with np.errstate(divide="ignore", invalid="ignore"):
        change = series.close[1:] / series.close[:-1] - 1
    jumps = np.flatnonzero(np.abs(change) > JUMP)
    if len(jumps) == 0:
        return Finding(OK, "jumps", rows.symbol)
    largest = int(jumps[np.argmax(np.abs(change[jumps]))])
    moment = series.time[largest + 1]
    message = (
        f"the close changes by more than {JUMP:.0%} from one bar to the next; "
        f"by {change[largest]:+.1%} at {describe_time(moment)} UTC"
    )
    advice = "Look for a split, a contract change or a wrong price; adjusted prices avoid the first two."
    return note_at(rows, moment, "jumps", "close", message, advice, len(jumps))


def note_flat(rows: SymbolRows, series: Series) -> Finding:
    """Stretches in which every price equals the close before them."""
    still = (series.high[1:] == series.low[1:]) & (series.close[1:] == series.close[:-1])
    edges = np.flatnonzero(np.diff(np.r_[False, still, False].astype(np.int8)))
    begin, end = edges[::2], edges[1::2]
    long = end - begin >= FLAT_BARS
    if not long.any():
        return Finding(OK, "flat stretches", rows.symbol)
    longest = int(np.argmax(end - begin))
    start = series.time[begin[longest] + 1]
    message = (
        f"the price stands still for {FLAT_BARS} bars or more; longest for {int(end[longest] - begin[longest])} bars "
        f"from {describe_time(start)} UTC"
    )
    advice = "Gaps may have been filled forward, or trading was halted; leave the stretch out if so."
    return note_at(rows, start, "flat stretches", "close", message, advice, int(long.sum()))


def note_at(
    rows: SymbolRows, moment: np.int64, rule: str, column: str, message: str, advice: str, count: int
) -> Finding:
    return rows.finding(NOTE, rule, rows.row_at(moment), column, message, advice, count)


def rich_table(report: BarsReport) -> Any:
    """Return a rich renderable: the symbols, then the findings that are not ok, then the verdict."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from velodrome.bars.files import suffix_of

    overview = Table(title=escape(report.path))
    for heading in ("symbol", "rows", "first (UTC)", "last (UTC)", "bar", "missing", "session breaks", "zero volume"):
        side: Literal["left", "right"] = "left" if heading in ("symbol", "bar") else "right"
        overview.add_column(heading, justify=side, overflow="fold", min_width=DATE if "UTC" in heading else None)
    for entry in report.symbols:
        span = (f"{entry.rows:,}", entry.first, entry.last, entry.timeframe)
        missing = f"{entry.missing_bars:,} ({entry.missing_share:.2%})"
        shares = (missing, f"{entry.session_breaks:,}", f"{entry.zero_volume_share:.1%}")
        overview.add_row(escape(entry.symbol), *span, *shares)
    details = Table(title="findings")
    for heading in ("", "symbol", "rule", "count", "first at", "what", "what to do"):
        details.add_column(heading, overflow="fold")
    style = {REFUSED: "bold red", NOTE: "yellow"}
    shown = (*report.of(REFUSED), *report.of(NOTE))
    for finding in shown:
        file = Path(finding.file)
        where = (file.name if suffix_of(file) else finding.file, finding.place, finding.column)
        location = " ".join(part for part in where if part)
        cells = (finding.symbol, finding.rule, f"{finding.count:,}", location, finding.message, finding.advice)
        details.add_row(Text(finding.severity, style=style[finding.severity]), *map(escape, cells))
    sentence, _, counts = report.verdict.partition(". ")
    verdict = Text(f"{sentence}. ", style="bold")
    tables = [table for table, filled in ((overview, report.symbols), (details, shown)) if filled]
    return Group(*tables, verdict + Text(counts))
