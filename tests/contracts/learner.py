"""The suite that every learner inherits: subclass it, list cases by name, and say how to make environments and learner.

class TestMine(LearnerContract):
    cases = {"plain": {}}

    def worlds(self, case, num_envs, seed, threads):
        return my_worlds(...)

    def learner(self, case, worlds, seed):
        return Mine(worlds, ...)
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numba
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from tests.learn.learner_cases import assert_same, iterated
from velodrome.errors import ConfigError
from velodrome.evaluation.play import play_episodes
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import LearnerConfig
from velodrome.learn.engines.cpu import lanes
from velodrome.rollout.worlds import Worlds

ROOT = Path(__file__).parents[2]
REPORTED = {
    "loss/value", "optimiser/learning_rate", "optimiser/gradient_norm", "episode/mean_reward", "episode/count",
    "episode/return", "episode/length", "time/environment", "time/inference", "time/learning", "time/other",
    "time/steps_per_second",
}  # fmt: skip
# Of the settings that all learners share, values that none may take, and a name that there is not.
ILLEGAL = {
    "gamma": 1.5, "learning_rate": 0.0, "schedule": "steep", "max_gradient_norm": 0.0, "rollout_length": 0,
    "precision": "float16", "learning_rat": 1e-3,
}  # fmt: skip
FRESH = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
suite = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])()
print(json.dumps({case: suite.fingerprint(case) for case in suite.fresh}, sort_keys=True))
"""


