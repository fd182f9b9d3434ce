"""Prices: which markets runs were trained on, what a check of them finds, their gaps, and candles of any size."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from velodrome.bars.check import check_bars
from velodrome.bars.frame import Bars, Series
from velodrome.bars.gaps import find_gaps
from velodrome.bars.rules import NOTE, REFUSED
from velodrome.bars.timeframe import Timeframe, infer_timeframe, parse_timeframe, resample
from velodrome.dashboard.answers import Asked, Question, Refusal, Routes, Stretch
from velodrome.dashboard.curves import rounded
from velodrome.dashboard.index import RunLine
from velodrome.dashboard.site import Site
from velodrome.errors import VelodromeError
from velodrome.runs.config.parameters import price_data
from velodrome.runs.config.sections import FOR_FILES
from velodrome.runs.trained import Run

routes = Routes()
TIMEFRAMES = ("1s", "5s", "15s", "1m", "5m", "15m", "30m", "1h", "4h", "12h", "1d", "1w", "1mo")
MOST_BYTES = 512 << 20  # of price files that are read here
MOST_CANDLES = 5000
MOST_GAPS = 500
SECOND = 1e9  # nanoseconds


class Prices:
    """The prices of a market, read once, in all sizes of bars that somebody asked for."""

    def __init__(self, bars: Bars, source: Path | None) -> None:
        self.bars, self.source = bars, source
        self.native = parse_timeframe(bars.timeframe)
        self.checked: dict[str, Any] | None = None  # what a check of the files found, once somebody asked
        self._coarser: dict[tuple[str, str], Series] = {}

    @property
    def timeframes(self) -> list[str]:
        """Sizes of bars, from the data's own on."""
        coarser = [name for name in TIMEFRAMES if self._is_coarser(parse_timeframe(name))]
        return [self.native.text, *coarser]

    def _is_coarser(self, size: Timeframe) -> bool:
        return self.native < size and self.native.divides(size)

    def series(self, symbol: str, timeframe: str) -> Series:
        """Return the bars of one instrument in a size."""
        if timeframe == self.native.text:
            return self.bars[symbol]
        key = (symbol, timeframe)
        if key not in self._coarser:
            while len(self._coarser) >= 16:
                self._coarser.pop(next(iter(self._coarser)), None)
            self._coarser[key] = resample(self.bars[symbol], timeframe, self.bars.timezone)[0]
        return self._coarser[key]


def prices_of(site: Site, line: RunLine) -> Prices:
    """Return the prices that a run was trained on, as they lie there now; the last few markets are kept."""
    if not line.data_hash or price_data(line.env) is None:
        raise Refusal(404, f"run {line.id} plays {line.env}, which has no prices.")
    run = site.run(line)

    def read() -> Prices:
        market, source = located(run)
        return Prices(market.bars(), source)

    return site.held(("prices", hash(line.data_hash) % 3), (line.data_hash, _written(run)), read)


def located(run: Run) -> tuple[Any, Path | None]:
    """Return the settings of a run's market with the place of its files, which is None if a process makes them."""
    market = run.config.market
    if market.is_synthetic:
        return market, None
    place = next((place for place in run.data_places if place.exists()), None)
    if place is None:
        raise Refusal(410, f"its prices are not where they were: {', '.join(map(str, run.data_places))}.")
    size = sum(file.stat().st_size for file in _files(place))
    if size > MOST_BYTES:
        raise Refusal(
            413,
            f"{place.name}: these price files have {size / 2**20:,.0f} MiB; {MOST_BYTES >> 20} are read here. Look at "
            f"them in a terminal: velodrome data check {place}",
        )
    return market.model_copy(update={"source": str(place)}), place


def _files(place: Path) -> Iterable[Path]:
    return (path for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file())


def _written(run: Run) -> int:
    """Return when a run's price files were written last; 0 if there are none."""
    if run.config.market.is_synthetic:
        return 0
    place = next((place for place in run.data_places if place.exists()), None)
    return 0 if place is None else max((file.stat().st_mtime_ns for file in _files(place)), default=0)


