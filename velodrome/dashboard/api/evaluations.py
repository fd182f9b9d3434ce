"""What a run's policy did on data it never saw: figures beside baselines, equity, weights, trades, official scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from velodrome.dashboard.answers import Download, Question, Refusal, Routes, Stretch
from velodrome.dashboard.curves import rounded, thinned
from velodrome.dashboard.index import RunLine
from velodrome.dashboard.site import Site, file_inside
from velodrome.errors import ConfigError
from velodrome.outside.files import UNFIT, read_json

if TYPE_CHECKING:
    from velodrome.evaluation.result import Evaluation

routes = Routes()
FILE = re.compile(r"(?P<split>[A-Za-z0-9_.-]{1,60}?)-(?P<checkpoint>best|latest)-(?P<steps>\d[\d-]*)")
KEY = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,120}$"
MOST_TRADES = 5000
SHOWN_SYMBOLS = 12  # of weights and exposures; the others are together
TRADE_COLUMNS = (
    *("symbol", "training_seed", "seed", "side", "entry_time", "exit_time", "entry_price", "exit_price"),
    *("units", "bars", "profit", "return", "costs", "reason"),
)
BINS = 40
NANOSECONDS = 1e9


def saved_evaluations(line: RunLine) -> list[dict[str, Any]]:
    """Return the evaluations in a run's folder, the last written first."""
    folder = line.folder / "evaluation"
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if path.stem.startswith("official-") or path.is_symlink():
            continue
        named = FILE.fullmatch(path.stem)
        about: dict[str, Any] = {"key": path.stem, "split": path.stem, "checkpoint": None, "step": None}
        if named:
            steps = named["steps"].split("-")[0]
            about |= {"split": named["split"], "checkpoint": named["checkpoint"], "step": int(steps)}
        kind = "backtest" if path.with_name(f"{path.stem}-equity.parquet").is_file() else "episodes"
        found.append({**about, "label": about["split"], "kind": kind, "written": path.stat().st_mtime})
    final = {line.final_split, "episodes"}
    return sorted(found, key=lambda one: (one["split"] in final, one["checkpoint"] == "best", one["written"]))[::-1]


class EvaluationQuery(Stretch):
    """Which evaluation, and how many points of its curves."""

    key: str | None = Field(None, pattern=KEY, description="which one; the final one if not given")


@routes.get("/api/runs/{id}/evaluation", EvaluationQuery)
def evaluation(site: Site, question: Question[EvaluationQuery]) -> Any:
    """Show an evaluation: figures, equity and drawdown beside baselines, trades, weights, action mix."""
    line = site.line(question.path["id"])
    path = path_of(line, question.asked.key)
    found = loaded(site, path)
    return content(found, question.asked, path)


def path_of(line: RunLine, key: str | None) -> Path:
    """Return the file of an evaluation."""
    known = [one["key"] for one in saved_evaluations(line)]
    if not known:
        raise Refusal(404, f"run {line.id} has no evaluation yet; ask for one: velodrome eval {line.id}")
    if key is not None and key not in known:
        raise Refusal(404, f"run {line.id} has no evaluation {key!r}; it has {', '.join(known[:10])}.")
    return file_inside(line.folder, "evaluation", f"{key or known[0]}.json")


def loaded(site: Site, path: Path) -> Evaluation:
    """Return an evaluation as it was written; the last few are kept."""
    from velodrome.evaluation.result import Evaluation

    def load() -> Evaluation:
        try:
            return Evaluation.read(path)
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException, *UNFIT) as error:
            raise Refusal(
                409, f"{path.name}: not what an evaluation wrote ({error!r}). Evaluate the run again."
            ) from error

    key = ("evaluation", hash(path) % 8)  # a few at a time: long ones take tens of megabytes
    return site.held(key, (path, path.stat().st_mtime_ns), load)


def content(found: Evaluation, asked: Stretch, path: Path) -> dict[str, Any]:
    """Return an evaluation in plain values."""
    from velodrome.evaluation.baselines import HINDSIGHT, LABELS

    about = found.information
    return {
        "key": path.stem,
        **{name: getattr(found, name) for name in ("kind", "split", "label", "in_sample")},
        "policy": None if found.policy is None else found.policy.text,
        "title": about.get("title"),
        "timeframe": about.get("timeframe"),
        "confidence": about.get("confidence"),
        "warnings": list(found.warnings),
        "notes": list(found.notes),
        "baselines": [
            {"name": name, "label": LABELS.get(name, name), "hindsight": name in HINDSIGHT}
            for name in found.baseline_names
        ],
        "rows": figures(found),
        "differences": [vars(one) for one in found.differences],
        "actions": [{"name": name, "share": share} for name, share in found.actions],
        "symbols": list(about.get("symbols") or ()),
        **_curves(found, asked),
        "trades": trades(found),
        **{
            name: found.breakdown.get(name)
            for name in ("months", "falls", "cost_levels", "rolling_sharpe", "benchmark")
        },
        "episodes": _episodes(found),
        "seeds": [{"seed": one.seed, **{row.name: row.value for row in one.rows}} for one in found.seeds],
        "study": about.get("study"),
        "look": about.get("look"),
    }


