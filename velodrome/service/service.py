"""`AgentTrainingService`: submit trainings, follow them, pause, resume and cancel them, and carry them out."""

from __future__ import annotations

import getpass
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError, JobError
from velodrome.outside import code
from velodrome.runs.bucket.place import Bucket, bring, here, url_of
from velodrome.runs.config.files import Overrides, load_run_config, read_overrides
from velodrome.runs.config.run_config import RunConfig, dotted
from velodrome.runs.folder import folder_name, new_identity
from velodrome.runs.setup import with_bars
from velodrome.runs.store.store import open_store, whole_address
from velodrome.runs.together.processes import can_be_apart
from velodrome.runs.trained import Run, check_source, run_name
from velodrome.service.budget import Budget, why_never
from velodrome.service.executor import Executor, LocalExecutor
from velodrome.service.job import GPU_MEMORY, MEMORY, STALL_SECONDS, STATUSES, Job, legal_priority, read_bytes
from velodrome.service.queue import Event, Queue
from velodrome.service.scheduler import Patience, Scheduler
from velodrome.service.worker.task import folder_of, output_of
from velodrome.turns import Policy, policy_of

if TYPE_CHECKING:
    from velodrome.bars.frame import Bars
    from velodrome.bars.inspection import Source
    from velodrome.runs.store.store import SqlStore

LOOK_SECONDS = 0.2
Named = str | Job  # a job, its id, the unique start of it, its name, or "latest"


