"""Hosts environments of other libraries: steps them, starts their next episodes, replaces those that fail.

The serial backend has one host for all rows of the batch; each worker of the other backends has one for its own rows.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from velodrome.errors import ConfigError
from velodrome.vector.infos import RowInfo, kept
from velodrome.vector.seeding import spread_seed
from velodrome.vector.space_arrays import WrongValueError, is_doubtable, nested_arrays, writer
from velodrome.vector.workers.batch_arrays import BatchArrays, cut_off
from velodrome.vector.workers.env_maker import EnvMaker, Registered
from velodrome.vector.workers.faults import Fault, FaultKind
from velodrome.vector.workers.options import WorkerOptions
from velodrome.vector.workers.values import LEARNT, ValueCheck, limits_of

NANOSECONDS = 1e-9
ROWS = 6  # from which one look at all of them costs less than a look at each
LOWEST, HIGHEST = map(float, limits_of(LEARNT))  # of rewards


class EnvDescription(NamedTuple):
    """What a batch must know about its environments."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    metadata: dict[str, Any]
    render_mode: str | None
    spec: Any  # of Gymnasium, if it was made from one


class Interruption(Exception):
    """Raised inside an environment that takes too long."""


class HostSettings(NamedTuple):
    """What a host must know before it makes an environment."""

    makers: list[EnvMaker]
    mode: AutoresetMode
    options: WorkerOptions
    seed: int  # of environments that replace others
    registered: Registered | None = None  # with Gymnasium, where the environments are made in another process


