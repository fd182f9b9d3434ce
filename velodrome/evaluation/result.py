"""`Evaluation`: what a policy did on a split, as a table for people, as JSON and as files."""

from __future__ import annotations

import contextlib
import glob
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Group
from rich.text import Text

from velodrome.bars.summary import Summarised, Summary
from velodrome.errors import ConfigError, RunError
from velodrome.evaluation.baselines import LABELS
from velodrome.evaluation.measures import BY_NAME, format_figure, written
from velodrome.evaluation.named_policy import USED_FOR_SELECTION, CheckpointChoice, NamedPolicy
from velodrome.evaluation.trades import SCHEMA
from velodrome.evaluation.training_seeds import SeedResult, SeedSpread, seeds_rows, told_spread
from velodrome.outside.files import UNFIT, read_json
from velodrome.outside.screen import Figures, FittedTable
from velodrome.writing import replacing, write_frame

COMPARED = ("mean_log_return", "return", "sharpe")  # differences to the baselines get intervals
IN_A_LINE = ("return", "sharpe", "max_drawdown")  # what a short text shows of a backtest
SEED_FIGURES = {  # of the table of training seeds
    "backtest": ("return", "sharpe", "max_drawdown"),
    "episodes": ("episode_return", "episode_length", "worst_episode"),
}
FRAMES = ("trades", "equity", "bars")


@dataclass(frozen=True)
class Row:
    """A metric of the agent with its interval, and the same of each baseline (NaN: not defined)."""

    name: str
    value: float
    low: float
    high: float
    baselines: Mapping[str, float]


