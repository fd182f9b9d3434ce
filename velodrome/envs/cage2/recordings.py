"""Plays recorded trajectories of the original through the rule, with Red's choices and all random draws forced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from types import FunctionType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.cage2 import codes
from velodrome.envs.cage2 import moves as cage2_moves
from velodrome.envs.cage2 import nibbles as cage2_nibbles
from velodrome.envs.cage2 import red as cage2_red
from velodrome.envs.cage2.moves import Network, blue_moves, blue_sees, penalty, red_moves
from velodrome.envs.cage2.names import RED_AGENTS
from velodrome.envs.cage2.network import Tables, cage2_tables
from velodrome.envs.cage2.nibbles import HOST_COUNT, at, whole
from velodrome.envs.cage2.red import RedMind, red_chooses
from velodrome.envs.cage2.rule import ACCESS_AT_FIRST, KNOWN_AT_FIRST, SERVICE_AT_FIRST, SUBNETS_AT_FIRST
from velodrome.errors import DataError, did_you_mean

NONE = 255  # in recorded arrays: no target, no draw
# What a record must hold, with the largest legal value; NONE is legal besides for some.
HIGHEST = {"blue_action": 144, "red_type": 5, "red_target": 12, "exploit": 7, "detect": 1, "green": 12}
MAY_BE_NONE = ("red_target", "exploit", "detect", "green")


class Forced(NamedTuple):
    """What happened, [E, T] each: E episodes of T steps."""

    blue_action: NDArray[np.uint8]
    red_type: NDArray[np.uint8]
    red_target: NDArray[np.uint8]
    exploit: NDArray[np.uint8]
    detect: NDArray[np.uint8]
    green: NDArray[np.uint8]


class Replayed(NamedTuple):
    """What follows from it, [E, T] or [E, T, 13] each, with the meanings and types of recorded arrays."""

    bits: NDArray[np.uint8]  # [E, T, 52] the observation
    reward: NDArray[np.int16]
    red_type: NDArray[np.uint8]
    red_target: NDArray[np.uint8]
    red_success: NDArray[np.uint8]
    exploit: NDArray[np.uint8]
    detect: NDArray[np.uint8]
    fsm: NDArray[np.uint8]
    blue_success: NDArray[np.uint8]
    host: NDArray[np.uint8]
    decoys: NDArray[np.uint8]
    ports: NDArray[np.uint8]
    misc: NDArray[np.uint8]


def recorded_misc(network: Network) -> int:
    """Return the recorded byte about OTService and the subnets that Red knows."""
    service = network.service
    stoppable = (service & codes.ACTIVE != 0) & (service & codes.HANDLE != 0)
    value = (1 if service & codes.PRESENT else 0) | (2 if stoppable else 0) | (4 if service & codes.SEEN_BY_RED else 0)
    return value | network.subnets << 4


def recorded_host(host: int, network: Network) -> int:
    """Return the recorded byte about a host's sessions and what Red knows of it."""
    access, known = at(network.access, host), at(network.known, host)
    value = (1 if access & (codes.REMOVABLE | codes.OTHER) else 0) | (2 if access & codes.PRIVILEGED else 0)
    value |= (4 if known & codes.KNOWN_IP else 0) | (8 if known & codes.PORTS_KNOWN else 0)
    value |= (16 if access & codes.REMOVABLE else 0) | (32 if access & codes.OTHER else 0)
    return value | (64 if access & codes.FILE else 0) | (128 if known & codes.KNOWN_NAME else 0)


def legal_exploit(exploit: int, host: int, network: Network, tables: Tables) -> int:
    """Return a recorded exploit if Red may choose it on a host, else −1."""
    options = whole(tables.options[16 * host + at(network.memory, host)])
    for place in range(options & 15):
        if options >> 4 * (place + 1) & 15 == exploit:
            return exploit
    return -1


