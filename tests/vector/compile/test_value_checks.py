"""How compiled loops look for NaN and infinities: at every place, at nothing else, and after the loop if they can."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.envs._template import template_world
from velodrome.vector import batch
from velodrome.vector.compile.cpu_loops import not_finite_among_few, not_finite_in_block, value_checks

MOST = np.finfo(np.float32)
# Whose sum is not finite, whose product with another is not, or which takes processors long.
FINE = np.array([MOST.max, MOST.max, -MOST.max, MOST.smallest_subnormal, MOST.tiny, -0.0, 0.0, 1.0], np.float32)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 33, 67])
def test_a_value_that_is_not_finite_is_found_at_every_place_and_no_other_is(count):
    for look in (not_finite_in_block, not_finite_among_few(count), batch.not_finite_among):
        values = np.full(count + 4, np.nan, np.float32)
        values[2:-2] = np.resize(FINE, count)
        assert look(values, 2, count) == 0
        for place in range(2, 2 + count):
            for wrong in (np.nan, -np.nan, np.inf, -np.inf):
                kept, values[place] = values[place], wrong
                assert look(values, 2, count) == batch.WRONG, (look, place, wrong)
                values[place] = kept


def test_values_in_one_piece_are_looked_at_after_the_loop():
    """Within it, the code takes registers from the rule: it cost three times as much."""
    world = template_world()
    assert set(value_checks(world, windows=False)) == {"wrong_in_block"}
    assert set(value_checks(world, windows=True)) == {"wrong_in_block", "wrong_in_row"}
