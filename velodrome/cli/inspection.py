"""Commands that look: at price files, at features, at this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from velodrome.cli.shared import PROBLEM_FOUND, Words, app, console, data
from velodrome.cli.wording import as_flags
from velodrome.errors import ConfigError

WIDE = 120  # columns of a terminal from which on the table of features has room for all of its columns


@data.command
def check(
    path: Path,
    *,
    symbols: Words = None,
    timeframe: str | None = None,
    timezone: str = "UTC",
    day_first: bool | None = None,
    columns: Words = None,
    adjust: bool = True,
    max_gap: str = "auto",
) -> int:
    """Report what reading price files would refuse, and what it would let pass but deserves a look.

    Exit code 1 if `vd.read_bars` with the same arguments would refuse them.

    Parameters
    ----------
    path
        A CSV, TSV, TXT (plain or .gz) or Parquet file, or a folder of them.
    symbols
        Those to look at; all if not given.
    timeframe
        Bar size to resample to, such as 5m or 1h; the data's own if not given.
    timezone
        IANA zone in which times without a zone are read and in which days begin.
    day_first
        Whether 02/03/2020 is 2 March; decided from the values if not given.
    columns
        Which column holds what, where its name does not say: close=Mid time="Trade day".
    adjust
        Whether prices are adjusted where there is an adjusted close.
    max_gap
        Longest time without a bar, besides nights and weekends, such as 30d; none for any.
    """
    from velodrome.bars.check import PrintedReport, check_bars

    given = {role: column for role, _, column in (word.partition("=") for word in columns or ())}
    if unequal := [word for word in columns or () if "=" not in word]:
        raise ConfigError(f"--columns {unequal[0]}: write what it holds and its name, such as close={unequal[0]}.")
    longest = None if max_gap == "none" else max_gap
    options: dict[str, Any] = {"columns": given, "adjust": adjust, "max_gap": longest}
    report = check_bars(path, symbols, timeframe, timezone, day_first, **options)
    typed = (replace(one, message=as_flags(one.message), advice=as_flags(one.advice)) for one in report.findings)
    report = replace(report, findings=tuple(typed))
    console().print(PrintedReport(report))
    return 0 if report.ok else PROBLEM_FOUND


@data.command
def features() -> None:
    """List the features that `vd.build_market` and `vd.build_basket` know by name, by family."""
    from rich.table import Table
    from rich.text import Text

    from velodrome.outside.screen import ByWidth
    from velodrome.tables import describe_features
    from velodrome.tables.features.cross_section import describe_cross_features
    from velodrome.tables.features.families import DEFAULT_FEATURES, FAMILIES

    described = describe_features()
    rows = []
    for family in FAMILIES.values():
        numbers = ", ".join(
            f"{number.name} ({'required' if number.default is None else f'{number.default:g}'})"
            for number in family.numbers
        )
        rows.append((family.name, family.example, numbers, described.pop(family.example)))
    rows += [("columns of the data", name, "", explanation) for name, explanation in described.items()]
    rows += [("instruments of a basket", name, "", text) for name, text in describe_cross_features().items()]
    used = f"used if none are named: {', '.join(DEFAULT_FEATURES)}"
    wide = Table(title="features", caption=used)
    for heading in ("family", "written", "numbers (default)", "value"):
        wide.add_column(heading)
    narrow = Table("written", "value, and numbers (default)", title="features", caption=used)
    for title, written, numbers, value in rows:
        wide.add_row(*map(Text, (title, written, numbers, value)))
        kind = "" if title in FAMILIES else f" ({title})"
        narrow.add_row(Text(written), Text(f"{value}{kind}{f'; {numbers}' if numbers else ''}"))
    console().print(ByWidth(wide, narrow, WIDE))


@app.command
def doctor(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Say what this machine has, whether each backend works on it, and what to do where something does not.

    Exit code 1 if there is a problem; what is merely absent, such as a GPU, is none.

    Parameters
    ----------
    json
        Print the report as JSON.
    """
    from velodrome.doctor import doctor as examine
    from velodrome.doctor import rich_table

    report = examine()
    if json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        console().print(rich_table(report))
    return 0 if report.ok else PROBLEM_FOUND
