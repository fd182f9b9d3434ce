"""The network of CAGE-2: what runs on each host, and the tables that follow from it.

A host has at most four decoys that can ever run on it, so its decoys are a nibble (four bits), and so is Red's memory
of a port scan: the genuine ports are always the same, only the decoys among them vary. Everything that depends on a
host and its decoys is looked up by `16 * host + nibble`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.cage2 import names
from velodrome.envs.cage2.memories import age_table
from velodrome.envs.cage2.names import ACTION_NAMES, DECOYS, EXPLOITS, HOSTS
from velodrome.errors import ConfigError

LINUX, WINDOWS = "Linux", "Windows"
USER, PRIVILEGED, REFUSED = "user", "privileged", "refused"  # the session that a service yields; SSH may refuse

# Ports that Red's exploits look at, in the order of the bits of recorded port sets.
PORTS = (21, 22, 25, 80, 139, 443, 3389, 3390)


class Host(NamedTuple):
    """What never changes about a host."""

    system: str
    services: dict[str, str]  # exploit that works on it -> session that it yields
    ports: tuple[int, ...]  # open, of PORTS
    further_ports: int  # distinct open ports that only count in scans
    value: int  # tenths of reward lost in each step in which Red is privileged on it


_LINUX_SERVER = {"SSHBruteForce": USER}
_WEB = {"HTTPRFI": USER, "HTTPSRFI": USER}
_ENTERPRISE = Host(
    WINDOWS, {"SSHBruteForce": USER, **_WEB, "BlueKeep": PRIVILEGED}, (22, 80, 139, 443, 3389), 2, 10
)  # port 139 is open but of unknown type
_OPERATIONAL = Host(LINUX, _LINUX_SERVER, (22,), 0, 1)
_MAIL_AND_DATABASE = {"SSHBruteForce": USER, **_WEB, "HarakaRCE": PRIVILEGED, "SQLInjection": PRIVILEGED}
_FTP_USER = Host(WINDOWS, {"SSHBruteForce": USER, "FTPDirectoryTraversal": PRIVILEGED}, (21, 22), 0, 1)

NETWORK = (
    Host(LINUX, {"SSHBruteForce": REFUSED}, (22,), 2, 1),
    Host(LINUX, _LINUX_SERVER, (22,), 0, 10),
    _ENTERPRISE,
    _ENTERPRISE,
    _OPERATIONAL,
    _OPERATIONAL,
    _OPERATIONAL,
    _OPERATIONAL._replace(value=10),
    _FTP_USER._replace(value=0),
    _FTP_USER,
    Host(WINDOWS, {"EternalBlue": PRIVILEGED, "BlueKeep": USER}, (139, 3389), 2, 1),
    Host(LINUX, {**_WEB, "HarakaRCE": PRIVILEGED}, (25, 80, 443, 3389), 0, 1),  # a database on 3389, not on 3390
    Host(LINUX, _MAIL_AND_DATABASE, (22, 25, 80, 443, 3390), 0, 1),
)


class Decoy(NamedTuple):
    """A service that Blue can fake."""

    must_be_free: int  # port
    system: str | None  # None: any
    opens: int  # port
    stops: str  # exploit that takes it for the real thing


DECOY_RULES = (
    Decoy(80, None, 80, "HTTPRFI"),
    Decoy(21, WINDOWS, 21, "FTPDirectoryTraversal"),
    Decoy(25, LINUX, 25, "HarakaRCE"),
    Decoy(139, WINDOWS, 139, "EternalBlue"),
    Decoy(22, None, 22, "SSHBruteForce"),
    Decoy(3389, WINDOWS, 3389, "BlueKeep"),
    Decoy(443, None, 443, "HTTPSRFI"),
    Decoy(21, LINUX, 80, "HTTPRFI"),  # Vsftpd tests one port and opens another: so does the original
)

# Ports that an exploit needs Red to remember (one of each group), in the order of EXPLOITS, which is that of its
# preference, the lowest first.
NEEDED_PORTS: tuple[tuple[tuple[int, ...], ...], ...] = (
    *(((port,),) for port in (22, 3389, 139, 80, 443)),
    ((3390,), (80, 443)),
    *(((port,),) for port in (25, 21)),
)

# Results of an exploit, by what it finds on the port. From SSH_SESSION on it succeeds, from USER_SHELL on it leaves
# a file.
NOTHING, DECOY_HIT, SSH_REFUSED, SSH_SESSION, USER_SHELL, PRIVILEGED_SHELL = range(6)

GREEDY = len(ACTION_NAMES)  # actions from here on place the next decoy of host action − GREEDY


class Tables(NamedTuple):
    """Read-only arrays of the rule; rows of 16 are by host and its nibble of decoys."""

    actions: NDArray[np.int16]  # [A] what the agent's action is: one of the 145, or GREEDY + host
    placing: NDArray[np.int8]  # [8 · 13 · 16] by action − 28: 0 if the decoy fails, else 16 + the new nibble
    greedy: NDArray[np.int16]  # [13 · 16] the action that GREEDY + host stands for
    options: NDArray[np.int64]  # [13 · 16] of remembered decoys: number of exploits, then these, the preferred first
    found: NDArray[np.int8]  # [13 · 16 · 8] result of an exploit
    port_count: NDArray[np.int8]  # [13 · 16] distinct open ports
    port_set: NDArray[np.uint8]  # [13 · 16] open ports among PORTS
    decoy_set: NDArray[np.uint8]  # [13 · 16] running decoys among DECOYS
    decoy_bits: NDArray[np.int8]  # [41] position in the word of decoys of each decoy that can run somewhere
    bits: NDArray[np.float32]  # [16 · 4] the four bits of each nibble
    ages: NDArray[np.float32]  # [16 · 4] what is shown of each age of activity


def can_run(decoy: int, host: int) -> bool:
    """Return whether a decoy can run on a host without others: its port is free and the system is right."""
    rule, there = DECOY_RULES[decoy], NETWORK[host]
    return rule.must_be_free not in there.ports and rule.system in (None, there.system)


# Decoys that can run on each host: bit k of its nibble is the k-th of them.
DEPLOYABLE = tuple(tuple(decoy for decoy in range(len(DECOYS)) if can_run(decoy, host)) for host in range(len(HOSTS)))
DECOY_VALUES = tuple(f"{HOSTS[host]} {DECOYS[decoy]}" for host, decoys in enumerate(DEPLOYABLE) for decoy in decoys)


def decoy_bit(decoy: str, host: str) -> int:
    """Return the bit of the word of decoys that is set while a decoy runs on a host."""
    index, there = names.decoy_index(decoy), names.host(host)
    if index not in DEPLOYABLE[there]:
        legal = ", ".join(DECOYS[k] for k in DEPLOYABLE[there])
        raise ConfigError(f"{decoy} cannot run on {host}; these can: {legal}")
    return 4 * there + DEPLOYABLE[there].index(index)


def running(host: int, nibble: int) -> tuple[int, ...]:
    """Return the decoys that a nibble says are running on a host."""
    return tuple(decoy for k, decoy in enumerate(DEPLOYABLE[host]) if nibble >> k & 1)


def open_ports(host: int, nibble: int) -> set[int]:
    """Return the ports among PORTS that are open on a host."""
    return {*NETWORK[host].ports, *(DECOY_RULES[decoy].opens for decoy in running(host, nibble))}


def _placed(decoy: int, host: int, nibble: int) -> int:
    if decoy not in DEPLOYABLE[host] or DECOY_RULES[decoy].must_be_free in open_ports(host, nibble):
        return 0
    return 16 | nibble | 1 << DEPLOYABLE[host].index(decoy)


def _greedy(host: int, nibble: int) -> int:
    """Return the first decoy of the host's order that would start and does not run yet; if none, the first."""
    order = [DECOYS.index(name) for name in names.GREEDY_DECOYS[host]]
    useful = [decoy for decoy in order if decoy not in running(host, nibble) and _placed(decoy, host, nibble)]
    return ACTION_NAMES.index(f"Decoy{DECOYS[(useful or order)[0]]} {HOSTS[host]}")


