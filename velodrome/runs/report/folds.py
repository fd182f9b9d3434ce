"""The result of a walk-forward as a table for the terminal and as files: an HTML page and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

    from velodrome.evaluation.result import Evaluation
    from velodrome.runs.config.run_config import RunConfig
    from velodrome.runs.walk_forward import WalkForward

FILE = "walk_forward"
SHOWN = ("return", "sharpe", "max_drawdown", "turnover", "trades")  # metrics of a fold's line


def folds_table(walked: WalkForward) -> Group:
    """Return a line for each fold and one for all together, then the table of the joined tests."""
    from rich.console import Group
    from rich.table import Table

    from velodrome.evaluation.baselines import LABELS
    from velodrome.evaluation.measures import BY_NAME, format_figure

    joined = walked.joined
    names = joined.baseline_names
    table = Table(title=f"{joined.information['title']}: {len(walked.folds)} folds, each tested on what follows")
    for heading in ("fold", "run", "trained from", "tested from", "to"):
        table.add_column(heading, no_wrap=True)
    for name in (*(BY_NAME[metric].label for metric in SHOWN), *(f"{LABELS[name]}: return" for name in names)):
        table.add_column(name, justify="right")

    def cells(found: Evaluation) -> list[str]:
        gains = found.row("return").baselines
        own = [format_figure(found.metrics.get(metric), BY_NAME[metric].unit) for metric in SHOWN]
        others = [format_figure(gains[name], BY_NAME["return"].unit) for name in names]
        return [found.information["first_bar"], found.information["last_bar"], *own, *others]

    for fold in walked.folds:
        trained_from = fold.splits["train"][0][:19].replace("T", " ")
        table.add_row(str(fold.number), fold.run.folder.id, trained_from, *cells(fold.evaluation))
    table.add_section()
    table.add_row("all", "", "", *cells(joined))
    return Group(table, joined.table())


def write_folds(walked: WalkForward, config: RunConfig) -> None:
    """Write the page, the JSON file and the joined evaluation into the folder of the walk-forward."""
    from velodrome.evaluation.measures import BY_NAME, format_figure
    from velodrome.runs.report.report import write_report

    walked.path.mkdir(parents=True, exist_ok=True)
    walked.joined.save(walked.path)
    seeds = f" and by each of {config.seeds} training seeds" if config.seeds > 1 else ""
    information = {
        "algorithm": f"{config.algorithm}, {config.network.kind} {list(config.network.hidden)}",
        "environment steps": f"{config.steps:,} in each of {len(walked.folds)} folds{seeds}",
        "seed": str(config.seed),
        "configuration": config.hash,
    }
    for fold in walked.folds:
        found = fold.evaluation
        gain = format_figure(found.row("return").value, BY_NAME["return"].unit)
        begin, end = found.information["first_bar"], found.information["last_bar"]
        information[f"fold {fold.number}"] = f"{fold.run.path.name}, tested {begin} … {end}: return {gain}"
    write_report(walked.joined, walked.path / f"{FILE}.html", f"{config.env}: walk-forward", information)
    (walked.path / f"{FILE}.json").write_text(walked.to_json() + "\n", encoding="utf-8")
