"""How a field is declared with its meaning and range, and the small sections: checkpoint, evaluation, logging."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """Base of a run's sections: frozen, unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def setting(default: Any, meaning: str, *, legal: str | Callable[[], str] | None = None, **limits: Any) -> Any:
    """Declare a field: default, meaning and limits; `legal` says in words, perhaps later, what its type does not."""
    extra: Any = {"legal": legal} if legal else None
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else str(value) if isinstance(value, Path) else value


Text = Annotated[str, BeforeValidator(_text)]  # may be given as a path or a date


class CheckpointConfig(Section):
    """When a run's state is saved, so that it can go on after a stop; it is always saved at the end."""

    every_seconds: float | None = setting(60.0, "seconds between checkpoints; null: not by time", gt=0.0)
    every_steps: int | None = setting(None, "environment steps between checkpoints; null: not by steps", ge=1)
    keep: int = setting(2, "checkpoints kept; older ones are deleted", ge=1, le=10_000)


class EvaluationConfig(Section):
    """How well the agent does on data it does not learn from."""

    split: str | None = setting("validation", "split that is played during training; null: none")
    every_steps: int | None = setting(
        250_000, "environment steps between evaluations during training; null: none", ge=1
    )
    episodes: int = setting(
        16,
        "episodes of an evaluation during training; on a market, the number of pieces its split is played in",
        ge=1,
        le=1_000_000,
    )
    final_split: str | None = setting("test", "split that is played once training has ended; null: none")
    seeds: int = setting(5, "seeds that the final evaluation is repeated with", ge=1, le=10_000)
    bootstrap_samples: int = setting(1_000, "resamples behind a confidence interval", ge=10, le=10_000_000)
    confidence: float = setting(0.95, "level of the confidence intervals", gt=0.0, lt=1.0)


class LoggingConfig(Section):
    """Where a run writes what happened."""

    folder: Text = setting("runs", "folder in which every run has a folder of its own", min_length=1)
    store: str | None = setting(
        None,
        "SQLAlchemy URL of the store of all runs, such as postgresql+psycopg://host/name; an SQLite file in the folder "
        "if null",
    )
    log_every: int = setting(1, "iterations between rows of metrics", ge=1, le=1_000_000)
    tensorboard: bool = setting(False, "write metrics for TensorBoard too")
    wandb: bool = setting(False, "write metrics for Weights & Biases too")
    wandb_project: str = setting("velodrome", "project of Weights & Biases", min_length=1)
    wandb_mode: Literal["offline", "online"] = setting("offline", "online sends while the run goes on")
