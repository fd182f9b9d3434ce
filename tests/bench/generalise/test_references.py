"""The best that can be done, against formulas where there are some and against playing it where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.bars.synthetic import known_optimum
from velodrome.bench.generalise import references
from velodrome.bench.generalise.references import best_filtered, best_with_costs

PHI, VOLATILITY = 0.3, 1e-3


def test_without_costs_it_is_the_known_optimum():
    found = best_with_costs(PHI, VOLATILITY, 0.0)
    assert found.log_return == pytest.approx(known_optimum("ar1", VOLATILITY, 0.0, PHI, 0.05), rel=1e-3)


@pytest.mark.parametrize("cost", [1e-4, 5e-4])
def test_a_long_path_played_by_the_rule_earns_what_it_says_and_other_thresholds_earn_less(cost):
    found = best_with_costs(PHI, VOLATILITY, cost)
    rng = np.random.default_rng(0)
    returns = np.empty(400_000)
    returns[0] = 0.0
    for row, shock in enumerate(VOLATILITY * rng.standard_normal(len(returns) - 1), 1):
        returns[row] = PHI * returns[row - 1] + shock

    def earned(threshold):
        forecast = PHI * returns[:-1]
        side = np.where(forecast > threshold, 1.0, np.where(forecast < -threshold, -1.0, 0.0))
        latest = np.maximum.accumulate(np.where(side != 0.0, np.arange(len(side)), 0))
        held = side[latest]
        change = np.log1p(held * np.expm1(returns[1:]))
        return float((change - cost * np.abs(np.diff(held, prepend=0.0))).mean())

    error = 3.0 * VOLATILITY / np.sqrt(len(returns))
    assert earned(found.buy_above) == pytest.approx(found.log_return, abs=error)
    assert earned(0.3 * found.buy_above) < earned(found.buy_above)
    assert earned(3.0 * found.buy_above) < earned(found.buy_above)
    assert found.keep_above < 0.0 < found.buy_above


def test_somebody_who_sees_closes_earns_less_than_somebody_who_sees_the_states(monkeypatch):
    monkeypatch.setattr(references, "PATH", 20_000)
    states = np.array([(0.5, 0.5), (-0.5, 0.5)]) * VOLATILITY
    found = best_filtered(states, 0.98)
    assert 0.6 * 0.48 * VOLATILITY < found < 0.48 * VOLATILITY  # the known state is left in 2 of 100 bars
    # Where states change all the time, nothing can be known.
    assert best_filtered(states, 0.5) == pytest.approx(0.0, abs=1e-12)
