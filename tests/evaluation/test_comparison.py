"""Resamples that several threads walk through are those that are drawn, in their order."""

from __future__ import annotations

import numpy as np
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
