"""What networks are made of: layers that PPO starts well from, and first layers that can see each bar once.

A first layer joins windows and values. Its `encode` sees the windows alone; `join` adds what depends on the
environment. Encoding every bar once and picking rows by cursor is therefore exact, and cheaper wherever a batch has
more samples than the market has bars.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from velodrome.errors import ConfigError
from velodrome.learn.config import NetworkConfig
from velodrome.rollout.observation import Observation, WindowBank
from velodrome.rollout.ranks import drawn

PIECE = 2**22  # floats of windows laid out at a time where nothing is learnt, 16 MB

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}
# Encoding all bars must save at least this part of the samples' encodings to be worth the look-ups.
WORTH_ENCODING = 0.7
MOST_ENCODED = 2**28  # floats of all bars' encodings, 1 GiB: more are not kept unless per_bar = always


def linear(inputs: int, outputs: int, gain: float = math.sqrt(2.0)) -> nn.Linear:
    """Return a linear layer with orthogonal weights, which PPO is known to start well from, and biases of 0."""
    layer = nn.Linear(inputs, outputs)
    make_orthogonal(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def make_orthogonal(weight: Tensor, gain: float = 1.0) -> None:
    """Draw orthogonal weights, on one thread: the decomposition behind them has other last bits on several."""
    if weight.is_meta:  # it has no numbers, only a shape
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        nn.init.orthogonal_(weight, gain)
    finally:
        torch.set_num_threads(threads)


class Dropout(nn.Module):
    """Leaves units out by masks that it is given, and scales up the others; without masks it leaves all as they are."""

    def __init__(self, width: int, share: float) -> None:
        super().__init__()
        self.width, self.share = width, share
        self.kept: Tensor | None = None  # [n, width] bool

    def forward(self, features: Tensor) -> Tensor:
        """Return features [n, width], or [n, instruments, width] that lose the same units."""
        if self.kept is None:
            return features
        kept = self.kept if features.ndim == self.kept.ndim else self.kept.unsqueeze(1)
        return features * kept * (1.0 / (1.0 - self.share))


class DropoutMasks:
    """The masks of all the dropout of a network. Whoever draws them decides which samples share one."""

    def __init__(self, network: nn.Module, is_compiled: bool) -> None:
        self.layers = [layer for layer in network.modules() if isinstance(layer, Dropout)]
        self.width = sum(layer.width for layer in self.layers)  # 0: nothing is ever left out
        if self.width and is_compiled:
            raise ConfigError(
                "network.dropout with compile = true: torch.compile would fix the masks. Leave one of them out."
            )

    def draw(self, kept: Tensor, generator: torch.Generator) -> Tensor:
        """Draw which units are kept, into [n, width] bool."""
        share = 1.0 - self.layers[0].share
        return kept.copy_(
            drawn(lambda rows: kept.new_empty((rows, self.width)).bernoulli_(share, generator=generator), len(kept))
        )

    @contextmanager
    def applied(self, kept: Tensor | None) -> Iterator[None]:
        """Leave out what is not kept, [n, width], inside this context; None: nothing."""
        parts = [] if kept is None else kept.split([layer.width for layer in self.layers], 1)
        for layer, part in zip(self.layers, parts, strict=kept is not None):
            layer.kept = part
        try:
            yield
        finally:
            for layer in self.layers:
                layer.kept = None


def after_sums(width: int, config: NetworkConfig) -> list[nn.Module]:
    """Return what follows the sums of a hidden layer: a norm, the activation, dropout."""
    batch_norm = [nn.BatchNorm1d(width)] if config.kind == "mlp_batch_norm" else []
    layer_norm = [nn.LayerNorm(width)] if config.layer_norm else []
    dropout = [Dropout(width, config.dropout)] if config.dropout else []
    return [*batch_norm, *layer_norm, ACTIVATIONS[config.activation](), *dropout]


class FirstLayer(Protocol):
    """A layer that looks at windows."""

    def encode(self, windows: Tensor) -> Tensor:
        """Return the windows' part of the layer, [n, encoded width]."""


class BarEncoding(NamedTuple):
    """The first layer's view of every bar."""

    table: Tensor  # [bars, encoded width]
    position: Tensor  # [all bars] row of the table that belongs to a cursor


def windows_part(
    first: FirstLayer, observation: Observation, bank: WindowBank | None, encoding: BarEncoding | None
) -> Tensor | None:
    """Return the windows' part of the first layer, looked up in an encoding if there is one."""
    _, cursor, windows = observation
    if windows is not None:
        return first.encode(windows)
    if bank is None or cursor is None:
        return None
    if encoding is not None:
        return functional.embedding(encoding.position.index_select(0, cursor), encoding.table)
    return first.encode(bank.gather(cursor))


def worth_encoding(network: Any, bank: WindowBank | None, per_bar: str, samples: int) -> bool:
    """Decide whether to compute the market's part of a network once per bar rather than once per sample."""
    if bank is None or not network.can_encode_bars or per_bar != "auto":
        return bank is not None and network.can_encode_bars and per_bar == "always"
    bars = len(bank.bars)
    return bars < WORTH_ENCODING * samples and bars * network.encoded_width <= MOST_ENCODED


def encode_bars(first: FirstLayer, bank: WindowBank, table: Tensor | None = None) -> BarEncoding:
    """Encode every bar that a cursor can be at, into `table` if there is one.

    Where no gradients are wanted, windows are never all laid out at once.
    """
    if torch.is_grad_enabled():
        return BarEncoding(first.encode(bank.gather(bank.bars)), bank.position)
    at = 0
    for bars in bank.bars.split(max(1, PIECE // max(1, bank.floats))):
        rows = first.encode(bank.gather(bars))
        if table is None:
            table = rows.new_empty((len(bank.bars), rows.shape[1]))
        table[at : at + len(bars)] = rows
        at += len(bars)
    assert table is not None
    return BarEncoding(table, bank.position)
