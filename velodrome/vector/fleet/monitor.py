"""`VecMonitor`: what becomes of the episodes of many environments, and how fast and how soundly they run."""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.fleet.episode_file import COLUMNS, MonitorFile
from velodrome.vector.fleet.monitor_report import (
    MonitorStatistics,
    mean_of,
    median_of,
    metrics_of,
    slowest_of,
    table_of,
)
from velodrome.vector.fleet.step_times import EDGES, StepTimes, Throughput, quantile
from velodrome.vector.rule_env import RuleVectorEnv

if TYPE_CHECKING:
    from rich.table import Table

ALL = slice(None)


class Ended(NamedTuple):
    """The episodes that ended in a step, k of them."""

    rows: NDArray[np.int64]  # [k] environments
    places: NDArray[np.int64]  # [k] where they are in what the step returned
    returns: NDArray[np.float64]  # [k]
    lengths: NDArray[np.int64]  # [k] steps
    infos: list[list[Any]]  # by info key, [k] values; None: not given


class VecMonitor(VectorWrapper):
    """Watches many environments, of any backend. Observations, rewards and flags pass through untouched.

    path: a folder or file for `monitor.csv`, which Stable-Baselines3's plotter reads; continued if it is there.
    info_keys: infos of an episode's last step (a rule's statistics) to keep with the episode.
    window: episodes that means and medians are taken over.

    When episodes end, infos["episode"] holds their return "r", length "l" and seconds "t", and infos["_episode"] says
    which, as in Gymnasium's RecordEpisodeStatistics. Returns of rule environments are those of the rule's own
    statistics; on a GPU, whether any ended is one number that each step copies to the host. Whatever else a backend
    offers (`send`, `call`, `backend` …) is reached through the monitor as well. `statistics`, `metrics` and
    `rich_table` may be called from another thread.
    """

    def __init__(
        self, envs: VectorEnv, path: str | Path | None = None, info_keys: Sequence[str] = (), window: int = 100
    ) -> None:
        super().__init__(envs)
        base = envs.unwrapped
        # A wrapper in between may change rewards, which the rule's own sum knows nothing of.
        own = envs.world.statistics if isinstance(envs, RuleVectorEnv) else ()
        self._from_rule = {"reward", "length"} <= set(own)
        self._rule = isinstance(base, RuleVectorEnv)
        self._info_keys = _checked_keys(info_keys, base.world.statistics if isinstance(base, RuleVectorEnv) else None)
        if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
            raise ConfigError(f"window = {window!r}: needs a whole number of episodes, at least 1")
        self._mode = _autoreset_mode(envs)
        self._base: Any = base
        self._lock = threading.Lock()
        self._file = None if path is None else MonitorFile(path, self._info_keys, _name_of(base))
        self._episodes = 0
        self._window: deque[tuple[float, int, float]] = deque(maxlen=int(window))  # return, length, seconds
        self._info_window: dict[str, deque[float]] = {key: deque(maxlen=int(window)) for key in self._info_keys}
        self._unseen_keys = set(self._info_keys)
        self._throughput = Throughput()
        self._sent = 0.0  # when a step was started that has not been waited for
        count = self.num_envs
        self._times = StepTimes(count, one_each=_seconds_of(base) is not None)
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._begun = np.full(count, time.perf_counter())
        self._over = np.zeros(count, bool)  # ended and not yet begun again: what is stepped there is no episode
        self._lost = np.zeros(count, bool)
        self._any_over = self._any_lost = False
        self._faults = -1  # when environments were last counted that are lost
        self._note_lost()

    def __getattr__(self, name: str) -> Any:
        # Backends offer more than Gymnasium's wrappers pass on.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def __del__(self) -> None:
        # The environments may have another owner; only the file is the monitor's own.
        if "_file" in self.__dict__:
            self.finish()

    # Episodes

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes of all environments, or of those in options["reset_mask"]; what they had begun is dropped."""
        # Gymnasium's own environments take the mask out of the options.
        mask = None if options is None else options.get("reset_mask")
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        now = time.perf_counter()
        with self._lock:
            self._follow()
            chosen = ALL if mask is None else _host(mask)
            self._returns[chosen], self._lengths[chosen] = 0.0, 0
            self._begun[chosen], self._over[chosen] = now, False
            self._any_over = bool(self._over.any())
            self._note_lost()
            self._throughput.begin(now)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        started = time.perf_counter()
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        infos = self._record(started, ALL, rewards, terminated, truncated, infos)
        return observations, rewards, terminated, truncated, infos

    def step_async(self, actions: Any) -> None:
        """Start a step that `step_wait` finishes, where the backend can."""
        self._sent = time.perf_counter()
        self._needed("step_async")(actions)

    def step_wait(self, **options: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Finish the step that `step_async` started."""
        observations, rewards, terminated, truncated, infos = self._needed("step_wait")(**options)
        infos = self._record(self._sent, ALL, rewards, terminated, truncated, infos)
        return observations, rewards, terminated, truncated, infos

    def recv(self, min_ready: int | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any], Any]:
        """Return the first that are ready of those that `send` started, all if None, with their numbers."""
        started = time.perf_counter()
        observations, rewards, terminated, truncated, infos, ids = self._needed("recv")(min_ready)
        infos = self._record(started, np.asarray(ids), rewards, terminated, truncated, infos)
        return observations, rewards, terminated, truncated, infos, ids

    def resize(self, num_envs: int) -> Any:
        """Change the number of environments; those that stay keep their episodes. Returns the observations of all."""
        observations = self._needed("resize")(num_envs)
        with self._lock:
            self._follow()
        return observations

    def finish(self) -> None:
        """Close the file and leave the environments as they are; a second time does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self, **kwargs: Any) -> None:
        """Close the file and the environments."""
        self.finish()
        self.env.close(**kwargs)

    def _needed(self, name: str) -> Any:
        """Return a method that some backends have and others have not."""
        method = getattr(self.env, name, None)
        if method is None:
            advice = {"recv": "backend='async'", "step_async": "backend='process'", "step_wait": "backend='process'"}
            raise BackendError(
                f"{type(self.env).__name__} has no {name}(). Make the environments with vd.make_vec"
                f"{', ' + advice[name] if name in advice else ''}."
            )
        return method

    def _follow(self) -> None:
        """Bring the arrays to the number of environments that there are."""
        count, before = self.env.num_envs, len(self._returns)
        if count == before:
            return
        stay = min(count, before)
        new = max(count - before, 0)
        self._returns = np.r_[self._returns[:stay], np.zeros(new)]
        self._lengths = np.r_[self._lengths[:stay], np.zeros(new, np.int64)]
        self._begun = np.r_[self._begun[:stay], np.full(new, time.perf_counter())]
        self._over = np.r_[self._over[:stay], np.zeros(new, bool)]
        self._lost = np.r_[self._lost[:stay], np.zeros(new, bool)]
        self._any_over, self._any_lost = bool(self._over.any()), bool(self._lost.any())
        self._times.resize(count)
        self._note_lost()

    def _note_lost(self) -> None:
        """See which environments are gone for good; only a fault makes one so."""
        faults = len(getattr(self._base, "faults", ()))
        if faults != self._faults:
            self._faults = faults
            if hasattr(self._base, "alive"):
                self._lost = ~self._base.alive
                self._any_lost = bool(self._lost.any())

    def _record(
        self, started: float, rows: NDArray[np.int64] | slice, rewards: Any, terminated: Any, truncated: Any,
        infos: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        finished = time.perf_counter()
        count = len(rewards)
        with self._lock:
            self._follow()
            idle = self._over[rows] | self._lost[rows] if self._any_over or self._any_lost else None
            if self._from_rule:
                ended = self._ended_by_rule(infos, idle)
                if not isinstance(rewards, np.ndarray):
                    finished = time.perf_counter()  # a step on a GPU has only been done once something was read
            else:
                ended = self._ended_by_sum(rows, idle, rewards, terminated, truncated, infos)
                if self._mode is AutoresetMode.NEXT_STEP and (self._any_over or ended is not None):
                    self._begin_again(rows, terminated, truncated, finished)
            if self._times.one_each:
                self._times.add(_seconds_of(self._base), rows, idle)
            else:
                self._times.add_batch((finished - started) / count)
            self._throughput.begin(started)
            self._throughput.add(finished, count if idle is None else count - int(np.count_nonzero(idle)))
            self._note_lost()
            if ended is None:
                return infos
            seconds = finished - self._begun[ended.rows]
            self._begun[ended.rows] = finished
            if self._mode is AutoresetMode.DISABLED:
                self._over[ended.rows] = self._any_over = True
            self._keep(ended, seconds)
        return _with_episodes(infos, ended, seconds, terminated, count)

    def _begin_again(self, rows: NDArray[np.int64] | slice, terminated: Any, truncated: Any, now: float) -> None:
        """Start the episodes that this step, which was none of theirs, has begun; one that failed to is still over."""
        over, ends = self._over[rows], _host(terminated) | _host(truncated)
        self._begun[rows] = np.where(over & ~ends, now, self._begun[rows])
        self._over[rows] = ends
        self._any_over = bool(self._over.any())

    def _ended_by_rule(self, infos: dict[str, Any], idle: NDArray[np.bool_] | None) -> Ended | None:
        mask = infos.get("_statistics")
        if mask is None:
            return None
        names = ("reward", "length", *self._info_keys)
        statistics = infos["statistics"]
        if isinstance(mask, np.ndarray):
            rows = np.flatnonzero(mask if idle is None else mask & ~idle)
            values = np.stack([statistics[name][rows] for name in names])
        else:
            import torch

            chosen = mask.nonzero().squeeze(1)
            if not len(chosen):
                return None
            # One copy for all numbers; float64 holds the numbers of environments exactly.
            copied = (
                torch.stack([chosen.double(), *(statistics[name][chosen].double() for name in names)]).cpu().numpy()
            )
            if idle is not None:
                copied = copied[:, ~idle[copied[0].astype(np.int64)]]
            rows, values = copied[0].astype(np.int64), copied[1:]
        if not len(rows):
            return None
        return Ended(rows, rows, values[0], values[1].astype(np.int64), values[2:].tolist())

    def _ended_by_sum(
        self, rows: NDArray[np.int64] | slice, idle: NDArray[np.bool_] | None, rewards: Any, terminated: Any,
        truncated: Any, infos: dict[str, Any],
    ) -> Ended | None:  # fmt: skip
        rewards, ends = _host(rewards), _host(terminated) | _host(truncated)
        if idle is not None:
            self._returns[rows] += np.where(idle, 0.0, rewards)
            self._lengths[rows] += ~idle
            ends = ends & ~idle
        else:
            self._returns[rows] += rewards
            self._lengths[rows] += 1
        if not ends.any():
            return None
        places = np.flatnonzero(ends)
        numbers = places if isinstance(rows, slice) else rows[places]
        ended = Ended(
            numbers, places, self._returns[numbers], self._lengths[numbers],
            [self._info_values(infos, key, places) for key in self._info_keys],
        )  # fmt: skip
        self._returns[numbers], self._lengths[numbers] = 0.0, 0
        return ended

    def _info_values(self, infos: dict[str, Any], key: str, places: NDArray[np.int64]) -> list[Any]:
        if self._rule:
            container = infos.get("statistics", {})
        elif self._mode is AutoresetMode.SAME_STEP:
            container = infos.get("final_info", {})
        else:
            container = infos
        values = container.get(key)
        if values is None or isinstance(values, dict):
            faulty = infos.get("_fault")  # an environment that broke had nothing to say
            if key in self._unseen_keys and (faulty is None or not faulty[places].all()):
                self._unseen_keys.discard(key)
                there = [name for name in container if not name.startswith("_")]
                warnings.warn(
                    f"info_keys has {key!r}, but the first episode ended without such a value; its column stays empty "
                    f"until there is one. The infos have {', '.join(there) or 'nothing'}.{did_you_mean(key, there)}",
                    stacklevel=6,
                )
            return [None] * len(places)
        self._unseen_keys.discard(key)
        values = _host(values)
        given = _host(container.get(f"_{key}", np.ones(len(values), bool)))
        return [_plain(values[place]) if given[place] else None for place in places]

    def _keep(self, ended: Ended, seconds: NDArray[np.float64]) -> None:
        self._episodes += len(ended.rows)
        returns, lengths = ended.returns.tolist(), ended.lengths.tolist()
        last = slice(-(self._window.maxlen or 0), None)
        self._window.extend(zip(returns[last], lengths[last], seconds[last].tolist(), strict=True))
        for key, values in zip(self._info_keys, ended.infos, strict=True):
            self._info_window[key].extend(float(value) for value in values if isinstance(value, int | float))
        if self._file is not None:
            times = [round(time.time() - self._file.t_start, 6)] * len(returns)
            self._file.write(zip(returns, lengths, times, *ended.infos, strict=True))

    # What people and logs see

    def statistics(self) -> MonitorStatistics:
        """Return everything that was seen so far."""
        with self._lock:
            window = np.array(self._window, np.float64).reshape(-1, 3)
            counts, means = self._times.counts(), self._times.means()
            base, total = self._base, counts.sum(axis=0)
            return MonitorStatistics(
                episodes=self._episodes,
                window=len(window),
                mean_return=mean_of(window[:, 0]),
                median_return=median_of(window[:, 0]),
                mean_length=mean_of(window[:, 1]),
                median_length=median_of(window[:, 1]),
                mean_seconds=mean_of(window[:, 2]),
                info_means={key: mean_of(np.array(values)) for key, values in self._info_window.items() if values},
                steps=self._throughput.steps,
                steps_per_second=self._throughput.rate(time.perf_counter()),
                step_seconds_edges=EDGES,
                step_seconds_counts=counts,
                step_seconds_p50=quantile(total, 0.5),
                step_seconds_p99=quantile(total, 0.99),
                slowest=slowest_of(counts, means) if self._times.one_each else (),
                restarts=int(np.sum(getattr(base, "restarts", 0))),
                worker_restarts=int(getattr(base, "worker_restarts", 0)),
                faults=len(getattr(base, "faults", ())),
                lost=int(np.count_nonzero(self._lost)),
            )

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name for a log; those that there are none of yet are left out."""
        return metrics_of(self.statistics())

    def rich_table(self) -> Table:
        """Return a table for people; print it with rich."""
        return table_of(self.statistics(), f"{self.num_envs} × {_name_of(self._base)}")


