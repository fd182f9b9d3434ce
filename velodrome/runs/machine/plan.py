"""How much memory a training needs, and how many environments it plays if it is to choose them itself.

What a learner allocates for each environment is the same for all of them, so small trials say what a large training
needs: one iteration each, the peak of torch's allocator counted, and a line through the last two. On a GPU that line is
believed once an earlier one foresaw its last trial.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from velodrome.errors import ConfigError
from velodrome.runs import setup
from velodrome.runs.config.parameters import is_rule
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.machine import memory
from velodrome.runs.machine.use import bytes_text
from velodrome.vector.config import MEBIBYTE
from velodrome.vector.cores import free_memory, is_rank

if TYPE_CHECKING:
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

# Environments of the larger trial: a GPU's memory is taken in blocks of megabytes, so that it has to be many; those of
# other libraries may take seconds to make.
TRIAL, GPU_TRIAL, FOREIGN_TRIAL = 512, 8192, 8
FEWEST_TRIED, MOST_WEIGHTS = 16, 200_000  # of a network on a CPU; larger ones are tried with fewer environments
TRIAL_SECONDS = 3.0  # after which no larger trial begins
VISIBLE = 0.5  # of a trial's memory that its environments must need, for what each needs to be known
FORESEEN = 0.1  # of a trial's memory, by which smaller trials may be wrong about it
MOST_TRIED = 32  # times as many environments, to get there
USABLE = 0.9  # of free memory that a training may need: allocators round up, and evaluation needs some
OBVIOUS = 0.25  # of free memory: a generous guess that is below it needs no trial
MOST_ITERATIONS = 50  # of a trial
FEWEST_UPDATES = 200  # of a whole training: more environments than leave these would learn too rarely
MEASURED_SECONDS = 10.0  # of trying numbers of environments, at most
ROUND = 64  # numbers of environments are multiples of this: blocks of the CPU's and the GPU's memory are full
MARGIN = 0.1  # by which more environments must be faster to be taken
BEGIN = {"cpu": 256, "cuda": 4096}  # environments to begin the search with


class Line(NamedTuple):
    """Bytes that a training needs in one place: some in any case, and some for each environment."""

    fixed: float
    each: float

    def bytes(self, num_envs: int) -> float:
        """Return what this many environments need."""
        return self.fixed + num_envs * self.each

    def most(self, free: float) -> int:
        """Return how many environments fit."""
        return max(int((free - self.fixed) / max(self.each, 1.0)), 0)


HOST, GPU = "memory", "the GPU's memory"
Needs = dict[str, Line]  # by place


def free_bytes(config: RunConfig, device: str) -> dict[str, float]:
    """Return by place how many bytes a training on a device may take now."""
    limit = float("inf") if config.vector.max_memory is None else config.vector.max_memory * MEBIBYTE
    if not _on_gpu(device):
        return {HOST: min(free_memory(), limit)}
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return {HOST: free_memory(), GPU: min(torch.cuda.mem_get_info(device)[0] + cached, limit)}


def check_that_it_fits(config: RunConfig, market: Market | Basket | None) -> None:
    """Refuse a training that needs more memory than is free, before it starts; of several ranks, what is here of it."""
    device = config.usable_device()
    config = config.with_num_envs(-(-config.num_envs // shares(device)))
    free = free_bytes(config, device)
    # Far from any limit nothing is measured: a start should take no time.
    if generous_guess(config, market) <= OBVIOUS * min(free.values()):
        return
    needs = measured_needs(config, market, device)
    for place, line in needs.items():
        usable = USABLE * free[place]
        if line.bytes(config.num_envs) > usable:
            raise ConfigError(_refusal(config, place, line, free[place]))


def shares(device: str) -> int:
    """Return by how many torchrun's ranks divide what a GPU, or this machine, must hold of a training."""
    if not is_rank():
        return 1
    here = 1 if _on_gpu(device) else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, int(os.environ.get("WORLD_SIZE", "1")) // here)


