"""What the winner of a study is worth, given how many trials it was chosen among: the one look at the test split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.evaluation.sharpe import Trials
from velodrome.runs.bucket.place import bring
from velodrome.runs.evaluate import evaluate
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore
from velodrome.tune.beginning import on_same_bars, on_same_prices
from velodrome.tune.outcome import PER_BAR, read_returns
from velodrome.tune.overfitting import Overfitting, cscv, distinct
from velodrome.tune.study import Studies, Study
from velodrome.tune.trial import Trial

if TYPE_CHECKING:
    from velodrome.evaluation.result import Evaluation
    from velodrome.runs.trained import Run

BLOCKS = 16
LEAST_BARS = 4 * BLOCKS
SAME = "all trials played the same to the bit: there was nothing to choose between"


@dataclass(frozen=True)
class Chosen:
    """Among what the winner was chosen."""

    trials: Trials | None  # all of them, pruned ones and those of earlier studies on the same prices too
    own: int  # of this study, that came to something
    earlier: int  # the same of earlier studies
    effective: float  # trials without correlation that would be as many; NaN: not known
    overfitting: Overfitting | None  # of this study's trials; None: too few trials or bars
    one_policy: bool = False  # all trials whose returns are known played the same

    def told(self) -> list[str]:
        """Return it in words."""
        if self.trials is None:
            return []
        own = "trial" if self.own == 1 else "trials"
        more = f" and {self.earlier:,} of earlier studies on the same data" if self.earlier else ""
        alike = f", as many as {self.effective:.1f} that are not alike" if math.isfinite(self.effective) else ""
        among = f"the winner among {self.own:,} {own}{more}, pruned ones counted{alike}"
        told = [f"{among}: its Sharpe ratio is deflated for all of them"]
        found = self.overfitting
        if self.one_policy:
            told.append(SAME)
        if found is not None:
            told.append(
                f"probability of backtest overfitting {found.probability:.1%} (CSCV over {found.trials:,} trials, "
                f"{found.splits:,} splits of the validation bars); slope {found.slope:.2f}, probability of loss "
                f"{found.loss:.1%}"
            )
        return told

    def content(self) -> dict[str, Any]:
        """Return it in plain values."""
        found = self.overfitting
        pbo = None
        if found is not None:
            slope = found.slope if math.isfinite(found.slope) else None
            pbo = {"probability": found.probability, "slope": slope, "probability_of_loss": found.loss}
            pbo |= {"trials": found.trials, "splits": found.splits}
        effective = self.effective if math.isfinite(self.effective) else None
        counts = {"trials": self.own, "earlier_trials": self.earlier, "effective_trials": effective}
        return {**counts, "overfitting": pbo, "notes": self.told()}


def chosen_among(studies: Studies, study: Study, root: Path) -> Chosen:
    """Return among what the winner of a study was chosen."""
    before = [other for other in studies.all() if other.created < study.created and on_same_prices(study, other)]
    known = {one.id: studies.trials(one) for one in (study, *before)}
    own, earlier = known[study.id], [trial for other in before for trial in known[other.id]]
    ratios = {one.id: _sharpes(known[one.id], one.told.steps) for one in (study, *before)}
    count = sum(map(len, ratios.values()))
    # Bars of another size have ratios of another scale: their trials count, but do not say how far ratios vary.
    varied = [ratio for one in (study, *before) if on_same_bars(study, one) for ratio in ratios[one.id]]
    columns = returns_of(studies.store, own, study, root)
    matrix = _joined(columns)
    found, different = None, None if matrix is None else distinct(matrix)
    if different is not None and different.shape[0] >= LEAST_BARS and different.shape[1] > 1:
        try:
            found = cscv(different, BLOCKS)
        except ConfigError:  # returns that are not finite: an account lost all
            found = None
    # Where no returns are left they are taken to be the fewest, which deflates the most.
    bars = LEAST_BARS if matrix is None else len(matrix)
    trials = Trials.among(varied, count, bars) if varied else None
    # What broke before it was played was never a candidate.
    of_own, of_earlier = (
        sum(any(end.is_good for end in one.outcomes.values()) for one in some) for some in (own, earlier)
    )
    one_policy = different is not None and different.shape[1] == 1 < len(columns)
    return Chosen(trials, of_own, of_earlier, effective_number(matrix, count), found, one_policy)


def _sharpes(trials: Sequence[Trial], steps: int) -> list[float]:
    """Return the Sharpe ratios per bar of those trials that have one."""
    return [ratio for trial in trials if math.isfinite(ratio := _sharpe(trial, steps))]


def _sharpe(trial: Trial, steps: int) -> float:
    """Return a trial's Sharpe ratio per bar: the mean over its trainings, those that it did before it was pruned."""
    known = [trial.outcomes[step].figures.get(PER_BAR) for step in range(steps) if step in trial.outcomes]
    ratios = [float(ratio) for ratio in known if ratio is not None and math.isfinite(float(ratio))]
    return math.fsum(ratios) / len(ratios) if ratios else math.nan


