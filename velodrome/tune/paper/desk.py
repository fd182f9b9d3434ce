"""A desk: all accounts of a champion, the bars that they have taken, who takes over, and what a backtest says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from velodrome.bars.timeframe import describe_time
from velodrome.envs.trading.codes import CODE_NAMES
from velodrome.errors import ConfigError, DataError, VelodromeError
from velodrome.tune.champions.frozen import Champion
from velodrome.tune.paper.seat import TOO_EARLY, Held, Seat
from velodrome.tune.paper.tape import Tape

GRID = ""  # name of the account of a basket
Entry = dict[str, Any]  # a line of the log
Opening = Callable[[int], Champion]  # returns the champion of a promotion's number


@dataclass
class Takeover:
    """Since which bar of an account a champion decides."""

    account: str
    time: int  # when the bar opened, nanoseconds UTC
    number: int  # of the promotion


class Drift(NamedTuple):
    """How far a loop is from the backtest of the same bars."""

    bars: int  # that were compared
    equity: float  # largest difference
    actions: int  # decisions that differ
    missing: int  # bars that only one of them has

    @property
    def is_none(self) -> bool:
        """Whether they are the same to the bit."""
        return self.equity == 0.0 and self.actions == 0 and self.missing == 0


@dataclass
class Desk:
    """The accounts of a champion, each of an instrument, or one of a basket."""

    tape: Tape
    number: int  # of the promotion in use
    champion: Champion
    open_champion: Opening
    since: int | None = None  # nanoseconds UTC: no decision before
    seed: int = 0
    seats: dict[str, Seat] = field(default_factory=dict)
    takeovers: list[Takeover] = field(default_factory=list)
    refused: int | None = None  # promotion that could not take over
    early: bool = False  # it may do so once there are more bars
    told: str = ""  # why it could not
    laid_out: int = -1  # bars of the tape in the seats' tables
    begun: list[Entry] = field(default_factory=list)  # accounts that have begun, and were not told of

    def __post_init__(self) -> None:
        policy = self.champion.policy()
        names = (GRID,) if self.champion.kind == "basket" else self.champion.symbols
        for place, name in enumerate(names):
            self.seats.setdefault(name, Seat(self.champion, policy, place, self.seed))

    def decided(self) -> dict[str, int]:
        """Return by symbol up to which moment bars were decided on."""
        found: dict[str, int] = {}
        for name, seat in self.seats.items():
            until = seat.decided_until
            if until is not None:
                found |= dict.fromkeys(self.champion.symbols if name == GRID else (name,), until)
        return found

    def lay_out(self) -> str:
        """Lay the tape's bars out for all seats; return why an account cannot begin yet, "" if all have."""
        waiting = ""
        if self.laid_out == len(self.tape):
            return waiting
        self.refused = None if self.early else self.refused
        for name, seat in self.seats.items():
            if name != GRID and name not in self.tape.series:
                continue
            try:
                seat.lay_out(self.tape.bars(name or None))
                if seat.held is None:
                    self._begin(name, seat)
            except (ConfigError, DataError) as error:
                if seat.held is not None:
                    raise
                waiting = waiting or str(error)
        self.laid_out = -1 if waiting else len(self.tape)
        return waiting

    def _begin(self, name: str, seat: Seat) -> None:
        seat.begin(self.since)
        self.takeovers.append(Takeover(name, seat.time, self.number))
        about = {"account": name, "time": describe_time(np.int64(seat.time)), "promotion": self.number}
        self.begun.append({"kind": "begin", **about, "equity": seat.equity, **_decision(seat)})

    def play(self, wanted: Callable[[], int]) -> Iterator[Entry]:
        """Play all bars that there are, and yield what each brought; the state is whole after each entry.

        wanted: number of the promotion that is in use now, asked at every bar.
        """
        while self.begun:
            yield self.begun.pop(0)
        for name, seat in self.seats.items():
            while seat.has_next:
                step = seat.step()
                entry = self._entry(name, seat, step)
                number = wanted()
                other = number not in (self._number_of(name), self.refused) and not step.over
                taken = self._take_over(name, seat, number) if other else None
                seat.decide()
                yield {**entry, **_decision(seat)}
                if taken is not None:
                    yield taken

    def _number_of(self, account: str) -> int:
        return [one.number for one in self.takeovers if one.account == account][-1]

    def _take_over(self, name: str, seat: Seat, number: int) -> Entry | None:
        """Let a promotion take over an account; return what there is to say, which is said once."""
        try:
            champion = self.open_champion(number)
            problem = self._lacks(champion) or seat.take_over(champion, champion.policy(), self.tape.bars(name or None))
        except VelodromeError as error:  # damaged files, code that nobody trusts: the one before is still good
            problem = str(error)
        before, about = self._number_of(name), {"account": name, "time": describe_time(np.int64(seat.time))}
        if problem:
            self.refused, self.early = number, problem == TOO_EARLY
            told = f"promotion {number} cannot take over: {problem}. Promotion {before} goes on."
            known, self.told = self.told, told
            return None if known == told else {"kind": "note", **about, "text": told}
        self.takeovers.append(Takeover(name, seat.time, number))
        self.number, self.champion = number, champion
        return {"kind": "takeover", **about, "number": number, "hash": champion.hash, "instead_of": before}

    def _lacks(self, champion: Champion) -> str:
        """Return in what another champion cannot go on with these accounts."""
        mine, its = self.champion.symbols, champion.symbols
        if (mine != its) if self.champion.kind == "basket" else (set(mine) != set(its)):
            return f"it trades {', '.join(its)}, and the accounts are of {', '.join(mine)}"
        if champion.timeframe != self.tape.timeframe:
            return f"it takes bars of {champion.timeframe}, and the feed's are of {self.tape.timeframe}"
        return ""

    def _entry(self, name: str, seat: Seat, step: Any) -> Entry:
        market = seat.market
        assert market is not None
        symbols = self.champion.symbols if name == GRID else (name,)
        prices = market.close[step.row] if name == GRID else market.ohlc[step.row, 3:]  # type: ignore[union-attr]
        changes = seat.units - step.before
        codes = {
            word: CODE_NAMES[int(seat.value(f"{word}_code"))] for word in ("order", "exit") if seat.has(f"{word}_code")
        }
        return {
            "kind": "bar",
            "account": name,
            "time": describe_time(np.int64(seat.time)),
            "nanoseconds": seat.time,
            "promotion": self._number_of(name),
            "action": _plain(step.action),
            **codes,
            "orders": {symbol: float(moved) for symbol, moved in zip(symbols, changes, strict=True) if moved},
            "units": dict(zip(symbols, map(float, seat.units), strict=True)),
            "price": dict(zip(symbols, map(float, prices), strict=True)),
            "cash": float(seat.value("cash")),
            "equity": seat.equity,
            "reward": step.reward,
            "over": step.over,
        }

    # What it goes on from

    def to_plain(self) -> dict[str, Any]:
        """Return all accounts as JSON holds them, to the bit."""
        return {
            "number": self.number,
            "since": self.since,
            "seed": self.seed,
            "accounts": {name: (held := seat.hold()) and held.to_plain() for name, seat in self.seats.items()},
            "takeovers": [[one.account, one.time, one.number] for one in self.takeovers],
            "refused": self.refused,
            "left_out": sorted(self.tape.refused),
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any], tape: Tape, open_champion: Opening) -> Desk:
        """Return the desk that `to_plain` described."""
        takeovers = [Takeover(*one) for one in plain["takeovers"]]
        number = int(plain["number"])
        desk = cls(tape, number, open_champion(number), open_champion, plain["since"], int(plain["seed"]))
        desk.takeovers, desk.refused = takeovers, plain["refused"]
        tape.refused |= {(symbol, int(moment)) for symbol, moment in plain["left_out"]}
        for place, (name, seat) in enumerate(desk.seats.items()):
            own = [one.number for one in takeovers if one.account == name]
            if own and own[-1] != number:  # the others are further
                champion = open_champion(own[-1])
                seat = desk.seats[name] = Seat(champion, champion.policy(), place, desk.seed)
            if plain["accounts"][name] is not None:
                seat.held = Held.of_plain(plain["accounts"][name])
        return desk

    # The backtest of the same bars

    def backtest(self) -> Iterator[Entry]:
        """Play all bars of the tape again, from the first on and in one piece, as the same champions would."""
        for place, (name, seat) in enumerate(self.seats.items()):
            own = [one for one in self.takeovers if one.account == name]
            if not own or seat.held is None:
                continue
            champion = self.open_champion(own[0].number)
            other = Seat(champion, champion.policy(), place, self.seed)
            other.lay_out(self.tape.bars(name or None))
            other.begin(own[0].time)
            until = seat.time
            at = {one.time: one.number for one in own[1:]}
            while other.time < until and other.has_next:
                step = other.step()
                yield self._entry(name, other, step)
                if other.time in at:
                    champion = self.open_champion(at[other.time])
                    other.take_over(champion, champion.policy(), self.tape.bars(name or None))
                other.decide()


