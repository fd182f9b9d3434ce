"""The report as a picture: steps per second over the number of environments."""

from __future__ import annotations

from pathlib import Path

from velodrome.bench.render import best_by_label, compact
from velodrome.bench.report import StepReport
from velodrome.errors import MissingDependencyError

# Label -> colour, marker. Colours keep apart for colour-blind readers; Velodrome's are the strong ones.
STYLES = {
    "velodrome": ("#d55e00", "o"),
    "velodrome, no windows": ("#e69f00", "o"),
    "NumPy-batched": ("#0072b2", "s"),
    "gymnasium SyncVectorEnv": ("#009e73", "^"),
    "SB3 DummyVecEnv": ("#56b4e9", "v"),
    "gymnasium AsyncVectorEnv": ("#7f7f7f", "D"),
    "SB3 SubprocVecEnv": ("#cc79a7", "D"),
    "TorchTrade vectorised": ("#0072b2", "P"),
}
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
    widths = [1.6 if group == "same rule" else 1.0 for group in groups]
    figure = Figure(figsize=(7.5 + 4.5 * (len(groups) - 1), 5.6), layout="constrained", dpi=150)
    panels = figure.subplots(1, len(groups), squeeze=False, width_ratios=widths, sharey=True)[0]
    for panel, group in zip(panels, groups, strict=True):
        rows = [row for row in report.measurements if row.group == group and row.peer != "memcpy"]
        sizes = sorted({row.num_envs for row in rows})
        lines = best_by_label(rows)
        for label, speeds in sorted(lines.items(), key=lambda item: -max(item[1].values())):
            color, marker = STYLES.get(label, ("#000000", "x"))
            own = label.startswith("velodrome")
            points = sorted(speeds.items())
            # A process-based peer is measured at one number of processes only: a dashed line stands for all sizes.
            dashed = any(row.processes for row in rows if row.label == label)
            panel.plot(
                *zip(*points, strict=True), color=color, marker=marker, linewidth=2.4 if own else 1.4,
                linestyle="--" if dashed else "-", markersize=6, label=label,
            )  # fmt: skip
            size, speed = points[-1]
            panel.annotate(compact(speed), (size, speed), (6, 0), textcoords="offset points", va="center", fontsize=8)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        panel.set_xlim(sizes[0] / 1.3, sizes[-1] * (2.2 if len(sizes) > 1 else 1.6))
        panel.set_xlabel("environments")
        panel.set_title(TITLES.get(group, group).format(floats=max(row.floats for row in rows)), fontsize=10)
        panel.grid(which="major", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    panels[0].set_ylabel("environment steps per second")
    stamp = report.machine
    figure.suptitle(
        f"Velodrome {stamp.velodrome}: stepping speed on {stamp.cpu}, {stamp.cores} cores "
        f"(best of one and all threads; {stamp.time[:10]})",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
