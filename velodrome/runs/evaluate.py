"""The evaluation of a run on data it never saw: `vd.evaluate` and what follows a training."""

from __future__ import annotations

import importlib
import logging
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError, StoreError
from velodrome.outside.files import UNFIT, read_json
from velodrome.runs import health, setup
from velodrome.runs.bucket.place import publish
from velodrome.runs.config.changes import told_lineage
from velodrome.runs.config.parameters import is_rule
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.config.sections import HELD_OUT
from velodrome.runs.store.looks import Look, SeenBars, looks_at, told_looks
from velodrome.runs.store.mirror import StoreMirror
from velodrome.runs.store.store import open_store, store_file
from velodrome.runs.trained import Run
from velodrome.tables.hashing import bars_of, price_hash
from velodrome.vector.messages import tell

if TYPE_CHECKING:
    import polars as pl

    from velodrome.evaluation.named_policy import NamedPolicy
    from velodrome.evaluation.result import Evaluation
    from velodrome.evaluation.sharpe import Trials
    from velodrome.evaluation.validation import Validation
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

log = logging.getLogger("velodrome.runs")
# What a validation takes in steps of learning that take as long: for itself, and for each of its bars. Measured with
# the presets on 2 cores, and on an H200, where one of 15,000 bars took 0.042 s and 65,536 environments learn 78 million
# steps a second (the preset gpu has fewer and 12.5 million). A network of another size changes both sides alike.
VALIDATION_IN_STEPS = {"cpu": (6_000, 0.25), "cuda": (2_000_000, 85.0)}
# Between validations of environments whose episodes are as long as they are; on a GPU of those that live there.
STEPS_WITHOUT_BARS = {"cpu": 250_000, "cuda": 20_000_000}
FINAL_PER_BAR = 20  # validations of as many bars that take as long as a final evaluation, with baselines and resamples
EPISODES = 100  # of environments without a market
LEDGER_SECONDS = 5.0  # that the store may take to say how often data was looked at
ENTER_SECONDS = 300.0  # how long the rows of a run may take to be entered into its store


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
    to_store: bool = True,
    trust: bool = False,
    study: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a run on a split that it did not learn from, keep the result in its folder and its store, and report it.

    split: `evaluation.final_split` of its configuration if none is given.
    checkpoint: "best" on the validation split, or the "latest".
    trials: if this run is the best of many, what is known about them; the Sharpe ratio is then deflated. What was
        chosen among trials once, by a study, a population or whoever gave them, stays so if nothing is given.
    report: write the HTML report and images into the run's folder: as report.html, or for another split or checkpoint
        than a training evaluates at its end, as report-<split>-<checkpoint>-<step>.html.
    market: the one that `train` was given, if it was given one. data: where the run's files lie now, if they moved.
    to_store: enter the result into the run's store, too; a store that fails is a warning, for the folder has it all.
    trust: code that the run names may be imported, though it was not used here before (docs/security.md).
    study: of which it is the winner, what the result says of it: `notes`, and anything else that JSON can hold.
    """
    run = Run.open(run, root, trust)
    run.check_outside()
    run.folder.check_writable("its evaluation is kept there")
    policies, named = run.policies(checkpoint)
    if trials is None and study is None:
        trials, study = _chosen_before(run)
    # Other data has other scalers and splits: the agent would see what it never learnt, or be tested on what it did.
    market = run.market_for("to evaluate it", market, data)
    if market is None:
        if split is not None or allow_training_split:
            given = "allow_training_split = true" if split is None else f"split = {split!r}"
            raise ConfigError(f"{given}: env = {run.config.env!r} plays episodes and has no splits. Leave it out.")
        evaluation = replace(_by_episodes(run.config, policies, named), policy=named)
    else:
        chosen = split or run.config.evaluation.final_split
        if chosen is None:
            raise ConfigError(f"No split to evaluate on; name one of {', '.join(market.splits)}.")
        with shown_progress(progress) as shown, _images_imported(report):
            options = {"trials": trials, "allow_training_split": allow_training_split, "progress": shown}
            evaluation = _on_split(run.config, policies, market, chosen, {**options, "named": named})
        evaluation = _with_look(run, evaluation, market)
    if study is not None:
        notes = (*evaluation.notes, *study["notes"])
        evaluation = replace(evaluation, notes=notes, information={**evaluation.information, "study": dict(study)})
    metrics = run.metrics
    evaluation = _with_overfitting(run, evaluation, metrics)
    if len(named.agents) < run.config.trainings:
        evaluation = replace(evaluation, warnings=(_missing(run, len(named.agents)), *evaluation.warnings))
    evaluation.save(run.path)
    if report:
        try:
            _write_report(run, evaluation, metrics)
        except Exception as error:  # the result is none the worse for it
            # For log.txt; in a terminal, where nothing is logged, what follows says it without a traceback.
            log.info("the report of %s could not be written", run.path.name, exc_info=True)
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            tell(
                f"warning: the report or its images could not be written ({told}). The result is complete, in "
                f"{run.folder.evaluation_path}; to write them again: velodrome eval {shlex.quote(str(run.path))}"
            )
    if to_store:
        enter_result(run, (run, *run.members))
        publish(run.path)
    return evaluation


@contextmanager
def _images_imported(wanted: bool) -> Iterator[None]:
    """Import what draws and paints images, if they are wanted, while policies play: a second that nobody waits for."""

    def load() -> None:
        with suppress(Exception):  # whoever draws the images will say it
            importlib.import_module("matplotlib.figure")
            importlib.import_module("matplotlib.backends.backend_agg")

    thread = threading.Thread(target=load)
    if not wanted:
        yield
        return
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _with_look(run: Run, evaluation: Evaluation, market: Market | Basket) -> Evaluation:
    """Say how many other policies were played on some of the same bars before; the run's store enters it from there."""
    split, named, chosen = evaluation.split, evaluation.policy, run.config.evaluation
    # Whatever it is called: test data under another name is test data. What is there to choose by is not.
    is_test = split in (chosen.final_split, "test") or split not in (chosen.split, "validation")
    if not is_test or split == HELD_OUT or evaluation.in_sample or named is None:
        return evaluation
    data_hash, bars = price_hash(market, split), bars_of(market, split)
    look: dict[str, Any] = {"data_hash": data_hash, "time": time.time(), "before": None}
    earlier = _earlier_look(run, evaluation)
    if earlier is not None and earlier["data_hash"] == data_hash:  # the same policy again tells nothing new
        look, told = earlier, told_looks(earlier["before"], split, earlier.get("overlaps", ()))
    else:
        found, told = _looks_before(run, named.step, data_hash, [SeenBars(*own) for own in bars], split)
        if found is not None:
            look |= {"before": len(found), "overlaps": [one.overlap for one in found]}
    about = {**evaluation.information, "look": {**look, "bars": [list(own) for own in bars]}}
    return replace(evaluation, notes=(*evaluation.notes, told), information=about)


