"""What every backend makes of values outside their spaces: `ValuesContract`, which OwnBackendContract inherits, for
foreign environments, and `RuleValuesContract` for rules.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import velodrome as vd
from tests.vector.foreign_envs import Valued
from velodrome.envs import _template
from velodrome.envs.contract import Rule, World
from velodrome.tables.windows import WindowPart, stack_windows
from velodrome.vector.space_arrays import on_host
from velodrome.vector.workers.faults import EnvironmentFaultError

# What is returned instead of which value, and what is said about it.
WRONG: list[tuple[str, Any, str]] = [
    ("free", np.array([[0, 0], [np.nan, 0]], np.float32), "['free'][1, 0] is nan; expected a finite number"),
    ("free", np.array([[0, -np.inf], [0, 0]], np.float32), "['free'][0, 1] is -inf (infinite, or too large"),
    ("free", np.full((2, 2), 1e300), "['free'][0, 0] is inf (infinite, or too large for float32)"),
    ("free", None, "['free'] is None; expected an array of shape (2, 2)"),
    ("free", [[0.0, None], [0.0, 0.0]], "['free'] has type object"),
    ("free", np.zeros((2, 3), np.float32), "['free'] has shape (2, 3); its space says (2, 2)"),
    ("free", np.zeros((2, 2), complex), "['free'] has type complex128; its space says float32"),
    ("bound", np.array([-1.0, 0.99]), "['bound'][1] is 0.99; its space says 1.0 … 2.0"),
    ("bound", np.array([math.nan, 1.0]), "['bound'][0] is nan"),
    ("bound", np.array([math.inf, 1.0]), "['bound'][0] is inf"),
    ("number", 0, "['number'] is 0; its space says 1 … 5"),
    ("number", 6, "['number'] is 6; its space says 1 … 5"),
    ("number", 1.5, "['number'] is 1.5; expected a whole number of Discrete(5, start=1)"),
    ("number", None, "['number'] is None; expected a whole number"),
    ("number", 10**30, "expected a whole number"),
    ("pair", (np.array([0, 2], np.int8), np.zeros(2, int)), "['pair'][0][1] is 2; its space says 0 … 1"),
    ("pair", (np.zeros(2, np.int8), np.array([0, 9])), "['pair'][1][1] is 9; its space says 0 … 8"),
    ("pair", (np.zeros(2, np.int8),), "expected a tuple of 2"),
    ("pair", None, "['pair'] is None; expected a tuple of 2"),
    ("whole", np.array([10], np.int32), "['whole'][0] is 10; its space says 0 … 9"),
    ("whole", np.array([2**32 + 1]), "too large for int32"),
    ("whole", np.array([0.5]), "['whole'] has type float64; its space says int32"),
    ("byte", np.array([300, 0]), "['byte'] has type int64; its space says uint8"),
    ("observation", None, "is None; expected a dict with"),
    ("observation", {"free": 1}, "expected a dict with"),
    ("reward", math.nan, "the reward is nan; expected a finite number"),
    ("reward", -math.inf, "the reward is -inf"),
    ("reward", np.float64(1e300), "the reward is 1e+300 (infinite, or too large for float32)"),
    ("reward", None, "the reward is None; expected a number"),
    ("reward", "5", "the reward is '5'; expected a number"),
    ("reward", 1j, "the reward is 1j; expected a number"),
    ("terminated", None, "terminated is None; expected True or False"),
    ("terminated", 2, "terminated is 2; expected True or False"),
    ("truncated", "no", "truncated is 'no'; expected True or False"),
    ("truncated", math.nan, "truncated is nan; expected True or False"),
]
# Right, though only just, or of another type than usual.
RIGHT: list[tuple[str, Any]] = [
    ("free", np.full((2, 2), np.finfo(np.float32).max)),
    ("free", [[1, 2], [True, -0.0]]),
    ("bound", np.array([-1.0, 2.0], np.float32)),
    ("number", np.int8(5)),
    ("pair", [np.array([True, False]), np.array([0, 8])]),
    ("whole", np.array([9])),
    ("reward", np.float32(-3e38)),
    ("reward", np.array(2)),
    ("reward", True),
    ("truncated", np.bool_(False)),
    ("truncated", 0),
    ("terminated", np.array(False)),
]


@pytest.mark.filterwarnings("ignore:.*overflow encountered in cast")
class ValuesContract:
    """A value outside its space is a fault, whoever returns it, whatever the space, and whichever call it is."""

    make: Callable[..., Any]

    @pytest.fixture(scope="class")
    @classmethod
    def valued(cls):
        options = {"on_fault": "restart", "max_restarts": 10**6, "copy": True, "check_values": True}
        with contextlib.closing(cls().make(Valued, 3, **options)) as envs:
            yield envs

    @pytest.mark.parametrize("where", ["step", "end", "reset"])
    def test_a_value_outside_its_space_is_a_fault_of_the_environment_that_returned_it(self, where, valued):
        """Replaced and cut off at its last good observation; told with environment, step and value; others go on."""
        for name, value, told in WRONG:
            if where == "reset" and name in ("reward", "terminated", "truncated"):
                continue
            lost = valued.lost_environments
            valued.reset(seed=1)
            valued.set_some([1], "where", where)
            assert "_fault" not in valued.step([0, 0, 0])[-1]
            valued.set_some([1], "instead", {name: value})
            if where == "reset":
                observations, infos = valued.reset()
                rewards, count = np.array([1.0, 0.0, 1.0]), 0
            else:
                observations, rewards, terminated, truncated, infos = valued.step([0, 0, 0])
                assert (terminated.tolist(), truncated.tolist()) == ([False] * 3, [False, True, False]), told
                assert infos["final_obs"][1]["free"].tolist() == [[1.0, 1.0], [1.0, 1.0]], told
                assert infos["final_obs"][1]["whole"].tolist() == [1], told
                count = 2
            assert infos["_fault"].tolist() == [False, True, False], told
            said = infos["fault"][1]
            assert said.startswith("environment 1"), said
            assert (f"observation{told}" if told.startswith("[") else told) in said, said
            assert f"wrong value in {'reset' if where == 'reset' else 'step'}: " in said, said
            assert rewards.tolist() == [1.0, 0.0, 1.0], told
            assert observations["free"][:, 0, 0].tolist() == [count, 0, count], told
            assert valued.lost_environments == lost + 1
            assert "_fault" not in valued.step([0, 0, 0])[-1], told

    def test_which_step_it_was_is_told(self, valued):
        valued.reset()
        valued.set_some([2], "where", "step")
        valued.set_some([2], "instead", {"reward": math.nan})
        first = valued.step([0, 0, 0])[-1]["fault"][2]
        for _ in range(3):
            valued.step([0, 0, 0])
        valued.set_some([2], "instead", {"reward": math.nan})
        assert "in its step 4 the reward is nan" in valued.step([0, 0, 0])[-1]["fault"][2], first

    def test_what_is_just_right_is_no_fault(self, valued):
        valued.reset()
        for name, value in RIGHT:
            valued.set_some([1], "instead", {name: value})
            *_, infos = valued.step([0, 0, 0])
            assert "_fault" not in infos, (name, value, infos)
            valued.reset()

    def test_a_wrong_value_raises_unless_told_otherwise(self):
        with contextlib.closing(self.make(Valued, 2)) as envs:
            envs.reset()
            envs.set_some([1], "instead", {"free": np.full((2, 2), np.nan)})
            with pytest.raises(EnvironmentFaultError, match=r"environment 1 .*in its step 1 .*'free'\]\[0, 0\] is nan"):
                envs.step([0, 0])
            observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})
            assert observations["whole"][:, 0].tolist() == [1, 0]
            assert envs.step([0, 0])[0]["whole"][:, 0].tolist() == [2, 1]

    def test_checks_can_be_relaxed_and_switched_off(self):
        outside = {"free": np.full((2, 2), np.inf), "number": 77, "reward": math.nan, "truncated": 0.0}
        with contextlib.closing(self.make(Valued, 2, check_values=False)) as envs:
            envs.reset()
            envs.set_some([1], "instead", outside)
            observations, rewards, *_ = envs.step([0, 0])
            assert np.isinf(observations["free"][1]).all()
            assert np.isnan(rewards[1])
            assert observations["number"].tolist() == [2, 77]

    @pytest.mark.parametrize("chosen", [{"check_values": "finite"}, {}], ids=str)
    def test_the_bounds_of_a_box_are_no_matter_unless_asked_for(self, chosen):
        """Gymnasium's own BipedalWalker leaves its space."""
        with contextlib.closing(self.make(Valued, 3, on_fault="drop", **chosen)) as envs:
            envs.reset()
            envs.set_some([1], "instead", {"whole": np.array([77], np.int32), "bound": np.array([50.0, 1.0])})
            assert envs.step([0, 0, 0])[0]["whole"][:, 0].tolist() == [1, 77, 1]
            envs.set_some([1], "instead", {"bound": np.array([1.0, np.inf])})
            envs.set_some([2], "instead", {"number": 77})
            *_, infos = envs.step([0, 0, 0])
            assert "['bound'][1] is inf" in infos["fault"][1]
            assert "['number'] is 77; its space says 1 … 5" in infos["fault"][2]
            assert envs.alive.tolist() == [True, False, False]
            assert "_fault" not in envs.step([0, 0, 0])[-1]


