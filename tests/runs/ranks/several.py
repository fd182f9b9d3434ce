"""Ranks as torchrun starts them, forked from a process that has imported everything."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.runs.small_runs import TIMEOUT, processes, small_run
from velodrome.rollout import ranks
from velodrome.runs.run import Run, resume, train


def in_ranks(count: int, work: Callable[..., Any], *arguments: Any) -> list[int]:
    """Do work in this many ranks; return their exit codes."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    began = [processes().Process(target=_rank, args=(rank, count, port, work, arguments)) for rank in range(count)]
    for process in began:
        process.start()
    for process in began:
        process.join(TIMEOUT)
    return [process.exitcode for process in began]


def _rank(rank: int, count: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    names |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": f"test-{port}"}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # torch's threads would be waited for


def train_here(folder: Path, settings: dict[str, Any]) -> None:
    """Train a tiny run in this rank; count what goes around."""
    group = ranks.joined()
    assert group is not None
    sizes, all_reduce = [], group.distributed.all_reduce

    def counted(numbers: torch.Tensor, **options: Any) -> Any:
        sizes.append(numbers.numel())
        return all_reduce(numbers, **options)

    group.distributed.all_reduce = counted
    small_run(folder, **settings)
    (folder / f"sizes-{group.rank}").write_text(repr(sizes))


def part_here(folder: Path) -> None:
    """Write down whether this rank has parted from the others, after an error beside a GPU and at an ordinary end."""
    group = ranks.joined()
    assert group is not None
    group.groups["cuda"], group.are_at_rest, found = None, False, []
    for at_rest in (False, True, True):  # the last: where a program has parted itself
        group.are_at_rest = at_rest
        group.leave()
        found.append(group.distributed.is_initialized())
    (folder / f"joined-{group.rank}").write_text(repr(found))


def train_own(folder: Path, settings: dict[str, Any]) -> None:
    """Train a run with these settings and no others in this rank."""
    train({**settings, "logging": {"folder": str(folder)}}, mode="quiet", evaluate=False)


def go_on_here(path: Path, settings: dict[str, Any]) -> None:
    """Continue a run in this rank."""
    resume(path, mode="quiet", evaluate=False, **settings)


def refuse_here(folder: Path, settings: dict[str, Any]) -> None:
    """Write down what a training is refused with."""
    try:
        small_run(folder, **settings)
    except BaseException as error:
        (folder / f"told-{os.environ['RANK']}").write_text(f"{type(error).__name__}: {error}")


def fail_here(folder: Path, settings: dict[str, Any]) -> None:
    """Die in one rank after an iteration, and write down what the others are told."""
    from velodrome.learn.ppo import PPO

    group = ranks.joined()
    assert group is not None
    iterate = PPO.iterate

    def deadly(learner: PPO) -> dict[str, float]:
        if learner.steps and group.rank == 1:
            os._exit(9)
        return iterate(learner)

    PPO.iterate = deadly  # type: ignore[method-assign]
    refuse_here(folder, settings)


def only_run(folder: Path) -> Run:
    """Return the run in a folder."""
    (found,) = folder.glob("*-*/run.json")
    return Run.open(found.parent)
