"""CAGE-2 as others have it, where it is installed: CybORG's own environment, and mini-CAGE's batches."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from velodrome.bench.timing import Stepper

# Rates of the originals on 2 shared cores, measured when the rule was written down (steps per second): used where a
# peer is not installed, and said to be recorded.
RECORDED = {"CybORG through ChallengeWrapper": (300.0, 429.0), "mini-CAGE, best batch (1,000)": (47_000.0, 54_000.0)}
MINI_CAGE_MODULES = ("mini_CAGE", "CAGE_2_FIXED.mini_CAGE", "CybORG_plus_plus.mini_CAGE")
RESET_EVERY = 100  # steps


def missing_peer(peer: str) -> str | None:
    """Return why a peer cannot be measured here, or None."""
    if peer == "cyborg" and importlib.util.find_spec("CybORG") is None:
        return "CybORG is not installed: https://github.com/cage-challenge/cage-challenge-2"
    if peer == "mini_cage" and mini_cage_module() is None:
        return "mini-CAGE is not installed: it is looked for as the module mini_CAGE"
    return None


def mini_cage_module() -> Any:
    """Return mini-CAGE's module, None if it is not installed."""
    for name in MINI_CAGE_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "SimplifiedCAGE"):
            return module
    return None


def cyborg_stepper(stack: ExitStack, actions: Any) -> Stepper:
    """Get CybORG's environment ready, one of it, against B_line."""
    cyborg = importlib.import_module("CybORG")
    agents = importlib.import_module("CybORG.Agents")
    wrappers = importlib.import_module("CybORG.Agents.Wrappers")
    scenario = Path(inspect.getfile(cyborg.CybORG)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    env = wrappers.ChallengeWrapper(
        env=cyborg.CybORG(str(scenario), "sim", agents={"Red": agents.B_lineAgent}), agent_name="Blue"
    )
    env.reset()

    def step(k: int) -> None:
        if k % RESET_EVERY == RESET_EVERY - 1:
            env.reset()
        env.step(int(actions[k % len(actions)][0]))

    return Stepper(step)


def mini_cage_stepper(stack: ExitStack, actions: Any, num_envs: int) -> Stepper:
    """Get a batch of mini-CAGE ready, with its own B_line."""
    module = mini_cage_module()
    env = module.SimplifiedCAGE(num_envs=num_envs)
    red = module.B_line_minimal()
    state = [env.reset()[0]]

    def step(k: int) -> None:
        if k % RESET_EVERY == RESET_EVERY - 1:
            state[0] = env.reset()[0]
        red_action = red.get_action(observation=state[0]["Red"])
        blue = actions[k % len(actions)].reshape(-1, 1)
        state[0] = env.step(blue_action=blue, red_action=red_action)[0]

    return Stepper(step)
