"""Agents that differ only in their training seed: what they are worth together, and how far they are apart.

Read `results` (what is known of each, and how it is told), `draws` (how seeds and data are resampled) and `agents`
(several agents as one policy that was played).
"""

from velodrome.evaluation.training_seeds.agents import SEED_COLUMN, by_training_seed, joined, mean_actions
from velodrome.evaluation.training_seeds.draws import (
    SeedDraws,
    averaged,
    mean_figures,
    mean_influences,
    spread_of,
    stretch_of,
)
from velodrome.evaluation.training_seeds.results import (
    SeedResult,
    SeedSpread,
    seed_doubts,
    seed_notes,
    seeds_rows,
    told_spread,
)

__all__ = [
    "SEED_COLUMN",
    "SeedDraws",
    "SeedResult",
    "SeedSpread",
    "averaged",
    "by_training_seed",
    "joined",
    "mean_actions",
    "mean_figures",
    "mean_influences",
    "seed_doubts",
    "seed_notes",
    "seeds_rows",
    "spread_of",
    "stretch_of",
    "told_spread",
]
