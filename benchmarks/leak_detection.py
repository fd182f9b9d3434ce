"""How many planted leaks the leak check finds, and how many honest features it refuses: the table of docs/leaks.md.

    python -m benchmarks.leak_detection [ROWS [SYMBOLS [SECONDS]]] [--only TEXT] [--json FILE] [--processes N]

From the root of the repository. Each feature is checked by itself in a process with one thread; as many run at once as
there are cores. Seconds are those of the processor, so that other work on the machine does not shorten the check. Every
finished feature is written to the file, and a second call checks only those that are missing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tests.tables.honest import HONEST
from tests.tables.planted import LEAKS, Planted, planted_bars
from velodrome.bars.frame import Bars
from velodrome.bench.machine import machine_stamp
from velodrome.tables import check_leaks
from velodrome.tables.leaks import functions
from velodrome.writing import replace_text

FEATURES = {**HONEST, **LEAKS}  # honest ones first: they take longest, and none is left running alone at the end
KINDS = ("on all rows", "on 1 % of the rows or more", "on fewer rows", "honest features")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
ALIKE = ("rows", "symbols", "leak_seconds", "git_commit")  # in all results of one file
WINDOW = 4

_bars: Bars  # of a process, made once


def kind_of(name: str, planted: Planted) -> str:
    """The line of the table that a feature belongs to."""
    if name in HONEST:
        return "honest features"
    if planted.share == 1.0:
        return "on all rows"
    return "on 1 % of the rows or more" if planted.share >= 0.01 else "on fewer rows"


def prepare(rows: int, symbols: int) -> None:
    """Make the bars of a process, and a check that does not count, for what is imported and compiled once."""
    global _bars
    functions.clock = time.process_time  # type: ignore[assignment]
    check_leaks(planted_bars(300, 1), [("close", lambda series: series.close)], WINDOW, leak_seconds=1.0)
    _bars = planted_bars(rows, symbols)


def run_feature(name: str, leak_seconds: float) -> dict[str, Any]:
    """Check one feature, and say what was found and whether that is right."""
    planted = FEATURES[name]
    function, begin = planted.make(_bars), time.process_time()
    report = check_leaks(_bars, [(name, function)], WINDOW, leak_seconds=leak_seconds)
    return {
        "kind": kind_of(name, planted),
        "share": planted.share,
        "right": report.passed == (name in HONEST),
        "seconds": round(time.process_time() - begin, 2),
        "found": [f"{leak.kind} {leak.symbol} {leak.row}: {leak.detail}" for leak in report.findings[:1]],
        "coverage": [*map(str, report.coverage)],
        "notes": report.notes,
    }


def read_results(path: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return what the file holds, if it was measured alike, or the beginning of a new one."""
    stamp = machine_stamp()
    fresh = {**options, "git_commit": stamp["git_commit"], "machine": stamp, "results": {}}
    if path is None or not path.exists():
        return fresh
    found = json.loads(path.read_text(encoding="utf-8"))
    for key in ALIKE:
        if found.get(key) != fresh[key]:
            raise SystemExit(f"{path} has {key} {found.get(key)}, this call {fresh[key]}: name another file.")
    return found


def run_missing(names: list[str], found: dict[str, Any], path: Path | None, processes: int) -> list[str]:
    """Check the features that have no result yet, write each when it is done, and return those that failed."""
    missing, failed = [name for name in names if name not in found["results"]], []
    print(f"{len(names) - len(missing)} of {len(names)} features are there; {processes} at once", flush=True)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, fresh, prepare, (found["rows"], found["symbols"])) as pool:
        running = {pool.submit(run_feature, name, found["leak_seconds"]): name for name in missing}
        for done in as_completed(running):
            name = running[done]
            try:
                found["results"][name] = result = done.result()
            except BrokenProcessPool:
                raise SystemExit("A process ended (of memory?): start again with fewer --processes.") from None
            except Exception as error:  # of a user's function or of the check: the others go on
                failed.append(f"{name}: {type(error).__name__}: {error}")
                print(f"FAILED {failed[-1]}", file=sys.stderr, flush=True)
                continue
            if path:
                replace_text(path, json.dumps(found, indent=1, ensure_ascii=False))
            told = f"{result['kind']}: {name}, {result['seconds']:.1f} s {' '.join(result['found'])}"
            print(f"{'' if result['right'] else 'WRONG '}{told}", flush=True)
    return failed


def table(results: list[dict[str, Any]]) -> str:
    """Return the Markdown table."""
    lines = ["| planted | features | found | median | slowest |", "|---|---|---|---|---|"]
    for kind in KINDS:
        own = [result for result in results if result["kind"] == kind]
        found = sum(result["right"] != (kind == "honest features") for result in own)
        times = [float(result["seconds"]) for result in own]
        if own:
            lines.append(f"| {kind} | {len(own)} | {found} | {statistics.median(times):.1f} s | {max(times):.1f} s |")
    return "\n".join(lines)


def main() -> None:
    """Print one line for each feature as it comes, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="?", default=100_000)
    parser.add_argument("symbols", type=int, nargs="?", default=6)
    parser.add_argument("seconds", type=float, nargs="?", default=20.0)
    parser.add_argument("--only", default="", help="features whose line of the table or name has this text")
    parser.add_argument("--json", type=Path, help="file of results, continued if it exists")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="features at once")
    given = parser.parse_args()
    os.environ.update(dict.fromkeys(THREADS, "1"))  # of the processes, which import NumPy and Polars after this
    names = [name for name, planted in FEATURES.items() if given.only in kind_of(name, planted) or given.only in name]
    options = {"rows": given.rows, "symbols": given.symbols, "leak_seconds": given.seconds}
    found = read_results(given.json, options)
    failed = run_missing(names, found, given.json, given.processes)
    machine = found["machine"]
    print(f"\n{machine['cpu']}, {machine['cores']} cores, commit {found['git_commit']}")
    print(f"\n{table([found['results'][name] for name in names if name in found['results']])}")
    if failed:
        raise SystemExit("\n".join(["", f"{len(failed)} features have no result:", *failed]))


if __name__ == "__main__":
    main()
