"""Populations: how far they are, and who was in each round, with which settings and scores, and gone on from whom.

They are found by their files, in the folder of the runs and in those right below it. Their members are runs of this
store where it is also that of the population.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from velodrome.dashboard.answers import Asked, Question, Refusal, Routes
from velodrome.dashboard.index import RunLine
from velodrome.dashboard.site import Site
from velodrome.errors import RunError, did_you_mean
from velodrome.tune.population.kept import FILE, Kept, Member, is_judged, read

routes = Routes()
log = logging.getLogger("velodrome.dashboard")


def known(site: Site) -> Iterator[Kept]:
    """Yield the populations whose files can be read."""
    try:
        below = [Path(entry.path) for entry in os.scandir(site.folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # a folder of runs that is gone has none
        below = []
    for folder in (site.folder, *sorted(below)):
        if (found := _read(folder)) is not None:
            yield found


def _read(folder: Path) -> Kept | None:
    try:
        return read(folder)
    except RunError as error:
        log.warning("%s", error)
        return None


def line(site: Site, kept: Kept) -> dict[str, Any]:
    """Return a population as lists show it."""
    best = kept.best
    return {
        "name": kept.folder.name,
        "status": kept.status,
        "score": kept.plan["score"],
        "members": kept.plan["members"],
        "rounds": kept.plan["rounds"],
        "over": sum(map(is_judged, kept.rounds)),
        "best": None if best is None else about(site, best),
        "updated": (kept.folder / FILE).stat().st_mtime,
    }


def about(site: Site, member: Member) -> dict[str, Any]:
    """Return a member as pages show it; its run has a link if this store knows it."""
    identity = str(member.run).rpartition("-")[2]
    found = site.index.line(identity)
    return {
        "run": member.run,
        "id": identity if found is not None else None,
        "settings": member.settings,
        "parent": member.parent,
        "score": member.score,
    }


def of_run(site: Site, run: RunLine) -> dict[str, Any] | None:
    """Return the population that a run is a member of: its name, the member's place, and its rounds there, from 1."""
    home = run.folder.parent
    kept = _read(home) if site.folder in (home, home.parent) else None
    rounds = enumerate([] if kept is None else kept.rounds, 1)
    places = [
        (number, place) for number, each in rounds for place, one in enumerate(each) if one.run == run.folder.name
    ]
    if kept is None or not places:
        return None
    (first, place), (last, _) = places[0], places[-1]
    return {"name": home.name, "member": place, "first": first, "last": last, "rounds": kept.plan["rounds"]}


@routes.get("/api/populations")
def populations(site: Site, question: Question[Asked]) -> Any:
    """List populations, the one that changed last first."""
    lines = [line(site, kept) for kept in known(site)]
    return {"populations": sorted(lines, key=lambda one: -one["updated"])}


@routes.get("/api/populations/{name}")
def show(site: Site, question: Question[Asked]) -> Any:
    """Show a population: its members round by round, their settings and scores, and who went on from whom."""
    name, there = question.path["name"], list(known(site))
    kept = next((one for one in there if one.folder.name == name), None)
    if kept is None:
        near = did_you_mean(name, [one.folder.name for one in there])
        raise Refusal(404, f"there is no population {name[:80]!r} in this folder.{near}")
    rounds = [[about(site, one) for one in each] for each in kept.rounds]
    has_runs = any(one["id"] for each in rounds for one in each)
    command = shlex.join(["velodrome", "serve", "--folder", str(kept.folder)])
    own = [str(one.get("key")) for one in kept.plan["space"] if isinstance(one, dict)]
    return {**line(site, kept), "history": rounds, "keys": own, "command": None if has_runs else command}
