"""Proof that the contenders compute the same thing, before any of them is timed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from velodrome.bench.batched_peer import BatchedTradingEnv
from velodrome.bench.peers import PlainTradingEnv
from velodrome.bench.problem import StepProblem, stress_problem
from velodrome.errors import VelodromeError
from velodrome.vector.make import make_vec

MONEY_TOLERANCE = 1e-9  # of the larger of the value and the initial cash
TOLERANCE = 1e-6  # of rewards and observations, absolute and relative
WIPED_OUT = -10.0  # the reward for losing everything


class ParityError(VelodromeError):
    """Two contenders that are not the same environment: their speeds must not be compared."""


class ParityResult(BaseModel):
    """What was compared; every case must have come up for the comparison to mean something."""

    contenders: tuple[str, ...] = Field(description="names of what was compared with the native environment")
    environments: int = Field(description="environments in the compared batch")
    steps: int = Field(description="environment steps that were compared, on both markets together")
    episodes: int = Field(description="episodes that ended in them")
    terminated: int = Field(description="of these, by bankruptcy")
    liquidations: int = Field(description="positions that were liquidated in them")


def check_parity(
    problem: StepProblem, steps: int = 2_000, num_envs: int = 8, plain: type = PlainTradingEnv,
    batched: type = BatchedTradingEnv,
) -> ParityResult:  # fmt: skip
    """Run native and peers on the same starts and actions, on the market and on a violent one; raise if they differ."""
    totals = np.zeros(3, np.int64)
    for part in (problem, stress_problem(problem)):
        totals += _compare(part, steps, num_envs, plain, batched)
    episodes, terminated, liquidations = map(int, totals)
    return ParityResult(
        contenders=("plain", "numpy"), environments=num_envs, steps=2 * steps * num_envs, episodes=episodes,
        terminated=terminated, liquidations=liquidations,
    )  # fmt: skip


def _compare(problem: StepProblem, steps: int, num_envs: int, plain: type, batched: type) -> NDArray[np.int64]:
    tables = problem.peer_tables
    native = make_vec(
        "trading", num_envs, market=problem.market, backend="native", seed=problem.seed, threads=1, **problem.parameters
    )
    generator = np.random.default_rng(problem.seed)
    starts = generator.integers(tables.begin, tables.end - tables.episode_length, num_envs)
    observations, _ = native.reset(options={"cursor": starts})
    plains = [plain(tables) for _ in range(num_envs)]
    plain_observations = np.stack(
        [env.reset(options={"cursor": start})[0] for env, start in zip(plains, starts, strict=True)]
    )
    # The native environment draws the next starts; the peers follow it.
    many = batched(tables, num_envs, choose_starts=lambda rows: native.column("start")[rows])
    check = _Checker(problem.market.name)
    check.same("the first observation", 0, observations, {"plain": plain_observations, "numpy": many.reset()})
    episodes = np.zeros(2, np.int64)
    for step in range(1, steps + 1):
        actions = generator.integers(0, 3, num_envs)
        observations, rewards, terminated, truncated, infos = native.step(actions)
        ended = terminated | truncated
        many_observations, many_rewards, many_terminated, many_truncated = many.step(actions)
        results = [env.step(action) for env, action in zip(plains, actions, strict=True)]
        plain_flags = np.array([result[2:4] for result in results]).T
        check.flags("terminated", step, terminated, {"plain": plain_flags[0], "numpy": many_terminated})
        check.flags("truncated", step, truncated, {"plain": plain_flags[1], "numpy": many_truncated})
        # An account liquidated at its bankruptcy price is worth nothing up to rounding; so is the logarithm of that.
        plain_rewards = np.maximum([result[1] for result in results], WIPED_OUT)
        peer_rewards = {"plain": plain_rewards, "numpy": np.maximum(many_rewards, WIPED_OUT)}
        check.same("the reward", step, np.maximum(rewards, WIPED_OUT), peer_rewards)
        plain_observations = np.stack([result[0] for result in results])
        if ended.any():
            episodes += (int(ended.sum()), int(terminated.sum()))
            final = {"plain": plain_observations[ended], "numpy": many.final_observations[ended]}
            check.same("the final observation", step, infos["final_obs"][ended], final)
            for row in np.flatnonzero(ended):
                start = {"cursor": native.column("start")[row]}
                plain_observations[row] = plains[row].reset(options=start)[0]
        check.same("the observation", step, observations, {"plain": plain_observations, "numpy": many_observations})
        for name, scale in (("cash", tables.initial_cash), ("units", 0.0)):
            peers = {"plain": np.array([getattr(env, name) for env in plains]), "numpy": getattr(many, name)}
            check.money(name, step, native.column(name), peers, scale)
    return np.array([*episodes, sum(env.liquidations for env in plains)])


class _Checker:
    """Raises with the step, the environment and both values where contenders differ."""

    def __init__(self, market: str) -> None:
        self.market = market

    def flags(self, what: str, step: int, native: NDArray, peers: dict[str, NDArray]) -> None:
        for name, values in peers.items():
            self._raise_unless(native == values, what, step, native, values, name)

    def same(self, what: str, step: int, native: NDArray, peers: dict[str, NDArray]) -> None:
        for name, values in peers.items():
            self._raise_unless(np.isclose(values, native, TOLERANCE, TOLERANCE), what, step, native, values, name)

    def money(self, what: str, step: int, native: NDArray, peers: dict[str, NDArray], scale: float) -> None:
        for name, values in peers.items():
            allowed = MONEY_TOLERANCE * np.maximum(np.abs(native), scale)
            self._raise_unless(np.abs(values - native) <= allowed, what, step, native, values, name)

    def _raise_unless(self, agree: NDArray, what: str, step: int, native: NDArray, values: NDArray, name: str) -> None:
        if agree.all():
            return
        where: tuple[Any, ...] = tuple(int(axis[0]) for axis in np.nonzero(~agree))
        raise ParityError(
            f"the {name} peer is not the native environment: {what} differs at step {step} on the market "
            f"{self.market!r}, environment {where[0]}: native {native[where]!r}, {name} {values[where]!r}. "
            f"Nothing was timed."
        )
