"""`velodrome bench step`: the trading environment beside the same rule in other hands, and beside TorchTrade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, ClassVar

import numpy as np
from gymnasium.spaces import Discrete
from pydantic import Field
from rich.console import RenderableType
from rich.text import Text

from velodrome.bars import synthetic_bars
from velodrome.bench.options import Peer
from velodrome.bench.parity import COMPARED_ENVS, compare_with_plain
from velodrome.bench.peers.numpy_trading import NUMPY, BatchedTradingEnv
from velodrome.bench.peers.plain_markets import LEVELS, MarketTables, PlainTradingEnv
from velodrome.bench.peers.torchtrade import COLUMNS, FLOATS, PARALLEL, TORCHTRADE, WINDOW
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.problems.footprint import memory_use, time_to_first_step, window_contenders, window_rates
from velodrome.bench.render import narrow_table
from velodrome.bench.report import OURS, Comparison, Parity
from velodrome.bench.run import Turns
from velodrome.bench.step import SMALLEST_TO_SHARE, Case, MarketOptions, StepBenchmark, whole_numbers
from velodrome.bench.timing import Contender, PeerFailedError, action_ring
from velodrome.compat.torchtrade import torchtrade_market
from velodrome.envs.trading.config import TradingConfig
from velodrome.tables.market import Market

FEE = 0.0005  # fraction of notional
WIPED_OUT = -10.0  # the reward for losing everything
PARITY_STEPS = 2_000
PARALLEL_SIZES = (8, 32, 64, 128, 256)  # environments that ParallelEnv has a process each for
SAME_RULE, TORCHTRADE_DEFAULT = "same rule", "torchtrade default"
WINDOWS_SHARE = 0.5  # promised, of the machine's memcpy rate


class TradingOptions(MarketOptions):
    """How the stepping speed is measured."""

    PEERS: ClassVar = {"numpy": NUMPY, **VECTORISERS, "torchtrade": TORCHTRADE, "parallelenv": PARALLEL}
    QUICK: ClassVar = {**MarketOptions.QUICK, "bars": 20_000, "processes": (4,)}

    bars: int = Field(100_000, ge=2_500, le=10_000_000, description="bars of the market")
    features: int = Field(8, ge=1, le=8, description="features of each bar in an observation")
    episode_length: int = Field(1000, ge=1, description="decisions in an episode")
    processes: Annotated[tuple[int, ...], whole_numbers(1, 1_000_000)] = Field(
        (8, 32), description="worker processes tried for process-based peers"
    )

    @property
    def peers(self) -> dict[str, Peer]:
        """The peers that are asked for; hundreds of processes are only for those who name them."""
        return {name: peer for name, peer in super().peers.items() if name != "parallelenv" or name in self.against}


class TradingBenchmark(StepBenchmark):
    """The default parameters with a fee."""

    Options = TradingOptions
    PROMISED: ClassVar = {"dummy": 100.0, "subproc": 1000.0, "torchtrade": 15.0}

    def cases(self) -> list[Case]:
        """Return synthetic one-minute bars, default parameters and a fee."""
        values = {"fee": FEE, "episode_length": self.options.episode_length}
        return [trading_case(self.market(), values)]

    def check_parity(self, case: Case) -> Parity:
        """Run native and peers on the market and on a violent one."""
        return check_trading(case, self.options.seed)

    def contenders(self, case: Case, size: int) -> list[Contender]:
        """Return everyone, and beside them what only writes windows."""
        windows = window_contenders(self.entry.name, case.values, size, self.thread_counts(size))
        return [*super().contenders(case, size), *windows]

    def more_groups(self) -> list[tuple[Comparison, list[Contender]]]:
        """Return TorchTrade in its default configuration, and Velodrome with the same observation."""
        named = {"torchtrade": TORCHTRADE, "parallelenv": PARALLEL}
        theirs = {name: peer for name, peer in named.items() if name in self.peers}
        most = max((peer.largest for peer in theirs.values()), default=0)
        sizes = [size for size in self.options.sizes if size <= most]
        if "parallelenv" in theirs and "sizes" not in self.options.model_fields_set:
            sizes = sorted({*sizes, *(PARALLEL_SIZES[:1] if self.options.quick else PARALLEL_SIZES)})
        if not sizes:
            return []
        options = self.options
        bars = synthetic_bars("gbm", options.bars, options.seed, timeframe="1h")
        series = bars[bars.symbols[0]]
        data = {"timestamp": series.time, **{name: getattr(series, name) for name in COLUMNS}}
        # TorchTrade's spot mode has no shorts: their level stands for flat, as with allow_short=False.
        market = torchtrade_market(data, ["1h"], [WINDOW], "1h")
        values = {"market": market, "preset": "torchtrade", "allow_short": False}
        title = f"{TORCHTRADE_DEFAULT}: steps per second, {FLOATS} floats observed"
        comparison = self.report.begin(TORCHTRADE_DEFAULT, title)
        found = []
        for size in sizes:
            actions = cache(lambda size=size: action_ring(Discrete(len(LEVELS)), size, options.seed, self.ring))
            group = []
            for threads in self.thread_counts(size, SMALLEST_TO_SHARE):
                shared = {"threads": threads, "floats": FLOATS, "kind": "flat"}
                if threads in self.thread_counts(size):
                    own = partial(self.open_native, size, {**values, "threads": threads}, actions)
                    group.append(Contender(self.row(OURS, OURS, size, **shared), own))
                for name, peer in theirs.items():
                    # Processes gain nothing from torch's threads.
                    if size <= peer.largest and not (name == "parallelenv" and threads > 1):
                        opened = partial(peer.open, series, size, threads, actions)
                        group.append(Contender(self.row(name, peer.label, size, **shared), opened))
            found.append((comparison, group))
        return found

    def finish(self, pairs: Sequence[tuple[Comparison, Case]], tell: Turns) -> None:
        """Measure memory and, in a full run, the time to a first step."""
        tell("memory", 0)
        self.report.facts["memory"] = memory_use(self.entry.name, pairs[0][1].values)
        if not self.options.quick:
            tell("first step", 0)
            try:
                self.report.facts["first_step"] = time_to_first_step()
            except PeerFailedError as error:
                self.report.notes.append(f"Time to first step: {error}")

    def conclude(self) -> None:
        """Fill in the rates at which windows are written, too."""
        super().conclude()
        rates = self.report.facts["window_rates"] = window_rates(self.report.comparisons[0])
        shares = [rate["share"] for rate in rates if rate["num_envs"] == self.TARGET_SIZE]
        name = f"windows written over the machine's memcpy rate at n = {self.TARGET_SIZE:,}"
        self.report.judge(name, max(shares, default=None), WINDOWS_SHARE)

    def more(self) -> Sequence[RenderableType]:
        """Return the windows' table, memory and start-up."""
        facts, lines = self.report.facts, []
        if "memory" in facts:
            allocated, resident = facts["memory"]["bytes_allocated"], facts["memory"]["bytes_resident"]
            lines.append(
                f"Memory per environment without windows: {allocated:.0f} bytes allocated, {resident:.0f} resident "
                f"({facts['memory']['num_envs']:,} environments)"
            )
        if "first_step" in facts:
            parts = ("cpu_seconds", "environment_cpu_seconds", "wall_seconds")
            cpu, environments, wall = (facts["first_step"][name] for name in parts)
            lines.append(
                f"First step of a fresh process, warm cache: {cpu:.2f} s CPU ({environments:.2f} s of it the "
                f"environments), {wall:.2f} s on the clock"
            )
        title = "Windows written, GB/s (memcpy: as many bytes)"
        names = ("envs", "threads", "whole steps", "windows alone", "memcpy", "share")
        table = narrow_table(title, names)
        for rate in facts["window_rates"]:
            num_envs, threads, *written, share = rate.values()
            table.add_row(f"{num_envs:,}", str(threads), *(f"{one:.1f}" for one in written), f"{share:.0%}")
        return [*([table] if table.rows else []), *([Text("\n".join(lines))] if lines else []), *super().more()]