def drift_of(log: Sequence[Entry], backtest: Sequence[Entry]) -> Drift:
    """Compare what a loop has logged with the backtest of the same bars, bar by bar."""
    ours, theirs = ({(entry["account"], entry["nanoseconds"]): entry for entry in side} for side in (log, backtest))
    both = ours.keys() & theirs.keys()
    equity = max((abs(ours[key]["equity"] - theirs[key]["equity"]) for key in both), default=0.0)
    differ = sum(
        json.dumps([ours[key][what] for what in ("action", "units", "cash", "equity", "over")])
        != json.dumps([theirs[key][what] for what in ("action", "units", "cash", "equity", "over")])
        for key in both
    )
    return Drift(len(both), float(equity), differ, len(ours.keys() ^ theirs.keys()))


def _decision(seat: Seat) -> Entry:
    """Return what was decided for the next bar, by number and, where actions have names, by name."""
    assert seat.held is not None
    if seat.held.over:
        return {"decision": None}
    action, names = _plain(seat.held.pending), seat.envs.world.action_names
    return {"decision": action, **({"decides": names[action]} if names and isinstance(action, int) else {})}


def _plain(action: Any) -> Any:
    """Return an action of one environment as JSON holds it."""
    values = np.asarray(action).reshape(-1).tolist()
    return values[0] if len(values) == 1 else values
