"""`velodrome top`: the first page of the dashboard in a terminal, for machines reached by ssh. It needs no server."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from velodrome.dashboard.answers import Nothing, Question, plain
from velodrome.dashboard.api.overview import overview
from velodrome.dashboard.site import Site
from velodrome.errors import VelodromeError
from velodrome.evaluation.measures import format_figure
from velodrome.outside.screen import Figures, FittedTable
from velodrome.runs.live.progress import compact, duration, sparkline
from velodrome.runs.machine.use import bytes_text
from velodrome.runs.metrics import EQUITY_RETURN
from velodrome.runs.report.listing import CHOOSING, NOTHING, age, counted

if TYPE_CHECKING:
    from rich.console import RenderableType

LEVELS = "▁▂▃▄▅▆▇█"
BAR_WIDTH, CURVE_WIDTH = 10, 40  # characters
SHOWN = {"running": 12, "studies": 6, "finished": 8}
FIRST_SAMPLE = 0.5  # seconds until the machine was looked at
LONGEST_NAME = 24


def look(site: Site) -> dict[str, Any]:
    """Return what the first page shows, in plain values."""
    return plain(overview(site, Question({}, Nothing())))


def show_once(site: Site, screen: Console, json: bool = False) -> None:
    """Print the page once, as it is now."""
    look(site)
    time.sleep(FIRST_SAMPLE)
    found = look(site)
    if json:
        import json as writer

        screen.file.write(writer.dumps(found, indent=1) + "\n")
        return
    screen.print(page(found, screen.height, whole=True))


def show(site: Site, screen: Console, seconds: float) -> None:
    """Redraw the page until q, Escape or Ctrl-C. seconds: between two looks."""
    from rich.live import Live

    found = look(site)
    with (
        keys() as pressed,
        Live(page(found, screen.height), console=screen, screen=True, auto_refresh=False) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while True:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if pressed(min(0.2, seconds)) in ("q", "Q", "\x1b", "\x03"):
                    return
            try:
                found, problem = look(site), ""
            except VelodromeError as error:  # the store is busy or away; what was known stays
                problem = str(error)
            live.update(page(found, screen.height, problem=problem), refresh=True)


@contextlib.contextmanager
def keys() -> Iterator[Any]:
    """Yield a function that waits so many seconds for a key and returns it, '' if none was pressed."""
    import termios
    import tty

    at = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if at is None else termios.tcgetattr(at)
    if at is not None:
        tty.setcbreak(at)

    def pressed(seconds: float) -> str:
        if at is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([at], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        yield pressed
    finally:
        if at is not None and before is not None:
            termios.tcsetattr(at, termios.TCSADRAIN, before)


# The page


def page(found: Mapping[str, Any], height: int, whole: bool = False, problem: str = "") -> RenderableType:
    """Return the page; whole: nothing is left out for want of lines."""
    parts: list[Any] = [_head(found), *_machine(found), Text()]
    if found["empty"]:
        hint = f"Nothing was trained here yet. Make the first run: {found['first_command']}"
        return Group(*parts, Text(hint, style="bold"))
    lines = 10_000 if whole else max(height - 9, 8)
    for name, make in (("running", _running), ("studies", _studies), ("finished", _finished)):
        entries = found["running_runs"] if name == "running" else found[name]
        room = max(1, min(SHOWN[name], (lines - 4) // 2 if name != "finished" else lines - 4))
        if entries and lines > 4:
            parts += [make(entries[:room]), Text()]
            lines -= min(len(entries), room) + 4
        if name == "running":
            parts += [_queue(found["queue"]), Text()]
    if problem:
        parts.append(Text(problem, style="bold red"))
    elif not whole:
        parts.append(Text("q quits", style="dim"))
    return Group(*parts)


def _head(found: Mapping[str, Any]) -> Text:
    service, counts = found["service"], found["counts"]
    where = ", ".join(dict.fromkeys(str(one["machine"]) for one in service["services"]))
    told = f"scheduler on {where}" if service["running"] else f"no scheduler runs ({service['command']})"
    clock = time.strftime("%H:%M:%S", time.localtime(found["now"]))
    head = Text(f"velodrome {found['version']}", style="bold")
    return head.append(
        f"  {clock}  {counted(counts['runs'], 'run')}, {counted(counts['champions'], 'champion')}; {told}",
        style="not bold",
    )


def _machine(found: Mapping[str, Any]) -> list[Text]:
    now, history = found["machine"], found["history"]
    if now is None:
        return [Text("the machine is being looked at", style="dim")]
    share = now["cpu"] / now["cores"]
    parts = [f"CPU {_bar(share)} {share:4.0%} of {now['cores']}"]
    parts.append(f"memory {bytes_text(now['memory_used'])} of {bytes_text(now['memory_total'])}")
    if now["disk_free"] is not None:
        parts.append(f"disk {bytes_text(now['disk_free'])} free")
    lines = [Text("  ".join(parts))]
    if gpu := now["gpu"]:
        told = [str(gpu["name"])]
        told += [f"{gpu['use']:.0%}"] if gpu["use"] is not None else []
        if gpu["memory_used"] is not None and gpu["memory_total"]:
            told.append(f"{bytes_text(gpu['memory_used'])} of {bytes_text(gpu['memory_total'])}")
        told += [f"{gpu['power']:.0f} W"] if gpu["power"] is not None else []
        lines.append(Text("GPU " + ", ".join(told)))
    rates = [rate for rate in history["steps_per_second"] if rate is not None]
    curve = sparkline(rates, CURVE_WIDTH, LEVELS) if any(rates) else ""
    return [*lines, Text(f"{compact(now['steps_per_second'])} steps/s  {curve}".rstrip())]


def _bar(share: float) -> str:
    full = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return "█" * full + "░" * (BAR_WIDTH - full)


def _running(lines: Sequence[Mapping[str, Any]]) -> FittedTable:
    shares = [line["steps"] / line["total_steps"] if line["total_steps"] else 0.0 for line in lines]
    left = [_left(line) for line in lines]
    columns = [
        Figures("run", [line["id"] for line in lines], number=False),
        Figures("name", [_short(line["name"]) for line in lines], number=False),
        Figures("progress", [f"{_bar(share)} {share:4.0%}" for share in shares], number=False),
        Figures("steps/s", [_rate(line["steps_per_second"]) for line in lines]),
        Figures("left", left, rank=1),
        Figures("episode return", [_live(line["live"]) for line in lines], rank=2),
    ]
    return FittedTable("running", columns)


def _left(line: Mapping[str, Any]) -> str:
    if not line["total_steps"] or not line["steps_per_second"]:
        return NOTHING
    return duration(max(line["total_steps"] - line["steps"], 0) / line["steps_per_second"])


def _queue(queue: Mapping[str, Any]) -> Text:
    counts = ", ".join(f"{queue[name]:,} {name}" for name in ("waiting", "running", "paused", "failed"))
    why = [f" ({job['shown']})" if job["shown"] != job["status"] else "" for job in queue["next"][:3]]
    following = ", ".join(_short(job["name"]) + told for job, told in zip(queue["next"], why, strict=False))
    return Text(f"queue: {counts}" + (f"; next {following}" if following else ""))


def _studies(lines: Sequence[Mapping[str, Any]]) -> FittedTable:
    columns = [
        Figures("study", [_short(line["name"]) for line in lines], number=False),
        Figures("status", [line["phase"] for line in lines], number=False),
        Figures("trials", [f"{line['over']:,} of {line['wanted']:,}" for line in lines]),
        Figures("best", [NOTHING if line["best"] is None else line["best"]["text"] for line in lines]),
        Figures("an hour", [_rate(line["trials_per_hour"]) for line in lines], rank=2),
        Figures("left", [age(line["seconds_left"]) if line["seconds_left"] else NOTHING for line in lines], rank=1),
    ]
    return FittedTable("studies", columns)


def _finished(lines: Sequence[Mapping[str, Any]]) -> FittedTable:
    results = [line["result"] or {} for line in lines]
    baselines = [result.get("baseline") or {} for result in results]
    held_out = [line["held_out"] or {} for line in lines]
    columns = [
        Figures("run", [line["id"] for line in lines], number=False),
        Figures("name", [_short(line["name"]) for line in lines], number=False),
        Figures("env", [line["env"] for line in lines], number=False, rank=2),
        Figures("out of sample", [_result(result, result.get("value")) for result in results]),
        Figures("baseline", [_result(own, base.get("value")) for own, base in zip(results, baselines, strict=True)]),
        Figures("which", [str(base.get("label") or NOTHING) for base in baselines], number=False, rank=3),
        *([Figures(CHOOSING, [_result(one, one.get("value")) for one in held_out], rank=1)] if any(held_out) else []),
        Figures("ended", [age(max(0.0, time.time() - line["updated"])) for line in lines], rank=1),
    ]
    return FittedTable("last finished", columns)


def _result(result: Mapping[str, Any], value: float | None) -> str:
    return format_figure(value, "change" if result.get("metric") == "return" else "reward")


def _live(live: Mapping[str, Any] | None) -> str:
    if live is None or live["value"] is None:
        return NOTHING
    return format_figure(live["value"], "change") if live["name"] == EQUITY_RETURN else f"{live['value']:.4g}"


def _rate(rate: float | None) -> str:
    return NOTHING if rate is None else compact(rate)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
