"""What may be changed about a run that goes on: what it takes itself, what begins a child of it, what is refused."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from velodrome.errors import ConfigError
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.config.explain import value_text
from velodrome.runs.config.run_config import RunConfig, dotted

Changed = dict[str, tuple[Any, Any]]  # by dotted key: the value before and after; JSON makes lists of the pairs

OWN = ("steps", "episodes", "checkpoint", "logging", "resources")  # keys and sections that the run itself takes
CHILD = ("seed", "name", "device", "evaluation", "vector")  # those that begin a child, and the algorithm's own
GROUPS = ("seeds", "ensemble")  # besides, what a group of training seeds and an ensemble take; they begin no child
ELSEWHERE = ("logging.folder", "logging.store")  # a run does not move, a child may lie elsewhere
# Why the others are refused, by section; what is told first stands first.
REFUSED = {
    "env": "its agent learnt in that environment",
    "algorithm": "its state is that of this algorithm",
    "params": "its agent learnt in an environment with that",
    "network": "its weights fit no other network",
    **dict.fromkeys(GROUPS, "it is a single agent"),
    "augment": "what its agent saw differed in that way",
    "market": "its agent learnt from that data (if the same files lie elsewhere now, say where: --data PATH)",
}


def changes_between(before: RunConfig, after: RunConfig, place: str) -> tuple[Changed, bool]:
    """Return what differs between a run's configuration and the one it is to go on with, and whether that is a child's.

    What does not fit the state of the run is refused. place: of the run's configuration file, for the message.
    """
    old, new = dotted(before.content()), dotted(after.content())
    changed: Changed = {
        key: (old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)
    }
    learner = f"{before.algorithm}."
    changeable = ALGORITHMS.get(before.algorithm).changeable
    counted = "ensemble" if before.ensemble > 1 else "seeds"

    def legal(key: str) -> bool:
        section = key.partition(".")[0]
        if before.trainings > 1:
            return section in (*OWN, counted) and key not in ELSEWHERE
        return section in OWN + CHILD or (key.startswith(learner) and key.removeprefix(learner) in changeable)

    wrong = [key for key in changed if not legal(key)]
    if wrong:
        order = [*REFUSED, before.algorithm]
        key = min(wrong, key=lambda key: order.index(section) if (section := key.partition(".")[0]) in order else 99)
        has, wanted = (value_text(value) for value in changed[key])
        reason = REFUSED.get(key.partition(".")[0], "the state that it goes on from depends on that")
        takes = (
            f"{', '.join(OWN)}; a child of it takes {', '.join(CHILD)} and of {before.algorithm} "
            f"{', '.join(changeable)} besides"
        )
        if before.trainings > 1:
            reason, takes = "its agents differ in nothing but their seeds", ", ".join((*OWN, counted))
        raise ConfigError(
            f"{key} = {wanted}: a run that goes on keeps {key} = {has}: {reason}. It takes {takes}. For another "
            f"{key} train a new run: velodrome train {place} {shlex.quote(f'{key}={wanted}')}"
        )
    if after.trainings < before.trainings:
        raise ConfigError(
            f"{counted} = {after.trainings}: the {'ensemble' if before.ensemble > 1 else 'group'} has "
            f"{before.trainings}, and none of them is left out; to choose among them would flatter the result. Give as "
            "many or more."
        )
    child = any(key in ELSEWHERE or key.partition(".")[0] not in (*OWN, *GROUPS) for key in changed)
    return changed, child


def told_changes(changed: Mapping[str, Sequence[Any]]) -> str:
    """Return changes as a person reads them: "seed 0 → 7"."""
    return ", ".join(f"{key} {_shown(before)} → {_shown(after)}" for key, (before, after) in changed.items())


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value_text(value)


def told_lineage(entry: Mapping[str, Any]) -> str:
    """Return an entry of a run's lineage in words: whose child it is, or what was changed on the way."""
    changes = told_changes(entry["changes"]) or "nothing changed"
    whose = f"child of {entry['parent']} " if entry["parent"] else ""
    return f"{whose}at step {entry['step']:,}: {changes}"


def told_schedules(before: RunConfig, after: RunConfig, steps: int) -> str:
    """Return what becomes of everything that falls over a run, when it goes on at a step to another number of steps."""
    was, now = before.learner.scheduled(steps / before.steps), after.learner.scheduled(steps / after.steps)
    first, last = after.learner.scheduled(0.0), after.learner.scheduled(1.0)
    falling = [name for name in now if first[name] != last[name]]
    if not falling:
        return (
            "No setting falls over the run: where resuming is exact, what it becomes is to the bit what a run of "
            f"{after.steps:,} steps is."
        )
    moved = [f"{name} {was[name]:.4g} → {now[name]:.4g}" for name in falling]
    return (
        f"What falls over a run is from here on what it is at step {steps:,} of a run of {after.steps:,} steps, and "
        f"falls to its end as there: {', '.join(moved)}. The steps before were those of a run of {before.steps:,}."
    )
