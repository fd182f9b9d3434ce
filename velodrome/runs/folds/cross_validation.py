"""`cross_validate`: purged, embargoed cross-validation in time, to choose settings by.

All data before the test split, which is not touched, is cut into blocks of time. For each of them an agent is trained
on the others, on both sides of it, and judged on the block; what overlaps is purged (velodrome/tables/folds.py).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from velodrome.bars.summary import Summarised, Summary
from velodrome.errors import ConfigError, VelodromeError, sentence
from velodrome.outside.screen import Screen
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config, preset_names
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.config.sections import HELD_OUT, EvaluationConfig
from velodrome.runs.evaluate import evaluate
from velodrome.runs.folds.fold import Fold, Given, begun_run, date_text, finished_run, validation_share, wanted_by
from velodrome.runs.live.display import choose_mode
from velodrome.runs.report.folds import blocks_table
from velodrome.runs.report.listing import age
from velodrome.runs.run import Run
from velodrome.runs.together.processes import Job, Seen, processes_for, seen_in, train_together
from velodrome.writing import replace_text

if TYPE_CHECKING:
    from rich.console import Console, Group

    from velodrome.evaluation.result import Evaluation
    from velodrome.runs.folder import RunFolder
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.folds import PurgedFold
    from velodrome.tables.market import Market, WindowedRows

FILE = "cross_validation.json"
MICROSECOND = 1_000  # nanoseconds; the finest that a date names
PURPOSE = (
    "for choosing settings only, never a backtest: all blocks but the last are followed by bars that their agents were "
    "trained on. What the chosen settings earn is said by the test split, which was not touched, or by a walk-forward."
)


class Figure(NamedTuple):
    """A metric over the folds in which it is defined."""

    mean: float
    deviation: float  # standard deviation over folds; NaN for one
    error: float  # standard error of the mean: deviation/√folds
    folds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Return the figure of each fold's value; NaN counts as not defined."""
        known = np.array([value for value in values if not np.isnan(value)])
        with np.errstate(invalid="ignore"):  # infinite ones, such as a profit factor without a loss
            deviation = float(known.std(ddof=1)) if len(known) > 1 else float("nan")
            mean = float(known.mean()) if len(known) else float("nan")
        return cls(mean, deviation, deviation / max(len(known), 1) ** 0.5, len(known))


@dataclass(frozen=True, repr=False)
class CrossValidation(Summarised):
    """All folds, and how their figures are spread."""

    path: Path  # folder with the JSON file
    folds: tuple[Fold, ...]
    settings: Mapping[str, Any]  # what was asked for; bars that were purged and embargoed, by fold

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every metric that all folds have: mean, deviation and standard error over folds."""
        each = [fold.evaluation.metrics for fold in self.folds]
        return {name: Figure.of([one[name] for one in each]) for name in each[0] if all(name in one for one in each)}

    @property
    def mean(self) -> dict[str, float]:
        """The mean over folds by metric, such as mean["sharpe"]."""
        return {name: figure.mean for name, figure in self.figures.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        from velodrome.evaluation.measures import BY_NAME

        purged, embargoed = sum(self.settings["purged"]), sum(self.settings["embargoed"])
        partly = [
            f"{BY_NAME[name].label} ({figure.folds} of {len(self.folds)})"
            for name, figure in self.figures.items()
            if 0 < figure.folds < len(self.folds) and not BY_NAME[name].detail
        ]
        return (
            PURPOSE,
            *(
                [f"not defined in every fold, so that the mean is that of the others: {', '.join(partly)}"]
                if partly
                else []
            ),
            f"{purged:,} bars were purged (windows, their features' look-back and the bars until an order is filled "
            f"overlap) and {embargoed:,} embargoed, over all {len(self.folds)} folds",
            "deviation: standard deviation over folds; error: standard error of the mean. Folds share training bars: "
            "the true error is larger rather than smaller",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the long tables as JSON-able values."""
        from velodrome.evaluation.measures import written

        figures = {
            name: {key: written(value) for key, value in figure._asdict().items()}
            for name, figure in self.figures.items()
        }
        folds = [fold.to_dict() for fold in self.folds]
        return {"settings": dict(self.settings), "figures": figures, "folds": folds, "notes": list(self.notes)}

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        from velodrome.evaluation.measures import BY_NAME, format_figure

        rows, shown = [], []
        for name, figure in self.figures.items():
            metric = BY_NAME[name]
            if metric.detail:
                continue
            cells = [format_figure(value, metric.unit) for value in figure[:3]]
            rows.append((metric.label, *cells))
            shown.append(f"{metric.label} {cells[0]} ± {cells[2].removeprefix('+')}")
        line = f"CrossValidation over {len(self.folds)} folds in {self.path.name}: {', '.join(shown[:3])}"
        return Summary(line, ("", "mean", "deviation", "error"), tuple(rows), self.notes)

    def table(self) -> Group:
        """Return a line for each fold, then mean, deviation and error, and what they are good for."""
        return blocks_table(self)


