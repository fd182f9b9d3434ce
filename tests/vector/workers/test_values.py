"""Values outside their spaces: what the contract of backends (tests/contracts/values.py) cannot show on few rows."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.spaces import Box, Dict, Discrete

import velodrome as vd
from tests.vector.foreign_envs import Plain, Valued
from velodrome.errors import ConfigError
from velodrome.vector.workers.batch_arrays import allocate_arrays
from velodrome.vector.workers.values import FEW_VALUES, ValueCheck

SPACE = Dict({"few": Box(np.array([1.0, -np.inf], np.float32), 3.0), "number": Discrete(3, start=1)})


def arrays_of(space, num_envs):
    """Return arrays in which every value is right."""
    arrays = allocate_arrays(space, num_envs)
    if isinstance(space, Dict):
        arrays.observations["few"][:], arrays.observations["number"][:] = 1.0, 1
    return arrays


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 3, 5], [2], [0, 1, 4, 6]], ids=str)
def test_rows_of_others_are_nobodys_business(rows):
    arrays = arrays_of(SPACE, 7)
    check = ValueCheck(SPACE, arrays, rows, True)
    for row in range(7):
        arrays.observations["few"][row, 1] = math.nan
        found = [own for own in rows if check.what_is_wrong(own, False)]
        assert found == [own for own in rows if own == row]
        assert not (found and check.is_right(False))
        arrays.observations["few"][row, 1] = 2.0
        assert check.is_right(False)


def test_last_observations_count_only_where_an_episode_ended():
    arrays = arrays_of(SPACE, 3)
    check = ValueCheck(SPACE, arrays, [0, 1, 2], True)
    assert check.is_right(True)  # memory that was never written
    arrays.final_observations["number"][1] = 4
    assert check.is_right(False)
    assert not check.is_right(True)
    assert [check.what_is_wrong(row, row == 1)[:20] for row in range(3)] == ["", "the last observation", ""]


@pytest.mark.parametrize("level", [True, "finite"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-2.0, 2.0)])
def test_large_observations_are_looked_at_as_well(bounds, kind, level):
    space = Box(*bounds, (FEW_VALUES // 2, 2), kind)
    arrays = arrays_of(space, 3)
    check = ValueCheck(space, arrays, [0, 2], level)
    assert check.is_right(True)
    arrays.final_observations[0, 7, 1] = math.nan
    assert check.is_right(False)  # no episode ended
    assert not check.is_right(True)
    arrays.final_observations[0, 7, 1] = 1.0
    assert check.is_right(True)
    for value in (math.nan, math.inf, -math.inf):
        arrays.observations[2, 7, 1] = value
        assert not check.is_right(False)
        assert check.what_is_wrong(2, False).startswith(f"the observation[7, 1] is {value}")
        check.put_back(2)
        assert check.is_right(False)


def test_what_was_right_last_is_put_back():
    arrays = arrays_of(SPACE, 4)
    check = ValueCheck(SPACE, arrays, [1, 3], True)
    for number in (1, 2):
        arrays.observations["number"][[1, 3]] = number
        assert check.is_right(False)
    arrays.observations["number"][3], arrays.observations["few"][3] = 9, math.nan
    assert not check.is_right(False)
    check.put_back(3)
    assert arrays.observations["number"].tolist() == [1, 2, 1, 2]
    assert arrays.observations["few"][3].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("autoreset", ["next_step", False])
def test_a_wrong_value_is_cut_off_as_the_mode_says(autoreset):
    envs = vd.make_vec(
        Valued, 2, backend="serial", on_fault="restart", autoreset=autoreset, copy=True, check_values=True
    )
    with contextlib.closing(envs):
        envs.reset()
        envs.step([0, 0])
        envs.set_some([1], "instead", {"whole": np.array([11], np.int32)})
        observations, rewards, terminated, truncated, infos = envs.step([0, 0])
        assert observations["whole"][:, 0].tolist() == [2, 1]  # the last good one
        assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([1, 0], [False] * 2, [False, True])
        assert "count" not in infos or not infos["_count"][1]
        if autoreset:
            assert envs.step([0, 0])[0]["whole"][:, 0].tolist() == [3, 0]
        else:
            observations, _ = envs.reset(options={"reset_mask": truncated})
            assert observations["whole"][:, 0].tolist() == [2, 0]


def test_an_environment_that_is_always_wrong_is_given_up():
    class Never(Valued):
        def observe(self):
            return {**super().observe(), "free": np.full((2, 2), np.nan, np.float32)}

    envs = vd.make_vec(Never, 2, backend="serial", on_fault="restart", max_restarts=3)
    with contextlib.closing(envs), pytest.raises(RuntimeError, match=r"'free'\]\[0, 0\] is nan.*\n.*restarted 3 times"):
        envs.reset()


@pytest.mark.parametrize("wrong", ["bounds", 0, 1, "true"])
@pytest.mark.parametrize(("env", "backend"), [("CartPole-v1", "serial"), ("template", "native")])
def test_what_check_values_may_be_is_told(env, backend, wrong):
    with pytest.raises(ConfigError, match=rf"check_values = {wrong!r}; legal: True, finite, False"):
        vd.make_vec(env, 2, backend=backend, check_values=wrong)


@pytest.mark.parametrize("given", [True, False, "finite"])
def test_the_configuration_of_a_run_reaches_the_environments(given):
    config = vd.VectorizedEnvConfig(num_envs=2, env_type="serial", enable_monitoring=False, check_values=given)
    with contextlib.closing(config.make("CartPole-v1")) as envs:
        assert envs.options.check_values is given
    rule = vd.VectorizedEnvConfig(num_envs=2, env_type="python", check_values=given).make("template")
    assert rule.check_values is bool(given)


NOT_FINITE = np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32)
PLAIN_WRONG = [
    ("floats", {"observation": NOT_FINITE}, "the observation[1, 0] is nan"),
    ("floats", {"observation": np.full((2, 2), -1e300)}, "the observation[0, 0] is -inf (infinite, or too large"),
    ("floats", {"observation": NOT_FINITE, "reward": math.nan}, "the observation[1, 0] is nan"),
    ("floats", {"observation": NOT_FINITE, "ended": True}, "the last observation[1, 0] is nan"),
    ("floats", {"first": NOT_FINITE, "ended": True}, "the observation[1, 0] is nan"),
    ("floats", {"reward": np.float32(np.inf), "ended": True}, "the reward is inf"),
    ("floats", {"reward": 3.5e38}, "the reward is 3.5e+38 (infinite, or too large for float32)"),
    ("floats", {"reward": math.nan, "ended": 7}, "terminated is 7"),
    ("number", {"observation": 100}, "the observation is 100; its space says 0 … 99"),
    ("number", {"reward": -math.inf}, "the reward is -inf"),
]


@pytest.mark.filterwarnings("ignore:.*overflow encountered in cast")
@pytest.mark.parametrize(("backend", "count"), [("serial", 1), ("serial", 3), ("serial", 13), ("async", 13)])
def test_however_many_rows_are_looked_at_a_wrong_value_is_told_and_the_last_right_one_put_back(backend, count):
    """Few rows, and rows that are handed over one by one, are looked at while they are written; many together."""
    options = {"workers": 1} if backend == "async" else {}
    actions, row = np.zeros(count, int), count // 2
    for kind in ("floats", "number"):
        made = vd.make_vec(lambda kind=kind: Plain(kind), count, backend=backend, on_fault="restart", **options,
                           max_restarts=100, copy=True)  # fmt: skip
        with contextlib.closing(made) as envs:
            for own, wrong, told in PLAIN_WRONG:
                if own != kind:
                    continue
                envs.reset()
                envs.step(actions)
                envs.set_some([row], "wrong", dict(wrong))
                observations, rewards, _, truncated, infos = envs.step(actions)
                assert told in infos["fault"][row], told
                assert infos["_fault"].tolist() == truncated.tolist() == [other == row for other in range(count)]
                assert np.all(infos["final_obs"][row] == 1), told
                assert [np.max(each) for each in observations] == [0 if other == row else 2 for other in range(count)]
                assert rewards[row] == 0.0
                assert "_fault" not in envs.step(actions)[-1]


@pytest.mark.parametrize(("backend", "count"), [("serial", 1), ("serial", 13)])
def test_numbers_close_to_infinity_are_right(backend, count):
    large = np.full((2, 2), -np.finfo(np.float32).max)
    with contextlib.closing(vd.make_vec(Plain, count, backend=backend, copy=True)) as envs:
        envs.reset()
        for wrong in ({"observation": large}, {"observation": large, "ended": True}, {"reward": -3.4e38}):
            envs.set_some([count - 1], "wrong", dict(wrong))
            *_, infos = envs.step(np.zeros(count, int))
            assert "_fault" not in infos
        assert envs.step(np.zeros(count, int))[0][count - 1].max() == 2.0


@pytest.mark.parametrize("count", [3, 8])  # looked at while they are written, and together
def test_an_action_that_is_not_finite_is_told_with_what_came_of_it(count):
    class Refusing(PendulumEnv):
        def step(self, action):
            if action[0] > 1e3:
                raise ValueError("too much")
            return super().step(action)

    actions = np.zeros((count, 1), np.float32)
    with contextlib.closing(vd.make_vec(Refusing, count, backend="serial", on_fault="restart")) as envs:
        envs.reset(seed=0)
        envs.step(actions)
        actions[:3, 0] = np.nan, np.inf, 2e3
        told = envs.step(actions)[-1]["fault"]
    assert "is nan" in told[0]
    assert told[0].endswith("Its action was array([nan], dtype=float32): mend the policy that chose it")
    assert "too much. Its action was array([inf], dtype=float32)" in told[1]
    assert told[2].endswith("ValueError: too much")
