"""The suite for backends of foreign environments: what gymnasium.vector.SyncVectorEnv does, to the bit.

This is what Gymnasium promises, its public test cases in other words; its own vector environments pass it. Backends of
ours inherit `OwnBackendContract` (own_backend.py), which is this and what we promise besides.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.vector_env import (
    MODES,
    VectorEnvContract,
    assert_same,
    check_observations,
    check_step,
    ends,
    on_host,
    play,
    row_of,
)
from tests.vector.foreign_envs import (
    ACTION_KINDS,
    SPACE_KINDS,
    Counting,
    Marking,
    Sloppy,
    Unlike,
    Unsteady,
    digest,
    draw_actions,
    drawn_maker,
)
from tests.vector.kinds_of_infos import INFOS

SEEDS = [11, 2**31 - 1, 0]  # of three environments, where each has its own
INFO_KINDS = tuple(INFOS)


def info_kind(space_kind: str, autoreset: bool | str) -> str:
    """Return a kind of infos for a kind of observations, so that in each mode every kind of infos comes up."""
    return INFO_KINDS[(SPACE_KINDS.index(space_kind) + list(MODES).index(autoreset)) % len(INFO_KINDS)]


# What the batches are made of, by name: a batch of the same name and options is shared by the tests of a backend.
MAKERS: dict[str, Callable[[], gymnasium.Env]] = {
    "counting": Counting,
    "counting, truncated": partial(Counting, ending="truncated"),
    "counting, images": partial(Counting, render_mode="rgb_array"),
    "counting, text": partial(Counting, render_mode="ansi"),
    "counting, one buffer": partial(Counting, reuse_buffer=True),
    "sloppy": Sloppy,
    "unsteady": Unsteady,
    **{f"{kind}, {infos}": drawn_maker(kind, infos) for kind in SPACE_KINDS for infos in INFOS},
    "floats, one": drawn_maker("floats", "one"),
}


def reference(of: str, num_envs: int = 3, autoreset: bool | str = True) -> SyncVectorEnv:
    """Return Gymnasium's loop over the same environments."""
    return SyncVectorEnv([MAKERS[of]] * num_envs, autoreset_mode=MODES[autoreset])


@functools.cache
def reference_run(of: str, autoreset: bool | str) -> tuple[list[Any], list[Any]]:
    """Return actions and all that Gymnasium's loop makes of them."""
    envs = reference(of, 3, autoreset)
    actions = draw_actions(envs.single_action_space, 3, 200, seed=4)
    return actions, play(envs, actions, seed=SEEDS)


