"""What GPUs say about themselves: NVIDIA's through nvidia-ml-py, AMD's through amdsmi."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from velodrome.outside.extras import install

MOST_ASKED = 0.01  # share of the time that a GPU's driver is busy with questions


@dataclass(frozen=True)
class GpuUse:
    """What the driver tells about one GPU; a value that the GPU does not report is None."""

    name: str
    busy: float | None  # share of the time in which a kernel ran, 0 to 1
    memory_used: int | None  # bytes, by all processes
    memory_total: int | None  # bytes
    temperature: float | None  # degrees Celsius
    power: float | None  # watts


def open_gpu(device: str) -> tuple[Gpu | None, str | None]:
    """Return the run's GPU (for device=cpu: the machine's first), or None and the reason why there is none to show."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None, "CUDA_VISIBLE_DEVICES hides the GPUs"
    gpu, reason = _open_nvidia(device)
    return (gpu, reason) if gpu is not None else (_open_amd(device), reason)


def _open_nvidia(device: str) -> tuple[Gpu | None, str | None]:
    try:
        import pynvml
    except ImportError:
        return None, f"nvidia-ml-py is not installed ({install('cuda')})"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"no NVIDIA driver answers ({error})"
    try:
        return NvidiaGpu(pynvml, _handle(pynvml, device)), None
    except (pynvml.NVMLError, RuntimeError, AssertionError) as error:
        pynvml.nvmlShutdown()
        return None, f"the driver does not show the GPU of device={device} ({error})"


def _handle(pynvml: Any, device: str) -> Any:
    if not device.startswith("cuda"):
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    import torch

    # CUDA numbers the visible devices, in an order of its own; the driver's library numbers all of them.
    number = torch.device(device).index or 0
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(number).uuid}")


class Gpu(Protocol):
    """One GPU that answers."""

    def sample(self) -> GpuUse:
        """Ask it."""

    def close(self) -> None:
        """Let go of the library."""


class SparingGpu:
    """A GPU that is asked for a share of the time at most; in between it repeats its last answer.

    Some drivers take a tenth of a second for an answer, and hold up whoever waits for the GPU meanwhile.
    """

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu, self._clock = gpu, clock
        self._last: GpuUse | None = None
        self._again = 0.0  # when it may be asked again

    def sample(self) -> GpuUse:
        began = self._clock()
        if self._last is None or began >= self._again:
            self._last = self._gpu.sample()
            self._again = began + (self._clock() - began) / MOST_ASKED
        return self._last

    def close(self) -> None:
        self._gpu.close()


class NvidiaGpu:
    """One GPU, asked through NVIDIA's management library."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._pynvml = pynvml
        self._handle = handle
        self._name = self._ask(lambda: str(pynvml.nvmlDeviceGetName(handle))) or "GPU"

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer, or None where this GPU cannot say (slices of a GPU and laptops report less)."""
        try:
            return question()
        except self._pynvml.NVMLError:
            return None

    def sample(self) -> GpuUse:
        library, handle = self._pynvml, self._handle
        # As nvidia-smi counts: the first version counts as used what the driver keeps for itself, some 600 MiB.
        memory = self._ask(lambda: library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2))
        if memory is None:  # a driver before 510
            memory = self._ask(lambda: library.nvmlDeviceGetMemoryInfo(handle))
        return GpuUse(
            name=self._name,
            busy=self._ask(lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0),
            memory_used=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            temperature=self._ask(
                lambda: float(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU))
            ),
            power=self._ask(lambda: library.nvmlDeviceGetPowerUsage(handle) / 1000.0),  # milliwatts
        )

    def close(self) -> None:
        self._ask(self._pynvml.nvmlShutdown)


# AMD's

AMD_POWER = ("socket_power", "current_socket_power", "average_socket_power")  # watts; by version and GPU


def _open_amd(device: str) -> Gpu | None:
    """Return an AMD GPU, None where there is none or its library is missing."""
    try:
        import amdsmi
    except Exception:  # not installed, or without the driver's library, which fails in several ways
        return None
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException:
        return None
    number = int(device.partition(":")[2] or 0)
    # HIP numbers the visible devices, the library all of them.
    named = (os.environ.get(name, "") for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
    visible = next((text.split(",") for text in named if text), [])
    if number < len(visible) and visible[number].strip().isdigit():
        number = int(visible[number])
    if number < len(handles):
        return AmdGpu(amdsmi, handles[number])
    amdsmi.amdsmi_shut_down()
    return None


class AmdGpu:
    """One GPU, asked through AMD's management library."""

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._library, self._handle = amdsmi, handle
        self._name = self._ask("amdsmi_get_gpu_asic_info", "market_name") or "AMD GPU"

    def _ask(self, question: str, *names: str, arguments: tuple[Any, ...] = ()) -> Any:
        """Return an answer, or the first entry of it by these names that is known; None where this GPU cannot say."""
        try:
            found = getattr(self._library, question)(self._handle, *arguments)
        except (self._library.AmdSmiException, AttributeError):
            return None
        found = next((found[name] for name in names if found.get(name, "N/A") != "N/A"), None) if names else found
        return None if found == "N/A" else found

    def sample(self) -> GpuUse:
        library = self._library
        busy = self._ask("amdsmi_get_gpu_activity", "gfx_activity")  # percent
        used, total = (self._ask("amdsmi_get_gpu_vram_usage", name) for name in ("vram_used", "vram_total"))  # MiB
        power = self._ask("amdsmi_get_power_info", *AMD_POWER)
        sensors = (library.AmdSmiTemperatureType.HOTSPOT, library.AmdSmiTemperatureMetric.CURRENT)
        temperature = self._ask("amdsmi_get_temp_metric", arguments=sensors)
        return GpuUse(
            name=str(self._name),
            busy=None if busy is None else busy / 100.0,
            memory_used=None if used is None else int(used) * 2**20,
            memory_total=None if total is None else int(total) * 2**20,
            temperature=None if temperature is None else float(temperature),
            power=None if power is None else float(power),
        )

    def close(self) -> None:
        self._library.amdsmi_shut_down()
