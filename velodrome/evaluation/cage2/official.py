"""CAGE-2's own evaluation: mean returns at 30, 50 and 100 steps against each Red agent, beside published scores.

Simple policies play beside the agent: sleep, random, and two that react to what the observation shows. They choose
among all 145 actions and read the 52 bits of the observation, four for each host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from velodrome.envs.cage2.config import Cage2Config
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import ConstantPolicy, Memoryless, RandomPolicy
from velodrome.evaluation.play import Policy, play_episodes
from velodrome.vector.make import make_vec

LENGTHS = (30, 50, 100)
RED_AGENTS = ("b_line", "meander", "sleep")
EPISODES = 1_000
NUM_ENVS = 500
HOSTS, BITS = 13, 4
USER0 = 8  # Red's foothold, from which it cannot be driven out
SLEEP, ANALYSE, REMOVE, RESTORE = 0, 2, 15, 132  # first action of each kind; the host's number is added
ACTIONS = 145
NORMAL_95 = 1.959964  # standard errors of a 95 % interval

# Final leader board of the challenge: mean return at 30, 50 and 100 steps over 1,000 episodes, under the original rule.
PUBLISHED = {
    "CardiffUni (PPO, greedy decoys)": {"b_line": (-3.47, -6.41, -13.76), "meander": (-5.64, -8.69, -16.6)},
    "Keeping it RL (ensemble)": {"b_line": (-3.48, -5.85, -11.39), "meander": (-6.47, -10.33, -19.38)},
    "Mindrake HIPPO": {"b_line": (-3.53, -6.2, -12.78), "meander": (-6.76, -10.13, -17.65)},
    "Keeping it RL (plain PPO)": {"b_line": (-4.76, -8.13, -17.19), "meander": (-8.03, -12.91, -22.94)},
    "CCS PPO benchmark": {"b_line": (-8.75, -14.92, -30.19), "meander": (-7.31, -12.04, -22.21)},
}


# The policies to beat


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


SIMPLE: Mapping[str, Callable[[int], Policy]] = {  # from a seed
    "sleep": lambda seed: ConstantPolicy(SLEEP),
    "random": lambda seed: RandomPolicy(gymnasium.spaces.Discrete(ACTIONS), seed),
    "react_restore": lambda seed: ReactRestore(),
    "react_remove": lambda seed: ReactRemove(),
}


# The table of scores


@dataclass(frozen=True)
class Score:
    """Mean return of one policy against one Red agent over episodes of one length."""

    policy: str
    red_agent: str
    length: int
    mean: float
    low: float  # 95 % interval of the mean
    high: float
    episodes: int


@dataclass(frozen=True)
class OfficialScores:
    """Scores of an agent and of simple policies, and the rule under which they were made."""

    agent: str
    rule: dict[str, Any]
    scores: tuple[Score, ...]

    def of(self, policy: str, red_agent: str, length: int) -> Score:
        """Return one score."""
        wanted = (policy, red_agent, length)
        return next(score for score in self.scores if (score.policy, score.red_agent, score.length) == wanted)

    def total(self, policy: str) -> float:
        """Return the challenge's score: the sum of all mean returns."""
        return sum(score.mean for score in self.scores if score.policy == policy)

    def to_json(self) -> str:
        """Return everything as JSON, the published scores included."""
        return json.dumps({**asdict(self), "published": PUBLISHED}, indent=1)

    def table(self) -> Group:
        """Return the table for people; print it with rich."""
        episodes = self.scores[-1].episodes
        title = f"CAGE-2, mean return of {episodes:,} episodes with 95 % interval"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        table.add_column("Red")
        for length in LENGTHS:
            table.add_column(f"{length} steps", justify="right", no_wrap=True)
        for policy in dict.fromkeys(score.policy for score in self.scores):
            for red in RED_AGENTS:
                scores = [self.of(policy, red, length) for length in LENGTHS]
                cells = [f"{score.mean:.2f} ± {(score.high - score.low) / 2:.2f}" for score in scores]
                table.add_row(policy if red == RED_AGENTS[0] else "", red, *cells)
        table.add_section()
        for name, known in PUBLISHED.items():
            for red, means in known.items():
                table.add_row(name if red == RED_AGENTS[0] else "", red, *(f"{mean:.2f}" for mean in means))
        said = ", ".join(f"{name} = {value}" for name, value in self.rule.items())
        total = f"Sum of all scores of {self.agent}: {self.total(self.agent):.1f}."
        return Group(table, Text(f"{total} Published: leader board of the challenge, original rule.\nrule: {said}"))


