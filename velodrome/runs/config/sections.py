"""How a field is declared with its meaning and range, and the sections: checkpoint, evaluation, logging, resources,
market, augment, teacher."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from velodrome.errors import ConfigError, did_you_mean
from velodrome.learn.config import searched
from velodrome.outside.sent import place_of

if TYPE_CHECKING:
    from velodrome.bars.frame import Bars
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

HELD_OUT = "held_out"  # split that a fold of a cross-validation is judged on: settings are chosen by it, it is no test


class Section(BaseModel):
    """Base of a run's sections: frozen, unknown names are errors, infinite numbers stay what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


def setting(
    default: Any,
    meaning: str,
    *,
    legal: str | Callable[[], str] | None = None,
    search: dict[str, Any] | None = None,
    **limits: Any,
) -> Any:
    """Declare a field: default, meaning and limits; `legal` says in words, perhaps later, what its type does not.

    search: what a study tries of it unless it is told, as `searched` and `searched_among` of `learn.config` say it.
    """
    extra: Any = {**({"legal": legal} if legal else {}), **(search or {})} or None
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else str(value) if isinstance(value, Path) else value


Text = Annotated[str, BeforeValidator(_text)]  # may be given as a path or a date
# One name, several between commas, or a list, in which a name may have a comma itself.
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda names: re.split(r"\s*,\s*", names) if isinstance(names, str) else names)
]


class CheckpointConfig(Section):
    """When a run's state is saved, so that it can go on after a stop; it is always saved at the end."""

    every_seconds: float | None = setting(60.0, "seconds between checkpoints; null: not by time", gt=0.0)
    every_steps: int | None = setting(None, "environment steps between checkpoints; null: not by steps", ge=1)
    keep: int = setting(2, "checkpoints kept; older ones are deleted", ge=1, le=10_000)


class EvaluationConfig(Section):
    """How well the agent does on data it does not learn from."""

    split: str | None = setting("validation", "split that is played during training; null: none")
    every_steps: PositiveInt | Literal["auto"] | None = setting(
        "auto",
        "environment steps between evaluations during training; auto: so many that they take `share` of the work; "
        "null: none",
        legal="whole number ≥ 1, auto, or null",
    )
    share: float = setting(
        0.05,
        "part of a training's work that evaluations during it take, if every_steps is auto, and there are `fewest`. "
        "Bars and steps are counted, not timed, so that they take place at the same steps each time",
        gt=0.0,
        le=1.0,
    )
    fewest: int = setting(
        4, "evaluations during a training at least, whatever they take, if every_steps is auto", ge=1, le=1_000_000
    )
    episodes: int = setting(
        16,
        "episodes of an evaluation during training; on a market, the number of pieces its split is played in",
        ge=1,
        le=1_000_000,
    )
    averaged: int = setting(
        1,
        "evaluations in a row whose mean says how good the last of them is: one alone may be the best by luck",
        ge=1,
        le=1_000,
    )
    margin: float = setting(
        0.0,
        "standard errors by which an evaluation must be better than the best one to take its place. Both played the "
        "same, so that it is the error of their difference. With more than 0, of what differs by chance the earliest "
        "is kept, however long a training is",
        ge=0.0,
        le=100.0,
    )
    patience: int | None = setting(
        None,
        "evaluations during training without a better one after which it ends early; null: it does all its steps",
        ge=1,
        le=1_000_000,
    )
    folds: int = setting(
        5, "blocks of time that `velodrome cv` leaves out in turn, to choose settings by", ge=2, le=1_000
    )
    final_split: str | None = setting("test", "split that is played once training has ended; null: none")
    official: bool = setting(
        False, "play the environment's own evaluation, such as CAGE-2's scores, too, once training has ended"
    )
    seeds: int = setting(5, "seeds that the final evaluation is repeated with", ge=1, le=10_000)
    bootstrap_samples: int = setting(1_000, "resamples behind a confidence interval", ge=10, le=10_000_000)
    confidence: float = setting(0.95, "level of the confidence intervals", gt=0.0, lt=1.0)


