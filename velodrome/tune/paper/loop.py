"""`follow`: a champion on a feed, bar by bar, until the feed ends or somebody stops it. No order leaves it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from velodrome.bars.timeframe import describe_time
from velodrome.errors import ChampionError, ConfigError, DataError
from velodrome.outside.files import UNFIT
from velodrome.runs.interrupts import Interrupts
from velodrome.tables.splits import moment_nanoseconds
from velodrome.tune.champions.frozen import Champion
from velodrome.tune.champions.registry import Registry
from velodrome.tune.paper.desk import Desk, Drift, Entry, drift_of
from velodrome.tune.paper.feed import Feed
from velodrome.tune.paper.memory import TAPE, Memory
from velodrome.tune.paper.tape import Tape

FOLDER = "paper"
SAVE_BARS = 256  # played in a row before they are kept; a bar that came live is kept at once
DRIFT_BARS = 1_000  # live bars between two comparisons with the backtest
POLL_SECONDS = 1.0


class Watching(Protocol):
    """Who is shown what happens."""

    def entry(self, entry: Entry) -> None:
        """A line of the log."""

    def waiting(self, text: str) -> None:
        """Nothing to play now, and why."""


@dataclass(frozen=True)
class Summary:
    """What a loop did."""

    name: str
    number: int  # of the promotion in use
    bars: int  # played by all accounts, by earlier loops in this folder too
    known: int  # of these bars, how many a champion that played them had learnt from or was chosen by
    known_until: int | None  # when the last such bar of the champion in use opened, in nanoseconds UTC
    equity: dict[str, float]  # by account
    began: dict[str, float]  # equity of each account when it began
    drift: Drift
    folder: Path
    stopped: bool  # by a signal


class _Names:
    """Which promotion a name points to, looked up again when its record was replaced."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry, self.name = registry, name
        self.file = registry.home / f"{name}.json"
        self.record = registry.record(name)
        self._seen = self._stamp()
        self._open: dict[int, Champion] = {}

    def _stamp(self) -> tuple[int, int]:
        try:
            found = os.stat(self.file)
        except OSError:
            return self._seen
        return found.st_ino, found.st_mtime_ns

    def wanted(self) -> int:
        """Return the number of the promotion in use."""
        if (stamp := self._stamp()) != self._seen:
            self._seen = stamp
            with contextlib.suppress(ChampionError):  # a record that cannot be read changes nobody's mind
                self.record = self.registry.record(self.name)
        return self.record.current

    def champion(self, number: int) -> Champion:
        """Return the champion of a promotion."""
        if number not in self._open:
            self._open[number] = self.registry.open(self.record.promotion(number))
        return self._open[number]


