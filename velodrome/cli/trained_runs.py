"""Commands about runs that were trained: list, show, compare, export, and the store that they are read from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from velodrome.cli.shared import PROBLEM_FOUND, Flag, console, print_json, runs
from velodrome.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from velodrome.runs.store.rows import RunRecord
    from velodrome.runs.store.store import SqlStore

EXPORTED = (".csv", ".parquet", ".onnx", ".pt")


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """Where the runs are.

    Parameters
    ----------
    folder
        Folder of the runs.
    store
        SQLAlchemy URL of their store, if it is not in the folder.
    """

    folder: Path = Path("runs")
    store: str | None = None

    def look(self, work: Callable[[SqlStore, list[RunRecord]], None], *runs: str) -> None:
        """Do work on the store and the runs that are meant; a run that lies elsewhere is named by its folder."""
        from velodrome.runs.bucket.place import here, url_of
        from velodrome.runs.folder import INFORMATION, RunFolder
        from velodrome.runs.report import listing
        from velodrome.runs.store.rebuild import look

        named = [RunFolder.open(run) for run in runs if url_of(run) or (Path(run) / INFORMATION).is_file()]
        home = here(self.folder).resolve()
        outside = [folder for folder in named if home not in folder.path.parents]
        look(
            home, self.store, lambda store: work(store, [listing.find_run(store, run) for run in runs]), _tell, outside
        )


RUNS = Place()


@runs.command(name="list")
def list_runs(
    *,
    place: Place = RUNS,
    status: str | None = None,
    limit: int | None = None,
    members: Flag = False,
    json: Flag = False,
) -> None:
    """List runs, newest first; a group of training seeds is one line.

    Parameters
    ----------
    status
        Only those that are running, finished, interrupted or failed.
    limit
        Largest number of runs to list.
    members
        List each training seed of a group below it.
    json
        Print JSON.
    """
    from velodrome.runs.report import listing
    from velodrome.runs.store.schema import STATUSES

    if status is not None and status not in STATUSES:
        raise ConfigError(f"--status {status}: it is {', '.join(STATUSES)}.{did_you_mean(status, STATUSES)}")

    def work(store: SqlStore, _: list[RunRecord]) -> None:
        if json:
            print_json(listing.list_content(store, status=status, limit=limit))
        else:
            console().print(listing.list_table(store, members, status=status, limit=limit))

    place.look(work)


@runs.command
def show(run: str, *, place: Place = RUNS, json: Flag = False) -> None:
    """Show a run: its settings, what came of it, its evaluation and its learning curve.

    Parameters
    ----------
    run
        Its folder, id, the start of either, or latest.
    json
        Print JSON.
    """
    from velodrome.runs.report import listing

    def work(store: SqlStore, records: list[RunRecord]) -> None:
        if json:
            print_json(listing.show_content(store, records[0]))
        else:
            console().print(listing.show_view(store, records[0]))

    place.look(work, run)


@runs.command
def compare(*run: str, place: Place = RUNS, json: Flag = False) -> None:
    """Compare runs: the settings in which they differ, their metrics and evaluations side by side.

    Parameters
    ----------
    run
        Two or more: folder, id, the start of either, or latest.
    json
        Print JSON.
    """
    from velodrome.runs.report import listing

    def work(store: SqlStore, records: list[RunRecord]) -> None:
        if json:
            print_json(listing.compare_content(store, records))
        else:
            console().print(listing.compare_view(store, records))

    place.look(work, *run)


@runs.command
def export(run: str, path: Path, *, place: Place = RUNS, long: Flag = False, trust: Flag = False) -> None:
    """Write the metrics of a run to a CSV or Parquet file, or its policy to ONNX or TorchScript.

    Parameters
    ----------
    run
        Its folder, id, the start of either, or latest.
    path
        The file: .csv or .parquet for metrics, .onnx or .pt for the policy.
    long
        A row for each value instead of a row for each step.
    trust
        Policy: import the code that a run from elsewhere names, now and later.
    """

    if path.suffix not in EXPORTED:
        told = "the end of a file's name says what is written: .csv or .parquet the metrics, .onnx or .pt the policy"
        raise ConfigError(f"{path}: {told}.{did_you_mean(path.suffix, EXPORTED)}")

    def work(store: SqlStore, records: list[RunRecord]) -> None:
        if path.suffix in (".onnx", ".pt"):
            from velodrome.learn import policy_files
            from velodrome.runs.run import Run

            write = policy_files.export_onnx if path.suffix == ".onnx" else policy_files.export_torchscript
            write(Run.open(records[0].folder, trust=trust).policy, path)
        else:
            from velodrome.runs.store.metrics_file import export_metrics

            export_metrics(store, records[0].id, path, "long" if long else "wide")

    place.look(work, run)
    sys.stdout.write(f"{path}\n")


@runs.command
def rebuild(*, place: Place = RUNS) -> int:
    """Write the rows of all runs into their store anew, from the runs' folders; a damaged store is set aside.

    Nothing is lost by it, however often: the folders are the record, and runs whose folder is gone stay as they are.
    Exit code 1 if a folder could not be read.
    """
    from rich.console import Console
    from rich.progress import Progress

    from velodrome.runs.store import rebuild as rebuilding

    if not place.folder.is_dir():
        raise ConfigError(f"--folder {place.folder}: there is no such folder. Name the one in which the runs lie.")
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("entering runs", total=None)
        result = rebuilding.rebuild(
            place.folder, place.store, lambda done, total: bars.update(task, completed=done, total=total)
        )
    for line in result.lines:
        console().print(line, soft_wrap=True, highlight=False, markup=False)
    return PROBLEM_FOUND if result.problems else 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
