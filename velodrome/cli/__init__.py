"""The command `velodrome`: parsing only. What a command needs is imported when it runs, so that `--help` is quick.

Read `wording` (how options and errors are written there) and `shared` (what all commands use), then the commands:
`training` (train, eval, config, profile), `trained_runs` (runs list, show, compare, export, rebuild), `champions`
(promote, champions list, show, rollback, paper), `service` (submit, jobs, serve, top), `studies` (tune, studies list,
show), `inspection` (data check, features, doctor) and `measuring` (bench).
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError

from velodrome.cli import champions, inspection, measuring, service, studies, trained_runs, training
from velodrome.cli.shared import DEBUG_FLAG, DEBUG_VARIABLE, GIVEN, INTERRUPTED, PROBLEM_FOUND, REFUSED, app
from velodrome.cli.wording import told_error
from velodrome.errors import VelodromeError
from velodrome.vector.cores import bound_spinning

__all__ = ["INTERRUPTED", "PROBLEM_FOUND", "REFUSED", "app", "main", "run"]
OLD_FLAG = r"^--runs-folder\b"  # what train and eval called the folder of the runs once
COMMANDS = (
    training,
    trained_runs,
    champions,
    service,
    studies,
    inspection,
    measuring,
)  # importing them adds their commands to the application


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and return its exit code; errors meant for people become one message on stderr."""
    arguments = [re.sub(OLD_FLAG, "--folder", argument) for argument in arguments]
    GIVEN[:] = arguments
    debug = DEBUG_FLAG in arguments or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    try:
        result = app(
            [argument for argument in arguments if argument != DEBUG_FLAG],
            exit_on_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has enough of it, such as `head`
        _drop_output()
        return PROBLEM_FOUND
    except CycloptsError:  # printed already
        return REFUSED
    except KeyboardInterrupt as error:  # which may say how to go on
        sys.stderr.write(f"velodrome: interrupted{f'; {error}' if str(error) else ''}\n")
        return INTERRUPTED
    except VelodromeError as error:
        if debug:
            raise
        sys.stderr.write(f"{told_error(error)}\n")
        return REFUSED
    except OSError as error:
        if debug:
            raise
        _drop_output()
        told = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        sys.stderr.write(f"velodrome: the system refuses to read or write ({told}); {DEBUG_FLAG} shows where\n")
        return REFUSED
    if arguments[:1] == ["train"] and {"--help", "-h"} & set(arguments):
        from velodrome.runs.config.explain import WIDTH, help_text

        told = help_text(width=shutil.get_terminal_size((WIDTH, 24)).columns)
        sys.stdout.write(f"\nSettings, each with its default:\n\n{told}\n")
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    from velodrome.outside.screen import drop_output

    drop_output(sys.stdout)


def main() -> None:
    """Run the command line of this process."""
    bound_spinning(os.environ)  # and that of all processes that are started; no command has imported torch yet
    gc.set_threshold(
        50_000
    )  # imports make objects that stay: looking through them every 700 takes a sixth of the start
    sys.path.append(os.getcwd())  # a module of the user's that is named, such as env=my_module:MyEnv, may lie here
    code = run(sys.argv[1:])
    gc.freeze()  # the process is about to end: looking through all of torch's objects for garbage would take a second
    sys.exit(code)
