"""The course of a study: which trial is next, which of its steps are due, when it is over, and which one wins.

Nothing here knows of processes or rows. Trials end in any order, and yet a study is the same study on one worker or on
forty: a trial is chosen, and judged, by those that began at least a window before it and by no others, and it begins
only once all of them are over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from velodrome.tune.search import Search, worths
from velodrome.tune.space import Space
from velodrome.tune.trial import COMPLETE, FAILED, PRUNED, Outcome, StudySettings, Trial


class Course:
    """The trials of a study in the order of their numbers. start: what the configuration has, the first trial's."""

    def __init__(self, space: Space, settings: StudySettings, start: Mapping[str, Any]) -> None:
        self.space, self.settings = space, settings
        self.trials: list[Trial] = []
        self._start = start
        self._search: Search | None = None
        # Worths by the steps that they are read from, and how many outcomes were known then.
        self._known: dict[tuple[int, ...], tuple[int, dict[int, float]]] = {}

    @property
    def search(self) -> Search:
        """What chooses; made when it is first needed, because Optuna takes its time to import."""
        found = self._search
        if found is None:
            found = self._search = Search(self.space, self.settings, self._start)
        return found

    # Searching

    def may_ask(self, wanted: int) -> bool:
        """Return whether a trial can be chosen now, of so many in all."""
        number = len(self.trials)
        return number < wanted and all(trial.is_over for trial in self.before(number))

    def ask(self) -> Trial:
        """Begin the next trial; `may_ask` says when."""
        trial = Trial(len(self.trials), self.search.choose(len(self.trials), self.trials))
        self.trials.append(trial)
        return trial

    def before(self, number: int) -> list[Trial]:
        """Return the trials that a trial is chosen and judged by."""
        return self.trials[: max(0, number - self.settings.window + 1)]

    def due(self, trial: Trial) -> list[int]:
        """Return the steps of an open trial that can be done now: all of them where none can be saved by pruning."""
        steps, done = self.settings.steps, len(trial.values(self.settings.steps))
        if trial.is_over:
            return []
        at_once = not self.settings.pruning or not self.before(trial.number)
        return list(range(done, steps if at_once else done + 1))

    def settle(self, trial: Trial) -> bool:
        """End a trial whose steps so far decide it; return whether they do."""
        settings = self.settings
        steps, values = settings.steps, trial.values(settings.steps)
        if trial.is_over:
            return False
        if failed := trial.failure(range(steps)):
            trial.status, trial.reason = FAILED, failed.reason
        elif len(values) == steps:
            trial.status, trial.value = COMPLETE, math.fsum(values) / steps
        elif settings.pruning:
            # After each step in turn: how quickly the next one was done must not matter.
            for done in range(1, len(values) + 1):
                found = self.search.judge(trial, values[:done], self.before(trial.number))
                if found is not None and found.chance < settings.prune_below:
                    trial.status, trial.value = PRUNED, found.estimate
                    what = "folds" if settings.folds else "seeds"
                    trial.reason = (
                        f"after {done} of {steps} {what}: {found.estimate:.4g} expected, the best has "
                        f"{found.best:.4g}, and the chance of beating it is {found.chance:.1%}"
                    )
                    break
        return trial.is_over

    def is_searched(self, wanted: int) -> bool:
        """Return whether all trials are over."""
        return len(self.trials) >= wanted and all(trial.is_over for trial in self.trials)

    # Making sure

    @property
    def best(self) -> Trial | None:
        """The complete trial with the highest value; the earlier one of two."""
        complete = [trial for trial in self.trials if trial.status == COMPLETE]
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)

    @property
    def candidates(self) -> list[Trial]:
        """The best trials, best first, and the configuration itself: they are trained again with fresh seeds."""
        complete = [trial for trial in self.trials if trial.status == COMPLETE]
        worth = self._worths(range(self.settings.steps))
        ranked = sorted(complete, key=lambda trial: (-worth[trial.number], trial.number))[: self.settings.confirm]
        return [*ranked, *(trial for trial in complete[:1] if trial.number == 0 and trial not in ranked)]

    def due_again(self, trial: Trial) -> list[int]:
        """Return the steps with fresh seeds that a candidate still needs."""
        steps = self.settings.fresh_steps
        return [] if trial.failure(steps) else [step for step in steps if step not in trial.outcomes]

    @property
    def is_confirmed(self) -> bool:
        """Whether all candidates were trained with fresh seeds."""
        return all(not self.due_again(trial) for trial in self.candidates)

    def fresh_mean(self, trial: Trial) -> float:
        """Return a candidate's own mean over the fresh seeds; NaN if they are not all known.

        They did not make it a candidate, but they help to choose the winner: of that one, this is too good, and
        `winner_mean` is what to report.
        """
        return trial.mean(self.settings.fresh_steps)

    @property
    def winner(self) -> Trial | None:
        """The candidate that is worth the most by all its seeds, once the fresh ones are known."""
        final = self.settings.final_step
        tested = [trial for trial in self.trials if final in trial.outcomes]
        if tested or not self.is_confirmed:  # who was tested was the winner then
            return next(iter(tested), None)
        return self._chosen_by(range(final))

    @property
    def winner_mean(self) -> float:
        """What the winner comes to with fresh seeds that did not choose it; NaN if there is no winner.

        Each fresh seed is left out in turn and says what the candidate comes to that all other seeds choose. So no seed
        is asked about its own choice. Where all choose the same, this is the winner's own mean over the fresh seeds;
        where luck decides between candidates, it is less.
        """
        if self.winner is None:
            return math.nan
        fresh, every = self.settings.fresh_steps, range(self.settings.final_step)
        chosen = {left_out: self._chosen_by([step for step in every if step != left_out]) for left_out in fresh}
        values = [math.nan if trial is None else trial.outcomes[step].value for step, trial in chosen.items()]
        return math.fsum(values) / len(values)

    def _chosen_by(self, steps: Sequence[int]) -> Trial | None:
        """Return the candidate that is worth the most by some steps, of those that have a score in all."""
        worth, every = self._worths(steps), range(self.settings.final_step)
        known: dict[float, Trial] = {}
        # Of trials with one and the same score the first, which is the configuration's own: there is nothing to gain.
        for trial in sorted(self.candidates, key=lambda trial: trial.number):
            if math.isfinite(score := trial.mean(every)):
                known.setdefault(score, trial)
        return max(known.values(), key=lambda trial: (worth[trial.number], -trial.number), default=None)

    def _worths(self, steps: Sequence[int]) -> dict[int, float]:
        """Return what each trial that is over is worth by some steps; looked at often, and learnt when one is new."""
        over = [trial for trial in self.trials if trial.is_over]
        if self.settings.sampler == "tpe":
            return {trial.number: trial.mean(steps) for trial in over}
        key, seen = tuple(steps), sum(step in trial.outcomes for trial in over for step in steps)
        if self._known.get(key, (-1, {}))[0] != seen:
            self._known[key] = (seen, worths(self.space, over, steps))
        return self._known[key][1]