class LoggingConfig(Section):
    """Where a run writes what happened."""

    folder: Text = setting(
        "runs",
        "folder in which every run has a folder of its own: a path, or a URL such as s3://bucket/runs",
        min_length=1,
    )
    store: str | None = setting(
        None,
        "SQLAlchemy URL of the store of all runs, such as postgresql+psycopg://host/name; an SQLite file in the folder "
        "if null",
    )
    log_every: int = setting(1, "iterations between rows of metrics", ge=1, le=1_000_000)
    metric_names: Literal["velodrome", "torchtrade"] = setting(
        "velodrome",
        "torchtrade: write time/SPS-collecting, time/SPS-total, train/reward and eval/reward beside Velodrome's names",
    )
    tensorboard: bool = setting(False, "write metrics for TensorBoard too")
    wandb: bool = setting(False, "write metrics for Weights & Biases too")
    wandb_project: str = setting("velodrome", "project of Weights & Biases", min_length=1)
    wandb_mode: Literal["offline", "online"] = setting("offline", "online sends while the run goes on")
    wandb_group: str | None = setting(None, "group of runs of Weights & Biases; null: none", min_length=1)
    wandb_tags: Names = setting((), "tags of the run in Weights & Biases", legal="list of texts")


class ResourcesConfig(Section):
    """What is recorded of the machine while a run trains: processors, memory, GPU and disk, as metrics."""

    every_seconds: float = setting(
        5.0, "seconds between rows of `resources/` metrics, means of samples taken beside the training; 0: none", ge=0.0
    )


# The price data

# The built-in processes and the fields each is made from; velodrome/bars/synthetic.py has their equations.
SYNTHETIC = {
    "ar1": ("length", "seed", "start", "price", "volatility", "drift", "phi"),
    "ou": ("length", "seed", "start", "price", "volatility", "reversion"),
    "gbm": ("length", "seed", "start", "price", "volatility", "drift"),
    "regimes": ("length", "seed", "start", "price", "volatility", "persistence", "states"),
    "factors": ("length", "seed", "start", "price", "volatility", "drift", "phi", "common"),
}
FOR_FILES = ("timezone", "day_first", "columns", "adjust", "max_gap")
FOR_SOME_SOURCES = frozenset(FOR_FILES).union(*SYNTHETIC.values())
FOR_DATA = {"session": "market", "min_instruments": "basket"}  # fields that only one kind of price data uses
BAR_BYTES = 48  # a time, four prices and a volume
FEWEST_INSTRUMENTS = 2  # of a basket


def unused_by_source(name: str, source: str) -> str | None:
    """Return why a field of the market has no effect with a source, None if it has one."""
    if name not in FOR_SOME_SOURCES or name in SYNTHETIC.get(source, FOR_FILES):
        return None
    if source in SYNTHETIC:
        return f"market.source is the built-in process {source}, which has no {name}"
    return f"market.source is a path ({source}), and {name} is for a built-in process"


Dates = tuple[Text | None, Text | None]  # from, to (not part of it)


def _legal_columns(columns: dict[str, str] | None) -> dict[str, str] | None:
    from velodrome.bars.columns import check_roles

    return check_roles(columns) or None


def _legal_gap(max_gap: str | None) -> str | None:
    from velodrome.bars.gaps import check_max_gap

    return check_max_gap(max_gap)


