"""The process that trains: begins or continues the job's run, and says how that ended."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from velodrome.errors import BucketError, LearningError, RunLockedError, VelodromeError, chain
from velodrome.runs.bucket.place import Bucket
from velodrome.runs.folder import INFORMATION, folder_name
from velodrome.runs.machine import disk, memory
from velodrome.runs.store.fence import Fence
from velodrome.runs.store.store import open_store
from velodrome.service.job import Job
from velodrome.service.worker.task import DATA, Task, folder_of, shelf_of
from velodrome.vector.cores import ENVIRONMENTS
from velodrome.vector.cores import VARIABLE as CORES
from velodrome.writing import new_folder

if TYPE_CHECKING:
    from velodrome.runs.trained import Run
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

LEFT = ".left-"  # start of the name of a folder that another machine may still write into
COPIES = 5  # attempts


class Ended(NamedTuple):
    """How it ended: one of the kinds of `ENDS`, or 'stopped'."""

    kind: str
    message: str = ""


def train(task: Task, job: Job) -> Ended:
    """Train a job in this process."""
    try:
        _prepare(task, job)
        run = _run(task, job)
    except KeyboardInterrupt:
        return Ended("stopped")
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return Ended(kind_of(error), told(error))
    return Ended("finished") if run.status == "finished" else Ended("stopped")


def _prepare(task: Task, job: Job) -> None:
    """Give this process what the job may use, and nothing else."""
    import numba
    import torch

    Fence(task.job, task.attempt).set_for_process()
    os.environ.update({CORES: str(job.cores), ENVIRONMENTS: str(job.envs)})
    os.environ["CUDA_VISIBLE_DEVICES"] = job.gpu if task.gpus is None else task.gpus
    torch.set_num_threads(job.cores)
    numba.set_num_threads(min(job.cores, numba.config.NUMBA_NUM_THREADS))
    if not job.gpu_memory:  # whose driver reserves far more than it takes
        _limit_memory(2 * job.memory)
    if os.path.isdir(job.directory):
        os.chdir(job.directory)


def _limit_memory(more: int) -> None:
    """Let the system refuse this process more than so many bytes beyond what it has.

    Who takes memory quicker than the keeper looks is stopped here. The system counts what is reserved, which is more
    than what is used; hence the limit is not that of the job.
    """
    import resource

    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        has = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (has + more, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    except (OSError, StopIteration, ValueError) as error:
        sys.stderr.write(f"memory is not limited by the system: {error}\n")


def _run(task: Task, job: Job) -> Run:
    from rich.console import Console

    from velodrome.outside import code
    from velodrome.runs import run as running
    from velodrome.runs import setup
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.together.group import session_of
    from velodrome.runs.trained import check_code

    console = Console(width=120, color_system=None)
    config = load_run_config(load_run_config(job.config), {"logging.store": task.store})
    # Whoever runs the service has named the store.
    _use_sent(task)
    modules = [name for name in config.code_names() if name.startswith(code.IMPORTED)]
    if any(not code.origin(name) for name in modules):
        sys.path.append(job.directory)  # a module that it names may lie there; whether it is trusted is asked below
    code.trust(name for name in config.code_names() if task.trust or name.startswith("logging.store"))
    folder = folder_of(task.root, job)
    evaluate = job.evaluate and job.study is None  # a study looks at the test split when it has its winner
    if folder is not None:
        run = running.resume(folder.path, console=console, mode="plain", evaluate=evaluate)
        _judge(task, job, run, None)
        return run
    check_code(config, f"job {job.id}")
    config.usable_device()
    half = Path(task.root) / job.folder
    if half.is_dir() and not (half / INFORMATION).exists():  # an attempt was killed while it made the folder
        shutil.rmtree(half)
    config, market, remark = setup.market_to_train_on(config)
    run = running.Run.create(config, market, Path(task.root), identity=job.id, moment=job.created)
    sitting = session_of(run, market)
    sitting.remarks += [remark] if remark else []
    sitting.shelf = None if job.study is None else shelf_of(task.root, job.study)
    run = sitting.go(console, "plain", evaluate)
    _judge(task, job, run, market)
    return run


def _use_sent(task: Task) -> None:
    """Find what came with the task: data in its new place, and code, which is trusted where it comes from."""
    from velodrome.outside import code, sent

    for name, place in task.sources.items():
        if name.startswith(DATA):
            sent.remember(name.removeprefix(DATA), Path(place))
        else:
            sys.path.insert(0, str(Path(place).parent))
            code.trust([name])


def _judge(task: Task, job: Job, run: Run, market: Market | Basket | None) -> None:
    """Say what a trial's training came to; the winner of a study, trained anew, is evaluated."""
    if job.study is None or run.status != "finished":
        return
    from velodrome.tune import outcome
    from velodrome.tune.study import Studies
    from velodrome.tune.verdict import judge_winner

    if not job.evaluate:
        outcome.record(run, market)
        return
    with open_store(task.root, task.store) as store:
        studies = Studies(store)
        found = judge_winner(run, studies, studies.get(job.study), Path(task.root))
    outcome.write(run.path, found.metrics)


# Its folder


def folder_of_its_own(root: str, job: Job, now: float) -> str:
    """Copy the folder of a job's run, which a process on another machine may still write into; return the new name.

    The copy has the same id and all that is needed to go on: checkpoints are whole or absent, and have hashes.
    """
    old = folder_of(root, job)
    name = folder_name(job.name, max(now, job.created + 1.0), job.id)
    if old is None:
        return name
    unwanted = shutil.ignore_patterns("lock", ".*")
    for attempt in range(COPIES):
        try:
            with new_folder(Path(root) / name) as new:
                shutil.copytree(old.path, new, dirs_exist_ok=True, ignore=unwanted)
            break
        except OSError:  # what was there a moment ago may not be there any more: somebody writes there
            if attempt == COPIES - 1:
                raise
    return name


def set_others_aside(root: str, job: Job) -> None:
    """Take their names from other folders with a job's id, so that nobody takes one for the run."""
    for path in Path(root).glob(f"*-{job.id}"):
        if path.name != job.folder and not path.name.startswith("."):
            path.rename(path.with_name(f"{LEFT}{job.attempt}-{path.name}"))
    if (bucket := Bucket.behind(root)) is not None:
        bucket.set_aside(job.folder, f"-{job.id}", f"{LEFT}{job.attempt}-")


# Why it ended


def kind_of(error: BaseException) -> str:
    """Return which kind of end an error is."""
    if memory.shortage(error) is not None:
        return "out_of_memory"
    if disk.ran_out(error):
        return "no_room"
    for one in chain(error):
        if isinstance(one, LearningError):
            return "not_a_number"
        if isinstance(one, RunLockedError | BucketError):
            return "machine_lost"
    return "error"


def told(error: BaseException) -> str:
    """Return an error for people: a sentence of ours as it is, another with its kind and where it was raised."""
    if isinstance(error, VelodromeError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
    return f"{type(error).__name__}: {error}{place}"
