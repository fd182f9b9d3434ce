"""What costs did to a result: the same actions, played again at several times the costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import Memoryless
from velodrome.evaluation.evaluator import Evaluator, Played
from velodrome.evaluation.measures import Curve, PathMeter, curve
from velodrome.evaluation.play import Track

COST_LEVELS = (0.0, 1.0, 2.0, 4.0)
COST_FIGURES = ("return", "annual_return", "sharpe", "max_drawdown", "turnover")


class Replay(Memoryless):
    """Repeats recorded actions, [T, environments, …]."""

    def __init__(self, actions: NDArray) -> None:
        self.actions = actions
        self._bar = 0

    def begin(self, num_envs: int) -> None:
        """Start at the first bar."""
        self._bar = 0

    def act(self, observation: Any) -> NDArray:
        """Return the actions of the next bar."""
        self._bar += 1
        return self.actions[self._bar - 1]


def replayed_actions(tracks: Sequence[Track]) -> NDArray:
    """Return the actions of some accounts as `play_split` asks for them: environment s·K + k is track k, seed s."""
    longest = max(len(track.actions) for track in tracks)
    first = tracks[0].actions
    actions = np.zeros((longest, first.shape[1] * len(tracks), *first.shape[2:]), first.dtype)
    for k, track in enumerate(tracks):
        for seed in range(first.shape[1]):
            # After the end the last action again: it counts for nothing, and it is legal.
            rows = np.minimum(np.arange(longest), track.bars[seed] - 1)
            actions[:, seed * len(tracks) + k] = track.actions[rows, seed]
    return actions


def cost_levels(evaluator: Evaluator, agents: Sequence[Played], per_year: float) -> Iterator[dict[str, float]]:
    """Yield what the same actions come to at several times the costs, each played through the environment's rule.

    agents: those of several training seeds; figures are means over all. Fees, spread and slippage are multiplied;
    funding, which is a price of the market's, is not. Nothing is yielded where nothing costs anything, or where the
    environment would not take the multiple. An account that ended early is followed to that bar only, because nobody
    knows what it would have done after it.
    """
    for times in COST_LEVELS:
        params = evaluator.at_costs(times)
        if params is None:
            return
        try:
            meters = [PathMeter(replayed(evaluator, agent, times, params), per_year) for agent in agents]
        except ConfigError:
            continue
        figures = dict(zip(meters[0].names, np.mean([meter.figures() for meter in meters], axis=0), strict=True))
        yield {"times": times, **{name: float(figures[name]) for name in COST_FIGURES if name in figures}}


def replayed(evaluator: Evaluator, agent: Played, times: float, params: Mapping[str, Any]) -> Curve:
    """Return the curve of an agent's actions at several times the costs, of the seeds whose actions are known."""
    recorded, seeds = agent.backtest.tracks, agent.backtest.seeds[: agent.backtest.detailed]
    if times == 1.0 and len(seeds) == agent.seeds:
        return agent.curve
    played = evaluator.backtest(Replay(replayed_actions(recorded)), seeds, 1, params=params)
    tracks = [_until(track, own.bars[: len(seeds)]) for track, own in zip(played.tracks, recorded, strict=True)]
    return curve(tracks, [evaluator.per_bar(track) for track in tracks])


def _until(track: Track, bars: NDArray[np.int64]) -> Track:
    """Return a track that stands still from a bar on, that of each seed."""
    if (track.bars <= bars).all():
        return track
    ended = np.minimum(track.bars, bars)
    rows = np.minimum(np.arange(len(track.time))[:, None], ended)
    columns = {
        name: np.take_along_axis(values, rows, 0) if values.ndim == 2 else values
        for name, values in track.columns.items()
    }
    return replace(track, columns=columns, bars=ended)
