"""The generator: known answers, uniform and independent streams, the same numbers compiled and not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit

from tests.oracles import philox as oracle
from tests.oracles.test_philox import KNOWN_ANSWERS
from velodrome.envs import rng
from velodrome.vector.compile.assemble import rebuild


@pytest.fixture(scope="module")
def compiled_philox():
    return njit(rebuild(rng.philox, {}, njit))


@pytest.fixture(scope="module")
def fill():
    """Return a compiled function that writes draw after draw of stream after stream into [streams, draws]."""
    philox = njit(rebuild(rng.philox, {}, njit))

    @njit
    def fill(keys, counters, out):
        for i in range(out.shape[0]):
            for k in range(out.shape[1]):
                first, second, _, _ = philox(keys[i], counters[i] + np.uint64(k), np.uint64(0))
                # The same expression as `uniform`, which test_compiled_and_plain_draws_are_the_same_bits holds it to.
                high, low = float(first >> np.uint64(5)), float(second >> np.uint64(6))
                out[i, k] = (high * 67108864.0 + low) / 9007199254740992.0

    def draws(seed, indices, count):
        keys, counters = rng.seed_streams(seed, np.asarray(indices, np.int64))
        out = np.empty((len(keys), count))
        fill(keys, counters, out)
        return out

    return draws


def halves(words: tuple[int, ...]) -> list[np.uint64]:
    """Join pairs of 32-bit words, least significant first."""
    return [np.uint64(low | high << 32) for low, high in zip(words[::2], words[1::2], strict=True)]


def state_of(seed: int, indices: list[int]) -> SimpleNamespace:
    keys, counters = rng.seed_streams(seed, np.array(indices, np.int64))
    return SimpleNamespace(rng_key=keys, rng_counter=counters)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, words, compiled_philox):
    arguments = (*halves(key), *halves(counter))
    assert tuple(map(int, rng.philox(*arguments))) == words
    assert tuple(map(int, compiled_philox(*arguments))) == words


def test_philox_agrees_with_the_oracle_on_random_arguments(compiled_philox):
    generator = np.random.default_rng(0)
    for key, low, high in generator.integers(0, 2**64, (300, 3), np.uint64):
        words = [int(value) % 2**32 for value in (low, low >> np.uint64(32), high, high >> np.uint64(32))]
        expected = oracle.philox(tuple(words), (int(key) % 2**32, int(key) >> 32))
        assert tuple(map(int, rng.philox(key, low, high))) == expected
        assert tuple(map(int, compiled_philox(key, low, high))) == expected


def test_compiled_and_plain_draws_are_the_same_bits(fill):
    compiled = njit(rebuild(rng.uniform, {}, njit))
    State = type("State", (), {})  # plain Python needs attributes only
    state, keys_and_counters = State(), rng.seed_streams(12, np.arange(5))
    state.rng_key, state.rng_counter = keys_and_counters
    plain = np.array([[rng.uniform(i, state) for _ in range(200)] for i in range(5)])
    np.testing.assert_array_equal(fill(12, range(5), 200), plain)
    block = np.zeros(1, np.dtype([("rng_key", np.uint64, (5,)), ("rng_counter", np.uint64, (5,))])).view(np.recarray)
    block.rng_key[0], block.rng_counter[0] = rng.seed_streams(12, np.arange(5))

    @njit
    def draw(blocks, i):
        return compiled(i, blocks[0])

    again = np.array([[draw(block, i) for _ in range(200)] for i in range(5)])
    np.testing.assert_array_equal(again, plain)
    assert (block.rng_counter[0] - rng.seed_streams(12, np.arange(5))[1] == 200).all()


def test_a_draw_is_the_oracles_and_moves_the_counter_by_one():
    state = state_of(2024, [0, 1, 77])
    for _ in range(50):
        for i in range(3):
            key, counter = int(state.rng_key[i]), int(state.rng_counter[i])
            assert rng.uniform(i, state) == oracle.uniform(key, counter)
            assert int(state.rng_counter[i]) == counter + 1


def test_draws_lie_in_the_unit_interval_and_use_all_53_bits(fill):
    draws = fill(0, range(500), 2000)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    whole = draws * 2.0**53
    np.testing.assert_array_equal(whole, np.floor(whole))
    bits = whole.astype(np.int64).ravel()
    for bit in range(53):
        ones = int((bits >> bit & 1).sum())
        assert abs(ones - bits.size / 2) < 5 * math.sqrt(bits.size / 4), f"bit {bit}"


def test_the_largest_and_smallest_words_stay_in_the_interval():
    for words, expected in (((0xFFFFFFFF,) * 4, 1.0 - 2.0**-53), ((0,) * 4, 0.0)):
        given = rebuild(rng.uniform, {"philox": lambda *_, words=words: tuple(map(np.uint64, words))})
        assert given(0, state_of(0, [0])) == expected < 1.0


def chi_square(counts: np.ndarray) -> float:
    """Return the statistic in standard deviations from its mean: normal enough for many cells."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (counts.size - 1)) / math.sqrt(2.0 * (counts.size - 1))