def cross_validate(
    config: Given = None,
    folds: int | None = None,
    *,
    embargo: int | None = None,
    processes: int | None = None,
    root: str | Path = "runs",
    console: Console | None = None,
    market: Market | Basket | None = None,
    data: str | Path | None = None,
    trust: bool = False,
    **overrides: Any,
) -> CrossValidation:
    """Train a configuration without each of several blocks of time, judge it there, and return how that is spread.

    config: as `vd.train` takes it, or a run whose configuration is taken.
    folds: blocks; evaluation.folds of the configuration if None.
    embargo: bars left out after each block, beside those that are purged; market.embargo if None.
    processes: folds trained at once; if None, as many as the machine has cores and memory for, and one on a GPU.
    root: folder in which a run is looked for. Results lie beside the run, or in `logging.folder`.
    market: a market or basket that is built already, without `clip`. data: where a run's files lie now.
    trust: code that the run names may be imported, though it was not used here before (docs/security.md).
    overrides: fields by name, as for `vd.train`.
    If the configuration evaluates during training, the last of the training bars choose the checkpoint, never the
    block. A second call goes on where the first stopped: finished folds are not trained again.
    """
    from velodrome.tables.folds import purged_folds, spans_of, with_splits
    from velodrome.tables.splits import make_splits

    if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
        raise ConfigError(f"processes is {processes!r}; give a whole number of at least 1.")
    if str(config) in preset_names():  # a run may be called like it, too
        config = load_run_config(str(config))
    about: dict[str, Any] = {"root": root, "market": market, "data": data, "trust": trust, "overrides": overrides}
    wanted = wanted_by(config, "to cross-validate it", **about)
    count = wanted.config.evaluation.folds if folds is None else folds
    apart = wanted.config.market.embargo if embargo is None else embargo
    # The number of folds is said by the folds themselves.
    wanted = wanted._replace(config=load_run_config(wanted.config, {"evaluation.folds": EvaluationConfig().folds}))
    told, whole, console = wanted.config, wanted.whole, console or Screen()
    parts = purged_folds(whole, count, apart, before_the_test(told, whole), validation_share(told, whole))
    plan = [_dates(part) for part in parts]
    markets: list[Market | Basket | None] = []
    for number, dates in enumerate(plan, 1):  # refuses what cannot be trained or judged before anything is trained
        try:
            rows = make_splits(dates, spans_of(whole), whole.timezone, 0)
        except ConfigError as error:
            since, until = (moment[:16].replace("T", " ") for moment in dates[HELD_OUT])
            raise ConfigError(
                f"fold {number:,} of {count:,} leaves out {since} to {until} UTC: {sentence(error)} Fewer folds leave "
                "out longer blocks."
            ) from error
        markets.append(None if market is None else with_splits(market, rows))
    settings: dict[str, Any] = {"configuration": told.hash, "data": whole.content_hash, "folds": count}
    settings |= {"embargo": apart, "splits": plan}
    key = wanted.key({"cross_validation": settings})
    settings |= {"purged": [part.purged for part in parts], "embargoed": [part.embargoed for part in parts]}
    configs = [wanted.fold_config(number, count, key, dates, 0, HELD_OUT) for number, dates in enumerate(plan, 1)]
    for line in _told_plan(configs[0], parts):
        console.print(line, highlight=False, soft_wrap=True)
    _judge_all(configs, markets, processes, console)
    done = []
    for number, (chosen, dates) in enumerate(zip(configs, plan, strict=True), 1):
        judged = _judged(chosen)
        assert judged is not None
        done.append(Fold(number, judged[0], dates, judged[1]))
    result = CrossValidation(wanted.folder / f"cross-validation-{key}", tuple(done), settings)
    result.path.mkdir(parents=True, exist_ok=True)
    replace_text(result.path / FILE, result.to_json() + "\n")
    return result


# What is cut into blocks


def before_the_test(config: RunConfig, market: WindowedRows) -> tuple[int, int] | None:
    """Return the first and one past the last moment of the splits that settings may be chosen by; None for all data."""
    spans = {
        name: [(int(market.time[low]), int(market.time[high - 1])) for low, high in ranges]
        for name, ranges in market.splits.items()
    }
    if not spans:
        return None
    kept = {name for name in spans if name in (config.evaluation.final_split, "test") and name != "train"}
    limit = min((low for name in kept for low, _ in spans[name]), default=None)
    usable = [span for name in spans.keys() - kept for span in spans[name]]
    earlier = [span for span in usable if limit is None or span[1] < limit]
    if not earlier:
        raise ConfigError(
            "market.splits has nothing before the test split, and cross-validation is done on what lies before it. Put "
            "the training split first."
        )
    since, until = min(low for low, _ in earlier), max(high for _, high in earlier)
    times = np.unique(market.time[(market.time >= since) & (market.time <= until)])
    covered = np.zeros(len(times), bool)
    for low, high in earlier:
        covered |= (times >= low) & (times <= high)
    longest = int(np.diff(np.flatnonzero(covered)).max(initial=1)) - 1
    if longest > config.market.embargo * len(market.symbols):
        raise ConfigError(
            f"market.splits leaves out {int((~covered).sum()):,} bars between the splits before the test; "
            "cross-validation cuts them into blocks that follow one another. Let one split begin where another ends."
        )
    return since, until + MICROSECOND


