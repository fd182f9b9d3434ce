"""A lesson by compiled loops: its gradients are those of autograd in double precision, its steps those of torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.learn.engines.fused_reference import make_parts, outputs_of
from velodrome.learn.engines.cpu.imitation import FusedImitator
from velodrome.learn.engines.cpu.perceptrons import Perceptrons

TOLERANCE = 2e-5  # of the largest gradient of a parameter
KINDS = {"categorical": {"sizes": [3]}, "gaussian": {"actions": 2}}
EPSILON = 1e-8  # of Adam


def lesson(parts, count, seed=0):
    """Return observations and what a rule does there; some of its probabilities are 0."""
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(count, parts.actor[0].in_features, generator=generator)
    targets = torch.randn(count, parts.actor[-1].out_features, generator=generator)
    if parts.sizes:
        targets = torch.softmax(3.0 * targets, 1)
        targets[::7] = functional.one_hot(targets[::7].argmax(1), targets.shape[1]).float()
    return observations, targets


def distance(parts, observations, targets):
    found, _ = outputs_of(parts, observations)
    if parts.sizes:
        return functional.kl_div(functional.log_softmax(found, 1), targets, reduction="batchmean")
    return (0.5 * ((found - targets) / parts.log_std.detach().exp()).square()).sum(1).mean()


def imitator(parts, observations, targets, threads=2):
    return FusedImitator(Perceptrons(*parts), observations, targets, EPSILON, threads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "gelu"])
def test_gradients_are_those_of_autograd(kind, shared, activation):
    parts = make_parts(19, (24, 33), shared=shared, activation=activation, **KINDS[kind])
    observations, targets = lesson(parts, 1500)
    rows = torch.randperm(1500)[:1111]
    reference = parts.double()
    wanted = distance(reference, observations[rows].double(), targets[rows].double())
    wanted.backward()
    fused = imitator(parts, observations, targets)
    fused.step(rows, 0.0)
    assert fused.distance / len(rows) == pytest.approx(wanted.item(), rel=1e-5)
    for ours, theirs in zip(parts.actor, reference.actor, strict=True):
        for own, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            scale = float(other.grad.abs().max()) + 1e-6
            np.testing.assert_allclose(own.grad.numpy() / scale, other.grad.numpy() / scale, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch_and_nothing_else_is_taught(kind):
    parts = make_parts(19, (32, 32), **KINDS[kind])
    observations, targets = lesson(parts, 2048)
    reference = parts.double()
    optimiser = torch.optim.Adam([own for layer in reference.actor for own in layer.parameters()], eps=EPSILON)
    critic = [own.detach().clone() for layer in parts.critic for own in layer.parameters()]
    log_std = None if parts.log_std is None else parts.log_std.detach().clone()
    before = torch.get_rng_state()
    fused = imitator(parts, observations, targets)
    assert torch.equal(torch.get_rng_state(), before)
    first = distance(reference, observations.double(), targets.double()).item()
    for number in range(60):
        rows, rate = torch.randperm(2048)[:1024], 2e-3 * (1.0 - number / 60)
        fused.step(rows, rate)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        distance(reference, observations[rows].double(), targets[rows].double()).backward()
        optimiser.step()
    for ours, theirs in zip(parts.actor, reference.actor, strict=True):
        torch.testing.assert_close(ours.weight.double(), theirs.weight, rtol=0.0, atol=1e-5)
        torch.testing.assert_close(ours.bias.double(), theirs.bias, rtol=0.0, atol=1e-5)
    assert distance(reference, observations.double(), targets.double()).item() < first
    assert all(map(torch.equal, critic, [own for layer in parts.critic for own in layer.parameters()]))
    assert log_std is None or torch.equal(parts.log_std, log_std)


def test_the_bits_do_not_depend_on_the_number_of_threads():
    found = []
    for threads in (1, 2, 3):
        parts = make_parts(19, (32, 32), sizes=[3])
        fused = imitator(parts, *lesson(parts, 4096), threads)
        for rows in torch.randperm(4096, generator=torch.Generator().manual_seed(1)).split(1000):
            fused.step(rows, 1e-3)
        found.append(([own.detach().clone() for layer in parts.actor for own in layer.parameters()], fused.distance))
    for weights, apart in found[1:]:
        assert all(map(torch.equal, weights, found[0][0]))
        assert apart == found[0][1]
