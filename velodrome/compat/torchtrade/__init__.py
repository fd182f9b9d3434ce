"""TorchTrade 0.1.0: its market layout, its environments as classes, its settings, and the replay of its recordings.

Read `layout` (its market and parameters as ours), `replays`, `history` (what an episode was, and rewards in Python),
`envs` (its classes with TensorDicts) and `settings` (the words of its training example). The classes are made when they
are first asked for, because they need TorchRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from velodrome.compat.torchtrade.layout import torchtrade_market, trading_parameters
from velodrome.compat.torchtrade.replays import replay

__all__ = ["replay", "torchtrade_market", "trading_parameters"]


def __getattr__(name: str) -> Any:
    hidden = name.startswith("_") or name in ("envs", "settings")
    envs = None if hidden else import_module("velodrome.compat.torchtrade.envs")
    if envs is None or name not in envs.NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(envs, name) if hasattr(envs, name) else envs.env_class(name)
