"""All trainings of `bench result`: one after the other, or the seeds of one contender side by side."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator, model_validator
from rich.console import RenderableType
from rich.text import Text

from velodrome.bench.options import BenchmarkOptions
from velodrome.bench.plot import OTHERS, OWN, QUIET, Draw
from velodrome.bench.render import narrow_table
from velodrome.bench.report import OURS, Report
from velodrome.bench.result.contenders import PEERS, Entrant, entrants
from velodrome.bench.result.problems import PROBLEMS
from velodrome.bench.result.timeline import Contest, Timeline
from velodrome.bench.run import Benchmark, Turns
from velodrome.errors import BackendError, RunError, did_you_mean
from velodrome.vector.cores import available_cores

CLOCKS = {"whole": "from the start of the process", "seconds": "of learning alone"}


class ResultOptions(BenchmarkOptions):
    """How long it takes from a command to a result."""

    PEERS: ClassVar = PEERS
    QUICK: ClassVar = {"seconds": 5.0, "seeds": 1}

    problems: tuple[str, ...] = Field(("ar1",), description="what is learnt")
    seeds: int = Field(5, ge=1, le=100, description="trainings of each contender, on markets of their own")
    seconds: float = Field(40.0, gt=0.0, le=86_400.0, description="seconds of learning, of each training at most")
    devices: tuple[Literal["cpu", "cuda"], ...] = Field(("cpu", "cuda"), description="where Velodrome learns")
    processes: int = Field(
        1,
        ge=1,
        le=1024,
        description="seeds of a contender on the CPU that learn at once, with a share of the cores each",
    )

    @field_validator("problems")
    @classmethod
    def _names_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in PROBLEMS:
                legal = ", ".join(PROBLEMS)
                raise ValueError(f"there is no {name!r}; legal are {legal}.{did_you_mean(name, PROBLEMS)}")
        if not names:
            raise ValueError(f"needs one or more of {', '.join(PROBLEMS)}")
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _seeds_are_the_repeats(self) -> ResultOptions:
        if "repeats" in self.model_fields_set:
            raise ValueError("repeats: nobody takes turns here; give seeds")
        return self


class LevelTime(BaseModel):
    """How long a contender took to a level, over its seeds; times are in seconds."""

    problem: str
    peer: str
    label: str
    level: str = Field(description="its name")
    score: float
    runs: int
    reached: int = Field(description="of the runs")
    whole: list[float] = Field(description="from the start of the process, of those that reached it, the least first")
    seconds: list[float] = Field(description="the same of learning alone")
    gave_up: float = Field(0.0, description="from the start, when the median of those that never reached it ended")

    def median(self, clock: str) -> float | None:
        """Return the median over all seeds; None if half of them never reached the level."""
        never = [float("inf")] * (self.runs - self.reached)
        found = statistics.median([*getattr(self, clock), *never]) if self.runs else float("inf")
        return None if found == float("inf") else found

    def shown(self, clock: str) -> str:
        """Return the median with the least and the most of the seeds, for people."""
        if not self.reached:
            return "never" if self.runs else "–"  # interrupted
        median, times = self.median(clock), getattr(self, clock)
        most = digits(times[-1]) if self.reached == self.runs else "never"
        spread = f" ({digits(times[0])}–{most})" if self.runs > 1 else ""
        return f"{'never' if median is None else digits(median)}{spread}"


def digits(seconds: float) -> str:
    """Return seconds with two digits at least."""
    return f"{seconds:.{2 if seconds < 1 else 1 if seconds < 10 else 0}f}"


class ResultReport(Report):
    """Everything that a run found out."""

    timelines: list[Timeline] = Field(default_factory=list)
    times: list[LevelTime] = Field(default_factory=list)


class ResultBenchmark(Benchmark):
    """Everybody learns the same, each seed in a process of its own; who looks at policies takes no time."""

    title = "wall-clock time to a result out of sample"
    report_type = ResultReport

    def __init__(self, options: ResultOptions) -> None:
        super().__init__("result", options)
        from velodrome.vector.cuda import unavailable_reason

        self.no_gpu = unavailable_reason("cuda")
        self.devices = [device for device in options.devices if device == "cpu" or self.no_gpu is None]
        if "cuda" in options.devices and self.no_gpu:
            if not self.devices:
                raise BackendError(f"--devices cuda: {self.no_gpu}. Take cpu, or leave --devices out.")
            self.report.note_missing(f"{OURS}, GPU", self.no_gpu)

    def measure(self, tell: Turns) -> None:
        """Let everybody take turns, seed by seed, after a short training each that fills the caches."""
        options = self.options
        everybody = [(name, one) for name in options.problems for one in entrants(name, self.peers, self.devices)]
        tell.expect(len(everybody) * (1 + options.seeds))
        seeds = range(options.seed + 1, options.seed + 1 + options.seeds)
        with tempfile.TemporaryDirectory(prefix="velodrome-bench-") as name:
            folder = Path(name)
            warm_ups = [(one, timeline(problem, one, options.seed)) for problem, one in everybody]
            self._learn(warm_ups, len(warm_ups), 0.0, folder, tell)
            able = [pair for pair, (_, line) in zip(everybody, warm_ups, strict=True) if line.end != "failed"]
            for first in range(0, len(seeds), options.processes):
                for problem, one in able:
                    on_gpu = one.device == "cuda" or (one.peer == "jax" and self.no_gpu is None)
                    turn = [(one, timeline(problem, one, seed)) for seed in seeds[first : first + options.processes]]
                    self.report.timelines += [line for _, line in turn]
                    self._learn(turn, 1 if on_gpu else options.processes, options.seconds, folder, tell)
                    self.report.timelines = [line for line in self.report.timelines if line.end != "failed"]
                    if options.json_path is not None:
                        self.report.write(options.json_path)

    def _learn(
        self, trainings: Sequence[tuple[Entrant, Timeline]], at_once: int, limit: float, folder: Path, tell: Turns
    ) -> None:
        """Have some trainings done, so many at once. A peer that fails is missing; one of ours is an error."""
        at_once = min(at_once, max(2, available_cores()))
        free, waiting = shared_cores(at_once), iter(trainings)  # the last ones have no more cores than the first
        going: dict[Any, Contest] = {}
        try:
            while True:
                for entrant, line in itertools.islice(waiting, at_once - len(going)):
                    contest = Contest(entrant, line, limit, folder, free.pop())
                    going[contest.line] = contest
                    tell(f"{line.label}, seed {line.seed}", 0)
                if not going:
                    return
                for ready in wait(list(going)):
                    contest = going[ready]
                    line = contest.timeline
                    ended = contest.hear()
                    if line.looks:
                        last = line.looks[-1]
                        score = PROBLEMS[line.problem].shown(last.score)
                        tell(f"{line.label}: {score} in {last.seconds:.1f} s", int(ended))
                    if ended:
                        going.pop(ready).close()
                        free.append(contest.cores)
                    if contest.error:
                        self._excuse(line, contest.error)
        finally:
            for contest in going.values():
                contest.close()

    def _excuse(self, line: Timeline, error: str) -> None:
        if line.peer == OURS:
            raise RunError(f"{line.label} {error}")
        self.report.note_missing(line.peer, f"{line.label} {error}")

    def conclude(self) -> None:
        """Fill in the times, and whether we are ahead of everybody at every level."""
        report = self.report
        report.times, report.targets = list(level_times(report.timelines)), []
        for problem, level in dict.fromkeys((time.problem, time.level) for time in report.times):
            self._judge(f"{problem}, {level}", [t for t in report.times if (t.problem, t.level) == (problem, level)])

    def _judge(self, place: str, times: Sequence[LevelTime]) -> None:
        """Set our fastest beside the fastest peer; who never reached a level took longer than it learnt."""
        medians = [(time.peer == OURS, time.median("whole"), time) for time in times if time.runs]
        own = min((median for ours, median, _ in medians if ours and median is not None), default=None)
        others = [(median or time.gave_up, median is None, time.label) for ours, median, time in medians if not ours]
        if not others or (own is None and all(never for _, never, _ in others)):
            return
        seconds, never, label = min(others)
        how = f"{label}, who never reached it" if never else label
        self.report.judge(f"{place}: times as fast as {how}", 0.0 if own is None else seconds / own, 1.0)

    def more(self) -> Sequence[RenderableType]:
        """Return the tables of every problem, and what they mean."""
        parts: list[RenderableType] = []
        for name in dict.fromkeys(time.problem for time in self.report.times):
            parts += self._tables(name)
        return [*parts, Text("\n".join(self._meaning()) + "\n")] if parts else []

    def _tables(self, name: str) -> Iterator[RenderableType]:
        problem, times = PROBLEMS[name], [time for time in self.report.times if time.problem == name]
        levels = list(problem.levels)
        headings = levels if problem.percent else [f"{problem.levels[level]:.1f}" for level in levels]
        yield Text(f"{name}: {problem.title}")
        for clock, what in CLOCKS.items():
            table = narrow_table(f"Seconds {what}, to a level", ("contender", *headings))
            for label in dict.fromkeys(time.label for time in times):
                own = {time.level: time for time in times if time.label == label}
                is_ours = next(iter(own.values())).peer == OURS
                cells = (own[level].shown(clock) for level in levels)
                table.add_row(label, *cells, style="bold" if is_ours else "")
            yield table
        if not problem.percent:
            yield Text("; ".join(f"{score:.1f}: {who}" for who, score in problem.levels.items()))
        yield self._ends(name)

    def _ends(self, name: str) -> RenderableType:
        problem = PROBLEMS[name]
        table = narrow_table("How far they came", ("contender", "ready after", "steps/s", "learnt for", "best"))
        lines = [line for line in self.report.timelines if line.problem == name and line.looks]
        for label in dict.fromkeys(line.label for line in lines):
            own = [line for line in lines if line.label == label]
            last = [line.looks[-1] for line in own]
            speed = statistics.median(look.steps / look.seconds if look.seconds else 0.0 for look in last)
            ready, seconds = (
                statistics.median(values) for values in ([o.ready for o in own], [o.seconds for o in last])
            )
            best = problem.shown(statistics.median(line.best for line in own))
            table.add_row(label, f"{ready:.1f} s", f"{speed:,.0f}", f"{seconds:.1f} s", best)
        return table

    def _meaning(self) -> Iterator[str]:
        options = self.options
        counts = Counter((line.problem, line.label) for line in self.report.timelines if line.looks)
        fewest = min(counts.values(), default=0)
        told = f"{options.seeds}" if fewest == options.seeds else f"{fewest} or more of the {options.seeds} asked for"
        yield (
            f"Medians over seeds, of which there are {told}, with the least and the most; each has a market "
            f"or a game of its own; never: not within {options.seconds:g} s of learning, nor before all steps that a "
            "contender is told were done. Looks at a policy are on no clock; they lie 10 % apart. From the start of "
            "the process: imports, data and programs, loaded or compiled with a warm cache, count too. A lesson by a "
            "teacher is learning."
        )
        for name in dict.fromkeys(time.problem for time in self.report.times):
            yield f"{name}: {PROBLEMS[name].score}"
        for label, about in dict.fromkeys((line.label, line.about) for line in self.report.timelines if line.about):
            yield f"{label}: {about}"

    def more_panels(self) -> Sequence[Draw]:
        """Return the learning curves of every problem."""
        names = dict.fromkeys(line.problem for line in self.report.timelines if line.looks)
        return [lambda panel, name=name: draw(panel, name, self.report.timelines) for name in names]  # type: ignore[misc]


def shared_cores(among: int) -> list[Collection[int]]:
    """Return the cores of each of so many processes: an equal share, at least one."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = usable[: available_cores()]
    each = max(1, len(cores) // among)
    return [{cores[(each * place + core) % len(cores)] for core in range(each)} for place in range(among)]


def timeline(problem: str, entrant: Entrant, seed: int) -> Timeline:
    """Return a training that has not begun."""
    return Timeline(problem=problem, peer=entrant.peer, label=entrant.label, seed=seed)


def level_times(lines: Sequence[Timeline]) -> Iterator[LevelTime]:
    """Yield how long every contender took to every level; who was interrupted before it counts for nothing."""
    for problem, peer, label in dict.fromkeys((line.problem, line.peer, line.label) for line in lines):
        own = [line for line in lines if (line.problem, line.label) == (problem, label)]
        for level, score in PROBLEMS[problem].levels.items():
            found = [look for line in own if (look := line.reached(score)) is not None]
            ended = [line for line in own if line.end != "interrupted" or line.reached(score) is not None]
            times = {clock: sorted(getattr(look, clock) for look in found) for clock in CLOCKS}
            about = {"problem": problem, "peer": peer, "label": label, "level": level, "score": score}
            never = [line.looks[-1].whole for line in ended if line.looks and line.reached(score) is None]
            gave_up = statistics.median(never) if never else 0.0
            yield LevelTime(**about, runs=len(ended), reached=len(found), **times, gave_up=gave_up)


def draw(panel: Any, name: str, lines: Sequence[Timeline]) -> None:
    """Draw where every seed stood, over the time since its process began."""
    problem, colours, named = PROBLEMS[name], {}, set()
    own, others = itertools.cycle(OWN), itertools.cycle(OTHERS)
    factor = 100.0 if problem.percent else 1.0
    for line in (line for line in lines if line.problem == name and line.looks):
        ours = line.peer == OURS
        if line.label not in colours:
            colours[line.label] = next(own if ours else others)
        style: dict[str, Any] = {"color": colours[line.label], "linewidth": 1.8 if ours else 1.2, "alpha": 0.8}
        style["label"] = None if line.label in named else line.label
        named.add(line.label)
        panel.plot([look.whole for look in line.looks], [factor * look.score for look in line.looks], **style)
    for score in problem.levels.values():
        panel.axhline(factor * score, color=QUIET, linestyle="--", linewidth=0.8)
    lowest = min(problem.levels.values())
    panel.set(xscale="log", xlabel="seconds from the start of the process, log scale (looks not counted)")
    panel.set(ylabel="% of the known optimum, out of sample" if problem.percent else "mean return", title=name)
    panel.set_ylim((0.0, 104.0) if problem.percent else (4.0 * lowest, 0.0))
    from matplotlib.ticker import LogFormatter

    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.0, 0.5)))  # 3 and 4, not 3 × 10⁰
