"""Velodrome trains reinforcement-learning agents on thousands of environments at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module. Imported when first used, so that `import velodrome` costs next to nothing.
_HOMES = {
    "read_bars": "velodrome.bars",
    "check_bars": "velodrome.bars",
    "synthetic_bars": "velodrome.bars",
    "Bars": "velodrome.bars",
    "build_market": "velodrome.tables",
    "build_basket": "velodrome.tables",
    "walk_forward": "velodrome.tables",
    "check_leaks": "velodrome.tables",
    "describe_features": "velodrome.tables",
    "Market": "velodrome.tables",
    "Basket": "velodrome.tables",
    "register_env": "velodrome.envs.catalog",
    "register_algorithm": "velodrome.learn.catalog",
    "make": "velodrome.vector.make",
    "make_vec": "velodrome.vector.make",
    "recommend": "velodrome.runs.machine.recommendation",
    "EnvPool": "velodrome.vector.fleet.pool",
    "VecMonitor": "velodrome.vector.fleet.monitor",
    "VectorizedEnvConfig": "velodrome.vector.config",
    "to_elegantrl": "velodrome.adapters",
    "to_sb3": "velodrome.adapters",
    "to_torchrl": "velodrome.adapters",
    "from_gymnasium": "velodrome.adapters",
    "train": "velodrome.runs.run",
    "resume": "velodrome.runs.run",
    "Run": "velodrome.runs.run",
    "evaluate": "velodrome.runs.evaluate",
    "cross_validate": "velodrome.runs.folds.cross_validation",
    "AgentTrainingService": "velodrome.service.service",
    "tune": "velodrome.service.tuning",
    "train_population": "velodrome.tune.population.population",
}
__all__ = [
    "AgentTrainingService",
    "Bars",
    "Basket",
    "EnvPool",
    "Market",
    "Run",
    "VecMonitor",
    "VectorizedEnvConfig",
    "__version__",
    "build_basket",
    "build_market",
    "check_bars",
    "check_leaks",
    "cross_validate",
    "describe_features",
    "evaluate",
    "from_gymnasium",
    "make",
    "make_vec",
    "read_bars",
    "recommend",
    "register_algorithm",
    "register_env",
    "resume",
    "synthetic_bars",
    "to_elegantrl",
    "to_sb3",
    "to_torchrl",
    "train",
    "train_population",
    "tune",
    "walk_forward",
]

if TYPE_CHECKING:
    from velodrome.adapters import from_gymnasium, to_elegantrl, to_sb3, to_torchrl
    from velodrome.bars import Bars, check_bars, read_bars, synthetic_bars
    from velodrome.envs.catalog import register_env
    from velodrome.learn.catalog import register_algorithm
    from velodrome.runs.evaluate import evaluate
    from velodrome.runs.folds.cross_validation import cross_validate
    from velodrome.runs.machine.recommendation import recommend
    from velodrome.runs.run import Run, resume, train
    from velodrome.service.service import AgentTrainingService
    from velodrome.service.tuning import tune
    from velodrome.tables import (
        Basket,
        Market,
        build_basket,
        build_market,
        check_leaks,
        describe_features,
        walk_forward,
    )
    from velodrome.tune.population.population import train_population
    from velodrome.vector.config import VectorizedEnvConfig
    from velodrome.vector.fleet.monitor import VecMonitor
    from velodrome.vector.fleet.pool import EnvPool
    from velodrome.vector.make import make, make_vec


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'velodrome' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
