"""What `velodrome runs` shows: the list of runs, one run, several side by side; as tables or as plain values."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError
from velodrome.evaluation.measures import BY_NAME, format_figure, written
from velodrome.evaluation.named_policy import USED_FOR_SELECTION
from velodrome.runs.bucket.place import url_of
from velodrome.runs.config.changes import told_lineage
from velodrome.runs.config.sections import HELD_OUT
from velodrome.runs.folder import INFORMATION, LATEST, Candidate, RunFolder, choose_run
from velodrome.runs.health import overfitting_of
from velodrome.runs.live.progress import SHARES, compact, figure, sparkline
from velodrome.runs.metrics import EQUITY_RETURN, RETURNS, REWARDS
from velodrome.runs.report.speed import SPEED, mean_speed
from velodrome.runs.store.rows import RunRecord, trainings
from velodrome.runs.store.schema import KILLED
from velodrome.runs.store.store import SqlStore

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from velodrome.outside.screen import FittedTable

STYLES = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "bold red", KILLED: "bold red"}
CHOOSING = "held out (for choosing settings)"  # how results on HELD_OUT are called
CURVE_WIDTH = 60  # characters
LEVELS = "▁▂▃▄▅▆▇█"
NOTHING = "–"


def find_run(store: SqlStore, text: str) -> RunRecord:
    """Return the run that a person means by a path, an id, a folder's name, the unique start of those, or 'latest'."""
    if url_of(text) or (Path(text) / INFORMATION).is_file():
        return store.run(RunFolder.open(text).id)
    members = store.groups() if text == LATEST else {}  # the latest is a run of its own, not a member of a group
    candidates = [
        Candidate(run.id, Path(run.folder).name, run.created) for run in store.runs() if run.id not in members
    ]
    return store.run(choose_run(text, candidates, "in the store").id)


# The list


def list_content(store: SqlStore, limit: int | None = None, **filters: Any) -> list[dict[str, Any]]:
    """Return what the list shows, newest run first, groups with their members; filters: fields of a run's row.

    All runs are asked for at once: a question for each would take seconds where there are a thousand.
    """
    group_of, every, facts = store.groups(), store.runs(), _Facts(store)
    members: dict[str, list[RunRecord]] = {}
    for run in sorted(every, key=lambda run: run.seed):
        members.setdefault(group_of.get(run.id, ""), []).append(run)
    wanted = [(name, value) for name, value in filters.items() if value is not None]
    runs = [
        run for run in every if run.id not in group_of and all(getattr(run, name) == value for name, value in wanted)
    ]
    return [_with_members(facts, run, members.get(run.id, [])) for run in runs[:limit]]


def list_table(store: SqlStore, members: bool = False, **filters: Any) -> FittedTable | Text:
    """Return the runs as a table, newest first; a narrow terminal loses the least telling columns.

    A group of training seeds has one line, and its members if asked.
    """
    from rich.text import Text

    from velodrome.outside.screen import Figures, FittedTable

    runs = list_content(store, **filters)
    found = [line for run in runs for line in (run, *(run["members"] if members else ()))]
    if not found:
        return Text("no runs")
    held_out = [_held_out_return(entry) for entry in found]
    columns = [
        Figures("id", [entry["id"] for entry in found], number=False),
        Figures("name", [_name(entry) for entry in found], number=False),
        Figures("status", [_status(entry) for entry in found], number=False),
        Figures("env", [entry["env"] for entry in found], number=False, rank=2),
        Figures("algorithm", [entry["algorithm"] for entry in found], number=False, rank=4),
        Figures("steps", [_steps(entry) for entry in found], rank=1),
        Figures("last steps/s", [_speed(entry["steps_per_second"]) for entry in found], rank=5),
        Figures("test return", [_test_return(entry) for entry in found]),
        *([Figures(CHOOSING, held_out, rank=1)] if any(cell != NOTHING for cell in held_out) else []),
        Figures("age", [age(entry["age_seconds"]) for entry in found], rank=3),
    ]
    return FittedTable("runs", columns)


def _test_return(entry: Mapping[str, Any]) -> str:
    """Return a run's return in its test, with what has to be known of the split."""
    test = entry["evaluation"]
    if test is None or test["split"] == HELD_OUT:
        return NOTHING
    return _with_interval("return", test) + test["label"].removeprefix(test["split"])


def _held_out_return(entry: Mapping[str, Any]) -> str:
    """Return a fold's return on the block it left out: settings are chosen by it, so it is no test."""
    found = entry["evaluation"]
    return NOTHING if found is None or found["split"] != HELD_OUT else _figure("return", found["value"])


