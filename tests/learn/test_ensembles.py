"""An ensemble acts by the mean of its members' distributions, whatever kind of action and network they have."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from tests.learn.learners import SMALL_NETWORK
from tests.learn.test_policy import KINDS
from tests.learn.test_policy_files import instruments_policy, onnx_function, torchscript_function
from velodrome.errors import ConfigError
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.ensembles import EnsemblePolicy, StackedPerceptrons, ensemble_of
from velodrome.learn.networks.q_network import QNetwork
from velodrome.learn.networks.soft_actor_critic import SquashedActor
from velodrome.learn.policy import ActorCritic
from velodrome.learn.policy_files import export_onnx, export_torchscript
from velodrome.rollout.moments import RunningMoments
from velodrome.rollout.observation import ObservationShape

SHAPE = ObservationShape(4, ((5, 3), (2, 2)))
SCALE = 5.0  # of the softmax
BOX = gymnasium.spaces.Box
SPACES = {
    "discrete": gymnasium.spaces.Discrete(3),
    "several": gymnasium.spaces.MultiDiscrete([2, 3]),
    "several alike": gymnasium.spaces.MultiDiscrete([3, 3]),
    "numbers": BOX(-1.0, 1.0, (2,)),
    "endless numbers": BOX(-np.inf, np.inf, (2,)),
    "softmax": BOX(-1.0, 1.0, (3,)),
    "dirichlet": BOX(0.0, 1.0, (3,)),
    "values": gymnasium.spaces.Discrete(3),
    "squashed": BOX(-3.0, 1.0, (2,)),
}
WITHOUT_MEMORY = ("values", "squashed")
CHOICES = ("discrete", "several", "several alike", "values")


def member(space="discrete", kind="mlp", seed=0, normalise=True, **network):
    torch.manual_seed(seed)
    settings = {**SMALL_NETWORK, "kind": kind, "head": "dirichlet" if space == "dirichlet" else "auto", **network}
    make = {"values": QNetwork, "squashed": SquashedActor}.get(space, ActorCritic)
    made = make(SHAPE, SPACES[space], NetworkConfig(**settings))
    with torch.no_grad():
        (made.action_head if space == "values" else made.policy_head).weight.mul_(100.0)
        for module in made.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    moments = None
    if normalise:
        moments = RunningMoments(SHAPE.values)
        moments.update(torch.randn(100, SHAPE.values) * (2.0 + seed) + seed)
    unit = 1.0 + seed if space == "values" else 1.0
    return TrainedPolicy(made, SHAPE, SPACES[space], moments=moments, seed=7, value_unit=unit)


def together(members, space):
    return ensemble_of(members, softmax=SCALE if space == "softmax" else None)


def observations(rows=40, seed=1):
    return (np.random.default_rng(seed).normal(size=(rows, SHAPE.floats)) * 2.0).astype(np.float32)


def softmax(numbers):
    powers = np.exp(np.asarray(numbers, np.float64) - np.max(numbers, axis=-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# The contract


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_an_ensemble_of_one_acts_as_its_member_to_the_bit(space, deterministic):
    if space == "values" and not deterministic:
        with pytest.raises(ConfigError, match="it cannot draw"):
            together([member(space)], space).act(observations(), deterministic=False)
        return
    for kind in ("mlp", "gru") if space not in WITHOUT_MEMORY else ("mlp", "conv"):
        one = member(space, kind)
        ensemble = together([one], space)
        for seed in range(3):  # memory and random numbers go on
            wanted = one.act(observations(seed=seed), deterministic)
            found = ensemble.act(observations(seed=seed), deterministic)
            assert found.dtype == wanted.dtype
            assert found.tobytes() == wanted.tobytes()
        assert not ensemble.disagreement.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", SPACES)
def test_equal_members_act_as_one_of_them(space, kind):
    if (kind == "gru" and space in WITHOUT_MEMORY) or (space, kind) == ("squashed", "mlp_batch_norm"):
        return
    ensemble, alone = together([member(space, kind), member(space, kind)], space), member(space, kind)
    for seed in range(2):
        found, wanted = ensemble.act(observations(seed=seed)), alone.act(observations(seed=seed))
        if space == "softmax":  # the numbers that a softmax comes from are free by a constant
            found, wanted = softmax(SCALE * found), softmax(SCALE * wanted)
        if space in CHOICES or (kind != "mlp" and space in ("numbers", "endless numbers", "dirichlet")):
            assert found.tobytes() == wanted.tobytes()
        else:  # weights that are stacked multiply in another order
            np.testing.assert_allclose(found, wanted, atol=2e-6)
        assert not ensemble.disagreement.any()


@pytest.mark.parametrize("kind", ["mlp", "gru"])
@pytest.mark.parametrize("space", SPACES)
def test_it_is_the_mean_of_the_members(space, kind):
    """Row by row and member by member, in plain loops."""
    if kind == "gru" and space in WITHOUT_MEMORY:
        kind = "conv"
    members = [member(space, kind, seed) for seed in range(4)]
    ensemble, rows = together(members, space), 30
    ensemble.begin(rows)
    for one in members:
        one.begin(rows)
    for step in range(2):
        seen = observations(rows, step)
        found = ensemble.act(seen)
        each = []
        for one in members:  # parameters of each, as it sees the observation
            read, _ = one._read(seen)
            _, parameters, after = one.decide(read, one._memory_for(rows))
            one._memory = after
            each.append(parameters.double().numpy())
        for row in range(rows):
            wanted, apart = slow_action(space, [own[row] for own in each], members)
            if space == "softmax":
                np.testing.assert_allclose(softmax(SCALE * found[row]), wanted, atol=1e-5)
            else:
                np.testing.assert_allclose(found[row], wanted, atol=1e-5)
            assert ensemble.disagreement[row] == pytest.approx(apart, abs=1e-5)
    assert 0.0 < ensemble.disagreement.mean() < 1.0
    assert ensemble.members == 4


def slow_action(space, parameters, members):
    """Return what an ensemble does and how far its members are apart, by the definition."""
    count = len(parameters)
    if space == "values":
        values = sum(own * one.value_unit for own, one in zip(parameters, members, strict=True)) / count
        return values.argmax(), sum(own.argmax() != values.argmax() for own in parameters) / count
    if space in CHOICES:
        sizes = [int(SPACES[space].n)] if space == "discrete" else SPACES[space].nvec.tolist()
        actions, differing, at = [], 0, 0
        for size in sizes:
            heads = [softmax(own[at : at + size]) for own in parameters]
            actions.append(int((sum(heads) / count).argmax()))
            differing += sum(int(head.argmax()) != actions[-1] for head in heads)
            at += size
        return (actions[0] if space == "discrete" else actions), differing / count / len(sizes)
    if space in ("dirichlet", "softmax"):
        if space == "softmax":
            weights = [softmax(SCALE * np.clip(own, -1.0, 1.0)) for own in parameters]
        else:
            weights = [members[0].distribution.mode(torch.tensor(own)[None]).double().numpy()[0] for own in parameters]
        mean = sum(weights) / count
        return mean, sum(0.5 * np.abs(own - mean).sum() for own in weights) / count
    if space == "squashed":
        numbers = np.array([-1.0 + 2.0 * np.tanh(own[:2]) for own in parameters])
        return numbers.mean(0), numbers.std(0).mean() / 2.0
    limit = 1.0 if space == "numbers" else np.inf
    numbers = np.array([np.clip(own, -limit, limit) for own in parameters])
    return numbers.mean(0), numbers.std(0).mean()


def test_weights_stay_on_the_simplex_and_numbers_within_their_range():
    for space in ("dirichlet", "softmax", "numbers"):
        found = together([member(space, seed=seed) for seed in range(5)], space).act(observations(200))
        assert all(SPACES[space].contains(action) for action in found)
        if space == "dirichlet":
            np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)


def test_drawn_actions_are_those_of_the_mean_of_the_distributions():
    members = [member(seed=seed) for seed in range(3)]
    row = observations(1)
    chances = []
    for one in members:
        _, parameters, _ = one.decide(one._read(row)[0], torch.zeros(1, 0))
        chances.append(softmax(parameters.numpy()[0]))
    drawn = ensemble_of(members).act(np.repeat(row, 40_000, 0), deterministic=False)
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    np.testing.assert_allclose(shares, np.mean(chances, 0), atol=0.01)
    # Of numbers: between two members that are far apart lies nothing that either would do.
    sides = [member("endless numbers", seed=seed) for seed in range(2)]
    for one, sign in zip(sides, (-1.0, 1.0), strict=True):
        with torch.no_grad():
            one.network.policy_head.weight.zero_()
            one.network.policy_head.bias.fill_(10.0 * sign)
            one.network.log_std.fill_(0.0)
    drawn = ensemble_of(sides).act(observations(2_000), deterministic=False)
    assert (np.abs(drawn) > 5.0).all()
    assert abs((drawn > 0.0).mean() - 0.5) < 0.05


# Their networks


def test_plain_perceptrons_multiply_at_once_and_others_one_by_one():
    assert isinstance(ensemble_of([member(seed=0), member(seed=1)]).network.members[0], StackedPerceptrons)
    assert isinstance(ensemble_of([member("values")] * 2).network.members[0], StackedPerceptrons)
    for others in (
        [member(kind="conv"), member(kind="conv")],
        [member(hidden=(16, 12)), member(hidden=(8,))],
        [member(kind="mlp_batch_norm"), member(kind="mlp_batch_norm")],
        [member(kind="gru"), member(kind="mlp")],
        [member(activation="relu"), member(activation="tanh")],
        [member(), member(normalise=False)],
    ):
        ensemble = ensemble_of(others)
        assert len(ensemble.network.members) == 2
        assert ensemble.act(observations()).shape == (40,)


def test_members_may_go_on_learning_without_changing_it():
    members = [member(seed=0).network.train(), member(seed=1).network.train()]
    policies = [TrainedPolicy(network, SHAPE, SPACES["discrete"]) for network in members]
    ensemble = ensemble_of(policies)
    before = ensemble.act(observations())
    with torch.no_grad():
        for network in members:
            network.policy_head.weight.mul_(-1.0)
    assert (ensemble.act(observations()) == before).all()
    assert all(network.training for network in members)


def test_what_does_not_fit_together_is_refused():
    other = TrainedPolicy(member("numbers").network, SHAPE, SPACES["numbers"])
    with pytest.raises(ConfigError, match=r"action space of number 2 is Box.* and that of the first Discrete\(3\)"):
        ensemble_of([member(), other])
    with pytest.raises(ConfigError, match=r"kind of action of number 3 is \('values'.*first \('chances'"):
        ensemble_of([member(), member(seed=1), member("values")])
    with pytest.raises(ConfigError, match="needs at least one policy"):
        ensemble_of([])


# As files


def assert_exported_alike(policy, function):
    policy.begin(33)
    memory = np.zeros((33, policy.memory_size), np.float32)
    for step in range(3):
        rows = np.random.default_rng(step).normal(size=(33, policy.shape.floats)).astype(np.float32)
        actions, parameters, disagreement, *after = function(*([rows, memory] if policy.memory_size else [rows]))
        memory = after[0] if after else memory
        np.testing.assert_allclose(actions, policy.act(rows), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(disagreement, policy.disagreement, atol=1e-4)
        assert parameters.shape == (33, policy.members * policy.distribution.own.width)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        *(("several", "mlp"), ("softmax", "mlp")),
        *(pytest.param(space, "gru", marks=pytest.mark.slow) for space in SPACES if space not in WITHOUT_MEMORY),
        *(pytest.param(space, "conv", marks=pytest.mark.slow) for space in SPACES),
    ],
)
def test_torchscript_acts_as_the_ensemble_does(space, kind, tmp_path):
    policy = together([member(space, kind, seed) for seed in range(2)], space)
    assert_exported_alike(policy, torchscript_function(export_torchscript(policy, tmp_path / "policy.pt")))


ONNX = [("values", "mlp"), *((space, "mlp") for space in SPACES if space != "values"), ("discrete", "gru")]


@pytest.mark.parametrize(
    ("space", "kind"), [ONNX[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in ONNX[1:])]
)
def test_onnx_is_one_graph_that_acts_as_the_ensemble_does(space, kind, tmp_path):
    policy = together([member(space, kind, seed) for seed in range(3)], space)
    path = export_onnx(policy, tmp_path / "policy.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]
    assert_exported_alike(policy, onnx_function(path, ["actions", "parameters", "disagreement", "next_memory"]))


@pytest.mark.parametrize(
    "weighting", ["softmax", *(pytest.param(other, marks=pytest.mark.slow) for other in ("dirichlet", "discrete"))]
)
def test_one_network_for_all_instruments_has_ensembles_too(weighting, tmp_path):
    members = [instruments_policy(weighting), instruments_policy(weighting)]
    with torch.no_grad():
        for parameter in members[1].network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    policy = together(members, weighting)
    assert isinstance(policy, EnsemblePolicy)
    assert_exported_alike(policy, torchscript_function(export_torchscript(policy, tmp_path / "policy.pt")))
    assert policy.disagreement.any()
