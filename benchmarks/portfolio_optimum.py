"""What the best rule would have earned on the very bars of a demonstration's test split.

    python benchmarks/portfolio_optimum.py [--seeds 0 11 31]

The table of a portfolio run has the share of the optimum, which is an expectation: over 3,000 bars the best rule itself
misses it by 5 % or so, by luck. This plays that rule, which knows the process, on the test split of `market.seed`;
divide an agent's share by its share to see what the agent has not learnt.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from velodrome.bars import factors
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.tables.basket import Basket


def share_of_best(seed: int) -> tuple[float, float]:
    """Return the best rule's share of the optimum on the test split, and the standard error of such a share."""
    config = load_run_config("portfolio_gpu", {"market.seed": seed, "device": "cpu"})
    basket, market = setup.build_market(config), config.market
    assert isinstance(basket, Basket)
    assert basket.optimum
    test = basket.split("test")
    returns = np.diff(np.log(test.close[int(test.begin[0]) - 1 : int(test.end[0])]), axis=0)
    noise = factors.covariance(returns.shape[1], market.volatility, market.common)
    expected = market.drift + market.phi * (returns[:-1] - market.drift)
    weights = factors.best_weights(expected + np.diag(noise) / 2, noise, factors.CLOSE_ENOUGH * market.volatility)
    grown = np.log1p((weights * np.expm1(returns[1:])).sum(axis=1)) / basket.optimum
    return float(grown.mean()), float(grown.std()) / math.sqrt(len(grown))


def main() -> None:
    """Print the share for each seed of the market."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 11, 31, 32])
    for seed in parser.parse_args().seeds:
        share, error = share_of_best(seed)
        print(f"market.seed={seed}: the best rule has {share:.1%} of the optimum on the test split (± {error:.1%})")


if __name__ == "__main__":
    main()
