"""A training from its configuration to an evaluated agent. The page to read: it tells the whole story top to bottom.

Configuration, market, environments, learner, loop, checkpoints, evaluation, store: each is one call here, and the
module that the call leads to holds the details.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from velodrome.errors import MetricsError, VelodromeError
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import health, setup
from velodrome.runs.config.explain import settings_in_effect
from velodrome.runs.config.files import load_with_origins
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.evaluate import evaluate as evaluate_run
from velodrome.runs.evaluate import play_validation
from velodrome.runs.interrupts import Interrupted, Interrupts
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.runs.live.display import LiveView, choose_mode
from velodrome.runs.metrics import MetricsWriter
from velodrome.runs.store.sinks import sinks_of_run
from velodrome.runs.store.store import checkpoint_rows
from velodrome.runs.trained import Run

if TYPE_CHECKING:
    from velodrome.rollout.worlds import Worlds
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

__all__ = ["Run", "resume", "train"]

log = logging.getLogger("velodrome.runs")


def train(
    config: str | Path | Mapping[str, Any] | RunConfig | None = None,
    *,
    console: Console | None = None,
    mode: Mode | None = None,
    evaluate: bool = True,
    market: Market | Basket | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Run:
    """Train an agent and return the run.

    config: path of a YAML or TOML file, the name of a preset, a mapping, or a RunConfig; the default preset if None.
    overrides: fields by name, such as steps=1_000_000 or **{"ppo.learning_rate": 1e-3}.
    mode: "live", "plain", "json" or "quiet"; if None, live in a terminal and plain elsewhere.
    evaluate: play the final split at the end and write the report.
    market: a market (portfolio: a basket) that is built already, or settings of the section `market`; if None, the
        configuration says which. To continue or evaluate a run that was given one, give it again.
    """
    if isinstance(market, Mapping):
        overrides["market"], market = market, None
    chosen, origins = load_with_origins(config, overrides, own_data=market is not None)
    chosen.usable_device()  # refuse a device that cannot be used before there is a folder
    console = console or Console()
    if (mode or choose_mode(console)) in ("live", "plain"):
        told = settings_in_effect(chosen, origins, console.width)
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    built = setup.build_market(chosen, market)
    return _Session(Run.create(chosen, built), built).go(console, mode, evaluate)


def resume(
    run: str | Path | Run,
    *,
    root: str | Path = "runs",
    console: Console | None = None,
    mode: Mode | None = None,
    evaluate: bool = True,
    market: Market | Basket | None = None,
) -> Run:
    """Continue a run from its last checkpoint; on the CPU the result is the same to the bit as without a stop.

    A run that has finished is left as it is. market: the one that `train` was given, if it was given one.
    """
    found = Run.open(run, root)
    market = found.market if market is None else market
    found.check_data(market, "to continue it")
    return _Session(found, market, resumed=True).go(console, mode, evaluate)


class _Session:
    """One sitting of a run: from its beginning, or from its last checkpoint, to its end or an interruption."""

    def __init__(self, run: Run, market: Market | Basket | None, resumed: bool = False) -> None:
        self.run, self.market, self.resumed = run, market, resumed
        self.config, self.id = run.config, run.folder.id
        self.best = -math.inf  # result of the best validation so far
        self.saved_steps = 0
        self.saved_at = 0.0  # seconds, of the last checkpoint

    def go(self, console: Console | None, mode: Mode | None, evaluate: bool) -> Run:
        """Train until done or interrupted, then evaluate; the store knows how it ended."""
        self.console = console or Console()
        self.mode = mode or choose_mode(self.console)
        folder = self.run.folder
        with folder.lock(), folder.write_log(), self.run.store(create=True) as self.store:
            row = self.store.find(self.id)
            if row is not None and row.status == "finished":
                if self.mode in ("live", "plain"):
                    told = f"{self.run.path.name} has finished: {self.config.steps:,} steps. Nothing is left to do"
                    command = f"velodrome eval {shlex.quote(str(self.run.path))}"
                    self.console.print(f"{told}; evaluate it: {command}", soft_wrap=True)
                return self.run
            try:
                finished = self._train()
                # A run is finished when its evaluation is: one killed during it evaluates when it is resumed.
                if finished and evaluate:
                    self._evaluate()
                self.store.update_run(self.id, status="finished" if finished else "interrupted")
            except BaseException as error:
                log.exception("the run ended with an error")
                self._record_failure(error)
                raise
        return self.run

    def _train(self) -> bool:
        """Make environments and a learner, then learn. Return whether all steps were done."""
        from velodrome.vector.fleet.monitor import VecMonitor

        config = self.config
        self.store.begin_run(self.run.new_record(self.market))
        device = config.usable_device()
        with setup.learning_worlds(config, self.market, device, self.run.folder.monitor_path) as worlds:
            self.learner = setup.make_learner(config, worlds)
            self.agent = setup.describe_agent(config, worlds)
            self.monitor = worlds.envs if isinstance(worlds.envs, VecMonitor) else None
            self.scaler = setup.make_autoscaler(config)
            found = self._load_checkpoint() if self.resumed else None
            first = self.learner.steps
            log.info("%s at step %d on %s, %s", "resumed" if self.resumed else "began", first, device, config.hash)
            sinks = sinks_of_run(self.run.folder, config, self.store, resume_step=first if self.resumed else None)
            self.saved_at = time.monotonic()
            with (
                Interrupts() as interrupts,
                MetricsWriter(sinks) as self.writer,
                contextlib.suppress(Interrupted),
                self._live_view(worlds, device) as self.view,
            ):
                if found is None:
                    self._save()
                while self.learner.steps < config.steps and not interrupts.requested:
                    self._iterate()
                if self.learner.steps > self.saved_steps:
                    self._save()
                if self.learner.steps < config.steps:
                    raise Interrupted
            return self.learner.steps >= config.steps

    def _load_checkpoint(self) -> checkpoints.Checkpoint | None:
        """Put the learner where the last checkpoint left it, and remove what a kill left behind later than that."""
        found = checkpoints.latest_valid(self.run.path)
        if found is not None:
            setup.check_agent(found.plain["agent"], self.agent, str(found.path))
            self.run.check_own(found)
            self.learner.load_state(found.tensors, found.plain["learner"])
            self.best, self.saved_steps = found.plain["best"], found.steps
        self.store.forget_after(self.id, self.learner.steps)
        checkpoints.tidy(self.run.path, self.learner.steps)
        return found

    def _live_view(self, worlds: Worlds, device: str) -> LiveView:
        config, run = self.config, self.run
        about: dict[str, Any] = {"folder": run.path, "resume": run.resume_command, "first_steps": self.learner.steps}
        about["action_names"] = getattr(getattr(worlds.envs, "world", None), "action_names", None)
        title, facts = f"{config.algorithm} on {config.env}", RunFacts.of(config, device)
        return LiveView(config.steps, title, self.console, self.mode, facts=facts, **about)

    # The loop

    def _iterate(self) -> None:
        """Learn once and write down what happened; validate and save when it is time to."""
        before = self.learner.steps
        metrics = self.learner.iterate()
        steps, config = self.learner.steps, self.config
        health.refuse(health.broken_metrics(metrics), self.run.path, steps, config.algorithm)
        # Counted from the run's beginning, so that a resumed run logs the same iterations.
        logged = steps // (steps - before) % config.logging.log_every == 0
        if self.monitor is not None and (logged or self.mode != "quiet"):
            metrics |= self.monitor.metrics()
        if logged:
            self._log(metrics)
        self.view.update(steps, metrics)
        improved = _due(before, steps, config.evaluation.every_steps) and self._validate()
        longest = config.checkpoint.every_seconds
        late = longest is not None and time.monotonic() - self.saved_at >= longest
        if improved or late or _due(before, steps, config.checkpoint.every_steps):
            self._save(best=improved)
        if self.scaler is not None:
            seconds = (steps - before) / metrics["time/steps_per_second"]
            if note := setup.resize_as_measured(self.scaler, self.learner, steps - before, seconds):
                self.view.note(note)

    def _log(self, metrics: Mapping[str, float]) -> None:
        """Hand metrics to their writer; it tries again, and what is not written by the next checkpoint is an error."""
        try:
            self.writer.add(self.learner.steps, metrics)
        except MetricsError as error:
            self.view.note(f"warning: {error}")

    # Validation, checkpoints, evaluation

    def _validate(self) -> bool:
        """Play the validation split, or some episodes; return whether that went better than ever before."""
        from velodrome.learn.acting import TrainedPolicy

        # Without a market there are no splits: episodes of other seeds are played.
        split = "episodes" if self.market is None else self.config.evaluation.split
        if split is None:
            return False
        policy = TrainedPolicy.of(self.learner.policy, self.learner.worlds, self.learner.moments)
        found = play_validation(policy, self.config, self.market)
        self._log({f"evaluation/{split}/{name}": value for name, value in found.items()})
        self.view.evaluated(split, found)
        improved = found["return"] > self.best
        self.best = max(self.best, found["return"])
        return improved

    def _save(self, best: bool = False) -> None:
        """Write a checkpoint; what was measured up to it goes first."""
        try:
            self.writer.flush()
        except MetricsError as error:
            self.view.note(f"warning: {error} Trying once more.")
            self.writer.flush()
        steps, path = self.learner.steps, self.run.path
        tensors, plain = self.learner.state()
        health.refuse(health.broken_weights(tensors), path, steps, self.config.algorithm)
        content = {"run": self.id, "learner": plain, "agent": self.agent, "best": self.best}
        content |= setup.saved_facts(self.config)
        checkpoints.save_checkpoint(path, steps, tensors, content, keep=self.config.checkpoint.keep, pinned=best)
        if best:
            checkpoints.pin_only_the_last(path)
        self.store.set_checkpoints(self.id, checkpoint_rows(path))
        self.saved_at, self.saved_steps = time.monotonic(), steps
        self.view.note(f"checkpoint at step {steps:,}{' (best so far)' if best else ''}")

    def _evaluate(self) -> None:
        """Evaluate the agent on data it never saw, write the report and print the result."""
        if self.market is not None and self.config.evaluation.final_split is None:
            return
        evaluation = evaluate_run(self.run, market=self.market, store=self.store, progress=self.mode == "live")
        if self.mode == "json":
            self.console.print_json(data={"event": "final", **evaluation.to_dict()}, indent=None)
        else:
            self.console.print(evaluation.table())
            self.console.print(f"report: {self.run.folder.report_path}", soft_wrap=True)

    # How it ended

    def _record_failure(self, error: BaseException) -> None:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            self.store.update_run(self.id, status=status, error=str(error))
        except VelodromeError as problem:  # a disk too full for a checkpoint is too full for the store as well
            log.error("the store does not know that the run %s: %s", status, problem)


def _due(before: int, steps: int, every: int | None) -> bool:
    """Return whether a multiple of `every` was passed."""
    return every is not None and steps // every > before // every
