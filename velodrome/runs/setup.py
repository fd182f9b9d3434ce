"""From a configuration to environments and a learner, and from a checkpoint back to a policy."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.envs.contract import InstrumentLayout
from velodrome.errors import CheckpointError, ConfigError, VelodromeError, sentence
from velodrome.learn.catalog import ALGORITHMS
from velodrome.learn.config import NetworkConfig
from velodrome.runs.bucket.place import here
from velodrome.runs.config.files import load_run_config, load_with_origins
from velodrome.runs.config.parameters import is_rule, price_data
from velodrome.runs.config.run_config import RunConfig
from velodrome.vector.config import MEBIBYTE
from velodrome.writing import new_folder

if TYPE_CHECKING:
    import gymnasium
    from torch import Tensor

    from velodrome.bars.frame import Bars
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.rollout.observation import ObservationShape
    from velodrome.rollout.worlds import Worlds
    from velodrome.runs.checkpoint import Checkpoint
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market
    from velodrome.vector.fleet.autoscale import Autoscaler

log = logging.getLogger("velodrome.runs")
MOST = 1 << 40  # things that a checkpoint may name; each factor of a size is below it
FEW_WINDOWS = 64  # more than anybody has timeframes
BARS_FOLDER = "bars"  # beside the runs: bars that programs gave
ONE_THREAD = 4096  # environments that step on one core while a learner has the others


ACTIONS_OF_RULES = {"Discrete", "MultiDiscrete", "Box"}
TREATMENT = ("on_fault", "max_restarts", "check_values")  # of environments of other libraries that fail


def environment_options(
    config: RunConfig, market: Market | Basket | None, num_envs: int, device: str
) -> dict[str, Any]:
    """Return the options of `make_vec` for the environments that a run learns in, or for others like them."""
    if not is_rule(config.env):
        return {**config.vector.foreign_options(), "seed": config.seed, **config.params}
    given: dict[str, Any] = dict(config.params)
    if market is not None:
        given |= {"market": market, "split": "train" if "train" in market.splits else None}
    from velodrome.vector.cuda import is_rocm

    on_gpu = device.startswith("cuda") and not is_rocm()
    backend = "python" if config.vector.env_type == "python" else "cuda" if on_gpu else "native"
    # A few hundred environments step in microseconds, less than it takes to share them with a learner's threads.
    threads = 1 if backend == "native" and num_envs <= ONE_THREAD else None
    # The learner's actions are legal by construction.
    options = {"backend": backend, "seed": config.seed, "observation": "cursor", "check_actions": False}
    if on_gpu:
        options["device"] = device
    return {**options, "check_values": config.vector.check_values, "threads": threads, **given}


def make_few_environments(config: RunConfig, num_envs: int) -> Any:
    """Return a few environments without a market, made as in training."""
    from velodrome.vector.make import make_vec

    options = environment_options(config, None, num_envs, "cpu")
    if config.vector.env_type == "auto" and not is_rule(config.env):
        # A few episodes are not worth a measurement; faults are treated as in training.
        fault_options = {name: value for name, value in options.items() if name in TREATMENT}
        options = {"backend": "serial", "seed": config.seed, **fault_options, **config.params}
    return make_vec(config.env, num_envs, **options)


@contextlib.contextmanager
def learning_worlds(
    config: RunConfig,
    market: Market | Basket | None,
    device: str,
    monitor: Path | None = None,
    num_envs: int | None = None,
    as_ranks: bool = False,
) -> Iterator[Worlds]:
    """Yield the environments of a run as its learner sees them, and close them at the end.

    monitor: file for the monitor of environments of other libraries, if the configuration wants one.
    num_envs: how many, if not as many as the configuration says. as_ranks: share them among ranks, if there are any.
    """
    import torch

    from velodrome.rollout import ranks, worlds
    from velodrome.rollout.disturbance import Strength
    from velodrome.rollout.observation import WindowBank
    from velodrome.vector.cuda import current_device
    from velodrome.vector.make import make_vec

    half = config.learner.precision == "bfloat16" and device.startswith("cuda")
    vector, num_envs = config.vector, num_envs or config.num_envs
    first, total, together = 0, num_envs, ranks.joined() if as_ranks else None
    if together is not None:
        check_ranks(config)
        if together.leads:  # the others wait for it
            together.sent((config, total))
        together.are_learning = True
        first, num_envs = together.share(total, device)
    shown = training_market(config, market)
    options = environment_options(config, shown, num_envs, device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(current_device(device))
        if vector.max_concurrent_envs is None:
            envs = make_vec(config.env, num_envs, **options)
            stack.callback(envs.close)
        else:
            from velodrome.vector.fleet.pool import shared_pool

            if "timeout" in options:
                options["step_timeout"] = options.pop("timeout")
            pool = shared_pool(vector.max_concurrent_envs)
            envs = stack.enter_context(pool.lease(config.env, num_envs, **options))
        if not is_rule(config.env) and vector.enable_monitoring:
            from velodrome.vector.fleet.monitor import VecMonitor

            envs = VecMonitor(envs, monitor)
            stack.callback(envs.finish)
        found = worlds.make_worlds(envs, device, torch.bfloat16 if half else torch.float32)
        if config.augment.disturbance is not None:
            found.disturb(Strength(**config.augment.disturbance), config.seed)
        if shown is not market and market is not None and found.true_bank is not None:
            found.true_bank = WindowBank(market.windows, (), found.device, found.true_bank.table.dtype)
        found.join(first, total)
        yield found
        if together is not None:
            together.are_learning = False
            if together.leads:
                together.tell(ranks.END)


def check_ranks(config: RunConfig) -> None:
    """Refuse a training that several ranks cannot share, before there is a folder."""
    ranks = int(os.environ["WORLD_SIZE"])
    if config.vector.num_envs != "auto" and config.num_envs < ranks:
        raise ConfigError(
            f"num_envs = {config.num_envs} for {ranks} ranks; each needs an environment at least. Give num_envs="
            f"{ranks} or more, or start fewer ranks."
        )
    if config.algorithm != "ppo":
        raise ConfigError(
            f"algorithm = {config.algorithm}: several ranks can train ppo. Leave torchrun and --nproc out, or train "
            "several seeds side by side: seeds=5."
        )
    if config.vector.autoscale or config.vector.max_concurrent_envs is not None:
        raise ConfigError(
            "vector.autoscale and vector.max_concurrent_envs change the number of environments while a training runs, "
            "which ranks have fixed shares of. Leave them out."
        )


def training_market(config: RunConfig, market: Market | Basket | None) -> Market | Basket | None:
    """Return what a run's environments play on: its market, and beside its training split the copies asked for."""
    from velodrome.tables.market import Market
    from velodrome.tables.resampled import Resampling, with_resampled

    told = config.augment
    if market is None or not told.copies:
        return market
    assert isinstance(market, Market)
    how = Resampling(told.copies, told.bootstrap_block, told.price_noise)
    chosen = {name: getattr(config.market, name) for name in ("features", "session", "check_leaks")}
    return with_resampled(market, how, config.seed, **chosen)


