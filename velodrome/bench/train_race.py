"""How long it takes to learn: the time to a fraction of the known optimum, out of sample."""

from __future__ import annotations

import time
from contextlib import ExitStack

from velodrome.bench.progress import Turns
from velodrome.bench.train_contenders import TrainContender, Trainer
from velodrome.bench.train_options import TrainBenchmarkOptions
from velodrome.bench.train_problem import OutOfSample, TrainProblem
from velodrome.bench.train_report import Race, RacePoint, RaceRun


def new_race(problem: TrainProblem, options: TrainBenchmarkOptions, judge: OutOfSample) -> Race:
    """Return a race that has not begun."""
    return Race(
        fraction=options.fraction, limit_seconds=options.race_seconds, optimum=problem.optimum,
        best_rule_share=judge.best_share(),
    )  # fmt: skip


def run_race(
    race: Race, racers: list[TrainContender], options: TrainBenchmarkOptions, judge: OutOfSample, say: Turns
) -> None:  # fmt: skip
    """Fill the race, seed by seed: who has trained least goes next, so that other load falls on all alike.

    The clock of a contender runs while it trains; getting ready and evaluations are not counted.
    """
    for seed in range(options.seed, options.seed + options.race_seeds):
        with ExitStack() as stack:
            going: list[tuple[RaceRun, Trainer]] = []
            for contender in racers:
                trainer = contender.ready(seed)
                stack.callback(trainer.close)
                run = RaceRun(peer=contender.peer, label=contender.label, num_envs=contender.num_envs, seed=seed)
                race.runs.append(run)
                going.append((run, trainer))
                evaluate(run, trainer, judge)
            while going:
                run, trainer = min(going, key=lambda pair: pair[0].seconds)
                train(run, trainer, options)
                share = evaluate(run, trainer, judge)
                run.reached = share >= race.fraction
                ended = run.reached or run.seconds >= race.limit_seconds
                say(f"{run.label}: {share:.0%} of the optimum after {run.seconds:.1f} s", int(ended))
                if ended:
                    going.remove((run, trainer))


def train(run: RaceRun, trainer: Trainer, options: TrainBenchmarkOptions) -> None:
    """Train until the next evaluation or until the time is up, on the clock."""
    for _ in range(options.evaluate_every):
        began = time.perf_counter()
        trainer.iterate()
        run.seconds += time.perf_counter() - began
        run.steps += options.batch
        if run.seconds >= options.race_seconds:
            return


def evaluate(run: RaceRun, trainer: Trainer, judge: OutOfSample) -> float:
    """Write down where a policy stands; return its share of the optimum."""
    share = judge.share(trainer.act)
    run.points.append(RacePoint(seconds=run.seconds, steps=run.steps, share=share))
    return share
