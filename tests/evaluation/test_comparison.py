"""Resamples that several threads walk through are those that are drawn, in their order."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from velodrome.evaluation import comparison
from velodrome.evaluation.intervals import Bootstrap, stationary_orders


@pytest.mark.parametrize("block", [1.0, 7.5])
@pytest.mark.parametrize(("cores", "at_once"), [(1, 1), (2, 3), (4, 5), (3, 64)])
def test_what_threads_add_up_is_what_each_resample_visits(block, cores, at_once, monkeypatch):
    """More parts than rooms, so that each room is used again and again; the last part is a smaller one."""
    bars, drawn = 300, Bootstrap(samples=43, seed=5)
    rng = np.random.default_rng(1)
    logs, columns = rng.normal(0.0, 0.01, (bars, 2)), rng.normal(0.0, 1.0, (bars, 3))
    columns[17, 1] = -np.inf  # counts where it is visited
    monkeypatch.setattr(comparison, "available_cores", lambda: cores)
    monkeypatch.setattr(comparison, "VALUES_AT_ONCE", at_once * bars)
    threads = torch.get_num_threads()
    parts = list(comparison.resampled(logs, columns, block, drawn))
    assert torch.get_num_threads() == threads
    assert [len(part.sums) for part in parts[:-1]] == [min(at_once, 43)] * (len(parts) - 1)
    orders = list(stationary_orders(bars, block, drawn.samples, drawn.seed))
    levels = [np.concatenate([np.zeros((1, 2)), logs[order].cumsum(axis=0)]) for order in orders]
    falls = [(np.maximum.accumulate(own) - own).max(axis=0) for own in levels]
    np.testing.assert_allclose(np.concatenate([part.sums for part in parts]), [columns[own].sum(0) for own in orders])
    np.testing.assert_allclose(np.concatenate([part.deepest for part in parts]), falls)


def test_the_same_trades_under_several_evaluation_seeds_are_no_more_evidence():
    rng, drawn = np.random.default_rng(2), Bootstrap(samples=50, seed=3)
    one = pl.DataFrame({"symbol": ["B"] * 40 + ["A"] * 30, "seed": [0] * 70, "profit": rng.normal(1.0, 5.0, 70)})
    one = one.with_columns(pl.col("profit").alias("return") / 100.0)
    parts = [part.with_columns(seed=pl.lit(seed)) for part in one.partition_by("symbol") for seed in range(5)]

    def resamples(trades):
        return comparison._resampled_trades(SimpleNamespace(trades=trades, holdings=None), drawn)

    alone, five = resamples(one), resamples(pl.concat(parts))
    for name in ("win_rate", "profit_factor", "average_trade"):
        np.testing.assert_allclose(five[name], alone[name], rtol=1e-12)
    assert alone["win_rate"].std() == pytest.approx(0.5 / 70**0.5, rel=0.4)
    shorter = pl.concat([*parts[:-1], parts[-1].head(25)])  # a seed in which some trades were not made
    assert resamples(shorter)["average_trade"].std() == pytest.approx(alone["average_trade"].std(), rel=0.2)
    assert resamples(pl.concat([part.head(1) for part in parts[:5]])) == {}
