"""A whole study, unattended, that a second process joins when half of its trials are over.

    python benchmarks/study_100.py --out benchmarks/results/study-2cores.json
    python benchmarks/study_100.py --trials 6 -- --startup 2 --confirm 1 --final-seeds 2      # a short try

Both processes are the command `velodrome tune`, each with leave to train on all cores of the machine, which they share.
Checked: exactly as many trials as were wanted, each over, no training that counts done twice, both processes at work,
and a best trial that beats the configuration on the validation split. The exit code is 1 where one of these fails.
Trials are compared by the seeds that chose them, and, of those that were looked at again, by fresh ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from velodrome.runs.store.store import open_store, store_file
from velodrome.runs.versions import git_commit, machine
from velodrome.service.queue import Queue
from velodrome.tune.study import Studies, loaded
from velodrome.tune.trial import PRUNED, Trial
from velodrome.writing import replace_text

STUDY = "hundred"
LOOK_SECONDS = 1.0
PATIENCE = 120.0  # seconds that the first process may take to enter the study


def begun(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Begin a process of the study; errors and warnings are printed, the study at its end is not."""
    command = [sys.executable, "-m", "velodrome", "tune", *words, "--study", STUDY, "--folder", str(folder), "--json"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def carried_out(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Carry out the study, and return what that took."""
    began, load = time.monotonic(), os.getloadavg()[0]
    workers = ("--workers", str(given.workers))
    processes = [begun(folder, given.config, "--trials", str(given.trials), *workers, *given.words)]
    joined_at, joined_after, searched_at = math.nan, 0, math.nan
    try:
        while any(process.poll() is None for process in processes):
            time.sleep(LOOK_SECONDS)
            seconds = time.monotonic() - began
            counts = counted(folder)
            over = sum(counts.values()) - counts["running"]
            if not counts and seconds > PATIENCE:
                processes[0].terminate()
            if len(processes) == 1 and over >= given.trials // 2:
                joined_at, joined_after = seconds, over
                processes.append(begun(folder, *workers))
            if math.isnan(searched_at) and over >= given.trials:
                searched_at = seconds
    finally:  # who is interrupted leaves nothing behind that goes on
        for process in processes:
            process.send_signal(signal.SIGINT)
            process.wait()
    codes = [process.returncode for process in processes]
    about = {"exit_codes": codes, "joined_at": joined_at, "joined_after": joined_after, "load_before": load}
    return {"seconds": time.monotonic() - began, "seconds_of_search": searched_at, **about}


def counted(folder: Path) -> Counter[str]:
    """Return how many trials there are by status; none while there is no study."""
    if not store_file(folder).exists():
        return Counter()
    with open_store(folder) as store:
        study = Studies(store).find(STUDY)
        return Counter() if study is None else Counter(Studies(store).counts(study))


def found_in(folder: Path) -> dict[str, Any]:
    """Return what the study came to."""
    with open_store(folder) as store:
        studies, queue = Studies(store), Queue(store)
        study = studies.get(STUDY)
        course = loaded(studies, study)
        jobs = queue.of_study(study.id)
        # More than its row of a job: which process began it, and how often it has ended well.
        ends = Counter(event.job for event in queue.events(kind="ended") if event.data.get("end") == "finished")
        begun_by = Counter(queue.job(identity).service for identity in jobs)
    preset, best, winner = course.trials[0], course.best, course.winner
    steps = range(course.settings.steps)

    def told(name: str, trial: Trial | None) -> dict[str, Any] | None:
        if trial is None:
            return None
        values = {step: one.value for step, one in sorted(trial.outcomes.items()) if step < course.settings.final_step}
        fresh = course.winner_mean if name == "winner" else course.fresh_mean(trial)
        means = {"mean": trial.mean(steps), "fresh": fresh}
        return {"name": name, "trial": trial.number, "params": trial.params, **means, "values": values}

    return {
        "status": study.status,
        "score": course.settings.score,
        "trials": len(course.trials),
        "over": sum(trial.is_over for trial in course.trials),
        "counts": dict(Counter(trial.status for trial in course.trials)),
        "pruned_after": dict(Counter(len(one.outcomes) for one in course.trials if one.status == PRUNED)),
        "trainings": sum(len(trial.outcomes) for trial in course.trials),
        "twice": sorted(job for job, count in ends.items() if count > 1),
        "trainings_by_process": dict(begun_by),
        # Rows of one table, as pages of results show them.
        "compared": {"preset": told("preset", preset), "best": told("best", best), "winner": told("winner", winner)},
        "space": {one.key: one.told() for one in course.space},
    }


def failures(found: dict[str, Any], took: dict[str, Any], wanted: int) -> list[str]:
    """Return what is not as it should be."""
    preset, best, winner = found["compared"].values()
    checks = {
        f"the study is {found['status']}": found["status"] == "finished",
        f"exit codes {took['exit_codes']}": took["exit_codes"] == [0, 0],
        f"{found['trials']} trials, {found['over']} over": found["trials"] == found["over"] == wanted,
        f"trainings that ended twice: {found['twice']}": not found["twice"],
        f"trainings by process {found['trainings_by_process']}": len(found["trainings_by_process"]) == 2,
        "no best trial above the preset": best is not None and best["mean"] > preset["mean"],
        "no winner above the preset on fresh seeds": winner is not None and winner["fresh"] > preset["fresh"],
    }
    return [told for told, holds in checks.items() if not holds]


def main() -> None:
    """Carry it out, print what it took and found, and check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="demo")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="that is made for the runs and stays; a temporary one if none")
    parser.add_argument("--out", type=Path)
    parser.add_argument("words", nargs="*", help="further words for velodrome tune, after --")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary) / "runs"
        took = carried_out(folder, given)
        found = found_in(folder)
    print(
        f"{found['over']} of {given.trials} trials of {given.config} in {took['seconds'] / 60:.1f} minutes "
        f"({took['seconds_of_search'] / 60:.1f} of them the search: "
        f"{3600 * found['over'] / took['seconds_of_search']:,.0f} trials an hour)"
    )
    print(f"{found['trainings']} trainings by process {found['trainings_by_process']}")
    print(f"{found['counts']}, pruned after so many trainings: {found['pruned_after']}")
    print(f"the second process joined after {took['joined_after']} trials; exit codes {took['exit_codes']}")
    for name, one in found["compared"].items():
        if one is not None:
            told = f"{found['score']} {one['mean']:.4f}, with fresh seeds {one['fresh']:.4f}"
            print(f"{name:>7}: trial {one['trial']}, {told}; {one['params']}")
    if given.out is not None:
        about = {"command": " ".join(sys.argv), "commit": git_commit(Path(__file__).parent), "machine": machine()}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(given.out, json.dumps({**about, **took, **found}, indent=1) + "\n")
    if problems := failures(found, took, given.trials):
        sys.exit("\n".join(f"failed: {problem}" for problem in problems))


if __name__ == "__main__":
    main()
