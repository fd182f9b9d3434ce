"""`NamedPolicy`: which policy a result is about, so that no figure stands without the checkpoint that earned it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

CheckpointChoice = Literal["best", "latest"]
USED_FOR_SELECTION = "used for selection"  # label of a split whose results chose the checkpoint


@dataclass(frozen=True)
class TrainedAgent:
    """One checkpoint of one run."""

    run: str  # its id
    seed: int  # of the training
    step: int  # environment steps that this checkpoint had learnt from
    training_steps: int  # environment steps of the whole training
    candidates: int = 1  # checkpoints that the choice was made from
    averaged: int = 1  # validations in a row whose mean the choice was made by
    planned_steps: int | None = None  # environment steps that the training was told to do; None: not known


@dataclass(frozen=True)
class NamedPolicy:
    """A policy as a result names it: how it was chosen, and the agents that it is made of.

    Several agents are one for each training seed, one for each fold of a walk-forward, or the members of an ensemble.
    """

    checkpoint: CheckpointChoice
    agents: tuple[TrainedAgent, ...]
    selected_on: str | None = None  # the split whose results chose the checkpoint; None: none did
    ensemble: bool = False  # the agents act as one policy (in each fold, if there are folds)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seeds, each once."""
        return tuple(dict.fromkeys(agent.seed for agent in self.agents))

    @property
    def single_seeds(self) -> tuple[int, ...]:
        """The training seeds whose agents are policies of their own: none of an ensemble's are."""
        return () if self.ensemble else self.seeds

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the intervals of its results."""
        if not self.ensemble:
            return ()
        return (
            f"an ensemble of {len(self.seeds)} agents, which act as one by the mean of their distributions: the "
            "intervals cover the data, not chance in training",
        )

    @property
    def seeds_label(self) -> str:
        """The training seeds for people: one is called one."""
        shown = ", ".join(map(str, self.seeds))
        return f"one training seed ({shown})" if len(self.seeds) == 1 else f"{len(self.seeds)} training seeds ({shown})"

    @property
    def step(self) -> int:
        """Environment steps that the checkpoint had learnt from; of several agents, the most."""
        return max(agent.step for agent in self.agents)

    @property
    def text(self) -> str:
        """The policy in one line for people."""
        steps = _numbers([agent.step for agent in self.agents])
        of = _numbers([agent.training_steps for agent in self.agents])
        how = "latest checkpoint"
        if self.selected_on is not None:
            how = f"best of {_numbers([agent.candidates for agent in self.agents])} on {self.selected_on}"
            most = max(agent.averaged for agent in self.agents)
            how += f" (by means of {most})" if most > 1 else ""
        elif self.checkpoint == "best":
            how = "latest checkpoint (no best one is kept)"
        several = f"{len(self.agents)} agents, " if len(self.agents) > 1 else ""
        if self.ensemble:
            folds = len(self.agents) // len(self.seeds)
            several = f"ensemble of {len(self.seeds)}{f' in each of {folds} folds' if folds > 1 else ''}, each the "
        short = [agent.planned_steps for agent in self.agents if agent.training_steps < (agent.planned_steps or 0)]
        planned = f" ({max(filter(None, short)):,} were planned)" if short else ""
        # Nothing is chosen before the first step but what a teacher left (teacher.policy).
        taught = ", as it was taught" if self.selected_on is not None and self.step == 0 else ""
        return f"{several}{how}: step {steps} of {of}{planned}{taught}; {self.seeds_label}"

    @property
    def file_name(self) -> str:
        """The part of a file's name that keeps results of different checkpoints apart."""
        several = f"{len(self.agents)}-agents-" if len(self.agents) > 1 else ""
        several = f"ensemble-of-{len(self.agents)}-" if self.ensemble else several
        return f"{self.checkpoint}-{several}{self.step}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values, the line for people among them."""
        agents = [asdict(agent) for agent in self.agents]
        about = {"checkpoint": self.checkpoint, "selected_on": self.selected_on, "training_seeds": list(self.seeds)}
        return {"text": self.text, "ensemble": self.ensemble, **about, "agents": agents}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> NamedPolicy:
        """Read what `to_dict` wrote."""
        agents = tuple(TrainedAgent(**agent) for agent in plain["agents"])
        return cls(plain["checkpoint"], agents, plain["selected_on"], bool(plain.get("ensemble", False)))


def _numbers(values: list[int]) -> str:
    """Return a number for people, or the range of several."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
