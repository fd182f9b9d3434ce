"""Which values a trial tries: spread evenly at first, then by a model of the landscape, or by TPE of Optuna.

What is tried next follows from the trials before it and nothing else. Each choice has a random seed of its own, and
Optuna is told of trials in the order of their numbers, so that whoever has the same rows chooses the same.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from velodrome.errors import MissingDependencyError
from velodrome.outside.extras import install
from velodrome.tune.space import Dimension, Space
from velodrome.tune.trial import FAILED, StudySettings, Trial
from velodrome.tune.worth import Judgement, Landscape, judge

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


# Of so many trials one has a value of each list at random: TPE, which fits lists and ranges together, else stays with
# the one that was luckiest at the beginning (on the planted landscape in four of ten studies).
RANDOM_CHOICES = 4

# Of the model
MODELLED = 200  # trials up to which it chooses: its time grows with their number, and TPE knows enough by then
ANYWHERE, NEAR = 512, 512  # places that it looks at: in the whole space, and around the best trials
BEST = 8  # trials that it looks around
STEP = 0.1  # how far around, as a deviation in shares of a range
OTHER_CHOICE = 0.15  # chance of another value of a list there


def import_optuna() -> Any:
    """Return Optuna, which tells nobody about its trials; what to install if it is missing."""
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(f"studies need Optuna: {install('tune')}") from error
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
        self._models: dict[int, Landscape | None] = {}  # by how many of the first trials each is made of
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
        told = trials[: max(0, number - self.settings.window + 1)]
        if model := self._model(told):
            return self._by_model(number, model, trials[len(told) : number])
        if number < self._entered:  # it was chosen before, and could not be written
            self._forget()
        self._enter(trials[:number])
        for trial in told[self._told :]:
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

    def _model(self, told: Sequence[Trial]) -> Landscape | None:
        """Return a model of the first trials, which are over; None where TPE chooses, or there is nothing to learn."""
        if self.settings.sampler != "model" or len(told) > MODELLED:
            return None
        if len(told) not in self._models:
            inside = [trial for trial in told if _is_inside(self.space, trial)]
            self._models[len(told)] = landscape(self.space, inside, range(self.settings.steps))
            for old in list(self._models)[: -2 * self.settings.window]:
                del self._models[old]
        return self._models[len(told)]

    def judge(self, trial: Trial, values: Sequence[float], told: Sequence[Trial]) -> Judgement | None:
        """Return how a trial stands after its first steps, beside those before it; None if nothing can be said yet."""
        steps = self.settings.steps
        rivals = [rival.values(steps) for rival in told if rival.status != FAILED]
        simple = judge(values, rivals, steps)
        model = self._model(told)
        if simple is None or model is None or not _is_inside(self.space, trial):
            return simple
        return model.judge(np.array(_places(self.space, trial)), values)

    def _by_model(self, number: int, model: Landscape, begun: Sequence[Trial]) -> dict[str, Any]:
        """Return the place that is expected to be the best improvement, of many. begun: trials that are open."""
        chance = np.random.default_rng(int(_share(self.settings.search_seed, "model", number) * 2**32))
        fields = len(self.space)
        best = model.places[np.argsort(-model.expected, kind="stable")[:BEST]]
        near = best[chance.integers(0, len(best), NEAR)]
        moved = near + chance.normal(0.0, STEP, near.shape) * (chance.random(near.shape) < 0.5)
        changed = np.where(chance.random(near.shape) < OTHER_CHOICE, chance.random(near.shape), near)
        shares = np.concatenate((chance.random((ANYWHERE, fields)), np.where(model.lists, changed, moved)))
        shares = np.clip(shares, 0.0, 1.0)
        places = shares.copy()
        for column, one in enumerate(self.space):
            if one.choices or one.whole:  # it is there that such a value is known
                places[:, column] = [one.share(one.at(share)) for share in shares[:, column]]
        open_ones = [_places(self.space, trial) for trial in begun if _is_inside(self.space, trial)]
        promised = model.improvement(places, np.array(open_ones).reshape(-1, fields))
        # The same settings with the same seeds come to the same: nothing is tried twice while there is something else.
        tried = {tuple(place) for place in np.round([*model.places, *open_ones], 6).tolist()}
        new = np.array([tuple(place) not in tried for place in np.round(places, 6).tolist()])
        found = shares[int(np.where(new | ~new.any(), promised, -math.inf).argmax())]
        return {one.key: one.at(float(share)) for one, share in zip(self.space, found, strict=True)}

    def _choices_at_random(self, number: int) -> dict[str, Any]:
        """Return a value, by its place, for each field that has a list of them."""
        lists = [one for one in self.space if one.choices]
        seed = self.settings.search_seed
        return {one.key: int(_share(seed, "choice", number, one.key) * len(one.choices)) for one in lists}

    def _enter(self, trials: Sequence[Trial]) -> None:
        """Let Optuna know of trials that were begun."""
        running = self.optuna.trial.TrialState.RUNNING
        for trial in trials[self._entered :]:
            known = _is_inside(self.space, trial)
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


# The model


def landscape(space: Space, trials: Sequence[Trial], steps: Sequence[int]) -> Landscape | None:
    """Return a model of what settings are worth, by what some steps of trials came to; None if no trial has a row.

    What failed by its own fault is as bad as the worst; of what failed by another's, nothing is known.
    """
    values = np.array([_values_of(trial, steps) for trial in trials]).reshape(-1, len(steps))
    if not np.isfinite(values).any():
        return None
    for row, trial in zip(values, trials, strict=True):
        if trial.status == FAILED and trial.is_its_own_fault:
            row[0] = np.nanmin(values)
    known = np.isfinite(values).any(1)
    places = np.array([_places(space, trial) for trial in trials])
    return Landscape(places[known], values[known], np.array([bool(one.choices) for one in space]))


def worths(space: Space, trials: Sequence[Trial], steps: Sequence[int]) -> dict[int, float]:
    """Return what trials are worth by their numbers: by the model, or by their means where nothing else is known."""
    found = {trial.number: trial.mean(steps) for trial in trials}
    known = [one for one in trials if _is_inside(space, one) and any(map(math.isfinite, _values_of(one, steps)))]
    known = sorted(known, key=lambda trial: -trial.value if math.isfinite(trial.value) else math.inf)[:MODELLED]
    model = landscape(space, known, steps)
    return (
        found
        if model is None
        else {**found, **dict(zip((one.number for one in known), model.worths.tolist(), strict=True))}
    )


def _values_of(trial: Trial, steps: Sequence[int]) -> list[float]:
    return [trial.outcomes[step].value if step in trial.outcomes else math.nan for step in steps]


def _places(space: Space, trial: Trial) -> list[float]:
    return [one.share(trial.params[one.key]) for one in space]


def _is_inside(space: Space, trial: Trial) -> bool:
    """Return whether a trial's values are ones that could be tried; a first trial may have others."""
    return all(one.holds(trial.params.get(one.key)) for one in space)


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
    known = [trial for trial in known if _is_inside(space, trial)]
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
