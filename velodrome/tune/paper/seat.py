"""A seat: one account that a champion runs through the rule of its training, one bar at a time.

The rule's compiled step is the one that trains and evaluates. Its tables are laid out from the bars that are there,
with the scalers of the training; they hold nothing that a later bar could change. What the account is between two bars
can be kept as plain bytes and put into another process, or into the hands of another champion.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars
from velodrome.bars.timeframe import parse_timeframe
from velodrome.envs.catalog import CATALOG
from velodrome.envs.contract import World, params_record, state_columns
from velodrome.errors import ChampionError, ConfigError, DataError
from velodrome.evaluation.evaluator import keeps_account, world_on
from velodrome.evaluation.play import never_end, one_thread, stream_of
from velodrome.learn.acting import TrainedPolicy
from velodrome.rollout.observation import WindowBank
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market
from velodrome.tune.champions.frozen import Champion
from velodrome.vector.make import make_vec

# Columns of the state that follow from a champion's parameters, not from what happened to the account.
OF_PARAMETERS = ("margin", "sizing", "drawn")
TOO_EARLY = "its windows reach further back than there are bars"


@dataclass
class Held:
    """All that an account is between two bars."""

    columns: dict[str, NDArray]  # of the rule's state: [1], or [rows, 1]
    observation: NDArray[np.float32]  # what the champion sees of the account
    memory: NDArray[np.float32]  # [1, numbers] of its network
    pending: NDArray  # [1, …] what it decided on the last bar, for the next one
    over: bool  # the rule has ended the account: bankrupt, or at its limit of losses

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON holds it, to the bit."""
        columns = {name: _packed(values) for name, values in self.columns.items()}
        arrays = {name: _packed(getattr(self, name)) for name in ("observation", "memory", "pending")}
        return {"columns": columns, **arrays, "over": self.over}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Held:
        """Return what `to_plain` made."""
        columns = {name: _unpacked(packed) for name, packed in plain["columns"].items()}
        arrays = {name: _unpacked(plain[name]) for name in ("observation", "memory", "pending")}
        return cls(columns=columns, **arrays, over=bool(plain["over"]))


class Step(NamedTuple):
    """What a bar brought."""

    row: int
    action: NDArray  # that was decided on the bar before
    reward: float
    before: NDArray[np.float64]  # units held before the bar, by instrument
    over: bool


