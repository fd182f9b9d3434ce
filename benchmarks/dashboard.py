"""What the dashboard costs with many runs: answers under 20 clients, memory, curves, and what a training loses.

python benchmarks/dashboard.py make FOLDER       writes a store: 1,000 runs, 10 million rows of metrics, 5,000 trials
python benchmarks/dashboard.py load FOLDER       20 clients ask for all that pages ask for; 12 streams are open
python benchmarks/dashboard.py overlay FOLDER    200 curves of 50,000 points in one answer, and again
python benchmarks/dashboard.py training          a training beside a dashboard that is watched, and stopped in turns

FOLDER must not be that of your own runs. All of them write a table; --json FILE keeps the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from velodrome.dashboard.login import VARIABLE
from velodrome.runs.config.files import load_run_config
from velodrome.runs.store.outlines import ROWS
from velodrome.runs.store.rows import EvaluationRow, MetricRow, RunRecord
from velodrome.runs.store.schema import tables
from velodrome.runs.store.sinks import metrics_frame
from velodrome.runs.store.store import open_store
from velodrome.runs.versions import git_commit, machine
from velodrome.tune.space import Dimension
from velodrome.tune.study import Study
from velodrome.tune.trial import COMPLETE, PRUNED, StudySettings
from velodrome.writing import replace_text

TOKEN = "benchmark-token-0123456789-0123456789-01"
RUNS, NAMES, STEPS = 1000, 20, 500  # 10 million rows
LONG_RUNS, LONG_STEPS = 200, 50_000
TRIALS, FIELDS = 5000, 200
CLIENTS, SECONDS, STREAMS = 20, 20.0, 12
PAUSE = 0.2  # seconds that a client looks at an answer


# Data


def make(folder: Path, long_runs: int) -> None:
    """Write runs with their metrics, and a study with its trials, as the service would have."""
    folder.mkdir(parents=True, exist_ok=True)
    config = load_run_config("demo").content()
    draw = np.random.default_rng(0)
    with open_store(folder) as store:
        for number in range(RUNS):
            identity, now = f"{number:08x}", 1.7e9 + number
            record = RunRecord(
                identity, f"run{number}", str(folder / identity), "trading", "ppo", "finished", config,
                data_hash=f"{number % 7:064x}", seed=number, steps=STEPS, created=now, updated=now + 60,
            )  # fmt: skip
            store.create_run(record)
            store.add_evaluations(identity, [EvaluationRow(STEPS, "test", "return", draw.normal() / 10, -0.1, 0.1)])
            names = ["time/steps_per_second", *(f"metric/{place}" for place in range(NAMES - 1))]
            _add_short(store, identity, names, STEPS)
        for number in range(long_runs):
            identity = f"a{number:07x}"
            store.create_run(
                RunRecord(
                    identity,
                    f"long{number}",
                    str(folder / identity),
                    "trading",
                    "ppo",
                    "finished",
                    config,
                    steps=LONG_STEPS,
                )
            )
            _add(store, identity, ["episode/return"], LONG_STEPS, draw)
        _add_study(store, config, draw)


def _add_short(store: Any, run: str, names: list[str], steps: int) -> None:
    """Let SQLite itself make rows of metrics, too few of a name for an outline: that takes a tenth of the time."""
    assert steps < ROWS, steps
    statement = (
        "WITH RECURSIVE counted(step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM counted WHERE step < ?) "
        "INSERT INTO metrics (run, name, step, value, time) "
        "SELECT ?, ?, step, step * 0.001 + random() / 9.3e18, 1.7e9 + step FROM counted"
    )

    def add(connection: Any) -> None:
        for name in names:
            connection.exec_driver_sql(statement, (steps - 1, run, name))

    store.write(add)


def _add(store: Any, run: str, names: list[str], steps: int, draw: np.random.Generator) -> None:
    """Write metrics as a training does, through the store."""
    trend = np.arange(steps) * 0.001
    for name in names:
        values = (trend + draw.uniform(-1.0, 1.0, steps)).tolist()
        store.add_metrics(run, [MetricRow(step, name, value, 1.7e9 + step) for step, value in enumerate(values)])


def _add_study(store: Any, config: dict[str, Any], draw: np.random.Generator) -> None:
    known = tables()
    dimensions = [Dimension(f"params.field{place}", 0.0, 1.0).content() for place in range(FIELDS)]
    settings = StudySettings(seeds=1, test=False).model_dump()
    study = Study(
        "5tudy", "many", "me", config, {"dimensions": dimensions}, settings, "", TRIALS, 1.7e9, 1.7e9 + TRIALS
    )
    store.write(lambda connection: connection.execute(known.studies.insert(), {**study.__dict__, "status": "finished"}))
    values = draw.normal(size=(TRIALS, FIELDS + 1))
    trials, outcomes = [], []
    for number in range(TRIALS):
        params = {f"params.field{place}": float(values[number, place]) for place in range(FIELDS)}
        score = float(values[number, FIELDS])
        status = COMPLETE if number % 3 else PRUNED
        about = {"study": study.id, "number": number, "status": status, "params": params, "value": score, "reason": ""}
        trials.append({**about, "created": 1.7e9 + number, "updated": 1.7e9 + number + 30})
        outcome = {"study": study.id, "trial": number, "step": 0, "run": "", "value": score, "kind": "finished"}
        outcomes.append(
            {**outcome, "reason": "", "figures": {"sharpe": score, "seconds": float(abs(values[number, 0]))}}
        )
    store.write(lambda connection: connection.execute(known.trials.insert(), trials))
    store.write(lambda connection: connection.execute(known.outcomes.insert(), outcomes))


# A server


@contextlib.contextmanager
def server(folder: Path, *words: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start `velodrome serve`; yield its address and its web process."""
    command = [sys.executable, "-m", "velodrome", "serve", "--no-open", "--port", "0", "--folder", str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, VARIABLE: TOKEN})
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "dashboard:" in line)
        address = line.split()[1].partition("?")[0]
        threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                ask(address, "api/whoami")
                break
            time.sleep(0.1)
        yield address, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def ask(address: str, path: str, known: dict[str, str] | None = None) -> bytes:
    """Return an answer of a server; nothing if it is the one that is known already, as browsers ask."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if known is not None and path in known:
        headers["If-None-Match"] = known[path]
    request = urllib.request.Request(address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if known is not None:
                known[path] = answer.headers["ETag"]
            return answer.read()
    except urllib.error.HTTPError as error:
        if error.code != 304:
            raise
        return b""


def watch(address: str, stop: threading.Event) -> None:
    """Keep a stream of events open."""
    request = urllib.request.Request(f"{address}api/events", headers={"Authorization": f"Bearer {TOKEN}"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
        while not stop.is_set() and answer.readline():
            continue


# Measuring


def load(folder: Path) -> dict[str, Any]:
    """Let clients ask for what pages ask for, and say how long answers took and how much memory the server has."""
    with server(folder) as (address, process):
        lines = json.loads(ask(address, "api/runs?limit=1000&sort=steps&order=asc"))["runs"]
        runs = [line["id"] for line in lines if not line["name"].startswith("long")]
        stop = threading.Event()
        for _ in range(STREAMS):
            threading.Thread(target=watch, args=(address, stop), daemon=True).start()
        paths = {
            "overview": lambda draw: "api/overview",
            "runs": lambda draw: f"api/runs?limit=100&offset={draw.integers(0, 9) * 100}",
            "runs, searched": lambda draw: f"api/runs?q=run{draw.integers(0, 99)}&sort=result",
            "run": lambda draw: f"api/runs/{draw.choice(runs)}",
            "metrics of 8 runs": lambda draw: (
                "api/metrics?names=metric/1&points=1000&runs=" + ",".join(draw.choice(runs, 8, replace=False))
            ),
            "compare 8 runs": lambda draw: "api/compare?runs=" + ",".join(draw.choice(runs, 8, replace=False)),
            "jobs": lambda draw: "api/jobs",
            "studies": lambda draw: "api/studies",
            "study": lambda draw: "api/studies/many",
            "trials": lambda draw: "api/studies/many/trials",
            "markets": lambda draw: "api/data",
            "champions": lambda draw: "api/champions",
            "fields": lambda draw: "api/config/fields",
        }
        first = {name: _timed(address, path(np.random.default_rng(0))) for name, path in paths.items()}
        taken: dict[str, list[float]] = {name: [] for name in paths}
        peak = [0]

        def client(number: int) -> None:
            draw, known = np.random.default_rng(number), dict[str, str]()
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                name = str(draw.choice(list(paths)))
                taken[name].append(_timed(address, paths[name](draw), known))
                peak[0] = max(peak[0], process.memory_info().rss)
                time.sleep(PAUSE)

        before = sum(process.cpu_times()[:2])
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))
        worked = (sum(process.cpu_times()[:2]) - before) / sum(map(len, taken.values()))
        busy = _idle(process, 5.0)
        stop.set()
    every = [seconds for own in taken.values() for seconds in own]
    rows = {name: {"first": first[name], **_percentiles(own)} for name, own in taken.items() if own}
    found = {"cpu_seconds_an_answer": worked, "memory": peak[0], "idle_cores": busy}
    return {"answers": rows, "all": _percentiles(every), **found}


def _idle(process: psutil.Process, seconds: float) -> float:
    """Return the cores that the web process takes with open streams and no questions."""
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / seconds


def _timed(address: str, path: str, known: dict[str, str] | None = None) -> float:
    begun = time.perf_counter()
    ask(address, path, known)
    return time.perf_counter() - begun


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "median": ordered[len(ordered) // 2],
        "p95": ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)],
        "largest": ordered[-1],
    }


def overlay(folder: Path) -> dict[str, Any]:
    """Ask for 200 curves of 50,000 points at once: never seen before, again, and of a server that was started anew."""
    runs = ",".join(f"a{number:07x}" for number in range(LONG_RUNS))
    path = f"api/metrics?names=episode/return&points=500&runs={runs}"
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        with server(folder) as (address, process):
            ask(address, "api/runs?limit=1")
            before = sum(process.cpu_times()[:2])
            first = _timed(address, path)
            cores = sum(process.cpu_times()[:2]) - before
            again = _timed(address, path)
        with server(folder) as (address, process):
            ask(address, "api/runs?limit=1")
            anew = _timed(address, path)
            size = len(ask(address, path))
            close = "api/metrics?names=episode/return&points=1000&runs=a0000000&from=20000&to=20800"
            found = {"zoom": _timed(address, close), "memory": process.memory_info().rss}
    return {"first": first, "first_cpu": cores, "again": again, "after_restart": anew, "bytes": size, **found}


def training(pairs: int, seconds: float) -> dict[str, Any]:
    """Let one training go on, and stop and wake the dashboard beside it in turns; compare neighbouring spans.

    Whatever else the machine does is in both spans of a pair. A server that is stopped (SIGSTOP) takes nothing.
    """
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place, "runs")
        address, process = stack.enter_context(server(folder, "--cores", "1"))
        _settle(process)
        stop, seen = threading.Event(), threading.Event()
        stack.callback(stop.set)
        stack.callback(_switch, process, True)  # before it is asked to end
        threading.Thread(target=watch, args=(address, stop), daemon=True).start()
        threading.Thread(target=_look, args=(address, stop, seen), daemon=True).start()
        trained, learner = stack.enter_context(_trained(folder))
        spans: list[dict[str, Any]] = []
        spent = 0.0
        for number in range(pairs):
            for how in ("off", "on") if number % 2 == 0 else ("on", "off"):
                _switch(process, how == "on")
                (seen.set if how == "on" else seen.clear)()
                time.sleep(0.5)
                begun, before, worked = time.time(), _cpu(process), _cpu(learner)
                time.sleep(seconds)
                spans.append({"how": how, "begin": begun, "end": time.time(), "cpu": _cpu(learner) - worked})
                spent += _cpu(process) - before
        rows = metrics_frame(trained)
    rows = rows.filter(rows["name"] == "time/steps_per_second")
    steps, moments = rows["step"].to_numpy(), rows["time"].to_numpy()
    speeds: dict[str, list[float]] = {"off": [], "on": []}
    work: dict[str, list[float]] = {"off": [], "on": []}  # steps for a second of the training's processor time
    for span in spans:
        inside = np.flatnonzero((moments >= span["begin"]) & (moments <= span["end"]))
        first, last = inside[0], inside[-1]
        speed = (steps[last] - steps[first]) / (moments[last] - moments[first])
        speeds[span["how"]].append(speed)
        work[span["how"]].append(speed * (span["end"] - span["begin"]) / span["cpu"])
    return {
        "pairs": pairs,
        "seconds": seconds,
        "steps_per_second": {how: float(np.median(own)) for how, own in speeds.items()},
        "change": _paired(speeds),
        "change_for_a_second_of_processor_time": _paired(work),
        "web_cores": spent / (pairs * seconds),  # with the scheduler
    }


def _paired(found: dict[str, list[float]]) -> dict[str, Any]:
    """Return by how much spans with the dashboard differ from their neighbours without, and how sure that is."""
    change = np.array(found["on"]) / np.array(found["off"]) - 1.0
    draws = np.random.default_rng(0).choice(change, (10_000, len(change))).mean(1)
    ends = np.quantile(draws, [0.025, 0.975]).tolist()
    middle = float(np.median(change))
    return {"mean": float(change.mean()), "interval": ends, "median": middle, "each": change.round(4).tolist()}


@contextlib.contextmanager
def _trained(folder: Path) -> Iterator[tuple[Path, psutil.Process]]:
    """Train until that is left; yield the file of its metrics and its process, once it learns at its own pace."""
    words = ["train", "demo", "steps=1_000_000_000", "evaluation.final_split=null", "evaluation.split=null"]
    command = [sys.executable, "-m", "velodrome", *words, f"logging.folder={folder}", "--no-evaluation"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120.0
        while not (found := list(folder.glob("*/metrics.jsonl"))) or found[0].stat().st_size < 1 << 17:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the training does not begin (exit code {process.poll()})")
            time.sleep(0.5)
        yield found[0], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _switch(process: psutil.Process, on: bool) -> None:
    """Stop a server and its scheduler, or let them go on."""
    for one in _family(process):
        with contextlib.suppress(psutil.Error):
            (one.resume if on else one.suspend)()


def _cpu(process: psutil.Process) -> float:
    """Return the processor time of a process and its children so far."""
    return sum(sum(one.cpu_times()[:2]) for one in _family(process))


def _settle(process: psutil.Process, seconds: float = 120.0) -> None:
    """Wait until a server and its scheduler have imported what they will need, which takes a while once."""
    until, before = time.monotonic() + seconds, -1.0
    while time.monotonic() < until:
        spent = 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                spent += sum(one.cpu_times()[:2])
        if spent - before < 0.2:
            return
        before = spent
        time.sleep(3.0)


def _look(address: str, stop: threading.Event, seen: threading.Event) -> None:
    """Ask for what an open page asks for while a training runs, as long as it is seen."""
    while not stop.wait(2.0):
        with contextlib.suppress(OSError):
            if not seen.is_set():
                continue
            ask(address, "api/overview")
            newest = json.loads(ask(address, "api/runs?limit=1"))["runs"]
            if newest:
                ask(address, f"api/metrics?names=episode/return,loss/policy,loss/value&runs={newest[0]['id']}")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "load", "overlay", "training"])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("dashboard-runs"))
    parser.add_argument("--pairs", type=int, default=24, help="of spans of a training with and without the dashboard")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each span")
    parser.add_argument("--long-runs", type=int, default=LONG_RUNS, help="runs of 50,000 steps that make writes")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.what == "make":
        make(asked.folder, asked.long_runs)
        return
    work = {"load": lambda: load(asked.folder), "overlay": lambda: overlay(asked.folder)}
    found = work.get(asked.what, lambda: training(asked.pairs, asked.seconds))()
    found |= {"what": asked.what, "machine": machine(), "commit": git_commit(Path.cwd()), "load": os.getloadavg()}
    print(json.dumps(found, indent=1))
    if asked.json:
        replace_text(asked.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