class MarketConfig(Section):
    """The price data, and what an agent sees of it."""

    source: Text = setting(
        "ar1",
        "where bars come from: a built-in process, or a price file or folder (write ./ar1 for a folder of that name)",
        legal=f"path, or one of {', '.join(SYNTHETIC)}",
        min_length=1,
    )
    symbols: int | Names | None = setting(
        None,
        "files: instruments to keep, all if null; built-in process: their names or number, 1 if null",
        legal="list of names, or for a built-in process a number, or null",
    )
    timeframe: str | None = setting(
        None, "of the bars that are traded, such as 5m; the data's own if null (built-in process: 1m)"
    )
    timezone: str = setting("UTC", "files: IANA zone of times that name none, and in which days begin")
    day_first: bool | None = setting(None, "files: whether 02/03/2020 is 2 March; decided from the values if null")
    columns: Annotated[dict[str, str] | None, AfterValidator(_legal_columns)] = setting(
        None,
        "files: which column holds what, where its name does not say",
        legal="{what: column} with time, open, high, low, close, volume, symbol, adj_close: {close: Mid}; or null",
    )
    adjust: bool = setting(True, "files: multiply all prices by adjusted close over close where there is such a column")
    max_gap: Annotated[str | None, AfterValidator(_legal_gap)] = setting(
        "auto",
        "files: longest time without a bar, besides nights and weekends; a longer one is refused; auto: 90 days, or 10 "
        "bars if they are longer; null: any",
        legal="length such as 30d or 12h, or auto, or null",
    )
    length: int = setting(20_000, "built-in process: bars of each instrument", ge=2, le=1_000_000_000)
    seed: int = setting(0, "built-in process: seed of the prices; the run's seed does not change them", ge=0)
    start: str = setting("2020-01-01", "built-in process: UTC time of the first bar")
    price: float = setting(100.0, "built-in process: first price; ou: the level it returns to", gt=0.0)
    volatility: float = setting(1e-3, "built-in process: deviation of the noise in a bar's log return", gt=0.0)
    drift: float = setting(0.0, "ar1, gbm, factors: mean log return of a bar")
    phi: float = setting(0.3, "ar1, factors: dependence of a bar's return on the last one", gt=-1.0, lt=1.0)
    reversion: float = setting(
        0.05, "ou: share of the distance to its level that the log price returns in a bar", gt=0.0, lt=2.0
    )
    persistence: float = setting(0.99, "regimes: probability of staying in a state", ge=0.0, le=1.0)
    states: tuple[tuple[float, float], ...] | None = setting(
        None,
        "regimes: drift and volatility of 2 or 3 states; a calm rise, a turbulent fall and a flat state if null",
        legal="2 or 3 pairs [drift, volatility], or null",
    )
    common: float = setting(
        0.5, "factors: share of the noise's variance that instruments have in common", ge=0.0, le=0.6
    )
    features: Names | dict[str, Names] | None = setting(
        None,
        "what each bar of a window shows (`velodrome data features` lists the names); if null, eight features that do "
        "not depend on the price level",
        legal="list of names, or {timeframe: list of names}, or null",
    )
    windows: PositiveInt | dict[str, PositiveInt] = setting(
        32,
        "bars that an observation shows, of the traded timeframe or by timeframe; {} shows none",
        legal="whole number ≥ 1, or {timeframe: whole number ≥ 1}",
    )
    shorten: bool = setting(
        False,
        "when a training begins, shorten windows to the latest rows from which a regression best foresees the next "
        "return, by walk-forward inside the training split",
    )
    sums: Names | None = setting(
        None,
        "columns besides prices and volume of which bars that are made coarser have the sum; the others keep their "
        "last value; null: the one that params.funding_column names",
        legal="list of names, or null",
    )
    splits: dict[str, float] | dict[str, Dates | list[Dates]] = setting(
        {"train": 0.7, "validation": 0.15, "test": 0.15},
        "parts of the data in order of time (the second of two dates is left out, so that the next part may begin "
        "there); the agent learns on train, and scalers are fitted on it",
        legal="{name: fraction}, or {name: [from, to]} with dates, null for an open side, or a list of such pairs",
    )
    embargo: int = setting(0, "bars left out at the beginning of every split but the earliest", ge=0)
    scaler: Literal["standard", "robust", "minmax", "none"] = setting("standard", "of the features")
    clip: float | None = setting(None, "bound of scaled features, on both sides of 0", gt=0.0)
    per_instrument: bool = setting(False, "scale each instrument on its own")
    session: str = setting("day", "trading: day (calendar days), or the pause that ends a session, such as 6h")
    min_instruments: int = setting(
        1, "portfolio: decisions begin once this number of instruments has complete windows", ge=1
    )
    check_leaks: bool = setting(True, "prove while building that no feature or window knows the future")
    leak_seconds: float = setting(
        20.0,
        "longest time, in seconds, to look for leaks in features that are functions; proven ones take less",
        ge=0.0,
    )

    @model_validator(mode="after")
    def _symbols_fit_the_source(self) -> MarketConfig:
        if isinstance(self.symbols, int) and not self.is_synthetic:
            raise ConfigError(
                f"market.symbols = {self.symbols}: a number is for a built-in process ({', '.join(SYNTHETIC)}). Name "
                f"the instruments of {self.source!r} to keep, or leave it out to keep all."
            )
        return self

    @property
    def is_synthetic(self) -> bool:
        """Whether the bars come from a built-in process rather than from files."""
        return self.source in SYNTHETIC

    def read(self, source: Any) -> Bars:
        """Read bars from a path or from frames as these settings say; bars that are read already stay as they are."""
        from velodrome.bars import Bars, read_bars

        if isinstance(source, Bars):
            return source
        names = None if self.symbols is None else list(self.symbols)  # type: ignore[arg-type]
        return read_bars(source, names, **{name: getattr(self, name) for name in FOR_FILES})

    def bars(self) -> Bars:
        """Read or make the bars."""
        from velodrome.bars import synthetic_bars

        if self.is_synthetic:
            own: dict[str, Any] = {name: getattr(self, name) for name in SYNTHETIC[self.source]}
            symbols = 1 if self.symbols is None else self.symbols
            self._check_memory(symbols if isinstance(symbols, int) else len(symbols))
            return synthetic_bars(self.source, timeframe=self.timeframe or "1m", symbols=symbols, **own)
        path = place_of(self.source)
        if not path.exists():
            raise ConfigError(
                f"market.source = {self.source!r} is neither a file or folder (looked for {path.absolute()}) nor a "
                f"built-in process ({', '.join(SYNTHETIC)}).{did_you_mean(self.source, SYNTHETIC)}"
            )
        return self.read(path)

    def _check_memory(self, symbols: int) -> None:
        """Refuse bars of a built-in process that would not fit into the memory that is free."""
        from velodrome.vector.cores import free_memory

        needed, free = BAR_BYTES * self.length * symbols, free_memory()
        if needed > free:
            raise ConfigError(
                f"market.length = {self.length:,}: bars of {symbols:,} instruments need {needed / 1e9:,.0f} GB, and "
                f"{free / 1e9:,.0f} GB are free. Give a smaller length."
            )

    def _choices(self) -> dict[str, Any]:
        """Return the choices that a market and a basket share."""
        names = (
            *("features", "windows", "splits", "embargo", "scaler", "clip", "per_instrument"),
            *("check_leaks", "leak_seconds", "sums"),
        )
        # A built-in process makes bars of this timeframe; bars from files stay as they are for finer windows.
        timeframe = None if self.is_synthetic else self.timeframe
        return {**{name: getattr(self, name) for name in names}, "timeframe": timeframe}

    def lay_out(self, bars: Bars, kind: str, **changes: Any) -> Any:
        """Build the "market" or the "basket" that these settings make of some bars. changes: further choices."""
        from velodrome.tables import build_basket, build_market

        choices = {**self._choices(), **changes}
        if kind == "basket":
            return build_basket(bars, min_instruments=self.min_instruments, **choices)
        return build_market(bars, session=self.session, **choices)

    def build(self, bars: Bars | None = None) -> Market:
        """Build the market: features, windows, splits and scalers. bars: what was read by these settings already."""
        return self.lay_out(self.bars() if bars is None else bars, "market")

    def build_basket(self, bars: Bars | None = None) -> Basket:
        """Build the basket: all instruments on one grid, with features, windows, splits and scalers."""
        bars = self.bars() if bars is None else bars
        if len(bars.symbols) < FEWEST_INSTRUMENTS:
            wanted = "a number or names" if self.is_synthetic else "a folder of several files"
            raise ConfigError(
                f"market has {len(bars.symbols)} instrument ({bars.symbols[0]}), and a portfolio needs "
                f"{FEWEST_INSTRUMENTS} or more: give {'market.symbols' if self.is_synthetic else 'market.source'} "
                f"{wanted}, or pass the run's own basket as market=…."
            )
        return self.lay_out(bars, "basket")


