"""Networks from observations to features: a first layer, which joins windows and values, and a body on top of it.

`layers.py` says how the market's part of the first layer is computed once per bar.
"""

from __future__ import annotations

import importlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from velodrome.errors import ConfigError, sentence
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.instruments import InstrumentTrunk
from velodrome.learn.networks.layers import ACTIVATIONS, BarEncoding, after_sums, linear, make_orthogonal, windows_part
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank, split_windows


class LinearFirst(nn.Module):
    """One linear layer over windows and values side by side."""

    def __init__(self, shape: ObservationShape, width: int) -> None:
        super().__init__()
        self.window_floats = shape.window_floats
        self.layer = linear(shape.floats, width)

    def encode(self, windows: Tensor) -> Tensor:
        """Return the windows' part of the layer, [n, width]."""
        return functional.linear(windows, self.layer.weight[:, : self.window_floats])

    def join(self, encoded: Tensor | None, values: Tensor) -> Tensor:
        """Return the layer's output given the windows' part of it."""
        weight = self.layer.weight[:, self.window_floats :] if self.window_floats else self.layer.weight
        own = functional.linear(values, weight, self.layer.bias)
        return own if encoded is None else encoded + own


class ConvolutionFirst(nn.Module):
    """Convolutions along the bars of each window, then one linear layer over their results and the values."""

    def __init__(self, shape: ObservationShape, config: NetworkConfig, width: int) -> None:
        super().__init__()
        if not shape.windows:
            raise ConfigError("network.kind = 'conv' needs windows and these observations have none; use 'mlp'.")
        self.shapes = shape.windows
        self.stacks = nn.ModuleList()
        floats = 0
        for rows, features in shape.windows:
            layers: list[nn.Module] = []
            inputs = features
            for channels in config.channels:
                size = min(config.kernel, rows)
                layers += [nn.Conv1d(inputs, channels, size), ACTIVATIONS[config.activation]()]
                inputs, rows = channels, rows - size + 1
            self.stacks.append(nn.Sequential(*layers, nn.Flatten()))
            floats += inputs * rows
        self.windows = linear(floats, width)
        self.values = nn.Linear(shape.values, width, bias=False)
        make_orthogonal(self.values.weight, math.sqrt(2.0))

    def encode(self, windows: Tensor) -> Tensor:
        """Return the windows' part of the layer, [n, width]."""
        parts = [
            stack(window.transpose(1, 2))
            for stack, window in zip(self.stacks, split_windows(windows, self.shapes), strict=True)
        ]
        return self.windows(torch.cat(parts, 1))

    def join(self, encoded: Tensor | None, values: Tensor) -> Tensor:
        """Return the layer's output given the windows' part of it."""
        assert encoded is not None
        return encoded + self.values(values)


class Trunk(nn.Module):
    """From an observation to features, [n, out_features]."""

    def __init__(self, shape: ObservationShape, config: NetworkConfig) -> None:
        super().__init__()
        first, *further = config.hidden
        self.first: LinearFirst | ConvolutionFirst = (
            ConvolutionFirst(shape, config, first) if config.kind == "conv" else LinearFirst(shape, first)
        )
        body: list[nn.Module] = after_sums(first, config)
        inputs = first
        for width in further:
            body += [linear(inputs, width), *after_sums(width, config)]
            inputs = width
        self.body = nn.Sequential(*body)
        self.encoded_width = first
        self.out_features = inputs
        self.memory_size = 0

    def forward(self, observation: Observation, bank: WindowBank | None, encoding: BarEncoding | None) -> Tensor:
        """Return features; an encoding of the bars, if given, is looked up instead of encoding every sample."""
        encoded = windows_part(self.first, observation, bank, encoding)
        return self.body(self.first.join(encoded, observation.values))


class RecurrentTrunk(nn.Module):
    """A trunk whose features pass through a GRU from step to step of an episode."""

    def __init__(self, shape: ObservationShape, config: NetworkConfig) -> None:
        super().__init__()
        self.below = Trunk(shape, config)
        self.cell = nn.GRUCell(self.below.out_features, config.memory)
        for name, parameter in self.cell.named_parameters():
            make_orthogonal(parameter) if "weight" in name else nn.init.zeros_(parameter)
        self.out_features = self.memory_size = config.memory
        self.encoded_width = self.below.encoded_width

    @property
    def first(self) -> LinearFirst | ConvolutionFirst:
        """The first layer, which looks at windows."""
        return self.below.first

    def step(self, features: Tensor, memory: Tensor) -> Tensor:
        """Return the memory after one step, which is also the output."""
        return self.cell(features, memory)


class UserTrunk(nn.Module):
    """A network of the user's own: `Class(window_shapes, values)` with an attribute `out_features`.

    Its forward takes a list of windows, [n, rows, features] each, and the values, [n, values]; returns
    [n, out_features].
    """

    def __init__(self, shape: ObservationShape, config: NetworkConfig) -> None:
        super().__init__()
        module_name, _, class_name = config.kind.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"network.kind = {config.kind!r}: {sentence(error)} Write module:Class, importable from here."
            ) from error
        self.shapes = shape.windows
        self.network = found(shape.windows, shape.values)
        if not isinstance(self.network, nn.Module) or not isinstance(getattr(self.network, "out_features", None), int):
            raise ConfigError(
                f"network.kind = {config.kind!r} made {type(self.network).__name__}; needs an nn.Module with a whole "
                f"number `out_features`."
            )
        self.out_features = int(self.network.out_features)  # type: ignore[arg-type]
        self.memory_size = self.encoded_width = 0

    def forward(self, observation: Observation, bank: WindowBank | None, encoding: BarEncoding | None) -> Tensor:
        """Return features; windows are always gathered for every sample."""
        values, cursor, windows = observation
        if windows is None and bank is not None and cursor is not None:
            windows = bank.gather(cursor)
        return self.network([] if windows is None else split_windows(windows, self.shapes), values)


def make_trunk(shape: ObservationShape, config: NetworkConfig) -> Trunk | RecurrentTrunk | UserTrunk | InstrumentTrunk:
    """Return the trunk that a configuration asks for."""
    if ":" in config.kind:
        return UserTrunk(shape, config)
    if config.kind == "instruments":
        return InstrumentTrunk(shape, config)
    return RecurrentTrunk(shape, config) if config.kind == "gru" else Trunk(shape, config)
