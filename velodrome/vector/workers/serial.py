"""The backend without processes: environments of other libraries, one after the other in this process."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.errors import VelodromeError
from velodrome.vector.space_arrays import check_spaces, nest, reader
from velodrome.vector.workers.batch_arrays import BatchArrays, allocate_arrays, copy_arrays
from velodrome.vector.workers.env_host import EnvHost, HostSettings, fault_of
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.faults import EnvironmentFaultError
from velodrome.vector.workers.foreign_env import ForeignVectorEnv


class SerialVectorEnv(ForeignVectorEnv):
    """n environments in a plain loop: the fastest where a step takes less than a worker takes to be woken."""

    backend = "serial"

    def __init__(self, makers: list[EnvMaker], num_envs: int, **shared: Any) -> None:
        super().__init__(makers, num_envs, **shared)
        self.host = EnvHost(HostSettings(makers, self.mode, self.options, self._spare_seed), worker=None)
        try:
            for row in range(self.num_envs):
                self._make_row(row)
            self._describe(self.host.describe(0))
            for row in range(1, self.num_envs):
                self._check_spaces(row)
            self.host.check_distinct()
        except VelodromeError:
            self.host.close()
            raise
        self._attach(allocate_arrays(self.single_observation_space, self.num_envs))

    @property
    def envs(self) -> list[Any]:
        """The environments themselves."""
        return list(self.host.envs.values())

    def _make_row(self, row: int) -> None:
        try:
            self.host.make(row)
            self.host.describe(row)  # an environment without a space fails in the same way as in a worker
        except (Exception, SystemExit) as error:
            raise EnvironmentFaultError([fault_of(row, None, error, "make")], "It could not be made.") from error

    def _check_spaces(self, row: int) -> None:
        check_spaces(row, self.host.envs[row], self.single_observation_space, self.single_action_space)

    def _attach(self, arrays: BatchArrays) -> None:
        self.arrays = arrays
        self.host.attach(arrays, self.single_observation_space)

    def _reset_rows(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> dict[str, Any]:
        self.host.reset(rows, seeds, options)
        self._broken -= set(rows)
        return self._gather()

    def _step_all(self, actions: list[NDArray]) -> dict[str, Any]:
        host = self.host
        read: Any
        if self._plain_actions and actions[0].ndim == 1:
            read = actions[0].__getitem__  # a scalar is a copy already
        else:
            read = reader(self.single_action_space, nest(self.single_action_space, actions))
        host.step(iter(host.envs), read)
        check = host.check
        if host.doubts or (check is not None and not check.is_right(host.ended)):
            host.look_closely(host.envs)
        return self._gather() if host.infos or host.ended or host.faults else {}

    def _gather(self) -> dict[str, Any]:
        """Return the infos of what just happened; raise if on_fault says so."""
        host = self.host
        infos: dict[str, Any] = {}
        said = {entry.row: entry for entry in host.infos}
        same_step = self.mode is AutoresetMode.SAME_STEP
        for row in sorted({*said, *host.ended}):
            self._add_row(infos, row, said.get(row), same_step and row in host.ended)
        faults, host.faults = host.faults, []
        host.infos.clear()
        host.ended.clear()
        if faults:
            for fault in faults:
                self.restarts[fault.environment] = host.restarts[fault.environment]
            self._take_faults(faults, infos)
            for fault in reversed(faults):
                if self.options.on_fault == "restart" and host.envs[fault.environment] is None:
                    self._check_limit(fault)
        return infos

    def _ask_rows(self, rows: list[int], question: str, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        return self.host.ask(rows, question, arguments, keywords)

    def _set_rows(self, rows: list[int], name: str, values: list[Any]) -> None:
        self.host.set_attribute(rows, name, values)

    def _resize_rows(self, num_envs: int) -> None:
        self.host.remove(range(num_envs, self.num_envs))
        try:
            for row in range(self.num_envs, num_envs):
                self._make_row(row)
                self._check_spaces(row)
            self.host.check_distinct()
        except VelodromeError:
            self.host.remove(range(self.num_envs, num_envs))
            raise
        arrays = allocate_arrays(self.single_observation_space, num_envs)
        copy_arrays(self.arrays, arrays, min(self.num_envs, num_envs))
        self._attach(arrays)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        if hasattr(self, "host"):
            self.host.close()
