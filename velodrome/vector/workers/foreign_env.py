"""What all backends for environments of other libraries share: spaces, seeds, infos, faults."""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from velodrome.errors import ActionError, ActionTypeError, BackendError, ConfigError
from velodrome.vector.argument_checks import check_seed, checked_count, seed_of_each
from velodrome.vector.infos import RowInfo, add_end, add_info
from velodrome.vector.seeding import spread_seeds
from velodrome.vector.space_arrays import about_fractions, flat_leaves, leaves, map_nested, resized, taker
from velodrome.vector.workers.batch_arrays import BatchArrays
from velodrome.vector.workers.env_host import EnvDescription
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.faults import LIMIT_ADVICE, RAISE_ADVICE, EnvironmentFaultError, Fault
from velodrome.vector.workers.options import WorkerOptions
from velodrome.vector.workers.pending import by_one_thread, closed_meanwhile, taken_by_another_thread

AUTORESET = {True: AutoresetMode.SAME_STEP, False: AutoresetMode.DISABLED}


def autoreset_mode(autoreset: bool | str | AutoresetMode) -> AutoresetMode:
    """Return Gymnasium's name of an autoreset mode: True means in the same step, False never."""
    if isinstance(autoreset, bool):
        return AUTORESET[autoreset]
    names = {mode.name.lower(): mode for mode in AutoresetMode} | {mode.value.lower(): mode for mode in AutoresetMode}
    found = autoreset if isinstance(autoreset, AutoresetMode) else names.get(str(autoreset).lower())
    if found is None:
        raise ConfigError(f"autoreset = {autoreset!r}; legal: True (same_step), False (disabled), 'next_step'")
    return found


class ResetPlan(NamedTuple):
    """Which rows to reset, and how."""

    rows: list[int]
    seeds: list[int | None]
    options: dict[str, Any] | None


def check_callable(name: str) -> None:
    """Refuse to call what would start or end an episode without the batch knowing."""
    if name in ("reset", "step", "close"):
        raise ConfigError(f"call({name!r}) would bypass the batch; use {name}() of the batch itself")


