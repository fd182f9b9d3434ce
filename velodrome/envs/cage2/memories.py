"""What Blue remembers of the activity it has seen: when each host showed some, by what it was attacked, what a scan of
it found, who Red is.

The rule calls `begin_memory`, `keep_memory` and `show_memory`. They do nothing, and their columns do not exist, unless
a memory is asked for: `world` then puts the functions of the same names with `_of_activity` in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.cage2 import codes
from velodrome.envs.cage2.nibbles import ALL, at, kth, replaced, whole

# Hosts of the memories: CardiffUni's, all but Op_Host0 to 2.
HOSTS_OF_MEMORIES = (0, 1, 2, 3, 7, 8, 9, 10, 11, 12)
AGE_VALUES = ("1 step ago", "2 steps ago", "3 steps ago", "recency")  # shown for each host and kind of activity
ATTACK_VALUES = ("SSH session", "user shell", "privileged shell")  # that the service attacked last gives away
FIRST_GAIN = 3  # the first of these among the results of an exploit (network.SSH_SESSION)
OLDEST = 15  # nibble of an age: 0 never, 1 in the last step, 15 fourteen steps ago or more
TENS = 10  # of steps that are counted
FIRST_HOST, IS_B_LINE, IS_MEANDER = 15, 16, 32  # of State.recognised: 1 + host, and who it is


def show_decoys(decoys: int, tables: Any, first: int, out: NDArray[np.float32]) -> int:
    """Write which decoys a word holds, one value for each that can run; return the place after them."""
    for k in range(tables.decoy_bits.size):
        out[first + k] = decoys >> whole(tables.decoy_bits[k]) & 1
    return first + tables.decoy_bits.size


def begin_memory(i: int, state: Any) -> None:
    """Forget everything: an episode begins."""


def keep_memory(
    i: int, state: Any, tables: Any, seen: int, blue: Any, red: Any, target: int, green: int, decoys: int
) -> None:
    """Take in what Blue sees after a step, in which it and Red moved; green: the host that Green scanned, or −1."""


def show_memory(i: int, state: Any, tables: Any, params: Any, first: int, out: NDArray[np.float32]) -> None:
    """Write the values of the memories, from place `first` on."""


def age_table() -> NDArray[np.float32]:
    """Return the values that are shown of each age, [16 · 4]: one for each of the latest steps, and a fading one."""
    rows = [[float(age == k) for k in (2, 3, 4)] + [(OLDEST + 1 - age) / OLDEST if age else 0.0] for age in range(16)]
    return np.array(rows, np.float32).ravel()


def aged(ages: int, now: int) -> int:
    """Return ages a step later, with activity now on a set of hosts (lowest bits of nibbles)."""
    some = (ages | ages >> 1 | ages >> 2 | ages >> 3) & ALL
    oldest = ages & ages >> 1 & ages >> 2 & ages >> 3 & ALL
    return (ages + (some & ~oldest)) & ~(now * OLDEST) | now


def recognised_by(recognised: int, seen: int) -> int:
    """Return who Red is known to be after an observation.

    B_line attacks the first host that it scans, Meander scans another host first: what the second activity shows.
    """
    active, exploited = seen & ALL, seen >> 1 & ALL
    if (recognised > FIRST_HOST) | (active == 0):
        return recognised
    host = 1 + kth(active, 0)
    if exploited | (host == recognised):
        return IS_B_LINE | recognised
    return host if recognised == 0 else IS_MEANDER | recognised


def begin_memory_of_activity(i: int, state: Any) -> None:
    """Forget everything: an episode begins."""
    state.scan_ages[i] = 0
    state.exploit_ages[i] = 0
    state.attacks_seen[i] = 0
    state.decoys_scanned[i] = 0
    state.recognised[i] = 0


def keep_memory_of_activity(
    i: int, state: Any, tables: Any, seen: int, blue: Any, red: Any, target: int, green: int, decoys: int
) -> None:
    """Take in what Blue sees after a step, in which it and Red moved; green: the host that Green scanned, or −1."""
    attacks = whole(state.attacks_seen[i])
    if blue.kind == codes.RESTORE:
        attacks = replaced(attacks, blue.host, 0)
    # The connections that an exploit leaves have the port of the service, unless a scan of all ports hides it.
    if (red.exploit >= 0) & (red.events > 0) & (target != green):
        attacks = replaced(attacks, target, whole(tables.found[8 * (16 * target + at(decoys, target)) + red.exploit]))
    state.attacks_seen[i] = attacks
    # A port scan leaves connections to all open ports, an exploit to one. Whose scan it was, nobody can tell.
    scanned = whole(state.decoys_scanned[i])
    if (red.exploit < 0) & (red.events > 0):
        scanned = replaced(scanned, target, at(decoys, target))
    if green >= 0:
        scanned = replaced(scanned, green, at(decoys, green))
    state.decoys_scanned[i] = scanned
    exploits = seen >> 1 & ALL
    state.scan_ages[i] = aged(whole(state.scan_ages[i]), seen & ALL & ~exploits)
    state.exploit_ages[i] = aged(whole(state.exploit_ages[i]), exploits)
    state.recognised[i] = recognised_by(whole(state.recognised[i]), seen)


def show_memory_of_activity(i: int, state: Any, tables: Any, params: Any, first: int, out: NDArray[np.float32]) -> None:
    """Write the values of the memories, from place `first` on."""
    if params.activity_memory:
        scans, exploits = whole(state.scan_ages[i]), whole(state.exploit_ages[i])
        for k in range(len(HOSTS_OF_MEMORIES)):
            host = k if k < 4 else k + 3
            scan, exploit = 4 * at(scans, host), 4 * at(exploits, host)
            for value in range(4):
                out[first + 8 * k + value] = tables.ages[scan + value]
                out[first + 8 * k + 4 + value] = tables.ages[exploit + value]
        first += 8 * len(HOSTS_OF_MEMORIES)
    if params.attack_memory:
        attacks = whole(state.attacks_seen[i])
        for k in range(len(HOSTS_OF_MEMORIES)):
            gained = at(attacks, k if k < 4 else k + 3) - FIRST_GAIN
            for value in range(3):
                out[first + 3 * k + value] = 1 if gained == value else 0
        first += 3 * len(HOSTS_OF_MEMORIES)
    if params.port_memory:
        first = show_decoys(whole(state.decoys_scanned[i]), tables, first, out)
    if params.step_memory:
        cursor = whole(state.cursor[i])
        for k in range(TENS):
            out[first + k] = min(max(cursor - 10 * k, 0), 10) / 10.0
        first += TENS
    if params.red_memory:
        recognised = whole(state.recognised[i])
        out[first] = recognised >> 4 & 1
        out[first + 1] = recognised >> 5 & 1


MEMORY_OF_ACTIVITY: dict[str, Callable] = {
    "begin_memory": begin_memory_of_activity,
    "keep_memory": keep_memory_of_activity,
    "show_memory": show_memory_of_activity,
}
