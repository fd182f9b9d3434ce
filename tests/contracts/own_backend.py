"""The suite that every backend of ours for foreign environments inherits: Gymnasium's promises, and ours.

class TestMine(OwnBackendContract):
    backend = "mine"

    def make(self, env, num_envs, **options):
        return vd.make_vec(env, num_envs, backend="mine", **options)
"""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from tests.contracts.backend import SEEDS, BackendContract, assert_counts, info_kind, reference_run
from tests.contracts.values import ValuesContract
from tests.contracts.vector_env import MODES, ResizeContract, assert_same, infos_of, play
from tests.vector.foreign_envs import ACTION_KINDS, Counting, Faulty, Marking, Strange, Unlike, digest, draw_actions
from velodrome.errors import EnvironmentFaultError


class Spaceless(Counting):
    """Forgets to say what its actions are."""

    def __init__(self) -> None:
        super().__init__()
        del self.action_space


class WithoutOptions(Counting):
    """Takes a seed and no options, as some environments for Stable-Baselines3 do."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def open_resources() -> tuple[int, int]:
    """Return how many descriptors this process has, and how many processes descend from it."""
    return len(list(Path("/proc/self/fd").iterdir())), len(psutil.Process().children(recursive=True))


class OwnBackendContract(ValuesContract, BackendContract, ResizeContract):
    """What we promise besides."""

    def build(self, num_envs: int, of: str = "floats, none", **options: Any) -> Any:
        # Gymnasium looks at no values, and Sloppy returns what lies outside its space.
        return super().build(num_envs, of, **({"check_values": False} if of == "sloppy" else {}), **options)

    def test_a_final_observation_survives_an_environment_that_reuses_its_memory(self, batches):
        """Gymnasium's keeps a reference, which the reset in the same step overwrites."""
        envs = batches(of="counting, one buffer", autoreset=True)
        envs.reset()
        for count in (1, 2, 3):
            *_, infos = envs.step([0, 0, 0])
            if count == 3:
                assert [final[0] for final in infos["final_obs"]] == [3, 3, 3]

    @pytest.mark.parametrize("autoreset", MODES, ids=str)
    def test_infos_survive_environments_that_write_all_into_one_dict(self, autoreset, batches):
        """Gymnasium's workers keep references, as with observations; its loop does not."""
        actions, expected = reference_run("floats, one", autoreset)
        record = play(batches(of="floats, one", autoreset=autoreset), actions, seed=SEEDS)
        for number, (left, right) in enumerate(zip(record, expected, strict=True)):
            assert_same(left, right, f"return {number}")

    @pytest.mark.parametrize(
        "values",
        [[0, 1.75, 3], [1.5, "none yet", None], [None, {"a": 1}, {"b": 2.5}], [{"a": 1}, 5, {}], [2**70, 1, True]],
        ids=repr,
    )
    def test_values_of_infos_stay_what_they_are(self, values, batches):
        """Gymnasium's casts them to the type of the first, or raises."""
        envs = batches(of="unsteady", autoreset=True)
        envs.set_attr("length", 2)
        envs.set_attr("label", values)
        envs.reset()
        for key in (None, "final_info"):
            *_, infos = envs.step([0, 0, 0])
            infos = infos if key is None else infos[key]
            assert [infos_of(infos, row) for row in range(3)] == [{"said": value} for value in values]

    def test_arrays_in_infos_may_differ_in_length(self, batches):
        envs = batches(of="unsteady", autoreset=True)
        envs.set_attr("label", [np.zeros(8), np.ones(5), np.ones(5, np.int8)])
        envs.reset()
        *_, infos = envs.step([0, 0, 0])
        assert [said.tolist() for said in infos["said"]] == [[0.0] * 8, [1.0] * 5, [1] * 5]

    def test_an_environment_without_a_space_is_at_fault(self):
        with pytest.raises(EnvironmentFaultError, match=r"environment 0 .*no attribute 'action_space'"):
            self.make(Spaceless, 2)

    def test_actions_of_another_type_arrive_in_that_of_the_space(self, batches):
        """A policy that computes in float64 sees the same environment on every backend."""
        kind = next(kind for kind, actions in ACTION_KINDS.items() if actions == "floats")
        envs = batches(of=f"{kind}, {info_kind(kind, True)}", autoreset=True)
        envs.reset(seed=1)
        plain = draw_actions(envs.single_action_space, 3, 1, seed=8)[0]
        envs.step(plain.astype(np.float64))
        for row, received in enumerate(envs.get_attr("received")):
            assert digest(received) == digest(plain[row])

    def test_refused_actions_step_nothing(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.set_attr("length", 3)
        envs.reset()
        for bad in ([0, 0], [0.5, 0.0, 1.0], [[0, 0, 0]], None, {"a": 1}):
            with pytest.raises(ValueError, match="Nothing was stepped"):
                envs.step(bad)
        for bad in (0, None, np.int64(1), np.array(1)):  # no batch at all: Gymnasium raises this too
            with pytest.raises(TypeError, match="Nothing was stepped"):
                envs.step(bad)
        assert_counts(envs.step([0, 0, 0])[0], [1, 1, 1])

    @pytest.mark.parametrize("seeds", [(4, 5, 6), np.array([4, 5, 6]), np.int64(4), 4], ids=repr)
    def test_seeds_may_be_numpys(self, seeds, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset(seed=seeds)
        assert envs.np_random_seed == (4, 5, 6)

    @pytest.mark.parametrize("seeds", [-1, 1.5, "ab", [1, -4, 2], [1.5, 2, 3], True], ids=repr)
    def test_what_is_no_seed_is_refused(self, seeds, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset(seed=7)
        with pytest.raises(ValueError, match="seed"):
            envs.reset(seed=seeds)
        assert envs.np_random_seed == (7, 8, 9)

    def test_options_of_the_caller_are_left_alone(self, batches):
        envs = batches(of="counting", autoreset=True)
        options = {"level": 3, "reset_mask": np.array([True, False, True])}
        envs.reset(options=options)
        assert list(options) == ["level", "reset_mask"]

    @pytest.mark.parametrize("which", ["observation_space", "action_space"])
    def test_spaces_that_differ_are_named(self, which, tmp_path):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            self.make(partial(Unlike, str(tmp_path), which), 3)
        message = str(caught.value)
        assert which.removesuffix("_space") in message
        assert "environment 1" in message
        assert str(gymnasium.spaces.Box(0.0, 7.0, (3,), np.float32)) in message

    def test_a_space_that_is_no_array_is_refused_by_name(self):
        # Gymnasium's AsyncVectorEnv raises one of the latter two.
        for kind in (RuntimeError, TypeError, ValueError):
            with pytest.raises(kind, match=r"StrangeSpace.*Box, Discrete, MultiDiscrete, MultiBinary, Dict"):
                self.make(Strange, 2)

    def test_an_attribute_that_is_missing_harms_nobody(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.set_attr("length", 3)
        envs.reset()
        envs.step([0, 0, 0])
        for use in (partial(envs.get_attr, "lenght"), partial(envs.call, "lenght")):
            with pytest.raises(AttributeError, match="lenght"):
                use()
        assert_counts(envs.step([0, 0, 0])[0], [2, 2, 2])

    def test_an_exception_of_a_method_is_raised_as_it_is(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset()
        with pytest.raises(TypeError, match="combine"):
            envs.call("combine")  # an argument is missing
        with pytest.raises(ValueError, match="bypass the batch"):
            envs.call("reset")
        assert envs.call_some([2], "combine", 1)[0].endswith("at 0")

    def test_what_environments_have_is_told_without_calling_it(self, batches):
        envs = batches(of="counting", autoreset=True)
        assert envs.ask_some([0, 2], "has_attribute", "combine") == [True, True]
        assert envs.ask_some([1], "has_attribute", "combin") == [False]
        assert callable(envs.ask_some([1], "get_attribute", "combine")[0])
        with pytest.raises(AttributeError, match="combin"):
            envs.ask_some([1], "get_attribute", "combin")
        assert envs.ask_some([1], "has_layer", "gymnasium.core.Wrapper") == [False]

    def test_one_object_in_several_rows_is_refused(self):
        env = Counting()
        with pytest.raises(ValueError, match=r"environments 0 and \d are the same object"):
            self.make(lambda: env, 4)

    def test_a_reset_without_options_suits_environments_that_know_none(self):
        with contextlib.closing(self.make(WithoutOptions, 2)) as envs:
            envs.reset(seed=3)
            for _ in range(3):
                observations, *_ = envs.step([0, 0])
            assert_counts(observations, [0, 0])

    def test_chosen_environments_are_rendered_called_and_set(self, batches):
        envs = batches(of="counting, text", autoreset=True)
        envs.set_attr("label", ["a", "b", "c"])
        envs.reset()
        assert envs.render([2, 0]) == ("c 0", "a 0")
        assert envs.render([]) == ()
        assert envs.call_some([1], "combine", 7) == ("7 of b at 0",)
        envs.set_some([0, 2], "label", "x")
        assert envs.get_attr("label") == ("x", "b", "x")
        for use in (envs.render, partial(envs.set_some, name="label", value=1)):
            with pytest.raises(ValueError, match=r"3.*0 … 2"):
                use([0, 3])

    def test_a_step_before_the_first_reset_is_refused(self):
        with contextlib.closing(self.make(Counting, 2)) as envs, pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            envs.step([0, 0])

    def test_an_episode_that_ended_is_not_stepped_on(self, batches):
        envs = batches(of="counting, truncated", autoreset=False)
        envs.set_attr("length", [1, 2, 1])
        envs.reset()
        envs.step([0, 0, 0])
        with pytest.raises(ResetNeeded, match=r"\[0, 2\]"):
            envs.step([0, 0, 0])
        envs.reset(options={"reset_mask": np.array([True, False, True])})
        assert_counts(envs.step([0, 0, 0])[0], [1, 2, 1])

    def test_what_was_closed_says_so_whatever_is_asked(self):
        envs = self.make(Counting, 2)
        envs.reset()
        envs.close()
        for use in (
            envs.reset, envs.render, partial(envs.step, [0, 0]), partial(envs.call, "combine", 1),
            partial(envs.get_attr, "label"), partial(envs.set_attr, "label", 1), partial(envs.resize, 3),
        ):  # fmt: skip
            with pytest.raises((RuntimeError, ClosedEnvironmentError), match="clos"):
                use()

    def test_environments_that_a_smaller_batch_does_not_need_are_closed(self, tmp_path):
        for name in ("made", "closed"):
            (tmp_path / name).mkdir()
        with contextlib.closing(self.make(partial(Marking, str(tmp_path)), 5)) as envs:
            envs.reset()
            envs.resize(2)
            made, closed = (len(list((tmp_path / name).iterdir())) for name in ("made", "closed"))
            assert made - closed == 2

    def test_what_is_closed_or_forgotten_leaves_nothing_behind(self, quick_collections):
        # The first one may start a server of processes, which stays.
        self.make(Counting, 1).close()
        gc.collect()
        before = open_resources()
        held = []
        for number in range(20):
            envs = self.make(Counting, 1)
            if number % 4:
                held.append(envs.reset()[0])
                envs.step([0])
            if number % 4 == 1:
                envs.resize(2)
            elif number % 4 == 2:
                envs.itself = envs
            elif number % 8 == 3:
                envs.close()
            del envs
        with pytest.raises(RuntimeError, match="on purpose"):
            self.make(partial(Faulty, where="constructor"), 1)
        gc.collect()
        # Arrays that somebody still has stay as they are; each may keep its memory, and nothing else.
        descriptors, processes = open_resources()
        assert (descriptors <= before[0] + len(held), processes) == (True, before[1])
        assert [observations[0, 0] for observations in held] == [1.0] * 15
        for observations in held:
            observations += 7.0
        del held, observations
        gc.collect()
        assert open_resources() == before

    def test_several_makers_make_one_environment_each(self):
        makers = [partial(Counting, length=length) for length in (1, 2, 3)]
        with contextlib.closing(self.make(makers, 3)) as envs:
            envs.reset()
            assert envs.get_attr("length") == (1, 2, 3)
            np.testing.assert_array_equal(envs.step([0, 0, 0])[2], [True, False, False])

    def test_health_is_told(self, batches):
        envs = batches(of="counting", autoreset=True)
        envs.reset()
        envs.step([0, 0, 0])
        assert envs.step_seconds.shape == (3,)
        assert envs.step_seconds.dtype == np.float64
        assert (envs.step_seconds > 0).all()
        assert (envs.step_seconds < 60).all()
        assert envs.alive.all()
        assert envs.alive.shape == (3,)
        assert not envs.restarts.any()
        assert (envs.worker_restarts, list(envs.faults)) == (0, [])
