"""What a trial's training is worth on the validation split, written into its run's folder when it has ended.

The returns of each bar lie beside it, for the probability of overfitting. The test split is never played here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.outside.files import UNFIT, read_json
from velodrome.runs.checkpoint import checkpoint_steps, pinned_checkpoints
from velodrome.runs.config.parameters import price_data
from velodrome.runs.evaluate import play_validation
from velodrome.runs.report.speed import SPEED
from velodrome.tune.trial import Outcome
from velodrome.writing import replace_text, replacing

if TYPE_CHECKING:
    import polars as pl

    from velodrome.learn.acting import TrainedPolicy
    from velodrome.runs.config.run_config import RunConfig
    from velodrome.runs.trained import Run
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

FILE, RETURNS = "trial.json", "trial-returns.npy"
PER_BAR = "sharpe_per_bar"
SECONDS = "seconds"  # that a training took, without those in the queue; of studies that know them
KEPT = "kept_what_it_was_taught"  # 1 in the figures of a training that learnt nothing better
SCORES = ("sharpe", "return", "mean_log_return", "of_optimum", "reward")  # of accounts; the more the better
SCORES_OF_EPISODES = ("return",)


def keeps_account(config: RunConfig, market: Market | Basket | None) -> bool:
    """Return whether the environment of a configuration has an account, with a return for each bar."""
    from velodrome.envs.catalog import CATALOG
    from velodrome.evaluation.evaluator import keeps_account as has_equity
    from velodrome.evaluation.evaluator import world_on

    if market is None or price_data(config.env) is None:
        return False
    return has_equity(world_on(CATALOG.get(config.env), market, config.params, whole=True))


FREE = (
    "trades cost nothing here (no fee, spread or slippage), and what pays for nothing seldom pays for something: give "
    "what they will cost, such as params.fee=0.001"
)


def trades_for_nothing(config: RunConfig, market: Market | Basket | None) -> bool:
    """Return whether the accounts of a configuration trade without fee, spread and slippage."""
    from velodrome.evaluation.evaluator import evaluator_for

    if market is None or not keeps_account(config, market):
        return False
    return evaluator_for(config.env, market, config.evaluation.split or "train", config.params).at_costs(2.0) is None


def legal_score(score: str | None, config: RunConfig, market: Market | Basket | None) -> str:
    """Return the figure that trials are compared by; the Sharpe ratio of accounts, if none is named."""
    legal = SCORES if keeps_account(config, market) else SCORES_OF_EPISODES
    if score is not None and score not in legal:
        raise ConfigError(f"score = {score!r}: trials of {config.env!r} are compared by {', '.join(legal)}.")
    return score or legal[0]


def record(run: Run, market: Market | Basket | None = None) -> None:
    """Play the validation split with what a run has learnt, and keep figures and returns in its folder.

    market: the run's, if it is built already. A training whose best is what it was taught before it began is played
    with what it has learnt in the end: else all such settings would be equal, and a study could not tell which of them
    lead away from the teacher, and how far.
    """
    kept = keeps_what_it_was_taught(run)
    policy = run.load_policy("latest") if kept else run.policy
    figures, returns = played(policy, run.config, run.market if market is None else market)
    figures = {**figures, **({KEPT: 1.0} if kept else {})}
    if seconds := training_seconds(run.metrics):
        figures[SECONDS] = seconds
    write(run.path, figures, returns)


def played(
    policy: TrainedPolicy, config: RunConfig, market: Market | Basket | None
) -> tuple[dict[str, float], NDArray[np.float64] | None]:
    """Play the validation split; return figures by name, and where there is an account its returns."""
    returns: NDArray[np.float64] | None = None
    if keeps_account(config, market):
        from velodrome.evaluation.sharpe import moments
        from velodrome.evaluation.validation import validate_bars
        from velodrome.rollout.observation import WindowBank

        assert market is not None
        assert config.evaluation.split is not None
        if policy.shape.windows:
            policy = policy.with_bank(WindowBank(market.windows))
        split, pieces = config.evaluation.split, config.evaluation.episodes
        figures, returns = validate_bars(policy, config.env, market, split, config.params, pieces)
        found = moments(returns).sharpe
        # Who never trades has no ratio, and earns nothing for no risk.
        figures = {"sharpe": 0.0, **figures, PER_BAR: 0.0 if math.isnan(found) else found}
    else:
        figures = dict(play_validation(policy, config, market).figures)
    return figures, returns


def training_seconds(metrics: pl.DataFrame) -> float:
    """Return how long a training took by its metrics, validations and all, without the time between two sittings."""
    import polars as pl

    own = metrics.filter((pl.col("name") == SPEED) & (pl.col("value") > 0.0)).sort("step")
    steps = np.diff(own["step"].to_numpy(), prepend=0)
    return float((steps / own["value"].to_numpy()).sum())


def keeps_what_it_was_taught(run: Run) -> bool:
    """Return whether validation found nothing that a run learnt better than what it was taught (teacher.policy)."""
    best = pinned_checkpoints(run.path)[-1:]
    return run.config.teacher.policy is not None and [checkpoint_steps(path) for path in best] == [0]


def write(folder: Path, figures: dict[str, float], returns: NDArray[np.float64] | None = None) -> None:
    """Write what a trial's training came to; the file that says so comes last."""
    if returns is not None:
        with replacing(folder / RETURNS) as new, new.open("wb") as file:
            np.save(file, returns.astype(np.float32), allow_pickle=False)
    plain = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
    replace_text(folder / FILE, json.dumps({"figures": plain}) + "\n")


def read(folder: Path, score: str, run: str) -> Outcome:
    """Return what `write` wrote, with its score."""
    try:
        figures: dict[str, Any] = read_json(folder / FILE)["figures"]
        value = float(figures[score])
    except (OSError, *UNFIT) as error:
        told = f"its folder does not say what it came to ({type(error).__name__}: {error})"
        return Outcome(math.nan, told, "machine_lost", run=run)
    if not math.isfinite(value):
        return Outcome(math.nan, f"its {score} is {value}", "not_a_number", figures, run)
    return Outcome(value, figures=figures, run=run)


def read_returns(folder: Path) -> NDArray[np.float32] | None:
    """Return the returns of each bar of a trial's training; None if there are none."""
    try:
        return np.load(folder / RETURNS, allow_pickle=False)
    except (OSError, *UNFIT):
        return None
