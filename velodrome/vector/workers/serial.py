"""The backend without processes: any Gymnasium environments, one after the other in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.errors import BackendError
from velodrome.vector.infos import add_info
from velodrome.vector.space_arrays import check_spaces, leaves, nest, nested_arrays, reader
from velodrome.vector.workers.faults import EnvironmentFaultError, FaultSettings
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.env_host import BatchArrays, EnvHost, fault_of


class SerialVectorEnv(ForeignVectorEnv):
    """n environments in a plain loop: the fastest where a step takes less than a worker takes to be woken."""

    backend = "serial"

    def __init__(
        self, makers: list[EnvMaker], num_envs: int, *, seed: int | None = None, copy: bool = False,
        autoreset: Any = True, faults: FaultSettings | None = None,
    ) -> None:  # fmt: skip
        faults = faults or FaultSettings(timeout=None)
        super().__init__(makers, num_envs, seed=seed, copy=copy, autoreset=autoreset, faults=faults)
        self.host = EnvHost(makers, self.mode, faults, self._spare_seed, None)
        try:
            for row in range(self.num_envs):
                self._make_row(row)
        except EnvironmentFaultError:
            self.host.close()
            raise
        first = self.host.envs[0]
        assert first is not None
        self._describe(
            first.observation_space, first.action_space, dict(first.metadata), first.render_mode, spec=first.spec
        )  # fmt: skip
        for row in range(1, self.num_envs):
            self._check_spaces(row)
        self._attach(allocate_rows(self.single_observation_space, self.num_envs))

    @property
    def envs(self) -> list[Any]:
        """The environments themselves."""
        return list(self.host.envs.values())

    def _make_row(self, row: int) -> None:
        try:
            self.host.make(row)
        except (Exception, SystemExit) as error:
            raise EnvironmentFaultError([fault_of(row, None, error, "make")], "It could not be made.") from error

    def _check_spaces(self, row: int) -> None:
        check_spaces(row, self.host.envs[row], self.single_observation_space, self.single_action_space)

    def _attach(self, rows: BatchArrays) -> None:
        self.rows = rows
        self.host.attach(rows, self.single_observation_space)

    def _reset_rows(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> dict[str, Any]:
        host = self.host
        for row, seed in zip(rows, seeds, strict=True):
            host.reset(row, seed, None if options is None else dict(options))
        self._broken -= set(rows)
        return self._gather()

    def _step_all(self, actions: list[NDArray]) -> dict[str, Any]:
        host = self.host
        step = host.step
        read: Any
        if self._plain_actions and actions[0].ndim == 1:
            read = actions[0].__getitem__  # a scalar, which is a copy already
        else:
            read = reader(self.single_action_space, nest(self.single_action_space, actions))
        for row in host.envs:
            step(row, read(row))
        return self._gather() if host.infos or host.ended or host.faults else {}

    def _gather(self) -> dict[str, Any]:
        """Return the infos of what just happened; raise if faults are to be raised."""
        host, infos, n = self.host, {}, self.num_envs  # type: ignore[var-annotated]
        said = {entry.row: entry for entry in host.infos}
        same_step = self.mode is AutoresetMode.SAME_STEP
        for row in sorted({*said, *host.ended}):
            entry = said.get(row)
            if same_step and row in host.ended:
                final_info = (entry.final_info if entry else None) or {}
                last = self._final_observation(row)
                add_info(infos, {"final_obs": last, "final_info": final_info}, row, n)
            if entry is not None and entry.info:
                add_info(infos, entry.info, row, n)
        faults, host.faults = host.faults, []
        host.infos.clear()
        host.ended.clear()
        if faults:
            for fault in faults:
                self.restarts[fault.environment] = host.restarts[fault.environment]
            self._take_faults(faults, infos)
            for fault in reversed(faults):
                if self.settings.policy == "restart" and host.envs[fault.environment] is None:
                    self._check_limit(fault)
        return infos

    def _call_rows(self, rows: list[int], name: str, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        return [self.host.call(row, name, arguments, keywords) for row in rows]

    def _set_rows(self, rows: list[int], name: str, values: list[Any]) -> None:
        for row, value in zip(rows, values, strict=True):
            self.host.set_attribute(row, name, value)

    def _resize_rows(self, num_envs: int) -> None:
        for row in range(num_envs, self.num_envs):
            self.host.remove(row)
        try:
            for row in range(self.num_envs, num_envs):
                self._make_row(row)
                self._check_spaces(row)
        except BackendError:
            for row in [row for row in self.host.envs if row >= self.num_envs]:
                self.host.remove(row)
            raise
        rows = allocate_rows(self.single_observation_space, num_envs)
        copy_rows(self.rows, rows, min(self.num_envs, num_envs))
        self._attach(rows)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        if hasattr(self, "host"):
            self.host.close()


def allocate_rows(observation_space: Space, num_envs: int) -> BatchArrays:
    """Return the arrays of a batch in ordinary memory."""

    def observations() -> Any:
        parts = leaves(observation_space, "observation")
        return nest(observation_space, [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in parts])

    return BatchArrays(
        observations=observations(), final_observations=observations(), rewards=np.zeros(num_envs),
        terminated=np.zeros(num_envs, bool), truncated=np.zeros(num_envs, bool), step_seconds=np.zeros(num_envs),
    )  # fmt: skip


def copy_rows(source: BatchArrays, target: BatchArrays, count: int) -> None:
    """Copy the first rows of one batch's arrays into another's."""
    for before, after in zip(source, target, strict=True):
        for old, new in zip(nested_arrays(before), nested_arrays(after), strict=True):
            new[:count] = old[:count]
