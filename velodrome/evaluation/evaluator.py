"""How an environment on a market is evaluated: `Evaluator` suits any; an environment's entry may name one of its own.

An environment that keeps an account (see `keeps_account`) is played from the first bar of a split to its last and
measured by its equity. Any other plays episodes on the split and is measured by its rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.envs.catalog import CATALOG, EnvEntry
from velodrome.envs.contract import World, state_columns
from velodrome.envs.parameters import EnvConfig
from velodrome.envs.terms import draws_terms
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import Baseline, random_baseline
from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.measures import Curve, account_values, curve
from velodrome.evaluation.play import WHOLE_SPLIT, Backtest, Policy, Progress, Recording, Track, carried_on, play_split
from velodrome.evaluation.trades import SCHEMA
from velodrome.registry import load
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market

ACTION_BINS = 21  # of continuous actions
ACCOUNT_COLUMNS = ("equity", "units", "fees", "funding", "turnover")  # of the state; an environment may lack some
COSTS = ("fee", "buy_fee", "sell_fee", "fee_tiers", "half_spread", "slippage", "slippage_atr")  # parameters
Params = Mapping[str, Any] | None  # of an environment
Actions = tuple[tuple[str, float], ...]  # name and share of the actions taken


@dataclass(frozen=True)
class Played:
    """One policy's way through a split, and what was made of it."""

    name: str
    backtest: Backtest
    curve: Curve
    trades: pl.DataFrame
    traded_seeds: int  # seeds that `trades` covers
    figures: Mapping[str, float]  # those that are not measured bar by bar
    # [periods, instruments × seeds] what each gained after costs, NaN where it was not held; of shared accounts.
    holdings: NDArray[np.float64] | None = None

    @property
    def seeds(self) -> int:
        """How many seeds were played."""
        return len(self.backtest.seeds)

    @property
    def episodes(self) -> int:
        """How many episodes were played: one for each seed and account, or piece of an account."""
        return len(self.backtest.tracks) * self.seeds

    @property
    def ended_early(self) -> int:
        """How many of the episodes terminated before the last bar."""
        return sum(int(track.ended_early.sum()) for track in self.backtest.tracks)


