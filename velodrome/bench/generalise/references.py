"""The best that can be done on a synthetic market where no formula says it: with costs, and with hidden states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.synthetic import markov_chain, short_log_return

Floats = NDArray[np.float64]
POSITIONS = np.array([-1.0, 0.0, 1.0])
GRID = 401  # forecasts that dynamic programming tells apart
WIDTH = 6.0  # standard deviations of the forecast to either side
STILL = 1e-10  # change of the mean return, in units of the volatility, at which it is found
PATH = 200_000  # bars on which the filter is judged


class BestRule(NamedTuple):
    """The best average log return of a bar, and when the best rule buys and sells."""

    log_return: float
    buy_above: float  # forecast of the next return from which a flat account buys; infinite: never
    keep_above: float  # forecast down to which it keeps what it bought; minus infinite: always


def best_with_costs(phi: float, volatility: float, cost: float) -> BestRule:
    """Return the best rule for `ar1` without drift when a unit of position costs `cost` to trade.

    Relative value iteration over the forecast m of the next return, which is autoregressive itself, and the position
    held. A bar's reward is the expected log return of the new position less the costs of the change.
    """
    spread = abs(phi) * volatility / np.sqrt(1.0 - phi**2)
    forecast = np.linspace(-WIDTH, WIDTH, GRID) * spread
    step = forecast[1] - forecast[0]
    centre = phi * forecast
    density = np.exp(-0.5 * ((forecast[None, :] - centre[:, None]) / (abs(phi) * volatility)) ** 2)
    density /= density.sum(axis=1, keepdims=True)
    gain = np.stack([short_log_return(forecast, volatility), np.zeros(GRID), forecast])  # [new position, m]
    paid = cost * np.abs(POSITIONS[:, None] - POSITIONS[None, :])  # [old position, new position]
    value = np.zeros((3, GRID))  # [old position, m]
    while True:
        ahead = gain + value @ density.T  # [new position, m]
        found = (ahead[None] - paid[:, :, None]).max(axis=1)
        change = found - value
        value = found - found[1, GRID // 2]
        if change.max() - change.min() < STILL * volatility:
            break
    choice = (ahead[None] - paid[:, :, None]).argmax(axis=1)  # [old position, m]
    buys, keeps = forecast[choice[1] == 2], forecast[choice[2] == 2]
    first = float(buys.min() - 0.5 * step) if len(buys) else np.inf
    kept = float(keeps.min() - 0.5 * step) if len(keeps) < GRID else -np.inf
    return BestRule(float(0.5 * (change.max() + change.min())), first, kept)


def best_filtered(states: Floats, persistence: float, seed: int = 0) -> float:
    """Return what somebody earns who knows the states of `regimes`, but sees nothing of them but closes.

    states: [S, 2] drift and volatility. The chance of each state follows from the returns so far (a hidden Markov
    model's forward pass); the position is the best for it. Judged on a long path. Highs, lows and volumes tell a little
    more, so that an agent can come out above it.
    """
    rng = np.random.default_rng([seed, PATH])
    count = len(states)
    visited = markov_chain(rng.random(PATH + 1), count, persistence)
    drift, deviation = states.T
    returns = drift[visited] + deviation[visited] * rng.standard_normal(PATH)
    likely = np.exp(-0.5 * ((returns[:, None] - drift) / deviation) ** 2) / deviation  # [T, S]
    moves = np.full((count, count), (1.0 - persistence) / (count - 1))
    np.fill_diagonal(moves, persistence)
    by_position = np.stack([[float(short_log_return(np.array([m]), s)[0]) for m, s in states], [0.0] * count, drift])
    known, total = np.full(count, 1.0 / count), 0.0
    for seen in likely:
        ahead = known @ moves
        total += (by_position @ ahead).max()
        known = ahead * seen
        known /= known.sum()
    return float(total / PATH)
