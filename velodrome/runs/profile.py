"""Where the time of a training goes: phases, operations, Python functions, a flame graph and a trace."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from velodrome.errors import ConfigError, MissingDependencyError
from velodrome.outside.extras import install
from velodrome.runs.machine.plan import without_tracing_notes
from velodrome.writing import replace_text, replacing

if TYPE_CHECKING:
    from velodrome.rollout.phases import PhaseClock

WARM_UP = 1  # iterations before anything is measured: compilers run in the first
MOST_WARM_UP = 200  # iterations that a learner may take to collect experience before it begins to learn
MOST_TRACED = 3  # iterations in the trace; every operation of each is a line in it
MOST_ROWS = 15  # of a table
SAMPLE_EVERY = 0.001  # seconds between two looks at the Python stack


@dataclass(frozen=True)
class Spent:
    """An operation or a function, and its own time: without that of what it calls."""

    name: str
    calls: float | None  # per iteration; None where it was sampled instead of counted
    seconds: float  # per iteration
    share: float  # of the time of an iteration, under the same profiler


@dataclass(frozen=True)
class ProfileReport:
    """What was measured; times are seconds per iteration."""

    iterations: int
    device: str
    phases: dict[str, float]  # by the phase clock, with no profiler running
    operations: list[Spent]  # torch's, by the largest first; on a GPU, its kernels
    every_thread: bool  # whether the operations of all threads were seen, or of those that torch itself follows
    functions: list[Spent]  # Python's, of the calling thread, by the largest first
    flame_graph: Path  # to open in a browser
    speedscope: Path  # the same for https://www.speedscope.app
    trace: Path  # for chrome://tracing or https://ui.perfetto.dev

    def table(self) -> RenderableType:
        """Return the tables of phases, operations and functions, and where the files are."""
        threads = "all threads" if self.every_thread else "this thread and autograd's"
        where = f"of {threads}" if self.device == "cpu" else "on the GPU"
        files = Text(overflow="fold")
        for label, path in (
            ("Flame graph ", self.flame_graph),
            ("for speedscope.app ", self.speedscope),
            ("Trace for chrome://tracing ", self.trace),
        ):
            files.append(label, style="dim").append(f"{path}\n")
        files.rstrip()
        return Group(
            self._phase_table(),
            _spent_table(f"Torch operations {where}, own time per iteration", "operation", self.operations),
            _spent_table("Python functions, own time per iteration", "function", self.functions),
            files,
        )

    def _phase_table(self) -> Table:
        title = f"Phases, mean of {self.iterations} iterations on {self.device}"
        table = _table(title, "phase", ("share", "time"))
        total = self.phases["total"]
        for name, seconds in self.phases.items():
            table.add_row(name, f"{seconds / total:.1%}" if total > 0 else "-", _time_text(seconds))
        return table


def profile_iterations(
    iterate: Callable[[], Any], clock: PhaseClock, iterations: int, folder: Path | str
) -> ProfileReport:
    """Call `iterate` again and again and measure where its time goes, leaving the files in the folder.

    There are three rounds, because a profiler slows down what the other one sees: phases alone, then the Python stack
    sampled, then torch's operations recorded (a few iterations only). One iteration before them warms up, or as many
    as a learner needs that collects experience first.
    """
    if iterations < 1:
        raise ConfigError(f"A profile needs 1 or more iterations; received {iterations}.")
    if importlib.util.find_spec("pyinstrument") is None:
        raise MissingDependencyError(f"A flame graph needs pyinstrument, which is not installed: {install('profile')}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for warmed in range(1, MOST_WARM_UP + 1):
        learning = (iterate() or {}).get("time/learning")
        if warmed >= WARM_UP and learning != 0.0:
            break
    phases = _time_phases(iterate, clock, iterations)
    flame_graph, speedscope = folder / "profile.html", folder / "profile.speedscope.json"
    functions = _sample_stacks(iterate, iterations, flame_graph, speedscope)
    trace = folder / "trace.json"
    device = clock.device.type
    operations, every_thread = _record_operations(iterate, min(iterations, MOST_TRACED), device, trace)
    clock.take()
    return ProfileReport(
        iterations, device, phases, operations, every_thread, functions, flame_graph, speedscope, trace
    )


def _time_phases(iterate: Callable[[], Any], clock: PhaseClock, iterations: int) -> dict[str, float]:
    """Return the seconds of each phase per iteration.

    A learner reads its clock at the end of an iteration and reports what it read (as `time/environment` …), so the
    clock holds only what came after; a caller that reports nothing leaves all of it there.
    """
    from velodrome.rollout.phases import PHASES

    clock.take()
    begin = perf_counter()
    reports = [iterate() or {} for _ in range(iterations)]
    left = clock.take()
    wall = perf_counter() - begin
    named = {name: left[name] + sum(report.get(f"time/{name}", 0.0) for report in reports) for name in PHASES}
    # The device's clock and the host's differ by microseconds, so the rest could come out below 0.
    seconds = {**named, "other": max(wall - sum(named.values()), 0.0), "total": max(wall, sum(named.values()))}
    return {name: spent / iterations for name, spent in seconds.items()}


def _sample_stacks(iterate: Callable[[], Any], iterations: int, flame_graph: Path, speedscope: Path) -> list[Spent]:
    """Sample the Python stack of this thread and write it as a flame graph; return the functions' own time."""
    from pyinstrument import Profiler
    from pyinstrument.renderers import SpeedscopeRenderer

    profiler = Profiler(interval=SAMPLE_EVERY, async_mode="disabled")
    with profiler:
        for _ in range(iterations):
            iterate()
    session = profiler.last_session
    assert session is not None
    # The page would ask the network for its fonts and works as well without them.
    page = re.sub(r"https://fonts\.googleapis\.com[^\"']*", "data:text/css,", profiler.output_html())
    replace_text(flame_graph, page)
    replace_text(speedscope, SpeedscopeRenderer().render(session))
    root = session.root_frame()
    seconds: dict[str, float] = {}
    for frame in () if root is None else _frames(root):
        name = _function_name(frame)
        seconds[name] = seconds.get(name, 0.0) + frame.total_self_time
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda entry: -entry[1])
    return [Spent(name, None, own / iterations, own / total) for name, own in ordered if own > 0]


