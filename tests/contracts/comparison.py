"""Runs environments and compares what they did, bit for bit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from velodrome.envs.contract import state_columns


def random_actions(space: gymnasium.Space, num_envs: int, steps: int, seed: int) -> list[np.ndarray]:
    """Return actions for each step; the first environments act the same however many there are."""
    rng = np.random.default_rng(seed)
    if isinstance(space, gymnasium.spaces.Discrete):
        return list(rng.integers(0, space.n, (steps, num_envs)))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return list(rng.integers(0, space.nvec, (steps, num_envs, *space.shape)))
    return list(rng.uniform(space.low, space.high, (steps, num_envs, *space.shape)).astype(np.float32))


def run(envs: Any, steps: int, seed: int | None = None, width: int | None = None) -> list[dict[str, np.ndarray]]:
    """Return everything that a run leaves behind, step by step, with the environments in the last axis."""
    observations, _ = envs.reset(seed=seed)
    record = [_snapshot(envs, {"observations": observations})]
    wide = width or envs.num_envs
    for actions in random_actions(envs.single_action_space, wide, steps, seed=17):
        observations, rewards, terminated, truncated, infos = envs.step(actions[: envs.num_envs])
        seen = {"observations": observations, "rewards": rewards, "terminated": terminated, "truncated": truncated}
        ended = as_numpy(terminated) | as_numpy(truncated)
        if ended.any():
            final = as_numpy(infos["final_obs"]).copy()
            final[~ended] = 0.0
            seen["final"] = final
            for name, values in infos["statistics"].items():
                seen[f"statistics {name}"] = np.where(ended, as_numpy(values), 0.0)
        record.append(_snapshot(envs, seen))
    return record


def as_numpy(values: Any) -> np.ndarray:
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


def _snapshot(envs: Any, seen: dict[str, Any]) -> dict[str, np.ndarray]:
    columns = {name: envs.column(name) for name in state_columns(envs.world.state_type)}
    return {**columns, **{name: np.moveaxis(as_numpy(values), 0, -1).copy() for name, values in seen.items()}}


def assert_same_bits(ours: list[dict[str, np.ndarray]], theirs: list[dict[str, np.ndarray]]) -> None:
    """Compare two records; NaN equals NaN."""
    assert len(ours) == len(theirs)
    for step, (left, right) in enumerate(zip(ours, theirs, strict=True)):
        assert left.keys() == right.keys(), step
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=f"{name} at step {step}")
