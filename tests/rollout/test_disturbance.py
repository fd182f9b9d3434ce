"""Noise and masks: how strong they are, where they are, that nobody but the learner sees them, and that bits repeat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import velodrome as vd
from tests.learn.learners import portfolio_worlds, trading_worlds
from tests.markets import small_market
from velodrome.errors import ConfigError
from velodrome.rollout.disturbance import STRETCH, Strength
from velodrome.rollout.observation import WindowBank
from velodrome.rollout.worlds import ForeignWorlds, make_worlds

BARS, SPLIT = 3000, 2000  # of each of two instruments; training ends at the split


@pytest.fixture(scope="module")
def market():
    whole = small_market(bars=BARS, instruments=2, windows=((5, 3), (2, 6)))
    splits = {"train": ((0, SPLIT), (BARS, BARS + SPLIT)), "test": ((SPLIT, BARS), (BARS + SPLIT, 2 * BARS))}
    object.__setattr__(whole, "splits", splits)
    return whole


def make(market, strength, seed=0, split="train", steps=0):
    worlds = make_worlds(vd.make_vec("trading", 2, market=market, split=split, observation="cursor", threads=1))
    worlds.disturb(strength, seed)
    worlds.renew(steps)
    return worlds


def tables(worlds):
    """What the learner sees and what is true, as [rows, features] of each window."""
    windows = worlds.true_bank.tables
    edges = [*windows.base, len(windows.values)]
    return [
        tuple(bank.table.numpy()[edges[w] : edges[w + 1]].reshape(-1, windows.width[w]) for w in range(2))
        for bank in (worlds.bank, worlds.true_bank)
    ]


def test_noise_has_the_deviation_asked_for_in_units_of_each_feature(market):
    windows = market.windows
    values = np.array(windows.values)
    values[: windows.base[1]].reshape(-1, 3)[:, 1] *= 40.0  # one feature of another size
    object.__setattr__(market, "windows", windows._replace(values=values))
    seen, true = tables(make(market, Strength(noise=0.25)))
    object.__setattr__(market, "windows", windows)
    for ours, theirs in zip(seen, true, strict=True):
        moved = (ours - theirs).any(1)
        noise = (ours - theirs)[moved] / theirs[moved].std(0)
        assert noise.std(0) == pytest.approx(0.25, rel=0.05)
        assert noise.mean(0) == pytest.approx(0.0, abs=0.02)
        assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.06
        assert abs(np.corrcoef(noise.T) - np.eye(noise.shape[1])).max() < 0.08


def test_shares_of_bars_and_features_are_masked(market):
    seen, _ = tables(make(market, Strength(mask_bars=0.2)))
    for ours in seen:
        assert (ours[5:SPLIT] == 0.0).all(1).mean() == pytest.approx(0.2, abs=0.03)
        assert np.isin((ours[5:SPLIT] == 0.0).mean(1), (0.0, 1.0)).all(), "whole bars or nothing of them"
    found = [tables(make(market, Strength(mask_features=0.3), steps=steps))[0][1] for steps in range(20)]
    shares = [(ours[5:SPLIT] == 0.0).mean() for ours in found]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.04)
    # For stretches: what is masked on one bar nearly always is on the next.
    assert np.mean([(ours[5:SPLIT] == 0.0)[1:] == (ours[5:SPLIT] == 0.0)[:-1] for ours in found]) > 1.0 - 2.0 / STRETCH


@pytest.mark.parametrize("strength", [Strength(noise=100.0), Strength(mask_bars=0.99), Strength(mask_features=0.99)])
def test_what_training_does_not_show_stays_as_it_is(market, strength):
    worlds = make(market, strength)
    later = torch.cat([torch.arange(SPLIT + 4, BARS), torch.arange(BARS + SPLIT + 4, 2 * BARS)])
    assert torch.equal(worlds.bank.gather(later), worlds.true_bank.gather(later))
    reached = worlds.bank.gather(worlds.bank.bars)
    assert not torch.equal(reached, worlds.true_bank.gather(worlds.bank.bars))
    everything = torch.arange(2 * BARS)
    clean = WindowBank(market.windows)
    assert torch.equal(worlds.true_bank.gather(everything), clean.gather(everything)), "the true ones are not touched"
    assert np.array_equal(market.windows.values, clean.table.numpy()), "nor is the market"


def test_compiled_loops_and_torch_read_the_same_disturbed_numbers(market):
    worlds = make(market, Strength(noise=1.0, mask_bars=0.1, mask_features=0.1))
    for steps in (1, 2):
        worlds.renew(steps)
        assert np.array_equal(worlds.bank.tables.values, worlds.bank.table.numpy())
        assert np.shares_memory(worlds.bank.tables.values, worlds.bank.table.numpy())


def test_bits_depend_on_the_seed_and_on_the_steps_alone(market):
    strength = Strength(noise=0.5, mask_bars=0.1, mask_features=0.2)
    first = make(market, strength, steps=4096).bank.table.clone()
    again = make(market, strength, steps=0)
    for steps in (17, 8192, 4096):  # another way to the same place
        again.renew(steps)
    assert torch.equal(again.bank.table, first)
    for other in (make(market, strength, seed=1, steps=4096), make(market, strength, steps=4097)):
        assert not torch.equal(other.bank.table, first)


def test_what_is_zero_stays_zero_under_noise():
    market = small_market(bars=60, windows=((5, 3),))
    values = np.array(market.windows.values)
    values[30:45] = 0.0
    object.__setattr__(market, "windows", market.windows._replace(values=values))
    worlds = trading_worlds(2, market=market)
    worlds.disturb(Strength(noise=1.0), 0)
    worlds.renew(0)
    assert not worlds.bank.table[30:45].any()
    assert (worlds.bank.table != worlds.true_bank.table).any()


def test_a_portfolio_shows_it_too():
    worlds = portfolio_worlds(2)
    worlds.disturb(Strength(noise=1.0), 0)
    worlds.renew(0)
    bars = worlds.bank.bars
    assert not torch.equal(worlds.bank.gather(bars), worlds.true_bank.gather(bars))


def test_environments_without_windows_refuse_it():
    worlds = ForeignWorlds(vd.make_vec("CartPole-v1", 2, backend="serial"))
    with pytest.raises(ConfigError, match=r"augment: noise and masks are for the windows of a market"):
        worlds.disturb(Strength(noise=0.1), 0)
