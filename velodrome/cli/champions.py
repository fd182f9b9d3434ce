"""Commands about champions: promote a candidate, list and show what is in use, go back, follow a feed on paper."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.cli.shared import INTERRUPTED, PROBLEM_FOUND, Flag, app, champions, console, print_json

if TYPE_CHECKING:
    from velodrome.tune.champions.registry import Record, Registry
    from velodrome.tune.paper.loop import Summary
    from velodrome.tune.promotion import Verdict

RUNS = Path("runs")


@app.command
def promote(
    candidate: str,
    *,
    name: str | None = None,
    margin: float = 0.0,
    folder: Path = RUNS,
    store: str | None = None,
    data: Path | None = None,
    command: str | None = None,
    webhook: str | None = None,
    trust: Flag = False,
    json: Flag = False,
) -> int:
    """Make a candidate the champion if it passes every check; exit code 1, and why not, if it does not.

    It must have, on its test split, a deflated Sharpe ratio of 95 % or more; the choice that it comes from a
    probability of overfitting of 20 % or less; and its lead over the champion, and over buy and hold (of a portfolio:
    equal weights), an interval above the margin. Of a run that no study made, each look at the same test split in this
    store counts as a trial.

    Parameters
    ----------
    candidate
        A study by its name, whose winner it is, or a run: its folder, id, the start of either, or latest.
    name
        Of the champion; the run's own name, or that of its environment, if none is given.
    margin
        By how much its lead must exceed 0 on the whole split, in per cent.
    folder
        Folder of the runs; champions lie in it.
    store
        SQLAlchemy URL of the store of studies, if it is not in the folder.
    data
        Where the run's price files lie now, if they moved.
    command
        Command to tell of a promotion, as JSON on its standard input; one that fails undoes nothing.
    webhook
        Web address to tell of it, likewise, by POST.
    trust
        Import the code that a run from elsewhere names, now and later.
    json
        Print JSON.
    """
    from velodrome.tune.champions.hooks import Hooks
    from velodrome.tune.promotion import promote as promote_run
    from velodrome.tune.promotion import promote_study

    options: dict[str, Any] = {
        "margin": margin / 100.0,
        "data": data,
        "hooks": Hooks(command, webhook),  # refused before anything is evaluated
        "trust": trust,
    }
    if _is_study(candidate, folder, store):
        verdict = promote_study(candidate, folder, store, champion=name, **options)
    else:
        verdict = promote_run(candidate, name=name, root=folder, **options)
    if json:
        print_json(_verdict_content(verdict))
    else:
        _show_verdict(verdict, folder)
    for problem in verdict.failed_hooks:
        sys.stderr.write(f"warning: {problem}\n")
    return 0 if verdict.promoted else PROBLEM_FOUND


def _is_study(text: str, folder: Path, store: str | None) -> bool:
    """Return whether a study has this name or id; what is none is a run, or nothing."""
    from velodrome.errors import StoreError
    from velodrome.runs.store.store import open_store
    from velodrome.tune.study import Studies

    try:
        with open_store(folder, store, create=False) as opened:
            return any(text in (study.name, study.id) for study in Studies(opened).all())
    except StoreError:  # a run may be named by its folder
        return False


def _verdict_content(verdict: Verdict) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(verdict), "promoted": verdict.promoted, "reasons": list(verdict.reasons)}


def _show_verdict(verdict: Verdict, folder: Path) -> None:
    import shlex

    from rich.table import Table
    from rich.text import Text

    shown = Table(title=f"run {verdict.run} as champion {verdict.name!r}")
    for heading in ("check", "found", "needed", ""):
        shown.add_column(heading, overflow="fold")
    for check in verdict.checks:
        mark = Text("passed", "green") if check.passed else Text("failed", "bold red")
        shown.add_row(check.name.removeprefix("the ").removeprefix("its "), check.found, check.needed, mark)
    screen = console()
    screen.print(shown)
    for line in verdict.said:
        screen.print(Text(line, style="dim"))
    if verdict.record is not None:
        number = verdict.record.current
        screen.print(f"promoted: champion {verdict.name} is now promotion {number} ({verdict.record.now.hash[:16]})")
        there = "" if folder == RUNS else f" --folder {shlex.quote(str(folder))}"
        command = f"velodrome paper {verdict.name} --feed PATH{there}"
        screen.print(f"follow a feed with it: {command}", highlight=False, soft_wrap=True)
    else:
        screen.print(Text("not promoted: " + "; ".join(verdict.reasons) + "."))


@champions.command(name="list")
def list_champions(*, folder: Path = RUNS, json: Flag = False) -> None:
    """List the champions: name, promotion in use, run, when, and the policy's hash.

    Parameters
    ----------
    folder
        Folder of the runs; champions lie in it.
    json
        Print JSON.
    """
    from dataclasses import asdict

    from rich.table import Table

    registry, records = _records(folder)
    if json:
        print_json([{"name": record.name, **asdict(record.now)} for record in records])
        return
    if not records:
        console().print(f"no champions in {registry.home}: promote a run first (velodrome promote RUN)")
        return
    shown = Table(title="champions")
    for heading in ("name", "promotion", "run", "study", "since (UTC)", "hash"):
        shown.add_column(heading, overflow="fold")
    for record in records:
        now = record.now
        cells = (
            f"{now.number} of {len(record.promotions)}",
            now.run,
            now.study or "",
            _moment(record.changes[-1].time),
        )
        shown.add_row(record.name, *cells, now.hash[:16])
    console().print(shown)


@champions.command
def show(name: str, *, folder: Path = RUNS, json: Flag = False) -> None:
    """Show a champion: why it was promoted, where it comes from, its files and its history.

    Parameters
    ----------
    name
        Of the champion.
    folder
        Folder of the runs; champions lie in it.
    json
        Print JSON.
    """
    from dataclasses import asdict

    from rich.table import Table

    registry = _registry(folder)
    record = registry.record(name)
    champion = registry.open(record.now)
    if json:
        about = {key: value for key, value in champion.about.items() if key not in ("members", "scalers")}
        print_json({**asdict(record), "hash": champion.hash, "path": str(champion.path), "about": about})
        return
    about, lineage = champion.about, champion.about["lineage"]
    said = {
        "champion": f"{name}, promotion {record.current} of {len(record.promotions)}",
        "trades": f"{', '.join(champion.symbols)} in {about['env']}, bars of {about['traded']}",
        "policy": _told_policy(len(about["members"]), champion.config.algorithm, champion.config.network.kind),
        "files": f"{champion.path} (hash {champion.hash[:16]}, as promoted)",
        **{key.replace("_", " "): str(value) for key, value in lineage.items() if value is not None},
        **{check["name"].removeprefix("the ").removeprefix("its "): check["found"] for check in _checks(record)},
    }
    facts = Table(show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for key, value in said.items():
        facts.add_row(key, value)
    history = Table(title="history")
    for heading in ("when (UTC)", "what", "promotion", "hash"):
        history.add_column(heading, overflow="fold")
    for change in record.changes:
        own = record.promotion(change.number)
        history.add_row(_moment(change.time), change.kind, str(change.number), own.hash[:16])
    screen = console()
    screen.print(facts)
    screen.print(history)


@champions.command
def rollback(name: str, *, to: int | None = None, folder: Path = RUNS, store: str | None = None) -> None:
    """Put the champion before the present one back, byte for byte; loops that follow it take it over.

    Parameters
    ----------
    name
        Of the champion.
    to
        Number of the promotion to go back to (champions show lists them), in place of the one before.
    folder
        Folder of the runs; champions lie in it.
    store
        SQLAlchemy URL of the store that is told of it, if it is not in the folder.
    """
    registry = _registry(folder)
    record = registry.roll_back(name, to)
    _enter(registry, [record], store)
    print_to = console().print
    print_to(f"champion {name} is promotion {record.current} again ({record.now.hash[:16]}), as it was promoted")


@app.command
def paper(
    champion: str,
    *,
    feed: Path,
    follow: Flag = False,
    since: str | None = None,
    state: Path | None = None,
    seed: int = 0,
    poll: float = 1.0,
    folder: Path = RUNS,
    quiet: Flag = False,
    json: Flag = False,
) -> int:
    """Let a champion decide on each bar of a feed, as if it traded; no order is placed anywhere.

    The rule is that of its training, one bar at a time. Decisions, orders and equity are logged as JSON lines, and
    compared with the backtest of the same bars: exit code 1 if they differ. Ctrl-C keeps everything, and the same
    command goes on with the same positions; a champion that is promoted meanwhile takes them over.

    Parameters
    ----------
    champion
        Its name (champions list).
    feed
        A price file or a folder of them, with the symbols and the bar size of its training.
    follow
        Wait for more bars at the end of the feed, until Ctrl-C; without it, the feed is replayed once.
    since
        No decision before this date, such as 2024-01-31; bars before it are history for its windows.
    state
        Folder that it goes on from; paper/CHAMPION in the folder of the runs if none is given.
    seed
        Of what the environment draws, such as slippage.
    poll
        Seconds between two looks at the feed.
    folder
        Folder of the runs; champions lie in it.
    quiet
        Show nothing but the end.
    json
        Print the log as it is written, a JSON line for each bar, and nothing else.
    """
    from dataclasses import asdict

    from velodrome.tune.paper.loop import follow as follow_feed
    from velodrome.tune.paper.view import JsonLines, View

    screen = console()
    shown = JsonLines() if json else View(screen, champion, quiet)
    with shown.shown():
        done = follow_feed(
            champion,
            feed,
            grows=follow,
            root=folder,
            state=state,
            since=since,
            seed=seed,
            poll_seconds=poll,
            view=shown,
        )
    drift = done.drift
    if json:
        shown.entry({"kind": "end", **asdict(done), "folder": str(done.folder), "drift": drift._asdict()})
    else:
        screen.print(_told_accounts(done), soft_wrap=True)
        same = (
            "none, to the bit" if drift.is_none else f"{drift.actions + drift.missing} bars, {drift.equity:g} of equity"
        )
        screen.print(f"drift against the backtest of the same bars: {same}")
        screen.print(f"log: {done.folder / 'log.jsonl'}", soft_wrap=True, highlight=False)
    if not drift.is_none:
        return PROBLEM_FOUND
    return INTERRUPTED if done.stopped else 0


def _told_accounts(done: Summary) -> str:
    """Return what became of the accounts, for people, and how much of it is out of sample."""
    from velodrome.bars.timeframe import describe_time

    accounts = []
    for name, equity in done.equity.items():
        first = done.began.get(name)
        change = f", from {first:,.2f} ({equity / first - 1.0:+,.2%})" if first else ""
        accounts.append(f"{name or 'portfolio'} {equity:,.2f}{change}")
    lines = [f"{done.name}, promotion {done.number}: {done.bars:,} bars; equity {'; '.join(accounts) or 'none yet'}"]
    if done.known and done.known_until is not None:
        until = describe_time(done.known_until)
        lines.append(
            f"warning: {done.known:,} of these bars are not out of sample: the champion learnt from bars until {until} "
            f"(UTC) or was chosen by them. To begin after them: --since '{until}+00:00' --state FOLDER"
        )
    return "\n".join(lines)


def _registry(folder: Path) -> Registry:
    from velodrome.tune.champions.registry import Registry

    return Registry(folder)


def _records(folder: Path) -> tuple[Registry, list[Record]]:
    registry = _registry(folder)
    return registry, [registry.record(name) for name in registry.names()]


def _enter(registry: Registry, records: list[Record], url: str | None) -> None:
    """Let the store of the runs know; one that cannot be written is a warning, for the champions' folder has it all."""
    from velodrome.errors import StoreError
    from velodrome.runs.store.store import open_store
    from velodrome.tune.champions.registry import enter

    try:
        with open_store(registry.root, url) as store:
            for record in records:
                enter(store, record)
    except StoreError as error:
        sys.stderr.write(f"warning: {error} The champion is changed; the store will be told by the next promotion.\n")


def _checks(record: Record) -> list[dict[str, Any]]:
    return record.now.evaluation.get("checks", [])


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _told_policy(members: int, algorithm: str, network: str) -> str:
    """Return what acts: one network, or how many of an ensemble."""
    return f"{algorithm}, {network}" if members == 1 else f"ensemble of {members}: {algorithm}, {network}"
