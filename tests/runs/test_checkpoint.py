"""Checkpoints: what goes in comes out, and what stops a writer leaves the older ones as they were."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome.runs.checkpoint as checkpoint
from velodrome.errors import ConfigError
from velodrome.runs.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    checkpoint_steps,
    checkpoints,
    is_pinned,
    latest_checkpoint,
    latest_valid,
    load_checkpoint,
    pin_checkpoint,
    pin_only_the_last,
    pinned_checkpoints,
    save_checkpoint,
    tidy,
)

DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
)  # fmt: skip
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
plain_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=12
)


def save(folder: Path, steps: int, **options) -> Path:
    return save_checkpoint(folder, steps, {"weight": torch.full((4,), float(steps))}, {"rng": [steps]}, **options)


def steps_in(folder: Path) -> list[int]:
    return [checkpoint_steps(path) for path in checkpoints(folder)]


def assert_whole(folder: Path, steps: int) -> None:
    found = latest_valid(folder)
    assert found is not None
    assert (found.steps, found.plain) == (steps, {"rng": [steps]})
    assert torch.equal(found.tensors["weight"], torch.full((4,), float(steps)))


# What goes in comes out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (3, 5)], ids=str)
def test_a_tensor_of_every_kind_comes_back_to_the_bit(tmp_path, dtype, shape):
    tensor = (torch.randint(0, 200, shape) if dtype != torch.bool else torch.randint(0, 2, shape)).to(dtype)
    path = save_checkpoint(tmp_path, 5, {"x": tensor}, {})
    found = load_checkpoint(path).tensors["x"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found.view(torch.uint8) if shape else found, tensor.view(torch.uint8) if shape else tensor)


def test_every_bit_pattern_of_a_float_comes_back(tmp_path):
    tensor = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4e38])
    path = save_checkpoint(tmp_path, 0, {"x": tensor}, {})
    assert torch.equal(load_checkpoint(path).tensors["x"].view(torch.int32), tensor.view(torch.int32))


def test_tensors_that_share_memory_come_back_each_on_its_own(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    shared = torch.arange(3.0).share_memory_()
    tensors = {
        "whole": whole, "again": whole, "row": whole[1], "column": whole[:, 1], "turned": whole.t(), "shared": shared,
        "shared part": shared[1:], "parameter": torch.nn.Parameter(whole), "spread": torch.ones(1).expand(5),
    }  # fmt: skip
    found = load_checkpoint(save_checkpoint(tmp_path, 0, tensors, {})).tensors
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor.detach()), name
    found["whole"].zero_()
    assert found["again"].sum() == whole.sum() > 0


def test_no_tensors_and_nothing_else_is_a_checkpoint_too(tmp_path):
    found = load_checkpoint(save_checkpoint(tmp_path, 0, {}, {}))
    assert (found.steps, found.tensors, found.plain) == (0, {}, {})


@settings(max_examples=60)
@given(plain=st.dictionaries(st.text(), plain_values, max_size=4))
def test_plain_values_come_back_as_they_were(plain):
    with tempfile.TemporaryDirectory() as folder:
        found = load_checkpoint(save_checkpoint(Path(folder), 1, {}, plain)).plain
    # The written form tells NaN from NaN, 1 from 1.0 and 0.0 from -0.0, which == does not.
    assert repr(found) == repr(plain)


def test_integers_of_64_bits_and_floats_keep_their_value(tmp_path):
    plain = {"philox": [2**64 - 1, -(2**63)], "rate": 0.1 + 0.2, "loss": math.nan, "best": -math.inf}
    found = load_checkpoint(save_checkpoint(tmp_path, 1, {}, plain)).plain
    assert found["philox"] == [2**64 - 1, -(2**63)]
    assert found["rate"].hex() == (0.1 + 0.2).hex()
    assert math.isnan(found["loss"])
    assert found["best"] == -math.inf


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ({"a": {"b": (1, 2)}}, r"plain\.a\.b is a tuple"),
        ({"a": [1, {2: 3}]}, r"plain\.a\[1\] has the key 2"),
        ({"a": torch.zeros(1)}, "is a Tensor"),
        ({"a": b"x"}, "is a bytes"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(tmp_path, plain, told):
    with pytest.raises(CheckpointError, match=told):
        save_checkpoint(tmp_path, 1, {}, plain)
    assert checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"a": torch.eye(2).to_sparse()}, "dense torch tensors only"),
        ({"a": [1.0]}, "is a list"),
        ({"a": torch.zeros(1, dtype=torch.complex128)}, "no place for its dtype complex128"),
        ({"__metadata__": torch.zeros(1)}, "no place for this name"),
    ],
)
def test_a_tensor_that_the_format_cannot_hold_is_refused(tmp_path, tensors, told):
    with pytest.raises(CheckpointError, match=told):
        save_checkpoint(tmp_path, 1, tensors, {})
    assert list((tmp_path / "checkpoints").iterdir()) == []


# Which are kept


def test_the_newest_are_kept(tmp_path):
    for steps in (1, 2, 3, 4, 5):
        path = save(tmp_path, steps, keep=3)
        assert latest_checkpoint(tmp_path) == path
    assert steps_in(tmp_path) == [3, 4, 5]
    assert path.name == "000000000005"


@pytest.mark.parametrize("keep", [1, 2, 5, 50])
def test_as_many_are_kept_as_was_asked(tmp_path, keep):
    for steps in range(1, 8):
        save(tmp_path, steps, keep=keep)
    assert steps_in(tmp_path) == list(range(1, 8))[-keep:]


def test_pinned_ones_stay_until_they_are_let_go(tmp_path):
    save(tmp_path, 1, keep=1, pinned=True)
    second = save(tmp_path, 2, keep=1)
    pin_checkpoint(second)
    save(tmp_path, 3, keep=1)
    assert steps_in(tmp_path) == [1, 2, 3]
    assert [is_pinned(path) for path in checkpoints(tmp_path)] == [True, True, False]
    pin_checkpoint(second, False)
    save(tmp_path, 4, keep=1)
    assert steps_in(tmp_path) == [1, 4]
    with pytest.raises(CheckpointError, match="no checkpoint to pin"):
        pin_checkpoint(second)


def test_more_than_twelve_digits_sort_by_number(tmp_path):
    for steps in (999_999_999_999, 1_000_000_000_000):
        save(tmp_path, steps)
    assert steps_in(tmp_path) == [999_999_999_999, 1_000_000_000_000]


def test_one_of_the_same_step_is_replaced_and_stays_pinned(tmp_path):
    save(tmp_path, 7, pinned=True)
    path = save_checkpoint(tmp_path, 7, {}, {"new": True})
    assert load_checkpoint(path).plain == {"new": True}
    assert is_pinned(path)
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["000000000007"]


def test_the_one_just_written_stays_even_if_others_have_more_steps(tmp_path):
    save(tmp_path, 100)
    path = save(tmp_path, 50, keep=1)
    assert path in checkpoints(tmp_path)


def test_a_run_that_goes_on_from_an_earlier_one_forgets_the_later_ones(tmp_path):
    for steps in (1, 2, 3):
        save(tmp_path, steps)
    half = checkpoint.checkpoint_home(tmp_path) / f"{checkpoint.WRITING}000000000004-ab"
    half.mkdir()
    tidy(tmp_path, 1, keep=3)
    assert steps_in(tmp_path) == [1]
    assert not half.exists()


def test_only_the_last_pin_is_kept(tmp_path):
    for steps in (1, 2, 3):
        save(tmp_path, steps, pinned=steps < 3)
    pin_only_the_last(tmp_path)
    assert [checkpoint_steps(path) for path in pinned_checkpoints(tmp_path)] == [2]


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_valid(tmp_path) is None
    assert checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize(("steps", "keep"), [(1, 0), (-1, 3)])
def test_numbers_out_of_range_are_refused(tmp_path, steps, keep):
    with pytest.raises(ConfigError):
        save(tmp_path, steps, keep=keep)


# Damage


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "bit in the tensors": lambda path: flip_a_bit(path / "tensors.safetensors"),
    "tensors cut": lambda path: os.truncate(path / "tensors.safetensors", 20),
    "no tensors": lambda path: (path / "tensors.safetensors").unlink(),
    "state cut": lambda path: os.truncate(path / "state.json", 30),
    "no state": lambda path: (path / "state.json").unlink(),
    "state of another shape": lambda path: (path / "state.json").write_text("[1]"),
    "state changed": lambda path: (path / "state.json").write_text(
        (path / "state.json").read_text().replace('"steps": 2', '"steps": 3')
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_one_is_refused_and_the_one_before_taken_with_a_warning(tmp_path, caplog, damage):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    damage(newest)
    with pytest.raises(DamagedCheckpointError, match="000000000002"):
        load_checkpoint(newest)
    with caplog.at_level(logging.WARNING, "velodrome"):
        assert_whole(tmp_path, 1)
    assert "000000000002" in caplog.text
    assert "Looking for the one before it" in caplog.text


def test_if_all_are_damaged_that_is_an_error(tmp_path):
    flip_a_bit(save(tmp_path, 1) / "tensors.safetensors")
    with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged"):
        latest_valid(tmp_path)


def test_one_of_a_newer_velodrome_is_refused_and_not_passed_over(tmp_path):
    save(tmp_path, 1)
    state = save(tmp_path, 2) / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "format": checkpoint.FORMAT + 1}))
    with pytest.raises(CheckpointError, match="written by a newer one"):
        latest_valid(tmp_path)


def test_one_that_is_not_there_names_those_that_are(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="there are 000000000001"):
        load_checkpoint(tmp_path / "checkpoints" / "000000000002")


# Full disks


@pytest.mark.parametrize("place", ["_write_tensors", "write_text", "sync_path", "_put_in_place"])
def test_a_full_disk_leaves_the_older_ones(tmp_path, monkeypatch, place):
    save(tmp_path, 1)
    real = getattr(checkpoint, place)

    def full(*arguments):
        real(*arguments) if place == "_write_tensors" else None
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, place, full)
        with pytest.raises(CheckpointError, match=r"No space left on device.*last is of step 1.*make room"):
            save(tmp_path, 2, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000000001"]
    assert_whole(tmp_path, 1)
    save(tmp_path, 2)
    assert_whole(tmp_path, 2)


def test_a_full_disk_while_one_is_replaced_leaves_the_first(tmp_path, monkeypatch):
    save(tmp_path, 1)
    real = Path.rename

    def full(path, target):
        if path.name.startswith(checkpoint.WRITING):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with pytest.raises(CheckpointError):
            save_checkpoint(tmp_path, 1, {}, {"new": True})
    assert_whole(tmp_path, 1)
    save(tmp_path, 2)
    assert steps_in(tmp_path) == [1, 2]
    assert_whole(tmp_path, 2)


LIMITED = """
import resource, sys
import torch
from pathlib import Path
from velodrome.runs.checkpoint import CheckpointError, save_checkpoint
folder = Path(sys.argv[1])
save_checkpoint(folder, 1, {"weight": torch.full((4,), 1.0)}, {"rng": [1]})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(folder, 2, {"weight": torch.zeros(1_000_000)}, {"rng": [2]})
except CheckpointError as error:
    print(error)
