"""Plays a policy and writes down what it did: a split from its first bar to its last, or many episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.envs.contract import LANES, World, state_columns
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.envs.terms import draws_terms
from velodrome.envs.trading.config import TradingConfig, trading_config
from velodrome.envs.trading.world import action_names, trading_world
from velodrome.errors import ConfigError
from velodrome.evaluation.threads import one_thread
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market
from velodrome.vector.make import make_vec

RECORDED = ("price", "equity", "units", "fees", "funding", "turnover", "order_code", "exit_code")
MOST_ENVIRONMENTS = 1024  # of the batch that plays episodes
WHOLE_SPLIT = {"start": "first", "episode_length": None}  # parameters of episodes that play all of a split


class Policy(Protocol):
    """What can be evaluated: it acts on all environments at once and may remember, by environment."""

    def begin(self, num_envs: int) -> None:
        """Forget everything; so many environments start."""

    def act(self, observation: Any) -> NDArray:
        """Return a deterministic action for every environment."""

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Forget what belongs to these environments: they started a new episode."""


@dataclass(frozen=True)
class Track:
    """One instrument bar by bar, S seeds side by side. Row 0 is the split's first bar, before any decision.

    An episode that terminated early (bankrupt, drawdown limit) keeps its last equity to the end, without a position.
    """

    symbol: str
    first_row: int  # of the market's rows
    time: NDArray[np.int64]  # [T + 1] nanoseconds UTC at which the bar opens; equity is at its close
    price: NDArray[np.float64]  # [T + 1] close
    equity: NDArray[np.float64]  # [T + 1, S]
    units: NDArray[np.float64]  # [T + 1, S] signed, held at the close
    actions: NDArray  # [T, S] what the policy asked for, int64 or float32
    rewards: NDArray[np.float64]  # [T, S]
    fees: NDArray[np.float64]  # [T, S] currency
    funding: NDArray[np.float64]  # [T, S] currency, paid
    turnover: NDArray[np.float64]  # [T, S] traded notional over the equity before the bar
    order_codes: NDArray[np.int8]  # [T, S] indices into CODE_NAMES
    exit_codes: NDArray[np.int8]  # [T, S]
    bars: NDArray[np.int64]  # [S] bars until the episode ended; T unless it terminated early
    start_state: Mapping[str, NDArray]  # by state column: [S], or [rows, S]

    @property
    def played(self) -> NDArray[np.bool_]:
        """[T, S] whether the episode was still on."""
        return np.arange(len(self.actions))[:, None] < self.bars

    @property
    def ended_early(self) -> NDArray[np.bool_]:
        """[S] whether the episode terminated before the split's last bar."""
        return self.bars < len(self.actions)

    @property
    def exposure(self) -> NDArray[np.float64]:
        """[T + 1, S] signed value of the position over the equity; 0 without equity."""
        alive = self.equity > 0.0
        return np.where(alive, self.units * self.price[:, None] / np.where(alive, self.equity, 1.0), 0.0)


@dataclass(frozen=True)
class Backtest:
    """A policy's way through a split: one track for each instrument."""

    tracks: tuple[Track, ...]
    seeds: tuple[int, ...]
    config: TradingConfig
    world: World

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the discrete actions; none if actions are continuous."""
        return () if self.config.action == "continuous" else action_names(self.config)


def world_on(market: Market | Basket, params: Mapping[str, Any]) -> World:
    """Return the environment that plays on a market: portfolio on a basket, else trading."""
    return portfolio_world(market, **params) if isinstance(market, Basket) else trading_world(market, **params)


def environment_config(params: Mapping[str, Any]) -> TradingConfig:
    """Return the validated parameters of the trading environment, `preset` among them."""
    return trading_config(**params)


def draws_anything(config: TradingConfig) -> bool:
    """Tell whether two seeds can differ from the same first bar: by ranges of parameters or by slippage."""
    return config.slippage != 0.0 or draws_terms(config)


def stream_seed(seed: int, instrument: int) -> int:
    """Return a seed of an instrument's own, so that instruments do not share their draws."""
    return int(np.random.SeedSequence([seed, instrument]).generate_state(1)[0])


@dataclass(frozen=True)
class Records:
    """What environments did side by side, n of them. Row 0 is before any decision; an ended one stays as it ended."""

    columns: Mapping[str, NDArray]  # by state column: [T + 1, n], or [T + 1, rows, m] of the first m
    noted: Mapping[str, NDArray]  # by state column that is emptied after each step: [T, rows, m]
    actions: NDArray  # [T, m, …] as the rule received them
    rewards: NDArray[np.float64]  # [T, n]
    bars: NDArray[np.int64]  # [n] steps until the episode ended
    start_state: Mapping[str, NDArray]  # by state column: [n], or [rows, n]


