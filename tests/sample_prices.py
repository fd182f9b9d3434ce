"""Three files of hourly bars as downloads have them, for the tests that walk a trader's whole path.

No price here was ever traded: no recorded sample could be shipped under a free licence, so that the bars are generated,
always the same. Returns have fat tails, volatility that clusters and follows the hours of the day, a little momentum
and a market that all three share. The files have the quirks of those that people download: a table of MetaTrader with
a clock of its own column, decimal commas with the newest row first, a preamble above epoch milliseconds, weekends,
nightly pauses, an outage, a row that stands there twice, and one instrument that was listed later than the others.

`python -m tests.sample_prices FOLDER` writes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HOURS = 24 * 7 * 51  # of a year less a week, from a Sunday evening
FIRST = np.datetime64("2023-01-01T22:00", "s")
OUTAGE = slice(5_000, 5_009)  # hours in which the exchange of BTCUSD was down
LISTED = 24 * 7 * 2  # hour from which BTCUSD has bars
MOMENTUM = 0.12
SHARED = 0.35  # of the noise's deviation


def write_samples(folder: Path) -> dict[str, int]:
    """Write EURUSD.csv, XAUUSD.csv and BTCUSD.csv; return the rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    time = FIRST + np.arange(HOURS) * np.timedelta64(1, "h")
    weekday, hour = (time.astype("datetime64[D]").astype(int) + 3) % 7, np.arange(HOURS) % 24
    at = (22 + hour) % 24
    weekend = ((weekday == 4) & (at >= 22)) | (weekday == 5) | ((weekday == 6) & (at < 22))
    market = np.random.default_rng(1).standard_t(4, HOURS)
    outage = np.zeros(HOURS, bool)
    outage[OUTAGE] = True
    listed = np.arange(HOURS) >= LISTED
    return {
        "EURUSD": _meta_trader(folder / "EURUSD.csv", time, _bars(11, 1.07, 6e-4, market, at, ~weekend)),
        "XAUUSD": _decimal_commas(
            folder / "XAUUSD.csv", time, _bars(12, 1825, 1.3e-3, market, at, ~weekend & (at != 21))
        ),
        "BTCUSD": _epochs(folder / "BTCUSD.csv", time, _bars(13, 27_500, 3.5e-3, market, at, listed & ~outage)),
    }


def _bars(
    seed: int, price: float, volatility: float, market: NDArray, hour: NDArray, is_open: NDArray
) -> tuple[NDArray[np.bool_], NDArray]:
    """Return the hours that have a bar, and their open, high, low, close and volume [bars, 5]."""
    generator = np.random.default_rng(seed)
    noise = SHARED * market + np.sqrt(1 - SHARED**2) * generator.standard_t(4, len(market))
    day_shape = 0.7 + 0.6 * np.exp(-(((hour - 14.5) / 4) ** 2))  # busiest when London and New York are both open
    scale, past, level = 1.0, 0.0, np.log(price)
    rows = []
    for t in np.flatnonzero(is_open):
        scale = np.sqrt(0.04 + 0.9 * scale**2 + 0.06 * min(past**2, 25.0))  # GARCH(1,1), in units of the volatility
        shock = noise[t] / np.sqrt(2)  # of deviation 1: the variance of t(4) is 2
        past = MOMENTUM * past + scale * day_shape[t] * shock
        opened = level + volatility * 0.05 * generator.standard_normal()
        level += volatility * past
        reach = volatility * scale * day_shape[t] * np.abs(generator.normal(0, 0.5, 2))
        high, low = max(opened, level) + reach[0], min(opened, level) - reach[1]
        volume = 1_000 * day_shape[t] * scale * generator.lognormal(0, 0.3)
        rows.append((*np.exp((opened, high, low, level)), volume))
    return is_open, np.array(rows)


def _meta_trader(path: Path, time: NDArray, bars: tuple[NDArray, NDArray]) -> int:
    present, values = bars
    lines = ["<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>"]
    for moment, (*prices, volume) in zip(time[present].astype(str), values, strict=True):
        day, clock = moment.split("T")
        shown = "\t".join(f"{one:.5f}" for one in _in_order(prices, 5))
        lines.append(f"{day.replace('-', '.')}\t{clock}\t{shown}\t{volume:.0f}\t0\t{3 + int(volume) % 5}")
    path.write_text("\n".join(lines) + "\n")
    return len(values)


def _decimal_commas(path: Path, time: NDArray, bars: tuple[NDArray, NDArray]) -> int:
    present, values = bars
    lines = []
    for moment, (*prices, volume) in zip(time[present].astype(str), values, strict=True):
        day, clock = moment.split("T")
        shown = ";".join(f"{one:.2f}".replace(".", ",") for one in _in_order(prices, 2))
        lines.append(f"{'.'.join(reversed(day.split('-')))} {clock[:5]};{shown};{volume:.0f}")
    lines.insert(700, lines[700])  # a row that was exported twice
    path.write_text("\n".join(["Date;Open;High;Low;Close;Vol", *reversed(lines)]) + "\n")
    return len(values)


def _epochs(path: Path, time: NDArray, bars: tuple[NDArray, NDArray]) -> int:
    present, values = bars
    lines = []
    for moment, (*prices, volume) in zip(time[present], values, strict=True):
        shown = ",".join(f"{one:.1f}" for one in _in_order(prices, 1))
        stamp = int(moment.astype("datetime64[ms]").astype(np.int64))
        text = str(moment).replace("T", " ")
        lines.append(f"{stamp},{text},BTCUSD,{shown},{volume / 100:.4f},{volume / 100 * prices[3]:.2f}")
    header = "unix,date,symbol,open,high,low,close,Volume BTC,Volume USD"
    path.write_text("\n".join(["# hourly bars, newest first", header, *reversed(lines)]) + "\n")
    return len(values)


def _in_order(prices: list[float], digits: int) -> list[float]:
    """Return open, high, low and close rounded, high and low still around the others."""
    opened, high, low, closed = (round(float(price), digits) for price in prices)
    return [opened, max(opened, high, closed), min(opened, low, closed), closed]


if __name__ == "__main__":
    sys.stdout.write(f"{write_samples(Path(sys.argv[1]))}\n")
