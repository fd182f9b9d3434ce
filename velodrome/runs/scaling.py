"""The number of environments of a run while it learns, changed where measurements say so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError

if TYPE_CHECKING:
    from velodrome.vector.fleet.autoscale import Autoscaler

log = logging.getLogger("velodrome.runs")


def resize_as_measured(scaler: Autoscaler, learner: Any, steps: int, seconds: float) -> str | None:
    """Change the number of environments if the steps and seconds of an iteration ask for it; return what to show."""
    from velodrome.vector.fleet.autoscale import bytes_in_use
    from velodrome.vector.fleet.pool import PoolBusyError

    before = learner.worlds.num_envs
    wanted = scaler.observe(before, steps, seconds, bytes_in_use())
    if wanted is None or wanted == before:
        return None
    try:
        learner.resize(wanted)
    except (PoolBusyError, ConfigError) as error:  # others have the rest of the budget; a replay has no room
        log.info("not resized: %s", error)
        return None
    log.info("resized from %d to %d environments at step %d", before, wanted, learner.steps)
    return f"{wanted:,} environments, from {before:,}"