def _refusal(config: RunConfig, place: str, line: Line, free: float) -> str:
    most = line.most(USABLE * free)
    most -= most % max(10 ** (len(str(most)) - 2), 1)  # two digits: the estimate has no more
    fewest = config.learner.fewest_envs(config.network)
    limit = "are free" if config.vector.max_memory is None else "may be taken (vector.max_memory)"
    fitting = f"At most about {most:,} fit: take fewer, or num_envs=auto"
    if most < fewest:
        fitting = f"{bytes_text(line.fixed)} of that are needed with any number"
    return (
        f"num_envs = {config.num_envs:,}: the training needs about {bytes_text(line.bytes(config.num_envs))} of "
        f"{place} (environments, rollouts, minibatches, network and optimiser), and {bytes_text(free)} {limit}. "
        f"{fitting}. {memory.smaller(config)}"
    )


def generous_guess(config: RunConfig, market: Market | Basket | None) -> float:
    """Return more bytes than a training is likely to need, without making anything."""
    floats, hidden = _observed_floats(config, market), config.network.hidden
    number = config.vector.max_envs if config.vector.num_envs == "auto" else config.num_envs
    # Inputs and every layer's outputs, each with its gradient, for an actor and a critic; weights with Adam's moments.
    each = 4 * (4 * floats + 4 * sum(hidden) + 64)
    return config.learner.samples(number) * each + 4 * 8 * _weights(floats, hidden)


def _observed_floats(config: RunConfig, market: Market | Basket | None) -> int:
    if is_rule(config.env):
        windows = 0 if market is None else int(sum(market.windows.length * market.windows.width))
        return windows + 256  # what a rule observes besides is a few values
    from velodrome.rollout.flattening import flat_size

    space = setup.foreign_observation_space(config)
    assert space is not None
    return flat_size(space)


def _weights(inputs: int, hidden: tuple[int, ...]) -> int:
    return sum(one * other for one, other in pairwise((inputs, *hidden)))


def _on_gpu(device: str) -> bool:
    """Return whether a device has memory of its own; that of the simulator is the host's."""
    import torch

    return device.startswith("cuda") and torch.cuda.is_available()


# Trials