def _looks_before(
    run: Run, step: int, data_hash: str, bars: Sequence[SeenBars], split: str
) -> tuple[list[Look] | None, str]:
    """Return the looks of other policies at some of the bars, as far as the run's store knows, and the sentence."""
    url = run.config.logging.store
    if url is None and not store_file(run.root).exists():
        return [], told_looks(0, split)
    try:
        with open_store(run.root, url, create=False, busy_seconds=LEDGER_SECONDS) as store:
            looks = looks_at(store, data_hash, bars)
    except StoreError as error:
        return None, f"how often the {split} data was looked at is not known: {error}"
    others = [look for look in looks if (look.run, look.step) != (run.folder.id, step)]
    return others, told_looks(len(others), split, [look.overlap for look in others])


def _earlier_look(run: Run, evaluation: Evaluation) -> dict[str, Any] | None:
    """Return what an earlier result of the same policy on the same split says of its look; None if there is none."""
    path = run.folder.evaluation_path / f"{evaluation.file_name}.json"
    try:
        look = read_json(path)["information"]["look"]
        return look if isinstance(look["before"], int) else None
    except (OSError, *UNFIT):
        return None


def _chosen_before(run: Run) -> tuple[Trials | None, Mapping[str, Any] | None]:
    """Return among which trials a run was chosen, and what a result says of the study that did; None: it was not.

    Whichever checkpoint or split that result is of, and of a member that of its group: to look again undoes no choice.
    """
    from velodrome.evaluation.sharpe import Trials

    folder = run.path.parent if run.group_id else run.path
    for path in sorted((folder / run.folder.evaluation_path.name).glob("*.json")):
        try:
            about = read_json(path)["information"]
            trials, study = about.get("trials"), about.get("study")
            if trials is not None or study is not None:  # a population has trials, and is no study
                told = None if study is None else {**study, "notes": list(study["notes"])}
                return None if trials is None else Trials(**trials), told
        except (ConfigError, OSError, *UNFIT):
            continue
    return None, None


