"""The learners' Adam: its steps by hand, its rate, and its state by the names of the parameters."""

from __future__ import annotations

import copy
import math

import gymnasium
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from velodrome.errors import ConfigError
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.engines.optimiser import Optimiser
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import ObservationShape


def make(seed=0, **config):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return network, Optimiser(network, PPOConfig(**{"learning_rate": 0.01, **config}), epsilon=1e-3)


def loss_of(network, step):
    inputs = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return (network(inputs).squeeze(1) - inputs.sum(1)).square().mean()


def by_hand(steps, rates, longest, decay=0.0):
    """Parameters and lengths of the gradients after some steps of Adam with gradients no longer than given."""
    network, _ = make()
    values = [parameter.detach().clone() for parameter in network.parameters()]
    first, second = ([torch.zeros_like(value) for value in values] for _ in range(2))
    norms = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), values, strict=True):
                parameter.copy_(value)
        slopes = torch.autograd.grad(loss_of(network, step), list(network.parameters()))
        norms.append(math.sqrt(sum(float(slope.square().sum()) for slope in slopes)))
        scale = min(1.0, longest / (norms[-1] + 1e-6))
        for k, slope in enumerate(slopes):
            first[k] = 0.9 * first[k] + 0.1 * slope * scale
            second[k] = 0.999 * second[k] + 0.001 * (slope * scale) ** 2
            root = (second[k] / (1.0 - 0.999**step)).sqrt()
            if decay and values[k].ndim > 1:  # as AdamW, and never on biases
                values[k] = values[k] * (1.0 - rates[step - 1] * decay)
            values[k] = values[k] - rates[step - 1] * first[k] / (1.0 - 0.9**step) / (root + 1e-3)
    return values, norms


@pytest.mark.parametrize("decay", [0.0, 5.0])
@pytest.mark.parametrize("longest", [0.5, 100.0])
def test_steps_are_those_made_by_hand(longest, decay):
    network, optimiser = make(max_gradient_norm=longest, weight_decay=decay)
    rates = [0.01, 0.02, 0.005, 0.0]
    found = []
    for step, rate in enumerate(rates, 1):
        optimiser.set_rate(rate)
        found.append(float(optimiser.descend(loss_of(network, step))))
    values, norms = by_hand(4, rates, longest, decay)
    assert (max(norms) > longest) == (longest == 0.5)  # one case is about long gradients, the other is not
    assert found == pytest.approx(norms, rel=1e-9)
    for parameter, value in zip(network.parameters(), values, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-9, atol=1e-12)


def test_steps_have_the_bits_of_torchs_own_class():
    network, optimiser = make()
    network.float()
    twin = copy.deepcopy(network)
    theirs = torch.optim.Adam(twin.parameters(), 0.01, eps=1e-3, fused=True)
    for step in range(3):
        for one, other in zip(network.parameters(), twin.parameters(), strict=True):
            one.grad = 1e-2 * torch.randn(one.shape, generator=torch.Generator().manual_seed(step))
            other.grad = one.grad.clone()
        if step == 1:  # what has no gradient stays as it is
            network[0].weight.grad = twin[0].weight.grad = None
        optimiser.step()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True))
    own = optimiser.state()
    for name, (_, state) in zip(optimiser.parameters, theirs.state.items(), strict=True):
        assert all(torch.equal(own[f"{name}.{key}"], value) for key, value in state.items())


def test_a_state_of_another_network_is_refused():
    _, optimiser = make()
    with pytest.raises(ConfigError, match="has numbers of 9\\.bias, which this network does not have"):
        optimiser.load_state({"9.bias.step": torch.zeros(())})
    with pytest.raises(ConfigError, match="other numbers of 2\\.bias than Adam keeps"):
        optimiser.load_state({"2.bias.step": torch.zeros(())})


def test_gradients_that_are_there_already_are_stepped_down():
    (one, ours), (other, theirs) = make(), make()
    ours.descend(loss_of(one, 1))
    loss_of(other, 1).backward()
    theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_its_state_goes_by_names_and_another_continues_from_it_to_the_bit():
    (one, ours), (other, theirs) = make(), make(seed=1)
    assert ours.state() == {}
    for step in range(3):
        ours.descend(loss_of(one, step))
        theirs.descend(loss_of(other, step + 7))
    assert {name for name in ours.state() if name.startswith("2.bias.")} == {
        "2.bias.step", "2.bias.exp_avg", "2.bias.exp_avg_sq",
    }  # fmt: skip
    other.load_state_dict(one.state_dict())
    theirs.load_state({name: tensor.clone() for name, tensor in ours.state().items()})
    assert ours.descend(loss_of(one, 3)) == theirs.descend(loss_of(other, 3))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_weight_decay_is_that_of_torch_and_spares_every_vector():
    policy = ActorCritic(ObservationShape(3), gymnasium.spaces.Box(-1.0, 1.0, (2,)), NetworkConfig(hidden=(4,)))
    twin = copy.deepcopy(policy)
    ours = Optimiser(policy, PPOConfig(learning_rate=0.01, weight_decay=7.0), epsilon=1e-3)
    groups = [
        {"params": [value for value in twin.parameters() if (value.ndim > 1) == is_weight], "weight_decay": decay}
        for is_weight, decay in ((True, 7.0), (False, 0.0))
    ]
    theirs = torch.optim.AdamW(groups, 0.01, eps=1e-3)
    for step in range(3):
        for one, other in zip(policy.parameters(), twin.parameters(), strict=True):
            generator = torch.Generator().manual_seed(step)
            one.grad = torch.randn(one.shape, generator=generator) * 1e-2
            other.grad = one.grad.clone()
        ours.step()
        theirs.step()
    for (name, one), other in zip(policy.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_a_decay_that_turns_weights_round_is_refused():
    with pytest.raises(ValidationError, match="takes all of a weight away in a step; give a weight_decay below 100"):
        PPOConfig(learning_rate=0.01, weight_decay=100.0)
