"""`to_torchrl` is a batched EnvBase: it keeps its specifications, last observations, partial resets and seeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, InitTracker, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs, step_mdp

import velodrome as vd
from tests.adapters.scripted_env import ACTIONS, CASES, Spaces, actions_for, gymnasium_sync, scripted
from tests.markets import small_market
from velodrome.adapters import torchrl as adapter
from velodrome.adapters.torchrl import VelodromeEnv, to_torchrl
from velodrome.errors import BackendError, ConfigError
from velodrome.outside.extras import install

MARKET = small_market()
trading = partial(vd.make_vec, "trading", 4, market=MARKET, seed=3, episode_length=(4, 9))

MAKERS = {
    **{
        f"trading, {observation}": partial(trading, observation=observation)
        for observation in ("flat", "dict", "cursor")
    },
    "trading, continuous": partial(trading, action="continuous"),
    "trading, copies": partial(trading, copy=True),
    **{case: partial(scripted, case, 4) for case in CASES},
    "parts": partial(scripted, "serial", 4, observation="dict"),
    **{action: partial(scripted, "serial", 4, action=action) for action in ACTIONS},
}


def named(observations: Any) -> dict[str, Any]:
    return observations if isinstance(observations, dict) else {"observation": observations}


@pytest.mark.parametrize("name", MAKERS)
def test_the_specifications_are_kept(name):
    env = to_torchrl(MAKERS[name]())
    assert isinstance(env, EnvBase)
    assert isinstance(env, VelodromeEnv)
    assert env.batch_size == torch.Size([4])
    check_env_specs(env, seed=0)
    check_env_specs(env, break_when_any_done="both")
    env.close()


def test_keys_are_observation_or_the_names_of_the_parts():
    assert set(to_torchrl(trading()).observation_spec.keys()) == {"observation"}
    assert set(to_torchrl(trading(observation="dict")).observation_spec.keys()) == {"account", "1m", "2m"}


@pytest.mark.parametrize(
    "name", ["trading, flat", "trading, dict", "serial", "parts", "process", "gymnasium sync, next step"]
)
def test_next_holds_the_last_observation_and_the_root_the_first_of_the_next_episode(name):
    direct, env = MAKERS[name](), to_torchrl(MAKERS[name]())
    env.set_seed(7)
    current = env.reset()
    for key, part in named(direct.reset(seed=7)[0]).items():
        np.testing.assert_array_equal(current[key].numpy(), part)
    ends = 0
    for actions in actions_for(direct.single_action_space, 4, 25):
        observations, rewards, terminated, truncated, infos = direct.step(actions)
        ended = terminated | truncated
        stepped, current = env.step_and_maybe_reset(current.set("action", torch.from_numpy(actions)))
        after = stepped["next"]
        np.testing.assert_array_equal(after["reward"].squeeze(-1).numpy(), np.asarray(rewards, np.float32))
        for key, flags in (("terminated", terminated), ("truncated", truncated), ("done", ended)):
            np.testing.assert_array_equal(after[key].squeeze(-1).numpy(), flags)
            assert not current[key].any()
        for key, part in named(observations).items():
            np.testing.assert_array_equal(current[key].numpy(), part)
            np.testing.assert_array_equal(after[key].numpy()[~ended], part[~ended])
        for row in np.flatnonzero(ended):
            ends += 1
            for key in named(observations):
                final = infos["final_obs"]
                whole = isinstance(final, np.ndarray) and final.dtype == object
                last = named(final[row])[key] if whole else named(final)[key][row]
                np.testing.assert_array_equal(after[key][int(row)].numpy(), last)
    assert ends > 8
    env.close()


@pytest.mark.parametrize("name", ["trading, flat", "trading, copies", "serial", "gymnasium sync"])
def test_what_was_returned_does_not_change_later(name):
    rollout = (env := to_torchrl(MAKERS[name]())).rollout(15, break_when_any_done=False)
    before = rollout.clone()
    env.rollout(15, break_when_any_done=False)
    assert (rollout == before).all()


# Resets


def count_resets(monkeypatch: pytest.MonkeyPatch, envs: Any) -> list[Any]:
    """Return a list that grows by the mask, or None, of every reset of the vector environment."""
    calls: list[Any] = []
    reset = envs.reset

    def counted(**arguments: Any) -> Any:
        mask = (arguments.get("options") or {}).get("reset_mask")
        calls.append(None if mask is None else mask.tolist())
        return reset(**arguments)

    monkeypatch.setattr(envs, "reset", counted)
    return calls


def test_episodes_that_ended_are_not_begun_twice(monkeypatch):
    envs = scripted("serial", 4)
    calls = count_resets(monkeypatch, envs)
    rollout = to_torchrl(envs).rollout(20, break_when_any_done=False)
    assert rollout["next", "done"].sum() > 12
    assert calls == [None]


def test_a_partial_reset_begins_the_asked_ones_and_leaves_the_others(monkeypatch):
    envs = scripted("serial", 4)
    env = to_torchrl(envs)
    stepped = env.rand_step(env.reset())
    calls = count_resets(monkeypatch, envs)
    asked = step_mdp(stepped).set("_reset", torch.tensor([[True], [False], [False], [True]]))
    begun = env.reset(asked)
    assert begun["observation"][:, :2].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    assert calls == [[True, False, False, True]]
    after = env.rand_step(begun)["next", "observation"]
    assert after[:, :2].tolist() == [[1.0, 1.0], [0.0, 2.0], [0.0, 2.0], [1.0, 1.0]]


def test_a_partial_reset_of_rule_environments_begins_the_asked_ones_only():
    envs = trading()
    env = to_torchrl(envs)
    env.reset()
    before = envs.column("episode")
    env.reset(TensorDict({"_reset": torch.tensor([[False], [True], [False], [False]])}, [4]))
    assert (envs.column("episode") - before).tolist() == [0, 1, 0, 0]


def test_a_step_counter_cuts_episodes_off_that_go_on_otherwise():
    env = TransformedEnv(to_torchrl(scripted("serial", 3)), StepCounter(max_steps=2))
    rollout = env.rollout(9, break_when_any_done=False)
    # No episode reaches its own end, in its third step or later: each is begun again after two.
    assert rollout["next", "observation"][0, :, 1].tolist() == [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]
    assert not rollout["next", "terminated"].any()
    assert rollout["next", "truncated"][0, :, 0].tolist() == [False, True] * 4 + [False]


def test_a_reset_that_the_environments_ignore_is_found_out():
    from tests.adapters.test_gymnasium import Silent

    env = to_torchrl(Silent(AutoresetMode.SAME_STEP))
    stepped = env.rand_step(env.reset())
    with pytest.raises(BackendError, match="ignored options"):
        env.reset(step_mdp(stepped).set("_reset", torch.tensor([[True], [False]])))


def test_a_rollout_may_wait_for_all_to_end():
    rollout = to_torchrl(trading()).rollout(30, break_when_any_done=False, break_when_all_done=True)
    assert 4 <= rollout.shape[1] <= 9
    assert rollout["next", "done"].any(dim=1).all()


# Seeds


@pytest.mark.parametrize("name", ["trading, flat", "serial"])
def test_a_seed_is_that_of_the_vector_environment_and_repeats(name):
    direct, env = MAKERS[name](), to_torchrl(MAKERS[name]())
    env.set_seed(5)
    first = env.reset()["observation"]
    np.testing.assert_array_equal(first.numpy(), direct.reset(seed=5)[0])
    second = env.reset()["observation"]
    assert not torch.equal(second, first)
    again = to_torchrl(MAKERS[name]())
    again.set_seed(5)
    assert torch.equal(again.reset()["observation"], first)
    assert torch.equal(again.reset()["observation"], second)


# Collectors


def random_policy(env: Any) -> Any:
    return lambda tensordict: tensordict.set("action", env.action_spec.rand())


@pytest.mark.parametrize("name", ["trading, flat", "trading, dict", "serial", "process"])
def test_a_collector_collects_and_its_returns_are_ours(name):
    direct = to_torchrl(MAKERS[name]())
    env = TransformedEnv(direct, RewardSum())
    collector = Collector(env, random_policy(env), frames_per_batch=80, total_frames=240)
    batches = [batch.clone() for batch in collector]
    data = torch.cat(batches, 1)
    assert data.shape == (4, 60)
    done = data["next", "done"].squeeze(-1)
    assert done.sum() > 10
    sums = torch.zeros(4)
    for t in range(60):
        sums += data["next", "reward"][:, t, 0]
        torch.testing.assert_close(data["next", "episode_reward"][:, t, 0], sums)
        sums[done[:, t]] = 0.0
    # What follows a step is what the next one starts from, unless an episode ended between them.
    for key in list(direct.observation_spec.keys()):
        follows, starts = data["next", key][:, :-1], data[key][:, 1:]
        kept = ~done[:, :-1]
        assert torch.equal(follows[kept], starts[kept])
        assert not torch.equal(follows[~kept], starts[~kept])
    collector.shutdown()


def test_a_policy_of_torch_modules_collects():
    env = TransformedEnv(to_torchrl(trading()), InitTracker())
    width = env.observation_spec["observation"].shape[-1]
    network = torch.nn.Linear(width, 3)
    policy = TensorDictModule(lambda seen: network(seen).argmax(-1), ["observation"], ["action"])
    collector = Collector(env, policy, frames_per_batch=40, total_frames=80)
    batches = [batch.clone() for batch in collector]
    assert [batch.shape for batch in batches] == [(4, 10)] * 2
    starts = torch.cat([batch["is_init"] for batch in batches], 1).squeeze(-1)
    done = torch.cat([batch["next", "done"] for batch in batches], 1).squeeze(-1)
    assert starts[:, 0].all()
    assert torch.equal(starts[:, 1:], done[:, :-1])
    collector.shutdown()


# Refusals


FLAT = Box(0.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (Tuple((FLAT, FLAT)), Discrete(2), "the observation space is or holds Tuple"),
        (Dict({"a": Tuple((FLAT,))}), Discrete(2), "the observation space is or holds Tuple"),
        (FLAT, Dict({"a": FLAT}), "the action space is or holds Dict"),
        (FLAT, MultiDiscrete([[2, 3]]), "of one dimension"),
        (FLAT, Discrete(3, start=1), "starts at 1; TorchRL counts from 0"),
    ],
    ids=["tuple", "tuple within", "named actions", "table of numbers", "start"],
)
def test_spaces_that_do_not_fit_are_refused(observation, action, words):
    with pytest.raises(ConfigError, match=words):
        to_torchrl(gymnasium_sync(partial(Spaces, observation, action), 1, AutoresetMode.SAME_STEP))


def test_a_changed_size_is_refused():
    envs = trading()
    env = to_torchrl(envs)
    current = env.rand_action(env.reset())
    envs.resize(6)
    with pytest.raises(BackendError, match="resized from 4 to 6"):
        env.step(current)


def test_options_of_reset_are_refused():
    with pytest.raises(ConfigError, match="received cursor"):
        to_torchrl(trading()).reset(cursor=4)


def test_closing_closes_the_environments():
    envs = scripted("serial", 2)
    env = to_torchrl(envs)
    env.close()
    assert envs.closed
    assert env.is_closed


def test_without_torchrl_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrl.envs", None)
    adapter.env_class.cache_clear()
    try:
        with pytest.raises(ImportError, match=re.escape(install("torchrl"))):
            to_torchrl(trading())
    finally:
        adapter.env_class.cache_clear()


# On a device


@pytest.mark.slow
def test_on_the_simulated_device_it_does_what_it_does_on_the_cpu():
    """In a process of its own: the simulator must be chosen before Numba is imported."""
    script = Path(__file__).with_name("device_cases.py")
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split()[-1] == "agreed"
