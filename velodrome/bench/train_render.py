"""The training report for people at a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from velodrome.bench.render import compact, last_lines, machine_lines, narrow_table
from velodrome.bench.train_contenders import PHASES
from velodrome.bench.train_report import RaceResult, TrainReport


def show_train_report(report: TrainReport, console: Console) -> None:
    """Print everything."""
    parts: list[RenderableType] = [machine_lines(report), setting_lines(report)]  # type: ignore[arg-type]
    if report.measurements:
        parts.append(speed_table(report))
    if report.race is not None and report.race.results:
        parts.append(race_table(report))
    parts.append(closing_lines(report))
    console.print(Group(*parts))


def setting_lines(report: TrainReport) -> Text:
    """Return what all contenders share."""
    settings = report.settings
    hidden = " × ".join(str(width) for width in settings["hidden"])
    minibatch = settings["batch"] // settings["minibatches"]
    threads = f"{report.bound.threads} thread{'s' if report.bound.threads > 1 else ''}"
    return Text(
        f"Everyone: {report.observation_floats} floats, separate actor and critic of {hidden} tanh, batches of "
        f"{settings['batch']:,}, {settings['epochs']} epochs in minibatches of {minibatch:,}, Adam "
        f"{settings['learning_rate']:g}, clip {settings['clip']:g}, gamma {settings['gamma']:g}, lambda "
        f"{settings['gae_lambda']:g}; torch on {threads} (all cores) unless the label says "
        f"otherwise. Layout: environments × steps in a batch; × SB3: times the faster SB3 with DummyVecEnv(8)"
    )


def speed_table(report: TrainReport) -> Table:
    """Return the contenders, the fastest first, with where their time goes."""
    title = f"Training steps per second; time: {'/'.join(PHASES)}"
    table = narrow_table(title, ("contender", "layout", "steps/s", "spread", "time, %", "× SB3"))
    for row in sorted(report.measurements, key=lambda row: -row.steps_per_second):
        total = sum(row.phases.values())
        table.add_row(
            row.label,
            row.layout,
            compact(row.steps_per_second),
            f"±{(row.fastest - row.slowest) / 2 / row.steps_per_second:.0%}",
            "/".join(f"{100 * row.phases[phase] / total:.0f}" for phase in PHASES),
            f"{row.yardstick_ratio:.{1 if row.yardstick_ratio >= 1 else 2}f}" if row.yardstick_ratio else "",
            style="bold" if row.peer == "native" else "",
        )
    return table


def race_table(report: TrainReport) -> Table:
    """Return how long each contender took to learn."""
    race = report.race
    assert race is not None
    title = f"Training time to {race.fraction:.0%} of the known optimum, out of sample"
    table = narrow_table(title, ("contender", "envs", "median seconds", "steps", "seeds", "best"))
    for result in sorted(race.results, key=lambda result: result.seconds or float("inf")):
        table.add_row(
            result.label, f"{result.num_envs:,}", race_seconds(result, race.limit_seconds),
            f"{result.steps:,.0f}" if result.steps is not None else "", f"{result.reached} of {result.runs}",
            f"{result.best_share:.0%}",
        )  # fmt: skip
    return table


def race_seconds(result: RaceResult, limit: float) -> str:
    """Return the time to the aim, or that there is none."""
    return f"{result.seconds:.1f}" if result.seconds is not None else f"not reached in {limit:g} s"


def closing_lines(report: TrainReport) -> Text:
    """Return the bound, what the race means, parity, what is missing and the targets."""
    lines = []
    bound = report.bound
    if bound.flops:
        lines.append(
            f"Bound: {bound.operations.total:,} floating-point operations a step at sgemm's best "
            f"{bound.best_flops / 1e9:.0f} GFLOP/s allow {compact(bound.steps_per_second)} steps/s"
        )
    own = report.own()
    if own is not None and bound.share is not None and bound.share_of_best is not None:
        lines.append(
            f"velodrome {own.layout} reaches {bound.share:.0%} of it against the sgemm of its own round (median of "
            f"{len(own.rounds)}), {bound.share_of_best:.0%} against the best of all rounds"
        )
    if report.race is not None:
        lines.append(
            f"Optimum: {report.race.optimum:.2e} log return a bar; to follow the sign of the last return, the best "
            f"rule, reaches {report.race.best_rule_share:.1%} of it on these test bars"
        )
    if report.parity is not None:
        parity = report.parity
        lines.append(
            f"Parity before timing: the plain environment agrees with native over {parity.steps:,} steps, "
            f"{parity.episodes} episodes, {parity.terminated} bankruptcies, {parity.liquidations} liquidations"
        )
    if report.parameters is not None:
        lines.append(f"Every network has {report.parameters:,} parameters")
    return Text("\n".join([*lines, *last_lines(report)]))
