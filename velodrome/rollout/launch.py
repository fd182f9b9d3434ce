"""Launching CUDA kernels on torch tensors, on torch's current stream; in the simulator, on the CPU's memory."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

THREADS = 128  # per block


def as_array(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory as kernels take it, without a copy."""
    from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

    tensor = tensor.detach()
    if SIMULATED:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        # A bare array would be copied, and two copies of one array overwrite each other.
        return FakeCUDAArray(tensor.numpy())
    return cuda.as_cuda_array(tensor)


@contextmanager
def capture(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is launched inside as a graph.

    No garbage is collected meanwhile: freeing an older graph would break the capture.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            yield
    finally:
        if collecting:
            gc.enable()


class Kernel:
    """A kernel with one thread per item; compiled at the first launch."""

    def __init__(self, function: Any) -> None:
        self.function = function

    @functools.cached_property
    def compiled(self) -> Any:
        """The kernel for this machine."""
        from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

        return cuda.jit(self.function) if SIMULATED else cuda.jit(self.function, fastmath=True)

    def __call__(self, threads: int, *arguments: Any) -> None:
        """Launch the kernel with at least this many threads; tensors are passed in place."""
        from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

        stream: Any = 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        passed = [as_array(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        self.compiled[-(-threads // THREADS), THREADS, stream](*passed)


def on_device(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a GPU; those of the simulator are on the CPU."""
    return tensor.device.type == "cuda"
