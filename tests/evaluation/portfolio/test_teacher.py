"""The forecaster's portfolio as a teacher: its actions stand for its weights, and a policy learns them."""

from __future__ import annotations

import numpy as np
import pytest

import velodrome as vd
from tests.learn.learners import make_ppo
from velodrome.envs.portfolio.config import portfolio_config
from velodrome.errors import ConfigError
from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.forecast.teaching import Lesson, teach
from velodrome.evaluation.portfolio.baselines import chosen_in_training
from velodrome.evaluation.portfolio.teacher import actions_of, teacher
from velodrome.evaluation.validation import validate
from velodrome.learn.acting import TrainedPolicy
from velodrome.rollout.worlds import make_worlds

BASKET = vd.build_basket(vd.synthetic_bars("factors", 3_000, symbols=3, seed=1), windows=1, check_leaks=False)
WEIGHTS = np.array([[0.5, 0.25, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])


@pytest.mark.parametrize("weighting", ["softmax", "simplex", "signed"])
def test_actions_stand_for_the_weights(weighting):
    config = portfolio_config(weighting=weighting)
    actions = actions_of(config, WEIGHTS)
    assert np.abs(actions).max() <= 1.0
    if weighting == "softmax":
        powers = np.exp(config.softmax_of_actions * actions)
        actions = powers / powers.sum(axis=1, keepdims=True)
    assert actions[:, :3] == pytest.approx(WEIGHTS, abs=2e-4)


def test_it_asks_for_new_weights_only_where_they_are_worth_their_costs():
    own = teacher(BASKET, {"fee": 0.0005, "weighting": "signed"})
    rows = np.arange(300, 700)
    nothing = own.targets(rows, np.zeros((len(rows), 13), np.float32))
    held = np.zeros((len(rows), 13), np.float32)
    held[:, 1:4] = own.wanted[rows]
    assert own.targets(rows, held) == pytest.approx(own.wanted[rows], abs=1e-6)
    kept = (nothing == 0.0).all(axis=1) & (own.wanted[rows] > 0.0).any(axis=1)
    assert 0 < kept.sum() < len(rows)  # some forecasts are too small for their costs
    assert (own.targets(rows, np.zeros_like(held))[~kept] == own.wanted[rows][~kept]).all()
    assert not teacher(BASKET, {"fee": 0.1}).wanted.any()


def learner_of(params, **network):
    envs = vd.make_vec("portfolio", 8, market=BASKET, split="train", observation="cursor", seed=0, **params)
    network = {"kind": "instruments", "hidden": (32, 32), **network}
    return make_ppo(make_worlds(envs), network, normalise_observations=True)


def test_a_policy_that_was_taught_does_about_as_well():
    params = {"episode_length": 64}
    learner = learner_of(params)
    teach(learner, teacher(BASKET, params), "portfolio", BASKET, params, Lesson(8_192, 8, 0))
    policy = TrainedPolicy.of(learner.acting, learner.worlds, learner.moments)
    own = validate(policy, "portfolio", BASKET, "test", params)["mean_log_return"]
    rule = chosen_in_training(portfolio_config(**params), [Part(BASKET, "test")])[0]
    assert own > 0.7 * validate(rule.policy, "portfolio", BASKET, "test", rule.params)["mean_log_return"] > 0.0


def test_weights_that_are_drawn_from_the_simplex_are_not_taught():
    params = {"weighting": "simplex"}
    with pytest.raises(ConfigError, match="actions of the kind dirichlet cannot be taught"):
        teach(
            learner_of(params, head="dirichlet"),
            teacher(BASKET, params),
            "portfolio",
            BASKET,
            params,
            Lesson(256, 1, 0),
        )


@pytest.mark.parametrize("params", [{"action": "orders"}, {"action": "discrete"}, {"account_values": "raw"}])
def test_other_actions_cannot_be_taught(params):
    with pytest.raises(ConfigError, match="a portfolio cannot be taught"):
        teacher(BASKET, params)


def test_too_little_to_fit_to():
    few = vd.build_basket(vd.synthetic_bars("factors", 150, symbols=3, seed=1), windows=1, check_leaks=False)
    assert teacher(few, {}) is None
