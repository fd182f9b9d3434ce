"""The best that Blue can do against B_line, by dynamic programming over the true state of the network.

    python benchmarks/cage2_optimum.py [--first User2] [--ways 12]

B_line draws its first host among User1 to User4 and then follows a plan, so that for each of them the network has some
ten thousand states that can be reached. With all of them known, backward induction gives the largest expected return
over 30, 50 and 100 steps with the moves below; who sees less than the true state can do worse only. Two decoys on User2
come first, before Red's scan. Then Blue may wait, Restore or Remove on Red's first host, Restore, Remove or Decoy on
the Enterprise host that it leads to and on Enterprise2, and Restore Op_Server0.

The second figures are of the best rule that does not know how many steps are left.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs import cage2
from velodrome.envs.cage2 import codes
from velodrome.envs.cage2.moves import Network, blue_moves, penalty, red_moves
from velodrome.envs.cage2.network import cage2_tables
from velodrome.envs.cage2.nibbles import ALL, at, replaced
from velodrome.envs.cage2.red import (
    AFTER_FAILURE,
    FIRST_HOST,
    LAST_STAGE,
    LINKED_HOST,
    REACHED_SERVER,
    STAGE_ACTIONS,
    STAGE_TARGETS,
)
from velodrome.envs.cage2.rule import DETECTION

LENGTHS = (30, 50, 100)
OPENING = 2  # steps before Red's first exploit: it sweeps, and scans its first host
USER2, OP_SERVER, ENTERPRISE2 = map(cage2.host, ("User2", "Op_Server0", "Enterprise2"))
TABLES = cage2_tables(reduced=True)
LISTS = TABLES._replace(placing=TABLES.placing.tolist(), found=TABLES.found.tolist(), options=TABLES.options.tolist())
SEEN = DETECTION / 2**32
FORESIGHT = 0.99  # discount of the rule that does not know how many steps are left


class Place(NamedTuple):
    """What decides how it goes on."""

    access: int
    decoys: int
    memory: int
    known: int
    service: int
    stage: int  # B_line's next one, plus REACHED_SERVER


class Ways(NamedTuple):
    """What Blue can do in every place, up to A actions with up to N results each."""

    cost: NDArray[np.float64]  # [S, A] expected; infinite where there are fewer actions
    chance: NDArray[np.float64]  # [S, A, N]
    leads_to: NDArray[np.int64]  # [S, A, N]


def decoy(decoys: int, host: int) -> int:
    """Return the action that places the next decoy of a host."""
    return int(TABLES.greedy[16 * host + at(decoys, host)])


def opened(first: int) -> Place:
    """Return where the game stands when Red begins to attack: two decoys on User2 were there before its scan."""
    decoys = 0
    for _ in range(OPENING):
        entry = LISTS.placing[(decoy(decoys, USER2) - codes.FIRST_DECOY_ACTION) * 16 + at(decoys, USER2)]
        decoys = replaced(decoys, USER2, entry & 15)
    decoys = decoys if first == USER2 else 0  # they matter nowhere else
    access = codes.PRIVILEGED << 4 * codes.USER0
    service = codes.PRESENT | codes.HANDLE | codes.ACTIVE
    return Place(access, decoys, decoys, codes.PORTS_KNOWN << 4 * first, service, 2)


def exploits(target: int, memory: int) -> list[tuple[int, float]]:
    """Return the exploits that Red may try on a host, and how likely each is."""
    options = LISTS.options[16 * target + at(memory, target)]
    count = options & 15
    numbers = [options >> 4 * (1 + place) & 15 for place in range(count)]
    return list(zip(numbers, [1.0] if count == 1 else [0.75] + [0.25 / (count - 1)] * (count - 1), strict=True))


def results(
    place: Place, action: int, target: int, network: Network, restored: bool
) -> dict[tuple[Place, float], float]:
    """Return where Red's move leads, what the step costs then, and how likely that is."""
    stage, reached = place.stage & 15, place.stage & REACHED_SERVER
    draws = [(-1, 0, 1.0)]
    if action == codes.EXPLOIT:
        tried = exploits(target, network.memory)
        draws = [(one, seen, p * (SEEN if seen else 1.0 - SEEN)) for one, p in tried for seen in (1, 0)]
    found: dict[tuple[Place, float], float] = {}
    for exploit, seen, chance in draws:
        after, red = red_moves(action, target, exploit, seen, network, LISTS)
        worked = red.result in (codes.SUCCEEDED, codes.EMPTY)
        following = min(stage + 1, LAST_STAGE) if worked else AFTER_FAILURE >> 4 * stage & 15
        if following == 12 and not reached:
            following = 1 if red.result == codes.EMPTY else following | REACHED_SERVER
        access, known = after.access & ~(codes.FILE * ALL), after.known & codes.PORTS_KNOWN * ALL
        there = Place(access, after.decoys, after.memory, known, after.service, following | reached)
        key = there, penalty(after.access, after.service, restored) / 10.0
        found[key] = found.get(key, 0.0) + chance
    return found