def play_all(
    forced: Forced, agent: int, follow_agent: bool, corrected: int, impact_repeats: int, tables: Tables, out: Replayed
) -> None:
    """Play every episode. The agent is asked in every step; its choice is carried out if it is to be followed."""
    for e in range(forced.blue_action.shape[0]):
        network = Network(ACCESS_AT_FIRST, 0, 0, KNOWN_AT_FIRST, SUBNETS_AT_FIRST, SERVICE_AT_FIRST)
        mind = RedMind(agent, 0, 0, 0, 0, codes.SLEEP, codes.NOBODY, codes.UNKNOWN)
        seen = 0
        for t in range(forced.blue_action.shape[1]):
            blue_action = whole(forced.blue_action[e, t])
            action, target = whole(forced.red_type[e, t]), whole(forced.red_target[e, t])
            target = codes.NOBODY if target == NONE else target
            green = -1 if forced.green[e, t] == NONE else whole(forced.green[e, t])

            network, blue = blue_moves(blue_action, network, tables, impact_repeats)
            wanted = target if action > codes.SWEEP else codes.NOBODY
            mind = red_chooses(mind, network.known, network.subnets, 0, wanted)
            if follow_agent:
                action, target = mind.action, mind.target
            exploit = legal_exploit(whole(forced.exploit[e, t]), max(target, 0), network, tables)
            detected = 1 if forced.detect[e, t] == 1 else 0
            network, red = red_moves(action, target, exploit, detected, network, tables)
            mind = RedMind(mind.agent, mind.stage, mind.first, mind.plan, mind.swept, action, target, red.result)
            seen = blue_sees(seen, blue, red, target, green, network, tables, corrected)

            for k in range(4 * HOST_COUNT):
                out.bits[e, t, k] = seen >> k & 1
            out.reward[e, t] = -penalty(network.access, network.service, blue_action >= 132)
            out.red_type[e, t] = action
            out.red_target[e, t] = target if target >= 0 else NONE
            out.red_success[e, t] = codes.SUCCEEDED if red.result == codes.EMPTY else red.result
            out.exploit[e, t] = red.exploit if red.exploit >= 0 else NONE
            out.detect[e, t] = red.detected if red.detected >= 0 else NONE
            out.fsm[e, t] = mind.stage & 15 if agent == codes.B_LINE else NONE
            out.blue_success[e, t] = blue.success
            out.misc[e, t] = recorded_misc(network)
            for host in range(HOST_COUNT):
                out.host[e, t, host] = recorded_host(host, network)
                out.decoys[e, t, host] = tables.decoy_set[16 * host + at(network.decoys, host)]
                known_ports = tables.port_set[16 * host + at(network.memory, host)]
                out.ports[e, t, host] = known_ports if at(network.known, host) & codes.PORTS_KNOWN else 0


@cache
def compiled_play() -> Any:
    """Compile `play_all`; the functions that it calls stay plain for everybody else."""
    from numba import njit
    from numba.extending import register_jitable

    for function in (recorded_misc, recorded_host, legal_exploit):
        register_jitable(function)
    for module in (cage2_nibbles, cage2_red, cage2_moves):
        for value in vars(module).values():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                register_jitable(value)
    return njit(error_model="numpy")(play_all)


