"""Red's agents of CAGE-2: which action comes next, given what the last one told them."""

from __future__ import annotations

from typing import NamedTuple

from velodrome.envs.cage2 import codes
from velodrome.envs.cage2.nibbles import ALL, at, count, kth, with_bits, without_bits

ENTERPRISE_HOSTS = 0x1110  # Enterprise0 to 2; the Defender is not among those that Meander forgets
FIRST_TARGETS = 0x1111000000000  # User1 to 4, of which B_line picks one
# Bits of a host's nibble in RedMind.plan, Meander's lists.
SCANNED, EXPLOITED, ESCALATED, NAMED = 1, 2, 4, 8

LAST_STAGE = 14
REACHED_SERVER = 16  # added to B_line's stage once it has seen Op_Server0's ports
# Where B_line goes after a failure in each stage, a nibble each: 0,1,2,2,2,2,5,5,5,5,9,9,9,12,13.
AFTER_FAILURE = 0xDC9995555222210
# What B_line does in each stage. Target 13 is its first host, 14 the Enterprise host that this one leads to.
STAGE_ACTIONS = 0x543243214324321
STAGE_TARGETS = 0x77773330EEEDDD2
FIRST_HOST, LINKED_HOST = 13, 14


class RedMind(NamedTuple):
    """What a Red agent remembers from one action to the next."""

    agent: int  # B_LINE, MEANDER or SLEEPING
    stage: int  # B_line: 0 … 14, plus REACHED_SERVER
    first: int  # B_line: host that it attacks first; 0: none yet
    plan: int  # Meander: SCANNED, EXPLOITED, ESCALATED and NAMED hosts
    swept: int  # Meander: mask of subnets
    action: int  # what it did last or is about to do
    target: int  # host, or subnet of a SWEEP
    result: int  # what it was told about its last action


def pick(hosts: int, word: int, forced: int) -> int:
    """Return one of a set of hosts: the forced one if it belongs to it, else by a word of 32 random bits."""
    if (forced >= 0) & ((hosts >> 4 * max(forced, 0) & 1) == 1):
        return forced
    # The set is empty only if the last actions were not the agent's own.
    return min(kth(hosts, word * count(hosts) >> 32), 12)


def b_line_chooses(mind: RedMind, word: int, forced: int) -> RedMind:
    """Go on with the attack, stage by stage; after a failure some stages back."""
    stage, reached, first = mind.stage & 15, mind.stage & REACHED_SERVER, mind.first
    if (mind.result == codes.SUCCEEDED) | (mind.result == codes.EMPTY):
        stage = min(stage + 1, LAST_STAGE)
    else:
        stage = AFTER_FAILURE >> 4 * stage & 15
    if (stage == 12) & (reached == 0):
        # It looks up Op_Server0's ports for the first time; if there are none, it starts over after the first sweep.
        if mind.result == codes.EMPTY:
            stage = 1
        else:
            reached = REACHED_SERVER
    if (stage == 1) & (first == 0):
        first = pick(FIRST_TARGETS, word, forced)
    target = STAGE_TARGETS >> 4 * stage & 15
    if target == FIRST_HOST:
        target = first
    elif target == LINKED_HOST:
        target = 2 if first <= 10 else 1
    action = STAGE_ACTIONS >> 4 * stage & 15
    return RedMind(mind.agent, stage | reached, first, mind.plan, mind.swept, action, target, mind.result)


def meander_learns(mind: RedMind) -> int:
    """Return Meander's lists after the result of its last action."""
    plan, last = mind.plan, max(mind.target, 0)
    failed = mind.result == codes.FAILED
    if mind.action == codes.EXPLOIT:
        if failed:
            plan = without_bits(plan, last, EXPLOITED)
            lost = plan >> 2 & codes.OPERATIONAL_HOSTS
            if lost == 0:
                lost = plan >> 2 & ENTERPRISE_HOSTS
            plan &= ~(lost * (EXPLOITED | ESCALATED))
        else:
            plan = with_bits(plan, last, NAMED)
    elif (mind.action >= codes.ESCALATE) & failed:
        plan = without_bits(plan, last, ESCALATED)
        if at(plan, last) & NAMED:
            plan = without_bits(plan, last, EXPLOITED)
    return plan


def meander_chooses(mind: RedMind, known: int, subnets: int, word: int, forced: int) -> RedMind:
    """Sweep, scan, escalate and exploit whatever is known, one of each kind after another."""
    plan, swept = meander_learns(mind), mind.swept
    to_sweep = subnets & ~swept & 7
    to_scan = known & ~plan & ALL
    to_escalate = known >> 1 & ~(plan >> 2) & ~(plan >> 3 & ~(plan >> 1)) & ALL
    to_exploit = known & ~(plan >> 1) & ALL
    if at(plan, codes.OP_SERVER) & ESCALATED:
        action, target = codes.IMPACT, codes.OP_SERVER
    elif to_sweep != 0:
        action = codes.SWEEP
        target = codes.ENTERPRISE if to_sweep & 1 else (codes.OPERATIONAL if to_sweep & 2 else codes.USER)
        swept |= 1 << target
    else:
        action, candidates, noted = codes.EXPLOIT, to_exploit, EXPLOITED
        if to_scan != 0:
            action, candidates, noted = codes.SCAN, to_scan, SCANNED
        elif to_escalate != 0:
            action, candidates, noted = codes.ESCALATE, to_escalate, ESCALATED
        target = pick(candidates, word, forced)
        plan = with_bits(plan, target, noted)
    return RedMind(mind.agent, mind.stage, mind.first, plan, swept, action, target, mind.result)


def red_chooses(mind: RedMind, known: int, subnets: int, word: int, forced: int) -> RedMind:
    """Return the agent's memory with its next action in it.

    `known` and `subnets` are what Red knows of the network, `word` 32 random bits, `forced` a host to take wherever
    there is a uniform choice that it belongs to, or −1.
    """
    if mind.agent == codes.B_LINE:
        return b_line_chooses(mind, word, forced)
    if mind.agent == codes.MEANDER:
        return meander_chooses(mind, known, subnets, word, forced)
    return mind
