"""Rewards that all return their argument times a weight, each with the weight somewhere else.

Run as `python changed_rewards.py WEIGHT NAME …`: prints, as JSON, the rewards of two environments in two steps with
each named reward, compiled and as plain Python, in one process, and the fingerprint of every reward.
Run as `python changed_rewards.py WEIGHT in_turns`: with the weights WEIGHT, 3, WEIGHT and 3, compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from numba import njit

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.vector.small_rule import rewards_of
from velodrome.vector.compile.assemble import fingerprint

WEIGHT = float(sys.argv[1]) if __name__ == "__main__" else 1.0


def from_the_code() -> Callable:
    namespace: dict[str, Callable] = {}
    exec(f"def reward(draw):\n    return draw * {WEIGHT!r}\n", {"__name__": __name__}, namespace)
    return namespace["reward"]


def from_a_constant() -> Callable:
    return constant_reward


def constant_reward(draw):
    return draw * WEIGHT


def from_a_closure() -> Callable:
    return times(WEIGHT)


def times(weight: float) -> Callable:
    def reward(draw):
        return draw * weight

    return reward


def from_one_of_two_closures() -> Callable:
    return closures_reward


once, twice_less_once = times(WEIGHT - 1.0), times(1.0)


def closures_reward(draw):
    return once(draw) + twice_less_once(draw)


def from_a_compiled_helper() -> Callable:
    return helped_reward


@njit
def helper(draw):
    return draw * WEIGHT


def helped_reward(draw):
    return helper(draw)


def from_a_module() -> Callable:
    return module_reward


settings = ModuleType("settings")
settings.weight = WEIGHT  # type: ignore[attr-defined]


def module_reward(draw):
    return draw * settings.weight


def from_a_function_in_a_closure() -> Callable:
    inner = times(WEIGHT)

    def reward(draw):
        return inner(draw)

    return reward


def from_a_constant_named_like_a_part_of_the_rule() -> Callable:
    return named_reward


step = WEIGHT


def named_reward(draw):
    return draw * step


def from_a_module_named_math_something() -> Callable:
    reward = times(WEIGHT)
    reward.__module__ = "math_rewards"
    return reward


def both_ways(name: str) -> list:
    """Return the rewards of a named reward, compiled and as plain Python, or what went wrong."""
    found: list = []
    for backend in ("native", "python"):
        try:
            found.append(rewards_of(globals()[f"from_{name}"](), backend))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}"[:1000])
    return found


def answer(names: list[str]) -> object:
    if names == ["in_turns"]:
        two, three = times(WEIGHT), times(3.0)
        return [rewards_of(reward) for reward in (two, three, two, three)]
    makers = {name.removeprefix("from_"): make for name, make in globals().items() if name.startswith("from_")}
    fingerprints = {name: fingerprint(make(), {}) for name, make in makers.items()}
    return {"fingerprints": fingerprints, **{name: both_ways(name) for name in names}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(sys.argv[2:])))
