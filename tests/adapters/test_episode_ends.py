"""Infos that were put together for all environments come apart as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from velodrome.adapters.episode_ends import last_observations, take_apart
from velodrome.vector.infos import add_info
from velodrome.vector.space_arrays import on_host

# A key always has values of one type: Gymnasium makes one array of them.
VALUES = {
    "count": st.integers(-(2**40), 2**40),
    "price": st.floats(allow_nan=False),
    "word": st.text(max_size=5),
    "flag": st.booleans(),
    "point": st.lists(st.floats(-1, 1), min_size=2, max_size=2).map(np.array),
}
PLAIN = st.fixed_dictionaries({}, optional=VALUES)
INFO = st.fixed_dictionaries({}, optional={**VALUES, "inner": PLAIN})


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    return np.array_equal(ours, theirs)


@given(st.lists(INFO, min_size=1, max_size=4), st.data())
def test_infos_come_apart_as_they_were_put_together(rows, data):
    infos: dict[str, Any] = {}
    for row, info in enumerate(rows):
        infos = add_info(infos, info, row, len(rows))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True))
    found = take_apart(infos, np.array(chosen, np.int64))
    assert list(found) == chosen
    assert all(same(found[row], rows[row]) for row in chosen)


def test_a_key_without_a_mask_is_said_of_all():
    statistics = {"reward": np.array([1.0, 2.0, 3.0]), "length": np.array([4, 5, 6])}
    found = take_apart({"statistics": statistics, "_statistics": np.array([True, False, True])}, np.array([0, 1, 2]))
    assert found == {
        0: {"statistics": {"reward": 1.0, "length": 4}},
        1: {},
        2: {"statistics": {"reward": 3.0, "length": 6}},
    }


def test_last_observations_are_copies_however_they_come():
    arrays = {"a": np.arange(6.0).reshape(3, 2), "b": np.arange(3)}
    objects = np.array([None, {"a": arrays["a"][1], "b": 1}, {"a": arrays["a"][2], "b": 2}], dtype=object)
    tensors = {name: torch.from_numpy(part) for name, part in arrays.items()}
    rows = np.array([1, 2])
    found = [last_observations({"final_obs": final}, rows) for final in (arrays, objects, tensors)]
    arrays["a"][:] = -1.0
    for each in found:
        assert [part["a"].tolist() for part in each] == [[2.0, 3.0], [4.0, 5.0]]
        assert [int(part["b"]) for part in each] == [1, 2]


def test_a_tensor_on_the_host_is_copied_too():
    tensor = torch.zeros(2)
    array = on_host(tensor)
    tensor += 1.0
    assert array.tolist() == [0.0, 0.0]