def play_through(
    policy: Policy,
    world: World,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    seeds: Sequence[int],
    recorded: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    noted: Sequence[str] = (),
    detailed: int | None = None,
) -> Records:
    """Play an episode from each first bar to its last in one batch, and write down state columns bar by bar.

    noted: columns that hold what one step did; they are emptied after it.
    detailed: of how many environments actions and columns of several rows are written down; of all if None.
    """
    count = len(first)
    kept = count if detailed is None else detailed
    envs = make_vec(world, count, backend="native", observation="cursor", autoreset=False, threads=1)
    observation, _ = envs.reset(seed=list(seeds), options={"cursor": first, "last": last})
    start_state = {name: np.array(envs.column(name)) for name in state_columns(world.state_type)}
    longest = int((last - first).max())
    # The columns themselves: `envs.column`, which copies, would take most of the time.
    # [blocks, lanes] each, or [blocks, rows, lanes].
    blocks = {name: envs.buffers.blocks[name] for name in (*recorded, *noted)}
    block, lane = np.divmod(np.arange(count), LANES)

    def now(name: str) -> NDArray:
        column = blocks[name]
        return column[block, lane] if column.ndim == 2 else column[block[:kept], :, lane[:kept]].T

    columns = {name: np.zeros((longest + 1, *now(name).shape), blocks[name].dtype) for name in recorded}
    for name, record in columns.items():
        record[0] = now(name)
    notes = {name: np.zeros((longest, *now(name).shape), blocks[name].dtype) for name in noted}
    space = world.action_space
    # As the rule receives them: a continuous action is a float32 there.
    whole = isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
    shape: tuple[int, ...] = () if has_one_number(space) else space.shape or ()
    actions = np.zeros((longest, kept, *shape), np.int64 if whole else np.float32)
    rewards = np.zeros((longest, count))
    bars = np.zeros(count, np.int64)
    alive = np.ones(count, bool)
    policy.begin(count)
    for bar in range(longest):
        chosen = np.asarray(policy.act(observation))
        observation, reward, terminated, truncated, _ = envs.step(chosen)
        actions[bar], rewards[bar] = chosen.reshape(count, *shape)[:kept], reward
        bars += alive
        for name, record in columns.items():
            record[bar + 1] = now(name)
        for name, record in notes.items():
            record[bar] = now(name)
            blocks[name][:] = 0
        alive &= ~(terminated | truncated)
        if progress is not None and bar % 256 == 0:
            progress(bar, longest)
        if not alive.any():
            break
    if progress is not None:
        progress(longest, longest)
    envs.close()
    return Records(columns, notes, actions, rewards, bars, start_state)


def has_one_number(space: gymnasium.Space) -> bool:
    """Tell whether an action is a single number, whichever of the two shapes for that the space has."""
    return space.shape in ((), (1,))


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse no seeds, and the same twice."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds = {tuple(seeds)!r}: needs one or more different whole numbers")


@one_thread()
def backtest(
    policy: Policy,
    market: Market,
    split: str,
    params: Mapping[str, Any],
    seeds: Sequence[int] = (0,),
    progress: Callable[[int, int], None] | None = None,
) -> Backtest:
    """Play a policy over a whole split: an environment for every instrument and seed, all in one batch.

    params: of the trading environment; where episodes start and how long they are is replaced by the whole split.
    seeds: differ in drawn parameters and slippage; without either they are all alike.
    progress: called now and then with (bars played, bars in all).
    """
    check_seeds(seeds)
    part = market.split(split)
    values = {**params, **WHOLE_SPLIT}
    world = trading_world(part, **values)
    instruments = len(part.symbols)
    # Environment s·K + k plays instrument k under seed s.
    records = play_through(
        policy, world, np.tile(part.begin, len(seeds)), np.tile(part.end - 1, len(seeds)),
        [stream_seed(seed, k) for seed in seeds for k in range(instruments)], RECORDED, progress,
    )  # fmt: skip
    tracks = tuple(_track(part, k, np.arange(k, len(records.bars), instruments), records) for k in range(instruments))
    return Backtest(tracks, tuple(int(seed) for seed in seeds), environment_config(values), world)


