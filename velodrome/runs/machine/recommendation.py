"""`recommend`: which backend, how many workers and, if nobody says, how many environments are best on this machine."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config
from velodrome.runs.machine import plan
from velodrome.runs.machine.use import bytes_text
from velodrome.vector.cores import available_cores, free_memory
from velodrome.vector.make import make_vec
from velodrome.vector.workers import autotune
from velodrome.vector.workers.env_maker import EnvMaker, environment_makers, is_foreign
from velodrome.vector.workers.measuring import measure_row

if TYPE_CHECKING:
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

FIRST_TRIED = 16  # environments of a rule
MOST_FOREIGN = 1_024  # environments of another library; one process has no more of them per second
MEMORY_SHARE = 0.5  # of what is free, for environments alone: a learner needs some too
PARTS = 40  # of the time, each a measurement
ENOUGH = 0.9  # of the best rate: fewer environments that reach it are taken
COPIES = 4  # of an observation, in bytes' worth: the last ones and the final ones, in float32


def recommend(
    env: Any,
    num_envs: int | None = None,
    *,
    seconds: float = 2.0,
    learner: str | None = None,
    steps: int | None = None,
    market: Market | Basket | None = None,
    **params: Any,
) -> autotune.Recommendation:
    """Return the backend, workers, environments per worker and number of environments that are best here.

    env: as for `make_vec`, with its parameters as keywords. Environments are made, stepped with sampled actions, also
        in processes, and closed again.
    num_envs: how many there are to be; None recommends that too: the fewest that are about as fast as any, by
        measurement, and that fit into the memory that is free.
    seconds: about how long to measure. Starting workers, and steps that take longer than that, add to it.
    learner: an algorithm, such as "ppo": the number is then the one with which it learns the most samples per second,
        measured with its networks and rollouts, and leaves enough updates in a run of this many `steps`.
    """
    if market is not None:
        params["market"] = market
    if num_envs is not None:
        return autotune.recommend(env, num_envs, seconds=seconds, **params)
    if learner is not None:
        return _for_learner(env, learner, steps, market, seconds, params)
    if steps is not None:
        raise ConfigError(f"steps = {steps} says how long a learner learns; give learner, such as 'ppo', too.")
    if is_foreign(env):
        return _foreign(environment_makers(env, params), seconds)
    number, rates = _fastest_of_rule(env, params, seconds)
    known = autotune.recommend(env, number)
    told = ", ".join(f"{size:,}: {rate:,.0f}" for size, rate in sorted(rates.items()))
    measured = {f"native, {size}": rate for size, rate in rates.items()}
    return replace(
        known, reason=f"{known.reason}. {number:,} environments: steps per second by number: {told}", measured=measured
    )


def _for_learner(
    env: Any, learner: str, steps: int | None, market: Any, seconds: float, params: dict[str, Any]
) -> autotune.Recommendation:
    own = {name: value for name, value in params.items() if name not in ("market", "split")}
    told = {"env": env, "algorithm": learner, "num_envs": "auto", **({} if steps is None else {"steps": steps})}
    config = load_run_config({**told, **({"params": own} if own else {})}, own_data=market is not None)
    built = market if market is not None else plan.setup.build_market(config)
    chosen, why = plan.with_num_envs(config, built)
    known = autotune.recommend(env, chosen.num_envs, seconds=seconds, **params)
    return replace(known, reason=f"{known.reason}. {why}")


def _fastest_of_rule(env: Any, params: dict[str, Any], seconds: float) -> tuple[int, dict[int, float]]:
    """Return the number of environments of a rule to take, and by number the steps per second of those tried.

    Numbers are doubled until none of the last three was much faster than those before.
    """
    rates: dict[int, float] = {}
    with closing(make_vec(env, FIRST_TRIED, seed=0, **params)) as envs:
        floats = sum(envs.single_observation_space.shape)
        each = envs.buffers.bytes_per_environment + 4 * COPIES * floats
        most = max(int(MEMORY_SHARE * free_memory() / each), FIRST_TRIED)
        size, since = FIRST_TRIED, 0
        envs.reset()
        while size <= most and since < 3:
            before = max(rates.values(), default=0.0)
            rates[size] = max(_rate(envs, seconds / PARTS) for _ in range(3))  # other programs only slow it down
            since = 0 if rates[size] > before / ENOUGH else since + 1
            size *= 2
            if size <= most and since < 3:
                envs.resize(size)
    return min(size for size, rate in rates.items() if rate >= ENOUGH * max(rates.values())), rates


def _rate(envs: Any, seconds: float) -> float:
    """Return steps per second over some time; a first step, which may make buffers or compile, does not count."""
    actions, steps = envs.action_space.sample(), 0
    envs.step(actions)
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds or not steps:
        envs.step(actions)
        steps += envs.num_envs
    return steps / took


def _foreign(makers: list[EnvMaker], seconds: float) -> autotune.Recommendation:
    """Return the recommendation for environments of another library, their number by the model, then tried."""
    cores = available_cores()
    first = autotune.recommend_backend(makers, 4 * cores, seconds / 2)
    with autotune.named_faults(makers[0].name):
        cost = measure_row(makers[:1], seconds / 10)
    free = MEMORY_SHARE * free_memory()
    rates: dict[int, float] = {}
    size = 1
    while size <= MOST_FOREIGN:
        counts = [0]
        if first.round_trip_seconds is not None:
            each = first.bytes_per_worker or 0
            counts += [w for w in autotune.worker_counts(size) if w * each <= free and w <= 4 * cores]
        rates[size] = max(
            autotune.predict(cost, first.round_trip_seconds or 0.0, size, w, cores, cores) for w in counts
        )
        size *= 2
    number = min(size for size, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
    found = autotune.recommend_backend(makers, number, seconds / 2)
    told = ", ".join(f"{size}: {rate:,.0f}" for size, rate in rates.items() if size in (1, number, MOST_FOREIGN))
    room = bytes_text(free)
    why = f"{number} environments: steps per second by number, by the model: {told}; {room} may be taken"
    return replace(found, reason=f"{found.reason}. {why}")