def _function_name(frame: Any) -> str:
    """Return a function and its place; a C function has none and is named by its caller."""
    if frame.file_path == "<built-in>" and frame.parent is not None:
        return f"{frame.function} in {frame.parent.function} ({frame.parent.code_position_short()})"
    return f"{frame.function} ({frame.code_position_short() or 'unknown'})"


def _frames(frame: Any) -> Iterator[Any]:
    """Yield a frame and all below it that stand for code; a deep stack must not exhaust Python's."""
    pending = [frame]
    while pending:
        frame = pending.pop()
        pending.extend(frame.children)
        if not frame.is_synthetic:
            yield frame


def _record_operations(
    iterate: Callable[[], Any], iterations: int, device: str, trace: Path
) -> tuple[list[Spent], bool]:
    """Record torch's operations and write the trace; return them by their own time, and if every thread was seen."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    settings = _every_thread()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    profiler = profile(activities=activities, experimental_config=settings, acc_events=True)
    with without_tracing_notes():
        profiler.start()
    try:
        begin = perf_counter()
        for _ in range(iterations):
            iterate()
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        wall = perf_counter() - begin
    finally:
        with without_tracing_notes():
            profiler.stop()
    with replacing(trace) as new:
        profiler.export_chrome_trace(str(new))
    on_gpu = device == "cuda"
    found = []
    for event in profiler.key_averages():
        # On a GPU the kernels count; the operations that launched them carry the same time once more.
        if (event.device_type == DeviceType.CUDA) != on_gpu:
            continue
        own = (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6  # microseconds
        if own > 0:
            found.append(Spent(event.key, event.count / iterations, own / iterations, own / wall))
    return sorted(found, key=lambda operation: -operation.seconds), settings is not None


def _every_thread() -> Any:
    """Return the setting by which torch records all threads, or None where this version of torch has none."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


def _spent_table(title: str, what: str, entries: list[Spent]) -> Table:
    """Return the largest entries, and one row for all the others."""
    counted = any(entry.calls is not None for entry in entries)
    table = _table(title, what, ("share", "calls", "time") if counted else ("share", "time"))
    shown, rest = entries[:MOST_ROWS], entries[MOST_ROWS:]
    if rest:
        calls = sum(entry.calls or 0.0 for entry in rest) if counted else None
        shown = [*shown, Spent(f"{len(rest)} others", calls, sum(e.seconds for e in rest), sum(e.share for e in rest))]
    for entry in shown:
        calls_cell = [f"{entry.calls:,.6g}"] if entry.calls is not None else []
        # A kernel's name can be a page of template arguments.
        name = entry.name if len(entry.name) <= 70 else f"{entry.name[:67]}..."
        table.add_row(name, f"{entry.share:.1%}", *calls_cell, _time_text(entry.seconds))
    return table


def _table(title: str, first: str, numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _time_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 999e-6 else f"{1e6 * seconds:.3g} µs"
