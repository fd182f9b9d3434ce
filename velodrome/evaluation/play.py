"""Plays a policy and records what it did: a split from its first bar to its last, or many episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.envs.contract import LANES, World, state_columns
from velodrome.errors import ConfigError
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market
from velodrome.vector.compile.cpu_loops import compiled_function
from velodrome.vector.compile.playing import UNDECIDED, WRONG_VALUE, Copied, Notes, Plan, Seen, as_planned, play_bars
from velodrome.vector.make import make_vec

Progress = Callable[[int, int], None] | None  # called now and then with (bars played, bars in all)
BETWEEN_NEWS = 4096  # bars between two calls of it, where they are played in a compiled loop
ENDLESS = 2**30  # bars of an episode whose end is not known
WHOLE_SPLIT = {"start": "first", "episode_length": None}  # parameters of episodes that play all of a split

# Columns of the state, and notes, that are amounts of money or of units; the others are shares, prices and counts.
AMOUNTS = (
    *("equity", "cash", "units", "fees", "funding", "spread_sum"),
    *("bought", "sold", "buy_fees", "sell_fees", "spread"),
)


class Policy(Protocol):
    """What can be evaluated. It acts on all environments at once and may keep a memory for each.

    An ensemble has an attribute `disagreement` besides: between its members about the last actions, [n]. A policy that
    knows its actions beforehand has a method `plan(bars, rows, num_envs)` besides, which returns them as a `Plan`, or
    None as long as it does not know them yet: bars that are still to be played, of a market of so many rows.
    """

    def begin(self, num_envs: int) -> None:
        """Forget everything and get ready for this many environments."""

    def act(self, observation: Any) -> NDArray:
        """Return a deterministic action for every environment."""

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Forget what belongs to these environments: they started a new episode."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work on the calling thread alone; also a decorator.

    A policy that acts for a few environments multiplies for microseconds. Shared among threads, each waits for the
    others; when another program held a core, that took 44 ms instead of 0.3 (16 environments, 2 cores).
    """
    import torch  # here: who only names what this module has need not wait for it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# A whole split


class Pieces(NamedTuple):
    """First and last bar of each way to play, as rows of the market."""

    first: NDArray[np.int64]  # [K]
    last: NDArray[np.int64]  # [K]


class Recording(NamedTuple):
    """Which columns of the state to record."""

    columns: tuple[str, ...]  # after every step
    noted: tuple[str, ...] = ()  # what one step did, in several rows; emptied after it
    detailed: int | None = None  # seeds whose actions and columns of several rows are kept; None: all


AnyTrack = TypeVar("AnyTrack", bound="Track")


