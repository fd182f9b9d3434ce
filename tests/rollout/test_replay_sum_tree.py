"""The sum tree against a cumulative sum over all leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.rollout.sum_tree import BELOW_ONE, WIDTH, SumTree

sizes = st.sampled_from([1, 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + 5])


def filled(size: int, seed: int, empty: float) -> tuple[SumTree, np.ndarray]:
    rng = np.random.default_rng(seed)
    tree, masses = SumTree(size), np.zeros(size)
    for _ in range(3):
        leaves = rng.permutation(size)[: max(1, size // 2)]
        masses[leaves] = rng.exponential(size=len(leaves)) ** 4 * (rng.random(len(leaves)) > empty)
        tree.set(torch.from_numpy(leaves), torch.from_numpy(masses[leaves]))
    if not masses.any():
        masses[0] = 1e-12
        tree.set(torch.tensor([0]), torch.tensor([1e-12], dtype=torch.float64))
    return tree, masses


@given(sizes, st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.97]))
@settings(max_examples=60)
def test_leaves_are_found_as_a_cumulative_sum_finds_them(size, seed, empty):
    tree, masses = filled(size, seed, empty)
    np.testing.assert_array_equal(tree.leaves[:size], masses)
    assert float(tree.total) == pytest.approx(masses.sum())
    uniform = np.concatenate([np.random.default_rng(seed).random(200), [0.0, BELOW_ONE]])
    leaves, chances = tree.draw(torch.from_numpy(uniform))
    ends = np.cumsum(masses)
    place = uniform * ends[-1]
    slack = 1e-9 * ends[-1]
    assert (masses[leaves] > 0.0).all()
    assert (place <= ends[leaves] + slack).all()
    assert (place >= ends[leaves] - masses[leaves] - slack).all()
    np.testing.assert_allclose(chances, masses[leaves] / masses.sum(), rtol=1e-12)


def test_of_several_masses_for_a_leaf_the_largest_counts_and_replaces_the_old_one():
    tree = SumTree(100)
    tree.set(torch.tensor([40]), torch.tensor([9.0], dtype=torch.float64))
    tree.set(torch.tensor([40, 3, 40]), torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64))
    assert (float(tree.leaves[40]), float(tree.total)) == (3.0, 4.0)


def test_a_leaf_without_mass_is_not_drawn_by_a_device_that_adds_in_another_order(monkeypatch):
    tree = SumTree(100)
    tree.set(torch.arange(0, 90, 3), torch.full((30,), 0.1, dtype=torch.float64))
    exact, noise = torch.Tensor.cumsum, torch.Generator().manual_seed(0)

    def rounded(tensor, dim):
        sums = exact(tensor, dim)
        return sums * (1.0 + 1e-15 * torch.randn(sums.shape, dtype=torch.float64, generator=noise))

    monkeypatch.setattr(torch.Tensor, "cumsum", rounded)
    # Places at the very ends of leaves, the last one among them.
    uniform = ((torch.arange(31, dtype=torch.float64) / 30).repeat(50)).clamp(max=BELOW_ONE)
    leaves, chances = tree.draw(uniform)
    assert (leaves % 3 == 0).all()
    assert (leaves < 90).all()
    assert chances.tolist() == pytest.approx([1 / 30] * 1550)


def test_scaling_keeps_the_chances():
    tree, _ = filled(500, 0, 0.5)
    uniform = torch.from_numpy(np.random.default_rng(1).random(100))
    before, total = tree.draw(uniform), float(tree.total)
    tree.scale(torch.tensor([0.25], dtype=torch.float64))
    after = tree.draw(uniform)
    assert torch.equal(before[0], after[0])
    assert float(tree.total) == total / 4


def test_a_million_changes_leave_no_rounding_error():
    tree = SumTree(5000)
    rng = np.random.default_rng(0)
    for _ in range(200):
        leaves = rng.integers(0, 5000, 5000)
        tree.set(torch.from_numpy(leaves), torch.from_numpy(rng.random(5000) * 1e9))
    tree.set(torch.arange(5000), torch.full((5000,), 1e-9, dtype=torch.float64))
    assert float(tree.total) == pytest.approx(5e-6, rel=1e-12)
