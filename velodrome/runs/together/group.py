"""One sitting of a group of runs that differ in their seed, or of an ensemble."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.errors import sentence
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import setup
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.evaluate import enter_result
from velodrome.runs.session import Session
from velodrome.runs.store.from_folder import members_of, steps_of
from velodrome.runs.together.processes import (
    Job,
    Seen,
    processes_for,
    seen_in,
    told_by_its_folder,
    train_together,
    worth_apart,
)
from velodrome.runs.trained import Ensemble, Run, SeedGroup

if TYPE_CHECKING:
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market


class GroupSession(Session):
    """One sitting of a group or an ensemble, whose members are ordinary runs.

    The first is trained in this process, so that the data is read and checked, and kernels are compiled, once. How fast
    that went says whether the others go on one after the other, or several at once in processes of their own.
    """

    def _is_done(self, last: Path | None) -> bool:
        return self.config == self.run.config

    def _take_over(self, steps: int) -> None:
        super()._take_over(sum(steps_of(member.folder) for member in self.run.members))
        del self.remarks[1:]  # what becomes of schedules is told for each member

    def _train(self) -> bool:
        """Train the members that have not finished. Return whether all have."""
        group = self.run
        assert isinstance(group, SeedGroup)
        self.remarks[:0] = setup.told_choices(self.market, self.shortened)
        self._show_remarks()
        finished = {run.config.seed for run in group.members if run.status == "finished" and group.has_all(run)}
        left = [seed for seed in group.seeds if seed not in finished]
        while left:
            sitting = member_session(group, left.pop(0), self.market)
            sitting.go(self.console, self.mode, evaluate=False)
            self.mirror.changed()
            if sitting.run.status != "finished":
                return False
            processes = together(sitting, len(left))
            if processes > 1:
                return self._train_together(group, left, processes)
        return True

    def _evaluate(self) -> None:
        super()._evaluate()
        # The figures of each member are part of the group's result: it had none when its training ended.
        enter_result(self.run, self.run.members)

    def _train_together(self, group: SeedGroup, left: list[int], processes: int) -> bool:
        """Train members in this many processes at a time."""
        if self.mode in ("live", "plain"):
            told = f"{len(left)} more, {processes} at a time in processes of their own, which is faster"
            self.console.print(told, soft_wrap=True)
        mode = "json" if self.mode == "json" else "quiet"
        jobs = [
            Job(
                f"seed {seed}",
                _train_member,
                (group.path, seed, self.market, mode),
                self.config.steps,
                functools.partial(_seen, group, seed),
            )
            for seed in left
        ]
        done, error = train_together(jobs, processes, self.console, self.mode, self.mirror.changed)
        if error is not None:
            raise type(error)(f"A member could not be trained: {sentence(error)} Go on: {group.resume_command}")
        return done


def _seen(group: SeedGroup, seed: int) -> Seen:
    """Return what the folder of a member says."""
    found = (folder for folder in members_of(group.folder) if folder.information["seeds"]["run"] == seed)
    return next((seen_in(folder) for folder in found), Seen())


def member_session(group: SeedGroup, seed: int, market: Market | Basket | None) -> Session:
    """Return a sitting of a member of a group, which is made if there is none of this seed."""
    member, told, new = group.member(seed, market)
    number = f"{'member ' if isinstance(group, Ensemble) else ''}{seed - group.seeds[0] + 1}"
    place = f", seed {seed} ({number} of {len(group.seeds)})"
    return Session(member, market, not new, told=None if told == member.config else told, place=place)


def together(trained: Session, left: int) -> int:
    """Return in how many processes to train the other members at a time; 1: go on in this one.

    trained: the one that was trained last. Several processes pay off where one uses one core, which is where learning
    has the same bits on any number of threads; a GPU, torch's own threads and workers of environments have all cores
    already. What Velodrome does not know by itself stays in this process.
    """
    seconds = trained.config.steps * trained.pace
    same = getattr(trained.learner, "same_on_any_threads", False)
    return worth_apart(processes_for(trained.config, trained.market, left) if same else 1, left, seconds)


def _train_member(path: Path, seed: int, market: Market | Basket | None, mode: Mode) -> None:
    """Train a member, in a process of its own."""
    group = Run.open(path)
    assert isinstance(group, SeedGroup)
    with told_by_its_folder():
        member_session(group, seed, market).go(None, mode, evaluate=False)


def session_of(
    run: Run,
    market: Market | Basket | None,
    resumed: bool = False,
    begin_from: checkpoints.Checkpoint | None = None,
    told: RunConfig | None = None,
) -> Session:
    """Return a sitting of a run, or of a group of runs."""
    return (GroupSession if isinstance(run, SeedGroup) else Session)(run, market, resumed, begin_from, told)
