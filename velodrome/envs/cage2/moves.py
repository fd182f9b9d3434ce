"""The moves of CAGE-2: what Blue, Green and Red do to the network, what Blue sees of it and what it costs.

Nothing here draws: which exploit Red tries and whether it is detected are arguments, so that an episode can be played
with random draws or with recorded ones. docs/cage2.md names the rules.
"""

from __future__ import annotations

from typing import NamedTuple

from velodrome.envs.cage2 import codes
from velodrome.envs.cage2.network import DECOY_HIT, NETWORK, NOTHING, SSH_REFUSED, SSH_SESSION, USER_SHELL, Tables
from velodrome.envs.cage2.nibbles import ALL, at, count, replaced, whole, with_bits, without_bits

ENTERPRISE_SESSIONS = codes.SESSION * 0x1110  # sessions on Enterprise0 to 2 let Red reach the Operational subnet
SUBNET_HOSTS = (0x1111, codes.OPERATIONAL_HOSTS, 0x1111100000000)  # Enterprise with the Defender, Operational, User
SUBNETS_OF_HOSTS = 0x2222211110000  # a nibble each
# Hosts whose address an escalation reveals, a nibble each: User1, User2 -> 2; User3, User4 -> 1; Enterprise2 -> 7.
LINKS = 0x1122000007000
CHEAP_HOSTS = sum(1 << 4 * k for k, host in enumerate(NETWORK) if host.value == 1)
DEAR_HOSTS = sum(1 << 4 * k for k, host in enumerate(NETWORK) if host.value == 10)
SERVICE_DOWN, RESTORE_COST = 100, 10  # tenths of reward a step

# Nibbles of the observation: activity in the lower two bits, what Blue thinks of the host in the upper two.
SCAN_SHOWN, EXPLOIT_SHOWN = 1, 3
THOUGHT_UNKNOWN, THOUGHT_USER, THOUGHT_PRIVILEGED = 4, 8, 12
THOUGHTS = THOUGHT_PRIVILEGED * ALL


class Network(NamedTuple):
    """The true state of the network and what Red knows of it; words have a nibble for each host."""

    access: int  # REMOVABLE, OTHER, PRIVILEGED, FILE
    decoys: int  # that run
    memory: int  # decoys that ran when Red scanned the host last
    known: int  # KNOWN_IP, KNOWN_NAME, PORTS_KNOWN
    subnets: int  # mask of those that Red knows
    service: int  # PRESENT, HANDLE, ACTIVE, SEEN_BY_RED


class BlueMove(NamedTuple):
    """What Blue did."""

    kind: int
    host: int
    success: int
    placed: int  # 1: a decoy started
    found_file: int  # other than 0: Analyse found malware


class RedMove(NamedTuple):
    """What Red did, and the events on its target."""

    result: int  # FAILED, SUCCEEDED, UNKNOWN, EMPTY
    exploit: int  # that was chosen; −1: none was
    detected: int  # 1 or 0 if that was drawn, else −1
    events: int
    ports: int  # distinct local ports among them
    shell: int  # 1: one of them comes from a reverse shell's port


def blue_moves(action: int, network: Network, tables: Tables, impact_repeats: int) -> tuple[Network, BlueMove]:
    """Carry out one of Blue's 145 actions."""
    kind, host = (action + 11) // 13, (action + 11) % 13
    access, decoys, service = network.access, network.decoys, network.service
    success, placed, found_file = codes.SUCCEEDED, 0, 0
    if kind == codes.RESTORE:
        access = replaced(access, host, codes.PRIVILEGED if host == codes.USER0 else 0)
        decoys = replaced(decoys, host, 0)
        if host == codes.OP_SERVER:
            service |= codes.PRESENT | codes.ACTIVE
            if not impact_repeats:
                # As in the original, the restarted process is not the one that Impact looks for.
                service &= ~codes.HANDLE
    elif kind >= codes.FIRST_DECOY:
        entry = whole(tables.placing[(action - codes.FIRST_DECOY_ACTION) * 16 + at(decoys, host)])
        placed = entry >> 4
        success = placed
        if placed:
            decoys = replaced(decoys, host, entry & 15)
    elif kind == codes.REMOVE:
        access = without_bits(access, host, codes.REMOVABLE)
    elif kind == codes.ANALYSE:
        found_file = at(access, host) & codes.FILE
    elif action == 0:
        success = codes.UNKNOWN
    moved = Network(access, decoys, network.memory, network.known, network.subnets, service)
    return moved, BlueMove(kind, host, success, placed, found_file)