def figures(found: Evaluation) -> list[dict[str, Any]]:
    """Return the rows of the table, as numbers and as people read them."""
    from velodrome.evaluation.measures import BY_NAME, format_figure
    from velodrome.evaluation.result import format_interval

    rows = []
    for row in found.rows:
        metric = BY_NAME[row.name]
        texts = {name: format_figure(value, metric.unit) for name, value in row.baselines.items()}
        numbers = {"value": row.value, "low": row.low, "high": row.high, "baselines": dict(row.baselines)}
        told = {
            "text": format_figure(row.value, metric.unit),
            "interval": format_interval(row),
            "baseline_texts": texts,
        }
        about = {"name": row.name, "label": metric.label, "unit": metric.unit, "detail": metric.detail}
        rows.append({**about, **numbers, **told})
    return rows


# Curves


def seconds(time: pl.Series) -> NDArray[np.float64]:
    """Return moments in seconds since 1970."""
    return time.dt.epoch("ns").to_numpy() / NANOSECONDS


def together(
    x: NDArray[np.float64], columns: Mapping[str, NDArray[np.float64]], asked: Stretch
) -> tuple[list[float], dict[str, list[float | None]], dict[str, Any]]:
    """Return several curves over the same x, thinned to the same points, so that they can be stacked and filled.

    Each curve says which of its points are worth seeing; the points are shared among them.
    """
    begin = 0 if asked.begin is None else int(np.searchsorted(x, asked.begin, "left"))
    end = len(x) if asked.end is None else int(np.searchsorted(x, asked.end, "right"))
    x, own = x[begin:end], {name: values[begin:end] for name, values in columns.items()}
    rows = np.arange(len(x))
    if len(x) > asked.points:
        each = max(3, asked.points // max(len(own), 1))
        rows = np.unique(np.concatenate([thinned(x, values, each) for values in own.values()]))
    about = {"total": len(x), "thinned": len(rows) < len(x)}
    return x[rows].tolist(), {name: rounded(values[rows]) for name, values in own.items()}, about


def _curves(found: Evaluation, asked: Stretch) -> dict[str, Any]:
    """Return equity, drawdown, weights and exposure."""
    if found.kind != "backtest" or found.equity.is_empty():
        return {"equity": [], "drawdown": [], "weights": [], "exposure": [], "first": None, "last": None}
    from velodrome.evaluation.measures import drawdowns

    frame = found.equity
    time = seconds(frame["time"])
    columns = {name: frame[name].to_numpy() for name in frame.columns if name != "time"}
    x, equity, about = together(time, columns, asked)
    lines = [{"name": name, **_role(name), "x": x, "y": y, **about} for name, y in equity.items()]
    falls = {
        name: -drawdowns(values) for name, values in columns.items() if _role(name)["kind"] in ("agent", "baseline")
    }
    x, down, about = together(time, falls, asked)
    below = [{"name": name, **_role(name), "x": x, "y": y, **about} for name, y in down.items()]
    ends = {"first": float(time[0]), "last": float(time[-1])}
    return {"equity": lines, "drawdown": below, **_positions(found, asked), **ends}


def _role(name: str) -> dict[str, Any]:
    """Return what a column of equity curves is."""
    from velodrome.evaluation.baselines import HINDSIGHT, LABELS
    from velodrome.evaluation.training_seeds import SEED_COLUMN

    for end in ("low", "high"):
        if name.endswith(f"_{end}"):
            whose = name.removesuffix(f"_{end}")
            told = f"{LABELS.get(whose, whose)}, {'worst' if end == 'low' else 'best'} seed"
            return {"kind": end, "of": whose, "label": told, "hindsight": False}
    if name.startswith(SEED_COLUMN):
        return {"kind": "seed", "label": f"training seed {name.removeprefix(SEED_COLUMN)}", "hindsight": False}
    kind = "agent" if name == "agent" else "baseline"
    return {"kind": kind, "label": LABELS.get(name, name), "hindsight": name in HINDSIGHT}


def _positions(found: Evaluation, asked: Stretch) -> dict[str, Any]:
    """Return the weights of a portfolio, or the exposures of single accounts, of the instruments that count most."""
    table = found.bars
    kind = "weight" if "weight" in table.columns else "exposure" if "exposure" in table.columns else None
    empty: dict[str, Any] = {"weights": [], "exposure": []}
    if kind is None:
        return empty
    size = table.group_by("symbol", maintain_order=True).agg(pl.col(kind).abs().mean()).sort(kind, descending=True)
    shown = size["symbol"].to_list()[:SHOWN_SYMBOLS]
    wide = table.pivot("symbol", index="time", values=kind, aggregate_function="first").sort("time")
    columns = {symbol: wide[symbol].cast(pl.Float64).to_numpy() for symbol in shown if symbol in wide.columns}
    rest = [symbol for symbol in size["symbol"].to_list()[SHOWN_SYMBOLS:] if symbol in wide.columns]
    if rest and kind == "weight":
        columns["others"] = wide.select(pl.sum_horizontal(rest)).to_series().to_numpy()
    x, lines, about = together(seconds(wide["time"]), columns, asked)
    curves = [{"name": name, "label": name, "x": x, "y": y, **about} for name, y in lines.items()]
    return {**empty, "weights" if kind == "weight" else "exposure": curves}


def trades(found: Evaluation, most: int = MOST_TRADES) -> dict[str, Any]:
    """Return trades by column."""
    frame = trades_frame(found)
    first = frame.head(most)
    columns = {name: first[name].to_list() for name in frame.columns}
    return {"total": frame.height, "columns": columns}


def trades_frame(found: Evaluation) -> pl.DataFrame:
    """Return the trades with all costs in one column, and times in seconds."""
    frame = found.trades
    costs = [name for name in ("fees", "spread_and_slippage", "funding") if name in frame.columns]
    frame = frame.with_columns(costs=pl.sum_horizontal(costs)) if costs else frame
    times = [name for name in ("entry_time", "exit_time") if name in frame.columns]
    frame = frame.with_columns(*(pl.col(name).dt.epoch("ms") / 1000.0 for name in times))
    return frame.select(*(name for name in TRADE_COLUMNS if name in frame.columns))


def _episodes(found: Evaluation) -> dict[str, Any] | None:
    """Return how often each sum of rewards came up."""
    returns = found.episodes.get("returns")
    if returns is None or not len(returns):
        return None
    counts, edges = np.histogram(returns[np.isfinite(returns)], bins=min(BINS, max(1, len(np.unique(returns)))))
    return {"bins": edges.tolist(), "counts": counts.tolist(), "episodes": len(returns)}


class KeyQuery(Stretch):
    """Which evaluation."""

    key: str | None = Field(None, pattern=KEY)


@routes.get("/api/runs/{id}/trades.csv", KeyQuery)
def trades_file(site: Site, question: Question[KeyQuery]) -> Any:
    """Return all trades of an evaluation as a CSV file, times in UTC."""
    line = site.line(question.path["id"])
    path = path_of(line, question.asked.key)
    frame = loaded(site, path).trades
    return Download(f"{line.name}-{line.id}-{path.stem}-trades.csv", iter([frame.write_csv().encode()]))


# An environment's own scores


def official_table(line: RunLine) -> dict[str, Any] | None:
    """Return the scores that belong to an environment itself, such as CAGE-2's, beside those that were published."""
    folder = line.folder / "evaluation"
    files = [path for path in folder.glob("official-*.json") if not path.is_symlink()] if folder.is_dir() else []
    if not files:
        return None
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    try:
        found = read_json(newest)
        return {**_scores(found), "policy": (found.get("policy") or {}).get("text"), "key": newest.stem}
    except (OSError, ConfigError, *UNFIT):
        return None


def _scores(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores as a table: a row for each policy and opponent, a column for each length."""
    lengths = sorted({score["length"] for score in found["scores"]})
    cells: dict[tuple[str, str], dict[Any, Any]] = {}
    for score in found["scores"]:
        half = (score["high"] - score["low"]) / 2
        shown = {"value": score["mean"], "low": score["low"], "high": score["high"]}
        shown["text"] = f"{score['mean']:.2f} ± {half:.2f}".replace("-", "−")
        cells.setdefault((score["policy"], score["red_agent"]), {})[score["length"]] = shown
    for policy, by_opponent in (found.get("published") or {}).items():
        for opponent, values in by_opponent.items():
            known = {
                length: {"value": value, "low": None, "high": None, "text": f"{value:.2f}".replace("-", "−")}
                for length, value in zip(lengths, values, strict=False)
            }
            cells[f"{policy} (published)", opponent] = known
    rows = [[*names, *(own.get(length) for length in lengths)] for names, own in cells.items()]
    columns = ["policy", "red agent", *(f"{length} steps" for length in lengths)]
    return {"title": "mean return over episodes of each length", "columns": columns, "rows": rows}
