"""The overview in a terminal: `velodrome top`."""

from __future__ import annotations

import io
import json

from tests.contracts.queue import job
from tests.dashboard.conftest import HOSTILE
from tests.runs.test_old_runs import DQN
from velodrome.runs.config.sections import HELD_OUT
from velodrome.runs.machine.disk import NO_ROOM
from velodrome.runs.report.listing import CHOOSING
from velodrome.runs.store.rows import EvaluationRow, MetricRow, RunRecord


def test_top_prints_the_page_once_where_there_is_no_terminal(capsys, trained, tmp_path):
    from velodrome.cli import run

    assert run(["top", "--folder", str(trained)]) == 0
    printed = capsys.readouterr().out
    assert "3 runs" in printed
    assert DQN in printed
    assert "buy and hold" in printed
    assert "no scheduler runs" in printed
    assert run(["top", "--json", "--folder", str(tmp_path / "runs")]) == 0
    assert json.loads(capsys.readouterr().out)["empty"]
    assert run(["top", "--seconds", "0"]) == 2


def test_the_block_that_a_fold_leaves_out_is_no_test(serve):
    from rich.console import Console

    from velodrome.dashboard.top import look, page

    client = serve()
    store = client.site.store
    for identity, split, value in (("a" * 8, HELD_OUT, 8.75), ("b" * 8, "test", 0.25)):
        config = {"steps": 1, "evaluation": {"final_split": split}}
        store.create_run(RunRecord(identity, identity, "/none", "trading", "ppo", "finished", config))
        store.add_evaluations(identity, [EvaluationRow(1, split, "return", value)])
    fold, tested = client.get("/api/runs?sort=name&order=asc")["runs"]
    assert (fold["result"], fold["held_out"]["value"]) == (None, 8.75)
    assert (tested["result"]["value"], tested["held_out"]) == (0.25, None)
    assert [line["id"] for line in client.get("/api/runs?sort=result")["runs"]] == [tested["id"], fold["id"]]
    screen = Console(width=160, record=True, file=io.StringIO())
    screen.print(page(look(client.site), 24, whole=True))
    lines = screen.export_text().splitlines()
    heading = next(line for line in lines if "out of sample" in line)
    (own,) = (line for line in lines if "+875.0%" in line)
    assert heading.index(CHOOSING) > heading.index("out of sample")
    assert own.index("+875.0%") > heading.index(CHOOSING)


def test_top_says_why_what_is_next_does_not_begin(serve):
    from rich.console import Console

    from velodrome.dashboard.top import look, page

    client = serve()
    client.site.queue.submit(job("00000001", name="one"))
    client.site.queue.submit(job("00000002", name="two", created=200.0, message=f"{NO_ROOM}/runs is full."))
    screen = Console(width=160, record=True, file=io.StringIO())
    screen.print(page(look(client.site), 24, whole=True))
    assert "next one, two (waiting for disk space)" in screen.export_text()


def test_top_shows_the_return_of_an_account_in_per_cent_and_sums_of_rewards_as_numbers(serve):
    from velodrome.dashboard.api.overview import live
    from velodrome.dashboard.top import _live

    client = serve()
    store = client.site.store
    for identity, more in (("a" * 8, {"episode/equity_return": 0.0108}), ("b" * 8, {})):
        store.create_run(RunRecord(identity, identity, "/none"))
        rows = {"episode/return": 896.25, **more}
        store.add_metrics(identity, [MetricRow(1, name, value, 1.0) for name, value in rows.items()])
    assert [_live(live(client.site, identity * 8)) for identity in "ab"] == ["+1.08%", "896.2"]


def test_top_fits_80_columns_and_shows_names_as_text(served):
    from rich.console import Console

    from velodrome.dashboard.top import look, page

    found = look(served.site)
    lines = [line.content() for line in served.site.index.snapshot().own]
    found["running_runs"] = [{**line, "live": None} for line in lines if line["name"] == HOSTILE]
    found["machine"] = {"cpu": 1.5, "cores": 2, "memory_used": 2**33, "memory_total": 2**34, "disk_free": 2**40}
    found["machine"] |= {"steps_per_second": 1e6, "gpu": None}
    screen = Console(width=80, record=True, force_terminal=True, file=io.StringIO())
    screen.print(page(found, 24))
    text = screen.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "<script>alert(1)</scrip" in text
