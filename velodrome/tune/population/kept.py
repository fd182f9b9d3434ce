"""What a population has come to, as its file says: who its members were in each round, and how they did.

Whoever only looks at it needs nothing of what training needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from velodrome.errors import RunError
from velodrome.outside.files import UNFIT, read_json
from velodrome.runs.folder import RunFolder

FILE = "population.json"


@dataclass
class Member:
    """One place in the population, in one round."""

    run: str  # name of its folder
    settings: dict[str, Any]  # that are searched, by key
    parent: int | None = None  # the place whose state it took over when the round began
    score: float = math.nan  # on the validation split, when the round was over
    per_bar: float | None = None  # Sharpe ratio of its bars, where there is an account


class Kept(NamedTuple):
    """What a population's file says."""

    folder: Path
    plan: dict[str, Any]  # what it was told
    rounds: list[list[Member]]  # as far as they have come; of the last one perhaps without scores

    @property
    def status(self) -> str:
        """Whether it is over, and else whether a process trains it now."""
        if len(self.rounds) == self.plan["rounds"] and is_judged(self.rounds[-1]):
            return "finished"
        return "running" if RunFolder(self.folder, self.folder.name).is_locked() else "interrupted"

    @property
    def best(self) -> Member | None:
        """The member that did best when the last round was over that is; None if none is."""
        return best_of(self.rounds)


def read(folder: Path) -> Kept | None:
    """Return what the file of a population's folder says; None if there is none."""
    path = folder / FILE
    try:
        found = read_json(path)
        rounds = [[Member(**{**one, "score": float(one["score"])}) for one in each] for each in found.pop("done")]
        told = {name: found[name] for name in ("config", "space", "score", "members", "rounds")}
        if not all(isinstance(told[name], int) for name in ("members", "rounds")):
            raise ValueError("members and rounds are counts")
        for before, after in zip([[], *rounds], rounds, strict=False):
            for one in after:
                if not isinstance(one.settings, dict) or one.parent not in (None, *range(len(before))):
                    raise ValueError(f"{str(one.run)[:40]!r} is no member")
    except FileNotFoundError:
        return None
    except (OSError, *UNFIT) as error:
        raise RunError(f"{path}: cannot be read ({error}). Put a whole copy of it back.") from error
    return Kept(folder, told, rounds)


def written(plan: dict[str, Any], rounds: Iterable[Iterable[Member]]) -> dict[str, Any]:
    """Return in plain values what the file says."""
    return {**plan, "done": [[{**asdict(one), "score": str(one.score)} for one in each] for each in rounds]}


def rank(member: Member) -> float:
    """Return what members are sorted by: their scores, one of NaN last."""
    return -math.inf if math.isnan(member.score) else member.score


def is_judged(members: Iterable[Member]) -> bool:
    """Return whether a round is over."""
    return any(not math.isnan(member.score) for member in members)


def best_of(rounds: Sequence[Sequence[Member]]) -> Member | None:
    """Return the best member of the last round that is over."""
    return next((max(each, key=rank) for each in reversed(rounds) if is_judged(each)), None)