def follow(
    name: str,
    feed: str | Path,
    *,
    grows: bool = False,
    root: str | Path = "runs",
    state: str | Path | None = None,
    since: str | None = None,
    seed: int = 0,
    poll_seconds: float = POLL_SECONDS,
    view: Watching | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Summary:
    """Let a champion decide on each bar of a feed, and keep what became of it.

    name: of the champion. feed: a file or folder as `read_bars` takes it.
    grows: wait for more bars at its end, until a signal stops the loop; else a replay, which ends with the feed.
    root: folder of the runs, with the champions. state: folder that it goes on from, root/paper/<name> if not given.
    since: no decision before this date; bars before it are history. seed: of what the environment draws.
    enough: asked whenever nothing is left to play; ends a loop that would wait.
    """
    registry = Registry(root)
    names = _Names(registry, name)
    champion = names.champion(names.wanted())
    moment = None if since is None else moment_nanoseconds(since, champion.about["timezone"], "since")
    if not poll_seconds > 0.0:
        raise ConfigError(f"poll_seconds = {poll_seconds!r}: needs a number of seconds above 0.")
    folder = Path(state) if state is not None else registry.root / FOLDER / name
    with Memory(folder) as memory, Interrupts() as interrupts:
        desk = _desk(memory, names, moment, seed)
        source = Feed(Path(feed), desk.champion, name, grows)
        loop = _Loop(name, desk, memory, source, names, view, interrupts)
        loop.run(grows, poll_seconds, enough)
        return loop.summary()


def _desk(memory: Memory, names: _Names, since: int | None, seed: int) -> Desk:
    """Return the desk that was kept, or a new one."""
    tape = Tape(memory.folder / TAPE)
    plain = memory.state
    if plain is None:
        number = names.wanted()
        return Desk(tape, number, names.champion(number), names.champion, since, seed)
    if plain.get("name") != names.name:
        raise ChampionError(
            f"{memory.folder}: the accounts there are those of champion {plain.get('name')!r}, not of {names.name!r}. "
            "Give this one a folder of its own: --state FOLDER."
        )
    try:
        desk = Desk.of_plain(plain, tape, names.champion)
    except UNFIT as error:
        raise ChampionError(
            f"{memory.folder}: the accounts that were kept there cannot be read ({type(error).__name__}: {error}). "
            "Restore a copy, or begin anew: --state FOLDER."
        ) from error
    if (since is not None and since != desk.since) or seed != desk.seed:
        kept = "no date" if desk.since is None else describe_time(np.int64(desk.since))
        raise ConfigError(
            f"{memory.folder}: the accounts there began with since = {kept} and seed = {desk.seed}, which cannot be "
            "changed now. Leave them out, or begin anew: --state FOLDER."
        )
    return desk


class _Loop:
    """One run of the loop."""

    def __init__(
        self,
        name: str,
        desk: Desk,
        memory: Memory,
        feed: Feed,
        names: _Names,
        view: Watching | None,
        interrupts: Interrupts,
    ) -> None:
        self.name, self.desk, self.memory, self.feed, self.names = name, desk, memory, feed, names
        self.view, self.interrupts = view, interrupts
        self.unsaved = self.compared = 0
        self.said: set[str] = set()
        self.drift = Drift(0, 0.0, 0, 0)
        self.bars = sum(1 for _ in memory.entries("bar"))

    def run(self, grows: bool, poll_seconds: float, enough: Callable[[], bool]) -> None:
        """Look, take, play, keep; again while the feed may grow."""
        self.say({"kind": "start", "name": self.name, "promotion": self.desk.number, "feed": str(self.feed.path)})
        self.play()  # bars that were taken and not played before a kill
        while not self.interrupts.requested:
            if self.feed.has_changed():
                self.look(grows)
            if not grows or enough():
                break
            if self.interrupts.requested:
                break
            time.sleep(poll_seconds)
        self.say({"kind": "stop", "interrupted": self.interrupts.requested, **self.check()._asdict()})
        self.keep()

    def look(self, grows: bool) -> None:
        """Take what is new in the feed and play it."""
        found = self.feed.look()
        for text in (*found.remarks, *([found.problem] if found.problem else [])):
            self.note(text)
        if found.bars is None:
            self.wait(found.problem)
            return
        for text in self.desk.tape.take(found.bars, self.desk.decided()):
            self.note(text)
        waiting = self.play()
        if waiting and not grows:
            raise DataError(f"feed {self.feed.path}: champion {self.name!r} cannot begin: {waiting}")
        self.wait(waiting)

    def play(self) -> str:
        """Play all bars that were taken; return why an account cannot begin yet."""
        if not len(self.desk.tape):
            return ""
        waiting = self.desk.lay_out()
        for entry in self.desk.play(self.names.wanted):
            self.say(entry)
            self.bars += entry["kind"] == "bar"
            self.unsaved += 1
            if self.unsaved >= SAVE_BARS or entry["kind"] == "takeover":
                self.keep()
            if self.interrupts.requested:
                break
        self.keep()
        if self.bars - self.compared >= DRIFT_BARS and self.feed.follow:
            self.say({"kind": "drift", **self.check()._asdict()})
        return waiting

    def check(self) -> Drift:
        """Compare everything that was logged with the backtest of the same bars."""
        self.compared = self.bars
        self.drift = drift_of(list(self.memory.entries("bar")), list(self.desk.backtest()))
        return self.drift

    def say(self, entry: Entry) -> None:
        """Log a line, and show it."""
        self.memory.log(entry)
        if self.view is not None:
            self.view.entry(entry)

    def note(self, text: str) -> None:
        """Say what is odd about the feed, once."""
        if text not in self.said:
            self.said.add(text)
            self.say({"kind": "note", "time": describe_time(np.int64(time.time_ns())), "text": text})

    def wait(self, text: str) -> None:
        if self.view is not None:
            self.view.waiting(text)

    def keep(self) -> None:
        """Keep where all accounts stand."""
        self.unsaved = 0
        self.memory.keep({"name": self.name, **self.desk.to_plain()})

    def summary(self) -> Summary:
        """Return what became of it."""
        equity = {account: seat.equity for account, seat in self.desk.seats.items() if seat.held is not None}
        began: dict[str, float] = {}
        for entry in self.memory.entries("begin"):
            began.setdefault(entry["account"], entry["equity"])
        known = sum(
            entry["nanoseconds"] <= self._known_until(entry["promotion"]) for entry in self.memory.entries("bar")
        )
        return Summary(
            name=self.name,
            number=self.desk.number,
            bars=self.bars,
            known=known,
            known_until=self.desk.champion.known_until,
            equity=equity,
            began=began,
            drift=self.drift,
            folder=self.memory.folder,
            stopped=self.interrupts.requested,
        )

    def _known_until(self, number: int) -> float:
        """Return up to which moment the champion of a promotion knew bars; one that cannot be opened knew none."""
        with contextlib.suppress(ChampionError):
            until = self.names.champion(number).known_until
            return -math.inf if until is None else until
        return -math.inf
