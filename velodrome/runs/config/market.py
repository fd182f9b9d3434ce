"""The section `market` of a run's configuration: the price data, and what an agent sees of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velodrome.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from velodrome.bars.frame import Bars
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

# The built-in processes, and which fields each is made from; velodrome/bars/synthetic.py has their equations.
SYNTHETIC = {
    "ar1": ("length", "seed", "start", "price", "volatility", "drift", "phi"),
    "ou": ("length", "seed", "start", "price", "volatility", "reversion"),
    "gbm": ("length", "seed", "start", "price", "volatility", "drift"),
    "regimes": ("length", "seed", "start", "price", "volatility", "persistence", "states"),
    "factors": ("length", "seed", "start", "price", "volatility", "drift", "phi", "common"),
}
FOR_FILES = ("timezone", "day_first")
# What makes no difference to the other of the two that are built of bars.
FOR_MARKETS, FOR_BASKETS = ("session",), ("min_instruments",)
FEWEST_INSTRUMENTS = 2  # of a basket


class Section(BaseModel):
    """Base of a run's sections: frozen, unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MarketConfig(Section):
    """The price data, and what an agent sees of it."""

    source: str = Field(
        "ar1", min_length=1, description="where bars come from: a built-in process, or a price file or folder (write "
        "./ar1 for a folder of that name)",
        json_schema_extra={"legal": "path, or one of ar1, ou, gbm, regimes, factors"},
    )  # fmt: skip
    symbols: int | tuple[str, ...] | None = Field(
        None, description="files: instruments to keep, all if null; built-in process: their names or number, 1 if null",
        json_schema_extra={"legal": "list of names, or for a built-in process a number, or null"},
    )  # fmt: skip
    timeframe: str | None = Field(
        None, description="of the bars that are traded, such as 5m; the data's own if null (built-in process: 1m)"
    )
    timezone: str = Field("UTC", description="files: IANA zone of times that have none, and in which days begin")
    day_first: bool | None = Field(
        None, description="files: whether 02/03/2020 is 2 March; decided from the values if null"
    )
    length: int = Field(20_000, ge=2, le=1_000_000_000, description="built-in process: bars of each instrument")
    seed: int = Field(0, ge=0, description="built-in process: seed of the prices; that of the run does not change them")
    start: str = Field("2020-01-01", description="built-in process: UTC time of the first bar")
    price: float = Field(100.0, gt=0.0, description="built-in process: first price; ou: the level it returns to")
    volatility: float = Field(
        1e-3, gt=0.0, description="built-in process: deviation of the noise in a bar's log return"
    )
    drift: float = Field(0.0, description="ar1, gbm, factors: mean log return of a bar")
    phi: float = Field(0.3, gt=-1.0, lt=1.0, description="ar1, factors: dependence of a bar's return on the last one")
    reversion: float = Field(
        0.05, gt=0.0, lt=2.0, description="ou: share of the distance to its level that the log price returns in a bar"
    )
    persistence: float = Field(0.99, ge=0.0, le=1.0, description="regimes: probability of staying in a state")
    states: tuple[tuple[float, float], ...] | None = Field(
        None, description="regimes: drift and volatility of 2 or 3 states; a calm rise, a turbulent fall and a flat "
        "state if null", json_schema_extra={"legal": "2 or 3 pairs [drift, volatility], or null"},
    )  # fmt: skip
    common: float = Field(
        0.5, ge=0.0, le=0.6, description="factors: share of the noise's variance that instruments have in common"
    )
    features: tuple[str, ...] | dict[str, tuple[str, ...]] | None = Field(
        None, description="what each bar of a window shows (`velodrome data features` lists the names); eight that do "
        "not follow the price level if null",
        json_schema_extra={"legal": "list of names, or {timeframe: list of names}, or null"},
    )  # fmt: skip
    windows: int | dict[str, int] = Field(
        32, description="bars that an observation shows, of the traded timeframe or by timeframe",
        json_schema_extra={"legal": "whole number ≥ 1, or {timeframe: whole number ≥ 1}"},
    )  # fmt: skip
    splits: dict[str, float] | dict[str, tuple[str | None, str | None]] = Field(
        default_factory=lambda: {"train": 0.7, "validation": 0.15, "test": 0.15},
        description="parts of the data in the order of time; the agent learns on train and scalers are fitted on it",
        json_schema_extra={"legal": "{name: fraction}, or {name: [from, to]} with dates, null for an open side"},
    )
    embargo: int = Field(0, ge=0, description="bars left out at the beginning of every split but the earliest")
    scaler: Literal["standard", "robust", "minmax", "none"] = Field("standard", description="of the features")
    clip: float | None = Field(None, gt=0.0, description="bound of scaled features, on both sides of 0")
    per_instrument: bool = Field(False, description="scale each instrument on its own")
    session: str = Field(
        "day", description="trading: day (calendar days), or the pause that ends a session, such as 6h"
    )
    min_instruments: int = Field(
        1, ge=1, description="portfolio: decisions begin when so many instruments have complete windows"
    )
    check_leaks: bool = Field(True, description="prove while building that no feature or window knows the future")

    @field_validator("source", mode="before")
    @classmethod
    def _path_is_text(cls, source: Any) -> Any:
        return str(source) if isinstance(source, Path) else source

    @field_validator("symbols", "features", mode="before")
    @classmethod
    def _one_name_is_a_list(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("splits", mode="before")
    @classmethod
    def _dates_are_text(cls, splits: Any) -> Any:
        def text(moment: Any) -> Any:
            return moment.isoformat() if isinstance(moment, datetime.date) else moment

        if not isinstance(splits, dict):
            return splits
        return {
            name: [text(moment) for moment in ends] if isinstance(ends, list | tuple) else ends
            for name, ends in splits.items()
        }

    @field_validator("windows")
    @classmethod
    def _windows_have_bars(cls, windows: int | dict[str, int]) -> int | dict[str, int]:
        if any(length < 1 for length in (windows.values() if isinstance(windows, dict) else (windows,))):
            raise ValueError("a window needs at least 1 bar; {} shows none")
        return windows

    @model_validator(mode="after")
    def _symbols_fit_the_source(self) -> MarketConfig:
        if isinstance(self.symbols, int) and not self.is_synthetic:
            raise ConfigError(
                f"market.symbols = {self.symbols}: a number is for a built-in process ({', '.join(SYNTHETIC)}); name "
                f"the instruments to keep of {self.source!r}, or leave it out for all."
            )
        return self

    @property
    def is_synthetic(self) -> bool:
        """Whether the bars come from a built-in process rather than from files."""
        return self.source in SYNTHETIC

    def bars(self) -> Bars:
        """Read or make the bars."""
        from velodrome.bars import read_bars, synthetic_bars

        if self.is_synthetic:
            own: dict[str, Any] = {name: getattr(self, name) for name in SYNTHETIC[self.source]}
            symbols = 1 if self.symbols is None else self.symbols
            return synthetic_bars(self.source, timeframe=self.timeframe or "1m", symbols=symbols, **own)
        path = Path(self.source).expanduser()
        if not path.exists():
            raise ConfigError(
                f"market.source = {self.source!r} is neither a file or folder (looked for {path.absolute()}) nor a "
                f"built-in process ({', '.join(SYNTHETIC)}).{did_you_mean(self.source, SYNTHETIC)}"
            )
        names = None if self.symbols is None else list(self.symbols)  # type: ignore[arg-type]
        return read_bars(path, names, timezone=self.timezone, day_first=self.day_first)

    def _choices(self) -> dict[str, Any]:
        """Return what is chosen alike for a market and a basket."""
        names = ("features", "windows", "splits", "embargo", "scaler", "check_leaks", "clip", "per_instrument")
        # A built-in process makes bars of its timeframe; bars of files are kept as they are for finer windows.
        timeframe = None if self.is_synthetic else self.timeframe
        return {**{name: getattr(self, name) for name in names}, "timeframe": timeframe}

    def build(self) -> Market:
        """Build the market: bars, features, windows, splits and scalers."""
        from velodrome.tables import build_market

        return build_market(self.bars(), session=self.session, **self._choices())

    def build_basket(self) -> Basket:
        """Build the basket: all instruments on one grid, with features, windows, splits and scalers."""
        from velodrome.tables import build_basket

        bars = self.bars()
        if len(bars.symbols) < FEWEST_INSTRUMENTS:
            wanted = "a number or names" if self.is_synthetic else "a folder of several files"
            raise ConfigError(
                f"market has {len(bars.symbols)} instrument ({bars.symbols[0]}), and a portfolio needs "
                f"{FEWEST_INSTRUMENTS} or more: give {'market.symbols' if self.is_synthetic else 'market.source'} "
                f"{wanted}, or the basket that the run was given (market=…)."
            )
        return build_basket(bars, min_instruments=self.min_instruments, **self._choices())