def measured_needs(config: RunConfig, market: Market | Basket | None, device: str) -> Needs:
    """Return what a training needs by place, from trials with few environments."""
    fewest = config.learner.fewest_envs(config.network)
    wanted = config.vector.max_envs if config.vector.num_envs == "auto" else config.num_envs
    wanted = min(wanted, config.learner.most_envs() or wanted, config.vector.max_concurrent_envs or wanted)
    trial = GPU_TRIAL
    if not _on_gpu(device):
        weights = _weights(_observed_floats(config, market), config.network.hidden)
        trial = min(TRIAL, max(TRIAL * MOST_WEIGHTS // max(weights, 1), FEWEST_TRIED))
    large = max(min(wanted, trial if is_rule(config.env) else FOREIGN_TRIAL), fewest)
    small = max(large // 2, fewest)
    before = found = _trial_bytes(config, market, device, small)
    began = time.monotonic()
    needs: Needs = {}
    while True:
        if small < large:
            try:
                before, found = found, _trial_bytes(config, market, device, large)
            except ConfigError:
                if not needs:
                    raise
                return needs  # which say how many fit
        # A GPU's memory is taken in whole blocks, some of which begin to be needed between two trials.
        known = GPU not in found or (bool(needs) and _foresaw(needs[GPU], large, found[GPU]))
        needs = {place: _line(before[place], small, peak, large) for place, peak in found.items()}
        hidden = any(large * line.each < VISIBLE * found[place] for place, line in needs.items())
        is_last = large >= min(wanted, MOST_TRIED * trial) or time.monotonic() - began > TRIAL_SECONDS
        if is_last or (known and not hidden):
            return needs
        # What is needed once, such as to save a large network, hides what environments need until they are many.
        small, large = large, min(2 * large, wanted)


def _foresaw(line: Line, num_envs: int, peak: float) -> bool:
    """Return whether smaller trials said what a larger one needed."""
    return abs(line.bytes(num_envs) - peak) <= FORESEEN * peak


def _line(small_peak: float, small: int, peak: float, large: int) -> Line:
    """Return the line through two trials; one that was both is all its environments'."""
    each = max(peak - small_peak, 0.0) / (large - small) if small < large else peak / large
    return Line(peak - large * each, each)


def _trial_bytes(config: RunConfig, market: Market | Basket | None, device: str, num_envs: int) -> dict[str, float]:
    """Return by place the most bytes that a training with this many environments has at once."""
    import torch

    from velodrome.rollout.launch import WARM_UP

    on_gpu = _on_gpu(device)
    if on_gpu:
        memory.give_back(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    free = free_bytes(config, device)
    try:
        with contextlib.ExitStack() as stack:
            # The system would end this process rather than refuse it memory.
            stack.enter_context(contextlib.nullcontext() if on_gpu else limited_memory(free_memory()))
            counted = stack.enter_context(counted_allocations())
            worlds = stack.enter_context(setup.learning_worlds(config, market, device, None, num_envs))
            learner = setup.make_learner(config, worlds)
            for count in range(MOST_ITERATIONS):
                learns = learner.iterate().get("time/learning", 1.0) > 0.0  # or fills its buffer first
                if learns and count >= (WARM_UP if on_gpu else 0):  # the last one is captured as a graph
                    break
            saved = learner.state()  # is written while learning goes on
            learner.iterate()
            to_come = getattr(learner, "bytes_to_come", lambda: 0)()
            del saved
            buffers = getattr(worlds.envs, "buffers", None)
            if on_gpu:  # graphs keep what they need for as long as they are there
                memory.give_back(device)
                kept = torch.cuda.memory_reserved(device)
            del learner
    except Exception as error:
        lacking = memory.avoidable_shortage(error)
        if lacking is None:
            raise
        place = GPU if on_gpu else HOST
        found = f"{bytes_text(free[place])} of {place} are free, which is too little"
        raise ConfigError(
            f"The training does not fit: {found} even for {num_envs:,} environments ({lacking}). "
            f"{memory.smaller(config)}"
        ) from None
    own = 0.0 if buffers is None or on_gpu else num_envs * buffers.bytes_per_environment
    host = float(counted[0] + to_come) + own
    if not on_gpu:
        return {HOST: host}
    most = max(torch.cuda.max_memory_allocated(device), kept) - before
    memory.give_back(device)
    return {HOST: host, GPU: float(most)}


@contextlib.contextmanager
def counted_allocations() -> Iterator[list[int]]:
    """Count what torch allocates on the host inside: afterwards the list has the most bytes that it had at once."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    peak: list[int] = []
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with without_tracing_notes():
        profiler.start()
    try:
        yield peak
    finally:
        with without_tracing_notes():
            profiler.stop()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == DeviceType.CPU:
            held += event.nbytes()
            most = max(most, held)
    peak.append(most)


@contextlib.contextmanager
def without_tracing_notes() -> Iterator[None]:
    """Drop the lines `USDT:…` that torch's profiler writes to standard error about itself; all others pass."""
    sys.stderr.flush()
    error = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(error, 2)
            os.close(error)
            written.seek(0)
            for line in written:
                if not line.startswith(b"USDT:"):
                    os.write(2, line)


@contextlib.contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let allocations of more than these bytes fail inside, where the system can count what a process may write to."""
    try:
        import resource
    except ImportError:  # no Unix
        yield
        return
    import psutil

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(getattr(psutil.Process().memory_info(), "data", 0)) + more
    if limit == more or (before[0] != resource.RLIM_INFINITY and before[0] <= limit):
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


# Choosing


def with_num_envs(config: RunConfig, market: Market | Basket | None) -> tuple[RunConfig, str]:
    """Return the configuration with a number of environments, and in a sentence why; '' if it had one.

    Chosen is the fastest number that memory has room for and that leaves enough updates; a larger one must be faster
    by a margin. A number that was given is checked.
    """
    if config.vector.num_envs != "auto":
        check_that_it_fits(config, market)
        return config, ""
    device = config.usable_device()
    needs, free = measured_needs(config, market, device), free_bytes(config, device)
    room = {place: line.most(USABLE * free[place]) for place, line in needs.items()}
    place = min(room, key=lambda name: room[name])
    least, least_told = _least(config)
    if room[place] < least:
        raise ConfigError(_refusal(config.with_num_envs(least), place, needs[place], free[place]))
    fitting = f"{room[place]:,} fit into {bytes_text(free[place])} of free {place.removeprefix('the ')}"
    most, bound = _most(config, {fitting: room[place]}, least, least_told)
    number, rates = _fastest(config, market, device, least, most)
    told = ", ".join(f"{size:,}: {rate:,.0f}" for size, rate in sorted(rates.items())) or "none was measured"
    need = " and ".join(f"{bytes_text(line.bytes(number))} of {name}" for name, line in needs.items())
    why = f"Steps per second by number: {told}; {bound}."
    return config.with_num_envs(number), f"num_envs = {number:,} (auto), which needs {need}. {why}"


def _least(config: RunConfig) -> tuple[int, str]:
    """Return how many environments there are at least, and in words why."""
    wanted, needed = config.vector.min_envs, config.learner.fewest_envs(config.network)
    if wanted > needed:
        return wanted, f"at least {wanted:,} are wanted (vector.min_envs)"
    return needed, f"at least {needed:,} {'is' if needed == 1 else 'are'} needed"


def _most(config: RunConfig, bounds: dict[str, int], least: int, least_told: str) -> tuple[int, str]:
    """Return how many environments there are at most, and in words why. bounds: by what is said of them.

    A run that is too short for enough updates has `least` all the same; other bounds below that are an error.
    """
    vector = config.vector
    bounds = {**bounds, f"{vector.max_envs:,} are wanted (vector.max_envs)": vector.max_envs}
    for number, told in (
        (vector.max_concurrent_envs, "are allowed at once (vector.max_concurrent_envs)"),
        (config.learner.most_envs(), f"have room in the buffer of {config.algorithm}"),
    ):
        bounds |= {} if number is None else {f"{number:,} {told}": number}
    bound = min(bounds, key=lambda text: bounds[text])
    if bounds[bound] < least:
        raise ConfigError(f"num_envs = auto: {least_told}, and at most {bound}. Change one of the two.")
    updates = config.steps // (config.learner.rollout_length * FEWEST_UPDATES)
    if updates < least:
        return least, f"{least_told}, which leaves fewer than {FEWEST_UPDATES} updates in {config.steps:,} steps"
    if updates < bounds[bound]:
        most, bound = updates, f"{updates:,} leave {FEWEST_UPDATES} updates in {config.steps:,} steps"
    else:
        most = bounds[bound]
    most -= most % ROUND if most - most % ROUND >= least else 0
    return most, f"at most {bound}"


def _fastest(
    config: RunConfig, market: Market | Basket | None, device: str, least: int, most: int
) -> tuple[int, dict[int, float]]:
    """Return the number of environments to take, and by number the steps per second of those that were tried."""
    from velodrome.rollout.launch import WARM_UP
    from velodrome.vector.fleet.autoscale import Autoscaler

    on_gpu = _on_gpu(device)
    begin = min(max(BEGIN["cuda" if on_gpu else "cpu"], least), most)
    scaler = Autoscaler(least, most, observations=3, margin=MARGIN)
    until, warm = time.monotonic() + MEASURED_SECONDS, 0
    with setup.learning_worlds(config, market, device, None, begin) as worlds:
        learner = setup.make_learner(config, worlds)
        while scaler.searching and time.monotonic() < until:
            number = worlds.num_envs
            if on_gpu and number != warm:  # graphs are captured before anything is timed
                for _ in range(WARM_UP + 1):
                    learner.iterate()
                warm = number
            before = learner.steps
            metrics = learner.iterate()
            steps = learner.steps - before
            if metrics.get("time/learning") == 0.0:  # it fills its buffer first, which is no measure
                until += steps / metrics["time/steps_per_second"]
                continue
            wanted = scaler.observe(number, steps, steps / metrics["time/steps_per_second"], 0.0)
            if wanted is not None:
                learner.resize(wanted)
    return scaler.best or begin, {size: measured.rate for size, measured in scaler.tried.items()}
