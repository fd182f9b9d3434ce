"""CAGE-2's own evaluation: mean returns at 30, 50 and 100 steps against each Red agent, beside published scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError
from velodrome.runs.run import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from velodrome.evaluation.play import Policy

LENGTHS = (30, 50, 100)
RED_AGENTS = ("b_line", "meander", "sleep")
EPISODES = 1_000
NUM_ENVS = 500
NORMAL_95 = 1.959964  # standard errors of a 95 % interval

# Final leader board of the challenge: mean return at 30, 50 and 100 steps over 1,000 episodes, under the original rule.
PUBLISHED = {
    "CardiffUni (PPO, greedy decoys)": {"b_line": (-3.47, -6.41, -13.76), "meander": (-5.64, -8.69, -16.6)},
    "Keeping it RL (ensemble)": {"b_line": (-3.48, -5.85, -11.39), "meander": (-6.47, -10.33, -19.38)},
    "Mindrake HIPPO": {"b_line": (-3.53, -6.2, -12.78), "meander": (-6.76, -10.13, -17.65)},
    "Keeping it RL (plain PPO)": {"b_line": (-4.76, -8.13, -17.19), "meander": (-8.03, -12.91, -22.94)},
    "CCS PPO benchmark": {"b_line": (-8.75, -14.92, -30.19), "meander": (-7.31, -12.04, -22.21)},
}  # fmt: skip


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
    """Scores of an agent and of simple policies, and the rule that they were made under."""

    agent: str
    rule: dict[str, Any]
    scores: tuple[Score, ...]

    def of(self, policy: str, red_agent: str, length: int) -> Score:
        """Return one score."""
        return next(
            score
            for score in self.scores
            if (score.policy, score.red_agent, score.length) == (policy, red_agent, length)
        )

    def total(self, policy: str) -> float:
        """Return the challenge's score: the sum of all mean returns."""
        return sum(score.mean for score in self.scores if score.policy == policy)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return {"agent": self.agent, "rule": self.rule, "scores": [asdict(score) for score in self.scores],
                "published": PUBLISHED}  # fmt: skip

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def save(self, folder: Path) -> Path:
        """Write official.json into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "official.json"
        path.write_text(self.to_json() + "\n", encoding="utf-8")
        return path

    def table(self) -> RenderableType:
        """Return the table for people; print it with rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        episodes = self.scores[0].episodes
        table = Table(title=f"CAGE-2, mean return of {episodes:,} episodes with 95 % interval", title_justify="left")
        table.add_column("")
        played = [red for red in RED_AGENTS if any(score.red_agent == red for score in self.scores)]
        for red in played:
            for length in LENGTHS:
                table.add_column(f"{red}\n{length} steps", justify="right")
        table.add_column("sum", justify="right")
        for policy in dict.fromkeys(score.policy for score in self.scores):
            cells = []
            for red in played:
                for length in LENGTHS:
                    score = self.of(policy, red, length)
                    cells.append(f"{score.mean:.2f}\n± {(score.high - score.low) / 2:.2f}")
            table.add_row(policy, *cells, f"{self.total(policy):.1f}")
        table.add_section()
        for name, known in PUBLISHED.items():
            published = [f"{value:g}" for red in played for value in known.get(red, ("–",) * 3) if value != "–"]
            missing = [""] * (len(played) * 3 - len(published))
            table.add_row(f"{name}, published", *published, *missing, "")
        said = ", ".join(f"{name} = {value}" for name, value in self.rule.items())
        return Group(table, Text(f"rule: {said}. Published scores: leader board of the challenge, original rule."))


def official_evaluation(
    run: str | Path | Run, *, root: str | Path = "runs", checkpoint: str = "best", episodes: int = EPISODES,
    baselines: bool = True, progress: Callable[[str, int, int], None] | None = None,
) -> OfficialScores:  # fmt: skip
    """Play CAGE-2's evaluation with a run's policy, and with simple ones, and keep the result in the run's folder."""
    found = Run.open(run, root)
    config = found.config
    if config.env != "cage2":
        raise ConfigError(
            f"{found.path}: the official evaluation is CAGE-2's, and this run is of {config.env!r}. Leave --official "
            "out."
        )
    if episodes < 2:
        raise ConfigError(f"episodes = {episodes}: an interval needs at least 2")
    policy = found.load_policy(checkpoint)
    scores = play_official(
        policy, f"agent ({found.path.name})", config.params, episodes, config.seed, baselines, progress
    )
    scores.save(found.folder.evaluation_path)
    return scores


def play_official(
    policy: Policy, name: str, params: dict[str, Any], episodes: int = EPISODES, seed: int = 0, baselines: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> OfficialScores:  # fmt: skip
    """Return the scores of a policy trained with these parameters of the environment, and of simple policies."""
    from velodrome.evaluation.cage2.policies import POLICIES, simple_policy

    rule = {key: value for key, value in _rule_of(params).items() if key not in ("red_agent", "episode_length")}
    contenders: list[tuple[str, Any, dict[str, Any]]] = [(name, policy, rule)]
    # The simple ones know the 52 bits and the 145 actions only.
    plain = {**rule, "action_set": "full", "scan_memory": False, "decoy_memory": False}
    if baselines:
        contenders += [(each, simple_policy(each, seed), plain) for each in POLICIES]
    scores: list[Score] = []
    total = len(contenders) * len(RED_AGENTS) * len(LENGTHS)
    for label, chosen, own_rule in contenders:
        for red in RED_AGENTS:
            for length in LENGTHS:
                scores.append(
                    _score(label, chosen, {**own_rule, "red_agent": red, "episode_length": length}, episodes, seed)
                )
                if progress is not None:
                    progress("policies", len(scores), total)
    return OfficialScores(name, rule, tuple(scores))


def _rule_of(params: dict[str, Any]) -> dict[str, Any]:
    from velodrome.runs.config.parameters import resolved_parameters

    return resolved_parameters("cage2", params)


def _score(label: str, policy: Any, params: dict[str, Any], episodes: int, seed: int) -> Score:
    from velodrome.evaluation.play import play_episodes
    from velodrome.vector.make import make_vec

    envs = make_vec(
        "cage2", min(NUM_ENVS, episodes), backend="native", observation="cursor", seed=seed, threads=1, **params
    )
    try:
        # Seeds that no training used: theirs are spread from small ones.
        played = play_episodes(policy, envs, episodes, seed=seed + 3_000_017)
    finally:
        envs.close()
    returns = played.returns
    error = NORMAL_95 * float(returns.std(ddof=1)) / math.sqrt(len(returns))
    mean = float(returns.mean())
    return Score(label, params["red_agent"], params["episode_length"], mean, mean - error, mean + error, len(returns))