# The markets


def _markets(site: Site) -> dict[str, list[RunLine]]:
    """Return the runs of each market, newest first."""
    found: dict[str, list[RunLine]] = {}
    for line in site.index.snapshot().own:
        if line.data_hash:
            found.setdefault(line.data_hash, []).append(line)
    return found


@routes.get("/api/data")
def markets(site: Site, question: Question[Asked]) -> Any:
    """List the markets that runs were trained on, the one of the newest run first."""
    return {"markets": [_about(site, identity, lines) for identity, lines in _markets(site).items()]}


def _about(site: Site, identity: str, lines: list[RunLine]) -> dict[str, Any]:
    newest = lines[0]

    def look() -> dict[str, Any]:
        record = site.store.find(newest.id)
        told = (record.config.get("market") or {}) if record else {}
        source = str(told.get("source") or "")
        about: dict[str, Any] = {"title": os.path.basename(source.rstrip("/")) or source, "problem": None}
        about |= {"timeframe": told.get("timeframe"), "symbols": told.get("symbols")}
        try:
            about["built_in"] = site.run(newest).config.market.is_synthetic
        except (Refusal, VelodromeError) as error:
            about |= {"built_in": False, "problem": str(error)}
        return about

    about = site.held(("market", identity), newest.id, look)
    envs = Counter(line.env for line in lines)
    return {
        "id": identity,
        **about,
        "env": envs.most_common(1)[0][0],
        "runs": len(lines),
        "latest_run": newest.id,
        "readable": about["problem"] is None,
    }


def _lines(site: Site, identity: str) -> list[RunLine]:
    found = _markets(site).get(identity)
    if found is None:
        raise Refusal(404, f"no run here was trained on data {identity[:80]!r}.")
    return found


@routes.get("/api/data/{id}")
def show(site: Site, question: Question[Asked]) -> Any:
    """Show a market: what `velodrome data check` finds, its instruments, its gaps and its splits."""
    lines = _lines(site, question.path["id"])
    line = lines[0]
    prices = prices_of(site, line)
    about = _about(site, question.path["id"], lines)
    if prices.checked is None:
        prices.checked = _checked(site, line)
    bars = prices.bars
    times = [series.time for series in bars.series.values() if len(series)]
    ends = {
        "first": min((time[0] for time in times), default=0) / SECOND,
        "last": max((time[-1] for time in times), default=0) / SECOND,
    }
    instruments = [_instrument(symbol, series, bars.timezone) for symbol, series in bars.series.items()]
    return {
        **about,
        "symbols": list(bars.symbols),
        "timeframe": bars.timeframe,
        "timeframes": prices.timeframes,
        "timezone": bars.timezone,
        "bars": len(bars),
        **ends,
        **prices.checked,
        "notes": list(bars.notes),
        "instruments": instruments,
        "splits": _splits(site, line),
    }


def _checked(site: Site, line: RunLine) -> dict[str, Any]:
    """Return what a check of the files finds; a built-in process has none."""
    market, source = located(site.run(line))
    if source is None:
        return {"checks": [], "verdict": "A built-in process makes these prices; there are no files to check."}
    names = market.symbols if not isinstance(market.symbols, int) else None
    report = check_bars(source, names, **{name: getattr(market, name) for name in FOR_FILES})
    levels = {REFUSED: "error", NOTE: "warning"}
    checks = [
        {
            "level": levels.get(one.severity, "ok"),
            "symbol": one.symbol,
            "kind": one.rule,
            "count": one.count,
            "text": one.message,
            "advice": one.advice,
            "where": " ".join(part for part in (Path(one.file).name, one.place, one.column) if part),
        }
        for one in (*report.of(REFUSED), *report.of(NOTE))
    ]
    return {"checks": checks, "verdict": report.verdict}