def returns_of(store: SqlStore, trials: Sequence[Trial], study: Study, root: Path) -> dict[int, NDArray[np.float64]]:
    """Return the returns of each bar of the validation split by trial: means over its trainings, folds in a row."""
    folders = folders_of(store, study)
    settings = study.told
    found = {}
    for trial in trials:
        done = [trial.outcomes[step].run for step in range(settings.steps) if step in trial.outcomes]
        for run in (run for run in done if run in folders):
            bring(root / folders[run])
        read = [read_returns(root / folders[run]) for run in done if run in folders]
        parts = [part.astype(np.float64) for part in read if part is not None]
        if settings.folds is not None and len(parts) == settings.steps:
            found[trial.number] = np.concatenate(parts)
        elif settings.folds is None and parts and len({len(part) for part in parts}) == 1:
            found[trial.number] = np.mean(parts, axis=0)
    return found


def folders_of(store: SqlStore, study: Study) -> Mapping[str, str]:
    """Return the names of the folders of a study's runs, by their ids."""
    jobs = tables().jobs
    query = jobs.select().with_only_columns(jobs.c.id, jobs.c.folder).where(jobs.c.study == study.id)
    return {row.id: row.folder for row in store.read(lambda connection: connection.execute(query).all())}


def _joined(columns: Mapping[int, NDArray[np.float64]]) -> NDArray[np.float64] | None:
    """Return returns as [bars, trials]; trials with other bars than the first, and broken ones, are left out."""
    finite = [column for column in columns.values() if np.isfinite(column).all()]
    same = [column for column in finite if len(column) == len(finite[0])]
    return np.stack(same, axis=1) if same else None


def effective_number(matrix: NDArray[np.float64] | None, count: int) -> float:
    """Return as how many trials without correlation some trials count: ρ + (1 − ρ)·n with their mean correlation ρ.

    After Bailey and López de Prado, "The deflated Sharpe ratio" (2014), appendix 3.
    """
    if matrix is None:
        return math.nan
    moving = matrix[:, matrix.std(axis=0) > 0.0]
    number = moving.shape[1]
    if number < 2:
        return math.nan
    together = np.corrcoef(moving, rowvar=False)
    alike = float((together.sum() - number) / (number * (number - 1)))
    return min(max(alike, 0.0) + (1.0 - max(alike, 0.0)) * count, float(count))


def judge_winner(run: Run, studies: Studies, study: Study, root: Path) -> Evaluation:
    """Play the winner of a study, trained anew, on the test split, and say among what it was chosen."""
    chosen = chosen_among(studies, study, root)
    about = {"name": study.name, "id": study.id, **chosen.content()}
    return evaluate(run, trials=chosen.trials, study=about)
