"""A run from its configuration to an evaluated agent: bars, market, environments, learner, store. The page to read."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import CheckpointError, ConfigError, LearningError, MetricsError, RunError, VelodromeError
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import setup
from velodrome.runs.config.explain import to_yaml
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.folder import RunFolder
from velodrome.runs.interrupts import Interrupted, Interrupts
from velodrome.runs.live.display import LiveView, choose_mode
from velodrome.runs.live.facts import action_names, facts_of
from velodrome.runs.metrics import MetricsWriter, Sink
from velodrome.runs.report.listing import KILLED, shown_status
from velodrome.runs.store.sinks import JsonLinesSink, StoreSink, TensorBoardSink, WandbSink
from velodrome.runs.store.store import CheckpointRow, RunRecord, SqlStore, open_store
from velodrome.runs.versions import versions

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from torch import Tensor

    from velodrome.learn.acting import TrainedPolicy
    from velodrome.rollout.worlds import Worlds
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

log = logging.getLogger("velodrome.runs")


@dataclass(frozen=True)
class Run:
    """A run that was trained, or is being trained: its folder and what is in it."""

    folder: RunFolder

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
        """What it was told."""
        return load_run_config(self.folder.config_path)

    @property
    def metrics(self) -> pl.DataFrame:
        """Everything measured during training: step, name, value, time."""
        with open_store(self.path.parent, self.config.logging.store, create=False) as store:
            return store.metrics(self.folder.id)

    @property
    def status(self) -> str:
        """Whether it is running, finished, interrupted, failed, or killed: no process trains it, and it did not end."""
        with open_store(self.path.parent, self.config.logging.store, create=False) as store:
            row = self.row(store)
        if row is not None:
            return shown_status(row)
        return "running" if self.folder.is_locked() else KILLED  # so early that it has no row

    def row(self, store: SqlStore) -> RunRecord | None:
        """Return what a store knows of it; None if it was killed before that was written."""
        named = store.runs(name=self.folder.information["name"])
        return next((row for row in named if row.id == self.folder.id), None)

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
        found = self._checkpoint(which)
        return setup.load_policy(found.tensors, found.plain, setup.foreign_observation_space(self.config))

    def _checkpoint(self, which: str) -> checkpoints.Checkpoint:
        pinned = [path for path in checkpoints.checkpoints(self.path) if checkpoints.is_pinned(path)]
        best = which == "best" and pinned
        found = checkpoints.load_checkpoint(pinned[-1]) if best else checkpoints.latest_valid(self.path)
        if found is None:
            raise RunError(f"{self.path}: this run has no checkpoint yet, so there is no policy to load.")
        self.check_own(found)
        return found

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
                "as market=…), or train anew."
            )


def train(
    config: str | Path | Mapping[str, Any] | RunConfig | None = None, *, console: Console | None = None,
    mode: Mode | None = None, evaluate: bool = True, market: Market | Basket | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Run:  # fmt: skip
    """Train an agent and return the run.

    config: path of a YAML or TOML file, the name of a preset, a mapping, or a RunConfig; the default preset if None.
    overrides: fields by name, such as steps=1_000_000 or **{"ppo.learning_rate": 1e-3}.
    mode: "live", "plain", "json" or "quiet"; chosen by where output goes if None.
    evaluate: play the final split at the end and write the report.
    market: a market (portfolio: a basket) that was built already, or settings of the section `market`; the
        configuration's otherwise. To continue or evaluate a run that was given one, give it again.
    """
    if isinstance(market, Mapping):
        overrides["market"], market = market, None
    chosen = load_run_config(config, overrides)
    chosen.usable_device()  # one that cannot be used is told before there is a folder
    if market is not None:
        setup.check_market(chosen, market)
    built = setup.build_market(chosen) if market is None else market
    folder = RunFolder.create(
        chosen.logging.folder, chosen.name or chosen.env.replace("/", "-").replace(":", "-"), config=to_yaml(chosen),
        seeds={"run": chosen.seed}, data_hash=None if built is None else built.content_hash,
    )  # fmt: skip
    return _Session(Run(folder), chosen, built, None).go(console, mode, evaluate)


def resume(
    run: str | Path | Run, *, root: str | Path = "runs", console: Console | None = None, mode: Mode | None = None,
    evaluate: bool = True, market: Market | Basket | None = None,
) -> Run:  # fmt: skip
    """Continue a run from its last checkpoint, on the CPU to the same bits as if it had never stopped.

    A run that has finished is left as it is. market: the one that `train` was given, if it was given one.
    """
    found = Run.open(run, root)
    market = found.market if market is None else market
    found.check_data(market, "to continue it")
    return _Session(found, found.config, market, found.folder.id).go(console, mode, evaluate)


class _Session:
    """One sitting of a run: from its beginning, or from its last checkpoint, to its end or an interruption."""

    def __init__(self, run: Run, config: RunConfig, market: Market | Basket | None, resumed: str | None) -> None:
        self.run, self.config, self.market, self.resumed = run, config, market, resumed
        self.best = -math.inf  # result of the best evaluation so far
        self.saved_at = 0.0  # seconds, of the last checkpoint
        self.saved_steps = 0

    def go(self, console: Console | None, mode: Mode | None, evaluate: bool) -> Run:
        """Train until done or interrupted, save, evaluate."""
        from rich.console import Console

        console = console or Console()
        folder, config = self.run.folder, self.config
        mode = mode or choose_mode(console)
        with folder.lock(), folder.write_log(), open_store(self.run.path.parent, config.logging.store) as self.store:
            if self._has_finished():
                if mode in ("live", "plain"):
                    told = f"{self.run.path.name} has finished: {config.steps:,} steps. Nothing is left to do"
                    console.print(
                        f"{told}; evaluate it: velodrome eval {shlex.quote(str(self.run.path))}", soft_wrap=True
                    )
                return self.run
            try:
                finished = self._train(console, mode)
                # A run is finished when its evaluation is: one that is killed in it evaluates when it is resumed.
                if finished and evaluate:
                    self._evaluate_at_the_end(console, mode)
                self._tell(status="finished" if finished else "interrupted")
            except BaseException as error:
                log.exception("the run ended with an error")
                self._tell_error(error)
                raise
        return self.run

    def _has_finished(self) -> bool:
        row = self.run.row(self.store)
        return row is not None and row.status == "finished"

    def _tell_error(self, error: BaseException) -> None:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            self._tell(status=status, error=str(error))
        except VelodromeError as problem:  # a disk that is full for a checkpoint is full for the store as well
            log.error("the store does not know that the run %s: %s", status, problem)

    # Train

    def _train(self, console: Console, mode: Mode) -> bool:
        self._begin_row()
        device = self.config.usable_device()
        with setup.learning_worlds(self.config, self.market, device, self.run.folder.monitor_path) as worlds:
            return self._learn(worlds, device, console, mode)

    def _learn(self, worlds: Worlds, device: str, console: Console, mode: Mode) -> bool:
        from velodrome.vector.fleet.monitor import VecMonitor

        config = self.config
        self.monitor = worlds.envs if isinstance(worlds.envs, VecMonitor) else None
        self.scaler = setup.make_autoscaler(config)
        self.learner = setup.make_learner(config, worlds)
        self.agent = setup.describe_agent(config, worlds)
        found = checkpoints.latest_valid(self.run.path) if self.resumed else None
        if found is not None:
            setup.check_agent(found.plain["agent"], self.agent, str(found.path))
            self.run.check_own(found)
            self.learner.load_state(found.tensors, found.plain["learner"])
            self.best = found.plain["best"]
            self.saved_steps = found.steps
        first = self.learner.steps
        if self.resumed:
            self._tidy(first)
        log.info("%s at step %d on %s, %s", "resumed" if self.resumed else "began", first, device, config.hash)
        view = LiveView(
            config.steps, f"{config.algorithm} on {config.env}", console, mode, first_steps=first,
            folder=self.run.path, resume=self.run.resume_command, facts=facts_of(config, device),
            action_names=action_names(config),
        )  # fmt: skip
        self.saved_at = time.monotonic()
        with (
            Interrupts() as interrupts,
            MetricsWriter(self._sinks(first if self.resumed else None)) as self.writer,
            contextlib.suppress(Interrupted),
            view,
        ):
            if found is None:
                self._save(view)
            while self.learner.steps < config.steps and not interrupts.requested:
                self._iterate(view)
            if self.learner.steps > self.saved_steps:
                self._save(view)
            if self.learner.steps < config.steps:
                raise Interrupted
        return self.learner.steps >= config.steps

    def _iterate(self, view: LiveView) -> None:
        """Learn once; write down what happened; evaluate and save where it is time to."""
        before = self.learner.steps
        metrics = self.learner.iterate()
        steps, config = self.learner.steps, self.config
        self._check_numbers(metrics)
        if self.monitor is not None:
            metrics |= self.monitor.metrics()
        # Counted from the run's beginning, so that a resumed run logs the same iterations.
        if steps // (steps - before) % config.logging.log_every == 0:
            self._write(steps, metrics, view)
        view.update(steps, metrics)
        improved = False
        if _due(before, steps, config.evaluation.every_steps) and self._evaluates():
            found = self._evaluate_quickly()
            self._write(steps, {f"evaluation/{self._split()}/{name}": value for name, value in found.items()}, view)
            view.evaluated(self._split(), found)
            improved = found["return"] > self.best
            self.best = max(self.best, found["return"])
        seconds = config.checkpoint.every_seconds
        late = seconds is not None and time.monotonic() - self.saved_at >= seconds
        if improved or late or _due(before, steps, config.checkpoint.every_steps):
            self._save(view, pinned=improved)
        if self.scaler is not None:
            self._scale(steps - before, (steps - before) / metrics["time/steps_per_second"], view)

    def _scale(self, steps: int, seconds: float, view: LiveView) -> None:
        """Change the number of environments if measurements say so."""
        from velodrome.vector.fleet.autoscale import bytes_in_use
        from velodrome.vector.fleet.pool import PoolBusyError

        assert self.scaler is not None
        before = self.learner.worlds.num_envs
        wanted = self.scaler.observe(before, steps, seconds, bytes_in_use())
        if wanted is not None and wanted != before:
            try:
                self.learner.resize(wanted)
            except (PoolBusyError, ConfigError) as error:  # others have the rest of the budget; a replay has no room
                log.info("not resized: %s", error)
                return
            view.note(f"{wanted:,} environments, from {before:,}")
            log.info("resized from %d to %d environments at step %d", before, wanted, self.learner.steps)

    def _check_numbers(self, metrics: Mapping[str, float]) -> None:
        """Stop when learning has broken, before a checkpoint could hold what is left of it."""
        broken = {name: value for name, value in metrics.items() if _must_be_finite(name) and not math.isfinite(value)}
        if broken:
            raise self._broken(", ".join(f"{name} = {value}" for name, value in broken.items()))

    def _check_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse to keep a policy that the last gradient step broke, of which the metrics tell one iteration later."""
        for name, tensor in tensors.items():
            if name.startswith("policy.") and not bool(tensor.isfinite().all()):
                raise self._broken(f"{name.removeprefix('policy.')} of the network is not finite")

    def _broken(self, what: str) -> LearningError:
        last = checkpoints.latest_checkpoint(self.run.path)
        kept = "There is no checkpoint yet" if last is None else f"The last good checkpoint is kept ({last})"
        return LearningError(
            f"Learning broke at step {self.learner.steps:,}: {what}. {kept}. Usual causes: learning_rate too high, "
            f"rewards or observations that are huge or not a number; try a smaller "
            f"{self.config.algorithm}.learning_rate, or normalise_rewards=true."
        )

    # Evaluate

    def _split(self) -> str:
        # Without a market there are no splits: episodes of other seeds are played.
        return "episodes" if self.market is None else self.config.evaluation.split or "episodes"

    def _evaluates(self) -> bool:
        return self.market is None or self.config.evaluation.split is not None

    def _evaluate_quickly(self) -> dict[str, float]:
        """Play the validation split (or some episodes) once, without touching the learner's randomness."""
        from velodrome.learn.acting import TrainedPolicy

        policy = TrainedPolicy.of(self.learner.policy, self.learner.worlds, self.learner.moments)
        if self.market is not None:
            from velodrome.evaluation.validation import validate

            config = self.config
            return validate(policy, config.env, self.market, self._split(), config.params, config.evaluation.episodes)
        from velodrome.evaluation.play import play_episodes

        episodes = self.config.evaluation.episodes
        count = min(episodes, self.config.num_envs)
        envs = setup.make_few_environments(self.config, count)
        try:
            played = play_episodes(policy, envs, episodes, seed=self.config.seed + 1_000_003)
        finally:
            envs.close()
        return {"return": float(played.returns.mean()), "length": float(played.lengths.mean())}

    def _evaluate_at_the_end(self, console: Console, mode: Mode) -> None:
        from velodrome.runs.evaluate import evaluate

        if self.market is not None and self.config.evaluation.final_split is None:
            return
        evaluation = evaluate(self.run, market=self.market, store=self.store, progress=mode == "live")
        if mode == "json":
            console.print_json(data={"event": "final", **evaluation.to_dict()}, indent=None)
        else:
            console.print(evaluation.table())
            console.print(f"report: {self.run.folder.report_path}", soft_wrap=True)

    # Write down

    def _begin_row(self) -> None:
        folder, config = self.run.folder, self.config
        if self.run.row(self.store) is not None:  # of a run that is resumed; a kill may have come before there was one
            self._tell(status="running", error="")
            return
        self.store.create_run(
            RunRecord(
                folder.id, folder.information["name"], str(folder.path), config.env, config.algorithm,
                config=config.content(), config_hash=config.hash, seed=config.seed, versions=versions(),
                data_hash="" if self.market is None else self.market.content_hash,
            )
        )  # fmt: skip

    def _tidy(self, steps: int) -> None:
        """Remove what a kill left: later rows and checkpoints, half ones, a mark of the best that went to another."""
        self.store.forget_after(self.run.folder.id, steps)
        checkpoints.forget_checkpoints_after(self.run.path, steps)
        for path in checkpoints.checkpoint_home(self.run.path).glob(f"{checkpoints.WRITING}*"):
            shutil.rmtree(path)
        self._pin_only_the_last()

    def _pin_only_the_last(self) -> None:
        pinned = [path for path in checkpoints.checkpoints(self.run.path) if checkpoints.is_pinned(path)]
        for path in pinned[:-1]:
            checkpoints.pin_checkpoint(path, False)

    def _write(self, steps: int, metrics: Mapping[str, float], view: LiveView) -> None:
        """Hand metrics to their writer; it tries again, and what is not written by the next checkpoint is an error."""
        try:
            self.writer.add(steps, metrics)
        except MetricsError as error:
            view.note(f"warning: {error}")

    def _tell(self, **changes: Any) -> None:
        self.store.update_run(self.run.folder.id, **changes)

    def _sinks(self, resume_step: int | None) -> list[Sink]:
        folder, logging_config = self.run.folder, self.config.logging
        sinks: list[Sink] = [
            StoreSink(self.store, folder.id), JsonLinesSink(folder.metrics_path, resume_step=resume_step)
        ]  # fmt: skip
        if logging_config.tensorboard:
            sinks.append(TensorBoardSink(self.run.path / "tensorboard", resume_step=resume_step))
        if logging_config.wandb:
            sinks.append(
                WandbSink(
                    self.run.path, folder.id, logging_config.wandb_project, folder.path.name, self.config.content(),
                    mode=logging_config.wandb_mode,
                )
            )  # fmt: skip
        return sinks

    def _save(self, view: LiveView, pinned: bool = False) -> None:
        """Write a checkpoint; what was measured up to it goes first."""
        try:
            self.writer.flush()
        except MetricsError as error:
            view.note(f"warning: {error} Trying once more.")
            self.writer.flush()
        tensors, plain = self.learner.state()
        self._check_weights(tensors)
        content = {
            "run": self.run.folder.id, "learner": plain, "agent": self.agent, "best": self.best, **_extras(self.config)
        }  # fmt: skip
        checkpoints.save_checkpoint(
            self.run.path, self.learner.steps, tensors, content, keep=self.config.checkpoint.keep, pinned=pinned
        )
        if pinned:
            self._pin_only_the_last()
        rows = [
            CheckpointRow(checkpoints.checkpoint_steps(one), str(one), checkpoints.is_pinned(one), one.stat().st_mtime)
            for one in checkpoints.checkpoints(self.run.path)
        ]
        self.store.set_checkpoints(self.run.folder.id, rows)
        self.saved_at, self.saved_steps = time.monotonic(), self.learner.steps
        view.note(f"checkpoint at step {self.learner.steps:,}{' (best so far)' if pinned else ''}")


def _extras(config: RunConfig) -> dict[str, Any]:
    return setup.saved_facts(config)


def _due(before: int, steps: int, every: int | None) -> bool:
    """Return whether a multiple of `every` was passed."""
    return every is not None and steps // every > before // every


def _must_be_finite(name: str) -> bool:
    return name.startswith(("loss/", "policy/", "optimiser/", "episode/mean_reward"))
