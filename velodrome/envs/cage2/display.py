"""CAGE-2 for people: the true state as arrays and as a table, and an episode step by step."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.cage2 import codes, names
from velodrome.envs.cage2.names import ACTIVITIES, COMPROMISED, HOSTS
from velodrome.envs.cage2.network import PORTS, cage2_tables
from velodrome.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

TABLE_WIDTH = 132  # characters
WORDS = ("access", "decoys", "memory", "known", "seen")


def true_state(source: Any) -> dict[str, NDArray]:
    """Return the true state of all environments by name: [n, 13] by host, the last three [n].

    source: a vector environment of "cage2" on any backend, or its state columns by name.

    `privileged`, `user`, `removable`, `file`, `known_ip`, `known_name` and `scanned` are booleans; `decoys` are sets of
    DECOYS and `ports`, those that Red remembers, of PORTS, bit by bit; `activity` (0 none, 1 scan, 3 exploit) and
    `compromised` (0 no, 1 unknown, 2 user, 3 privileged) are what Blue's table shows.
    """

    def column(name: str) -> NDArray:
        try:
            return np.atleast_1d(source[name] if isinstance(source, Mapping) else source.column(name))
        except (AttributeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"true_state takes a vector environment of 'cage2', or its state columns by name; {source!r} has no "
                f"column {name!r}"
            ) from error

    shifts = 4 * np.arange(len(HOSTS))
    nibbles = {name: column(name)[:, None] >> shifts & 15 for name in WORDS}
    access, known, seen = nibbles["access"], nibbles["known"], nibbles["seen"]
    tables, rows = cage2_tables(), 16 * np.arange(len(HOSTS))
    scanned = known & codes.PORTS_KNOWN != 0
    return {
        "privileged": access & 4 != 0,
        "user": access & 3 != 0,
        "removable": access & 1 != 0,
        "file": access & 8 != 0,
        "known_ip": known & codes.KNOWN_IP != 0,
        "known_name": known & codes.KNOWN_NAME != 0,
        "scanned": scanned,
        "decoys": tables.decoy_set[rows + nibbles["decoys"]],
        "ports": np.where(scanned, tables.port_set[rows + nibbles["memory"]], 0).astype(np.uint8),
        "activity": (seen & 3).astype(np.int8),
        "compromised": (seen >> 2).astype(np.int8),
        "service_up": column("service") & codes.PRESENT != 0,
        "red_agent": column("agent").astype(np.int8),
        "step": column("cursor").astype(np.int32),
    }


def host_table(columns: Mapping[str, Any]) -> Table:
    """Return the true state of one environment, given its state columns, as a table for a console."""
    from rich.table import Table

    state = {name: values[0] for name, values in true_state(columns).items()}
    service = "up" if state["service_up"] else "DOWN"
    agent = names.RED_AGENTS[int(state["red_agent"])]
    table = Table(title=f"step {int(state['step'])}, Red {agent}, OTService {service}", title_justify="left")
    for heading in ("host", "Red's access", "file", "Red knows", "ports that Red remembers", "decoys", "Blue sees"):
        table.add_column(heading, no_wrap=True)
    for host, name in enumerate(HOSTS):
        access = "privileged" if state["privileged"][host] else ""
        if state["user"][host] and not access:
            access = "user" if state["removable"][host] else "user (Remove cannot end it)"
        knows = [what for what in ("ip", "name") if state[f"known_{what}"][host]]
        ports = [str(port) for port in _members(PORTS, state["ports"][host])] if state["scanned"][host] else []
        table.add_row(
            name,
            access,
            "yes" if state["file"][host] else "",
            " ".join(knows),
            " ".join(ports),
            " ".join(_members(names.DECOYS, state["decoys"][host])),
            _seen_text(int(state["activity"][host]), int(state["compromised"][host])),
        )
    return table


def table_text(columns: Mapping[str, Any]) -> str:
    """Return the table of `host_table`, and what happened in the last step, as plain text."""
    from rich.console import Console

    target = io.StringIO()
    console = Console(file=target, width=TABLE_WIDTH, color_system=None, legacy_windows=False)
    console.print(host_table(columns))
    if int(columns["blue_action"]) >= 0:
        console.print(f"Blue: {_blue_text(columns)}. Red: {_red_text(columns)}.", highlight=False)
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines())


def _members(every: Iterable[Any], bits: int) -> list[Any]:
    return [one for k, one in enumerate(every) if int(bits) >> k & 1]


def _seen_text(activity: int, compromised: int) -> str:
    parts = [ACTIVITIES[activity]] if activity else []
    return ", ".join([*parts, f"compromised: {COMPROMISED[compromised]}"] if compromised else parts)


def _blue_text(columns: Mapping[str, Any]) -> str:
    action, success = int(columns["blue_action"]), int(columns["blue_success"])
    return names.ACTION_NAMES[action] + (" (fails)" if success == 0 else "")


def _red_text(columns: Mapping[str, Any]) -> str:
    action, target, result = (int(columns[name]) for name in ("red_action", "red_target", "red_result"))
    if action == 0:
        return "Sleep"
    text = f"{names.RED_ACTIONS[action]} {names.SUBNETS[target] if action == codes.SWEEP else HOSTS[target]}"
    if int(columns["exploit"]) >= 0:
        text += f" by {names.EXPLOITS[int(columns['exploit'])]}"
    text += " TRUE, but nobody is reached" if result == codes.EMPTY else f" {names.SUCCESS[result]}"
    return text + {0: ", undetected", 1: ", detected"}.get(int(columns["detected"]), "")


@dataclass(frozen=True)
class LogEntry:
    """One step of an episode."""

    step: int  # from 1
    blue: str
    red: str
    green: str  # host that Green scanned, or ""
    seen: str  # activity and what Blue newly thinks of a host, host by host; "" if nothing
    reward: float
    success: bool  # of Red's action

    def __str__(self) -> str:
        green = f" | Green scans {self.green}" if self.green else ""
        seen = f" | Blue sees {self.seen}" if self.seen else ""
        return f"{self.step:4d} | {self.reward:6.1f} | Blue {self.blue}{green} | Red {self.red}{seen}"


@dataclass(frozen=True)
class EpisodeLog:
    """An episode that can be read: `print(log)`; or its entries, one after another."""

    red_agent: str
    entries: tuple[LogEntry, ...]

    @property
    def total(self) -> float:
        """Return the sum of the rewards."""
        return sum(entry.reward for entry in self.entries)

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        head = f"CAGE-2, Red {self.red_agent}: {len(self.entries)} steps, total reward {self.total:.1f}"
        return "\n".join([head, "step | reward | what happened", *map(str, self.entries)])


def episode_log(env: Any, policy: Callable[[NDArray], Any] | Iterable[int], *, seed: int | None = None) -> EpisodeLog:
    """Play one episode and return it step by step.

    env: one environment, `vd.make("cage2", …)`.
    policy: a function from the observation to an action, or the actions themselves; an episode ends with them at the
        latest.
    """
    world = getattr(getattr(env, "envs", None), "world", None)
    if getattr(world, "name", None) != "cage2" or not hasattr(env, "state"):
        raise ConfigError(f'episode_log needs one environment, vd.make("cage2", …); received {env!r}')
    observation, _ = env.reset(seed=seed)
    agent = names.RED_AGENTS[int(env.state()["agent"])]
    given = None if callable(policy) else iter(policy)
    entries: list[LogEntry] = []
    thoughts = np.zeros(len(HOSTS), np.int8)
    ended = False
    while not ended:
        action = next(given, None) if given is not None else policy(observation)  # type: ignore[operator]
        if action is None:
            break
        observation, reward, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
        columns = env.state()
        entries.append(_entry(columns, reward, thoughts))
        thoughts = true_state(columns)["compromised"][0]
    return EpisodeLog(agent, tuple(entries))


def _entry(columns: Mapping[str, Any], reward: float, thoughts: NDArray[np.int8]) -> LogEntry:
    """Describe a step; `thoughts` are what Blue's table showed as compromised before it."""
    state = true_state(columns)
    shown = []
    for host, name in enumerate(HOSTS):
        activity, compromised = int(state["activity"][0, host]), int(state["compromised"][0, host])
        parts = [ACTIVITIES[activity]] if activity else []
        if compromised != thoughts[host]:
            parts.append(f"compromised {COMPROMISED[thoughts[host]]} -> {COMPROMISED[compromised]}")
        if parts:
            shown.append(f"{name}: {', '.join(parts)}")
    green = int(columns["green"])
    return LogEntry(
        step=int(columns["cursor"]),
        blue=_blue_text(columns),
        red=_red_text(columns),
        green=HOSTS[green] if green >= 0 else "",
        seen="; ".join(shown),
        reward=round(float(reward), 6),
        success=int(columns["red_result"]) in (codes.SUCCEEDED, codes.EMPTY),
    )
