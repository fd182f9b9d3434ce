"""What `velodrome tune` and `velodrome studies` show: the live view, the list, and one study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from velodrome.runs.live.progress import sparkline
from velodrome.runs.report.listing import NOTHING, age
from velodrome.tune.outcome import FREE
from velodrome.tune.trial import COMPLETE, FAILED, PRUNED, StudySettings, Trial
from velodrome.tune.view import StudyView, age_of, shortened, told_params

if TYPE_CHECKING:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from velodrome.evaluation.result import FittedTable

LEVELS = "▁▂▃▄▅▆▇█"
SHOWN_BEST, SHOWN_REASONS = 10, 8


def told_pace(view: StudyView) -> str:
    """Return trials in an hour and the time left, in words."""
    if not math.isfinite(view.per_hour):
        return "pace not known yet"
    left = view.seconds_left
    told = f", about {age(left)} left" if view.study.status == "running" and math.isfinite(left) else ""
    return f"{view.per_hour:,.0f} trials an hour{told}"


def told_counts(view: StudyView) -> str:
    """Return how many trials ended how."""
    running = len(view.trials) - view.over
    parts = [f"{view.over} of {view.study.trials} trials"]
    parts += [f"{view.counts[status]} {status}" for status in (COMPLETE, PRUNED, FAILED) if view.counts[status]]
    return ", ".join([*parts, *([f"{running} open"] if running else [])])


def told_best(view: StudyView) -> str:
    """Return the best trial so far, beside the configuration as it was given."""
    best, first, name = view.best, view.preset, view.course.settings.score
    if best is None:
        return "no trial is complete yet"
    told = f"best {name} {view.score(best.value)} (trial {best.number})"
    if first is not None and first.status == COMPLETE and first is not best:
        told += f"; as configured {view.score(first.value)}"
    return told


def told_steps(settings: StudySettings) -> str:
    """Return how often a trial is trained, in words."""
    if settings.steps == 1:
        return "of one seed"
    return f"mean over {settings.steps} {'folds' if settings.folds else 'seeds'}"


def told_line(view: StudyView) -> str:
    """Return a study in a line."""
    return f"{view.study.name}: {view.phase}; {told_counts(view)}; {told_pace(view)}; {told_best(view)}"


def facts_of(view: StudyView) -> dict[str, str]:
    """Return what the head of its page says."""
    settings, winner = view.course.settings, view.winner
    found = {
        "Status": view.phase,
        "Trials": told_counts(view),
        "Trainings": f"{view.trainings:,}",
        "Pace": told_pace(view).removeprefix("pace "),
        "Score": f"{settings.score}, {told_steps(settings)}",
        "Best": told_best(view).removeprefix("best "),
        "Searched": ", ".join(f"{one.key} {one.told()}" for one in view.course.space),
    }
    if winner is not None:
        fresh = view.score(view.course.winner_mean)
        found["Winner"] = f"trial {winner.number}, {fresh} with fresh seeds: {told_params(winner)}"
    if view.winning_run is not None:
        found["Its run"] = view.winning_run.path.name
    if view.evaluation is not None:
        told = (view.evaluation.information.get("study") or {}).get("notes", [])
        found["Test"] = "; ".join([view.evaluation.summary().line, *told])
    return found


def mark_of(view: StudyView) -> tuple[object, ...]:
    """Return something that changes when there is something new to tell."""
    return view.study.status, view.phase, view.over, view.trainings


def live_table(view: StudyView) -> Group:
    """Return a study as it is redrawn while it goes on."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(view.study.trials, view.over, width=40), Text(told_pace(view)))
    values = [trial.value for trial in view.trials if math.isfinite(trial.value)]
    lines: list[Any] = [
        Text(f"study {view.study.name}: {view.phase}", style="bold"),
        grid,
        Text(f"{told_counts(view)}; {view.trainings:,} trainings"),
        Text(told_best(view)),
    ]
    if view.best is not None:
        lines.append(_indented(told_params(view.best), "dim"))
    lines.append(Text(f"scores {sparkline(values[-200:], 60, LEVELS)}", style="dim"))
    lines.append(Text("Ctrl-C saves and stops; the same command goes on", style="dim"))
    return Group(*lines)


def list_table(views: Sequence[StudyView]) -> FittedTable | Text:
    """Return studies as a table, newest first."""
    from rich.text import Text

    from velodrome.evaluation.result import Figures, FittedTable

    if not views:
        return Text("no studies; begin one: velodrome tune demo --trials 100")
    columns = [
        Figures("study", [view.study.name for view in views], number=False),
        Figures("status", [view.phase for view in views], number=False),
        Figures("trials", [f"{view.over} of {view.study.trials}" for view in views]),
        Figures("best", [NOTHING if view.best is None else view.score(view.best.value) for view in views]),
        Figures("score", [view.course.settings.score for view in views], number=False, rank=2),
        Figures("pruned", [str(view.counts[PRUNED]) for view in views], rank=3),
        Figures("failed", [str(view.counts[FAILED]) for view in views], rank=4),
        Figures("owner", [view.study.owner for view in views], number=False, rank=5),
        Figures("age", [age(age_of(view.study)) for view in views], rank=1),
    ]
    return FittedTable("studies", columns)


