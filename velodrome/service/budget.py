"""What a machine gives to trainings, what fits into it, and whose turn it is."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from velodrome.errors import ConfigError
from velodrome.runs.machine.use import bytes_text
from velodrome.service.job import Job
from velodrome.service.queue import Choice, Waiting
from velodrome.turns import POLICIES, Policy, Turn, policy_of

PASSING_SECONDS = 300.0  # so long others may pass a training that does not fit yet; then room is kept for it
MEMORY_SHARE = 0.9  # of the machine's, unless a person says otherwise


class Gpu(NamedTuple):
    """A GPU as it is now."""

    id: str  # as CUDA_VISIBLE_DEVICES takes it
    total: int  # bytes
    free: int


@dataclass(frozen=True)
class Resources:
    """What a machine has."""

    cores: int
    memory: int  # bytes, of all of it
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Budget:
    """What trainings may use of a machine at any moment. None: as much as there is (environments: any number)."""

    cores: int | None = None
    max_concurrent_envs: int | None = None
    memory: int | None = None  # bytes
    gpu_memory: int | None = None  # bytes, of each GPU

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < (0 if name == "gpu_memory" else 1):
                raise ConfigError(
                    f"{name} = {value}: a budget is 1 or more; leave it out to give what the machine has."
                )

    def within(self, there: Resources) -> Budget:
        """Return it with numbers throughout: more than there is cannot be given, but for cores, which may be shared."""
        memory = int(there.memory * MEMORY_SHARE) if self.memory is None else self.memory
        largest = max((gpu.total for gpu in there.gpus), default=0)
        gpu_memory = largest if self.gpu_memory is None else min(self.gpu_memory, largest)
        cores = there.cores if self.cores is None else self.cores
        return replace(self, cores=cores, memory=min(memory, there.memory), gpu_memory=gpu_memory)

    def told(self) -> str:
        """Return it in words."""
        given = [need.told(need.given) for need in needs(_NOTHING, self) if need.given]
        return ", ".join(given)

    def content(self) -> dict[str, Any]:
        """Return it in plain values; `Budget(**content)` reads them."""
        return asdict(self)


class Need(NamedTuple):
    """One thing that a training needs."""

    name: str
    needed: int
    given: int | None  # by the budget; None: any number

    def told(self, amount: int) -> str:
        """Return an amount of it in words."""
        if "memory" in self.name:
            return f"{bytes_text(amount)} of {self.name}"
        return f"{amount:,} {self.name if amount != 1 else self.name.removesuffix('s')}"


def needs(job: Job, budget: Budget) -> Iterator[Need]:
    """Yield what a training needs and what the budget has of it."""
    yield Need("cores", job.cores, budget.cores)
    yield Need("environments", job.envs, budget.max_concurrent_envs)
    yield Need("memory", job.memory, budget.memory)
    yield Need("GPU memory", job.gpu_memory, budget.gpu_memory)


def why_never(job: Job, budget: Budget) -> str | None:
    """Return why a training cannot fit into a budget even when nothing else runs, as a sentence; None if it can."""
    lacking = [need for need in needs(job, budget) if need.given is not None and need.needed > need.given]
    if not lacking:
        return None
    need = lacking[0]
    flags = {"cores": "--cores", "environments": "--max-concurrent-envs", "memory": "--memory"}
    flag = flags.get(need.name, "--gpu-memory")
    less = {"cores": "--cores", "environments": "num_envs", "memory": "--memory"}.get(need.name, "--gpu-memory")
    if need.name == "GPU memory" and not need.given:
        return f"it needs {need.told(need.needed)}, and there is no GPU. Use device=cpu, or a machine that has one."
    return (
        f"it needs {need.told(need.needed)}, and the budget has {need.told(need.given or 0)}. Give it less ({less}), "
        f"or the service more (velodrome serve {flag})."
    )


class Room:
    """What is left of a budget while trainings are chosen."""

    def __init__(self, budget: Budget, there: Resources, running: Sequence[Job]) -> None:
        self._left = {need.name: need.given for need in needs(_NOTHING, budget)}
        self._gpus = {gpu.id: min(gpu.free, self._of_gpu(gpu, budget, running)) for gpu in there.gpus}
        del self._left["GPU memory"]  # counted for each GPU
        for job in running:
            self.take(job, "")

    @staticmethod
    def _of_gpu(gpu: Gpu, budget: Budget, running: Sequence[Job]) -> int:
        """Return what is left of a GPU by what our trainings may take; others may have taken more, or less is used."""
        most = gpu.total if budget.gpu_memory is None else budget.gpu_memory
        return most - sum(job.gpu_memory for job in running if job.gpu == gpu.id)

    def gpu_for(self, job: Job) -> str | None:
        """Return the GPU with most memory left if that is enough, else None; '' for a training that needs none."""
        if not job.gpu_memory:
            return ""
        best = max(self._gpus, key=lambda gpu: self._gpus[gpu], default=None)
        return best if best is not None and self._gpus[best] >= job.gpu_memory else None

    @property
    def is_full(self) -> bool:
        """Whether no training fits any more, however small."""
        return any(room is not None and room < 1 for room in self._left.values())

    def fits(self, job: Job) -> bool:
        """Return whether a training fits beside those that run."""
        left = [(need.needed, self._left[need.name]) for need in needs(job, Budget()) if need.name in self._left]
        return all(room is None or needed <= room for needed, room in left) and self.gpu_for(job) is not None

    def take(self, job: Job, gpu: str) -> None:
        """Count what a training takes."""
        for need in needs(job, Budget()):
            if (room := self._left.get(need.name)) is not None:
                self._left[need.name] = room - need.needed
        if gpu:
            self._gpus[gpu] -= job.gpu_memory


_NOTHING = Job("", "", "", {}, "", "", 0.0, 0.0)


def choose(
    waiting: Waiting, budget: Budget, there: Resources, now: float | None = None, policy: str | Policy = "fair"
) -> list[Choice]:
    """Return the trainings that begin now.

    policy: which one is next. fair: the highest priority first; within one, the owner who has least of the machine now,
    then who was served longest ago, then who came first. A training that does not fit is passed by others that do, but
    not for ever.
    """
    turn_of, is_own = policy_of(policy), callable(policy) or policy not in POLICIES
    now = time.time() if now is None else now
    room, chosen = Room(budget, there, waiting.running), []
    share: dict[str, int] = defaultdict(int)
    served = dict(waiting.served)
    for job in waiting.running:
        share[job.owner] += job.cores
    # Those of one owner and priority are in order already, so that only their first ones are compared.
    lines: dict[tuple[int, str, str], deque[Job]] = defaultdict(deque)
    for job in sorted(waiting.jobs, key=lambda each: (each.created, each.id)):
        if why_never(job, budget) is None:
            lines[-job.priority, job.owner, job.id if is_own else ""].append(job)
    while lines and not room.is_full:
        line = min(lines, key=lambda each: turn_of(_turn(lines[each][0], share, served)))
        job = lines[line].popleft()
        if not lines[line]:
            del lines[line]
        if room.fits(job):
            gpu = room.gpu_for(job) or ""
            room.take(job, gpu)
            chosen.append(Choice(job, gpu))
            share[job.owner] += job.cores
            served[job.owner] = now
        elif now - max(job.created, job.not_before) > PASSING_SECONDS:
            break  # room is kept for it
    return chosen


def _turn(job: Job, share: Mapping[str, int], served: Mapping[str, float]) -> Turn:
    return Turn(job.priority, share[job.owner], served.get(job.owner, 0.0), job.created, job.id)
