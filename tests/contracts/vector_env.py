"""The suite that every backend inherits, of rule environments and of foreign ones: say how to build a batch.

class TestMine(ResizeContract):
    backend = "mine"

    def build(self, num_envs, **options):
        return vd.make_vec("template", num_envs, backend="mine", length=5, **options)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from tests.vector.foreign_envs import digest, draw_actions

MODES = {True: AutoresetMode.SAME_STEP, False: AutoresetMode.DISABLED, "next_step": AutoresetMode.NEXT_STEP}


# Comparison


def on_host(value: Any) -> Any:
    """Return a copy of what a backend returned, tensors as arrays."""
    if isinstance(value, dict):
        return {key: on_host(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(on_host, value))
    return value.detach().cpu().numpy().copy() if hasattr(value, "detach") else deepcopy(value)


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Compare structure, types, shapes and bits."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, tuple | list):
        assert type(ours) is type(theirs), where
        assert len(ours) == len(theirs), where
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert isinstance(ours, np.ndarray), where
        assert ours.dtype == object, where
        assert_same(list(ours), list(theirs), where)
    elif isinstance(theirs, str | bytes | None):
        assert type(ours) is type(theirs), where
        assert ours == theirs, where
    else:
        left, right = np.asarray(ours), np.asarray(theirs)
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        assert left.tobytes() == right.tobytes(), f"{where}: {left} is not {right}"


def row_of(value: Any, row: int) -> Any:
    """Return one environment's part of a batched value."""
    if isinstance(value, dict):
        return {key: row_of(part, row) for key, part in value.items()}
    return tuple(row_of(part, row) for part in value) if isinstance(value, tuple) else value[row]


def rows_of(value: Any, rows: slice) -> Any:
    """Return some environments' part of a batched value."""
    return row_of(value, rows)  # type: ignore[arg-type]


def leaves(space: gymnasium.Space, value: Any) -> Iterator[tuple[gymnasium.Space, Any]]:
    """Return the spaces without parts, with the values that belong to them."""
    if isinstance(space, gymnasium.spaces.Dict):
        assert isinstance(value, dict), f"{type(value)} for {space}"
        assert list(value) == list(space.spaces), f"{list(value)} for {space}"
        for key, part in space.spaces.items():
            yield from leaves(part, value[key])
    elif isinstance(space, gymnasium.spaces.Tuple):
        assert isinstance(value, tuple), f"{type(value)} for {space}"
        for part, part_value in zip(space.spaces, value, strict=True):
            yield from leaves(part, part_value)
    else:
        yield space, value


def check_observations(space: gymnasium.Space, observations: Any) -> None:
    """Check what SB3's check_env checks of one observation: structure, type, shape, bounds, no NaN, no infinity."""
    for part, value in leaves(space, observations):
        assert isinstance(value, np.ndarray | np.generic), f"{type(value)} for {part}"
        assert (value.dtype, value.shape) == (part.dtype, part.shape)
        assert np.isfinite(value).all(), f"{value} for {part}"
        assert part.contains(value), f"{value} is not in {part}"


def final_observation(infos: dict[str, Any], row: int) -> Any:
    """Return one final observation: Gymnasium keeps them one by one, rule environments as a batch."""
    final = infos["final_obs"]
    return final[row] if isinstance(final, np.ndarray) else row_of(final, row)


def check_step(envs: Any, returned: Any) -> None:
    """Check what SB3's check_env checks of what one step returns, for a batch."""
    assert isinstance(returned, tuple)
    assert len(returned) == 5
    observations, rewards, terminated, truncated, infos = returned
    check_observations(envs.observation_space, observations)
    assert rewards.shape == terminated.shape == truncated.shape == (envs.num_envs,)
    assert rewards.dtype.kind == "f"
    assert np.isfinite(rewards).all()
    assert terminated.dtype == truncated.dtype == bool
    assert isinstance(infos, dict)
    ended = terminated | truncated
    if envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
        np.testing.assert_array_equal(infos.get("_final_obs", np.zeros(envs.num_envs, bool)), ended)
        for row in np.flatnonzero(ended):
            check_observations(envs.single_observation_space, final_observation(infos, row))


