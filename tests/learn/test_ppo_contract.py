"""PPO inherits the contract, for every kind of network, action and engine."""

from __future__ import annotations

from tests.contracts.learner import LearnerContract
from tests.learn.learner_cases import PPO_CASES, ppo_of
from tests.learn.learners import make_ppo, trading_worlds
from velodrome.learn.config import PPOConfig

REFUSALS = {
    "fewer samples than minibatches": (
        lambda: make_ppo(trading_worlds(4), minibatches=33),
        "minibatches = 33, but a rollout has only 32 samples",
    ),
    "fewer whole environments than minibatches": (
        lambda: make_ppo(trading_worlds(4), {"kind": "gru"}, minibatches=33),
        "minibatches = 33, but a rollout has only 4 environments",
    ),
    "a critic that is to learn alone and shares its layers": (
        lambda: make_ppo(trading_worlds(4), {"shared": True}, critic_first=64).iterate(),
        "critic_first: the critic cannot learn alone while it shares",
    ),
}


class TestPPO(LearnerContract):
    cases = PPO_CASES
    config = PPOConfig
    reported = ("loss/policy", "policy/entropy", "policy/kl", "policy/clip_fraction", "value/explained_variance")
    refusals = REFUSALS
    # The compiled loops promise it; torch's own products do not.
    threaded = ("mlp, discrete", "mlp, continuous, normalised", "shared, relu, value clip")
    fresh = ("mlp, discrete, normalised", "gru, continuous, shared")

    def worlds(self, case, num_envs, seed, threads):
        return trading_worlds(num_envs, seed=seed, threads=threads, **PPO_CASES[case][1])

    def learner(self, case, worlds, seed):
        return ppo_of(case, worlds, seed)

    def spoil(self, learner):
        learner.starts.fill_(True)
