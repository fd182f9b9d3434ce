"""SAC inherits the contract, for a given and a learnt weight of the entropy and every kind of network."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np

from tests.contracts.learner import LearnerContract
from tests.learn.learner_cases import DISTURBED, SAC_CASES, SAC_DISTURBED, make_sac
from tests.learn.learners import Bandit, foreign_worlds, trading_worlds
from velodrome.learn.config import SACConfig

ENDLESS = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
WHOLE = gymnasium.spaces.Box(-2, 2, (2,), np.int64)
REFUSALS = {
    "discrete actions": (lambda: make_sac(trading_worlds(2)), r"Box of one dimension.*algorithm = 'ppo'"),
    "a range without ends": (lambda: make_sac(foreign_worlds(partial(Bandit, ENDLESS), 2)), "ends are finite"),
    "whole numbers": (lambda: make_sac(foreign_worlds(partial(Bandit, WHOLE), 2)), "of floats"),
    "a network with memory": (partial(make_sac, network={"kind": "gru"}), "'gru': SAC replays single steps"),
    "batch norms": (partial(make_sac, network={"kind": "mlp_batch_norm"}), "statistics differ"),
    "a buffer smaller than a step": (partial(make_sac, buffer_size=5), r"sac\.buffer_size = 5 "),
}


class TestSAC(LearnerContract):
    cases = SAC_CASES
    config = SACConfig
    reported = ("loss/policy", "value/mean_q", "policy/entropy", "policy/entropy_weight")
    refusals = REFUSALS
    threaded = ("mlp", "normalised, linear")  # of the environments
    fresh = ("normalised, linear",)
    before, after, elsewhere = 5, 3, 6  # the ring of the buffer wraps in the fifth
    many = 20

    def worlds(self, case, num_envs, seed, threads):
        disturb = DISTURBED if case in SAC_DISTURBED else None
        return trading_worlds(num_envs, seed=seed, threads=threads, disturb=disturb, action="continuous")

    def learner(self, case, worlds, seed):
        network, config = SAC_CASES[case]
        return make_sac(worlds, network, seed, **config)