def _options(host: int, nibble: int) -> int:
    """Return the number of exploits that remembered ports allow and their numbers, a nibble each."""
    ports = open_ports(host, nibble)
    legal = [k for k, groups in enumerate(NEEDED_PORTS) if all(ports & set(group) for group in groups)]
    packed = len(legal)
    for place, exploit in enumerate([*legal[-1:], *legal[:-1]]):
        packed |= exploit << 4 * (place + 1)
    return packed


def _found(host: int, nibble: int, exploit: int) -> int:
    """Return what an exploit finds: a genuine service wins over a decoy on the same port."""
    session = NETWORK[host].services.get(EXPLOITS[exploit])
    is_ssh = EXPLOITS[exploit] == "SSHBruteForce"
    if session is None:
        hits_decoy = any(DECOY_RULES[decoy].stops == EXPLOITS[exploit] for decoy in running(host, nibble))
        return (SSH_REFUSED if is_ssh else DECOY_HIT) if hits_decoy else NOTHING
    if is_ssh:
        return SSH_REFUSED if session == REFUSED else SSH_SESSION
    return PRIVILEGED_SHELL if session == PRIVILEGED else USER_SHELL


def _agent_action(name: str) -> int:
    kind, host = name.split()
    return GREEDY + HOSTS.index(host) if kind == names.DECOY else ACTION_NAMES.index(name)


@cache
def cage2_tables(reduced: bool = False) -> Tables:
    """Return the tables of an action set."""
    rows = [(host, nibble) for host in range(len(HOSTS)) for nibble in range(16)]
    decoys_by_host = [(decoy, host) for decoy in range(len(DECOYS)) for host in range(len(HOSTS))]
    legal = [_agent_action(name) for name in names.REDUCED_ACTION_NAMES] if reduced else list(range(GREEDY))
    tables = Tables(
        actions=np.array(legal, np.int16),
        placing=np.array([_placed(d, h, nibble) for d, h in decoys_by_host for nibble in range(16)], np.int8),
        greedy=np.array([_greedy(*row) for row in rows], np.int16),
        options=np.array([_options(*row) for row in rows], np.int64),
        found=np.array([_found(*row, exploit) for row in rows for exploit in range(len(EXPLOITS))], np.int8),
        port_count=np.array([len(open_ports(*row)) + NETWORK[row[0]].further_ports for row in rows], np.int8),
        port_set=np.array([sum(1 << PORTS.index(port) for port in open_ports(*row)) for row in rows], np.uint8),
        decoy_set=np.array([sum(1 << decoy for decoy in running(*row)) for row in rows], np.uint8),
        decoy_bits=np.array([4 * h + k for h, decoys in enumerate(DEPLOYABLE) for k in range(len(decoys))], np.int8),
        bits=np.array([nibble >> k & 1 for nibble in range(16) for k in range(4)], np.float32),
        ages=age_table(),
    )
    for table in tables:
        table.flags.writeable = False
    return tables
