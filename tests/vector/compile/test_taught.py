"""What Numba is taught works with the Numba installed; one with other private names is used in the ordinary way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numba.core.codegen
import pytest

from velodrome.vector.compile import numba_cuda, taught


def test_this_numba_can_be_taught_and_that_is_tried_once(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    tried: list[Any] = []
    original = taught._try_out
    monkeypatch.setattr(taught, "_try_out", lambda found: (tried.append(found), original(found)))
    assert set(taught.lessons.__wrapped__()) == set(taught.lessons.__wrapped__()) == set(taught.MODULES)
    assert len(tried) == 1


def test_a_loop_that_does_something_else_is_not_trusted(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.setattr(taught, "_double", lambda value: 3.0 * value)
    assert taught.lessons.__wrapped__() == {}
    assert "Rules are compiled in the ordinary way" in capsys.readouterr().err
    assert not list(tmp_path.rglob("taught-*"))


def test_a_numba_without_a_private_name_is_not_taught(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.delattr(numba.core.codegen, "JITCodeLibrary")
    monkeypatch.delitem(sys.modules, "velodrome.vector.compile.inlining")
    assert taught.lessons.__wrapped__() == {}
    told = capsys.readouterr().err
    assert f"Numba {numba.__version__} has changed names that Velodrome builds on" in told
    assert "cannot import name 'JITCodeLibrary'" in told


@pytest.mark.slow
def test_with_such_a_numba_rules_are_compiled_in_the_ordinary_way(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("changed_numba.py"))]
    chosen = {**os.environ, "VELODROME_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, env=chosen, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("True Numba has changed names that this engine builds on")
    assert answer.stderr.count("Rules are compiled in the ordinary way") == 1
    assert "learning on a CPU is by autograd" in answer.stderr


# The compiler for GPUs


@pytest.fixture
def nvvm(monkeypatch):
    """Stand in for numba-cuda's module: its compiler waits for another thread and says how it was called."""
    meeting = threading.Barrier(2, timeout=10)

    def compile_ir(source: str, **options: Any) -> dict[str, Any]:
        meeting.wait()
        return options

    module = SimpleNamespace(compile_ir=compile_ir)
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv", SimpleNamespace(nvvm=module))
    monkeypatch.setattr(numba_cuda, "SIMULATED", False)
    monkeypatch.setattr(numba_cuda, "_compiling", threading.local())
    return module


def test_threads_that_compile_at_once_keep_to_their_own_rounding(nvvm):
    answers: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}

    def ours() -> None:
        for _ in range(20):
            with numba_cuda.separate_rounding():
                answers["ours"].append(nvvm.compile_ir("kernel", lto=False))

    def theirs() -> None:
        answers["theirs"].extend(nvvm.compile_ir("kernel", lto=False) for _ in range(20))

    workers = [threading.Thread(target=each) for each in (ours, theirs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert answers["ours"] == [{"lto": False, "fma": False}] * 20
    assert answers["theirs"] == [{"lto": False}] * 20


def test_two_threads_of_ours_leave_the_compiler_as_it_was(nvvm):
    answers: list[dict[str, Any]] = []

    def ours() -> None:
        with numba_cuda.separate_rounding():
            answers.append(nvvm.compile_ir("kernel"))

    workers = [threading.Thread(target=ours) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert answers == [{"fma": False}] * 2
    threading.Thread(target=nvvm.compile_ir, args=("another",)).start()
    assert nvvm.compile_ir("other") == {}


@pytest.mark.parametrize("change", ["no compiler", "no option"])
def test_a_numba_cuda_with_other_names_compiles_in_the_ordinary_way(change, nvvm, monkeypatch, capsys):
    def compile_ir(source: str, lto: bool = False) -> str:
        return f"compiled {source}"

    numba_cuda._tell_of_contraction.cache_clear()
    if change == "no compiler":
        del nvvm.compile_ir
    else:
        nvvm.compile_ir = compile_ir
    with numba_cuda.separate_rounding():
        assert change == "no compiler" or nvvm.compile_ir("kernel") == "compiled kernel"
    assert "their last bits may differ from the CPU's. `velodrome doctor` compares them" in capsys.readouterr().err


# Parity, compared once


def test_that_kernels_were_compared_is_remembered_by_version(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.setattr(numba_cuda, "SIMULATED", False)
    monkeypatch.setattr(numba_cuda, "version_of", lambda package: "0.30.4")
    tell = numba_cuda.tell_of_parity.__wrapped__
    assert numba_cuda.remembered_parity() is None
    tell()
    assert "numba-cuda 0.30.4 were not compared with the CPU's here; `velodrome doctor`" in capsys.readouterr().err
    numba_cuda.remember_parity(True, "a GPU")
    tell()
    assert capsys.readouterr().err == ""
    assert numba_cuda.remembered_parity()["device"] == "a GPU"
    numba_cuda.remember_parity(False, "a GPU")
    tell()
    assert "gave other numbers than the CPU's" in capsys.readouterr().err
    monkeypatch.setattr(numba_cuda, "version_of", lambda package: "0.31.0")
    assert numba_cuda.remembered_parity() is None
