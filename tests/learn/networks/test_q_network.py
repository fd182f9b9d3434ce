"""The Q-network: its heads, what it refuses, and the market's part computed once per bar."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from torch import nn

from tests.learn.learners import SMALL_NETWORK, trading_worlds
from velodrome.errors import ConfigError
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.q_network import QNetwork
from velodrome.rollout.observation import Observation


class Owned(nn.Module):
    """A user's own network, as the documentation describes it."""

    def __init__(self, windows, values):
        super().__init__()
        self.out_features = 7
        self.layer = nn.Linear(sum(rows * features for rows, features in windows) + values, 7)

    def forward(self, windows, values):
        return torch.tanh(self.layer(torch.cat([*(window.flatten(1) for window in windows), values], 1)))


OWNED = "own_networks:Owned"


@pytest.fixture(autouse=True)
def own_networks(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_networks", SimpleNamespace(Owned=Owned))


def network_of(worlds, kind="mlp", **options):
    torch.manual_seed(0)
    return QNetwork(worlds.shape, worlds.action_space, NetworkConfig(**{**SMALL_NETWORK, "kind": kind}), **options)


@pytest.mark.parametrize("duelling", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "mlp_batch_norm", "conv", OWNED])
def test_windows_by_cursor_brought_along_or_encoded_per_bar_give_the_same(kind, duelling):
    worlds = trading_worlds(20)
    worlds.reset(1)
    bank = worlds.bank
    network = network_of(worlds, kind, duelling=duelling)
    values, cursor = worlds.observation.values, worlds.observation.cursor
    ways = {
        "brought": (Observation(values, None, bank.gather(cursor)), None, None),
        "cursor": (Observation(values, cursor), bank, None),
    }
    if kind != OWNED:
        ways["every bar"] = (Observation(values, cursor), bank, network.encode_bars(bank))
    found = {}
    for name, given in ways.items():
        network.zero_grad()
        q_values = network(*given)
        assert q_values.shape == (20, 3)
        (q_values * torch.linspace(-1.0, 1.0, 60).view(20, 3)).sum().backward()
        found[name] = [q_values.detach(), *(parameter.grad.clone() for parameter in network.parameters())]
    for name, tensors in found.items():
        for ours, direct in zip(tensors, found["brought"], strict=True):
            torch.testing.assert_close(ours, direct, rtol=1e-5, atol=1e-6, msg=name)


def test_a_duelling_head_is_a_state_value_and_advantages_of_mean_0():
    worlds = trading_worlds(9)
    worlds.reset(2)
    network = network_of(worlds, duelling=True)
    features = network.trunk(worlds.observation, worlds.bank, None)
    q_values = network(worlds.observation, worlds.bank)
    torch.testing.assert_close(q_values.mean(1), network.state_head(features).squeeze(1))
    advantages = network.action_head(features)
    torch.testing.assert_close(q_values.diff(dim=1), advantages.diff(dim=1))
    with torch.no_grad():
        network.action_head.bias += 5.0  # the same for all actions: not an advantage
    torch.testing.assert_close(network(worlds.observation, worlds.bank), q_values)


def test_a_plain_head_gives_the_values_themselves():
    worlds = trading_worlds(9)
    worlds.reset(2)
    network = network_of(worlds)
    features = network.trunk(worlds.observation, worlds.bank, None)
    torch.testing.assert_close(network(worlds.observation, worlds.bank), network.action_head(features))
    assert network.state_head is None


def test_memory_is_refused_with_what_to_use_instead():
    with pytest.raises(ConfigError, match=r"'gru': DQN replays single steps.*'conv'.*'ppo'"):
        network_of(trading_worlds(2), "gru")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gymnasium.spaces.Box(-1.0, 1.0, (1,)), "one of several actions.*'ppo'"),
        (gymnasium.spaces.MultiDiscrete([2, 3]), "one of several actions"),
        (gymnasium.spaces.Discrete(3, start=1), "counted from 0"),
    ],
)
def test_only_a_plain_choice_of_actions_is_taken(space, message):
    with pytest.raises(ConfigError, match=message):
        QNetwork(trading_worlds(2).shape, space, NetworkConfig())