def _missing(run: Run, finished: int) -> str:
    told = f"{finished} of {run.config.trainings}"
    if run.config.ensemble > 1:
        told += " members have finished, and the result is about an ensemble of those alone"
    else:
        told += (
            " training seeds have finished, and the result is about those alone; if the others failed, it is too good"
        )
    return f"{told}. Go on: {run.resume_command}"


def _with_overfitting(run: Run, evaluation: Evaluation, metrics: pl.DataFrame) -> Evaluation:
    """Say aloud what the curves of training and validation show; of several training seeds, their means."""
    split, named = run.validation_split, evaluation.policy
    parted = None if split is None else health.overfitting_of(metrics, split)
    about = {**evaluation.information, "overfitting": None if parted is None else parted._asdict()}
    if parted is None or split is None or named is None:
        return replace(evaluation, information=about)
    told = parted.sentence(split, evaluation.kind == "backtest")
    when = "before" if named.step <= parted.step else "after"
    warning = f"{told}; this checkpoint, of step {named.step:,}, is from {when} that"
    if len(named.agents) > 1:
        warning = f"{told} (means over the training seeds)"
    labels = evaluation.in_sample + evaluation.used_for_selection  # warnings that go first
    warnings = (*evaluation.warnings[:labels], warning, *evaluation.warnings[labels:])
    return replace(evaluation, warnings=warnings, information=about)


def enter_result(run: Run, about: Iterable[Run]) -> None:
    """Let the store of a run know of a result, of those that it is about; what it lacks then is told by a warning."""
    for one in dict.fromkeys(about):
        mirror = StoreMirror(one.folder, run.root, run.config.logging.store)
        mirror.start()
        if mirror.close(ENTER_SECONDS) is not None:
            return


def report_path(run: Run, evaluation: Evaluation) -> Path:
    """Return where the report of an evaluation lies: the run's own, or one of another split or checkpoint beside it."""
    policy, final = evaluation.policy, run.config.evaluation.final_split
    usual = evaluation.kind == "episodes" or evaluation.split == final
    if usual and (policy is None or policy.checkpoint == "best"):
        return run.folder.report_path
    return run.folder.report_path.with_name(f"report-{evaluation.file_name}.html")


def told_report(run: Run, evaluation: Evaluation) -> str | None:
    """Return the line that says where the report lies; None if it could not be written."""
    path = report_path(run, evaluation)
    return f"report: {path}" if path.is_file() else None


def _by_episodes(config: RunConfig, policies: Sequence[TrainedPolicy], named: NamedPolicy) -> Evaluation:
    from velodrome.evaluation.episodes import evaluate_episodes

    options: dict[str, Any] = {"title": config.env, "seed": config.seed + 2_000_003, **_resampling(config)}
    options |= {"training_seeds": named.single_seeds, "notes": named.notes}
    with closing(setup.make_few_environments(config, min(EPISODES, 16))) as envs:
        return evaluate_episodes(policies, envs, EPISODES, **options)


def _on_split(
    config: RunConfig, policies: Sequence[TrainedPolicy], market: Market | Basket, split: str, options: dict[str, Any]
) -> Evaluation:
    from velodrome.evaluation.evaluate import evaluate_policy
    from velodrome.rollout.observation import WindowBank

    if policies[0].shape.windows:
        bank = WindowBank(market.windows)
        policies = [policy.with_bank(bank) for policy in policies]
    options |= {"env": config.env, "seeds": config.evaluation.seeds, **_resampling(config)}
    options["trained_on"] = "train" if "train" in market.splits else None
    return evaluate_policy(policies, market, split, config.params, **options)


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


