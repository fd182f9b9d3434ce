"""`to_sb3` is a VecEnv like those of Stable-Baselines3: DummyVecEnv is one oracle, our vector environment another."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import TransformReward
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

import velodrome as vd
from tests.adapters.scripted_env import ACTIONS, CASES, ScriptedEnv, Spaces, actions_for, gymnasium_sync, scripted
from tests.markets import small_market
from velodrome.adapters import sb3
from velodrome.adapters.sb3 import VelodromeVecEnv, to_sb3
from velodrome.errors import BackendError, ConfigError
from velodrome.outside.extras import install
from velodrome.vector.fleet.monitor import VecMonitor as OwnMonitor

MARKET = small_market()


def trading(num_envs: int = 4, **params: Any) -> Any:
    return vd.make_vec("trading", num_envs, market=MARKET, seed=3, episode_length=(4, 9), fee=0.001, **params)


# Beside DummyVecEnv


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in theirs)
    return np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("case", "observation"), [*((case, "flat") for case in CASES), ("gymnasium sync", "dict"), ("process", "dict")]
)
def test_it_does_what_dummy_vec_env_does(case, observation):
    theirs = DummyVecEnv([partial(ScriptedEnv, observation=observation)] * 3)
    ours = to_sb3(scripted(case, 3, observation=observation), monitor=False)
    assert isinstance(ours, VecEnv)
    assert isinstance(ours, VelodromeVecEnv)
    assert (ours.num_envs, ours.observation_space, ours.action_space) == (3, theirs.observation_space, Discrete(3))
    try:
        assert ours.seed(11) == theirs.seed(11)
        assert equal(ours.reset(), theirs.reset())
        assert ours.reset_infos == theirs.reset_infos
        truncated = 0
        for actions in actions_for(theirs.action_space, 3, 25):
            observations, rewards, dones, infos = ours.step(actions)
            expected = theirs.step(actions)
            assert equal(observations, expected[0])
            assert rewards.dtype == np.float32
            np.testing.assert_array_equal(rewards, expected[1])
            np.testing.assert_array_equal(dones, expected[2])
            assert ours.reset_infos == theirs.reset_infos
            for done, info, other in zip(dones, infos, expected[3], strict=True):
                if not done:
                    assert other.pop("TimeLimit.truncated") is False  # SB3's readers take absence for False
                assert equal(info, other), (info, other)
                truncated += info.get("TimeLimit.truncated", False)
        assert truncated >= 3
    finally:
        ours.close()


@pytest.mark.parametrize("action", ACTIONS)
def test_every_kind_of_action_reaches_the_environments(action):
    ours = to_sb3(scripted("serial", 2, action=action))
    ours.reset()
    for step, actions in enumerate(actions_for(ACTIONS[action], 2, 2), 1):
        rewards = ours.step(actions)[1]
        expected = step + actions.reshape(2, -1).sum(axis=1, dtype=np.float64) / 10
        np.testing.assert_allclose(rewards, expected, rtol=1e-6)


# Beside the rule environments themselves


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_rule_environments_say_the_same_as_without_the_adapter(observation):
    direct, ours = trading(observation=observation), to_sb3(trading(observation=observation))
    assert equal(ours.reset(), direct.reset()[0])
    episodes = 0
    for actions in actions_for(direct.single_action_space, 4, 40):
        seen, rewards, terminated, truncated, infos = direct.step(actions)
        observations, our_rewards, dones, our_infos = ours.step(actions)
        assert equal(observations, seen)
        np.testing.assert_array_equal(our_rewards, rewards)
        np.testing.assert_array_equal(dones, terminated | truncated)
        for row, info in enumerate(our_infos):
            if not dones[row]:
                assert info == {}
                continue
            episodes += 1
            final = infos["final_obs"]
            last = {name: part[row] for name, part in final.items()} if observation == "dict" else final[row]
            assert equal(info["terminal_observation"], last)
            assert info["TimeLimit.truncated"] is bool(truncated[row] and not terminated[row])
            statistics = {name: float(values[row]) for name, values in infos["statistics"].items()}
            assert info["statistics"] == statistics
            assert all(type(value) is float for value in info["statistics"].values())
            assert (info["episode"]["r"], info["episode"]["l"]) == (statistics["reward"], statistics["length"])
    assert episodes > 10


def test_the_seed_is_that_of_the_vector_environment():
    direct, ours = trading(), to_sb3(trading())
    assert ours.seed(5) == [5, 6, 7, 8]
    np.testing.assert_array_equal(ours.reset(), direct.reset(seed=5)[0])
    # Once only: the next reset goes on from there.
    np.testing.assert_array_equal(ours.reset(), direct.reset()[0])


def test_options_choose_where_the_next_episodes_start():
    ours = to_sb3(trading())
    ours.set_options({"cursor": 50})
    ours.reset()
    assert ours.get_attr("cursor") == [50] * 4
    ours.set_options([{"cursor": 60 + row} for row in range(4)])
    ours.reset()
    assert ours.get_attr("cursor") == [60, 61, 62, 63]
    ours.set_options([{"cursor": 50}, {}, {}, {}])
    with pytest.raises(ConfigError, match="the same names"):
        ours.reset()


@pytest.mark.parametrize("case", ["serial", "process", "async"])
def test_foreign_environments_take_options_each_of_its_own(case):
    ours = to_sb3(scripted(case, 3))
    ours.set_options({"episode": 7})
    assert ours.reset()[:, 0].tolist() == [7.0, 7.0, 7.0]
    assert ours.reset()[:, 0].tolist() == [8.0, 8.0, 8.0]
    ours.seed(5)
    ours.set_options([{"episode": 1}, {}, {"episode": 1}])
    first = ours.reset()
    assert first[:, 0].tolist() == [1.0, 9.0, 1.0]
    ours.seed(5)
    assert ours.reset()[:, 2].tolist() == first[:, 2].tolist()  # the seeds are those of one reset for all
    ours.close()


def test_other_vector_environments_take_one_set_of_options():
    ours = to_sb3(scripted("gymnasium sync", 2))
    ours.set_options([{"episode": 1}, {"episode": 2}])
    with pytest.raises(ConfigError, match="one set of options for all"):
        ours.reset()


# What Stable-Baselines3 keeps


@pytest.mark.parametrize("make", [trading, partial(scripted, "serial", 4), partial(scripted, "gymnasium sync", 4)])
def test_nothing_that_was_returned_changes_later(make):
    ours = to_sb3(make())
    kept = [ours.reset()]
    copies = [kept[0].copy()]
    last: list[tuple[Any, Any]] = []
    for actions in actions_for(ours.action_space, 4, 12):
        observations, rewards, dones, infos = ours.step(actions)
        kept += [observations, rewards, dones]
        copies += [observations.copy(), rewards.copy(), dones.copy()]
        last += [
            (info["terminal_observation"], info["terminal_observation"].copy()) for info in infos if info.get("episode")
        ]
    assert len(last) > 4
    assert all(np.array_equal(one, other) for one, other in [*zip(kept, copies, strict=True), *last])


@pytest.mark.parametrize("make", [trading, partial(scripted, "serial", 4)])
def test_what_is_written_into_an_info_stays_in_it(make):
    ours = to_sb3(make())
    ours.reset()
    for actions in actions_for(ours.action_space, 4, 3):
        infos = ours.step(actions)[3]
        assert not any("mine" in info for info in infos)
        infos[1]["mine"] = 1
        assert ["mine" in info for info in infos] == [False, True, False, False]


# Returns


def play(venv: Any, steps: int) -> tuple[list[dict], list[float]]:
    """Return what was said of each episode that ended, and returns summed up here."""
    venv.reset()
    said, summed, sums = [], [], np.zeros(venv.num_envs)
    for actions in actions_for(venv.action_space, venv.num_envs, steps):
        _, rewards, dones, infos = venv.step(actions)
        sums += rewards
        for row in np.flatnonzero(dones):
            said.append(infos[row]["episode"])
            summed.append(float(sums[row]))
            sums[row] = 0.0
    return said, summed


MAKERS = {
    "trading": trading,
    "serial": partial(scripted, "serial", 4),
    "process": partial(scripted, "process", 4),
    "changed rewards": lambda: TransformReward(trading(), lambda rewards: 3.0 * rewards),
    "monitored": lambda: OwnMonitor(trading()),
}


@pytest.mark.parametrize("name", MAKERS)
def test_episode_returns_are_the_sums_of_the_rewards(name):
    ours = to_sb3(MAKERS[name]())
    said, summed = play(ours, 40)
    assert len(said) > 8
    np.testing.assert_allclose([episode["r"] for episode in said], summed, rtol=1e-5, atol=1e-7)
    assert all(type(episode["r"]) is float and type(episode["l"]) is int for episode in said)
    assert all(0.0 <= episode["t"] < 600.0 for episode in said)
    ours.close()


@pytest.mark.parametrize("name", ["trading", "serial"])
def test_vec_monitor_on_top_counts_the_same(name, tmp_path):
    ours, _ = play(to_sb3(MAKERS[name]()), 40)
    file = tmp_path / "monitor.csv"
    monitored = VecMonitor(to_sb3(MAKERS[name](), monitor=False), str(file))
    theirs, _ = play(monitored, 40)
    np.testing.assert_allclose([e["r"] for e in ours], [e["r"] for e in theirs], rtol=1e-5, atol=1e-7)
    assert [e["l"] for e in ours] == [e["l"] for e in theirs]
    monitored.close()
    assert len(file.read_text().splitlines()) == len(theirs) + 2


def test_vec_monitor_says_that_it_counts_a_second_time():
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        VecMonitor(to_sb3(trading()))


def test_evaluate_policy_takes_our_returns():
    class Constant:
        def predict(self, observations: Any, **_: Any) -> Any:
            return np.ones(len(observations), np.int64), None

    # Warnings are errors here: without "episode" in the infos, SB3 warns that there is no monitor.
    returns, lengths = evaluate_policy(Constant(), to_sb3(scripted("serial", 2)), 4, return_episode_rewards=True)
    assert lengths == [3, 3, 4, 4]
    np.testing.assert_allclose(returns, [6.3, 6.3, 10.4, 10.4])


# Wrappers on top


def test_vec_normalize_normalises_last_observations_too():
    plain, normalised = to_sb3(trading()), VecNormalize(to_sb3(trading()), clip_obs=1e9, clip_reward=1e9)
    plain.reset()
    normalised.reset()
    ends = 0
    for actions in actions_for(plain.action_space, 4, 15):
        observations, rewards, dones, infos = plain.step(actions)
        theirs = normalised.step(actions)
        np.testing.assert_array_equal(normalised.get_original_obs(), observations)
        np.testing.assert_array_equal(normalised.get_original_reward(), rewards)
        np.testing.assert_allclose(normalised.unnormalize_obs(theirs[0]), observations, atol=1e-4)
        for row in np.flatnonzero(dones):
            last = normalised.normalize_obs(infos[row]["terminal_observation"])
            np.testing.assert_array_equal(theirs[3][row]["terminal_observation"], last)
            ends += 1
    assert ends > 3


@pytest.mark.parametrize("make", [trading, partial(trading, observation="dict"), partial(scripted, "serial", 4)])
def test_vec_frame_stack_stacks(make):
    envs = to_sb3(make())
    stacked = VecFrameStack(to_sb3(make()), 2)
    space = envs.observation_space
    part = (lambda seen: seen["account"]) if isinstance(space, Dict) else (lambda seen: seen)
    envs.seed(1)
    stacked.seed(1)
    width = part(envs.reset()).shape[-1]
    stacked.reset()
    for actions in actions_for(envs.action_space, 4, 12):
        now = part(envs.step(actions)[0])
        seen, _, dones, infos = stacked.step(actions)
        np.testing.assert_array_equal(part(seen)[..., width:], now)
        for row in np.flatnonzero(dones):
            assert part(infos[row]["terminal_observation"]).shape[-1] == 2 * width
            assert not part(seen)[row, ..., :width].any()


# Single environments


@pytest.mark.parametrize("case", ["gymnasium sync", "serial", "process", "async"])
def test_attributes_and_methods_of_chosen_environments(case):
    ours = to_sb3(scripted(case, 3))
    ours.reset()
    try:
        assert ours.get_attr("gain") == [1.0, 1.0, 1.0]
        ours.set_attr("gain", 2.0, indices=[0, -1])
        assert ours.get_attr("gain") == [2.0, 1.0, 2.0]
        assert ours.get_attr("gain", indices=1) == [1.0]
        assert ours.step(np.zeros(3, np.int64))[1].tolist() == [2.0, 1.0, 2.0]
        assert ours.env_method("shout", "ho", times=2, indices=[2, 0]) == ["0: hoho", "0: hoho"]
        assert ours.env_method("shout", "ho") == ["0: ho"] * 3
        ours.set_attr("gain", 3.0)
        assert ours.get_attr("gain") == [3.0] * 3
        assert ours.has_attr("gain")
    finally:
        ours.close()


def test_gymnasium_s_workers_are_called_all_or_none():
    ours = to_sb3(scripted("gymnasium async", 2))
    try:
        ours.reset()
        ours.set_attr("gain", 2.0, indices=[1])
        assert ours.get_attr("gain", indices=[0]) == [1.0]
        assert ours.env_method("shout", "ho") == ["0: ho"] * 2
        with pytest.raises(BackendError, match="all environments or of none"):
            ours.env_method("shout", "ho", indices=[1])
    finally:
        ours.close()


def test_rule_environments_show_their_state_and_what_they_share():
    ours = to_sb3(trading())
    ours.reset()
    assert ours.get_attr("cursor", indices=[2]) == [ours.vector_env.column("cursor")[2]]
    assert ours.get_attr("world") == [ours.vector_env.world] * 4
    assert not ours.has_attr("cursr")
    with pytest.raises(AttributeError, match="Did you mean 'cursor'"):
        ours.get_attr("cursr")
    lines = ours.env_method("render", indices=[1, 3])
    assert lines == [ours.vector_env.render()[1], ours.vector_env.render()[3]]
    with pytest.raises(AttributeError, match="no 'action_masks'"):
        ours.env_method("action_masks")
    with pytest.raises(ConfigError, match="fixed when they are made"):
        ours.set_attr("fee", 0.0)
    assert ours.render() is None


def test_wrappers_are_seen_where_they_can_be():
    envs = gymnasium_sync(lambda: gymnasium.wrappers.TimeLimit(ScriptedEnv(), 4), 2, AutoresetMode.SAME_STEP)
    ours = to_sb3(envs)
    assert ours.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True, True]
    assert ours.env_is_wrapped(gymnasium.wrappers.ClipReward, indices=0) == [False]
    assert ours.env_is_wrapped(Monitor) == [True, True]
    assert to_sb3(trading(), monitor=False).env_is_wrapped(Monitor) == [False] * 4


def test_pictures_are_tiled():
    ours = to_sb3(scripted("serial", 2, render_mode="rgb_array"))
    ours.reset()
    ours.step(np.zeros(2, np.int64))
    assert ours.render_mode == "rgb_array"
    assert [image.shape for image in ours.get_images()] == [(4, 4, 3)] * 2
    assert ours.render("rgb_array").shape == (8, 4, 3)
    blind = to_sb3(scripted("serial", 2))
    with pytest.warns(UserWarning, match="pictures need 'rgb_array'"):
        assert blind.get_images() == [None, None]


# Faults, sizes and refusals


class Breaking(ScriptedEnv):
    """Raises in its second step."""

    def step(self, action: Any) -> Any:
        if self.time == 1:
            raise RuntimeError("the market is closed")
        return super().step(action)


@pytest.mark.parametrize("policy", ["restart", "drop"])
def test_a_fault_is_an_episode_cut_off_and_named(policy):
    ours = to_sb3(vd.make_vec([ScriptedEnv, Breaking], 2, backend="serial", on_fault=policy))
    ours.reset()
    first = ours.step(np.zeros(2, np.int64))[0]
    _, rewards, dones, infos = ours.step(np.zeros(2, np.int64))
    assert dones.tolist() == [False, True]
    assert rewards.tolist() == [2.0, 0.0]
    assert "the market is closed" in infos[1]["fault"]
    assert infos[1]["TimeLimit.truncated"]
    np.testing.assert_array_equal(infos[1]["terminal_observation"], first[1])
    assert (infos[1]["episode"]["r"], infos[1]["episode"]["l"]) == (1.0, 2)
    for _ in range(6):
        ours.step(np.zeros(2, np.int64))


def test_a_changed_size_is_refused():
    envs = trading()
    ours = to_sb3(envs)
    ours.reset()
    envs.resize(6)
    with pytest.raises(BackendError, match="resized from 4 to 6"):
        ours.step(np.zeros(6, np.int64))


FLAT = Box(0.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (Tuple((FLAT, FLAT)), Discrete(2), r"the observation space is Tuple.*no Tuple"),
        (Dict({"a": Dict({"b": FLAT})}), Discrete(2), r"nothing nested"),
        (FLAT, Dict({"a": FLAT}), r"the action space is Dict"),
        (FLAT, Discrete(3, start=1), r"starts at 1; Stable-Baselines3 counts from 0"),
    ],
    ids=["tuple", "nested", "named actions", "start"],
)
def test_spaces_that_stable_baselines_cannot_take_are_refused(observation, action, words):
    envs = gymnasium_sync(partial(Spaces, observation, action), 1, AutoresetMode.SAME_STEP)
    with pytest.raises(ConfigError, match=words):
        to_sb3(envs)


def test_cursors_are_refused():
    with pytest.raises(ConfigError, match="observation='flat' or 'dict'"):
        to_sb3(trading(observation="cursor"))


def test_without_stable_baselines_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    sb3.vec_env_class.cache_clear()
    try:
        with pytest.raises(ImportError, match=re.escape(install("sb3"))):
            to_sb3(trading())
    finally:
        sb3.vec_env_class.cache_clear()


def test_importing_the_adapter_imports_no_other_library():
    code = (
        "import sys, velodrome.adapters.sb3, velodrome.adapters.torchrl\n"
        "print([name for name in ('stable_baselines3', 'torchrl', 'torch') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
