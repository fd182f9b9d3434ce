"""What environments are made from, in a form that can be compared: are idle ones of the kind that a lease wants?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from velodrome.envs.contract import World
from velodrome.vector.workers.env_maker import name_of

# Compared by value; anything else is equal only to itself.
VALUES = (type(None), bool, int, float, complex, str, bytes, Enum, PurePath, np.generic)


class Same:
    """Stands for an object that is equal only to itself; holding the object keeps its identity from being reused."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True)
class Specification:
    """An environment and its options; equal ones make environments of one kind."""

    key: Hashable
    label: str = field(compare=False)  # for people
    by_value: bool = field(compare=False)  # it keeps no object of the user alive


def specification_of(env: Any, options: Mapping[str, Any]) -> Specification:
    """Return the specification of environments."""
    key = _comparable((env, dict(options)))
    return Specification(key, _label(env), _is_by_value(key))


def _comparable(value: Any) -> Hashable:
    if isinstance(value, VALUES):
        # To Python 1, 1.0 and True are equal, but they are different parameters.
        return type(value), value
    if isinstance(value, Mapping):
        return type(value), frozenset((_comparable(name), _comparable(part)) for name, part in value.items())
    # Not named tuples: a World of large arrays is equal only to itself.
    if type(value) in (list, tuple):
        return type(value), tuple(_comparable(part) for part in value)
    return Same(value)


def _is_by_value(key: Any) -> bool:
    if isinstance(key, tuple | frozenset):
        return all(_is_by_value(part) for part in key)
    return not isinstance(key, Same)


def _label(env: Any) -> str:
    return env.name if isinstance(env, World) else name_of(env)
