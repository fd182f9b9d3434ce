"""The metrics writer: quick for training, complete on the disk, loud when a sink fails."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from velodrome.runs.metrics import Entry, MetricsError, MetricsWriter
from velodrome.runs.store.sinks import read_lines


class ListSink:
    """Keeps entries in a list; `fail` says with what, `gate` makes it wait."""

    is_copy = False

    def __init__(self, name: str = "a list"):
        self.name = name
        self.entries: list[Entry] = []
        self.batches = 0
        self.fail: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0

    def write(self, entries: Sequence[Entry]) -> None:
        self.gate.wait()
        if self.fail is not None:
            raise self.fail
        self.batches += 1
        self.entries.extend(entries)

    def close(self) -> None:
        self.closed += 1

    @property
    def steps(self) -> list[int]:
        return [entry.step for entry in self.entries]


def wait_until(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def told_by(writer: MetricsWriter, step: int) -> str:
    """Add an entry once the last attempt is over, and return the error's message."""
    wait_until(lambda: writer._lanes[0]._begun == writer._lanes[0]._finished)
    try:
        writer.add(step, {})
    except MetricsError as error:
        return str(error)
    return ""


def end_by(error: BaseException, writer: MetricsWriter) -> None:
    with writer:
        writer.add(3, {})
        raise error


def test_everything_arrives_in_order_in_few_batches():
    sink = ListSink()
    with MetricsWriter([sink], flush_every_seconds=0.05) as writer:
        for step in range(1000):
            writer.add(step, {"a": step, "b": np.float32(0.5)})
    assert sink.steps == list(range(1000))
    assert sink.entries[7].values == {"a": 7.0, "b": 0.5}
    assert all(type(value) is float for value in sink.entries[7].values.values())
    assert sink.batches <= 10
    assert sink.closed == 1


def test_flush_waits_until_all_is_written():
    sink = ListSink()
    with MetricsWriter([sink, other := ListSink()], flush_every_seconds=60.0) as writer:
        for step in range(5):
            writer.add(step, {})
            writer.flush()
            assert sink.steps == other.steps == list(range(step + 1))


def test_an_interval_is_enough_without_a_flush():
    sink = ListSink()
    with MetricsWriter([sink], flush_every_seconds=0.05) as writer:
        writer.add(1, {"a": 1.0})
        wait_until(lambda: sink.steps == [1])
        assert sink.closed == 0


def test_what_a_caller_changes_later_was_taken_as_it_was():
    sink = ListSink()
    values = {"a": 1.0}
    with MetricsWriter([sink]) as writer:
        writer.add(1, values)
        values["a"] = 2.0
    assert sink.entries[0].values == {"a": 1.0}


def test_a_value_that_is_no_number_is_refused_at_once():
    sink = ListSink()
    with MetricsWriter([sink]) as writer, pytest.raises(TypeError):
        writer.add(1, {"a": None})
    assert sink.entries == []


def test_adding_takes_microseconds_while_a_sink_is_stuck():
    sink = ListSink()
    sink.gate.clear()
    values = {f"metric/{index}": float(index) for index in range(30)}
    with MetricsWriter([sink], flush_every_seconds=0.01) as writer:
        seconds = []
        for step in range(2000):
            begin = time.perf_counter()
            writer.add(step, values)
            seconds.append(time.perf_counter() - begin)
        assert statistics.median(seconds) < 50e-6
        assert writer.waits == 0
        assert sink.entries == []
        sink.gate.set()
    assert sink.steps == list(range(2000))


def test_a_full_queue_waits_counts_it_and_loses_nothing():
    sink = ListSink()
    sink.gate.clear()
    writer = MetricsWriter([sink], flush_every_seconds=0.01, capacity=10)
    threading.Timer(0.3, sink.gate.set).start()
    begin = time.monotonic()
    for step in range(25):
        writer.add(step, {})
    assert time.monotonic() - begin > 0.1
    assert writer.waits > 0
    assert writer.waited_seconds > 0.1
    writer.close()
    assert sink.steps == list(range(25))


def test_a_failing_sink_is_told_once_the_others_go_on_and_nothing_is_lost():
    broken, healthy = ListSink("the broken one"), ListSink("the healthy one")
    broken.fail = OSError(28, "No space left on device")
    writer = MetricsWriter([broken, healthy], flush_every_seconds=0.02)
    writer.add(1, {})
    wait_until(lambda: writer._lanes[0].error is not None)
    with pytest.raises(MetricsError) as caught:
        writer.add(2, {})
    assert "the broken one: OSError: [Errno 28] No space left on device. Those of steps 1 to 2" in str(caught.value)
    assert "The others carry on: the healthy one." in str(caught.value)
    for later in range(3, 8):
        writer.add(later, {})  # told once
        time.sleep(0.02)
    wait_until(lambda: healthy.steps == list(range(1, later + 1)))
    with pytest.raises(MetricsError, match="the broken one"):  # a flush never claims what is not so
        writer.flush()
    broken.fail = None
    writer.flush()
    assert broken.steps == healthy.steps == list(range(1, later + 1))
    broken.fail = OSError(28, "No space left on device")
    writer.add(later + 1, {})
    with pytest.raises(MetricsError):  # a new failure is told anew
        writer.flush()
    broken.fail = None
    writer.close()
    assert broken.steps == healthy.steps


