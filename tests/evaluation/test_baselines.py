"""The simple policies beside which agents are measured."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import RandomPolicy

INFINITE = np.inf


def drawn(space: gymnasium.Space, bars: int = 200) -> np.ndarray:
    """Return the actions of two environments, [bars, 2, …]."""
    policy = RandomPolicy(space, seed=3)
    policy.begin(2)
    return np.array([policy.act(None) for _ in range(bars)])


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3, start=2),
        gymnasium.spaces.MultiDiscrete([2, 5]),
        gymnasium.spaces.Box(-1.0, 2.0, (2,)),
        gymnasium.spaces.Box(-INFINITE, INFINITE, (2, 2), np.float64),
        gymnasium.spaces.Box(np.float32([-1, -INFINITE, 3, -INFINITE]), np.float32([1, INFINITE, INFINITE, -5])),
    ],
    ids=str,
)
def test_random_actions_lie_in_their_space_and_differ(space):
    actions = drawn(space)
    for action in actions.reshape(-1, *(space.shape or ())):
        assert space.contains(action.astype(space.dtype))
    assert (actions.std(axis=(0, 1)) > 0.3).all()
    np.testing.assert_array_equal(actions, drawn(space))


def test_without_bounds_they_are_spread_as_gymnasiums_samples():
    limits = np.float32([-INFINITE, 3, -INFINITE]), np.float32([INFINITE, INFINITE, -5])
    actions = drawn(gymnasium.spaces.Box(*limits), 2_000).reshape(-1, 3)
    np.testing.assert_allclose(actions.mean(axis=0), [0, 4, -6], atol=0.06)
    np.testing.assert_allclose(actions.std(axis=0), 1, atol=0.06)


def test_spaces_without_numbers_are_refused():
    with pytest.raises(ConfigError, match="Discrete, MultiDiscrete or Box"):
        RandomPolicy(gymnasium.spaces.Text(3))
