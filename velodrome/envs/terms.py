"""The terms of an episode: what each numeric parameter is in it, whether it is fixed or drawn from a range.

A rule that draws parameters per episode (domain randomisation) has a state column `drawn` with a row for each numeric
parameter, a table `ranges` and a parameter `randomised`. Its config module makes

    Terms, episode_terms = terms_of(__name__, TradingConfig)

and its functions begin with `terms = episode_terms(i, state, params)`, then say `terms.fee`.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.parameters import EnvConfig, ranged_names, ranges_of
from velodrome.envs.rng import uniform


def terms_of(module: str, model: type[EnvConfig], derived: tuple[str, ...] = ()) -> tuple[Any, Callable]:
    """Make the NamedTuple `Terms` of a model's numeric parameters, and `episode_terms`, which reads an episode's.

    They must be attributes of those names of the named module: Numba's cache looks for them there.
    derived: further terms that follow from the parameters; a field of the params and a state column have their names.

    The function is generated, so that each parameter is declared once and no position is written down.
    """
    names = ranged_names(model)
    drawn = [*(f"state.drawn[{row}, i]" for row in range(len(names))), *(f"state.{name}[i]" for name in derived)]
    fixed = [f"params.{name}" for name in (*names, *derived)]
    source = f"""
def episode_terms(i, state, params):
    if are_drawn(params):
        return Terms({", ".join(drawn)})
    return Terms({", ".join(fixed)})
"""
    # It refuses what is no name in Python before the source, which is made of names and numbers alone, is executed.
    terms = namedtuple("Terms", (*names, *derived), module=module)  # type: ignore[misc]
    namespace: dict[str, Any] = {"__name__": module, "Terms": terms, "are_drawn": are_drawn}
    exec(compile(source, f"<episode_terms of {model.__name__}>", "exec"), namespace)
    return terms, namespace["episode_terms"]


def are_drawn(params: Any) -> bool:
    """Say whether an episode has terms of its own.

    Kernels for a GPU have one of the two functions below in its place: undecided, both kinds of terms would lie in
    registers, and the general kernel of trading ran at three quarters of its speed on an H200.
    """
    return params.randomised


def always_drawn(params: Any) -> bool:
    return True


def never_drawn(params: Any) -> bool:
    return False


def draw_terms(i: int, state: Any, tables: Any) -> None:
    """Draw environment i's parameters for a new episode, in the order of declaration."""
    for k in range(len(tables.ranges)):
        low, high, whole = tables.ranges[k, 0], tables.ranges[k, 1], tables.ranges[k, 2]
        drawn = low
        if high > low:
            if whole > 0.0:
                drawn = low + math.floor(uniform(i, state) * (high - low + 1.0))
            else:
                drawn = low + uniform(i, state) * (high - low)
        state.drawn[k, i] = drawn


# When a world is assembled.


def params_type(module: str, model: type[EnvConfig], further: tuple[str, ...]) -> Any:
    """Make the NamedTuple of scalars that a rule receives: the numeric parameters, then further ones.

    It must be the attribute `Params` of the named module: Numba's cache finds it there.
    """
    return namedtuple("Params", (*ranged_names(model), *further), module=module)


def fixed_terms(config: EnvConfig) -> dict[str, float]:
    """Return every numeric parameter as one float; of a range, its lower end."""
    return {name: low for name, (low, _, _) in ranges_of(config).items()}


def range_table(config: EnvConfig) -> NDArray[np.float64]:
    """Return the table `ranges`, [N, 3]: low and high end of each numeric parameter, 1 for whole numbers only."""
    return np.array(list(ranges_of(config).values()), np.float64)


def draws_terms(config: EnvConfig) -> bool:
    """Say whether any parameter has to be drawn; a range of one value does not."""
    return any(low < high for low, high, _ in ranges_of(config).values())
