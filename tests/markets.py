"""Small hand-made markets for the tests of environments: prices with jumps, flats and sessions, and random windows."""

from __future__ import annotations

import numpy as np

from velodrome.tables.market import Market
from velodrome.tables.windows import WindowPart, stack_windows

MINUTE = 60_000_000_000


def wild_prices(bars: int, seed: int, jump: float = 0.05, volatility: float = 0.01) -> np.ndarray:
    """Return [bars, 4] open, high, low, close with opening jumps, flat bars and long wicks."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(0.0, volatility, bars) * rng.choice([0.0, 1.0, 3.0], bars, p=[0.1, 0.7, 0.2])
    gaps = rng.choice([0.0, 1.0], bars, p=[0.9, 0.1]) * rng.normal(0.0, jump, bars)
    log_open = np.cumsum(np.r_[0.0, moves[:-1]] + gaps)
    opened, closed = 100.0 * np.exp(log_open), 100.0 * np.exp(log_open + moves)
    up, down = np.exp(rng.exponential(volatility, bars)), np.exp(-rng.exponential(volatility, bars))
    still = moves == 0.0
    high = np.where(still, np.maximum(opened, closed), np.maximum(opened, closed) * up)
    low = np.where(still, np.minimum(opened, closed), np.minimum(opened, closed) * down)
    return np.ascontiguousarray(np.stack([opened, high, low, closed], axis=1))


def small_market(
    bars: int = 400, seed: int = 0, instruments: int = 1, windows: tuple[tuple[int, int], ...] = ((5, 3), (2, 2)),
    session: int = 25, **prices: float,
) -> Market:  # fmt: skip
    """Return a market of some instruments with windows of given (length, features) over random values."""
    rng = np.random.default_rng(seed + 1)
    total = bars * instruments
    ohlc = np.concatenate([wild_prices(bars, seed + 10 * k, **prices) for k in range(instruments)])
    parts = [
        (
            length,
            [
                WindowPart(rng.normal(size=(bars, width)).astype(np.float32), np.arange(bars))
                for _ in range(instruments)
            ],
        )
        for length, width in windows
    ]
    session_last = np.zeros(total, np.uint8)
    session_last[session - 1 :: session] = 1
    longest = max(length for length, _ in windows)
    first = np.arange(instruments) * bars
    return Market(
        symbols=tuple(f"S{k}" for k in range(instruments)),
        timeframe="1m",
        timezone="UTC",
        time=np.tile(np.arange(bars) * MINUTE, instruments),
        ohlc=ohlc,
        volume=rng.uniform(1.0, 2.0, total),
        atr=0.01 * ohlc[:, 3],
        session_last=session_last,
        columns={"funding_rate": rng.normal(0.0, 1e-3, total)},
        begin=first + longest - 1,
        end=first + bars,
        windows=stack_windows(parts),
        window_names=tuple(f"{k + 1}m" for k in range(len(windows))),
        feature_names=tuple(tuple(f"f{j}" for j in range(width)) for _, width in windows),
        name="small",
    )
