"""Advantages and discounted returns are those of the slow oracle, whatever the episodes' ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tests.oracles.gae import slow_advantages, slow_discounted
from velodrome.rollout.advantages import write_advantages, write_discounted

NUMBERS = st.floats(-10.0, 10.0, width=32)


@st.composite
def rollouts(draw):
    steps, count = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    floats = [draw(st_numpy.arrays(np.float32, (steps, count), elements=NUMBERS)) for _ in range(3)]
    last_value = draw(st_numpy.arrays(np.float32, (count,), elements=NUMBERS))
    flags = [draw(st_numpy.arrays(np.bool_, (steps, count))) for _ in range(2)]
    return (*floats, last_value, *flags)


def advantages(rollout, gamma, decay):
    found = torch.full(rollout[0].shape, torch.nan)
    write_advantages(*map(torch.from_numpy, rollout), gamma, decay, found)
    return found.numpy()


@given(rollouts(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_advantages_equal_the_slow_sum_with_mixed_ends(rollout, gamma, decay):
    np.testing.assert_allclose(
        advantages(rollout, gamma, decay), slow_advantages(*rollout, gamma, decay), rtol=1e-4, atol=1e-4
    )


@given(rollouts(), st.floats(0.0, 1.0))
def test_discounted_returns_equal_the_slow_sum_and_run_on(rollout, gamma):
    reward, _, _, carried, terminated, truncated = rollout
    running, found = torch.from_numpy(carried.copy()), torch.empty(reward.shape)
    write_discounted(*map(torch.from_numpy, (reward, terminated, truncated)), gamma, running, found)
    expected, left = slow_discounted(reward, terminated | truncated, gamma, carried)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(running.numpy(), left, rtol=1e-4, atol=1e-4)


@given(rollouts(), st.floats(0.0, 1.0))
def test_returns_in_two_pieces_are_those_in_one(rollout, gamma):
    reward, _, _, carried, terminated, truncated = map(torch.from_numpy, rollout)
    whole, pieces = torch.empty_like(reward), torch.empty_like(reward)
    first, second = carried.clone(), carried.clone()
    write_discounted(reward, terminated, truncated, gamma, first, whole)
    cut = reward.shape[0] // 2
    for part in (slice(0, cut), slice(cut, None)):
        write_discounted(reward[part], terminated[part], truncated[part], gamma, second, pieces[part])
    assert torch.equal(whole, pieces)
    assert torch.equal(first, second)


def small(terminated=False, truncated=False):
    """Three steps of one environment: rewards 1, values 5, 6, 7, cut off (if at all) at the second step in state 9."""
    ends = np.array([[False], [True], [False]])
    columns = [np.ones((3, 1)), np.array([[5.0], [6.0], [7.0]]), np.full((3, 1), 9.0), np.array([8.0])]
    return (*(column.astype(np.float32) for column in columns), ends & terminated, ends & truncated)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [({}, 1 + 0.5 * 7 - 6), ({"truncated": True}, 1 + 0.5 * 9 - 6), ({"terminated": True}, 1 - 6),
     ({"terminated": True, "truncated": True}, 1 - 6)],
)  # fmt: skip
def test_a_truncated_step_is_followed_by_its_last_state_and_a_terminated_one_by_nothing(ends, expected):
    assert advantages(small(**ends), 0.5, 0.0)[1, 0] == pytest.approx(expected)


def test_nothing_passes_from_one_episode_to_the_one_before():
    one, other = small(truncated=True), small(truncated=True)
    other[0][2] = 1000.0
    np.testing.assert_array_equal(advantages(one, 0.9, 0.9)[:2], advantages(other, 0.9, 0.9)[:2])


def test_with_a_decay_of_one_an_advantage_is_the_return_less_the_value():
    reward, value, _, last_value, *_ = rollout = small()
    expected = [sum(0.9**k for k in range(3 - t)) + 0.9 ** (3 - t) * last_value[0] - value[t, 0] for t in range(3)]
    np.testing.assert_allclose(advantages(rollout, 0.9, 1.0)[:, 0], expected, rtol=1e-5)
    assert (reward == 1.0).all()