def is_routable(host: int, access: int) -> bool:
    """Return whether Red reaches a host from its foothold."""
    return (at(codes.OPERATIONAL_HOSTS, host) == 0) | (access & ENTERPRISE_SESSIONS != 0)


def chosen_exploit(host: int, network: Network, word: int, tables: Tables) -> int:
    """Return the exploit that Red tries: in three of four cases the one it prefers, else one of the others."""
    options = whole(tables.options[16 * host + at(network.memory, host)])
    others = (options & 15) - 1
    place = 1
    if (word >= 0xC0000000) & (others > 0):
        place = 2 + ((word - 0xC0000000) * others >> 30)
    return options >> 4 * place & 15


def red_moves(
    action: int, target: int, exploit: int, detected: int, network: Network, tables: Tables
) -> tuple[Network, RedMove]:
    """Carry out one of Red's actions; `exploit` is the one that it would try, `detected` whether it would be seen."""
    if (action == codes.SCAN) | (action == codes.EXPLOIT):
        return red_reaches_out(action, target, exploit, detected, network, tables)
    access, known, subnets, service = network.access, network.known, network.subnets, network.service
    result = codes.UNKNOWN
    if action == codes.SWEEP:
        result = codes.FAILED
        if (target != codes.OPERATIONAL) | (access & ENTERPRISE_SESSIONS != 0):
            result = codes.SUCCEEDED
            # A tuple cannot be indexed by a variable in compiled code at no cost.
            hosts = SUBNET_HOSTS[2] if target == 2 else (SUBNET_HOSTS[1] if target == 1 else SUBNET_HOSTS[0])
            known |= hosts * codes.KNOWN_IP
    elif action == codes.ESCALATE:
        result = codes.FAILED
        if at(access, target) & codes.SESSION:
            result = codes.SUCCEEDED
            if not at(access, target) & codes.PRIVILEGED:
                access = with_bits(access, target, codes.PRIVILEGED | codes.FILE)
            subnets |= 1 << at(SUBNETS_OF_HOSTS, target)
            link = at(LINKS, target)
            if link:
                known = with_bits(known, link, codes.KNOWN_IP)
            if target == codes.OP_SERVER:
                service |= codes.SEEN_BY_RED
    elif action == codes.IMPACT:
        result = codes.FAILED
        if (at(access, codes.OP_SERVER) & codes.SESSION != 0) & (service & codes.SEEN_BY_RED != 0):
            result = codes.SUCCEEDED
            if service & codes.ACTIVE:
                service &= ~(codes.ACTIVE | codes.PRESENT) if service & codes.HANDLE else ~codes.ACTIVE
    moved = Network(access, network.decoys, network.memory, known, subnets, service)
    return moved, RedMove(result, -1, -1, 0, 0, 0)


