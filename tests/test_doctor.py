"""`velodrome doctor`: it tells what is there, never crashes over what is not, and fails only on a problem."""

from __future__ import annotations

import builtins
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from velodrome import cli, doctor
from velodrome.doctor import DoctorReport, Row
from velodrome.outside.extras import install
from velodrome.vector import cuda


@pytest.fixture(scope="module")
def report() -> DoctorReport:
    return doctor.doctor()


def test_a_working_installation_has_no_problem(report):
    assert [row for row in report.rows if row.status == "problem"] == []
    assert report.ok


def test_it_looks_at_everything(report):
    assert {"Python", "system", "CPU", "memory"} <= set(report.of("machine"))
    assert {"velodrome", "numpy", "numba", "llvmlite", "torch", "gymnasium", "polars"} <= set(report.of("packages"))
    assert {"driver", "numba-cuda", "simulator"} <= set(report.of("CUDA"))
    assert {"python", "native", "cuda", "compilation"} <= set(report.of("backends"))
    assert {"folder", "contents", "second process"} <= set(report.of("kernel cache"))
    assert {"cores", "NUMBA_NUM_THREADS", "threading layer", "OMP_NUM_THREADS"} <= set(report.of("threads"))
    assert set(doctor.OPTIONAL) <= set(report.of("optional packages"))


def test_what_is_not_ok_says_what_to_do(report):
    assert all(row.advice for row in report.rows if row.status != "ok")


def test_the_compiled_backend_agrees_with_plain_python(report):
    assert report.of("backends")["native"].value == "the same numbers as python"


def test_a_second_process_finds_the_kernels(report):
    assert report.of("kernel cache")["second process"].status == "ok"


def test_json_and_exit_code(report, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(doctor, "doctor", lambda: report)
    assert cli.run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert len(told["rows"]) == len(report.rows)
    broken = DoctorReport((*report.rows, Row("machine", "disk", "problem", "full", "delete something")))
    monkeypatch.setattr(doctor, "doctor", lambda: broken)
    assert cli.run(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "delete something" in told
    assert "1 problem found" in told


def test_money_on_a_gpu_is_compared_once_for_each_numba_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda, "unavailable_reason", lambda *device: None)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "some GPU")
    played: list[str] = []
    differing = 1.0

    def play(backend, **options):
        assert options["fee"] > 0
        played.append(backend)
        return np.array([differing if backend == "cuda" else 0.0])

    monkeypatch.setattr(doctor, "smoke_test", play)
    (row,) = doctor._money_on_a_gpu()
    assert (row.status, row.name) == ("problem", "cuda, money")
    assert row.value.startswith("other bits than python (compared ")
    differing = 0.0
    for _ in range(2):  # a difference is looked at again, an agreement is not
        (row,) = doctor._money_on_a_gpu()
        assert row.status == "ok"
        assert "the same bits as python" in row.value
        assert "on some GPU" in row.value
    assert played == ["python", "cuda"] * 2


@pytest.mark.parametrize("missing", ["torch", "numba", "polars", "psutil"])
def test_it_survives_a_package_that_does_not_import(missing, monkeypatch):
    original = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.split(".")[0] == missing:
            raise ImportError(f"no {missing} here")
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(doctor, "_second_process", lambda: Row("", "second process", "ok", ""))
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib, "import_module", lambda name: refuse(name))
    found = doctor.doctor()
    assert not found.ok
    assert any(missing in row.value for row in found.rows if row.status == "problem")


def test_it_survives_packages_that_are_not_installed(monkeypatch):
    def no_metadata(name):
        raise importlib.metadata.PackageNotFoundError(name)

    def no_module(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib.metadata, "version", no_metadata)
    on_the_path = {row.name: row for row in doctor._packages()}
    assert on_the_path["numpy"].status == "ok"
    monkeypatch.setattr(importlib, "import_module", no_module)
    rows = list(doctor._packages()) + list(doctor._optional())
    assert all(row.value == "not installed" for row in rows if row.name != "velodrome")
    assert rows[-1].status == "note"


def test_what_velodrome_always_brings_is_not_called_optional():
    always = {
        re.split(r"[^\w-]", line)[0] for line in importlib.metadata.requires("velodrome") or () if "extra" not in line
    }
    assert "matplotlib" in always
    assert not always & doctor.OPTIONAL.keys()


def test_a_backend_with_other_numbers_is_a_problem(monkeypatch):
    original = doctor.smoke_test
    monkeypatch.setattr(doctor, "smoke_test", lambda backend, **options: original("python") + (backend != "python"))
    rows = {row.name: row for row in doctor._backends()}
    assert rows["native"].status == "problem"
    assert "other numbers" in rows["native"].value


def test_workers_are_tried_and_compared(monkeypatch):
    rows = {row.name: row for row in doctor._workers()}
    assert [row.status for row in rows.values()] == ["ok"] * 3
    original = doctor.smoke_test
    few = {"env": "CartPole-v1", "num_envs": doctor.FEW}
    monkeypatch.setattr(doctor, "smoke_test", lambda name, **_: original("serial", **few) + (name == "async"))
    rows = {row.name: row for row in doctor._workers()}
    assert (rows["process"].status, rows["async"].status) == ("ok", "problem")


def test_a_failing_probe_is_told_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(doctor, "cpu_model", lambda: 1 / 0)
    monkeypatch.setattr(doctor, "_backends", lambda: iter(()))
    monkeypatch.setattr(doctor, "_workers", lambda: iter(()))
    monkeypatch.setattr(doctor, "_cache", lambda: iter(()))
    found = doctor.doctor()
    assert found.of("machine")["check"].value == "ZeroDivisionError: division by zero"
    assert "cores" in found.of("threads")


def test_a_cache_that_cannot_be_written_is_a_note(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("VELODROME_CACHE", str(blocked))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(doctor, "_second_process", lambda: Row("", "second process", "ok", ""))
    rows = {row.name: row for row in doctor._cache()}
    assert rows["folder"].status == "note"
    assert "VELODROME_CACHE" in rows["folder"].advice


@pytest.mark.parametrize(("served", "fits"), [((13, 0), True), ((12, 2), True), ((11, 8), False)])
def test_driver_and_toolkit_are_compared_by_major_version(served, fits, monkeypatch):
    import torch

    monkeypatch.setattr(doctor, "driver_cuda_version", lambda: served)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    rows = {row.name: row for row in doctor._cuda()}
    assert rows["driver and torch"].status == ("ok" if fits else "problem")


def test_the_simulator_flag_is_told():
    code = "from velodrome import doctor; print([r.status for r in doctor._cuda() if r.name == 'simulator'])"
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "['note']"


def test_a_narrow_terminal_breaks_no_word(report):
    from rich.console import Console

    advice = f"for the cuda backend: {install('cuda')}"
    rows = (*report.rows, Row("optional packages", "a-name", "note", "not installed", advice))
    console = Console(width=80, file=io.StringIO())
    console.print(doctor.rich_table(DoctorReport(rows)))
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    told = " ".join(printed.split())
    assert f"to do: {advice}" in told
    assert all(" ".join(row.name.split()) in told for row in rows)
    wide = Console(width=140, file=io.StringIO())
    wide.print(doctor.rich_table(DoctorReport(rows)))
    assert "what to do" in wide.file.getvalue()
