"""Each formula, as plain Python, is the loss and the distributions that the page states for whole tensors."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from velodrome.learn.actions import Categorical, Gaussian
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines import formulas
from velodrome.learn.engines.autograd import Batch
from velodrome.learn.policy import Outputs
from velodrome.learn.ppo import ppo_loss

FLOATS = st.floats(-3.0, 3.0, width=32)
CHANCES = st.lists(FLOATS, min_size=1, max_size=6)


def close(value, abs=2e-6):
    return pytest.approx(float(torch.as_tensor(value).detach()), rel=2e-5, abs=abs)


def page(log_prob, value, batch, **config):
    """The loss of one sample on the page: its parts, and the slopes by the log-probability and by the value."""
    log_prob, value = (torch.tensor([number], dtype=torch.float64, requires_grad=True) for number in (log_prob, value))
    distribution = SimpleNamespace(evaluate=lambda *_: (log_prob, torch.zeros(1)))
    numbers = Batch(torch.zeros(1), *(torch.tensor([number], dtype=torch.float64) for number in batch))
    settings = PPOConfig(normalise_advantages=False, value_weight=1.0, **config)
    loss, report = ppo_loss(Outputs(torch.zeros(1), value, torch.zeros(1)), None, distribution, numbers, settings)
    loss.backward()
    return report.tolist(), float(log_prob.grad), float(value.grad)


@given(FLOATS, FLOATS, FLOATS, st.sampled_from([0.0, 0.7]))
def test_the_policy_loss_is_that_of_the_page(log_prob, old, advantage, kl_penalty):
    weights = {"clip": 0.2, "kl_penalty": kl_penalty}
    (expected, _, _, divergence, outside), slope, _ = page(log_prob, 0.0, (old, advantage, 0.0, 0.0), **weights)
    change = np.float32(log_prob) - np.float32(old)
    numbers = (np.float32(number) for number in (advantage, *weights.values()))
    found = formulas.policy_loss(change, np.exp(change), *numbers)
    assert found[0] == close(expected, abs=1e-4)
    assert found[2] == close(divergence, abs=1e-4)
    if abs(abs(math.exp(float(change)) - 1.0) - 0.2) > 1e-5:  # at the very edge rounding decides
        assert bool(found[3]) == bool(outside)
        assert found[1] == close(slope, abs=1e-4)


@given(FLOATS, FLOATS, FLOATS, st.sampled_from([None, 0.3]))
def test_the_value_loss_is_that_of_the_page(value, old, target, limit):
    (_, expected, *_), _, slope = page(0.0, value, (0.0, 0.0, target, old), value_clip=limit)
    loss, found = formulas.value_loss(*map(np.float32, (value, old, target, limit or 0.0)))
    assert loss == close(expected)
    clipped = old + min(max(value - old, -0.3), 0.3)
    alike = math.isclose(abs(clipped - target), abs(value - target), rel_tol=1e-5, abs_tol=1e-5)
    if limit is None or not (alike or math.isclose(abs(value - old), 0.3, rel_tol=1e-5)):
        assert found == close(slope)


@given(CHANCES)
def test_the_entropy_of_a_choice_and_its_slopes(logits):
    tensor = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    _, entropy = Categorical(len(logits)).evaluate(tensor, None, torch.zeros(1, dtype=torch.int64))
    (-entropy).sum().backward()
    log_chances = tensor.detach().log_softmax(1)[0].numpy().astype(np.float32)
    chances = np.exp(log_chances)
    found = sum(formulas.option_entropy(*pair) for pair in zip(chances, log_chances, strict=True))
    assert found == close(entropy)
    for k, slope in enumerate(tensor.grad[0].tolist()):
        assert formulas.entropy_slope(chances[k], log_chances[k], found) == close(slope)


@given(CHANCES, st.floats(0.0, 1.0, exclude_max=True, width=32))
def test_a_choice_is_where_the_noise_falls(logits, noise):
    chances = torch.tensor(logits).softmax(0).numpy()
    chosen = formulas.drawn_option(chances, np.float32(noise))
    below = np.cumsum(np.concatenate([[0.0], chances.astype(np.float64)]))
    assert below[chosen] <= noise + 1e-6
    assert noise <= below[chosen + 1] + 1e-6 or chosen == len(logits) - 1


@given(FLOATS, FLOATS, FLOATS)
def test_normal_actions_are_those_of_the_page(mean, log_std, noise):
    tensors = (
        torch.tensor([[mean]], dtype=torch.float64, requires_grad=True),
        torch.tensor([log_std], dtype=torch.float64),
    )
    tensors[1].requires_grad_()
    deviation, precision = np.exp(np.float32(log_std)), np.exp(-np.float32(log_std))
    action = formulas.drawn_normal(np.float32(mean), deviation, np.float32(noise))
    log_prob, entropy = Gaussian(1).evaluate(*tensors, torch.tensor([[float(action)]], dtype=torch.float64))
    log_prob.sum().backward()
    off = formulas.normal_deviation(action, np.float32(mean), precision)
    assert formulas.normal_log_density(off, np.float32(log_std)) == close(log_prob, abs=1e-3)
    assert formulas.normal_entropy(np.float32(log_std)) == close(entropy)
    by_mean, by_log_std = formulas.normal_slopes(off, precision)
    assert by_mean == close(tensors[0].grad, abs=1e-3)
    assert by_log_std == close(tensors[1].grad, abs=1e-3)
