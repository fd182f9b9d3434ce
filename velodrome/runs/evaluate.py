"""The evaluation of a run on data it never saw: `vd.evaluate` and what follows a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError
from velodrome.runs import setup
from velodrome.runs.config.changes import told_lineage
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.store.store import EvaluationRow, SqlStore
from velodrome.runs.trained import Run

if TYPE_CHECKING:
    import polars as pl

    from velodrome.evaluation.result import Evaluation
    from velodrome.evaluation.sharpe import Trials
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

EPISODES = 100  # of environments without a market


def evaluate(
    run: str | Path | Run,
    split: str | None = None,
    *,
    root: str | Path = "runs",
    checkpoint: str = "best",
    allow_training_split: bool = False,
    trials: Trials | None = None,
    report: bool = True,
    progress: bool = False,
    market: Market | Basket | None = None,
    data: str | Path | None = None,
    store: SqlStore | None = None,
) -> Evaluation:
    """Evaluate a run on a split that it did not learn from, keep the result in its folder and its store, and report it.

    split: `evaluation.final_split` of its configuration if none is given.
    checkpoint: "best" on the validation split, or the "latest".
    trials: if this run is the best of many, what is known about them; the Sharpe ratio is then deflated.
    report: write the HTML report and images into the run's folder.
    market: the one that `train` was given, if it was given one. data: where the run's files lie now, if they moved.
    store: its store, if it is open already.
    """
    run = Run.open(run, root)
    policy = run.load_policy(checkpoint)
    # Other data has other scalers and splits: the agent would see what it never learnt, or be tested on what it did.
    market = run.market_for("to evaluate it", market, data)
    if market is None:
        evaluation = _by_episodes(run.config, policy)
    else:
        chosen = split or run.config.evaluation.final_split
        if chosen is None:
            raise ConfigError(f"No split to evaluate on; name one of {', '.join(market.splits)}.")
        with shown_progress(progress) as tell:
            options = {"trials": trials, "allow_training_split": allow_training_split, "progress": tell}
            evaluation = _on_split(run.config, policy, market, chosen, options)
    evaluation.save(run.path)
    with run.store(create=True) if store is None else nullcontext(store) as kept:
        steps = kept.run(run.folder.id).steps
        rows = [
            EvaluationRow(steps, evaluation.split, row.name, row.value, row.low, row.high) for row in evaluation.rows
        ]
        kept.add_evaluations(run.folder.id, rows)
        if report:
            _write_report(run, evaluation, steps, kept.metrics(run.folder.id))
    return evaluation


def _by_episodes(config: RunConfig, policy: TrainedPolicy) -> Evaluation:
    from velodrome.evaluation.episodes import evaluate_episodes

    options = {"title": config.env, "seed": config.seed + 2_000_003, **_resampling(config)}
    with closing(setup.make_few_environments(config, min(EPISODES, 16))) as envs:
        return evaluate_episodes(policy, envs, EPISODES, **options)


def _on_split(
    config: RunConfig, policy: TrainedPolicy, market: Market | Basket, split: str, options: dict[str, Any]
) -> Evaluation:
    from velodrome.evaluation.evaluate import evaluate_policy
    from velodrome.rollout.observation import WindowBank

    if policy.shape.windows:
        policy = policy.with_bank(WindowBank(market.windows))
    options |= {"env": config.env, "seeds": config.evaluation.seeds, **_resampling(config)}
    options["trained_on"] = "train" if "train" in market.splits else None
    return evaluate_policy(policy, market, split, config.params, **options)


def _resampling(config: RunConfig) -> dict[str, Any]:
    return {"samples": config.evaluation.bootstrap_samples, "confidence": config.evaluation.confidence}


@contextmanager
def shown_progress(wanted: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show how far each policy has played, if that is wanted."""
    if not wanted:
        yield None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(f"evaluating {name}", total=total)
            bars.update(tasks[name], completed=done)

        yield tell


def _write_report(run: Run, evaluation: Evaluation, steps: int, metrics: pl.DataFrame) -> None:
    from velodrome.runs.report.images import write_images
    from velodrome.runs.report.report import write_report

    config = run.config
    information = {
        "run": run.path.name,
        "algorithm": f"{config.algorithm}, {config.network.kind} {list(config.network.hidden)}",
        "environment steps": f"{steps:,} in {config.num_envs:,} environments",
        "parameters": ", ".join(f"{name} = {value}" for name, value in config.params.items()) or "defaults",
        "seed": str(config.seed),
        "configuration": config.hash,
    }
    if lineage := run.folder.lineage:
        information["lineage"] = "; ".join(map(told_lineage, lineage))
    write_report(evaluation, run.folder.report_path, f"{config.env}: {run.path.name}", information, metrics)
    write_images(evaluation, run.folder.evaluation_path)


def play_validation(policy: TrainedPolicy, config: RunConfig, market: Market | Basket | None) -> dict[str, float]:
    """Play the validation split (or some episodes) once, without touching the randomness of any learner."""
    chosen = config.evaluation
    if market is not None:
        from velodrome.evaluation.validation import validate

        assert chosen.split is not None
        return validate(policy, config.env, market, chosen.split, config.params, chosen.episodes)
    from velodrome.evaluation.play import play_episodes

    with closing(setup.make_few_environments(config, min(chosen.episodes, config.num_envs))) as envs:
        played = play_episodes(policy, envs, chosen.episodes, seed=config.seed + 1_000_003)
    return {"return": float(played.returns.mean()), "length": float(played.lengths.mean())}