def _track(part: Market, instrument: int, columns: NDArray[np.int64], records: Records) -> Track:
    """Cut one instrument out of the batch, and keep what an ended episode left."""
    begin, end = int(part.begin[instrument]), int(part.end[instrument])
    length = end - 1 - begin
    own_bars = records.bars[columns]
    rows = np.arange(length + 1)[:, None]
    kept = {name: np.take_along_axis(record[:, columns], np.minimum(rows, own_bars), 0)
            for name, record in records.columns.items()}  # fmt: skip
    played = rows[:-1] < own_bars

    def during(values: NDArray) -> NDArray:
        return np.where(played, values, values.dtype.type(0))

    return Track(
        symbol=part.symbols[instrument],
        first_row=begin,
        time=part.time[begin:end],
        price=part.ohlc[begin:end, 3],
        equity=np.maximum(kept["equity"], 0.0),
        units=np.where(rows <= own_bars, kept["units"], 0.0),
        actions=during(records.actions[:length, columns]),
        rewards=during(records.rewards[:length, columns]),
        fees=np.diff(kept["fees"], axis=0),
        funding=np.diff(kept["funding"], axis=0),
        turnover=np.diff(kept["turnover"], axis=0),
        order_codes=during(kept["order_code"][1:]),
        exit_codes=during(kept["exit_code"][1:]),
        bars=own_bars,
        start_state={name: values[..., columns] for name, values in records.start_state.items()},
    )


@dataclass(frozen=True)
class Episodes:
    """Finished episodes, in no order of time."""

    returns: NDArray[np.float64]  # [E] sum of the rewards
    lengths: NDArray[np.int64]  # [E] steps
    statistics: Mapping[str, NDArray[np.float64]]  # by name, [E] each: those that the environment offers
    actions: NDArray  # [A] how often each discrete action was taken; empty for others

    def __len__(self) -> int:
        return len(self.returns)


@one_thread()
def play_episodes(
    policy: Policy, envs: gymnasium.vector.VectorEnv, episodes: int, seed: int = 0, most_steps: int | None = None
) -> Episodes:
    """Play at least so many episodes in any vector environment that starts the next episode in the same step.

    Every environment plays the same number of episodes: taking those that end first would favour short ones.
    most_steps: refuse to go on beyond so many steps of each environment.
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
    statistics: dict[str, NDArray[np.float64]] = {}
    done = np.zeros(count, np.int64)
    running_return, running_length = np.zeros(count), np.zeros(count, np.int64)
    policy.begin(count)
    observation, _ = envs.reset(seed=seed)
    steps = 0
    while (done < wanted).any():
        if most_steps is not None and steps == most_steps:
            raise ConfigError(
                f"after {steps} steps {int((wanted - done).clip(0).sum())} of {wanted * count} episodes have not "
                "ended; give the environment a time limit, or ask for fewer episodes"
            )
        chosen = np.asarray(policy.act(observation))
        observation, reward, terminated, truncated, infos = envs.step(chosen)
        steps += 1
        counted = done < wanted
        if len(mix):
            mix += np.bincount(chosen.reshape(count)[counted].astype(np.int64), minlength=len(mix))
        running_return += reward
        running_length += 1
        ended = np.asarray(terminated) | np.asarray(truncated)
        rows = np.flatnonzero(ended & counted)
        returns[done[rows], rows] = running_return[rows]
        lengths[done[rows], rows] = running_length[rows]
        for name, values in infos.get("statistics", {}).items() if len(rows) else ():
            found = statistics.setdefault(name, np.full((wanted, count), np.nan))
            found[done[rows], rows] = values[rows]
        done[ended] += 1
        running_return[ended], running_length[ended] = 0.0, 0
        if ended.any():
            policy.forget(ended)
    return Episodes(
        returns.reshape(-1), lengths.reshape(-1), {name: found.reshape(-1) for name, found in statistics.items()}, mix
    )  # fmt: skip


def random_start_episodes(
    policy: Policy, market: Market | Basket, split: str, params: Mapping[str, Any], episodes: int = 256, seed: int = 0
) -> Episodes:
    """Play episodes of a split as in training: random starts, and the length that the parameters say."""
    world = world_on(market.split(split), {**params, "start": "random"})
    count = min(episodes, MOST_ENVIRONMENTS)
    envs = make_vec(world, count, backend="native", observation="cursor", seed=seed)
    try:
        return play_episodes(policy, envs, episodes, seed)
    finally:
        envs.close()
