"""The CPU backend: one compiled loop over all environments, on one core or on all of them, whichever is faster."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import LANES, World, params_record
from velodrome.errors import ConfigError
from velodrome.vector.argument_checks import is_whole
from velodrome.vector.batch import WRONG
from velodrome.vector.buffers import Buffers, allocate_buffers, column_rows, copy_outputs, copy_states
from velodrome.vector.compile.cpu_loops import compiled_function, compiled_loop, python_loop, value_checks
from velodrome.vector.compile.packing import pack_arguments
from velodrome.vector.compile.rehearsal import compiling, is_from_outside, rehearse
from velodrome.vector.compile.taught import lessons
from velodrome.vector.cores import SPIN_VARIABLE, bound_spinning
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.space_arrays import map_nested

# A batch smaller than this is never worth waking a second thread for.
SMALLEST_PARALLEL_BATCH = 128
# Steps with each loop before the faster one is kept. Both give the same bits, so no result depends on the choice.
TRIAL_STEPS = 12
# Steps until the choice is made again, because other programs may have taken cores or left them.
STEPS_BETWEEN_TRIALS = 4000


@functools.cache
def start_threads() -> None:
    """Start Numba's threads once, such that those of GNU OpenMP do not spin for long when they wait.

    This changes the number of threads of everything else that uses OpenMP; torch's own number is restored.
    """
    torch = sys.modules.get("torch")
    threads_of_torch = torch.get_num_threads() if torch is not None else None
    bounded = bound_spinning(os.environ)
    try:
        numba.get_num_threads()
    finally:
        if bounded:
            del os.environ[SPIN_VARIABLE]
        if torch is not None:
            torch.set_num_threads(threads_of_torch)


def first_illegal(actions: NDArray, low: float, high: float) -> int:
    """Return the index of the first action outside [low, high], NaN included; −1 if there is none."""
    for i in range(actions.size):
        if not (low <= actions[i] <= high):
            return i
    return -1


def uncompiled_one(world: World) -> NativeVectorEnv:
    """Return a batch of one environment for a rehearsal: plain Python, and no windows."""
    return NativeVectorEnv(world, 1, compiled=False, check_values=False, observation="cursor", threads=1)


class NativeVectorEnv(RuleVectorEnv):
    """n environments of one rule on the CPU.

    `threads` is a number of threads, or None to measure during the first steps whether all of them are faster than one.
    No more are woken than there are blocks of 64 environments.
    `compiled=False` runs the rule as plain Python, for debuggers and as the reference of the tests.
    `specialise` compiles the parameters in as constants: a faster step for one compilation per set of parameters.
    `shared` are the options of `RuleVectorEnv`.
    """

    _copy_array = methodcaller("copy")

    def __init__(
        self,
        world: World,
        num_envs: int,
        *,
        threads: int | None = None,
        compiled: bool = True,
        specialise: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(world, num_envs, **shared)
        available = numba.config.NUMBA_NUM_THREADS
        if threads is not None and not (is_whole(threads, 1) and threads <= available):
            raise ConfigError(f"threads = {threads!r}: this machine offers 1 … {available} (or None, to measure)")
        self.backend = "native" if compiled else "python"
        self.compiled = compiled
        self.threads = threads
        self._params = params_record(world.params)
        self._has_cores = False  # several, and a compiled loop
        self._step_parts: Callable[..., int] | None = None  # made when first needed
        self._attach(self._allocate(self.num_envs))
        checks = value_checks(world, self.buffers.out.window_floats > 0, compiled) if self.check_values else {}
        if compiled:
            _, unpack = pack_arguments(self._arrays)
            self._reset_loop = compiled_loop(world, "reset_all", unpack)
            self._first_illegal = compiled_function("actions", first_illegal, "check")
            self._step_part = compiled_loop(world, "step_part", unpack, specialise=specialise, checks=checks)
            self._has_cores = min(threads or available, available) > 1 and bool(lessons())
            if is_from_outside(world):
                self._prove()
        else:
            self._reset_loop = python_loop(world, "reset_all")
            self._step_part = python_loop(world, "step_part", checks)
        self._choose_loop()

    def _prove(self) -> None:
        """Play a rule from outside once, and compile it now, so that what is wrong with it is told in its terms."""
        rehearse(self.world, lambda: uncompiled_one(self.world))
        actions = np.zeros((self.num_envs, *self._action_shape), self._action_dtype)
        with compiling(self.world):
            self._reset_loop(np.zeros(0, bool), self._pack)
            self._step_part(0, 0, actions, self.autoreset, self._pack)

    def params_of_rule(self) -> Any:
        """Return the scalars as the functions of the rule receive them."""
        return self._params[0]

    def _allocate(self, num_envs: int) -> Buffers:
        return allocate_buffers(self.world, num_envs, with_windows=self.observation != "cursor")

    def _attach(self, buffers: Buffers) -> None:
        """Work on this memory from now on. Compiled loops find it through the pack, so they serve any batch."""
        self._set_views(buffers)
        self._arrays = (buffers.blocks, self.world.tables, self._params, self.windows, buffers.out)
        self._pack: Any = pack_arguments(self._arrays)[0] if self.compiled else self._arrays

    def _choose_loop(self) -> None:
        """Choose the loop with which a batch of this size is stepped at first."""
        self._trial_nanoseconds: tuple[list[int], list[int]] = ([], [])  # by loop: serial, parallel
        self._steps_until_trial = STEPS_BETWEEN_TRIALS
        rows = len(self.buffers.out.rewards)
        # A core steps whole blocks: one that gets none is not woken, whatever number was asked for.
        self._cores = min(self.threads or numba.config.NUMBA_NUM_THREADS, -(-rows // LANES))
        large = self.threads is not None or rows >= SMALLEST_PARALLEL_BATCH
        self._has_choice = self._has_cores and self._cores > 1 and large
        self._parallel: bool | None = False  # None: being measured
        if self._has_choice:
            self._parallel = True if self.threads else None

    def _move(self, num_envs: int, kept: int) -> None:
        buffers = self._allocate(num_envs)
        copy_states(self.buffers.blocks, buffers.blocks, kept)
        copy_outputs(self.buffers.out, buffers.out, kept)
        self._attach(buffers)
        self._choose_loop()

    def _write_state(self, column: str, rows: NDArray[np.int64], values: NDArray) -> None:
        self.buffers.blocks[column][rows // LANES, rows % LANES] = values

    def column(self, name: str) -> NDArray:
        """Return a copy of one column of the state: [n], or [rows, n] where an environment has several values."""
        return column_rows(self.buffers.blocks[name], self.num_envs)

    def _reset_chosen(self, chosen: NDArray[np.bool_]) -> None:
        self._reset_loop(chosen, self._pack)

    def step(self, actions: Any) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Step all environments; see the class for what comes back."""
        self._check_ready()
        actions = self._prepare(actions)
        finished = self._step_loop(actions)
        if finished >= WRONG:
            self._look(np.arange(self.num_envs), "step")
        out = self.buffers.out
        infos = self._infos_of_ended(out.terminated | out.truncated) if finished else {}
        results = self._observation_view, out.rewards, out.terminated, out.truncated, infos
        return map_nested(self._copy_array, results) if self.copy else results

    def _prepare(self, actions: Any) -> NDArray:
        if hasattr(actions, "detach"):
            actions = actions.detach().cpu().numpy()
        actions = np.asarray(actions)
        if actions.dtype != self._action_dtype:
            if self._action_dtype.kind == "i" and actions.dtype.kind not in "iu":
                raise self._bad_shape(actions)
            actions = actions.astype(self._action_dtype)
        shape = (self.num_envs, *self._action_shape)
        if actions.shape != shape:
            if actions.size != np.prod(shape):
                raise self._bad_shape(actions)
            actions = actions.reshape(shape)
        actions = np.ascontiguousarray(actions)
        if self.check_actions:
            if self.compiled and not isinstance(self._action_low, np.ndarray):
                place = self._first_illegal(actions.reshape(-1), self._action_low, self._action_high)
                if place >= 0:
                    self._refuse(actions, place // (actions.size // self.num_envs))
            else:
                self._check(actions)
        return actions

    def checked(self, actions: Any) -> NDArray:
        """Return actions of any number of steps and environments, [m, …], as `step` takes them, or refuse them."""
        rows = np.ascontiguousarray(actions, self._action_dtype).reshape(-1, *self._action_shape)
        legal = (rows >= self._action_low) & (rows <= self._action_high)
        if not legal.all():
            self._refuse(rows, int(np.argmin(legal.reshape(len(rows), -1).all(axis=1))))
        return rows

    def window_writer(self, threads: int = 1) -> Callable[[], None]:
        """Return a function that writes all windows again and nothing else, for benchmarks to compare with memcpy."""
        pack, unpack = pack_arguments(self._arrays)
        loop = compiled_loop(self.world, "gather_all", unpack, parallel=threads > 1)
        return lambda: loop(self.num_envs, pack)

    def _step_loop(self, actions: NDArray) -> int:
        if not self.compiled:
            with np.errstate(over="ignore"):
                return self._step_part(0, 1, actions, self.autoreset, self._pack)
        if self._parallel is None:
            return self._trial_step(actions)
        if self.threads is None and self._has_choice:
            self._steps_until_trial -= 1
            if self._steps_until_trial == 0:
                self._trial_nanoseconds, self._parallel = ([], []), None
        if not self._parallel:
            return self._step_part(0, 1, actions, self.autoreset, self._pack)
        return self._step_on_cores(actions)

    def step_code(self) -> tuple[int, NDArray, NDArray[np.int64]] | None:
        """Return the address of the compiled step, room for its actions, and the arrays that it works on.

        For a compiled loop that steps by itself, without looking at actions. None: the step is not compiled.
        """
        if not (self.compiled and lessons()):
            return None
        actions = np.zeros((self.num_envs, *self._action_shape), self._action_dtype)
        return self._step_part(0, 0, actions, self.autoreset, self._pack), actions, self._pack

    def _step_on_cores(self, actions: NDArray) -> int:
        """Step a part of the environments on each core."""
        if self._step_parts is None:
            start_threads()
            address = self._step_part(0, 0, actions, self.autoreset, self._pack)
            # Compiled for the first environments that need it; the same for all rules.
            loop = compiled_function("batches", lessons()["threads"].step_parts, "all cores")
            self._step_parts = functools.partial(loop, address)
        before = numba.get_num_threads()
        cores = self._cores if self.threads else min(self._cores, before)
        if cores == before:
            return self._step_parts(cores, actions, self.autoreset, self._pack)
        numba.set_num_threads(cores)
        try:
            return self._step_parts(cores, actions, self.autoreset, self._pack)
        finally:
            numba.set_num_threads(before)

    def _trial_step(self, actions: NDArray) -> int:
        """Step with the loop whose turn it is; once both were timed, keep the faster one."""
        serial, parallel = self._trial_nanoseconds
        turn = int(len(parallel) < len(serial))
        started = time.perf_counter_ns()
        if turn:
            finished = self._step_on_cores(actions)
        else:
            finished = self._step_part(0, 1, actions, self.autoreset, self._pack)
        self._trial_nanoseconds[turn].append(time.perf_counter_ns() - started)
        if len(parallel) == TRIAL_STEPS:
            # Not counting the first call of each, which may compile or wake threads.
            self._parallel = float(np.median(parallel[1:])) < float(np.median(serial[1:]))
            self._steps_until_trial = STEPS_BETWEEN_TRIALS
        return finished
