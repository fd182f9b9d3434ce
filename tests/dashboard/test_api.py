"""The operations of the API: the same as the commands', with ids in place of paths, thinned for people."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from tests.dashboard.conftest import HOSTILE
from tests.runs.test_old_runs import DQN, PORTFOLIO, PPO
from velodrome.dashboard.answers import Stretch
from velodrome.dashboard.api import ENDPOINTS
from velodrome.dashboard.curves import Kept, curve
from velodrome.runs.folder import RunFolder
from velodrome.runs.store.rows import EvaluationRow, RunRecord
from velodrome.runs.store.store import open_store, store_file
from velodrome.tune.study import Studies, Study
from velodrome.tune.trial import COMPLETE, FAILED, PRUNED, Outcome, Trial

# Runs


def test_the_list_is_filtered_sorted_and_paged(served):
    whole = served.get("/api/runs")
    assert whole["total"] == 12
    assert [line["id"] for line in whole["runs"][:2]] == ["0000000b", "0000000a"]
    assert whole["facets"]["status"] == {"finished": 11, "failed": 1}
    assert [line["id"] for line in served.get("/api/runs?status=failed")["runs"]] == ["00000005"]
    assert served.get("/api/runs?env=cage2")["total"] == 6
    assert served.get("/api/runs?q=RUN1&sort=name&order=asc")["runs"][0]["id"] == "00000001"
    page = served.get("/api/runs?sort=result&order=asc&offset=10&limit=5")
    assert [line["id"] for line in page["runs"]] == ["0000000a", "0000000b"]
    assert page["total"] == 12
    line = whole["runs"][0]
    about = {"split": "test", "metric": "return", "step": 1998, "label": "test", "checkpoint": None}
    assert line["result"] == {**about, "value": 0.11, "low": -0.1, "high": 0.2, "baseline": None}
    assert line["steps_per_second"] == 1100.0
    assert line["total_steps"] == 2000
    assert "folder" not in line


def test_a_run_that_was_added_or_changed_is_seen(serve):

    client = serve()
    store, index = client.site.store, client.site.index
    assert client.get("/api/runs")["total"] == 0

    def look() -> dict:
        index._looked = -math.inf  # a second has passed
        return client.get("/api/runs")["runs"][0]

    store.create_run(RunRecord("ab12cd34", "one", "/nowhere", "trading", "ppo", "running"))
    assert look()["status"] == "running"
    store.update_run("ab12cd34", status="finished", steps=10)
    assert (look()["status"], look()["steps"]) == ("finished", 10)
    store.add_evaluations("ab12cd34", [EvaluationRow(10, "test", "return", 0.5)])
    assert look()["result"]["value"] == 0.5
    store.add_evaluations("ab12cd34", [EvaluationRow(10, "test", "return", 0.25)])
    assert look()["result"]["value"] == 0.25


def test_a_store_that_another_file_has_replaced_is_the_one_that_is_shown(serve):
    client = serve()
    client.site.store.create_run(RunRecord("ab12cd34", "one", "/nowhere"))
    for file in client.site.folder.glob("velodrome.db*"):
        file.rename(file.with_name(f"before-{file.name}"))
    client.site.index._looked = -math.inf
    assert client.get("/api/runs")["total"] == 1  # as it was; nobody makes an empty one for looking
    assert not store_file(client.site.folder).exists()
    with open_store(client.site.folder) as store:
        store.create_run(RunRecord("00000002", "two", "/nowhere"))
    client.site.index._looked = -math.inf
    assert [line["name"] for line in client.get("/api/runs")["runs"]] == ["two"]


@pytest.mark.parametrize("identity", ["ffffffff", "0000", "latest", "../x", "0000000", "00000001x", "0" * 65])
def test_a_run_is_named_by_its_whole_id_and_nothing_else(served, identity):
    assert served.ask("GET", f"/api/runs/{identity}").status in (400, 404)


def test_a_run_says_all_that_is_known_of_it(looked_at):
    found = looked_at.get(f"/api/runs/{DQN}")
    assert (found["status"], found["algorithm"]) == ("finished", "dqn")
    assert found["config"]["algorithm"] == "dqn"
    changed = {one["key"]: one for one in found["differences"]}
    assert (changed["algorithm"]["value"], changed["algorithm"]["default"]) == ("dqn", "ppo")
    assert any(one["meaning"] for one in found["differences"])
    assert sum(found["phases"].values()) == pytest.approx(1.0)
    assert sorted(name for names in found["metric_groups"].values() for name in names) == sorted(found["metrics"])
    assert found["action_names"] == []  # of before they were noted
    assert found["evaluations"][0]["split"] == "test"
    assert {"evaluate", "promote"} <= set(found["actions"])
    assert found["has_log"]
    assert found["result"]["baseline"]["label"] == "buy and hold"
    assert looked_at.get("/api/runs?status=killed")["total"] == 1


def test_metrics_are_thinned_and_raw_where_one_looks_closely(served):
    target = "/api/metrics?runs=00000001,00000002&names=loss/policy"
    found = served.get(f"{target}&points=100")["curves"]
    assert [one["run"] for one in found] == ["00000001", "00000002"]
    first = found[0]
    assert first["total"] == 1000
    assert first["thinned"]
    assert len(first["x"]) <= 100
    assert first["x"][0] == 0
    assert first["x"][-1] == 1998
    assert max(first["y"]) == pytest.approx(2.0, abs=1e-3)  # peaks are kept
    close = served.get(f"{target}&points=100&from=100&to=200")["curves"][0]
    assert close["x"] == list(range(100, 201, 2))
    assert not close["thinned"]
    assert close["y"][0] == pytest.approx(math.sin(2.0) + 1, rel=1e-6)
    nothing = served.get("/api/metrics?runs=00000001&names=loss/value,no_such")["curves"]
    assert [one["y"] for one in nothing] == [[None], []]


def test_too_many_curves_are_refused(served):
    names = ",".join(f"m{number}" for number in range(65))
    found = served.ask("GET", f"/api/metrics?runs=00000001&names={names}")
    assert found.status == 422
    assert "64" in found.error


def test_everything_is_there_on_export(served):
    found = served.ask("GET", "/api/metrics.csv?runs=00000001,00000002&names=loss/policy")
    rows = found.body.decode().splitlines()
    assert rows[0] == "run,seed,step,name,value,time"
    assert len(rows) == 1 + 2 * 1000
    assert rows[1].startswith("00000001,1,0,loss/policy,1.0,")


def test_runs_are_compared(served):
    found = served.get("/api/compare?runs=00000001,00000002")
    assert {"key": "seed", "values": [1, 2]} in found["differences"]
    assert found["metrics"]["time/steps_per_second"] == [100.0, 200.0]
    texts = {name: rows[0]["text"] for name, rows in found["evaluations"].items() if rows[0]}
    assert texts["test/return"] == "+1.00% [−10.00% … +20.00%]"
    assert served.ask("GET", "/api/compare?runs=").status == 422


def test_thinning_keeps_gaps_ends_and_extremes():
    x = np.arange(50_000, dtype=np.int64)
    y = np.sin(x / 100.0)
    y[25_000], y[40_000] = 50.0, math.nan
    found = curve(x, y, Stretch(points=500))
    assert len(found["x"]) <= 500
    assert (found["x"][0], found["x"][-1]) == (0, 49_999)
    assert 50.0 in found["y"]
    assert None in found["y"]


def test_what_was_made_before_is_kept_up_to_a_size():
    kept, made = Kept(most=100), []

    def make(number: int):
        def now() -> bytes:
            made.append(number)
            return b"x" * 20

        return now

    for number in (*range(6), 0, 5):
        kept.get(number, make(number))
    assert made == [0, 1, 2, 3, 4, 5, 0]


# Evaluations and prices


def test_an_evaluation_has_its_curves_beside_baselines(looked_at):
    found = looked_at.get(f"/api/runs/{DQN}/evaluation?points=50")
    kinds = {one["name"]: one["kind"] for one in found["equity"]}
    assert kinds["agent"] == "agent"
    assert kinds["buy_and_hold"] == "baseline"
    assert len({tuple(one["x"]) for one in found["equity"]}) == 1  # they can be stacked
    assert len(found["equity"][0]["x"]) <= 50
    assert found["equity"][0]["thinned"]
    assert all(value <= 0.0 for one in found["drawdown"] for value in one["y"])
    row = next(row for row in found["rows"] if row["name"] == "return")
    assert row["text"].endswith("%")
    assert set(row["baselines"]) == {one["name"] for one in found["baselines"]}
    assert found["exposure"]
    assert found["trades"]["total"] >= len(found["trades"]["columns"]["side"])
    assert sum(one["share"] for one in found["actions"]) == pytest.approx(1.0)
    csv = looked_at.ask("GET", f"/api/runs/{DQN}/trades.csv")
    assert csv.body.decode().count("\n") == found["trades"]["total"] + 1
    assert looked_at.ask("GET", f"/api/runs/{DQN}/evaluation?key=no-such").status == 404
    assert looked_at.ask("GET", f"/api/runs/{PPO}/evaluation").status == 404


def test_a_portfolio_has_its_weights_over_time(looked_at):
    found = looked_at.get(f"/api/runs/{PORTFOLIO}/evaluation?points=100")
    assert len(found["weights"]) > 1
    assert len({tuple(one["x"]) for one in found["weights"]}) == 1
    assert not found["exposure"]
    assert max(abs(value) for one in found["weights"] for value in one["y"] if value is not None) <= 1.0 + 1e-6


def test_candles_come_in_every_size(looked_at):
    place = f"/api/runs/{DQN}/candles"
    found = looked_at.get(f"{place}?points=5000")
    assert found["timeframe"] == found["native"] == "1m"
    coarse = looked_at.get(f"{place}?timeframe=5m&to={found['time'][20]}")
    assert coarse["high"][0] == max(found["high"][:5])
    assert coarse["low"][1] == min(found["low"][5:10])
    few = looked_at.get(f"{place}?points=20")
    assert len(few["time"]) <= 20
    assert few["coarsened"]
    cut = looked_at.get(f"{place}?points=20&timeframe=1m")
    assert cut["cut"]
    assert cut["time"] == found["time"][-20:]
    stretch = f"from={found['time'][10]}&to={found['time'][19]}"
    assert looked_at.get(f"{place}?{stretch}")["time"] == found["time"][10:20]
    assert looked_at.ask("GET", f"{place}?timeframe=7m").status == 422
    assert looked_at.ask("GET", f"{place}?symbol=XYZ").status == 404
    assert looked_at.ask("GET", f"{place}?points=1000000").status == 422


def test_the_markets_of_runs_are_listed_and_checked(looked_at):
    markets = looked_at.get("/api/data")["markets"]
    assert all(market["built_in"] for market in markets)
    market = next(one for one in markets if one["env"] == "trading")
    found = looked_at.get(f"/api/data/{market['id']}")
    assert found["bars"] > 100
    assert found["instruments"][0]["missing"] == 0
    assert "built-in" in found["verdict"]
    assert looked_at.get(f"/api/data/{market['id']}/candles")["symbol"] == found["symbols"][0]
    assert looked_at.ask("GET", "/api/data/none").status == 404


def test_price_files_with_gaps_and_hostile_names_are_shown(serve, tmp_path, monkeypatch):

    client = serve()
    prices = tmp_path / "prices.csv"
    rows = [
        f"2020-01-01 {minute // 60:02d}:{minute % 60:02d}:00,{HOSTILE},1,2,0.5,1.5,10"
        for minute in range(120)
        if not 50 <= minute < 60
    ]
    prices.write_text("time,symbol,open,high,low,close,volume\n" + "\n".join(rows) + "\n")
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.trained import Run

    config = load_run_config("smoke", {"market.source": str(prices), "logging.folder": str(tmp_path / "runs")})
    run = Run.create(config, None)
    record = RunRecord(
        run.folder.id, "x", str(run.path), "trading", "ppo", "finished", config.content(), data_hash="feed"
    )
    client.site.store.create_run(record)
    client.site.index._looked = -math.inf
    found = client.get("/api/data/feed")
    (instrument,) = found["instruments"]
    assert instrument["symbol"] == HOSTILE
    assert instrument["missing"] == 10
    assert instrument["gaps"][0]["bars"] == 10
    assert any(one["kind"] == "gaps" for one in found["checks"])
    assert found["readable"]
    prices.unlink()
    assert client.ask("GET", "/api/data/feed/candles").status == 410


def test_a_log_is_read_in_parts(looked_at):
    whole = looked_at.get(f"/api/runs/{DQN}/log")
    assert whole["text"]
    assert whole["to"] == whole["size"]
    part = looked_at.get(f"/api/runs/{DQN}/log?after=5&limit=10")
    assert part["text"] == whole["text"][5:15]
    assert looked_at.get(f"/api/runs/{DQN}/log?after={whole['size']}")["text"] == ""
    assert looked_at.get(f"/api/runs/{DQN}/log?before=15&limit=10")["text"] == whole["text"][5:15]


# The queue


def test_a_training_is_submitted_paused_resumed_and_cancelled(serve):
    client = serve()
    made = client.post(
        "/api/jobs", {"preset": "smoke", "settings": {"steps": "1_000", "ppo.gamma": 0.9}, "priority": 3}
    )
    assert made.status == 201
    job = made.json["job"]
    assert made.json["command"] == "velodrome submit smoke steps=1_000 ppo.gamma=0.9"
    assert (job["status"], job["priority"], job["total_steps"]) == ("waiting", 3, 1000)
    assert job["actions"] == ["pause", "cancel", "priority"]
    place = f"/api/jobs/{job['id']}"
    assert not client.get(place)["has_run"]  # so that no page leads to one
    assert client.post(f"{place}/pause").json["job"]["status"] == "paused"
    again = client.post(f"{place}/pause")
    assert again.status == 409
    assert "is paused" in again.error
    assert client.post(f"{place}/resume").json["job"]["status"] == "waiting"
    assert client.post(f"{place}/priority", {"priority": -1}).json["job"]["priority"] == -1
    shown = client.get(place)
    assert [event["kind"] for event in shown["events"]][:2] == ["submitted", "pause asked"]
    assert shown["config"]["ppo.gamma"] == 0.9
    assert client.get("/api/jobs?status=waiting")["total"] == 1
    assert client.get("/api/overview")["queue"]["next"][0]["id"] == job["id"]
    assert client.post(f"{place}/cancel").json["job"]["status"] == "cancelled"
    assert client.post(f"{place}/cancel").status == 409
    assert client.get("/api/jobs")["counts"] == {"cancelled": 1}
    assert client.ask("POST", "/api/jobs/ffffffff/pause", {}).status == 404


def test_a_training_that_cannot_fit_is_refused(serve):
    found = serve().post("/api/jobs", {"preset": "smoke", "settings": {}, "memory": "900TB"})
    assert found.status in (409, 422)
    assert "memory" in found.error


# Settings


def test_fields_have_their_meaning_and_range(served):
    found = served.get("/api/config/fields")
    fields = {field["key"]: field for section in found["sections"] for field in section["fields"]}
    assert fields["steps"]["kind"] == "integer"
    assert fields["steps"]["low"] == 1
    assert fields["ppo.gamma"]["kind"] == "number"
    assert fields["algorithm"]["choices"] == found["algorithms"]
    assert fields["params.fee"]["unit"]
    assert all(field["meaning"] for field in fields.values())
    assert not {"logging.folder", "logging.store"} & fields.keys()
    assert {"demo", "trading"} <= {preset["name"] for preset in found["presets"]}
    assert served.ask("GET", "/api/config/fields?env=nothing").status == 422


def test_wrong_settings_are_told_in_the_words_of_the_command_line(served):
    from velodrome.errors import ConfigError
    from velodrome.runs.config.files import load_run_config

    chosen = {"ppo.gamma": 2.0, "steps": 0}
    with pytest.raises(ConfigError) as told:
        load_run_config("demo", chosen)
    found = served.post("/api/config/check", {"preset": "demo", "settings": chosen}).json
    assert not found["ok"]
    assert "\n".join(problem["message"] for problem in found["problems"]) == str(told.value)
    assert {problem["key"] for problem in found["problems"]} == {"ppo.gamma", "steps"}
    unknown = served.post("/api/config/check", {"preset": "demo", "settings": {"no_such": 1}}).json
    assert unknown["problems"][0]["key"] == "no_such"
    right = served.post("/api/config/check", {"preset": "demo", "settings": {"steps": "50000"}}).json
    assert right["ok"]
    assert right["command"] == "velodrome submit demo steps=50000"
    assert right["effective"]["steps"] == 50_000


# Studies


def make_study(folder, trials: int = 30) -> None:
    """Write the rows of a study, as if its trials had been trained."""
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.store.store import open_store
    from velodrome.tune.space import Dimension
    from velodrome.tune.trial import StudySettings

    config = load_run_config("smoke")
    dimensions = [Dimension("ppo.gamma", 0.5, 0.99), Dimension("ppo.clip", choices=(0.1, 0.2))]
    settings = StudySettings(seeds=1, test=False).model_dump()
    space = {"dimensions": [one.content() for one in dimensions]}
    study = Study("5tudy", "search", "me", config.content(), space, settings, "", trials, 1e9, 1e9 + 100)
    with open_store(folder) as store:
        studies = Studies(store)
        studies.create(study)
        found, outcomes = [], {}
        for number in range(trials):
            params = {"ppo.gamma": 0.5 + number / 100, "ppo.clip": (0.1, 0.2)[number % 2]}
            status = (COMPLETE, COMPLETE, PRUNED)[number % 3] if number else COMPLETE
            trial = Trial(
                number, params, status, number / 10, "hopeless" if status == PRUNED else "", 1e9, 1e9 + number
            )
            found.append(trial)
            figures = {"sharpe": number / 10, "seconds": 60.0 - number}
            outcomes[number, 0] = Outcome(number / 10, figures=figures, run=f"{number:08x}")
            outcomes[number, 1] = Outcome(-9.0, figures={"sharpe": -9.0, "seconds": 500.0}, run=f"a{number:07x}")
        outcomes[trials - 1, 4] = Outcome(-5.0, figures={"sharpe": -5.0, "deflated_sharpe": 0.1}, run="b0000000")
        found.append(Trial(trials, {"ppo.gamma": 0.6, "ppo.clip": 0.1}, FAILED, math.nan, "broke", 1e9, 1e9))
        studies.enter(study, found, outcomes)


def test_a_study_has_its_trials_by_column(serve, tmp_path):
    make_study(tmp_path / "runs")
    client = serve()
    (line,) = client.get("/api/studies")["studies"]
    assert line["name"] == "search"
    assert line["counts"]["pruned"] == 10
    assert line["best"]["number"] == 28
    found = client.get("/api/studies/search")
    assert [one["key"] for one in found["space"]] == ["ppo.gamma", "ppo.clip"]
    assert found["history"]["best"] == sorted(found["history"]["best"])
    front = [number for number, on in zip(found["pareto"]["number"], found["pareto"]["front"], strict=True) if on]
    assert 28 in front
    trials = client.get("/api/studies/search/trials")
    assert trials["total"] == 31
    assert trials["params"]["ppo.gamma"][3] == pytest.approx(0.53)
    assert trials["value"][-1] is None
    assert trials["reason"][-1] == "broke"
    assert {len(values) for values in (trials["number"], trials["cost"], trials["runs"])} == {31}
    # Of what the score is made of, and of nothing else: fresh seeds and the winner's test have figures of their own.
    assert trials["cost"][3] == 57.0
    assert trials["seeds"][3] == 1
    assert list(trials["figures"]) == ["sharpe"]
    assert trials["figures"]["sharpe"][29] == trials["value"][29] == 2.9
    tag = client.ask("GET", "/api/studies/search/trials").headers["etag"]
    assert client.ask("GET", "/api/studies/search/trials", headers={"if-none-match": tag}).status == 304
    assert client.get("/api/studies/5tudy")["name"] == "search"  # jobs name their study by its id
    assert client.ask("GET", "/api/studies/no").status == 404


# Champions, benchmarks, tasks


def test_without_champions_or_benchmarks_lists_are_empty(served):
    assert served.get("/api/champions") == {"champions": []}
    assert served.get("/api/benchmarks") == {"benchmarks": []}
    assert served.ask("GET", "/api/champions/none").status == 404
    assert served.ask("GET", "/api/champions/..").status in (400, 404)
    assert served.post("/api/champions/none/rollback").status == 404


def promote(folder, name: str, text: str, instead: int | None) -> None:
    """Let a name point to files that say no more than a page shows."""
    from velodrome.tune.champions.frozen import Champion
    from velodrome.tune.champions.registry import Registry

    place = folder / "champions" / "files" / text
    place.mkdir(parents=True)
    about = {"format": 1, "symbols": ["A"], "env": "trading", "traded": "1h", "members": [{}], "lineage": {"run": text}}
    (place / "champion.json").write_text(json.dumps(about))
    check = {"name": "its lead", "found": "1 %", "needed": "0 %", "passed": True}
    Registry(folder).add(name, Champion.open(place), instead, text, run=text, evaluation={"checks": [check]})


def test_a_champion_is_shown_and_rolled_back(serve, tmp_path):
    folder = tmp_path / "runs"
    promote(folder, "main", "aaaa1111", None)
    promote(folder, "main", "bbbb2222", 1)
    client = serve()
    (line,) = client.get("/api/champions")["champions"]
    assert (line["name"], line["number"], line["run"], line["paper"]) == ("main", 2, "bbbb2222", False)
    found = client.get("/api/champions/main")
    assert found["intact"]
    assert found["can_roll_back"]
    assert found["trades"] == {"symbols": ["A"], "env": "trading", "timeframe": "1h"}
    assert [one["number"] for one in found["promotions"]] == [2, 1]
    assert found["checks"][0]["passed"]
    back = client.post("/api/champions/main/rollback", {"to": None})
    assert back.json["champion"]["current"] == 1
    assert client.get("/api/champions/main")["history"][0]["kind"] == "rolled back"
    assert client.get("/api/overview")["counts"]["champions"] == 1
    again = client.post("/api/champions/main/rollback")
    assert again.status == 409
    assert "first" in again.error
    forward = client.post("/api/champions/main/rollback", {"to": 2})
    assert forward.json["champion"]["current"] == 2
    events = [event.kind for event in client.site.queue.events()]
    assert events.count("rolled back") == 2
    (folder / "champions" / "files" / "bbbb2222" / "champion.json").write_text("{}")
    client.site._held.clear()
    assert not client.get("/api/champions/main")["intact"]


def test_the_paper_loop_is_followed_as_its_log_grows(serve, tmp_path):
    folder = tmp_path / "runs"
    promote(folder, "main", "aaaa1111", None)
    log = folder / "paper" / "main" / "log.jsonl"
    log.parent.mkdir(parents=True)

    def bar(number: int) -> str:
        about = {"kind": "bar", "account": "A", "nanoseconds": number * 10**9, "equity": 100.0 + number}
        return json.dumps({**about, "units": {"A": 1.5}}) + "\n"

    log.write_text("".join(map(bar, range(3))) + "broken line\n{}\n[1]\n" + bar(3)[:20])
    client = serve()
    paper = client.get("/api/champions/main")["paper"]
    assert paper["equity"][0]["y"] == [100.0, 101.0, 102.0]
    assert not paper["running"]
    drift = {"kind": "drift", "bars": 4, "actions": 0, "missing": 0, "equity": 0.0}
    with log.open("a") as file:
        file.write(bar(3)[20:] + json.dumps(drift) + "\n")
    paper = client.get("/api/champions/main")["paper"]
    assert paper["bars"] == 4
    assert paper["drift"] == [{"time": 3.0, "bars": 4, "actions": 0, "missing": 0, "equity": 0.0}]
    assert paper["positions"] == [{"account": "A", "equity": 103.0, "text": "+1.5 A"}]


def test_a_password_in_the_address_of_the_store_is_not_shown(tmp_path, monkeypatch):
    from velodrome.dashboard import tasks

    monkeypatch.setattr(tasks, "PROGRAM", ["-c", "pass"])
    made = tasks.Tasks(tmp_path, "postgresql://me:hidden@host/runs", 5)
    assert made.promote(None, 0.0, study="search").command.endswith(f"--folder {tmp_path} --store …")
    made.close()


def test_a_task_is_a_command_and_says_how_it_ended(serve, monkeypatch):
    from velodrome.dashboard import tasks

    client = serve()
    monkeypatch.setattr(tasks, "PROGRAM", ["-c", 'import sys; print(\'{"reasons": ["too few"]}\'); sys.exit(1)'])
    made = client.site.tasks.promote("champ", 0.0, run="abcd1234")
    assert made.command.startswith("velodrome promote abcd1234 --json --name champ")
    assert client.site.tasks.get(made.id).status in ("waiting", "running")
    deadline = time.monotonic() + 60.0
    while client.get(f"/api/tasks/{made.id}")["ended"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    found = client.get(f"/api/tasks/{made.id}")
    assert (found["status"], found["message"]) == ("refused", "too few")
    assert client.post(f"/api/tasks/{made.id}/cancel").status == 409
    assert client.ask("GET", "/api/tasks/none").status == 404


# The description


def test_the_description_names_every_operation(served):
    found = served.get("/api/openapi.json")
    assert found["openapi"].startswith("3.1")
    declared = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert {(one.method, one.path) for one in ENDPOINTS} <= declared
    assert all(about["summary"] for methods in found["paths"].values() for about in methods.values())
    identities = [about["operationId"] for methods in found["paths"].values() for about in methods.values()]
    assert len(identities) == len(set(identities))
    assert all(one.handle.__doc__ for one in ENDPOINTS)


def test_an_empty_folder_says_what_to_do(serve):
    found = serve().get("/api/overview")
    assert found["empty"]
    assert found["first_command"] == "velodrome train demo"
    assert not found["service"]["running"]
    assert "velodrome serve" in found["service"]["command"]


def test_an_address_that_is_none_is_answered_in_words_of_whoever_asks(served):
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/foo/bar", "/runs/"):
        found = served.ask("GET", path, headers=browser)
        assert (found.status, found.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert b"<main" in found.body  # the pages' own script says what is there
        assert served.ask("GET", path).json["error"]["message"] == "there is nothing at this address."
    assert served.ask("GET", "/api/foo", headers=browser).json["error"]["status"] == 404


def test_nothing_is_asked_of_a_run_whose_folder_is_gone(looked_at):
    found = looked_at.get(f"/api/runs/{PPO}")
    folder = looked_at.site.line(PPO).folder
    assert found["has_folder"]
    folder.rename(folder.with_name("away"))
    try:
        gone = looked_at.get(f"/api/runs/{PPO}")
    finally:
        folder.with_name("away").rename(folder)
    assert not gone["has_folder"]
    assert {*found["actions"]} - {*gone["actions"]} == {"evaluate", "promote"}


def test_a_result_has_its_baseline_however_many_agents_it_is_of(tmp_path):
    from velodrome.dashboard.index import RunLine, _baseline

    lines = []
    for name in ("test-best-512", "test-best-12-agents-512", "test-best-ensemble-of-2-512", "test"):
        home = tmp_path / name / "evaluation"
        home.mkdir(parents=True)
        rows = [{"name": "return", "baselines": {"buy_and_hold": 0.25}}]
        (home / f"{name}.json").write_text(json.dumps({"rows": rows}))
        about = {"split": "test", "checkpoint": "best", "step": 512, "metric": "return"}
        told = ("a" * 8, name, home.parent, "trading", "ppo", 0, "finished", "finished", 1, 1, 0.0, 0.0, "", "", "test")
        lines.append(RunLine(*told, result=about))
    assert [_baseline(line)["value"] for line in lines] == [0.25] * 4


def test_a_run_of_the_service_shows_no_command_that_nobody_can_type(serve):
    client = serve()
    folder = RunFolder.create(client.site.folder, "one", command=["python", "-m", "velodrome.service.worker"])
    client.site.store.create_run(RunRecord(folder.id, "one", str(folder.path), "trading", "ppo", "finished"))
    client.site.index._looked = -math.inf
    assert client.get(f"/api/runs/{folder.id}")["command"] == ""