"""


def test_a_file_that_may_not_grow_leaves_the_older_ones(tmp_path):
    told = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert "File too large" in told.stdout
    assert "last is of step 1" in told.stdout
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000000001"]
    assert_whole(tmp_path, 1)


def test_a_disk_that_is_really_full_leaves_the_older_ones(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a disk of 1 MB cannot be mounted here: {made.stderr.strip()}")
    try:
        save(disk, 1)
        with pytest.raises(CheckpointError, match=r"No space left.*last is of step 1.*MB are free there: make room"):
            save_checkpoint(disk, 2, {"weight": torch.zeros(1_000_000)}, {})
        assert_whole(disk, 1)
        filler = disk / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - 8192))
        with pytest.raises(CheckpointError, match="No space left"):
            save_checkpoint(disk, 2, {}, {"text": "x" * 20_000})
        assert_whole(disk, 1)
        filler.unlink()
        save(disk, 2)
        assert_whole(disk, 2)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(tmp_path / "file", 1)


# Kills

KILLED = """
import sys
import torch
from pathlib import Path
from velodrome.runs.checkpoint import save_checkpoint
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    steps += 1
    save_checkpoint(folder, steps, {"weight": torch.full((200_000,), float(steps))}, {"rng": [steps]}, keep=2)
    print(steps, flush=True)
