"""TorchTrade 0.1.0's market layout, and its parameters as those of the trading environment.

Only the market differs from Velodrome's own: bins counted from midnight of the first day, empty execution bars filled
with the last close, prices rounded to float32, and coarse bars labelled by their end, shown one bar later than they
could be. The account is Velodrome's trading rule with the preset `torchtrade`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import BAR_COLUMNS, Series
from velodrome.bars.timeframe import DAY, MILLISECOND, Timeframe, parse_timeframe, resample, without_gaps
from velodrome.errors import ConfigError, DataError
from velodrome.tables.market import Market
from velodrome.tables.windows import WindowPart, stack_windows

OHLCV: tuple[str, ...] = BAR_COLUMNS

SAME = {  # parameters, theirs -> ours
    "transaction_fee": "fee",
    "leverage": "leverage",
    "maintenance_margin_rate": "maintenance_margin",
    "bankrupt_threshold": "bankrupt_at",
}
OF_BRACKETS = {
    "include_hold_action": "include_hold",
    "include_close_action": "include_close",
    "lock_position_until_sltp": "lock_position",
    "position_fraction": "position_fraction",
    "quantity_per_trade": "quantity_per_trade",
}


class Frame(NamedTuple):
    """Bars of one period; bins without a row give no bar."""

    start: NDArray[np.int64]  # [bars] bin start, ns
    ohlcv: NDArray[np.float32]  # [bars, 5]


def _nanoseconds(timeframe: str) -> int:
    length = parse_timeframe(timeframe).nanoseconds
    if length is None:
        raise ConfigError(f"time frame {timeframe!r}: TorchTrade's frames have a fixed length")
    return length


def _frame(data: Mapping[str, NDArray], period: int, filled: bool = False) -> Frame:
    time = np.asarray(data["timestamp"], np.int64)
    if len(time) == 0:
        raise DataError("the TorchTrade data has no rows")
    if wrong := [name for name in OHLCV if not np.isfinite(data[name]).all()]:
        raise DataError(f"the columns {wrong} have values that are no finite numbers; leave out or fill such rows.")
    anchor = time[0] // DAY * DAY
    fixed = Timeframe(period // MILLISECOND, "ms")  # days as bare lengths: they count from the anchor
    bars, _ = resample(Series(time - anchor, **{name: data[name] for name in OHLCV}), fixed)  # type: ignore[arg-type]
    bars = without_gaps(bars, period) if filled else bars
    return Frame(anchor + bars.time, np.stack([bars.column(name) for name in OHLCV], axis=1).astype(np.float32))


Features = Callable[[str, "Frame"], tuple[NDArray[np.int64], NDArray[np.float32], tuple[str, ...]]]


def torchtrade_market(
    data: Mapping[str, NDArray],
    time_frames: Sequence[str],
    window_sizes: Sequence[int],
    execute_on: str,
    features: Features | None = None,
    window_names: Sequence[str] | None = None,
) -> Market:
    """Lay out bars as TorchTrade's sampler does; `data` has timestamp (ns), open, high, low, close and volume.

    features: of a time frame's name and its bars, returns labels (ns), rows of values and their names, in place of the
        bars themselves.
    """
    if len(time_frames) != len(window_sizes):
        raise ConfigError(f"{len(time_frames)} time frames but {len(window_sizes)} window sizes; give one for each")
    execution_period = _nanoseconds(execute_on)
    grid = _frame(data, execution_period, filled=True)
    windows, shown = [], []
    first_labels, coarse_periods, window_spans = [], [0], []
    for name, length in zip(time_frames, window_sizes, strict=True):
        period = _nanoseconds(name)
        frame = _frame(data, period)
        coarse = period > execution_period
        labels = frame.start + period if coarse else frame.start
        values, names = frame.ohlcv, OHLCV
        if features is not None:
            labels, values, names = features(name, Frame(labels, frame.ohlcv))
        # A finer bar must have ended by the end of the execution bar.
        look_up = grid.start + (execution_period - period if period < execution_period else 0)
        last_row = np.searchsorted(labels, look_up, side="right") - 1
        windows.append((int(length), [WindowPart(values, last_row)]))
        shown.append(names)
        first_labels.append(labels[0])
        window_spans.append(period * int(length))
        coarse_periods += [period] if coarse else []
    first_usable = max(first_labels) + max(window_spans) + max(coarse_periods)
    begin = int(np.searchsorted(grid.start, first_usable))
    bars = len(grid.start)
    if begin >= bars:
        raise DataError(
            f"windows of {dict(zip(time_frames, window_sizes, strict=True))} leave no usable bar of {bars}; "
            f"use shorter windows or more data"
        )
    day = grid.start // DAY
    return Market(
        symbols=("torchtrade",),
        timeframe=execute_on,
        timezone="UTC",
        time=grid.start,
        ohlc=np.ascontiguousarray(grid.ohlcv[:, :4].astype(np.float64)),
        volume=grid.ohlcv[:, 4].astype(np.float64),
        atr=np.zeros(bars),
        session_last=np.r_[day[1:] != day[:-1], True].astype(np.uint8),
        columns={},
        begin=np.array([begin]),
        end=np.array([bars]),
        windows=stack_windows(windows),
        window_names=tuple(window_names or time_frames),
        feature_names=tuple(shown),
        name="torchtrade",
    )


def trading_parameters(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Translate TorchTrade's parameters into those of the trading environment."""
    cash, shorts = config["initial_cash"], float(config["leverage"]) > 1.0
    cash = tuple(map(float, cash)) if isinstance(cash, Sequence) else cash  # a range, or a number
    values: dict[str, Any] = {"preset": "torchtrade", "initial_cash": cash}
    values |= {ours: config[theirs] for theirs, ours in SAME.items()}
    if kind == "base":
        levels = tuple(float(level) for level in config["action_levels"])
        return {**values, "levels": levels, "allow_short": shorts and min(levels, default=0.0) < 0.0}
    values |= {ours: config[theirs] for theirs, ours in OF_BRACKETS.items()}
    return {
        **values,
        "action": "brackets",
        "stop_loss": tuple(-float(level) for level in config["stoploss_levels"]),
        "take_profit": tuple(config["takeprofit_levels"]),
        "trade_mode": str(getattr(config["trade_mode"], "value", config["trade_mode"])),
        "allow_short": shorts,
    }