class LearnerContract:
    """What holds for every learner on the CPU."""

    cases: ClassVar[Iterable[str]]
    config: ClassVar[type[LearnerConfig]]
    reported: ClassVar[Iterable[str]]  # metrics beside REPORTED
    refusals: ClassVar[Mapping[str, tuple[Callable[[], Any], str]]]  # by name: what makes a learner, and what is said
    threaded: ClassVar[Iterable[str]]  # cases that give the same bits on any number of threads
    fresh: ClassVar[Iterable[str]]  # cases that are tried in processes of their own
    before, after, elsewhere = 3, 3, 2  # iterations: to a checkpoint, from it on, and of another learner that loads it
    many = 64  # environments, enough for several threads to have something to do

    def worlds(self, case: str, num_envs: int, seed: int, threads: int) -> Worlds:
        raise NotImplementedError

    def learner(self, case: str, worlds: Worlds, seed: int) -> Any:
        raise NotImplementedError

    def spoil(self, learner: Any) -> None:
        """Change what a learner that loads a checkpoint must not keep, where iterating does not change it."""

    def make(self, case: str, num_envs: int = 6, seed: int = 3, threads: int = 1) -> Any:
        return self.learner(case, self.worlds(case, num_envs, seed, threads), seed)

    def fingerprint(self, case: str) -> list[Any]:
        """Return the metrics of some iterations and the hash of the weights."""
        learner = self.make(case)
        metrics = iterated(learner, self.before)
        weights = b"".join(tensor.detach().numpy().tobytes() for tensor in learner.policy.state_dict().values())
        return [metrics, hashlib.sha256(weights).hexdigest()]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        choices = {"case": self.cases, "threaded_case": self.threaded, "refusal": self.refusals, "illegal": ILLEGAL}
        for name, values in choices.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, list(values))

    # The same bits

    def test_the_same_seed_gives_the_same_metrics_and_weights(self, case):
        one, other = self.make(case), self.make(case)
        assert iterated(one, self.before) == iterated(other, self.before)
        assert_same(one, other)

    def test_another_seed_gives_others(self):
        case = next(iter(self.cases))
        assert iterated(self.make(case), 2) != iterated(self.make(case, seed=4), 2)

    def test_iterations_are_the_same_through_a_checkpoint(self, case):
        whole, first, resumed = (self.make(case) for _ in range(3))
        metrics = iterated(whole, self.before + self.after)
        assert iterated(first, self.before) == metrics[: self.before]
        tensors, plain = first.state()
        saved, words, steps = save(tensors), json.dumps(plain), first.steps
        iterated(first, 1)  # what is saved must not move with the learner
        iterated(resumed, self.elsewhere)  # nothing of what the new learner did before may remain
        self.spoil(resumed)
        resumed.load_state(load(saved), json.loads(words))
        assert resumed.steps == steps > 0
        assert iterated(resumed, self.after) == metrics[self.before :]
        assert_same(resumed, whole)
        ours, theirs = resumed.state(), whole.state()
        assert ours[1] == theirs[1]
        assert ours[0].keys() == theirs[0].keys()
        for name, tensor in theirs[0].items():
            assert torch.equal(ours[0][name], tensor), name

    def test_a_checkpoint_of_before_the_first_iteration_is_a_beginning(self, case):
        whole, first, resumed = (self.make(case) for _ in range(3))
        iterated(resumed, self.elsewhere)
        self.spoil(resumed)
        resumed.load_state(*first.state())
        assert resumed.steps == 0
        assert iterated(resumed, self.after) == iterated(whole, self.after)

    def test_a_state_of_another_number_of_environments_is_refused(self):
        case = next(iter(self.cases))
        tensors, plain = self.make(case).state()
        del plain["num_envs"]  # as in checkpoints of before the number of environments could change
        with pytest.raises((ConfigError, RuntimeError)):
            self.make(case, num_envs=7).load_state(tensors, plain)

    def test_a_state_of_another_kind_of_device_is_taken_with_other_random_numbers_and_a_note(self):
        case = next(iter(self.cases))
        first, resumed = self.make(case), self.make(case)
        iterated(first, 1)
        tensors, plain = first.state()
        assert resumed.load_state(tensors, plain) == []
        tensors["learner.generator"] = torch.zeros(16, dtype=torch.uint8)  # as a CUDA generator's
        (note,) = resumed.load_state(tensors, plain)
        assert note == "it goes on on cpu, another device than before, with other random numbers"
        assert iterated(first, 1) != iterated(resumed, 1)

    def test_evaluation_does_not_disturb_training(self, case):
        learner, undisturbed = self.make(case), self.make(case)
        for _ in range(self.before):
            assert iterated(learner, 1) == iterated(undisturbed, 1)
            policy = TrainedPolicy.of(learner.policy, learner.worlds, learner.moments)
            play_episodes(policy, self.worlds(case, 4, 99, 1).envs, 8, seed=99)
        assert iterated(learner, self.after) == iterated(undisturbed, self.after)
        assert_same(learner, undisturbed)

    def test_threads_do_not_change_results(self, threaded_case, monkeypatch):
        if numba.config.NUMBA_NUM_THREADS < 2:
            pytest.skip("there is one core")
        found = []
        for threads in (1, 2):
            monkeypatch.setattr(lanes, "available_cores", lambda threads=threads: threads)  # of the compiled loops
            learner = self.make(threaded_case, self.many, threads=threads)
            found.append((iterated(learner, self.before), learner))
        assert found[0][0] == found[1][0]
        assert_same(found[0][1], found[1][1])

    def test_a_fresh_process_gives_the_same_metrics_and_weights_to_the_bit(self):
        command = [sys.executable, "-c", FRESH, str(ROOT), type(self).__module__, type(self).__name__]
        seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        # DQN's bits depend on how many threads torch has, and tests that run in one process set it after the start.
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        answer = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout)
        assert found == json.loads(json.dumps({case: self.fingerprint(case) for case in self.fresh}))
        assert all("loss/value" in metrics[-1] for metrics, _ in found.values())

    # What is reported, and what is refused

    def test_metrics_have_their_names_and_are_numbers(self, case):
        learner = self.make(case)
        for _ in range(self.before):
            metrics = learner.iterate()
        assert metrics.keys() >= REPORTED | set(self.reported)
        assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
        if "action/0" in metrics:
            shares = [value for name, value in metrics.items() if name.startswith("action/")]
            assert sum(shares) == pytest.approx(1.0)
        else:
            assert {"action/mean", "action/std"} <= metrics.keys()
        phases = sum(metrics[f"time/{name}"] for name in ("environment", "inference", "learning", "other"))
        steps = learner.worlds.num_envs * learner.config.rollout_length
        assert learner.steps == self.before * steps
        assert metrics["time/steps_per_second"] == pytest.approx(steps / phases, rel=1e-6)

    def test_what_it_cannot_do_is_refused_with_a_message(self, refusal):
        make, message = self.refusals[refusal]
        with pytest.raises(ConfigError, match=message):
            make()

    def test_an_illegal_setting_is_refused_by_its_name(self, illegal):
        with pytest.raises(ValidationError, match=illegal):
            self.config(**{illegal: ILLEGAL[illegal]})
