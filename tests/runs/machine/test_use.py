"""The counters of the machine: right about this process and its children, harmless where something is missing."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.runs.live.machines import GIB, machine
from velodrome.outside.extras import install
from velodrome.runs.machine import use as machine_use
from velodrome.runs.machine.gpus import GpuUse, SparingGpu
from velodrome.runs.machine.use import MachineSampler, ProcessorUse, bytes_text, open_gpu


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def test_a_busy_child_counts_for_this_run_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        processors = ProcessorUse()
        begin = time.monotonic()
        before = psutil.Process(child.pid).cpu_times()
        time.sleep(0.6)
        busy, machine, _, _ = processors.sample()
        elapsed = time.monotonic() - begin
        after = psutil.Process(child.pid).cpu_times()
        spent = after.user + after.system - before.user - before.system
        # This process slept. A child that shares its core with others spends less than the time that passed.
        assert busy == pytest.approx(spent / elapsed, abs=0.15)
        assert machine >= busy - 0.15
    finally:
        child.kill()
        child.wait()
    time.sleep(0.2)
    assert processors.sample()[0] < 0.5


def test_memory_of_a_child_is_counted() -> None:
    processors = ProcessorUse()
    alone = processors.sample()[3]
    program = "block = bytearray(b'x') * 60_000_000; print('ready', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 60_000_000 <= processors.sample()[3] - alone < 120_000_000
        child.kill()


def test_the_sampler_fills_in_everything_and_ends_its_thread(tmp_path: Path) -> None:
    with MachineSampler(tmp_path, every=0.05) as sampler:
        wait_for(lambda: sampler.latest is not None)
        first = sampler.latest
        wait_for(lambda: sampler.latest is not first)
        use = sampler.latest
    assert use is not None
    assert sampler.failure is None
    assert "velodrome-machine-use" not in [thread.name for thread in threading.enumerate()]
    assert use.cores == len(os.sched_getaffinity(0))
    assert use.process_cpu >= 0.0
    assert use.memory_total == psutil.virtual_memory().total
    assert 0 < use.process_memory < use.memory_total
    assert 0 < use.memory_used < use.memory_total
    assert use.disk_free is not None
    assert use.disk_total is not None
    assert 0 < use.disk_free <= use.disk_total


def test_a_folder_that_is_gone_leaves_the_other_counters(tmp_path: Path) -> None:
    with MachineSampler(tmp_path / "gone", every=0.05) as sampler:
        wait_for(lambda: sampler.latest is not None)
    assert sampler.latest is not None
    assert sampler.latest.disk_free is None
    assert sampler.latest.warnings() == []


def test_a_failure_ends_the_sampling_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no /proc here")

    monkeypatch.setattr(machine_use.psutil, "virtual_memory", broken)
    with MachineSampler(tmp_path, every=0.05) as sampler:
        wait_for(lambda: sampler.failure is not None)
    assert sampler.failure == "OSError: no /proc here"
    assert sampler.latest is None


@pytest.mark.parametrize(
    ("free", "total", "warned"),
    [
        (100 * GIB, 200 * GIB, False),
        (GIB, 200 * GIB, True),
        (GIB, 4 * GIB, False),  # a small disk, a quarter free
        (GIB // 10, 4 * GIB, True),
        (0, 4 * GIB, True),
    ],
)
def test_a_disk_that_is_nearly_full_is_warned_about(free: int, total: int, warned: bool) -> None:
    found = machine(disk_free=free, disk_total=total).warnings()
    assert len(found) == warned
    if warned:
        assert "nearly full" in found[0]
        assert bytes_text(free) in found[0]
        assert "checkpoint.keep" in found[0]


def test_memory_that_is_nearly_full_is_warned_about() -> None:
    (warning,) = machine(memory_used=31 * GIB).warnings()
    assert "1.0 GiB of 32.0 GiB left" in warning


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 * GIB // 2, "1.5 GiB"), (2048 * GIB, "2.0 TiB")],
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert bytes_text(count) == text


class FakeNvml:
    """A driver with one GPU that knows some of the answers; shaped like pynvml."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 2

    def __init__(self, starts: bool = True, known: bool = True) -> None:
        self.starts, self.known, self.opened = starts, known, 0

    def nvmlInit(self) -> None:
        if not self.starts:
            raise self.NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if version is not None and not self.known:
            raise self.NVMLError("Function Not Found")
        return SimpleNamespace(used=(12 if version == self.nvmlMemory_v2 else 13) * GIB, total=139 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=30, memory=5)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self._if_known(45)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._if_known(300_500)

    def _if_known(self, value: int) -> int:
        if not self.known:
            raise self.NVMLError("Not Supported")
        return value


@pytest.fixture
def no_hiding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("no_hiding")
def test_a_gpu_is_asked_and_its_library_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    with MachineSampler(tmp_path, every=0.05) as sampler:
        wait_for(lambda: sampler.latest is not None)
        assert library.opened == 1
    assert library.opened == 0
    assert sampler.latest is not None
    assert sampler.latest.gpu == machine_use.GpuUse("NVIDIA H200", 0.3, 12 * GIB, 139 * GIB, 45.0, 300.5)


@pytest.mark.usefixtures("no_hiding")
def test_what_a_gpu_does_not_report_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(known=False))
    gpu, reason = open_gpu("cpu")
    assert reason is None
    assert gpu is not None
    assert (gpu.sample().busy, gpu.sample().temperature, gpu.sample().power) == (0.3, None, None)


@pytest.mark.usefixtures("no_hiding")
def test_without_a_driver_or_the_package_there_is_no_gpu_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(starts=False))
    assert open_gpu("cpu") == (None, "no NVIDIA driver answers (Driver Not Loaded)")
    original = builtins.__import__

    def without_pynvml(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return original(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_pynvml)
    gpu, reason = open_gpu("cpu")
    assert gpu is None
    assert reason is not None
    assert install("cuda") in reason


def test_hidden_gpus_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert open_gpu("cpu") == (None, "CUDA_VISIBLE_DEVICES hides the GPUs")


@pytest.mark.parametrize(("seconds", "asked"), [(0.002, 60), (0.1, 6)])
def test_a_driver_that_takes_its_time_is_asked_less_often(seconds: float, asked: int) -> None:
    """It is busy with questions for a hundredth of the time at most; a quick one is asked at every sample."""
    now, answers = 0.0, []

    class Slow:
        def sample(self) -> GpuUse:
            nonlocal now
            now += seconds
            answers.append(GpuUse("GPU", len(answers) / 100, None, None, None, None))
            return answers[-1]

        def close(self) -> None:
            answers.append(None)

    gpu = SparingGpu(Slow(), lambda: now)
    for second in range(60):
        now = max(now, float(second))
        assert gpu.sample() == answers[-1]
    assert len(answers) == asked
    gpu.close()
    assert answers[-1] is None


@pytest.mark.gpu
def test_the_gpu_of_the_run_is_found_by_its_identity() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    gpu, reason = open_gpu("cuda:0")
    assert reason is None
    assert gpu is not None
    use = gpu.sample()
    gpu.close()
    assert use.name == torch.cuda.get_device_name(0)
    assert use.memory_total is not None
    assert use.memory_total == pytest.approx(torch.cuda.get_device_properties(0).total_memory, rel=0.1)
