"""State of learners as one flat dictionary of tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def nested(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join dictionaries as `part.name`; tensors are copied to the host, so that training may go on."""
    return {
        f"{part}.{name}": tensor.detach().cpu().clone() for part, own in parts.items() for name, tensor in own.items()
    }


def only(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return what `nested` stored under one name."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_generator(generator: torch.Generator, state: Tensor) -> None:
    """Set a generator to a saved state, which lives on the host whatever the device."""
    generator.set_state(state.cpu())
