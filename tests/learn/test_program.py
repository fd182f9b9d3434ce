"""A policy's program does what its network does."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from tests.baskets import small_basket
from tests.markets import small_market
from velodrome.envs.contract import InstrumentLayout
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.ensembles import ensemble_of
from velodrome.learn.networks.q_network import QNetwork
from velodrome.learn.networks.soft_actor_critic import SquashedActor
from velodrome.learn.policy import ActorCritic
from velodrome.learn.program import decide, program_of
from velodrome.rollout.moments import RunningMoments
from velodrome.rollout.observation import ObservationShape, WindowBank
from velodrome.vector.compile.playing import Seen

ENVIRONMENTS, INSTRUMENTS = 3, 3
CHOICE = gymnasium.spaces.Discrete(3)
NUMBERS = gymnasium.spaces.Box(-1.0, 1.0, (INSTRUMENTS + 1,), np.float32)
CASES = {
    **{name: (CHOICE, {"activation": name}) for name in ("tanh", "relu", "silu", "gelu")},
    "shared": (NUMBERS, {"shared": True, "hidden": (5,)}),
    "norms": (CHOICE, {"layer_norm": True, "dropout": 0.2}),
    "batch norm": (CHOICE, {"kind": "mlp_batch_norm"}),
    "conv": (CHOICE, {"kind": "conv", "channels": (4,)}),
    "gru": (NUMBERS, {"kind": "gru", "memory": 6}),
    "instruments": (NUMBERS, {"kind": "instruments"}),
    "weights": (
        gymnasium.spaces.Box(0.0, 1.0, (INSTRUMENTS,), np.float32),
        {"kind": "instruments", "head": "dirichlet"},
    ),
    "several choices": (gymnasium.spaces.MultiDiscrete([3] * INSTRUMENTS), {"kind": "instruments"}),
    "values of actions": (CHOICE, {"duelling": False}),
    "duelling": (CHOICE, {"duelling": True, "kind": "conv", "channels": (4,)}),
    "without windows": (CHOICE, {}),
    "squashed": (gymnasium.spaces.Box(-3.0, 1.0, (INSTRUMENTS + 1,), np.float32), {"squashed": True}),
    "squashed instruments": (NUMBERS, {"squashed": True, "kind": "instruments"}),
}


def make_policy(name: str, seed: int = 0) -> TrainedPolicy:
    """Return a policy with random weights, whose actions are far apart."""
    space, chosen = CASES[name]
    settings = {"hidden": (16, 8), **chosen}
    duelling, squashed = settings.pop("duelling", None), settings.pop("squashed", False)
    each = settings.get("kind") == "instruments"
    bank = WindowBank((small_basket(bars=60, instruments=INSTRUMENTS) if each else small_market(bars=60)).windows)
    layout = InstrumentLayout(INSTRUMENTS, (1, 5)) if each else None
    shape = ObservationShape(9, () if name == "without windows" else bank.shapes, layout)
    torch.manual_seed(seed)
    config = NetworkConfig(**settings)
    network = QNetwork(shape, space, config, duelling=duelling) if duelling is not None else None
    network = network or (SquashedActor if squashed else ActorCritic)(shape, space, config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
        for layer in network.modules():
            if isinstance(layer, torch.nn.BatchNorm1d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2.0)
    moments = RunningMoments(9)
    moments.update(torch.randn(50, 9) * 2.0 + 1.0)
    return TrainedPolicy(network, shape, space, moments=moments, bank=bank if shape.windows else None)


def observations(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        (rng.normal(0.0, 3.0, (ENVIRONMENTS, 9)).astype(np.float32), rng.integers(20, 59, ENVIRONMENTS, np.int32))
        for _ in range(steps)
    ]


def seen_by(values: np.ndarray, cursors: np.ndarray) -> Seen:
    nothing = np.zeros(ENVIRONMENTS, np.float32)
    return Seen(values, cursors, nothing, nothing.astype(bool), nothing.astype(bool))


@pytest.mark.parametrize("name", CASES)
def test_a_program_acts_as_its_network(name):
    policy = make_policy(name)
    program = program_of(policy, np.arange(20, 60), ENVIRONMENTS)
    assert program is not None
    policy.begin(ENVIRONMENTS)
    whole = not isinstance(policy.action_space, gymnasium.spaces.Box)
    taken = []
    for values, cursors in observations(12):
        cursor = {"cursor": cursors} if policy.shape.windows else {}
        expected = policy.act({"account": values, **cursor})
        actions = np.zeros(expected.shape, np.int64 if whole else np.float32)
        assert decide(program, 0, seen_by(values, cursors), actions) == -1
        np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)
        taken.append(actions)
    assert len(np.unique(taken, axis=0)) > 1


def test_a_network_that_gives_no_number_is_told_by_its_environment():
    policy = make_policy("tanh")
    with torch.no_grad():
        policy.network.policy_head.bias[1] = np.nan
    program = program_of(policy, np.arange(20, 60), ENVIRONMENTS)
    assert decide(program, 0, seen_by(*observations(1)[0]), np.zeros(ENVIRONMENTS, np.int64)) == 0


def test_networks_of_a_users_own_have_no_program():
    for changed in ("body", "head", "norm"):
        policy = make_policy("norms")
        if changed == "body":
            policy.network.actor.body.append(torch.nn.Softplus())
        elif changed == "head":
            policy.network.policy_head = torch.nn.Sequential(policy.network.policy_head)
        else:
            policy.network.actor.body[0].eps = 0.1
        assert program_of(policy, np.arange(20, 60), ENVIRONMENTS) is None, changed


# Ensembles


@pytest.mark.parametrize(
    "name", ["tanh", "values of actions", "several choices", "gru", "norms", "weights", "squashed"]
)
def test_an_ensemble_acts_and_disagrees_as_its_networks_do(name):
    members = [make_policy(name, seed) for seed in range(3)]
    if name == "values of actions":
        members[1].value_unit = 2.5
    policy, steps = ensemble_of(members), observations(12)
    program = program_of(policy, np.arange(20, 60), ENVIRONMENTS, len(steps))
    assert program is not None
    policy.begin(ENVIRONMENTS)
    whole, apart = not isinstance(policy.action_space, gymnasium.spaces.Box), []
    for bar, (values, cursors) in enumerate(steps):
        expected = policy.act({"account": values, "cursor": cursors})
        apart.append(policy.disagreement)
        actions = np.zeros(expected.shape, np.int64 if whole else np.float32)
        assert decide(program, bar, seen_by(values, cursors), actions) == -1
        np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(program.apart, apart, rtol=1e-4, atol=1e-5)
    assert np.ptp(program.apart) > 0.0


def test_an_ensemble_of_weights_by_softmax_acts_through_torch():
    members = [make_policy("instruments", seed) for seed in range(2)]
    assert program_of(ensemble_of(members, softmax=2.0), np.arange(20, 60), ENVIRONMENTS) is None
