"""Proof that contenders compute the same thing, before any of them is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from velodrome.bench.hosts.host import Host
from velodrome.bench.report import Parity
from velodrome.bench.timing import action_ring
from velodrome.errors import VelodromeError
from velodrome.vector.make import make_vec

MONEY = 1e-9  # tolerance of a state's column, of the larger of the value and its scale
COMPARED_ENVS = 8  # beside peers


class ParityError(VelodromeError):
    """Two contenders that are not the same environment: their speeds must not be compared."""


# Compiled and plain rule


def compare_backends(
    env: str, values: Mapping[str, Any], seed: int, cases: Sequence[Mapping[str, Any]] = ({},), *, size: int, steps: int
) -> Parity:
    """Run the compiled and the uncompiled rule side by side, with each set of parameters; raise if a bit differs."""
    names = ("observations", "rewards", "terminated", "truncated")
    for case in cases:
        plain, compiled = (
            make_vec(env, size, backend=backend, seed=seed, copy=True, **values, **case)
            for backend in ("python", "native")
        )
        plain.reset()
        compiled.reset()
        for k, actions in enumerate(action_ring(plain.single_action_space, size, seed, steps)):
            for name, one, other in zip(names, plain.step(actions), compiled.step(actions), strict=False):
                if not np.array_equal(one, other):
                    raise ParityError(f"compiled and plain {env} differ in step {k}: {name} {dict(case) or ''}")
        plain.close()
        compiled.close()
    told = "the plain rule to the bit" + (f" in {len(cases)} settings" if len(cases) > 1 else "")
    return Parity(contenders=["the compiled rule"], reference=told, steps=steps * size * len(cases))


# A rule and the same as others write it


class Tolerance(NamedTuple):
    """By how much a peer may differ, where it may."""

    columns: Mapping[str, float]  # columns of the state to compare -> scale below which a value is rounding
    relative: float = 1e-6  # of rewards and observations
    absolute: float = 1e-6
    lowest_reward: float = -np.inf  # what is below is the logarithm of rounding


def compare_with_plain(
    env: str,
    case: Any,
    peers: Mapping[str, Callable[..., Any]],
    tolerance: Tolerance,
    *,
    seed: int,
    steps: int,
    draw: Callable[[np.random.Generator, NDArray], NDArray] = lambda generator, actions: actions,
) -> tuple[NDArray[np.int64], SyncVectorEnv]:
    """Run the native environment and its peers on the same starts and actions; raise if they differ.

    peers: `plain`, an environment for one account, and `numpy`, one for many, if there is one. draw: changes the
    sampled actions. Returns how many episodes ended and how many of them by bankruptcy, and the plain environments.
    """
    tables, size = case.tables, COMPARED_ENVS
    native = make_vec(env, size, backend="native", seed=seed, threads=1, **case.values)
    generator = np.random.default_rng(seed)
    first, _ = native.reset(options={"cursor": tables.random_starts(generator, size)})
    # The native environment draws the next starts; the peers follow it.
    makers = [partial(peers["plain"], tables, lambda row=row: int(native.column("start")[row])) for row in range(size)]
    plain = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    batches: dict[str, Any] = {"plain": plain}
    if "numpy" in peers:
        batches["numpy"] = peers["numpy"](tables, size, choose_starts=lambda rows: native.column("start")[rows])
    check = _Checker(case.values["market"], tolerance)
    for check.peer, batch in batches.items():
        check.observation("the first observation", first, batch.reset()[0])
    ends = np.zeros(2, np.int64)
    for check.step, drawn in enumerate(action_ring(native.single_action_space, size, seed, steps), start=1):
        actions = draw(generator, drawn)
        observations, rewards, terminated, truncated, infos = native.step(actions)
        ended = terminated | truncated
        ends += (int(ended.sum()), int(terminated.sum()))
        for check.peer, batch in batches.items():
            theirs, their_rewards, their_terminated, their_truncated, more = batch.step(actions)
            check.same("terminated", terminated, their_terminated)
            check.same("truncated", truncated, their_truncated)
            lowest = tolerance.lowest_reward
            check.close("the reward", np.maximum(rewards, lowest), np.maximum(their_rewards, lowest))
            if ended.any():
                final = np.stack(more["final_obs"][ended])
                check.observation("the final observation", infos["final_obs"][ended], final)
            check.observation("the observation", observations, theirs)
            for name, scale in tolerance.columns.items():
                wanted = native.column(name)
                check.same(name, wanted, np.array(batch.get_attr(name)), MONEY * np.maximum(np.abs(wanted), scale))
    native.close()
    return ends, plain


class _Checker:
    """Raises with the step, the environment and both values where a peer differs."""

    peer, step = "", 0

    def __init__(self, market: Any, tolerance: Tolerance) -> None:
        self.market, self.tolerance = market, tolerance

    def close(self, what: str, native: NDArray, theirs: NDArray) -> None:
        self.same(what, native, theirs, self.tolerance.absolute + self.tolerance.relative * np.abs(native))

    def observation(self, what: str, native: NDArray, theirs: NDArray) -> None:
        count = int(self.market.window_floats)  # windows are copied, account values are computed
        self.same(what, native[:, :count], theirs[:, :count])
        self.close(what, native, theirs)

    def same(self, what: str, native: NDArray, theirs: NDArray, allowed: Any = 0.0) -> None:
        differ = np.argwhere(~(np.abs(np.asarray(theirs, np.float64) - native) <= allowed))
        if len(differ):
            where = tuple(differ[0])
            raise ParityError(
                f"the {self.peer} peer is not the native environment: {what} differs at step {self.step} on the market "
                f"{self.market.name!r}, environment {where[0]}: native {native[where]!r}, {self.peer} "
                f"{theirs[where]!r}. Nothing was timed."
            )


# The same environment under several vectorisers

TRAJECTORY_CLOSE = 1e-5  # relative and absolute: SB3 keeps rewards as float32
TRAJECTORY_SECONDS = 0.6  # of stepping for each contender's
FEWEST, MOST = 10, 2_000  # steps of the batch


def steps_to_compare(step_seconds: float, num_envs: int) -> int:
    """Return for how many steps of the batch to compare, given the time of one environment's."""
    return int(np.clip(TRAJECTORY_SECONDS / (num_envs * max(step_seconds, 1e-6)), FEWEST, MOST))


