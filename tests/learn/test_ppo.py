"""PPO: its loss sample by sample, its bootstrapping, its brakes, and what it learns. See also test_ppo_contract."""

from __future__ import annotations

import copy
import math
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learn.learner_cases import assert_same, iterated
from tests.learn.learners import (
    Bandit,
    Endless,
    foreign_worlds,
    learnable_market,
    make_ppo,
    parameters_of,
    share_of_optimum,
    trading_worlds,
)
from velodrome.evaluation.play import play_episodes
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.actions import Categorical
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.autograd import Batch
from velodrome.learn.policy import Outputs
from velodrome.learn.ppo import ppo_loss
from velodrome.rollout.observation import Observation
from velodrome.rollout.ranks import shuffled

ENGINES = ["auto", "autograd"]


# The loss


def slow_loss(outputs, batch, config):
    """The loss and the five numbers to report, sample by sample in plain Python."""
    count = len(batch.actions)
    advantages = batch.advantage.tolist()
    if config.normalise_advantages:
        mean = sum(advantages) / count
        deviation = math.sqrt(sum((one - mean) ** 2 for one in advantages) / count)
        advantages = [(one - mean) / (deviation + 1e-8) for one in advantages]
    sums = np.zeros(5)
    for k in range(count):
        logits = outputs.parameters[k].tolist()
        level = math.log(sum(math.exp(logit) for logit in logits))
        chances = [math.exp(logit - level) for logit in logits]
        change = logits[int(batch.actions[k])] - level - float(batch.log_prob[k])
        ratio = math.exp(change)
        kept = min(max(ratio, 1.0 - config.clip), 1.0 + config.clip)
        value, target, old = float(outputs.value[k]), float(batch.returns[k]), float(batch.value[k])
        error = (value - target) ** 2
        if config.value_clip is not None:
            near = old + min(max(value - old, -config.value_clip), config.value_clip)
            error = max(error, (near - target) ** 2)
        sums += [
            -min(advantages[k] * ratio, advantages[k] * kept), 0.5 * error, -sum(p * math.log(p) for p in chances),
            ratio - 1.0 - change, abs(ratio - 1.0) > config.clip,
        ]  # fmt: skip
    report = sums / count
    return report[0] + config.value_weight * report[1] - config.entropy * report[2], report


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), count=st.integers(2, 30), normalise=st.booleans(),
    value_clip=st.sampled_from([None, 0.1, 1.0]), clip=st.sampled_from([0.05, 0.2]),
)  # fmt: skip
def test_the_loss_is_that_of_every_sample(seed, count, normalise, value_clip, clip):
    config = PPOConfig(clip=clip, value_clip=value_clip, normalise_advantages=normalise, entropy=0.02, value_weight=0.7)
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits, value = noise(count, 3), noise(count)
    actions = torch.randint(0, 3, (count,), generator=generator)
    log_prob = Categorical(3).log_prob(logits, None, actions) + 0.2 * noise(count)
    batch = Batch(actions, log_prob, noise(count), value + noise(count), value + 0.5 * noise(count))
    outputs = Outputs(logits, value, torch.zeros(count, 0))
    expected, numbers = slow_loss(outputs, batch, config)
    if normalise:  # over the whole minibatch, which the loss may see in parts
        advantage = batch.advantage
        batch = batch._replace(advantage=(advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8))
    loss, report = ppo_loss(outputs, None, Categorical(3), batch, config)
    assert float(loss) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(report.numpy(), numbers, rtol=1e-5, atol=1e-7)


def test_a_value_that_has_moved_far_enough_is_left_alone():
    config = PPOConfig(value_clip=0.1)
    value = torch.tensor([1.0, 1.0], requires_grad=True)
    # Both moved by 1 from 0: the first towards its return, the second away from it.
    batch = Batch(torch.zeros(2).long(), torch.zeros(2), torch.zeros(2), torch.tensor([5.0, -5.0]), torch.zeros(2))
    loss, _ = ppo_loss(Outputs(torch.zeros(2, 2), value, torch.zeros(2, 0)), None, Categorical(2), batch, config)
    loss.backward()
    assert value.grad[0] == 0.0
    assert value.grad[1] > 0.0


