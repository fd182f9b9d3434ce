"""Steps per second of CAGE-2 on a CUDA device, steps captured in a CUDA graph, after a comparison with the CPU.

    python benchmarks/cuda_cage2.py [--json FILE]

Observations, rewards, flags and every column of the state must have the same bits as on the CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numba
import numpy as np
import torch

import velodrome as vd
from velodrome.envs.contract import state_columns
from velodrome.rollout.launch import capture

RING = 16  # different actions in one captured graph
REPLAYS = 60
PARITY = {
    "b_line": {"red_agent": "b_line"},
    "meander, green": {"red_agent": "meander", "green": True, "episode_length": 30},
    "mixture, reduced, memories": {
        "red_agent": "mixture", "action_set": "reduced", "scan_memory": True, "decoy_memory": True,
        "observation_rule": "corrected", "impact_repeats": True, "episode_length": 50,
    },
}  # fmt: skip


def check_parity(num_envs: int = 2048, steps: int = 130) -> None:
    """Run CUDA beside the CPU; a difference ends the program."""
    for name, params in PARITY.items():
        device = vd.make_vec("cage2", num_envs, backend="cuda", seed=3, **params)
        host = vd.make_vec("cage2", num_envs, backend="native", seed=3, **params)
        device.reset()
        host.reset()
        rng = np.random.default_rng(5)
        for k in range(steps):
            actions = rng.integers(0, int(host.single_action_space.n), num_envs)
            theirs = device.step(torch.as_tensor(actions, device="cuda"))
            ours = host.step(actions)
            same = all(np.array_equal(a.cpu().numpy(), b) for a, b in zip(theirs[:4], ours[:4], strict=True))
            if not same:
                raise SystemExit(f"parity, {name}: step {k} differs")
        for column in state_columns(host.world.state_type):
            if not np.array_equal(np.asarray(device.column(column)), host.column(column)):
                raise SystemExit(f"parity, {name}: the column {column} differs")
        print(f"parity, {name}: {num_envs} environments × {steps} steps: equal bits", flush=True)


def measure(num_envs: int, red_agent: str, observation: str) -> float:
    """Return steps per second in a CUDA graph."""
    envs = vd.make_vec(
        "cage2", num_envs, backend="cuda", observation=observation, check_actions=False, seed=0, red_agent=red_agent
    )
    envs.reset()
    actions = [torch.randint(0, 145, (num_envs,), device="cuda") for _ in range(RING)]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    chosen = parser.parse_args()
    machine = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "numba": numba.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    check_parity()
    rows = []
    print(f"{'environments':>12} {'red agent':>10} {'observation':>12} {'steps/s':>10}")
    for num_envs in (4_096, 65_536, 1_048_576):
        for red_agent in ("b_line", "meander"):
            for observation in ("flat", "cursor"):
                rate = measure(num_envs, red_agent, observation)
                rows.append(
                    {"num_envs": num_envs, "red_agent": red_agent, "observation": observation, "steps_per_second": rate}
                )
                layout = "rows" if observation == "flat" else "columns"
                print(f"{num_envs:>12,} {red_agent:>10} {layout:>12} {rate / 1e9:>8.2f} G", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine, "measurements": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
