"""Windows gathered by cursor are the ones that the environments write out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import velodrome as vd
from tests.markets import small_market
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank, split_windows
from velodrome.tables.windows import window_at

SHAPES = [((5, 3), (2, 2)), ((4, 1),), ((1, 6), (3, 2), (7, 1))]


@pytest.mark.parametrize("windows", SHAPES)
def test_every_window_of_every_bar_is_gathered_exactly(windows):
    market = small_market(bars=40, instruments=3, windows=windows)
    bank = WindowBank(market.windows)
    assert bank.shapes == windows
    assert bank.floats == market.window_floats
    found = bank.gather(torch.arange(len(market)))
    for cursor in range(len(market)):
        expected = [window_at(market.windows, w, cursor).ravel() for w in range(len(windows))]
        np.testing.assert_array_equal(found[cursor].numpy(), np.concatenate(expected))


@pytest.mark.parametrize("type_of_cursor", [torch.int32, torch.int64])
def test_gathering_follows_the_order_of_the_cursors(type_of_cursor):
    bank = WindowBank(small_market(bars=30).windows)
    cursor = torch.tensor([29, 4, 4, 17], dtype=type_of_cursor)
    assert torch.equal(bank.gather(cursor), bank.gather(torch.arange(30))[[29, 4, 4, 17]])


def test_a_cursor_and_the_account_are_the_flat_observation():
    market = small_market(bars=50, instruments=2)
    flat = vd.make_vec("trading", 5, market=market, seed=3, episode_length=6, threads=1)
    short = vd.make_vec("trading", 5, market=market, seed=3, episode_length=6, threads=1, observation="cursor")
    bank = WindowBank(market.windows)
    seen, brief = flat.reset()[0], short.reset()[0]
    for step in range(20):
        rows = torch.cat([bank.gather(torch.from_numpy(brief["cursor"])), torch.from_numpy(brief["account"])], 1)
        np.testing.assert_array_equal(rows.numpy(), seen)
        actions = np.full(5, step % 3)
        seen, brief = flat.step(actions)[0], short.step(actions)[0]


def test_a_bank_knows_which_bars_a_cursor_can_be_at():
    market = small_market(bars=40, instruments=2)
    bank = WindowBank(market.windows, ((10, 20), (60, 65)))
    assert bank.bars.tolist() == [*range(10, 20), *range(60, 65)]
    assert torch.equal(bank.bars[bank.position[bank.bars]], bank.bars)
    assert WindowBank(market.windows).bars.tolist() == list(range(80))


def test_a_bank_of_another_type_holds_the_same_numbers():
    market = small_market(bars=20)
    found = WindowBank(market.windows, dtype=torch.float64).gather(torch.arange(20))
    assert found.dtype == torch.float64
    assert torch.equal(found.float(), WindowBank(market.windows).gather(torch.arange(20)))


def test_windows_are_split_as_rows_of_features():
    market = small_market(bars=20)
    bank = WindowBank(market.windows)
    parts = split_windows(bank.gather(torch.arange(20)), bank.shapes)
    for w, part in enumerate(parts):
        assert part.shape == (20, *bank.shapes[w])
        np.testing.assert_array_equal(part[13].numpy(), window_at(market.windows, w, 13))


def test_the_size_of_an_observation():
    shape = ObservationShape(8, ((5, 3), (2, 2)))
    assert (shape.window_floats, shape.floats) == (19, 27)
    assert ObservationShape(4).floats == 4


def test_rows_are_selected_with_their_cursor():
    observation = Observation(torch.arange(8.0).reshape(4, 2), torch.tensor([3, 5, 7, 9]))
    found = observation.select(torch.tensor([2, 0]))
    assert found.values.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert found.cursor.tolist() == [7, 3]
    assert Observation(torch.zeros(3, 1)).select(torch.tensor([1])).cursor is None
