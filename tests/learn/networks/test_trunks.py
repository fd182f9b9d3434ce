"""Networks from observations to features."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.learn.learners import SMALL_NETWORK
from velodrome.errors import ConfigError
from velodrome.learn.config import NETWORKS, NetworkConfig
from velodrome.learn.networks.trunks import ConvolutionFirst, LinearFirst, linear, make_trunk
from velodrome.rollout.observation import Observation, ObservationShape

SHAPE = ObservationShape(4, ((5, 3), (2, 2)))


def observation(rows=6, shape=SHAPE):
    return Observation(torch.randn(rows, shape.values), None, torch.randn(rows, shape.window_floats))


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if kind not in ("gru", "instruments")])
@pytest.mark.parametrize("hidden", [(7,), (16, 12), (8, 9, 10)])
def test_features_are_as_wide_as_the_last_layer(kind, hidden):
    trunk = make_trunk(SHAPE, NetworkConfig(**{**SMALL_NETWORK, "kind": kind, "hidden": hidden}))
    assert trunk(observation(), None, None).shape == (6, hidden[-1])
    assert trunk.out_features == hidden[-1]
    assert trunk.memory_size == 0


def test_the_first_linear_layer_is_one_layer_over_windows_and_values():
    first = LinearFirst(SHAPE, 16)
    values, _, windows = observation()
    joined = first.join(first.encode(windows), values)
    torch.testing.assert_close(joined, first.layer(torch.cat([windows, values], 1)), rtol=1e-5, atol=1e-6)


def test_convolutions_run_along_the_bars_of_each_window():
    config = NetworkConfig(kind="conv", channels=(4,), kernel=3)
    first = ConvolutionFirst(SHAPE, config, 16)
    values, _, windows = observation(rows=1)
    convolution = first.stacks[0][0]
    window = windows[0, :15].reshape(5, 3)  # bars, features
    expected = torch.stack(
        [(convolution.weight * window[at : at + 3].T).sum((1, 2)) + convolution.bias for at in range(3)], 1
    )
    found = convolution(window.T.unsqueeze(0))[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # Of the second window, two bars long, the kernel takes what there is.
    assert first.stacks[1][0].kernel_size == (2,)
    assert first.join(first.encode(windows), values).shape == (1, 16)


def test_a_convolution_without_windows_is_refused():
    with pytest.raises(ConfigError, match="use 'mlp'"):
        make_trunk(ObservationShape(4), NetworkConfig(kind="conv"))


def test_batch_norm_uses_the_batch_in_training_and_running_moments_otherwise():
    trunk = make_trunk(SHAPE, NetworkConfig(kind="mlp_batch_norm", hidden=(8, 8)))
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in trunk.body) == 2
    seen = observation(rows=64)
    before = trunk.body[0].running_mean.clone()
    trained = trunk(seen, None, None)
    assert not torch.equal(trunk.body[0].running_mean, before)
    trunk.eval()
    after = trunk.body[0].running_mean.clone()
    assert not torch.allclose(trunk(seen, None, None), trained, atol=1e-3)
    assert torch.equal(trunk.body[0].running_mean, after)


def test_observations_without_windows_use_the_values_only():
    shape = ObservationShape(5)
    trunk = make_trunk(shape, NetworkConfig(hidden=(8,)))
    values = torch.randn(3, 5)
    torch.testing.assert_close(trunk(Observation(values), None, None), torch.tanh(trunk.first.layer(values)))


@pytest.mark.parametrize("name", ["tanh", "relu", "silu", "gelu"])
def test_the_activation_is_the_one_asked_for(name):
    trunk = make_trunk(ObservationShape(5), NetworkConfig(hidden=(8,), activation=name))
    values = torch.randn(3, 5)
    expected = getattr(torch.nn.functional, name, torch.tanh)(trunk.first.layer(values))
    torch.testing.assert_close(trunk(Observation(values), None, None), expected)


def test_first_weights_are_orthogonal_with_the_gain_asked_for():
    layer = linear(40, 8, 0.5)
    torch.testing.assert_close(layer.weight @ layer.weight.T, 0.25 * torch.eye(8), rtol=1e-4, atol=1e-5)
    assert not layer.bias.any()
    default = linear(8, 8)
    torch.testing.assert_close(default.weight @ default.weight.T, 2.0 * torch.eye(8), rtol=1e-4, atol=1e-5)


# Networks of the user's own


class Own(nn.Module):
    """Means over the bars of each window beside the values."""

    def __init__(self, window_shapes, values):
        super().__init__()
        self.out_features = sum(features for _, features in window_shapes) + values

    def forward(self, windows, values):
        return torch.cat([*(window.mean(1) for window in windows), values], 1)


@pytest.fixture
def own_module(monkeypatch):
    module = ModuleType("own_networks")
    module.Own = Own
    module.Bare = type("Bare", (nn.Module,), {"__init__": lambda self, *_: nn.Module.__init__(self)})
    module.number = 3
    monkeypatch.setitem(sys.modules, "own_networks", module)


def test_the_network_of_the_page_serves_with_windows_and_without(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/add_an_algorithm.md").read_text(encoding="utf-8")
    (module,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "# my_nets.py" in block)
    (tmp_path / "my_nets.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for shape in (SHAPE, ObservationShape(4)):
        trunk = make_trunk(shape, NetworkConfig(kind="my_nets:Wide"))
        assert trunk(observation(6, shape), None, None).shape == (6, trunk.out_features)
    sys.modules.pop("my_nets")


@pytest.mark.usefixtures("own_module")
def test_a_users_network_gets_windows_and_values():
    trunk = make_trunk(SHAPE, NetworkConfig(kind="own_networks:Own"))
    seen = observation()
    found = trunk(seen, None, None)
    assert found.shape == (6, trunk.out_features) == (6, 9)
    torch.testing.assert_close(found[:, :3], seen.windows[:, :15].reshape(6, 5, 3).mean(1))
    torch.testing.assert_close(found[:, 5:], seen.values)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("kind", "message"),
    [("nowhere_at_all:Own", "importable"), ("own_networks:Missing", "Missing"), ("own_networks:Bare", "out_features")],
)
def test_a_users_network_that_cannot_serve_is_explained(kind, message):
    with pytest.raises(ConfigError, match=message):
        make_trunk(SHAPE, NetworkConfig(kind=kind))


@pytest.mark.parametrize(
    ("values", "message"),
    [({"kind": "mpl"}, "Did you mean 'mlp'"), ({"hidden": ()}, "widths"), ({"hidden": (0,)}, "widths"),
     ({"channels": (0,)}, "widths"), ({"activation": "sin"}, "tanh"), ({"width": 3}, "width")],
)  # fmt: skip
def test_illegal_settings_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        NetworkConfig(**values)