def step(i: int, action: Any, state: Any, tables: Any, params: Any) -> tuple[float, bool, bool]:
    """Earn 1 and go on, unless an action from 1 to 4 asks for something wrong, or 5 for the end."""
    state.cursor[i] += 1
    reward = 1.0
    if action == 1:
        reward = np.nan
    elif action == 2:
        reward = 1e300
    elif action == 3 or action == 4:
        state.position[i] = np.inf
    return reward, action >= 4, False


def wrong_world(windows: bool = False) -> World:
    """Return a world whose actions choose what is wrong with its values."""
    rule = Rule(_template.reset, step, _template.observe, _template.finish)
    world = replace(_template.template_world(), name="wrong", rule=rule, action_space=gymnasium.spaces.Discrete(6))
    bars = WindowPart(np.ones((60, 2), np.float32), np.arange(60))
    return replace(world, windows=stack_windows([(3, [bars])]), window_names=("bars",)) if windows else world


@pytest.mark.filterwarnings("ignore:.*overflow encountered in cast")
class RuleValuesContract:
    """NaN and infinity in what a rule returns are told with environment and name."""

    backend: str

    @pytest.mark.parametrize("windows", [False, True], ids=["alone", "beside windows"])
    def test_a_value_of_a_rule_that_is_no_number_is_told(self, windows):
        envs = vd.make_vec(wrong_world(windows), 70, backend=self.backend, seed=1, check_values=True)
        for action, told in (
            (1, "the reward is nan"),
            (2, "the reward is inf"),
            (3, "the observation 'position' is inf"),
            (4, "the last observation 'position' is inf"),
        ):
            envs.reset()
            envs.step(np.zeros(70, np.int64))
            actions = np.zeros(70, np.int64)
            actions[[3, 66]] = action
            with pytest.raises(EnvironmentFaultError) as caught:
                envs.step(actions)
            assert [fault.environment for fault in caught.value.faults] == [3, 66], told
            assert {fault.kind for fault in caught.value.faults} == {"wrong value"}
            assert f"environment 3 wrong value in step: {told}; expected a finite number" in str(caught.value)
        envs.reset()
        # Environment 5 ends an episode while the last observation of environment 3 is still the wrong one of before.
        ended = envs.step(np.where(np.arange(70) == 5, 5, 0))[2]
        assert np.flatnonzero(on_host(ended)).tolist() == [5]
        envs.close()

    def test_values_are_looked_at_where_code_is_not_ours(self):
        own = vd.make_vec("template", 3, backend=self.backend)
        theirs = vd.make_vec(wrong_world(), 3, backend=self.backend)
        assert (own.check_values, theirs.check_values) == (False, self.backend != "cuda")

    def test_what_nobody_looks_at_passes(self):
        if self.backend == "native":
            pytest.skip("a compilation; the code is that of the python backend")
        envs = vd.make_vec(wrong_world(), 3, backend=self.backend, seed=1, check_values=False)
        envs.reset()
        assert np.isnan(float(envs.step(np.array([0, 1, 0]))[1][1]))
