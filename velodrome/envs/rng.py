"""One counter-based generator per environment: Philox 4×32-10 (Salmon et al., "Parallel random numbers", SC 2011).

A draw is a pure function of (key, counter). The key holds the seed and the index of the environment: a stream does not
depend on threads, on the backend, or on how many other environments there are. All arithmetic is on 32-bit words held
in uint64: products fit, nothing overflows, and plain Python, the CPU and CUDA give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# uint64 constants throughout: Numba turns uint64 with int64 into float64.
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_SHIFT_5 = np.uint64(5)
_SHIFT_6 = np.uint64(6)


def philox(key: Any, counter: Any, counter_high: Any) -> Any:
    """Return the four 32-bit words for a 64-bit key and a 128-bit counter given as two 64-bit halves."""
    key_0 = key & _LOW_WORD
    key_1 = key >> _WORD_BITS
    word_0 = counter & _LOW_WORD
    word_1 = counter >> _WORD_BITS
    word_2 = counter_high & _LOW_WORD
    word_3 = counter_high >> _WORD_BITS
    for _ in range(10):
        product_0 = _MULTIPLIER_0 * word_0
        product_1 = _MULTIPLIER_1 * word_2
        word_0 = (product_1 >> _WORD_BITS) ^ word_1 ^ key_0
        word_2 = (product_0 >> _WORD_BITS) ^ word_3 ^ key_1
        word_1 = product_1 & _LOW_WORD
        word_3 = product_0 & _LOW_WORD
        key_0 = (key_0 + _WEYL_0) & _LOW_WORD
        key_1 = (key_1 + _WEYL_1) & _LOW_WORD
    return word_0, word_1, word_2, word_3


def uniform(i: int, state: Any) -> float:
    """Draw the next number in [0, 1), 53 bits, from environment i's generator."""
    counter = state.rng_counter[i]
    state.rng_counter[i] = counter + _ONE
    word_0, word_1, _, _ = philox(state.rng_key[i], counter, _ZERO)
    return (float(word_0 >> _SHIFT_5) * 67108864.0 + float(word_1 >> _SHIFT_6)) / 9007199254740992.0


def draw_words(i: int, state: Any) -> tuple[int, int, int, int]:
    """Draw four times 32 random bits from one call of environment i's generator, for steps that need several draws."""
    counter = state.rng_counter[i]
    state.rng_counter[i] = counter + _ONE
    word_0, word_1, word_2, word_3 = philox(state.rng_key[i], counter, _ZERO)
    # Signed from here on: compiled, uint64 with int64 would be float64.
    return int(np.int64(word_0)), int(np.int64(word_1)), int(np.int64(word_2)), int(np.int64(word_3))


def stream_index(i: int, state: Any) -> int:
    """Return the index that environment i's generator was seeded with."""
    return int(state.rng_key[i] >> _WORD_BITS)


def seed_streams(seed: int, indices: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return (keys, counters) of the generators of environments `indices` under one seed."""
    low, high = np.random.SeedSequence(seed).generate_state(2, np.uint32)
    keys = (indices.astype(np.uint64) << _WORD_BITS) | np.uint64(low)
    # The seed's upper word starts the counter's upper word; the lower 32 bits count draws.
    counters = np.full(len(indices), np.uint64(high) << _WORD_BITS, np.uint64)
    return keys, counters
