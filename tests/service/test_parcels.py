"""What goes to the nodes of a cluster: content once, by its hash, unpacked once on each machine."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.runs.bucket.place import SCRATCH
from velodrome.service.executors import parcels
from velodrome.service.executors.parcels import Packer


class Store(list):
    """An object store that counts."""

    def __init__(self):
        super().__init__()
        self.fetched = 0

    def put(self, value):
        self.append(value)
        return len(self) - 1

    def get(self, number):
        self.fetched += 1
        return self[number]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv(SCRATCH, str(tmp_path / "node" / "buckets"))
    monkeypatch.setattr(parcels, "CHUNK", 1000)
    return Store()


def folder_of(tmp_path, name="prices"):
    folder = tmp_path / name
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(np.random.default_rng(0).bytes(50_000))
    (folder / "inner" / "b.csv").write_text("time,close\n1,2\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "c.pyc").write_text("unwanted")
    return folder


def test_a_folder_is_packed_once_and_unpacked_once_on_a_machine(store, tmp_path):
    folder, packer = folder_of(tmp_path), Packer(store.put)
    parcel = packer.packed(folder)
    assert packer.packed(folder) is parcel
    assert len(store) == len(parcel.parts) > 3  # tarfile writes 10 kB at a time
    content = (folder / "a.bin").read_bytes()
    (folder / "a.bin").unlink()
    first = parcel.unpacked(store.get)
    assert first != folder
    assert (first / "a.bin").read_bytes() == content
    assert (first / "inner" / "b.csv").read_text() == "time,close\n1,2\n"
    assert not (first / "__pycache__").exists()
    assert parcel.unpacked(store.get) == first
    assert store.fetched == len(parcel.parts)


def test_what_machines_share_is_not_fetched(store, tmp_path):
    folder = folder_of(tmp_path)
    assert Packer(store.put).packed(folder).unpacked(store.get) == folder
    assert store.fetched == 0


def test_the_same_content_elsewhere_has_the_same_name_and_a_change_another(store, tmp_path):
    first, second = folder_of(tmp_path), folder_of(tmp_path / "elsewhere")
    packer = Packer(store.put)
    digests = [packer.packed(folder).digest for folder in (first, second)]
    assert digests[0] == digests[1]
    (second / "a.bin").write_bytes(b"changed")
    assert packer.packed(second).digest != digests[0]
    file = first / "a.bin"
    assert packer.packed(file).digest not in digests
