"""The first page: what runs now, what waits, how studies come along, what the machine does, what came out last."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from typing import Any

from velodrome import __version__
from velodrome.dashboard.answers import Asked, Question, Routes
from velodrome.dashboard.api import jobs, studies
from velodrome.dashboard.site import Site
from velodrome.runs.metrics import RETURNS

routes = Routes()
SHOWN_FINISHED, SHOWN_WAITING, SHOWN_STUDIES, SHOWN_RUNNING = 12, 20, 8, 50
FIRST = "velodrome train demo"
# How a training comes along, the first that there is: an account's return in per cent, or a sum of rewards.
LIVE = (*((name, "episode return") for name in RETURNS), ("episode/reward", "episode reward"))


@routes.get("/api/overview")
def overview(site: Site, question: Question[Asked]) -> Any:
    """Return what the first page shows."""
    snapshot = site.index.snapshot()
    every = site.queue.brief()
    counts = Counter(job.status for job in every)
    running = [line for line in snapshot.own if line.status == "running"]
    waiting = sorted((job for job in every if job.status == "waiting"), key=lambda job: (-job.priority, job.created))
    known = sorted(site.known_studies(), key=lambda study: (study.status != "running", -study.updated))
    # Trials of a study are judged by it, and are not tested; its page lists them.
    over = [line for line in snapshot.own if line.status == "finished" and (line.study is None or line.result)]
    finished = sorted(over, key=lambda line: -line.updated)
    champions = site.registry.names()
    return {
        **identity(site),
        "now": time.time(),
        "store": site.store.place,
        "empty": not (snapshot.lines or every or known),
        "first_command": FIRST,
        "service": service(site),
        "machine": site.machine.now(site.steps_per_second()),
        "history": site.machine.history(),
        "running": [jobs.content(job, site) for job in every if job.status == "running"][:SHOWN_RUNNING],
        "running_runs": [{**line.content(), "live": live(site, line.id)} for line in running[:SHOWN_RUNNING]],
        "queue": {
            **{status: counts[status] for status in ("waiting", "running", "paused", "failed")},
            "next": [jobs.content(job, site) for job in waiting[:SHOWN_WAITING]],
        },
        "studies": [studies.line(site, study) for study in known[:SHOWN_STUDIES]],
        "finished": [site.index.with_baseline(line) for line in finished[:SHOWN_FINISHED]],
        "counts": {"runs": len(snapshot.own), "jobs": len(every), "studies": len(known), "champions": len(champions)},
    }


@routes.get("/api/whoami")
def whoami(site: Site, question: Question[Asked]) -> Any:
    """Say which server this is."""
    return identity(site)


def identity(site: Site) -> dict[str, Any]:
    """Return what a page says of the server."""
    return {"version": __version__, "folder": str(site.folder), "prefix": site.settings.prefix}


def service(site: Site) -> dict[str, Any]:
    """Return which schedulers carry out the queue; the command that starts one if none does."""
    known = site.queue.services()
    flags = ["--folder", str(site.settings.folder)] + (["--store", "…"] if site.settings.store else [])
    found = [
        {
            "machine": str(one["machine"]).partition("|")[0],
            "started": one["started"],
            "updated": one["updated"],
            "budget": one["budget"],
        }
        for one in known
    ]
    command = shlex.join(["velodrome", "serve", "--no-dashboard", *flags])
    return {"running": bool(found), "services": found, "command": command}


def live(site: Site, run: str) -> dict[str, Any] | None:
    """Return the figure that tells how a training comes along."""
    found = site.store.last_metrics(run, [name for name, _ in LIVE])
    return next(({"name": name, "label": told, "value": found[name]} for name, told in LIVE if name in found), None)
