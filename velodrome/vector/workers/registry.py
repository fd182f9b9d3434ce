"""What this process has registered with Gymnasium, for workers, which run neither its script nor its imports.

A function that makes an environment by its id, as programs for Gymnasium and Stable-Baselines3 have it, finds the same
environment in a worker.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from collections.abc import Mapping
from typing import NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec


class Registered(NamedTuple):
    """Specifications by id, each packed by itself: one that cannot be loaded does not keep others away."""

    packed: Mapping[str, bytes]

    def register(self) -> None:
        """Register all with Gymnasium in this process."""
        for name, spec in self.packed.items():
            # It may belong to a package that cannot be imported here; who asks for its id is told that there is none.
            with contextlib.suppress(Exception):
                gymnasium.registry[name] = pickle.loads(spec)


def registered_here() -> Registered:
    """Return what is registered in this process and can be sent to another."""
    import cloudpickle

    packed = {}
    for name, spec in list(gymnasium.registry.items()):
        with contextlib.suppress(Exception):
            packed[name] = cloudpickle.dumps(portable(spec))
    return Registered(packed)


def portable(spec: EnvSpec) -> EnvSpec:
    """Return a specification in which a class of this process's script stands itself, where it was named."""
    place = spec.entry_point
    if not isinstance(place, str) or not place.startswith("__main__:"):
        return spec
    moved = copy.copy(spec)
    moved.entry_point = getattr(sys.modules["__main__"], place.removeprefix("__main__:"), place)
    return moved