def simulate(
    space: Space,
    settings: StudySettings,
    start: Mapping[str, Any],
    wanted: int,
    function: Callable[[Mapping[str, Any], int], float],
    pick: Callable[[Sequence[tuple[int, int]]], int] = lambda ready: 0,
    workers: int = 1,
) -> tuple[Course, int]:
    """Carry out a study of a function in place of trainings; return its course, and how often the function was called.

    function: takes what a trial tries and the number of a step. pick: says which of the steps that are under way, as
    (trial, step), ends next; workers: how many are at once.
    """
    course, begun, calls = Course(space, settings, start), set[tuple[int, int]](), 0

    def work(ready: list[tuple[int, int]]) -> None:
        nonlocal calls
        trial, step = ready[pick(ready[:workers])]
        calls += 1
        course.trials[trial].outcomes[step] = Outcome(float(function(course.trials[trial].params, step)))
        begun.add((trial, step))

    while not course.is_searched(wanted):
        while course.may_ask(wanted):
            course.ask()
        ready = [(trial.number, step) for trial in course.trials for step in course.due(trial)]
        work([each for each in ready if each not in begun])
        for trial in course.trials:
            course.settle(trial)
    while again := [(trial.number, step) for trial in course.candidates for step in course.due_again(trial)]:
        work(again)
    return course, calls
