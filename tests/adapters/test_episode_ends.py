"""Last observations are found however a vector environment gives them."""

from __future__ import annotations

import numpy as np
import torch

from velodrome.adapters.episode_ends import last_observations
from velodrome.vector.space_arrays import on_host


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