@dataclass(frozen=True)
class Track:
    """One account bar by bar, S seeds side by side, D of them in detail. Row 0 comes before the first decision.

    An episode that terminates early (bankrupt, drawdown limit) keeps its last equity to the end and holds nothing. Of a
    split in several pieces each is a track, and those of an instrument are one account (see `carried_on`).
    """

    symbol: str  # the instrument; of a basket, the name of its grid
    first_row: int  # in the market
    time: NDArray[np.int64]  # [T + 1] nanoseconds UTC at which the bar opens; equity is at its close
    price: NDArray[np.float64]  # [T + 1] close; of a basket [T + 1, K]
    columns: Mapping[str, NDArray]  # by state column: [T + 1, S], or [T + 1, rows, D]; constant after an early end
    notes: Mapping[str, NDArray]  # by noted column: [T, rows, D]
    actions: NDArray  # [T, D, …] what the policy asked for, int64 or float32
    rewards: NDArray[np.float64]  # [T, S]
    bars: NDArray[np.int64]  # [S] bars until the episode ended; T unless it terminated early
    start_state: Mapping[str, NDArray]  # by state column: [S], or [rows, S]
    # [T, S] between the members of an ensemble about each action, 0 after an early end; None: one policy acted.
    disagreement: NDArray[np.float64] | None = field(default=None, kw_only=True)
    began_with: NDArray[np.float64] | None = field(default=None, kw_only=True)  # [S] equity, if pieces came before

    @property
    def start_equity(self) -> NDArray[np.float64]:
        """[S] what the account began with, in the first of its pieces."""
        return self.equity[0] if self.began_with is None else self.began_with

    @property
    def played(self) -> NDArray[np.bool_]:
        """[T, S] whether the episode was still on."""
        return np.arange(len(self.rewards))[:, None] < self.bars

    @property
    def ended_early(self) -> NDArray[np.bool_]:
        """[S] whether the episode terminated before the split's last bar."""
        return self.bars < len(self.rewards)

    @property
    def detailed(self) -> int:
        """How many seeds, the first ones, are known in detail."""
        return self.actions.shape[1]

    @cached_property
    def equity(self) -> NDArray[np.float64]:
        """[T + 1, S] at least 0."""
        return np.maximum(self.columns["equity"], 0.0)

    @cached_property
    def units(self) -> NDArray[np.float64]:
        """[T + 1, S] signed, held at the close; of a basket [T + 1, K, D]."""
        return self.held("units")

    @cached_property
    def exposure(self) -> NDArray[np.float64]:
        """[T + 1, S] signed value of the position over the equity; 0 without equity."""
        alive = self.equity > 0.0
        return np.where(alive, self.units * self.price[:, None] / np.where(alive, self.equity, 1.0), 0.0)

    def change(self, name: str) -> NDArray:
        """Return what each bar added to a running sum such as fees, funding (paid) or turnover, [T, S]."""
        return np.diff(self.columns[name], axis=0)

    def until(self: AnyTrack, bars: NDArray[np.int64]) -> AnyTrack:
        """Return a track that stands still from a bar on, that of each seed."""
        if (self.bars <= bars).all():
            return self
        ended = np.minimum(self.bars, bars)
        rows = np.minimum(np.arange(len(self.time))[:, None], ended)
        on = np.arange(len(self.rewards))[:, None] < ended
        columns = {
            name: np.take_along_axis(values, rows, 0) if values.ndim == 2 else values
            for name, values in self.columns.items()
        }
        notes = {name: zero_unless(on[:, None, : values.shape[2]], values) for name, values in self.notes.items()}
        apart = None if self.disagreement is None else zero_unless(on, self.disagreement)
        rewards = zero_unless(on, self.rewards)
        return replace(self, columns=columns, notes=notes, rewards=rewards, disagreement=apart, bars=ended)

    def held(self, name: str) -> NDArray:
        """Return a column that is 0 after an early end, [T + 1, S] or [T + 1, rows, D]."""
        values = self.columns[name]
        on = np.arange(len(values))[:, None] <= self.bars
        return zero_unless(on if values.ndim == 2 else on[:, None, : values.shape[2]], values)


@dataclass(frozen=True)
class Backtest:
    """A policy's way through a split: a track for each instrument, or one for a basket; of pieces, one for each."""

    tracks: tuple[Track, ...]
    seeds: tuple[int, ...]
    world: World

    @property
    def detailed(self) -> int:
        """How many seeds, the first ones, are known in detail."""
        return self.tracks[0].detailed

    @property
    def accounts(self) -> tuple[tuple[Track, ...], ...]:
        """The tracks of each account, in order of time."""
        return tuple(tuple(own) for _, own in groupby(self.tracks, lambda track: track.symbol))


