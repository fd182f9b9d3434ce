"""Some rows of a batch, each holding one environment: stepped, started anew when an episode ends, replaced on faults.

The serial backend has one such object over all rows; each worker of the others has one over its own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.vector.infos import RowInfo
from velodrome.vector.seeding import spread_seed
from velodrome.vector.space_arrays import WrongValueError, map_nested, writer
from velodrome.vector.workers.faults import Fault, FaultSettings, Kind
from velodrome.vector.workers.env_maker import EnvMaker

NANOSECONDS = 1e-9


class BatchArrays(NamedTuple):
    """The arrays of a batch, one row per environment; observations are nested as their space is."""

    observations: Any
    final_observations: Any  # of the episode that ended in this step; else old
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    step_seconds: NDArray[np.float64]  # of the last call of each environment


class Interruption(Exception):
    """Raised inside an environment that takes too long."""


class EnvHost:
    """Environments by row, and what happens to them."""

    def __init__(
        self, makers: Sequence[EnvMaker], mode: AutoresetMode, faults: FaultSettings, seed: int, worker: int | None
    ) -> None:
        self.makers, self.mode, self.settings, self.seed, self.worker = makers, mode, faults, seed, worker
        self.envs: dict[int, gymnasium.Env | None] = {}  # None: broken, made anew at its reset
        self.restarts: dict[int, int] = {}
        self.faults: list[Fault] = []  # since they were last taken
        self.infos: list[RowInfo] = []  # of this step, where there are any
        self.ended: list[int] = []  # rows whose episode ended in this step
        self.waiting: set[int] = set()  # rows that start a new episode in their next step
        self.fresh_seeds: dict[int, int] = {}  # for the first reset of an environment that replaces another
        self.dropped: set[int] = set()
        self.current: Any = [0]  # 1 + the row whose environment is being called; 0: none is

    def attach(self, rows: BatchArrays, observation_space: gymnasium.Space) -> None:
        """Use these arrays from now on."""
        self.rows = rows
        # Looked up once instead of in every step.
        self.rewards, self.terminated, self.truncated = rows.rewards, rows.terminated, rows.truncated
        self.step_seconds = rows.step_seconds
        self.write = writer(observation_space, rows.observations)
        self.write_final = writer(observation_space, rows.final_observations, "the last observation")

    # Make

    def make(self, row: int, restarts: int = 0) -> None:
        """Make the environment of a row; the constructor's exception is the caller's to handle."""
        self.current[0] = row + 1
        try:
            maker = self.makers[row % len(self.makers)]
            self.envs[row] = maker(checked=row == 0 and restarts == 0)
        finally:
            self.current[0] = 0
        self.restarts[row] = max(restarts, self.restarts.get(row, 0))

    def remove(self, row: int) -> None:
        """Close the environment of a row and forget it."""
        self._discard(row)
        del self.envs[row]
        self.restarts.pop(row, None)
        self.waiting.discard(row)
        self.dropped.discard(row)
        self.fresh_seeds.pop(row, None)

    def _discard(self, row: int) -> None:
        env, self.envs[row] = self.envs[row], None
        if env is not None:
            self.current[0] = row + 1
            try:
                env.close()
            except Exception:  # it is being thrown away because it fails
                pass
            finally:
                self.current[0] = 0

    # Step

    def step(self, row: int, action: Any) -> None:
        """Step one environment, and start its next episode as the autoreset mode says."""
        started = time.perf_counter_ns()
        self.current[0] = row + 1
        try:
            env = self.envs[row]
            if row in self.waiting or env is None:
                self._pass_over(row, env)
            else:
                result = env.step(action)
                try:
                    observation, reward, terminated, truncated, info = result
                except (TypeError, ValueError) as error:
                    raise WrongValueError(
                        f"step returned {result!r:.200}; expected (observation, reward, terminated, truncated, info)"
                    ) from error
                if terminated or truncated:
                    self._end(row, env, observation, info)
                else:
                    self.write(row, observation)
                    if info:
                        self.infos.append(RowInfo(row, info))
                self.rewards[row], self.terminated[row], self.truncated[row] = reward, terminated, truncated
        except (Exception, SystemExit) as error:
            self._failed(row, error, "step")
        finally:
            self.current[0] = 0
        self.step_seconds[row] = (time.perf_counter_ns() - started) * NANOSECONDS

    def _end(self, row: int, env: gymnasium.Env, observation: Any, info: dict[str, Any]) -> None:
        """Keep what an episode ended with, and begin the next one if that is done in the same step."""
        self.ended.append(row)
        if self.mode is AutoresetMode.SAME_STEP:
            self.write_final(row, observation)
            first, first_info = self._reset(row, env, None)
            self.write(row, first)
            self.infos.append(RowInfo(row, first_info, info))
            return
        if self.mode is AutoresetMode.NEXT_STEP:
            self.waiting.add(row)
        self.write(row, observation)
        if info:
            self.infos.append(RowInfo(row, info))

    def _pass_over(self, row: int, env: gymnasium.Env | None) -> None:
        """Begin an episode in place of a step, or leave a dropped row as it is: it earns nothing and never ends."""
        if env is not None:
            observation, info = self._reset(row, env, None)
            self.write(row, observation)
            self.waiting.discard(row)
            if info:
                self.infos.append(RowInfo(row, info))
        self.rewards[row], self.terminated[row], self.truncated[row] = 0.0, False, False

    def _reset(self, row: int, env: gymnasium.Env, seed: int | None, **options: Any) -> tuple[Any, dict[str, Any]]:
        fresh = self.fresh_seeds.pop(row, None)
        result = env.reset(seed=fresh if seed is None else seed, **options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise WrongValueError(f"reset returned {result!r:.200}; expected (observation, info)")
        return result

    # Reset

    def reset(self, row: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Start an episode, in a new environment where the old one is broken."""
        if row in self.dropped:
            return
        self.rewards[row], self.terminated[row], self.truncated[row] = 0.0, False, False
        self.waiting.discard(row)
        try:
            if self.envs[row] is None:
                self.make(row, self.restarts[row])
            self.current[0] = row + 1
            env = self.envs[row]
            assert env is not None
            observation, info = self._reset(row, env, seed, options=options)
            self.write(row, observation)
            if info:
                self.infos.append(RowInfo(row, info))
        except (Exception, SystemExit) as error:
            self._failed(row, error, "reset", options)
        finally:
            self.current[0] = 0

    # Faults

    def _failed(self, row: int, error: BaseException, moment: str, options: dict[str, Any] | None = None) -> None:
        self.current[0] = 0
        while True:
            self.faults.append(fault_of(row, self.worker, error, moment))
            self._discard(row)
            policy = self.settings.policy
            if policy == "raise":
                return
            if policy == "drop":
                self.dropped.add(row)
            elif self.restarts[row] >= self.settings.max_restarts:
                return
            try:
                self._replace(row, moment, options)
                return
            except (Exception, SystemExit) as next_error:
                error = next_error

    def _replace(self, row: int, moment: str, options: dict[str, Any] | None) -> None:
        """Put a new environment into a row, or nothing if it is dropped, and end the episode that broke."""
        if row in self.dropped:
            self.cut_off(row, moment == "step")
            return
        self.make(row, self.restarts[row] + 1)
        self._begin_again(row, moment, options)

    def replaced(self, row: int) -> None:
        """Begin with an environment that was made in place of one that was lost with its worker."""
        try:
            self._begin_again(row, "step", None)
        except (Exception, SystemExit) as error:
            self._failed(row, error, "step")

    def _begin_again(self, row: int, moment: str, options: dict[str, Any] | None) -> None:
        cut = moment == "step"
        self.fresh_seeds[row] = spread_seed(self.seed, row, self.restarts[row])
        first: tuple[Any, dict[str, Any]] | None = None
        if moment == "reset" or self.mode is AutoresetMode.SAME_STEP:
            self.current[0] = row + 1
            try:
                env = self.envs[row]
                assert env is not None
                first = self._reset(row, env, None, options=options)
            finally:
                self.current[0] = 0
        self.cut_off(row, cut)
        if first is not None:
            self.write(row, first[0])
            self.infos.append(RowInfo(row, first[1], {} if cut else None))

    def cut_off(self, row: int, cut: bool = True) -> None:
        """End the episode of a row that broke: no reward, and its last good observation is its final one."""
        self.rewards[row], self.terminated[row], self.truncated[row] = 0.0, False, cut
        if not cut:
            return
        if row not in self.ended:
            self.ended.append(row)
        if self.mode is AutoresetMode.SAME_STEP:
            last = map_nested(lambda array: array[row].copy(), self.rows.observations)
            self.write_final(row, last)
        elif self.mode is AutoresetMode.NEXT_STEP and row not in self.dropped:
            self.waiting.add(row)

    # For people

    def call(self, row: int, name: str, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """Return what a method, or an attribute, of an environment gives."""
        self.current[0] = row + 1
        try:
            env = self._living(row)
            if name == "render":
                return env.render()
            value = env.get_wrapper_attr(name)
            return value(*arguments, **keywords) if callable(value) else value
        finally:
            self.current[0] = 0

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Set an attribute of an environment."""
        self.current[0] = row + 1
        try:
            self._living(row).set_wrapper_attr(name, value)
        finally:
            self.current[0] = 0

    def _living(self, row: int) -> gymnasium.Env:
        env = self.envs[row]
        if env is None:
            raise WrongValueError(f"environment {row} is broken; reset() makes it anew")
        return env

    def close(self) -> None:
        """Close all environments; one that fails to close does not keep the others from it."""
        for row in list(self.envs):
            self._discard(row)


def fault_of(row: int, worker: int | None, error: BaseException, moment: str) -> Fault:
    """Return the record of an exception in an environment."""
    kind: Kind = "raised"
    if isinstance(error, WrongValueError):
        kind = "wrong value"
    elif isinstance(error, Interruption):
        kind = "hung"
    message = str(error) if isinstance(error, WrongValueError | Interruption) else f"{type(error).__name__}: {error}"
    text = "" if isinstance(error, WrongValueError) else "".join(traceback.format_exception(error))
    return Fault(row, worker, kind, message, text, moment)