def _write_report(run: Run, evaluation: Evaluation, metrics: pl.DataFrame) -> None:
    from velodrome.runs.report.images import write_images
    from velodrome.runs.report.report import charts_of, write_report

    config, policy = run.config, evaluation.policy
    assert policy is not None
    each = ", by each training seed" if evaluation.seeds else ", by each member" if policy.ensemble else ""
    information = {
        "run": run.path.name,
        "algorithm": f"{config.algorithm}, {config.network.kind} {list(config.network.hidden)}",
        "training": f"{policy.agents[0].training_steps:,} environment steps in {config.num_envs:,} environments{each}",
        "parameters": ", ".join(f"{name} = {value}" for name, value in config.params.items()) or "defaults",
        "configuration": config.hash,
    }
    trained, patience = policy.agents[0].training_steps, config.evaluation.patience
    if patience is not None and trained < config.steps and run.members[0] is run:
        waited = run.find_checkpoint("latest").plain.get("validations_since_best", 0)
        if waited >= patience:
            information["training"] += f"; {health.ended_early(config, trained)}"
    if lineage := run.folder.lineage:
        information["lineage"] = "; ".join(map(told_lineage, lineage))
    page, drawn = report_path(run, evaluation), charts_of(evaluation)
    try:
        write_report(evaluation, page, f"{config.env}: {run.path.name}", information, metrics, drawn)
    except BaseException:
        with suppress(OSError):
            page.unlink(missing_ok=True)  # one of an earlier evaluation would be taken for this one's
        raise
    write_images(evaluation, run.folder.evaluation_path, drawn)


def steps_between_validations(config: RunConfig, market: Market | Basket | None, device: str) -> int | None:
    """Return after how many environment steps to validate; None: never.

    Work is counted, not timed (docs/decisions/0023-validation-by-counted-work.md): a run that is killed and resumed, or
    begun again on a busier machine, validates at the same steps and chooses the same checkpoint.
    """
    chosen = config.evaluation
    if chosen.every_steps != "auto":
        return chosen.every_steps
    kind = device.partition(":")[0]
    if market is None or chosen.split is None:
        if kind == "cpu" or not is_rule(config.env):
            return STEPS_WITHOUT_BARS["cpu"]
        return max(1, min(STEPS_WITHOUT_BARS[kind], config.steps // chosen.fewest))
    once, each = VALIDATION_IN_STEPS[kind]
    work = once + each * split_bars(market, chosen.split)
    return max(1, min(math.ceil(work / chosen.share), config.steps // chosen.fewest))


def final_in_validations(config: RunConfig, market: Market | Basket | None) -> float | None:
    """Return how many validations take about as long as the evaluation at the end; None: there is none."""
    chosen = config.evaluation
    if market is None:
        return EPISODES / chosen.episodes
    if chosen.final_split is None:
        return None
    bars = [0 if name is None else split_bars(market, name) for name in (chosen.split, chosen.final_split)]
    return FINAL_PER_BAR * bars[1] / max(bars[0], 1)


def split_bars(market: Market | Basket, split: str) -> int:
    """Return how many bars a split has, of all instruments that have bars of their own."""
    part = market.split(split)
    return int((part.end - part.begin).sum())


def play_validation(policy: TrainedPolicy, config: RunConfig, market: Market | Basket | None) -> Validation:
    """Play the validation split (or some episodes) once, without touching the randomness of any learner."""
    from velodrome.evaluation import validation

    chosen = config.evaluation
    if market is not None:
        assert chosen.split is not None
        found = validation.validate_parts(policy, config.env, market, chosen.split, config.params, chosen.episodes)
        return validation.Validation(found[0], tuple(found[1].tolist()))
    from velodrome.evaluation.play import play_episodes

    with closing(setup.make_few_environments(config, min(chosen.episodes, config.num_envs))) as envs:
        played = play_episodes(policy, envs, chosen.episodes, seed=config.seed + 1_000_003)
    figures = {"return": float(played.returns.mean()), "length": float(played.lengths.mean())}
    return validation.Validation(figures, tuple(played.returns.ravel().tolist()))
