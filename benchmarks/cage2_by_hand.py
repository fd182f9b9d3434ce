"""How well B_line can be held off: a policy written by hand that sees the true state of the network.

    python benchmarks/cage2_by_hand.py [--episodes 3000]

It is a yardstick for agents, not one of them. What it does follows from the rule (docs/cage2.md):

- Two decoys on User2 before Red scans it: then three of four attacks there fail, and Red stays where it costs nothing.
- Decoys on the Enterprise host that Red goes to next, before Red scans it; sessions there are removed, or restored.
- User2 is restored whenever Red is privileged on it (not with --never-restore-user2): Red has to get past the decoys
  that it remembers. On the other User hosts it is back at once, and a Restore, which costs 1, does not pay.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import velodrome as vd
from velodrome.envs import cage2
from velodrome.envs.cage2.codes import OTHER, PRIVILEGED, REMOVABLE
from velodrome.envs.cage2.nibbles import at

LENGTHS = (30, 50, 100)
ENTERPRISE0, ENTERPRISE1, ENTERPRISE2, OP_SERVER, USER2 = map(
    cage2.host, ("Enterprise0", "Enterprise1", "Enterprise2", "Op_Server0", "User2")
)
WORTH_A_RESTORE = 10  # steps that must be left


def act(kind: str, host: int) -> int:
    """Return an action of the reduced set."""
    return cage2.action(kind, cage2.HOSTS[host], action_set="reduced")


def choose(access: int, decoys: int, first: int, left: int, restore_user2: bool) -> int:
    """Return what to do, given sessions and decoys (words), Red's first target (0: none yet) and the steps left."""
    if not first:
        return act("Decoy", USER2)
    goal = ENTERPRISE1 if first <= USER2 else ENTERPRISE0
    for host in (goal, ENTERPRISE2, OP_SERVER):
        if at(access, host) & (PRIVILEGED | OTHER):
            return act("Restore", host)
        if at(access, host) & REMOVABLE:
            return act("Remove", host)
    found = at(access, first)
    if first == USER2 and restore_user2 and found & PRIVILEGED and left > WORTH_A_RESTORE:
        return act("Restore", USER2)
    if found & REMOVABLE and not found & PRIVILEGED:
        return act("Remove", first)
    if at(decoys, goal).bit_count() < (3 if goal == ENTERPRISE0 else 1):
        return act("Decoy", goal)
    return act("Decoy", ENTERPRISE2)


def main() -> None:
    """Play, and print mean returns by length and by the host that Red attacked first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=3_000)
    parser.add_argument("--never-restore-user2", action="store_true")
    options = parser.parse_args()
    envs = vd.make_vec("cage2", options.episodes, seed=1, action_set="reduced", episode_length=LENGTHS[-1] + 1)
    envs.reset()
    total = np.zeros(options.episodes)
    for step in range(LENGTHS[-1]):
        state = zip(*(envs.column(name).tolist() for name in ("access", "decoys", "first")), strict=True)
        left = LENGTHS[-1] - step
        total += envs.step(np.array([choose(*one, left, not options.never_restore_user2) for one in state]))[1]
        if step + 1 in LENGTHS:
            error = total.std() / math.sqrt(len(total))
            print(f"{step + 1:4} steps: {total.mean():.2f} ± {1.96 * error:.2f}")
    first = envs.column("first")
    print(", ".join(f"{cage2.HOSTS[host]} first: {total[first == host].mean():.2f}" for host in range(9, 13)))


if __name__ == "__main__":
    main()
