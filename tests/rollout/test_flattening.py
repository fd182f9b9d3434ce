"""Batches of observations become the rows that gymnasium.spaces.flatten makes of each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from velodrome.errors import BackendError
from velodrome.rollout.flattening import byte_columns, flat_size, row_writer, stacked

leaf_spaces = st.one_of(
    st.sampled_from([(), (3,), (2, 2)]).map(lambda shape: spaces.Box(-5.0, 5.0, shape, np.float32)),
    st.sampled_from([np.float64, np.uint8, np.int16]).map(lambda dtype: spaces.Box(0, 200, (2, 1), dtype)),
    st.tuples(st.integers(1, 5), st.integers(-3, 3)).map(lambda pair: spaces.Discrete(pair[0], start=pair[1])),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.just(spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[1, -1], [0, 5]])),
    st.sampled_from([3, (2, 2)]).map(spaces.MultiBinary),
)
any_space = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("zbay"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


def batch_of(space: gymnasium.Space, values: list[Any]) -> Any:
    return concatenate(space, values, create_empty_array(space, len(values)))


@given(any_space, st.integers(1, 4), st.integers(0, 1000))
def test_rows_are_what_gymnasium_makes_of_each_observation(space, count, seed):
    space.seed(seed)
    values = [space.sample() for _ in range(count)]
    expected = np.stack([np.asarray(spaces.flatten(space, value), np.float32) for value in values])
    assert flat_size(space) == expected.shape[1]
    for batch in (batch_of(space, values), stacked(space, values)):
        rows = np.full(expected.shape, np.nan, np.float32)
        row_writer(space)(batch, rows)
        np.testing.assert_array_equal(rows, expected)


def test_bytes_are_divided_by_255_wherever_they_stand():
    picture = spaces.Box(0, 255, (2, 1), np.uint8)
    few = spaces.Box(0, np.array([255, 254], np.uint8), (2,), np.uint8)
    space = spaces.Tuple([spaces.Discrete(2), spaces.Dict({"seen": picture, "few": few}), picture])
    value = (1, {"seen": np.array([[255], [51]], np.uint8), "few": np.array([255, 51], np.uint8)}, picture.low)
    rows = np.zeros((1, flat_size(space)), np.float32)
    row_writer(space)(batch_of(space, [value]), rows)
    assert rows[0].tolist() == [0, 1, 255, 51, 1, np.float32(0.2), 0, 0]
    assert byte_columns(space) == ((4, 6), (6, 8))
    assert byte_columns(picture) == ((0, 2),)
    assert byte_columns(few) == byte_columns(spaces.Text(4)) == ()


def test_a_space_that_only_gymnasium_knows_is_flattened_by_it():
    space = spaces.Dict({"word": spaces.Text(4, charset="abc"), "number": spaces.Discrete(2)})
    values = [{"number": 1, "word": "abc"}, {"number": 0, "word": "b"}]
    rows = np.zeros((2, flat_size(space)), np.float32)
    row_writer(space)(batch_of(space, values), rows)
    np.testing.assert_array_equal(rows, np.stack([spaces.flatten(space, value) for value in values]))


@pytest.mark.parametrize("space", [spaces.Sequence(spaces.Discrete(3)), spaces.Graph(spaces.Discrete(2), None)])
def test_observations_without_a_fixed_size_are_refused(space):
    with pytest.raises(BackendError, match="no fixed size"):
        flat_size(space)
    with pytest.raises(BackendError, match="no fixed size"):
        flat_size(spaces.Tuple([spaces.Discrete(2), space]))
