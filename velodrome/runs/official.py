"""The evaluation that belongs to an environment itself, such as CAGE-2's scores.

`velodrome eval --official` plays it, and a training at its end, if `evaluation.official` asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from velodrome.envs.catalog import CATALOG
from velodrome.errors import ConfigError
from velodrome.registry import load
from velodrome.runs.trained import Run
from velodrome.writing import replace_text

if TYPE_CHECKING:
    from velodrome.evaluation.named_policy import NamedPolicy


class OfficialResult(Protocol):
    """What the `official` of an environment's entry returns."""

    def to_json(self) -> str:
        """Return everything as JSON."""

    def table(self) -> Any:
        """Return the table for people; print it with rich."""


@dataclass(frozen=True)
class NamedResult:
    """An environment's own result, and which policy it is about."""

    result: OfficialResult
    policy: NamedPolicy

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps({"policy": self.policy.to_dict(), **json.loads(self.result.to_json())}, indent=1)

    def table(self) -> Any:
        """Return the table for people; print it with rich."""
        from rich.console import Group
        from rich.text import Text

        return Group(self.result.table(), Text(f"policy: {self.policy.text}"))


def official_evaluation(
    run: str | Path | Run,
    *,
    root: str | Path = "runs",
    checkpoint: str = "best",
    episodes: int | None = None,
    baselines: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
    trust: bool = False,
) -> NamedResult:
    """Play an environment's own evaluation with a run's policy, and keep the result as official-….json in its folder.

    The training seeds of a group are played one by one, and their mean is told.
    episodes: of each entry of the result; None: as many as that evaluation asks for. baselines: play simple policies,
    too. trust: code that the run names may be imported, though it was not used here before.
    """
    found = Run.open(run, root, trust)
    found.check_outside()
    found.folder.check_writable("its evaluation is kept there")
    config = found.config
    play = load(CATALOG.get(config.env).official) if config.env in CATALOG else None
    if play is None:
        own = ", ".join(entry.name for entry in CATALOG if entry.official)
        raise ConfigError(
            f"{found.path}: this run is of {config.env!r}, which has no official evaluation; those that have one: "
            f"{own}. Leave --official out."
        )
    options = {"episodes": episodes, "seed": config.seed, "baselines": baselines, "progress": progress}
    policies, named = found.policies(checkpoint)
    scores = play(policies if len(policies) > 1 else policies[0], "agent", config.params, **options)
    result = NamedResult(scores, named)
    folder = found.folder.evaluation_path
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / f"official-{named.file_name}.json", result.to_json() + "\n")
    return result
