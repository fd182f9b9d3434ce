"""A process that has imported everything and forks the processes of trainings, so that each begins at once.

It reads a task a line from its standard input and answers with the process that it started; when one ends, it says so.
When whoever started it is gone it ends, and the trainings go on; with --together they end with it. A task is carried
out in a session of its own.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
import warnings
from typing import Any

from velodrome.outside.screen import Lasting
from velodrome.service.machine import handle_of, kill_session
from velodrome.service.worker.keeper import die_with, keep
from velodrome.service.worker.task import Task

BEGUN: list[str] = []  # processes that were forked
NVIDIA = "/dev/nvidiactl"  # there if the driver is


def main() -> None:
    """Fork processes until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's
    # Libraries have threads of their own here, which hold nothing when there is nothing to do; Python warns of them.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    answers = os.dup(1)
    os.dup2(2, 1)  # what imports print is no answer
    _warm_up()
    reaped, awake = os.pipe()
    os.set_blocking(awake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(awake)
    try:
        _answer(answers, ready=True)
        _serve(answers, reaped)
    except BrokenPipeError:  # nobody listens any more
        _leave()
    _leave()


def _leave() -> None:
    """End, with what was begun here if that is asked for."""
    if "--together" in sys.argv:
        for process in BEGUN:
            kill_session(process)
    os._exit(0)


def _serve(answers: int, reaped: int) -> None:
    import select

    pending = b""
    while True:
        ready, _, _ = select.select([0, reaped], [], [])
        if reaped in ready:
            os.read(reaped, 4096)
            for pid, code in _ended():
                _answer(answers, ended=pid, code=code)
        if 0 not in ready:
            continue
        part = os.read(0, 1 << 16)
        if not part:
            return
        *lines, pending = (pending + part).split(b"\n")
        for line in lines:
            task = Task(**json.loads(line)).here()
            pid = _fork(task, (answers, reaped))
            BEGUN.append(handle_of(pid))
            _answer(answers, started=pid, job=task.job, attempt=task.attempt, process=BEGUN[-1])


def _ended() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _fork(task: Task, private: tuple[int, ...]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        if "--together" in sys.argv:  # Ray kills what its workers have started, this process before it could do so
            die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in private:
            os.close(descriptor)
        task.output.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(task.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, place)
        # A log that a full disk does not take is no reason to end, nor to keep quiet about how the training ended.
        sys.stdout, sys.stderr = (Lasting(file, lambda error: None) for file in (sys.stdout, sys.stderr))
        code = keep(task)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _warm_up() -> None:
    """Import what trainings need, and let Numba set itself up."""
    import numpy as np
    import ruamel.yaml  # noqa: F401
    import safetensors.torch  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401
    import torch._dynamo  # noqa: F401  # the first optimiser would import it

    import velodrome.envs.trading.world
    import velodrome.evaluation.evaluate
    import velodrome.evaluation.forecast.kept
    import velodrome.evaluation.forecast.teaching
    import velodrome.evaluation.trading.evaluator
    import velodrome.evaluation.trading.teacher
    import velodrome.evaluation.validation
    import velodrome.learn.acting
    import velodrome.learn.dqn
    import velodrome.learn.ensembles
    import velodrome.learn.imitation
    import velodrome.learn.leader
    import velodrome.learn.ppo
    import velodrome.learn.program
    import velodrome.learn.sac
    import velodrome.runs.run
    import velodrome.tables.resampled
    import velodrome.tune.verdict
    import velodrome.vector.fleet.monitor
    import velodrome.vector.make
    from velodrome.tables.scaling import column_moments

    if not os.path.exists(NVIDIA):  # where there are GPUs, nothing about them may be begun before a fork
        import velodrome.vector.compile.numba_cuda  # noqa: F401
    column_moments(np.zeros((2, 1)))
    gc.collect()
    gc.freeze()  # pages of what is here stay shared


def _answer(descriptor: int, **content: Any) -> None:
    os.write(descriptor, (json.dumps(content) + "\n").encode())


if __name__ == "__main__":
    main()
