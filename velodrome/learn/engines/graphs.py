"""A function of fixed tensors, captured as one CUDA graph: replayed, its kernels start without the host's help."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from velodrome.rollout.launch import capture

WARM_UP = 2  # calls before the capture: they compile kernels, choose algorithms and allocate the optimiser's state


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """Return the one stream of all warm-up calls: cuBLAS keeps a workspace for every stream that it has seen."""
    return torch.cuda.Stream()


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
            stream = side_stream()
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
