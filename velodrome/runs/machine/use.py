"""How much of the machine a run uses: processors, memory, GPU and disk, sampled by a thread."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import psutil

from velodrome.runs.machine.gpus import Gpu, GpuUse, SparingGpu, open_gpu
from velodrome.vector.cores import available_cores

LOW_DISK = 2 * 1024**3  # bytes; a few checkpoints of a large network
LOW_DISK_SHARE = 0.1  # of the file system, where that is less: a small one is not short of space by being small
LOW_MEMORY_SHARE = 0.05  # of the machine's memory
MOST_SAMPLES = 3600  # kept until they are taken


@dataclass(frozen=True)
class MachineUse:
    """One sample. Processor use is measured since the previous sample."""

    cores: int  # that this process may run on
    process_cpu: float  # cores kept busy by this process and its children, e.g. 1.7
    machine_cores: int  # of the machine, whether this process may use them or not
    machine_cpu: float  # cores of the machine kept busy by all processes
    disk_wait: float  # cores of the machine that were idle because processes waited for a disk
    process_memory: int  # bytes in this process, plus those of its children that they do not share
    memory_used: int  # bytes, by all processes
    memory_total: int  # bytes
    disk_free: int | None  # bytes where the runs are kept; None if the folder cannot be read
    disk_total: int | None  # bytes
    gpu: GpuUse | None  # None where there is none, or no way to ask it
    disk_read: float | None = None  # bytes a second by this process; None where the system does not count them
    disk_written: float | None = None

    def warnings(self) -> list[str]:
        """Say what is about to run out."""
        found = []
        if self.disk_free is not None and self.disk_free < min(LOW_DISK, (self.disk_total or 0) * LOW_DISK_SHARE):
            found.append(
                f"The disk of the runs folder is nearly full, {bytes_text(self.disk_free)} free: checkpoints will "
                "fail. Delete old runs or keep fewer checkpoints (checkpoint.keep)."
            )
        free = self.memory_total - self.memory_used
        if free < self.memory_total * LOW_MEMORY_SHARE:
            found.append(
                f"Memory is nearly full, {bytes_text(free)} of {bytes_text(self.memory_total)} left: the system may "
                "kill this run. Use fewer environments (num_envs) or a smaller buffer."
            )
        return found


def bytes_text(count: float) -> str:
    """Write a number of bytes for people, such as 3.2 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB" if abs(count) < 1024 else f"{count / 1024:.1f} TiB"


class MachineSampler:
    """Samples the machine in the background while it is open; `latest` is the last sample, None before the first.

    Nothing here may stop a training: a failure ends the sampling and is kept in `failure`.
    """

    def __init__(
        self, folder: Path | str = ".", device: str = "cpu", every: float = 1.0, children: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.device = device
        self.every = every  # seconds
        self._children = children  # whether this process's children are looked for, which takes a while
        self.latest: MachineUse | None = None
        self.samples: deque[MachineUse] = deque(maxlen=MOST_SAMPLES)  # that nobody has taken yet
        self.failure: str | None = None
        self.gpu_missing: str | None = None  # why there is no GPU in the samples
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MachineSampler:
        if math.isinf(self.every):  # nobody wants a sample
            return self
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="velodrome-machine-use", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
            self._thread = None

    def _run(self) -> None:
        gpu: Gpu | None = None
        try:
            found, self.gpu_missing = open_gpu(self.device)
            gpu = None if found is None else SparingGpu(found)
            processors = ProcessorUse(self._children)
            # A first sample soon, so that a short run shows something too.
            wait = min(0.2, self.every)
            while not self._stop.wait(wait):
                self.latest = self._sample(processors, gpu)
                self.samples.append(self.latest)
                wait = self.every
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            if gpu is not None:
                gpu.close()

    def _sample(self, processors: ProcessorUse, gpu: Gpu | None) -> MachineUse:
        process_cpu, machine_cpu, disk_wait, process_memory = processors.sample()
        read, written = processors.transfers()
        memory = psutil.virtual_memory()
        try:
            disk = shutil.disk_usage(self.folder)
        except OSError:
            disk = None
        return MachineUse(
            cores=available_cores(),
            process_cpu=process_cpu,
            machine_cores=os.cpu_count() or 1,
            machine_cpu=machine_cpu,
            disk_wait=disk_wait,
            process_memory=process_memory,
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            disk_free=None if disk is None else disk.free,
            disk_total=None if disk is None else disk.total,
            gpu=None if gpu is None else gpu.sample(),
            disk_read=read,
            disk_written=written,
        )


class ProcessorUse:
    """Processor time and memory of this process and its descendants, and processor time of the machine."""

    def __init__(self, children: bool = True) -> None:
        self._own, self._with_children = psutil.Process(), children
        self._time = time.monotonic()
        self._seconds, _ = self._tree()  # processor seconds by (pid, creation time)
        self._machine = _machine_seconds()
        self._transferred = self._bytes()

    def transfers(self) -> tuple[float | None, float | None]:
        """Return the bytes a second that this process read from disks and wrote to them since the last call."""
        before, self._transferred = self._transferred, self._bytes()
        if before is None or self._transferred is None:
            return None, None
        elapsed = max(self._transferred[0] - before[0], 1e-6)
        read, written = (
            max(now - then, 0) / elapsed for now, then in zip(self._transferred[1:], before[1:], strict=True)
        )
        return read, written

    def _bytes(self) -> tuple[float, int, int] | None:
        try:
            counted = self._own.io_counters()
        except (AttributeError, NotImplementedError, OSError, psutil.Error):
            return None
        return time.monotonic(), counted.read_bytes, counted.write_bytes

    def sample(self) -> tuple[float, float, float, int]:
        """Return cores kept busy by the processes, by all of the machine, cores waiting for a disk, and bytes."""
        seconds, memory = self._tree()
        # A process that began since the last sample spent all its time since then; one that ended is lost.
        spent = sum(value - self._seconds.get(process, 0.0) for process, value in seconds.items())
        busy, waiting = _machine_seconds()
        now = time.monotonic()
        elapsed = max(now - self._time, 1e-6)
        busy_before, waiting_before = self._machine
        self._time, self._seconds, self._machine = now, seconds, (busy, waiting)
        # Counters tick in hundredths of a second, and the kernel lets that of waiting fall at times.
        process, machine, disk = (
            max(change, 0.0) / elapsed for change in (spent, busy - busy_before, waiting - waiting_before)
        )
        return process, machine, disk, memory

    def _tree(self) -> tuple[dict[tuple[int, float], float], int]:
        seconds: dict[tuple[int, float], float] = {}
        memory = 0
        children = self._own.children(recursive=True) if self._with_children else ()
        for process in (self._own, *children):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    sizes = process.memory_info()
                    key = (process.pid, process.create_time())
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ended between being listed and being asked
            seconds[key] = times.user + times.system
            # Workers map the same libraries and buffers as their parent: counted once, there.
            shared = 0 if process.pid == self._own.pid else getattr(sizes, "shared", 0)
            memory += sizes.rss - shared
        return seconds, memory


def _machine_seconds() -> tuple[float, float]:
    """Return the seconds since the machine started in which cores were busy, and in which they waited for a disk."""
    times = psutil.cpu_times()
    waiting = getattr(times, "iowait", 0.0)
    # The kernel counts the time of guests in `user` and `nice` too.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - waiting, waiting
