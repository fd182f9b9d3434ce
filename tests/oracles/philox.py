"""Philox 4×32-10 in plain Python integers, after the paper (Salmon et al., "Parallel random numbers", SC 2011).

It shares no code with velodrome/envs/rng.py and is as slow as it looks.
"""

from __future__ import annotations

ROUNDS = 10
WORD = 1 << 32
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key words after every round: golden ratio, square root of 3 minus 1


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return four words of 32 bits for a counter of four and a key of two, least significant first."""
    first, second, third, fourth = counter
    for turn in range(ROUNDS):
        left, right = ((start + turn * step) % WORD for start, step in zip(key, WEYL, strict=True))
        upper_a, lower_a = divmod(MULTIPLIERS[0] * first, WORD)
        upper_b, lower_b = divmod(MULTIPLIERS[1] * third, WORD)
        first, second, third, fourth = upper_b ^ second ^ left, lower_b, upper_a ^ fourth ^ right, lower_a
    return first, second, third, fourth


def uniform(key: int, counter: int) -> float:
    """Return the number in [0, 1) that an environment with these generator columns draws next."""
    words = philox((counter % WORD, counter // WORD, 0, 0), (key % WORD, key // WORD))
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53