@dataclass(frozen=True)
class Difference:
    """The agent's metric less a baseline's, both resampled at the same bars."""

    metric: str
    baseline: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Evaluation(Summarised):
    """What a policy did on a split: the table, the curves behind it, and what speaks against trusting it."""

    kind: Literal["backtest", "episodes"]
    split: str
    in_sample: bool
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]  # of a backtest
    actions: tuple[tuple[str, float], ...]  # name and share of the agent's actions; of continuous ones, by bin
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    information: Mapping[str, Any]  # data, dates, seeds, bootstrap; JSON-able
    # Of a backtest: time and then a column for each policy, equity over start equity; the agent bar by bar under the
    # first seed; its trades.
    equity: pl.DataFrame = field(default_factory=pl.DataFrame)
    bars: pl.DataFrame = field(default_factory=pl.DataFrame)
    trades: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=dict(SCHEMA)))
    episodes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # kind "episodes": returns and lengths
    breakdown: Mapping[str, Any] = field(default_factory=dict)  # of a backtest: months, falls, costs; JSON-able
    # Of several training seeds: each by itself, and how far they are apart. Rows and curves are then means over seeds.
    seeds: tuple[SeedResult, ...] = ()
    spread: tuple[SeedSpread, ...] = ()
    policy: NamedPolicy | None = None  # None: one that no run of ours trained
    used_for_selection: bool = False  # the checkpoint was chosen by its result on this data

    @property
    def label(self) -> str:
        """The split as it is shown: data that the agent was trained on or chosen by is named as such."""
        return split_label(self.split, self.in_sample, self.used_for_selection)

    @property
    def file_name(self) -> str:
        """What its files' names begin with: those of different checkpoints lie side by side."""
        return self.split if self.policy is None else f"{self.split}-{self.policy.file_name}"

    @property
    def metrics(self) -> dict[str, float]:
        """The agent's figures by name."""
        return {row.name: row.value for row in self.rows}

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """Names of the baselines that were played, in order."""
        return tuple(self.rows[0].baselines) if self.rows else ()

    def row(self, name: str) -> Row:
        """Return the row of one metric."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ConfigError(f"no metric {name!r} in this evaluation; there are {', '.join(r.name for r in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the long tables as JSON-able values; what is not finite becomes a text or None."""
        kept = (part.name for part in fields(self) if part.name not in FRAMES)
        return {name: _jsonable(getattr(self, name)) for name in kept}

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write the evaluation into `evaluation/` of a run's folder; return what was written by name."""
        target = Path(folder) / "evaluation"
        target.mkdir(parents=True, exist_ok=True)
        paths = {"json": target / f"{self.file_name}.json"}
        if self.kind == "backtest":
            paths |= {name: target / f"{self.file_name}-{name}.parquet" for name in FRAMES}
            paths["trades_csv"] = target / f"{self.file_name}-trades.csv"
        # All are written before the first takes its place. The JSON file, which says that there is a result, is last.
        with contextlib.ExitStack() as stack:
            new = {name: stack.enter_context(replacing(path)) for name, path in paths.items()}
            new["json"].write_text(self.to_json() + "\n", encoding="utf-8")
            if self.kind == "backtest":
                for name in FRAMES:
                    write_frame(getattr(self, name), new[name])
                write_frame(self.trades, new["trades_csv"])
        return paths

    @staticmethod
    def read_figures(path: Path) -> dict[str, Any]:
        """Return what the JSON file of an evaluation says of its figures, without the long tables: rows and seeds.

        ConfigError if the file is not one that `save` wrote.
        """
        try:
            plain = read_json(path)
            label = split_label(plain["split"], plain["in_sample"], plain.get("used_for_selection", False))
            rows = [Row(**_numbers(row)) for row in plain["rows"]]
            seeds = {one["seed"]: [Row(**_numbers(row)) for row in one["rows"]] for one in plain.get("seeds", ())}
            policy = NamedPolicy.from_dict(plain["policy"]) if plain.get("policy") else None
            look = plain["information"].get("look")
        except (OSError, *UNFIT) as error:
            raise ConfigError(f"{path}: is no evaluation ({type(error).__name__}: {error}). Evaluate again.") from error
        found = {"split": plain["split"], "label": label, "rows": rows, "seeds": seeds, "policy": policy}
        return {**found, "look": look}

    @classmethod
    def load(cls, folder: str | Path, split: str, checkpoint: CheckpointChoice = "best") -> Evaluation:
        """Read what `save` wrote: of several with this split and choice of checkpoint, the one written last.

        A result that names no policy, as older ones do not, is found by its split alone.
        """
        source = Path(folder) / "evaluation"
        named = list(source.glob(f"{glob.escape(split)}-{checkpoint}-*.json"))
        path = max(named, key=lambda found: found.stat().st_mtime_ns, default=source / f"{split}.json")
        if not path.is_file():
            there = ", ".join(sorted(found.stem for found in source.glob("*.json"))) or "none"
            raise ConfigError(f"no evaluation of the split {split!r} ({checkpoint}) in {source}; there are {there}")
        try:
            found = cls.read(path)
            found.summary(), found.table()  # what cannot be shown is no evaluation
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException, *UNFIT) as error:
            raise RunError(f"{path}: not what an evaluation wrote ({error!r}). Evaluate the run again.") from error
        return found

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """Return the evaluation of one JSON file and the tables beside it; files of another kind raise as they may."""
        plain = read_json(path)
        if plain["kind"] == "backtest":
            plain |= {name: pl.read_parquet(path.with_name(f"{path.stem}-{name}.parquet")) for name in FRAMES}
        plain["rows"] = tuple(Row(**_numbers(row)) for row in plain["rows"])
        plain["differences"] = tuple(Difference(**_numbers(one)) for one in plain["differences"])
        plain["actions"] = tuple((name, share) for name, share in plain["actions"])
        plain["episodes"] = {name: np.array(values, np.float64) for name, values in plain["episodes"].items()}
        plain["seeds"] = tuple(
            SeedResult(one["seed"], tuple(Row(**_numbers(row)) for row in one["rows"]))
            for one in plain.get("seeds", ())
        )
        plain["spread"] = tuple(SeedSpread(**_numbers(one)) for one in plain.get("spread", ()))
        plain["policy"] = NamedPolicy.from_dict(plain["policy"]) if plain.get("policy") else None
        return cls(**{**plain, "warnings": tuple(plain["warnings"]), "notes": tuple(plain["notes"])})

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        shown = self.baseline_names
        cells, first = [], []
        for row in self.rows:
            metric = BY_NAME[row.name]
            own, interval = format_figure(row.value, metric.unit), format_interval(row)
            others = [format_figure(row.baselines[name], metric.unit) for name in shown]
            cells.append((metric.label, own, interval, *others))
            if self.kind == "episodes" or row.name in IN_A_LINE:
                first.append(f"{metric.label} {own}" + (f" ({interval})" if interval != "–" else ""))
        line = f"Evaluation of {self.information['title']}, {self.label}: {', '.join(first[:3])}"
        interval = f"{self.information['confidence']:.0%} interval"
        headings = ("", "agent", interval, *(LABELS[name] for name in shown))
        return Summary(line, headings, tuple(cells), self.warnings, "warning")

    def table(self) -> Group:
        """Return the table, differences, notes and warnings for a terminal."""
        shown = self.baseline_names
        confidence = self.information["confidence"]
        both = [(row, BY_NAME[row.name]) for row in self.rows if not BY_NAME[row.name].detail]
        columns = [
            Figures("", [metric.label for _, metric in both], number=False),
            Figures("agent", [format_figure(row.value, metric.unit) for row, metric in both]),
            Figures(f"{confidence:.0%} interval", [format_interval(row) for row, _ in both]),
        ]
        for name in shown:
            columns.append(
                Figures(LABELS[name], [format_figure(row.baselines[name], metric.unit) for row, metric in both])
            )
        parts: list[Any] = [FittedTable(f"{self.information['title']}: {self.label}", columns)]
        if self.seeds:
            parts += [seeds_table(self), Text(told_spread(self.kind, self.seeds, self.spread))]
        if self.policy is not None:
            parts.append(Text(f"policy: {self.policy.text}"))
        for difference in self.differences:
            if difference.metric == COMPARED[0]:
                unit = BY_NAME[difference.metric].unit
                low, high = format_figure(difference.low, unit), format_figure(difference.high, unit)
                ahead = f"agent − {LABELS[difference.baseline]}: {format_figure(difference.value, unit)} log return"
                parts.append(Text(f"{ahead} per bar ({confidence:.0%} interval {low} … {high})"))
        parts += [Text(f"warning: {warning}", style="yellow") for warning in self.warnings]
        parts += [Text(f"note: {note}", style="dim") for note in self.notes]
        return Group(*parts)