def make_autoscaler(config: RunConfig) -> Autoscaler | None:
    """Return what decides how many environments a run uses while it learns, None if that is fixed."""
    vector = config.vector
    if not vector.autoscale:
        return None
    from velodrome.vector.fleet.autoscale import Autoscaler

    limit = None if vector.max_memory is None else vector.max_memory * MEBIBYTE
    most = min(vector.max_envs, vector.max_concurrent_envs or vector.max_envs)
    least = max(vector.min_envs, config.learner.fewest_envs(config.network))
    return Autoscaler(min(least, most), most, memory_limit=limit)


def resize_as_measured(scaler: Autoscaler, learner: Any, steps: int, seconds: float) -> str | None:
    """Change the number of environments if the steps and seconds of an iteration ask for it; return what to show."""
    from velodrome.vector.fleet.autoscale import bytes_in_use
    from velodrome.vector.fleet.pool import PoolBusyError

    before = learner.worlds.num_envs
    wanted = scaler.observe(before, steps, seconds, bytes_in_use())
    if wanted is None or wanted == before:
        return None
    try:
        learner.resize(wanted)
    except (PoolBusyError, ConfigError) as error:  # others have the rest of the budget; a replay has no room
        log.info("not resized: %s", error)
        return None
    log.info("resized from %d to %d environments at step %d", before, wanted, learner.steps)
    return f"{wanted:,} environments, from {before:,}"


