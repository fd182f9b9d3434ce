"""One network for every instrument: the same weights look at each, and all see what is common to them.

The windows and values of each instrument go through the same first layer. The mean and the largest of all encodings,
with the values that belong to no instrument, are the context that every further layer and the heads see. Swapping two
instruments swaps their outputs and leaves the value as it is, and 3 instruments need as many parameters as 500 (after
Zaheer et al., Deep Sets, 2017).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from velodrome.envs.contract import InstrumentLayout
from velodrome.errors import ConfigError
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.layers import BarEncoding, after_sums, linear, windows_part
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank, split_windows


class InstrumentFeatures(NamedTuple):
    """Features of n observations of K instruments."""

    each: Tensor  # [n, K, width]
    context: Tensor  # [n, context]


class InstrumentFirst(nn.Module):
    """One linear layer over an instrument's windows, its own values and the shared ones, for each instrument."""

    def __init__(self, shape: ObservationShape, layout: InstrumentLayout, width: int) -> None:
        super().__init__()
        self.shapes, self.count, self.own = shape.windows, layout.count, layout.own
        self.shared = layout.shared(shape.values)
        self.window_floats = shape.window_floats // layout.count
        self.shared_floats = sum(end - begin for begin, end in self.shared)
        self.layer = linear(self.window_floats + len(self.own) + self.shared_floats, width)

    def encode(self, windows: Tensor) -> Tensor:
        """Return the windows' part of the layer, [n, K · width]."""
        parts = [
            window.unflatten(2, (self.count, -1)).transpose(1, 2).flatten(2)  # [n, K, rows · features of one]
            for window in split_windows(windows, self.shapes)
        ]
        seen = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return functional.linear(seen, self.layer.weight[:, : self.window_floats]).flatten(1)

    def join(self, encoded: Tensor | None, values: Tensor) -> Tensor:
        """Return the layer's output for every instrument, [n, K, width], given the windows' part of it."""
        at = self.window_floats + len(self.own)
        common = functional.linear(self.shared_values(values), self.layer.weight[:, at:], self.layer.bias).unsqueeze(1)
        if self.own:
            own = torch.stack([values[:, first : first + self.count] for first in self.own], 2)
            common = common + functional.linear(own, self.layer.weight[:, self.window_floats : at])
        return common if encoded is None else common + encoded.unflatten(1, (self.count, -1))

    def shared_values(self, values: Tensor) -> Tensor:
        """Return the values that belong to no instrument, [n, shared]."""
        parts = [values[:, begin:end] for begin, end in self.shared]
        return torch.cat(parts, 1) if parts else values[:, :0]


class ContextLinear(nn.Module):
    """One linear layer over the features of an instrument and the context, the same for each instrument."""

    def __init__(self, own: int, context: int, width: int, gain: float | None = None) -> None:
        super().__init__()
        self.own = own
        self.layer = linear(own + context, width) if gain is None else linear(own + context, width, gain)

    def forward(self, features: InstrumentFeatures) -> Tensor:
        """Return [n, K, width]; the context's part is computed once for all instruments."""
        weight = self.layer.weight
        common = functional.linear(features.context, weight[:, self.own :], self.layer.bias)
        return functional.linear(features.each, weight[:, : self.own]) + common.unsqueeze(1)


class InstrumentTrunk(nn.Module):
    """From an observation to features of every instrument and of all together."""

    def __init__(self, shape: ObservationShape, config: NetworkConfig) -> None:
        super().__init__()
        layout = shape.instruments
        if layout is None:
            raise ConfigError(
                "network.kind = 'instruments' looks at each of several instruments alike, and this environment's "
                "observations do not divide by instrument (World.instruments); use 'mlp', or the portfolio environment."
            )
        layout.check(shape.values, shape.windows)
        if not shape.windows and not layout.own:
            raise ConfigError(
                "network.kind = 'instruments': this environment shows neither windows nor values of single "
                "instruments; use 'mlp'."
            )
        width, *further = config.hidden
        self.count = layout.count
        self.first = InstrumentFirst(shape, layout, width)
        self.encoded_width = self.count * width
        self.first_after = nn.Sequential(*after_sums(width, config))
        self.layers = nn.ModuleList()
        self.after = nn.ModuleList(nn.Sequential(*after_sums(after, config)) for after in further)
        for after in further:
            self.layers.append(ContextLinear(width, 2 * width + self.first.shared_floats, after))
            width = after
        self.width = width
        self.context = 2 * width + self.first.shared_floats
        self.memory_size = 0

    def forward(
        self, observation: Observation, bank: WindowBank | None, encoding: BarEncoding | None
    ) -> InstrumentFeatures:
        """Return features; an encoding of the bars, if given, is looked up instead of encoding every sample."""
        shared = self.first.shared_values(observation.values)
        joined = self.first.join(windows_part(self.first, observation, bank, encoding), observation.values)
        features = self._with_context(self.first_after(joined), shared)
        for layer, after in zip(self.layers, self.after, strict=True):
            features = self._with_context(after(layer(features)), shared)
        return features

    def _with_context(self, each: Tensor, shared: Tensor) -> InstrumentFeatures:
        return InstrumentFeatures(each, torch.cat([each.mean(1), each.amax(1), shared.to(each.dtype)], 1))


class InstrumentHead(nn.Module):
    """Outputs for every component of an action: the same layer for each instrument, the others from the context."""

    def __init__(self, trunk: InstrumentTrunk, widths: tuple[int, ...], gain: float) -> None:
        """widths: numbers that each component of an action needs."""
        super().__init__()
        count = trunk.count
        if len(widths) < count or len(set(widths[:count])) != 1:
            raise ConfigError(
                f"network.kind = 'instruments': the action has {len(widths)} components of the sizes {widths}, and "
                f"there are {count} instruments; it needs one component of the same size for each, and may have more "
                f"after them. Use 'mlp' for other actions."
            )
        self.each = ContextLinear(trunk.width, trunk.context, widths[0], gain)
        self.rest = linear(trunk.context, sum(widths[count:]), gain) if len(widths) > count else None

    def forward(self, features: InstrumentFeatures) -> Tensor:
        """Return the parameters of all components side by side, [n, sum of widths]."""
        each = self.each(features).flatten(1)
        return each if self.rest is None else torch.cat([each, self.rest(features.context)], 1)


class ContextHead(nn.Module):
    """Outputs from the context alone."""

    def __init__(self, trunk: InstrumentTrunk, width: int, gain: float) -> None:
        super().__init__()
        self.layer = linear(trunk.context, width, gain)

    def forward(self, features: InstrumentFeatures) -> Tensor:
        """Return [n, width]."""
        return self.layer(features.context)