@one_thread()
def play_split(
    policy: Policy,
    world: World,
    part: Market | Basket,
    seeds: Sequence[int],
    wanted: Recording,
    progress: Progress = None,
    pieces: Pieces | None = None,
    endless: bool = False,
) -> tuple[Track, ...]:
    """Play every stretch of a market from its first bar to its last under every seed, all in one batch.

    world: on that market; it takes the reset options "cursor" and "last".
    pieces: of the stretches, in place of the whole ones; there is a track for each.
    endless: the policy is not shown how far the end is, as where nobody knows it (see `never_end`).
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds = {tuple(seeds)!r}: needs one or more different whole numbers")
    ways = pieces or Pieces(part.begin, part.end - 1)
    stretches = len(ways.first)
    # Environment s·K + k plays way k under seed s.
    first, last = np.tile(ways.first, len(seeds)), np.tile(ways.last, len(seeds))
    count, longest = len(first), int((last - first).max())
    envs = make_vec(world, count, backend="native", observation="cursor", autoreset=False, threads=1)
    # A seed for each instrument, so that they do not share their draws.
    streams = [stream_of(seed, k) for seed in seeds for k in range(stretches)]
    observation, _ = envs.reset(seed=streams, options={"cursor": first, "last": last})
    if endless:
        never_end(envs)
    records = _Records(envs, longest, wanted, stretches)
    policy.begin(count)
    decider = _network(policy, envs, ways, longest)
    bar = 0
    while bar < longest and records.alive.any():
        decider = decider or _planned(policy, envs, longest - bar)
        if decider is not None:
            _play_compiled(decider, envs, records, bar, progress)
            break
        chosen = np.asarray(policy.act(observation))
        observation, reward, terminated, truncated, _ = envs.step(chosen)
        records.write(bar, chosen, reward, terminated | truncated, getattr(policy, "disagreement", None))
        if progress is not None and bar % 256 == 0:
            progress(bar, longest)
        bar += 1
    if progress is not None:
        progress(longest, longest)
    envs.close()
    return tuple(records.track(part, ways, k) for k in range(stretches))


def stream_of(seed: int, place: int) -> int:
    """Return the seed of what is drawn for the stretch at a place, so that instruments do not share their draws."""
    return int(np.random.SeedSequence([seed, place]).generate_state(1)[0])


def never_end(envs: Any) -> None:
    """Let episodes on a market that have just begun go on for ever: all but nothing of one has passed at any bar.

    Who follows a live feed does not know its end, and an agent must not be told what nobody knows.
    """
    rows, start = np.arange(envs.num_envs), envs.column("start")
    envs._write_state("last", rows, start + ENDLESS)
    envs._write_state("per_bar", rows, np.full(envs.num_envs, 1.0 / ENDLESS))


class _Decider(NamedTuple):
    """Who decides in a compiled loop."""

    decide: Any  # the function in the place of `playing.decide`
    policy: Any  # what it decides by
    first: NDArray | None = None  # actions before the first decision


def _network(policy: Policy, envs: Any, ways: Pieces, longest: int) -> _Decider | None:
    """Return what trained networks do without torch; None if they do not, or nothing is compiled."""
    from velodrome.learn.acting import TrainedPolicy

    if not isinstance(policy, TrainedPolicy) or envs.step_code() is None:
        return None
    from velodrome.learn.program import decide, program_of

    shown = np.zeros(int(ways.last.max()) + 1, bool)
    for begin, end in zip(ways.first, ways.last, strict=True):
        shown[begin : end + 1] = True
    program = program_of(policy, np.flatnonzero(shown), envs.num_envs, longest)
    return None if program is None else _Decider(decide, program)


def _planned(policy: Policy, envs: Any, bars: int) -> _Decider | None:
    """Return what a policy will do in the bars that are left, if it knows; None, too, if nothing is compiled."""
    if not hasattr(policy, "plan") or envs.step_code() is None:
        return None
    plan: Plan | None = policy.plan(bars, envs.windows.rows.shape[1], envs.num_envs)
    if plan is None:
        return None
    first, table = envs.checked(plan.first), envs.checked(plan.table)
    return _Decider(as_planned, plan._replace(first=first, table=table.reshape(len(plan.table), -1)), first)


def _play_compiled(decider: _Decider, envs: Any, records: _Records, bar: int, progress: Progress) -> None:
    """Play what is left from a bar on in a compiled loop, which comes up for air now and then."""
    longest, out = len(records.rewards), envs.buffers.out
    address, actions, pack = envs.step_code()
    if decider.first is not None:
        actions[:] = decider.first
    seen = Seen(out.observations, out.cursors, out.rewards, out.terminated, out.truncated)
    play = compiled_function("evaluation", play_bars, decider.decide.__name__, {"decide": decider.decide})
    notes = records.notes()
    while bar < longest and records.alive.any():
        if progress is not None:
            progress(bar, longest)
        until = min(bar + BETWEEN_NEWS, longest)
        bar = play(address, bar, until, actions, pack, seen, decider.policy, notes)
        if notes.fault[0] == UNDECIDED:
            raise ConfigError(
                f"No action for environment {notes.fault[1]}: the policy gives NaN or infinity, from its observation "
                "or its weights."
            )
        if notes.fault[0] == WRONG_VALUE:
            envs._look(np.arange(envs.num_envs), "step")
    apart: NDArray[np.float64] | None = getattr(decider.policy, "apart", None)
    if apart is not None and apart.size:
        records.disagreement = apart


class _Records:
    """What the environments of a batch do, bar by bar."""

    def __init__(self, envs: Any, longest: int, wanted: Recording, stretches: int) -> None:
        count, world = envs.num_envs, envs.world
        self.stretches = stretches
        self.kept = count if wanted.detailed is None else min(wanted.detailed * stretches, count)
        self.start_state = {name: np.array(envs.column(name)) for name in state_columns(world.state_type)}
        # The columns themselves, [blocks, lanes] or [blocks, rows, lanes]: the copies of `envs.column` take longer
        # than everything else.
        self.blocks = {name: envs.buffers.blocks[name] for name in (*wanted.columns, *wanted.noted)}
        self.block, self.lane = np.divmod(np.arange(count), LANES)
        self.columns, self._noted = (
            {name: np.zeros((rows, *self.now(name).shape), self.blocks[name].dtype) for name in names}
            for names, rows in ((wanted.columns, longest + 1), (wanted.noted, longest))
        )
        for name, record in self.columns.items():
            record[0] = self.now(name)
        space = world.action_space
        whole = isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
        # An action of one number comes as [n] or as [n, 1]; the rule receives a continuous one as float32.
        self.shape: tuple[int, ...] = () if space.shape in ((), (1,)) else space.shape
        self.actions = np.zeros((longest, self.kept, *self.shape), np.int64 if whole else np.float32)
        self.rewards = np.zeros((longest, count))
        self.bars = np.zeros(count, np.int64)
        self.alive = np.ones(count, bool)
        self.disagreement: NDArray[np.float64] | None = None

    def now(self, name: str) -> NDArray:
        """Return a column as it is, [n], or [rows, n] of the environments in detail."""
        column, kept = self.blocks[name], self.kept
        return column[self.block, self.lane] if column.ndim == 2 else column[self.block[:kept], :, self.lane[:kept]].T

    def write(
        self, bar: int, chosen: NDArray, reward: NDArray, ended: NDArray[np.bool_], disagreement: NDArray | None
    ) -> None:
        """Record a step of all environments."""
        if disagreement is not None:
            if self.disagreement is None:
                self.disagreement = np.zeros_like(self.rewards)
            self.disagreement[bar] = disagreement
        self.actions[bar] = chosen.reshape(len(self.bars), *self.shape)[: self.kept]
        self.rewards[bar] = reward
        self.bars += self.alive
        self.alive &= ~ended
        for name, record in self.columns.items():
            record[bar + 1] = self.now(name)
        for name, record in self._noted.items():
            record[bar] = self.now(name)
            self.blocks[name][:] = 0

    def notes(self) -> Notes:
        """Return the same memory as a compiled loop writes it."""
        copied = [self._copied(name, record[1:], False) for name, record in self.columns.items()]
        copied += [self._copied(name, record, True) for name, record in self._noted.items()]
        actions = self.actions.reshape(len(self.actions), -1)
        columns = np.array(copied, np.int64).reshape(len(copied), len(Copied._fields))
        return Notes(actions, self.rewards, self.bars, self.alive, columns, np.zeros(2, np.int64))

    def _copied(self, name: str, record: NDArray, cleared: bool) -> Copied:
        column = self.blocks[name]
        rows, kept = (1, record.shape[1]) if column.ndim == 2 else record.shape[1:]
        source, target = (array.ctypes.data for array in (column, record))
        return Copied(source, column.strides[0], target, record.strides[0], column.itemsize, rows, kept, cleared)

    def track(self, part: Market | Basket, ways: Pieces, k: int) -> Track:
        """Cut one way out of the batch."""
        begin, end = int(ways.first[k]), int(ways.last[k]) + 1
        own, detailed = slice(k, None, self.stretches), slice(k, self.kept, self.stretches)
        rows, bars = np.arange(end - begin)[:, None], self.bars[own]
        on = rows[:-1] < bars  # [T, S]
        actions = self.actions[: len(on), detailed]
        in_detail = on[:, : actions.shape[1]]
        return Track(
            symbol=part.stretches[int(np.searchsorted(part.begin, begin, side="right")) - 1],
            first_row=begin,
            time=part.time[begin:end],
            price=(part.ohlc[:, 3] if isinstance(part, Market) else part.close)[begin:end],
            columns={
                name: np.take_along_axis(record[:, own], np.minimum(rows, bars), 0)
                if record.ndim == 2
                else record[: len(rows), :, detailed]
                for name, record in self.columns.items()
            },
            notes={
                name: zero_unless(in_detail[:, None], record[: len(on), :, detailed])
                for name, record in self._noted.items()
            },
            actions=zero_unless(in_detail.reshape(*in_detail.shape, *[1] * len(self.shape)), actions),
            rewards=zero_unless(on, self.rewards[: len(on), own]),
            bars=bars,
            start_state={name: values[..., own] for name, values in self.start_state.items()},
            disagreement=None if self.disagreement is None else zero_unless(on, self.disagreement[: len(on), own]),
        )


def zero_unless(on: NDArray[np.bool_], values: NDArray) -> NDArray:
    """Return values where a condition holds and 0 elsewhere, in their own type."""
    return np.where(on, values, values.dtype.type(0))


# Pieces of a split as one account. Every piece is played with the start equity, side by side with the others. What is
# counted in money or in units is then multiplied by what the account had grown to, so that all that is made of the
# tracks (curves, trades, costs) is that of one account. A position ends with its piece, at its last close.


def carried_on(
    tracks: Sequence[AnyTrack], amounts_in: Mapping[str, NDArray[np.bool_]] | None = None
) -> tuple[AnyTrack, ...]:
    """Return tracks of which each begins with what the one before it left, if that is of the same instrument.

    Once nothing is left, nothing more is done. amounts_in: of notes that mix amounts with prices, which rows of them
        are amounts.
    """
    found: list[AnyTrack] = []
    for track in tracks:
        follows = bool(found) and found[-1].symbol == track.symbol
        found.append(_after(found[-1], track, amounts_in or {}) if follows else track)
    return tuple(found)


def _after(before: Track, track: AnyTrack, amounts_in: Mapping[str, NDArray[np.bool_]]) -> AnyTrack:
    level = before.equity[-1] / track.equity[0]  # [S]
    track = track.until(np.where(level > 0.0, track.bars, 0))

    def carried(name: str, values: NDArray) -> NDArray:
        """Return [T + 1, S] or [T, rows, D] as the account has it."""
        own = level[: values.shape[-1]].astype(values.dtype)
        if name in amounts_in:
            return np.where(amounts_in[name][:, None], values * own, values)
        return values * own if name in AMOUNTS else values

    columns, notes = (
        {name: carried(name, values) for name, values in own.items()} for own in (track.columns, track.notes)
    )
    return replace(track, columns=columns, notes=notes, began_with=before.start_equity)


# Episodes


@dataclass(frozen=True)
class Episodes:
    """Finished episodes, in no order of time."""

    returns: NDArray[np.float64]  # [E] sum of the rewards
    lengths: NDArray[np.int64]  # [E] steps
    actions: NDArray  # [A] how often each discrete action was taken; empty for other actions
    disagreement: float | None = None  # mean over steps, between the members of an ensemble; None: one policy acted

    def __len__(self) -> int:
        return len(self.returns)


@one_thread()
def play_episodes(policy: Policy, envs: gymnasium.vector.VectorEnv, episodes: int, seed: int = 0) -> Episodes:
    """Play at least this many episodes in any vector environment that starts the next episode in the same step.

    Every environment plays the same number of episodes: taking those that end first would favour short ones.
    """
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes!r}: needs at least 1")
    mode = envs.metadata.get("autoreset_mode")
    if mode != AutoresetMode.SAME_STEP:
        raise ConfigError(
            f"the vector environment's autoreset_mode is {mode}; episodes are counted for AutoresetMode.SAME_STEP "
            "only: pass autoreset_mode to gymnasium.make_vec(…, vector_kwargs={'autoreset_mode': …})"
        )
    count = envs.num_envs
    wanted = -(-episodes // count)
    space = envs.single_action_space
    mix = np.zeros(int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0, np.int64)
    returns, lengths = np.zeros((wanted, count)), np.zeros((wanted, count), np.int64)
    done = np.zeros(count, np.int64)
    running_return, running_length = np.zeros(count), np.zeros(count, np.int64)
    apart: NDArray | None = None
    apart_sum, steps = 0.0, 0
    policy.begin(count)
    observation, _ = envs.reset(seed=seed)
    while (done < wanted).any():
        chosen = np.asarray(policy.act(observation))
        observation, reward, terminated, truncated, _ = envs.step(chosen)
        counted = done < wanted
        apart = getattr(policy, "disagreement", None)
        if apart is not None:
            apart_sum, steps = apart_sum + float(apart[counted].sum()), steps + int(counted.sum())
        if len(mix):
            mix += np.bincount(chosen.reshape(count)[counted].astype(np.int64), minlength=len(mix))
        running_return += reward
        running_length += 1
        ended = np.asarray(terminated) | np.asarray(truncated)
        rows = np.flatnonzero(ended & counted)
        returns[done[rows], rows] = running_return[rows]
        lengths[done[rows], rows] = running_length[rows]
        done[ended] += 1
        running_return[ended], running_length[ended] = 0.0, 0
        if ended.any():
            policy.forget(ended)
    mean_apart = None if apart is None else apart_sum / steps
    return Episodes(returns.reshape(-1), lengths.reshape(-1), mix, mean_apart)
