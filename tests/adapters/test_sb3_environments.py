"""What Stable-Baselines3's own tests check of its VecEnvs, on each backend of ours, with DummyVecEnv as the oracle."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiBinary
from gymnasium.wrappers import ClipReward, TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

import velodrome as vd
from tests.adapters.scripted_env import Locked, ScriptedEnv, actions_for, gymnasium_sync, layered, scripted
from velodrome.adapters.sb3 import to_sb3
from velodrome.errors import VelodromeError

BACKENDS = ("serial", "process", "async")


@pytest.fixture(scope="module", params=("DummyVecEnv", *BACKENDS))
def venv(request):
    makers = [partial(layered, clipped) for clipped in (False, True, False)]
    if request.param == "DummyVecEnv":
        envs: VecEnv = DummyVecEnv(makers)
    else:
        workers = {} if request.param == "serial" else {"workers": 1}
        envs = to_sb3(vd.make_vec(makers, 3, backend=request.param, **workers), monitor=False)
    envs.reset()
    yield envs
    envs.close()


def test_what_environments_have_is_found_without_being_called_or_sent(venv):
    assert venv.has_attr("gain")
    assert venv.has_attr("needs")
    assert venv.has_attr("lock")
    assert not venv.has_attr("gian")


def test_an_attribute_that_is_missing_is_an_attribute_error(venv):
    with pytest.raises(AttributeError, match="gian"):
        venv.get_attr("gian")
    with pytest.raises(AttributeError, match="gian"):
        venv.env_method("gian")
    assert venv.get_attr("gain", indices=[1]) == [1.0]


def test_a_method_is_an_attribute_until_it_is_called(venv):
    assert venv.env_method("needs", 3) == [3, 3, 3]
    with pytest.raises(ValueError, match="argument = -1"):
        venv.env_method("needs", -1, indices=2)
    assert venv.env_method("needs", argument=4, indices=[0, -1]) == [4, 4]


def test_a_new_attribute_is_set_where_it_is_read(venv):
    venv.set_attr("fresh", 12)
    assert venv.get_attr("fresh") == [12, 12, 12]
    assert venv.env_method("set_wrapper_attr", "gain", 2.0, indices=[1]) == [True]
    assert venv.get_attr("gain") == [1.0, 2.0, 1.0]
    venv.env_method("set_wrapper_attr", "gain", 1.0)


def test_wrappers_are_seen_wherever_they_are(venv):
    assert venv.env_is_wrapped(ClipReward) == [False, True, False]
    assert venv.env_is_wrapped(TimeLimit, indices=[0, 1]) == [True, False]
    assert venv.env_is_wrapped(gymnasium.Wrapper) == [True, True, True]
    assert venv.env_is_wrapped(Locked, indices=0) == [False]  # no wrapper


def test_environments_of_this_process_are_at_hand(venv):
    if isinstance(venv, DummyVecEnv) or venv.vector_env.unwrapped.backend == "serial":
        assert isinstance(venv.envs[1], ClipReward)
        assert len(venv.envs) == 3
    else:
        with pytest.raises(AttributeError, match="get_attr, set_attr and env_method"):
            venv.envs  # noqa: B018


def test_gymnasium_s_environments_of_this_process_are_at_hand():
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    assert isinstance(to_sb3(gymnasium_sync(ScriptedEnv, 2, mode)).envs[1], ScriptedEnv)


def test_one_environment_given_several_times_is_refused():
    env = ScriptedEnv()
    for make in (DummyVecEnv, lambda makers: to_sb3(vd.make_vec(makers, 3, backend="serial"))):
        with pytest.raises(ValueError, match=r"same|different"):
            make([lambda: env] * 3)


# Wrappers on top


class Fallible(gymnasium.Env):
    """Observes its action."""

    observation_space = action_space = Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.asarray(action), 0.0, False, False, {}


WRAPPERS = {
    "frames": partial(VecFrameStack, n_stack=3),
    "normalised": VecNormalize,
    "monitored": VecMonitor,
    "checked": partial(VecCheckNan, raise_exception=True),
    "one part": partial(VecExtractDictObs, key="clock"),
    "all": lambda envs: VecFrameStack(VecNormalize(VecMonitor(VecExtractDictObs(envs, "clock"))), 2),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_on_top_do_what_they_do_over_dummy_vec_env(wrapper):
    observation = "dict" if wrapper in ("one part", "all") else "flat"
    theirs = WRAPPERS[wrapper](DummyVecEnv([partial(ScriptedEnv, observation=observation)] * 2))
    ours = WRAPPERS[wrapper](to_sb3(scripted("serial", 2, observation=observation), monitor=False))
    assert ours.observation_space == theirs.observation_space
    for envs in (ours, theirs):
        envs.seed(3)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    ends = 0
    for actions in actions_for(theirs.action_space, 2, 20):
        mine, other = ours.step(actions), theirs.step(actions)
        for left, right in zip(mine[:3], other[:3], strict=True):
            np.testing.assert_array_equal(left, right)
        for row in np.flatnonzero(mine[2]):
            ends += 1
            np.testing.assert_array_equal(mine[3][row]["terminal_observation"], other[3][row]["terminal_observation"])
            for key in ("r", "l") if wrapper in ("monitored", "all") else ():
                assert mine[3][row]["episode"][key] == other[3][row]["episode"][key]
    assert ends > 5


def test_not_a_number_is_found_by_whoever_looks_first():
    envs = VecCheckNan(to_sb3(vd.make_vec(Fallible, 1, backend="serial")), raise_exception=True)
    envs.reset()
    envs.step(np.zeros((1, 1)))
    for bad in (np.nan, np.inf):
        # In the action SB3's wrapper says so, in the observation that or our own check of values.
        with pytest.raises((ValueError, VelodromeError)):
            envs.step(np.full((1, 1), bad))


# Training


class Bits(gymnasium.Env):
    """Rewards the bits that it shows."""

    observation_space, action_space = MultiBinary(3), MultiBinary(3)
    received: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown, self.time = self.np_random.integers(0, 2, 3, np.int8), 0
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received = action
        self.time += 1
        reward = float(np.mean(action == self.shown))
        self.shown = self.np_random.integers(0, 2, 3, np.int8)
        return self.shown, reward, False, self.time == 8, {}


def test_ppo_learns_bits_whose_actions_it_chooses_as_floats():
    envs = to_sb3(vd.make_vec(Bits, 2, backend="serial"))
    model = PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, seed=0)
    model.learn(32, callback=EvalCallback(to_sb3(vd.make_vec(Bits, 1, backend="serial")), eval_freq=8, verbose=0))
    assert envs.get_attr("received")[0].dtype == np.int8
    actions, _ = model.predict(envs.reset())
    assert envs.step(actions)[1].shape == (2,)
    for bad in (0.5, -1.5, np.nan, 1e9):
        with pytest.raises(ValueError, match="Nothing was stepped"):
            envs.step(np.full((2, 3), bad, np.float32))


def test_a_nested_space_is_what_sb3_does_not_implement():
    nested = Dict({"a": Dict({"b": Box(0.0, 1.0, (2,), np.float32)})})

    class Nested(ScriptedEnv):
        observation_space = nested

        def __init__(self) -> None:
            super().__init__()
            self.observation_space = nested

    with pytest.raises(NotImplementedError, match="nothing nested"):
        to_sb3(vd.make_vec(Nested, 1, backend="serial"))
