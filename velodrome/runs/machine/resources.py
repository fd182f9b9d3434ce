"""What a run uses of the machine as metrics, beside those of its learning.

A thread samples; the loop of the training takes the means of what came since and writes them with its next row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from velodrome.runs.machine.gpus import GpuUse
from velodrome.runs.machine.use import MachineSampler, MachineUse

PREFIX = "resources/"
# Name -> how a sample says it; a number that a machine does not tell is None, and its metric is not there.
OF_MACHINE: dict[str, Callable[[MachineUse], float | None]] = {
    "cpu_cores": lambda use: use.process_cpu,  # kept busy by the run
    "cpu_percent": lambda use: 100.0 * use.process_cpu / use.cores,  # of those that it may use
    "machine_cpu_cores": lambda use: use.machine_cpu,
    "memory_bytes": lambda use: use.process_memory,
    "machine_memory_bytes": lambda use: use.memory_used,
    "disk_free_bytes": lambda use: use.disk_free,
    "disk_read_bytes_per_second": lambda use: use.disk_read,
    "disk_written_bytes_per_second": lambda use: use.disk_written,
}
OF_GPU: dict[str, Callable[[GpuUse], float | None]] = {
    "gpu_percent": lambda gpu: None if gpu.busy is None else 100.0 * gpu.busy,
    "gpu_memory_bytes": lambda gpu: gpu.memory_used,  # by all processes
    "gpu_power_watts": lambda gpu: gpu.power,
    "gpu_temperature_celsius": lambda gpu: gpu.temperature,
}


def values_of(use: MachineUse) -> dict[str, float | None]:
    """Return a sample by the names of its metrics."""
    found = {name: read(use) for name, read in OF_MACHINE.items()}
    return found | {name: None if use.gpu is None else read(use.gpu) for name, read in OF_GPU.items()}


def means_of(samples: Sequence[MachineUse]) -> dict[str, float]:
    """Return the means of samples as metrics, without those that the machine did not tell."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in values_of(sample).items():
            if value is not None:
                columns.setdefault(f"{PREFIX}{name}", []).append(float(value))
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}


class ResourceMetrics:
    """Hands out the means of a sampler's samples every so often; `every` is in seconds, 0: never."""

    def __init__(self, sampler: MachineSampler, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.sampler, self.every, self._clock = sampler, every, clock
        self._next = -math.inf  # the first row has them, so that a short run shows something too

    def take(self) -> dict[str, float]:
        """Return the means since the last time, empty if it is not time yet or nothing was sampled."""
        now, samples = self._clock(), self.sampler.samples
        if not self.every or now < self._next or not samples:
            return {}
        self._next = now + self.every
        return means_of([samples.popleft() for _ in range(len(samples))])
