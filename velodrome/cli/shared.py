"""What all commands share: the applications, the console, and how words become options."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, Parameter

from velodrome import __version__
from velodrome.cli.wording import told_usage
from velodrome.errors import ConfigError, sentence

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

# Exit codes: 0 done, 1 a check found a problem, 2 it could not be done as asked, 130 interrupted.
PROBLEM_FOUND = 1
REFUSED = 2
INTERRUPTED = 130

DEBUG_FLAG = "--debug"
DEBUG_VARIABLE = "VELODROME_DEBUG"
# Columns of output that goes to a file or a pipe; a terminal says its own width.
PIPE_WIDTH = 140

GIVEN: list[str] = []  # the command line, for what starts the same command in other processes
Words = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Flag = Annotated[bool, Parameter(negative="")]
Options = TypeVar("Options", bound="BaseModel")

app = App(
    name="velodrome",
    version=__version__,
    help="Reinforcement learning on thousands of environments at once.",
    help_epilogue=f"{DEBUG_FLAG}, anywhere, or {DEBUG_VARIABLE}=1 shows the traceback of an error.",
    suppress_keyboard_interrupt=False,  # it is told: see `run`
    error_formatter=told_usage,
)
data = App(name="data", help="Check price files; list the features that can be made of them.")
bench = App(name="bench", help="Measure how fast environments run, and agents learn, on this machine.")
runs = App(name="runs", help="List, show, compare and export what was trained; rebuild the store of it.")
jobs = App(name="jobs", help="List, show, follow, pause, resume and cancel trainings that were submitted.")
champions = App(name="champions", help="List and show the policies in use, and put the one before back.")
studies = App(name="studies", help="List and show studies: many trials of settings, and the winner among them.")
app.command(data)
app.command(bench)
app.command(runs)
app.command(jobs)
app.command(champions)
app.command(studies)


def console() -> Console:
    """Return the console that commands print to."""
    from velodrome.outside.screen import Screen

    fixed = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Screen(width=PIPE_WIDTH if fixed else None)


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option that has a value, written as `--name value` or `--name=value`."""
    return [
        word
        for before, word in zip(("", *arguments), arguments, strict=False)
        if option not in (before, word) and not word.startswith(f"{option}=")
    ]


def print_json(content: Any) -> None:
    """Print plain values as JSON."""
    import json

    sys.stdout.write(json.dumps(content, indent=1) + "\n")


def split_words(given: list[str] | None) -> tuple[str, ...] | None:
    """Return the words of an option that may be written `1 2`, `1,2` or `"1 2"`."""
    return tuple(word for part in given for word in part.replace(",", " ").split()) if given else None


def validated(model: type[Options], given: dict[str, Any]) -> Options:
    """Return options as their model takes them; what it refuses is reported under the option as it was written."""
    from pydantic import ValidationError

    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else None
        problem = str(first["msg"]).removeprefix("Value error, ")
        if not name:  # of several options together
            raise ConfigError(sentence(problem)) from error
        received = given.get(name)
        shown = " ".join(map(str, received)) if isinstance(received, tuple) else received
        flag = name.removesuffix("_path").replace("_", "-")
        if name not in model.model_fields:
            legal = ", ".join(f"--{known.removesuffix('_path').replace('_', '-')}" for known in model.model_fields)
            raise ConfigError(f"--{flag} has no effect here; options are {legal}.") from error
        meaning = model.model_fields[name].description
        raise ConfigError(f"--{flag} {shown}: {sentence(problem)} It is: {meaning}.") from error