class EnvHost:
    """Environments by row, and what happens to them."""

    def __init__(self, settings: HostSettings, worker: int | None) -> None:
        self.makers, self.mode, self.options, self.seed, _ = settings
        self.checked = "finite" if self.options.check_values is None else self.options.check_values
        self.worker = worker
        self.envs: dict[int, gymnasium.Env | None] = {}  # None: broken, replaced at its reset
        self.restarts: dict[int, int] = {}
        self.faults: list[Fault] = []  # since they were last taken
        self.infos: list[RowInfo] = []  # of this step, where there are any
        self.ended: list[int] = []  # rows whose episode ended in this step
        self.waiting: set[int] = set()  # rows that start a new episode in their next step
        self.fresh_seeds: dict[int, int] = {}  # for the first reset of an environment that replaces another
        self.dropped: set[int] = set()
        self.steps: dict[int, int] = {}  # of each environment since it was made
        self.given: dict[int, Any] = {}  # by row: the action of its last step
        self.check_of: dict[int, ValueCheck] = {}  # by row: one of all rows, or one of each
        self.check: ValueCheck | None = None  # that of all rows, if they are looked at together
        self.doubting = False  # they are noticed while they are written
        self.apart = False  # rows are handed over, and so looked at, one by one
        self.doubts: dict[int, Any] = {}  # rows with values that may be wrong: the last observation before them
        self.current: Any = [0]  # 1 + the row whose environment is being called; 0: none is

    def attach(self, arrays: BatchArrays, observation_space: gymnasium.Space) -> None:
        """Use these arrays from now on."""
        self.arrays, self.observation_space = arrays, observation_space
        self.check_of, self.check = {}, None
        # Values that may be wrong are noticed while they are written, or all are looked at together after the step.
        alone = self.apart or len(self.envs) < ROWS
        self.doubting = alone and self.checked == "finite" and is_doubtable(observation_space)
        self.watch()
        # Looked up once instead of in every step. A view is written to faster than an array, and takes numbers only.
        views: list[Any] = [array.data for array in arrays[2:]]
        self.rewards, self.terminated, self.truncated, self.step_seconds = views
        doubt = self._doubt if self.doubting else None
        self.write = writer(observation_space, arrays.observations, doubt=doubt)
        self.write_final = writer(observation_space, arrays.final_observations, "the last observation", doubt)

    def describe(self, row: int) -> EnvDescription:
        """Return the description of the environment of a row."""
        env = self._living(row)
        return EnvDescription(env.observation_space, env.action_space, dict(env.metadata), env.render_mode, env.spec)

    # Make

    def make(self, row: int, restarts: int = 0) -> None:
        """Make the environment of a row; the caller handles exceptions of the constructor."""
        with self._calling(row):
            maker = self.makers[row % len(self.makers)]
            self.envs[row] = maker(checked=row == 0 and restarts == 0)
        self.restarts[row] = max(restarts, self.restarts.get(row, 0))
        self.steps[row] = 0

    def remove(self, rows: Iterable[int]) -> None:
        """Close the environments of some rows, where there are any, and forget them."""
        for row in sorted(self.envs.keys() & set(rows)):
            self._discard(row)
            for known in (self.envs, self.restarts, self.fresh_seeds):
                known.pop(row, None)
            self.waiting.discard(row)
            self.dropped.discard(row)

    def _discard(self, row: int) -> None:
        env, self.envs[row] = self.envs[row], None
        # It may be discarded because it fails, so an error in closing it says nothing new.
        if env is not None:
            with contextlib.suppress(Exception), self._calling(row):
                env.close()

    @contextlib.contextmanager
    def _calling(self, row: int) -> Iterator[None]:
        """Say that the environment of a row is being called, so that the call can be timed and interrupted."""
        self.current[0] = row + 1
        try:
            yield
        finally:
            self.current[0] = 0

    # Values

    def watch(self) -> None:
        """Prepare to look at values, when rows have been stepped or reset."""
        if self.checked is False or not self.envs or self.check_of.keys() == self.envs.keys():
            return
        rows = sorted(self.envs)
        groups = [[row] for row in rows] if self.apart else [rows]
        made = [ValueCheck(self.observation_space, self.arrays, group, self.checked) for group in groups]
        self.check_of = {row: check for check in made for row in check.rows}
        self.check = None if self.apart or self.doubting else made[0]

    def look_apart(self) -> None:
        """Look at rows one by one from now on."""
        if self.check is not None:
            self.apart = True
            self.attach(self.arrays, self.observation_space)

    def _doubt(self, row: int) -> None:
        """Keep the last observation of a row whose values may be wrong, before it is replaced."""
        if row not in self.doubts:
            self.doubts[row] = self.arrays.observations[row, ...].copy()

    def _put_back(self, row: int) -> None:
        """Put back the last right observation of a row."""
        if row in self.doubts:
            self.arrays.observations[row] = self.doubts.pop(row)
        elif self.check_of and not self.doubting:
            self.check_of[row].put_back(row)

    def seem_right(self, rows: Iterable[int]) -> bool:
        """Return whether the values of these rows are right; if not, `look_closely` finds out."""
        if self.doubts or self.doubting or not self.check_of:
            return not self.doubts
        checks = dict.fromkeys(self.check_of[row] for row in rows)
        return all(check.is_right(self.ended) for check in checks)

    def look_closely(self, rows: Iterable[int], moment: str = "step", options: dict[str, Any] | None = None) -> None:
        """Look at the values of rows that were stepped or reset: one that is wrong is a fault."""
        for row in [*self.doubts] if self.doubting else rows:
            self._look_at_row(row, moment, options)
        self.doubts.clear()
        for check in dict.fromkeys(self.check_of.values()):
            check.keep()

    def _look_at_row(self, row: int, moment: str, options: dict[str, Any] | None) -> None:
        if self.envs[row] is None:
            return
        wrong = self.check_of[row].what_is_wrong(row, row in self.ended)
        if wrong:
            when = f"in its step {self.steps[row]} " if moment == "step" else ""
            switch = '"finite" does not look at bounds of a Box, ' if self.checked is True else ""
            advice = f"check_values={switch}False lets everything pass"
            self._failed(row, WrongValueError(f"{when}{wrong}. {advice}"), moment, options)

    def _flag(self, name: str, value: Any) -> bool:
        """Return whether an episode has ended, as the environment says; anything but booleans, 0 and 1 is refused."""
        if type(value) is bool:
            return value
        kind = np.asarray(value).dtype.kind
        # Many environments say 0 and 1, and mean it.
        if self.checked is not False and kind != "b" and not (kind in "iu" and value in (0, 1)):
            raise WrongValueError(f"{name} is {value!r:.200}; expected True or False. check_values=False takes it")
        return bool(value)

    # Step

    def step(self, rows: Iterator[int], read: Callable[[int], Any]) -> None:
        """Step environments one after the other, and start next episodes as the autoreset mode says.

        rows: if a call is interrupted as a row ends, another one goes on with those that are left. read: returns the
        action of a row.
        """
        # Looked up once: for each row it would take a tenth of what is done besides its environment.
        envs, waiting, steps, given, current = self.envs, self.waiting, self.steps, self.given, self.current
        rewards, terminations, truncations, seconds = self.rewards, self.terminated, self.truncated, self.step_seconds
        write, doubting, clock = self.write, self.doubting, time.perf_counter_ns
        started = clock()
        for row in rows:
            try:
                current[0] = row + 1
                action = read(row)
                env = envs[row]
                if env is None or row in waiting:
                    given.pop(row, None)
                    self._pass_over(row, env)
                else:
                    steps[row] += 1
                    given[row] = action
                    result = env.step(action)
                    try:
                        observation, reward, terminated, truncated, info = result
                    except (TypeError, ValueError) as error:
                        expected = "(observation, reward, terminated, truncated, info)"
                        raise WrongValueError(f"step returned {result!r:.200}; expected {expected}") from error
                    try:
                        rewards[row] = reward
                    except (TypeError, ValueError) as error:
                        raise WrongValueError(f"the reward is {reward!r:.200}; expected a number") from error
                    if doubting:
                        earned = reward if type(reward) is float else rewards[row]
                        if not LOWEST <= earned <= HIGHEST:
                            self._doubt(row)
                    if type(info) is not dict:
                        info = as_info("step", info)
                    elif info:
                        info = info.copy()  # the next environment may write into the same one
                    if not (terminated is False and truncated is False):
                        terminated, truncated = self._flag("terminated", terminated), self._flag("truncated", truncated)
                    if terminated or truncated:
                        self._end(row, env, observation, info)
                    else:
                        write(row, observation)
                        if info:
                            self.infos.append(RowInfo(row, info))
                    terminations[row], truncations[row] = terminated, truncated
            except (Exception, SystemExit) as error:
                self._failed(row, error, "step")
            finally:
                current[0] = 0
            ended = clock()
            seconds[row] = (ended - started) * NANOSECONDS
            started = ended

    def _end(self, row: int, env: gymnasium.Env, observation: Any, info: dict[str, Any]) -> None:
        """Keep the end of an episode, and begin the next one if that happens in the same step."""
        self.ended.append(row)
        if self.mode is AutoresetMode.SAME_STEP:
            self.write_final(row, observation)
            last_info = kept(info)  # before the environment writes the first info of the next episode into it
            first, first_info = self._reset(row, env)
            self.write(row, first)
            self.infos.append(RowInfo(row, first_info, last_info))
            return
        if self.mode is AutoresetMode.NEXT_STEP:
            self.waiting.add(row)
        self.write(row, observation)
        if info:
            self.infos.append(RowInfo(row, info))

    def _pass_over(self, row: int, env: gymnasium.Env | None) -> None:
        """Begin an episode in place of a step; a dropped row stays as it is, earns nothing and never ends."""
        if env is not None:
            observation, info = self._reset(row, env)
            self.write(row, observation)
            self.waiting.discard(row)
            if info:
                self.infos.append(RowInfo(row, info))
        self.rewards[row], self.terminated[row], self.truncated[row] = 0.0, False, False

    def _reset(
        self, row: int, env: gymnasium.Env, options: dict[str, Any] | None = None, **arguments: Any
    ) -> tuple[Any, dict[str, Any]]:
        fresh = self.fresh_seeds.pop(row, None)
        if fresh is not None and arguments.get("seed") is None:
            arguments["seed"] = fresh
        if options is not None:  # not every environment knows this argument
            arguments["options"] = options
        result = env.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            raise WrongValueError(f"reset returned {result!r:.200}; expected (observation, info)")
        observation, info = result
        return observation, info.copy() if type(info) is dict else as_info("reset", info)

    # Reset

    def reset(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        """Start episodes, in new environments where the old ones are broken."""
        self.watch()
        for row, seed in zip(rows, seeds, strict=True):
            self._reset_row(row, seed, None if options is None else dict(options))
        if not self.seem_right(rows):
            self.look_closely(rows, "reset", options)

    def _reset_row(self, row: int, seed: int | None, options: dict[str, Any] | None) -> None:
        if row in self.dropped:
            return
        self.rewards[row], self.terminated[row], self.truncated[row] = 0.0, False, False
        self.waiting.discard(row)
        try:
            if self.envs[row] is None:
                self.make(row, self.restarts[row])
            with self._calling(row):
                observation, info = self._reset(row, self._living(row), seed=seed, options=options)
            self.write(row, observation)
            if info:
                self.infos.append(RowInfo(row, info))
        except (Exception, SystemExit) as error:
            self._failed(row, error, "reset", options)

    # Faults

    def _failed(self, row: int, error: BaseException, moment: str, options: dict[str, Any] | None = None) -> None:
        """Note a fault, and put a new environment into the row, or none, as on_fault says."""
        self.current[0] = 0
        self.infos = [entry for entry in self.infos if entry.row != row]
        blamed = ""
        if moment == "step":
            self._put_back(row)
            blamed = about_action(self.given.pop(row, None))
        while True:
            fault = fault_of(row, self.worker, error, moment)
            self.faults.append(fault._replace(message=fault.message + blamed))
            blamed = ""  # what follows is the fault of the next environment
            self._discard(row)
            policy = self.options.on_fault
            if policy == "raise":
                return
            if policy == "drop":
                self.dropped.add(row)
            elif self.restarts[row] >= self.options.max_restarts:
                return
            try:
                if row in self.dropped:
                    self.cut_off(row, moment == "step")
                else:
                    self.make(row, self.restarts[row] + 1)
                    self._begin_again(row, moment, options)
                return
            except (Exception, SystemExit) as next_error:
                error = next_error

    def replaced(self, rows: Iterable[int]) -> None:
        """Begin episodes of environments that replace some lost with their worker."""
        self.watch()
        for row in rows:
            try:
                self._begin_again(row, "step", None)
            except (Exception, SystemExit) as error:
                self._failed(row, error, "step")

    def _begin_again(self, row: int, moment: str, options: dict[str, Any] | None) -> None:
        cut = moment == "step"
        self.fresh_seeds[row] = spread_seed(self.seed, row, self.restarts[row])
        first: tuple[Any, dict[str, Any]] | None = None
        if moment == "reset" or self.mode is AutoresetMode.SAME_STEP:
            with self._calling(row):
                first = self._reset(row, self._living(row), options=options)
        self.cut_off(row, cut)
        if first is not None:
            self.write(row, first[0])
            wrong = self.check_of[row].what_is_wrong(row, ended=False) if self.check_of else ""
            if wrong:
                self._put_back(row)
                raise WrongValueError(wrong)
            self.doubts.pop(row, None)
            self.infos.append(RowInfo(row, first[1], {} if cut else None))

    def cut_off(self, row: int, cut: bool = True) -> None:
        """End the episode of a row that broke, unless it was only being reset (not `cut`)."""
        cut_off(self.arrays, row, cut)
        if cut and row not in self.ended:
            self.ended.append(row)
        if cut and self.mode is AutoresetMode.NEXT_STEP and row not in self.dropped:
            self.waiting.add(row)

    # For people

    def ask(self, rows: list[int], question: str, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        """Return the answer of the environments of some rows to one of QUESTIONS."""
        found = []
        for row in rows:
            with self._calling(row):
                found.append(QUESTIONS[question](self._living(row), *arguments, **keywords))
        return found

    def set_attribute(self, rows: list[int], name: str, values: list[Any]) -> None:
        """Set an attribute in some rows."""
        for row, value in zip(rows, values, strict=True):
            with self._calling(row):
                self._living(row).set_wrapper_attr(name, value)

    def _living(self, row: int) -> gymnasium.Env:
        env = self.envs[row]
        if env is None:
            raise WrongValueError(f"environment {row} is broken; reset() replaces it")
        return env

    def check_distinct(self) -> None:
        """Refuse one object in several rows: its episodes would run into each other."""
        # The objects are kept while they are compared: the id of one that is gone may be another's.
        seen: dict[int, tuple[int, Any]] = {}
        for row, env in self.envs.items():
            inner = None if env is None else env.unwrapped
            if inner is not None and (first := seen.setdefault(id(inner), (row, inner))[0]) != row:
                raise ConfigError(
                    f"environments {first} and {row} are the same object, {inner!r:.100}; every environment of a batch "
                    "has its own episode. Give a class or a function that makes a new one each time."
                )

    def close(self) -> None:
        """Close all environments, also after one that fails to close."""
        for row in list(self.envs):
            self._discard(row)


def as_info(moment: str, info: Any) -> dict[str, Any]:
    """Return what a step or reset returned as its info as a dict; nothing at all says nothing."""
    if isinstance(info, Mapping):
        return dict(info)
    if isinstance(info, np.ndarray) or info:
        raise WrongValueError(f"the info of {moment} is {info!r:.200}; expected a dict")
    return {}


def call_or_read(env: gymnasium.Env, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Return the result of a method, or the value of an attribute, as Gymnasium's `call` does."""
    value = env.render if name == "render" else env.get_wrapper_attr(name)
    return value(*arguments, **keywords) if callable(value) else value


def has_layer(env: gymnasium.Env, name: str) -> bool:
    """Return whether one of an environment's wrappers is of the class with this full name."""
    # By name, so that a worker need not import the class, and with it a library, to say no.
    while isinstance(env, gymnasium.Wrapper):
        if any(f"{kind.__module__}.{kind.__qualname__}" == name for kind in type(env).__mro__):
            return True
        env = env.env
    return False


# What may be asked of one environment, wherever it runs.
QUESTIONS: dict[str, Callable[..., Any]] = {
    "call": call_or_read,
    "get_attribute": lambda env, name: env.get_wrapper_attr(name),
    "has_attribute": lambda env, name: env.has_wrapper_attr(name),
    "has_layer": has_layer,
}


def about_action(action: Any) -> str:
    """Return what is said besides of an environment that failed in a step; nothing if its action was finite."""
    floats = [leaf for leaf in map(np.asarray, nested_arrays(action)) if leaf.dtype.kind == "f"]
    if all(np.isfinite(leaf).all() for leaf in floats):
        return ""
    return f". Its action was {action!r:.100}: mend the policy that chose it"


def fault_of(row: int, worker: int | None, error: BaseException, moment: str) -> Fault:
    """Return the record of an exception in an environment."""
    kind: FaultKind = "raised"
    if isinstance(error, WrongValueError):
        kind = "wrong value"
    elif isinstance(error, Interruption):
        kind = "hung"
    message = str(error) if isinstance(error, WrongValueError | Interruption) else f"{type(error).__name__}: {error}"
    text = "" if isinstance(error, WrongValueError) else "".join(traceback.format_exception(error))
    return Fault(row, worker, kind, message, text, moment)
