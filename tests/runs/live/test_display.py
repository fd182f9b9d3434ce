"""The live view: fits any terminal, tells what happened, and gives the terminal back whatever happens."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from velodrome.errors import ConfigError
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.runs.live.display import LiveView, choose_mode
from velodrome.runs.machine.use import GpuUse, MachineUse

GIB = 1024**3
REPOSITORY = Path(__file__).parents[3]
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
METRICS = {
    "loss/policy": -0.01, "loss/value": 0.3, "policy/entropy": 1.05, "policy/kl": 0.004,
    "episode/return": 896.25, "episode/equity_return": 0.125, "episode/sharpe": 0.02, "episode/max_drawdown": 0.03125,
    "episode/length": 1000.0, "episode/count": 8.0, "episode/turnover": 12.5, "action/0": 0.2, "action/1": 0.5,
    "action/2": 0.3, "time/environment": 0.02, "time/inference": 0.09, "time/learning": 0.87, "time/other": 0.02,
}  # fmt: skip
USE = MachineUse(
    cores=8, process_cpu=6.0, machine_cores=8, machine_cpu=6.5, disk_wait=0.0, process_memory=2 * GIB,
    memory_used=8 * GIB, memory_total=32 * GIB, disk_free=GIB, disk_total=200 * GIB,
    gpu=GpuUse("NVIDIA H200", 0.31, 12 * GIB, 139 * GIB, 45.0, 300.0),
)  # fmt: skip


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def console(width: int = 100, height: int = 50, **changes: Any) -> Console:
    named = {"color_system": "truecolor", "legacy_windows": False, "file": Terminal(), "_environ": {}, **changes}
    return Console(force_terminal=True, width=width, height=height, **named)


def view(target: Console, clock: Clock, **changes: Any) -> LiveView:
    """A view in the middle of a training, as if the machine had been sampled."""
    named: dict[str, Any] = {
        "folder": Path("runs/trading-20260101-120000-ab12cd"),
        "resume": "velodrome train --resume ab12cd",
        "action_names": ["short", "flat", "long"],
    }
    shown = LiveView(10_000, "ppo on trading", target, "live", clock=clock, **{**named, **changes})
    for index in range(4):
        clock.now += 1.0
        shown.progress.update(1000 * (index + 1), {**METRICS, "episode/equity_return": 0.125 * (index + 1)})
    shown.evaluated("validation", {"sharpe": 0.9, "return": 0.0625, "max_drawdown": 0.125})
    shown.evaluated("validation", {"sharpe": 1.1, "return": 0.375, "max_drawdown": 0.0625})
    shown.note("checkpoint at 3,000 steps")
    shown.note("learning rate lowered")
    clock.now += 2.0
    shown.sampler.latest = USE
    return shown


def text_of(target: Console, shown: LiveView) -> str:
    with target.capture() as captured:
        target.print(shown.panel())
    return captured.get()


@pytest.fixture
def clock() -> Clock:
    return Clock()


EXPECTED = (
    "40%  4.00 k of 10.0 k steps  4 s left",
    "now 1.00 k steps/s  mean 1.00 k  elapsed 6 s",
    "environment 2%  inference 9%  learning 87%  other 2%",
    "6.0 of 8 cores, others 0.5",
    "2.0 GiB, machine 8.0 GiB of 32.0 GiB",
    "31% busy, 12.0 GiB of 139.0 GiB, 45 °C, 300 W",
    "Learning 87% of the time, all on the CPU: fewer epochs (ppo.epochs), a shared trunk (network.shared=true) or "
    "device=cuda.",
    "In sample  return +50.00%",
    "Validation return +37.50% (used for selection)",
    "Sharpe 1.1  max drawdown 6.25%",
    "short 20%  flat 50%  long 30%",
    "turnover 12.5  Sharpe per bar 0.02  max drawdown 3.12%  length 1000  count 8  sum of rewards 896.2",
    "policy -0.01  value 0.3  entropy 1.05  KL 0.004",
    "checkpoint at 3,000 steps, 2 s ago, 1.0 GiB of disk free",
    "runs/trading-20260101-120000-ab12cd",
    "The disk of the runs folder is nearly full, 1.0 GiB free: checkpoints will fail.",
    "learning rate lowered",
    "Ctrl-C saves and stops; resume with velodrome train --resume ab12cd",
)


@settings(max_examples=40)
@given(width=st.integers(40, 200), colours=st.booleans())
def test_everything_is_on_the_page_and_no_line_is_too_long(width: int, colours: bool) -> None:
    target = console(width, 200, color_system="truecolor" if colours else None)
    shown = view(target, Clock())
    lines = ["".join(segment.text for segment in line) for line in Segment.split_lines(target.render(shown.panel()))]
    assert max(cell_len(line) for line in lines) <= width
    # Lines may break anywhere; what matters is that nothing is cut off.
    page = "".join("".join(lines).replace("│", "").split())
    for expected in EXPECTED:
        assert "".join(expected.split()) in page, expected


def test_counters_are_shown_once_they_have_counted(clock: Clock) -> None:
    target = console(width=200, color_system=None)
    shown = view(target, clock)
    shown.progress.update(5000, {"episode/liquidated": 0.0, "episode/refused_cash": 0.0, "episode/trades": 0.0})
    told = text_of(target, shown)
    assert "trades 0" in told
    assert "liquidated" not in told
    shown.progress.update(6000, {"episode/liquidated": 0.25})
    shown.progress.update(7000, {"episode/liquidated": 0.0})
    told = text_of(target, shown)
    assert "liquidated 0" in told
    assert "refused cash" not in told


def test_a_resumed_run_names_the_checkpoint_that_it_came_from_until_there_is_another(clock: Clock) -> None:
    target = console(color_system=None)
    saved = (90.0, "checkpoint at step 499,712, which it came from")
    shown = LiveView(1_000_000, "resumed", target, "live", first_steps=499_712, saved=saved, clock=clock)
    assert "Saved      checkpoint at step 499,712, which it came from, 1:30 ago" in text_of(target, shown)
    shown.note("checkpoint at step 600,000")
    assert "Saved      checkpoint at step 600,000, 0 s ago" in text_of(target, shown)


def test_the_curves_rise_with_the_returns(clock: Clock) -> None:
    target = console(color_system=None)
    page = text_of(target, view(target, clock))
    assert "return +50.00%  ▁▃▆█" in page
    assert "return +37.50% (used for selection)  ▁█" in page
    assert "─ ppo on trading ─" in page


def test_parts_of_a_bar_are_told_apart_without_colours(clock: Clock) -> None:
    target = console(color_system=None)
    lines = text_of(target, view(target, clock)).splitlines()
    (times,) = [line for line in lines if "Time" in line]
    bar = times.split()[2]
    assert sorted(set(bar), key=bar.index) == ["E", "I", "L", "O"]
    assert bar.count("L") == pytest.approx(0.87 * len(bar), abs=1)


def test_a_terminal_of_ascii_gets_ascii(clock: Clock) -> None:
    class Ascii(Terminal):
        encoding = "ascii"

    target = console(file=Ascii(), color_system=None)
    assert text_of(target, view(target, clock)).isascii()


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (60, 15), (100, 12)])
def test_a_low_terminal_keeps_progress_return_and_hint(width: int, height: int, clock: Clock) -> None:
    target = console(width, height)
    shown = view(target, clock)
    shown.sampler.latest = None
    lines = text_of(target, shown).splitlines()
    page = "\n".join(lines)
    assert len(lines) < height
    assert "Progress" in page
    assert "In sample" in page
    assert "Ctrl-C" in page


def test_a_page_without_any_metrics_is_fine(clock: Clock) -> None:
    target = console()
    page = text_of(target, LiveView(1000, "fresh", target, "live", clock=clock))
    assert "0%" in page
    assert "no checkpoint yet" in page
    assert "Too little was measured" in page


def test_many_actions_are_summed_up_and_continuous_ones_described(clock: Clock) -> None:
    target = console(color_system=None)
    many = LiveView(1000, "many", target, "live", clock=clock)
    many.progress.update(10, {f"action/{index}": 0.05 for index in range(20)})
    assert "others 65%" in text_of(target, many)
    continuous = LiveView(1000, "continuous", target, "live", clock=clock)
    continuous.progress.update(10, {"action/mean": 0.25, "action/std": 0.5})
    assert "mean 0.25  std 0.5" in text_of(target, continuous)


def test_a_missing_gpu_counter_is_said_when_the_run_is_on_the_gpu(clock: Clock) -> None:
    target = console()
    shown = view(target, clock, facts=RunFacts(device="cuda"))
    shown.sampler.latest = MachineUse(**{**USE.__dict__, "gpu": None})
    shown.sampler.gpu_missing = "nvidia-ml-py is not installed"
    assert "not shown: nvidia-ml-py is not installed" in text_of(target, shown)


def test_the_mode_follows_what_was_asked_and_where_it_goes() -> None:
    terminal = console()
    assert choose_mode(terminal) == "live"
    assert choose_mode(terminal, json=True) == "json"
    assert choose_mode(terminal, quiet=True) == "quiet"
    assert choose_mode(Console(file=io.StringIO())) == "plain"
    # As with FORCE_COLOR=1 and a pipe.
    assert choose_mode(Console(file=io.StringIO(), force_terminal=True)) == "plain"
    assert choose_mode(Console(file=Terminal(), force_terminal=True, _environ={"TERM": "dumb"})) == "plain"
    with pytest.raises(ConfigError, match="both json and quiet"):
        choose_mode(terminal, json=True, quiet=True)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_the_terminal_is_given_back(error: type[BaseException] | None) -> None:
    target = console()
    stdout, stderr = sys.stdout, sys.stderr

    def train() -> None:
        with LiveView(1000, "training", target, "live", resume="velodrome train --resume x") as shown:
            shown.update(500, METRICS)
            print("a stray line")  # noqa: T201
            if error is not None:
                raise error("boom")
            shown.update(1000, METRICS)

    if error is None:
        train()
    else:
        with pytest.raises(error, match="boom"):
            train()
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("velodrome-")]
    written = target.file.getvalue()  # type: ignore[attr-defined]
    assert written.rfind(SHOW_CURSOR) > written.rfind(HIDE_CURSOR) >= 0
    assert "a stray line" in written
    ends = {None: "done: 1,000 of 1,000", KeyboardInterrupt: "interrupted: 500 of", ValueError: "stopped by ValueError"}
    assert ends[error] in written
    assert ("Resume with velodrome train --resume x" in written) == (error is not None)


def test_a_second_control_c_while_closing_still_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    target = console()
    shown = LiveView(1000, "training", target, "live")

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    def train() -> None:
        with shown:
            shown.update(500, METRICS)

    with monkeypatch.context() as patched:
        patched.setattr(shown.sampler, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train()
    shown.sampler.__exit__(None, None, None)
    written = target.file.getvalue()  # type: ignore[attr-defined]
    assert written.rfind(SHOW_CURSOR) > written.rfind(HIDE_CURSOR) >= 0


def test_a_drawing_that_fails_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velodrome.runs.live.display.REFRESH", 0.01)
    target = console()
    with LiveView(1000, "training", target, "live") as shown:
        monkeypatch.setattr(shown, "draw", lambda: 1 / 0)
        end = time.monotonic() + 10
        while shown.failure is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        shown.update(1000, METRICS)
    assert "The live view ended early: ZeroDivisionError" in target.file.getvalue()  # type: ignore[attr-defined]


def test_a_terminal_that_gets_narrower_is_cleared_and_drawn_anew(clock: Clock) -> None:
    target = console(100)
    shown = LiveView(1000, "training", target, "live", clock=clock)
    with shown:
        target.width = 40
        before = len(target.file.getvalue())  # type: ignore[attr-defined]
        shown.draw()
        drawn = target.file.getvalue()[before:]  # type: ignore[attr-defined]
        assert "\x1b[2J" in drawn
        assert drawn.rfind(HIDE_CURSOR) > drawn.rfind(SHOW_CURSOR)
    assert target.file.getvalue().rfind(SHOW_CURSOR) > before  # type: ignore[attr-defined]


PROGRAM = """
import sys, time
from rich.console import Console
from rich.segment import Segment
from velodrome.runs.live.display import LiveView, choose_mode
target = Console()
with LiveView(10_000_000, "training", target, choose_mode(target)) as view:
    print("started", view.mode)
    for index in range(2000):
        view.update(index, {"episode/return": 0.5, "time/learning": 0.01})
        time.sleep(0.01)
