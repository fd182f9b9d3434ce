"""Layer norm and dropout: what they compute, that acting and learning share their masks, that use knows no masks."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.learn.learner_cases import make_dqn
from tests.learn.learners import make_ppo, portfolio_worlds, trading_worlds
from tests.learn.networks.test_trunks import SHAPE, observation
from velodrome.errors import ConfigError
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.layers import Dropout, DropoutMasks
from velodrome.learn.networks.trunks import make_trunk
from velodrome.learn.ppo import KL

PPOS = {
    "discrete": lambda **network: make_ppo(trading_worlds(6), network),
    "continuous, shared": lambda **network: make_ppo(
        trading_worlds(6, action="continuous"), {"shared": True, **network}
    ),
    "gru": lambda **network: make_ppo(trading_worlds(6), {"kind": "gru", **network}),
    "portfolio": lambda **network: make_ppo(portfolio_worlds(6), {"kind": "instruments", **network}),
}


def test_every_hidden_layer_is_normalised_then_activated_then_thinned():
    trunk = make_trunk(SHAPE, NetworkConfig(hidden=(16, 12), layer_norm=True, dropout=0.25))
    kinds = [type(layer) for layer in trunk.body]
    assert kinds == [nn.LayerNorm, nn.Tanh, Dropout, nn.Linear, nn.LayerNorm, nn.Tanh, Dropout]
    seen = observation()
    masks = DropoutMasks(trunk, False)
    assert masks.width == 16 + 12
    kept = masks.draw(torch.ones(6, 28, dtype=torch.bool), torch.Generator().manual_seed(0))
    with masks.applied(kept):
        found = trunk(seen, None, None)
    joined = trunk.first.join(trunk.first.encode(seen.windows), seen.values)
    hidden = ((joined - joined.mean(1, keepdim=True)) / joined.std(1, correction=0, keepdim=True)).tanh()
    hidden = trunk.body[3](hidden * kept[:, :16] / 0.75)
    hidden = ((hidden - hidden.mean(1, keepdim=True)) / hidden.std(1, correction=0, keepdim=True)).tanh()
    torch.testing.assert_close(found, hidden * kept[:, 16:] / 0.75, rtol=1e-3, atol=1e-4)


def test_the_share_that_is_left_out_is_the_one_asked_for():
    masks = DropoutMasks(make_trunk(SHAPE, NetworkConfig(hidden=(50,), dropout=0.2)), False)
    kept = masks.draw(torch.ones(2000, 50, dtype=torch.bool), torch.Generator().manual_seed(1))
    assert float(kept.float().mean()) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("kind", PPOS)
def test_learning_begins_under_the_masks_of_acting(kind):
    learner = PPOS[kind](layer_norm=True, dropout=0.5)
    # A first policy is close to uniform, whatever is left out.
    for parameter in learner.policy.policy_head.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    learner.collect()
    learner.engine.begin_update()
    rows = torch.arange(6 if learner.policy.recurrent else learner.rollout.samples)
    assert learner.engine.name == "autograd"
    assert float(learner.engine.learn(rows)[KL]) == pytest.approx(0.0, abs=1e-6)
    learner.collect()
    learner.engine.kept.bernoulli_(0.5)  # under others, the same policy seems to have moved far
    assert float(learner.engine.learn(rows)[KL]) > 0.01


@pytest.mark.parametrize("kind", [*PPOS, "dqn"])
def test_nothing_is_left_out_in_use(kind):
    learner = make_dqn(network={"dropout": 0.5}) if kind == "dqn" else PPOS[kind](dropout=0.5)
    for _ in range(4):
        learner.iterate()
    policy = TrainedPolicy.of(learner.policy, learner.worlds)
    seen, memory = learner.worlds.observation, torch.ones(6, policy.memory_size)
    seen = seen._replace(windows=policy.bank.gather(seen.cursor))
    outputs = [policy.decide(seen, memory)[1]]
    for mode in (True, False):
        learner.policy.train(mode)
        outputs.append(policy.decide(seen, memory)[1])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("make", [make_ppo, make_dqn])
def test_a_compiled_network_refuses_dropout(make):
    with pytest.raises(ConfigError, match=r"network.dropout with compile = true"):
        make(trading_worlds(4), {"dropout": 0.1}, compile=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"kind": "mlp_batch_norm", "layer_norm": True}, "normalises the same sums already"),
     ({"kind": "mine:Network", "dropout": 0.1}, "is one of yours"), ({"dropout": 1.0}, "less than 1")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        NetworkConfig(**settings)