def red_reaches_out(
    action: int, target: int, exploit: int, detected: int, network: Network, tables: Tables
) -> tuple[Network, RedMove]:
    """Carry out a port scan or an exploit."""
    access, memory, known = network.access, network.memory, network.known
    routable = is_routable(target, access)
    row = 16 * target + at(network.decoys, target)
    result, tried, drawn, events, ports, shell = codes.EMPTY, -1, -1, 0, 0, 0
    if action == codes.SCAN:
        if routable:
            result = codes.SUCCEEDED
            memory = replaced(memory, target, at(network.decoys, target))
            known = with_bits(known, target, codes.PORTS_KNOWN)
            ports = whole(tables.port_count[row])
            # Where two processes share a port there are more events than ports, which makes no difference.
            events = ports
    else:
        result, found = codes.FAILED, NOTHING
        if at(known, target) & codes.PORTS_KNOWN:
            tried = exploit
            if routable & (exploit >= 0):
                found = whole(tables.found[8 * row + exploit])
        if found >= USER_SHELL:
            drawn, shell = detected, detected
            events, ports = 1 + detected, 1 + detected
            gained = codes.PRIVILEGED if found > USER_SHELL else (codes.REMOVABLE if detected else codes.OTHER)
            access = with_bits(access, target, codes.FILE | gained)
        elif found == SSH_SESSION:
            events, ports = 11, 1
            access = with_bits(access, target, codes.OTHER)
        elif found == SSH_REFUSED:
            events, ports = 10, 1
        elif found == DECOY_HIT:
            events, ports = 2, 1
        if found >= SSH_SESSION:
            result = codes.SUCCEEDED
            known = with_bits(known, target, codes.KNOWN_NAME)
    moved = Network(access, network.decoys, memory, known, network.subnets, network.service)
    return moved, RedMove(result, tried, drawn, events, ports, shell)


def shown(events: int, ports: int, shell: int, placed: int, corrected: int) -> int:
    """Return the activity that Blue's table shows for the events on a host on which it did or did not start a decoy."""
    if events == 0:
        return 0
    # The original counts the start of the decoy among the events.
    many = events + placed >= 3
    if many & (ports >= 3):
        return SCAN_SHOWN
    if (shell != 0) | (many & (ports == 1)):
        return EXPLOIT_SHOWN
    return 0 if (placed != 0) & (not corrected) else SCAN_SHOWN


def noted(seen: int, host: int, activity: int) -> int:
    """Return the observation with an activity in it; an exploit makes Blue think of a user session."""
    if activity == EXPLOIT_SHOWN:
        return replaced(seen, host, EXPLOIT_SHOWN | THOUGHT_USER)
    return with_bits(seen, host, activity)


def blue_sees(
    seen: int, blue: BlueMove, red: RedMove, target: int, green: int, network: Network, tables: Tables, corrected: int
) -> int:
    """Return the observation after a step, given the one before it; `green` is the host that Green scanned, or −1."""
    seen &= THOUGHTS
    if blue.kind == codes.RESTORE:
        seen = replaced(seen, blue.host, 0)
    elif (blue.kind == codes.REMOVE) & (at(seen, blue.host) != 0):
        seen = replaced(seen, blue.host, THOUGHT_UNKNOWN)
    events, ports = red.events, red.ports
    if green >= 0:
        # Every port of an event is open, so it is among those of the scan; only a shell's own comes on top.
        scanned = whole(tables.port_count[16 * green + at(network.decoys, green)])
        if (green == target) & (events > 0):
            events, ports = events + scanned, scanned + red.shell
        else:
            placed = blue.placed & (blue.host == green)
            seen = noted(seen, green, shown(scanned, scanned, 0, placed, corrected))
    if events > 0:
        placed = blue.placed & (blue.host == target)
        seen = noted(seen, target, shown(events, ports, red.shell, placed, corrected))
    if blue.found_file:
        seen = with_bits(seen, blue.host, THOUGHT_PRIVILEGED)
    return seen


def penalty(access: int, service: int, restored: bool) -> int:
    """Return what a step costs, in tenths of reward."""
    privileged = access >> 2 & ALL
    cost = count(privileged & CHEAP_HOSTS) + 10 * count(privileged & DEAR_HOSTS)
    if not service & codes.PRESENT:
        cost += SERVICE_DOWN
    return cost + RESTORE_COST if restored else cost
