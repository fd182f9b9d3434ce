"""The rule of CAGE-2: the state of one environment, and the four functions that every backend runs."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.cage2 import codes
from velodrome.envs.cage2.memories import HOSTS_OF_MEMORIES, begin_memory, keep_memory, show_decoys, show_memory
from velodrome.envs.cage2.moves import Network, blue_moves, blue_sees, chosen_exploit, penalty, red_moves
from velodrome.envs.cage2.network import GREEDY, Tables
from velodrome.envs.cage2.nibbles import ALL, HOST_COUNT, at, count, kth, mask, whole, with_bits
from velodrome.envs.cage2.red import RedMind, red_chooses
from velodrome.envs.contract import Column, Float64, Int8, Int32, Int64, Rule, UInt64
from velodrome.envs.rng import draw_words, uniform

STATISTICS = (
    *("reward", "length", "official_reward", "red_agent", "restores"),
    *("decoys", "impact_steps", "exploits", "privileged_steps"),
)
MIXTURE = 3  # Params.red_agent: drawn for every episode
OFFICIAL, CUSTOM = 0, 1  # rewards
NO_ACTION = -1  # State.blue_action before the first step
KNOWN_AT_FIRST = (codes.KNOWN_IP | codes.KNOWN_NAME) << 4 * codes.USER0
ACCESS_AT_FIRST = codes.PRIVILEGED << 4 * codes.USER0
SUBNETS_AT_FIRST = 4  # the User subnet
SERVICE_AT_FIRST = codes.PRESENT | codes.HANDLE | codes.ACTIVE
DETECTION = 4080218931  # of 2^32: 0.95
COUNT_BITS = 20  # of a count in State.tally and State.attacks; an episode has fewer steps than that counts
COUNT_MASK = (1 << COUNT_BITS) - 1
OBSERVED_BITS = 4 * HOST_COUNT
REMEMBERED_SCANS = sum(1 << 4 * host for host in HOSTS_OF_MEMORIES)


Int16 = Annotated[NDArray[np.int16], Column(np.int16)]


class Params(NamedTuple):
    """The scalars that the rule receives."""

    b_line_below: float  # mixture: a uniform draw below this is B_line, else below that Meander, else Sleep
    meander_below: float
    red_agent: int
    green: int
    episode_length: int
    terminates: int  # 1: the last step ends the game, 0: it cuts it off
    corrected: int
    impact_repeats: int
    scan_memory: int
    decoy_memory: int
    activity_memory: int
    attack_memory: int
    port_memory: int
    step_memory: int
    red_memory: int
    reward: int


class State:
    """One column per value, one entry per environment; the words have a nibble for each host."""

    rng_key: UInt64
    rng_counter: UInt64
    cursor: Int32  # steps taken in this episode
    penalty: Int32  # of this episode, in tenths of reward
    access: Int64  # the fields of Network
    decoys: Int64
    memory: Int64
    known: Int64
    plan: Int64  # Meander's lists
    seen: Int64  # the observation: 4 bits for each host
    tally: Int64  # restores, decoys started and steps without OTService, 20 bits each
    attacks: Int64  # successful exploits, 20 bits; above them hosts on which Red was privileged, summed over steps
    reward_sum: Float64  # of a user's own reward
    subnets: Int8
    service: Int8
    agent: Int8  # the rest of RedMind
    stage: Int8
    first: Int8
    swept: Int8
    red_action: Int8
    red_target: Int8
    red_result: Int8
    exploit: Int8  # of the last step; −1: none was chosen
    detected: Int8  # of the last step; −1: not drawn
    green: Int8  # host that Green scanned in the last step, or −1
    last_scan: Int8  # 1 + host on which Blue saw a scan last; 0: none yet
    blue_success: Int8
    blue_action: Int16  # one of the 145


class RememberingState(State):
    """The columns of an environment that remembers activity; others do without, which is faster."""

    scan_ages: Int64  # how long ago a scan was seen on each host, as `memories` counts
    exploit_ages: Int64
    attacks_seen: Int64  # what the last attack seen on each host found (network.NOTHING …); 0 after a Restore
    decoys_scanned: Int64  # decoys that ran on each host when its ports were scanned last
    recognised: Int8  # the host of the first activity, and who Red is


class Situation(NamedTuple):
    """What a user's reward sees before and after a step. Masks have 13 bits, host 0 in the lowest."""

    privileged: int  # mask of hosts on which Red is root or SYSTEM; User0 always is
    user: int  # mask of hosts on which Red has a user session
    removable: int  # mask of hosts with a user session that Remove would end
    files: int  # mask of hosts with malware
    discovered: int  # mask of hosts whose address Red knows
    scanned: int  # mask of hosts whose ports Red knows
    decoys: int  # word; `decoy_bit` says which bit of it is which decoy
    service_up: int  # 1: OTService runs
    scans_shown: int  # mask of hosts on which Blue's table shows a scan
    exploits_shown: int  # mask of hosts on which it shows an exploit
    suspected: int  # mask of hosts which it shows as compromised, in whatever way
    blue_action: int  # 0 … 144 of the step that led here; −1 before the first
    blue_success: int  # 0 no, 1 yes, 2 unknown
    red_action: int  # 0 … 5, in the order of RED_ACTIONS
    red_target: int  # host, or subnet of DiscoverRemoteSystems; −1: none
    red_success: int  # 0 no, 1 yes, 2 unknown
    step: int
    official: float  # the official reward of that step


