"""Several trainings at once under one budget: submit them, follow them, and look at what they learnt.

From the command line: `velodrome submit demo seed=1`, `velodrome serve --no-dashboard`, `velodrome jobs watch`.
"""

from __future__ import annotations

import argparse

import velodrome as vd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="runs")
    parser.add_argument("--trainings", type=int, default=4)
    parser.add_argument("--config", default="demo")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--no-evaluation", action="store_true", help="leave out the evaluation and the report of each")
    chosen = parser.parse_args()
    # Two cores for all of them together: two trainings at a time, the others wait for their turn.
    with vd.AgentTrainingService(chosen.folder, cores=2) as service:
        about = {"steps": chosen.steps, "evaluate": not chosen.no_evaluation}
        jobs = [service.submit(chosen.config, seed=seed, **about) for seed in range(chosen.trainings)]
        service.set_priority(jobs[-1], 1)  # begins before the others that still wait
        for job in service.watch(jobs):
            print(f"{job.id}: {job.status}, {job.steps:,} of {job.total_steps:,} steps {job.message}")
        for job in service.wait(jobs):
            result = service.run_of(job).metrics.filter(name="episode/return")["value"]
            print(f"seed {job.config['seed']}: {job.ended} at attempt {job.attempt}, last return {result[-1]:+.4f}")


if __name__ == "__main__":
    main()
