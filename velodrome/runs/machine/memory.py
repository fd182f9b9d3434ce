"""Memory that ran out: whether an error says so, and with how many environments to go on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from typing import TYPE_CHECKING

from velodrome.errors import RunError, VelodromeError
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.machine.use import bytes_text
from velodrome.vector.cores import is_rank

if TYPE_CHECKING:
    from velodrome.runs.config.run_config import RunConfig

# What libraries say in errors of a general kind: torch's allocator for the CPU, CUDA's runtime and driver, cuBLAS.
TOLD = (
    "can't allocate memory",
    "out of memory",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
MMAP_THRESHOLD = -3  # the C library's number for: the size from which blocks are mapped, and go back once freed
LARGE_BLOCK = 1 << 20  # bytes
LONGEST = 160  # characters of an error that are shown


def shortage(error: BaseException) -> str | None:
    """Return in a line what an error says of memory that ran out; None if it, and what led to it, are about others.

    A CUDA graph whose capture runs out of memory fails a second time when it is ended: the first error counts.
    """
    import torch

    if is_rank():  # they have fixed shares of the environments
        return None
    seen: BaseException | None = error
    while seen is not None:
        said = next((line.strip() for line in str(seen).splitlines() if line.strip()), "")
        # Numba's error of the driver has no base but Exception. Ours speak of memory where they refuse something.
        of_system = isinstance(seen, RuntimeError | OSError) or type(seen).__name__ == "CudaAPIError"
        of_system = of_system and not isinstance(seen, VelodromeError)
        if isinstance(seen, MemoryError | torch.cuda.OutOfMemoryError) or (of_system and any(s in said for s in TOLD)):
            if (amount := re.search(r"allocate ([\d.]+) (bytes|[KMGT]iB)", said)) is not None:
                count, unit = amount.groups()
                return f"{bytes_text(float(count)) if unit == 'bytes' else f'{count} {unit}'} could not be allocated"
            told = said.rstrip(".") or type(seen).__name__
            return told if len(told) <= LONGEST else f"{told[:LONGEST]} …"
        seen = seen.__cause__ or seen.__context__
    return None


def ran_out(num_envs: int, lacking: str) -> str:
    """Begin a sentence about memory that ran out."""
    return f"memory ran out with {num_envs:,} environments ({lacking})"


def fewer_envs(config: RunConfig, num_envs: int, lacking: str) -> int:
    """Return with how many environments to go on: half as many. None left to leave out is an error."""
    fewest = config.learner.fewest_envs(config.network)
    if num_envs // 2 < fewest:
        raise RunError(f"{ran_out(num_envs, lacking)}, and the training needs {fewest:,}. {smaller(config)}")
    return num_envs // 2


def smaller(config: RunConfig) -> str:
    """Return in a sentence how a training takes less memory."""
    ways = (*ALGORITHMS.get(config.algorithm).memory_advice, "a smaller network (network.hidden)")
    return f"What takes less: {', '.join(ways)}."


def give_back(device: str) -> None:
    """Let go of what nothing refers to any more, on the host and on a GPU."""
    import torch

    gc.collect()
    _trim_heap()
    if device.startswith("cuda") and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _trim_heap() -> None:
    """Return what was freed to the system, and let large blocks return by themselves from now on.

    The C library of most Linuxes keeps freed blocks of up to 32 MiB for itself once a program has freed some of that
    size, and gives none back that lies below one in use. Others have no such functions.
    """
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        library.mallopt(MMAP_THRESHOLD, LARGE_BLOCK)
        library.malloc_trim(0)
