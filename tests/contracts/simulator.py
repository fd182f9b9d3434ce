"""Numba's simulator of CUDA, made quicker for kernels whose threads do not wait for one another."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np


def run_threads_in_turn() -> None:
    """Let one thread of the system play all threads of a block, one after the other.

    The simulator starts one for each, 128 at every launch, which hand the interpreter to each other: most of its time,
    and far more where another program holds a core.
    """
    from numba.cuda.simulator import kernel

    def refused() -> NoReturn:
        raise RuntimeError("a kernel whose threads wait for one another needs the simulator as it is")

    def run(block: Any, place: tuple[int, int, int], *arguments: Any) -> None:
        def everyone() -> None:
            for number, point in enumerate(np.ndindex(*block._block_dim)):
                thread.threadIdx, thread.thread_id = kernel.Dim3(*point), number
                block._f(*arguments)

        thread = kernel.BlockThread(everyone, block, place, (0, 0, 0), block._debug)
        thread.syncthreads = refused
        thread.start()
        thread.join()
        if thread.exception:
            raise thread.exception[0].with_traceback(thread.exception[1])

    kernel.BlockManager.run = run
