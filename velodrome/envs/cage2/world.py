"""Assembles the CAGE-2 environment: parameters become a World that any backend can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from velodrome.envs.cage2 import codes, rule
from velodrome.envs.cage2.config import Cage2Config
from velodrome.envs.cage2.display import table_text
from velodrome.envs.cage2.names import HOSTS, RED_AGENTS
from velodrome.envs.cage2.network import DECOY_VALUES, cage2_tables
from velodrome.envs.cage2.rule import Situation
from velodrome.envs.contract import World

# What a user's reward is tried on before it is compiled with the rule.
EXAMPLE_SITUATION = Situation(256, 0, 0, 0, 256, 0, 0, 1, 0, 0, 0, -1, 2, 0, -1, 2, 0, 0.0)


def observed_values(config: Cage2Config) -> tuple[str, ...]:
    """Return the names of the observed values, in order."""
    bits = tuple(
        f"{host} {bit}" for host in HOSTS for bit in ("activity 0", "activity 1", "compromised 0", "compromised 1")
    )
    scans = tuple(f"{HOSTS[host]} scan memory" for host in rule.SCAN_MEMORY_HOSTS) if config.scan_memory else ()
    decoys = tuple(f"{decoy} decoy" for decoy in DECOY_VALUES) if config.decoy_memory else ()
    return bits + scans + decoys


def cage2_params(config: Cage2Config) -> rule.Params:
    """Return the scalars that the rule receives."""
    return rule.Params(
        b_line_below=config.mixture[0],
        # A sum that rounding leaves a little below 1 must not let an agent in whose probability is 0.
        meander_below=config.mixture[0] + config.mixture[1] if config.mixture[2] > 0.0 else 2.0,
        red_agent=rule.MIXTURE if config.red_agent == "mixture" else RED_AGENTS.index(config.red_agent),
        green=config.green,
        episode_length=config.episode_length,
        corrected=config.observation_rule == "corrected",
        impact_repeats=config.impact_repeats,
        scan_memory=config.scan_memory,
        decoy_memory=config.decoy_memory,
        reward=rule.CUSTOM if callable(config.reward) else rule.OFFICIAL,
    )


def cage2_world(**values: Any) -> World:
    """Assemble the environment from its parameters."""
    config = Cage2Config.create(**values)
    tables = cage2_tables(config.action_set == "reduced")
    substitutions: dict[str, Callable] = {"custom_reward": config.reward} if callable(config.reward) else {}
    return World(
        name="cage2",
        rule=rule.RULE,
        state_type=rule.State,
        params=cage2_params(config),
        tables=tables,
        action_space=gymnasium.spaces.Discrete(len(tables.actions)),
        observed=observed_values(config),
        statistics=rule.STATISTICS,
        shortest_truncation=config.episode_length,
        substitutions=substitutions,
        substitution_examples={"custom_reward": (EXAMPLE_SITUATION, EXAMPLE_SITUATION)},
        index_ranges={"red_target": (codes.NOBODY, len(HOSTS) - 1)},
        describe_state=table_text,
    )