def test_shuffled_numbers_are_all_there_and_follow_the_generator():
    one, same, other = (shuffled(50, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert sorted(one.tolist()) == list(range(50))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


# What follows after the last step


@pytest.mark.parametrize("engine", ENGINES)
def test_a_truncated_episode_is_bootstrapped_from_its_true_last_state(engine):
    learner = make_ppo(foreign_worlds(lambda: Endless(5, terminates=False), 3), rollout_length=12, engine=engine)
    policy = copy.deepcopy(learner.policy)
    learner.iterate()
    with torch.no_grad():
        values = policy(Observation(torch.eye(6))).value
    rollout = learner.rollout
    assert rollout.truncated.sum(0).tolist() == [2, 2, 2]
    assert not rollout.terminated.any()
    torch.testing.assert_close(rollout.final_value[[4, 9]], values[5].expand(2, 3), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rollout.last_value, values[2].expand(3), rtol=1e-5, atol=1e-6)


def values_learned(terminates, engine, iterations=120):
    """The value of every step of an episode of five, each of which pays 1; gamma is 0.9."""
    make = partial(Endless, 5, terminates=terminates, shows_time=terminates)
    learner = make_ppo(
        foreign_worlds(make, 4), {"hidden": (32,)}, rollout_length=10, minibatches=1, epochs=8, gamma=0.9,
        learning_rate=1e-2, max_gradient_norm=10.0, engine=engine, total_steps=iterations * 40, schedule="linear",
    )  # fmt: skip
    for _ in range(iterations):
        learner.iterate()
    with torch.no_grad():
        return learner.policy(Observation(torch.eye(6))).value.numpy()


# Where an episode ends is looked at above, with both engines.
@pytest.mark.parametrize("engine", ["auto", pytest.param("autograd", marks=pytest.mark.slow)])
def test_rewards_go_on_after_a_truncation_and_end_with_a_termination(engine):
    assert values_learned(False, engine)[0] == pytest.approx(1.0 / (1.0 - 0.9), abs=0.1)
    finite = [sum(0.9**k for k in range(5 - t)) for t in range(5)]
    np.testing.assert_allclose(values_learned(True, engine)[:5], finite, atol=0.05)


# Brakes


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("target", "epochs"), [(None, 6), (1e-9, 1), (1e9, 6)])
def test_an_update_stops_once_the_policy_has_moved_far_enough(engine, target, epochs):
    learner = make_ppo(trading_worlds(6), epochs=6, target_kl=target, learning_rate=1e-2, engine=engine)
    metrics = learner.iterate()
    assert learner.epochs_done == epochs
    assert 0.0 < metrics["policy/kl"] < 1.0


@pytest.mark.parametrize("engine", ENGINES)
def test_value_clipping_slows_the_value_down(engine):
    """All returns lie far above the values, which without clipping move most of the way in one update."""
    moved = {}
    for clip in (None, 0.05):
        learner = make_ppo(
            foreign_worlds(lambda: Endless(5, terminates=False), 4), value_clip=clip, epochs=60, learning_rate=3e-3,
            max_gradient_norm=100.0, engine=engine,
        )  # fmt: skip
        before = copy.deepcopy(learner.policy)
        learner.iterate()
        with torch.no_grad():
            seen = Observation(torch.eye(6))
            moved[clip] = float((learner.policy(seen).value - before(seen).value)[:5].abs().mean())
    # Adam's momentum carries values a little further than the clip.
    assert moved[0.05] < 0.4 < 1.0 < moved[None]


class Spoiled(Endless):
    """Pays NaN once in a while."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, math.nan if self.step_number == 3 else 1.0, terminated, truncated, info


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("normalise", [False, True])
def test_a_nan_among_the_rewards_shows_in_the_losses(engine, normalise):
    learner = make_ppo(
        foreign_worlds(lambda: Spoiled(5, terminates=False), 3), engine=engine, normalise_rewards=normalise
    )
    metrics = learner.iterate()
    assert math.isnan(metrics["loss/policy"])
    assert math.isnan(metrics["loss/value"])
    assert math.isnan(metrics["episode/mean_reward"])


# What is resumed


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_environments_that_cannot_be_saved_start_new_episodes(kind):
    make = partial(foreign_worlds, partial(Bandit, gymnasium.spaces.Discrete(2)), 4)
    first = make_ppo(make(), {"kind": kind})
    iterated(first, 2)
    resumed = [make_ppo(make(), {"kind": kind}) for _ in range(2)]
    for learner in resumed:
        learner.load_state(*first.state())
        assert learner.starts.all()
        assert not learner.memory.any()
        assert_same(learner, first)
    assert iterated(resumed[0], 2) == iterated(resumed[1], 2)


# What is reported


@pytest.mark.parametrize("params", [{}, {"action": "continuous"}])
def test_metrics_are_those_of_the_rollout(params):
    learner = make_ppo(trading_worlds(6, **params), learning_rate=1e-3)
    metrics = learner.iterate()
    rollout = learner.rollout
    assert learner.steps == rollout.samples == 48
    assert metrics["episode/turnover"] > 0.0
    if params:
        assert metrics["action/mean"] == pytest.approx(float(rollout.actions.mean()))
    else:
        assert [metrics[f"action/{k}"] for k in range(3)] == pytest.approx(
            [float((rollout.actions == k).float().mean()) for k in range(3)]
        )
    left = np.var((rollout.returns - rollout.value).numpy()) / np.var(rollout.returns.numpy())
    assert metrics["value/explained_variance"] == pytest.approx(1.0 - left, rel=1e-4)
    assert metrics["episode/mean_reward"] == pytest.approx(float(rollout.reward.mean()), rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_reported_means_are_over_the_minibatches_that_there_were(engine):
    """Nine samples in four minibatches: torch's chunk would make only three of them."""
    learner = make_ppo(trading_worlds(3), rollout_length=3, minibatches=4, epochs=1, learning_rate=1e-12, engine=engine)
    metrics = learner.iterate()
    with torch.no_grad():
        rollout = learner.rollout
        outputs = learner.policy(rollout.observations(), learner.worlds.bank)
        entropy = learner.policy.distribution.evaluate(outputs.parameters, None, rollout.actions.flatten())[1]
    assert metrics["policy/entropy"] == pytest.approx(float(entropy.mean()), rel=1e-3)


def test_the_policy_sees_normalised_observations():
    learner = make_ppo(trading_worlds(6), normalise_observations=True, rollout_length=32, learning_rate=1e-12)
    raw = make_ppo(trading_worlds(6), rollout_length=32, learning_rate=1e-12)
    for _ in range(3):
        learner.iterate()
        raw.iterate()
    constant = raw.rollout.values.flatten(0, 1).std(0) < 1e-6
    spread = learner.rollout.values.flatten(0, 1).std(0)[~constant]
    assert float(learner.rollout.values.abs().max()) <= 10.0
    assert ((spread > 0.3) & (spread < 3.0)).all(), spread
    assert not torch.allclose(raw.rollout.values, learner.rollout.values, atol=0.1)


def test_rewards_are_scaled_for_learning_and_reported_as_they_were():
    scaled, raw = (
        make_ppo(trading_worlds(6), normalise_rewards=flag, rollout_length=32, gamma=0.5) for flag in (True, False)
    )
    assert scaled.iterate()["episode/mean_reward"] == raw.iterate()["episode/mean_reward"] != 0.0
    deviation = scaled.scale.moments.variance.sqrt().float()
    torch.testing.assert_close(scaled.rollout.reward, (raw.rollout.reward / deviation).clamp(-10.0, 10.0))


# What is learned


KINDS = {
    "discrete": gymnasium.spaces.Discrete(2),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([2, 3]),
    "continuous": gymnasium.spaces.Box(-1.0, 2.0, (2,)),
}


# The gradients of all kinds are those of autograd (tests/learn/engines), which takes four times as long.
@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        *(("auto", kind) for kind in KINDS),
        ("autograd", "discrete"),
        *(pytest.param("autograd", kind, marks=pytest.mark.slow) for kind in ("multi_discrete", "continuous")),
    ],
)
def test_every_kind_of_action_is_learned(engine, kind):
    space = KINDS[kind]
    worlds = foreign_worlds(partial(Bandit, space), 32)
    learner = make_ppo(worlds, learning_rate=1e-2, epochs=8, gamma=0.0, engine=engine)
    for _ in range(40):
        learner.iterate()
    policy = TrainedPolicy.of(learner.policy, worlds)
    played = play_episodes(policy, foreign_worlds(partial(Bandit, space), 50).envs, 200, seed=99)
    # Always the same action would give −0.25 per choice at best, a random one less.
    assert played.returns.mean() > -0.12


