"""The command `velodrome`: parsing only. What a command needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Parameter

from velodrome import __version__
from velodrome.errors import ConfigError, VelodromeError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

# Exit codes: 0 done, 1 a check found a problem, 2 it could not be done as asked.
PROBLEM_FOUND = 1
REFUSED = 2

DEBUG_FLAG = "--debug"
DEBUG_VARIABLE = "VELODROME_DEBUG"
# Columns of output that goes to a file or a pipe; a terminal says its own width.
PIPE_WIDTH = 140

Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Options = TypeVar("Options", bound="BaseModel")

app = App(
    name="velodrome",
    version=__version__,
    help="Reinforcement learning on thousands of environments at once.",
    help_epilogue=f"{DEBUG_FLAG}, anywhere, or {DEBUG_VARIABLE}=1 shows the traceback of an error.",
)
data = App(name="data", help="Check price files; list the features that can be made of them.")
bench = App(name="bench", help="Measure how fast environments run on this machine.")
app.command(data)
app.command(bench)


def _console() -> Console:
    from rich.console import Console

    fixed = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPE_WIDTH if fixed else None)


@data.command
def check(
    path: Path,
    *,
    symbols: Words = None,
    timeframe: str | None = None,
    timezone: str = "UTC",
    day_first: bool | None = None,
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
    """
    from velodrome.bars.check import check_bars, rich_table

    report = check_bars(path, symbols, timeframe, timezone, day_first)
    _console().print(rich_table(report))
    return 0 if report.ok else PROBLEM_FOUND


@data.command
def features() -> None:
    """List the features that `vd.build_market` knows by name, by family."""
    from rich.table import Table

    from velodrome.tables import describe_features
    from velodrome.tables.families import DEFAULT_FEATURES, FAMILIES

    described = describe_features()
    table = Table(title="features", caption=f"used if none are named: {', '.join(DEFAULT_FEATURES)}")
    for heading in ("family", "written", "numbers (default)", "value"):
        table.add_column(heading)
    for family in FAMILIES.values():
        numbers = ", ".join(
            f"{number.name} ({'required' if number.default is None else f'{number.default:g}'})"
            for number in family.numbers
        )
        table.add_row(family.name, family.example, numbers, described.pop(family.example))
    for name, explanation in described.items():
        table.add_row("columns of the data", name, "", explanation)
    _console().print(table)


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
        _console().print(rich_table(report))
    return 0 if report.ok else PROBLEM_FOUND


@bench.command
def step(
    *,
    sizes: Words = None,
    against: Words = None,
    seconds: float | None = None,
    repeats: int | None = None,
    bars: int | None = None,
    window: int | None = None,
    features: int | None = None,
    episode_length: int | None = None,
    processes: Words = None,
    threads: int | None = None,
    seed: int | None = None,
    json: Path | None = None,
    plot: Path | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure steps a second of Velodrome and of its peers on the same problem, after checking that results agree.

    Parameters
    ----------
    sizes
        Numbers of environments in a batch, such as 64 1024 16384.
    against
        Peers to measure: all, none, or some of numpy, sync, async, dummy, subproc, torchtrade.
    seconds
        Seconds of stepping per measurement, all repeats together.
    repeats
        Repeats per measurement; the median counts.
    bars
        Bars of the market.
    window
        Bars in an observation.
    features
        Features of each bar in an observation.
    episode_length
        Decisions in an episode.
    processes
        Worker processes to try for peers that use some; the best counts.
    threads
        Threads of the rows with all threads; all that there are if not given.
    seed
        Of the market, the actions and the starts.
    json
        File for everything that was measured, as JSON.
    plot
        File for a plot, as PNG.
    quick
        A coarse run of under half a minute; other options still win where given.
    """
    from velodrome.bench.options import StepBenchmarkOptions
    from velodrome.bench.step import run_step_benchmark

    given = {
        "sizes": _words(sizes), "against": _words(against), "seconds": seconds, "repeats": repeats, "bars": bars,
        "window": window, "features": features, "episode_length": episode_length, "processes": _words(processes),
        "threads": threads, "seed": seed, "json_path": json, "plot_path": plot, "quick": quick or None,
    }  # fmt: skip
    options = _validated(StepBenchmarkOptions, {name: value for name, value in given.items() if value is not None})
    run_step_benchmark(options, _console())


def _words(given: list[str] | None) -> tuple[str, ...] | None:
    """Return the words of an option that may be written `1 2`, `1,2` or `"1 2"`."""
    return tuple(word for part in given for word in part.replace(",", " ").split()) if given else None


def _validated(model: type[Options], given: dict[str, Any]) -> Options:
    """Return options as their model takes them; what it refuses is told as the option that was written."""
    from pydantic import ValidationError

    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        problem = str(first["msg"]).removeprefix("Value error, ")
        received = given.get(name)
        shown = " ".join(map(str, received)) if isinstance(received, tuple) else received
        flag = name.removesuffix("_path").replace("_", "-")
        meaning = model.model_fields[name].description if name in model.model_fields else ""
        raise ConfigError(f"--{flag} {shown}: {problem}. It is: {meaning}.") from error


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and return its exit code; errors meant for people become one message on stderr."""
    debug = DEBUG_FLAG in arguments or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    try:
        result = app(
            [argument for argument in arguments if argument != DEBUG_FLAG],
            exit_on_error=False,
            result_action="return_value",
        )
    except CycloptsError:  # printed already
        return REFUSED
    except VelodromeError as error:
        if debug:
            raise
        sys.stderr.write(f"velodrome: {error}\n")
        return REFUSED
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))
