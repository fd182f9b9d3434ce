"""Courses of growing and shrinking, played on a backend beside batches that are never resized.

Run as `python resizing.py FILE` with NUMBA_ENABLE_CUDASIM=1 this plays all courses on the CUDA backend in Numba's
simulator; the outcome by course is pickled: None, or a traceback.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import velodrome as vd
from tests.contracts.comparison import as_numpy, random_actions
from tests.contracts.simulator import run_threads_in_turn
from tests.vector.scenarios import SCENARIOS, parts
from velodrome.envs.contract import state_columns

STEPS = 5  # between two changes of size
# Within a block of 64 environments, across blocks, back into a block with lanes that others have left.
SIZES = (3, 7, 2, 5)
BLOCKS = (70, 130, 65, 4, 70)
COURSES = {
    "template, several blocks": BLOCKS,
    **dict.fromkeys(
        ("template", "levels, long windows", "levels, dict, no autoreset", "continuous, ranges, dict", "brackets",
         "brackets, cursor, copies, no autoreset", "continuous, cursor", "drawn 2"),
        SIZES,
    ),
}  # fmt: skip
SEED, LATER_SEED = 7, 23


def seen(envs: Any, returned: Any) -> dict[str, np.ndarray]:
    """Return all that can be seen of a batch after a step (or only its observations), environments first."""
    observations, *rest = returned if isinstance(returned, tuple) else (returned,)
    found = parts("observations", observations)
    if rest:
        rewards, terminated, truncated, infos = rest
        found |= {"rewards": as_numpy(rewards).copy(), "terminated": as_numpy(terminated).copy(),
                  "truncated": as_numpy(truncated).copy()}  # fmt: skip
        ended = found["terminated"] | found["truncated"]
        if infos:
            ended_rows = {**parts("final", infos["final_obs"]), **infos["statistics"]}
            found |= {name: np.where(_wide(ended, values), as_numpy(values), 0) for name, values in ended_rows.items()}
        found["ended"] = ended
    return found | {
        f"state {name}": np.moveaxis(envs.column(name), -1, 0) for name in state_columns(envs.world.state_type)
    }


def _wide(flags: np.ndarray, values: Any) -> np.ndarray:
    return flags.reshape(-1, *[1] * (values.ndim - 1))


def assert_rows_agree(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], rows: slice, where: str) -> None:
    """Compare some environments' bits; what is missing of final observations is that no episode ended anywhere."""
    for name in sorted(ours.keys() | theirs.keys()):
        one, other = (record[name][rows] if name in record else None for record in (ours, theirs))
        if one is None or other is None:
            assert name.startswith("final") or name in statistic_names(ours, theirs), where
            assert not np.any(one if other is None else other), f"{where}: {name}"
        else:
            np.testing.assert_array_equal(one, other, err_msg=f"{where}: {name}", strict=True)


def statistic_names(*records: dict[str, np.ndarray]) -> set[str]:
    """Return the names of what is no array of a step: the statistics of episodes."""
    kept = ("observations", "rewards", "terminated", "truncated", "ended", "state", "final")
    return {name for record in records for name in record if not name.startswith(kept)}


def play(name: str, backend: str, reference: str = "native") -> int:
    """Resize a batch and compare each environment with one of the same seed in a batch that is never resized.

    Return how many episodes ended, for a comparison of runs in which nothing happens would say nothing.
    """
    scenario, sizes = SCENARIOS[name], COURSES[name]
    most = max(sizes)
    options = {key: value for key, value in scenario.options.items() if key != "copy"}

    def steady_batch(seed: int) -> Any:
        batch = vd.make_vec(scenario.world(), most, backend=reference, copy=True, **options)
        batch.reset(seed=seed)
        return batch

    envs = vd.make_vec(scenario.world(), sizes[0], backend=backend, seed=SEED, **scenario.options)
    observations = envs.reset()[0]
    # Rows [begin, end) go on as those of a batch that was reset when they were made.
    lives: list[tuple[int, int, Any]] = [(0, sizes[0], steady_batch(SEED))]
    actions = iter(random_actions(envs.single_action_space, most, STEPS * (len(sizes) + 1), seed=17))
    ends, seed = 0, SEED
    for number, size in enumerate([*sizes, most]):
        if number == len(sizes):  # from here on all draw from another seed, also those that are added later
            seed = LATER_SEED
            observations = envs.reset(seed=seed)[0]
            lives = [(0, envs.num_envs, steady_batch(seed))]
        if size != envs.num_envs:
            grown = [(envs.num_envs, size, steady_batch(seed))] if size > envs.num_envs else []
            observations = envs.resize(size)
            lives = [(begin, min(end, size), batch) for begin, end, batch in lives if begin < size] + grown
            assert envs.num_envs == size
            assert envs.observation_space.shape in (None, (size, *(envs.single_observation_space.shape or ())))
            assert envs.action_space.shape[0] == size
        now = seen(envs, observations)
        for begin, end, batch in lives:
            assert_rows_agree(now, seen(batch, batch._observations()), slice(begin, end), f"{name}, {size} at first")
        for step in range(STEPS):
            action = next(actions)
            now = seen(envs, envs.step(action[:size]))
            ends += int(now["ended"].sum())
            for begin, end, batch in lives:
                expected = seen(batch, batch.step(action))
                assert_rows_agree(now, expected, slice(begin, end), f"{name}, {size}, step {step}")
            if not envs.autoreset:
                for batch, ended in [(envs, now["ended"]), *((batch, _ended(batch)) for _, _, batch in lives)]:
                    if ended.any():
                        batch.reset(options={"reset_mask": ended})
        observations = envs._observations()
    return ends


def _ended(batch: Any) -> np.ndarray:
    return batch.buffers.out.terminated | batch.buffers.out.truncated


if __name__ == "__main__":
    run_threads_in_turn()
    outcomes: dict[str, Any] = {}
    for course in COURSES:
        try:
            outcomes[course] = play(course, "cuda")
        except Exception:
            outcomes[course] = traceback.format_exc()
    Path(sys.argv[1]).write_bytes(pickle.dumps(outcomes))
