"""Launching CUDA kernels on torch tensors, on torch's current stream, one by one or as graphs.

In the simulator kernels work on the CPU's memory. A graph's kernels start without the host's help.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from velodrome.outside.kernels import kept_privately
from velodrome.vector.compile.assemble import rebuild
from velodrome.vector.compile.kernel_cache import kernel_folder
from velodrome.vector.cuda import is_rocm

THREADS = 128  # per block
WARM_UP = 2  # calls before a capture: they compile kernels, choose algorithms and allocate the optimiser's state


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

    No garbage is collected meanwhile: freeing an older graph would break the capture. Nor before it: that would take a
    third of a second each time, and who gives memory back collects by himself.
    """
    collecting = gc.isenabled()
    gc.disable()
    stream = own_stream(torch.cuda.current_device(), "capture")
    # A thread of NCCL's looks after its calls meanwhile, which only this thread's capture must not see.
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local" if several else "global"):
            yield
    finally:
        if collecting:
            gc.enable()


@functools.cache
def own_stream(device: int, purpose: str) -> torch.cuda.Stream:
    """Return a device's one stream for warm-up calls, or for captures: cuBLAS keeps a workspace for every stream."""
    return torch.cuda.Stream(device)


class Captured:
    """Runs a function as it is at first, then as a graph.

    The function must read and write tensors that stay where they are, decide nothing on the host and, apart from the
    generator given, draw no random numbers.
    """

    def __init__(self, function: Callable[[], None], generator: torch.Generator) -> None:
        self.function = function
        self.generator = generator
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run the function once."""
        if self.graph is not None:
            self.graph.replay()
            return
        self.calls += 1
        if self.calls <= WARM_UP:
            stream = own_stream(torch.cuda.current_device(), "warm-up")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.function()
            torch.cuda.current_stream().wait_stream(stream)
            return
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with capture(graph):
            self.function()
        self.graph = graph
        graph.replay()


class Kernel:
    """A kernel with one thread per item; compiled at the first launch."""

    def __init__(self, function: Any) -> None:
        self.function = function

    @functools.cached_property
    def compiled(self) -> Any:
        """The kernel for this machine, from the folder of kernels if it was compiled before."""
        from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

        if SIMULATED:
            return cuda.jit(self.function)
        name = self.function.__name__
        folder = kernel_folder("learner", self.function, f"{name}, CUDA", {}, how="fastmath", aloud=False)
        copy = rebuild(self.function, {}, filename=str(folder / f"{name}.py"))
        return kept_privately(cuda.jit(copy, cache=True, fastmath=True))

    def __call__(self, threads: int, *arguments: Any) -> None:
        """Launch the kernel with at least this many threads; tensors are passed in place."""
        from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

        stream: Any = 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        passed = [as_array(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        self.compiled[-(-threads // THREADS), THREADS, stream](*passed)


def on_device(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is where CUDA kernels run: on a GPU of NVIDIA's. The simulator's are on the CPU."""
    return takes_kernels(tensor.device)


def takes_kernels(device: torch.device) -> bool:
    """Return whether CUDA kernels and graphs run on a device; torch calls AMD's GPUs cuda, too."""
    return device.type == "cuda" and not is_rocm()