TRADING = {
    "gamma": 0.0, "learning_rate": 1e-3, "schedule": "linear", "normalise_rewards": True, "rollout_length": 32,
    "epochs": 4, "minibatches": 4,
}  # fmt: skip


def trading_share(kind, seed, iterations, network=None, **config):
    market = learnable_market(kind, seed)
    worlds = trading_worlds(256, seed=seed, market=market, split="train", episode_length=64, leverage=1.0)
    learner = make_ppo(
        worlds, {"hidden": (64, 64), **(network or {})}, seed, iterations * 256 * 32, **{**TRADING, **config}
    )
    for _ in range(iterations):
        learner.iterate()
    return share_of_optimum(TrainedPolicy.of(learner.policy, worlds), market)


@pytest.mark.parametrize("kind", ["ar1", "ou"])
def test_a_known_market_is_mastered_out_of_sample(kind):
    assert trading_share(kind, 0, 24) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["ar1", "ou"])
def test_known_markets_are_mastered_whatever_the_seed(kind, engine, seed):
    assert trading_share(kind, seed, 40, engine=engine) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("network", [{"shared": True}, {"kind": "conv", "kernel": 2}, {"kind": "gru", "hidden": (32,)}])
def test_other_networks_master_a_known_market_too(network):
    assert trading_share("ar1", 0, 40, network) > 0.9


