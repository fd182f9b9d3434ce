"""Long curves: drawn from their outlines, raw where one looks closely, whole in a file."""

from __future__ import annotations

import math


def test_a_long_curve_is_drawn_from_its_outline_and_raw_where_one_looks_closely(serve, monkeypatch):
    from velodrome.dashboard import curves
    from velodrome.runs.store.rows import MetricRow, RunRecord

    read = []
    rows = curves.read_rows
    monkeypatch.setattr(curves, "read_rows", lambda *given: (read.append(given[3:]), rows(*given))[1])
    client = serve()
    store = client.site.store
    store.create_run(RunRecord("abcd0001", "long", "/nowhere", status="finished", steps=3000))
    values = [math.sin(step / 40) for step in range(3000)]
    values[1234] = 7.0
    store.add_metrics("abcd0001", [MetricRow(step, "loss", value, 0.0) for step, value in enumerate(values)])
    target = "/api/metrics?runs=abcd0001&names=loss&points=50"
    found = client.get(target)["curves"][0]
    assert (found["total"], found["thinned"]) == (3000, True)
    assert len(found["x"]) <= 50
    assert found["y"][found["x"].index(1234)] == 7.0
    assert (found["x"][0], found["x"][-1]) == (0, 2999)
    assert read[1][0] == 2560  # the rows behind the last block, and no others
    part = client.get(f"{target}&from=100&to=2700")["curves"][0]
    assert (part["total"], part["x"][0], part["x"][-1]) == (2601, 100, 2700)
    near = client.get(f"{target}&from=1220&to=1240")["curves"][0]
    assert (near["x"], near["thinned"]) == (list(range(1220, 1241)), False)
    many = client.get("/api/metrics?runs=abcd0001&names=loss&points=3000")["curves"][0]
    assert many["x"] == list(range(3000))
    assert len(client.ask("GET", "/api/metrics.csv?runs=abcd0001").body.splitlines()) == 3001
