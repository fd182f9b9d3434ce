"""How well B_line can be held off: a policy written by hand that sees the true state of the network.

    python benchmarks/cage2_by_hand.py [--episodes 3000] [--run FOLDER]

It is a yardstick for agents, not one of them. With --run the policy of a run plays beside it, and what each loses to
Red and to its own restores is told host by host: what an agent has not learnt shows there. What is done by hand follows
from the rule (docs/cage2.md):

- Two decoys on User2 before Red scans it: then three of four attacks there fail, and Red stays where it costs nothing.
- Decoys on the Enterprise host that Red goes to next, before Red scans it; sessions there are removed, or restored.
- User2 is restored whenever Red is privileged on it (not with --never-restore-user2): Red has to get past the decoys
  that it remembers. On the other User hosts it is back at once, and a Restore, which costs 1, does not pay.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import velodrome as vd
from velodrome.envs import cage2
from velodrome.envs.cage2.codes import FIRST_RESTORE, OTHER, PRIVILEGED, REMOVABLE, USER0
from velodrome.envs.cage2.nibbles import at
from velodrome.runs.trained import Run

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


class ByHand:
    """Plays by the true state of the environments."""

    def __init__(self, restore_user2: bool) -> None:
        self.restore_user2 = restore_user2

    def actions(self, envs: Any, step: int, observations: Any) -> NDArray:
        """Return an action for every environment."""
        state = zip(*(envs.column(name).tolist() for name in ("access", "decoys", "first")), strict=True)
        return np.array([choose(*one, LENGTHS[-1] - step, self.restore_user2) for one in state])


class OfRun:
    """Plays the policy of a run, which observes what it observed in training."""

    def __init__(self, run: Run, episodes: int) -> None:
        self.policy = run.policies()[0][0]
        self.policy.begin(episodes)

    def actions(self, envs: Any, step: int, observations: Any) -> NDArray:
        """Return an action for every environment."""
        return np.asarray(self.policy.act(observations))


def play(player: ByHand | OfRun, episodes: int, params: dict[str, Any]) -> None:
    """Play, and print mean returns by length, and by the host that Red attacked first what each host cost."""
    own = {"action_set": "reduced", **params, "red_agent": "b_line", "episode_length": LENGTHS[-1] + 1}
    envs = vd.make_vec("cage2", episodes, seed=1, observation="cursor", **own)
    observations, _ = envs.reset()
    total, owned, restored = np.zeros(episodes), np.zeros((episodes, 13)), np.zeros((episodes, 13))
    for step in range(LENGTHS[-1]):
        observations, rewards, *_ = envs.step(player.actions(envs, step, observations))
        total += rewards
        owned += envs.column("access")[:, None] >> 4 * np.arange(13) + 2 & 1
        restored += envs.column("blue_action")[:, None] - FIRST_RESTORE == np.arange(13)
        if step + 1 in LENGTHS:
            error = total.std() / math.sqrt(len(total))
            print(f"{step + 1:4} steps: {total.mean():.2f} ± {1.96 * error:.2f}")
    first = envs.column("first")
    for target in range(9, 13):
        rows = first == target
        costs = [
            f"{cage2.HOSTS[host]} {owned[rows, host].mean():.1f} steps, {restored[rows, host].mean():.1f} restores"
            for host in range(13)
            if host != USER0 and (owned[rows, host].mean() >= 0.05 or restored[rows, host].mean() >= 0.05)
        ]
        print(f"{cage2.HOSTS[target]} first: {total[rows].mean():.2f}. Owned and restored: {'; '.join(costs)}")


def main() -> None:
    """Play by hand, and with the policy of a run beside it if one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=3_000)
    parser.add_argument("--never-restore-user2", action="store_true")
    parser.add_argument("--run", help="folder of a run: its policy plays as many episodes against B_line, too")
    options = parser.parse_args()
    print("by hand, seeing the true state")
    play(ByHand(not options.never_restore_user2), options.episodes, {})
    if options.run:
        run = Run.open(options.run)
        print(f"the policy of {run.path}")
        play(OfRun(run, options.episodes), options.episodes, dict(run.config.params))


if __name__ == "__main__":
    main()
