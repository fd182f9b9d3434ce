"""What the machine does, now and in the last hour: processors, memory, GPU, power and disk."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from velodrome.runs.machine.use import MachineSampler, MachineUse

SAMPLE_SECONDS = 2.0
KEPT_SECONDS = 5.0  # between two points of the history
KEPT = 720  # points: an hour


class MachineHistory:
    """Samples the machine while it is open. Nothing is sampled before somebody asks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sampler: MachineSampler | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._points: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._kept_at = 0.0

    def start(self) -> None:
        """Begin, if that has not been done."""
        with self._lock:
            if self._sampler is None and not self._closed:  # an answer may still be under way when all is closed
                self._sampler = MachineSampler(self._folder, "cpu", SAMPLE_SECONDS, children=False)
                self._sampler.__enter__()

    def close(self) -> None:
        """End, for good."""
        with self._lock:
            self._closed = True
            if self._sampler is not None:
                self._sampler.__exit__()
                self._sampler = None

    def now(self, steps_per_second: float) -> dict[str, Any] | None:
        """Return the last sample in plain values, and keep a point of the history; None before the first sample."""
        self.start()
        sampler = self._sampler
        use = None if sampler is None else sampler.latest
        if use is None:
            return None
        found = content(use, steps_per_second)
        moment = time.time()
        with self._lock:
            if moment - self._kept_at >= KEPT_SECONDS:
                self._kept_at = moment
                self._points.append((moment, *_shares(found)))
        return found

    def history(self) -> dict[str, list[float | None]]:
        """Return the last hour by column."""
        names = ("time", "cpu", "memory", "gpu", "vram", "power", "disk", "steps_per_second")
        with self._lock:
            points = list(self._points)
        return {name: [point[place] for point in points] for place, name in enumerate(names)}


def content(use: MachineUse, steps_per_second: float) -> dict[str, Any]:
    """Return a sample in plain values."""
    gpu = None
    if use.gpu is not None:
        gpu = {
            "name": use.gpu.name,
            "use": use.gpu.busy,
            "memory_used": use.gpu.memory_used,
            "memory_total": use.gpu.memory_total,
            "power": use.gpu.power,
            "temperature": use.gpu.temperature,
        }
    return {
        "time": time.time(),
        "cores": use.machine_cores,
        "cpu": min(use.machine_cpu, use.machine_cores),  # two clocks do not agree to the last tick
        "memory_used": use.memory_used,
        "memory_total": use.memory_total,
        "disk_free": use.disk_free,
        "disk_total": use.disk_total,
        "steps_per_second": steps_per_second,
        "gpu": gpu,
    }


def _shares(found: dict[str, Any]) -> tuple[Any, ...]:
    gpu = found["gpu"] or {}
    return (
        min(found["cpu"] / found["cores"], 1.0),
        found["memory_used"] / found["memory_total"],
        gpu.get("use"),
        _share(gpu.get("memory_used"), gpu.get("memory_total")),
        gpu.get("power"),
        None if found["disk_free"] is None else 1.0 - found["disk_free"] / found["disk_total"],
        found["steps_per_second"],
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
