"""Proof that contenders compute the same thing, before any of them is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.hosts.host import Host
from velodrome.bench.report import Parity
from velodrome.bench.timing import action_ring
from velodrome.errors import VelodromeError
from velodrome.vector.make import make_vec

MONEY = 1e-9  # tolerance of a state's column, of the larger of the value and its scale
CLOSE = (1e-6, 1e-6)  # of rewards and observations, relative and absolute


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


def compare_with_plain(
    env: str,
    values: Mapping[str, Any],
    tables: Any,
    peers: Mapping[str, Callable[..., Any]],
    columns: Mapping[str, float],
    *,
    seed: int,
    steps: int,
    size: int = 8,
    draw: Callable[[np.random.Generator, NDArray], NDArray] = lambda generator, actions: actions,
    close: tuple[float, float] = CLOSE,
    lowest_reward: float = -np.inf,
) -> tuple[NDArray[np.int64], list[Any]]:
    """Run the native environment and its peers on the same starts and actions; raise if they differ.

    peers: `plain`, an environment for one account, and `numpy`, one for many, if there is one. columns: those of the
    state to compare, with the scale of their tolerance. draw: changes the sampled actions. Returns how many episodes
    ended and how many of them by bankruptcy, and the plain environments.
    """
    native = make_vec(env, size, backend="native", seed=seed, threads=1, **values)
    generator = np.random.default_rng(seed)
    starts = generator.integers(tables.begin, tables.end - tables.episode_length, size)
    observations, _ = native.reset(options={"cursor": starts})
    plains = [peers["plain"](tables) for _ in range(size)]
    # The native environment draws the next starts; the peers follow it.
    many = None
    if "numpy" in peers:
        many = peers["numpy"](tables, size, choose_starts=lambda rows: native.column("start")[rows])
    check = _Checker(values["market"], close)
    theirs = np.stack([env.reset(options={"cursor": start})[0] for env, start in zip(plains, starts, strict=True)])
    check.observation("the first observation", 0, observations, [theirs, many and many.reset()])
    ends = np.zeros(2, np.int64)
    for step, drawn in enumerate(action_ring(native.single_action_space, size, seed, steps), start=1):
        actions = draw(generator, drawn)
        observations, rewards, terminated, truncated, infos = native.step(actions)
        ended = terminated | truncated
        found = [env.step(action) for env, action in zip(plains, actions, strict=True)]
        theirs, their_rewards, their_terminated, their_truncated = (
            np.array([row[k] for row in found]) for k in range(4)
        )
        batch = many.step(actions) if many else (None,) * 4
        check.same("terminated", step, terminated, [their_terminated, batch[2]])
        check.same("truncated", step, truncated, [their_truncated, batch[3]])
        pair = [np.maximum(part, lowest_reward) for part in (their_rewards, batch[1]) if part is not None]
        check.close("the reward", step, np.maximum(rewards, lowest_reward), pair)
        if ended.any():
            ends += (int(ended.sum()), int(terminated.sum()))
            final = [theirs[ended], many and many.final_observations[ended]]
            check.observation("the final observation", step, infos["final_obs"][ended], final)
            for row in np.flatnonzero(ended):
                theirs[row] = plains[row].reset(options={"cursor": native.column("start")[row]})[0]
        check.observation("the observation", step, observations, [theirs, batch[0]])
        for name, scale in columns.items():
            own, wanted = np.array([getattr(env, name) for env in plains]), native.column(name)
            allowed = MONEY * np.maximum(np.abs(wanted), scale)
            check.same(name, step, wanted, [own, many and getattr(many, name)], allowed)
    native.close()
    return ends, plains


class _Checker:
    """Raises with the step, the environment and both values where contenders differ; a peer of None is not there."""

    def __init__(self, market: Any, close: tuple[float, float]) -> None:
        self.market, self.window_floats, self.tolerance = market.name, int(market.window_floats), close

    def close(self, what: str, step: int, native: NDArray, peers: Sequence[Any]) -> None:
        relative, absolute = self.tolerance
        self.same(what, step, native, peers, absolute + relative * np.abs(native))

    def observation(self, what: str, step: int, native: NDArray, peers: Sequence[Any]) -> None:
        count = self.window_floats  # windows are copied, account values are computed
        self.same(what, step, native[:, :count], [rows if rows is None else rows[:, :count] for rows in peers])
        self.close(what, step, native, peers)

    def same(self, what: str, step: int, native: NDArray, peers: Sequence[Any], allowed: Any = 0.0) -> None:
        for name, values in zip(("plain", "numpy"), peers, strict=False):
            if values is None:
                continue
            good = np.abs(np.asarray(values, np.float64) - native) <= allowed
            if good.all():
                continue
            where: tuple[Any, ...] = tuple(int(axis[0]) for axis in np.nonzero(~good))
            raise ParityError(
                f"the {name} peer is not the native environment: {what} differs at step {step} on the market "
                f"{self.market!r}, environment {where[0]}: native {native[where]!r}, {name} {values[where]!r}. "
                f"Nothing was timed."
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
