"""Names of CAGE-2: hosts, subnets, Blue's actions, decoys, Red's actions and exploits, from name to number and back.

The numbers are those of the original (CybORG v2.1, Scenario2) and of its recorded trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from velodrome.errors import ConfigError, ConfigTypeError, did_you_mean

HOSTS = (
    *("Defender", "Enterprise0", "Enterprise1", "Enterprise2"),
    *("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"),
    *("User0", "User1", "User2", "User3", "User4"),
)
SUBNETS = ("Enterprise", "Operational", "User")
DECOYS = ("Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd")
# Blue's actions that name a host, in the order of their numbers; before them come Sleep (0) and Monitor (1).
HOST_ACTIONS = ("Analyse", "Remove", *(f"Decoy{decoy}" for decoy in DECOYS), "Restore")
ACTION_NAMES = ("Sleep", "Monitor", *(f"{kind} {host}" for kind in HOST_ACTIONS for host in HOSTS))

RED_AGENTS = ("b_line", "meander", "sleep")
RED_ACTIONS = (
    *("Sleep", "DiscoverRemoteSystems", "DiscoverNetworkServices"),
    *("ExploitRemoteService", "PrivilegeEscalate", "Impact"),
)
EXPLOITS = (
    *("SSHBruteForce", "BlueKeep", "EternalBlue", "HTTPRFI"),
    *("HTTPSRFI", "SQLInjection", "HarakaRCE", "FTPDirectoryTraversal"),
)
SUCCESS = ("FALSE", "TRUE", "UNKNOWN")
ACTIVITIES = {0: "None", 1: "Scan", 3: "Exploit"}  # by the observation's first two bits of a host, a0 + 2 a1
COMPROMISED = ("No", "Unknown", "User", "Privileged")  # by its last two bits, c0 + 2 c1

DECOY = "Decoy"  # reduced action set: place the host's next decoy
# The action set of CardiffUni, first of the challenge, in its order: 27 of the 145, and 9 for a host's next decoy.
_REDUCED = (
    *((kind, host) for kind in ("Restore", "Analyse", "Remove") for host in (1, 2, 3, 7)),
    *((kind, host) for kind in ("Analyse", "Restore") for host in (9, 10, 11, 12)),
    ("Restore", 0),
    ("Analyse", 0),
    *(("Remove", host) for host in (0, 9, 10, 11, 12)),
    *((DECOY, host) for host in (1, 2, 3, 9, 10, 11, 12, 0, 7)),
)
REDUCED_ACTION_NAMES = tuple(f"{kind} {HOSTS[host]}" for kind, host in _REDUCED)
ACTION_SETS = {"full": ACTION_NAMES, "reduced": REDUCED_ACTION_NAMES}

# In which order the reduced set's decoy action places the decoys of a host; CardiffUni's, and for the hosts that it
# left out the order of a host with the same decoys.
_OF_A_LINUX_SERVER = ("HarakaSMPT", "Tomcat", "Apache", "Vsftpd")
_OF_A_USER_WITH_FTP = ("Apache", "Tomcat", "Smss", "Svchost")
GREEDY_DECOYS: tuple[tuple[str, ...], ...] = (
    _OF_A_LINUX_SERVER,
    ("HarakaSMPT", "Tomcat", "Vsftpd", "Apache"),
    ("Femitter",),
    ("Femitter",),
    _OF_A_LINUX_SERVER,
    _OF_A_LINUX_SERVER,
    _OF_A_LINUX_SERVER,
    ("HarakaSMPT", "Apache", "Tomcat", "Vsftpd"),
    _OF_A_USER_WITH_FTP,
    _OF_A_USER_WITH_FTP,
    ("Femitter", "Tomcat", "Apache", "SSHD"),
    ("Vsftpd", "SSHD"),
    ("Vsftpd",),
)


def host(name: str) -> int:
    """Return the index of a host: host("User2") is 10."""
    return _index("host", name, HOSTS)


def host_name(index: SupportsIndex) -> str:
    """Return the name of a host: host_name(10) is "User2"."""
    return HOSTS[_checked("host", index, len(HOSTS))]


def decoy_index(name: str) -> int:
    """Return the number of a decoy: decoy_index("Tomcat") is 6."""
    return _index("decoy", name, DECOYS)


def action(kind: str, host_name: str | None = None, *, action_set: str = "full") -> int:
    """Return the number of one of Blue's actions: action("DecoyTomcat", "User2") is 116, action("Sleep") is 0.

    The name may also be given whole, as `action_name` returns it. The reduced action set has "Decoy" instead of the
    eight decoys.
    """
    names = _names_of(action_set)
    alone = [name for name in names if " " not in name]
    kinds = list(dict.fromkeys(name.split()[0] for name in names if " " in name))
    legal = f"Legal: {', '.join(alone)}{'; ' if alone else ''}with a host {', '.join(kinds)}."
    if host_name is None:
        if kind in names:
            return names.index(kind)
        if kind in kinds:
            raise ConfigError(f'action {kind!r} needs a host: action("{kind}", "User2")')
        close = did_you_mean(kind, names if " " in kind else [*alone, *kinds])
        raise ConfigError(f"unknown action {kind!r}.{close} {legal}")
    if kind not in kinds:
        hint = " It takes no host." if kind in names else did_you_mean(kind, kinds)
        raise ConfigError(f"unknown action {kind!r} on a host.{hint} {legal}")
    whole = f"{kind} {HOSTS[host(host_name)]}"
    if whole not in names:
        there = [name.split()[1] for name in names if name.startswith(f"{kind} ")]
        raise ConfigError(f"the {action_set} action set has no {whole!r}; it has {kind} for {', '.join(there)}")
    return names.index(whole)


def action_name(index: SupportsIndex, *, action_set: str = "full") -> str:
    """Return the name of one of Blue's actions: action_name(116) is "DecoyTomcat User2"."""
    names = _names_of(action_set)
    return names[_checked("action", index, len(names))]


def _names_of(action_set: str) -> tuple[str, ...]:
    if action_set not in ACTION_SETS:
        legal = tuple(ACTION_SETS)
        raise ConfigError(f"action_set = {action_set!r}; legal: {', '.join(legal)}.{did_you_mean(action_set, legal)}")
    return ACTION_SETS[action_set]


def _index(what: str, name: str, legal: Sequence[str]) -> int:
    if name not in legal:
        raise ConfigError(f"unknown {what} {name!r}.{did_you_mean(str(name), legal)} Legal: {', '.join(legal)}.")
    return legal.index(name)


def _checked(what: str, index: SupportsIndex, count: int) -> int:
    if not hasattr(index, "__index__"):
        raise ConfigTypeError(f"{what} {index!r} is no whole number; legal: 0 … {count - 1}")
    number = index.__index__()
    if isinstance(index, bool) or not 0 <= number < count:
        raise ConfigError(f"{what} {index!r} does not exist; legal: 0 … {count - 1}")
    return number
