"""The fused losses and gradients are those of autograd in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learn.engines.fused_reference import make_parts, make_rollout, outputs_of, reference_losses
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.cpu.reading import WindowedObservations
from velodrome.tables.windows import WindowPart, no_windows, stack_windows

# Of the largest gradient of a parameter: sums of a few thousand float32 products.
TOLERANCE = 2e-5
WEIGHTS = {"clip": 0.2, "entropy": 0.02, "value_weight": 0.7, "kl_penalty": 0.3}
KINDS = {"categorical": {"sizes": [3]}, "multi_categorical": {"sizes": [3, 2, 4]}, "gaussian": {"actions": 2}}


def check_update(parts, rollout, rows, **weights):
    """Compare losses and all gradients with autograd's."""
    config = PPOConfig(**{**WEIGHTS, **weights})
    reference = parts.double()
    total, expected = reference_losses(reference, rows, rollout, config)
    total.backward()
    found = parts.fused(threads=2).update_minibatch(rows, rollout, config)
    for name, number in expected.items():
        assert getattr(found, name) == pytest.approx(number.item(), rel=1e-5, abs=2e-6), name
    for ours, theirs in zip(parts.parameters(), reference.parameters(), strict=True):
        scale = float(theirs.grad.abs().max()) + 1e-6
        np.testing.assert_allclose(ours.grad.numpy() / scale, theirs.grad.numpy() / scale, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [(16,), (64, 64), (24, 17, 33)])
def test_gradients_are_those_of_autograd(kind, shared, hidden):
    parts = make_parts(37, hidden, shared=shared, **KINDS[kind])
    check_update(parts, make_rollout(parts, 1500), torch.randperm(1500)[:1111])


@pytest.mark.parametrize("value_clip", [None, 0.25])
@pytest.mark.parametrize("normalise", [False, True])
def test_value_clipping_and_normalised_advantages(value_clip, normalise):
    parts = make_parts(20, (32, 32), sizes=[4])
    rows = torch.randperm(800)[:700]
    check_update(parts, make_rollout(parts, 800), rows, value_clip=value_clip, normalise_advantages=normalise)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "gelu"])
@pytest.mark.parametrize("shared", [False, True])
def test_every_activation(activation, shared):
    parts = make_parts(20, (32, 48), sizes=[4], activation=activation, shared=shared)
    check_update(parts, make_rollout(parts, 600), torch.arange(600))


def test_trunks_may_differ_in_width():
    parts = make_parts(20, (16, 40), critic_hidden=(48, 24), sizes=[3])
    check_update(parts, make_rollout(parts, 600), torch.arange(600))


@pytest.mark.parametrize("rows", [1, 2, 127, 128, 129, 512, 2047, 2048, 5000])
def test_minibatches_of_any_size(rows):
    parts = make_parts(9, (8, 8), sizes=[3])
    check_update(parts, make_rollout(parts, 5000), torch.randperm(5000)[:rows])


def test_a_row_may_appear_more_than_once():
    parts = make_parts(9, (8,), sizes=[3])
    check_update(parts, make_rollout(parts, 10), torch.randint(0, 10, (300,)))


@given(
    features=st.integers(1, 40),
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    kind=st.sampled_from(sorted(KINDS)),
    shared=st.booleans(),
    rows=st.integers(2, 700),
    value_clip=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_any_shape(features, hidden, kind, shared, rows, value_clip, seed):
    parts = make_parts(features, hidden, shared=shared, seed=seed, **KINDS[kind])
    rollout = make_rollout(parts, rows + 20, seed)
    check_update(parts, rollout, torch.randperm(rows + 20)[:rows], value_clip=value_clip)


def windows_of(rng, specifications, bars=400):
    return stack_windows(
        [
            (length, [WindowPart(rng.normal(size=(bars, width)).astype(np.float32), np.arange(bars) // every)])
            for length, width, every in specifications
        ]
    )


@pytest.mark.parametrize("cursor_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("specifications", [[(8, 5, 1)], [(4, 3, 1), (6, 2, 5)]])
@pytest.mark.parametrize("values", [0, 7])
def test_observations_by_cursor_equal_flat_ones(cursor_type, specifications, values):
    rng = np.random.default_rng(0)
    windows = windows_of(rng, specifications)
    cursors = torch.tensor(rng.integers(0, 400, 900), dtype=cursor_type)
    observations = WindowedObservations(windows, cursors, torch.randn(900, values))
    parts = make_parts(sum(length * width for length, width, _ in specifications) + values, (16, 16), sizes=[3])
    check_update(parts, make_rollout(parts, 900, observations=observations), torch.randperm(900)[:777])


def test_observations_without_windows():
    parts = make_parts(6, (16, 16), actions=1)
    observations = WindowedObservations(no_windows(10), torch.randint(0, 10, (300,)), torch.randn(300, 6))
    check_update(parts, make_rollout(parts, 300, observations=observations), torch.arange(300))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 127, 256, 2100])
def test_forward_gives_the_outputs_of_the_modules(kind, count):
    parts = make_parts(31, (24, 40), **KINDS[kind])
    observations = torch.randn(count, 31)
    fused = parts.fused(threads=2)
    policy, values = fused.forward(observations)
    expected_policy, expected_values = outputs_of(parts.double(), observations.double())
    np.testing.assert_allclose(policy.numpy(), expected_policy.detach().numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(values.numpy(), expected_values.detach().numpy(), rtol=2e-5, atol=2e-6)
    again, _ = fused.forward(observations)
    assert again.data_ptr() == policy.data_ptr()


def test_not_a_number_is_not_hidden():
    parts = make_parts(9, (8, 8), sizes=[3])
    rollout = make_rollout(parts, 100)
    rollout.observations[17, 3] = float("nan")
    fused = parts.fused()
    found = fused.update_minibatch(torch.arange(100), rollout, PPOConfig(**WEIGHTS))
    assert np.isnan(found.policy)
    assert np.isnan(found.value)
    assert np.isnan(fused.adam_step(1e-3, 0.5))
