"""The terminal while a loop runs: the accounts in place, and below them what is worth a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

REFRESH_SECONDS = 0.2
ACCOUNTS_SHOWN = 12
POSITIONS_SHOWN = 4
TOLD = ("note", "takeover", "drift")  # kinds of entries that are worth a line


class View:
    """Shows what a loop does; without a terminal, only what is worth a line."""

    def __init__(self, console: Console, name: str, quiet: bool = False) -> None:
        self.console, self.name, self.quiet = console, name, quiet
        self.last: dict[str, Mapping[str, Any]] = {}
        self.first: dict[str, float] = {}
        self.bars, self.promotion, self.text = 0, 0, ""
        self._live: Live | None = None
        self._shown = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the accounts in place while the block goes on, where there is a terminal."""
        if self.quiet or not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False) as self._live:
            yield
            self._live.update(self.table(), refresh=True)

    def entry(self, entry: Mapping[str, Any]) -> None:
        """Take a line of the log."""
        kind = entry["kind"]
        if kind in ("bar", "begin"):
            self.last[entry["account"]] = entry
            self.first.setdefault(entry["account"], entry["equity"])
            self.bars += kind == "bar"
            self.promotion = entry["promotion"]
            if self._live is not None and time.monotonic() - self._shown > REFRESH_SECONDS:
                self._refresh()
        elif kind in TOLD and not self.quiet:
            self.console.print(Text(told(entry)), highlight=False)

    def waiting(self, text: str) -> None:
        """Nothing to play now."""
        self.text = text
        if self._live is not None:
            self._refresh()

    def _refresh(self) -> None:
        assert self._live is not None
        self._live.update(self.table(), refresh=True)
        self._shown = time.monotonic()

    def table(self) -> Group:
        """Return the accounts as they are."""
        shown = Table(
            title=f"{self.name}, promotion {self.promotion}: {self.bars:,} bars; no order leaves this machine"
        )
        for heading in ("account", "bar (UTC)", "position", "decides", "equity", "change"):
            shown.add_column(heading, overflow="fold", justify="right" if heading in ("equity", "change") else "left")
        for name, entry in list(self.last.items())[:ACCOUNTS_SHOWN]:
            change = entry["equity"] / self.first[name] - 1.0 if self.first[name] else 0.0
            cells = (positions(entry.get("units", {})), decision(entry), f"{entry['equity']:,.2f}", f"{change:+.2%}")
            shown.add_row(name or "portfolio", entry["time"], *cells)
        waits = Text(f"waiting: {self.text}" if self.text else "", style="dim")
        return Group(shown, waits) if self.text else Group(shown)


class JsonLines:
    """Prints each line of the log, for programs."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Nothing is shown in place."""
        yield

    def entry(self, entry: Mapping[str, Any]) -> None:
        """Print a line of the log."""
        sys.stdout.write(json.dumps(entry, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def waiting(self, text: str) -> None:
        """Say nothing: there is no line of the log for it."""


def told(entry: Mapping[str, Any]) -> str:
    """Return an entry as a line for people."""
    kind = entry["kind"]
    if kind == "takeover":
        told = f"promotion {entry['number']} takes over from promotion {entry['instead_of']}"
        return f"{entry['time']} {entry['account'] or 'portfolio'}: {told}, with the position as it is"
    if kind == "drift":
        found = f"{entry['actions'] + entry['missing']} bars, {entry['equity']:g} of equity"
        return f"drift against the backtest of {entry['bars']:,} bars: {found}"
    return f"note: {entry['text']}"


def positions(units: Mapping[str, float]) -> str:
    """Return what is held, for people."""
    held = [f"{amount:+.6g} {symbol}" for symbol, amount in units.items() if amount]
    more = f" and {len(held) - POSITIONS_SHOWN} more" if len(held) > POSITIONS_SHOWN else ""
    return ", ".join(held[:POSITIONS_SHOWN]) + more if held else "flat"


def decision(entry: Mapping[str, Any]) -> str:
    """Return what was decided for the next bar, for people."""
    action = entry.get("decides", entry.get("decision"))
    if action is None:
        return "nothing: the account has ended"
    if isinstance(action, list):
        shown = ", ".join(f"{number:.3g}" for number in action[:POSITIONS_SHOWN])
        return f"{shown}{', …' if len(action) > POSITIONS_SHOWN else ''}"
    return f"{action:.4g}" if isinstance(action, float) else str(action)
