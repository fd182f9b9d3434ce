"""`velodrome train --nproc N` as torchrun would start it, and which run goes on when torchrun starts its ranks anew."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from velodrome.errors import ConfigError, RunError, WriteError
from velodrome.vector.cores import available_cores, is_rank
from velodrome.writing import replace_text

NOTES = ".torchrun"  # folder beside the runs: by the name of a launch, the run that it began
STOP_SECONDS = 30  # that ranks have to save after Ctrl-C
MONITOR_SECONDS = 0.2  # between two looks at whether all ranks are there


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `velodrome` with these arguments in several ranks on this machine, as torchrun does; return the exit code."""
    if processes < 1:
        raise ConfigError(f"--nproc {processes}: a training needs one process at least.")
    if is_rank():
        raise ConfigError(
            "--nproc starts processes by itself, and torchrun has started this one. Leave one of them out."
        )
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Ranks say themselves why they end, and what is said of one that could not is told below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"nproc-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
        shutdown_timeout=STOP_SECONDS,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, sys.executable)("-m", "velodrome", *arguments)
    except SignalException:  # the ranks have saved, and said so
        return 130
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return int(failure.exitcode)  # it has told why
        raise RunError(
            f"Rank {rank} of {processes} was ended by {failure.signal_name()}, and the others were stopped. Go on from "
            "the last checkpoint, with any number of ranks: velodrome train --resume latest"
        ) from None
    return 0


def remember(run: Path) -> None:
    """Note that this launch has begun a run, so that its restart goes on with it."""
    note = _note(run.parent)
    if note is None:
        return
    try:
        note.parent.mkdir(exist_ok=True)
        replace_text(note, run.name)
    except OSError as error:
        raise WriteError(f"{note}: which run torchrun has begun cannot be noted: {error}", error) from error


def begun(root: Path) -> Path | None:
    """Return the run that this launch has begun before torchrun started its ranks anew; None if it has not."""
    note = _note(root)
    if note is None or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or not note.exists():
        return None
    return root / note.read_text(encoding="utf-8").strip()


def forget(run: Path) -> None:
    """Remove the note about a run that this launch has brought to its end."""
    note = _note(run.parent)
    if note is not None:
        note.unlink(missing_ok=True)


def _note(root: Path) -> Path | None:
    if not is_rank():
        return None
    identity = "".join(
        letter if letter.isalnum() or letter in "-_" else "_" for letter in os.environ["TORCHELASTIC_RUN_ID"]
    )
    return root / NOTES / identity[:100]
