"""Commands about runs that were trained: list, show, compare, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.cli.shared import Flag, console, runs
from velodrome.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from velodrome.runs.store.store import SqlStore


@runs.command(name="list")
def list_runs(*, folder: Path = Path("runs"), store: str | None = None, status: str | None = None,
              limit: int | None = None, json: Flag = False) -> None:  # fmt: skip
    """List runs, newest first.

    Parameters
    ----------
    folder
        Folder of the runs.
    store
        SQLAlchemy URL of their store, if it is not in the folder.
    status
        Only those that are running, finished, interrupted or failed.
    limit
        At most so many.
    json
        Print JSON.
    """
    from velodrome.runs.report import listing
    from velodrome.runs.store.schema import STATUSES

    if status is not None and status not in STATUSES:
        raise ConfigError(f"--status {status}: it is {', '.join(STATUSES)}.{did_you_mean(status, STATUSES)}")
    with _store(folder, store) as opened:
        if json:
            _print_json(listing.list_content(opened, status=status, limit=limit))
        else:
            console().print(listing.list_table(opened, status=status, limit=limit))


@runs.command
def show(run: str, *, folder: Path = Path("runs"), store: str | None = None, json: Flag = False) -> None:
    """Show a run: what it was told, what came of it, its evaluation and its learning curve.

    Parameters
    ----------
    run
        Its folder, id, the start of either, or latest.
    folder
        Folder of the runs.
    store
        SQLAlchemy URL of their store, if it is not in the folder.
    json
        Print JSON.
    """
    from velodrome.runs.report import listing

    with _store(folder, store) as opened:
        record = listing.find_run(opened, run)
        if json:
            _print_json(listing.show_content(opened, record))
        else:
            console().print(listing.show_view(opened, record))


@runs.command
def compare(*run: str, folder: Path = Path("runs"), store: str | None = None, json: Flag = False) -> None:
    """Compare runs: the settings in which they differ, their metrics and evaluations side by side.

    Parameters
    ----------
    run
        Two or more: folder, id, the start of either, or latest.
    folder
        Folder of the runs.
    store
        SQLAlchemy URL of their store, if it is not in the folder.
    json
        Print JSON.
    """
    from velodrome.runs.report import listing

    with _store(folder, store) as opened:
        records = [listing.find_run(opened, one) for one in run]
        if json:
            _print_json(listing.compare_content(opened, records))
        else:
            console().print(listing.compare_view(opened, records))


@runs.command
def export(run: str, path: Path, *, folder: Path = Path("runs"), store: str | None = None, long: Flag = False) -> None:
    """Write the metrics of a run to a CSV or Parquet file, or its policy to ONNX or TorchScript.

    Parameters
    ----------
    run
        Its folder, id, the start of either, or latest.
    path
        The file: .csv or .parquet for metrics, .onnx or .pt for the policy.
    folder
        Folder of the runs.
    store
        SQLAlchemy URL of their store, if it is not in the folder.
    long
        A row for each value instead of a row for each step.
    """
    from velodrome.runs.report import listing

    with _store(folder, store) as opened:
        record = listing.find_run(opened, run)
        if path.suffix in (".onnx", ".pt"):
            from velodrome.learn import policy_files as exporting
            from velodrome.runs.run import Run

            policy = Run.open(record.folder).policy
            write = exporting.export_onnx if path.suffix == ".onnx" else exporting.export_torchscript
            write(policy, path)
        else:
            from velodrome.runs.store.metrics_file import export_metrics

            export_metrics(opened, record.id, path, "long" if long else "wide")
    sys.stdout.write(f"{path}\n")


def _store(folder: Path, url: str | None) -> SqlStore:
    from velodrome.runs.store.store import open_store

    return open_store(folder, url, create=False)


def _print_json(content: Any) -> None:
    import json

    sys.stdout.write(json.dumps(content, indent=1) + "\n")
