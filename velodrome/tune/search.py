"""Which values a trial tries: spread evenly at first, then by multivariate TPE of Optuna.

What is tried next follows from the trials before it and nothing else. Each choice has a random seed of its own, and
Optuna is told of trials in the order of their numbers, so that whoever has the same rows chooses the same.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from velodrome.errors import MissingDependencyError
from velodrome.tune.space import Dimension, Space
from velodrome.tune.trial import FAILED, StudySettings, Trial

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


# Of so many trials one has a value of each list at random: TPE, which fits lists and ranges together, else stays with
# the one that was luckiest at the beginning (on the planted landscape in four of ten studies).
RANDOM_CHOICES = 4


def import_optuna() -> Any:
    """Return Optuna, which tells nobody about its trials; what to install if it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError("studies need Optuna: pip install 'velodrome[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def evenly(number: int, dimensions: int, seed: int) -> list[float]:
    """Return the n-th point of a sequence that fills a cube of so many dimensions evenly, from a random beginning.

    It is Roberts' R sequence: each coordinate goes on by a power of a generalised golden ratio.
    """
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    begin = [_share(seed, "evenly", place) for place in range(dimensions)]
    return [(start + (number + 1) * ratio ** -(place + 1)) % 1.0 for place, start in enumerate(begin)]


def _share(*parts: object) -> float:
    """Return a number in [0, 1) that some values stand for."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


class Search:
    """Chooses the values of trials. start: those of the configuration itself, which are the first trial's."""

    def __init__(self, space: Space, settings: StudySettings, start: Mapping[str, Any]) -> None:
        self.space, self.settings, self.start = space, settings, dict(start)
        self.optuna = import_optuna()
        self.distributions = {one.key: _distribution(self.optuna, one) for one in space}
        self.startup = settings.startup_of(len(space))
        self._forget()

    def _forget(self) -> None:
        self._study: optuna.Study = self.optuna.create_study(direction="maximize")
        self._entered = self._told = 0  # trials that Optuna knows, and those whose value it knows
        self._worst = math.nan

    def choose(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """Return what a trial tries. trials: those before it; who began long enough before it is over."""
        if number == 0:
            return dict(self.start)
        if number < self.startup:
            point = evenly(number, len(self.space), self.settings.search_seed)
            return {one.key: one.at(share) for one, share in zip(self.space, point, strict=True)}
        if number < self._entered:  # it was chosen before, and could not be written
            self._forget()
        self._enter(trials[:number])
        for trial in trials[self._told : max(0, number - self.settings.window + 1)]:
            self._tell(trial)
        seed = int(_share(self.settings.search_seed, "tpe", number) * 2**32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is experimental in Optuna is pinned by our tests
            sampler = self.optuna.samplers.TPESampler(
                n_startup_trials=0, multivariate=True, constant_liar=True, seed=seed
            )
            self._study.sampler = sampler
            if number % RANDOM_CHOICES == 0 and (drawn := self._choices_at_random(number)):
                self._study.enqueue_trial(drawn)
            asked = self._study.ask(self.distributions)
        self._entered += 1
        return {one.key: _value(one, asked.params[one.key]) for one in self.space}

    def _choices_at_random(self, number: int) -> dict[str, Any]:
        """Return a value, by its place, for each field that has a list of them."""
        lists = [one for one in self.space if one.choices]
        seed = self.settings.search_seed
        return {one.key: int(_share(seed, "choice", number, one.key) * len(one.choices)) for one in lists}

    def _enter(self, trials: Sequence[Trial]) -> None:
        """Let Optuna know of trials that were begun."""
        running = self.optuna.trial.TrialState.RUNNING
        for trial in trials[self._entered :]:
            known = all(one.holds(trial.params.get(one.key)) for one in self.space)
            params = {one.key: _category(one, trial.params[one.key]) for one in self.space} if known else {}
            about = self.distributions if known else {}
            self._study.add_trial(self.optuna.trial.create_trial(state=running, params=params, distributions=about))
            self._entered += 1

    def _tell(self, trial: Trial) -> None:
        """Let Optuna know what a trial came to: what failed by its own fault counts as the worst so far."""
        value = trial.value
        if trial.status == FAILED:
            value = self._worst if trial.is_its_own_fault else math.nan
        if math.isfinite(value):
            self._study.tell(trial.number, value)
            self._worst = min(value, self._worst) if math.isfinite(self._worst) else value
        else:
            self._study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
        self._told += 1


def _distribution(optuna: Any, one: Dimension) -> BaseDistribution:
    kinds = optuna.distributions
    if one.choices:  # by their places: Optuna takes plain values only
        return kinds.CategoricalDistribution(tuple(range(len(one.choices))))
    if one.whole:
        return kinds.IntDistribution(int(one.low), int(one.high), log=one.log)
    return kinds.FloatDistribution(one.low, one.high, log=one.log)


def _value(one: Dimension, chosen: Any) -> Any:
    return one.choices[chosen] if one.choices else chosen


def _category(one: Dimension, value: Any) -> Any:
    return one.choices.index(value) if one.choices else value


def importances(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Return how much each field decided whether a trial was among the best tenth, as shares (PED-ANOVA)."""
    optuna = import_optuna()
    known = [trial for trial in trials if math.isfinite(trial.value) and trial.status != FAILED]
    known = [trial for trial in known if all(one.holds(trial.params.get(one.key)) for one in space)]
    if len(known) < 2 * len(space) or len({trial.value for trial in known}) < 2:
        return {}
    study = optuna.create_study(direction="maximize")
    distributions = {one.key: _distribution(optuna, one) for one in space}
    for trial in known:
        params = {one.key: _category(one, trial.params[one.key]) for one in space}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=trial.value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(evaluate_on_local=False)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in found.items()}
