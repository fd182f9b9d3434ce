"""Running moments are those of all values at once, and rewards are scaled by the deviation of returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.gae import slow_discounted
from velodrome.rollout.moments import RewardScale, RunningMoments


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), width=st.integers(1, 4), seed=st.integers(0, 1000),
    offset=st.sampled_from([0.0, 3.0, 1e4]), spread=st.sampled_from([1e-3, 1.0, 50.0]),
)  # fmt: skip
def test_moments_of_batches_are_numpys_of_everything(sizes, width, seed, offset, spread):
    rng = np.random.default_rng(seed)
    batches = [(offset + spread * rng.normal(size=(size, width))).astype(np.float32) for size in sizes]
    moments = RunningMoments(width)
    for batch in batches:
        moments.update(torch.from_numpy(batch))
    every = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(moments.mean.numpy(), every.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), every.var(0), rtol=1e-9, atol=1e-12)
    assert float(moments.count) == len(every)


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_values_that_are_alike_have_the_moments_of_all_of_them(sizes, seed):
    rng = np.random.default_rng(seed)
    batches = [rng.normal(size=(size, 6), loc=np.arange(6.0)).astype(np.float32) for size in sizes]
    moments = RunningMoments(6, alike=[range(1, 4), range(4, 6)])
    for batch in batches:
        moments.update(torch.from_numpy(batch))
    every = np.concatenate(batches).astype(np.float64)
    for places in (slice(0, 1), slice(1, 4), slice(4, 6)):
        np.testing.assert_allclose(moments.mean[places].numpy(), every[:, places].mean(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(moments.variance[places].numpy(), every[:, places].var(), rtol=1e-9, atol=1e-12)


def test_normalised_values_have_mean_0_and_deviation_1_and_are_cut():
    values = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([5.0, 0.1]) + 7.0
    moments = RunningMoments(2)
    moments.update(values)
    found = moments.normalise(values)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.mean(0).numpy(), 0.0, atol=1e-4)
    np.testing.assert_allclose(found.std(0, correction=0).numpy(), 1.0, atol=1e-4)
    assert moments.normalise(torch.full((1, 2), 1e9)).tolist() == [[10.0, 10.0]]
    assert moments.normalise(torch.full((1, 2), -1e9), limit=3.0).tolist() == [[-3.0, -3.0]]


def test_before_the_first_batch_nothing_is_changed_but_cut():
    values = torch.tensor([[1.5, -20.0]])
    np.testing.assert_allclose(RunningMoments(2).normalise(values).numpy(), [[1.5, -10.0]], rtol=1e-6)


def test_a_constant_value_becomes_0_and_not_nan():
    moments = RunningMoments(1)
    moments.update(torch.full((5, 1), 3.0))
    assert moments.normalise(torch.full((2, 1), 3.0)).tolist() == [[0.0], [0.0]]


def test_moments_continue_from_their_state():
    one, other = RunningMoments(3), RunningMoments(3)
    one.update(torch.randn(10, 3))
    other.load_state({name: tensor.clone() for name, tensor in one.state().items()})
    batch = torch.randn(7, 3)
    one.update(batch)
    other.update(batch)
    for name, tensor in one.state().items():
        assert torch.equal(tensor, other.state()[name]), name


def scale_cases(seed=0, rollouts=3, steps=6, count=4):
    rng = np.random.default_rng(seed)
    for _ in range(rollouts):
        reward = rng.normal(0.5, 4.0, (steps, count)).astype(np.float32)
        yield reward, rng.random((steps, count)) < 0.2, rng.random((steps, count)) < 0.2


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns_so_far(gamma):
    scale = RewardScale(4, gamma)
    carried, seen = np.zeros(4), []
    for reward, terminated, truncated in scale_cases():
        returns, carried = slow_discounted(reward, terminated | truncated, gamma, carried)
        seen.append(returns.reshape(-1))
        expected = (reward / np.sqrt(np.concatenate(seen).var() + 1e-8)).clip(-10.0, 10.0)
        scaled = torch.from_numpy(reward.copy())
        scale.scale(scaled, torch.from_numpy(terminated), torch.from_numpy(truncated))
        np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_scale_of_rewards_continues_from_its_state():
    one, other = RewardScale(4, 0.9), RewardScale(4, 0.9)
    first, *later = scale_cases()
    one.scale(*(torch.from_numpy(part.copy()) for part in first))
    other.load_state({name: tensor.clone() for name, tensor in one.state().items()})
    for case in later:
        tensors = [[torch.from_numpy(part.copy()) for part in case] for _ in range(2)]
        one.scale(*tensors[0])
        other.scale(*tensors[1])
        assert torch.equal(tensors[0][0], tensors[1][0])


def test_a_nan_among_the_values_is_not_hidden():
    moments = RunningMoments(2)
    moments.update(torch.tensor([[1.0, 2.0], [torch.nan, 3.0]]))
    assert moments.mean.isnan().tolist() == [True, False]
    assert moments.normalise(torch.ones(1, 2)).isnan().tolist() == [[True, False]]


def test_the_scale_of_rewards_has_the_same_bits_on_any_number_of_threads():
    rewards = torch.randn((32, 4096), generator=torch.Generator().manual_seed(0))
    never = torch.zeros(rewards.shape, dtype=torch.bool)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            scale = RewardScale(4096, 0.0)
            scale.scale(rewards.clone(), never, never)
            found.append(scale.state())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    assert float(found[0]["mean"]) == pytest.approx(float(rewards.double().mean()), rel=1e-9)
    assert float(found[0]["variance"]) == pytest.approx(float(rewards.double().var(correction=0)), rel=1e-9)
    assert found[0]["count"] == rewards.numel()
