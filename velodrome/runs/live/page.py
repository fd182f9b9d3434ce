"""The page that the live view draws: rows of bars, curves and numbers that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from velodrome.runs.live.progress import Progress, compact, duration, sparkline, told_figures
from velodrome.runs.machine.use import GpuUse, MachineSampler, MachineUse, bytes_text

LABEL_WIDTH = 10  # characters
WIDE = 76  # characters from which a meter and its numbers share a line
MOST_ACTIONS = 8  # shares shown one by one
CURVE_WIDTH = 32  # characters
LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#"
PHASE_STYLES = {"environment": "green", "inference": "cyan", "learning": "magenta", "other": "bright_black"}
ACTION_STYLES = ("red", "blue", "green", "yellow", "magenta", "cyan", "bright_red", "bright_blue", "bright_black")
EPISODE_FIRST = ("turnover", "trades", "sharpe", "max_drawdown", "length", "count")
# Rows that a low terminal loses, the least telling first.
DROPPED = ("Losses", "Episodes", "Memory", "Note", "Folder", "GPU", "CPU", "Actions", "Saved", "Bottleneck", "Time")
LOSSES = {
    "loss/policy": "policy",
    "loss/value": "value",
    "loss/total": "total",
    "policy/entropy": "entropy",
    "policy/kl": "KL",
    "policy/clip_fraction": "clipped",
    "value/explained_variance": "explained",
    "optimiser/learning_rate": "rate",
    "optimiser/gradient_norm": "gradient",
}


def _episode_numbers(progress: Progress) -> dict[str, float]:
    """Return the statistics of episodes, the telling ones first; the return has a line of its own.

    Beside an account's return the sum of rewards is another figure, which is called so.

    What never counted anything, such as the refusals of a limit that is not set, is left out.
    """
    prefix = "episode/"
    found = {
        name.removeprefix(prefix): value
        for name, value in progress.metrics.items()
        if name.startswith(prefix) and (name in progress.counted or name.removeprefix(prefix) in EPISODE_FIRST)
    }
    rewards = found.pop("return", None)
    if found.pop("equity_return", None) is not None and rewards is not None:
        found["sum_of_rewards"] = rewards
    ordered = [name for name in EPISODE_FIRST if name in found]
    ordered += [name for name in found if name not in EPISODE_FIRST]
    return {name: found[name] for name in ordered}


class Page:
    """The rows of the display, made to the width and the abilities of a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii = console.options.ascii_only
        self.coloured = console.color_system is not None and not console.no_color
        self.width = max(console.width - 4 - LABEL_WIDTH - 1, 10)  # less the frame and the labels
        self.levels = ASCII_LEVELS if self.ascii else LEVELS
        self.rows: list[tuple[str, RenderableType]] = []

    def fill(
        self, progress: Progress, sampler: MachineSampler, action_names: Sequence[str] | None, ended: bool
    ) -> None:
        """Add the rows of a training."""
        use = sampler.latest
        metrics = progress.metrics
        self.progress(progress, ended)
        self.stacked("Time", progress.phases(), list(PHASE_STYLES.values()))
        if not ended:
            self.machine(use, sampler)
            self.sentence("Bottleneck", progress.bottleneck(use).sentence)
        self.returns(progress)
        self.actions(progress, action_names)
        self.numbers("Episodes", _episode_numbers(progress))
        self.numbers("Losses", {label: metrics[name] for name, label in LOSSES.items() if name in metrics})
        self.saved(progress, use)
        for warning in [] if use is None else use.warnings():
            self.sentence("Warning", warning, "bold yellow")

    def renderable(self, hint: str) -> Group:
        """Return the rows and the hint; a terminal too low for all of them loses the least telling rows."""
        footer = Text(hint, style="dim", overflow="fold")
        options = self.console.options
        inside = options.update(width=max(self.console.width - 4, 1), height=None)
        column = options.update(width=self.width, height=None)
        heights = [len(self.console.render_lines(content, column, pad=False)) for _, content in self.rows]
        spare = self.console.height - 3 - len(self.console.render_lines(footer, inside, pad=False)) - sum(heights)
        dropped: set[int] = set()
        for label in DROPPED:
            for index, (name, _) in enumerate(self.rows):
                if spare < 0 and name == label:
                    dropped.add(index)
                    spare += heights[index]
        grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
        grid.add_column(width=LABEL_WIDTH, style="dim", no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        for index, (label, content) in enumerate(self.rows):
            if index not in dropped:
                grid.add_row(label, content)
        return Group(grid, footer) if hint else Group(grid)

    def sentence(self, label: str, text: str, style: str = "") -> None:
        self.rows.append((label, Text(text, style=style, overflow="fold")))

    def numbers(self, label: str, values: Mapping[str, float]) -> None:
        """Add figures that were measured together; of episodes, the Sharpe ratio is not annualised."""
        if values:
            self.rows.append((label, self.pairs(told_figures(values, sharpe="Sharpe per bar"))))

    def pairs(self, values: Mapping[str, str]) -> Text:
        """Return names and values side by side."""
        return self.flow(Text.assemble((f"{name} ", "dim"), value) for name, value in values.items())

    def flow(self, entries: Iterable[Text]) -> Text:
        """Return entries side by side, broken between them and never inside one that fits."""
        text, used = Text(overflow="fold"), 0
        for entry in entries:
            if used and used + 2 + len(entry) > self.width:
                text.append("\n")
                used = 0
            elif used:
                text.append("  ")
                used += 2
            text.append_text(entry)
            used += len(entry)
        return text

    def meter(self, label: str, share: float, text: str, style: str) -> None:
        """Add a bar with its numbers, beside it or, where that is too narrow, below."""
        wide = self.width >= WIDE - LABEL_WIDTH - 5
        length = max(self.width // 3, 12) if wide else self.width
        bar = ProgressBar(total=1.0, completed=share, width=length, complete_style=style, finished_style=style)
        numbers = Text(text, overflow="fold")
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=length)
        if wide:
            grid.add_column(overflow="fold")
            grid.add_row(bar, numbers)
        else:
            grid.add_row(bar)
            grid.add_row(numbers)
        self.rows.append((label, grid))

    def stacked(self, label: str, shares: Mapping[str, float], styles: Sequence[str]) -> None:
        """Add a bar of coloured parts and, below it, which colour is what; letters where there is no colour."""
        total = sum(shares.values())
        if not total > 0:
            return
        bar, names = Text(no_wrap=True, overflow="crop"), []
        reached, drawn = 0.0, 0
        for (name, share), style in zip(shares.items(), cycle(styles), strict=False):
            reached += share / total
            mark = name[0].upper() if self.ascii or not self.coloured else "█"
            bar.append(mark * (round(reached * self.width) - drawn), style=style)
            drawn = round(reached * self.width)
            names.append(Text(f"{name} {share / total:.0%}", style=style))
        self.rows.append((label, Group(bar, self.flow(names))))

    def progress(self, progress: Progress, ended: bool) -> None:
        done = f"{progress.share:.0%}  {compact(progress.steps)} of {compact(progress.total_steps)} steps"
        left = "" if ended else f"  {duration(progress.seconds_left())} left"
        self.meter("Progress", progress.share, done + left, "green")
        speeds = {"now": f"{compact(progress.speed_now())} steps/s", "mean": compact(progress.speed_mean())}
        self.rows.append(("Speed", self.pairs({**speeds, "elapsed": duration(progress.elapsed)})))

    def machine(self, use: MachineUse | None, sampler: MachineSampler) -> None:
        if sampler.failure is not None:
            self.sentence("Machine", f"cannot be sampled: {sampler.failure}", "yellow")
        if use is None:
            return
        cores = f"{use.process_cpu:.1f} of {use.cores} cores"
        others = max(use.machine_cpu - use.process_cpu, 0.0)
        self.meter("CPU", use.process_cpu / use.cores, f"{cores}, others {others:.1f}", "blue")
        share = use.memory_used / use.memory_total
        machine = f"machine {bytes_text(use.memory_used)} of {bytes_text(use.memory_total)}"
        style = "red" if share >= 0.95 else "yellow" if share >= 0.85 else "blue"
        self.meter("Memory", share, f"{bytes_text(use.process_memory)}, {machine}", style)
        if use.gpu is not None:
            self.meter("GPU", use.gpu.busy or 0.0, _gpu_text(use.gpu, self.ascii), "blue")
        elif sampler.device.startswith("cuda") and sampler.gpu_missing is not None:
            self.sentence("GPU", f"not shown: {sampler.gpu_missing}", "yellow")

    def returns(self, progress: Progress) -> None:
        if (metric := progress.in_sample()) is not None:
            self.curve("In sample", progress.told_return(metric), progress.curves[metric].values)
        for split, results in progress.evaluations.items():
            told = told_figures(results)
            told.pop(progress.main_result(split)[0], None)
            self.curve(split.capitalize(), progress.told_result(split), progress.curves[f"evaluation/{split}"].values)
            if told:
                self.rows.append(("", self.pairs(told)))

    def curve(self, label: str, text: str, values: Sequence[float]) -> None:
        room = min(self.width - len(text) - 2, CURVE_WIDTH)
        line = Text(text, overflow="fold")
        if len(values) > 1 and room >= 4:
            line.append("  ").append(sparkline(values, room, self.levels), style="green")
        self.rows.append((label, line))

    def actions(self, progress: Progress, names: Sequence[str] | None) -> None:
        known = dict(enumerate(names or ()))
        named = {known.get(int(index), index): share for index, share in progress.action_mix().items()}
        if len(named) > MOST_ACTIONS:
            largest = sorted(named, key=lambda name: -named[name])[: MOST_ACTIONS - 1]
            kept = {name: share for name, share in named.items() if name in largest}
            named = {**kept, "others": sum(named.values()) - sum(kept.values())}
        self.stacked("Actions", named, ACTION_STYLES)
        found = {name: progress.metrics.get(f"action/{name}") for name in ("mean", "std")}  # of continuous ones
        self.numbers("Actions", {name: value for name, value in found.items() if value is not None})

    def saved(self, progress: Progress, use: MachineUse | None) -> None:
        if progress.checkpoint is None:
            text = "no checkpoint yet"
        else:
            when, text = progress.checkpoint
            text += f", {duration(progress.clock() - when)} ago"
        if use is not None and use.disk_free is not None:
            text += f", {bytes_text(use.disk_free)} of disk free"
        self.sentence("Saved", text)


def _gpu_text(gpu: GpuUse, ascii_only: bool) -> str:
    parts = ["use unknown" if gpu.busy is None else f"{gpu.busy:.0%} busy"]
    if gpu.memory_used is not None and gpu.memory_total is not None:
        parts.append(f"{bytes_text(gpu.memory_used)} of {bytes_text(gpu.memory_total)}")
    if gpu.temperature is not None:
        parts.append(f"{gpu.temperature:.0f} {'C' if ascii_only else '°C'}")
    if gpu.power is not None:
        parts.append(f"{gpu.power:.0f} W")
    return ", ".join(parts)
