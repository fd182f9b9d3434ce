"""Adam, checkpoints, sampling and the promise of equal bits."""

from __future__ import annotations

import copy
import gc
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from tests.learn.engines.fused_reference import (
    log_prob_and_entropy,
    make_parts,
    make_rollout,
    outputs_of,
    reference_losses,
)
from velodrome.errors import BackendError, ConfigError
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.cpu.lanes import Lanes

WEIGHTS = PPOConfig(clip=0.2, entropy=0.01, value_clip=0.3)


def train(parts, rollout, steps=6, rows=1300, **options):
    """Some minibatches and Adam steps; returns the network with the losses and gradient norms on the way."""
    fused = parts.fused(**options)
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        chosen = torch.randperm(len(rollout.returns), generator=generator)[:rows]
        found.append((*fused.update_minibatch(chosen, rollout, WEIGHTS), fused.adam_step(1e-2, 0.3)))
    return fused, found


@pytest.mark.parametrize("max_norm", [None, 0.05, 100.0])
def test_adam_follows_the_trajectory_of_torch(max_norm):
    parts = make_parts(13, (24, 24), actions=2)
    twins = make_parts(13, (24, 24), actions=2)
    optimiser = torch.optim.Adam(twins.parameters(), lr=1e-2, eps=1e-5)
    fused = parts.fused()
    rollout = make_rollout(parts, 400)
    for _ in range(20):
        fused.update_minibatch(torch.arange(400), rollout, PPOConfig())
        for ours, theirs in zip(parts.parameters(), twins.parameters(), strict=True):
            theirs.grad = ours.grad.clone()
        expected = torch.nn.utils.clip_grad_norm_(twins.parameters(), max_norm or float("inf"))
        optimiser.step()
        assert fused.adam_step(1e-2, max_norm) == pytest.approx(float(expected), rel=1e-5)
        for ours, theirs in zip(parts.parameters(), twins.parameters(), strict=True):
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_training_follows_autograd_and_torch():
    parts = make_parts(17, (32, 32), sizes=[3, 2])
    twin = parts.double()
    rollout = make_rollout(parts, 1500)
    _, found = train(parts, rollout)
    optimiser = torch.optim.Adam(twin.parameters(), lr=1e-2, eps=1e-5)
    generator = torch.Generator().manual_seed(1)
    for ours in found:
        chosen = torch.randperm(1500, generator=generator)[:1300]
        total, losses = reference_losses(twin, chosen, rollout, WEIGHTS)
        optimiser.zero_grad()
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
        optimiser.step()
        np.testing.assert_allclose(ours, [number.item() for number in (*losses.values(), norm)], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [{"sizes": [3]}, {"sizes": [2, 5]}, {"actions": 3}])
def test_the_same_bits_with_any_number_of_threads(kind):
    found = []
    for threads in (1, 2, 5, 1):
        parts = make_parts(40, (64, 64), **kind)
        rollout = make_rollout(parts, 6000)
        fused, losses = train(parts, rollout, steps=3, rows=5555, threads=threads)
        policy, values = fused.forward(rollout.observations)
        noise = torch.rand(6000, len(kind.get("sizes", [0, 0, 0])), generator=torch.Generator().manual_seed(0))
        found.append([fused.flat.values, fused.flat.moments[1], policy, values, *fused.sample(rollout[0], noise)])
        found[-1].append(torch.tensor(losses))
    for other in found[1:]:
        assert all(torch.equal(left, right) for left, right in zip(found[0], other, strict=True))


def test_modules_see_updates_at_once_and_copies_are_their_own():
    parts = make_parts(12, (16, 16), sizes=[3])
    module = nn.ModuleList([*parts.actor, *parts.critic])
    rollout = make_rollout(parts, 300)
    fused = parts.fused()
    before = copy.deepcopy(module.state_dict())
    fused.update_minibatch(torch.arange(300), rollout, WEIGHTS)
    fused.adam_step(1e-2)
    assert all(not torch.equal(before[name], now) for name, now in module.state_dict().items())
    policy, _ = outputs_of(parts, rollout.observations)
    np.testing.assert_allclose(fused.forward(rollout.observations)[0], policy.detach(), rtol=1e-4, atol=1e-5)
    module.load_state_dict(before)
    policy, _ = outputs_of(parts, rollout.observations)
    np.testing.assert_allclose(fused.forward(rollout.observations)[0], policy.detach(), rtol=1e-4, atol=1e-5)


def test_a_moved_parameter_is_refused():
    parts = make_parts(12, (16, 16), sizes=[3])
    fused = parts.fused()
    parts.actor[1].weight.data = parts.actor[1].weight.data.clone()
    with pytest.raises(BackendError, match="moved or replaced"):
        fused.forward(torch.zeros(3, 12))


