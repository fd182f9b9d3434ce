"""CAGE-2 as slow and plain as it can be written: hosts by name, sets and dictionaries, one event after another.

Written from the specification only (../shared/specs/CAGE2.md); it shares no code and no numbers with the package. Draws
are asked of a `Draws`, so that a test decides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

HOSTS = [
    "Defender", "Enterprise0", "Enterprise1", "Enterprise2", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0",
    "User0", "User1", "User2", "User3", "User4",
]  # fmt: skip
SUBNETS = {
    "Enterprise": ["Enterprise0", "Enterprise1", "Enterprise2", "Defender"],
    "Operational": ["Op_Server0", "Op_Host0", "Op_Host1", "Op_Host2"],
    "User": ["User0", "User1", "User2", "User3", "User4"],
}
SUBNET_OF = {host: subnet for subnet, hosts in SUBNETS.items() for host in hosts}
LINUX = {"Defender", "Enterprise0", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0", "User3", "User4"}
RELEVANT_PORTS = [21, 22, 25, 80, 139, 443, 3389, 3390]

# (port, type, user of the session); a type of None is of no use to anybody.
_ENTERPRISE = [
    (22, "ssh", "vagrant"), (80, "web", "NetworkService"), (443, "web", "NetworkService"), (3389, "rdp", "SYSTEM"),
    (139, None, ""), (445, None, ""), (135, None, ""),
]  # fmt: skip
_SSH_ONLY = [(22, "ssh", "pi")]
PROCESSES = {
    "Defender": [(22, "ssh", "nobody"), (53, None, ""), (53, None, ""), (68, None, "")],
    "Enterprise0": _SSH_ONLY,
    "Enterprise1": _ENTERPRISE,
    "Enterprise2": _ENTERPRISE,
    **dict.fromkeys(SUBNETS["Operational"], _SSH_ONLY),
    "User0": [(22, "ssh", "vagrant"), (21, "femitter", "SYSTEM")],
    "User1": [(22, "ssh", "vagrant"), (21, "femitter", "SYSTEM")],
    "User2": [(139, "smb", "SYSTEM"), (445, None, ""), (3389, "rdp", "NetworkService"), (135, None, "")],
    "User3": [(80, "web", "www-data"), (443, "web", "www-data"), (25, "smtp", "root"), (3389, "mysql", "root")],
    "User4": [
        (22, "ssh", "pi"), (80, "web", "www-data"), (443, "web", "www-data"), (25, "smtp", "root"),
        (3390, "mysql", "root"),
    ],
}  # fmt: skip
VALUES = {"Enterprise0": 10, "Enterprise1": 10, "Enterprise2": 10, "Op_Server0": 10, "User0": 0}  # tenths; others 1

# name: (port that must be free, system, port that it opens, type that it fakes)
DECOYS = {
    "Apache": (80, "any", 80, "web"),
    "Femitter": (21, "Windows", 21, "femitter"),
    "HarakaSMPT": (25, "Linux", 25, "smtp"),
    "Smss": (139, "Windows", 139, "smb"),
    "SSHD": (22, "any", 22, "ssh"),
    "Svchost": (3389, "Windows", 3389, "rdp"),
    "Tomcat": (443, "any", 443, "web"),
    "Vsftpd": (21, "Linux", 80, "web"),
}
# name: (weight, port, type that it needs there)
EXPLOITS = {
    "SSHBruteForce": (0.1, 22, "ssh"),
    "BlueKeep": (1, 3389, "rdp"),
    "EternalBlue": (2, 139, "smb"),
    "HTTPRFI": (3, 80, "web"),
    "HTTPSRFI": (4, 443, "web"),
    "SQLInjection": (5, 3390, "mysql"),
    "HarakaRCE": (6, 25, "smtp"),
    "FTPDirectoryTraversal": (7, 21, "femitter"),
}
LINKS = {
    "User1": "Enterprise1", "User2": "Enterprise1", "User3": "Enterprise0", "User4": "Enterprise0",
    "Enterprise2": "Op_Server0",
}  # fmt: skip
BLUE_ACTIONS = [("Sleep", None), ("Monitor", None)] + [
    (kind, host) for kind in ("Analyse", "Remove", *(f"Decoy {name}" for name in DECOYS), "Restore") for host in HOSTS
]


class Draws(Protocol):
    """Who decides what is random."""

    def exploit(self, preferred: str, others: Sequence[str]) -> str: ...

    def detected(self) -> bool: ...

    def target(self, candidates: Sequence[str]) -> str: ...


@dataclass
class Event:
    """A connection that the network monitor saw."""

    host: str
    local_port: int
    remote_port: int = 0


@dataclass
class Machine:
    """The network, what Red knows and what Blue's table shows."""

    corrected: bool = False
    impact_repeats: bool = False
    removable: set[str] = field(default_factory=set)
    stubborn: set[str] = field(default_factory=set)
    privileged: set[str] = field(default_factory=lambda: {"User0"})
    files: set[str] = field(default_factory=set)
    decoys: dict[str, set[str]] = field(default_factory=lambda: {host: set() for host in HOSTS})
    ports: dict[str, set[int]] = field(default_factory=dict)
    known_ips: set[str] = field(default_factory=lambda: {"User0"})
    known_hosts: set[str] = field(default_factory=lambda: {"User0"})
    known_subnets: set[str] = field(default_factory=lambda: {"User"})
    service: dict[str, bool] = field(
        default_factory=lambda: {"present": True, "handle": True, "active": True, "known": False}
    )
    thoughts: dict[str, str] = field(default_factory=lambda: dict.fromkeys(HOSTS, "No"))
    activity: dict[str, str] = field(default_factory=lambda: dict.fromkeys(HOSTS, "None"))
    # of the last step
    events: list[Event] = field(default_factory=list)
    blue_success: int = 2
    chosen_exploit: str | None = None
    was_detected: bool | None = None

    # Facts

    def has_session(self, host: str) -> bool:
        return host in self.removable | self.stubborn | self.privileged

    def sockets(self, host: str) -> list[int]:
        return [port for port, _, _ in PROCESSES[host]] + [DECOYS[name][2] for name in self.decoys[host]]

    def reachable(self, host: str) -> bool:
        return SUBNET_OF[host] != "Operational" or any(self.has_session(f"Enterprise{k}") for k in range(3))

    # Moves

    def step(self, action: int, green: str | None, red: tuple[str, str | None], draws: Draws) -> tuple[float, str]:
        """Play one step; return the reward in tenths and Red's success: TRUE, FALSE, UNKNOWN or EMPTY."""
        files_before = set(self.files)
        kind, host = BLUE_ACTIONS[action]
        self.events, self.chosen_exploit, self.was_detected = [], None, None
        placed = self.blue(kind, host)
        if green is not None:
            self.events += [Event(green, port) for port in self.sockets(green)]
        success = self.red(*red, draws)
        reward = -sum(VALUES.get(owned, 1) for owned in self.privileged)
        reward -= 0 if self.service["present"] else 100
        reward -= 10 if kind == "Restore" else 0
        self.watch(kind, host, placed, files_before)
        return reward, success

    def blue(self, kind: str, host: str | None) -> str | None:
        """Carry out Blue's action; return the host on which a decoy started."""
        self.blue_success = 2 if kind == "Sleep" else 1
        if host is None:
            return None
        if kind == "Remove":
            self.removable.discard(host)
        if kind == "Restore":
            for sessions in (self.removable, self.stubborn, self.files):
                sessions.discard(host)
            if host != "User0":
                self.privileged.discard(host)
            self.decoys[host] = set()
            if host == "Op_Server0":
                self.service["present"] = self.service["active"] = True
                self.service["handle"] = self.service["handle"] and self.impact_repeats
        if kind.startswith("Decoy"):
            name = kind.split()[1]
            free, system, _, _ = DECOYS[name]
            right_system = system == "any" or (system == "Linux") == (host in LINUX)
            self.blue_success = int(right_system and free not in self.sockets(host))
            if self.blue_success:
                self.decoys[host].add(name)
                return host
        return None

    def red(self, kind: str, target: str | None, draws: Draws) -> str:
        if kind == "Sleep" or target is None:
            return "UNKNOWN"
        if kind == "DiscoverRemoteSystems":
            if target == "Operational" and not any(self.has_session(f"Enterprise{k}") for k in range(3)):
                return "FALSE"
            self.known_ips |= set(SUBNETS[target])
            return "TRUE"
        if kind == "DiscoverNetworkServices":
            if not self.reachable(target):
                return "EMPTY"
            self.ports[target] = {port for port in self.sockets(target) if port in RELEVANT_PORTS}
            self.events += [Event(target, port) for port in self.sockets(target)]
            return "TRUE"
        if kind == "ExploitRemoteService":
            return self.exploit(target, draws)
        if kind == "PrivilegeEscalate":
            if not self.has_session(target):
                return "FALSE"
            if target not in self.privileged:
                self.privileged.add(target)
                self.files.add(target)
            self.known_subnets.add(SUBNET_OF[target])
            if target in LINKS:
                self.known_ips.add(LINKS[target])
            if target == "Op_Server0":
                self.service["known"] = True
            return "TRUE"
        if not (self.has_session("Op_Server0") and self.service["known"]):
            return "FALSE"
        if self.service["active"]:
            self.service["active"] = False
            if self.service["handle"]:
                self.service["present"] = False
        return "TRUE"

    def options(self, target: str) -> list[str]:
        """Exploits that Red's memory allows, the preferred one first."""
        ports = self.ports[target]
        legal = [name for name, (_, port, _) in EXPLOITS.items() if port in ports]
        if "SQLInjection" in legal and not ports & {80, 443}:
            legal.remove("SQLInjection")
        best = max(legal, key=lambda name: EXPLOITS[name][0])
        return [best, *(name for name in legal if name != best)]

    def exploit(self, target: str, draws: Draws) -> str:
        if target not in self.ports:
            return "FALSE"
        preferred, *others = self.options(target)
        name = draws.exploit(preferred, others) if others else preferred
        self.chosen_exploit = name
        if not self.reachable(target):
            return "FALSE"
        _, port, wanted = EXPLOITS[name]
        genuine = [user for there, kind, user in PROCESSES[target] if there == port and kind == wanted]
        fake = [decoy for decoy in self.decoys[target] if DECOYS[decoy][2:] == (port, wanted)]
        if not genuine and not fake:
            return "FALSE"
        is_ssh = name == "SSHBruteForce"
        if not genuine or genuine[0] == "nobody":
            self.events += [Event(target, port)] * (10 if is_ssh else 2)
            return "FALSE"
        self.known_hosts.add(target)
        if is_ssh:
            self.events += [Event(target, port)] * 11
            self.stubborn.add(target)
            return "TRUE"
        self.was_detected = draws.detected()
        self.files.add(target)
        self.events.append(Event(target, port))
        if self.was_detected:
            self.events.append(Event(target, 51234, 4444))
        if genuine[0] in ("root", "SYSTEM"):
            self.privileged.add(target)
        else:
            (self.removable if self.was_detected else self.stubborn).add(target)
        return "TRUE"

    # What Blue sees

    def watch(self, kind: str, acted_on: str | None, placed: str | None, files_before: set[str]) -> None:
        if acted_on is not None and kind == "Restore":
            self.thoughts[acted_on] = "No"
        if acted_on is not None and kind == "Remove" and self.thoughts[acted_on] != "No":
            self.thoughts[acted_on] = "Unknown"
        for host in HOSTS:
            mine = [event for event in self.events if event.host == host]
            self.activity[host] = self.classify(mine, host == placed)
            if self.activity[host] == "Exploit":
                self.thoughts[host] = "User"
        if acted_on is not None and kind == "Analyse" and acted_on in files_before:
            self.thoughts[acted_on] = "Privileged"

    def classify(self, events: list[Event], placed: bool) -> str:
        number = len(events) + placed
        ports = {event.local_port for event in events}
        if number == 0 or (self.corrected and not events):
            return "None"
        if number >= 3 and len(ports) >= 3:
            return "Scan"
        if any(event.remote_port == 4444 for event in events):
            return "Exploit"
        if number >= 3 and len(ports) == 1:
            return "Exploit"
        if placed and not self.corrected:
            return "None"
        return "Scan"

    def observation(self) -> list[int]:
        bits: list[int] = []
        for host in HOSTS:
            bits += {"None": [0, 0], "Scan": [1, 0], "Exploit": [1, 1]}[self.activity[host]]
            bits += {"No": [0, 0], "Unknown": [1, 0], "User": [0, 1], "Privileged": [1, 1]}[self.thoughts[host]]
        return bits

    # As recorded

    def host_byte(self, host: str) -> int:
        flags = [
            host in self.removable | self.stubborn, host in self.privileged, host in self.known_ips, host in self.ports,
            host in self.removable, host in self.stubborn, host in self.files, host in self.known_hosts,
        ]  # fmt: skip
        return sum(1 << k for k, flag in enumerate(flags) if flag)

    def decoy_byte(self, host: str) -> int:
        return sum(1 << k for k, name in enumerate(DECOYS) if name in self.decoys[host])

    def port_byte(self, host: str) -> int:
        return sum(1 << k for k, port in enumerate(RELEVANT_PORTS) if port in self.ports.get(host, ()))

    def misc_byte(self) -> int:
        service = self.service
        flags = [
            service["present"], service["active"] and service["handle"], service["known"], False,
            *(subnet in self.known_subnets for subnet in SUBNETS),
        ]  # fmt: skip
        return sum(1 << k for k, flag in enumerate(flags) if flag)


