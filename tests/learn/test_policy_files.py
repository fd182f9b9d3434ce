"""Exported policies act as the policy does, and a file that would not is never kept."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from tests.learn.learners import SMALL_NETWORK, portfolio_worlds
from tests.learn.test_policy import KINDS, SPACES
from velodrome.errors import BackendError, ConfigError, MissingDependencyError
from velodrome.learn import policy_files as export
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.q_network import QNetwork
from velodrome.learn.networks.soft_actor_critic import SquashedActor
from velodrome.learn.policy import ActorCritic
from velodrome.learn.policy_files import OPSET, export_onnx, export_torchscript
from velodrome.outside.extras import install
from velodrome.rollout.moments import RunningMoments
from velodrome.rollout.observation import ObservationShape

SHAPE = ObservationShape(4, ((5, 3), (2, 2)))
WITHOUT_WINDOWS = ObservationShape(6)
EVERY = [(kind, shared, space) for kind in KINDS for shared in (False, True) for space in SPACES]
# One of each kind of network and of action; exporting to ONNX takes seconds.
SOME = [("mlp", False, "discrete"), ("conv", True, "continuous"), ("gru", False, "multi_discrete")]


def make_policy(kind="mlp", shared=False, space="discrete", shape=SHAPE, normalise=True):
    torch.manual_seed(0)
    network = ActorCritic(shape, SPACES[space], NetworkConfig(**{**SMALL_NETWORK, "kind": kind, "shared": shared}))
    with torch.no_grad():
        network.policy_head.weight.mul_(100.0)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d):  # as training would leave it
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    moments = None
    if normalise:
        moments = RunningMoments(shape.values)
        moments.update(torch.randn(100, shape.values) * 7.0 + 3.0)
    return TrainedPolicy(network, shape, SPACES[space], moments=moments)


def instruments_policy(weighting, account_values="shares"):
    """One network for all instruments, on portfolios of several kinds of action."""
    worlds = portfolio_worlds(4, 3, account_values=account_values, **PORTFOLIOS[weighting])
    head = "dirichlet" if weighting == "dirichlet" else "auto"
    torch.manual_seed(0)
    network = ActorCritic(
        worlds.shape, worlds.action_space, NetworkConfig(kind="instruments", hidden=(8, 6), head=head)
    )  # fmt: skip
    with torch.no_grad():
        for layer in (network.policy_head.each.layer, network.policy_head.rest):
            if layer is not None:
                layer.weight.mul_(100.0)
    moments = RunningMoments(worlds.shape.values)
    moments.update(torch.randn(100, worlds.shape.values) * 7.0 + 3.0)
    return TrainedPolicy(network, worlds.shape, worlds.action_space, moments=moments)


PORTFOLIOS = {
    "softmax": {}, "dirichlet": {"weighting": "simplex"}, "signed": {"weighting": "signed"},
    "discrete": {"action": "discrete"},
}  # fmt: skip


@pytest.mark.parametrize("kind", PORTFOLIOS)
def test_one_network_for_all_instruments_is_exported(kind, tmp_path, capfd):
    policy = instruments_policy(kind)
    capfd.readouterr()  # the environment may have been compiled
    path = export_torchscript(policy, tmp_path / "policy.pt")
    assert capfd.readouterr() == ("", "")
    assert_acts_alike(policy, torchscript_function(path))


@pytest.mark.parametrize(
    "kind", ["dirichlet", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("softmax", "signed", "discrete"))]
)
def test_one_network_for_all_instruments_is_exported_to_onnx(kind, tmp_path, capfd):
    policy = instruments_policy(kind)
    path = export_onnx(policy, tmp_path / "policy.onnx")
    assert capfd.readouterr() == ("", "")
    assert_acts_alike(policy, onnx_function(path))


def onnx_function(path, outputs=("actions", "parameters", "next_memory")):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["observation", "memory"][: len(session.get_inputs())]
    names = [entry.name for entry in session.get_outputs()]
    assert names == list(outputs[: len(names)])
    return lambda *arrays: session.run(
        None, dict(zip(("observation", "memory"), arrays, strict=False))
    )  # fmt: skip


def torchscript_function(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's about its own future
        loaded = torch.jit.load(path)
    return lambda *arrays: [found.numpy() for found in loaded(*map(torch.from_numpy, arrays))]


def assert_acts_alike(policy, function, rows=33, steps=3):
    """Play the exported function beside the policy, its memory passed on from step to step."""
    rng = np.random.default_rng(11)
    policy.begin(rows)
    memory = np.zeros((rows, policy.memory_size), np.float32)
    every = []
    for _ in range(steps):
        observation = (rng.normal(size=(rows, policy.shape.floats)) * 3.0).astype(np.float32)
        outputs = function(observation, memory) if policy.memory_size else function(observation)
        if policy.memory_size:
            memory = outputs[2]
        expected = policy.act(observation)
        assert outputs[0].dtype == expected.dtype
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)
        every.append(expected)
    assert len(np.unique(np.concatenate(every))) > 1


@pytest.mark.parametrize(("kind", "shared", "space"), EVERY)
def test_torchscript_acts_as_the_policy_does(kind, shared, space, tmp_path, capfd):
    policy = make_policy(kind, shared, space)
    path = export_torchscript(policy, tmp_path / "policy.pt")
    assert capfd.readouterr() == ("", "")
    assert_acts_alike(policy, torchscript_function(path))
    assert [file.name for file in tmp_path.iterdir()] == ["policy.pt"]


@pytest.mark.parametrize(
    ("kind", "shared", "space"),
    [pytest.param(*case, marks=[] if case in SOME else [pytest.mark.slow]) for case in EVERY],
)
def test_onnx_acts_as_the_policy_does(kind, shared, space, tmp_path, capfd):
    policy = make_policy(kind, shared, space)
    path = export_onnx(policy, tmp_path / "policy.onnx")
    assert capfd.readouterr() == ("", "")
    assert_acts_alike(policy, onnx_function(path))
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_any_number_of_rows_may_be_given(rows, tmp_path):
    policy = make_policy("gru", shape=WITHOUT_WINDOWS)
    function = torchscript_function(export_torchscript(policy, tmp_path / "policy.pt"))
    assert_acts_alike(policy, function, rows=rows, steps=20 if rows == 1 else 2)


def test_onnx_without_windows_and_normalisation_and_its_opset(tmp_path):
    import onnx

    policy = make_policy(shape=WITHOUT_WINDOWS, normalise=False)
    path = export_onnx(policy, str(tmp_path / "policy.onnx"))
    for rows in (1, 200):
        assert_acts_alike(policy, onnx_function(path), rows=rows, steps=20)
    model = onnx.load(path)
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [OPSET]
    (observation,) = model.graph.input
    sizes = observation.type.tensor_type.shape.dim
    assert sizes[0].dim_param
    assert sizes[1].dim_value == 6


@pytest.mark.parametrize("duelling", [False, True])
def test_values_of_actions_are_exported_too(duelling, tmp_path):
    network = QNetwork(
        SHAPE, SPACES["discrete"], NetworkConfig(hidden=(8,), layer_norm=duelling, dropout=0.3), duelling=duelling
    )
    policy = TrainedPolicy(network, SHAPE, SPACES["discrete"])
    assert_acts_alike(policy, torchscript_function(export_torchscript(policy, tmp_path / "policy.pt")))


@pytest.mark.parametrize("write", [export_torchscript, export_onnx])
def test_squashed_actions_are_exported_too(write, tmp_path):
    torch.manual_seed(0)
    space = gymnasium.spaces.Box(np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
    network = SquashedActor(SHAPE, space, NetworkConfig(hidden=(8,), layer_norm=True))
    with torch.no_grad():
        network.policy_head.weight.mul_(5.0)
    policy = TrainedPolicy(network, SHAPE, space)
    path = write(policy, tmp_path / f"policy{'.pt' if write is export_torchscript else '.onnx'}")
    function = torchscript_function(path) if write is export_torchscript else onnx_function(path)
    assert_acts_alike(policy, function)


def test_parameters_are_those_of_the_distribution(tmp_path):
    policy = make_policy(normalise=False)
    function = torchscript_function(export_torchscript(policy, tmp_path / "policy.pt"))
    rows = np.random.default_rng(0).normal(size=(9, policy.shape.floats)).astype(np.float32)
    actions, logits = function(rows)
    assert logits.shape == (9, 3)
    np.testing.assert_array_equal(logits.argmax(1), actions)


def test_exporting_changes_nothing_of_the_policy(tmp_path):
    policy = make_policy("mlp_batch_norm")
    policy.network.train()
    state = {name: tensor.clone() for name, tensor in policy.network.state_dict().items()}
    export_torchscript(policy, tmp_path / "policy.pt")
    assert policy.network.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in policy.network.state_dict().items())


# What must not be kept


class Wrong(export.FlatPolicy):
    """Forgets to normalise."""

    def __init__(self, policy):
        super().__init__(policy)
        self.normalises = False


@pytest.mark.parametrize(("write", "name"), [(export_onnx, "policy.onnx"), (export_torchscript, "policy.pt")])
def test_a_function_that_acts_otherwise_is_not_kept_and_the_old_file_stays(write, name, tmp_path, monkeypatch):
    (tmp_path / name).write_text("old")
    monkeypatch.setattr(export, "FlatPolicy", Wrong)
    with pytest.raises(BackendError, match=r"gives other (actions|parameters) than the policy"):
        write(make_policy(), tmp_path / name)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


class Stubborn(nn.Module):
    """Looks at the numbers themselves, which no exporter can follow."""

    def __init__(self, window_shapes, values):
        super().__init__()
        self.out_features = values

    def forward(self, windows, values):
        return values if float(values.sum()) > 0.0 else -values


@pytest.mark.parametrize(("write", "name"), [(export_onnx, "policy.onnx"), (export_torchscript, "policy.pt")])
def test_a_network_that_cannot_be_exported_is_refused(write, name, tmp_path, monkeypatch):
    module = ModuleType("stubborn_networks")
    module.Stubborn = Stubborn
    monkeypatch.setitem(sys.modules, "stubborn_networks", module)
    network = ActorCritic(SHAPE, SPACES["discrete"], NetworkConfig(kind="stubborn_networks:Stubborn"))
    with torch.no_grad():
        network.policy_head.weight.mul_(100.0)
    with pytest.raises(BackendError, match=name):
        write(TrainedPolicy(network, SHAPE, SPACES["discrete"]), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(package, tmp_path, monkeypatch):
    def without(name):
        if name == package:
            raise ImportError(name)
        return importlib.import_module(name)

    monkeypatch.setattr(export, "import_module", without)
    with pytest.raises(MissingDependencyError, match=rf"needs {package}.*{re.escape(install('onnx'))}"):
        export_onnx(make_policy(), tmp_path / "policy.onnx")


@pytest.mark.parametrize(("write", "suffix"), [(export_onnx, ".onnx"), (export_torchscript, ".pt")])
def test_files_that_cannot_be_written_are_explained(write, suffix, tmp_path):
    with pytest.raises(ConfigError, match=f"must end in {suffix}"):
        write(make_policy(), tmp_path / "policy.bin")
    with pytest.raises(ConfigError, match="is no folder"):
        write(make_policy(), tmp_path / "missing" / f"policy{suffix}")
