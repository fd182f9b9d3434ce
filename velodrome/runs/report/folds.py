"""Results over folds as tables for the terminal; that of a walk-forward as files, an HTML page and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from velodrome.writing import replace_text

if TYPE_CHECKING:
    from rich.console import Group

    from velodrome.evaluation.result import Evaluation
    from velodrome.runs.config.run_config import RunConfig
    from velodrome.runs.folds.cross_validation import CrossValidation
    from velodrome.runs.walk_forward import WalkForward

FILE = "walk_forward"
# Metrics of a fold's line, what they are called there, and when a narrow terminal loses them: the highest number first.
SHOWN = {
    "return": ("return", 0),
    "sharpe": ("Sharpe", 0),
    "max_drawdown": ("drawdown", 0),
    "turnover": ("turnover", 50),
    "trades": ("trades", 60),
}
RUN, TRAINED_FROM, CHECKPOINT, BASELINES, TO = 70, 40, 30, 20, 10  # the same of other columns


def folds_table(walked: WalkForward) -> Group:
    """Return a line for each fold and one for all together, then the table of the joined tests."""
    from rich.console import Group

    from velodrome.evaluation.baselines import LABELS
    from velodrome.evaluation.measures import BY_NAME, format_figure
    from velodrome.outside.screen import Figures, FittedTable

    joined, folds = walked.joined, walked.folds
    tested: list[Evaluation] = [*(fold.evaluation for fold in folds), joined]
    begins, ends = ([one.information[name] for one in tested] for name in ("first_bar", "last_bar"))
    trained = [*(fold.splits["train"][0][:19].replace("T", " ") for fold in folds), ""]
    digits = digits_shown([*begins, *ends, *trained])
    steps = [format(fold.evaluation.policy.step, ",") if fold.evaluation.policy else "" for fold in folds]
    columns = [
        Figures("fold", [*(str(fold.number) for fold in folds), "all"], number=False),
        Figures("run", [*(fold.run.folder.id for fold in folds), ""], number=False, rank=RUN),
        Figures("checkpoint", [*steps, ""], rank=CHECKPOINT),
        Figures("trained from", [moment[:digits] for moment in trained], number=False, rank=TRAINED_FROM),
        Figures("tested from", [moment[:digits] for moment in begins], number=False),
        Figures("to", [moment[:digits] for moment in ends], number=False, rank=TO),
    ]
    for name, (heading, rank) in SHOWN.items():
        unit = BY_NAME[name].unit
        columns.append(Figures(heading, [format_figure(one.metrics.get(name), unit) for one in tested], rank=rank))
    for place, name in enumerate(joined.baseline_names):
        gains = [format_figure(one.row("return").baselines[name], "change") for one in tested]
        columns.append(Figures(f"{LABELS[name]}: return", gains, rank=BASELINES + place))
    title = f"{joined.information['title']}: {len(folds)} folds, each tested on what follows"
    title += ", trained from the first bar on" if walked.settings.get("anchored") else ""
    return Group(FittedTable(title, columns, sections=(len(folds),)), joined.table())


def blocks_table(judged: CrossValidation) -> Group:
    """Return a line for each fold of a cross-validation, then mean, deviation and error, and what they are good for."""
    from rich.console import Group
    from rich.text import Text

    from velodrome.evaluation.measures import BY_NAME, format_figure
    from velodrome.outside.screen import Figures, FittedTable

    folds, settings, none = judged.folds, judged.settings, ["", "", ""]
    begins, ends = ([fold.splits["held_out"][k][:19].replace("T", " ") for fold in folds] for k in (0, 1))
    digits = digits_shown([*begins, *ends])
    steps = [format(fold.evaluation.policy.step, ",") if fold.evaluation.policy else "" for fold in folds]
    columns = [
        Figures("fold", [*(str(fold.number) for fold in folds), "mean", "deviation", "error"], number=False),
        Figures("run", [*(fold.run.folder.id for fold in folds), *none], number=False, rank=RUN),
        Figures("checkpoint", [*steps, *none], rank=CHECKPOINT),
        Figures("left out from", [*(moment[:digits] for moment in begins), *none], number=False),
        Figures("to", [*(moment[:digits] for moment in ends), *none], number=False, rank=TO),
    ]
    for place, name in enumerate(("purged", "embargoed")):
        columns.append(Figures(name, [*(f"{bars:,}" for bars in settings[name]), *none], rank=BASELINES + place))
    shown = {name: told for name, told in SHOWN.items() if name in judged.figures}
    for name, (heading, rank) in (shown or {name: (name, 0) for name in judged.figures}).items():
        values = [*(fold.evaluation.metrics[name] for fold in folds), *judged.figures[name][:3]]
        cells = [format_figure(value, BY_NAME[name].unit) for value in values]
        cells[-2:] = (cell.removeprefix("+") for cell in cells[-2:])  # a spread has no sign
        columns.append(Figures(heading, cells, rank=rank))
    title = f"{folds[0].evaluation.information['title']}: {len(folds)} folds, each judged on the block it left out"
    notes = [Text(note) for note in judged.notes]
    return Group(FittedTable(title, columns, sections=(len(folds),)), *notes)


def digits_shown(moments: Sequence[str]) -> int:
    """Return how much of moments such as 2020-01-31 14:30:00 has to be shown: days, or minutes where days repeat."""
    days = [moment[:10] for moment in moments if moment]
    return 10 if len(set(days)) > len(days) // 2 else 16


def write_folds(walked: WalkForward, config: RunConfig) -> None:
    """Write the page, the JSON file and the joined evaluation into the folder of the walk-forward."""
    from velodrome.evaluation.measures import BY_NAME, format_figure
    from velodrome.runs.report.report import write_report

    walked.path.mkdir(parents=True, exist_ok=True)
    walked.joined.save(walked.path)
    kind = "members" if config.ensemble > 1 else "training seeds"
    seeds = f" and by each of {config.trainings} {kind}" if config.trainings > 1 else ""
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
    replace_text(walked.path / f"{FILE}.json", walked.to_json() + "\n")