"""


@pytest.fixture
def pseudo_terminal() -> Iterator[tuple[int, int]]:
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    yield control, terminal
    os.close(control)


def read_until(control: int, wanted: str | None, seconds: float = 20.0) -> str:
    """Read from a terminal until a text appears, or until the other end is closed if none is wanted."""
    found = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found += os.read(control, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            break
        if wanted is not None and wanted.encode() in found:
            break
    assert wanted is None or wanted.encode() in found, found.decode(errors="replace")[-2000:]
    return found.decode(errors="replace")


def test_control_c_in_a_real_terminal_restores_it_even_after_resizing(pseudo_terminal: tuple[int, int]) -> None:
    control, terminal = pseudo_terminal
    before = termios.tcgetattr(terminal)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=terminal, stdout=terminal, stderr=terminal, cwd=REPOSITORY,
        env={**environment, "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert "started live" in read_until(control, "started live")
        read_until(control, "steps/s")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 40, 0, 0))
        read_until(control, "\x1b[2J")
        process.send_signal(signal.SIGINT)
        assert termios.tcgetattr(terminal) == before
        os.close(terminal)
        rest = read_until(control, None)
        assert process.wait(timeout=10) == -signal.SIGINT
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert SHOW_CURSOR in rest
    assert HIDE_CURSOR not in rest[rest.rfind(SHOW_CURSOR) :]
    assert "interrupted:" in rest
    assert "KeyboardInterrupt" in rest