def teach(config: RunConfig, market: Market | Basket | None, learner: Any, shelf: Path | None = None) -> str:
    """Let a new learner's policy begin as its teacher, if it is to have one; return what was done, for people.

    shelf: a folder where trainings that are taught the same leave it for each other.
    """
    if config.teacher.policy is None or market is None:
        return ""
    from velodrome.envs.catalog import CATALOG
    from velodrome.evaluation.forecast import teaching
    from velodrome.evaluation.forecast.kept import Shelf
    from velodrome.learn.imitation import cannot_imitate
    from velodrome.registry import load

    told, lacking = config.teacher, cannot_imitate(learner)
    hold = teaching.hold_for(market) if told.hold == "auto" else told.hold
    lesson = teaching.Lesson(told.samples, told.epochs, config.seed, hold)
    about: str | None = None
    shelf = shelf if market.content_hash and not lacking else None
    if shelf is not None:
        kept = Shelf(shelf)
        place = kept.place(learner, f"{told.policy} of {told.bars}", config.env, market, config.params, lesson)
        about = kept.take(place, learner, hold)
    if about is None:
        half = {"half": config.seed} if told.bars == "half" else {}
        found = lacking or load(CATALOG.get(config.env).teacher)(market, config.params, **half)
        if isinstance(found, str):
            return f"The policy begins at random: {found}."
        began = time.monotonic()
        teaching.teach(learner, found, config.env, market, config.params, lesson)
        log.info("lesson took %.3f s", time.monotonic() - began)
        about = found.about
        if shelf is not None:
            kept.put(place, learner, about)
    held = f" After every update it goes {hold:.1%} of the way back to it (teacher.hold)." if hold else ""
    return f"The policy begins as a {told.policy}er's rule (teacher.policy): {about}.{held}"


def told_choices(market: Market | Basket | None, *chosen: str) -> list[str]:
    """Return the paragraph about what was chosen by the data of a run; none where nothing was."""
    if market is None or not any(chosen):
        return []
    from velodrome.bars.timeframe import infer_timeframe
    from velodrome.evaluation.forecast.forecast import Part
    from velodrome.tables.scaling import TRAIN

    rows = Part(market, TRAIN).rows
    size = infer_timeframe(market.time[market.begin[0] : market.end[0]]).text
    return [f"Chosen by {len(rows):,} training bars of {size} and what trading costs. {' '.join(filter(None, chosen))}"]


def make_learner(config: RunConfig, worlds: Worlds) -> Any:
    """Return the learner of a run."""
    entry = ALGORITHMS.get(config.algorithm)
    entry.check_action_space(worlds.action_space)
    learner = entry.make_learner(worlds, config.network, config.learner, total_steps=config.steps, seed=config.seed)
    learner.total_episodes = config.episodes
    return learner


def check_rule_actions(config: RunConfig, market: Market | Basket | None) -> None:
    """Refuse a rule whose actions the algorithm cannot choose, before there is a folder."""
    from velodrome.envs.catalog import CATALOG

    entry = ALGORITHMS.get(config.algorithm)
    # To assemble a world takes a moment, and most algorithms take whatever a rule may have.
    if is_rule(config.env) and not set(entry.action_spaces) >= ACTIONS_OF_RULES:
        data = {} if market is None else {"market": market}
        entry.check_action_space(CATALOG.get(config.env).make_world(**config.params, **data).action_space)


