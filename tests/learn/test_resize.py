"""Learners whose number of environments changes while they train: nothing is lost, and learning goes on."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import velodrome as vd
from tests.learn.learner_cases import NORMALISED, PPO_CASES, assert_same, iterated, make_dqn, make_sac, ppo_of
from tests.learn.learners import Bandit, foreign_worlds, make_ppo, parameters_of, trading_worlds
from velodrome.errors import BackendError, ConfigError
from velodrome.evaluation.play import play_episodes
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.ppo import PPO
from velodrome.rollout.worlds import make_worlds

DQN_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "three steps, by error": {"n_step": 3, "prioritised": True, **NORMALISED},
    "per bar": {"per_bar": "always", "duelling": False},
}
LEARNERS = {
    **{f"ppo, {case}": partial(ppo_of, case) for case in PPO_CASES},
    **{f"dqn, {case}": partial(make_dqn, **config) for case, config in DQN_CASES.items()},
    "sac": partial(make_sac, **NORMALISED),
}


def kept(learner: Any) -> dict[str, torch.Tensor]:
    """Return all of a learner's state that has nothing to do with how many environments there are."""
    tensors, plain = learner.state()
    parts = ("policy.", "target", "critics.", "entropy.", "engine.", "optimiser", "moments.", "learner.generator",
             "scale.mean", "scale.variance", "scale.count")  # fmt: skip
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(parts)}
    return found | {name: torch.tensor(plain[name]) for name in plain if name != "num_envs"}


@pytest.mark.parametrize("name", LEARNERS)
def test_what_was_learnt_is_carried_over_to_the_bit(name):
    learner = LEARNERS[name]()
    iterated(learner, 3)
    for size in (9, 2, 17):
        before = kept(learner)
        assert any(key.startswith(("engine.", "optimiser")) for key in before)
        learner.resize(size)
        after = kept(learner)
        assert before.keys() == after.keys()
        for key, tensor in before.items():
            assert torch.equal(tensor, after[key]), key
        steps = learner.steps
        metrics = iterated(learner, 2)
        assert learner.steps == steps + 2 * size * learner.config.rollout_length
        assert all(np.isfinite(value) for entry in metrics for value in entry.values())
        assert any(not torch.equal(tensor, kept(learner)[key]) for key, tensor in before.items() if "policy" in key)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name.startswith("ppo")])
def test_growing_and_shrinking_back_is_as_if_nothing_had_happened(name):
    one, other = LEARNERS[name](), LEARNERS[name]()
    assert iterated(one, 2) == iterated(other, 2)
    other.resize(70)
    other.resize(6)
    assert iterated(one, 3) == iterated(other, 3)
    assert_same(one, other)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_checkpoint_of_other_environments_is_continued_to_the_bit(name):
    """Made with 6, saved with 9, resumed by one that was made with 6 again."""
    learner = LEARNERS[name]()
    iterated(learner, 2)
    learner.resize(9)
    iterated(learner, 2)
    tensors, plain = learner.state()
    saved, words = save(tensors), json.dumps(plain)
    resumed = LEARNERS[name](seed=3)
    iterated(resumed, 3)
    resumed.load_state(load(saved), json.loads(words))
    assert resumed.worlds.num_envs == 9
    assert iterated(learner, 2) == iterated(resumed, 2)
    for each in (learner, resumed):  # and those that come later are the same, too
        each.resize(12)
    assert iterated(learner, 2) == iterated(resumed, 2)


@pytest.mark.parametrize("name", ["ppo, mlp, discrete", "ppo, gru, discrete, normalised", "dqn, three steps, by error"])
def test_a_checkpoint_of_before_sizes_could_change_is_loaded(name):
    learner, resumed = LEARNERS[name](), LEARNERS[name]()
    iterated(learner, 6)
    tensors, plain = learner.state()
    del plain["num_envs"]
    if "replay.position" in tensors:
        tensors["replay.position"] = tensors["replay.position"][:5]
        del tensors["replay.stride"]
    resumed.load_state(tensors, plain)
    assert iterated(learner, 2) == iterated(resumed, 2)


