"""`velodrome bench step --env portfolio`: the portfolio beside the same rule in plain NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from velodrome.bench.parity import COMPARED_ENVS, compare_with_plain
from velodrome.bench.peers.plain_markets import MarketTables, PlainPortfolioEnv
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.problems import finrl
from velodrome.bench.report import OURS, Comparison, Parity, ratio
from velodrome.bench.step import FEATURES, BasketOptions, Case, Instruments, Sizes, StepBenchmark
from velodrome.bench.timing import Contender
from velodrome.envs.portfolio.config import portfolio_config

PARITY_STEPS = 600  # more than an episode, so that some end
TARGET_INSTRUMENTS = 7
TARGETS = {"": 2e6, ", no windows": 6e6}  # steps per second
WARM_UP = 49  # bars until all features have a value


class PortfolioOptions(BasketOptions):
    """What to measure."""

    PEERS: ClassVar = {
        "dummy": VECTORISERS["dummy"],
        "subproc": VECTORISERS["subproc"]._replace(largest=64),
        **finrl.PEERS,
    }
    QUICK: ClassVar = {"seconds": 0.2, "repeats": 2, "sizes": (1, 1_024)}

    sizes: Sizes = Field((1, 8, 64, 1_024, 16_384), description="numbers of environments in a batch")
    instruments: Instruments = Field((7, 100), description="instruments of the basket")
    bars: int = Field(5_000, ge=500, le=10_000_000, description="bars of each instrument")
    window: int = Field(5, ge=1, le=1_000, description="bars in an observation")
    features: int = Field(len(FEATURES), ge=1, le=len(FEATURES), description="features of each bar and instrument")
    episode_length: int = Field(500, ge=1, le=1_000_000, description="decisions in an episode")

    @model_validator(mode="after")
    def _an_episode_fits(self) -> Self:
        needed = self.episode_length + WARM_UP + self.window
        if self.bars < needed:
            raise ValueError(
                f"bars = {self.bars:,} are too few: an episode of {self.episode_length:,} decisions after {WARM_UP} "
                f"bars of warm-up and a window of {self.window} needs {needed:,}; give more bars or a shorter "
                "episode_length"
            )
        return self


class PortfolioBenchmark(StepBenchmark):
    """A case for each number of instruments, under the preset `crypto` with cash and units as observed there."""

    Options = PortfolioOptions
    WINDOWLESS: ClassVar = {
        ", no windows": {"observation": "cursor"},
        ", no windows, specialised": {"observation": "cursor", "specialise": True},
    }
    PROMISED: ClassVar = {"dummy": 200.0}
    TARGET_CASE = f"K = {TARGET_INSTRUMENTS}"
    ring = 16  # batches of orders: those of 100 instruments are large

    def cases(self) -> list[Case]:
        """Return a basket for each number of instruments."""
        episode_length = self.options.episode_length
        preset = {"preset": "crypto", "account_values": "raw", "episode_length": episode_length}
        found = []
        for count in self.options.instruments:
            basket = self.market(count)
            prices = np.stack([basket.open, basket.close], axis=1)
            tables = MarketTables.of(basket, prices, portfolio_config(**preset))
            plain = partial(PlainPortfolioEnv, tables)
            found.append(Case(f"K = {count}", {"market": basket, **preset}, plain, tables))
        return found

    def check_parity(self, case: Case) -> Parity:
        """Play the same orders in plain NumPy and in the compiled rule."""
        cash, close = case.tables.parameters.initial_cash, (1e-5, 1e-6)
        allowed = {"equity": (1e-9, 1e-9 * cash), "reward": close, "observation": close}
        given: dict[str, Any] = {"columns": ("equity",), "seed": self.options.seed, "draw": some_rest}
        peers, steps = {"plain": PlainPortfolioEnv}, PARITY_STEPS
        counts, _ = compare_with_plain(self.entry.name, case, peers, allowed, steps=steps, **given)
        shared = {"contenders": ["the plain NumPy rule"], "reference": "native", "steps": steps * COMPARED_ENVS}
        return Parity(**shared, counts={"episodes": counts["ended"]})

    def more_groups(self) -> list[tuple[Comparison, list[Contender]]]:
        """Return FinRL's stock trading, and Velodrome with its rule, for each number of instruments."""
        return [group for count in self.options.instruments for group in finrl.finrl_groups(self, count)]

    def conclude(self) -> None:
        """Judge by what was promised for 7 instruments, and how the cost of a step grows with their number."""
        super().conclude()
        size, report = self.TARGET_SIZE, self.report
        counts = {int(one.name.removeprefix("K = ")): one for one in report.comparisons if one.name.startswith("K = ")}
        for shown, wanted in TARGETS.items() if TARGET_INSTRUMENTS in counts else ():
            name = f"steps per second, K = {TARGET_INSTRUMENTS}, {size:,} environments{shown or ', windows'}"
            report.judge(name, best_of(counts[TARGET_INSTRUMENTS], shown, size), wanted)
        few, many = min(counts, default=0), max(counts, default=0)
        for shown in TARGETS if few < many else ():
            reached = ratio(best_of(counts[many], shown, size), best_of(counts[few], shown, size))
            name = f"instrument steps per second of K = {many} over those of K = {few}{shown or ', windows'}"
            report.judge(name, None if reached is None else reached * many / few, 1.0)


def some_rest(generator: np.random.Generator, actions: NDArray) -> NDArray:
    """Return the orders with half of the accounts at rest, so that positions grow old."""
    return np.where(generator.random(len(actions))[:, None] < 0.5, 0.0, actions).astype(actions.dtype)


def best_of(comparison: Comparison, shown: str, size: int) -> float | None:
    """Return the fastest rate with windows or without."""
    return comparison.best(peer=OURS, kind="cursor" if shown else "flat", num_envs=size)