class TeacherConfig(Section):
    """What an agent is taught before it learns by itself (docs/generalisation.md)."""

    policy: Literal["forecast"] | None = setting(
        None,
        "rule that the policy begins as: forecast, a regression of the next return that is fitted to the training "
        "split, finer than the one that evaluations show as a baseline; null: random weights",
    )
    samples: int = setting(65_536, "decisions of the rule that the policy sees", ge=256, le=100_000_000)
    epochs: int = setting(8, "times that it sees each of them", ge=1, le=10_000)
    hold: Annotated[float, Field(ge=0.0, lt=1.0)] | Literal["auto"] = setting(
        0.0,
        "share of the way back to what it was taught that the policy goes after every update, so that few data cannot "
        "lead it far away; auto: 5,000 over the number of training bars, 0.1 at most",
        legal="number 0 … 1 (below), or auto",
        search=searched(0.0, 0.3, beside="teacher.policy"),
    )
    bars: Literal["all", "half", "auto"] = setting(
        "all",
        "bars of the training split that the rule's weights are fitted to: all, or one half of them in blocks by the "
        "run's seed (2k and 2k + 1 have the two halves); auto: half for the members of an ensemble, so that they "
        "differ, and else all",
    )


OF_COPIES = ("augment.copies", "augment.bootstrap_block", "augment.price_noise")