def test_new_environments_begin_with_an_empty_memory_and_a_start():
    learner = ppo_of("gru, discrete, normalised")
    iterated(learner, 2)
    memory, starts, returns = learner.memory.clone(), learner.starts.clone(), learner.scale.returns.clone()
    assert memory.any()
    learner.resize(8)
    assert torch.equal(learner.memory[:6], memory)
    assert not learner.memory[6:].any()
    assert torch.equal(learner.starts[:6], starts)
    assert learner.starts[6:].all()
    assert torch.equal(learner.scale.returns[:6], returns)
    assert not learner.scale.returns[6:].any()


def test_too_few_environments_for_the_minibatches_are_refused_and_nothing_changes():
    learner, other = (make_ppo(trading_worlds(6), {"kind": "gru"}, minibatches=4) for _ in range(2))
    with pytest.raises(ConfigError, match=r"minibatches = 4, but a rollout has only 3 environments"):
        learner.resize(3)
    assert learner.worlds.num_envs == 6
    assert iterated(learner, 2) == iterated(other, 2)


def test_too_many_environments_for_the_replay_buffer_are_refused_and_nothing_changes():
    learner, other = make_dqn(n_step=2), make_dqn(n_step=2)
    with pytest.raises(ConfigError, match=r"buffer_size = 100 holds 1 steps of 51 environments"):
        learner.resize(51)
    assert learner.worlds.num_envs == 6
    assert iterated(learner, 4) == iterated(other, 4)


@pytest.mark.parametrize("size", [0, -2, 1.5])
def test_no_environments_are_refused(size):
    for learner in (ppo_of("mlp, discrete"), make_dqn()):
        with pytest.raises(ConfigError, match=r"num_envs = .*at least 1"):
            learner.resize(size)
        assert learner.worlds.num_envs == 6
        learner.iterate()


def test_environments_that_cannot_be_resized_say_so_and_training_goes_on():
    learner = make_ppo(foreign_worlds(partial(Bandit, gymnasium.spaces.Discrete(2)), 4))
    learner.iterate()
    with pytest.raises(BackendError, match=r"SyncVectorEnv cannot change .*vd\.make_vec"):
        learner.resize(8)
    learner.iterate()


# Learning goes on

SIZES = (4, 64, 2)
CARTPOLE = {"gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 1e-3, "epochs": 8, "minibatches": 4,
            "rollout_length": 64, "target_kl": 0.02}  # fmt: skip


def trained_through(learner: PPO, play: Any, iterations: tuple[int, ...]) -> list[float]:
    """Train with each of SIZES in turn; return what the policy achieves at first and after each of them."""
    achieved = [play(learner)]
    for size, count in zip(SIZES, iterations, strict=True):
        before = parameters_of(learner)
        learner.resize(size)
        assert all(torch.equal(tensor, before[name]) for name, tensor in parameters_of(learner).items())
        for _ in range(count):
            learner.iterate()
        achieved.append(play(learner))
    return achieved


def template_return(learner: PPO) -> float:
    """Return the mean reward a step of the deterministic policy; the best is 0.6, a random one has 0."""
    envs = vd.make_vec("template", 200, seed=99, observation="cursor", autoreset=False)
    policy = TrainedPolicy.of(learner.policy, learner.worlds, learner.moments)
    policy.begin(200)
    observation, _ = envs.reset()
    total = 0.0
    for _ in range(10):  # no episode is over before
        observation, reward, _, _, _ = envs.step(policy.act(observation))
        total += float(reward.mean()) / 10
    return total


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_rule_is_learnt_with_4_then_64_then_2_environments(engine):
    worlds = make_worlds(vd.make_vec("template", 4, seed=0, observation="cursor", threads=1))
    learner = make_ppo(
        worlds, {"hidden": (16,)}, learning_rate=3e-3, gamma=0.5, epochs=4, minibatches=4, rollout_length=16,
        engine=engine, **NORMALISED,
    )  # fmt: skip
    first, *achieved = trained_through(learner, template_return, (6, 6, 20))
    assert first < 0.3
    assert achieved[0] > first
    assert achieved[1] > 0.5
    assert achieved[2] > 0.5
    assert learner.steps == 16 * (4 * 6 + 64 * 6 + 2 * 20)