def play(envs: Any, actions: list[Any], **reset: Any) -> list[Any]:
    """Return all that a run returns; where nothing resets ended environments, reset them after the step."""
    record = [on_host(envs.reset(**reset))]
    disabled = envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    for action in actions:
        record.append(on_host(envs.step(action)))
        ended = record[-1][2] | record[-1][3]
        if disabled and ended.any():
            record.append(on_host(envs.reset(options={"reset_mask": ended})))
    return record


def infos_of(infos: dict[str, Any], at: int) -> dict[str, Any]:
    """Return what one environment said: the entries whose masks include it."""
    said = {key: value for key, value in infos.items() if f"_{key}" in infos and infos[f"_{key}"][at]}
    return {key: infos_of(value, at) if isinstance(value, dict) else value[at] for key, value in said.items()}


def lived(record: list[Any]) -> list[Any]:
    """Return a run with the infos that the masks call new: entries of the others may be of earlier steps."""
    return [(*step[:-1], [infos_of(step[-1], row) for row in range(len(record[1][1]))]) for step in record]


def ends(record: list[Any]) -> np.ndarray:
    """Return how many episodes of each environment ended in a run."""
    return np.sum([step[2] | step[3] for step in record if len(step) == 5], axis=0)


@contextlib.contextmanager
def shared_batches(build: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Return a function that builds a batch, or gives the one of the same options again: processes are dear."""
    with contextlib.ExitStack() as stack:
        made: dict[Any, Any] = {}

        def batch(num_envs: int = 3, **options: Any) -> Any:
            key = (num_envs, *sorted(options.items()))
            if key not in made or made[key].closed:
                made[key] = stack.enter_context(contextlib.closing(build(num_envs, **options)))
            return made[key]

        yield batch


# All backends


class VectorEnvContract:
    """What holds for every backend, of rule environments and of foreign ones."""

    steps = 30  # within which some episode of each environment ends

    def build(self, num_envs: int, **options: Any) -> Any:
        """Return a batch of environments that draw from their seeds and whose episodes end; options of make_vec."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def batches(cls) -> Iterator[Callable[..., Any]]:
        with shared_batches(cls().build) as batches:
            yield batches

    def actions(self, envs: Any, steps: int | None = None, seed: int = 3, width: int | None = None) -> list[Any]:
        return draw_actions(envs.single_action_space, width or envs.num_envs, steps or self.steps, seed)

    def test_it_is_a_gymnasium_vector_environment(self, batches):
        for autoreset in (True, False):
            envs = batches(autoreset=autoreset)
            assert isinstance(envs, gymnasium.vector.VectorEnv)
            assert envs.unwrapped is envs
            assert envs.num_envs == 3
            assert envs.closed is False
            assert envs.metadata["autoreset_mode"] is MODES[autoreset]
            assert envs.observation_space == batch_space(envs.single_observation_space, 3)
            assert envs.action_space == batch_space(envs.single_action_space, 3)

    @pytest.mark.parametrize("autoreset", [True, False])
    def test_what_reset_and_step_return_is_what_the_spaces_say(self, autoreset, batches):
        envs = batches(autoreset=autoreset)
        record = play(envs, self.actions(envs), seed=1)
        assert ends(record).all()
        for returned in record:
            if len(returned) == 5:
                check_step(envs, returned)
            else:
                check_observations(envs.observation_space, returned[0])
                assert isinstance(returned[1], dict)

    def test_the_same_seed_repeats_and_another_differs(self, batches):
        envs = batches()
        actions = self.actions(envs)
        first, again, other = (lived(play(envs, actions, seed=seed)) for seed in (7, 7, 8))
        assert_same(again, first)
        with pytest.raises(AssertionError):
            assert_same(other, first)

    def test_seeds_in_a_list_are_each_for_their_own_environment(self, batches):
        envs = batches()
        first, turned = on_host(envs.reset(seed=[4, 5, 6])[0]), on_host(envs.reset(seed=[6, 4, 5])[0])
        for row in range(3):
            assert_same(row_of(turned, (row + 1) % 3), row_of(first, row))

    def test_neighbours_do_not_repeat_one_another(self, batches):
        """One seed gives every environment its own stream."""
        envs = batches()
        record = play(envs, self.actions(envs), seed=2)
        histories = [[digest(row_of(step[0], row)) for step in record] for row in range(3)]
        assert histories[0] != histories[1] != histories[2] != histories[0]

    def test_without_a_seed_the_streams_go_on(self, batches):
        envs = batches()
        actions = self.actions(envs)
        first, second, third = (lived(play(envs, actions, seed=seed)) for seed in (9, None, 9))
        assert_same(third, first)
        with pytest.raises(AssertionError):
            assert_same(second, first)

    def test_a_seed_at_the_making_is_that_of_the_first_reset(self, batches):
        with contextlib.ExitStack() as stack:
            envs, same, other = (
                stack.enter_context(contextlib.closing(self.build(3, seed=seed))) for seed in (21, 21, 22)
            )  # fmt: skip
            first = on_host(envs.reset()[0])
            assert_same(on_host(same.reset()[0]), first)
            assert digest(on_host(other.reset()[0])) != digest(first)
            assert digest(on_host(envs.reset()[0])) != digest(first)

    @pytest.mark.parametrize("seeds", [[1], [1, 2, 3, 4], []])
    def test_a_list_of_seeds_has_one_for_each_environment(self, seeds, batches):
        with pytest.raises(ValueError, match=r"seed|length"):
            batches().reset(seed=seeds)

    def test_the_number_of_environments_does_not_change_results(self, batches):
        few, many = batches(), batches(5)
        actions = self.actions(many)
        ours = play(few, [rows_of(action, slice(3)) for action in actions], seed=6)
        theirs = play(many, actions, seed=6)
        for step, wide in zip(ours, theirs, strict=True):
            assert_same(step[:-1], tuple(rows_of(part, slice(3)) for part in wide[:-1]))

    def test_an_episode_that_ends_is_kept_and_the_next_begins_in_the_same_step(self, batches):
        following, stopping = batches(), batches(autoreset=False)
        seen = np.zeros(3, int)
        observations, _ = following.reset(seed=12)
        raw, _ = stopping.reset(seed=12)
        assert_same(on_host(observations), on_host(raw))
        for action in self.actions(following):
            observations, rewards, terminated, truncated, infos = on_host(following.step(action))
            raw, *raw_rest, _ = on_host(stopping.step(action))
            assert_same([rewards, terminated, truncated], raw_rest)
            ended = terminated | truncated
            started = on_host(stopping.reset(options={"reset_mask": ended})[0]) if ended.any() else raw
            assert_same(observations, started)
            for row in np.flatnonzero(ended):
                assert_same(final_observation(infos, row), row_of(raw, row))
            seen += ended
        assert seen.all()

    def test_a_mask_resets_some_and_leaves_the_others(self, batches):
        envs = batches(autoreset=False)
        envs.reset(seed=3)
        before = on_host(envs.step(self.actions(envs, 1)[0])[0])
        mask = np.array([True, False, True])
        after = on_host(envs.reset(seed=3, options={"reset_mask": mask})[0])
        fresh = on_host(envs.reset(seed=3)[0])
        for row, chosen in enumerate(mask):
            assert_same(row_of(after, row), row_of(fresh if chosen else before, row))

    @pytest.mark.parametrize(
        "mask",
        [np.zeros(3, bool), np.ones(2, bool), np.ones(4, bool), np.ones((1, 3), bool)],
        ids=["none", "few", "many", "2-d"],
    )
    def test_a_mask_that_fits_no_batch_is_refused(self, mask, batches):
        envs = batches(autoreset=False)
        envs.reset(seed=3)
        with pytest.raises((ValueError, TypeError), match="reset_mask"):
            envs.reset(options={"reset_mask": mask})

    def test_views_are_overwritten_and_copies_are_kept(self, batches):
        viewing, copying = batches(copy=False), batches(copy=True)
        view, copy = viewing.reset(seed=1)[0], copying.reset(seed=1)[0]
        kept = [(copy, on_host(copy))]
        overwritten = False
        for action in self.actions(viewing):
            before = on_host(view)
            new_view, returned = viewing.step(action)[0], copying.step(action)
            kept.append((returned, on_host(returned)))
            assert_same(on_host(view), on_host(new_view), "the first view shows the newest observation")
            overwritten |= digest(before) != digest(on_host(view))
            assert_same(on_host(returned[0]), on_host(new_view))
        assert overwritten
        for value, as_it_was in kept:
            assert_same(on_host(value), as_it_was)

    @pytest.mark.parametrize("count", [2, 4])
    def test_actions_for_another_number_of_environments_are_refused(self, count):
        with contextlib.closing(self.build(3)) as envs:
            envs.reset(seed=1)
            with pytest.raises(ValueError):  # noqa: PT011 (each backend in its own words)
                envs.step(self.actions(envs, 1, width=count)[0])

    def test_closing_twice_is_harmless(self):
        envs = self.build(2)
        envs.reset(seed=1)
        envs.close()
        envs.close()
        assert envs.closed


class ResizeContract(VectorEnvContract):
    """What holds for every backend of ours besides: it has a name, and its number of environments may change."""

    backend: str

    def test_it_says_its_name(self, batches):
        assert batches().backend == self.backend

    def test_a_step_needs_an_episode_and_environments_that_are_open(self):
        with contextlib.closing(self.build(2)) as envs:
            action = self.actions(envs, 1)[0]
            with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
                envs.step(action)
            envs.reset(seed=1)
        for use in (envs.reset, lambda: envs.step(action), lambda: envs.resize(3)):
            with pytest.raises(ClosedEnvironmentError, match="closed"):
                use()

    def test_resizing_keeps_the_episodes_of_those_that_stay(self):
        """4, then 9, then 2: those that stay go on as if nothing had happened."""
        with contextlib.closing(self.build(4)) as envs, contextlib.closing(self.build(4)) as steady:
            observations, expected = on_host(envs.reset(seed=5)[0]), on_host(steady.reset(seed=5)[0])
            actions = iter(self.actions(steady, 3 * self.steps, width=9))
            for size in (4, 9, 2):
                if size != envs.num_envs:
                    observations = on_host(envs.resize(size))
                stay = slice(min(size, 4))
                assert_same(rows_of(observations, stay), rows_of(expected, stay))
                check_observations(envs.observation_space, observations)
                self.check_size(envs, size)
                ended = np.zeros(size, int)
                histories: list[list[int]] = [[] for _ in range(size)]
                for _ in range(self.steps):
                    action = next(actions)
                    step = on_host(envs.step(rows_of(action, slice(size))))
                    steady_step = on_host(steady.step(rows_of(action, slice(4))))
                    check_step(envs, step)
                    for ours, theirs in zip(step[:-1], steady_step[:-1], strict=True):
                        assert_same(rows_of(ours, stay), rows_of(theirs, stay))
                    ended += step[2] | step[3]
                    expected = steady_step[0]
                    for row, history in enumerate(histories):
                        history.append(digest(row_of(step[0], row)))
                assert ended.all()
                assert len(set(map(tuple, histories))) == size, "a new environment repeats another"
            check_observations(envs.observation_space, on_host(envs.reset(seed=6)[0]))
            self.check_size(envs, 2)

    def test_a_batch_that_grows_can_be_repeated(self):
        """What was seeded and then resized is the same in the next run, the new environments included."""
        grown = []
        for _ in range(2):
            with contextlib.closing(self.build(2)) as envs:
                envs.reset(seed=5)
                envs.resize(5)
                grown.append([on_host(envs.step(action)[:4]) for action in self.actions(envs)])
        assert_same(*grown)

    def check_size(self, envs: Any, size: int) -> None:
        assert envs.num_envs == size
        assert envs.observation_space == batch_space(envs.single_observation_space, size)
        assert envs.action_space == batch_space(envs.single_action_space, size)

    @pytest.mark.parametrize("size", [0, -1, 1.5, "3", None])
    def test_a_size_that_is_none_is_refused(self, size, batches):
        envs = batches()
        with pytest.raises(ValueError, match="num_envs"):
            envs.resize(size)
        assert envs.num_envs == 3
