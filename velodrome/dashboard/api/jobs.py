"""Trainings in the queue: submit, list, follow, pause, resume, cancel; and the tasks of this server."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from pydantic import Field

from velodrome.dashboard.answers import Answer, Asked, Page, Question, Refusal, Routes
from velodrome.dashboard.api.configuration import chosen_config, command_line
from velodrome.dashboard.api.logs import Part, part_of
from velodrome.dashboard.site import IDENTITY, Site
from velodrome.runs.config.run_config import dotted
from velodrome.service.job import MOST_PRIORITY, STATUSES, Job
from velodrome.service.listing import status_of
from velodrome.service.worker.task import output_of

routes = Routes()
HIDDEN = ("config", "directory", "folder", "process", "service", "beat", "not_before", "retried_at", "memory_is_limit")
# What can be asked of a job, by its status.
ACTIONS = {
    "waiting": ("pause", "cancel", "priority"),
    "running": ("pause", "cancel", "priority"),
    "paused": ("resume", "cancel", "priority"),
    "failed": ("resume",),
}


def content(job: Job, site: Site) -> dict[str, Any]:
    """Return a job in plain values."""
    found = {name: value for name, value in asdict(job).items() if name not in HIDDEN}
    about = {"shown": status_of(job), "total_steps": job.total_steps, "actions": list(ACTIONS.get(job.status, ()))}
    study = site.study_names().get(job.study) if job.study else None
    has_run = site.index.line(job.id) is not None  # what ends before its training begins never has one
    return {**found, **about, "study_name": study, "has_run": has_run, "machine": job.machine.partition("|")[0]}


def job_of(site: Site, identity: str) -> Job:
    """Return a job by its whole id; one that is not there is refused."""
    found = site.queue.find(identity) if IDENTITY.fullmatch(identity) else None
    if found is None:
        raise Refusal(404, f"there is no job {identity[:80]!r} in this store.")
    return found


class JobsQuery(Page):
    """Which jobs."""

    status: str | None = Field(None, description=f"one of {', '.join(STATUSES)}")
    owner: str | None = Field(None, max_length=100, description="whose they are")
    study: str | None = Field(None, max_length=100, description="id of the study that they belong to")


@routes.get("/api/jobs", JobsQuery)
def jobs(site: Site, question: Question[JobsQuery]) -> Any:
    """List trainings that were submitted, newest first."""
    asked = question.asked
    if asked.status is not None and asked.status not in STATUSES:
        raise Refusal(422, f"status {asked.status[:40]!r}: a job is {', '.join(STATUSES)}.")
    found = [job for job in site.queue.brief(asked.owner) if asked.study is None or job.study == asked.study]
    counts = Counter(job.status for job in found)
    chosen = [job for job in found if asked.status in (None, job.status)]
    shown = chosen[asked.offset : asked.offset + asked.limit]
    return {"total": len(chosen), "jobs": [content(job, site) for job in shown], "counts": counts}


@routes.get("/api/jobs/{id}")
def show(site: Site, question: Question[Asked]) -> Any:
    """Show a training: how far it is, why it ended, and what happened to it."""
    job = job_of(site, question.path["id"])
    events = [
        {"time": event.time, "kind": event.kind, "text": event.text, **event.data}
        for event in site.queue.events(job.id)
    ]
    return {**content(job, site), "events": events, "config": dotted(job.config)}


@routes.get("/api/jobs/{id}/log", Part)
def log(site: Site, question: Question[Part]) -> Any:
    """Return what the processes of a training printed."""
    job = job_of(site, question.path["id"])
    return part_of(output_of(site.folder, job.id), question.asked)


class Submission(Asked):
    """A training to put into the queue."""

    preset: str | None = Field(None, max_length=100, description="a preset to start from")
    settings: dict[str, Any] = Field(description="values by dotted key; {} for those of the preset alone")
    owner: str | None = Field(None, max_length=100, description="whose it is; the server's user if not given")
    priority: int = Field(0, ge=-MOST_PRIORITY, le=MOST_PRIORITY, description="higher ones begin first")
    cores: int = Field(1, ge=1, le=100_000)
    memory: str | None = Field(None, max_length=40, description="at most so much, such as 4GB")
    gpu_memory: str | None = Field(None, max_length=40, description="of a GPU that must be free, such as 8GB")
    evaluate: bool = Field(True, description="play the final split at the end")


@routes.post("/api/jobs", Submission, status=201)
def submit(site: Site, question: Question[Submission]) -> Any:
    """Put a training into the queue."""
    asked = question.asked
    config, problems = chosen_config(site, asked.preset, asked.settings)
    if config is None:
        message = "; ".join(problem["message"] for problem in problems)
        raise Refusal(422, message, problems=problems)
    options = asked.model_dump(exclude={"preset", "settings"})
    job = site.service.submit(config, **options)
    return {"job": content(job, site), "command": command_line("submit", asked.preset, asked.settings)}


def _ask(site: Site, question: Question[Any], work: Any) -> Any:
    return {"job": content(work(job_of(site, question.path["id"]).id), site)}


@routes.post("/api/jobs/{id}/pause")
def pause(site: Site, question: Question[Asked]) -> Any:
    """Let a training save and stop until it is resumed."""
    return _ask(site, question, site.service.pause)


@routes.post("/api/jobs/{id}/resume")
def resume(site: Site, question: Question[Asked]) -> Any:
    """Let a training that is paused, or that failed, go on from its last checkpoint."""
    return _ask(site, question, site.service.resume)


@routes.post("/api/jobs/{id}/cancel")
def cancel(site: Site, question: Question[Asked]) -> Any:
    """Stop a training for good; its run stays."""
    return _ask(site, question, site.service.cancel)


class Priority(Asked):
    """How early a training begins."""

    priority: int = Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY, description="higher ones begin first")


@routes.post("/api/jobs/{id}/priority", Priority)
def priority(site: Site, question: Question[Priority]) -> Any:
    """Say how early a training begins."""
    return _ask(site, question, lambda job: site.service.set_priority(job, question.asked.priority))


@routes.post("/api/drain")
def drain(site: Site, question: Question[Asked]) -> Any:
    """Let running trainings save and stop, and services end; one that is started later goes on with them."""
    return {"jobs": [content(job, site) for job in site.service.drain()]}


# Tasks


@routes.get("/api/tasks")
def tasks(site: Site, question: Question[Asked]) -> Any:
    """List evaluations and promotions that were asked for here, newest first."""
    return {"tasks": [task.content() for task in site.tasks.all()]}


@routes.get("/api/tasks/{id}")
def task(site: Site, question: Question[Asked]) -> Any:
    """Show a task and what it came to."""
    return site.tasks.get(question.path["id"]).content()


@routes.post("/api/tasks/{id}/cancel")
def cancel_task(site: Site, question: Question[Asked]) -> Any:
    """End a task."""
    return Answer(site.tasks.cancel(question.path["id"]).content())