class Seat:
    """One account: that of an instrument, or that of a whole basket."""

    def __init__(self, champion: Champion, policy: TrainedPolicy, place: int, seed: int = 0) -> None:
        """place: of the instrument among all, which decides on what is drawn for it."""
        self.champion, self.bare = champion, policy  # the policy without a market
        self.policy = policy
        self.stream = stream_of(seed, place)
        self.held: Held | None = None
        self.market: Market | Basket | None = None
        self.settled = -1  # last row that no further bar can change
        self._envs: Any = None

    # The tables

    def lay_out(self, bars: Bars) -> None:
        """Take these bars, which go on from those before; too few are a ConfigError."""
        self.hold()
        self.market = self.champion.lay_out(bars)
        self.settled = last_settled_row(self.market, bars)
        self._envs = None
        if self.held is not None and self.cursor >= len(self.market.time):
            raise ChampionError("the bars end before the one that the account is at; begin anew with --state FOLDER.")

    @property
    def world(self) -> World:
        """The environment on the bars that there are."""
        assert self.market is not None
        config = self.champion.config
        return world_on(CATALOG.get(config.env), self.market, config.params, whole=True)

    @property
    def envs(self) -> Any:
        """The compiled rule with the account in it."""
        if self._envs is None:
            assert self.market is not None
            world = self.world
            if not keeps_account(world):
                raise ConfigError(f"env = {self.champion.config.env!r} keeps no account, so nothing can be followed.")
            self._envs = make_vec(world, 1, backend="native", observation="cursor", autoreset=False, threads=1)
            bank = WindowBank(self.market.windows) if self.bare.shape.windows else None
            self.policy = replace(self.bare, bank=bank)  # with a memory of its own
            if self.held is not None:
                _put(self._envs, self.held)
                self.policy.recall(self.held.memory)
        return self._envs

    @property
    def cursor(self) -> int:
        """The row that was decided on last."""
        return int(self.value("cursor"))

    @property
    def time(self) -> int:
        """When the bar that was decided on last opened, in nanoseconds UTC."""
        assert self.market is not None
        return int(self.market.time[self.cursor])

    @property
    def decided_until(self) -> int | None:
        """Up to which moment bars were decided on, in nanoseconds UTC; None: none yet."""
        if self.held is None or self.market is None:
            return None
        return self.time + parse_timeframe(self.market.timeframe).typical_nanoseconds

    # One bar after another

    def begin(self, since: int | None = None) -> None:
        """Open the account at the first bar on which windows are complete, not before a moment."""
        assert self.market is not None
        row = int(self.market.begin[0])
        if since is not None:
            row = max(row, int(np.searchsorted(self.market.time, since)))
        if row > self.settled:
            raise ConfigError("there is no bar to begin at yet")
        envs = self.envs
        envs.reset(seed=[self.stream], options={"cursor": np.array([row]), "last": np.array([self._last])})
        never_end(envs)
        self.policy.begin(1)
        self.held = Held({}, np.zeros(0, np.float32), self.policy.memory, np.zeros(0), False)
        self.decide()

    @property
    def _last(self) -> int:
        assert self.market is not None
        return int(self.market.end[0]) - 1

    @property
    def has_next(self) -> bool:
        """Whether there is a bar to play."""
        if self.held is None or self.held.over:
            return False
        # Whether a bar is the last of its session is known when the next one is there.
        further = 1 if getattr(self.envs.world.params, "flat_at_session_end", False) else 0
        return self.cursor + 1 + further <= self.settled

    @one_thread()
    def step(self) -> Step:
        """Play the next bar as it was decided on the one before. `decide` follows, by whoever is the champion then."""
        envs = self.envs
        assert self.held is not None
        action, before = self.held.pending, self.units
        _, reward, terminated, _, _ = envs.step(action)
        self.held.over = bool(terminated[0])
        return Step(self.cursor, action, float(reward[0]), before, self.held.over)

    @one_thread()
    def decide(self) -> None:
        """Let the champion decide on what it sees now."""
        held, envs = self.held, self.envs
        assert held is not None
        out = envs.buffers.out
        held.observation = np.array(out.observations[0, out.window_floats :])
        if held.over:
            return
        shown = {"account": held.observation[None], "cursor": np.array([self.cursor])}
        held.pending = np.array(self.policy.act(shown))
        held.memory = self.policy.memory

    def hold(self) -> Held | None:
        """Return all that the account is now, None before it has begun."""
        if self.held is not None and self._envs is not None:
            names = state_columns(self._envs.world.state_type)
            self.held.columns = {name: np.array(self._envs.column(name)) for name in names}
        return self.held

    def value(self, name: str) -> Any:
        """Return a column of the rule's state as it is now: a number, or [rows]."""
        assert self.held is not None
        if self._envs is None:
            values = self.held.columns[name]
            return values[0] if values.ndim == 1 else values[:, 0]
        column = self._envs.buffers.blocks[name]
        return column[0, 0] if column.ndim == 2 else column[0, :, 0]

    def has(self, name: str) -> bool:
        """Return whether the rule's state has a column."""
        return name in state_columns(self.envs.world.state_type)

    @property
    def units(self) -> NDArray[np.float64]:
        """What is held, by instrument."""
        return np.array(self.value("units"), np.float64).reshape(-1) if self.has("units") else np.zeros(0)

    @property
    def equity(self) -> float:
        """Of the account, at the close of the last bar."""
        return float(self.value("equity"))

    # Another champion

    def take_over(self, champion: Champion, policy: TrainedPolicy, bars: Bars) -> str:
        """Let another champion go on with the account as it is; return why that is not possible now, "" if it is.

        Its parameters, windows and scalers are its own; cash, positions and history are those of the account.
        """
        held, cursor = self.hold(), self.cursor
        assert held is not None
        assert self.market is not None
        other = Seat(champion, policy, 0)
        other.stream = self.stream
        if champion.config.env != self.champion.config.env:
            return f"it plays {champion.config.env}, and the account is one of {self.champion.config.env}"
        try:
            other.lay_out(bars)
        except (ConfigError, DataError) as error:
            return str(error)
        assert other.market is not None
        if not np.array_equal(other.market.time, self.market.time):
            return f"it trades bars of {other.market.timeframe}, and the account those of {self.market.timeframe}"
        if cursor < int(other.market.begin[0]):
            return TOO_EARLY
        envs = other.envs
        envs.reset(seed=[self.stream], options={"cursor": np.array([cursor]), "last": np.array([other._last])})
        fresh = {name: np.array(envs.column(name)) for name in state_columns(envs.world.state_type)}
        kept = {name: values for name, values in held.columns.items() if name not in OF_PARAMETERS}
        if any(fresh[name].shape != values.shape for name, values in kept.items() if name in fresh) or set(
            fresh
        ) != set(held.columns):
            return "its account has other instruments or other columns"
        other.policy.begin(1)
        carried = Held({**fresh, **kept}, held.observation, other.policy.memory, held.pending, held.over)
        _put(envs, carried)
        carried.observation = _observe(envs)
        self.champion, self.bare, self.policy = champion, policy, other.policy
        self.market, self.settled, self._envs, self.held = other.market, other.settled, envs, carried
        return ""


def last_settled_row(market: Market | Basket, bars: Bars) -> int:
    """Return the last row that is complete: on a grid, all instruments have its bar, or one has a later one."""
    last = int(market.end[0]) - 1
    if not isinstance(market, Basket):
        return last
    size = parse_timeframe(bars.timeframe).typical_nanoseconds
    closes = [int(series.time[-1]) + size for series in bars.series.values()]
    row_closes = int(market.time[last]) + parse_timeframe(market.timeframe).typical_nanoseconds
    return last if min(closes) >= row_closes or max(closes) > row_closes else last - 1


def _put(envs: Any, held: Held) -> None:
    """Put an account into an environment of its own."""
    blocks, out = envs.buffers.blocks, envs.buffers.out
    for name, values in held.columns.items():
        if blocks[name].ndim == 2:
            blocks[name][0, 0] = values[0]
        else:
            blocks[name][0, :, 0] = values[:, 0]
    out.cursors[0] = held.columns["cursor"][0]
    shown = out.observations[0, out.window_floats :]
    shown[:] = held.observation if len(held.observation) == len(shown) else 0.0  # of another champion's rule
    envs.mark_begun()


def _observe(envs: Any) -> NDArray[np.float32]:
    """Return what the rule shows of the account that lies in an environment."""
    out, world = envs.buffers.out, envs.world
    seen = out.observations[0, out.window_floats :]
    world.rule.observe(0, envs.buffers.blocks[0], world.tables, params_record(world.params)[0], seen)
    return np.array(seen)


def _packed(array: NDArray) -> list[Any]:
    return [array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()]


def _unpacked(packed: list[Any]) -> NDArray:
    kind, shape, content = packed
    return np.frombuffer(base64.b64decode(content), np.dtype(kind)).reshape(shape).copy()