# What a checkpoint says about the agent in it


def copies_state(learner: Any) -> bool:
    """Return whether what a learner's `state` returns stays as it is while it learns: ours do, others may not."""
    from velodrome.learn.learner import Learner

    return getattr(type(getattr(learner, "own", learner)), "state", None) is Learner.state


def saved_facts(config: RunConfig) -> dict[str, Any]:
    """Return what a checkpoint must say of its network besides NetworkConfig."""
    return ALGORITHMS.get(config.algorithm).saved_facts(config.learner)


def describe_agent(config: RunConfig, worlds: Worlds) -> dict[str, Any]:
    """Return what must be known to use a network without its data, as JSON holds it."""
    names = getattr(getattr(worlds.envs, "world", None), "window_names", ())
    layout = worlds.shape.instruments
    instruments = {} if layout is None else {"instruments": {"count": layout.count, "own": list(layout.own)}}
    divided = {"bytes": [list(columns) for columns in worlds.shape.bytes]} if worlds.shape.bytes else {}
    return {
        "env": config.env,
        "algorithm": config.algorithm,
        "values": worlds.shape.values,
        "windows": [list(shape) for shape in worlds.shape.windows],
        "window_names": list(names),
        "actions": describe_space(worlds.action_space),
        "network": config.network.model_dump(mode="json"),
        **instruments,
        **divided,
    }


def describe_space(space: gymnasium.Space) -> dict[str, Any]:
    """Return an action space as JSON holds it."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return {"kind": "discrete", "count": int(space.n)}
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "counts": space.nvec.tolist()}
    if isinstance(space, gymnasium.spaces.Box):
        return {"kind": "box", "low": space.low.tolist(), "high": space.high.tolist()}
    raise ConfigError(f"The action space {space} cannot be learnt; there are Discrete, MultiDiscrete and Box.")


def read_space(described: dict[str, Any]) -> gymnasium.Space:
    """Return the action space that `describe_space` described."""
    import gymnasium
    import numpy as np

    from velodrome.rollout.worlds import float32_ends

    if described["kind"] == "discrete":
        return gymnasium.spaces.Discrete(_count(described["count"]))
    if described["kind"] == "multi_discrete":
        return gymnasium.spaces.MultiDiscrete(np.array(described["counts"], np.int64))
    low, high = float32_ends(*(np.array(described[end], np.float64) for end in ("low", "high")))
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def check_agent(saved: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Refuse the checkpoint of another environment or network, naming what differs.

    What checkpoints did not yet say when it was written is no difference; settings of the network had their defaults.
    """
    if isinstance(saved.get("network"), dict):
        read = ALGORITHMS.get(wanted["algorithm"]).reads
        settings = {**NetworkConfig().model_dump(mode="json"), **saved["network"]}
        # Older versions took settings that the algorithm does not read.
        saved = {**saved, "network": {name: value for name, value in settings.items() if read("network", name)}}
        wanted = {**wanted, "network": {name: wanted["network"][name] for name in saved["network"]}}
    if "instruments" in wanted and "instruments" not in saved:
        wanted = {name: value for name, value in wanted.items() if name != "instruments"}
    if "bytes" in wanted and "bytes" not in saved:
        raise CheckpointError(
            f"{where}: this checkpoint learnt from bytes as they are, by an older version, and here they are divided "
            "by 255. It can be evaluated, exported and asked for actions; to train, start a new run."
        )
    for name, value in wanted.items():
        if saved.get(name) != value:
            raise CheckpointError(
                f"{where}: this checkpoint is of another agent: {name} is {saved.get(name)!r} there and {value!r} "
                f"here. Resume the run that wrote it, or start a new one."
            )