def _checked_keys(keys: Sequence[str], statistics: Sequence[str] | None) -> tuple[str, ...]:
    """Return the info keys, or say what is wrong with them; a rule's are known beforehand."""
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f"info_keys = {keys!r}: needs a list of names, such as ['is_success']")
    for key in keys:
        if key in COLUMNS or list(keys).count(key) > 1:
            raise ConfigError(
                f"info_keys has {key!r}, {'a column that is there anyway' if key in COLUMNS else 'twice'}"
            )
        if statistics is not None and key not in statistics:
            raise ConfigError(
                f"info_keys has {key!r}; the statistics of this environment are {', '.join(statistics)}."
                f"{did_you_mean(key, statistics)}"
            )
    return tuple(keys)


def _autoreset_mode(envs: VectorEnv) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise BackendError(
            f"{type(envs).__name__} does not say when it starts the next episode: metadata['autoreset_mode'] is "
            f"{mode!r}. Set it to one of {', '.join(map(str, AutoresetMode))}."
        ) from None


def _name_of(base: Any) -> str:
    if isinstance(base, RuleVectorEnv):
        return base.world.name
    spec = getattr(base, "spec", None)
    return type(base).__name__ if spec is None else str(spec.id)


def _seconds_of(base: Any) -> Any:
    """Return [n] how long the last step of each environment took, None of a backend that cannot tell."""
    return getattr(getattr(base, "rows", base), "step_seconds", None)


