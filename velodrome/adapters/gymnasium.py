"""Any Gymnasium vector environment in, made to begin the next episode in the step that ends one, as learners need."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from velodrome.errors import BackendError, ConfigError
from velodrome.vector.infos import add_info, take_apart
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.space_arrays import flat_leaves, take_rows
from velodrome.vector.workers.foreign_env import ForeignVectorEnv

# Classes known to reset exactly what a mask names.
HONOUR_MASKS = (SyncVectorEnv, AsyncVectorEnv, ForeignVectorEnv, RuleVectorEnv)
SAME_STEP_ADVICE = (
    "Make the environments with vd.make_vec, or with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP "
    "(gymnasium.make_vec takes it in vector_kwargs)."
)


def from_gymnasium(vector_env: VectorEnv) -> VectorEnv:
    """Return a vector environment that begins the next episode in the step that ends one.

    One that already does so is returned as it is. If ended episodes are left to the caller (DISABLED), or if one of
    Gymnasium's or Velodrome's own classes would begin the next a step later (NEXT_STEP), they are reset by mask within
    the step, and the infos are those that Gymnasium gives with SAME_STEP. Anything else is refused.
    """
    if not isinstance(vector_env, VectorEnv):
        raise ConfigError(
            f"received {type(vector_env).__name__}, which is no gymnasium.vector.VectorEnv; vd.make_vec makes one from "
            f"an environment's name, class or maker."
        )
    mode = vector_env.metadata.get("autoreset_mode")
    if mode == AutoresetMode.SAME_STEP:
        return vector_env
    name = type(vector_env).__name__
    if mode not in (AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP):
        raise BackendError(
            f"{name} has autoreset_mode {mode!r} in its metadata, none of Gymnasium's. {SAME_STEP_ADVICE}"
        )
    if isinstance(vector_env, RuleVectorEnv):
        raise BackendError(f"{name} was made with autoreset=False; make it with autoreset=True, which is the default.")
    if isinstance(vector_env, VectorWrapper):
        raise BackendError(
            f"{name} is a wrapper with autoreset_mode {mode.name}; wrappers lose count when some environments are "
            f"reset by mask. Wrap what from_gymnasium returns: {name}(from_gymnasium(envs))."
        )
    if mode == AutoresetMode.NEXT_STEP and not isinstance(vector_env, HONOUR_MASKS):
        raise BackendError(
            f"{name} begins the next episode a step late (autoreset_mode NEXT_STEP), and is not known to reset single "
            f"environments by mask. {SAME_STEP_ADVICE}"
        )
    if mode == AutoresetMode.NEXT_STEP and isinstance(vector_env, AsyncVectorEnv) and not vector_env.shared_memory:
        raise BackendError(
            f"{name} with shared_memory=False begins an episode twice after a reset by mask. {SAME_STEP_ADVICE}"
        )
    return SameStepVectorEnv(vector_env)


class SameStepVectorEnv(VectorWrapper):
    """Begins the next episode in the step that ended one, by resetting those environments by mask."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; where an episode ended, the observation is the first of the next."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.logical_or(terminated, truncated)
        if not ended.any():
            return observations, rewards, terminated, truncated, infos
        last = [deepcopy(row) for row in iterate(self.env.observation_space, observations)]
        # The reset may clear them if they are views.
        rewards, terminated, truncated = np.array(rewards), np.array(terminated), np.array(truncated)
        observations, reset_infos = reset_rows(self.env, ended, observations)
        merged = self._merge(ended, last, infos, reset_infos)
        return observations, rewards, terminated, truncated, merged

    def _merge(
        self, ended: NDArray[np.bool_], last: list[Any], infos: dict[str, Any], reset_infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Return infos as Gymnasium gives them with SAME_STEP: those of the ended episodes are `final_info`."""
        rows = np.arange(self.num_envs)
        stepped, begun = take_apart(infos, rows), take_apart(reset_infos, rows[ended])
        merged: dict[str, Any] = {}
        for row in range(self.num_envs):
            if ended[row]:
                final = {"final_obs": last[row], "final_info": stepped[row]}
                merged = add_info(merged, final, row, self.num_envs)
            merged = add_info(merged, begun[row] if ended[row] else stepped[row], row, self.num_envs)
        return merged


def reset_rows(envs: VectorEnv, rows: NDArray[np.bool_], observations: Any) -> tuple[Any, dict[str, Any]]:
    """Begin new episodes of some environments; refuse a vector environment that resets others too.

    `observations` are the current ones; those of the other environments must not change.
    """
    known = isinstance(envs, HONOUR_MASKS)
    kept = None if known else take_rows(observations, ~rows)
    found, infos = envs.reset(options={"reset_mask": rows.copy()})
    if not known:
        space = envs.single_observation_space
        pairs = zip(flat_leaves(space, take_rows(found, ~rows)), flat_leaves(space, kept), strict=True)
        if not all(np.array_equal(new, old, equal_nan=new.dtype.kind == "f") for new, old in pairs):
            raise BackendError(
                f'{type(envs).__name__} ignored options["reset_mask"]: resetting {int(rows.sum())} of {envs.num_envs} '
                f"environments changed the observations of others. {SAME_STEP_ADVICE}"
            )
    return found, infos
