"""CAGE-2 as others have it, where it is installed: CybORG's own environment, and mini-CAGE's batches."""

from __future__ import annotations

import importlib
import inspect
import itertools
from pathlib import Path
from typing import Any

from velodrome.bench.options import Peer, is_installed
from velodrome.bench.timing import Batch, Source
from velodrome.errors import MissingDependencyError

MINI_CAGE_MODULES = ("mini_CAGE", "CAGE_2_FIXED.mini_CAGE", "CybORG_plus_plus.mini_CAGE")
RESET_EVERY = 100  # steps


def open_cyborg(source: Source) -> Batch:
    """Return one of CybORG's environments, against B_line."""
    cyborg = importlib.import_module("CybORG")
    agents = importlib.import_module("CybORG.Agents")
    wrappers = importlib.import_module("CybORG.Agents.Wrappers")
    scenario = Path(inspect.getfile(cyborg.CybORG)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    simulated = cyborg.CybORG(str(scenario), "sim", agents={"Red": agents.B_lineAgent})
    env = wrappers.ChallengeWrapper(env=simulated, agent_name="Blue")
    steps = itertools.count(1)

    def step(actions: Any) -> tuple[Any, ...]:
        if next(steps) % RESET_EVERY == 0:
            env.reset()
        return env.step(int(actions[0]))[:3]

    return Batch(lambda seed: env.reset(), step)


def open_mini_cage(source: Source) -> Batch:
    """Return a batch of mini-CAGE, with its own B_line."""
    module = mini_cage_module()
    envs, red = module.SimplifiedCAGE(num_envs=len(source.makers)), module.B_line_minimal()
    steps, latest = itertools.count(1), [envs.reset()[0]]

    def step(actions: Any) -> tuple[Any, ...]:
        if next(steps) % RESET_EVERY == 0:
            latest[0] = envs.reset()[0]
        answer = red.get_action(observation=latest[0]["Red"])
        latest[0], *rest = envs.step(blue_action=actions.reshape(-1, 1), red_action=answer)
        return (latest[0], *rest)

    return Batch(lambda seed: latest[0], step)


def mini_cage_module() -> Any:
    """Return mini-CAGE's module."""
    for name in filter(is_installed, MINI_CAGE_MODULES):
        if hasattr(module := importlib.import_module(name), "SimplifiedCAGE"):
            return module
    raise MissingDependencyError(f"mini-CAGE's SimplifiedCAGE is in none of {', '.join(MINI_CAGE_MODULES)}")


SITE = "https://github.com/cage-challenge/cage-challenge-2"
CYBORG = Peer("CybORG, b_line", open_cyborg, ("CybORG",), SITE, largest=1)
LOOKED_FOR = "it is looked for as the module mini_CAGE"
MINI_CAGE = Peer("mini-CAGE, b_line", open_mini_cage, MINI_CAGE_MODULES, LOOKED_FOR, largest=10_000)