def _name(entry: Mapping[str, Any]) -> str:
    name = f"  seed {entry['seed']}" if entry["group"] else entry["name"]
    if entry["ensemble"] > 1:
        return f"{name} (ensemble of {entry['ensemble']})"
    return f"{name} ({_begun(entry, 'seed')})" if entry["members"] else name


def _begun(entry: Mapping[str, Any], one: str) -> str:
    """Return how many members of a group there are: 3 seeds, or 2 of 3 seeds where one has not begun."""
    begun, wanted = len(entry["members"]), entry["trainings"]
    return f"{begun:,} of {counted(wanted, one)}" if begun < wanted else counted(begun, one)


class _Facts:
    """What summaries say of runs beside their rows; what is about all runs is asked for once."""

    def __init__(self, store: SqlStore) -> None:
        self.returns = store.evaluations_of_runs("return")
        self._last = functools.cache(store.last_of_runs)

    def last(self, name: str, run: RunRecord, members: Sequence[RunRecord]) -> float | None:
        """Return the last of a metric; of a group, the mean over its members."""
        known = [value for one in members or (run,) if (value := self._last(name).get(one.id)) is not None]
        return sum(known) / len(known) if known else None


def _with_members(facts: _Facts, run: RunRecord, members: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the summary of a run with those of its members, which only a group has."""
    each = [_summary(facts, member, group=run.id) for member in members]
    return {**_summary(facts, run, members), "members": each}


def _summary(
    facts: _Facts, run: RunRecord, members: Sequence[RunRecord] = (), group: str | None = None
) -> dict[str, Any]:
    total, speed = run.config.get("steps"), facts.last(SPEED, run, members)
    return {
        **{name: getattr(run, name) for name in ("id", "name", "env", "algorithm", "seed", "steps", "folder")},
        "group": group,
        "members": [],
        "ensemble": run.config.get("ensemble", 1),
        "trainings": trainings(run.config),
        "status": run.shown_status(),
        "total_steps": total and total * trainings(run.config),
        "steps_per_second": _plain(math.nan if speed is None else speed),
        "evaluation": _final_return(facts, run, members),
        "created": _moment(run.created),
        "updated": _moment(run.updated),
        "age_seconds": max(0.0, time.time() - run.created),
    }


def _final_return(facts: _Facts, run: RunRecord, members: Sequence[RunRecord]) -> dict[str, Any] | None:
    """Return the last return on the final split: of the final evaluation, or of one during training.

    The best checkpoint goes before the latest: it is what the run is evaluated by at its end.
    """
    told = run.config.get("evaluation") or {}
    split = told.get("final_split") or "test"
    found = [row for row in facts.returns.get(run.id, ()) if row["split"] == split]
    if found:
        row = max(enumerate(found), key=lambda place: (place[1]["checkpoint"] != "latest", place[0]))[1]
        about = {name: _written(row[name]) for name in ("split", "label", "policy", "value", "low", "high")}
        return about if split != HELD_OUT else {**about, "label": CHOOSING}
    value = facts.last(f"evaluation/{split}/return", run, members)
    if value is None:
        return None
    about = {"split": split, "label": f"{split} ({USED_FOR_SELECTION})", "policy": None}
    return {**about, "value": _plain(value), "low": None, "high": None}


def evaluated(store: SqlStore, run: RunRecord) -> list[dict[str, Any]]:
    """Return the rows of a run's evaluations, oldest step first, each with the policy that it is about.

    Rows from before policies were named have none.
    """
    # The same step chosen in both ways is the same policy; the best says more of it.
    best_last = sorted(store.policies(run.id), key=lambda row: row.checkpoint == "best")
    named = {(row.split, row.step): row for row in best_last}
    found = []
    for row in store.evaluations(run.id).iter_rows(named=True):
        policy = named.get((row["split"], row["step"]))
        about = (row["split"], None, None) if policy is None else (policy.label, policy.checkpoint, policy.policy)
        about = about if row["split"] != HELD_OUT else (CHOOSING, *about[1:])
        found.append(
            {name: _written(value) for name, value in row.items()}
            | dict(zip(("label", "checkpoint", "policy"), about, strict=True))
        )
    return found


# One run


def show_content(store: SqlStore, run: RunRecord) -> dict[str, Any]:
    """Return everything that is known of a run in plain values."""
    return {
        **_with_speed(store, _Facts(store), run),
        "group": store.groups().get(run.id),
        **{name: getattr(run, name) for name in ("config_hash", "data_hash", "error", "config", "versions")},
        "config_differences": config_differences(run.config),
        "metrics": {name: _plain(value) for name, value in store.last_metrics(run.id).items()},
        "evaluations": evaluated(store, run),
        "overfitting": overfitting(store, run),
        "checkpoints": [row._asdict() for row in store.checkpoints(run.id)],
        "lineage": [row._asdict() for _, row in store.lineage(run.id)],
        "children": [{"id": child, "step": row.step} for child, row in store.lineage(parent=run.id)],
        "episode_return": _curve(store, run, REWARDS),
    }


def _with_speed(store: SqlStore, facts: _Facts, run: RunRecord) -> dict[str, Any]:
    """Return the summary of a run with its speed on the whole, for which all its iterations are looked at."""
    members = store.members(run.id)
    mean = mean_speed(store, [one.id for one in members or (run,)])
    return {**_with_members(facts, run, members), "mean_steps_per_second": mean}


def _curve(store: SqlStore, run: RunRecord, name: str) -> list[float | None]:
    """Return the course of a metric; that of a group is the mean over its members at each step."""
    found = store.metrics(run.id, [name])
    if "seed" in found.columns:
        found = found.select("step", "value").group_by("step").mean().sort("step")
    return [_plain(value) for value in found["value"]]


def show_view(store: SqlStore, run: RunRecord) -> Group:
    """Return a run as tables: facts, what differs from the defaults, last metrics, evaluations, the learning curve."""
    from rich.console import Group
    from rich.text import Text

    content = show_content(store, run)
    changed = [(key, _text(own), _text(default)) for key, (own, default) in content["config_differences"].items()]
    made_with = [(name, _text(value)) for name, value in flattened(content["versions"]).items()]
    counted = _counted_metrics(store, [run])
    known = {name: values[0] for name, values in counted.items()}
    metrics = [(_metric_name(name, known), _metric(name, value, known)) for name, value in known.items()]
    place = (
        "of the members, means of the last" if content["members"] else f"at step {run.steps:,}, or the last before it"
    )
    tables = [
        _table("configuration, where it differs from the defaults", ("key", "value", "default"), changed),
        _table("made with", ("", ""), made_with),
        _table(f"metrics {place}", ("metric", "value"), metrics),
    ]
    parts: list[Any] = [_facts(content), *([] if changed else [Text("configuration: the defaults")])]
    parts += [table for table in tables if table.row_count]
    if content["members"]:
        parts.append(_members_table("members" if content["ensemble"] > 1 else "training seeds", content["members"]))
    parts += _evaluations_view(content["evaluations"])
    if content["overfitting"] is not None:
        parts.append(Text(f"warning: {content['overfitting']}", "yellow"))
    followed = EQUITY_RETURN if EQUITY_RETURN in known else REWARDS
    if curve := [value for value in _curve(store, run, followed) if value is not None]:
        drawn = sparkline(curve, CURVE_WIDTH, LEVELS)
        first, last, best = (_metric(followed, value, known) for value in (curve[0], curve[-1], max(curve)))
        ends = f"{first} to {last}, best {best}"
        parts.append(Text(f"{followed}  {drawn}  {ends}"))
    return Group(*parts)


def overfitting(store: SqlStore, run: RunRecord) -> str | None:
    """Return what the curves of training and validation tell of overfitting."""
    known = store.last_metrics(run.id)
    validated = [name for name in known if name.startswith("evaluation/") and name.endswith("/return")]
    if not validated:
        return None
    split = validated[0].split("/")[1]
    parted = overfitting_of(store.metrics(run.id, [*RETURNS, validated[0]]), split)
    return None if parted is None else parted.sentence(split, f"evaluation/{split}/max_drawdown" in known)


def _evaluations_view(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a heading and a table for each evaluated split and policy."""
    from rich.text import Text

    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in rows:
        policy = f"step {row['step']:,}" if row["policy"] is None else row["policy"]["text"]
        groups.setdefault((row["label"], policy), []).append((row["name"], _with_interval(row["name"], row)))
    view: list[Any] = []
    for (label, policy), figures in groups.items():
        view.append(Text(f"evaluation on {label}; policy: {policy}"))
        view.append(_table("", ("figure", "value [interval]"), figures))
    return view


def _members_table(title: str, members: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return a line for each training seed of a group, or member of an ensemble."""
    from velodrome.outside.screen import Figures, FittedTable

    tests = [one["evaluation"] for one in members]
    returns = [NOTHING if test is None else _with_interval("return", test) for test in tests]
    chooses = any(test is not None and test["split"] == HELD_OUT for test in tests)
    columns = [
        Figures("seed", [str(one["seed"]) for one in members], number=False),
        Figures("id", [one["id"] for one in members], number=False),
        Figures("status", [_status(one) for one in members], number=False),
        Figures("steps", [_steps(one) for one in members]),
        Figures(f"{CHOOSING if chooses else 'test return'} [data alone]", returns),
    ]
    return FittedTable(title, columns)


def _facts(content: Mapping[str, Any]) -> Table:
    from rich.text import Text

    checkpoints, members = content["checkpoints"], content["members"]
    last = f"{len(checkpoints)}, the last of step {checkpoints[-1]['step']:,}" if checkpoints else "none"
    several = members and f"{_begun(content, 'training seed')} from {content['seed']} on"
    seeds = several or f"seed {content['seed']}"
    if content["ensemble"] > 1:
        seeds = f"ensemble of {content['ensemble']}, seeds from {content['seed']} on"
    facts = {
        "status": _status(content),
        "name": content["name"],
        **({"group": content["group"]} if content["group"] else {}),
        "environment": f"{content['env']}, {content['algorithm']}, {seeds}",
        "steps": _steps(content),
        "mean steps/s": _speed(content["mean_steps_per_second"]),
        "began": f"{content['created'][:19].replace('T', ' ')} UTC, {age(content['age_seconds'])} ago",
        "data": content["data_hash"][:16] or NOTHING,
        "checkpoints": "those of its members" if members else last,
        "folder": content["folder"],
    }
    if content["lineage"]:
        facts["lineage"] = "\n".join(map(told_lineage, content["lineage"]))
    if content["children"]:
        facts["children"] = ", ".join(f"{child['id']} from step {child['step']:,}" for child in content["children"])
    kind = "ensemble" if content["ensemble"] > 1 else "group" if members else "run"
    if content["error"]:
        facts["error"] = Text(content["error"], "red")
    return _table(f"{kind} {content['id']}", ("", ""), list(facts.items()))


def config_differences(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return by dotted key what a configuration says and what the default is, where they differ."""
    from velodrome.runs.config.run_config import RunConfig

    default = flattened(RunConfig.model_construct().model_dump(mode="json"))
    return {key: (own, default.get(key)) for key, own in flattened(config).items() if own != default.get(key)}


# Several side by side


def compare_content(store: SqlStore, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the configuration fields that differ, the last metrics and the evaluations of several runs, by run."""
    if len({run.id for run in runs}) < 2:
        raise ConfigError(f"compare needs two different runs or more, and got {len({run.id for run in runs})}.")
    facts = _Facts(store)
    return {"runs": [_with_speed(store, facts, run) for run in runs], **compared(store, runs)}


def compared(store: SqlStore, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the same without what a list of runs says of each."""
    configs = [flattened(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = {key: [config.get(key) for config in configs] for key in keys}
    results = [_last_evaluations(store, run) for run in runs]
    return {
        "config": {key: values for key, values in differing.items() if any(value != values[0] for value in values)},
        "metrics": {name: list(map(_plain, values)) for name, values in _last_metrics(store, runs).items()},
        "evaluations": {
            key: [found.get(key) for found in results]
            for key in dict.fromkeys(key for found in results for key in found)
        },
        "same_data": len({run.data_hash for run in runs}) == 1,
    }


def compare_view(store: SqlStore, runs: Sequence[RunRecord]) -> Group:
    """Return several runs side by side: what they were told, what came of it."""
    from rich.console import Group
    from rich.text import Text

    content = compare_content(store, runs)
    heads = ["", *(f"{run.name} {run.id}" for run in runs)]
    summary = content["runs"]
    state = [
        ("status", *(run["status"] for run in summary)),
        ("training seeds", *(str(max(1, len(run["members"]))) for run in summary)),
        ("steps", *(_steps(run) for run in summary)),
        ("mean steps/s", *(_speed(run["mean_steps_per_second"]) for run in summary)),
    ]
    told = [(key, *map(_text, values)) for key, values in content["config"].items()]
    evaluations = [
        (key, *(NOTHING if found is None else found["text"] for found in values))
        for key, values in content["evaluations"].items()
    ]
    measured = _counted_metrics(store, runs)
    metrics = [
        (_metric_name(name, measured), *(_metric(name, value, measured) for value in values))
        for name, values in measured.items()
    ]
    parts: list[Any] = [
        _table("runs", heads, state),
        _table("configuration, where it differs", heads, told) if told else Text("configuration: the same"),
    ]
    if not content["same_data"]:
        parts.append(Text("They saw different data, so evaluations do not measure the same thing.", "yellow"))
    tables = [
        _table("evaluation, the last of each", heads, evaluations),
        _table("metrics, the last of each", heads, metrics),
    ]
    return Group(*parts, *(table for table in tables if table.row_count))


def _last_metrics(store: SqlStore, runs: Sequence[RunRecord]) -> dict[str, list[float | None]]:
    """Return the last of each metric by name, one for each run; None where it has none."""
    found = [store.last_metrics(run.id) for run in runs]
    return {name: [own.get(name) for own in found] for name in sorted({name for own in found for name in own})}


def _counted_metrics(store: SqlStore, runs: Sequence[RunRecord]) -> dict[str, list[float | None]]:
    """Return the last of each metric, without statistics of episodes that were 0 in every run from first to last."""
    last = _last_metrics(store, runs)
    silent = [name for name, values in last.items() if name.startswith("episode/") and not any(values)]
    for run in runs if silent else ():
        rows = store.metrics(run.id, silent)
        counted = set(rows.filter(rows["value"] != 0.0)["name"])
        silent = [name for name in silent if name not in counted]
    return {name: values for name, values in last.items() if name not in silent}


def _last_evaluations(store: SqlStore, run: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the last of a run's evaluations by 'split/figure', those of the latest checkpoint by themselves.

    Each as a number with its interval, and as its table has it.
    """
    found = {}
    for row in evaluated(store, run):
        which = f"{row['label']} (latest)" if row["checkpoint"] == "latest" else row["label"]
        numbers = {name: row[name] for name in ("value", "low", "high")}
        found[f"{which}/{row['name']}"] = {**numbers, "text": _with_interval(row["name"], row)}
    return found


# Writing values


def flattened(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested values by dotted key; an empty section is a value."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            found.update(flattened(value, f"{key}."))
        else:
            found[key] = value
    return found


def counted(number: int, one: str) -> str:
    """Write how many there are of something: 1 seed, 2 seeds."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def age(seconds: float) -> str:
    """Write how long ago something was, in its largest unit."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table of texts, which a narrow terminal folds."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, show_header=any(headings))
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def _status(entry: Mapping[str, Any]) -> Text:
    from rich.text import Text

    return Text(entry["status"], STYLES[entry["status"]])


def _steps(entry: Mapping[str, Any]) -> str:
    total = entry["total_steps"]
    return f"{compact(entry['steps'])} of {compact(total)}" if total else compact(entry["steps"])


def _speed(value: float | None) -> str:
    return NOTHING if value is None else compact(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON can write it: what is not finite is nothing."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _written(value: Any) -> Any:
    """Return a value of an evaluation's row as its own JSON file has it."""
    return written(value) if isinstance(value, float) else value


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _figure(name: str, value: float | str | None) -> str:
    """Return a figure of an evaluation as its table has it: shares in per cent."""
    metric, known = BY_NAME.get(name), None if value is None else float(value)  # infinities are words
    return _number(known) if metric is None else format_figure(known, metric.unit)


def _metric(name: str, value: float | None, known: Collection[str]) -> str:
    """Return a metric of a training: of an account, return, drawdown and share of the optimum in per cent."""
    group, _, own = name.rpartition("/")
    if value is None or own not in SHARES or name == REWARDS:
        return _number(value)
    return figure(own, value, [other.removeprefix(f"{group}/") for other in known if other.startswith(f"{group}/")])


def _metric_name(name: str, known: Collection[str]) -> str:
    """Return a metric's name with what has to be known about it. known: all that were measured."""
    if name == "episode/sharpe":
        return f"{name} (per bar)"
    if name == REWARDS and EQUITY_RETURN in known:
        return f"{name} (sum of rewards)"
    return f"{name} ({USED_FOR_SELECTION})" if name.startswith("evaluation/") else name


def _with_interval(name: str, row: Mapping[str, Any]) -> str:
    value, low, high = (_figure(name, row[part]) for part in ("value", "low", "high"))
    return value if row["low"] is None or row["high"] is None else f"{value} [{low} … {high}]"


def _text(value: Any) -> str:
    return NOTHING if value is None else str(value)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
