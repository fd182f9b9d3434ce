"""A run's rows as its folder has them. The folder is the record; the store is filled from it, now or later."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from velodrome.errors import ConfigError, RunError, VelodromeError
from velodrome.evaluation.named_policy import NamedPolicy
from velodrome.runs.checkpoint import checkpoints, pinned_checkpoints
from velodrome.runs.config.files import load_config_of_run, read_file
from velodrome.runs.folder import INFORMATION, RunFolder, run_folders
from velodrome.runs.store.looks import Look, SeenBars, add_looks
from velodrome.runs.store.rows import (
    EvaluationRow,
    MetricRow,
    PolicyRow,
    RunRecord,
    checkpoint_rows,
    lineage_rows,
    trainings,
)
from velodrome.runs.store.sinks import end_of_lines, last_entry, read_lines
from velodrome.runs.store.store import SqlStore

OFFICIAL = "official-"  # start of the name of an environment's own result, which has no rows
BATCH = 50_000  # rows of metrics in a transaction

log = logging.getLogger("velodrome.runs")


def enter_run(store: SqlStore, folder: RunFolder, everything: bool = False) -> int:
    """Let the store say of a run what its folder says; return up to which byte of its metrics file that is so.

    everything: write all numbers anew, whatever the store has. Numbers that the run does not have any more go, but for
    those of a folder that has lost its metrics file.
    """
    if not folder.metrics_path.is_file():
        enter_facts(store, folder)
        return 0
    end, record = end_of_lines(folder.metrics_path), record_of(folder)
    store.put_run(replace(record, updated=0.0))  # a kill before the end leaves a row that says that it is incomplete
    try:
        if store.metrics_extent(folder.id)[0] > record.steps:
            store.forget_after(folder.id, record.steps)
        last, before = store.metrics_extent(folder.id)
        # Numbers are written in order, so that the store has the first ones; those of the last step may be incomplete.
        if everything or before != sum(
            len(entry.values) for entry in read_lines(folder.metrics_path) if entry.step < last
        ):
            store.forget_metrics(folder.id)
            last = -1
        add_metrics(store, folder, since=last)
    except RunError:  # a damaged line; the rest is entered all the same
        enter_facts(store, folder)
        raise
    enter_facts(store, folder)
    return end


def enter_facts(store: SqlStore, folder: RunFolder) -> None:
    """Enter all but the numbers of a run: its row, group, checkpoints, lineage and evaluations."""
    record, group, evaluations = record_of(folder), group_of(folder), list(evaluations_of(folder))
    looks = list(looks_of(folder))

    def enter() -> None:
        store.put_run(record)
        if group is not None:
            if store.find(group.id) is None:
                store.put_run(record_of(group))
            store.add_member(group.id, folder.id)
        store.set_checkpoints(folder.id, checkpoint_rows(folder.path))
        store.set_lineage(folder.id, lineage_rows(folder.lineage))
        for rows, policy in evaluations:
            store.add_evaluations(folder.id, rows, policy)
        add_looks(store, looks)

    store.at_once(enter)


def add_metrics(store: SqlStore, folder: RunFolder, begin: int = 0, since: int = 0) -> None:
    """Add the numbers of a run's metrics file, from a byte or a step on."""
    rows = (
        MetricRow(step, name, value, moment)
        for step, moment, values in read_lines(folder.metrics_path, begin)
        if step >= since
        for name, value in values.items()
    )
    while batch := list(itertools.islice(rows, BATCH)):
        store.add_metrics(folder.id, batch)


# The row of a run


