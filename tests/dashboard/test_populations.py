"""Populations as the API tells of them: round by round, while they run, and where their files are broken."""

from __future__ import annotations

import json
import math

from velodrome.runs.folder import RunFolder
from velodrome.runs.store.rows import RunRecord
from velodrome.tune.population.kept import FILE, Member, written


def population(folder, rounds=2, **changed):
    """Write what a population of two comes to; the first gives way after the first round."""
    settings = [{"ppo.epochs": 1}, {"ppo.epochs": 4}]
    first = [Member(f"member-{place}-20240101-000000-0000000{place}", settings[place], None, place) for place in (0, 1)]
    second = [Member("member-0-round-2-20240101-000000-0000000f", {"ppo.epochs": 3}, 1), first[1]]
    plan = {"config": "abc", "space": [{"key": "ppo.epochs"}], "score": "sharpe", "members": 2, "rounds": rounds}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps(written({**plan, **changed}, [first, second])))


def test_a_population_is_shown_round_by_round_and_its_runs_say_that_they_are_its(serve):
    client = serve()
    assert client.get("/api/populations") == {"populations": []}
    home = client.site.folder / "two"
    population(home)
    (home / "member-1-20240101-000000-00000001").mkdir()
    client.site.store.create_run(
        RunRecord("00000001", "member-1", str(home / "member-1-20240101-000000-00000001"), "trading", "ppo", "finished")
    )
    client.site.index._looked = -math.inf
    (line,) = client.get("/api/populations")["populations"]
    assert (line["name"], line["status"], line["over"], line["rounds"]) == ("two", "finished", 2, 2)
    assert line["best"] == {**line["best"], "id": "00000001", "score": 1.0, "settings": {"ppo.epochs": 4}}
    found = client.get("/api/populations/two")
    assert (found["keys"], found["command"]) == (["ppo.epochs"], None)
    assert [[one["parent"] for one in each] for each in found["history"]] == [[None, None], [1, None]]
    assert [one["score"] for one in found["history"][1]] == [None, 1.0]
    told = {"name": "two", "member": 1, "first": 1, "last": 2, "rounds": 2}
    assert client.get("/api/runs/00000001")["population"] == told
    assert "did you mean" in client.ask("GET", "/api/populations/twoo").error.lower()


def test_a_population_that_is_not_over_is_interrupted_or_runs_and_one_whose_file_is_broken_is_left_out(serve):
    client = serve()
    home = client.site.folder / "two"
    population(home, rounds=3)
    with RunFolder(home, "two").lock():
        assert client.get("/api/populations")["populations"][0]["status"] == "running"
    found = client.get("/api/populations/two")
    assert (found["status"], found["over"]) == ("interrupted", 2)
    assert found["command"] == f"velodrome serve --folder {home}"
    for broken in ("{", "[]", '{"done": [[{"run": 1}]]}'):
        (home / FILE).write_text(broken)
        assert client.get("/api/populations") == {"populations": []}
    population(home, members="many")
    assert client.ask("GET", "/api/populations/two").status == 404


def test_a_run_elsewhere_is_of_no_population(served):
    assert served.get("/api/runs/00000001")["population"] is None
