"""Ctrl-C and SIGTERM: the first saves and stops, the second stops at once."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

import velodrome as vd
from tests.runs.small_runs import ended, one_thread, rows, signals_after, small_run, start, tiny  # noqa: F401
from velodrome.outside.screen import Screen
from velodrome.runs import checkpoint
from velodrome.runs.folder import run_folders
from velodrome.runs.interrupts import HANGUP, SIGNALS, Interrupts
from velodrome.runs.run import Run


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_wish_and_the_second_an_order(number):
    with Interrupts() as interrupts:
        assert not interrupts.requested
        signal.raise_signal(number)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_terminal_that_is_closed_is_a_wish_however_often_it_is_told():
    with Interrupts() as interrupts:
        signal.raise_signal(HANGUP)
        signal.raise_signal(HANGUP)
        assert interrupts.requested


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(HANGUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(HANGUP)
            assert not interrupts.requested
        assert signal.getsignal(HANGUP) == signal.SIG_IGN
    finally:
        signal.signal(HANGUP, before)


def test_signals_do_afterwards_what_they_did_before():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(ZeroDivisionError), Interrupts():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_other_threads_leave_signals_alone():
    before, inside = signal.getsignal(signal.SIGINT), []

    def elsewhere() -> None:
        with Interrupts() as interrupts:
            inside.append((signal.getsignal(signal.SIGINT), interrupts.requested))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert inside == [(before, False)]


@pytest.mark.parametrize("number", [*SIGNALS, HANGUP])
def test_train_returns_when_it_is_interrupted_and_has_saved(number, tmp_path, monkeypatch):
    signals_after(monkeypatch, 3, number=number)
    run = small_run(tmp_path, evaluate=True)
    assert run.status == "interrupted"
    last = checkpoint.latest_valid(run.path)
    assert last is not None
    assert last.steps == 192  # the iteration in which it was interrupted is done and saved
    assert max(step for step, _, _ in rows(run)) == 192
    assert not run.folder.report_path.exists()
    assert run.policy is not None


class HeadOfAPipe(io.StringIO):
    """Output of which the first line alone is read, as `head -1` does."""

    def write(self, text: str) -> int:
        if self.getvalue():
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return super().write(text)


@pytest.mark.parametrize("mode", ["plain", "json"])
def test_a_training_goes_on_when_nobody_reads_its_output_any_more(mode, tmp_path, capsys):
    output = HeadOfAPipe()
    run = vd.train("smoke", mode=mode, console=Screen(file=output), **tiny(tmp_path))
    assert run.status == "finished"
    assert run.folder.report_path.exists()
    assert output.getvalue()
    assert capsys.readouterr().err.count("Broken pipe") == 1


def test_a_second_signal_stops_at_once_and_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        signals_after(patched, 4, times=2)
        with pytest.raises(KeyboardInterrupt):
            small_run(tmp_path)
    run = Run.open("latest", tmp_path)
    assert run.status == "interrupted"
    last = checkpoint.latest_valid(run.path)
    assert last is not None
    assert last.steps == 192
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"


def test_a_signal_while_the_agent_is_evaluated_can_be_resumed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(
            "velodrome.evaluation.evaluate.evaluate_policy", lambda *_, **__: signal.raise_signal(signal.SIGINT)
        )
        with pytest.raises(KeyboardInterrupt):
            small_run(tmp_path, evaluate=True, steps=64)
    run = Run.open("latest", tmp_path)
    assert run.status == "interrupted"
    assert vd.resume(run, mode="quiet").status == "finished"
    assert run.folder.report_path.is_file()


# As a process


def endless(folder: Path) -> list[str]:
    settings = tiny(folder, steps=10**12)
    words = [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in settings.items()]
    return ["train", "smoke", *words]


def wait_for_checkpoint(folder: Path) -> Run:
    """Wait until a run has learnt something."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        found = run_folders(folder)
        last = checkpoint.latest_checkpoint(found[0].path) if found else None
        if last is not None and checkpoint.checkpoint_steps(last) > 0:
            return Run(found[0])
        time.sleep(0.02)
    raise AssertionError("no checkpoint after a minute")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_command_saves_says_how_to_go_on_and_exits_with_130(number, tmp_path):
    process = start(endless(tmp_path / "runs"), tmp_path / "output.txt")
    run = wait_for_checkpoint(tmp_path / "runs")
    assert run.status == "running"
    os.kill(process.pid, number)
    assert ended(process) == 130
    told = (tmp_path / "output.txt").read_text()
    assert f"velodrome: interrupted and saved; continue with: velodrome train --resume {run.path}" in told
    assert re.search(r"^interrupted: [\d,]+ of 1,000,000,000,000 steps", told, re.MULTILINE)
    assert "Traceback" not in told
    assert run.status == "interrupted"
    last = checkpoint.latest_valid(run.path)
    assert last is not None
    assert max(step for step, _, _ in rows(run)) == last.steps


def test_a_run_in_training_is_locked_for_other_processes(tmp_path):
    first = start(endless(tmp_path / "runs"), tmp_path / "first.txt")
    run = wait_for_checkpoint(tmp_path / "runs")
    second = start(["train", "--resume", str(run.path)], tmp_path / "second.txt")
    assert ended(second) == 2
    told = (tmp_path / "second.txt").read_text()
    assert f"process {first.pid} on" in told
    assert f"Wait for it, or stop it: kill {first.pid}" in told
    assert run.status == "running"
    first.terminate()
    assert ended(first) == 130


def test_the_resume_command_is_short_where_runs_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = small_run(Path("runs"), steps=64)
    assert run.resume_command == f"velodrome train --resume {run.folder.id}"
    monkeypatch.chdir("/")
    assert run.resume_command == f"velodrome train --resume {run.path}"
