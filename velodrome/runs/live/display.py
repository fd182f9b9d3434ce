"""The training as it runs: a live display in a terminal, plain lines or JSON elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from velodrome.errors import ConfigError
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.runs.live.page import Page
from velodrome.runs.live.progress import (
    Besides,
    Progress,
    closing_line,
    evaluation_line,
    json_line,
    plain_line,
    update_object,
)
from velodrome.runs.machine.use import MachineSampler

Mode = Literal["live", "plain", "json", "quiet"]

REFRESH = 0.5  # seconds between two drawings; one takes about 6 ms of a core
LINE_EVERY = 5.0  # seconds between two plain lines


def choose_mode(console: Console, json: bool = False, quiet: bool = False) -> Mode:
    """Return how to show a training: as asked, else live in a terminal and plain lines elsewhere."""
    if json and quiet:
        raise ConfigError("Received both json and quiet; json prints every update and quiet prints none. Choose one.")
    if json or quiet:
        return "json" if json else "quiet"
    # Variables that force colour make rich call any file a terminal; in a file a moving display is noise.
    terminal = console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter
    return "live" if terminal and console.file.isatty() else "plain"


class LiveView:
    """Shows a training while it runs; open it around the loop and tell it what happens.

    `first_steps` is where a resumed run begins, `saved` the age in seconds of its checkpoint and what is said of it,
    `resume` the command that would continue it, `always` what every line of JSON says besides. Opening starts a thread
    that samples the machine, and in a terminal one that draws; closing ends both and gives the terminal back, even
    after an error.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        console: Console,
        mode: Mode = "live",
        *,
        first_steps: int = 0,
        saved: tuple[float, str] | None = None,
        folder: Path | None = None,
        resume: str | None = None,
        facts: RunFacts | None = None,
        action_names: Sequence[str] | None = None,
        always: Mapping[str, object] | None = None,
        sampler: MachineSampler | None = None,
        besides: Besides | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.console, self.mode = title, console, mode
        self.folder, self.resume, self.action_names = folder, resume, action_names
        self.always = always or {}
        self.progress = Progress(total_steps, first_steps, facts, clock, besides, saved)
        # One that is given is opened and closed by whoever gives it.
        self.sampler = sampler or MachineSampler(_existing(folder), self.progress.facts.device)
        self._samples = sampler is None
        self.failure: str | None = None  # why the drawing ended early
        self.goes_on = False  # another view follows: this one's end is not that of the training
        self._closing: str | None = None
        self._next_line = 0.0
        self._warned: set[str] = set()
        self._live: Live | None = None
        self._width = console.width
        self._stop = threading.Event()
        self._drawing: threading.Thread | None = None

    def __enter__(self) -> LiveView:
        self.progress.begin()
        if self.mode == "quiet":
            return self
        if self.mode == "live":
            self._live = self._start_live()
            self._drawing = threading.Thread(target=self._draw_on, name="velodrome-live-view", daemon=True)
            self._drawing.start()
        elif self.mode == "plain":
            place = "" if self.folder is None else f", in {self.folder}"
            self._print(f"{self.title}: {self.progress.total_steps:,} steps{place}")
        if self._samples:
            self.sampler.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.mode == "quiet":
            return
        use = self.sampler.latest
        try:
            self._stop.set()
            if self._drawing is not None:
                self._drawing.join(timeout=5.0)
            if self._samples:
                self.sampler.__exit__(kind, error, trace)
        finally:
            # Even when a second Ctrl-C arrives meanwhile.
            self._closing = "" if self.goes_on else closing_line(self.progress, use, error)
            self._close()
        if self.goes_on:
            return
        stopped = None if error is None else type(error).__name__
        self._tell(self._closing, "end", error=stopped, text=self._closing)

    def _close(self) -> None:
        """Draw the last page and give the terminal back."""
        if self._live is None:
            return
        try:
            self._live.update(self.panel())
        finally:
            self._live.stop()
        if self.failure is not None:
            self._print(f"The live view ended early: {self.failure}")

    def update(self, steps: int, metrics: Mapping[str, float]) -> None:
        """Show an iteration: the steps done so far and its metrics."""
        if self.mode == "quiet":
            return
        self.progress.update(steps, metrics)
        if self.mode == "json":
            self._write_json(update_object(self.progress, metrics, self.sampler.latest))
        elif self.mode == "plain" and self.progress.clock() >= self._next_line:
            self._next_line = self.progress.clock() + LINE_EVERY
            self._print(plain_line(self.progress))
            for warning in self._new_warnings():
                self._print(f"warning: {warning}")

    def note(self, text: str) -> None:
        """Show a remark; one that begins with "checkpoint" says that one was saved."""
        if self.mode == "quiet":
            return
        self.progress.note(text)
        self._tell(text, "note", text=text)

    def evaluated(self, split: str, results: Mapping[str, float], seconds: float = 0.0) -> None:
        """Show the results of an evaluation on a split, by name; the one called "return" is followed over time.

        seconds: how long it took.
        """
        if self.mode == "quiet":
            return
        self.progress.evaluated(split, results, seconds)
        line = evaluation_line(self.progress, split, results)
        self._tell(line, "evaluation", split=split, used_for_selection=True, results=dict(results))

    def _tell(self, line: str, event: str, **content: object) -> None:
        """Print a line, or an event as JSON, where there is no live view to show it."""
        if self.mode == "json":
            self._write_json({"event": event, "steps": self.progress.steps, **content})
        elif self.mode == "plain":
            self._print(line)

    def _new_warnings(self) -> list[str]:
        """Return warnings of a kind not shown yet; the numbers in them change all the time."""
        found = [] if self.sampler.latest is None else self.sampler.latest.warnings()
        new = [warning for warning in found if warning.split(",")[0] not in self._warned]
        self._warned.update(warning.split(",")[0] for warning in new)
        return new

    def _print(self, text: str) -> None:
        encoding = self.console.encoding
        # A training must not die because a name cannot be written in the terminal's alphabet.
        writable = text.encode(encoding, "replace").decode(encoding)
        self.console.print(writable, markup=False, highlight=False, soft_wrap=True)

    def _write_json(self, content: Mapping[str, object]) -> None:
        self.console.file.write(json_line({**content, **self.always}) + "\n")
        self.console.file.flush()

    # The drawing

    def _start_live(self) -> Live:
        self._width = self.console.width
        live = Live(self.panel(), console=self.console, auto_refresh=False)
        live.start(refresh=True)
        return live

    def _draw_on(self) -> None:
        """Draw until the view is closed; a failure ends the drawing, not the training."""
        try:
            while not self._stop.wait(REFRESH):
                self.draw()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def draw(self) -> None:
        """Draw the present state."""
        if self._live is None:
            return
        if self.console.width < self._width:
            # A terminal that became narrower has broken the drawn lines; drawing over them would leave remains.
            self._live.transient = True
            self._live.stop()
            self.console.clear()
            self._live = self._start_live()
        self._width = self.console.width
        self._live.update(self.panel(), refresh=True)

    def panel(self) -> Panel:
        """Return everything that there is to show, for the console's present width."""
        page = Page(self.console)
        with self.progress.lock:
            page.fill(self.progress, self.sampler, self.action_names, ended=self._closing is not None)
        if self.folder is not None:
            page.sentence("Folder", str(self.folder))
        for note in self.progress.notes:
            page.sentence("Note", note, "dim")
        if self._closing:
            page.sentence("End", self._closing, "bold")
        hint = "Ctrl-C saves and stops" if self._closing is None else ""
        if self.resume is not None and self.progress.steps < self.progress.total_steps:
            hint = f"{hint}; resume with {self.resume}" if hint else f"Resume with {self.resume}"
        content = page.renderable(hint)
        return Panel(content, title=Text(self.title), title_align="left", border_style="dim", padding=(0, 1))


def _existing(folder: Path | None) -> Path:
    """Return the folder, or the nearest one above it that exists: it is on the same disk."""
    path = (folder or Path()).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
