"""What is learnt: the settings that all share, the levels that are timed, and who says where a policy stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.problems.ar1 import Act, OutOfSample
from velodrome.evaluation.baselines import Memoryless
from velodrome.evaluation.cage2.official import LENGTHS, PUBLISHED
from velodrome.evaluation.play import play_episodes
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.run_config import RunConfig
from velodrome.tables.market import Market
from velodrome.vector.make import make_vec

Judge = Callable[[Act], float]  # where a policy stands
TEST_BARS = 115_000  # with 70,000 to train on, as the default command has
BARS = 70_000 + 15_000 + TEST_BARS
STRETCHES = 2_300  # of the test split, played side by side
EPISODES = 500  # of CAGE-2 in a look at a policy
RED, LENGTH = "b_line", 100
UNTAUGHT: dict[str, Any] = {"teacher.policy": None, "ppo.critic_first": 0}


class Given(NamedTuple):
    """What a contender gets: a configuration of Velodrome, of which others take what they have, and the data."""

    config: RunConfig
    market: Market | None
    seed: int


class ResultProblem(NamedTuple):
    """What is learnt."""

    title: str
    score: str  # what is measured, and where
    presets: Mapping[str, str]  # of Velodrome, by device
    settings: Mapping[str, Any]  # on top of the preset, for everybody
    levels: Mapping[str, float]  # by name, the lowest first
    percent: bool  # whether scores are shares
    judge: Callable[[Given], Judge]
    seed_keys: tuple[str, ...]  # settings that follow the seed
    untaught: Mapping[str, Mapping[str, Any]] = {}  # by device: settings without a teacher; none: nobody has one

    def given(self, device: str, seed: int, taught: bool) -> Given:
        """Build what a training needs, as `velodrome train` does."""
        changes = {} if taught else self.untaught.get(device, {})
        settings = {**self.settings, **dict.fromkeys(self.seed_keys, seed), "device": device, **changes}
        config = load_run_config(self.presets[device], settings)
        config, market, _ = setup.market_to_train_on(config)
        assert market is None or isinstance(market, Market)
        return Given(config, market, seed)

    def is_taught(self, device: str) -> bool:
        """Return whether the preset for a device has a teacher on this problem."""
        return bool(self.untaught) and load_run_config(self.presets[device], self.settings).teacher.policy is not None

    def shown(self, score: float) -> str:
        """Return a score for people."""
        return f"{score:.1%}" if self.percent else f"{score:.1f}"


def market_judge(given: Given) -> Judge:
    """Return the share of what the best rule earns on the same bars of the test split, which nobody has seen.

    On the same bars: a sample of bars is kinder or harsher to everybody alike than the expectation is.
    """
    assert given.market is not None
    test = OutOfSample(given.market, given.config.params, STRETCHES)
    best = test.best_share()
    return lambda act: test.share(act) / best


class _Acting(Memoryless):
    def __init__(self, act: Act) -> None:
        self._act = act

    def act(self, observation: Any) -> NDArray[np.int64]:
        return self._act(observation)


def cage2_judge(given: Given) -> Judge:
    """Return the mean return of episodes that no training has played."""
    params = {**given.config.params, "red_agent": RED, "episode_length": LENGTH}

    def judge(act: Act) -> float:
        with closing(make_vec("cage2", EPISODES, threads=1, **params)) as envs:
            return float(play_episodes(_Acting(act), envs, EPISODES, seed=given.seed + 3_000_017).returns.mean())

    return judge


def published_levels() -> dict[str, float]:
    """Return what others scored against this Red over as many steps, by their names, the lowest first."""
    found = {name: scores[RED][LENGTHS.index(LENGTH)] for name, scores in PUBLISHED.items()}
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


PROBLEMS: dict[str, ResultProblem] = {
    "ar1": ResultProblem(
        "the market ar1 without costs, 70,000 bars to learn from",
        f"share of the known optimum on {TEST_BARS:,} bars that nobody has seen",
        {"cpu": "demo", "cuda": "gpu"},
        {
            "market.source": "ar1",
            "market.length": BARS,
            "market.splits": {"train": 70_000 / BARS, "validation": 15_000 / BARS, "test": TEST_BARS / BARS},
            "market.windows": 8,
            "market.check_leaks": False,
            "params.episode_length": 256,
            "params.fee": 0.0,
        },
        {f"{share:.0%}": share for share in (0.8, 0.9, 0.95, 0.99)},
        True,
        market_judge,
        ("seed", "market.seed"),
        {"cpu": {**UNTAUGHT, "steps": 1_000_000}, "cuda": UNTAUGHT},
    ),
    "cage2": ResultProblem(
        "CAGE-2 against B_line, 36 actions, with memories",
        f"mean return of {EPISODES} episodes of {LENGTH} steps",
        {"cpu": "cage2_reduced", "cuda": "cage2_gpu"},
        {"params.red_agent": RED, "params.episode_length": LENGTH},
        published_levels(),
        False,
        cage2_judge,
        ("seed",),
    ),
}
