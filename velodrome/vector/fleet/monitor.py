"""`VecMonitor`: what becomes of the episodes of many environments, and how fast and how soundly they run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.argument_checks import is_whole
from velodrome.vector.fleet.ended_episodes import ALL, Ended, EpisodeTracker, Stepped, with_episodes
from velodrome.vector.fleet.episode_file import COLUMNS, MonitorFile
from velodrome.vector.fleet.monitor_report import MonitorStatistics, mean_of, metrics_of, slowest_of, table_of
from velodrome.vector.fleet.step_times import EDGES, StepTimes, Throughput, quantile
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.space_arrays import on_host
from velodrome.vector.workers.foreign_env import ForeignVectorEnv

if TYPE_CHECKING:
    from rich.table import Table


class VecMonitor(VectorWrapper):
    """Watches many environments, of any backend. Observations, rewards and flags pass through untouched.

    path: a folder or file for `monitor.csv`, which Stable-Baselines3's plotter reads; continued if it exists.
    info_keys: infos of an episode's last step (a rule's statistics) to keep with the episode.
    window: how many of the last episodes means and medians cover.

    When episodes end, infos["episode"] holds their return "r", length "l" and seconds "t", and infos["_episode"] says
    which, as in Gymnasium's RecordEpisodeStatistics. Returns of rule environments come from the rule's own statistics;
    on a GPU, each step copies one number to the host, which says whether any episode ended. Whatever else a backend
    offers (`send`, `call`, `backend` …) is reached through the monitor too. `statistics`, `metrics` and `rich_table`
    may be called from another thread.
    """

    def __init__(
        self, envs: VectorEnv, path: str | Path | None = None, info_keys: Sequence[str] = (), window: int = 100
    ) -> None:
        super().__init__(envs)
        self._base: Any = envs.unwrapped
        keys = _checked_keys(info_keys, self._base.world.statistics if isinstance(self._base, RuleVectorEnv) else None)
        if not is_whole(window, 1):
            raise ConfigError(f"window = {window!r}: needs a whole number of episodes, at least 1")
        self._episodes = EpisodeTracker(envs, keys)
        self._lock = threading.Lock()
        self._file = None if path is None else MonitorFile(path, keys, _name_of(self._base))
        self._count = 0
        self._window: deque[tuple[float, int, float]] = deque(maxlen=int(window))  # return, length, seconds
        self._info_window: dict[str, deque[float]] = {key: deque(maxlen=int(window)) for key in keys}
        self._throughput = Throughput()
        self._times = StepTimes(self.num_envs, one_each=hasattr(self._base, "step_seconds"))
        self._sent = 0.0  # when a step was started that has not been waited for
        self._reset_mask: Any = None  # of a reset that was started and has not been waited for

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
        results = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        return self._begun(mask, results)

    def reset_async(self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset that `reset_wait` finishes, if the backend can."""
        mask = None if options is None else options.get("reset_mask")
        self._needed("reset_async")(seed=seed, options=options)
        self._reset_mask = mask

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Finish the reset that `reset_async` started."""
        return self._begun(self._reset_mask, self._needed("reset_wait")(timeout=timeout))

    def _begun(self, mask: Any, results: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
        """Note that episodes began, in all rows or in those of a mask, and return what the reset returned."""
        now = time.perf_counter()
        with self._lock:
            self._follow()
            self._episodes.begin(ALL if mask is None else on_host(mask), now)
            self._throughput.begin(now)
        return results

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        started = time.perf_counter()
        return self._record(started, ALL, self.env.step(actions))

    def step_async(self, actions: Any) -> None:
        """Start a step that `step_wait` finishes, if the backend can."""
        self._sent = time.perf_counter()
        self._needed("step_async")(actions)

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Finish the step that `step_async` started."""
        return self._record(self._sent, ALL, self._needed("step_wait")(timeout=timeout))

    def recv(self, min_ready: int | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any], Any]:
        """Return the first that are ready of those that `send` started (None: all), with their numbers."""
        started = time.perf_counter()
        *results, ids = self._needed("recv")(min_ready)
        return *self._record(started, np.asarray(ids), tuple(results)), ids

    def resize(self, num_envs: int) -> Any:
        """Change the number of environments; those that stay keep their episodes. Returns the observations of all."""
        observations = self._needed("resize")(num_envs)
        with self._lock:
            self._follow()
        return observations

    def finish(self) -> None:
        """Close the file and leave the environments as they are; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self, **kwargs: Any) -> None:
        """Close the file and the environments."""
        self.finish()
        self.env.close(**kwargs)

    def _needed(self, name: str) -> Any:
        """Return a method that only some backends have."""
        method = getattr(self.env, name, None)
        if method is None:
            backend = {"recv": "async", "resize": None}.get(name, "process")
            raise BackendError(
                f"{type(self.env).__name__} has no {name}(). Make the environments with vd.make_vec"
                f"{f', backend={backend!r}' if backend else ''}."
            )
        return method

    def _follow(self) -> None:
        """Follow a change of the number of environments."""
        count = self.env.num_envs
        if count != self._times.num_envs:
            self._episodes.resize(count)
            self._times.resize(count)

    def _record(self, started: float, rows: Any, results: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take in what a step of some rows returned, and return it, with the episodes that ended in its infos."""
        finished = time.perf_counter()
        observations, rewards, terminated, truncated, infos = results
        step = Stepped(rows, rewards, terminated, truncated, infos)
        count = len(rewards)
        with self._lock:
            self._follow()
            idle = self._episodes.idle(rows)
            ended = self._episodes.ended(step, idle)
            if self._episodes.from_rule and not isinstance(rewards, np.ndarray):
                finished = time.perf_counter()  # a step on a GPU is only finished once something was read
            if self._times.one_each:
                self._times.add(self._base.step_seconds, rows, idle)
            else:
                self._times.add_batch((finished - started) / count)
            self._throughput.begin(started)
            self._throughput.add(finished, count if idle is None else count - int(np.count_nonzero(idle)))
            seconds = self._episodes.follow(step, ended, finished)
            if ended is None:
                return results
            self._keep(ended, seconds)
        return observations, rewards, terminated, truncated, with_episodes(step, ended, seconds)

    def _keep(self, ended: Ended, seconds: NDArray[np.float64]) -> None:
        self._count += len(ended.rows)
        returns, lengths = ended.returns.tolist(), ended.lengths.tolist()
        last = slice(-(self._window.maxlen or 0), None)
        self._window.extend(zip(returns[last], lengths[last], seconds[last].tolist(), strict=True))
        for kept, values in zip(self._info_window.values(), ended.infos, strict=True):
            kept.extend(float(value) for value in values if isinstance(value, int | float))
        if self._file is not None:
            times = [round(time.time() - self._file.t_start, 6)] * len(returns)
            self._file.write(zip(returns, lengths, times, *ended.infos, strict=True))

    # What people and logs see

    def statistics(self) -> MonitorStatistics:
        """Return everything seen so far."""
        with self._lock:
            returns, lengths, seconds = np.array(self._window, np.float64).reshape(-1, 3).T
            counts, means = self._times.counts(), self._times.means()
            base, total = self._base, counts.sum(axis=0)
            return MonitorStatistics(
                episodes=self._count,
                window=len(returns),
                mean_return=mean_of(returns),
                median_return=mean_of(returns, np.median),
                mean_length=mean_of(lengths),
                median_length=mean_of(lengths, np.median),
                mean_seconds=mean_of(seconds),
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
                lost=int(np.count_nonzero(self._episodes.lost)),
            )

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name for a log; those that are not known yet are left out."""
        return metrics_of(self.statistics())

    def rich_table(self) -> Table:
        """Return a table for people; print it with rich."""
        return table_of(self.statistics(), f"{self.num_envs} × {_name_of(self._base)}")


def _checked_keys(keys: Sequence[str], statistics: Sequence[str] | None) -> tuple[str, ...]:
    """Return the info keys, or say what is wrong with them; those of a rule are known beforehand."""
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


def _name_of(base: Any) -> str:
    if isinstance(base, RuleVectorEnv):
        return base.world.name
    spec = getattr(base, "spec", None)
    if spec is not None:
        return str(spec.id)
    return base.makers[0].name if isinstance(base, ForeignVectorEnv) else type(base).__name__
