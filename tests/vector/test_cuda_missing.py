"""backend="cuda" where there is no GPU says so and what to do instead; where there is one, it agrees to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.contracts.comparison import as_numpy, random_actions
from tests.vector.scenarios import SCENARIOS, Scenario, assert_identical, parts, record, trading
from velodrome.envs.contract import state_columns
from velodrome.errors import BackendError, ConfigError

REPOSITORY = Path(__file__).parents[2]


def missing_device() -> str | None:
    """Return why no CUDA device can be used here, or None; the simulator is none."""
    import torch

    from velodrome.vector.cuda import unavailable_reason

    reason = unavailable_reason()
    return "this is the simulator" if reason is None and not torch.cuda.is_available() else reason


MISSING = missing_device()
without_device = pytest.mark.skipif(MISSING is None or "simulator" in MISSING, reason="CUDA can serve here")


def needs_device(test: Any) -> Any:
    """Mark a test as one for a machine with a CUDA device."""
    skipped = pytest.mark.skipif(MISSING is not None, reason=f"no CUDA device: {MISSING}")
    return pytest.mark.gpu(skipped(test))


# Without a device


@without_device
def test_without_a_device_the_message_says_why_and_what_to_do():
    with pytest.raises(BackendError) as caught:
        vd.make_vec("template", 2, backend="cuda")
    message = str(caught.value)
    assert "backend='cuda' cannot serve" in message
    assert MISSING in message
    assert "backend='native'" in message
    assert "NUMBA_ENABLE_CUDASIM=1" in message
    assert "simulator" in message


def test_a_hidden_device_is_no_device():
    """CUDA_VISIBLE_DEVICES is the usual way to lose a device; also the case of every machine without one."""
    program = (
        "import velodrome as vd\n"
        "from velodrome.errors import BackendError\n"
        "try:\n"
        "    vd.make_vec('template', 2, backend='cuda')\n"
        "except BackendError as error:\n"
        "    message = str(error)\n"
        "assert 'native' in message and 'simulator' in message and 'CUDA' in message, message\n"
        "envs = vd.make_vec('template', 2, backend='python', seed=1)\n"
        "envs.reset()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr


@without_device
def test_auto_is_not_cuda_where_there_is_none():
    assert type(vd.make_vec("template", 2)).__name__ == "NativeVectorEnv"


def test_a_wrong_argument_is_named_before_the_missing_device():
    with pytest.raises(ConfigError, match="num_envs = 0"):
        vd.make_vec("template", 0, backend="cuda")
    with pytest.raises(ConfigError, match="observation = 'flt'"):
        vd.make_vec("template", 2, backend="cuda", observation="flt")


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_not_for_cuda(threads):
    with pytest.raises(ConfigError, match="threads is for the native backend"):
        vd.make_vec("template", 2, backend="cuda", threads=threads)


def test_one_environment_is_not_run_on_cuda():
    with pytest.raises(ConfigError, match=r"backend = 'cuda' for one environment; legal: 'native', 'python'"):
        vd.make("template", backend="cuda")


# With a device


@needs_device
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_device_agrees_with_plain_python_to_the_bit(name):
    scenario = SCENARIOS[name]
    envs = scenario.make("cuda")
    assert envs.device.type == "cuda"
    assert_identical(record(scenario.make("python"), scenario), record(envs, scenario))


MANY = Scenario(
    trading(
        {"bars": 300, "instruments": 2}, leverage=(1.0, 20.0), fee=(0.0, 0.01), slippage=1e-3, episode_length=(5, 20)
    ),
    num_envs=1000,
    steps=40,
)


@needs_device
def test_many_environments_agree_with_the_native_backend():
    assert_identical(record(MANY.make("native"), MANY), record(MANY.make("cuda"), MANY))


@needs_device
@pytest.mark.parametrize("observation", ["flat", "dict", "cursor"])
def test_a_captured_graph_replays_the_same_steps(observation):
    import torch

    scenario = Scenario(MANY.world, num_envs=300, steps=12, options={"observation": observation})
    eager, captured = scenario.make("cuda"), scenario.make("cuda")
    eager.reset()
    captured.reset()
    actions = random_actions(eager.single_action_space, 300, 12, seed=3)
    # A graph takes no kernel that is still to be compiled: the first two steps are eager on both.
    for chosen in actions[:2]:
        eager.step(chosen)
        captured.step(chosen)
    buffer = torch.zeros(300, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step_kernels(buffer)
    for chosen in actions[2:]:
        observations, rewards, terminated, truncated, infos = eager.step(chosen)
        buffer.copy_(torch.from_numpy(chosen))
        graph.replay()
        out = captured.buffers.out
        ours = seen_by(eager, rewards, terminated, truncated, observations, infos["statistics"])
        replayed = captured_views(captured)
        theirs = seen_by(captured, out.rewards, out.terminated, out.truncated, *replayed)
        assert_identical([ours], [theirs])


def captured_views(envs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observations and statistics in the buffers that a graph wrote, in the shape that step() gives them."""
    out = envs.buffers.out
    statistics = {name: out.statistics[:, k] for k, name in enumerate(envs.world.statistics)}
    account = out.observations[:, out.window_floats :]
    if envs.observation == "cursor":
        return {"account": account, "cursor": out.cursors}, statistics
    if envs.observation == "flat":
        return out.observations, statistics
    named, at = {"account": account}, 0
    for name, (rows, width) in zip(envs.world.window_names, envs.world.window_shapes, strict=True):
        named[name] = out.observations[:, at : at + rows * width].reshape(-1, rows, width)
        at += rows * width
    return named, statistics


def seen_by(
    envs: Any, rewards: Any, terminated: Any, truncated: Any, observations: Any, statistics: dict[str, Any]
) -> dict[str, np.ndarray]:
    ended = as_numpy(terminated) | as_numpy(truncated)
    return {
        "rewards": as_numpy(rewards).copy(),
        "terminated": as_numpy(terminated).copy(),
        "truncated": as_numpy(truncated).copy(),
        **parts("observations", observations),
        **{name: np.where(ended, as_numpy(values), 0.0) for name, values in statistics.items()},
        **{f"state {name}": envs.column(name) for name in state_columns(envs.world.state_type)},
    }


@needs_device
def test_everything_that_a_step_returns_stays_on_the_device():
    import torch

    envs = vd.make_vec("template", 4, backend="cuda", seed=1)
    observations, _ = envs.reset()
    actions = torch.ones(4, dtype=torch.int64, device="cuda")
    stepped, rewards, terminated, truncated, infos = envs.step(actions)
    for tensor in (observations, stepped, rewards, terminated, truncated, infos["final_obs"], infos["_final_obs"]):
        assert tensor.device.type == "cuda"


@needs_device
def test_the_flags_of_a_step_reset_the_episodes_that_ended():
    """Without autoreset the mask is what step() returned: a tensor on the device."""
    envs = vd.make_vec("template", 4, backend="cuda", seed=1, autoreset=False, length=2)
    envs.reset()
    for _ in range(2):
        _, _, terminated, truncated, _ = envs.step(np.ones(4, np.int64))
    assert bool(truncated.all())
    envs.reset(options={"reset_mask": terminated | truncated})
    assert (envs.column("cursor") == 0).all()
