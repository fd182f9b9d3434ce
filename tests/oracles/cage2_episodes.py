"""Episodes of the plain machine of CAGE-2, written down as the original's trajectories are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.cage2_machine import AGENTS, DECOYS, EXPLOITS, HOSTS, SUBNETS, Machine

RED_TYPES = [
    "Sleep", "DiscoverRemoteSystems", "DiscoverNetworkServices", "ExploitRemoteService", "PrivilegeEscalate", "Impact",
]  # fmt: skip
SUCCESS = {"FALSE": 0, "TRUE": 1, "UNKNOWN": 2, "EMPTY": 1}
FORCED = ("blue_action", "red_type", "red_target", "exploit", "detect", "green")
GREEN_HOSTS = [1, 2, 3, 8, 9, 10, 11, 12]
WIDTHS = {"bits": 52, "host": 13, "decoys": 13, "ports": 13}
PLAIN = ("reward", "red_success", "fsm", "blue_success", "misc")


class RandomDraws:
    """Draws that are even, so that rare exploits and missed detections happen often."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def exploit(self, preferred: str, others: Sequence[str]) -> str:
        return str(self.rng.choice([preferred, *others]))

    def detected(self) -> bool:
        return bool(self.rng.integers(2))

    def target(self, candidates: Sequence[str]) -> str:
        return str(self.rng.choice(candidates))


def random_blue(rng: np.random.Generator, hosts: Sequence[int]) -> int:
    """Return an action of Blue on one of few hosts: decoys half of the time, restores seldom."""
    host = int(rng.choice(hosts))
    kind = rng.choice(["idle", "analyse", "remove", "decoy", "restore"], p=[0.15, 0.15, 0.15, 0.45, 0.1])
    if kind == "idle":
        return int(rng.integers(2))
    first = {"analyse": 2, "remove": 15, "restore": 132, "decoy": 28 + 13 * int(rng.integers(len(DECOYS)))}[str(kind)]
    return first + host


def restoring_blue(rng: np.random.Generator) -> int:
    """Return an action of a Blue that keeps restoring Enterprise hosts, so that Red loses its way to Op_Server0."""
    return 132 + int(rng.integers(1, 4)) if rng.random() < 0.3 else 0


def random_red(rng: np.random.Generator, hosts: Sequence[int]) -> tuple[str, str | None]:
    """Return any action of Red on one of few hosts."""
    kind = str(rng.choice(RED_TYPES, p=[0.02, 0.08, 0.3, 0.3, 0.2, 0.1]))
    if kind == "Sleep":
        return kind, None
    if kind == "DiscoverRemoteSystems":
        return kind, str(rng.choice(list(SUBNETS)))
    return kind, "Op_Server0" if kind == "Impact" else HOSTS[int(rng.choice(hosts))]


def played(
    seed: int, episodes: int, steps: int, *, agent: str | None, corrected: bool = False, impact_repeats: bool = False,
    green: bool = True,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:  # fmt: skip
    """Return (record, expected): what was done in random episodes, and what the machine made of it.

    agent: one of AGENTS, or None for a Red that does anything to a few hosts.
    """
    rng = np.random.default_rng(seed)
    shape = (episodes, steps)
    record = {name: np.full(shape, 255, np.uint8) for name in FORCED}
    expected = {name: np.zeros((*shape, width), np.uint8) for name, width in WIDTHS.items()}
    expected |= {name: np.zeros(shape, np.int16 if name == "reward" else np.uint8) for name in PLAIN}
    draws = RandomDraws(rng)
    for episode in range(episodes):
        machine = Machine(corrected, impact_repeats)
        mind: Any = AGENTS[agent]() if agent else None
        # Few hosts, so that things happen to one and the same; Op_Server0 among them, or it is hardly ever reached.
        hosts = [7, *(int(host) for host in rng.choice(13, 3, replace=False))]
        restoring = agent is not None and bool(rng.integers(2))
        green_hosts = [host for host in GREEN_HOSTS if agent or host in hosts] or GREEN_HOSTS
        for step in range(steps):
            at = (episode, step)
            action = restoring_blue(rng) if restoring else random_blue(rng, range(13) if agent else hosts)
            green_host = HOSTS[int(rng.choice(green_hosts))] if green and rng.integers(2) else None
            # Blue moves before Red chooses, which only the agents' view of the network could tell: it is Red's own.
            red = mind.choose(machine, draws) if mind else random_red(rng, hosts)
            reward, success = machine.step(action, green_host, red, draws)
            if mind:
                mind.success = success
            record["blue_action"][at] = action
            record["red_type"][at] = RED_TYPES.index(red[0])
            if red[1] is not None:
                names = list(SUBNETS) if red[0] == "DiscoverRemoteSystems" else HOSTS
                record["red_target"][at] = names.index(red[1])
            if machine.chosen_exploit:
                record["exploit"][at] = list(EXPLOITS).index(machine.chosen_exploit)
            if machine.was_detected is not None:
                record["detect"][at] = machine.was_detected
            if green_host:
                record["green"][at] = HOSTS.index(green_host)
            expected["bits"][at] = machine.observation()
            expected["reward"][at] = reward
            expected["red_success"][at] = SUCCESS[success]
            expected["blue_success"][at] = machine.blue_success
            expected["fsm"][at] = mind.stage if agent == "b_line" else 255
            expected["misc"][at] = machine.misc_byte()
            for host, name in enumerate(HOSTS):
                expected["host"][(*at, host)] = machine.host_byte(name)
                expected["decoys"][(*at, host)] = machine.decoy_byte(name)
                expected["ports"][(*at, host)] = machine.port_byte(name)
    expected["obs"] = np.packbits(expected.pop("bits"), axis=2)
    if agent == "b_line":
        record["fsm"] = expected["fsm"]
    return record, expected


def mismatches(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> dict[str, int]:
    """Return how many entries of each array differ, where any does; types and shapes must be the same."""
    found = {}
    for name, expected in theirs.items():
        array = ours[name]
        assert array.dtype == expected.dtype, name
        assert array.shape == expected.shape, name
        if name == "host":
            # Which of several user sessions is escalated is random and has no consequence.
            cares = np.where(expected & 2, np.uint8(255 - 1 - 16 - 32), np.uint8(255))
            array, expected = array & cares, expected & cares
        if wrong := int((array != expected).sum()):
            found[name] = wrong
    return found
