"""What every contender steps: one market, one set of parameters, the same actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars import synthetic_bars
from velodrome.bars.frame import Series
from velodrome.bench.options import StepBenchmarkOptions
from velodrome.envs.trading.config import TradingConfig
from velodrome.tables import build_market
from velodrome.tables.market import Market

FEE = 0.0005  # fraction of notional
RING = 64  # batches of actions that are cycled through
FEATURES = (
    "log_return", "range", "rsi_14", "macd_hist_relative", "bollinger_20", "volatility_20", "volume_z_50",
    "sma_distance_50",
)  # fmt: skip


class PeerTables(NamedTuple):
    """The market and the parameters as the peers' plain environments take them."""

    ohlc: NDArray[np.float64]  # [T, 4]
    features: NDArray[np.float32]  # [T, F]
    window: int  # bars
    begin: int  # first row of a decision
    end: int  # one past the last row
    episode_length: int  # decisions
    fee: float
    initial_cash: float
    maintenance_margin: float
    bankrupt_at: float


@dataclass(frozen=True)
class StepProblem:
    """A market and the parameters of the trading environment over it."""

    market: Market
    parameters: dict[str, Any]  # of the native environment; everything else is the default
    seed: int

    @property
    def peer_tables(self) -> PeerTables:
        """The same for the peers."""
        market, config = self.market, TradingConfig.create(**self.parameters)
        length, width = int(market.windows.length[0]), int(market.windows.width[0])
        # The native layout precedes the bars by `length` rows of zeros; the peers read the bars alone.
        features = market.windows.values.reshape(-1, width)[length:]
        numbers = {name: float(getattr(config, name)) for name in PeerTables._fields[-4:]}
        first, last = int(market.begin[0]), int(market.end[0])
        return PeerTables(market.ohlc, features, length, first, last, config.episode_lengths[0], **numbers)

    def actions(self, num_envs: int) -> list[NDArray[np.int64]]:
        """Return the ring of action batches: the same for every contender of this size."""
        generator = np.random.default_rng((self.seed, num_envs))
        return [generator.integers(0, 3, num_envs) for _ in range(RING)]


def step_problem(options: StepBenchmarkOptions) -> StepProblem:
    """Return the problem of a benchmark: synthetic one-minute bars, default parameters and a fee."""
    market = build_market(
        synthetic_bars("gbm", options.bars, options.seed), FEATURES[: options.features], options.window,
        check_leaks=False, name="bench",
    )  # fmt: skip
    return StepProblem(market, {"fee": FEE, "episode_length": options.episode_length}, options.seed)


def stress_problem(problem: StepProblem) -> StepProblem:
    """Return the problem over violent bars and gaps, in which shorts are liquidated and accounts go bust."""
    bars = len(problem.market)
    generator = np.random.default_rng(problem.seed)
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
    ohlc = np.stack([opened, high, low, close], axis=1)
    return replace(problem, market=replace(problem.market, ohlc=ohlc, name="stress"))


def save_peer_tables(tables: Any, path: Path) -> None:
    """Write the tables of a plain environment, a NamedTuple, for a worker process."""
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in tables._asdict().items()}
    np.savez(path, **arrays)


def load_peer_tables(path: Path, kind: Any = PeerTables) -> Any:
    """Read the tables of a plain environment back."""
    with np.load(path) as file:
        loaded = {name: file[name] for name in file.files}
    return kind(**{name: value if value.ndim else value.item() for name, value in loaded.items()})


def hourly_series(options: StepBenchmarkOptions) -> Series:
    """Return the same bars with times an hour apart: TorchTrade's default timeframe."""
    bars = synthetic_bars("gbm", options.bars, options.seed, timeframe="1h")
    return bars[bars.symbols[0]]
