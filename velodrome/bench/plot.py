"""The report as a picture: steps per second over the number of environments."""

from __future__ import annotations

from pathlib import Path

from velodrome.bench.render import best_by_label, compact
from velodrome.bench.report import StepReport
from velodrome.errors import MissingDependencyError

# Label -> colour, marker. Colours keep apart for colour-blind readers; Velodrome's are the strong ones.
STYLES = {
    "velodrome": ("#d55e00", "o"),
    "velodrome, specialised": ("#a0282a", "o"),
    "velodrome, no windows": ("#e69f00", "o"),
    "NumPy-batched": ("#0072b2", "s"),
    "gymnasium SyncVectorEnv": ("#009e73", "^"),
    "SB3 DummyVecEnv": ("#56b4e9", "v"),
    "gymnasium AsyncVectorEnv": ("#7f7f7f", "D"),
    "SB3 SubprocVecEnv": ("#cc79a7", "D"),
    "gymnasium AsyncVectorEnv, fewer": ("#b0b0b0", "D"),
    "SB3 SubprocVecEnv, fewer": ("#e0b0cc", "D"),
    "TorchTrade vectorised": ("#0072b2", "P"),
}
LABEL_GAP = 1.45  # ratio of heights at which two labels do not touch
TITLES = {
    "same rule": "Same rule, {floats} floats observed",
    "torchtrade default": "TorchTrade's default configuration",
}


def write_plot(report: StepReport, path: Path) -> None:
    """Write a PNG; one panel for each group of contenders."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("not installed: pip install 'velodrome[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    groups = list(dict.fromkeys(row.group for row in report.measurements))
    if not groups:
        return
    widths = [1.5 if group == "same rule" else 1.0 for group in groups]
    figure = Figure(figsize=(8.0 + 4.5 * (len(groups) - 1), 5.2), layout="constrained", dpi=150)
    panels = figure.subplots(1, len(groups), squeeze=False, width_ratios=widths, sharey=True)[0]
    for panel, group in zip(panels, groups, strict=True):
        rows = [row for row in report.measurements if row.group == group and row.peer != "memcpy"]
        sizes = sorted({row.num_envs for row in rows})
        ends: dict[int, dict[str, float]] = {}  # last size of a line -> label -> its speed there
        for label, speeds in best_by_label(rows).items():
            color, marker = STYLES.get(label, ("#000000", "x"))
            points = sorted(speeds.items())
            # A process-based peer is measured at one number of processes only: a dashed line stands for all sizes.
            dashed = any(row.processes for row in rows if row.label == label)
            panel.plot(
                *zip(*points, strict=True), color=color, marker=marker, linestyle="--" if dashed else "-",
                linewidth=2.6 if label.startswith("velodrome") else 1.5, markersize=6,
            )  # fmt: skip
            ends.setdefault(points[-1][0], {})[label] = points[-1][1]
        for size, speeds_by_label in ends.items():
            for label, height in spread_labels(speeds_by_label).items():
                text = f"{label} {compact(speeds_by_label[label])}"
                color = STYLES.get(label, ("#000000", "x"))[0]
                panel.annotate(
                    text, (size, height), (8, 0), textcoords="offset points", va="center", fontsize=8.5, color=color
                )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: compact(value).replace(".00", "").replace(".0", ""))
        )
        # The names stand to the right of the lines: room for them, as a share of the panel.
        span = max(sizes[-1] / sizes[0], 4.0)
        panel.set_xlim(sizes[0] / span**0.06, sizes[-1] * span ** (0.6 if group == "same rule" else 0.85))
        panel.set_xlabel("environments")
        panel.set_title(TITLES.get(group, group).format(floats=max(row.floats for row in rows)), fontsize=10)
        panel.grid(which="major", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("environment steps per second")
    stamp = report.machine
    figure.suptitle(
        f"Velodrome {stamp.velodrome}: stepping speed on {stamp.cpu}, {stamp.cores} cores "
        f"(best of one and all threads; {stamp.time[:10]})",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def spread_labels(heights: dict[str, float]) -> dict[str, float]:
    """Return heights on a logarithmic axis for labels that would overlap at their own."""
    spread: dict[str, float] = {}
    lowest = 0.0
    for label, height in sorted(heights.items(), key=lambda item: item[1]):
        lowest = max(height, lowest * LABEL_GAP)
        spread[label] = lowest
    return spread