def foreign_observation_space(config: RunConfig) -> gymnasium.Space | None:
    """Return what one environment of another library shows; None for rule environments.

    Actions that the algorithm cannot choose are refused: a training asks this before it has a folder.
    """
    if is_rule(config.env):
        return None
    from velodrome.vector.workers.env_maker import EnvMaker

    try:
        one = EnvMaker(config.env, config.params)()
    except VelodromeError:
        raise
    except Exception as error:  # of somebody else's code
        raise ConfigError(
            f"env = {config.env!r} cannot be made: {type(error).__name__}: {sentence(error)} What it takes is given as "
            "params.NAME=…"
        ) from error
    with contextlib.closing(one):
        ALGORITHMS.get(config.algorithm).check_action_space(one.action_space)
        return one.observation_space


def load_policy(
    tensors: dict[str, Tensor], plain: dict[str, Any], observation_space: gymnasium.Space | None = None
) -> TrainedPolicy:
    """Return the policy in a checkpoint; it acts on flat observations, and by cursor once it has a bank.

    observation_space: of one environment of another library, whose observations need not be flat.
    """
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.learn.learner import only
    from velodrome.rollout.moments import RunningMoments

    network, shape, space = _described_network(plain)
    network.load_state_dict(only(tensors, "average") or only(tensors, "policy"))
    moments = None
    if saved := only(tensors, "moments"):
        moments = RunningMoments(shape.values)
        moments.load_state(saved)
    names = tuple(plain["agent"]["window_names"])
    further: dict[str, Any] = {"window_names": names, "observation_space": observation_space}
    if scale := only(tensors, "scale"):  # rewards were divided by this
        further["value_unit"] = float((scale["variance"] + 1e-8).sqrt())
    return TrainedPolicy(network.eval(), shape, space, moments=moments, **further)


def _described_network(plain: dict[str, Any]) -> tuple[Any, ObservationShape, gymnasium.Space]:
    """Return a new network like the one that a checkpoint describes, what it observes and how it acts."""
    from velodrome.rollout.observation import ObservationShape

    agent = plain["agent"]
    layout = agent.get("instruments")
    instruments = (
        None if layout is None else InstrumentLayout(_count(layout["count"]), tuple(map(_count, layout["own"])))
    )
    windows = tuple((_count(rows), _count(width)) for rows, width in agent["windows"])
    # Versions that did not divide bytes by 255 do not name them, and their networks see them as they are.
    divided = tuple((_count(first), _count(end)) for first, end in agent.get("bytes", ()))
    shape = ObservationShape(_count(agent["values"]), windows, instruments, divided)
    space, settings = read_space(agent["actions"]), NetworkConfig(**agent["network"])
    return ALGORITHMS.get(agent["algorithm"]).make_network(shape, space, settings, plain), shape, space


def _count(number: Any) -> int:
    """Return a number of things that a file names; a text or a list, whose product with a number is long, is none."""
    if type(number) is not int or not 0 <= number < MOST:
        raise ValueError(f"{str(number)[:40]!r} is not a number of things from 0 to {MOST:,}")
    return number


def check_network(found: Checkpoint, kind: str) -> None:
    """Refuse a checkpoint of another kind of network than its run's, or whose tensors are not those of a network.

    What it describes is made without memory first: a number in a file must not cost gigabytes.
    """
    import torch

    from velodrome.learn.learner import only

    agent = found.plain["agent"]
    kept = [own for part in ("policy", "average") if (own := only(found.tensors, part))] or [{}]
    saved = kept[0]
    settings = NetworkConfig(**agent["network"])
    if settings.kind != kind:
        raise CheckpointError(f"{found.path}: its network is {settings.kind!r}, and that of its run {kind!r}.")
    for name, tensor in (pair for own in kept for pair in own.items()):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(f"{found.path}: its weights {name} are not all numbers. Use an earlier one.")
    if ":" in kind:  # made by code that a person trusts
        return
    # Each layer and each window has a tensor at least; instruments share theirs.
    if max(len(settings.hidden), len(settings.channels), len(agent["windows"])) > len(saved) + FEW_WINDOWS:
        raise CheckpointError(f"{found.path}: it describes more layers than its {len(saved)} tensors can be.")
    with torch.device("meta"):
        wanted = _described_network(found.plain)[0].state_dict()
    first, *others = [{name: tensor.shape for name, tensor in each.items()} for each in (wanted, *kept)]
    if any(own != first for own in others):
        raise CheckpointError(f"{found.path}: its tensors are not those of the network that it describes ({kind}).")