def test_a_sink_that_hangs_does_not_hold_up_the_others():
    stuck, healthy = ListSink(), ListSink()
    stuck.gate.clear()
    writer = MetricsWriter([stuck, healthy], flush_every_seconds=0.02)
    writer.add(1, {})
    wait_until(lambda: healthy.steps == [1])
    assert stuck.steps == []
    stuck.gate.set()
    writer.close()
    assert stuck.steps == [1]


def test_a_sink_that_fails_for_long_is_told_instead_of_filling_the_memory():
    broken, healthy = ListSink("the broken one"), ListSink()
    broken.fail = RuntimeError("out of order")
    writer = MetricsWriter([broken, healthy], flush_every_seconds=0.01, capacity=5)
    writer.add(0, {})
    with pytest.raises(MetricsError):
        writer.flush()
    wait_until(lambda: writer._lanes[0].error is not None)
    told = [told_by(writer, step) for step in range(1, 20)]
    assert told[0] == ""
    assert "step 19 was not taken" in told[-1]
    with pytest.raises(MetricsError, match="out of order"):
        writer.close()
    assert healthy.steps == list(range(20))
    assert healthy.closed == broken.closed == 1


def test_what_is_left_when_it_closes_is_told():
    broken = ListSink("the broken one")
    broken.fail = OSError(28, "No space left on device")
    writer = MetricsWriter([broken], flush_every_seconds=60.0)
    writer.add(3, {})
    with pytest.raises(MetricsError, match="steps 3 to 3"):
        writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(MetricsError, match="after the writer was closed"):
        writer.add(4, {})


def test_the_error_that_ends_the_block_is_the_one_shown(caplog):
    broken = ListSink("the broken one")
    broken.fail = OSError(28, "No space left on device")
    with pytest.raises(ZeroDivisionError):
        end_by(ZeroDivisionError(), MetricsWriter([broken], flush_every_seconds=60.0))
    assert "could not be written to the broken one" in caplog.text


def test_an_interrupt_writes_what_is_left():
    sink = ListSink()
    with pytest.raises(KeyboardInterrupt):
        end_by(KeyboardInterrupt(), MetricsWriter([sink], flush_every_seconds=60.0))
    assert sink.steps == [3]
    assert sink.closed == 1


# Whole processes

PROGRAM = """
import os, signal, sys, threading, time
from velodrome.runs.metrics import MetricsWriter
from velodrome.runs.store.sinks import JsonLinesSink
from pathlib import Path
path, how = Path(sys.argv[1]), sys.argv[2]
writer = MetricsWriter([JsonLinesSink(path)], flush_every_seconds=60.0 if how != "killed" else 0.1)
for step in range(100):
    writer.add(step, {"a": step})
if how == "error":
    raise RuntimeError("training failed")
if how == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
if how == "forked":
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
if how == "killed":
    while True:
        print(step, time.time(), flush=True)
        step += 1
        writer.add(step, {"a": step})
        time.sleep(0.005)
"""


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("error", 1), ("interrupt", -signal.SIGINT), ("forked", 0)])
def test_the_end_of_the_program_writes_what_is_left_and_nothing_keeps_it_alive(tmp_path, how, code):
    path = tmp_path / "metrics.jsonl"
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(path), how], capture_output=True, text=True, timeout=30)
    assert ended.returncode == code, ended.stderr
    assert time.monotonic() - begin < 20.0
    assert [entry.step for entry in read_lines(path)] == list(range(100))


def test_after_a_kill_everything_older_than_the_interval_is_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), "killed"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.7)
    os.kill(process.pid, signal.SIGKILL)
    killed = time.time()
    told = [line.split() for line in process.stdout.read().splitlines() if line.count(" ") == 1]
    process.wait()
    process.stdout.close()
    kept = [entry.step for entry in read_lines(path)]
    assert kept == list(range(len(kept)))
    # The interval is 0.1 s; a busy machine may need a while for the write itself.
    old = [int(step) for step, moment in told if float(moment) < killed - 0.4]
    assert len(old) > 5
    assert kept[-1] >= old[-1]
