"""A run as it lies in its folder, trained or still training: its configuration, metrics, status, policy and data."""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.bars.summary import Summarised, Summary
from velodrome.errors import CheckpointError, ConfigError, RunError, VelodromeError
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import setup
from velodrome.runs.config.explain import to_yaml
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.folder import RunFolder
from velodrome.runs.store.schema import KILLED
from velodrome.runs.store.store import RunRecord, SqlStore, open_store
from velodrome.runs.versions import versions

if TYPE_CHECKING:
    import polars as pl

    from velodrome.learn.acting import TrainedPolicy
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market


@dataclass(frozen=True, repr=False)
class Run(Summarised):
    """A run that was trained, or is being trained: its folder and what is in it."""

    folder: RunFolder

    @classmethod
    def create(cls, config: RunConfig, market: Market | Basket | None) -> Run:
        """Make the folder of a new run."""
        name = config.name or config.env.replace("/", "-").replace(":", "-")
        data_hash = None if market is None else market.content_hash
        about: dict[str, Any] = {"config": to_yaml(config), "seeds": {"run": config.seed}, "data_hash": data_hash}
        return cls(RunFolder.create(config.logging.folder, name, **about))

    @classmethod
    def open(cls, run: str | Path | Run, root: str | Path = "runs") -> Run:
        """Find a run by path, id, the unique start of its name or id, or "latest"."""
        return run if isinstance(run, Run) else cls(RunFolder.open(run, root))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder.path

    @functools.cached_property
    def config(self) -> RunConfig:
        """The configuration it was trained with."""
        return load_run_config(self.folder.config_path)

    @property
    def metrics(self) -> pl.DataFrame:
        """Everything measured during training: step, name, value, time."""
        with self.store() as store:
            return store.metrics(self.folder.id)

    @property
    def status(self) -> str:
        """Running, finished, interrupted, failed, or killed: it has not ended, yet no process trains it."""
        with self.store() as store:
            row = store.find(self.folder.id)
        if row is not None:
            return row.shown_status(self.path)
        return "running" if self.folder.is_locked() else KILLED  # too early for a row

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        try:
            config, status = self.config, self.status
            line = f"Run {self.path.name}: {config.algorithm} on {config.env}, {config.steps:,} steps, {status}"
            about = {"folder": self.path, "seed": config.seed, "configuration": config.hash}
        except (VelodromeError, OSError) as error:  # to look at a run must never fail
            return Summary(f"Run {self.path.name}, which cannot be read: {error}")
        about["data"] = self.folder.information.get("data_hash") or "none"
        return Summary(line, ("", ""), tuple((name, str(value)) for name, value in about.items()))

    def store(self, create: bool = False) -> SqlStore:
        """Open the store that holds its rows."""
        return open_store(self.path.parent, self.config.logging.store, create=create)

    def new_record(self, market: Market | Basket | None) -> RunRecord:
        """Return its row at the moment it begins."""
        config = self.config
        return RunRecord(
            id=self.folder.id,
            name=self.folder.information["name"],
            folder=str(self.path),
            env=config.env,
            algorithm=config.algorithm,
            config=config.content(),
            config_hash=config.hash,
            data_hash="" if market is None else market.content_hash,
            seed=config.seed,
            versions=versions(),
        )

    @property
    def resume_command(self) -> str:
        """The command that continues it from the present working directory."""
        known = self.path.parent == Path("runs").resolve()
        return f"velodrome train --resume {self.folder.id if known else shlex.quote(str(self.path))}"

    @functools.cached_property
    def policy(self) -> TrainedPolicy:
        """What it learnt: the best checkpoint on the validation split if there is one, else the last."""
        return self.load_policy()

    def load_policy(self, which: str = "best") -> TrainedPolicy:
        """Return the policy of the "best" or of the "latest" checkpoint."""
        if which not in ("best", "latest"):
            raise ConfigError(f"checkpoint = {which!r}; legal: 'best', 'latest'.")
        best = checkpoints.pinned_checkpoints(self.path)[-1:] if which == "best" else []
        found = checkpoints.load_checkpoint(best[0]) if best else checkpoints.latest_valid(self.path)
        if found is None:
            raise RunError(f"{self.path}: this run has no checkpoint yet, so there is no policy to load.")
        self.check_own(found)
        return setup.load_policy(found.tensors, found.plain, setup.foreign_observation_space(self.config))

    def check_own(self, found: checkpoints.Checkpoint) -> None:
        """Refuse a checkpoint that another run wrote."""
        if found.plain.get("run") != self.folder.id:
            raise CheckpointError(
                f"{found.path}: this checkpoint was written by the run {found.plain.get('run')!r} and lies in the "
                f"folder of the run {self.folder.id!r}. Remove it from there, or use the run that wrote it."
            )

    @functools.cached_property
    def market(self) -> Market | Basket | None:
        """The market or basket that it was trained on, built again; None for environments without one."""
        return setup.build_market(self.config)

    def check_data(self, market: Market | Basket | None, what_for: str) -> None:
        """Refuse data that is not what the run began with."""
        known = self.folder.information["data_hash"]
        now = None if market is None else market.content_hash
        if known != now:
            raise RunError(
                f"{self.path}: the data has changed since this run began (content hash {known} then, {now} now); "
                f"{what_for} needs the data it began with. Restore the data (if it was given a market, give it again "
                "as market=…), or train a new run."
            )