def _instrument(symbol: str, series: Series, timezone: str) -> dict[str, Any]:
    about: dict[str, Any] = {"symbol": symbol, "bars": len(series), "gaps": [], "missing": 0, "session_breaks": 0}
    if len(series) < 2:
        return {**about, "first": None, "last": None, "missing_share": 0.0}
    gaps = find_gaps(series.time, infer_timeframe(series.time), timezone)
    longest = np.sort(np.argsort(-gaps.length, kind="stable")[:MOST_GAPS])
    before = gaps.before[longest]
    begin, end, count = series.time[before], series.time[before + 1], gaps.missing[longest]
    about["gaps"] = [
        {"from": first / SECOND, "to": last / SECOND, "bars": int(bars)}
        for first, last, bars in zip(begin.tolist(), end.tolist(), count.tolist(), strict=True)
    ]
    missing = int(gaps.missing.sum())
    about |= {"missing": missing, "missing_share": missing / (missing + len(series)), "gap_count": len(gaps.before)}
    about["session_breaks"] = gaps.session_breaks
    return {**about, "first": series.time[0] / SECOND, "last": series.time[-1] / SECOND}


def _splits(site: Site, line: RunLine) -> Any:
    """Return how the data is split, as the run was told."""
    record = site.store.find(line.id)
    told = (record.config.get("market") or {}).get("splits") if record else None
    return [{"name": name, "share": share} for name, share in told.items()] if isinstance(told, dict) else []


# Candles


class CandlesQuery(Stretch):
    """Which candles."""

    symbol: str | None = Field(None, max_length=200, description="the first instrument if not given")
    timeframe: str | None = Field(
        None, max_length=20, description="size of a candle; the finest of which `points` fill the stretch if not given"
    )
    key: str | None = Field(None, max_length=130, description="has no effect; pages send it along")
    points: int = Field(1500, ge=2, le=MOST_CANDLES, description="candles at most")


@routes.get("/api/runs/{id}/candles", CandlesQuery)
def candles_of_run(site: Site, question: Question[CandlesQuery]) -> Any:
    """Return the prices of a run's market as candles."""
    return candles(prices_of(site, site.line(question.path["id"])), question.asked)


@routes.get("/api/data/{id}/candles", CandlesQuery)
def candles_of_market(site: Site, question: Question[CandlesQuery]) -> Any:
    """Return the prices of a market as candles."""
    return candles(prices_of(site, _lines(site, question.path["id"])[0]), question.asked)


def candles(prices: Prices, asked: CandlesQuery) -> dict[str, Any]:
    """Return candles within a stretch: of the size asked for the newest that fit, else of the finest that fits."""
    symbol = prices.bars.symbols[0] if asked.symbol is None else asked.symbol
    if symbol not in prices.bars.series:
        raise Refusal(404, f"no instrument {symbol[:80]!r}; there are {', '.join(prices.bars.symbols[:20])}.")
    legal = prices.timeframes
    if asked.timeframe is not None and asked.timeframe not in legal:
        raise Refusal(422, f"timeframe {asked.timeframe!r}: there are {', '.join(legal)}.")
    tried = [asked.timeframe] if asked.timeframe else legal
    begin, end, size = 0, 0, tried[0]
    series = prices.bars[symbol]
    for size in tried:
        series = prices.series(symbol, size)
        begin = 0 if asked.begin is None else int(np.searchsorted(series.time, asked.begin * SECOND, "left"))
        end = len(series) if asked.end is None else int(np.searchsorted(series.time, asked.end * SECOND, "right"))
        if end - begin <= asked.points:
            break
    cut = end - begin > asked.points
    begin = max(begin, end - asked.points)
    part, every = series.slice(begin, end), prices.bars[symbol]
    columns = {name: rounded(getattr(part, name)) for name in ("open", "high", "low", "close", "volume")}
    return {
        "symbol": symbol,
        "symbols": list(prices.bars.symbols),
        "timeframe": size,
        "native": prices.native.text,
        "timeframes": legal,
        "time": (part.time / SECOND).tolist(),
        **columns,
        "closes_only": every.close_only,
        "first": every.time[0] / SECOND if len(every) else None,
        "last": every.time[-1] / SECOND if len(every) else None,
        "coarsened": size != prices.native.text,
        "cut": cut,
    }
