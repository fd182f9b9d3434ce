"""The CUDA backend: one thread per environment over torch tensors that never leave the device.

`step` launches kernels on torch's current stream and returns device tensors; nothing is copied to the host. Inside
`torch.cuda.graph(…)` a step is two kernel launches of a few microseconds; `docs/performance.md` has the numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import LANES, World, state_dtype
from velodrome.errors import BackendError, ConfigError
from velodrome.outside.extras import install
from velodrome.vector.argument_checks import check_that_they_fit
from velodrome.vector.batch import Outputs
from velodrome.vector.buffers import (
    Buffers,
    allocate_blocks,
    allocate_outputs,
    bytes_of_buffers,
    bytes_per_environment,
    column_rows,
    copy_outputs,
    copy_states,
)
from velodrome.vector.compile.assemble import constant_scalars
from velodrome.vector.compile.rehearsal import rehearse
from velodrome.vector.cores import is_rank
from velodrome.vector.native import uncompiled_one
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.space_arrays import map_nested

THREADS = 64  # per block of the step kernel; on an H200 a little faster than 128 and 256
ROWS = 4  # environments per block of the gather kernel, one warp each; likewise faster than 8 and 16


def unavailable_reason(device: str = "cuda") -> str | None:
    """Return why a CUDA device ("cuda", or by number "cuda:1") cannot serve, with what to do, or None if it can."""
    import torch

    if is_rocm():
        return f"torch {torch.__version__} is built for ROCm, and the kernels of environments are NVIDIA's"
    try:
        from velodrome.vector.compile import numba_cuda
    except Exception as error:
        return f"numba's CUDA support does not import ({type(error).__name__}: {error}); {install('cuda')}"
    if numba_cuda.SIMULATED:
        return missing_device(device, 1)
    if not torch.cuda.is_available():
        build = torch.version.cuda or "none: a CPU build"
        return f"torch {torch.__version__} sees no CUDA device (CUDA of the build: {build})"
    if not numba_cuda.cuda.is_available():
        return f"torch sees a CUDA device but numba does not; {install('cuda')} and run `velodrome doctor`"
    return missing_device(device, torch.cuda.device_count())


def missing_device(device: str, count: int) -> str | None:
    """Return that there is no device of this number among so many, None if there is."""
    number = int(device.partition(":")[2] or 0)
    seen = "one device, cuda:0" if count == 1 else f"{count} devices, cuda:0 to cuda:{count - 1}"
    return None if number < count else f"torch sees {seen}"


def is_rocm() -> bool:
    """Return whether torch is built for AMD's GPUs, which it calls cuda, too."""
    import torch

    return getattr(torch.version, "hip", None) is not None


def own_gpu(device: str) -> str:
    """Return the GPU of this process: of torchrun's ranks on a machine, each has its own."""
    import torch

    local = int(os.environ.get("LOCAL_RANK", "0")) if is_rank() else 0
    if device != "cuda" or local == 0:
        return device
    if local >= torch.cuda.device_count():
        raise BackendError(
            f"Rank {local} of this machine has no GPU: {torch.cuda.device_count()} can be used. Start as many ranks as "
            "there are GPUs, or give device=cpu."
        )
    return f"cuda:{local}"


@contextmanager
def current_device(device: Any) -> Iterator[None]:
    """Let torch, its streams and graphs, and Numba work on a GPU inside; others, and one without a number, change none.

    device: as torch names it. Both libraries have a current device for each thread, and launch kernels there.
    """
    import torch

    chosen = torch.device(device)
    if chosen.type != "cuda" or chosen.index is None or is_simulated():
        yield
        return
    with torch.cuda.device(chosen):
        if is_rocm():
            yield
            return
        from velodrome.vector.compile.numba_cuda import cuda

        before = cuda.get_current_device().id
        cuda.select_device(chosen.index)
        try:
            yield
        finally:
            cuda.select_device(before)


