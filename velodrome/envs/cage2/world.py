"""Assembles the CAGE-2 environment: parameters become a World that any backend can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from velodrome.envs.cage2 import codes, rule
from velodrome.envs.cage2.config import Cage2Config
from velodrome.envs.cage2.display import table_text
from velodrome.envs.cage2.memories import AGE_VALUES, ATTACK_VALUES, HOSTS_OF_MEMORIES, MEMORY_OF_ACTIVITY, TENS
from velodrome.envs.cage2.names import ACTION_SETS, HOSTS, RED_AGENTS
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
    hosts = [HOSTS[host] for host in HOSTS_OF_MEMORIES]
    ages = (f"{host} {kind} {age}" for host in hosts for kind in ("scan", "exploit") for age in AGE_VALUES)
    memories = (
        (config.scan_memory, (f"{host} scan memory" for host in hosts)),
        (config.decoy_memory, (f"{decoy} decoy" for decoy in DECOY_VALUES)),
        (config.activity_memory, ages),
        (config.attack_memory, (f"{host} attacked: {gain}" for host in hosts for gain in ATTACK_VALUES)),
        (config.port_memory, (f"{decoy} decoy when scanned" for decoy in DECOY_VALUES)),
        (config.step_memory, (f"steps {10 * k + 1} to {10 * k + 10}" for k in range(TENS))),
        (config.red_memory, ("Red is b_line", "Red is meander")),
    )
    return (*bits, *(value for wanted, values in memories if wanted for value in values))


def cage2_params(config: Cage2Config) -> rule.Params:
    """Return the scalars that the rule receives."""
    return rule.Params(
        b_line_below=config.mixture[0],
        # A sum that rounding leaves a little below 1 must not let an agent in whose probability is 0.
        meander_below=config.mixture[0] + config.mixture[1] if config.mixture[2] > 0.0 else 2.0,
        red_agent=rule.MIXTURE if config.red_agent == "mixture" else RED_AGENTS.index(config.red_agent),
        green=config.green,
        episode_length=config.episode_length,
        terminates=config.episode_end == "terminated",
        corrected=config.observation_rule == "corrected",
        impact_repeats=config.impact_repeats,
        scan_memory=config.scan_memory,
        decoy_memory=config.decoy_memory,
        activity_memory=config.activity_memory,
        attack_memory=config.attack_memory,
        port_memory=config.port_memory,
        step_memory=config.step_memory,
        red_memory=config.red_memory,
        reward=rule.CUSTOM if callable(config.reward) else rule.OFFICIAL,
    )


def cage2_world(**values: Any) -> World:
    """Assemble the environment from its parameters."""
    config = Cage2Config.create(**values)
    tables = cage2_tables(config.action_set == "reduced")
    substitutions: dict[str, Callable] = {"custom_reward": config.reward} if callable(config.reward) else {}
    remembers = any(getattr(config, f"{kind}_memory") for kind in ("activity", "attack", "port", "step", "red"))
    if remembers:
        substitutions |= MEMORY_OF_ACTIVITY
    return World(
        name="cage2",
        rule=rule.RULE,
        state_type=rule.RememberingState if remembers else rule.State,
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
        action_names=ACTION_SETS[config.action_set],
    )
