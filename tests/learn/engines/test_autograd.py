"""Engines: which one serves, that the fused one learns what autograd does, and that optimisers can be saved."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.learn.engines.engine_cases import (
    CASES,
    ROWS,
    copy_rollout,
    disturb,
    fill,
    learned,
    make_setting,
    observations,
    surprise,
)
from tests.learn.learners import make_ppo, trading_worlds, without_times
from velodrome.learn.engines.autograd import AutogradEngine
from velodrome.learn.engines.cpu.engine import FusedEngine
from velodrome.learn.ppo import ppo_loss


def fused(setting):
    return FusedEngine(setting.task, setting.rollout)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fused_engine_learns_what_autograd_does(case):
    ours, theirs = make_setting(case), make_setting(case)
    engine, reference = fused(ours), theirs.autograd()
    disturb(ours, theirs)
    fill(ours, engine)
    surprise(ours)
    copy_rollout(ours.rollout, theirs.rollout)
    for one in (engine, reference):
        one.begin_update()
    for rows in (ROWS, ROWS.flip(0)[:4]):
        found, expected = learned(ours, engine, rows), learned(theirs, reference, rows)
        torch.testing.assert_close(found["report"], expected["report"], rtol=1e-4, atol=1e-5)
        for name, tensor in expected.items():
            if name.startswith("parameter"):
                torch.testing.assert_close(found[name], tensor, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("make", [fused, lambda setting: setting.autograd()], ids=["fused", "autograd"])
@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)
def test_what_is_written_when_acting_is_what_the_policy_says(case, make):
    setting = make_setting(case)
    engine = make(setting)
    fill(setting, engine)
    rollout, policy = setting.rollout, setting.policy
    with torch.no_grad():
        for t, seen in enumerate(observations(setting)):
            outputs = policy(seen, setting.bank)
            log_prob = policy.distribution.log_prob(outputs.parameters, policy.log_std, rollout.actions[t])
            torch.testing.assert_close(rollout.log_prob[t], log_prob, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(rollout.value[t], outputs.value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(engine.value(seen, torch.zeros(5, 0)), outputs.value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_the_gradients_of_parts_add_up_to_the_same_step(case):
    one, other = make_setting(case), make_setting(case)
    whole, parts = one.autograd(), other.autograd()
    parts.split(4)  # of 3, 2, 2 and 2 samples
    fill(one, whole)
    surprise(one)
    copy_rollout(one.rollout, other.rollout)
    for _ in range(2):
        expected, found = learned(one, whole, ROWS), learned(other, parts, ROWS)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("kind", ["gru", "conv"])
def test_other_networks_learn_the_same_from_parts(kind):
    one, other = (make_ppo(trading_worlds(8), {"kind": kind}, rollout_length=16) for _ in range(2))
    other._split(2)
    for _ in range(2):
        expected, found = (without_times(learner.iterate()) for learner in (one, other))
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("make", [fused, lambda setting: setting.autograd()], ids=["fused", "autograd"])
def test_a_gradient_step_is_the_shortened_one_of_adam(make):
    case = CASES[0]._replace(config={"max_gradient_norm": 0.05})
    setting, free = make_setting(case), make_setting(case)
    engine = make(setting)
    fill(setting, engine)
    surprise(setting)
    copy_rollout(setting.rollout, free.rollout)
    optimiser = torch.optim.Adam(free.policy.parameters(), 0.01, eps=1e-5)
    rollout = free.rollout
    outputs = free.policy(rollout.observations().select(ROWS), free.bank)
    plain = free.autograd()
    plain._begin_step(ROWS)
    loss, _ = ppo_loss(outputs, None, free.policy.distribution, plain._batch(ROWS), free.config)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(free.policy.parameters(), 0.05)
    assert float(norm) > 0.05
    optimiser.step()
    engine.set_learning_rate(0.01)
    engine.begin_update()
    found = learned(setting, engine, ROWS)
    assert float(found["report"][5]) == pytest.approx(float(norm), rel=1e-4)
    for name, parameter in free.policy.named_parameters():
        torch.testing.assert_close(found[f"parameter {name}"], parameter.detach(), rtol=0, atol=2e-5, msg=name)


def learn_and_hand_over(setting, engine, other_setting, other):
    """Take some gradient steps, then let another engine go on from there."""
    fill(setting, engine)
    surprise(setting)
    engine.begin_update()
    for _ in range(3):
        learned(setting, engine, ROWS)
    copy_rollout(setting.rollout, other_setting.rollout)
    other_setting.policy.load_state_dict({name: tensor.clone() for name, tensor in setting.policy.state_dict().items()})
    other.load_state({name: tensor.clone() for name, tensor in engine.state().items()})
    other.begin_update()


@pytest.mark.parametrize("make", [fused, lambda setting: setting.autograd()], ids=["fused", "autograd"])
def test_an_optimiser_continues_from_its_state_to_the_bit(make):
    one, other = make_setting(CASES[0]), make_setting(CASES[0])
    engine, later = make(one), make(other)
    learn_and_hand_over(one, engine, other, later)
    for _ in range(2):
        found, expected = learned(other, later, ROWS), learned(one, engine, ROWS)
        for name, tensor in expected.items():
            if not name.startswith("gradient"):
                assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("make", [fused, lambda setting: setting.autograd()], ids=["fused", "autograd"])
def test_the_state_of_an_optimiser_that_has_not_begun_is_a_beginning(make):
    setting, fresh = make_setting(CASES[0]), make_setting(CASES[0])
    engine = make(setting)
    learn_and_hand_over(setting, engine, fresh, make(fresh))
    weights = {name: tensor.clone() for name, tensor in setting.policy.state_dict().items()}
    engine.load_state({})
    first = make_setting(CASES[0])
    beginner = make(first)
    copy_rollout(setting.rollout, first.rollout)
    first.policy.load_state_dict(weights)
    beginner.begin_update()
    found, expected = learned(setting, engine, ROWS), learned(first, beginner, ROWS)
    for name, tensor in expected.items():
        if name.startswith("parameter"):
            assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("case", [CASES[0], CASES[10]], ids=lambda case: case.name)
def test_the_optimiser_of_one_engine_continues_in_the_other(case):
    ours, theirs = make_setting(case), make_setting(case)
    engine, reference = fused(ours), theirs.autograd()
    learn_and_hand_over(ours, engine, theirs, reference)
    assert engine.state().keys() == reference.state().keys()
    found, expected = learned(ours, engine, ROWS), learned(theirs, reference, ROWS)
    for name, tensor in expected.items():
        if not name.startswith("gradient"):
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize(
    ("network", "config", "name"),
    [({}, {}, "fused"), ({}, {"engine": "autograd"}, "autograd"), ({"kind": "conv"}, {}, "autograd"),
     ({"kind": "gru"}, {}, "autograd"), ({"kind": "mlp_batch_norm"}, {}, "autograd"),
     ({}, {"per_bar": "always"}, "autograd")],
)  # fmt: skip
def test_the_fastest_engine_that_can_serve_is_taken_and_why_not_is_logged(network, config, name, caplog):
    with caplog.at_level(logging.INFO, "velodrome"):
        learner = make_ppo(trading_worlds(4), network, **config)
    assert learner.engine.name == name
    assert isinstance(learner.engine, AutogradEngine) == (name == "autograd")
    explained = "learning by autograd" in caplog.text
    assert explained == (name == "autograd" and config.get("engine") != "autograd")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_compiled_networks_and_losses_learn_what_eager_ones_do(kind):
    learners = [make_ppo(trading_worlds(6), {"kind": kind}, engine="autograd", compile=flag) for flag in (True, False)]
    for _ in range(2):
        compiled, eager = (without_times(learner.iterate()) for learner in learners)
    assert compiled == pytest.approx(eager, rel=1e-3, abs=1e-5)