def balanced(seed, iterations, **config):
    """Mean return of CartPole-v1 over 100 episodes of the deterministic policy."""
    make = partial(gymnasium.make, "CartPole-v1")
    worlds = foreign_worlds(make, 16)
    settings = {"gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 2e-3, "schedule": "linear", "epochs": 10,
                "minibatches": 4, "rollout_length": 64}  # fmt: skip
    learner = make_ppo(worlds, {"hidden": (64, 64)}, seed, iterations * 16 * 64, **{**settings, **config})
    for _ in range(iterations):
        learner.iterate()
    return play_episodes(
        TrainedPolicy.of(learner.policy, worlds), foreign_worlds(make, 50).envs, 100, 999
    ).returns.mean()


def test_cartpole_is_solved():
    assert balanced(0, 60) >= 475.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_cartpole_is_solved_whatever_the_seed(seed, engine):
    assert balanced(seed, 90, engine=engine) >= 475.0


def test_nothing_is_learned_where_there_is_nothing_to_learn_from():
    learner = make_ppo(trading_worlds(6), learning_rate=1e-3, schedule="linear", total_steps=1)
    learner.steps = 1
    before = parameters_of(learner)
    learner.iterate()
    assert all(torch.equal(tensor, before[name]) for name, tensor in parameters_of(learner).items())


def test_on_a_gpu_cudas_generator_is_part_of_the_state(monkeypatch):
    learner, saved, restored = make_ppo(trading_worlds(2)), torch.arange(16, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: saved)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append(state))
    assert learner._torch_generators().keys() == {"cpu"}
    learner.worlds = SimpleNamespace(device=torch.device("cuda"))
    found = learner._torch_generators()
    assert found.keys() == {"cpu", "cuda"}
    tensors = {f"torch.{kind}": state for kind, state in found.items()}
    learner._load_generators({"learner.generator": learner.generator.get_state(), **tensors})
    assert torch.equal(restored[0], saved)