def explored(first: int) -> tuple[Ways, list[list[str]], list[Place]]:
    """Return all ways from the opening on, the names of the actions, and the places."""
    linked = cage2.host("Enterprise1" if first <= USER2 else "Enterprise0")
    wanted = [(kind, host) for kind in ("Remove", "Restore", "Decoy") for host in (first, linked, ENTERPRISE2)]
    wanted = [*(pair for pair in wanted if pair != ("Decoy", first)), ("Restore", OP_SERVER)]
    numbers = {opened(first): 0}
    every, names = [], []
    for place in (places := list(numbers)):  # grows on the way
        stage = place.stage & 15
        action, target = STAGE_ACTIONS >> 4 * stage & 15, STAGE_TARGETS >> 4 * stage & 15
        target = {FIRST_HOST: first, LINKED_HOST: linked}.get(target, target)
        before = Network(place.access, place.decoys, place.memory, place.known, 4, place.service)
        own, told = [], []
        for kind, host in (("Sleep", -1), *wanted):
            if kind == "Remove" and not at(place.access, host) & codes.REMOVABLE:
                continue
            name = "Sleep" if kind == "Sleep" else f"{kind} {cage2.HOSTS[host]}"
            number = decoy(place.decoys, host) if kind == "Decoy" else cage2.action(*name.split())
            network, blue = blue_moves(number, before, LISTS, 0)
            if kind == "Decoy" and not blue.placed:
                continue
            came = results(place, action, target, network, kind == "Restore")
            for there, _ in came:
                if there not in numbers:
                    numbers[there] = len(numbers)
                    places.append(there)
            own.append([(numbers[there], cost, chance) for (there, cost), chance in came.items()])
            told.append(name)
        every.append(own)
        names.append(told)
    most, widest = max(map(len, every)), max(len(came) for own in every for came in own)
    ways = Ways(
        np.full((len(every), most), np.inf),
        np.zeros((len(every), most, widest)),
        np.zeros((len(every), most, widest), np.int64),
    )
    for s, own in enumerate(every):
        for a, came in enumerate(own):
            ways.cost[s, a] = sum(cost * chance for _, cost, chance in came)
            ways.leads_to[s, a, : len(came)], ways.chance[s, a, : len(came)] = zip(
                *((n, p) for n, _, p in came), strict=True
            )
    return ways, names, places


def planned(ways: Ways, value: NDArray[np.float64], discount: float = 1.0) -> NDArray[np.float64]:
    """Return what each action costs from here on [S, A], given what places cost."""
    return ways.cost + discount * np.einsum("san,san->sa", ways.chance, value[ways.leads_to])


def returns(first: int, shown: int) -> tuple[list[float], list[float]]:
    """Return the best returns by length, with and without knowing the end; print the most frequent decisions."""
    ways, names, places = explored(first)
    best, value = [], np.zeros(len(places))
    for left in range(1, LENGTHS[-1] - OPENING + 1):
        value = planned(ways, value).min(axis=1)
        if left + OPENING in LENGTHS:
            best.append(-float(value[0]))
    endless = np.zeros(len(places))
    for _ in range(round(8 / (1 - FORESIGHT))):
        endless = planned(ways, endless, FORESIGHT).min(axis=1)
    chosen = planned(ways, endless, FORESIGHT).argmin(axis=1)
    rows = np.arange(len(places))
    cost, chance, leads_to = ways.cost[rows, chosen], ways.chance[rows, chosen], ways.leads_to[rows, chosen]
    steady, value = [], np.zeros(len(places))
    here, visits = np.eye(1, len(places))[0], np.zeros(len(places))
    for left in range(1, LENGTHS[-1] - OPENING + 1):
        value = cost + (chance * value[leads_to]).sum(axis=1)
        visits += here
        here = np.bincount(leads_to.ravel(), (here[:, None] * chance).ravel(), len(places))
        if left + OPENING in LENGTHS:
            steady.append(-float(value[0]))
    print(
        f"{cage2.HOSTS[first]} first, {len(places):,} places: {told(best)}; not knowing the end {told(steady)}",
        flush=True,
    )
    for place in np.argsort(-visits)[:shown]:
        kind = cage2.RED_ACTIONS[STAGE_ACTIONS >> 4 * (places[place].stage & 15) & 15]
        print(f"{visits[place]:7.2f} times {names[place][chosen[place]]} before Red's {kind}")
    return best, steady


def told(scores: list[float]) -> str:
    """Return scores by length for people."""
    return " / ".join(f"{score:.2f}" for score in scores)


def main() -> None:
    """Print the best returns for each first host and their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", choices=cage2.HOSTS[9:], help="this first host only")
    parser.add_argument("--ways", type=int, default=0, help="so many of the most frequent decisions are printed")
    options = parser.parse_args()
    hosts = [cage2.host(options.first)] if options.first else range(9, 13)
    both = np.array([returns(first, options.ways) for first in hosts])
    print(f"mean: {told(list(both[:, 0].mean(axis=0)))}; not knowing the end {told(list(both[:, 1].mean(axis=0)))}")


if __name__ == "__main__":
    main()
