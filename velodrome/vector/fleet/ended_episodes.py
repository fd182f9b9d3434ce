"""Which episodes ended in a step, and with what: from a rule's own statistics, or from sums that are kept here."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.space_arrays import on_host, resized

ALL = slice(None)


class Stepped(NamedTuple):
    """What a step returned about some environments."""

    rows: NDArray[np.int64] | slice
    rewards: Any
    terminated: Any
    truncated: Any
    infos: dict[str, Any]

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Where the step ended an episode."""
        return on_host(self.terminated) | on_host(self.truncated)


class Ended(NamedTuple):
    """The episodes that ended in a step, k of them."""

    rows: NDArray[np.int64]  # [k] environments
    places: NDArray[np.int64]  # [k] where they are in what the step returned
    returns: NDArray[np.float64]  # [k]
    lengths: NDArray[np.int64]  # [k] steps
    infos: list[list[Any]]  # by info key, [k] values; None: not given


class EpisodeTracker:
    """Follows the episodes of all environments of a batch.

    info_keys: infos of an episode's last step (a rule's statistics) that belong to the episode.
    """

    def __init__(self, envs: VectorEnv, info_keys: Sequence[str]) -> None:
        self._base: Any = envs.unwrapped
        # A wrapper in between may change rewards, which a rule's own sum does not notice.
        own = envs.world.statistics if isinstance(envs, RuleVectorEnv) else ()
        self.from_rule = {"reward", "length"} <= set(own)
        self._is_rule = isinstance(self._base, RuleVectorEnv)
        self.info_keys = tuple(info_keys)
        self._unseen_keys = set(info_keys)
        self.mode = _autoreset_mode(envs)
        count = envs.num_envs
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._begun = np.full(count, time.perf_counter())
        self._over = np.zeros(count, bool)  # ended and not yet begun again: steps there belong to no episode
        self.lost = np.zeros(count, bool)  # gone for good
        self._faults = -1  # when lost environments were last counted
        self._note_lost()

    def begin(self, chosen: Any, now: float) -> None:
        """Start the episodes of some environments; what they had begun is dropped."""
        self._returns[chosen], self._lengths[chosen] = 0.0, 0
        self._begun[chosen], self._over[chosen] = now, False
        self._note_lost()

    def resize(self, count: int) -> None:
        """Follow a change of the number of environments."""
        before = len(self._begun)
        self._returns, self._lengths = resized(self._returns, count), resized(self._lengths, count)
        self._begun = resized(self._begun, count)
        self._begun[before:] = time.perf_counter()
        self._over, self.lost = resized(self._over, count), resized(self.lost, count)
        self._note_lost()

    def _note_lost(self) -> None:
        """See which environments are gone for good, if there was a new fault."""
        faults = len(getattr(self._base, "faults", ()))
        if faults != self._faults and hasattr(self._base, "alive"):
            self.lost = ~self._base.alive
        self._faults = faults
        self._any_idle = bool(self._over.any() or self.lost.any())

    def idle(self, rows: NDArray[np.int64] | slice) -> NDArray[np.bool_] | None:
        """Return which of some rows are in no episode; None if all are in one."""
        return self._over[rows] | self.lost[rows] if self._any_idle else None

    def ended(self, step: Stepped, idle: NDArray[np.bool_] | None) -> Ended | None:
        """Return the episodes that a step ended."""
        return self._by_rule(step.infos, idle) if self.from_rule else self._by_sum(step, idle)

    def follow(self, step: Stepped, ended: Ended | None, now: float) -> NDArray[np.float64]:
        """Go on after a step, and return the seconds of each ended episode."""
        seconds = np.zeros(0)
        if not self.from_rule and self.mode is AutoresetMode.NEXT_STEP and (self._any_idle or ended is not None):
            # Episodes begin in steps that are none of theirs; one that failed to begin is still over.
            over, ends = self._over[step.rows], step.ends
            self._begun[step.rows] = np.where(over & ~ends, now, self._begun[step.rows])
            self._over[step.rows] = ends
        if ended is not None:
            seconds = now - self._begun[ended.rows]
            self._begun[ended.rows] = now
            if self.mode is AutoresetMode.DISABLED:
                self._over[ended.rows] = True
        if ended is not None or self._any_idle or self._faults != len(getattr(self._base, "faults", ())):
            self._note_lost()
        return seconds

    def _by_rule(self, infos: dict[str, Any], idle: NDArray[np.bool_] | None) -> Ended | None:
        mask = infos.get("_statistics")
        if mask is None:
            return None
        names = ("reward", "length", *self.info_keys)
        statistics = infos["statistics"]
        if isinstance(mask, np.ndarray):
            rows = np.flatnonzero(mask if idle is None else mask & ~idle)
            values = np.stack([statistics[name][rows] for name in names])
        else:
            import torch

            chosen = mask.nonzero().squeeze(1)
            if not len(chosen):
                return None
            # One copy for everything; float64 holds the rows exactly.
            columns = [chosen.double(), *(statistics[name][chosen].double() for name in names)]
            copied = torch.stack(columns).cpu().numpy()
            if idle is not None:
                copied = copied[:, ~idle[copied[0].astype(np.int64)]]
            rows, values = copied[0].astype(np.int64), copied[1:]
        if not len(rows):
            return None
        return Ended(rows, rows, values[0], values[1].astype(np.int64), values[2:].tolist())

    def _by_sum(self, step: Stepped, idle: NDArray[np.bool_] | None) -> Ended | None:
        rows, rewards, ends = step.rows, on_host(step.rewards), step.ends
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
        infos = [self._info_values(step.infos, key, places) for key in self.info_keys]
        ended = Ended(numbers, places, self._returns[numbers], self._lengths[numbers], infos)
        self._returns[numbers], self._lengths[numbers] = 0.0, 0
        return ended

    def _info_values(self, infos: dict[str, Any], key: str, places: NDArray[np.int64]) -> list[Any]:
        if self._is_rule:
            container = infos.get("statistics", {})
        elif self.mode is AutoresetMode.SAME_STEP:
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
                    stacklevel=7,
                )
            return [None] * len(places)
        self._unseen_keys.discard(key)
        values = on_host(values)
        given = on_host(container.get(f"_{key}", np.ones(len(values), bool)))
        return [_plain(values[place]) if given[place] else None for place in places]


def _autoreset_mode(envs: VectorEnv) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise BackendError(
            f"{type(envs).__name__} does not say when it starts the next episode: metadata['autoreset_mode'] is "
            f"{mode!r}. Set it to one of {', '.join(map(str, AutoresetMode))}."
        ) from None


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def with_episodes(step: Stepped, ended: Ended, seconds: NDArray[np.float64]) -> dict[str, Any]:
    """Return the infos of a step with those of the ended episodes, on the device where the flags are."""
    infos: Mapping[str, Any] = step.infos
    if "episode" in infos or "_episode" in infos:
        raise ConfigError(
            "the infos have 'episode' already: another monitor or RecordEpisodeStatistics is below this one. Keep one."
        )
    count = len(step.rewards)

    def spread(values: NDArray) -> Any:
        """Put values of the ended episodes at their places among all."""
        found = np.zeros(count, values.dtype)
        found[ended.places] = values
        if isinstance(step.terminated, np.ndarray):
            return found
        import torch

        return torch.from_numpy(found).to(step.terminated.device)

    columns = {"r": ended.returns, "l": ended.lengths, "t": seconds}
    episode = {name: spread(values) for name, values in columns.items()}
    return {**infos, "episode": episode, "_episode": spread(np.ones(len(ended.places), bool))}