class BackendContract(VectorEnvContract):
    """What Gymnasium promises of any environment."""

    def make(self, env: Any, num_envs: int, **options: Any) -> Any:
        """Return a batch of an id, a class or a callable; options: autoreset (True, False, "next_step"), copy, seed."""
        raise NotImplementedError

    def build(self, num_envs: int, of: str = "floats, none", **options: Any) -> Any:
        return self.make(MAKERS[of], num_envs, **options)

    # The same as the reference

    @pytest.mark.parametrize("autoreset", MODES, ids=str)
    @pytest.mark.parametrize("kind", SPACE_KINDS)
    def test_it_does_what_gymnasium_does_to_the_bit(self, kind, autoreset, batches):
        of = f"{kind}, {info_kind(kind, autoreset)}"
        ours, theirs = batches(of=of, autoreset=autoreset), reference(of, 3, autoreset)
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.single_action_space == theirs.single_action_space
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.metadata == theirs.metadata
        actions, expected = reference_run(of, autoreset)
        record = play(ours, actions, seed=SEEDS)
        assert (ends(expected) > 10).all()
        for number, (left, right) in enumerate(zip(record, expected, strict=True)):
            assert_same(left, right, f"return {number}")
            if len(left) == 5:
                check_step(ours, left)
            else:
                check_observations(ours.observation_space, left[0])

    def test_every_kind_of_infos_came_up_in_every_mode(self):
        for autoreset in MODES:
            assert {info_kind(kind, autoreset) for kind in SPACE_KINDS} == set(INFOS)
        assert set(ACTION_KINDS.values()) == set(SPACE_KINDS)

    @pytest.mark.parametrize("kind", SPACE_KINDS)
    def test_actions_reach_the_environments_as_they_are(self, kind, batches):
        envs = batches(of=f"{kind}, {info_kind(kind, True)}", autoreset=True)
        envs.reset(seed=SEEDS)
        for action in draw_actions(envs.single_action_space, 3, 5, seed=8):
            envs.step(action)
            for row, received in enumerate(envs.get_attr("received")):
                assert digest(received) == digest(row_of(action, row))

    @pytest.mark.parametrize("kind", SPACE_KINDS)
    def test_samples_of_the_spaces_are_gymnasiums(self, kind, batches):
        of = f"{kind}, {info_kind(kind, True)}"
        ours, theirs = batches(of=of, autoreset=True), reference(of)
        for name in ("action_space", "single_action_space", "observation_space", "single_observation_space"):
            getattr(ours, name).seed(5)
            getattr(theirs, name).seed(5)
            for _ in range(3):
                assert_same(getattr(ours, name).sample(), getattr(theirs, name).sample(), name)

    def test_an_id_makes_gymnasiums_environment(self):
        theirs = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 7, autoreset_mode=MODES[True])
        with contextlib.closing(self.make("CartPole-v1", 7, autoreset=True)) as ours:
            actions = draw_actions(ours.single_action_space, 7, 100, seed=1)
            record = play(ours, actions, seed=3)
            assert ends(record).all()
            assert_same(record, play(theirs, actions, seed=3))

    @pytest.mark.parametrize(
        "give", [list, tuple, np.asarray, lambda actions: np.asarray(actions, np.int32)],
        ids=["list", "tuple", "array", "narrow array"],
    )  # fmt: skip
    def test_numbers_may_come_in_any_sequence(self, give, batches):
        envs = batches(of="counting", autoreset=True)
        envs.set_attr("length", 3)
        envs.reset()
        np.testing.assert_array_equal(envs.step(give([4, 0, 2]))[1], [1.4, 1.0, 1.2])

    def test_actions_may_lie_in_memory_as_they_like(self, batches):
        kind = next(kind for kind, actions in ACTION_KINDS.items() if actions == "image")
        envs = batches(of=f"{kind}, {info_kind(kind, True)}", autoreset=True)
        envs.reset(seed=SEEDS)
        plain = draw_actions(envs.single_action_space, 3, 1, seed=8)[0]
        read_only = plain.copy()
        read_only.flags.writeable = False
        strided = np.repeat(plain, 2, axis=0)[::2]
        for action in (np.asfortranarray(plain), plain[::-1].copy()[::-1], strided, read_only):
            envs.step(action)
            for row, received in enumerate(envs.get_attr("received")):
                assert digest(received) == digest(plain[row])

    @pytest.mark.parametrize("autoreset", [True, "next_step"])
    def test_careless_environments_are_taken_as_gymnasium_takes_them(self, autoreset, batches):
        ours, theirs = batches(of="sloppy", autoreset=autoreset), reference("sloppy", 3, autoreset)
        actions = draw_actions(ours.single_action_space, 3, 20, seed=2)
        record, expected = play(ours, actions), play(theirs, actions)
        for step, raw in zip(record, expected, strict=True):
            assert_same(step[:-1], raw[:-1])
            for left, right in zip(step[-1].get("final_obs", ()), raw[-1].get("final_obs", ()), strict=True):
                assert left.keys() == right.keys()
                for key in right:
                    np.testing.assert_array_equal(np.float32(left[key]), np.float32(right[key]))

    @settings(
        max_examples=settings().max_examples // 8,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data(), autoreset=st.sampled_from(list(MODES)))
    def test_any_sequence_of_calls_does_what_gymnasium_does(self, data, autoreset, batches):
        of = f"number, {info_kind('number', autoreset)}"
        ours, theirs = batches(of=of, autoreset=autoreset), reference(of, 3, autoreset)

        def reset_both(seeds: Any, mask: Any = None) -> None:
            # Gymnasium takes the mask out of the caller's options: each needs its own.
            ours_options, theirs_options = (mask if mask is None else {"reset_mask": np.array(mask)} for _ in range(2))
            expected = theirs.reset(seed=seeds, options=theirs_options)
            assert_same(on_host(ours.reset(seed=seeds, options=ours_options)), expected)

        reset_both(SEEDS)
        for kind, seed, mask in data.draw(st.lists(CALLS, max_size=25)):
            if kind != "step":
                reset_both({"seeds": [seed, None, seed + 1], "seed": seed, "no seed": None}[kind], mask)
                continue
            action = draw_actions(ours.single_action_space, 3, 1, seed)[0]
            expected = theirs.step(action)
            assert_same(on_host(ours.step(action)), expected)
            ended = expected[2] | expected[3]
            if not autoreset and ended.any():
                reset_both(None, ended)

    # Ends of episodes, by hand

    def test_same_step_ends_are_as_counted_by_hand(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.set_attr("length", [2, 3, 3])
        assert_counts(envs.reset()[0], [0, 0, 0])
        expected = [
            ([1, 1, 1], [False, False, False], None),
            ([0, 2, 2], [True, False, False], [2, None, None]),
            ([1, 0, 0], [False, True, True], [None, 3, 3]),
            ([0, 1, 1], [True, False, False], [2, None, None]),
        ]
        for counts, ended, final in expected:
            observations, rewards, terminated, truncated, infos = envs.step([1, 2, 3])
            assert_counts(observations, counts)
            reached = np.where(ended, [2, 3, 3], counts)
            np.testing.assert_array_equal(rewards, reached + np.array([1, 2, 3]) / 10)
            np.testing.assert_array_equal(terminated, ended)
            assert not truncated.any()
            if final is None:
                assert infos == {}
                continue
            assert set(infos) == {"final_obs", "_final_obs", "final_info", "_final_info"}
            assert [None if one is None else one[0] for one in infos["final_obs"]] == final
            np.testing.assert_array_equal(infos["_final_obs"], ended)
            np.testing.assert_array_equal(infos["_final_info"], ended)
            assert infos["final_info"] == {}

    def test_next_step_ends_are_as_counted_by_hand(self, batches):
        envs = batches(of="counting", autoreset="next_step")
        envs.set_attr("length", [2, 3, 3])
        assert_counts(envs.reset()[0], [0, 0, 0])
        expected = [
            ([1, 1, 1], [1, 1, 1], [False, False, False]),
            ([2, 2, 2], [2, 2, 2], [True, False, False]),
            ([0, 3, 3], [0, 3, 3], [False, True, True]),
            ([1, 0, 0], [1, 0, 0], [False, False, False]),
        ]
        for counts, rewarded, ended in expected:
            observations, rewards, terminated, truncated, infos = envs.step([0, 0, 0])
            assert_counts(observations, counts)
            np.testing.assert_array_equal(rewards, rewarded)
            np.testing.assert_array_equal(terminated, ended)
            assert not truncated.any()
            assert infos == {}

    def test_disabled_ends_are_as_counted_by_hand(self, batches):
        envs = batches(of="counting, truncated", autoreset=False)
        envs.set_attr("length", [2, 3, 3])
        assert_counts(envs.reset()[0], [0, 0, 0])
        expected = [
            ([1, 1, 1], [False, False, False], None),
            ([2, 2, 2], [True, False, False], [0, 2, 2]),
            ([1, 3, 3], [False, True, True], [1, 0, 0]),
            ([2, 1, 1], [True, False, False], [0, 1, 1]),
        ]
        for counts, ended, after in expected:
            observations, _, terminated, truncated, infos = envs.step([0, 0, 0])
            assert_counts(observations, counts)
            np.testing.assert_array_equal(truncated, ended)
            assert not terminated.any()
            assert infos == {}
            if after is not None:
                observations, infos = envs.reset(options={"reset_mask": np.array(ended)})
                assert_counts(observations, after)
                assert infos == {}

    # Seeds and options

    def test_one_seed_is_counted_up(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset(seed=42)
        assert envs.np_random_seed == (42, 43, 44)
        envs.reset()
        assert envs.get_attr("np_random_seed") == (42, 43, 44)
        envs.reset(seed=[7, None, 9])
        assert envs.np_random_seed == (7, 43, 9)

    def test_options_reach_every_environment(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset(options={"level": 3, "map": "home"})
        assert envs.get_attr("options") == ({"level": 3, "map": "home"},) * 3
        envs.reset(options={"level": 4, "reset_mask": np.array([False, True, False])})
        assert [options["level"] for options in envs.get_attr("options")] == [3, 4, 3]

    # Methods and attributes

    def test_methods_and_attributes_of_all_are_reached(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset()
        envs.set_attr("length", 3)
        envs.set_attr("label", ["a", "b", "c"])
        assert envs.get_attr("label") == ("a", "b", "c")
        assert envs.call("label") == ("a", "b", "c")
        envs.step([0, 0, 0])
        assert envs.call("combine", 1, 2, suffix="!") == tuple(f"12! of {label} at 1" for label in "abc")
        envs.set_attr("label", "same")
        assert envs.get_attr("label") == ("same",) * 3
        envs.set_attr("label", ([1, 2], None, {"x": 1}))
        assert envs.get_attr("label") == ([1, 2], None, {"x": 1})

    @pytest.mark.parametrize("values", [[1], [1, 2, 3, 4], ()])
    def test_attributes_are_one_or_one_for_each(self, values, batches):
        envs = batches(of="counting", autoreset=True)
        envs.set_attr("label", "before")
        with pytest.raises(ValueError, match=r"\b3 environments") as caught:
            envs.set_attr("label", values)
        assert str(len(values)) in str(caught.value)
        assert envs.get_attr("label") == ("before",) * 3

    def test_metadata_of_the_environments_stays_theirs(self, batches):
        envs = batches(of="counting", autoreset="next_step")
        assert envs.metadata == {**Counting.metadata, "autoreset_mode": MODES["next_step"]}
        assert "autoreset_mode" not in Counting.metadata

    def test_all_are_rendered(self, batches):
        assert batches(of="counting", autoreset=True).render_mode is None
        images, texts = batches(of="counting, images", autoreset=True), batches(of="counting, text", autoreset=True)
        assert (images.render_mode, texts.render_mode) == ("rgb_array", "ansi")
        for envs in (images, texts):
            envs.reset()
            envs.step([0, 0, 0])
            envs.reset(options={"reset_mask": np.array([False, True, False])})
        frames = images.render()
        assert isinstance(frames, tuple)
        assert [(frame.shape, frame.dtype, int(frame.max())) for frame in frames] == [
            ((4, 6, 3), np.uint8, count) for count in (1, 0, 1)
        ]
        assert texts.render() == ("new 1", "new 0", "new 1")

    def test_wrapped_environments_are_reached_through_their_wrappers(self):
        with contextlib.closing(self.make(lambda: gymnasium.wrappers.TimeLimit(Counting(), 2), 2)) as envs:
            envs.set_attr("label", ["a", "b"])
            assert envs.get_attr("label") == ("a", "b")
            assert envs.call("combine", 1) == ("1 of a at 0", "1 of b at 0")
            envs.reset()
            envs.step([0, 0])
            np.testing.assert_array_equal(envs.step([0, 0])[3], [True, True])

    def test_environments_that_nobody_can_import_are_made(self):
        class Local(Counting):
            colour = "local"

        with contextlib.closing(self.make(Local, 2)) as envs:
            assert envs.get_attr("colour") == ("local", "local")

    # Refusals and closing

    @pytest.mark.parametrize("which", ["observation_space", "action_space"])
    def test_spaces_that_differ_are_refused(self, which, tmp_path):
        with pytest.raises((RuntimeError, ValueError), match="space"):
            self.make(partial(Unlike, str(tmp_path), which), 3)

    def test_what_was_closed_cannot_be_used(self):
        envs = self.make(Counting, 2)
        envs.reset()
        envs.close()
        for use in (envs.reset, partial(envs.step, [0, 0])):
            with pytest.raises((RuntimeError, ClosedEnvironmentError), match="clos"):
                use()

    def test_what_was_never_reset_can_be_closed(self):
        envs = self.make(Counting, 2)
        envs.close()
        assert envs.closed

    def test_every_environment_that_was_made_is_closed(self, tmp_path):
        for name in ("made", "closed"):
            (tmp_path / name).mkdir()
        envs = self.make(partial(Marking, str(tmp_path)), 3)
        envs.reset()
        envs.close()
        made, closed = (len(list((tmp_path / name).iterdir())) for name in ("made", "closed"))
        assert made >= 3
        assert closed == made

    # Gymnasium's wrappers on top

    @pytest.mark.parametrize("autoreset", [True, "next_step"])
    @pytest.mark.parametrize(
        "wrap",
        [
            wrappers.RecordEpisodeStatistics,
            wrappers.NormalizeReward,
            wrappers.DictInfoToList,
            partial(wrappers.ClipReward, min_reward=0.0, max_reward=30_000.0),
        ],
        ids=["RecordEpisodeStatistics", "NormalizeReward", "DictInfoToList", "ClipReward"],
    )
    def test_wrappers_do_the_same_over_it(self, wrap, autoreset, batches):
        of = f"doubles, {info_kind('doubles', autoreset)}"
        # Neither closed nor changed by the wrapper: the batch is shared.
        ours, theirs = wrap(batches(of=of, autoreset=autoreset)), wrap(reference(of, 3, autoreset))
        assert ours.observation_space == theirs.observation_space
        actions = draw_actions(ours.single_action_space, 3, 40, seed=2)
        records = [play(envs, actions, seed=SEEDS) for envs in (ours, theirs)]
        for record in records:
            for step in record:
                if isinstance(step[-1], dict):
                    step[-1].get("episode", {}).pop("t", None)  # seconds of the clock
        assert_same(*records)

    @pytest.mark.parametrize(
        ("wrap", "kind"),
        [
            (wrappers.NormalizeObservation, "doubles"),
            (wrappers.FlattenObservation, "named"),
            (partial(wrappers.ReshapeObservation, shape=(3, 1)), "floats"),
        ],
        ids=["NormalizeObservation", "FlattenObservation", "ReshapeObservation"],
    )
    def test_wrappers_of_observations_do_the_same_over_it(self, wrap, kind, batches):
        """These refuse same-step batches, whose final observations they would miss."""
        of = f"{kind}, {info_kind(kind, 'next_step')}"
        ours, theirs = wrap(batches(of=of, autoreset="next_step")), wrap(reference(of, 3, "next_step"))
        actions = draw_actions(ours.single_action_space, 3, 40, seed=2)
        assert_same(play(ours, actions, seed=SEEDS), play(theirs, actions, seed=SEEDS))


CALLS = st.tuples(
    st.sampled_from(["step", "step", "step", "seeds", "seed", "no seed"]),
    st.integers(0, 2**31 - 5),
    st.none() | st.lists(st.booleans(), min_size=3, max_size=3).filter(any),
)


def assert_counts(observations: np.ndarray, counts: list[int]) -> None:
    np.testing.assert_array_equal(observations[:, 0], counts)
