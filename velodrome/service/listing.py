"""What `velodrome jobs` shows: the list, one job, and changes as they come; as tables or as plain values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from velodrome.runs.live.progress import compact
from velodrome.runs.machine.use import bytes_text
from velodrome.runs.report.listing import NOTHING, age
from velodrome.service.job import ENDS, LONGEST_PAUSE, Job
from velodrome.service.queue import Event

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from velodrome.outside.screen import FittedTable


def content(job: Job, events: Sequence[Event] = ()) -> dict[str, Any]:
    """Return a job in plain values."""
    about = asdict(job)
    about["total_steps"] = job.total_steps
    if events:
        about["events"] = [
            {"time": event.time, "kind": event.kind, "text": event.text, **event.data} for event in events
        ]
    return about


def status_of(job: Job) -> str:
    """Return a job's status as it is shown: with how it ended, and what is asked of it."""
    if job.status == "failed":
        return f"failed: {ENDS[job.ended].told}"
    if job.status == "running" and job.wanted:
        return {"pause": "pausing", "cancel": "cancelling"}.get(job.wanted, "saving")
    if job.lacks_room:
        return "waiting for disk space"
    if job.status == "waiting" and 0.0 < (left := job.not_before - time.time()) <= LONGEST_PAUSE:
        return f"tried again in {left:.0f} s"
    return job.status


def list_table(jobs: Sequence[Job]) -> FittedTable | Text:
    """Return jobs as a table; a narrow terminal loses the least telling columns."""
    from rich.text import Text

    from velodrome.outside.screen import Figures, FittedTable

    if not jobs:
        return Text("no jobs")
    columns = [
        Figures("id", [job.id for job in jobs], number=False),
        Figures("name", [job.name for job in jobs], number=False),
        Figures("status", [status_of(job) for job in jobs], number=False),
        Figures("steps", [_steps(job) for job in jobs], rank=1),
        Figures("owner", [job.owner for job in jobs], number=False, rank=2),
        Figures("priority", [str(job.priority) for job in jobs], rank=4),
        Figures("attempt", [str(job.attempt) for job in jobs], rank=5),
        Figures("age", [age(max(0.0, time.time() - job.created)) for job in jobs], rank=3),
    ]
    return FittedTable("jobs", columns)


def line(job: Job) -> str:
    """Return a job in a line, for those who watch."""
    message = f": {job.message}" if job.message else ""
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    return f"{job.id} {job.name}: {status_of(job)}, {_steps(job)} steps{attempt}{message}"


def show_view(job: Job, events: Sequence[Event], folder: str) -> Group:
    """Return a job as tables: what it is, how far it came, why it ended, and what happened."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    host = job.machine.partition("|")[0]
    retried = ", ".join(f"{ENDS[kind].told} {count} ×" for kind, count in job.retries.items())
    needs = (
        f"{job.cores} core{'s' if job.cores > 1 else ''}, {job.envs:,} environments, {bytes_text(job.memory)} of memory"
    )
    needs += f", {bytes_text(job.gpu_memory)} of GPU memory" if job.gpu_memory else ""
    facts = {
        "status": status_of(job),
        "message": job.message,
        "retries": retried,
        "steps": _steps(job),
        "owner": job.owner,
        "priority": str(job.priority),
        "needs": needs,
        "most memory": bytes_text(job.memory_used) if job.memory_used else "",
        "machine": f"{host}, process {job.process.partition(':')[0]}" if job.process else host,
        "attempt": str(job.attempt),
        "submitted": _moment(job.created),
        "folder": folder,
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(value))
    history = Table.grid(padding=(0, 2))
    for event in events:
        attempt = f"attempt {event.data['attempt']}" if "attempt" in event.data else ""
        text = event.text if event.text != attempt else ""
        history.add_row(_moment(event.time), event.kind, attempt, Text(text))
    return Group(Text(f"job {job.id} ({job.name})", style="bold"), table, Text(), history)


def _steps(job: Job) -> str:
    return f"{compact(job.steps)} of {compact(job.total_steps)}" if job.total_steps else NOTHING


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