@pytest.mark.parametrize("seed", [0, 1, 123456789])
def test_draws_are_uniform_over_many_streams(seed, fill):
    draws = fill(seed, range(1000), 1000)
    assert abs(chi_square(np.bincount((draws * 256).astype(int).ravel(), minlength=256))) < 5
    # The first draw of every stream, and one stream alone.
    first = fill(seed, range(100_000), 1)
    assert abs(chi_square(np.bincount((first * 64).astype(int).ravel(), minlength=64))) < 5
    alone = fill(seed, [3], 100_000)
    assert abs(chi_square(np.bincount((alone * 64).astype(int).ravel(), minlength=64))) < 5
    # Pairs of consecutive draws, in cells of a square.
    cells = (draws[:, :-1] * 16).astype(int) * 16 + (draws[:, 1:] * 16).astype(int)
    assert abs(chi_square(np.bincount(cells.ravel(), minlength=256))) < 5


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Return the correlation in standard deviations of that of independent numbers."""
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1]) * math.sqrt(left.size)


def test_neighbouring_streams_and_consecutive_draws_do_not_correlate(fill):
    draws = fill(5, range(1000), 500)
    assert abs(correlation(draws[:-1], draws[1:])) < 5
    assert abs(correlation(draws[:, :-1], draws[:, 1:])) < 5
    assert abs(correlation(draws[:-1, :-1], draws[1:, 1:])) < 5
    assert abs(correlation(draws, fill(6, range(1000), 500))) < 5


def test_streams_differ_by_seed_and_by_index(fill):
    first = np.concatenate([fill(seed, range(200), 2) for seed in range(50)])
    assert len(np.unique(first[:, 0])) == len(first)
    keys = set()
    for seed in range(200):
        found, counters = rng.seed_streams(seed, np.arange(8))
        keys |= set(zip(found.tolist(), counters.tolist(), strict=True))
    assert len(keys) == 200 * 8


def test_a_stream_depends_on_its_seed_and_index_alone():
    few, many = rng.seed_streams(9, np.array([7, 3])), rng.seed_streams(9, np.arange(1000))
    for part, whole in zip(few, many, strict=True):
        np.testing.assert_array_equal(part, whole[[7, 3]])


@pytest.mark.parametrize("seed", [2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1, 2**64, 2**200 + 17])
def test_big_seeds_have_streams_of_their_own(seed):
    keys, counters = rng.seed_streams(seed, np.arange(4))
    assert keys.dtype == counters.dtype == np.uint64
    below, counters_below = rng.seed_streams(seed - 1, np.arange(4))
    assert not np.array_equal(keys, below)
    assert not np.array_equal(counters, counters_below)
    # Cut to 32 or 64 bits it would be the stream of a small seed.
    for bits in (32, 64):
        if seed >= 2**bits:
            assert not np.array_equal(keys, rng.seed_streams(seed % 2**bits, np.arange(4))[0])


def test_the_lower_half_of_the_counter_is_free_for_four_billion_draws():
    _, counters = rng.seed_streams(3, np.arange(10))
    assert (counters & np.uint64(0xFFFFFFFF) == 0).all()


def test_the_stream_index_can_be_read_back():
    indices = [0, 1, 63, 64, 5000, 2**31 - 1, 2**32 - 1]
    state = state_of(11, indices)
    assert [rng.stream_index(i, state) for i in range(len(indices))] == indices
