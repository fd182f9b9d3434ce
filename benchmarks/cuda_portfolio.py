"""Steps per second of the portfolio on a CUDA device, steps captured in a CUDA graph, after a comparison with the CPU.

    python benchmarks/cuda_portfolio.py [--json FILE]

Observations, rewards, flags and every column of the state must have the same bits as on the CPU. The problem is that of
`velodrome bench step --env portfolio`: the preset `crypto`, 5 bars of 11 features of each instrument.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cuda_rates import check_parity, measure, run

from velodrome.bench.problems.portfolio import PortfolioBenchmark, PortfolioOptions
from velodrome.bench.step import Case
from velodrome.envs.catalog import CATALOG

COSTS = {"buy_fee": 0.001, "sell_fee": 0.002, "half_spread": 0.0005, "slippage": 0.001, "episode_length": 100}
PARITY = {
    "crypto": {"preset": "crypto", "episode_length": 120},
    "blend, minimum, stop": {
        "preset": "crypto", "reward": "blend", "min_quantity": 0.01, "lot": 0.001, "trailing_stop": 0.01,
        "cash_reserve": 0.1, "max_weight": 0.4, "concentration_penalty": 0.1, "few_positions_penalty": 0.01,
        "evenness_bonus": 0.1, "account_values": "raw", "episode_length": 120,
    },
    "softmax": {"funding": 1e-5, **COSTS},
    "simplex, ranges": {"weighting": "simplex", "initial_cash": (5e3, 2e4), **COSTS},
    "signed, short": {"weighting": "signed", "allow_short": True, "max_gross": 1.5, **COSTS},
    "discrete, tiers": {
        "action": "discrete", "fee_tiers": ((0.0, 0.003), (20_000.0, 0.001)), "max_holding": 10, "episode_length": 100,
    },
}  # fmt: skip
PARITY_ENVS = 2048


def draw(rng: np.random.Generator, space: Any) -> np.ndarray:
    """Draw a batch of actions; a third of them changes nothing."""
    if hasattr(space, "nvec"):
        return rng.integers(0, space.nvec, (PARITY_ENVS, len(space.nvec)))
    actions = rng.uniform(space.low, space.high, (PARITY_ENVS, *space.shape)).astype(np.float32)
    actions[rng.random(PARITY_ENVS) < 0.3] = 0.0
    return actions


def problem(instruments: int) -> Case:
    """Return the problem of the benchmark."""
    options = PortfolioOptions(instruments=(instruments,))
    return PortfolioBenchmark(CATALOG.get("portfolio"), options).cases()[0]


def check() -> None:
    """Compare every kind of environment with the CPU."""
    basket = problem(7).values["market"]
    for name, params in PARITY.items():
        check_parity(name, "portfolio", {"market": basket, **params}, draw, PARITY_ENVS, 150)


def rows() -> list[dict[str, Any]]:
    """Measure the sizes of interest."""
    found = []
    print(
        f"{'environments':>12} {'instruments':>12} {'action':>8} {'observation':>12} {'constants':>10} {'steps/s':>10}"
    )
    for instruments, sizes in ((7, (4_096, 65_536, 1_048_576)), (100, (65_536,))):
        given = problem(instruments)
        for num_envs in sizes:
            for action in ("orders", "weights"):
                width = instruments + (action == "weights")
                for observation, specialise in (("flat", False), ("cursor", False), ("cursor", True)):
                    if observation == "flat" and num_envs * given.window_floats > 2e9:
                        continue
                    values = {**given.values, "action": action, "observation": observation}
                    rate = measure(
                        "portfolio",
                        num_envs,
                        lambda count, width=width: 2.0 * torch.rand((count, width), device="cuda") - 1.0,
                        specialise=specialise,
                        **values,
                    )
                    row = {"num_envs": num_envs, "instruments": instruments, "action": action}
                    row |= {"observation": observation, "specialised": specialise, "steps_per_second": rate}
                    found.append(row)
                    shown = "windows" if observation == "flat" else "no windows"
                    start = f"{num_envs:>12,} {instruments:>4} {action:>8} {shown:>12} {specialise!s:>10}"
                    print(f"{start} {rate / 1e9:>8.3f} G", flush=True)
    return found


if __name__ == "__main__":
    run(__doc__ or "", check, rows)
