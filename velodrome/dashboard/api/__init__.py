"""The operations of the API, each with what it takes; the same as those of the commands.

Read `logs` and `promotion` (what several of them take), `configuration` (what a training can be told), `jobs` (the
queue), `evaluations` (what a policy did), `markets` (prices), `populations`, `runs`, `studies`, `champions`,
`benchmarks` and `overview` (the first page).
"""

from velodrome.dashboard.answers import Endpoint
from velodrome.dashboard.api import (
    benchmarks,
    champions,
    configuration,
    evaluations,
    jobs,
    markets,
    overview,
    populations,
    runs,
    studies,
)

PARTS = (overview, runs, evaluations, markets, jobs, studies, populations, champions, benchmarks, configuration)
ENDPOINTS: tuple[Endpoint, ...] = tuple(one for part in PARTS for one in part.routes.endpoints)

__all__ = ["ENDPOINTS", "PARTS"]
