"""CAGE Challenge 2: Blue defends a network of 13 hosts against Red, exactly as in CybORG v2.1, Scenario2.

This is the page to import: `cage2_world` assembles the environment, `replay` runs recorded trajectories through its
rule, and the rest names things and shows them to people. `docs/cage2.md` says what is exact and which variants there
are. Read `names` and `codes`, `nibbles` (a few bits for each host), `memories` (what Blue remembers), `network` (hosts,
services, decoys), `red` (Red's agents), `moves` (what moves do), `rule` (state, order of a step), `config`, `display`,
`recordings` and `world`.
"""

from __future__ import annotations

from velodrome.envs.cage2.config import Cage2Config
from velodrome.envs.cage2.display import EpisodeLog, episode_log, host_table, table_text, true_state
from velodrome.envs.cage2.names import (
    ACTION_NAMES,
    DECOYS,
    EXPLOITS,
    HOSTS,
    RED_ACTIONS,
    RED_AGENTS,
    REDUCED_ACTION_NAMES,
    SUBNETS,
    action,
    action_name,
    host,
    host_name,
)
from velodrome.envs.cage2.network import decoy_bit
from velodrome.envs.cage2.recordings import replay
from velodrome.envs.cage2.rule import Situation
from velodrome.envs.cage2.world import cage2_world, observed_values

__all__ = [
    "ACTION_NAMES",
    "DECOYS",
    "EXPLOITS",
    "HOSTS",
    "REDUCED_ACTION_NAMES",
    "RED_ACTIONS",
    "RED_AGENTS",
    "SUBNETS",
    "Cage2Config",
    "EpisodeLog",
    "Situation",
    "action",
    "action_name",
    "cage2_world",
    "decoy_bit",
    "episode_log",
    "host",
    "host_name",
    "host_table",
    "observed_values",
    "replay",
    "table_text",
    "true_state",
]