def is_simulated() -> bool:
    """Return whether kernels run in Numba's simulator."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


class CudaVectorEnv(RuleVectorEnv):
    """n environments of one rule on the GPU; actions, observations, rewards and flags are tensors on it.

    Checking actions copies one flag to the host in each step, and so does checking values, which is off unless
    check_values=True asks for it. check_actions=False avoids the former, and capturing the step in a CUDA graph both.
    `specialise` compiles the parameters in as constants: a faster step for one compilation (then cached on disk) per
    set of parameters. `device` is a GPU by its number, "cuda:1"; "cuda" is torch's current one. `shared` are the
    options of `RuleVectorEnv`.
    """

    backend = "cuda"
    _copy_array = methodcaller("clone")

    def __init__(
        self,
        world: World,
        num_envs: int,
        *,
        specialise: bool = True,
        check_values: bool | None = None,
        device: str = "cuda",
        **shared: Any,
    ) -> None:
        super().__init__(world, num_envs, check_values=bool(check_values), **shared)
        if re.fullmatch(r"cuda(:\d+)?", str(device)) is None:
            raise ConfigError(f"device = {device!r}; legal: 'cuda', or a GPU by its number, such as 'cuda:1'")
        reason = unavailable_reason(device)
        if reason is not None:
            raise BackendError(
                f"backend='cuda' cannot serve on {device}: {reason}. Use backend='native' for all CPU cores, or set "
                f"NUMBA_ENABLE_CUDASIM=1 before the start to run the kernels in a (slow) simulator."
            )
        rehearse(world, lambda: uncompiled_one(world))
        import torch

        from velodrome.vector.compile import cuda_loops, numba_cuda

        numba_cuda.tell_of_parity()
        self._torch, self._cuda, self._loops = torch, numba_cuda, cuda_loops
        self.device = torch.device("cpu" if numba_cuda.SIMULATED else device)
        with current_device(self.device):
            self._make(specialise)

    def _make(self, specialise: bool) -> None:
        """Compile the kernels and put everything on the device."""
        world, cuda_loops = self.world, self._loops
        self._check_device_memory(self.num_envs)
        self._kernels = cuda_loops.compile_kernels(world, specialise, with_windows=self.observation != "cursor")
        self._params = constant_scalars(world)
        self._tensors = [[self._to_device(array) for array in table] for table in (world.tables, self.windows)]
        self._tables = type(world.tables)(*map(self._array, self._tensors[0]))
        self._window_tables = type(self.windows)(*map(self._array, self._tensors[1]))
        self._attach(self._allocate_buffers(allocate_blocks(world, self.num_envs), self.num_envs))

    # Memory

    def _check_device_memory(self, num_envs: int) -> None:
        """Refuse more environments than fit on the device."""
        if not self._cuda.SIMULATED:
            each = bytes_of_buffers(self.world, num_envs, with_windows=self.observation != "cursor")
            check_that_they_fit(
                num_envs, each, lambda: self._torch.cuda.mem_get_info(self.device)[0], "the GPU's memory"
            )

    def _allocate_buffers(self, blocks: NDArray, num_envs: int) -> Buffers:
        """Allocate memory on the device, with this state in it."""
        out = allocate_outputs(self.world, num_envs, self.observation != "cursor", self._allocate)
        if self.observation == "cursor":
            # Column by column, so that neighbouring threads write neighbouring floats.
            out = out._replace(observations=self._allocate(np.float32, out.observations.shape[::-1]).T)
        return Buffers(self._to_device(blocks.view(np.uint8)), out, bytes_per_environment(self.world, num_envs))

    def _attach(self, buffers: Buffers) -> None:
        """Work on this memory from now on."""
        self._set_views(buffers)
        self._blocks, out = buffers.blocks, buffers.out
        count = len(out.rewards)
        self._memory = self._loops.Memory(self._array(self._blocks, state_dtype(self.world.state_type)))
        self._out = Outputs._make(value if isinstance(value, int) else self._array(value) for value in out)
        self._actions = self._allocate(self._action_dtype, (count, *self._action_shape))
        self._action_array = self._array(self._actions)
        self._grid = (-(-count // THREADS), THREADS)
        self._gather_grid = (-(-count // ROWS), (self._loops.WARP, ROWS))

    def _host_bytes(self, num_envs: int) -> float:
        return state_dtype(self.world.state_type).itemsize / LANES  # on its way to the device

    def _move(self, num_envs: int, kept: int) -> None:
        self._check_device_memory(num_envs)
        blocks = allocate_blocks(self.world, num_envs)
        copy_states(self._host_blocks(), blocks, kept)
        buffers = self._allocate_buffers(blocks, num_envs)
        copy_outputs(self.buffers.out, buffers.out, kept)
        with current_device(self.device):
            self._attach(buffers)

    def _allocate(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        torch_type = getattr(self._torch, "bool" if dtype is np.bool_ else np.dtype(dtype).name)
        return self._torch.zeros(shape, dtype=torch_type, device=self.device)

    def _to_device(self, array: NDArray) -> Any:
        return self._torch.from_numpy(np.array(array)).to(self.device)

    def _array(self, tensor: Any, dtype: np.dtype | None = None) -> Any:
        """Return a tensor's memory as kernels take it, without a copy."""
        if self._cuda.SIMULATED:
            array = tensor.numpy()
            return array if dtype is None else array.view(dtype).view(np.recarray)
        array = self._cuda.cuda.as_cuda_array(tensor)
        return array if dtype is None else array.view(dtype)

    def _host_blocks(self) -> NDArray:
        return self._blocks.cpu().numpy().view(state_dtype(self.world.state_type))

    def _write_state(self, column: str, rows: NDArray[np.int64], values: NDArray) -> None:
        blocks = np.array(self._host_blocks())
        blocks[column][rows // LANES, rows % LANES] = values
        self._blocks.copy_(self._torch.from_numpy(blocks.view(np.uint8)))

    def column(self, name: str) -> Any:
        """Return a copy of one column of the state on the host: [n], or [rows, n]."""
        return column_rows(self._host_blocks()[name], self.num_envs)

    # Steps

    def _launch(self, kernel: Any, grid: Any, *arguments: Any) -> None:
        stream: Any = 0
        if not self._cuda.SIMULATED:
            stream = self._cuda.cuda.external_stream(self._torch.cuda.current_stream().cuda_stream)
        with self._cuda.separate_rounding():
            kernel[(*grid, stream)](*arguments)

    def _gather(self, after_step: bool) -> None:
        if self.buffers.out.window_floats:
            self._launch(self._kernels.gather, self._gather_grid, after_step, self._window_tables, self._out)

    def _reset_chosen(self, chosen: NDArray[np.bool_]) -> None:
        mask = self._to_device(chosen)
        with current_device(self.device):
            arguments = (self._array(mask), self._memory, self._tables, self._params, self._out)
            self._launch(self._kernels.reset, self._grid, *arguments)
            self._gather(after_step=False)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments. The infos are always there: to know whether an episode ended would need a copy."""
        self._check_ready()
        self.set_actions(actions)
        self.step_kernels()
        out = self.buffers.out
        if self.check_values and not self._is_capturing():
            observed = slice(out.window_floats, None)
            parts: Any = out.rewards, out.observations[:, observed], out.final_observations[:, observed]
            if not all(part.isfinite().all() for part in parts):
                self._look(np.arange(self.num_envs), "step")
        infos = self._infos_of_ended(out.terminated | out.truncated)
        results = self._observation_view, out.rewards, out.terminated, out.truncated, infos
        return map_nested(self._copy_array, results) if self.copy else results

    def set_actions(self, actions: Any) -> None:
        """Copy actions into the buffer that `step_kernels` reads; check them unless a graph is being captured."""
        actions = self._torch.as_tensor(actions, device=self.device)
        wrong_type = actions.dtype == self._torch.bool or (
            self._action_dtype.kind == "i" and actions.is_floating_point()
        )
        if wrong_type or actions.numel() != self._actions.numel():
            raise self._bad_shape(actions)
        actions = actions.reshape(self._actions.shape).to(self._actions.dtype)
        if self.check_actions and not self._is_capturing():
            legal = (actions >= self._to_bound(self._action_low)) & (actions <= self._to_bound(self._action_high))
            if not bool(legal.all()):
                host = actions.cpu().numpy()
                self._refuse(host, int(np.argmin(legal.cpu().numpy().reshape(self.num_envs, -1).all(axis=1))))
        self._actions.copy_(actions)

    def _is_capturing(self) -> bool:
        return not self._cuda.SIMULATED and self._torch.cuda.is_current_stream_capturing()

    def _to_bound(self, bound: Any) -> Any:
        return self._torch.as_tensor(bound, device=self.device) if isinstance(bound, np.ndarray) else bound

    def step_kernels(self, actions: Any = None) -> None:
        """Launch one step on the current stream and nothing else, so that a CUDA graph can hold it.

        `actions` is a contiguous tensor on the device with the right type and shape, read in place and not checked;
        None takes what `set_actions` stored. The results are in `buffers.out`.
        """
        with current_device(self.device):
            source = self._action_array if actions is None else self._array(actions)
            arguments = (source, self.autoreset, self._memory, self._tables, self._params, self._out)
            self._launch(self._kernels.step, self._grid, *arguments)
            self._gather(after_step=True)