def show_view(view: StudyView, report: str = "") -> Group:
    """Return a study as tables: how far it is, what was best, what decided it, why trials ended, and the winner."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    study, settings = view.study, view.course.settings
    facts = {
        "status": view.phase,
        "trials": told_counts(view),
        "trainings": f"{view.trainings:,}",
        "taught": view.kept
        and f"in {view.kept:,} trainings nothing was better than what they were taught; judged by what they learnt",
        "pace": told_pace(view).removeprefix("pace "),
        "score": f"{settings.score} on {study.run_config.evaluation.split or 'validation episodes'}, "
        f"{told_steps(settings)}",
        "costs": study.is_free and FREE,
        "best": told_best(view).removeprefix("best "),
        "history": sparkline([trial.value for trial in view.trials if math.isfinite(trial.value)], 60, LEVELS),
        "report": report,
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(str(value)))
    parts: list[Any] = [Text(f"study {study.name} ({study.id})", style="bold"), table, Text()]
    if view.best is not None:
        parts += [best_table(view), Text()]
    if view.importances:
        parts += [importance_table(view), Text()]
    for status in (PRUNED, FAILED):
        parts += _reasons(view, status)
    parts += winner_lines(view)
    return Group(*parts)


def best_table(view: StudyView) -> FittedTable:
    """Return the best trials and the configuration as it was given, with their fresh seeds and what they tried."""
    from velodrome.evaluation.result import Figures, FittedTable

    complete = sorted((one for one in view.trials if one.status == COMPLETE), key=lambda one: (-one.value, one.number))
    shown = complete[:SHOWN_BEST] + [one for one in complete[SHOWN_BEST:] if one.number == 0]
    winner = view.winner

    def named(trial: Trial) -> str:
        marks = [*(["winner"] if trial is winner else []), *(["as configured"] if trial.number == 0 else [])]
        return f"{trial.number} ({', '.join(marks)})" if marks else str(trial.number)

    columns = [
        Figures("trial", [named(one) for one in shown], number=False),
        Figures(view.course.settings.score, [view.score(one.value) for one in shown]),
        Figures("fresh seeds", [view.score(view.course.fresh_mean(one)) for one in shown]),
    ]
    for rank, dimension in enumerate(view.course.space, 1):
        key = dimension.key
        cells = [shortened(one.params.get(key)) for one in shown]
        columns.append(Figures(key.partition(".")[2], cells, rank=rank))
    return FittedTable("best trials", columns)


def importance_table(view: StudyView) -> FittedTable:
    """Return how much each field decided."""
    from velodrome.evaluation.result import Figures, FittedTable

    ranked = sorted(view.importances.items(), key=lambda each: -each[1])
    bars = ["█" * round(20 * share) for _, share in ranked]
    columns = [
        Figures("field", [key for key, _ in ranked], number=False),
        Figures("importance", [f"{share:.1%}" for _, share in ranked]),
        Figures("", bars, number=False),
    ]
    return FittedTable("what decided whether a trial was among the best tenth (PED-ANOVA)", columns)


def _reasons(view: StudyView, status: str) -> list[Any]:
    from rich.text import Text

    found = [trial for trial in view.trials if trial.status == status]
    if not found:
        return []
    lines: list[Any] = [Text(f"{len(found)} {status}", style="bold")]
    lines += [_indented(f"trial {trial.number}: {trial.reason}") for trial in found[:SHOWN_REASONS]]
    if len(found) > SHOWN_REASONS:
        lines.append(_indented(f"and {len(found) - SHOWN_REASONS} more; --json has all", "dim"))
    return [*lines, Text()]


def _indented(text: str, style: str = "") -> Padding:
    """Return a text whose further lines, where it is too long for one, stand in as well."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style=style), (0, 0, 0, 2))


def winner_lines(view: StudyView) -> list[Any]:
    """Return what is known of the winner: with fresh seeds, and on the test split."""
    from rich.text import Text

    winner, first = view.winner, view.preset
    if winner is None:
        return []
    fresh, own = (view.score(value) for value in (view.course.winner_mean, view.course.fresh_mean(winner)))
    told = f"winner: trial {winner.number}, {view.course.settings.score} {fresh} with fresh seeds"
    if first is not None and first is not winner and first.status == COMPLETE:
        told += f", as configured {view.score(view.course.fresh_mean(first))}"
    lines: list[Any] = [Text(told, style="bold"), _indented(told_params(winner))]
    if own != fresh:
        said = f"by what each fresh seed says of the others' choice; trial {winner.number} itself has {own} with them"
        lines.append(_indented(f"{said}, and they helped to choose it", "dim"))
    if view.winning_run is not None:
        what = "trained anew" if view.final is not None else "with a fresh seed"
        lines.append(_indented(f"{what}: {view.winning_run.path}"))
    if view.evaluation is not None:
        lines += [Text(), view.evaluation.table()]
    elif view.final is not None and not view.final.is_good:
        lines.append(_indented(f"its test failed: {view.final.reason}", "red"))
    return lines
