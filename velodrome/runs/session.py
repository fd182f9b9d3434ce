"""One sitting of a run. The page to read: it tells the whole story of a training top to bottom.

Environments, learner, loop, checkpoints, evaluation, store: each is one call here, and the module that the call leads
to holds the details.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shlex
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from velodrome.errors import MetricsError, OutOfMemoryError, VelodromeError
from velodrome.outside.screen import Screen, lasting
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import health, setup
from velodrome.runs.bucket.place import publish
from velodrome.runs.config.changes import changes_between, told_lineage, told_schedules
from velodrome.runs.config.explain import to_yaml
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.evaluate import evaluate as evaluate_run
from velodrome.runs.evaluate import (
    final_in_validations,
    play_validation,
    shown_progress,
    steps_between_validations,
    told_report,
)
from velodrome.runs.folder import RunState, lineage_entry
from velodrome.runs.interrupts import Interrupted, Interrupts
from velodrome.runs.live.bottleneck import RunFacts
from velodrome.runs.live.display import LiveView, choose_mode
from velodrome.runs.live.progress import Besides
from velodrome.runs.machine import memory, plan
from velodrome.runs.machine.resources import ResourceMetrics
from velodrome.runs.machine.use import MachineSampler
from velodrome.runs.metrics import MetricsWriter, with_names_of
from velodrome.runs.official import official_evaluation
from velodrome.runs.store.from_folder import forget_evaluations, steps_of
from velodrome.runs.store.mirror import mirrors_of
from velodrome.runs.store.sinks import sinks_of_run
from velodrome.runs.trained import Run
from velodrome.writing import replace_text

if TYPE_CHECKING:
    from velodrome.rollout.worlds import Worlds
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

SHOWN_EVERY = 1.0  # seconds between samples of the machine that the terminal shows

log = logging.getLogger("velodrome.runs")


class Session:
    """One sitting of a run: from its beginning, or from its last checkpoint, to its end or an interruption.

    begin_from: a parent's checkpoint, of a run that has none of its own. told: what the run is told from now on. place:
    among the training seeds of a group, in words. until: the step at which this sitting stops and saves.
    """

    def __init__(
        self,
        run: Run,
        market: Market | Basket | None,
        resumed: bool = False,
        begin_from: checkpoints.Checkpoint | None = None,
        told: RunConfig | None = None,
        place: str = "",
        until: int | None = None,
    ) -> None:
        from velodrome.evaluation.validation import BestSoFar

        self.run, self.market, self.resumed, self.begin_from = run, market, resumed, begin_from
        self.config, self.id, self.place, self.until = told or run.config, run.folder.id, place, until
        self.remarks: list[str] = []  # what a person should know of how it goes on
        self.shortened = ""  # what was done to the windows, for people
        self.shelf: Path | None = None  # folder where trainings leave what they are taught for others of their study
        self.best = BestSoFar(self.config.evaluation.averaged, self.config.evaluation.margin)
        self.pace = math.inf  # seconds a step, in the fastest iteration so far
        self.has_less = False  # of something than it is told: memory ran out
        self.came_from: tuple[float, str] | None = None  # age in seconds of the checkpoint it went on from, in words
        self.saved_steps = 0
        self.saved_at = 0.0  # seconds, of the last checkpoint
        self.saving: Future[list[str]] | None = None  # the checkpoint that is being written, and what to tell of it

    def go(self, console: Console | None, mode: Mode | None, evaluate: bool) -> Run:
        """Train until done or interrupted, then evaluate; the folder, and then the store, know how it ended."""
        self.console = console or Screen()
        self.mode = mode or choose_mode(self.console)
        self.evaluates = evaluate
        folder = self.run.folder
        with folder.lock(), folder.write_log(), lasting(self.console, self._output_ended):
            last = checkpoints.latest_checkpoint(folder.path)
            if self.run.noted_status == "finished" and self._is_done(last):
                publish(folder.path)  # of which something may not have been sent
                if self.mode in ("live", "plain"):
                    steps = self.config.steps if last is None else checkpoints.checkpoint_steps(last)
                    told = f"{self.run.path.name} has finished: {steps:,} steps. Nothing is left to do"
                    command = f"velodrome eval {shlex.quote(str(self.run.path))}"
                    self.console.print(f"{told}; evaluate it: {command}", soft_wrap=True)
                return self.run
            self._take_over(0 if last is None else checkpoints.checkpoint_steps(last))
            self.mirror = mirrors_of(folder, self.run.root, self.config.logging.store)
            self._note("running")
            self.mirror.start()
            try:
                finished = self._train()
                # A run is finished when its evaluation is: one killed during it evaluates when it is resumed.
                if finished and evaluate:
                    self._evaluate()
                self._note("finished" if finished else "interrupted")
            except BaseException as error:
                log.exception("the run ended with an error")
                self._record_failure(error)
                raise
            finally:
                if (lacking := self.mirror.close()) is not None:
                    self._warn(lacking)
        return self.run

    def _output_ended(self, error: OSError) -> None:
        """Tell, where that may still be read, that nobody reads what is printed any more."""
        told = f"what is printed cannot be written any more ({error.strerror}); the training goes on, as log.txt says"
        log.warning("%s", told)
        _print_warning(Screen(stderr=True), told)

    def _note(self, status: str, error: str = "") -> None:
        """Let the run's folder say how far it is."""
        self.run.folder.note_state(RunState(status, time.time(), error, self.run.config.hash))
        self.mirror.changed()

    def _warn(self, text: str) -> None:
        """Tell what must not be missed in any mode, where it does not get between what other programs read."""
        log.warning("%s", text)
        _print_warning(self.console if self.mode in ("live", "plain") else Screen(stderr=True), text)

    def _is_done(self, last: Path | None) -> bool:
        """Return whether a run that has finished has done all that it is told. last: its last checkpoint."""
        if last is None or checkpoints.checkpoint_steps(last) >= self.config.steps:
            return True
        state = self.run.folder.state  # it may have ended early, and is told nothing new since
        return self.config is self.run.config and state is not None and state.config_hash == self.config.hash

    def _take_over(self, steps: int) -> None:
        """Let the run's folder say what it is told from now on, and note that it changed at this step."""
        before = self.run.config
        if self.config is before:
            return
        changed, _ = changes_between(before, self.config, "")
        entry = lineage_entry(steps, changed)
        self.run.folder.add_to_lineage(entry)
        replace_text(self.run.folder.config_path, to_yaml(self.config))
        self.run = Run.of(self.run.folder)
        self.remarks.append(f"{self.run.path.name} goes on {told_lineage(entry)}.")
        if "steps" in changed:
            self.remarks.append(told_schedules(before, self.config, steps))

    def _train(self) -> bool:
        """Make environments and a learner, then learn, with less where memory runs out; return whether all is done."""
        device = self.config.usable_device()
        self.validated_every = steps_between_validations(self.config, self.market, device)
        with contextlib.ExitStack() as stack:
            worlds = self._make_learner(stack, device)
            begun = self.resumed and self._go_on()
            begins = not begun and not self.begin_from
            self.taught = setup.teach(self.config, self.market, self.learner, self.shelf) if begins else ""
            self.remarks[:0] = setup.told_choices(self.market, self.shortened, self.taught)
            self.remarks += health.learns_nothing(self.config)
            how = "resumed" if self.resumed else "began"
            log.info("using %d environments (%s, %s)", worlds.num_envs, self.config.vector.env_type, device)
            log.info("%s at step %d on %s, %s", how, self.learner.steps, device, self.config.hash)
            self.interrupts = stack.enter_context(Interrupts())
            while (lacking := self._learn(worlds, device, begun)) is not None:
                self._go_on_with_less(lacking)
        return self._is_over

    def _make_learner(self, stack: contextlib.ExitStack, device: str) -> Worlds:
        """Make a learner in as many environments as the last checkpoint has, else as are asked for, or as fit."""
        from velodrome.learn.leader import lead
        from velodrome.vector.fleet.monitor import VecMonitor

        config, last = self.config, checkpoints.latest_valid(self.run.path) if self.resumed else None
        num_envs = config.num_envs if last is None else int(last.plain["learner"].get("num_envs", config.num_envs))
        if self.resumed:  # perhaps elsewhere; a new run was looked at before it had a folder
            plan.check_that_it_fits(config.with_num_envs(num_envs), self.market)
        while True:
            making = setup.learning_worlds(config, self.market, device, self.run.folder.monitor_path, num_envs, True)
            try:
                with contextlib.ExitStack() as own:
                    worlds = own.enter_context(making)
                    self.learner = lead(setup.make_learner(config, worlds))
                    stack.enter_context(own.pop_all())
                break
            except Exception as error:
                lacking = memory.avoidable_shortage(error)
                if lacking is None:
                    raise
            memory.give_back(device)
            told = memory.ran_out(num_envs, lacking)
            if last is not None:
                raise OutOfMemoryError(
                    f"{told}, which its checkpoint has. Free some memory, or resume it where there is more."
                )
            fewer = memory.fewer_envs(config, num_envs, lacking)
            self._warn(f"{told}: it begins with {fewer:,}.")
            num_envs = fewer
        self.agent = setup.describe_agent(config, worlds)
        self.action_names = tuple(map(str, getattr(getattr(worlds.envs, "world", None), "action_names", ())))
        self.run.folder.note_actions(self.action_names)
        self.monitor = worlds.envs if isinstance(worlds.envs, VecMonitor) else None
        self.scaler = setup.make_autoscaler(config)
        return worlds

    def _learn(self, worlds: Worlds, device: str, begun: bool) -> str | None:
        """Learn until the end, or until memory runs out: then return what was lacking.

        begun: whether the state is that of a checkpoint.
        """
        first = self.learner.steps
        sinks = sinks_of_run(self.run.folder, self.config, resume_step=first if self.resumed else None)
        self.mirror.changed(anew=True)
        self.saved_at = time.monotonic()
        self._show_remarks()
        with (
            MetricsWriter(sinks) as self.writer,
            contextlib.suppress(Interrupted),
            self._sampler(device) as sampler,
            self._live_view(worlds, device, sampler) as self.view,
        ):
            self.resources = ResourceMetrics(sampler, self.config.resources.every_seconds)
            if self.mode == "json":
                for remark in self.remarks:
                    self.view.note(remark)
            self.remarks.clear()
            try:
                if not begun or self.has_less:
                    # What was taught is a candidate among others; without others nothing is chosen.
                    chooses = bool(self.taught) and not self.has_less and self.validated_every is not None
                    self._save(best=chooses and self._validate())
                    self._await_checkpoint()  # a shortage of memory in the first iteration goes back to it
                if (clock := getattr(self.learner, "clock", None)) is not None:
                    clock.take()  # what came before is no part of the first iteration
                while not self._is_over and not self._stops:
                    self._iterate()
                if self.learner.steps > self.saved_steps:
                    self._save()
                self._await_checkpoint()
            except Exception as error:
                lacking = memory.avoidable_shortage(error)
                if lacking is None:
                    raise
                self.view.goes_on = True
                return lacking
            finally:  # nothing may be written into the folder once it is no longer locked
                if self.saving is not None:
                    wait([self.saving])
                    self.saving = None
            if not self._is_over:
                raise Interrupted
            if self.learner.steps < self.config.steps:
                enough = self._has_episodes and health.enough_episodes(self.learner.episodes, self.learner.steps)
                self.view.note(enough or health.ended_early(self.config, self.learner.steps))
        return None

    def _go_on_with_less(self, lacking: str) -> None:
        """Go back to the last checkpoint, after memory ran out, and go on from there in a way that takes less."""
        learner, at = self.learner, self.learner.steps
        num_envs, failed = learner.worlds.num_envs, learner.clock.failed
        learner.clock.failed = None
        memory.give_back(str(learner.worlds.device))
        self.resumed = self.has_less = True
        try:
            self._load_checkpoint()
        except Exception as error:
            if memory.avoidable_shortage(error) is None:
                raise
            learner.resize(memory.fewer_envs(self.config, num_envs, lacking))  # room to read it
            memory.give_back(str(learner.worlds.device))
            self._load_checkpoint()
        told = f"{memory.ran_out(num_envs, lacking)} at step {at:,}: it goes on from step {learner.steps:,} with"
        parts = learner.split_minibatches() if failed == "learning" else None
        if parts is not None:
            self._warn(
                f"{told} as many, and learns from each minibatch in {parts} parts whose gradients are added up, which "
                "is the same update."
            )
            return
        while True:  # to make them may take more than there is, too
            num_envs = memory.fewer_envs(self.config, num_envs, lacking)
            try:
                learner.resize(num_envs)
                break
            except Exception as error:
                if memory.avoidable_shortage(error) is None:
                    raise
        if self.scaler is not None:
            self.scaler.most, self.scaler.least = num_envs, min(self.scaler.least, num_envs)
        self._warn(f"{told} {num_envs:,}.")

    @property
    def _is_over(self) -> bool:
        """Whether all steps or episodes are done, or validation has not become better for as long as is waited."""
        patience = self.config.evaluation.patience
        waited = patience is not None and self.best.since >= patience
        return self.learner.steps >= self.config.steps or self._has_episodes or waited

    @property
    def _stops(self) -> bool:
        """Whether this sitting ends, though the run goes on in a later one."""
        return self.interrupts.requested or (self.until is not None and self.learner.steps >= self.until)

    @property
    def _has_episodes(self) -> bool:
        """Whether as many episodes have ended as the run is told to play."""
        return self.config.episodes is not None and self.learner.episodes >= self.config.episodes

    def _go_on(self) -> bool:
        """Go on from the last checkpoint, and tell where that is; return whether there is one of this run."""
        reached = steps_of(self.run.folder)  # a run that was killed has measured later steps, which are now forgotten
        found = self._load_checkpoint()
        if found is None:
            return False
        told = f"{self.run.path.name} goes on from its checkpoint at step {found.steps:,}"
        lost = f"; it had come to step {reached:,}, and does what came after again" if reached > found.steps else ""
        self.remarks.append(f"{told}{lost}.")
        age = max(0.0, time.time() - found.path.stat().st_mtime)
        self.came_from = age, f"checkpoint at step {found.steps:,}, which it came from"
        return True

    def _load_checkpoint(self) -> checkpoints.Checkpoint | None:
        """Put the learner where the last checkpoint left it, and remove what a kill left behind later than that."""
        found = checkpoints.latest_valid(self.run.path)
        first = found or self.begin_from
        if first is not None:
            with checkpoints.fitting(first.path):
                setup.check_agent(first.plain["agent"], self.agent, str(first.path))
                self.remarks += self.learner.load_state(first.tensors, first.plain["learner"]) or []
        if found is not None:
            self.run.check_own(found)
            self.saved_steps = found.steps
            self.best.load(found.plain, anew=any(entry["step"] == found.steps for entry in self.run.folder.lineage))
        elif self.begin_from is not None:
            self._begin_as_child()
        forget_evaluations(self.run.folder, self.learner.steps)
        checkpoints.tidy(self.run.path, self.learner.steps, self.config.checkpoint.keep)
        return found

    def _begin_as_child(self) -> None:
        """Go on from a parent's checkpoint as the child is told: in as many environments, from a seed of its own."""
        entry = self.run.folder.lineage[-1]
        self.learner.resize(self.config.num_envs)
        if "seed" in entry["changes"]:
            self.learner.begin_anew()
        self.remarks.append(f"{self.run.path.name} is a {told_lineage(entry)}.")
        if "seed" in entry["changes"]:
            self.remarks.append("New episodes and random numbers begin there; weights and optimiser go on.")

    def _show_remarks(self) -> None:
        for remark in self.remarks:
            log.info("%s", remark)
            if self.mode in ("live", "plain"):
                self.console.print(remark, soft_wrap=True)

    def _sampler(self, device: str) -> MachineSampler:
        """Return what samples the machine: as often as it is shown, as it is recorded, or not at all."""
        recorded = self.config.resources.every_seconds
        shown = math.inf if self.mode == "quiet" else SHOWN_EVERY
        return MachineSampler(self.run.path, device, min(recorded or math.inf, shown))

    def _live_view(self, worlds: Worlds, device: str, sampler: MachineSampler) -> LiveView:
        config, run = self.config, self.run
        about: dict[str, Any] = {"folder": run.path, "resume": run.resume_command, "first_steps": self.learner.steps}
        about |= {"action_names": self.action_names, "saved": self.came_from}
        title, facts = f"{config.algorithm} on {config.env}{self.place}", RunFacts.of(config, device)
        about["always"] = {"seed": config.seed} if self.place else {}
        final = final_in_validations(config, self.market) if self.evaluates else None
        about["besides"] = Besides(self.validated_every if run.validation_split else None, final)
        return LiveView(config.steps, title, self.console, self.mode, facts=facts, sampler=sampler, **about)

    # The loop

    def _iterate(self) -> None:
        """Learn once and write down what happened; validate and save when it is time to."""
        before = self.learner.steps
        metrics = self.learner.iterate()
        steps, config = self.learner.steps, self.config
        if broken := health.broken_metrics(metrics):
            self._await_checkpoint()  # which is the one to go back to
            health.refuse(broken, self.run.path, steps, config.algorithm)
        if speed := metrics.get("time/steps_per_second"):
            self.pace = min(self.pace, 1.0 / speed)
        # Counted from the run's beginning, so that a resumed run logs the same iterations.
        logged = steps // (steps - before) % config.logging.log_every == 0
        if self.monitor is not None and (logged or self.mode != "quiet"):
            metrics |= self.monitor.metrics()
        if logged:
            metrics |= self.resources.take()
            self._log(metrics)
        self.view.update(steps, metrics)
        if news := self.mirror.news():
            self.view.note(news)
        if self.saving is not None and self.saving.done():
            self._await_checkpoint()
        improved = _due(before, steps, self.validated_every) and self._validate()
        longest = config.checkpoint.every_seconds
        late = longest is not None and time.monotonic() - self.saved_at >= longest
        if improved or late or _due(before, steps, config.checkpoint.every_steps):
            self._save(best=improved)
        if self.scaler is not None:
            self._await_checkpoint()  # its copy of the state would count as memory in use
            seconds = (steps - before) / metrics["time/steps_per_second"]
            if note := setup.resize_as_measured(self.scaler, self.learner, steps - before, seconds):
                self.view.note(note)

    def _log(self, metrics: Mapping[str, float]) -> None:
        """Hand metrics to their writer; it tries again, and what is not written by the end is an error."""
        try:
            self.writer.add(self.learner.steps, with_names_of(self.config.logging.metric_names, metrics))
        except MetricsError as error:
            self.view.note(f"warning: {error}")

    # Validation, checkpoints, evaluation

    def _validate(self) -> bool:
        """Play the validation split, or some episodes; return whether that went better than ever before."""
        from velodrome.learn.acting import TrainedPolicy

        split = self.run.validation_split
        if split is None:
            return False
        began, learner = time.monotonic(), self.learner
        policy = TrainedPolicy.of(getattr(learner, "acting", learner.policy), learner.worlds, learner.moments)
        found = play_validation(policy, self.config, self.market)
        self._log({f"evaluation/{split}/{name}": value for name, value in found.figures.items()})
        seconds = time.monotonic() - began
        log.info("validation at step %d took %.3f s", learner.steps, seconds)
        self.view.evaluated(split, found.figures, seconds)
        return self.best.is_improved_by(found, taught=learner.steps == 0)

    def _save(self, best: bool = False) -> None:
        """Begin to write a checkpoint; learning goes on meanwhile.

        A disk may take a second for a replay buffer, in which a GPU would wait. Where memory is short, this waits.
        """
        self._await_checkpoint()
        steps = self.learner.steps
        tensors, plain = self.learner.state()
        health.refuse(health.broken_weights(tensors), self.run.path, steps, self.config.algorithm)
        content = {"run": self.id, "learner": plain, "agent": self.agent, **self.best.state()}
        content |= setup.saved_facts(self.config)
        self.saved_at, self.saved_steps = time.monotonic(), steps
        saving: Future[list[str]] = Future()
        self.saving = saving

        def write() -> None:
            try:
                saving.set_result(self._write_checkpoint(steps, tensors, content, best))
            except BaseException as error:
                log.error("checkpoint at step %d could not be written: %s", steps, error)
                saving.set_exception(error)

        threading.Thread(target=write, name="checkpoint", daemon=True).start()
        if self.has_less or not setup.copies_state(self.learner):
            self._await_checkpoint()

    def _write_checkpoint(
        self, steps: int, tensors: Mapping[str, Any], content: dict[str, Any], best: bool
    ) -> list[str]:
        """Write a checkpoint, whatever becomes of the metrics up to it; return what to tell.

        Metrics go first, so that a kill loses none.
        """
        told, began, path = [], time.monotonic(), self.run.path
        try:
            self.writer.flush()
        except MetricsError as error:
            told.append(f"warning: {error}")
        checkpoints.save_checkpoint(path, steps, tensors, content, keep=self.config.checkpoint.keep, pinned=best)
        if best:
            checkpoints.pin_only_the_last(path)
        self.mirror.changed()
        log.info("checkpoint at step %d took %.3f s", steps, time.monotonic() - began)
        return [*told, f"checkpoint at step {steps:,}{' (best so far)' if best else ''}"]

    def _await_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written, if one is; what went wrong with it is raised here."""
        saving = self.saving
        if saving is not None:
            wait([saving])
            self.saving = None  # not before: whoever interrupts the waiting leaves it to `_learn`
            for text in saving.result():
                self.view.note(text)

    def _evaluate(self) -> None:
        """Evaluate the agent on data it never saw, write the report and print the result."""
        if self.market is not None and self.config.evaluation.final_split is None:
            return
        evaluation = evaluate_run(self.run, market=self.market, progress=self.mode == "live", to_store=False)
        if self.mode == "json":
            self.console.print_json(data={"event": "final", **evaluation.to_dict()}, indent=None)
        else:
            self.console.print(evaluation.table())
            if told := told_report(self.run, evaluation):
                self.console.print(told, soft_wrap=True)
        if self.config.evaluation.official:
            with shown_progress(self.mode == "live") as shown:
                scores = official_evaluation(self.run, baselines=False, progress=shown)
            if self.mode == "json":
                self.console.print_json(data={"event": "official", **json.loads(scores.to_json())}, indent=None)
            else:
                self.console.print(scores.table())

    # How it ended

    def _record_failure(self, error: BaseException) -> None:
        status, why = "failed", str(error)
        if isinstance(error, KeyboardInterrupt):  # at once: by a second signal, or during the evaluation
            status, error.args = "interrupted", (f"continue with: {self.run.resume_command}",)
        try:
            self._note(status, why)
        except (VelodromeError, OSError) as problem:  # a disk too full for a checkpoint is too full for this as well
            log.error("the folder does not say that the run %s: %s", status, problem)


def _print_warning(console: Console, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to read it
        console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)


def _due(before: int, steps: int, every: int | None) -> bool:
    """Return whether a multiple of `every` was passed."""
    return every is not None and steps // every > before // every