def with_bars(config: Any, overrides: dict[str, Any], bars: Any) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration of a run on bars that a program has, as Bars or as frames, and its settings' origins.

    They are kept beside the runs, in a folder named for their content, so that the run can be continued and evaluated
    like one on files.
    """
    from velodrome.bars.files import write_bars
    from velodrome.tables.hashing import content_hash

    told, origins = load_with_origins(config, {**overrides, "market.source": BARS_FOLDER})
    read = told.market.read(bars)
    content = {symbol: {**vars(series), "extra": dict(series.extra)} for symbol, series in read.series.items()}
    place = here(told.logging.folder) / BARS_FOLDER / content_hash(content)[:16]
    if not place.exists():
        with new_folder(place) as folder:
            write_bars(read, folder)
    # What was read is not to be adjusted, renamed or refused again.
    as_kept: dict[str, Any] = dict.fromkeys(("columns", "day_first", "max_gap"))
    as_kept |= {"source": str(place), "symbols": list(read.symbols), "timezone": read.timezone, "adjust": False}
    kept = {f"market.{name}": value for name, value in as_kept.items()}
    return load_run_config(told, kept), {**origins, **dict.fromkeys(kept, "the bars given")}


def build_market(
    config: RunConfig, given: Market | Basket | None = None, source: Path | None = None, bars: Bars | None = None
) -> Market | Basket | None:
    """Return the market or the basket of a run, as its environment takes it; None for environments without one.

    given: one that is built already, in place of the configuration's; one of the wrong kind is refused.
    source: where the files of the configuration's market lie now. bars: what was read of them already.
    """
    wanted = price_data(config.env)
    if given is None:
        told = config.market if source is None else config.market.model_copy(update={"source": str(source)})
        return None if wanted is None else told.build_basket(bars) if wanted == "basket" else told.build(bars)
    if type(given).__name__.lower() != wanted:
        advice = f"it plays on a {wanted}: vd.build_{wanted}(bars)" if wanted else "it plays on no market"
        raise ConfigError(f"market is a {type(given).__name__}, and env = {config.env!r}: {advice}.")
    return given


def market_to_train_on(config: RunConfig) -> tuple[RunConfig, Market | Basket | None, str]:
    """Build the market of a new run, with windows shortened to the rows that help if that is asked for.

    Return the settings, the market and what was done. The files are read once.
    """
    if price_data(config.env) is None or not config.market.shorten:
        return config, build_market(config), ""
    from velodrome.evaluation.forecast.forecast import rows_that_help

    bars = config.market.bars()
    market = build_market(config, bars=bars)
    assert market is not None
    rows, lengths = rows_that_help(market), market.windows.length.tolist()
    if rows is None:
        return config, market, "Windows stay as they are: there is too little to choose their length by."
    told = f"walk-forward regression of the next return inside the training split (market.shorten) chose {rows}"
    if rows >= max(lengths):
        return config, market, f"Windows stay {max(lengths)} rows long: {told}, of at most that many."
    shown = {name: min(length, rows) for name, length in zip(market.window_names, lengths, strict=True)}
    windows = rows if isinstance(config.market.windows, int) else shown
    # The features are those of the longer windows, which have been looked at.
    looked_at = config.market.model_copy(update={"windows": windows, "check_leaks": False})
    market = build_market(config.model_copy(update={"market": looked_at}), bars=bars)
    chosen = config.model_copy(update={"market": config.market.model_copy(update={"windows": windows})})
    return chosen, market, f"Windows show the latest {rows} of {max(lengths)} rows: {told}."
