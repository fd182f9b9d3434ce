"""The sinks: each keeps what it is given, for real."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from tests.contracts.store import RUN
from velodrome.errors import ConfigError, MissingDependencyError
from velodrome.outside.extras import install
from velodrome.runs.metrics import Entry, MetricsError
from velodrome.runs.store.sinks import JsonLinesSink, TensorBoardSink, WandbSink, last_entry, metrics_frame, read_lines

ENTRIES = [
    Entry(10, 100.5, {"loss/policy": 0.1, "episode/return": -2.0}),
    Entry(20, 101.5, {"loss/policy": 1e-300}),
    Entry(30, 102.5, {"loss/policy": 0.3}),
]


# JSON lines


def test_lines_come_back_with_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / "metrics.jsonl"
    entry = Entry(1, 2.5, {"nan": math.nan, "up": math.inf, "down": -math.inf, "é": 0.1})
    sink = JsonLinesSink(path)
    sink.write([entry, *ENTRIES])
    sink.close()
    found = list(read_lines(path))
    assert found[1:] == ENTRIES
    assert math.isnan(found[0].values["nan"])
    assert (found[0].values["up"], found[0].values["down"], found[0].values["é"]) == (math.inf, -math.inf, 0.1)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    assert [json.loads(line, parse_constant=refuse)["step"] for line in path.read_text().splitlines()] == [
        1,
        10,
        20,
        30,
    ]


def test_one_metric_alone_is_what_the_whole_file_says_of_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert metrics_frame(path, only="é").is_empty()
    sink = JsonLinesSink(path)
    again = Entry(20, 103.5, {"loss/policy": 0.2})  # what is written twice counts once
    sink.write([Entry(1, 2.5, {"é": 0.1, "loss/policy/é": 5.0}), *ENTRIES, again])
    sink.close()
    whole = metrics_frame(path)
    for name in ("é", "loss/policy", "episode/return", "loss"):
        assert metrics_frame(path, only=name).equals(whole.filter(pl.col("name") == name))
    assert metrics_frame(path, only="loss/policy")["value"].to_list() == [0.1, 0.2, 0.3]


def test_a_line_that_a_kill_cut_short_is_removed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    sink.write(ENTRIES)
    sink.close()
    with path.open("a") as file:
        file.write('{"step": 40, "ti')
    assert list(read_lines(path)) == ENTRIES
    sink = JsonLinesSink(path)
    sink.write([Entry(40, 1.0, {})])
    sink.close()
    assert [entry.step for entry in read_lines(path)] == [10, 20, 30, 40]


def test_the_last_line_is_found_from_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_entry(path) is None
    path.write_text("")
    assert last_entry(path) is None
    sink = JsonLinesSink(path)
    long = {f"metric/{k}": float(k) for k in range(5000)}  # longer than what is read at once
    for entry in (*ENTRIES, Entry(40, 1.0, long), Entry(50, 2.0, {"a": 1.0}), Entry(60, 3.0, long)):
        sink.write([entry])
        assert last_entry(path) == entry
    sink.close()
    with path.open("a") as file:
        file.write('{"step": 70, "ti')
    assert last_entry(path) == Entry(60, 3.0, long)


def test_a_resumed_run_forgets_later_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    sink.write(ENTRIES)
    sink.close()
    JsonLinesSink(path, resume_step=20).close()
    assert list(read_lines(path)) == ENTRIES[:2]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


LIMITED = """
import resource, sys
from pathlib import Path
from velodrome.runs.metrics import Entry
from velodrome.runs.store.sinks import JsonLinesSink
sink = JsonLinesSink(Path(sys.argv[1]))
sink.write([Entry(1, 1.0, {"a": 1.0})])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    sink.write([Entry(step, 1.0, {"a": 1.0}) for step in range(2, 100)])
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.write([Entry(step, 1.0, {"a": 1.0}) for step in range(2, 101)])
"""


def test_a_full_disk_leaves_whole_lines_and_a_second_attempt_no_doubles(tmp_path):
    path = tmp_path / "metrics.jsonl"
    ended = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "File too large\n"), ended.stderr
    assert [entry.step for entry in read_lines(path)] == list(range(1, 101))


# TensorBoard


def scalars(folder: Path, name: str) -> list[tuple[int, float, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value, event.wall_time) for event in events.Scalars(name)]


def test_tensorboard_reads_what_was_written(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write(ENTRIES)
    found = scalars(tmp_path, "loss/policy")  # before it is closed: a kill now would lose nothing
    sink.close()
    assert [step for step, _, _ in found] == [10, 20, 30]
    assert [value for _, value, _ in found] == pytest.approx([0.1, 0.0, 0.3])
    assert [moment for _, _, moment in found] == [100.5, 101.5, 102.5]
    assert scalars(tmp_path, "episode/return")[0][1] == -2.0


def test_tensorboard_hides_what_came_after_the_step_of_a_resumed_run(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write(ENTRIES)
    sink.close()
    sink = TensorBoardSink(tmp_path, resume_step=20)
    sink.write([Entry(30, 200.0, {"loss/policy": 0.7})])
    sink.close()
    found = scalars(tmp_path, "loss/policy")
    assert [step for step, _, _ in found] == [10, 20, 30]
    assert found[-1][1] == pytest.approx(0.7)


# Weights & Biases


def history(folder: Path) -> list[dict[str, float]]:
    """Read the file of an offline run: blocks of 32 KiB, in them records of checksum, length, kind and protobuf."""
    from wandb.proto import wandb_internal_pb2

    content = next(folder.glob("wandb/offline-run-*/run-*.wandb")).read_bytes()
    place, record, found = 7, b"", []
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            parsed = wandb_internal_pb2.Record.FromString(record)
            record = b""
            items = {item.key or "/".join(item.nested_key): item.value_json for item in parsed.history.item}
            if items:
                found.append({name: json.loads(value) for name, value in items.items()})
    return found


def test_weights_and_biases_offline_keeps_what_was_written(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    sink = WandbSink(tmp_path, RUN.id, name="first", config={"ppo": {"clip": 0.2}})
    sink.write(ENTRIES)
    sink.close()
    # Its service may still be writing when it says that it is done, if the machine is busy.
    until = time.monotonic() + 30.0
    while len(rows := history(tmp_path)) < len(ENTRIES) and time.monotonic() < until:
        time.sleep(0.1)
    assert [(row["_step"], row["loss/policy"]) for row in rows] == [(10, 0.1), (20, 1e-300), (30, 0.3)]
    assert rows[0]["episode/return"] == -2.0
    assert len(list(tmp_path.glob(f"wandb/offline-run-*-{RUN.id}"))) == 1


def test_an_unknown_mode_of_weights_and_biases_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="offline or online"):
        WandbSink(tmp_path, RUN.id, mode="ofline")


def test_weights_and_biases_that_does_not_start_is_told(tmp_path, monkeypatch):
    import wandb

    def refuse(**options):
        raise wandb.errors.CommError("no such host.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(MetricsError, match=r"did not start: no such host\. Without .* use mode offline"):
        WandbSink(tmp_path, RUN.id, mode="online")


# Missing packages


@pytest.mark.parametrize(
    ("package", "make"),
    [("tensorboard", lambda folder: TensorBoardSink(folder)), ("wandb", lambda folder: WandbSink(folder, RUN.id))],
    ids=["tensorboard", "wandb"],
)
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=re.escape(install(package))):
        make(tmp_path)
