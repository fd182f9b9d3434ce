"""The vector report for people at a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from velodrome.bench.render import compact, last_lines, machine_lines, narrow_table
from velodrome.bench.vector_report import EnvironmentResult, VectorMeasurement, VectorReport
from velodrome.vector.messages import seconds_text

# Peer -> heading of the column that compares with it. All ratios are in the JSON; these fit 80 characters.
COMPARED = {"dummy": "×Dummy", "subproc": "×Subp", "async": "×Async"}


def show_vector_report(report: VectorReport, console: Console) -> None:
    """Print everything."""
    parts: list[RenderableType] = [machine_lines(report)]  # type: ignore[arg-type]
    for result in report.environments:
        if result.measurements:
            parts += [speed_table(result), environment_lines(result)]
    if any(straggler.measurements for straggler in report.stragglers):
        parts += [straggler_table(report), straggler_lines(report)]
    parts.append(closing_lines(report))
    console.print(Group(*parts))


def spread(row: VectorMeasurement) -> str:
    """Return half of the distance between the fastest and the slowest round."""
    return f"±{(row.fastest - row.slowest) / 2 / row.steps_per_second:.0%}"


def ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:,.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}"


def speed_table(result: EnvironmentResult) -> Table:
    """Return the contenders, the fastest first."""
    measured = {row.peer for row in result.measurements}
    compared = {peer: heading for peer, heading in COMPARED.items() if peer in measured}
    with_gpu = any(row.gpu is not None for row in result.measurements)
    title = f"{result.env}: steps per second of {result.num_envs} environments"
    names = ("contender", "proc.", "steps/s", "spread", *compared.values(), "cores", "MiB", *(("GPU",) * with_gpu))
    table = narrow_table(title, names)
    recommended = result.recommended_row()
    for row in sorted(result.measurements, key=lambda row: -row.steps_per_second):
        mark = " *" if row is recommended else ""
        table.add_row(
            f"{row.label}{mark}",
            str(row.workers) if row.workers else "",
            compact(row.steps_per_second),
            spread(row),
            *(ratio_text(row.ratios.get(peer)) for peer in compared),
            f"{row.cores:.1f}",
            "" if row.memory is None else f"{row.memory / 2**20:,.0f}",
            *(("" if row.gpu is None else f"{row.gpu:.0%}",) * with_gpu),
            style="bold" if row.peer == "velodrome" else "",
        )
    return table


def environment_lines(result: EnvironmentResult) -> Text:
    """Return the recommendation, what was measured for it, parity and the sweep."""
    lines = []
    found = result.recommendation
    if found is not None:
        lines.append(f"* recommended: {found['sentence']}")
        facts = [f"reset {seconds_text(found['reset_seconds'])}"] if found["reset_seconds"] is not None else []
        if found["episode_length"] is not None:
            facts.append(f"episodes of {found['episode_length']:,.0f} steps")
        if found["bytes_per_worker"] is not None:
            facts.append(f"a worker {found['bytes_per_worker'] / 2**20:,.0f} MiB")
        if found["bytes_per_environment"] is not None:
            facts.append(f"each further environment {found['bytes_per_environment'] / 2**20:,.1f} MiB")
        lines.append(f"  {', '.join([*facts, str(found['cores']) + ' cores'])}")
    if result.sweep_share is not None:
        lines.append(
            f"  Sweep: what is recommended reaches {result.sweep_share:.0%} of the best of all, {result.sweep_best}"
        )
    parity = result.parity
    if parity is not None and parity.reproducible:
        lines.append(
            f"  Parity before timing: {len(parity.contenders)} contenders agree with gymnasium SyncVectorEnv over "
            f"{parity.steps:,} steps, {parity.episodes:,} episodes"
        )
    elif parity is not None:
        lines.append("  No parity: the environment gives something else for the same seeds and actions each time")
    return Text("\n".join(lines) + "\n")


def straggler_table(report: VectorReport) -> Table:
    """Return async beside process where one environment is slower than the rest."""
    title = "One environment 10 × slower than the rest: steps per second"
    names = ("contender", "workers", "recv of", "process", "async", "spread", "gain")
    table = narrow_table(title, names)
    for straggler in report.stragglers:
        rows = {row.kind: row for row in straggler.measurements}
        process, other = rows.get("process"), rows.get("async")
        table.add_row(
            f"{straggler.num_envs} × {straggler.env}", str(straggler.workers), str(straggler.received),
            compact(process.steps_per_second) if process else "",
            compact(other.steps_per_second) if other else "", spread(other) if other else "",
            f"{straggler.ratio:.1f} ×" if straggler.ratio is not None else "",
        )  # fmt: skip
    return table


def straggler_lines(report: VectorReport) -> Text:
    """Return what is particular about each setting."""
    told = [f"{straggler.num_envs} × {straggler.env}: {straggler.note}" for straggler in report.stragglers]
    return Text("\n".join(told) + "\n")


def closing_lines(report: VectorReport) -> Text:
    """Return how to read the tables, what is missing and the targets."""
    lines = []
    if any(result.measurements for result in report.environments):
        lines.append(
            "Everyone steps the same number of environments; SubprocVecEnv and AsyncVectorEnv have a process for each, "
            "forked from a fresh interpreter, their best case. cores: kept busy by all processes of a contender; MiB: "
            "what they grew by with the environments; ×Dummy, ×Subp, ×Async: times the speed of, median of the rounds"
        )
    policy = report.options["policy"]
    if policy != "none":
        lines.append(f"Actions: a network of 64 × 64 on {policy} (torch, one thread); its time is in the steps")
    return Text("\n".join([*lines, *last_lines(report)]))