class Evaluator:
    """Evaluates any environment on a split of a market. Derive from it to say more about one environment."""

    recorded: tuple[str, ...] = ACCOUNT_COLUMNS
    of_first_seed = ""  # the figures of baselines that are not means over seeds
    in_detail = ""  # what is known of the first seeds alone where all would be too many
    draws = True  # whether two seeds can differ; if not, one is played
    config: EnvConfig | None = None  # the parameters with presets and defaults filled in, where they are known
    costs = True  # whether trading costs anything; if not, a warning says so

    def __init__(self, entry: EnvEntry, market: Market | Basket, split: str, params: Mapping[str, Any]) -> None:
        self.entry, self.market, self.split, self.params = entry, market, split, params
        self.part = market.split(split)
        # Where baselines that are fitted are fitted: a walk-forward has a market for each fold.
        self.parts: Sequence[Part] = (Part(market, split),)

    @property
    def has_equity(self) -> bool:
        """Whether the split is played as a whole and measured by equity, instead of by episodes and rewards."""
        return keeps_account(self.world())

    def play(
        self, name: str, policy: Policy, seeds: Sequence[int], traded: int, progress: Progress, params: Params = None
    ) -> Played:
        """Play a policy, with other parameters than the agent's if some are given.

        traded: of how many seeds, the first ones, to list the trades.
        """
        played = self.backtest(policy, seeds, traded, progress, params)
        traded = min(traded, played.detailed)
        trades, figures = self.trades(played, traded)
        if (apart := disagreements(played.tracks)) is not None:
            figures = {**figures, "disagreement": float(apart.mean())}
        measured = curve(played.tracks, [self.per_bar(track) for track in played.tracks])
        return Played(name, played, measured, trades, traded, figures, self.holdings(played))

    def backtest(
        self, policy: Policy, seeds: Sequence[int], detailed: int, progress: Progress = None, params: Params = None
    ) -> Backtest:
        """Play a policy over the split; at least one seed, and at most `detailed`, are then known in detail."""
        world = self.world(params)
        columns = state_columns(world.state_type)
        known = tuple(name for name in self.recorded if name in columns and columns[name].rows is None)
        tracks = carried_on(play_split(policy, world, self.part, seeds, Recording(known), progress))
        return Backtest(tracks, tuple(int(seed) for seed in seeds), world)

    def at_costs(self, times: float) -> Params:
        """Return the parameters with several times the fees, spread and slippage; None where nothing costs anything."""
        values = {name: getattr(self.config, name, 0.0) if self.config else self.params.get(name) for name in COSTS}
        costs = {name: multiplied(value, times) for name, value in values.items() if value}
        return {**self.params, **costs} if costs else None

    def world(self, params: Params = None) -> World:
        """Return the environment that plays the whole split, with other parameters than the agent's if given."""
        return world_on(self.entry, self.part, self.params if params is None else params, whole=True)

    def trades(self, played: Backtest, traded: int) -> tuple[pl.DataFrame, dict[str, float]]:
        """Return the trades and what they amount to; nothing is known of them here."""
        return pl.DataFrame(schema=dict(SCHEMA)), {}

    def holdings(self, played: Backtest) -> NDArray[np.float64] | None:
        """Return what each instrument of a shared account gained in each period; None where accounts are not shared."""
        return None

    def per_bar(self, track: Track) -> dict[str, NDArray[np.float64]]:
        """Return what is measured in each bar, [T, S], by name of a metric."""
        values = account_values(track)
        if "units" in track.columns and track.price.ndim == 1:
            values["exposure"] = np.abs(track.exposure[1:])
            values["in_market"] = (track.units[1:] != 0.0).astype(np.float64)
            for side, sign in (("long", 1.0), ("short", -1.0)):
                values[f"{side}_share"] = (sign * track.units[1:] > 0.0).astype(np.float64)
                values[f"{side}_exposure"] = np.maximum(sign * track.exposure[1:], 0.0)
        return values

    def baselines(self, agent: Played, seed: int) -> Sequence[Baseline]:
        """Return the policies to beat: random actions."""
        return (random_baseline(agent.backtest.world.action_space, seed),)

    def actions(self, agent: Played) -> Actions:
        """Return the share of each action in all bars played."""
        tracks, space = agent.backtest.tracks, agent.backtest.world.action_space
        taken = np.concatenate([track.actions[track.played[:, : track.detailed]] for track in tracks])
        if isinstance(space, gymnasium.spaces.Box):
            bounded = bool(np.isfinite([space.low, space.high]).all())
            low, high = (space.low, space.high) if bounded else (taken, taken)
            return binned(taken, float(low.min()), float(high.max()))
        return counted(taken, self.action_names(space))

    def action_names(self, space: gymnasium.Space) -> Sequence[str]:
        """Return a name for people of every discrete action; none for continuous ones."""
        if isinstance(space, gymnasium.spaces.Box):
            return ()
        count = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec.max()  # type: ignore[attr-defined]
        return [str(action) for action in range(int(count))]

    def bars(self, agent: Played) -> pl.DataFrame:
        """Return what the agent did bar by bar under the first seed; the first bar of a piece has no decision."""
        found = pl.concat([pl.DataFrame(self.track_bars(track, agent)) for track in agent.backtest.tracks])
        return found.with_columns(pl.col("^disagreement$").fill_nan(None))

    def track_bars(self, track: Track, agent: Played) -> dict[str, Any]:
        """Return one account bar by bar under the first seed, by name of a column."""
        space = agent.backtest.world.action_space
        known = {
            "symbol": [track.symbol] * len(track.time),
            "time": times(track.time),
            "price": track.price if track.price.ndim == 1 else None,
            "equity": track.equity[:, 0],
            "units": track.units[:, 0] if "exposure" in agent.curve.per_bar else None,
            "exposure": track.exposure[:, 0] if "exposure" in agent.curve.per_bar else None,
            "action": decisions(track, self.action_names(space)) if track.actions.ndim == 2 else None,
            "reward": np.r_[0.0, track.rewards[:, 0]],
            **{name: np.r_[0.0, track.change(name)[:, 0]] for name in ("fees", "funding") if name in track.columns},
            "disagreement": decided(track),
        }
        return {name: values for name, values in known.items() if values is not None}

    def information(self, agent: Played) -> dict[str, Any]:
        """Return what else to keep, as JSON-able values."""
        return {"accounts": len(agent.backtest.accounts)}