def play_official(
    policy: Policy | Sequence[Policy],
    name: str,
    params: Mapping[str, Any],
    episodes: int | None = None,
    seed: int = 0,
    baselines: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> OfficialScores:
    """Return the scores of a policy trained with these parameters of the environment, and of simple policies.

    policy: several are of training seeds, which are scored one by one and by their mean.
    episodes: of each entry of the table; as many as the challenge's own if not given.
    """
    episodes = EPISODES if episodes is None else episodes
    if episodes < 2:
        raise ConfigError(f"episodes = {episodes}: an interval needs at least 2")
    every = Cage2Config.create(**params).model_dump(mode="json")
    rule = {key: value for key, value in every.items() if key not in ("red_agent", "episode_length")}
    each = list(policy) if isinstance(policy, Sequence) else [policy]
    labels = [name] if len(each) == 1 else [f"{name}, training {k} of {len(each)}" for k in range(1, len(each) + 1)]
    contenders: list[tuple[str, Policy, dict[str, Any]]] = [
        (label, one, rule) for label, one in zip(labels, each, strict=True)
    ]
    if baselines:
        # These know the 52 bits and the 145 actions only.
        plain = {**rule, "action_set": "full", **{name: False for name in rule if name.endswith("_memory")}}
        contenders += [(simple, make(seed), plain) for simple, make in SIMPLE.items()]
    entries = [(one, red, length) for one in contenders for red in RED_AGENTS for length in LENGTHS]
    scores: list[Score] = []
    played: dict[tuple[str, str, int], NDArray[np.float64]] = {}  # [episodes] returns
    for (label, chosen, own_rule), red, length in entries:
        own = {**own_rule, "red_agent": red, "episode_length": length}
        returns = played[label, red, length] = _returns(chosen, own, episodes, seed)
        scores.append(_score(label, red, length, returns, len(returns)))
        if progress is not None:
            progress("policies", len(scores), len(entries))
    if len(each) > 1:
        # All play from the same seed: their mean in each episode keeps the chance that they have in common. Its
        # interval is about other episodes of the same agents.
        means = []
        for red, length in ((red, length) for red in RED_AGENTS for length in LENGTHS):
            returns = np.stack([played[label, red, length] for label in labels])
            means.append(_score(name, red, length, returns.mean(axis=0), returns.size))
        scores = means + scores
    return OfficialScores(name, rule, tuple(scores))


def _returns(policy: Policy, params: dict[str, Any], episodes: int, seed: int) -> NDArray[np.float64]:
    """Play episodes, and return the sum of rewards of each."""
    envs = make_vec(
        "cage2", min(NUM_ENVS, episodes), backend="native", observation="cursor", seed=seed, threads=1, **params
    )
    try:
        # Seeds that no training used: theirs are spread from small ones.
        return play_episodes(policy, envs, episodes, seed=seed + 3_000_017).returns
    finally:
        envs.close()


def _score(label: str, red: str, length: int, returns: NDArray[np.float64], episodes: int) -> Score:
    """Return the mean of returns with its interval; episodes: how many were played for them."""
    error = NORMAL_95 * float(returns.std(ddof=1)) / math.sqrt(len(returns))
    mean = float(returns.mean())
    return Score(label, red, length, mean, mean - error, mean + error, episodes)