def custom_reward(old: Situation, new: Situation) -> float:
    """Stand in for the user's function, which takes this name's place when the rule is assembled."""
    return new.official


def tenths(cost: int) -> float:
    """Return a cost in tenths as a reward, rounded once; nothing is 0.0 and not −0.0."""
    return 0.0 - cost / 10.0


def situation(
    network: Network, seen: int, blue_action: int, blue_success: int, mind: RedMind, red_result: int, cursor: int
) -> Situation:
    """Return what a user's reward sees."""
    access, known = network.access, network.known
    exploits = mask(seen, 1)
    success = codes.SUCCEEDED if red_result == codes.EMPTY else red_result
    cost = penalty(access, network.service, blue_action >= codes.FIRST_RESTORE) if cursor > 0 else 0
    return Situation(
        privileged=mask(access, 2),
        user=mask(access, 0) | mask(access, 1),
        removable=mask(access, 0),
        files=mask(access, 3),
        discovered=mask(known, 0),
        scanned=mask(known, 2),
        decoys=network.decoys,
        service_up=network.service & codes.PRESENT,
        scans_shown=mask(seen, 0) & ~exploits,
        exploits_shown=exploits,
        suspected=mask(seen, 2) | mask(seen, 3),
        blue_action=blue_action,
        blue_success=blue_success,
        red_action=mind.action,
        red_target=mind.target,
        red_success=success,
        step=cursor,
        official=tenths(cost),
    )


def green_target(word: int) -> int:
    """Return the host that Green scans, User0 to 4 or Enterprise0 to 2, or −1 in half of all steps."""
    k = word >> 28 & 7
    return -1 if word >> 31 else (8 + k if k < 5 else k - 4)


def reset(i: int, state: State, tables: Tables, params: Any) -> None:
    """Begin an episode: Red has its foothold and knows nothing else, Blue sees nothing."""
    agent = params.red_agent
    if agent == MIXTURE:
        draw = uniform(i, state)
        agent = 0 if draw < params.b_line_below else (1 if draw < params.meander_below else 2)
    state.cursor[i] = 0
    state.penalty[i] = 0
    state.access[i] = ACCESS_AT_FIRST
    state.decoys[i] = 0
    state.memory[i] = 0
    state.known[i] = KNOWN_AT_FIRST
    state.plan[i] = 0
    state.seen[i] = 0
    state.tally[i] = 0
    state.attacks[i] = 0
    state.reward_sum[i] = 0.0
    state.subnets[i] = SUBNETS_AT_FIRST
    state.service[i] = SERVICE_AT_FIRST
    state.agent[i] = agent
    state.stage[i] = 0
    state.first[i] = 0
    state.swept[i] = 0
    state.red_action[i] = codes.SLEEP
    state.red_target[i] = codes.NOBODY
    state.red_result[i] = codes.UNKNOWN
    state.exploit[i] = -1
    state.detected[i] = -1
    state.green[i] = -1
    state.last_scan[i] = 0
    state.blue_success[i] = codes.UNKNOWN
    state.blue_action[i] = NO_ACTION
    begin_memory(i, state)


