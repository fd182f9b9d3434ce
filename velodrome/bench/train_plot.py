"""The training report as a picture: steps per second, where the time goes, and how long learning takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome.bench.render import compact
from velodrome.bench.train_contenders import PHASES
from velodrome.bench.train_report import TrainReport
from velodrome.errors import MissingDependencyError

# Colours keep apart for colour-blind readers.
PHASE_COLOURS = {"environment": "#009e73", "inference": "#56b4e9", "learning": "#e69f00", "other": "#b0b0b0"}
OWN, OTHER, BOUND = "#d55e00", "#0072b2", "#555555"


def write_train_plot(report: TrainReport, path: Path) -> None:
    """Write a PNG; nothing where nothing was measured."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("not installed: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    if not report.measurements:
        return
    racing = report.race is not None and bool(report.race.runs)
    figure = Figure(figsize=(15.0 if racing else 10.0, 4.6), layout="constrained", dpi=150)
    panels = figure.subplots(1, 3 if racing else 2, width_ratios=[1.3, 1.0, 1.5] if racing else [1.3, 1.0])
    draw_speeds(report, panels[0])
    draw_phases(report, panels[1])
    if racing:
        draw_race(report, panels[2])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    stamp = report.machine
    figure.suptitle(
        f"Velodrome {stamp.velodrome}: PPO on {stamp.cpu}, {stamp.cores} cores, same network, batch and epochs "
        f"({stamp.time[:10]})",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_speeds(report: TrainReport, panel: Any) -> None:
    """Draw steps per second as bars on a logarithmic scale, the fastest on top, and the bound."""
    from matplotlib.ticker import FuncFormatter

    rows = sorted(report.measurements, key=lambda row: row.steps_per_second)
    speeds = [row.steps_per_second for row in rows]
    errors = [
        [row.steps_per_second - row.slowest for row in rows], [row.fastest - row.steps_per_second for row in rows]
    ]  # fmt: skip
    names = [f"{row.label}\n{row.layout}" for row in rows]
    colours = [OWN if row.peer == "native" else OTHER for row in rows]
    panel.barh(names, speeds, color=colours, xerr=errors, error_kw={"ecolor": "#303030", "linewidth": 1.0})
    for index, row in enumerate(rows):
        ratio = f"  ({row.yardstick_ratio:.3g} ×)" if row.yardstick_ratio is not None else ""
        panel.annotate(
            f"{compact(row.steps_per_second)}{ratio}", (row.fastest, index), (5, 0), textcoords="offset points",
            va="center", fontsize=8.5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    top = max(row.fastest for row in rows)
    bound = report.bound.steps_per_second
    if bound:
        panel.axvline(bound, color=BOUND, linestyle="--", linewidth=1.2)
        panel.annotate(
            f"sgemm's bound {compact(bound)}", (bound, -0.45), (-4, 0), textcoords="offset points", ha="right",
            va="center", fontsize=8, color=BOUND,
        )  # fmt: skip
    panel.set_xscale("log")
    panel.set_xlim(min(row.slowest for row in rows) / 2, 6 * max(top, bound))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value).replace(".00", "").replace(".0", "")))
    panel.tick_params(axis="y", labelsize=8.5)
    panel.set_xlabel("steps per second, log scale (× SB3 DummyVecEnv(8))")
    panel.set_title("Collecting and learning together", fontsize=10)
    panel.grid(axis="x", alpha=0.3)


def draw_phases(report: TrainReport, panel: Any) -> None:
    """Draw the share of each phase, in the order of the speeds."""
    rows = sorted(report.measurements, key=lambda row: row.steps_per_second)
    left = [0.0] * len(rows)
    for phase in PHASES:
        widths = [100.0 * row.phases[phase] / sum(row.phases.values()) for row in rows]
        panel.barh(range(len(rows)), widths, left=left, color=PHASE_COLOURS[phase], label=phase)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    panel.set_yticks([])
    panel.set_xlim(0, 100)
    panel.set_xlabel("% of the time")
    panel.set_title("Where the time goes", fontsize=10)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, fontsize=8, frameon=False, handlelength=1.2)


def draw_race(report: TrainReport, panel: Any) -> None:
    """Draw the learning curves of all seeds over the time spent training."""
    from matplotlib.ticker import FuncFormatter

    race = report.race
    assert race is not None
    named: set[str] = set()
    for run in race.runs:
        points = [point for point in run.points if point.seconds > 0.0]  # a logarithmic axis has no 0
        colour = OWN if run.peer == "native" else OTHER
        label = f"{run.label}, {run.num_envs:,} environments"
        panel.plot(
            [point.seconds for point in points], [100.0 * point.share for point in points], color=colour, marker=".",
            markersize=3, linewidth=1.3, alpha=0.8, label=None if label in named else label,
        )  # fmt: skip
        named.add(label)
    panel.axhline(100.0 * race.fraction, color=BOUND, linestyle="--", linewidth=1.2)
    panel.axhline(100.0, color=BOUND, linewidth=0.8)
    panel.annotate("known optimum", (1.0, 100.0), (-2, 3), ("axes fraction", "data"), "offset points",
                   ha="right", fontsize=8, color=BOUND)  # fmt: skip
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_ylim(top=112.0)
    panel.set_xlabel("seconds of training, log scale (evaluations not counted)")
    panel.set_ylabel("% of the known optimum, out of sample")
    panel.set_title("Learning, one line per seed", fontsize=10)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8, frameon=False, handlelength=1.2)
    panel.grid(alpha=0.3)
