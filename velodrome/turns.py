"""Whose turn it is: small policies by name, for trainings that wait for a machine and environments that wait for a
worker. A policy is a function from a `Turn` to something that can be compared; the smallest is next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from velodrome.errors import ConfigError, did_you_mean
from velodrome.registry import load


class Turn(NamedTuple):
    """Something that waits: a training, or a worker that could take one more environment."""

    priority: int  # higher ones first; workers have none
    share: float  # what its owner has now: cores; a worker has environments
    served: float  # when its owner was last served; 0: never
    arrived: float  # when it came; of a worker, when it was last given an environment
    name: str = ""  # what tells it from another that came at the same time
    seconds: float = 0.0  # that a worker's environments take for a step, all together


Policy = Callable[[Turn], Any]
PolicyName = Literal["fair", "fifo", "priority"]
POLICIES: dict[str, Policy] = {
    "fair": lambda turn: (-turn.priority, turn.share, turn.served, turn.arrived, turn.name),
    "fifo": lambda turn: (turn.arrived, turn.name),
    "priority": lambda turn: (-turn.priority, turn.seconds, turn.arrived, turn.name),
}
assert tuple(POLICIES) == get_args(PolicyName)


def policy_of(named: str | Policy) -> Policy:
    """Return a policy by its name, a user's as "module:function", or the function itself."""
    if callable(named):
        return named
    if named in POLICIES:
        return POLICIES[named]
    if ":" not in named:
        raise ConfigError(
            f"policy = {named!r}; there are {', '.join(POLICIES)}, and a function of yours as module:function."
            f"{did_you_mean(named, POLICIES)}"
        )
    try:
        found = load(named)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"policy = {named!r} cannot be imported: {error}. Name it as module:function.") from error
    if not callable(found):
        raise ConfigError(f"policy = {named!r} is no function; it is given a Turn and returns what it is sorted by.")
    return found