def _host(values: Any) -> NDArray:
    """Return an array of NumPy, copied from a device if need be."""
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _with_episodes(
    infos: Mapping[str, Any], ended: Ended, seconds: NDArray[np.float64], like: Any, count: int
) -> dict[str, Any]:
    """Return the infos and those of the episodes that ended, on the device where the flags are."""
    if "episode" in infos or "_episode" in infos:
        raise ConfigError(
            "the infos have 'episode' already: another monitor or RecordEpisodeStatistics is below this one. Keep one."
        )
    columns: dict[str, Any] = {"r": ended.returns, "l": ended.lengths, "t": seconds}
    places: Any = ended.places
    if isinstance(like, np.ndarray):
        zeros: Any = np.zeros
    else:
        import torch

        zeros = functools.partial(torch.zeros, device=like.device)
        places, *columns_there = (torch.from_numpy(array).to(like.device) for array in (places, *columns.values()))
        columns = dict(zip(columns, columns_there, strict=True))
    episode = {name: zeros(count, dtype=values.dtype) for name, values in columns.items()}
    for name, values in columns.items():
        episode[name][places] = values
    mask = zeros(count, dtype=bool if isinstance(like, np.ndarray) else torch.bool)
    mask[places] = True
    return {**infos, "episode": episode, "_episode": mask}