def check_trajectories(reference: Host, hosts: Sequence[Host], steps: int) -> Parity | None:
    """Compare every contender's rewards, ends and observations with the reference's; raise ParityError if they differ.

    Returns None for an environment that does not repeat itself for the same seeds: it cannot be compared.
    """
    wanted, again = (host.ask("trajectory", TRAJECTORY_SECONDS, steps=steps) for host in (reference, reference))
    if difference(wanted, again) is not None:
        return None
    assert reference.spec is not None
    name = reference.spec.label
    others = [(host.spec.label, host) for host in hosts if host is not reference and host.spec is not None]
    for label, host in others:
        found = difference(wanted, host.ask("trajectory", TRAJECTORY_SECONDS, steps=steps))
        if found is not None:
            raise ParityError(f"{label} does not step as {name} does: {found}. Nothing was timed.")
    total, counts = steps * reference.spec.num_envs, {"episodes": int(wanted["ends"].sum())}
    return Parity(contenders=[label for label, _ in others], reference=name, steps=total, counts=counts)


def difference(wanted: dict[str, NDArray], found: dict[str, NDArray]) -> str | None:
    """Return in words where two trajectories first differ, None if they do not."""
    for name, values in wanted.items():
        agree = np.isclose(values, found[name], TRAJECTORY_CLOSE, TRAJECTORY_CLOSE, equal_nan=True)
        if not agree.all():
            step, environment = (int(axis[0]) for axis in np.nonzero(~agree))
            ours, theirs = found[name][step, environment], values[step, environment]
            return f"{name} at step {step} of environment {environment}: {ours!r} instead of {theirs!r}"
    return None
