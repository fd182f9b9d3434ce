"""The CUDA engine, in Numba's simulator, acts and learns as plain autograd does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.cuda import simulated_records
from tests.learn.engines.engine_cases import CASES, make_setting
from tests.learn.test_policy import make_policy
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.autograd import Task
from velodrome.learn.engines.choice import cannot_serve
from velodrome.learn.ppo import ppo_loss

SCRIPT = Path(__file__).with_name("simulated_gpu.py")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Pairs of what was found and what was expected, by case; a traceback where one failed."""
    return simulated_records(str(SCRIPT), tmp_path_factory.mktemp("cuda") / "pairs.pickle")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_acting_and_learning_agree_with_autograd(case, simulated):
    pairs = simulated[case.name]
    assert isinstance(pairs, dict), pairs
    gradients = 0
    for name, (found, expected) in pairs.items():
        if "gradient" in name:
            scale = float(expected.abs().max())
            assert scale > 0.0, name
            gradients += 1
        else:
            scale = 1.0
        torch.testing.assert_close(found / scale, expected / scale, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: n + m)
    assert gradients == 2 * len(list(make_setting(case).policy.parameters()))


def test_the_gradients_of_parts_add_up_to_the_same_step(simulated):
    parted = {name: pairs for name, pairs in simulated.items() if name.startswith("parts of")}
    assert len(parted) == 2
    for case, pairs in parted.items():
        assert isinstance(pairs, dict), pairs
        for name, (found, expected) in pairs.items():
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6, msg=f"{case} {name}")


def test_the_sums_along_a_rollout_agree_with_the_slow_ones(simulated):
    assert isinstance(simulated["sums"], dict), simulated["sums"]
    for name, (found, expected) in simulated["sums"].items():
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("what", ["worlds", "disturbances"])
def test_what_is_on_the_device_is_that_of_the_cpu_to_the_bit(what, simulated):
    assert isinstance(simulated[what], dict), simulated[what]
    for name, (found, expected) in simulated[what].items():
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(
    ("policy", "config", "activation", "reason"),
    [({"kind": "conv"}, {}, "tanh", "perceptron"), ({}, {"compile": True}, "tanh", "compile"),
     ({}, {"per_bar": "always"}, "tanh", "per_bar"), ({}, {}, "gelu", "gelu"),
     ({"layer_norm": True}, {}, "tanh", "network.layer_norm = true; this engine has no norms"),
     ({"dropout": 0.1}, {}, "tanh", "network.dropout = 0.1; this engine leaves no units out")],
)  # fmt: skip
def test_what_the_engine_cannot_run_is_said(policy, config, activation, reason):
    task = Task(make_policy(**policy), None, PPOConfig(**config), activation, ppo_loss)
    assert reason in cannot_serve("cuda", task)
    if "network." in reason:
        assert reason in cannot_serve("fused", task)
    assert cannot_serve("cuda", Task(make_policy(), None, PPOConfig(), "tanh", ppo_loss)) is None
