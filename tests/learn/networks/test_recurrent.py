"""Recurrent policies: a sequence is its steps one by one, and what was remembered when acting is remembered again."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.learn.learners import Cue, Endless, foreign_worlds, make_ppo, trading_worlds
from tests.learn.test_policy import make_policy
from velodrome.rollout.observation import Observation


@pytest.mark.parametrize("shared", [False, True])
def test_a_sequence_is_its_steps_with_the_memory_forgotten_at_starts(shared):
    steps, count = 7, 5
    policy = make_policy("gru", shared=shared)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(steps, count, 4, generator=generator)
    windows = torch.randn(steps, count, 19, generator=generator)
    starts = torch.rand(steps, count, generator=generator) < 0.3
    first = torch.randn(count, policy.memory_size, generator=generator)
    flat = Observation(values.flatten(0, 1), None, windows.flatten(0, 1))
    found = policy.sequence(flat, None, None, first, starts)
    memory, every = first, []
    for t in range(steps):
        memory = torch.where(starts[t].unsqueeze(1), 0.0, memory)
        outputs = policy(Observation(values[t], None, windows[t]), memory=memory)
        memory = outputs.memory
        every.append(outputs)
    assert starts.any()
    for name in ("parameters", "value"):
        expected = torch.cat([getattr(outputs, name) for outputs in every])
        torch.testing.assert_close(getattr(found, name), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.memory, memory, rtol=1e-5, atol=1e-6)


def test_an_environment_does_not_remember_for_another():
    policy = make_policy("gru")
    steps, count = 4, 3
    values, windows = torch.randn(steps * count, 4), torch.randn(steps * count, 19)
    starts, first = torch.zeros(steps, count, dtype=torch.bool), torch.zeros(count, policy.memory_size)
    before = policy.sequence(Observation(values, None, windows), None, None, first, starts).value.view(steps, count)
    other = windows.clone().view(steps, count, 19)
    other[0, 1] += 1.0
    after = policy.sequence(Observation(values, None, other.flatten(0, 1)), None, None, first, starts).value
    changed = (after.view(steps, count) != before).any(0)
    assert changed.tolist() == [False, True, False]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", [trading_worlds, lambda n: foreign_worlds(lambda: Endless(5, terminates=False), n)])
def test_the_update_sees_the_probabilities_and_values_with_which_the_policy_acted(make, shared):
    learner = make_ppo(make(6), {"kind": "gru", "shared": shared}, rollout_length=16, epochs=1, minibatches=1)
    for _ in range(2):  # the second rollout begins in the middle of episodes
        metrics = learner.iterate()
        # Before the only gradient step the policy is still the one that acted.
        assert abs(metrics["policy/kl"]) < 1e-10
        assert metrics["policy/clip_fraction"] == 0.0
        surprise = learner.rollout.returns - learner.rollout.value
        assert metrics["loss/value"] == pytest.approx(0.5 * float(surprise.square().mean()), rel=1e-4)
    assert learner.rollout.starts[1:].any()
    assert learner.rollout.first_memory.any()


def test_the_state_of_a_truncated_episode_is_valued_with_what_was_remembered():
    learner = make_ppo(foreign_worlds(lambda: Endless(5, terminates=False), 2), {"kind": "gru"}, rollout_length=12)
    policy = copy.deepcopy(learner.policy)
    learner.iterate()
    states = torch.eye(6).unsqueeze(1).expand(6, 2, 6)  # of one episode; in the sixth it is cut off

    @torch.no_grad()
    def value_after(steps):
        memory = torch.zeros(2, policy.memory_size)
        for t in range(steps):
            memory = policy(Observation(states[t]), memory=memory).memory
        return policy(Observation(states[steps]), memory=memory).value

    rollout = learner.rollout
    for t in (4, 9):
        assert rollout.truncated[t].all()
        torch.testing.assert_close(rollout.final_value[t], value_after(5), rtol=1e-5, atol=1e-6)
    # The rollout ends after two steps of the third episode.
    torch.testing.assert_close(rollout.last_value, value_after(2), rtol=1e-5, atol=1e-6)


def remembered(kind, iterations):
    """Share of right answers in the last rollouts of a task in which the answer was shown three steps before."""
    learner = make_ppo(
        foreign_worlds(lambda: Cue(3), 32), {"kind": kind, "hidden": (16,), "memory": 16}, rollout_length=16, epochs=4,
        learning_rate=1e-2, gamma=0.9, total_steps=10**9,
    )  # fmt: skip
    found = [learner.iterate()["episode/return"] for _ in range(iterations)]
    return sum(found[-5:]) / 5


def test_a_task_of_memory_is_learned_with_memory_only():
    assert remembered("gru", 30) > 0.95
    assert 0.4 < remembered("mlp", 15) < 0.6
