"""Commands about runs that were trained: list, show, compare, export."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from velodrome.cli.shared import Flag, console, runs
from velodrome.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from velodrome.runs.store.store import SqlStore


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

    def open(self) -> SqlStore:
        """Open the store, which must be there."""
        from velodrome.runs.store.store import open_store

        return open_store(self.folder, self.store, create=False)


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
    with place.open() as store:
        if json:
            _print_json(listing.list_content(store, status=status, limit=limit))
        else:
            console().print(listing.list_table(store, members, status=status, limit=limit))


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

    with place.open() as store:
        record = listing.find_run(store, run)
        if json:
            _print_json(listing.show_content(store, record))
        else:
            console().print(listing.show_view(store, record))


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

    with place.open() as store:
        records = [listing.find_run(store, one) for one in run]
        if json:
            _print_json(listing.compare_content(store, records))
        else:
            console().print(listing.compare_view(store, records))


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
    from velodrome.runs.report import listing

    with place.open() as store:
        record = listing.find_run(store, run)
        if path.suffix in (".onnx", ".pt"):
            from velodrome.learn import policy_files
            from velodrome.runs.run import Run

            write = policy_files.export_onnx if path.suffix == ".onnx" else policy_files.export_torchscript
            write(Run.open(record.folder, trust=trust).policy, path)
        else:
            from velodrome.runs.store.metrics_file import export_metrics

            export_metrics(store, record.id, path, "long" if long else "wide")
    sys.stdout.write(f"{path}\n")


def _print_json(content: Any) -> None:
    import json

    sys.stdout.write(json.dumps(content, indent=1) + "\n")