def evaluator_for(env: str | None, market: Market | Basket, split: str, params: Mapping[str, Any]) -> Evaluator:
    """Return the evaluator that an environment's entry names, or the general one.

    env: its name; None: "portfolio" on a basket, "trading" on a market.
    """
    entry = CATALOG.get(env or ("portfolio" if isinstance(market, Basket) else "trading"))
    if entry.data != type(market).__name__.lower():
        plays = "no market; use evaluate_episodes" if entry.data is None else f"a {entry.data}"
        raise ConfigError(f"market is a {type(market).__name__}, and env = {entry.name!r} plays on {plays}")
    return (load(entry.evaluator) or Evaluator)(entry, market, split, params)


def world_on(entry: EnvEntry, market: Market | Basket, params: Mapping[str, Any], *, whole: bool = False) -> World:
    """Return an environment on a market; `whole`: its episodes play all of it, where its parameters can say so."""
    model = entry.parameter_model()
    says = whole and model is not None and WHOLE_SPLIT.keys() <= model.model_fields.keys()
    return entry.make_world(market=market, **{**params, **(WHOLE_SPLIT if says else {})})


def keeps_account(world: World) -> bool:
    """Tell whether an environment can be played from one bar to another and has an equity to be measured by.

    That takes the reset options "cursor" and "last", a state column `equity` and a statistic `return`, all of which
    `velodrome.envs.market` provides.
    """
    column = state_columns(world.state_type).get("equity")
    return {"cursor", "last"} <= set(world.reset_options) and column is not None and "return" in world.statistics


def draws_anything(config: EnvConfig) -> bool:
    """Tell whether two seeds can differ from the same first bar: by ranges of parameters or by slippage."""
    return draws_terms(config) or getattr(config, "slippage", 0.0) != 0.0


def multiplied(value: Any, times: float) -> Any:
    """Return a cost, a range of it, or tiers of (volume, rate), some times as high."""
    if isinstance(value, tuple):
        tiers = value and isinstance(value[0], tuple)
        return tuple((own[0], own[1] * times) if tiers else own * times for own in value)
    return value * times


def decisions(track: Track, names: Sequence[str], of: int | None = None) -> list[Any]:
    """Return the actions under the first seed, by name if they have one; None before the first and after the last.

    of: the place of the number to take of an action of several.
    """
    taken = track.actions[:, 0] if of is None else track.actions[:, 0, of]
    said = [names[action] for action in taken] if names else taken.tolist()
    return [None, *(action if on else None for action, on in zip(said, track.played[:, 0], strict=True))]


def decided(track: Track) -> NDArray[np.float64] | None:
    """Return the disagreement about each action under the first seed, NaN where there was none; None of one policy."""
    if track.disagreement is None:
        return None
    return np.r_[np.nan, np.where(track.played[:, 0], track.disagreement[:, 0], np.nan)]


def disagreements(tracks: Sequence[Track]) -> NDArray[np.float64] | None:
    """Return the disagreement about all actions that were taken, of all accounts and seeds; None of one policy."""
    known = [track.disagreement[track.played] for track in tracks if track.disagreement is not None]
    return np.concatenate(known) if known else None


def binned(taken: NDArray, low: float, high: float) -> Actions:
    """Return the share of continuous actions in bins that are named by their middles."""
    counts, edges = np.histogram(taken, bins=ACTION_BINS, range=(low, high))
    middles = 0.5 * (edges[1:] + edges[:-1])
    shares = counts / max(taken.size, 1)
    return tuple((f"{middle:+.2f}", float(share)) for middle, share in zip(middles, shares, strict=True))


def counted(taken: NDArray, names: Sequence[str]) -> Actions:
    """Return the share of each discrete action."""
    shares = np.bincount(taken.astype(np.int64).ravel(), minlength=len(names)) / max(taken.size, 1)
    return tuple(zip(names, map(float, shares), strict=True))


def times(time: NDArray[np.int64]) -> pl.Series:
    """Return moments as a column of a table."""
    return pl.Series("time", time).cast(pl.Datetime("ns", "UTC"))
