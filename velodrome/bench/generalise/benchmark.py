"""All trainings of `bench generalise`: in processes, kept as they end, and set beside each other."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field, field_validator, model_validator
from rich.console import RenderableType
from rich.text import Text

from velodrome.bench.generalise.trainings import (
    PROBLEMS,
    REGRESSIONS,
    REMEDIES,
    SB3,
    Trained,
    Training,
    can_be_asked,
    train,
)
from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.peers.vectorisers import NEEDS_SB3
from velodrome.bench.plot import OTHERS, OWN, QUIET, Draw
from velodrome.bench.render import narrow_table
from velodrome.bench.report import Report
from velodrome.bench.run import Benchmark, Turns
from velodrome.errors import ConfigError, did_you_mean

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
OUTSIDERS = (*REGRESSIONS, SB3)  # in the colours of others
PEER_STEPS = 200_000  # of Stable-Baselines3 at most: it takes as long for them as we do for many times as many


class GeneraliseOptions(BenchmarkOptions):
    """How much of what is learnt holds on bars that were never seen."""

    PEERS: ClassVar = {SB3: Peer("SB3 PPO", train, **NEEDS_SB3)}
    QUICK: ClassVar = {
        "problems": ("ar1",),
        "bars": (2_000,),
        "windows": (8,),
        "markets": 2,
        "seeds": 1,
        "steps": 65_536,
    }

    problems: tuple[str, ...] = Field(tuple(PROBLEMS), description="kinds of market")
    bars: tuple[int, ...] = Field((2_000, 10_000, 50_000, 250_000), description="bars of a market, 70 % to train on")
    windows: tuple[int, ...] = Field((8, 32), description="bars in an observation")
    contenders: tuple[str, ...] = Field(("defaults",), description="settings to train with, by name; all: every one")
    markets: int = Field(5, ge=1, le=1000, description="markets of each kind, with a seed each")
    seeds: int = Field(3, ge=1, le=1000, description="trainings on each market; a regression has one")
    steps: int | None = Field(None, ge=8_192, description="steps of each training; none: as many as the preset has")
    processes: int | None = Field(
        None, ge=1, le=1024, description="trainings at once; none: as many as there are cores"
    )

    @field_validator("problems", "contenders")
    @classmethod
    def _names_are_known(cls, names: tuple[str, ...], info: Any) -> tuple[str, ...]:
        legal = tuple(PROBLEMS) if info.field_name == "problems" else ("all", *REMEDIES)
        for name in names:
            if name not in legal:
                raise ValueError(f"there is no {name!r}; legal are {', '.join(legal)}.{did_you_mean(name, legal)}")
        return tuple(REMEDIES) if "all" in names else names

    @field_validator("bars", "windows")
    @classmethod
    def _sizes_are_legal(cls, sizes: tuple[int, ...], info: Any) -> tuple[int, ...]:
        least = 1_000 if info.field_name == "bars" else 1
        if not sizes or min(sizes) < least:
            raise ValueError(f"needs one or more numbers of at least {least:,}, received {sizes}")
        return sizes

    @model_validator(mode="after")
    def _speed_is_not_measured(self) -> GeneraliseOptions:
        if given := {"seconds", "repeats"} & self.model_fields_set:
            raise ValueError(f"{', '.join(sorted(given))}: no speed is measured here; give steps, markets and seeds")
        return self


class GeneraliseReport(Report):
    """Everything that a run found out."""

    trained: dict[str, Trained] = Field(default_factory=dict, description="by the name of the training")


class Cell(BaseModel):
    """A contender on markets of one kind and size: means over markets and seeds."""

    problem: str
    bars: int
    windows: int
    contender: str
    count: int = Field(description="trainings")
    in_sample: float = Field(description="share of the best log return, of the checkpoint chosen on validation")
    out_of_sample: float
    error: float = Field(description="standard error of the share out of sample, over markets")
    latest: float = Field(description="share out of sample at the end of training")
    taught: float | None = Field(None, description="share out of sample before learning, of those that were taught")
    members: float | None = Field(None, description="mean share out of sample of an ensemble's members by themselves")
    ahead: float | None = Field(None, description="by how much an ensemble is ahead of that mean")
    ahead_error: float | None = Field(None, description="standard error of that, over markets")
    best: float = Field(description="the largest mean share out of sample at any point of the trainings")


class GeneraliseBenchmark(Benchmark):
    """Agents, a regression and a peer on markets whose best return is known."""

    title = "share of the best log return on bars that were never seen"
    report_type = GeneraliseReport

    def __init__(self, options: GeneraliseOptions) -> None:
        super().__init__("generalise", options)
        path = self.options.json_path
        if path is not None and path.exists():
            self.report.trained = _kept(path)

    def trainings(self) -> Iterator[Training]:
        """Yield everything that is asked for, the shortest first."""
        options = self.options
        contenders = [*REGRESSIONS, *options.contenders, *self.peers]
        for bars in options.bars:
            for problem in options.problems:
                for windows in options.windows:
                    for contender in contenders:
                        if not can_be_asked(problem, contender):
                            continue
                        steps = 0 if contender in REGRESSIONS else options.steps or 0
                        steps = min(steps or PEER_STEPS, PEER_STEPS) if contender == SB3 else steps
                        for market in range(options.seed, options.seed + options.markets):
                            for seed in range(1 if contender in REGRESSIONS else options.seeds):
                                yield Training(problem, bars, windows, contender, market, seed, steps)

    def measure(self, tell: Turns) -> None:
        """Train what the file does not have yet, several at once, and write each when it is done."""
        wanted = list(self.trainings())
        missing = [training for training in wanted if training.name not in self.report.trained]
        tell.expect(len(wanted))
        tell("kept from before", len(wanted) - len(missing))
        processes = min(self.options.processes or len(os.sched_getaffinity(0)), max(len(missing), 1))
        fresh = multiprocessing.get_context("spawn")
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ |= dict.fromkeys(THREADS, "1")
        try:
            with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
                try:
                    running = {pool.submit(train, training): training for training in missing}
                    for done in as_completed(running):
                        training = running[done]
                        self.report.trained[training.name] = done.result()
                        tell(f"{training.contender}: {training.problem}, {training.bars:,} bars")
                        if self.options.json_path is not None:
                            self.report.write(self.options.json_path)
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}

    def conclude(self) -> None:
        """Set the means of what is comparable beside each other."""
        names = {training.name for training in self.trainings()}
        self.cells = cells_of([found for name, found in self.report.trained.items() if name in names])
        self.report.facts["cells"] = [cell.model_dump() for cell in self.cells]

    def more(self) -> Sequence[RenderableType]:
        """Return a table for every kind of market."""
        parts: list[RenderableType] = []
        for problem in dict.fromkeys(cell.problem for cell in self.cells):
            headings = ("bars", "window", "contender", "seen", "unseen", "error", "taught", "end", "runs")
            table = narrow_table(f"{problem}: share of the best log return", headings)
            for cell in (cell for cell in self.cells if cell.problem == problem):
                figures = (f"{cell.in_sample:.2f}", f"{cell.out_of_sample:.2f}", f"{cell.error:.2f}")
                taught = "" if cell.taught is None else f"{cell.taught:.2f}"
                where = (f"{cell.bars:,}", str(cell.windows), cell.contender)
                table.add_row(*where, *figures, taught, f"{cell.latest:.2f}", str(cell.count))
            parts.append(table)
        if together := [cell for cell in self.cells if cell.ahead is not None]:
            parts.append(Text(beside_members(together)))
        seen = "seen and unseen: the checkpoint that did best on validation, on the training and the test split"
        rest = "taught and end: before learning and the last one, on the test split; error: over markets"
        return [*parts, Text(f"{seen}; {rest}\n")]

    def more_panels(self) -> Sequence[Draw]:
        """Return a panel for every kind of market and length of window."""
        places = dict.fromkeys((cell.problem, cell.windows) for cell in self.cells)
        return [lambda panel, place=place: self._draw(panel, *place) for place in places]  # type: ignore[misc]

    def _draw(self, panel: Any, problem: str, windows: int) -> None:
        mine = [cell for cell in self.cells if (cell.problem, cell.windows) == (problem, windows)]
        own, others = iter(OWN * 9), iter(OTHERS * 9)
        for contender in dict.fromkeys(cell.contender for cell in mine):
            cells = sorted((cell for cell in mine if cell.contender == contender), key=lambda cell: cell.bars)
            bars, shares = [cell.bars for cell in cells], [100.0 * cell.out_of_sample for cell in cells]
            errors = [100.0 * cell.error for cell in cells]
            colour = next(others if contender in OUTSIDERS else own)
            panel.errorbar(bars, shares, errors, color=colour, marker="o", label=f"{contender}, unseen")
            if contender not in OUTSIDERS:
                seen = [100.0 * cell.in_sample for cell in cells]
                panel.plot(bars, seen, color=colour, linestyle=":", label=f"{contender}, seen")
        panel.axhline(100.0, color=QUIET, linewidth=0.8)
        sizes = sorted({cell.bars for cell in mine})
        panel.set(xscale="log", xlabel="bars, 70 % of them to train on", ylabel="% of the best log return")
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.minorticks_off()
        panel.set_title(f"{problem}, window of {windows}")


def cells_of(trained: Sequence[Trained]) -> list[Cell]:
    """Return the means of trainings that differ in their seeds alone."""
    groups: dict[tuple[int, str, int, str], list[Trained]] = {}
    for one in trained:
        groups.setdefault((one.bars, one.problem, one.windows, one.contender), []).append(one)
    found = []
    for (bars, problem, windows, contender), own in sorted(groups.items(), key=lambda group: group[0][:3]):
        markets: dict[int, list[Trained]] = {}  # one may have been trained on more often than another
        for one in own:
            markets.setdefault(one.market_seed, []).append(one)
        by_market = [float(np.mean([one.chosen.out_of_sample for one in same])) for same in markets.values()]
        seen = [float(np.mean([one.chosen.in_sample for one in same])) for same in markets.values()]
        alone = [point.out_of_sample for one in own for point in one.members]
        taught = [one.points[0].out_of_sample for one in own if one.points[0].steps == 0 and len(one.points) > 1]
        ahead, ahead_error = _ahead(markets.values()) if alone else (None, None)
        along = np.array([[point.out_of_sample for point in one.points] for one in own]).mean(axis=0)
        found.append(
            Cell(
                problem=problem,
                bars=bars,
                windows=windows,
                contender=contender,
                count=len(own),
                in_sample=float(np.mean(seen)),
                out_of_sample=float(np.mean(by_market)),
                error=_error(by_market),
                latest=float(along[-1]),
                best=float(along.max()),
                taught=float(np.mean(taught)) if taught else None,
                members=float(np.mean(alone)) if alone else None,
                ahead=ahead,
                ahead_error=ahead_error,
            )
        )
    return found


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _ahead(markets: Iterable[Sequence[Trained]]) -> tuple[float, float]:
    """Return by how much ensembles are ahead of the mean of their own members, and the error of that over markets."""
    each = [
        float(
            np.mean(
                [one.points[-1].out_of_sample - np.mean([own.out_of_sample for own in one.members]) for one in same]
            )
        )
        for same in markets
    ]
    return float(np.mean(each)), _error(each)


def beside_members(cells: Sequence[Cell]) -> str:
    """Return how ensembles stand beside their members, for people.

    Members that begin as the same rule agree on nearly every bar, so that most differences are ties.
    """
    ahead = [cell.ahead for cell in cells if cell.ahead is not None]
    better = sum(own >= 0.0 for own in ahead)
    told = (
        f"ensembles: at least as good as the mean of their members in {better} of {len(ahead)} kinds and sizes of "
        f"market; {np.mean(ahead):+.4f} on average, {min(ahead):+.4f} at worst"
    )
    errors = [(cell.ahead, cell.ahead_error) for cell in cells if cell.ahead_error]
    known = [(own, error) for own, error in errors if own is not None and math.isfinite(error)]
    if known:
        behind = sum(own < -2.0 * error for own, error in known)
        told += f"; behind by more than two standard errors over markets in {behind} of {len(known)}"
    return told.replace("-", "−") + "\n"


def _kept(path: Path) -> dict[str, Trained]:
    """Return the trainings that an earlier call left in the file."""
    try:
        return GeneraliseReport.model_validate_json(path.read_text(encoding="utf-8")).trained
    except ValueError as error:
        raise ConfigError(
            f"{path} is there and is no report of `velodrome bench generalise`: name another file, or move it away"
        ) from error
