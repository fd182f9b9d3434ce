"""Windows by cursor, and windows encoded once per bar, give the outputs and gradients of windows written out."""

from __future__ import annotations

import pytest
import torch

from tests.learn.learners import SMALL_NETWORK, assert_the_first_encodes_and_both_learn_alike, make_ppo, trading_worlds
from tests.learn.test_policy import SPACES
from tests.markets import small_market
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.layers import encode_bars
from velodrome.learn.networks.trunks import RecurrentTrunk, make_trunk
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank

MARKET = small_market(bars=30, instruments=2)
SHAPE = ObservationShape(4, ((5, 3), (2, 2)))
RANGES = ((4, 30), (34, 60))
ROWS = 24
# Ways to read the same windows: the bank by cursor, an encoding of all bars, one of the bars that occur.
WAYS = ("cursor", "all bars")
KINDS = ("mlp", "mlp_batch_norm", "conv", "gru")


def cursors():
    generator = torch.Generator().manual_seed(4)
    bars = torch.cat([torch.arange(low, high) for low, high in RANGES])
    return bars[torch.randint(0, len(bars), (ROWS,), generator=generator)].int()


def seen(way, bank, dtype):
    values = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(5)).to(dtype)
    cursor = cursors()
    return Observation(values, None, bank.gather(cursor)) if way == "direct" else Observation(values, cursor)


def trunk_run(kind, way):
    """Features and gradients of a trunk in double precision."""
    torch.manual_seed(0)
    trunk = make_trunk(SHAPE, NetworkConfig(**{**SMALL_NETWORK, "kind": kind})).double()
    bank = WindowBank(MARKET.windows, RANGES, dtype=torch.float64)
    encoding = None
    if way == "all bars":
        encoding = encode_bars(trunk.first, bank)
        assert len(encoding.table) == 52
    if isinstance(trunk, RecurrentTrunk):
        features = trunk.step(
            trunk.below(seen(way, bank, torch.float64), bank, encoding), torch.ones(ROWS, 10).double()
        )
    else:
        features = trunk(seen(way, bank, torch.float64), bank, encoding)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    (features * weights).sum().backward()
    return features.detach(), {name: parameter.grad for name, parameter in trunk.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_in_double_precision_all_ways_agree_to_the_last_digits(kind, way):
    features, gradients = trunk_run(kind, way)
    expected, expected_gradients = trunk_run(kind, "direct")
    torch.testing.assert_close(features, expected, rtol=1e-12, atol=1e-12)
    for name, gradient in expected_gradients.items():
        assert gradient.abs().max() > 1e-6 or "bias" in name
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-10, atol=1e-11, msg=name)


def policy_run(kind, shared, space, way):
    """Outputs and gradients of a policy in single precision; a recurrent one runs over three steps."""
    torch.manual_seed(0)
    config = NetworkConfig(**{**SMALL_NETWORK, "kind": kind, "shared": shared})
    policy = ActorCritic(SHAPE, SPACES[space], config)
    bank = WindowBank(MARKET.windows, RANGES)
    encoding = None
    if way == "all bars":
        encoding = policy.encode_bars(bank)
    observation = seen(way, bank, torch.float32)
    if policy.recurrent:
        starts = torch.zeros(3, ROWS // 3, dtype=torch.bool)
        starts[1, ::2] = True
        outputs = policy.sequence(observation, bank, encoding, torch.ones(ROWS // 3, policy.memory_size), starts)
    else:
        outputs = policy(observation, bank, encoding)
    (outputs.parameters.square().sum() + outputs.value.square().sum()).backward()
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}
    return torch.cat([outputs.parameters, outputs.value.unsqueeze(1)], 1).detach(), gradients


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_policies_agree_in_single_precision(kind, shared, way):
    outputs, gradients = policy_run(kind, shared, "discrete", way)
    expected, expected_gradients = policy_run(kind, shared, "discrete", "direct")
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        scale = float(gradient.abs().max()) + 1e-6
        torch.testing.assert_close(gradients[name] / scale, gradient / scale, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["mlp", "conv", "gru"])
def test_training_per_bar_is_training_per_sample_to_the_rounding(kind):
    learners = [
        make_ppo(trading_worlds(6), {"kind": kind}, per_bar=way, engine="autograd", learning_rate=1e-3)
        for way in ("always", "never")
    ]
    assert_the_first_encodes_and_both_learn_alike(*learners)


@pytest.mark.parametrize(
    ("bars", "steps", "once", "each"), [(100, 64, True, True), (100, 32, True, False), (100, 8, False, False)]
)
def test_bars_are_encoded_where_that_is_less_work(bars, steps, once, each):
    market = small_market(bars=bars)  # of which 96 have complete windows
    worlds = trading_worlds(6, market=market)
    learner = make_ppo(worlds, rollout_length=steps, minibatches=2, engine="autograd")
    assert (learner.engine.encode_once, learner.engine.encode_minibatches) == (once, each)


def test_an_encoding_is_made_anew_when_the_weights_have_changed():
    learner = make_ppo(trading_worlds(6), per_bar="always", engine="autograd", learning_rate=1e-2)
    learner.iterate()
    first = learner.engine.encoding[0].table.clone()
    learner.iterate()
    assert not torch.equal(first, learner.engine.encoding[0].table)