def replay(
    record: Mapping[str, Any],
    *,
    red: Literal["record", "agent"] = "record",
    red_agent: str | None = None,
    observation_rule: Literal["official", "corrected"] = "official",
    impact_repeats: bool = False,
) -> dict[str, NDArray]:
    """Return what the rule makes of recorded episodes: arrays of the same names, shapes and types as recorded ones.

    record: the arrays of one recorded file: blue_action, red_type, red_target, exploit, detect and green are forced.
    red: "record" carries out Red's recorded actions; "agent" lets the agent choose, and where it has a uniform choice
        takes the recorded target if that is one of its candidates.
    red_agent: "b_line", "meander" or "sleep"; None recognises it by the record.
    observation_rule and impact_repeats: variants of the rule, as of the environment.

    Returned are obs, reward, red_type, red_target, red_success, exploit, detect, fsm, green, blue_action, blue_success,
    host, decoys, ports and misc. `exploit` and `detect` are 255 where the rule draws none, whatever was recorded; `fsm`
    is the agent's own stage in both modes.
    """
    for name, value, legal in (
        ("red", red, ("record", "agent")),
        ("red_agent", red_agent or RED_AGENTS[0], RED_AGENTS),
        ("observation_rule", observation_rule, ("official", "corrected")),
    ):
        if value not in legal:
            raise DataError(f"{name} = {value!r}; legal: {', '.join(legal)}.{did_you_mean(str(value), legal)}")
    forced = checked_record(record)
    agent = RED_AGENTS.index(red_agent or recognised_agent(record, forced))
    shape = forced.blue_action.shape
    by_type = {"reward": np.int16}
    by_width = {"bits": (4 * HOST_COUNT,), "host": (HOST_COUNT,), "decoys": (HOST_COUNT,), "ports": (HOST_COUNT,)}
    out = Replayed(
        *(np.zeros(shape + by_width.get(name, ()), by_type.get(name, np.uint8)) for name in Replayed._fields)
    )
    corrected = int(observation_rule == "corrected")
    compiled_play()(forced, agent, red == "agent", corrected, int(impact_repeats), cage2_tables(), out)
    arrays = out._asdict()
    return {
        "obs": np.packbits(arrays.pop("bits"), axis=2),
        **arrays,
        "green": forced.green.copy(),
        "blue_action": forced.blue_action.copy(),
    }


def checked_record(record: Mapping[str, Any]) -> Forced:
    """Return the arrays of a record that are forced, all of them legal: compiled code does not look again."""
    if not isinstance(record, Mapping):
        advice = f": numpy.load({str(record)!r}) reads them" if isinstance(record, str | os.PathLike) else ""
        raise DataError(f"record must be the arrays of a file by name, received {record!r}{advice}")
    arrays: dict[str, NDArray[np.uint8]] = {}
    for name, highest in HIGHEST.items():
        if name not in record:
            raise DataError(f"the record has no {name!r}; a replay needs {', '.join(HIGHEST)}")
        array = np.asarray(record[name])
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise DataError(f"{name} has shape {array.shape} and type {array.dtype}; needs whole numbers [E, T]")
        first = arrays.get("blue_action", array)
        if array.shape != first.shape:
            raise DataError(f"{name} has shape {array.shape} and blue_action {first.shape}")
        may_be_none = name in MAY_BE_NONE
        wrong = (array < 0) | ((array > highest) & ~((array == NONE) & may_be_none))
        if wrong.any():
            episode, step = np.argwhere(wrong)[0]
            also = f" or {NONE}" if may_be_none else ""
            raise DataError(
                f"{name}[{episode}, {step}] = {array[episode, step]}; legal: 0 … {highest}{also}. Nothing was replayed."
            )
        arrays[name] = np.ascontiguousarray(array, np.uint8)
    _check_targets(arrays)
    return Forced(**arrays)


def _check_targets(arrays: Mapping[str, NDArray[np.uint8]]) -> None:
    """Refuse an action of Red without a target, and a sweep of a subnet that does not exist."""
    action, target = arrays["red_type"], arrays["red_target"]
    wrong = ((action != codes.SLEEP) & (target == NONE)) | ((action == codes.SWEEP) & (target > 2))
    if wrong.any():
        episode, step = np.argwhere(wrong)[0]
        raise DataError(
            f"red_target[{episode}, {step}] = {target[episode, step]} is no target of red_type "
            f"{action[episode, step]}: a sweep (1) needs a subnet 0 … 2, the others but Sleep (0) a host 0 … 12"
        )


def recognised_agent(record: Mapping[str, Any], forced: Forced) -> str:
    """Return whose episodes these are: only B_line has a recorded stage, and Sleep does nothing."""
    stages = record.get("fsm")
    if stages is not None and (np.asarray(stages) != NONE).any():
        return "b_line"
    return "meander" if forced.red_type.any() else "sleep"
