"""One training of one contender on one market, and how well it does on what it saw and on what it did not see."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from velodrome.bench.generalise.references import best_filtered, best_with_costs
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market
from velodrome.tables.scaling import TRAIN

VOLATILITY = 1e-3  # of a bar's log return, the default of synthetic bars
PHI = 0.3
COST = 2e-4  # of a unit of position that is traded, where trading costs anything
STATES = np.array([(0.15, 0.8), (-0.15, 1.2)]) * VOLATILITY
PERSISTENCE = 0.98
SEEN, CHOSEN_BY = 0.7, 0.15  # of the bars: the training and the validation split; the rest is tested on
FEWEST_TESTED = 20_000  # bars, made on top where the rest is shorter: a few hundred say little about an agent
CHECKS = 10  # evaluations of a training, as many as the preset has
MEMBERS = 8  # of an ensemble
RIDGE, LOGISTIC, SB3, ENSEMBLE = "ridge", "logistic", "sb3", f"ensemble-of-{MEMBERS}"
ALIKE = f"{ENSEMBLE}-alike"  # its members begin as the same rule, and leave it for any better validation
REGRESSIONS = (RIDGE, LOGISTIC)
UNTAUGHT = {"teacher.policy": None, "teacher.hold": 0.0, "ppo.critic_first": 0, "ppo.average_weights": False}
# Settings that are changed against the preset of the problem, by name; the first is the preset itself.
REMEDIES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "whole-windows": {"market.shorten": False},
    # The preset `trading` until there was this table.
    "before": {
        "market.shorten": False,
        "ppo.learning_rate": 3e-4,
        "ppo.entropy": 0.0,
        "evaluation.averaged": 1,
        **UNTAUGHT,
    },
    "not-taught": UNTAUGHT,
    "not-held": {"teacher.hold": 0.0},
    "latest-weights": {"ppo.average_weights": False},
    "slower": {"ppo.learning_rate": 3e-4},
    "more-entropy": {"ppo.entropy": 0.01},
    "small-network": {"network.hidden": [16, 16]},
    "weight-decay": {"ppo.weight_decay": 1.0},
    "kl-penalty": {"ppo.kl_penalty": 1.0},
    "noise": {"augment.noise": 0.3},
    "masked-features": {"augment.mask_features": 0.1},
    "masked-bars": {"augment.mask_bars": 0.1},
    "layer-norm": {"network.layer_norm": True},
    "dropout": {"network.dropout": 0.1},
    "other-histories": {"augment.copies": 64, "augment.bootstrap_block": 8},
    "other-histories-whole-windows": {"augment.copies": 64, "augment.bootstrap_block": 8, "market.shorten": False},
    ENSEMBLE: {},
    ALIKE: {"teacher.bars": "all", "evaluation.margin": 0.0},  # as ensembles were until members differed
}


class Problem(NamedTuple):
    """A kind of market, and what is traded on it."""

    source: str  # kind of synthetic bars
    market: Mapping[str, Any] = {}  # its parameters
    cost: float = 0.0
    env: str = "trading"


PROBLEMS: dict[str, Problem] = {
    "ar1": Problem("ar1"),
    # Where its price returns to, the default features do not follow.
    "ou": Problem("ou", {"features": ["log_return", "close"]}),
    "regimes": Problem("regimes", {"states": [tuple(state) for state in STATES.tolist()], "persistence": PERSISTENCE}),
    "ar1-with-costs": Problem("ar1", cost=COST),
    "factors": Problem("factors", {"symbols": 5}, env="portfolio"),
}


class Training(NamedTuple):
    """What is trained on what; its name is the key of its result."""

    problem: str
    bars: int  # training split and the rest together
    windows: int
    contender: str  # one of REMEDIES, REGRESSIONS or SB3
    market_seed: int
    seed: int
    steps: int  # 0: as many as the preset has, none for a regression

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return ", ".join(f"{field} {value}" for field, value in zip(self._fields, self, strict=True))


class Point(BaseModel):
    """Where a policy stood: mean log returns of a bar over the best one known."""

    steps: int
    in_sample: float
    validation: float
    out_of_sample: float = Field(description="on the test split, which chose nothing")


class Trained(BaseModel):
    """What a training came to."""

    problem: str
    bars: int
    windows: int
    contender: str
    market_seed: int
    seed: int
    points: list[Point] = Field(description="along the training; a regression has one")
    seconds: float

    members: list[Point] = Field([], description="of an ensemble, each by itself; the points are of all as one policy")
    averaged: int = Field(1, description="points whose mean on validation chooses among them, as in a run")
    kept: int | None = Field(None, description="place of the point that validation chose; files of before have none")

    @property
    def chosen(self) -> Point:
        """Where the checkpoint stood that did best on validation."""
        if self.kept is not None:
            return self.points[self.kept]
        judged = [point.validation for point in self.points]
        # What a policy was taught counts as if it had been there all along.
        early = self.averaged - 1 if self.points[0].steps == 0 else 0
        count = min(self.averaged, early + len(judged))
        means = np.convolve(judged[:1] * early + judged, np.full(count, 1.0 / count), "valid")
        return self.points[int(np.argmax(means)) + count - 1 - early]


def can_be_asked(problem: str, contender: str) -> bool:
    """Return whether a problem knows a contender: portfolios have neither other histories nor logistic regression."""
    unknown = contender in (LOGISTIC, "before") or "augment.copies" in REMEDIES.get(contender, {})
    return PROBLEMS[problem].env == "trading" or not unknown


def best_log_return(problem: str, market: Market | Basket) -> float:
    """Return the best log return of a bar."""
    if PROBLEMS[problem].cost:
        return best_with_costs(PHI, VOLATILITY, PROBLEMS[problem].cost).log_return
    return market.optimum if market.optimum is not None else best_filtered(STATES, PERSISTENCE)


def settings_of(training: Training, problem: Problem) -> dict[str, Any]:
    """Return the settings of a training on top of the preset, by dotted key."""
    given: dict[str, Any] = {f"market.{key}": value for key, value in problem.market.items()}
    seen, chosen_by = round(SEEN * training.bars), round(CHOSEN_BY * training.bars)
    length = seen + chosen_by + max(training.bars - seen - chosen_by, FEWEST_TESTED)
    shares = {"train": seen / length, "validation": chosen_by / length}
    given |= {
        "env": problem.env,
        "market.source": problem.source,
        "market.length": length,
        "market.seed": training.market_seed,
        "market.splits": {**shares, "test": 1.0 - sum(shares.values())},
        "market.check_leaks": False,
        "market.windows": training.windows,
        "params.fee": problem.cost,
        "seed": training.seed,
        "device": "cpu",
        **REMEDIES.get(training.contender, {}),
    }
    return given | ({"steps": training.steps} if training.steps else {})


def train(training: Training) -> Trained:
    """Train, in a process of its own with one thread."""
    import torch

    from velodrome.runs import setup
    from velodrome.runs.config.files import load_run_config

    torch.set_num_threads(1)
    given = settings_of(training, PROBLEMS[training.problem])
    config = load_run_config(None, given, own_data=True)
    if training.contender in REMEDIES:
        config, market, _ = setup.market_to_train_on(config)
    else:  # a regression chooses by itself, and a peer sees what it is given
        market = setup.build_market(config)
    assert market is not None
    began = time.perf_counter()
    best = best_log_return(training.problem, market)
    judge = Judge(market, config.env, config.params, best)
    points: list[Point] = []
    members: list[Point] = []
    kept: int | None = None
    if training.contender in REGRESSIONS:
        points = _regression(config, market, judge, training.contender)
    elif training.contender == SB3:
        points = _sb3(config, market, judge)
    elif training.contender in (ENSEMBLE, ALIKE):
        points, members = _ensemble(config, market, judge)
    else:
        points, kept, _ = _agent(config, market, judge)
    about = training._asdict()
    del about["steps"]
    chosen = {"averaged": config.evaluation.averaged, "kept": kept}
    return Trained(**about, points=points, seconds=time.perf_counter() - began, members=members, **chosen)


class Judge(NamedTuple):
    """Says where a policy stands."""

    market: Market | Basket
    env: str
    params: Mapping[str, Any]
    best: float  # log return of a bar

    def point(self, policy: Any, steps: int) -> Point:
        """Play all three splits."""
        from velodrome.evaluation.validation import validate

        whole = {name: self.market.splits[name] for name in ("validation", "test")}
        # Under a name of its own the training split may be played, too.
        seen = {**whole, "seen": self.market.splits[TRAIN]}
        open_market = dataclasses.replace(self.market, splits=seen)
        found = {
            name: validate(policy, self.env, open_market, name, self.params)["mean_log_return"] / self.best
            for name in seen
        }
        return Point(steps=steps, in_sample=found["seen"], validation=found["validation"], out_of_sample=found["test"])

    def validation(self, policy: Any) -> Any:
        """Return what a run chooses its checkpoint by."""
        from velodrome.evaluation.validation import Validation, validate_parts

        figures, parts = validate_parts(policy, self.env, self.market, "validation", self.params)
        return Validation(figures, tuple(parts.tolist()))


def _agent(config: Any, market: Market | Basket, judge: Judge, along: bool = True) -> tuple[list[Point], int, Any]:
    """Train one agent; return where it stood along the way, if asked for, and place and policy of what was chosen."""
    from velodrome.evaluation.validation import BestSoFar
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.runs import setup

    points: list[Point] = []
    best, place, kept = BestSoFar(config.evaluation.averaged, config.evaluation.margin), 0, None
    with setup.learning_worlds(config, market, "cpu") as worlds:
        learner = setup.make_learner(config, worlds)
        check = first = 0 if setup.teach(config, market, learner) else 1
        while True:
            if learner.steps >= config.steps * check / CHECKS:
                policy = TrainedPolicy.of(learner.acting, learner.worlds, learner.moments)
                points += [judge.point(policy, learner.steps)] if along else []
                if best.is_improved_by(judge.validation(policy), taught=learner.steps == 0):
                    place, kept = check - first, copy.deepcopy(policy)
                check += 1
            if learner.steps >= config.steps:
                return points, place, kept
            learner.iterate()


def _ensemble(config: Any, market: Market | Basket, judge: Judge) -> tuple[list[Point], list[Point]]:
    """Train several agents; return where they stand as one policy, and where each of them stands."""
    from velodrome.learn.ensembles import ensemble_of
    from velodrome.runs.trained import as_member

    member, seeds = as_member(config), range(MEMBERS * config.seed, MEMBERS * (config.seed + 1))
    policies = [_agent(member.model_copy(update={"seed": seed}), market, judge, along=False)[-1] for seed in seeds]
    alone = [judge.point(policy, config.steps) for policy in policies]
    return [judge.point(ensemble_of(policies), config.steps)], alone


def _regression(config: Any, market: Market | Basket, judge: Judge, kind: str) -> list[Point]:
    """Return where the forecaster of evaluations stands, with one kind of regression."""
    from velodrome.envs.portfolio.config import portfolio_config
    from velodrome.envs.trading.config import trading_config
    from velodrome.evaluation.forecast.forecast import Part
    from velodrome.evaluation.portfolio.baselines import chosen_in_training
    from velodrome.evaluation.trading.baselines import forecaster

    whole = ((int(market.begin[0]), int(market.end[0])),)
    part: Part[Any] = Part(dataclasses.replace(market, splits={TRAIN: market.splits[TRAIN], "all": whole}), "all")
    if config.env == "trading":
        return [judge.point(forecaster(trading_config(**config.params), [part], (kind,)).policy, 0)]
    found = chosen_in_training(portfolio_config(**config.params), [part])[0]
    return [judge._replace(params=found.params or {}).point(found.policy, 0)]


def _sb3(config: Any, market: Market | Basket, judge: Judge) -> list[Point]:
    """Train PPO of Stable-Baselines3 with the settings that its zoo begins from, on normalised rewards."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecNormalize

    import velodrome as vd

    envs = vd.make_vec(config.env, 8, market=market.split("train"), seed=config.seed, **config.params)
    normalised = VecNormalize(vd.to_sb3(envs), norm_obs=False)
    model = PPO("MlpPolicy", normalised, n_steps=256, seed=config.seed, device="cpu", verbose=0)
    policy, points = _Sb3Policy(model, market), []
    for check in range(CHECKS):
        model.learn(config.steps // CHECKS, reset_num_timesteps=check == 0)
        points.append(judge.point(policy, model.num_timesteps))
    envs.close()
    return points


class _Sb3Policy:
    """Acts by a model of Stable-Baselines3, on the windows that a cursor stands for and the account."""

    def __init__(self, model: Any, market: Market | Basket) -> None:
        from velodrome.rollout.observation import WindowBank

        self.model, self.bank = model, WindowBank(market.windows)

    def begin(self, num_envs: int) -> None:
        """Do nothing: it has no memory."""

    def forget(self, ended: Any) -> None:
        """Do nothing: it has no memory."""

    def act(self, observation: Any) -> Any:
        """Return the most likely action of every environment."""
        import torch

        windows = self.bank.gather(torch.from_numpy(np.asarray(observation["cursor"]).astype(np.int64))).numpy()
        return self.model.predict(np.concatenate([windows, observation["account"]], axis=1), deterministic=True)[0]