def seeds_table(evaluation: Evaluation) -> FittedTable:
    """Return a line for each training seed, then what they are together."""
    headings, lines = seeds_rows(evaluation, SEED_FIGURES[evaluation.kind])
    columns = [
        Figures(heading, [line[place] for line in lines], number=place > 0) for place, heading in enumerate(headings)
    ]
    title = "training seeds (intervals: the data; means: data and seeds)"
    return FittedTable(title, columns, sections=(len(evaluation.seeds),))


def split_label(split: str, in_sample: bool, used_for_selection: bool) -> str:
    """Return a split as it is shown: data that the agent was trained on or chosen by is named as such."""
    if in_sample:
        return f"{split} (IN SAMPLE: the agent was trained on it)"
    return f"{split} ({USED_FOR_SELECTION})" if used_for_selection else split


def format_interval(row: Row | Difference) -> str:
    """Return an interval for people; '–' where there is none."""
    if math.isnan(row.low) or math.isnan(row.high):
        return "–"
    unit = BY_NAME[row.name if isinstance(row, Row) else row.metric].unit
    return f"{format_figure(row.low, unit)} … {format_figure(row.high, unit)}"


def _jsonable(value: Any) -> Any:
    """Return a value that JSON can hold: NaN becomes null, infinities become texts."""
    if isinstance(value, Row | Difference | SeedResult | SeedSpread):
        return _jsonable(asdict(value))
    if isinstance(value, NamedPolicy):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _jsonable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    if isinstance(value, float):
        return written(float(value))
    return value.item() if isinstance(value, np.generic) else value


def _numbers(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the numbers that `written` replaced."""
    words = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return {
        name: _numbers(value) if isinstance(value, dict) else words.get(value, value) for name, value in plain.items()
    }