class BLine:
    """B_lineAgent."""

    def __init__(self) -> None:
        self.stage, self.host, self.has_ports_of_server = 0, "", False
        self.success = "UNKNOWN"
        self.candidates: list[str] = []

    def choose(self, machine: Machine, draws: Draws) -> tuple[str, str]:
        succeeded = self.success in ("TRUE", "EMPTY")
        self.candidates = []
        back = [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]
        self.stage = min(self.stage + 1, 14) if succeeded else back[self.stage]
        if self.stage == 12 and not self.has_ports_of_server:
            if self.success == "EMPTY":
                self.stage = 1
            else:
                self.has_ports_of_server = True
        if self.stage == 1 and not self.host:
            self.candidates = ["User1", "User2", "User3", "User4"]
            self.host = draws.target(self.candidates)
        linked = "Enterprise1" if self.host in ("User1", "User2") else "Enterprise0"
        scan, attack, escalate = "DiscoverNetworkServices", "ExploitRemoteService", "PrivilegeEscalate"
        return [
            ("DiscoverRemoteSystems", "User"), (scan, self.host), (attack, self.host), (escalate, self.host),
            (scan, linked), (attack, linked), (escalate, linked), ("DiscoverRemoteSystems", "Enterprise"),
            (scan, "Enterprise2"), (attack, "Enterprise2"), (escalate, "Enterprise2"), (scan, "Op_Server0"),
            (attack, "Op_Server0"), (escalate, "Op_Server0"), ("Impact", "Op_Server0"),
        ][self.stage]  # fmt: skip


