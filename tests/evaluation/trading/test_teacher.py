"""The forecaster as a teacher: softly, the very rule that it trades by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import velodrome as vd
from tests.learn.learners import make_ppo
from velodrome.envs.trading.config import trading_config
from velodrome.errors import ConfigError
from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.forecast.teaching import HELD_BARS, MOST_HELD, TOO_LITTLE, Lesson, hold_for, teach
from velodrome.evaluation.trading.baselines import forecaster
from velodrome.evaluation.trading.teacher import ANY, teacher
from velodrome.evaluation.validation import validate
from velodrome.learn.acting import TrainedPolicy
from velodrome.rollout.worlds import make_worlds

MARKET = vd.build_market(vd.synthetic_bars("ar1", 4_000, seed=1), windows=2, check_leaks=False)
KINDS = {
    "levels": {"fee": 1e-4},
    "no costs": {},
    "long only": {"allow_short": False, "fee": 1e-4},
    "never flat": {"levels": (-1.0, 1.0), "fee": 1e-4},
    "more levels": {"levels": (-1.0, -0.5, 0.0, 0.5, 1.0), "fee": 1e-4},
    "continuous": {"action": "continuous", "fee": 1e-4},
    "brackets": {"action": "brackets", "fee": 1e-4},
}


def account_on(side):
    account = np.zeros((len(side), 8), np.float32)
    account[:, 0], account[:, 1] = np.abs(side), side
    return account


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_prefers_is_what_the_forecaster_does(kind):
    params = KINDS[kind]
    own = teacher(MARKET, params)
    rule = forecaster(trading_config(**params), [Part(MARKET, "train")], refined=True).policy
    rows = Part(MARKET, "train").rows
    rule.begin(1)
    side, differences = 0.0, 0
    for row in rows:
        targets = own.targets(np.array([row]), account_on(np.array([side])))
        (done,) = rule.act({"cursor": np.array([row])})
        if kind == "continuous":
            assert -1.0 <= targets[0, 0] <= 1.0
            differences += int(rule._sides[0] != 0 and np.sign(targets[0, 0]) != np.sign(done))
        else:
            assert targets.sum() == pytest.approx(1.0)
            assert targets.min() >= ANY / targets.shape[1] * 0.999
            differences += int(targets[0].argmax() != done)
        side = float(rule._sides[0]) if kind != "long only" else max(float(rule._sides[0]), 0.0)
    # A continuous action is a mean: near the threshold it has the other sign now and then.
    assert differences <= (0.1 * len(rows) if kind == "continuous" else 0)


def test_nothing_is_worth_its_costs_then_it_stays_flat():
    own = teacher(MARKET, {"fee": 0.5})
    targets = own.targets(np.arange(100, 110), account_on(np.ones(10)))
    assert (targets.argmax(axis=1) == 1).all()


def test_too_little_to_fit_to():
    few = vd.build_market(vd.synthetic_bars("ar1", 150, seed=1), windows=2, check_leaks=False)
    assert teacher(few, {}) == TOO_LITTLE


@pytest.mark.parametrize("kind", ["levels", "continuous"])
def test_a_policy_that_was_taught_does_about_as_well(kind):
    params = {"episode_length": 64, **KINDS[kind]}

    def taught():
        envs = vd.make_vec("trading", 8, market=MARKET, split="train", observation="cursor", seed=0, **params)
        learner = make_ppo(make_worlds(envs), {"hidden": (32, 32)}, normalise_observations=True)
        apart = teach(learner, teacher(MARKET, params), "trading", MARKET, params, Lesson(16_384, 8, 0))
        assert not any(parameter.any() for parameter in learner.policy.value_head.parameters())
        return learner, apart

    learner, apart = taught()
    assert apart < {"levels": 0.15, "continuous": 0.3}[kind]
    policy = TrainedPolicy.of(learner.acting, learner.worlds, learner.moments)
    own = validate(policy, "trading", MARKET, "test", params)["mean_log_return"]
    rule = forecaster(trading_config(**params), [Part(MARKET, "test")]).policy
    # A mean of several exposures is less than the best of them.
    share = {"levels": 0.85, "continuous": 0.5}[kind]
    assert own > share * validate(rule, "trading", MARKET, "test", params)["mean_log_return"] > 0.0
    again, also = taught()
    assert also == apart
    for new, old in zip(again.policy.parameters(), learner.policy.parameters(), strict=True):
        assert (new == old).all()


@pytest.mark.parametrize("kind", ["levels", "continuous"])
def test_a_lesson_by_compiled_loops_teaches_what_torch_does(kind):
    params = {"episode_length": 64, **KINDS[kind]}

    def taught(engine):
        envs = vd.make_vec("trading", 8, market=MARKET, split="train", observation="cursor", seed=0, **params)
        learner = make_ppo(make_worlds(envs), {"hidden": (32, 32)}, normalise_observations=True, engine=engine)
        assert learner.engine.name == {"auto": "fused"}.get(engine, engine)
        apart = teach(learner, teacher(MARKET, params), "trading", MARKET, params, Lesson(3_000, 4, 0))
        return apart, torch.cat([own.detach().flatten() for own in learner.policy.parameters()])

    (apart, weights), (plain_apart, plain) = taught("auto"), taught("autograd")
    assert apart == pytest.approx(plain_apart, rel=1e-5)
    torch.testing.assert_close(weights, plain, rtol=0.0, atol=1e-5)


def test_what_was_taught_is_held():
    params = {"episode_length": 64}

    def weights(hold):
        envs = vd.make_vec("trading", 8, market=MARKET, split="train", observation="cursor", seed=0, **params)
        learner = make_ppo(make_worlds(envs), {"hidden": (32, 32)})
        teach(learner, teacher(MARKET, params), "trading", MARKET, params, Lesson(1_024, 1, 0, hold))
        before = [own.detach().clone() for own in learner.policy.acting_parameters()]
        learner.iterate()
        after = [own.detach().clone() for own in learner.policy.acting_parameters()]
        return before, after, learner

    before, free, learner = weights(0.0)
    assert learner.taught is None
    _, held, learner = weights(0.25)
    for taught, alone, back in zip(before, free, held, strict=True):
        assert torch.allclose(back, alone + 0.25 * (taught - alone), atol=1e-7)
    assert learner.policy.value_head.weight.any()  # the critic is not drawn back to its first values, which are 0
    (stretch,) = MARKET.splits["train"]
    many = replace(MARKET, splits={"train": (stretch,) * 40})
    assert hold_for(many) == pytest.approx(HELD_BARS / (40 * (stretch[1] - stretch[0])))
    assert hold_for(MARKET) == MOST_HELD


def test_rules_without_a_side_to_imitate_are_refused():
    envs = vd.make_vec("trading", 4, market=MARKET, split="train", observation="cursor", seed=0)
    learner = make_ppo(make_worlds(envs), {"kind": "gru"})
    with pytest.raises(ConfigError, match="a recurrent network cannot be taught"):
        teach(learner, teacher(MARKET, {}), "trading", MARKET, {}, Lesson(256, 1, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_taught_policy_learns_on_a_gpu():
    envs = vd.make_vec("trading", 64, market=MARKET, split="train", backend="cuda", observation="cursor", seed=0)
    learner = make_ppo(make_worlds(envs, "cuda"), critic_first=3 * 64 * 8, average_weights=True)
    assert teach(learner, teacher(MARKET, {}), "trading", MARKET, {}, Lesson(4096, 2, 0)) < 1.0
    before = learner.policy.policy_head.weight.detach().clone()
    for _ in range(3):  # the third is a graph
        learner.iterate()
    assert torch.equal(learner.policy.policy_head.weight, before)
    assert learner.policy.value_head.weight.any()
    for _ in range(3):
        learner.iterate()
    assert not torch.equal(learner.policy.policy_head.weight, before)
    assert not torch.equal(learner.acting.policy_head.weight, learner.policy.policy_head.weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("samples", [4096, 3000])  # the second ends on a shorter minibatch, which no graph holds
def test_a_lesson_in_graphs_teaches_what_one_without_does(samples):
    def taught(cuda_graphs):
        envs = vd.make_vec("trading", 64, market=MARKET, split="train", backend="cuda", observation="cursor", seed=0)
        learner = make_ppo(make_worlds(envs, "cuda"), cuda_graphs=cuda_graphs)
        apart = teach(learner, teacher(MARKET, {}), "trading", MARKET, {}, Lesson(samples, 8, 0))
        return apart, torch.cat([own.detach().flatten() for own in learner.policy.parameters()])

    (apart, weights), (plain_apart, plain) = taught(True), taught(False)
    assert apart == pytest.approx(plain_apart, rel=1e-3)
    torch.testing.assert_close(weights, plain, rtol=0.0, atol=1e-3)