def cartpole_return(learner: PPO) -> float:
    policy = TrainedPolicy.of(learner.policy, learner.worlds)
    make = partial(gymnasium.make, "CartPole-v1")
    return float(play_episodes(policy, foreign_worlds(make, 20).envs, 40, 999).returns.mean())


# A rule is learnt above in a fifth of the time.
@pytest.mark.slow
def test_cartpole_is_learnt_with_4_then_64_then_2_environments():
    worlds = make_worlds(vd.make_vec("CartPole-v1", 4, backend="serial", seed=0))
    learner = make_ppo(worlds, {"hidden": (64, 64)}, **CARTPOLE)
    first, *achieved = trained_through(learner, cartpole_return, (20, 20, 30))
    assert first < 60.0
    assert achieved[0] > first + 20.0
    assert achieved[1] > max(400.0, achieved[0])
    assert achieved[2] > 400.0
    worlds.envs.close()


def test_dqn_goes_on_with_what_it_remembers():
    """The bandit is learnt with 4 environments; with 2, and 32, it stays so, on transitions of before and after."""
    worlds = make_worlds(vd.make_vec(partial(Bandit, gymnasium.spaces.Discrete(2)), 4, backend="serial", seed=0))
    learner = make_dqn(
        worlds, {"hidden": (32,)}, total_steps=2000, updates=8, batch_size=64, buffer_size=2000, gamma=0.5,
        learning_rate=1e-2, epsilon_end=0.05, epsilon_fraction=0.2,
    )  # fmt: skip
    while learner.steps < 1000:
        learner.iterate()
    for size in (2, 32):
        held = int(learner.replay.filled) * learner.replay.num_envs - int(learner.replay.gap)
        learner.resize(size)
        # Whole rows of 32 fill less than the 2000 places.
        assert int(learner.replay.filled) * size - int(learner.replay.gap) == min(held, 2000 // size * size)
        rewards = [learner.iterate()["episode/mean_reward"] for _ in range(160 // size)]
        assert np.mean(rewards) > -0.15  # −0.5 is chance


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("network", "config"),
    [({}, {}), ({"shared": True, "activation": "relu"}, {"precision": "bfloat16"}), ({"kind": "gru"}, {}),
     # Every update stops after its first epoch: at a bound that some updates pass by little, rounding would decide.
     ({"kind": "conv"}, {"target_kl": 1e-7}), ({}, {"normalise_observations": True})],
)  # fmt: skip
def test_graphs_are_captured_anew(network, config):
    from tests.learn.engines.test_graphs import learner as gpu_learner

    captured, eager = (gpu_learner(network, cuda_graphs=graphs, **config) for graphs in (True, False))
    for size in (128, 300, 64):
        for each in (captured, eager):
            each.resize(size)
        ours, theirs = iterated(captured, 5), iterated(eager, 5)
        assert captured.collect.graph is not None
        half = config.get("precision") == "bfloat16"
        for left, right in zip(ours, theirs, strict=True):
            assert left.keys() == right.keys()
            if not half:
                # Sums in another order: a sample more or less is clipped, and little is explained so early.
                coarse = {"policy/clip_fraction", "value/explained_variance"}
                for name, value in left.items():
                    # The mean of advantages whose signs differ: of the order of 1e-3, whatever the weights.
                    near = 1e-2 if name in coarse else 1e-3 if name == "loss/policy" else 5e-4
                    assert value == pytest.approx(right[name], rel=3e-2, abs=near), name
            assert all(np.isfinite(value) for value in left.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("config", list(DQN_CASES.values()), ids=list(DQN_CASES))
def test_graphs_of_dqn_are_captured_anew(config):
    from tests.markets import small_market

    def make(graphs):
        envs = vd.make_vec("trading", 64, backend="cuda", market=small_market(bars=60, seed=1), observation="cursor",
                           seed=0, episode_length=(3, 9))  # fmt: skip
        settings = {"buffer_size": 5000, "batch_size": 256, **config}
        return make_dqn(make_worlds(envs), cuda_graphs=graphs, **settings)

    captured, eager = make(True), make(False)
    for size in (64, 200, 30):
        for each in (captured, eager):
            each.resize(size)
        for one, other in zip(iterated(captured, 5), iterated(eager, 5), strict=True):
            assert one == pytest.approx(other, rel=3e-3, abs=5e-4)
        assert captured.collect.graph is not None