class AgentTrainingService:
    """Trainings in a queue, several at once under one budget.

    The queue lives in the store, so that submitting and asking need no running service. Trainings are carried out by
    `run`, by `velodrome serve --no-dashboard`, or while it is open as a context:

        with vd.AgentTrainingService("runs", cores=2) as service:
            jobs = [service.submit("demo", seed=seed) for seed in range(4)]
            finished = service.wait(jobs)

    folder: of the runs, or its URL. store: URL of their store, if it is not in that folder. Budget: `cores`,
    `max_concurrent_envs`, `memory` and `gpu_memory` (of each GPU) that all trainings on this machine may use together,
    memory as bytes or as a text such as "8GB"; what is left out is what the machine has. trust: code that a job names
    may be imported though it was not used here before (docs/security.md). executor: where trainings run, this machine
    if not given. policy: whose turn it is: "fair", "fifo", "priority", or a function of a `velodrome.turns.Turn`.
    """

    def __init__(
        self,
        folder: str | Path = "runs",
        store: str | None = None,
        *,
        cores: int | None = None,
        max_concurrent_envs: int | None = None,
        memory: int | str | None = None,
        gpu_memory: int | str | None = None,
        trust: bool = False,
        patience: Patience | None = None,
        executor: Executor | None = None,
        policy: str | Policy = "fair",
    ) -> None:
        sizes = {"memory": memory, "gpu_memory": gpu_memory}
        read = {name: None if size is None else read_bytes(size, name) for name, size in sizes.items()}
        self.budget = Budget(cores, max_concurrent_envs, read["memory"], read["gpu_memory"])
        self.folder, self.trust = here(folder).resolve(), trust
        self.url = None if store is None else whole_address(store)  # trainings run where they were submitted
        self.place = url_of(folder) or str(self.folder)  # as other machines know the folder
        policy_of(policy)  # refuse an unknown one now
        self.executor, self.policy = executor or LocalExecutor(), policy
        lease = getattr(self.executor, "lease_seconds", Patience.lease)  # on a cluster, tasks take longer to begin
        self.patience = patience or Patience(lease=lease)
        self.store: SqlStore = open_store(self.folder, store)
        self.queue = Queue(self.store)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None  # what ended it
        self._scheduler = ""  # id of the last one

    # Asking for trainings

    def submit(
        self,
        config: str | Path | Mapping[str, Any] | RunConfig | None = None,
        changes: Sequence[str] | Mapping[str, Any] = (),
        *,
        owner: str | None = None,
        priority: int = 0,
        cores: int = 1,
        memory: int | str | None = None,
        gpu_memory: int | str | None = None,
        stall_seconds: float = STALL_SECONDS,
        evaluate: bool = True,
        bars: Bars | Source | None = None,
        trust: bool = False,
        **overrides: Any,
    ) -> Job:
        """Put a training into the queue and return its job; one that cannot fit is refused at once.

        config, overrides: as for `vd.train`; changes: the same as "key=value" texts, or by key.
        owner: whose it is, this user if not given; owners share a machine fairly. priority: higher ones begin first.
        cores, memory, gpu_memory: what it needs. Told memory is a limit; else it is learnt from what it takes.
        stall_seconds: without anything new in its folder, after which it is given up and tried again.
        evaluate: play the final split at the end and write the report.
        bars: prices that a program has, as for `vd.train`; they are kept beside the runs.
        """
        chosen = load_run_config(config, changes)
        check_source(config, chosen, trust)
        self.check_folder(changes, overrides)
        if bars is not None:
            chosen, _ = with_bars(chosen, {**overrides, "logging.folder": self.place}, bars)
        else:
            chosen = load_run_config(chosen, overrides)
        chosen = self.placed(chosen)
        about: dict[str, Any] = {"owner": owner, "priority": priority, "cores": cores, "memory": memory}
        about |= {"gpu_memory": gpu_memory, "stall_seconds": stall_seconds, "evaluate": evaluate}
        job = self.job_of(chosen, **about)
        # Its user has named them, and the store, which its run will name.
        code.trust(load_run_config(chosen, {"logging.store": self.url}).code_names())
        self.queue.submit(job)
        return job

    def job_of(
        self,
        chosen: RunConfig,
        *,
        owner: str | None = None,
        priority: int = 0,
        cores: int = 1,
        memory: int | str | None = None,
        gpu_memory: int | str | None = None,
        stall_seconds: float = STALL_SECONDS,
        evaluate: bool = True,
        **about: Any,
    ) -> Job:
        """Return the job of a configuration that is `placed`, as `submit` takes it; one that cannot fit is refused.

        about: `id`, `study` and `trial`, of a trial's training.
        """
        if cores < 1:
            raise ConfigError(f"cores = {cores}: a training needs more than none.")
        if not 0.0 < stall_seconds < math.inf:
            raise ConfigError(f"stall_seconds = {stall_seconds:g}: a training needs more than none, and an end to it.")
        needs_gpu = self._needs_gpu(chosen)
        identity, now, name = about.pop("id", None) or new_identity(), time.time(), run_name(chosen)
        job = Job(
            identity,
            name,
            legal_owner(owner),
            chosen.content(),
            str(Path.cwd()),
            folder_name(name, now, identity),
            created=now,
            updated=now,
            priority=legal_priority(priority),
            evaluate=evaluate,
            cores=cores,
            envs=self._envs(chosen, 1 if needs_gpu else cores),
            memory=MEMORY if memory is None else read_bytes(memory, "memory"),
            memory_is_limit=memory is not None,
            gpu_memory=0
            if not needs_gpu
            else GPU_MEMORY
            if gpu_memory is None
            else read_bytes(gpu_memory, "gpu_memory"),
            stall_seconds=float(stall_seconds),
            **about,
        )
        self._check_fits(job)
        return job

    def _envs(self, config: RunConfig, cores: int) -> int:
        """Return how many environments a training has at once: those of all its members that are trained side by side.

        The first is trained alone, the others in as many processes as there are cores, and as a budget has room for.
        """
        if config.vector.autoscale:
            return max(config.num_envs, config.vector.max_envs or 0)
        apart = min(config.trainings - 1, cores) if can_be_apart(config) else 1
        if apart < 2:
            return config.num_envs
        given = [budget.max_concurrent_envs for budget in self._budgets()]
        room = max(apart if most is None else most // config.num_envs for most in given)
        return config.num_envs * max(min(apart, room), 1)

    def placed(self, config: RunConfig) -> RunConfig:
        """Return a configuration whose run and rows go where the queue is."""
        named = config.logging.store
        if named is not None and whole_address(named) != self.url:
            raise ConfigError(
                f"logging.store = {named!r}, and the queue is in {self.store.place}: its rows lie beside it. Leave "
                "logging.store out, or name that store for the queue (--store)."
            )
        return load_run_config(config, {"logging.folder": self.place, "logging.store": None})

    def check_folder(self, *given: Overrides) -> None:
        """Refuse a folder for the runs, given beside a configuration, that is not the queue's."""
        named = {key: value for one in given for key, value in dotted(read_overrides(one)).items()}.get(
            "logging.folder"
        )
        if named is not None and (url_of(named) or str(here(named).resolve())) != self.place:
            raise ConfigError(
                f"logging.folder = {str(named)!r}, and the runs of this queue lie in {self.place}. Leave "
                f"logging.folder out, or name that folder for the queue: --folder {shlex.quote(str(named))}."
            )

    def _budgets(self) -> Sequence[Budget]:
        """Return the budgets of the services that are there; of this machine if there is none."""
        known = [Budget(**service["budget"]) for service in self.queue.services()]
        return known or [self.budget.within(self.executor.resources())]

    def _needs_gpu(self, config: RunConfig) -> bool:
        """Return whether a training uses a GPU; services may run on machines that have one though this has none."""
        if not self.queue.services():
            return config.usable_device() == "cuda"
        told = {config.device, config.vector.env_type}
        open_to_both = config.device == "auto" and config.vector.env_type not in ("native", "python")
        return "cuda" in told or (open_to_both and any(budget.gpu_memory for budget in self._budgets()))

    def _check_fits(self, job: Job) -> None:
        """Refuse a job that fits into no budget."""
        refusals = [why_never(job, budget) for budget in self._budgets()]
        if all(refusals):
            raise JobError(f"this training can never begin: {refusals[0]}")

    # Following them

    def list(self, status: str | None = None, owner: str | None = None, limit: int | None = None) -> list[Job]:
        """Return jobs, newest first."""
        if status is not None and status not in STATUSES:
            raise ConfigError(f"status {status!r}: a job is {', '.join(STATUSES)}.")
        return self.queue.jobs(status, owner, limit)

    def job(self, job: Named) -> Job:
        """Return a job as it is now."""
        return self.queue.job(_id(job))

    def events(self, job: Named) -> Sequence[Event]:
        """Return what happened to a job, oldest first."""
        return self.queue.events(self.job(job).id)

    def run_of(self, job: Named) -> Run:
        """Return the run of a job that has begun."""
        found = self.job(job)
        bring(self.folder / found.folder, whole=True)
        folder = folder_of(self.folder, found)
        if folder is None:
            raise JobError(f"job {found.id} has no run yet: it is {found.status}.")
        return Run.of(folder)

    def log_path(self, job: Named) -> Path:
        """Return the file of what a job's processes print."""
        file = output_of(self.folder, self.job(job).id)
        if (bucket := Bucket.behind(self.folder)) is not None and not file.exists():
            bucket.bring_file(file)
        return file

    def watch(self, jobs: Named | Iterable[Named] | None = None, seconds: float | None = None) -> Iterator[Job]:
        """Yield jobs whenever they change, until all of them are over or paused.

        jobs: those that wait or run, if none is given. seconds: at most so long.
        """
        chosen = self._chosen(jobs)
        deadline = None if seconds is None else time.monotonic() + seconds
        before: dict[str, Job] = {}
        while chosen:
            chosen = self.queue.refreshed(chosen)
            for job in chosen:
                last = before.get(job.id)
                if last is None or _shown(last) != _shown(job):
                    before[job.id] = job
                    yield job
            chosen = [job for job in chosen if not (job.is_over or job.status == "paused")]
            if deadline is not None and time.monotonic() > deadline:
                return
            if chosen and self._failed is not None:
                raise JobError(
                    f"the service of this program has ended, and nothing carries out its trainings: {self._failed}"
                ) from self._failed
            if chosen:
                time.sleep(LOOK_SECONDS)

    def wait(self, jobs: Named | Iterable[Named] | None = None, seconds: float | None = None) -> Sequence[Job]:
        """Wait until jobs are over or paused, and return them; those that wait or run, if none is given."""
        chosen = self._chosen(jobs)
        for _ in self.watch(chosen, seconds):
            continue
        return self.queue.refreshed(chosen)

    def _chosen(self, jobs: Named | Iterable[Named] | None) -> Sequence[Job]:
        if jobs is None:
            return [job for job in self.queue.jobs() if job.status in ("waiting", "running")]
        return [self.job(job) for job in ([jobs] if isinstance(jobs, str | Job) else jobs)]

    # Changing their course

    def pause(self, job: Named) -> Job:
        """Let a training save and stop until it is resumed."""
        return self.queue.pause(_id(job))

    def resume(self, job: Named) -> Job:
        """Let a training that is paused, or that failed, go on from its last checkpoint."""
        return self.queue.resume(_id(job))

    def cancel(self, job: Named) -> Job:
        """Stop a training for good; its run stays."""
        return self.queue.cancel(_id(job))

    def set_priority(self, job: Named, priority: int) -> Job:
        """Say how early a training begins: higher ones first."""
        return self.queue.set_priority(_id(job), priority)

    def drain(self) -> Sequence[Job]:
        """Let every service on this store start nothing more and end, and what runs save, stop and wait."""
        return self.queue.drain()

    # Carrying them out

    def run(
        self,
        *,
        until_empty: bool = False,
        tell: Callable[[str], None] | None = None,
        beside: Callable[[], object] | None = None,
        study: str | None = None,
    ) -> None:
        """Carry out trainings until `stop` is called, until drained, or until nothing is left to do.

        beside: what else is done at each turn; studies are kept if nothing is given. study: only its trainings.
        """
        from velodrome.service.studies import StudiesKeeper

        about: dict[str, Any] = {} if tell is None else {"tell": tell}
        about |= {"beside": beside or StudiesKeeper(self).advance, "study": study, "policy": self.policy}
        scheduler = Scheduler(
            self.queue, self.executor, self.place, self.url, self.budget, self.patience, self.trust, **about
        )
        self._scheduler = scheduler.id
        scheduler.run(self._stop, until_empty)

    def allow_to_run(self) -> None:
        """Forget that somebody asked to stop."""
        self._stop.clear()

    def ask_to_stop(self) -> None:
        """Let `run` end soon; a handler of signals may call this."""
        self._stop.set()

    def stop(self, save: bool = True) -> None:
        """End `run`; save: what runs on this machine saves and stops, else it goes on by itself."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if save:
            self.save_own()

    def save_own(self, study: str | None = None) -> None:
        """Let the trainings on this machine, or those of a study, save, stop and wait for the next service."""
        own = [job for job in self.queue.running() if job.machine == self.executor.machine]
        own = [job for job in own if study is None or (job.study == study and job.service == self._scheduler)]
        self.queue.preempt([job.id for job in own])
        deadline = time.monotonic() + self.patience.drain + 5.0
        while own and time.monotonic() < deadline:
            running = {job.id for job in self.queue.running()}
            own = [job for job in own if job.id in running]
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Let go of the store and of the process that starts trainings; those that run go on."""
        self.executor.close()
        self.store.close()

    def __enter__(self) -> AgentTrainingService:
        self._stop.clear()
        self._failed = None
        self._thread = threading.Thread(target=self._serve, name="velodrome service", daemon=True)
        self._thread.start()
        return self

    def _serve(self) -> None:
        try:
            self.run()
        except BaseException as error:  # whoever waits for trainings is told
            self._failed = error

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.close()


def _id(job: Named) -> str:
    return job.id if isinstance(job, Job) else job


def _shown(job: Job) -> tuple[Any, ...]:
    return job.status, job.wanted, job.steps, job.attempt, job.message, job.priority


def legal_owner(owner: str | None) -> str:
    try:
        found = getpass.getuser() if owner is None else owner
    except (KeyError, OSError):  # a user without a name
        found = "unknown"
    if not 0 < len(found) <= 100 or not found.isprintable():
        raise ConfigError(f"owner={found[:40]!r}: an owner is 1 to 100 characters that can be printed.")
    return found
