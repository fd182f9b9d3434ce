"""Stored results of benchmarks, as tables: ours and whatever a script wrote."""

from __future__ import annotations

import json
from pathlib import Path

from tests.dashboard.conftest import HOSTILE


def test_stored_benchmarks_are_shown_as_tables(serve, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    machine = {"cpu": "EPYC", "cores": 2, "git_commit": "abc", "time": "2026-01-01T00:00:00+00:00", "command": "bench"}
    rows = [{"label": HOSTILE, "steps_per_second": 1.5e6, "rounds": [1, 2]}]
    content = {"kind": "step", "machine": machine, "measurements": rows, "targets": [{"name": "a", "wanted": 1}]}
    (folder / "step.json").write_text(json.dumps(content))
    (folder / "broken.json").write_text("{")
    (folder / "link.json").symlink_to("/etc/hostname")
    client = serve(benchmarks=(folder,))
    listed = {one["name"]: one for one in client.get("/api/benchmarks")["benchmarks"]}
    assert set(listed) == {"step", "broken"}
    assert listed["step"]["machine"] == "EPYC, 2 cores"
    assert listed["broken"]["problem"]
    found = client.get(f"/api/benchmarks/{listed['step']['id']}")
    assert [column["name"] for column in found["columns"]] == ["label", "steps_per_second"]
    assert found["rows"] == [[HOSTILE, 1.5e6]]
    assert client.ask("GET", "/api/benchmarks/..%2fstep").status in (400, 404)


def test_every_result_in_this_repository_has_a_table(serve):
    """Which is the newest follows from when the files were written, in a fresh clone all at once."""
    found = serve(benchmarks=(Path(__file__).parents[2] / "benchmarks" / "results",)).get("/api/benchmarks")
    assert found["benchmarks"]
    assert [one["name"] for one in found["benchmarks"] if not one["rows"] or one["problem"]] == []


def test_rows_under_keys_say_under_which(serve, tmp_path):
    content = {"machine": "H200", "command": "train", "agents": {"51": [{"mean": -3.0}, {"mean": -5.0}], "52": []}}
    (tmp_path / "cage2.json").write_text(json.dumps(content))
    client = serve(benchmarks=(tmp_path,))
    found = client.get(f"/api/benchmarks/{client.get('/api/benchmarks')['benchmarks'][0]['id']}")
    assert [column["name"] for column in found["columns"]] == ["agents", "mean"]
    assert (found["rows"], found["command"]) == ([["51", -3.0], ["51", -5.0]], "train")
