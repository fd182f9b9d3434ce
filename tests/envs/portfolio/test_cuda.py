"""The portfolio on the CUDA backend, in Numba's simulator or on a GPU, is the portfolio on the CPU, to the bit.

Run as `python test_portfolio_cuda.py FILE` with NUMBA_ENABLE_CUDASIM=1, it plays the scenarios and pickles the records:
the variable must be set before Numba is imported, hence a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.baskets import small_basket
from tests.contracts.cuda import CudaContract, write_records
from tests.vector.scenarios import Scenario
from velodrome.envs.portfolio.world import portfolio_world


def on_a_small_basket(**values: Any) -> Any:
    return lambda: portfolio_world(small_basket(bars=60, jump=0.2), **values)


def reward_against_the_benchmark(old, new):
    """Look like the reward of test_portfolio_contract.py, so that both find one another's compiled loops."""
    return (new.equity - old.equity) / new.peak - (new.benchmark - old.benchmark) / new.initial - 0.1 * new.turnover


SCENARIOS = {
    "softmax": Scenario(on_a_small_basket(buy_fee=1e-3, sell_fee=2e-3, episode_length=6), steps=10, illegal=3),
    "simplex, several blocks": Scenario(
        on_a_small_basket(weighting="simplex", half_spread=1e-3, max_weight=0.5, episode_length=4), num_envs=70, steps=6
    ),
    "signed, ranges, cursor": Scenario(
        on_a_small_basket(
            weighting="signed", allow_short=True, max_gross=(0.5, 2.0), buy_fee=(0.0, 0.01), slippage=1e-3,
            initial_cash=(100.0, 1e5), funding=1e-3, reward="blend", episode_length=(3, 8), trailing_stop=0.05,
            evenness_bonus=0.1, concentration_penalty=0.1, time_decay_floor=0.2,
        ),
        steps=14,
        options={"observation": "cursor"},
    ),
    "orders": Scenario(
        on_a_small_basket(
            preset="crypto", min_quantity=(0.01, 0.1, 1.0), lot={"S0": 0.0, "S1": 0.5, "S2": 1.0}, cash_reserve=0.1,
            max_weight=0.4, max_holding=3, episode_length=8, order_scale=3.0, single_precision=True,
        ),
        steps=14,
        illegal=2,
    ),
    "discrete, own reward, no autoreset": Scenario(
        on_a_small_basket(
            action="discrete", reward=reward_against_the_benchmark, fill="close", trade_fraction=0.3,
            fee_tiers=((0.0, 0.003), (20_000.0, 0.001)), episode_length=5, allow_short=True, final_discount=0.9,
        ),
        steps=12,
        options={"autoreset": False, "observation": "dict"},
        reset_ended_after=7,
        illegal=1,
    ),
}  # fmt: skip


class TestPortfolioOnCuda(CudaContract):
    scenarios = SCENARIOS
    module = __file__

    def test_the_scenarios_reach_what_they_are_for(self, simulated):
        for name in SCENARIOS:
            counts = sum(step["counts"].sum(axis=1) for step in simulated[name] if "counts" in step)
            assert (counts[:3] > 0).all(), name
        assert sum(step["counts"][6].sum() for step in simulated["signed, ranges, cursor"] if "counts" in step) > 0
        assert sum(step["counts"][7].sum() for step in simulated["orders"] if "counts" in step) > 0


if __name__ == "__main__":
    write_records(SCENARIOS, Path(sys.argv[1]))
