"""Parameters of CAGE-2. `docs/cage2.md` says what each changes and which of them the official challenge has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import Field, field_validator

from velodrome.envs.parameters import EnvConfig

LONGEST_EPISODE = 1_000_000  # steps; the counts of a longer one would not fit


class Cage2Config(EnvConfig):
    """One network of 13 hosts, Red against Blue; the defaults are the official challenge against B_line."""

    red_agent: Literal["b_line", "meander", "sleep", "mixture"] = Field(
        "b_line", description="who attacks; 'mixture' draws one of the others for every episode"
    )
    mixture: tuple[float, float, float] = Field(
        (0.5, 0.5, 0.0), description="probabilities of b_line, meander and sleep under red_agent='mixture'; sum 1"
    )
    green: bool = Field(False, description="whether Green's port scans disturb Blue's view; the challenge has none")
    episode_length: int = Field(
        100, ge=1, le=LONGEST_EPISODE, description="steps in an episode; the challenge scores 30, 50 and 100"
    )
    observation_rule: Literal["official", "corrected"] = Field(
        "official", description="how activity is shown on a host where a decoy starts; 'corrected' is ChallengeWrapper2"
    )
    impact_repeats: bool = Field(
        False, description="whether Impact still works after Op_Server0 was restored; not so in the challenge"
    )
    scan_memory: bool = Field(
        False, description="also observe whether a scan was seen on a host: 0 never, 1 before, 2 last; 10 values"
    )
    decoy_memory: bool = Field(
        False, description="also observe which decoys run: 41 values of 0 or 1, one for each that can"
    )
    action_set: Literal["full", "reduced"] = Field(
        "full", description="all 145 actions, or 36: CardiffUni's, with one action for a host's next decoy"
    )
    reward: Literal["official"] | Callable = Field(
        "official", description="the challenge's reward, or your own function of (old situation, new situation)"
    )

    @field_validator("mixture")
    @classmethod
    def _probabilities_are_legal(cls, mixture: tuple[float, float, float]) -> tuple[float, float, float]:
        if not all(0.0 <= share <= 1.0 for share in mixture) or not math.isclose(sum(mixture), 1.0, abs_tol=1e-6):
            raise ValueError(f"needs three probabilities with sum 1, received sum {sum(mixture):g}")
        return mixture