def step(i: int, action: Any, state: State, tables: Tables, params: Any) -> tuple[float, bool, bool]:
    """Let Blue, Green and Red move, in this order; count the cost; write down what Blue sees."""
    # Everything is read before anything is written: a GPU then waits for its memory once and not at every line.
    before = Network(
        whole(state.access[i]),
        whole(state.decoys[i]),
        whole(state.memory[i]),
        whole(state.known[i]),
        whole(state.subnets[i]),
        whole(state.service[i]),
    )
    mind = RedMind(
        whole(state.agent[i]),
        whole(state.stage[i]),
        whole(state.first[i]),
        whole(state.plan[i]),
        whole(state.swept[i]),
        whole(state.red_action[i]),
        whole(state.red_target[i]),
        whole(state.red_result[i]),
    )
    seen_before, cursor, cost_sum = whole(state.seen[i]), whole(state.cursor[i]), whole(state.penalty[i])
    tally, attacks, last_scan = whole(state.tally[i]), whole(state.attacks[i]), whole(state.last_scan[i])
    blue_action = whole(tables.actions[whole(action)])
    if blue_action >= GREEDY:
        host = blue_action - GREEDY
        blue_action = whole(tables.greedy[16 * host + at(before.decoys, host)])

    network, blue = blue_moves(blue_action, before, tables, params.impact_repeats)
    target, exploit, detected, green = codes.NOBODY, -1, 0, -1
    old_mind = mind
    if params.green or mind.agent != codes.SLEEPING:
        words = draw_words(i, state)
        if params.green:
            green = green_target(words[3])
        mind = red_chooses(mind, network.known, network.subnets, words[0], codes.NOBODY)
        target = max(mind.target, 0)
        exploit = chosen_exploit(target, network, words[1], tables)
        detected = 1 if words[2] < DETECTION else 0
    network, red = red_moves(mind.action, mind.target, exploit, detected, network, tables)
    cost = penalty(network.access, network.service, blue_action >= codes.FIRST_RESTORE)
    seen = blue_sees(seen_before, blue, red, mind.target, green, network, tables, params.corrected)
    known = network.known
    if params.scan_memory:
        scans = seen & ~(seen >> 1) & REMEMBERED_SCANS
        if scans:
            host = kth(scans, 0)
            known, last_scan = with_bits(known, host, codes.SCAN_SEEN), 1 + host

    reward = tenths(cost)
    cursor += 1
    if params.reward == CUSTOM:
        old_action, old_success = whole(state.blue_action[i]), whole(state.blue_success[i])
        reward = custom_reward(
            situation(before, seen_before, old_action, old_success, old_mind, old_mind.result, cursor - 1),
            situation(network, seen, blue_action, blue.success, mind, red.result, cursor),
        )
        state.reward_sum[i] += reward

    # First the columns of small integers, last what `observe` reads: see docs/add_an_environment.md.
    state.blue_action[i] = blue_action
    state.blue_success[i] = blue.success
    state.subnets[i] = network.subnets
    state.service[i] = network.service
    state.stage[i] = mind.stage
    state.first[i] = mind.first
    state.swept[i] = mind.swept
    state.red_action[i] = mind.action
    state.red_target[i] = mind.target
    state.red_result[i] = red.result
    state.exploit[i] = red.exploit
    state.detected[i] = red.detected
    state.green[i] = green
    state.last_scan[i] = last_scan
    state.cursor[i] = cursor
    state.penalty[i] = cost_sum + cost
    restored = 1 if blue_action >= codes.FIRST_RESTORE else 0
    down = 0 if network.service & codes.PRESENT else 1
    state.tally[i] = tally + (restored | blue.placed << COUNT_BITS | down << 2 * COUNT_BITS)
    owned = count(network.access >> 2 & ALL) - 1
    exploited = 1 if (red.exploit >= 0) & (red.result == codes.SUCCEEDED) else 0
    state.attacks[i] = attacks + (exploited | owned << COUNT_BITS)
    state.access[i] = network.access
    state.memory[i] = network.memory
    state.plan[i] = mind.plan
    state.known[i] = known
    state.decoys[i] = network.decoys
    state.seen[i] = seen
    keep_memory(i, state, tables, seen, blue, red, mind.target, green, network.decoys)
    ends, terminates = cursor >= params.episode_length, params.terminates != 0
    return reward, ends & terminates, ends & (not terminates)


def observe(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float32]) -> None:
    """Write Blue's table, four values for each host, then the memories that were asked for."""
    seen = whole(state.seen[i])
    for host in range(HOST_COUNT):
        row = 4 * (seen >> 4 * host & 15)
        # All four are read before one is written: they then travel together.
        bit_0, bit_1 = tables.bits[row], tables.bits[row + 1]
        bit_2, bit_3 = tables.bits[row + 2], tables.bits[row + 3]
        out[4 * host] = bit_0
        out[4 * host + 1] = bit_1
        out[4 * host + 2] = bit_2
        out[4 * host + 3] = bit_3
    first = OBSERVED_BITS
    if params.scan_memory:
        known, last_scan = whole(state.known[i]), whole(state.last_scan[i])
        for k in range(len(HOSTS_OF_MEMORIES)):
            host = k if k < 4 else k + 3
            out[first + k] = 2 if host + 1 == last_scan else at(known, host) >> 3
        first += len(HOSTS_OF_MEMORIES)
    if params.decoy_memory:
        first = show_decoys(whole(state.decoys[i]), tables, first, out)
    show_memory(i, state, tables, params, first, out)


def finish(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float64]) -> None:
    """Write the statistics of the episode, in the order of STATISTICS."""
    official = tenths(state.penalty[i])
    tally, attacks = whole(state.tally[i]), whole(state.attacks[i])
    out[0] = state.reward_sum[i] if params.reward == CUSTOM else official
    out[1] = state.cursor[i]
    out[2] = official
    out[3] = state.agent[i]
    out[4] = tally & COUNT_MASK
    out[5] = tally >> COUNT_BITS & COUNT_MASK
    out[6] = tally >> 2 * COUNT_BITS
    out[7] = attacks & COUNT_MASK
    out[8] = attacks >> COUNT_BITS


RULE = Rule(reset, step, observe, finish)
