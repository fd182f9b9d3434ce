"""DQN inherits the contract, for every kind of target, memory and network."""

from __future__ import annotations

from functools import partial

from tests.contracts.learner import LearnerContract
from tests.learn.learner_cases import DISTURBED, DQN_CASES, DQN_DISTURBED, make_dqn
from tests.learn.learners import trading_worlds
from velodrome.learn.config import DQNConfig

REFUSALS = {
    "continuous actions": (lambda: make_dqn(trading_worlds(2, action="continuous")), "one of several actions"),
    "a network with memory": (partial(make_dqn, network={"kind": "gru"}), "gru"),
    "a buffer smaller than a step": (partial(make_dqn, buffer_size=5), "buffer_size = 5 "),
}


class TestDQN(LearnerContract):
    cases = DQN_CASES
    config = DQNConfig
    reported = ("value/mean_q", "policy/epsilon")
    refusals = REFUSALS
    threaded = ("mlp", "three steps, normalised")  # of the environments
    fresh = ("prioritised, two steps, normalised",)
    before, after, elsewhere = 5, 3, 6  # the ring of the buffer wraps in the fifth
    many = 20

    def worlds(self, case, num_envs, seed, threads):
        disturb = DISTURBED if case in DQN_DISTURBED else None
        return trading_worlds(num_envs, seed=seed, threads=threads, disturb=disturb)

    def learner(self, case, worlds, seed):
        network, config = DQN_CASES[case]
        return make_dqn(worlds, network, seed, **config)
