"""`check_bars`: everything worth knowing about price files before you trust them; none is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from velodrome.bars.frame import BAR_COLUMNS, Series
from velodrome.bars.gaps import AUTO, find_gaps
from velodrome.bars.rules import NOTE, OK, REFUSED, Finding, SymbolRows
from velodrome.bars.summary import Summarised, Summary, counted
from velodrome.bars.timeframe import Timeframe, describe_time, infer_timeframe

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from velodrome.bars.inspection import Source
    from velodrome.outside.screen import FittedTable

JUMP = 0.2  # relative change from close to close that is worth a look
FLAT_BARS = 20  # bars in a row without any movement that are worth a look
LISTED_GAPS = 5
STYLES = {REFUSED: "bold red", NOTE: "yellow"}
WIDE = 120  # columns of a terminal from which on findings are a table; below they are paragraphs


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
        of = {kind: len(self.of(kind)) for kind in (OK, NOTE, REFUSED)}
        counts = f"{counted(of[OK], 'check')} passed, {counted(of[NOTE], 'note')}, {counted(of[REFUSED], 'refusal')}"
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
    verb = "is" if missing == 1 else "are"
    message = (
        f"{counted(missing, 'bar')} {verb} missing ({missing / (missing + len(series)):.2%}); the longest gap lacks "
        f"{counted(examples[0].missing, 'bar')}, between {examples[0].after} and {examples[0].before} UTC"
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


@dataclass(frozen=True)
class PrintedReport:
    """A report in a terminal: the symbols, then the findings that are not ok, then the verdict."""

    report: BarsReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits into the width that there is: where it is narrow, findings as paragraphs."""
        from rich.text import Text

        from velodrome.outside.screen import ByWidth

        if self.report.symbols:
            yield self._symbols(options.max_width >= WIDE)
            yield ""
        if found := (*self.report.of(REFUSED), *self.report.of(NOTE)):
            yield ByWidth(_findings_table(found), _findings_list(found), WIDE)
            yield ""
        sentence, _, counts = self.report.verdict.partition(". ")
        yield Text(f"{sentence}. ", style="bold") + Text(counts)

    def _symbols(self, wide: bool) -> FittedTable:
        from velodrome.outside.screen import Figures, FittedTable

        entries = self.report.symbols
        first, last = [entry.first for entry in entries], [entry.last for entry in entries]
        if not wide:
            first, last = shortened(first), shortened(last)
        columns = [
            Figures("symbol", [entry.symbol for entry in entries], number=False),
            Figures("rows", [f"{entry.rows:,}" for entry in entries]),
            Figures("first (UTC)", first),
            Figures("last (UTC)", last),
            Figures("bar", [entry.timeframe for entry in entries]),
            Figures("missing", [f"{entry.missing_bars:,} ({entry.missing_share:.2%})" for entry in entries]),
            Figures("session breaks", [f"{entry.session_breaks:,}" for entry in entries]),
            Figures("zero volume", [f"{entry.zero_volume_share:.1%}" for entry in entries]),
        ]
        if any(len(entry.files) > 1 for entry in entries):
            columns.insert(1, Figures("files", [f"{len(entry.files):,}" for entry in entries]))
        return FittedTable(self.report.path, columns)


def shortened(times: Sequence[str]) -> list[str]:
    """Return times without seconds where all of them are whole minutes, and as dates where they are midnights."""
    for end in (" 00:00:00", ":00"):
        if all(time.endswith(end) or not time for time in times):
            return [time.removesuffix(end) for time in times]
    return list(times)


def _place(finding: Finding) -> str:
    from velodrome.bars.files import suffix_of

    file = Path(finding.file)
    where = (file.name if suffix_of(file) else finding.file, finding.place, finding.column)
    return ", ".join(part for part in where if part)


def _findings_list(found: Sequence[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    paragraphs = Table.grid(padding=(0, 2, 0, 0))
    paragraphs.add_column(no_wrap=True)
    paragraphs.add_column(overflow="fold")
    for finding in found:
        short = replace(finding, file="", place="", column="")
        subject = finding.symbol if finding.symbol not in f"{finding.file} {finding.message}" else ""
        about = ", ".join(part for part in (subject, _place(finding)) if part)
        told = Text(f"{finding.rule}: ", style="bold") + Text(f"{about}: {short}" if about else str(short))
        paragraphs.add_row(Text(finding.severity, style=STYLES[finding.severity]), told)
    return paragraphs


def _findings_table(found: Sequence[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    details = Table(title="findings", title_justify="left")
    for heading in ("", "symbol", "rule", "count", "first at", "what", "what to do"):
        details.add_column(heading, overflow="fold")
    for finding in found:
        cells = (finding.symbol, finding.rule, f"{finding.count:,}", _place(finding), finding.message, finding.advice)
        details.add_row(Text(finding.severity, style=STYLES[finding.severity]), *map(Text, cells))
    return details