class ForeignVectorEnv(VectorEnv):
    """Many environments of any kind. Returned arrays are views that the next step overwrites, unless `copy` is set.

    Infos are Gymnasium's. A row whose environment failed and was replaced has `infos["fault"]` and no reward, and its
    episode is cut off (truncated) at its last good observation.
    """

    backend: str
    arrays: BatchArrays

    def __init__(
        self,
        makers: list[EnvMaker],
        num_envs: int,
        *,
        seed: int | None = None,
        copy: bool = False,
        autoreset: Any = True,
        options: WorkerOptions | None = None,
    ) -> None:
        self.num_envs = checked_count("num_envs", num_envs)
        if len(makers) > 1 and len(makers) != num_envs:
            raise ConfigError(f"env is a list of {len(makers)} for num_envs = {num_envs}: give one for each")
        self.makers, self.copy = makers, copy
        self.mode = autoreset_mode(autoreset)
        self.options = options or WorkerOptions()
        self._seed = None if seed is None else check_seed(seed)
        # Seeds of environments that replace others come from this.
        self._spare_seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else int(seed)
        self._seeded = np.zeros(self.num_envs, bool)
        self._counted_from: int | None = None  # the integer that reset() was last given
        self._started = np.zeros(self.num_envs, bool)
        self._ready = False  # every environment has an episode
        self._needs_reset = np.zeros(self.num_envs, bool)  # ended, and the caller has to reset it
        self._broken: set[int] = set()  # rows that wait for reset()
        self._pending = False  # the caller has begun something and must wait for it
        self._thread = threading.RLock()
        self.closing = False
        self.faults: list[Fault] = []
        self.restarts = np.zeros(self.num_envs, np.int64)
        self.alive = np.ones(self.num_envs, bool)
        self.worker_restarts = 0

    def _describe(self, env: EnvDescription) -> None:
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.metadata = {**env.metadata, "autoreset_mode": self.mode}
        self.render_mode, self.spec = env.render_mode, env.spec
        action_space = env.action_space
        self.action_leaves = leaves(action_space, "action")
        self._take_one = taker(self.single_observation_space)
        # isinstance of Dict, a Mapping, takes half a microsecond: done once instead of several times a step.
        self._plain_actions = not isinstance(action_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
        self._batch_spaces()

    def _batch_spaces(self) -> None:
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    # What a backend supplies

    @abstractmethod
    def _reset_rows(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> dict[str, Any]:
        """Start episodes in some rows and return the infos."""

    @abstractmethod
    def _step_all(self, actions: list[NDArray]) -> dict[str, Any]:
        """Step all environments, given the leaves of their actions, and return the infos."""

    @abstractmethod
    def _ask_rows(self, rows: list[int], question: str, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        """Return the answer of the environments of some rows to one of `env_host.QUESTIONS`."""

    @abstractmethod
    def _set_rows(self, rows: list[int], name: str, values: list[Any]) -> None:
        """Set an attribute in some rows."""

    @abstractmethod
    def _resize_rows(self, num_envs: int) -> None:
        """Make or close environments and move to arrays of the new size."""

    # What they share

    @by_one_thread
    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes of all environments, or of those in options["reset_mask"].

        An integer seeds environment i with seed + i, as Gymnasium does; a list gives each its own. Without a seed, the
        first reset spreads the seed that the batch was made with.
        """
        self._check_free("reset")
        plan = self._plan_reset(seed, options)
        return self._after_reset(plan.rows, self._reset_rows(*plan))

    def _plan_reset(self, seed: Any, options: dict[str, Any] | None) -> ResetPlan:
        options = dict(options) if options else None
        mask = options.pop("reset_mask", None) if options else None
        chosen = self._chosen(mask)
        seeds = self._seeds(seed, chosen)
        rows = [int(row) for row in np.flatnonzero(chosen)]
        return ResetPlan(rows, [seeds[row] for row in rows], options or None)

    def _after_reset(self, rows: list[int], infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._started[rows] = True
        self._needs_reset[rows] = False
        self._ready = bool(self._started.all())
        return self._observations(), infos

    def _chosen(self, mask: Any) -> NDArray[np.bool_]:
        """Return the rows of a mask, or refuse it, with Gymnasium's words."""
        if mask is None:
            return np.ones(self.num_envs, bool)
        name = "`options['reset_mask']`"
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"{name} must be a numpy array, got {type(mask)}: {mask!r:.100}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"{name} must have shape `({self.num_envs},)`, got {mask.shape}")
        if mask.dtype != bool:
            raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise ValueError(f"{name} must contain a boolean array with at least one True value, got reset_mask={mask}")
        return mask

    def _seeds(self, seed: Any, chosen: NDArray[np.bool_]) -> list[int | None]:
        new = chosen & ~self._seeded
        self._seeded |= chosen
        if seed is None:
            if self._seed is None or not new.any():
                return [None] * self.num_envs
            spread = spread_seeds(self._seed, self.num_envs)
            return [own if is_new else None for own, is_new in zip(spread, new, strict=True)]
        if isinstance(seed, int | np.integer):
            self._counted_from = check_seed(seed)
            return [self._counted_from + row for row in range(self.num_envs)]
        return seed_of_each(seed, self.num_envs)

    def step(self, actions: Any) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Step all environments; see the class for what comes back."""
        # As `by_one_thread` does it, in half the time: 0.1 microseconds.
        if not self._thread.acquire(False):
            raise taken_by_another_thread("step")
        try:
            self._check_ready("step")
            return self._results(self._step_all(self._action_leaves(actions, self.num_envs)))
        except Exception as error:
            if self.closing:
                raise closed_meanwhile("step") from error
            raise
        finally:
            self._thread.release()

    def _results(self, infos: dict[str, Any]) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        arrays = self.arrays
        if self.mode is AutoresetMode.DISABLED:
            self._needs_reset = arrays.terminated | arrays.truncated
        results = (arrays.rewards, arrays.terminated, arrays.truncated)
        if self.copy:
            rewards, terminated, truncated = (array.copy() for array in results)
            return self._observations(), rewards, terminated, truncated, infos
        return arrays.observations, *results, infos

    def _check_free(self, called: str) -> None:
        """Refuse to call anything of environments that are closed."""
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("these environments were closed; make new ones")

    def _check_ready(self, called: str, rows: list[int] | None = None) -> None:
        """Refuse to step environments (all, if none are named) that are closed, broken, or have no episode."""
        if self.closed or self._pending or not self._ready or self._broken:
            self._check_free(called)
            broken = sorted(self._broken if rows is None else self._broken & set(rows))
            if broken:
                raise BackendError(
                    f"environments {broken} are broken; call reset(), or reset them with options={{'reset_mask': …}}"
                )
            if not self._ready:
                raise gymnasium.error.ResetNeeded("call reset() before the first step(), for every environment")
        if self.mode is AutoresetMode.DISABLED and self._needs_reset.any():
            ended = [row for row in np.flatnonzero(self._needs_reset).tolist() if rows is None or row in rows]
            if not ended:
                return
            raise gymnasium.error.ResetNeeded(
                f"the episodes of environments {ended} have ended and autoreset is off: call reset with "
                f"options={{'reset_mask': …}} first"
            )

    def _action_leaves(self, actions: Any, count: int) -> list[NDArray]:
        """Return the arrays of a batch of actions in the order of the action space's leaves."""
        if self._plain_actions and type(actions) is np.ndarray:
            leaf = self.action_leaves[0]
            if actions.dtype == leaf.dtype and actions.shape == (count, *leaf.shape):
                return [actions]
        if hasattr(actions, "detach"):
            actions = actions.detach().cpu().numpy()
        try:
            if isinstance(self.single_action_space, gymnasium.spaces.Tuple) and len(actions) != len(
                self.single_action_space.spaces
            ):
                raise TypeError("a tuple has another length")
            found = [np.asarray(part) for part in flat_leaves(self.single_action_space, actions)]
        except (KeyError, IndexError, TypeError) as error:
            raise self._bad_actions(actions, count, wrong_type=isinstance(error, TypeError)) from error
        for k, (array, leaf) in enumerate(zip(found, self.action_leaves, strict=True)):
            if array.shape != (count, *leaf.shape) or (leaf.dtype.kind in "iu" and array.dtype.kind not in "iub"):
                raise self._bad_actions(actions, count, wrong_type=array.ndim == 0)
            if array.dtype != leaf.dtype:
                found[k] = array.astype(leaf.dtype)
        return found

    def _bad_actions(self, actions: Any, count: int, wrong_type: bool) -> ActionError:
        shape = map_nested(np.shape, actions) if isinstance(actions, dict | tuple) else np.shape(actions)
        kind = f" and type {actions.dtype}" if hasattr(actions, "dtype") else ""
        whole = np.issubdtype(self.single_action_space.dtype or np.object_, np.integer)
        return (ActionTypeError if wrong_type else ActionError)(
            f"actions have shape {shape}{kind}; expected one of {self.single_action_space} for each of {count} "
            f"environments. Nothing was stepped.{about_fractions(actions) if whole else ''}"
        )

    def _observations(self) -> Any:
        return copy.deepcopy(self.arrays.observations) if self.copy else self.arrays.observations

    def _add_row(
        self, infos: dict[str, Any], row: int, entry: RowInfo | None, ended: bool, place: tuple[int, int] | None = None
    ) -> None:
        """Add what one environment said in this step to the infos.

        ended: an episode ended, and the next began in the same step.
        place: (index, count), where the infos are those of some environments only.
        """
        at, count = place or (row, self.num_envs)
        if ended:
            last = self._take_one(self.arrays.final_observations, row)
            add_end(infos, last, (entry.final_info if entry else None) or {}, at, count)
        if entry is not None and entry.info:
            add_info(infos, entry.info, at, count)

    # Faults

    @property
    def step_seconds(self) -> NDArray[np.float64]:
        """How long the last step of each environment took."""
        return self.arrays.step_seconds

    @property
    def lost_environments(self) -> int:
        """How many environments were lost so far; each has one record in `faults`."""
        return len(self.faults)

    def _take_faults(self, faults: list[Fault], infos: dict[str, Any]) -> None:
        """Record faults, and raise if on_fault says so."""
        self.faults += faults
        policy = self.options.on_fault
        if policy == "raise":
            self._broken |= {fault.environment for fault in faults}
            raise EnvironmentFaultError(faults, RAISE_ADVICE)
        for fault in faults:
            add_info(infos, {"fault": str(fault).splitlines()[0]}, fault.environment, self.num_envs)
        if policy == "drop":
            self.alive[[fault.environment for fault in faults if fault.kind != "lost with its worker"]] = False

    def _check_limit(self, fault: Fault) -> None:
        """Raise for a row that has no restarts left."""
        self._broken.add(fault.environment)
        raise EnvironmentFaultError([fault], LIMIT_ADVICE.format(count=self.options.max_restarts))

    # For people

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the result of a method, or the value of an attribute, of each environment."""
        return self.call_some(list(range(self.num_envs)), name, *args, **kwargs)

    def call_some(self, rows: Sequence[int], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the result of a method, or the value of an attribute, of some environments."""
        check_callable(name)
        return tuple(self.ask_some(rows, "call", name, *args, **kwargs))

    @by_one_thread
    def ask_some(self, rows: Sequence[int], question: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the answers of some environments to a question: "call", "get_attribute" or "has_attribute" with a
        name, "has_layer" with the full name of a wrapper's class. An exception there is raised here.
        """
        self._check_free(question)
        return self._ask_rows(self._rows(rows), question, args, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return self.call(name)

    @by_one_thread
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple has one value for each environment, anything else is for all."""
        self._check_free("set_attr")
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                f"values must be one for all or a list with one for each of {self.num_envs} environments, "
                f"received {len(values)}"
            )
        self._set_rows(list(range(self.num_envs)), name, list(values))

    @by_one_thread
    def set_some(self, rows: Sequence[int], name: str, value: Any) -> None:
        """Set an attribute of some environments."""
        self._check_free("set_some")
        found = self._rows(rows)
        self._set_rows(found, name, [value] * len(found))

    def render(self, rows: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Return the pictures of all environments, or of some."""
        return self.call_some(range(self.num_envs) if rows is None else rows, "render")

    def _rows(self, rows: Sequence[int] | NDArray) -> list[int]:
        found = [int(row) for row in rows]
        wrong = [row for row in found if not 0 <= row < self.num_envs]
        if wrong:
            raise ConfigError(f"no environments {wrong}: there are 0 … {self.num_envs - 1}")
        return found

    @property
    def np_random_seed(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The seed of each environment."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The generator of each environment; those from other processes are copies."""
        return self.get_attr("np_random")

    # Size

    @by_one_thread
    def resize(self, num_envs: int) -> Any:
        """Grow or shrink to this many environments and return the observations of all.

        The first environments keep their episodes; new ones begin theirs. Arrays returned before are stale.
        """
        self._check_free("resize")
        before, num_envs = self.num_envs, checked_count("num_envs", num_envs)
        if num_envs == before:
            return self._observations() if self._ready else None
        was_ready = self._ready
        self._resize_rows(num_envs)
        self.num_envs = num_envs
        self._batch_spaces()
        self._started, self._needs_reset, self._seeded = (
            resized(flags, num_envs) for flags in (self._started, self._needs_reset, self._seeded)
        )
        self.restarts = resized(self.restarts, num_envs)
        self.alive = resized(self.alive, num_envs, fill=True)
        self._broken = {row for row in self._broken if row < num_envs}
        self._ready = bool(self._started.all())
        if num_envs > before and was_ready:
            first = self._counted_from
            seeds = spread_seeds(self._spare_seed, num_envs) if first is None else range(first, first + num_envs)
            mask = np.arange(num_envs) >= before
            self.reset(seed=[*[None] * before, *seeds[before:]], options={"reset_mask": mask})
        return self._observations() if self._ready else None
