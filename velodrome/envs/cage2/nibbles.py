"""Words of CAGE-2's state: integers with a nibble (four bits) for each of the 13 hosts, host 0 in the lowest.

Functions take and return plain integers. Compiled they are 64 bits wide and wrap, uncompiled they are as long as they
need to be; results are masked so that both agree.
"""

from __future__ import annotations

from typing import Any

HOST_COUNT = 13
ALL = 0x1111111111111  # the lowest bit of every nibble
_EVEN_BYTES, _ODD_BYTES = 0x01010101010101, 0x010101010101  # 7 hosts with an even index, 6 with an odd one
_LOW_NIBBLES = 0x0F


def whole(value: Any) -> int:
    """Return an entry of a column or a table as a plain integer, 64 bits wide when compiled."""
    return 0 + int(value)


def at(word: int, host: int) -> int:
    """Return a host's nibble."""
    return word >> 4 * host & 15


def with_bits(word: int, host: int, bits: int) -> int:
    """Return a word with some bits of a host's nibble set."""
    return word | bits << 4 * host


def without_bits(word: int, host: int, bits: int) -> int:
    """Return a word with some bits of a host's nibble cleared."""
    return word & ~(bits << 4 * host)


def replaced(word: int, host: int, nibble: int) -> int:
    """Return a word with another nibble for a host."""
    return word & ~(15 << 4 * host) | nibble << 4 * host


def count(hosts: int) -> int:
    """Return how many hosts are in a set, given by the lowest bits of its nibbles."""
    return hosts * ALL >> 48 & 15


def kth(hosts: int, k: int) -> int:
    """Return the k-th host of a set (k from 0), given by the lowest bits of its nibbles."""
    # Nibble h of the product is the number of hosts up to h. The k-th host is as many nibbles up as hold at most k;
    # compared in bytes of their own, because a nibble has no room for the bit that tells.
    up_to = hosts * ALL
    even = (k * _EVEN_BYTES | _EVEN_BYTES << 7) - (up_to & _LOW_NIBBLES * _EVEN_BYTES)
    odd = (k * _ODD_BYTES | _ODD_BYTES << 7) - (up_to >> 4 & _LOW_NIBBLES * _ODD_BYTES)
    below = (even >> 7 & _EVEN_BYTES) * _EVEN_BYTES >> 48 & 15
    return below + ((odd >> 7 & _ODD_BYTES) * _ODD_BYTES >> 40 & 15)


def mask(word: int, bit: int) -> int:
    """Return one bit of every nibble as a mask of 13 bits, host 0 in the lowest."""
    hosts = word >> bit & ALL
    hosts = (hosts | hosts >> 3) & 0x03030303030303
    hosts = (hosts | hosts >> 6) & 0x000F000F000F000F
    hosts = (hosts | hosts >> 12) & 0x000000FF000000FF
    return (hosts | hosts >> 24) & 0x1FFF
