"""A file that is no recording is refused with a sentence: a bomb, a pickle, a header that lies."""

from __future__ import annotations

import io
import random
import zipfile

import numpy as np
import pytest

from velodrome.compat.recordings import read_arrays
from velodrome.errors import DataError


def packed(**content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in content.items():
            archive.writestr(f"{name}.npy", text)
    return file.getvalue()


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_what_is_no_recording_is_refused(tmp_path):
    whole = packed(a=saved(np.arange(20)), b=saved(np.zeros((3, 4))))
    (tmp_path / "r.npz").write_bytes(whole)
    assert set(read_arrays(tmp_path / "r.npz")) == {"a", "b"}
    lying = saved(np.arange(20)).replace(b"(20,)", b"(10000000000000,)")
    bad = [packed(a=bytes(90 << 20)), packed(a=saved(np.array([object()]))), packed(a=lying), b"", b"PK", whole[:-20]]
    for content in bad:
        (tmp_path / "r.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"not a recording|grows more than"):
            read_arrays(tmp_path / "r.npz")
    for seed in range(30):
        draw, damaged = random.Random(seed), bytearray(whole)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        (tmp_path / "r.npz").write_bytes(damaged)
        try:
            read_arrays(tmp_path / "r.npz")
        except DataError:
            continue
