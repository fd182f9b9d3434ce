"""PufferLib 3.0.0's vectorisers over plain Gymnasium environments, through its emulation.

`Serial` steps them in a loop, `Multiprocessing` in worker processes with shared memory, all of them or, in turns, those
of some workers while the others go on: its zero-copy batches, what `batch_size=auto` gives. With as many environments,
these are also what its `autotune` chooses from.

Its workers, and who waits for them, ask for news without a pause, and workers go on asking for half a second after the
last step. So others would be disturbed in their turns, unless they begin later. An environment that has ended is reset
by a step of its own, which takes no action; such steps are not counted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from velodrome.bench.options import Peer
from velodrome.bench.timing import Batch, Source, Stepper
from velodrome.errors import ConfigError

FALL_ASLEEP_SECONDS = 0.6  # until workers that have nothing to do leave the cores alone
WAKE_SECONDS = 0.05  # of stepping, until those that sleep are back


def imported(name: str = "vector") -> Any:
    """Return a module of PufferLib.

    Importing it puts a link named `resources` into the current folder, and changes what is warned of and told.
    """
    quiet = (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    )
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for context in (*quiet, contextlib.chdir(folder)):
            stack.enter_context(context)
        return importlib.import_module(f"pufferlib.{name}")


def emulated_env(maker: Callable[[], Any], later: int, buf: Any = None, seed: int = 0) -> Any:
    """Return an environment as PufferLib takes it, which resets with a seed that is `later` than what it is told."""
    env = maker()
    reset = env.reset
    if later:
        env.reset = lambda *, seed=None, **rest: reset(seed=None if seed is None else seed + later, **rest)
    return imported("emulation").GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


def seed_lags(num_envs: int, workers: int) -> list[int]:
    """Return by how much the seed that PufferLib gives each environment is behind seed + its number.

    Worker w begins with seed + w, so that neighbours would share seeds.
    """
    each = num_envs // workers
    return [(number // each) * (each - 1) for number in range(num_envs)]


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Let processes be forked meanwhile, as by default on Linux; a spawned process would spawn its own."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def open_puffer(source: Source, backend: str = "Multiprocessing") -> Batch:
    """Return the environments under one of its vectorisers."""
    vector, num_envs = imported(), len(source.makers)
    given: dict[str, Any] = {}
    if backend == "Multiprocessing":
        workers = source.workers or num_envs
        # More of them than cores is refused unless it is said to be meant.
        crowded = workers > (psutil.cpu_count(logical=False) or 1)
        given = {"num_workers": workers, "batch_size": source.received or num_envs, "overwork": crowded}
    lags = seed_lags(num_envs, given.get("num_workers", 1)) if given else [0] * num_envs
    creators = [partial(emulated_env, maker, lag) for maker, lag in zip(source.makers, lags, strict=True)]
    unnamed: list[Any] = [[] for _ in creators]
    with forking():
        envs = vector.make(creators, unnamed, [{} for _ in creators], getattr(vector, backend), num_envs, **given)
    if envs.driver_env.is_obs_emulated or envs.driver_env.is_atn_emulated:
        envs.close()
        raise ConfigError("is compared where observations and actions are arrays: emulated structures come as bytes")

    def reset(seed: int) -> NDArray:
        envs.async_reset(seed)
        return envs.recv()[0]

    def step(actions: Any) -> tuple[Any, ...]:
        envs.send(actions)
        observations, rewards, terminated, truncated, *_ = envs.recv()
        return observations, rewards, terminated | truncated

    return Batch(reset, step, envs.close, envs, envs.single_action_space)


def trajectory(
    envs: Any, seed: int, actions: Sequence[Any], steps: int, sums: Callable[[Any], NDArray]
) -> list[dict[str, NDArray]]:
    """Return what the environments give, as if each were reset within the step that ends its episode.

    actions: a ring of batches. sums: makes one number of each observation.
    """
    count = envs.num_agents
    taken, resets = np.full(count, -1), np.ones(count, bool)  # steps of each; whether its next answer is a reset's
    shown, rewards, ended = (
        np.zeros((steps + 2, count)),
        np.zeros((steps + 2, count)),
        np.zeros((steps + 2, count), bool),
    )
    envs.async_reset(seed)
    while taken.min() < steps or resets[taken == steps].any():
        observations, given, terminated, truncated, _, rows, _ = envs.recv()
        stepped = ~resets[rows]
        taken[rows] += stepped | (taken[rows] < 0)
        places = np.minimum(taken[rows], steps + 1)  # the last of them is for steps that nobody asked for
        shown[places, rows] = sums(observations)
        rewards[places[stepped], rows[stepped]] = given[stepped]
        resets[rows] = terminated | truncated
        ended[places[stepped], rows[stepped]] = resets[rows[stepped]]
        envs.send(np.stack([actions[taken[row] % len(actions)][row] for row in rows.tolist()]))
    steps_of = zip(rewards, ended, shown, strict=True)
    found = [{"the reward": one, "ended": two, "the observation": three} for one, two, three in steps_of]
    return [{"the first observation": shown[0]}, *found[1 : steps + 1]]


def stepper_of(envs: Any, observations: Any, choose: Callable[[int, Any], Any]) -> Stepper:
    """Return what sends actions to the environments that were received last, then receives the next, once around.

    They are not reset once more: PufferLib waits for ever where nothing was sent between two resets. What workers
    finish before a turn begins must not count, nor what is unfinished when it ends: so each begins with all at rest.
    """
    shown, uncounted = [observations], [0]
    parts = envs.num_agents // envs.agents_per_batch
    semaphores = envs.buf["semaphores"] if isinstance(envs, imported().Multiprocessing) else np.zeros(0)
    at_rest = imported().MAIN

    def step(k: int) -> None:
        for _ in range(parts):
            envs.send(choose(k, shown[0]))
            shown[0], _, terminated, truncated, *_ = envs.recv()
            uncounted[0] += int(np.count_nonzero(terminated | truncated))

    def wake() -> None:
        until, k = time.perf_counter() + WAKE_SECONDS, 0
        while k < 1 or time.perf_counter() < until:
            step(k)
            k += 1
        while (semaphores < at_rest).any():
            pass
        uncounted[0] = envs.num_agents - envs.agents_per_batch  # they wait to be received

    def rest() -> None:
        time.sleep(FALL_ASLEEP_SECONDS if len(semaphores) else 0.0)

    return Stepper(step, wake, rest=rest, uncounted=lambda: uncounted[0])


INSTALL = "benchmarks/README.md says how PufferLib is built"
NEEDS: dict[str, Any] = {"modules": ("pufferlib",), "install": INSTALL}
PUFFERLIB: dict[str, Peer] = {
    "puffer": Peer("PufferLib", open_puffer, **NEEDS),
    "puffer_async": Peer("PufferLib", open_puffer, **NEEDS),
    "puffer_serial": Peer("PufferLib Serial", partial(open_puffer, backend="Serial"), **NEEDS),
}


def layouts(peer: str, num_envs: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return the workers, and the environments that are received at once, with which a peer is measured.

    counts: of workers, as Velodrome has them. PufferLib wants as many environments in each; half of all are received
    at once where that can be.
    """
    if peer == "puffer_serial":
        return [{}]
    # Who waits for its workers keeps a core busy, so that one worker less than cores may be faster.
    counts = (max(1, min(counts) - 1), *counts)
    fitting = sorted({max(one for one in range(1, count + 1) if num_envs % one == 0) for count in counts})
    if peer == "puffer":
        return [{"workers": workers} for workers in fitting]
    # Batches are whole workers, and all of the same size.
    several = [workers for workers in fitting if workers > 1]
    return [{"workers": workers, "received": num_envs // (2 if workers % 2 == 0 else workers)} for workers in several]