def record_of(folder: RunFolder) -> RunRecord:
    """Return a run's row. A folder whose files cannot be read is a RunError."""
    try:
        information, found = folder.information, folder.config_path.stat()
        config = _read_config(folder.config_path, found.st_mtime_ns, found.st_size)
        return RunRecord(
            id=folder.id,
            name=str(information["name"]),
            folder=str(folder.path),
            env=str(config["env"]),
            algorithm=str(config["algorithm"]),
            config=config,
            data_hash=information["data_hash"] or "",
            seed=int(config["seed"]),
            versions=information["versions"],
            created=folder.candidate.created,
            **_progress(folder, config),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        told = str(error) if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"
        raise RunError(f"{folder.path}: what the run's files say cannot be read ({told}).") from error


@functools.lru_cache(maxsize=16)
def _read_config(path: Path, changed: int, size: int) -> dict[str, Any]:
    """Read a configuration once: each checkpoint asks for it, and it takes longer than all the rest."""
    return read_file(path)


def _progress(folder: RunFolder, config: dict[str, Any]) -> dict[str, Any]:
    """Return how far a run has come. One of an older version does not say how it ended: it is told by its steps."""
    state, (steps, moment) = folder.state, _reached(folder)
    if folder.is_group:
        steps = sum(map(steps_of, members_of(folder)))
    if state is not None:
        about = {"status": state.status, "error": state.error, "config_hash": state.config_hash}
        return {**about, "steps": steps, "updated": max(state.updated, moment)}
    done = steps >= int(config["steps"]) * trainings(config)
    hashed = load_config_of_run(folder.config_path).hash
    updated = moment or folder.candidate.created
    return {"status": "finished" if done else "interrupted", "steps": steps, "config_hash": hashed, "updated": updated}


def _reached(folder: RunFolder) -> tuple[int, float]:
    """Return the last step of a run's metrics and checkpoints, and the time of the last of them."""
    last = last_entry(folder.metrics_path)
    found = [(row.step, row.time) for row in checkpoint_rows(folder.path)]
    found += [] if last is None else [(last.step, last.time)]
    return max((step for step, _ in found), default=0), max((moment for _, moment in found), default=0.0)


def steps_of(folder: RunFolder) -> int:
    """Return the environment steps that a run has done, as far as its metrics and checkpoints go."""
    return _reached(folder)[0]


# Groups


def members_of(folder: RunFolder) -> list[RunFolder]:
    """Return the training seeds of a group that were begun so far; none of a run that is no group."""
    inside = run_folders(folder.path) if folder.is_group else []
    return [found for found in inside if found.information.get("group") == folder.id]


def group_of(folder: RunFolder) -> RunFolder | None:
    """Return the group that a run is a training seed of; None if it is none, or was moved out of it."""
    group = folder.information.get("group")
    if group is None or not (folder.path.parent / INFORMATION).is_file():
        return None
    found = RunFolder.open(folder.path.parent)
    return found if found.id == group else None


# Evaluations


def evaluations_of(folder: RunFolder) -> Iterator[tuple[list[EvaluationRow], PolicyRow | None]]:
    """Yield the figures of each evaluation in a run's folder, and of its own among those of its group."""
    for found in _figures(folder):
        policy = found["policy"]
        step = _guessed_step(folder) if policy is None else policy.step
        yield _rows(found["rows"], found["split"], step), _named(found, policy)
    group = group_of(folder)
    for found in () if group is None else _figures(group):
        for agent in () if found["policy"] is None else found["policy"].agents:
            if agent.run == folder.id and agent.seed in found["seeds"]:
                own = replace(found["policy"], agents=(agent,))
                yield _rows(found["seeds"][agent.seed], found["split"], own.step), _named(found, own)


def looks_of(folder: RunFolder) -> Iterator[Look]:
    """Yield the looks at test data that the evaluations in a run's folder are."""
    for found in _figures(folder):
        if found["look"] and found["policy"] is not None:
            about = found["look"]
            bars = tuple(SeenBars(*own) for own in about.get("bars", ()))  # older results do not say them
            yield Look(about["data_hash"], folder.id, found["policy"].step, found["split"], float(about["time"]), bars)


def forget_evaluations(folder: RunFolder, steps: int) -> None:
    """Remove the results of later steps, as a run does that continues from a checkpoint: their policies are gone."""
    from velodrome.evaluation.result import Evaluation

    for path in _files(folder):
        try:
            policy = Evaluation.read_figures(path)["policy"]
        except ConfigError:
            continue
        if policy is not None and policy.step > steps:
            for file in path.parent.iterdir():
                if file == path or file.name.startswith(f"{path.stem}-"):
                    file.unlink()


def _figures(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what the evaluations in a folder say; of several about the same steps, the one of most agents is last."""
    from velodrome.evaluation.result import Evaluation

    found = []
    for path in _files(folder):
        try:
            found.append(Evaluation.read_figures(path))
        except ConfigError as error:
            log.warning("%s", error)
    return sorted(found, key=lambda one: 0 if one["policy"] is None else len(one["policy"].agents))


def _files(folder: RunFolder) -> list[Path]:
    return sorted(path for path in folder.evaluation_path.glob("*.json") if not path.name.startswith((".", OFFICIAL)))


def _rows(rows: list[Any], split: str, step: int) -> list[EvaluationRow]:
    return [EvaluationRow(step, split, row.name, row.value, row.low, row.high) for row in rows]


def _named(found: dict[str, Any], policy: NamedPolicy | None) -> PolicyRow | None:
    if policy is None:
        return None
    return PolicyRow(policy.step, found["split"], policy.checkpoint, policy.to_dict(), found["label"])


def _guessed_step(folder: RunFolder) -> int:
    """Return the step of the policy that an older result is about, which does not say it: of the best, or the last."""
    kept = pinned_checkpoints(folder.path) or checkpoints(folder.path)
    return int(kept[-1].name) if kept else 0