class AugmentConfig(Section):
    """How what an agent sees in training differs from rollout to rollout, so that it cannot learn the data by heart.

    Validation, evaluation and use never see any of it.
    """

    noise: float = setting(
        0.0,
        "deviation of noise on each feature, unit: the feature's own deviation over the training bars",
        ge=0.0,
        le=100.0,
    )
    mask_features: float = setting(
        0.0, "share of the features that are set to 0, each for stretches of 256 bars", ge=0.0, lt=1.0
    )
    mask_bars: float = setting(0.0, "share of the bars whose features are all set to 0", ge=0.0, lt=1.0)

    copies: int = setting(
        0,
        "trading: other histories, made of the training bars before training begins, that episodes are drawn from "
        "beside the true one",
        ge=0,
        le=10_000,
    )
    bootstrap_block: int | None = setting(
        None,
        "copies: bars in a block; a copy is made of blocks of the training bars in random order, joined by their "
        "returns; null: the bars stay in their order",
        ge=1,
    )
    price_noise: float = setting(
        0.0,
        "copies: deviation of noise on each bar's log return, unit: the returns' own deviation; features follow it",
        ge=0.0,
        le=100.0,
    )

    @model_validator(mode="after")
    def _copies_differ(self) -> AugmentConfig:
        ways = "bootstrap_block (bars in a block) or price_noise"
        differ = self.bootstrap_block is not None or self.price_noise > 0.0
        if self.copies and not differ:
            raise ValueError(f"copies = {self.copies}: they would all be the true history; give {ways}")
        if differ and not self.copies:
            raise ValueError(f"{ways} says how copies differ, and copies = 0; give their number, such as copies = 8")
        return self

    @property
    def disturbance(self) -> dict[str, float] | None:
        """Noise and masks on windows by name, None if there are none."""
        chosen = {name: getattr(self, name) for name in ("noise", "mask_features", "mask_bars")}
        return chosen if any(chosen.values()) else None
