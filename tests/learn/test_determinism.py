"""Same seed, same numbers to the bit: twice here, in fresh processes, and across a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import pytest
import torch
from safetensors.torch import load, save

from tests.learn.learners import Bandit, foreign_worlds, make_ppo, parameters_of, trading_worlds, without_times
from velodrome.errors import ConfigError

ROOT = Path(__file__).parents[2]
NORMALISED = {"normalise_observations": True, "normalise_rewards": True}
# name: network, environment parameters, settings of PPO
CASES = {
    "mlp, discrete": ({}, {}, {}),
    "mlp, discrete, normalised": ({}, {}, NORMALISED),
    "mlp, continuous, normalised": ({}, {"action": "continuous", "slippage": 0.01}, NORMALISED),
    "mlp, autograd, cosine": ({}, {}, {"engine": "autograd", "schedule": "cosine", "entropy": 0.01}),
    "shared, relu, value clip": ({"shared": True, "activation": "relu"}, {}, {"value_clip": 0.2, "target_kl": 0.01}),
    "batch norm": ({"kind": "mlp_batch_norm"}, {}, NORMALISED),
    "conv, per bar": ({"kind": "conv"}, {}, {"per_bar": "always"}),
    "gru, discrete, normalised": ({"kind": "gru"}, {}, NORMALISED),
    "gru, continuous, shared": ({"kind": "gru", "shared": True}, {"action": "continuous"}, {"schedule": "linear"}),
}


def learner_of(case, seed=3):
    network, environment, config = CASES[case]
    return make_ppo(trading_worlds(6, seed=seed, **environment), network, seed=seed, learning_rate=3e-3, **config)


def iterated(learner, times):
    return [without_times(learner.iterate()) for _ in range(times)]


def assert_same(one, other):
    ours, theirs = parameters_of(one), parameters_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_metrics_and_weights(case):
    one, other = learner_of(case), learner_of(case)
    assert iterated(one, 3) == iterated(other, 3)
    assert_same(one, other)


def test_another_seed_gives_others():
    assert iterated(learner_of("mlp, discrete"), 1) != iterated(learner_of("mlp, discrete", seed=4), 1)


@pytest.mark.parametrize("case", CASES)
def test_six_iterations_are_three_and_three_through_a_checkpoint(case):
    whole, first = learner_of(case), learner_of(case)
    metrics = iterated(whole, 6)
    assert iterated(first, 3) == metrics[:3]
    tensors, plain = first.state()
    saved, words = save(tensors), json.dumps(plain)
    iterated(first, 1)  # what is saved must not move with the learner
    resumed = learner_of(case, seed=3)
    iterated(resumed, 2)  # nothing of what the new learner did before may remain
    resumed.starts.fill_(True)
    resumed.load_state(load(saved), json.loads(words))
    assert resumed.steps == first.steps - first.rollout.samples
    assert iterated(resumed, 3) == metrics[3:]
    assert_same(resumed, whole)
    ends = [learner.state() for learner in (whole, resumed)]
    assert ends[0][1] == ends[1][1]
    for name, tensor in ends[0][0].items():
        assert torch.equal(tensor, ends[1][0][name]), name


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_environments_that_cannot_be_saved_start_new_episodes(kind):
    make = partial(foreign_worlds, partial(Bandit, gymnasium.spaces.Discrete(2)), 4)
    first = make_ppo(make(), {"kind": kind})
    iterated(first, 2)
    resumed = [make_ppo(make(), {"kind": kind}) for _ in range(2)]
    for learner in resumed:
        learner.load_state(*first.state())
        assert learner.starts.all()
        assert not learner.memory.any()
        assert_same(learner, first)
    assert iterated(resumed[0], 2) == iterated(resumed[1], 2)


def test_a_state_of_another_number_of_environments_is_refused():
    tensors, plain = learner_of("mlp, discrete").state()
    del plain["num_envs"]  # as in checkpoints of before the number of environments could change
    other = make_ppo(trading_worlds(70), {})
    with pytest.raises((ConfigError, RuntimeError)):
        other.load_state(tensors, plain)


SCRIPT = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
from tests.learn.test_determinism import iterated, learner_of
for case in ("mlp, discrete, normalised", "gru, continuous, shared"):
    learner = learner_of(case)
    metrics = iterated(learner, 2)
    weights = b"".join(tensor.detach().numpy().tobytes() for tensor in learner.policy.state_dict().values())
    print(json.dumps([metrics, hashlib.sha256(weights).hexdigest()], sort_keys=True))
"""


def test_fresh_processes_give_the_same_metrics_and_weights_to_the_bit():
    command = [sys.executable, "-c", SCRIPT, str(ROOT)]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]  # fmt: skip
    answers = [run.communicate(timeout=240) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert answers[0][0].count("loss/policy") == 4