def trading_case(market: Market, parameters: dict[str, Any], name: str = SAME_RULE) -> Case:
    """Return a market and the parameters of the trading environment over it, for native and for its peers."""
    tables = MarketTables.of(market, market.ohlc, TradingConfig.create(**parameters))
    values = {"market": market, **parameters}
    return Case(name, values, partial(PlainTradingEnv, tables), tables)


def stress_case(case: Case, seed: int) -> Case:
    """Return the case over violent bars and gaps, in which shorts are liquidated and accounts go bust."""
    market = case.values["market"]
    bars = len(market)
    generator = np.random.default_rng(seed)
    # The price may double within a bar and between two; it returns to 100, so that it stays a sensible number.
    path = np.empty(bars)
    level = 0.0
    for bar, shock in enumerate(generator.normal(0.0, 0.3, bars).tolist()):
        level = 0.9 * level + shock
        path[bar] = level
    close = 100.0 * np.exp(path)
    opened = np.r_[100.0, close[:-1]] * np.exp(generator.normal(0.0, 0.3, bars))
    high = np.maximum(opened, close) * np.exp(np.abs(generator.normal(0.0, 0.1, bars)))
    low = np.minimum(opened, close) * np.exp(-np.abs(generator.normal(0.0, 0.1, bars)))
    violent = replace(market, ohlc=np.stack([opened, high, low, close], axis=1), name="stress")
    parameters = {name: value for name, value in case.values.items() if name != "market"}
    return trading_case(violent, parameters, "stress")


PEERS: dict[str, Any] = {"plain": PlainTradingEnv, "numpy": BatchedTradingEnv}


def check_trading(case: Case, seed: int, steps: int = PARITY_STEPS, **peers: type) -> Parity:
    """Run native and peers on the case's market and on a violent one; raise ParityError if they differ."""
    cash = case.tables.parameters.initial_cash
    allowed = {"reward": (1e-6, 1e-6), "observation": (1e-6, 1e-6), "cash": (1e-9, 1e-9 * cash), "units": (1e-9, 0.0)}
    # What is left after a liquidation at the bankruptcy price is rounding, and so is its logarithm.
    given: dict[str, Any] = {"columns": ("cash", "units"), "lowest_reward": WIPED_OUT, "seed": seed, "steps": steps}
    counts: Counter[str] = Counter()
    for part in (case, stress_case(case, seed)):
        found, plain = compare_with_plain("trading", part, {**PEERS, **peers}, allowed, **given)
        counts += found + Counter(liquidations=sum(plain.get_attr("liquidations")))
    named = {"episodes": counts["ended"], "bankruptcies": counts["terminated"], "liquidations": counts["liquidations"]}
    total = 2 * steps * COMPARED_ENVS
    return Parity(contenders=["the plain", "the NumPy rule"], reference="native", steps=total, counts=named)
