"""Simple policies for CAGE-2's Blue to beat: sleep, random, and two that react to what the observation shows.

They choose among all 145 actions and read the 52 bits of the observation, four for each host.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError, did_you_mean
from velodrome.evaluation.baselines import ConstantPolicy, Memoryless, RandomPolicy
from velodrome.evaluation.play import Policy

HOSTS, BITS = 13, 4
USER0 = 8  # Red's foothold, from which it cannot be driven out
SLEEP, ANALYSE, REMOVE, RESTORE = 0, 2, 15, 132  # first action of each kind; the host's number is added
ACTIONS = 145


def flat_bits(observation: Any) -> NDArray[np.bool_]:
    """Return the bits of hosts, [n, 13, 4], whatever form observations come in."""
    values = observation["account"] if isinstance(observation, dict) else observation
    return np.asarray(values)[:, : HOSTS * BITS].reshape(-1, HOSTS, BITS) > 0.5


def first_compromised(bits: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the lowest host that is shown as compromised, and whether there is one; Red's foothold is left alone."""
    shown = bits[:, :, 2] | bits[:, :, 3]
    shown[:, USER0] = False
    return np.argmax(shown, axis=1), np.any(shown, axis=1)


class ReactRestore(Memoryless):
    """Restores the first host that is shown as compromised."""

    def act(self, observation: Any) -> NDArray:
        """Return an action for every environment."""
        host, found = first_compromised(flat_bits(observation))
        return np.where(found, RESTORE + host, SLEEP)


class ReactRemove:
    """Removes Red from the first host shown with a user session; restores, or looks again, where more is shown."""

    def begin(self, num_envs: int) -> None:
        """Start counting the steps of every environment."""
        self.step = np.zeros(num_envs, np.int64)

    def act(self, observation: Any) -> NDArray:
        """Return an action for every environment."""
        bits = flat_bits(observation)
        host, found = first_compromised(bits)
        rows = np.arange(len(bits))
        low, high = bits[rows, host, 2], bits[rows, host, 3]
        odd = self.step % 2 == 1
        self.step += 1
        unsure = np.where(odd, ANALYSE + host, RESTORE + host)  # Unknown, 10
        action = np.where(high & ~low, REMOVE + host, np.where(high, RESTORE + host, unsure))
        return np.where(found, action, SLEEP)

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Start counting again in these environments."""
        self.step[ended] = 0


POLICIES = ("sleep", "random", "react_restore", "react_remove")


def simple_policy(name: str, seed: int = 0) -> Policy:
    """Return one of the policies by name."""
    if name == "sleep":
        return ConstantPolicy(SLEEP)
    if name == "random":
        return RandomPolicy(gymnasium.spaces.Discrete(ACTIONS), seed)
    if name == "react_restore":
        return ReactRestore()
    if name == "react_remove":
        return ReactRemove()
    raise ConfigError(f"no policy {name!r}; there are {', '.join(POLICIES)}.{did_you_mean(name, POLICIES)}")