def _dates(part: PurgedFold) -> dict[str, Any]:
    """Return a fold's splits by date."""
    moments: dict[str, Any] = {"train": part.train, "validation": part.validation, HELD_OUT: part.held_out}
    if len(part.train) == 1:
        moments["train"] = part.train[0]

    def texts(value: Any) -> Any:
        return [texts(one) for one in value] if isinstance(value, tuple) else date_text(value)

    return {name: texts(value) for name, value in moments.items() if value is not None}


def _told_plan(config: RunConfig, parts: Sequence[PurgedFold]) -> Iterator[str]:
    """Say how much is to be trained, and when blocks are too short to say much. config: of one fold."""
    bars, purged, agents = min(part.bars for part in parts), max(part.purged for part in parts), config.trainings
    each = "" if agents == 1 else f", {agents} of each,"
    yield (
        f"{len(parts):,} folds: {len(parts) * agents:,} trainings{each} of {config.steps:,} steps; a fold is judged on "
        f"a block of {bars:,} bars"
    )
    if bars < purged:
        yield (
            f"warning: fewer bars are judged in a block ({bars:,}) than are purged beside it ({purged:,}): figures of "
            "so few bars are mostly chance. Fewer folds have longer blocks, and take less time."
        )


# One fold after the other, or several at once


def _judge_all(
    configs: Sequence[RunConfig], markets: Sequence[Market | Basket | None], processes: int | None, console: Console
) -> None:
    """Train and judge the folds that have not been."""
    every = list(zip(range(1, len(configs) + 1), configs, markets, strict=True))
    left = [one for one in every if _judged(one[1]) is None]
    if len(left) < len(every):
        console.print(f"{len(every) - len(left)} of {len(every)} folds have finished: not trained again")
    at_once = min(processes or processes_for(configs[0], markets[0], len(left)), max(len(left), 1))
    mode = choose_mode(console)
    if at_once == 1:
        began = time.monotonic()
        for done, (number, config, own) in enumerate(left):
            seconds = (time.monotonic() - began) / max(done, 1) * (len(left) - done)
            told = f"; about {age(seconds)} left" if done else ""
            console.print(f"fold {number} of {len(every)}{told}", highlight=False)
            _judge(config, own, console, mode)
        return
    console.print(f"{len(left)} folds, {at_once} at a time in processes of their own", soft_wrap=True)
    jobs = [
        Job(f"fold {number}", _judge_apart, (config, own), config.steps, partial(_seen, config, []))
        for number, config, own in left
    ]
    done, error = train_together(jobs, at_once, console, mode)
    if error is not None:
        raise type(error)(f"A fold could not be trained: {str(error).rstrip('.')}. Those that have finished are kept.")
    if not done:
        console.print("interrupted and saved; the same call goes on with it", soft_wrap=True)
        raise KeyboardInterrupt


def _judge(config: RunConfig, market: Market | Basket | None, console: Console, mode: Mode) -> None:
    """Train a fold, or what is left of it, and play the block that it has not seen."""
    own = market
    if own is None:  # as the fold's run will build it again, from its configuration alone
        config, own, _ = setup.market_to_train_on(config)
    assert own is not None
    evaluate(finished_run(config, own, console, mode), HELD_OUT, market=own, report=False)


def _judge_apart(config: RunConfig, market: Market | Basket | None) -> None:
    """Train and judge a fold in a process of its own, without a word."""
    from rich.console import Console

    try:
        _judge(config, market, Console(quiet=True), "quiet")
    except VelodromeError as error:
        # The folder says it, if there is one.
        sys.exit(1 if begun_run(config) else f"velodrome: {config.name}: {error}")


def _judged(config: RunConfig) -> tuple[Run, Evaluation] | None:
    """Return the run and the evaluation of a fold that has finished, None of another."""
    from velodrome.evaluation.result import Evaluation

    folder = begun_run(config)
    if folder is None or (run := Run.of(folder)).status != "finished":
        return None
    with contextlib.suppress(ConfigError):  # killed before it was judged
        return run, Evaluation.load(run.path, HELD_OUT)
    return None


def _seen(config: RunConfig, found: list[RunFolder]) -> Seen:
    """Return what the folder of a fold's run says. found: the folder, once it is known."""
    if not found and (folder := begun_run(config)) is not None:
        found.append(folder)
    return seen_in(found[0]) if found else Seen()
