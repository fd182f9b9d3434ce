"""Which observed values belong to each instrument, and which to none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.baskets import small_basket
from velodrome.envs.contract import InstrumentLayout
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.errors import ConfigError


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 3), st.randoms())
def test_every_value_belongs_to_one_instrument_or_to_none(count, gaps, after, random):
    own, at = [], 0
    for gap in gaps:
        own.append(at + gap)
        at += gap + count
    values = at + after
    random.shuffle(own)
    layout = InstrumentLayout(count, tuple(own))
    layout.check(values, ((4, 2 * count),))
    shared = [place for begin, end in layout.shared(values) for place in range(begin, end)]
    belonging = [first + k for first in own for k in range(count)]
    assert sorted(shared + belonging) == list(range(values))
    assert shared == sorted(shared)


@pytest.mark.parametrize(
    ("layout", "values", "windows"),
    [(InstrumentLayout(0), 4, ()), (InstrumentLayout(3, (2,)), 4, ()), (InstrumentLayout(3, (0, 2)), 8, ()),
     (InstrumentLayout(3, (-1,)), 4, ()), (InstrumentLayout(3), 4, ((2, 4),))],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused(layout, values, windows):
    with pytest.raises(ConfigError, match=r"World\.instruments"):
        layout.check(values, windows)


@pytest.mark.parametrize("account_values", ["shares", "raw"])
def test_the_values_of_a_portfolio_have_their_instruments_names(account_values):
    world = portfolio_world(small_basket(instruments=3), account_values=account_values)
    layout = world.instruments
    for first in layout.own:
        assert [name.split()[-1] for name in world.observed[first : first + 3]] == ["S0", "S1", "S2"]
    shared = [name for begin, end in layout.shared(len(world.observed)) for name in world.observed[begin:end]]
    assert shared == (["cash"] if account_values == "raw" else ["cash_share", "drawdown", "episode_left"])


def test_a_world_whose_layout_does_not_fit_is_refused():
    world = portfolio_world(small_basket(instruments=3))
    with pytest.raises(ConfigError, match="a window of"):
        replace(world, instruments=InstrumentLayout(4, (1,)))
