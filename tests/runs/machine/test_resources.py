"""What a run uses of the machine, among its metrics: there everywhere, right, and absent where nothing is known."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from tests.learn.learners import make_ppo, trading_worlds
from tests.runs.live.machines import GIB, machine
from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config
from velodrome.runs.machine import gpus
from velodrome.runs.machine.gpus import GpuUse, open_gpu
from velodrome.runs.machine.resources import OF_GPU, OF_MACHINE, ResourceMetrics, means_of
from velodrome.runs.machine.use import MachineSampler, ProcessorUse
from velodrome.runs.run import resume
from velodrome.runs.session import Session
from velodrome.runs.store.sinks import read_lines

ALWAYS = {f"resources/{name}" for name in OF_MACHINE}


@pytest.fixture
def sampled_soon(monkeypatch):
    """Let every iteration of a tiny run wait for a sample, and note the threads that took them."""
    threads, iterate, sample = set(), Session._iterate, ProcessorUse.sample

    def noted(processors: ProcessorUse) -> Any:
        threads.add(threading.current_thread().name)
        return sample(processors)

    def waiting(session: Session) -> None:
        until = time.monotonic() + 30.0
        samples = session.resources.sampler.samples
        while session.config.resources.every_seconds and not samples and time.monotonic() < until:
            time.sleep(0.005)
        iterate(session)

    monkeypatch.setattr(ProcessorUse, "sample", noted)
    monkeypatch.setattr(Session, "_iterate", waiting)
    return threads


def test_they_are_metrics_of_the_run_in_the_file_and_in_the_store(sampled_soon, tmp_path):
    run = small_run(tmp_path, steps=128, **{"resources.every_seconds": 0.05})
    assert sampled_soon == {"velodrome-machine-use"}  # never the thread that trains
    found = {
        (entry.step, name): value
        for entry in read_lines(run.folder.metrics_path)
        for name, value in entry.values.items()
        if name.startswith("resources/")
    }
    names = {name for _, name in found}
    assert names >= ALWAYS
    assert names <= ALWAYS | {f"resources/{name}" for name in OF_GPU}
    with run.store() as store:
        kept = store.metrics(run.folder.id)
    assert {(step, name): value for step, name, value, _ in kept.rows() if name.startswith("resources/")} == found
    memory = found[64, "resources/memory_bytes"]
    assert memory == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
    assert 0.0 < found[64, "resources/machine_memory_bytes"] < psutil.virtual_memory().total
    assert "velodrome-machine-use" not in [thread.name for thread in threading.enumerate()]


def test_without_them_no_thread_is_begun_and_the_run_is_the_same(sampled_soon, tmp_path):
    run = small_run(tmp_path, steps=64, **{"resources.every_seconds": 0})
    assert sampled_soon == set()
    assert not run.metrics.filter(run.metrics["name"].str.starts_with("resources/")).height
    assert run.config.hash == load_run_config(run.config, {"resources.every_seconds": 9.0}).hash
    again = resume(run.path, steps=128, mode="quiet", evaluate=False, **{"resources.every_seconds": 0.05})
    assert again.folder.id == run.folder.id  # no child
    assert again.metrics.filter(again.metrics["name"].str.starts_with("resources/"))["step"].to_list()[0] == 128


def test_tensorboard_and_weights_and_biases_have_them_with_group_and_tags(sampled_soon, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    begun: dict[str, Any] = {}
    rows: list[dict[str, float]] = []

    def init(**options: Any) -> Any:
        begun.update(options)
        return SimpleNamespace(log=lambda values, step: rows.append(values), finish=lambda: None)

    monkeypatch.setattr(wandb, "init", init)
    logged = {"logging.tensorboard": True, "logging.wandb": True, "logging.wandb_group": "july"}
    logged |= {"logging.wandb_tags": ["a", "b"], "resources.every_seconds": 0.05}
    run = small_run(tmp_path, steps=64, **logged)
    assert (begun["group"], begun["tags"]) == ("july", ["a", "b"])
    assert set(rows[0]) >= ALWAYS | {"time/sps_total", "time/sps_collecting"}
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= ALWAYS


def test_speeds_of_collecting_and_of_everything():
    metrics = make_ppo(trading_worlds()).iterate()
    assert metrics["time/sps_total"] == metrics["time/steps_per_second"]
    assert metrics["time/sps_collecting"] > metrics["time/sps_total"]
    seconds = metrics["time/environment"] + metrics["time/inference"]
    assert metrics["time/sps_collecting"] * seconds == pytest.approx(6 * 8)


def test_a_row_has_the_means_of_what_was_sampled_since_the_last():
    now = 0.0
    sampler = MachineSampler()
    resources = ResourceMetrics(sampler, 5.0, lambda: now)
    assert resources.take() == {}
    sampler.samples += [machine(process_cpu=1.0), machine(process_cpu=2.0)]
    assert resources.take()["resources/cpu_cores"] == 1.5
    sampler.samples.append(machine(process_cpu=4.0))
    now = 4.9
    assert resources.take() == {}
    now = 5.0
    found = resources.take()
    assert (found["resources/cpu_cores"], found["resources/cpu_percent"]) == (4.0, 50.0)
    assert ResourceMetrics(sampler, 0.0).take() == {}


def test_what_is_absent_is_absent_and_not_zero():
    assert not [name for name in means_of([machine()]) if "gpu" in name]
    silent = GpuUse("a laptop's", None, 2 * GIB, 8 * GIB, None, None)
    found = means_of([machine(gpu=silent, disk_free=None)])
    assert {name for name in found if "gpu" in name} == {"resources/gpu_memory_bytes"}
    assert "resources/disk_free_bytes" not in found
    busy = GpuUse("NVIDIA H200", 0.3, 12 * GIB, 139 * GIB, 45.0, 300.5)
    found = means_of([machine(gpu=busy), machine(gpu=silent)])  # what one of them said
    assert (found["resources/gpu_percent"], found["resources/gpu_power_watts"]) == (30.0, 300.5)
    assert found["resources/gpu_memory_bytes"] == 7 * GIB


def test_processor_time_and_disk_agree_with_psutil(tmp_path):
    processors, own = ProcessorUse(), psutil.Process()
    before, began = own.cpu_times(), time.monotonic()
    while time.monotonic() - began < 0.3:
        sum(range(1000))
    (tmp_path / "file").write_bytes(b"x" * 1000)
    after = own.cpu_times()
    busy = processors.sample()[0]
    spent = after.user + after.system - before.user - before.system
    assert busy == pytest.approx(spent / (time.monotonic() - began), rel=0.3, abs=0.1)
    rates = processors.transfers()
    assert all(rate is None or rate >= 0.0 for rate in rates)


@pytest.mark.parametrize("wrong", [-1, "often", None])
def test_what_is_not_legal_is_said(wrong):
    with pytest.raises(ConfigError, match=r"resources.every_seconds = .*number ≥ 0"):
        load_run_config("smoke", {"resources.every_seconds": wrong})


# AMD's GPUs


class FakeAmd:
    """A driver with two GPUs, the second of which says little; shaped like amdsmi."""

    class AmdSmiException(Exception):
        pass

    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def __init__(self) -> None:
        self.opened = 0

    def amdsmi_init(self) -> None:
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {"market_name": f"AMD Instinct {handle}"}

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, Any]:
        return {"gfx_activity": 70 if handle == 0 else "N/A"}

    def amdsmi_get_gpu_vram_usage(self, handle: int) -> dict[str, Any]:
        return {"vram_used": 2048, "vram_total": 192 * 1024}

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        return {"current_socket_power": "N/A", "average_socket_power": 250}

    def amdsmi_get_temp_metric(self, handle: int, sensor: int, metric: int) -> int:
        if handle == 1:
            raise self.AmdSmiException("not supported")
        return 64


def test_amds_gpus_are_asked_where_there_is_no_nvidia_driver(monkeypatch):
    library = FakeAmd()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_open_nvidia", lambda device: (None, "no NVIDIA driver answers"))
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    gpu, _ = open_gpu("cuda:0")
    assert gpu.sample() == GpuUse("AMD Instinct 0", 0.7, 2 * GIB, 192 * GIB, 64.0, 250.0)
    gpu.close()
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    gpu, _ = open_gpu("cuda")
    assert gpu.sample() == GpuUse("AMD Instinct 1", None, 2 * GIB, 192 * GIB, None, 250.0)
    gpu.close()
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    assert open_gpu("cuda:2") == (None, "no NVIDIA driver answers")
    assert library.opened == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_they_agree_with_nvidia_smi():
    gpu, reason = open_gpu("cuda:0")
    assert reason is None
    held = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda:0")
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    fields = "memory.used,power.draw,temperature.gpu,memory.total"
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    before = gpu.sample()
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used, power, temperature, total = (float(value) for value in answer.split(","))
    found = gpu.sample()
    gpu.close()
    # Others may use the GPU meanwhile: what was used lies between what was found before and after.
    least, most = sorted((before.memory_used, found.memory_used))
    assert least - 2**29 <= used * 2**20 <= most + 2**29
    assert found.memory_used > held.numel()
    assert found.memory_total == pytest.approx(total * 2**20, rel=0.02)
    assert found.power == pytest.approx(power, rel=0.3)
    assert found.temperature == pytest.approx(temperature, abs=5.0)