class Meander:
    """RedMeanderAgent."""

    def __init__(self) -> None:
        self.subnets: set[str] = set()
        self.scanned: set[str] = set()
        self.exploited: set[str] = set()
        self.escalated: set[str] = set()
        self.names: set[str] = set()
        self.last_ip = self.last_host = ""
        self.success = "UNKNOWN"
        self.candidates: list[str] = []

    def choose(self, machine: Machine, draws: Draws) -> tuple[str, str]:
        self.learn()
        self.candidates = []
        if "Op_Server0" in self.escalated:
            self.last_host = "Op_Server0"
            return "Impact", "Op_Server0"
        for subnet in SUBNETS:
            if subnet in machine.known_subnets and subnet not in self.subnets:
                self.subnets.add(subnet)
                return "DiscoverRemoteSystems", subnet
        unscanned = [host for host in HOSTS if host in machine.known_ips and host not in self.scanned]
        if unscanned:
            self.candidates = unscanned
            target = draws.target(unscanned)
            self.scanned.add(target)
            return "DiscoverNetworkServices", target
        forgotten = self.names - self.exploited
        owned = [host for host in HOSTS if host in machine.known_hosts - self.escalated - forgotten]
        if owned:
            self.candidates = owned
            self.last_host = draws.target(owned)
            self.escalated.add(self.last_host)
            return "PrivilegeEscalate", self.last_host
        self.candidates = [host for host in HOSTS if host in machine.known_ips - self.exploited]
        self.last_ip = draws.target(self.candidates)
        self.exploited.add(self.last_ip)
        return "ExploitRemoteService", self.last_ip

    def learn(self) -> None:
        if self.last_ip and self.success == "TRUE":
            self.names.add(self.last_ip)
        elif self.last_ip:
            self.exploited.discard(self.last_ip)
            lost = self.escalated & set(SUBNETS["Operational"])
            lost = lost or self.escalated & {"Enterprise0", "Enterprise1", "Enterprise2"}
            self.escalated -= lost
            self.exploited -= lost
        if self.last_host and self.success == "FALSE":
            self.escalated.discard(self.last_host)
            if self.last_host in self.names:
                self.exploited.discard(self.last_host)
        self.last_ip = self.last_host = ""


class Sleeper:
    """SleepAgent."""

    success = "UNKNOWN"

    def choose(self, machine: Machine, draws: Draws) -> tuple[str, None]:
        return "Sleep", None


AGENTS = {"b_line": BLine, "meander": Meander, "sleep": Sleeper}