"""


def test_a_killed_writer_leaves_the_old_checkpoint(tmp_path):
    rng = random.Random(0)
    last = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(last)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.05))
        process.kill()
        told = [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        found = latest_valid(tmp_path)
        assert found is not None
        assert found.steps >= max(told, default=last + 1)
        assert found.plain == {"rng": [found.steps]}
        assert torch.equal(found.tensors["weight"], torch.full((200_000,), float(found.steps)))
        last = found.steps
    save(tmp_path, last + 1, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [f"{last:012d}", f"{last + 1:012d}"]


def test_leftovers_of_killed_writers_are_no_checkpoints_and_go_at_the_next_save(tmp_path):
    path = save(tmp_path, 1)
    home = path.parent
    shutil.copytree(path, home / ".writing-000000000009-abcd")
    path.rename(home / "000000000001.replaced")  # killed between making room and taking the place
    assert steps_in(tmp_path) == [1]
    assert_whole(tmp_path, 1)
    save(tmp_path, 2)
    assert sorted(entry.name for entry in home.iterdir()) == ["000000000001", "000000000002"]


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000000001"]


def test_files_and_names_are_on_the_disk_before_the_old_ones_go(tmp_path, monkeypatch):
    save(tmp_path, 1)
    events = []
    real_sync, real_rename, real_remove = os.fsync, Path.rename, shutil.rmtree
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("sync"), real_sync(file))[1])
    monkeypatch.setattr(Path, "rename", lambda a, b: (events.append(f"rename {b.name[-4:]}"), real_rename(a, b))[1])
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, **options: (events.append("remove"), real_remove(path, **options))
    )
    save(tmp_path, 2, keep=1)
    # The tensors, the state, their folder; the name; the folder of checkpoints; then the old one.
    assert events[:5] == ["sync", "sync", "sync", "rename 0002", "sync"]
    assert events[-1] == "remove"
