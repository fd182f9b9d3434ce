"""Parameters of CAGE-2. `docs/cage2.md` says what each changes and which of them the official challenge has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from pydantic import field_validator

from velodrome.envs.parameters import EnvConfig, option

LONGEST_EPISODE = 1_000_000  # steps; the counts of a longer one would not fit


class Cage2Config(EnvConfig):
    """One network of 13 hosts, Red against Blue; the defaults are the official challenge against B_line."""

    red_agent: Literal["b_line", "meander", "sleep", "mixture"] = option(
        "b_line", "who attacks; 'mixture' draws one of the others for every episode"
    )
    mixture: tuple[float, float, float] = option(
        (0.5, 0.5, 0.0), "probabilities of b_line, meander and sleep under red_agent='mixture'; sum 1"
    )
    green: bool = option(False, "whether Green's port scans disturb Blue's view; the challenge has none")
    episode_length: int = option(100, "steps in an episode; scored are 30, 50 and 100", ge=1, le=LONGEST_EPISODE)
    episode_end: Literal["truncated", "terminated"] = option(
        "truncated",
        "what the last step is to a learner: a cut in a game that goes on, or the end, after which nothing counts "
        "(with step_memory it can plan for that)",
    )
    observation_rule: Literal["official", "corrected"] = option(
        "official", "how activity is shown on a host where a decoy starts; 'corrected' is ChallengeWrapper2"
    )
    impact_repeats: bool = option(
        False, "whether Impact still works after Op_Server0 was restored; not so in the challenge"
    )
    scan_memory: bool = option(False, "also observe scans seen on each of 10 hosts: 0 never, 1 before, 2 last")
    decoy_memory: bool = option(False, "also observe which decoys run: 41 values of 0 or 1, one for each that can")
    activity_memory: bool = option(
        False, "also observe how long ago each of 10 hosts showed a scan and an exploit: 80 values of 0 to 1"
    )
    attack_memory: bool = option(
        False,
        "also observe what the service that each of 10 hosts was attacked by last gives away: 30 values of 0 or 1; the "
        "port that tells is in CybORG's own observation, and not in the 52 bits",
    )
    port_memory: bool = option(
        False,
        "also observe which decoys ran on each host when its ports were scanned last, as Red remembers them: 41 values "
        "of 0 or 1; which activity was a scan is in CybORG's own observation, and not always in the 52 bits",
    )
    step_memory: bool = option(
        False, "also observe how many of the first 100 steps are over: 10 values of 0 to 1, one for every ten steps"
    )
    red_memory: bool = option(
        False, "also observe whether Red's first moves were B_line's or Meander's: 2 values, both 0 until it is clear"
    )
    action_set: Literal["full", "reduced"] = option(
        "full", "all 145 actions, or 36: CardiffUni's, with one action for a host's next decoy"
    )
    reward: Literal["official"] | Callable = option(
        "official", "the challenge's reward, or your own function of (old situation, new situation)"
    )

    @field_validator("mixture", mode="before")
    @classmethod
    def _there_are_three(cls, mixture: Any) -> Any:
        if isinstance(mixture, tuple | list) and len(mixture) != 3:
            raise ValueError(f"needs three probabilities, of b_line, meander and sleep, received {len(mixture)}")
        return mixture

    @field_validator("mixture")
    @classmethod
    def _probabilities_are_legal(cls, mixture: tuple[float, float, float]) -> tuple[float, float, float]:
        if not all(0.0 <= share <= 1.0 for share in mixture) or not math.isclose(sum(mixture), 1.0, abs_tol=1e-6):
            raise ValueError(f"needs three probabilities with sum 1, received sum {sum(mixture):g}")
        return mixture
