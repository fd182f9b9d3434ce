"""PPO's settings as other libraries have them, where they differ in more than their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velodrome.errors import ConfigError
from velodrome.vector.argument_checks import checked_count


def of_half_the_square(weight: Any) -> Any:
    """Return the weight of the value's loss that means the same here: others take it of the whole squared error.

    What is no number is left for the configuration to refuse.
    """
    return 2.0 * weight if isinstance(weight, int | float) and not isinstance(weight, bool) else weight


def ppo_of_sb3(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run in which PPO has what Stable-Baselines3's has in its own terms.

    The number of minibatches stands in place of their size.
    """
    found = dict(settings)
    if "ppo.value_weight" in found:
        found["ppo.value_weight"] = of_half_the_square(found["ppo.value_weight"])
    own = found.pop("ppo.batch_size", None)
    if own is None:
        return found
    given = {"batch_size": own, "n_steps": found.get("ppo.rollout_length"), "n_envs": found.get("num_envs")}
    if missing := [name for name, value in given.items() if value is None]:
        raise ConfigError(
            f"batch_size = {own!r}: needs {' and '.join(missing)} beside it, for a rollout is divided into "
            "minibatches of one size."
        )
    each, length, count = (checked_count(name, number) for name, number in given.items())
    return {**found, "ppo.minibatches": max(round(length * count / each), 1)}
