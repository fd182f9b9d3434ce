"""Runs: the list, one of them, several side by side, their metrics as curves and as a file, and their logs."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from velodrome.dashboard.answers import Asked, Download, Encoded, Page, Question, Refusal, Routes, Stretch
from velodrome.dashboard.api import populations
from velodrome.dashboard.api.evaluations import official_table, saved_evaluations
from velodrome.dashboard.api.jobs import content as job_content
from velodrome.dashboard.api.logs import Part, part_of
from velodrome.dashboard.api.promotion import Promotion
from velodrome.dashboard.index import RunLine
from velodrome.dashboard.site import Site, file_inside
from velodrome.errors import ConfigError
from velodrome.outside.files import UNFIT, read_json
from velodrome.runs.config.changes import told_lineage
from velodrome.runs.config.files import preset_names, preset_settings
from velodrome.runs.config.messages import all_fields
from velodrome.runs.config.run_config import dotted
from velodrome.runs.folder import INFORMATION
from velodrome.runs.live.progress import PHASE_NAMES
from velodrome.runs.report import listing
from velodrome.runs.report.speed import mean_speed

routes = Routes()
MOST_COMPARED, MOST_RUNS, MOST_NAMES, MOST_CURVES = 64, 256, 64, 1024
OVER = ("finished", "interrupted", "failed", "killed")
LAUNCHER = re.compile(r"^python\S* (?:\S*/velodrome|-m velodrome) ")  # by which the command was found
WORKER = "velodrome.service.worker"
SPLIT = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$"


class RunsQuery(Page):
    """Which runs, and in which order."""

    q: str = Field("", max_length=200, description="part of a name, an id, an environment or an algorithm")
    status: str | None = Field(None, max_length=40, description="running, finished, interrupted, failed or killed")
    env: str | None = Field(None, max_length=200)
    algorithm: str | None = Field(None, max_length=200)
    study: str | None = Field(None, max_length=100, description="id of the study that they belong to")
    data: str | None = Field(None, max_length=100, description="hash of the data that they were trained on")
    sort: Literal["created", "updated", "name", "status", "env", "algorithm", "steps", "steps_per_second", "result"] = (
        "created"
    )
    order: Literal["desc", "asc"] = "desc"


@routes.get("/api/runs", RunsQuery)
def runs(site: Site, question: Question[RunsQuery]) -> Any:
    """List runs; a group of training seeds is one line."""
    asked = question.asked
    found = site.index.snapshot().own
    words = asked.q.lower().split()
    found = [line for line in found if all(_holds(line, word) for word in words)]
    facets = {name: Counter(getattr(line, name) for line in found) for name in ("status", "env", "algorithm")}
    wanted = {"status": asked.status, "env": asked.env, "algorithm": asked.algorithm}
    wanted |= {"study": asked.study, "data_hash": asked.data}
    for name, value in wanted.items():
        found = found if value is None else [line for line in found if getattr(line, name) == value]
    ordered = _ordered(found, asked.sort, asked.order == "desc")
    shown = [site.index.with_baseline(line) for line in ordered[asked.offset : asked.offset + asked.limit]]
    return {"total": len(found), "offset": asked.offset, "limit": asked.limit, "runs": shown, "facets": facets}


def _holds(line: RunLine, word: str) -> bool:
    return any(word in text for text in (line.name.lower(), line.id, line.env.lower(), line.algorithm.lower()))


def _ordered(lines: list[RunLine], sort: str, descending: bool) -> list[RunLine]:
    """Return lines in an order; those that lack what they are sorted by come last either way."""

    def value(line: RunLine) -> Any:
        return (line.result or {}).get("value") if sort == "result" else getattr(line, sort)

    known = [line for line in lines if value(line) is not None]
    return [*sorted(known, key=value, reverse=descending), *(line for line in lines if value(line) is None)]


@routes.get("/api/runs/{id}")
def show(site: Site, question: Question[Asked]) -> Any:
    """Show everything that is known of a run."""
    line = site.line(question.path["id"])
    record = site.store.run(line.id)
    lines = site.index.snapshot().lines
    job = site.queue.find(line.id)
    metrics = site.store.last_metrics(line.id)
    found = {**site.index.with_baseline(line), "data_hash": record.data_hash, "versions": record.versions}
    found |= site.held(("told", line.id), line.mark, lambda: _told(line, record.config))
    found |= {
        "config": dotted(record.config),
        "members": [site.index.with_baseline(lines[member]) for member in line.members if member in lines],
        "mean_steps_per_second": site.held(
            ("speed", line.id), line.mark, lambda: mean_speed(site.store, line.members or (line.id,))
        ),
        "metrics": metrics,
        "metric_groups": _groups(metrics),
        "phases": _phases(metrics),
        "evaluations": saved_evaluations(line),
        "official": official_table(line),
        "overfitting": site.held(("overfitting", line.id), line.mark, lambda: listing.overfitting(site.store, record)),
        "checkpoints": [
            {"step": row.step, "pinned": row.pinned, "time": row.time} for row in site.store.checkpoints(line.id)
        ],
        "lineage": [
            {"step": row.step, "parent": row.parent, "text": told_lineage(row._asdict())}
            for _, row in site.store.lineage(line.id)
        ],
        "children": [{"id": child, "step": row.step} for child, row in site.store.lineage(parent=line.id)],
        "population": populations.of_run(site, line),
        "job": None if job is None else job_content(job, site),
        "has_log": (line.folder / "log.txt").is_file(),
        "has_folder": (line.folder / INFORMATION).is_file(),
    }
    found["actions"] = _actions(line, found)
    return found


def _actions(line: RunLine, found: dict[str, Any]) -> list[str]:
    """Return what can be asked of a run now."""
    job = found["job"]
    possible = [name for name in (job["actions"] if job else ()) if name != "priority"]
    if line.status in OVER and found["has_folder"] and (found["checkpoints"] or found["members"]):
        possible += ["evaluate", "promote"]
    return possible


def _told(line: RunLine, config: dict[str, Any]) -> dict[str, Any]:
    """Return what a run was told, where that differs from its preset or from the defaults, and where it was made."""
    try:
        about = read_json(line.folder / INFORMATION)
    except (OSError, *UNFIT):
        about = {}
    command = LAUNCHER.sub("velodrome ", str(about.get("command") or ""))
    if WORKER in command:  # the service began it: nobody can type that
        command = ""
    preset = next((name for name in preset_names() if re.search(rf"\s{re.escape(name)}(\s|$)", command)), None)
    settings = {} if preset is None else preset_settings(preset)
    try:
        changed = listing.config_differences(config)
    except ConfigError:  # of another version, or of an environment that is not here
        changed = {}
    meanings = _meanings(line.env)
    differences = [
        {"key": key, "value": value, "default": default, "preset": settings.get(key), "meaning": meanings.get(key, "")}
        for key, (value, default) in changed.items()
    ]
    machine = about.get("machine")
    told = {"preset": preset, "differences": differences, "command": command}
    actions = about.get("actions")
    told |= {"machine": machine, "git_commit": about.get("git_commit")}
    return told | {"action_names": [str(name) for name in actions] if isinstance(actions, list) else []}


@functools.lru_cache(maxsize=32)
def _meanings(env: str) -> dict[str, str]:
    try:
        return {key: field.description or "" for key, field in all_fields(env).items()}
    except ConfigError:
        return {}


def _groups(metrics: dict[str, float]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(metrics):
        found.setdefault(name.partition("/")[0], []).append(name)
    return found


def _phases(metrics: dict[str, float]) -> dict[str, float]:
    """Return the shares of time of the phases of a training, as it last measured them."""
    shares = {name: metrics[key] for name in PHASE_NAMES if (key := f"time/{name}") in metrics}
    whole = sum(shares.values())
    return {name: value / whole for name, value in shares.items()} if whole else {}


class Several(Asked):
    """Which runs."""

    runs: str = Field(max_length=20_000, description="their ids, separated by commas")


@routes.get("/api/compare", Several)
def compare(site: Site, question: Question[Several]) -> Any:
    """Show runs side by side: what they were told, and what came of it."""
    lines = site.lines(question.asked.runs, MOST_COMPARED)
    own = [site.index.with_baseline(line) for line in lines]
    if len(lines) == 1:
        return {"runs": own, "differences": [], "metrics": {}, "evaluations": {}, "same_data": True}
    found = listing.compared(site.store, [site.store.run(line.id) for line in lines])
    differences = [{"key": key, "values": values} for key, values in found["config"].items()]
    kept = {name: found[name] for name in ("metrics", "evaluations", "same_data")}
    return {"runs": own, "differences": differences, **kept}


# Metrics


class MetricsQuery(Stretch, Several):
    """Which metrics of which runs."""

    names: str = Field(max_length=20_000, description="names of metrics, separated by commas")


@routes.get("/api/metrics", MetricsQuery)
def metrics(site: Site, question: Question[MetricsQuery]) -> Any:
    """Return metrics as curves over steps, no more points of each than asked for; of a group, one for each member."""
    asked = question.asked
    names = list(dict.fromkeys(name for name in asked.names.split(",") if name))
    if not 0 < len(names) <= MOST_NAMES:
        raise Refusal(422, f"names: {len(names)} are named; 1 to {MOST_NAMES} are legal, separated by commas.")
    lines, known = site.lines(asked.runs, MOST_RUNS), site.index.snapshot().lines
    wanted = []
    for line in lines:
        for member in [known[one] for one in line.members if one in known] or [line]:
            seed = member.seed if line.members else None
            about = {"group": line.id if line.members else None, "seed": seed, "member": member.id}
            wanted += [(member, name, {**about, "label": f"{line.name} {name}"}) for name in names]
    if len(wanted) > MOST_CURVES:
        raise Refusal(422, f"these are {len(wanted)} curves; {MOST_CURVES} at once are legal.")
    stretch = Stretch(**{"points": asked.points, "from": asked.begin, "to": asked.end})
    parts = [site.curves.written(line.id, name, stretch, line.mark, about) for line, name, about in wanted]
    return Encoded(b'{"curves":[' + b",".join(parts) + b"]}")


class ExportQuery(Several):
    """Which metrics of which runs."""

    names: str = Field("", max_length=20_000, description="names of metrics, separated by commas; all if none is given")


@routes.get("/api/metrics.csv", ExportQuery)
def export(site: Site, question: Question[ExportQuery]) -> Any:
    """Return all rows of metrics as a CSV file."""
    lines = site.lines(question.asked.runs, MOST_RUNS)
    names = [name for name in question.asked.names.split(",") if name] or None
    file = f"{lines[0].name}-{lines[0].id}-metrics.csv" if len(lines) == 1 else "metrics.csv"
    known = site.index.snapshot().lines

    def rows() -> Iterator[bytes]:
        yield b"run,seed,step,name,value,time\n"
        for line in lines:
            for one in line.members or (line.id,):
                frame = site.store.metrics(one, names)
                seed = known[one].seed if one in known else line.seed
                columns = {"run": one, "seed": seed}
                import polars as pl

                told = frame.select(*(pl.lit(value).alias(name) for name, value in columns.items()), pl.all())
                yield told.write_csv(include_header=False).encode()

    return Download(file, rows())


@routes.get("/api/runs/{id}/log", Part)
def log(site: Site, question: Question[Part]) -> Any:
    """Return a part of a run's log; its end if nothing else is asked for."""
    line = site.line(question.path["id"])
    return part_of(file_inside(line.folder, "log.txt"), question.asked)


# What is asked of a run


class Evaluation(Asked):
    """On which split a run is evaluated."""

    split: str | None = Field(None, pattern=SPLIT, description="the final one if not given")
    official: bool = Field(False, description="the environment's own evaluation, such as CAGE-2's scores")


@routes.post("/api/runs/{id}/evaluate", Evaluation, status=202)
def evaluate(site: Site, question: Question[Evaluation]) -> Any:
    """Evaluate a run on data it never saw; a task that takes a while."""
    line = site.line(question.path["id"])
    site.run(line)
    return site.tasks.evaluate(line.id, question.asked.split, question.asked.official).content()


@routes.post("/api/runs/{id}/promote", Promotion, status=202)
def promote(site: Site, question: Question[Promotion]) -> Any:
    """Make a run the champion if it passes every check; a task that takes a while."""
    line = site.line(question.path["id"])
    site.run(line)
    return site.tasks.promote(question.asked.name, question.asked.margin, run=line.id).content()
