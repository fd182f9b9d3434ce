"""What the benchmarks of environments on a CUDA device share: parity with the CPU, and rates of captured steps."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

import velodrome as vd
from velodrome.envs.contract import state_columns
from velodrome.rollout.launch import capture
from velodrome.writing import replace_text

RING = 16  # different actions in one captured graph
REPLAYS = 60


def check_parity(
    name: str, env: Any, params: dict[str, Any], draw: Callable[[np.random.Generator, Any], np.ndarray],
    num_envs: int, steps: int,
) -> None:  # fmt: skip
    """Run CUDA beside the CPU; any bit of outputs or state that differs ends the program."""
    device = vd.make_vec(env, num_envs, backend="cuda", seed=3, **params)
    host = vd.make_vec(env, num_envs, backend="native", seed=3, **params)
    device.reset()
    host.reset()
    rng = np.random.default_rng(5)
    for k in range(steps):
        actions = draw(rng, host.single_action_space)
        theirs = device.step(torch.as_tensor(actions, device="cuda"))
        ours = host.step(actions)
        if not all(np.array_equal(a.cpu().numpy(), b) for a, b in zip(theirs[:4], ours[:4], strict=True)):
            raise SystemExit(f"parity, {name}: step {k} differs")
    for column in state_columns(host.world.state_type):
        if not np.array_equal(np.asarray(device.column(column)), host.column(column)):
            raise SystemExit(f"parity, {name}: the column {column} differs")
    print(f"parity, {name}: {num_envs} environments × {steps} steps: equal bits", flush=True)


def measure(env: Any, num_envs: int, draw: Callable[[int], torch.Tensor], **params: Any) -> float:
    """Return steps per second in a CUDA graph; `draw` makes a batch of actions on the device."""
    envs = vd.make_vec(env, num_envs, backend="cuda", check_actions=False, seed=0, **params)
    envs.reset()
    actions = [draw(num_envs) for _ in range(RING)]
    for chosen in actions:
        envs.step_kernels(chosen)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        for chosen in actions:
            envs.step_kernels(chosen)
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        rates.append(REPLAYS * RING * num_envs / (time.perf_counter() - started))
    envs.close()
    return float(np.median(rates))


def run(description: str, check: Callable[[], None], rows: Callable[[], list[dict[str, Any]]]) -> None:
    """Say what the machine is, check, measure, and write what was asked for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    chosen = parser.parse_args()
    machine = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "numba": numba.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    check()
    measured = rows()
    if chosen.json:
        replace_text(chosen.json, json.dumps({"machine": machine, "measurements": measured}, indent=1) + "\n")
