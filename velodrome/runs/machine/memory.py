"""Memory that ran out: whether an error says so, and with how many environments to go on."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import re
from typing import TYPE_CHECKING

from velodrome.errors import EnvironmentFaultError, OutOfMemoryError, VelodromeError, chain
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.machine.use import bytes_text
from velodrome.vector.cores import is_rank

if TYPE_CHECKING:
    from velodrome.runs.config.run_config import RunConfig

# What libraries say in errors of a general kind: torch's allocator for the CPU, the system, CUDA's runtime and driver,
# cuBLAS.
TOLD = (
    "can't allocate memory",
    "Cannot allocate memory",
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
    return next(filter(None, (_said_by_system(one) or _said_by_us(one) for one in chain(error))), None)


def avoidable_shortage(error: BaseException) -> str | None:
    """Return the same of memory that ran out where a training can go on with less, else None.

    Ranks have fixed shares of the environments. What becomes of an environment that fails, `vector.on_fault` says.
    """
    return None if is_rank() else next(filter(None, map(_said_by_system, chain(error))), None)


def _said_by_system(error: BaseException) -> str | None:
    """Return what one error of Python, the system or a library says of memory that ran out, None if nothing."""
    import torch

    if isinstance(error, VelodromeError):  # ours speak of memory where they refuse something
        return None
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "") or type(error).__name__
    # Numba's error of the driver has no base but Exception.
    general = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "CudaAPIError"
    certain = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
    certain = certain or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return _brief(said) if certain or (general and _speaks_of_memory(said)) else None


def _said_by_us(error: BaseException) -> str | None:
    """Return what one error of ours says of memory that ran out, None if nothing."""
    if isinstance(error, OutOfMemoryError):
        return _brief(str(error))
    if not isinstance(error, EnvironmentFaultError):
        return None
    # What environments raised is known as a text. A worker that outgrew its `memory_limit` has the kind "memory".
    raised = [fault.message for fault in error.faults if fault.kind == "raised"]
    return next((_brief(said) for said in raised if said.startswith("MemoryError") or _speaks_of_memory(said)), None)


def _speaks_of_memory(said: str) -> bool:
    return any(words in said for words in TOLD)


def _brief(said: str) -> str:
    """Return what an error says of memory in few words: the amount, if it names one."""
    if (amount := re.search(r"allocate ([\d.]+) (bytes|[KMGT]iB)", said)) is not None:
        count, unit = amount.groups()
        return f"{bytes_text(float(count)) if unit == 'bytes' else f'{count} {unit}'} could not be allocated"
    told = said.rstrip(".")
    return told if len(told) <= LONGEST else f"{told[:LONGEST]} …"


def ran_out(num_envs: int, lacking: str) -> str:
    """Begin a sentence about memory that ran out."""
    return f"memory ran out with {num_envs:,} environments ({lacking})"


def fewer_envs(config: RunConfig, num_envs: int, lacking: str) -> int:
    """Return with how many environments to go on: half as many. None left to leave out is an error."""
    fewest = config.learner.fewest_envs(config.network)
    if num_envs // 2 < fewest:
        raise OutOfMemoryError(f"{ran_out(num_envs, lacking)}, and the training needs {fewest:,}. {smaller(config)}")
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
