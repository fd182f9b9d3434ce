"""On a CUDA device: the adapters agree with the CPU, and TorchRL's steps and resets copy nothing to the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.adapters import device_cases
from tests.vector.test_cuda_missing import needs_device
from velodrome.adapters.torchrl import to_torchrl


@needs_device
@pytest.mark.parametrize("observation", ["flat", "dict", "cursor"])
@pytest.mark.parametrize("copy", [False, True])
def test_torchrl_sees_the_same_episodes_as_on_the_cpu(observation, copy):
    device_cases.check_torchrl(observation, copy=copy)


@needs_device
def test_flags_that_were_changed_are_followed():
    device_cases.check_changed_flags()


@needs_device
def test_a_wrapper_in_between_is_asked_for_its_resets():
    device_cases.check_wrapped()


@needs_device
@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_stable_baselines_sees_the_same_arrays_as_on_the_cpu(observation):
    pytest.importorskip("stable_baselines3")
    device_cases.check_sb3(observation)


def copies_to_the_host(function: Any) -> list[str]:
    """Return the names of what copied memory of the device to the host while a function ran."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        function()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert any("step_kernel" in name for name in names), names
    return [name for name in names if "DtoH" in name or "Device -> " in name.replace("Device -> Device", "")]


@needs_device
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("observation", ["flat", "dict", "cursor"])
def test_steps_and_resets_copy_nothing_to_the_host(observation):
    env = to_torchrl(device_cases.trading("cuda", 256, observation=observation))
    current = env.reset()
    actions = torch.randint(0, 3, (40, 256), device="cuda")
    assert all(part.device.type == "cuda" for part in current.values())

    def play(first: int) -> None:
        nonlocal current
        for step in range(first, first + 15):
            _, current = env.step_and_maybe_reset(current.set("action", actions[step]))
        # Ours alone: EnvBase.reset() around it asks whether any flag is set.
        env._reset(current.select().set("_reset", actions[first, :, None] == 0))

    play(0)  # compiles what it needs
    # Torch itself refuses whatever would wait for the device.
    torch.cuda.set_sync_debug_mode("error")
    try:
        play(15)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert copies_to_the_host(lambda: play(20)) == []
    assert copies_to_the_host(lambda: (play(20), env.envs.step(actions[0])[1].cpu())) != []


@needs_device
def test_an_action_outside_its_space_ends_the_process():
    import subprocess
    import sys

    code = (
        "import torch\n"
        "from tests.adapters.device_cases import trading\n"
        "from velodrome.adapters.torchrl import to_torchrl\n"
        "env = to_torchrl(trading('cuda'))\n"
        "env.step(env.reset().set('action', torch.full((4,), 3, device='cuda')))\n"
        "torch.cuda.synchronize()\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert answer.returncode != 0
    assert "assert" in answer.stderr
