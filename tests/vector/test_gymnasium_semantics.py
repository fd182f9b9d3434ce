"""The contract for backends itself: Gymnasium's own vector environments pass it, and broken ones do not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.contracts.backend import BackendContract
from tests.contracts.vector_env import MODES, row_of, shared_batches


def makers_of(env: Any, num_envs: int) -> Sequence[Any]:
    return [partial(gymnasium.make, env) if isinstance(env, str) else env] * num_envs


class SeededAtTheMaking(gymnasium.vector.VectorWrapper):
    """Gymnasium's take no seed at the making; ours are reset with it first."""

    def __init__(self, envs: gymnasium.vector.VectorEnv, seed: int) -> None:
        super().__init__(envs)
        self.seed: int | None = seed

    def reset(self, **options: Any) -> Any:
        seed, self.seed = self.seed, None
        return super().reset(**{"seed": seed, **options})


class GymnasiumContract(BackendContract):
    """The contract for one of Gymnasium's vector environments."""

    kind: type[Any] = SyncVectorEnv

    def make(self, env: Any, num_envs: int, autoreset: Any = True, copy: bool = False, seed: int | None = None) -> Any:
        envs = self.kind(makers_of(env, num_envs), copy=copy, autoreset_mode=MODES[autoreset])
        return envs if seed is None else SeededAtTheMaking(envs, seed)


class TestSync(GymnasiumContract):
    kind = SyncVectorEnv


class Forked(AsyncVectorEnv):
    """Gymnasium's, with workers from a fork server: copies of this process would be as large as what it has run."""

    def __init__(self, makers: Any, **options: Any) -> None:
        multiprocessing.set_forkserver_preload(["__main__", "tests.vector.foreign_envs"])
        super().__init__(makers, context="forkserver", **options)


# Nothing of Velodrome's is in it: that the contract describes Gymnasium is shown by the loop above.
@pytest.mark.slow
class TestAsync(GymnasiumContract):
    kind = Forked


# Broken ones: each is the reference with one mistake that a backend might make.


class LosesFinalObservations(SyncVectorEnv):
    """Gives the first observation of the next episode for the last of the one that ended."""

    def step(self, actions: Any) -> Any:
        observations, *rest, infos = super().step(actions)
        for row in np.flatnonzero(infos.get("_final_obs", ())):
            infos["final_obs"][row] = row_of(observations, row)
        return observations, *rest, infos


class MergesFlags(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        return observations, rewards, terminated | truncated, np.zeros_like(truncated), infos


class NarrowRewards(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, rewards.astype(np.float32), *rest


class InfosOfAll(SyncVectorEnv):
    """Says of every info that it is every environment's."""

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        return *rest, {key: np.ones_like(value) if key.startswith("_") else value for key, value in infos.items()}


class OneSeedForAll(SyncVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=[seed] * self.num_envs if isinstance(seed, int) else seed, options=options)


class IgnoresSeeds(SyncVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(options=options)


class IgnoresMasks(SyncVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class OverwritesActions(SyncVectorEnv):
    """Hands actions over in memory that it uses again, as shared memory is."""

    def step(self, actions: Any) -> Any:
        self.memory = getattr(self, "memory", np.empty_like(actions))
        self.memory[...] = actions
        return super().step(self.memory)


class ReturnsViewsAsCopies(SyncVectorEnv):
    def __init__(self, makers: Any, copy: bool, **options: Any) -> None:
        super().__init__(makers, copy=False, **options)


class ReturnsCopiesAsViews(SyncVectorEnv):
    def __init__(self, makers: Any, copy: bool, **options: Any) -> None:
        super().__init__(makers, copy=True, **options)


class ResetsOneStepLate(SyncVectorEnv):
    def __init__(self, makers: Any, autoreset_mode: AutoresetMode, **options: Any) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP, **options)
        self.metadata["autoreset_mode"] = autoreset_mode


class ResetsTwice(SyncVectorEnv):
    """Starts two episodes where one is due: the streams go another way."""

    def step(self, actions: Any) -> Any:
        returned = super().step(actions)
        for row in np.flatnonzero(returned[2] | returned[3]):
            self.envs[row].reset()
        return returned


class TurnsRows(SyncVectorEnv):
    """Gives each environment its neighbour's action."""

    def step(self, actions: Any) -> Any:
        return super().step(np.roll(actions, 1, axis=0))


class NeverCloses(SyncVectorEnv):
    def close_extras(self, **options: Any) -> None:
        pass


TO_THE_BIT = "test_it_does_what_gymnasium_does_to_the_bit"
SAME_STEP = {"kind": "floats", "autoreset": True}
MISTAKES: list[tuple[type[Any], str, dict[str, Any]]] = [
    (LosesFinalObservations, TO_THE_BIT, SAME_STEP),
    (LosesFinalObservations, "test_an_episode_that_ends_is_kept_and_the_next_begins_in_the_same_step", {}),
    (LosesFinalObservations, "test_same_step_ends_are_as_counted_by_hand", {}),
    (MergesFlags, TO_THE_BIT, SAME_STEP),
    (MergesFlags, "test_disabled_ends_are_as_counted_by_hand", {}),
    (NarrowRewards, TO_THE_BIT, SAME_STEP),
    (InfosOfAll, "test_same_step_ends_are_as_counted_by_hand", {}),
    (InfosOfAll, "test_what_reset_and_step_return_is_what_the_spaces_say", {"autoreset": True}),
    (OneSeedForAll, "test_one_seed_is_counted_up", {}),
    (OneSeedForAll, "test_neighbours_do_not_repeat_one_another", {}),
    (IgnoresSeeds, "test_the_same_seed_repeats_and_another_differs", {}),
    (IgnoresSeeds, "test_seeds_in_a_list_are_each_for_their_own_environment", {}),
    (IgnoresSeeds, "test_a_seed_at_the_making_is_that_of_the_first_reset", {}),
    (IgnoresMasks, "test_a_mask_resets_some_and_leaves_the_others", {}),
    (IgnoresMasks, "test_options_reach_every_environment", {}),
    (OverwritesActions, TO_THE_BIT, {"kind": "named tuples", "autoreset": True}),
    (ReturnsViewsAsCopies, "test_views_are_overwritten_and_copies_are_kept", {}),
    (ReturnsCopiesAsViews, "test_views_are_overwritten_and_copies_are_kept", {}),
    (ResetsOneStepLate, TO_THE_BIT, SAME_STEP),
    (ResetsOneStepLate, "test_what_reset_and_step_return_is_what_the_spaces_say", {"autoreset": True}),
    (ResetsTwice, TO_THE_BIT, SAME_STEP),
    (ResetsTwice, "test_an_episode_that_ends_is_kept_and_the_next_begins_in_the_same_step", {}),
    (TurnsRows, "test_actions_reach_the_environments_as_they_are", {"kind": "floats"}),
    (TurnsRows, "test_the_number_of_environments_does_not_change_results", {}),
]


@pytest.mark.parametrize(
    ("broken", "test", "arguments"), MISTAKES, ids=[f"{broken.__name__}-{test}" for broken, test, _ in MISTAKES]
)
def test_a_mistake_is_noticed(broken, test, arguments):
    contract = GymnasiumContract()
    contract.kind = broken
    with shared_batches(contract.build) as batches, pytest.raises(AssertionError):
        getattr(contract, test)(**arguments, batches=batches)


def test_environments_left_open_are_noticed(tmp_path):
    contract = GymnasiumContract()
    contract.kind = NeverCloses
    with pytest.raises(AssertionError):
        contract.test_every_environment_that_was_made_is_closed(tmp_path)
