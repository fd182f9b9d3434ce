"""Steps per second of CAGE-2 on a CUDA device, steps captured in a CUDA graph, after a comparison with the CPU.

    python benchmarks/cuda_cage2.py [--json FILE]

Observations, rewards, flags and every column of the state must have the same bits as on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from cuda_rates import check_parity, measure, run

PARITY = {
    "b_line": {"red_agent": "b_line"},
    "meander, green": {"red_agent": "meander", "green": True, "episode_length": 30},
    "mixture, reduced, memories": {
        "red_agent": "mixture", "action_set": "reduced", "scan_memory": True, "decoy_memory": True,
        "observation_rule": "corrected", "impact_repeats": True, "episode_length": 50,
    },
}  # fmt: skip


def check() -> None:
    """Compare every kind of environment with the CPU."""
    for name, params in PARITY.items():
        check_parity(name, "cage2", params, lambda rng, space: rng.integers(0, int(space.n), 2048), 2048, 130)


def rows() -> list[dict[str, Any]]:
    """Measure the sizes of interest."""
    found = []
    print(f"{'environments':>12} {'red agent':>10} {'observation':>12} {'steps/s':>10}")
    for num_envs in (4_096, 65_536, 1_048_576):
        for red_agent in ("b_line", "meander"):
            for observation in ("flat", "cursor"):
                rate = measure(
                    "cage2", num_envs, lambda count: torch.randint(0, 145, (count,), device="cuda"),
                    observation=observation, red_agent=red_agent,
                )  # fmt: skip
                found.append(
                    {"num_envs": num_envs, "red_agent": red_agent, "observation": observation, "steps_per_second": rate}
                )
                layout = "rows" if observation == "flat" else "columns"
                print(f"{num_envs:>12,} {red_agent:>10} {layout:>12} {rate / 1e9:>8.2f} G", flush=True)
    return found


if __name__ == "__main__":
    run(__doc__ or "", check, rows)
