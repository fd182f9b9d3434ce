"""The actor-critic: its heads, its trunks, and what it says about itself."""

from __future__ import annotations

import gymnasium
import pytest
import torch

from tests.learn.learners import SMALL_NETWORK
from velodrome.learn.config import NETWORKS, NetworkConfig
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import Observation, ObservationShape

SHAPE = ObservationShape(4, ((5, 3), (2, 2)))
SPACES = {
    "discrete": gymnasium.spaces.Discrete(3),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([2, 3]),
    "continuous": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
}
# Those for any observation; tests/learn/networks/test_instruments.py has the one that needs instruments.
KINDS = [kind for kind in NETWORKS if kind != "instruments"]
WIDTHS = {"discrete": 3, "multi_discrete": 5, "continuous": 2}


def make_policy(kind="mlp", space="discrete", shape=SHAPE, seed=0, **config):
    torch.manual_seed(seed)
    return ActorCritic(shape, SPACES[space], NetworkConfig(**{**SMALL_NETWORK, "kind": kind, **config}))


def observation(rows=6):
    return Observation(torch.randn(rows, 4), None, torch.randn(rows, 19))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_have_their_shapes(kind, shared, space):
    policy, seen = make_policy(kind, space, shared=shared), observation()
    memory = torch.zeros(6, policy.memory_size)
    outputs = policy(seen, memory=memory)
    assert outputs.parameters.shape == (6, WIDTHS[space])
    assert outputs.value.shape == (6,)
    assert outputs.memory.shape == memory.shape
    assert outputs.parameters.dtype == outputs.value.dtype == torch.float32
    assert (policy.log_std is not None) == (space == "continuous")
    assert policy.recurrent == (kind == "gru")
    assert policy.recurrent or torch.equal(policy.decide(seen), outputs.parameters)


@pytest.mark.parametrize(("shared", "expected"), [(True, 10), (False, 20)])
def test_separate_trunks_have_a_memory_each(shared, expected):
    assert make_policy("gru", shared=shared).memory_size == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_trunk_learns_from_both_heads_and_separate_ones_from_their_own(kind):
    for shared in (False, True):
        policy = make_policy(kind, shared=shared)
        outputs = policy(observation(), memory=torch.zeros(6, policy.memory_size))
        outputs.value.sum().backward()
        touched = [parameter.grad is not None for parameter in policy.actor.parameters()]
        assert all(touched) if shared else not any(touched)
        assert all(parameter.grad is not None for parameter in policy.critic.parameters())
        assert (policy.critic is policy.actor) == shared


def test_a_shared_trunk_is_stored_and_optimised_once():
    policy = make_policy(shared=True)
    assert len(list(policy.parameters())) == len({id(parameter) for parameter in policy.parameters()})
    layers = policy.linear_layers()
    assert layers[0][:-1] == layers[1][:-1]


def test_a_first_policy_is_close_to_uniform():
    with torch.no_grad():
        outputs = make_policy()(observation(200))
    chances = outputs.parameters.softmax(1)
    assert float((chances - 1 / 3).abs().max()) < 0.02
    assert float(outputs.value.std()) > 0.1


def test_the_first_deviation_is_the_one_asked_for():
    assert make_policy(space="continuous", initial_log_std=-1.25).log_std.tolist() == [-1.25, -1.25]


@pytest.mark.parametrize("shared", [False, True])
def test_plain_perceptrons_are_what_their_layers_say(shared):
    policy = make_policy(shared=shared, hidden=(16, 12))
    actor, critic = policy.linear_layers()
    seen = observation()
    rows = torch.cat([seen.windows, seen.values], 1)
    for layers, expected in ((actor, policy(seen).parameters), (critic, policy(seen).value.unsqueeze(1))):
        hidden = rows
        for layer in layers[:-1]:
            hidden = torch.tanh(layer(hidden))
        torch.testing.assert_close(layers[-1](hidden), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["mlp_batch_norm", "conv", "gru"])
def test_other_networks_are_no_plain_perceptrons(kind):
    assert make_policy(kind).linear_layers() is None


def test_bars_can_be_encoded_only_where_there_are_windows():
    assert make_policy().can_encode_bars
    assert not make_policy(shape=ObservationShape(4)).can_encode_bars
