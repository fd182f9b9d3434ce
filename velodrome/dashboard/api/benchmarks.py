"""The stored results of `velodrome bench`, by machine and commit: whatever tables are in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from velodrome.dashboard.answers import Asked, Question, Refusal, Routes
from velodrome.dashboard.site import Site
from velodrome.outside.files import UNFIT, read_text

routes = Routes()
MOST_FILES, MOST_ROWS, MOST_COLUMNS, MOST_TEXT = 500, 2000, 40, 300
FIRST = ("label", "contender", "peer", "env", "name", "num_envs", "steps_per_second")  # columns that come first
LEFT_OUT = ("rounds", "details", "ratios", "curve", "curves", "members")
TIMES = ("seconds", "time")


def _files(site: Site) -> dict[str, Path]:
    """Return the files of results by what they are called in requests."""
    found = [path for folder in site.settings.benchmarks for path in sorted(folder.glob("*.json"))]
    own = [path for path in found if path.is_file() and not path.is_symlink()][:MOST_FILES]
    return {hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest(): path for path in own}


def _read(site: Site, identity: str, path: Path) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        try:
            return _content(path)
        except (OSError, *UNFIT) as error:
            return {"problem": f"{path.name}: cannot be read ({type(error).__name__}).", "tables": [], "machine": ""}

    found = site.held(("benchmark", identity), path.stat().st_mtime_ns, look)
    rows = sum(len(table["rows"]) for table in found["tables"])
    return {"id": identity, "name": path.stem, "rows": rows, "written": path.stat().st_mtime, **found}


@routes.get("/api/benchmarks")
def benchmarks(site: Site, question: Question[Asked]) -> Any:
    """List the stored results of benchmarks, newest first."""
    found = [_read(site, identity, path) for identity, path in _files(site).items()]
    short = [{name: value for name, value in one.items() if name not in ("tables", "notes")} for one in found]
    return {"benchmarks": sorted(short, key=lambda one: -(one.get("created") or one["written"]))}


@routes.get("/api/benchmarks/{id}")
def show(site: Site, question: Question[Asked]) -> Any:
    """Show the tables of a result."""
    path = _files(site).get(question.path["id"])
    if path is None:
        raise Refusal(404, f"there is no result {question.path['id'][:80]!r}.")
    found = _read(site, question.path["id"], path)
    first = found["tables"][0] if found["tables"] else {"columns": [], "rows": []}
    return {**found, "columns": first["columns"], "rows": first["rows"]}


def _content(path: Path) -> dict[str, Any]:
    """Return what a file of results says: where and when it was measured, and its tables."""
    found = json.loads(read_text(path))
    whole: Mapping[str, Any] = found if isinstance(found, dict) else {"rows": found}
    machine = whole.get("machine") or whole.get("device") or ""
    about = machine if isinstance(machine, dict) else {"cpu": str(machine)}
    parts = [about.get("cpu"), f"{about['cores']} cores" if about.get("cores") else None, *_gpus(about)]
    return {
        "problem": None,
        "title": str(whole.get("kind") or path.stem),
        "machine": ", ".join(str(part) for part in parts if part),
        "commit": str(about.get("git_commit") or "")[:12],
        "version": about.get("velodrome"),
        "command": str(about.get("command") or whole.get("command") or ""),
        "created": _moment(about.get("time")),
        "notes": [str(note)[:MOST_TEXT] for note in whole.get("notes") or ()],
        # What was measured goes before what was hoped for.
        "tables": sorted((one for one in _tables(whole) if one["rows"]), key=lambda one: one["title"] == "targets"),
    }


def _gpus(about: Mapping[str, Any]) -> list[str]:
    found = about.get("gpus") or about.get("gpu") or []
    every = [found] if isinstance(found, str | dict) else found
    return [str(one.get("name", one) if isinstance(one, dict) else one) for one in every]


def _moment(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _tables(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a table for each list of rows: those of a report's comparisons by their titles, others by their names."""
    for comparison in whole.get("comparisons") or ():
        if isinstance(comparison, dict):
            title = str(comparison.get("title") or comparison.get("name") or "")
            yield _table(title, comparison.get("measurements") or [], comparison.get("lines") or [])
    for name, value in whole.items():
        if name in ("comparisons", "missing", "notes"):
            continue
        rows = _rows_by_key(name, value) if isinstance(value, dict) and name not in ("machine", "options") else value
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            yield _table(name, rows, [])


def _rows_by_key(name: str, value: Mapping[str, Any]) -> list[Any]:
    """Return the rows that stand under keys, one or several under each; several say under which they stood."""
    if all(isinstance(rows, list) for rows in value.values()):
        return [{name: key, **row} if isinstance(row, dict) else row for key, rows in value.items() for row in rows]
    return list(value.values())


def _table(title: str, rows: Sequence[Mapping[str, Any]], lines: Sequence[Any]) -> dict[str, Any]:
    kept = [row for row in rows if isinstance(row, dict)][:MOST_ROWS]
    names = dict.fromkeys(name for row in kept for name, value in row.items() if _is_cell(name, value))
    ordered = [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]
    columns = [{"name": name, "unit": "seconds" if name in TIMES else ""} for name in ordered[:MOST_COLUMNS]]
    cells = [[_cell(row.get(name)) for name in ordered[:MOST_COLUMNS]] for row in kept]
    return {"title": title, "columns": columns, "rows": cells, "lines": [str(line)[:MOST_TEXT] for line in lines]}


def _is_cell(name: str, value: Any) -> bool:
    return name not in LEFT_OUT and not isinstance(value, dict | list)


def _cell(value: Any) -> Any:
    return value[:MOST_TEXT] if isinstance(value, str) else None if isinstance(value, dict | list) else value
