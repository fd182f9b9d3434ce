"""Infos that were put together for all environments come apart as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velodrome.vector.infos import add_info, add_numbers, schema_of, take_apart

# Nothing keeps an environment from giving another type in another step, or its neighbour from doing so.
VALUE = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63)]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=2),
    st.lists(st.floats(-1, 1), max_size=3).map(np.array),
    st.sampled_from([np.float32(0.1), np.int8(-3), np.uint64(2**63), np.bool_(True), np.complex64(1j)]),
    st.sampled_from([np.timedelta64(5, "s"), np.array(["a", "bcd"]), np.array([1, None]), np.zeros((2, 1), np.uint8)]),
)
NAMES = st.sampled_from(["a", "b", 1])
INFO = st.dictionaries(NAMES, st.one_of(VALUE, st.dictionaries(NAMES, VALUE, max_size=2)), max_size=3)


def combined(*rows: dict[str, Any]) -> dict[str, Any]:
    infos: dict[str, Any] = {}
    for row, info in enumerate(rows):
        add_info(infos, info, row, len(rows))
    return infos


def same(ours: Any, theirs: Any) -> bool:
    """Return whether a value is what it was: whole numbers may have become floats that are equal to them."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, np.ndarray):
        return isinstance(ours, np.ndarray) and ours.shape == theirs.shape and ours.tolist() == theirs.tolist()
    if isinstance(theirs, bool | np.bool_ | str | list | None | np.timedelta64):
        return isinstance(ours, bool | np.bool_ | str | list | None | np.timedelta64) and bool(ours == theirs)
    left, right = (each.item() if isinstance(each, np.generic) else each for each in (ours, theirs))
    return isinstance(left, int | float | complex) and (left == right or (left != left and right != right))


@given(st.lists(INFO, min_size=1, max_size=4), st.data())
def test_infos_come_apart_as_they_were_put_together(rows, data):
    infos = combined(*rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True))
    found = take_apart(infos, np.array(chosen, np.int64))
    assert list(found) == chosen
    for row in chosen:
        assert same(found[row], rows[row]), f"{found[row]} was {rows[row]}"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((1.5, 2.5), np.float64),
        ((0, 1.75), np.float64),
        ((1.75, 0), np.float64),
        ((np.float32(0.5), 0.1), np.float64),
        ((np.int8(1), 300), np.int64),
        ((np.zeros(2, np.int16), np.ones(2)), np.float64),
        ((2**60, 0.5), object),
        ((2**63, 1), object),
        ((True, 1.5), object),
        ((1.5, None), object),
        ((1.5, "none yet"), object),
        ((None, {"a": 1}), object),
        (({"a": 1}, None), object),
        ((np.zeros(2), np.zeros(3)), object),
        ((np.zeros(2), [0.0, 0.0]), object),
    ],
)
def test_rows_share_a_type_that_changes_none_of_them(values, dtype):
    assert combined(*({"x": value} for value in values))["x"].dtype == dtype


def test_arrays_of_different_lengths_are_not_those_that_the_environment_writes_into():
    own = np.zeros(2)
    infos = combined({"x": np.zeros(3)}, {"x": own}, {"x": own})
    own += 1.0
    assert [one.tolist() for one in infos["x"]] == [[0.0, 0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("info", [{"x": 1, "_x": 5}, {"_x": 5, "x": 1}], ids=["mask first", "value first"])
def test_a_value_in_the_place_of_a_mask_is_left_out(info):
    by_schema: dict[str, Any] = {}
    add_numbers(by_schema, schema_of(info), np.arange(2), np.array([list(info.values())] * 2, np.float64), 2)
    for infos in (combined(info, info), by_schema):
        assert take_apart(infos, np.arange(2)) == {0: {"x": 1}, 1: {"x": 1}}


def test_a_time_is_no_plain_number():
    assert schema_of({"x": np.timedelta64(5, "s")}) is None


def test_a_key_without_a_mask_is_said_of_all():
    statistics = {"reward": np.array([1.0, 2.0, 3.0]), "length": np.array([4, 5, 6])}
    found = take_apart({"statistics": statistics, "_statistics": np.array([True, False, True])}, np.array([0, 1, 2]))
    assert found == {
        0: {"statistics": {"reward": 1.0, "length": 4}},
        1: {},
        2: {"statistics": {"reward": 3.0, "length": 6}},
    }