@pytest.mark.parametrize("kind", [{"sizes": [4]}, {"sizes": [3, 2]}, {"actions": 2}])
def test_samples_have_the_log_probabilities_of_their_distribution(kind):
    parts = make_parts(10, (16,), **kind)
    observations = torch.randn(500, 10)
    columns = len(kind.get("sizes", "12"))
    noise = torch.rand(500, columns) if "sizes" in kind else torch.randn(500, columns)
    actions, log_prob, values = parts.fused().sample(observations, noise)
    out = torch.empty_like(actions), torch.empty(500), torch.empty(500)
    assert parts.fused().sample(observations, noise, out) is out
    assert all(torch.equal(left, right) for left, right in zip(out, (actions, log_prob, values), strict=True))
    twin = parts.double()
    policy, expected_values = outputs_of(twin, observations.double())
    expected, _ = log_prob_and_entropy(twin, policy, actions)
    np.testing.assert_allclose(log_prob, expected.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values, expected_values.detach(), rtol=1e-4, atol=1e-5)


def test_discrete_samples_come_as_often_as_their_probabilities_say():
    parts = make_parts(3, (8,), sizes=[3, 2])
    fused = parts.fused()
    observations = torch.zeros(40_000, 3)
    even = (torch.arange(40_000) + 0.5) / 40_000
    policy, _ = fused.forward(observations)
    for component, logits in enumerate(policy[0].split([3, 2])):
        noise = torch.full((40_000, 2), 0.3)
        noise[:, component] = even
        actions, _, _ = fused.sample(observations, noise)
        shares = torch.bincount(actions[:, component]) / 40_000
        np.testing.assert_allclose(shares, logits.softmax(0), atol=1e-4)


def test_the_largest_noise_still_gives_a_legal_action():
    parts = make_parts(3, (8,), sizes=[7])
    noise = torch.full((300, 1), float(np.nextafter(np.float32(1), np.float32(0))))
    actions, log_prob, _ = parts.fused().sample(torch.randn(300, 3), noise)
    assert actions.min() >= 0
    assert actions.max() <= 6
    assert log_prob.isfinite().all()


@pytest.fixture
def three_threads():
    """Torch with a number of threads that nobody else has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_torch_keeps_its_threads():
    lanes = Lanes(3)
    done = []
    for _ in range(2):
        done.clear()
        lanes.run(lambda thread, lane: done.append((lane, torch.get_num_threads())), 50)
        assert sorted(done) == [(lane, 1) for lane in range(50)]
        assert torch.get_num_threads() == 3
    found = []
    fresh = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert found == [3]


def test_helpers_end_with_their_owner():
    lanes = Lanes(3)
    lanes.run(lambda thread, lane: None, 50)
    helpers = [helper.thread for helper in lanes._helpers]
    assert len(helpers) == 2
    del lanes
    gc.collect()
    for thread in helpers:
        thread.join(5.0)
        assert not thread.is_alive()


@pytest.mark.parametrize("failing", [0, 1])
def test_an_interruption_leaves_nobody_at_work(failing):
    lanes = Lanes(2)
    meeting = threading.Barrier(2)
    at_work = []

    def interrupted(thread, lane):
        meeting.wait(5.0)
        if thread == failing:
            raise KeyboardInterrupt
        at_work.append(lane)
        time.sleep(0.05)
        at_work.remove(lane)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            lanes.run(interrupted, 2)
        assert at_work == []
    done = []
    lanes.run(lambda thread, lane: done.append(lane), 9)
    assert sorted(done) == list(range(9))


def test_an_error_in_a_lane_reaches_the_caller_and_the_next_work_is_done():
    lanes = Lanes(2)

    def fail(thread, lane):
        raise ConfigError(f"lane {lane}")

    for _ in range(3):
        with pytest.raises(ConfigError, match="lane"):
            lanes.run(fail, 4)
    done = []
    lanes.run(lambda thread, lane: done.append(lane), 9)
    assert sorted(done) == list(range(9))


@pytest.mark.parametrize("threads", [0, -1, 257, True, 1.5, "2"])
def test_an_impossible_number_of_threads_is_refused(threads):
    with pytest.raises(ConfigError, match="threads"):
        Lanes(threads)


def test_memory_does_not_grow():
    parts = make_parts(64, (64, 64), sizes=[3])
    rollout = make_rollout(parts, 4096)
    fused = parts.fused()

    def some_updates():
        for rows in (4096, 2048, 777) * 20:
            fused.update_minibatch(torch.randperm(4096)[:rows], rollout, WEIGHTS)
            fused.adam_step(1e-4, 0.5)
            fused.forward(rollout.observations)

    some_updates()
    before = psutil.Process().memory_info().rss
    some_updates()
    assert psutil.Process().memory_info().rss - before < 4 * 2**20
