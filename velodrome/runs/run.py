"""`train` and `resume`: from a configuration, or a run and what is to change, to the sitting that trains.

What happens in it stands in session.py.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from velodrome.errors import ConfigError, RunError
from velodrome.outside.screen import Screen
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import setup
from velodrome.runs.bucket.place import here
from velodrome.runs.config.changes import changes_between, told_schedules
from velodrome.runs.config.explain import settings_in_effect
from velodrome.runs.config.files import load_run_config, load_with_origins
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.live.display import choose_mode
from velodrome.runs.machine import plan
from velodrome.runs.ranks import launch
from velodrome.runs.ranks.following import in_all_ranks
from velodrome.runs.session import Session
from velodrome.runs.together.group import session_of
from velodrome.runs.trained import Run, check_source
from velodrome.vector.cores import is_rank

if TYPE_CHECKING:
    from velodrome.bars.frame import Bars
    from velodrome.bars.inspection import Source
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

__all__ = ["Run", "resume", "train"]

log = logging.getLogger("velodrome.runs")


@in_all_ranks
def train(
    config: str | Path | Mapping[str, Any] | RunConfig | None = None,
    *,
    console: Console | None = None,
    mode: Mode | None = None,
    evaluate: bool = True,
    market: Market | Basket | Mapping[str, Any] | None = None,
    bars: Bars | Source | None = None,
    trust: bool = False,
    until: int | None = None,
    **overrides: Any,
) -> Run:
    """Train an agent, or several that differ only in their seed (seeds=5), and return the run, or the group of runs.

    config: path of a YAML or TOML file, the name of a preset, a mapping, or a RunConfig; the default preset if None.
    overrides: fields by name, such as steps=1_000_000 or **{"ppo.learning_rate": 1e-3}.
    mode: "live", "plain", "json" or "quiet"; if None, live in a terminal and plain elsewhere.
    evaluate: play the final split at the end and write the report.
    market: a market (portfolio: a basket) that is built already, or settings of the section `market`; if None, the
        configuration says which. To continue or evaluate a run that was given one, give it again.
    bars: prices that a program has, as Bars, a DataFrame or several by symbol, in place of `market.source`. They are
        read as the section `market` says and kept beside the runs, so that nothing need be given again.
    trust: code that is named in the configuration of another run's folder may be imported (docs/security.md).
    until: a step at which it stops and saves, as if it were interrupted there; `resume` goes on. No group has one.
    """
    if isinstance(market, Mapping | str | Path):  # of the last two the section says what to write
        overrides["market"], market = market, None
    if market is not None and bars is not None:
        raise ConfigError("market and bars were both given; a market has its bars already. Leave one of them out.")
    if bars is None:
        chosen, origins = load_with_origins(config, overrides, own_data=market is not None)
    else:
        chosen, origins = setup.with_bars(config, overrides, bars)
    check_source(config, chosen, trust)
    if (begun := launch.begun(here(chosen.logging.folder))) is not None:  # torchrun has started its ranks again
        going_on: dict[str, Any] = {"console": console, "mode": mode, "evaluate": evaluate, "trust": trust}
        return resume(begun, market=market, until=until, **going_on)
    chosen.usable_device()  # refuse a device that cannot be used before there is a folder
    if is_rank():
        setup.check_ranks(chosen)
    console = console or Screen()
    # A RunConfig comes from a program, which knows what is in it.
    if not isinstance(config, RunConfig) and (mode or choose_mode(console)) in ("live", "plain"):
        told = settings_in_effect(chosen, origins, console.width)
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    shortened = ""
    if market is None:
        chosen, built, shortened = setup.market_to_train_on(chosen)
    else:
        built = setup.build_market(chosen, market)
    setup.check_rule_actions(chosen, built)
    chosen, told = plan.with_num_envs(chosen, built)
    run = Run.create(chosen, built)
    launch.remember(run.path)
    sitting = session_of(run, built)
    _stop_at(sitting, until)
    sitting.shortened = shortened
    sitting.remarks += [told] if told else []
    return sitting.go(console, mode, evaluate)


@in_all_ranks
def resume(
    run: str | Path | Run,
    changes: Sequence[str] = (),
    *,
    root: str | Path = "runs",
    console: Console | None = None,
    mode: Mode | None = None,
    evaluate: bool = True,
    market: Market | Basket | None = None,
    data: str | Path | None = None,
    trust: bool = False,
    until: int | None = None,
    **overrides: Any,
) -> Run:
    """Continue a run from its last checkpoint; on the CPU the result is the same to the bit as without a stop.

    A run that has finished is left as it is, unless it is given more steps. market: the one that `train` was given, if
    it was given one. data: where the run's files lie now, if they moved.
    overrides: fields by name, as for `train`; changes: the same as "key=value" texts.
        With other steps, or another way to save and log, the run itself goes on.
        With another seed, evaluation or learning rate (docs/runs.md has all) a child run begins at the last checkpoint
        and is returned. What does not fit the state (another environment, network or data) is refused.
    trust: code that the run names may be imported, though it was not used here before (docs/security.md).
    until: a step at which it stops and saves, as if it were interrupted there; a single run, no group.
    """
    found = Run.open(run, root, trust)
    found.check_outside()
    found.folder.check_writable("a run that goes on writes there")
    wanted = load_run_config(load_run_config(found.config, changes), overrides)
    if wanted.vector.num_envs == "auto":
        raise ConfigError(
            f"num_envs = auto is measured when a training begins, and {found.path.name} goes on with what it has "
            f"({found.config.num_envs:,}). Leave it out, or give a number."
        )
    changed, is_child = changes_between(found.config, wanted, shlex.quote(str(found.folder.config_path)))
    last = [checkpoints.latest_checkpoint(member.path) for member in found.members]
    done = [checkpoints.checkpoint_steps(path) for path in last if path is not None]
    if changed:
        _check_steps(found, wanted, max(done, default=0), is_child)
    market = found.market_for("to continue it", market, data)
    if is_child:
        begin_from = checkpoints.latest_valid(found.path)
        if begin_from is None:
            raise RunError(f"{found.path}: this run has no checkpoint yet, so that no child can begin at one.")
        begun = found.child(wanted, changed, market, begin_from.steps)
        child = Session(begun, market, True, begin_from, until=until)
        if "steps" in changed and wanted.learner.scheduled(0.0) != wanted.learner.scheduled(1.0):
            child.remarks.append(told_schedules(found.config, wanted, begin_from.steps))
        return child.go(console, mode, evaluate)
    begin_from = None if done else found.parents_checkpoint()
    sitting = session_of(found, market, True, begin_from, wanted if changed else None)
    _stop_at(sitting, until)
    return sitting.go(console, mode, evaluate)


def _stop_at(sitting: Session, until: int | None) -> None:
    """Let a sitting end at a step, if there is one."""
    if until is not None and sitting.config.trainings > 1:
        raise ConfigError(
            f"until = {until:,}: several agents (seeds, ensemble) come to that step one after the other. Leave it out, "
            "or train them as runs of their own."
        )
    sitting.until = until


def _check_steps(run: Run, wanted: RunConfig, done: int, is_child: bool) -> None:
    """Refuse fewer steps than a run has done, and a child that would have nothing to do."""
    if wanted.steps < done or (is_child and wanted.steps == done):
        why = "a child that begins there needs more" if is_child else "it cannot go back"
        raise ConfigError(
            f"steps = {wanted.steps:,}: {run.path.name} has done {done:,}, and {why}. Give more, such as "
            f"steps={2 * done}, or train a new run."
        )
