"""One fold: an ordinary run whose configuration names its splits by date, so that it can be resumed and evaluated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from velodrome.errors import ConfigError, RunError
from velodrome.runs import setup
from velodrome.runs.bucket.place import Bucket, here
from velodrome.runs.config.files import load_run_config, preset_names
from velodrome.runs.config.parameters import price_data
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.folder import run_folders
from velodrome.runs.live.display import choose_mode
from velodrome.runs.machine import plan
from velodrome.runs.run import Run, resume, train
from velodrome.runs.trained import check_source

if TYPE_CHECKING:
    from rich.console import Console

    from velodrome.evaluation.result import Evaluation
    from velodrome.runs.folder import RunFolder
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market, WindowedRows

Dates = tuple[str, str | None]  # from, to (not part of it); None: the data's end
Given: TypeAlias = "str | Path | Run | RunConfig | Mapping[str, Any] | None"


@dataclass(frozen=True)
class Fold:
    """One part of the data: the run that was trained on it, and how it did on what it did not see."""

    number: int
    run: Run
    splits: Mapping[str, Any]  # by name: Dates, or several
    evaluation: Evaluation

    def to_dict(self) -> dict[str, Any]:
        """Return the fold as JSON-able values."""
        return {
            "fold": self.number,
            "run": self.run.folder.id,
            "folder": f"../{self.run.path.name}",  # from the folder of the results
            "splits": {name: list(dates) for name, dates in self.splits.items()},
            "evaluation": self.evaluation.to_dict(),
        }


class Wanted(NamedTuple):
    """What is to be trained in folds."""

    config: RunConfig
    folder: Path  # for the runs and the results
    whole: Market | Basket  # all data, with the configuration's own splits
    moved: Mapping[str, Any]  # where a run's files lie now

    def key(self, settings: Mapping[str, Any]) -> str:
        """Return what tells these folds from others."""
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]

    def fold_config(
        self, number: int, count: int, key: str, splits: Mapping[str, Any], embargo: int, final_split: str
    ) -> RunConfig:
        """Return what a fold is told."""
        # The fold's number first: the start of a name by which a person calls the run must still mean that run.
        name = f"fold-{number}-of-{count}-{(self.config.name or self.config.env)[:60]}-{key}"
        own = {
            **self.moved,
            "name": name,
            "logging.folder": str(self.folder),
            "market.splits": dict(splits),
            "market.embargo": embargo,
            "evaluation.split": "validation" if "validation" in splits else None,
            "evaluation.final_split": final_split,
        }
        return load_run_config(self.config, own)


def wanted_by(
    given: Given,
    purpose: str,
    *,
    root: str | Path,
    market: Market | Basket | None,
    data: str | Path | None,
    trust: bool,
    overrides: Mapping[str, Any] | None = None,
) -> Wanted:
    """Return what a run, or a configuration as `vd.train` takes it, stands for. purpose: such as "to walk it forward".

    overrides: settings that differ from the configuration's.
    """
    config, folder, run = _configuration(given, root, trust)
    if price_data(config.env) is None:
        raise ConfigError(
            f"env = {config.env!r} plays on no market, so that nothing follows its data; folds in time are for trading "
            "and portfolios."
        )
    moved: dict[str, Any] = {}
    whole = None
    if run is not None:
        whole = run.market_for(purpose, market, data)
        place = run.folder.data_place
        if market is None and place not in (None, Path(config.market.source).expanduser().resolve()):
            moved = {"market.source": str(place)}
    elif data is not None:
        raise ConfigError(f"data = {str(data)!r} is for a run that was trained; a configuration says market.source.")
    if overrides:
        config, whole = load_run_config(config, {**moved, **overrides}), None
        folder = here(config.logging.folder).resolve() if "logging.folder" in overrides or run is None else folder
    if (bucket := Bucket.behind(folder)) is not None:
        raise ConfigError(
            f"{bucket.url}: folds in time lie in a folder of a machine, not in a bucket. Name one: logging.folder=runs."
        )
    whole = whole or setup.build_market(config, market)
    assert whole is not None
    config, _ = plan.with_num_envs(config, whole)  # the same for all folds
    return Wanted(config, folder, whole, moved)


def _configuration(given: Given, root: str | Path, trust: bool) -> tuple[RunConfig, Path, Run | None]:
    """Return the configuration that is meant, the folder for the results, and the run if one was named."""
    if isinstance(given, str | Path) and not Path(given).is_file():
        try:
            given = Run.open(given, root, trust)
        except RunError:
            if str(given) not in preset_names():
                raise
    if isinstance(given, Run):
        given.check_outside()
        return given.config, given.root, given
    config = load_run_config(given)
    check_source(given, config, trust)
    return config, here(config.logging.folder).resolve(), None


def validation_share(config: RunConfig, market: WindowedRows) -> float:
    """Return the part of what is trained on to keep for validation: as large as the configuration's own."""
    split = config.evaluation.split
    if split is None or config.evaluation.every_steps is None:
        return 0.0
    train, kept = (int((part.end - part.begin).sum()) for part in map(market.split, ("train", split)))
    return kept / (kept + train)


def date_text(nanoseconds: int | np.int64) -> str:
    """Return a moment as a configuration names it."""
    return f"{np.datetime64(int(nanoseconds), 'ns').astype('datetime64[us]')}+00:00"


def begun_run(config: RunConfig) -> RunFolder | None:
    """Return the folder of a fold's run: of a finished one if there is one, else of the one begun last."""
    assert config.name is not None
    known = run_folders(config.logging.folder, config.name)  # of hundreds of folds each would look at all
    begun = [found for found in known if found.information["name"] == config.name]
    return max(begun, key=lambda found: (Run.of(found).status == "finished", found.candidate.created), default=None)


def finished_run(config: RunConfig, market: Market | Basket, console: Console, mode: Any = None) -> Run:
    """Return the run of a fold: a finished one, one that was begun and is now finished, or a new one."""
    mode = mode or choose_mode(console)
    how: dict[str, Any] = {"console": console, "mode": mode, "evaluate": False, "market": market}
    begun = begun_run(config)
    if begun is None:
        run = train(config, **how)
    else:
        run = Run.of(begun)
        if run.status == "finished":
            console.print(f"{run.path.name} has finished: not trained again", soft_wrap=True)
            return run
        run = resume(run, **how)
    if run.status != "finished":
        console.print(f"{run.path.name} was interrupted and saved; the same call goes on with it", soft_wrap=True)
        raise KeyboardInterrupt
    return run
