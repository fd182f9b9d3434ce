"""The environments that Velodrome knows by name: a new one is one line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from velodrome.envs.contract import World
from velodrome.errors import ConfigError, did_you_mean

# name -> "module:function"; the function takes the environment's parameters and returns its World.
CATALOG = {
    "trading": "velodrome.envs.trading.world:trading_world",
    "portfolio": "velodrome.envs.portfolio.world:portfolio_world",
    "cage2": "velodrome.envs.cage2:cage2_world",
    "template": "velodrome.envs._template:template_world",
}


def world_factory(name: str) -> Callable[..., World]:
    """Return the function that makes a World of the named environment."""
    if name not in CATALOG:
        legal = tuple(CATALOG)
        raise ConfigError(f"unknown environment {name!r}; there are {', '.join(legal)}.{did_you_mean(name, legal)}")
    module, function = CATALOG[name].split(":")
    return getattr(import_module(module), function)
