"""A batch of a compiled rule beside one ledger for each environment, step by step; each rule has a class of its own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import BaseModel

from tests.oracles.philox import uniform
from velodrome.envs.contract import World
from velodrome.vector.native import NativeVectorEnv

ENVIRONMENTS = 64
MONEY = 1e-9  # tolerance, relative to the initial cash or to the largest equity of the episode
FLOAT32 = 2.4e-7  # two roundings to float32


def parameters_of(ledger: type) -> set[str]:
    """Return the names of what a ledger is told."""
    return {field.name for field in dataclasses.fields(ledger) if field.init}


def shared_words(config: BaseModel, ledger: type, numbers: Sequence[str]) -> dict[str, Any]:
    """Return a ledger's parameters in the words of a config; of a range its lower end, until an episode begins."""
    known = parameters_of(ledger)
    shared = {name: getattr(config, name) for name in type(config).model_fields if name in known}
    return shared | {name: value[0] for name, value in shared.items() if name in numbers and isinstance(value, tuple)}


class Outcome(NamedTuple):
    """What the rule and the ledgers say of one step."""

    observations: dict[str, np.ndarray]
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    results: list[Any]  # of the ledgers


class LedgerComparison:
    """Inherit, and say how actions are drawn, what of the state is compared, and what of a finished episode."""

    def __init__(
        self, label: str, world: World, ledgers: list[Any], numbers: Sequence[str], first_actions: np.ndarray, seed: int
    ) -> None:
        """numbers: what a world may draw for each episode. first_actions: [n, …], those before the first."""
        self.label, self.world, self.ledgers, self.numbers = label, world, ledgers, numbers
        self.actions = first_actions
        self.envs = NativeVectorEnv(world, len(ledgers), seed=seed, observation="cursor", autoreset=False, threads=1)
        self.rng = np.random.default_rng(seed)
        self.told = parameters_of(type(ledgers[0]))
        self.compared = self.skipped = 0
        self.counts: Counter[str] = Counter()  # of what happened: what never did was not compared
        # Environments whose ledger and rule parted at a near tie sit out the rest of the episode.
        self.parted = np.zeros(len(ledgers), bool)
        self.wrong: dict[int, list[str]] = {}  # by environment, of the step in hand

    def random_actions(self, before: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def compare_step(self, outcome: Outcome) -> None:
        """Note what differs after a step."""
        raise NotImplementedError

    def compare_statistics(self, row: int, statistics: dict[str, np.ndarray]) -> None:
        """Note what differs of an environment's finished episode."""
        raise NotImplementedError

    def begin(self, rows: np.ndarray) -> None:
        """Put the ledgers of environments that were reset at the start of the same episode."""
        start, last, numbers = self.envs.column("start"), self.envs.column("last"), self.envs.column("drawn")
        for row in rows:
            ledger = self.ledgers[row]
            if self.world.params.randomised:
                for name, value in zip(self.numbers, numbers[:, row].tolist(), strict=True):
                    if name in self.told:
                        setattr(ledger, name, value)
            ledger.reset(int(start[row]), int(last[row]))
        self.parted[rows] = False

    def draws(self) -> list[float]:
        """Return each environment's uniform number of the coming step, from its generator's columns."""
        keys, counters = self.envs.column("rng_key").tolist(), self.envs.column("rng_counter").tolist()
        return [
            uniform(key, counter) if ledger.slippage > 0.0 else 0.0
            for key, counter, ledger in zip(keys, counters, self.ledgers, strict=True)
        ]

    def step_ledgers(self, actions: np.ndarray) -> list[Any]:
        """Step the ledgers; the rule's generators must still stand before the step."""
        return [
            ledger.step(action, draw)
            for ledger, action, draw in zip(self.ledgers, actions.tolist(), self.draws(), strict=True)
        ]

    def run(self, steps: int) -> None:
        """Step rules and ledgers; a difference that no near tie explains fails the test."""
        self.envs.reset()
        self.begin(np.arange(len(self.ledgers)))
        for step in range(steps):
            self.actions = self.random_actions(self.actions)
            results = self.step_ledgers(self.actions)
            observations, rewards, terminated, truncated, infos = self.envs.step(self.actions)
            ended = terminated | truncated
            self.wrong = {}
            self.compare_step(Outcome(observations, rewards, terminated, truncated, results))
            for row in np.flatnonzero(ended & ~self.parted).tolist():
                if row not in self.wrong:
                    self.compare_statistics(row, infos["statistics"])
            for row, messages in self.wrong.items():
                if not self.ledgers[row].was_near_a_tie:
                    pytest.fail(f"environment {row}, step {step}: " + "; ".join(messages) + f"\n{self.label}")
                self.parted[row] = True
            self.skipped += int(self.parted.sum())
            self.compared += int((~self.parted).sum())
            # The ledger of a parted environment may end elsewhere: it is brought back with the rule's next episode.
            for row in np.flatnonzero(self.parted & ~ended):
                self.ledgers[row].reset(self.ledgers[row].start, self.ledgers[row].last)
            if ended.any():
                self.envs.reset(options={"reset_mask": ended})
                self.begin(np.flatnonzero(ended))

    def of_ledgers(self, name: str) -> np.ndarray:
        return np.array([getattr(ledger, name) for ledger in self.ledgers], np.float64)

    def note(self, name: str, ours: Any, theirs: Any, differs: np.ndarray) -> None:
        """Remember what differs, by environment; those that parted before are left out."""
        for row in np.flatnonzero(differs & ~self.parted).tolist():
            self.wrong.setdefault(row, []).append(f"{name}: rule {ours[row]!r}, ledger {theirs[row]!r}")

    def note_column(self, column: str, name: str, allowed: np.ndarray | float = 0.0) -> None:
        """Compare a column of the rule with what the ledgers call by a name."""
        ours, theirs = self.envs.column(column), self.of_ledgers(name)
        self.note(name, ours, theirs, ~(np.abs(ours - theirs) <= allowed))

    def note_outcome(
        self, outcome: Outcome, noisy_reward: np.ndarray | bool = False, noisy_account: np.ndarray | bool = False
    ) -> None:
        """Compare what a step returned; noisy: where the numbers are rounding noise and are not compared."""
        for name in ("terminated", "truncated"):
            ours, theirs = getattr(outcome, name), np.array([getattr(result, name) for result in outcome.results])
            self.note(name, ours, theirs, ours != theirs)
        theirs = np.array([result.reward for result in outcome.results])
        self.note("reward", outcome.rewards, theirs, _far(outcome.rewards, theirs) & ~np.asarray(noisy_reward))
        account, theirs = outcome.observations["account"], np.array([one.account_vector() for one in self.ledgers])
        self.note("account vector", account, theirs, _far(account, theirs).any(axis=1) & ~np.asarray(noisy_account))


def _far(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Say where two float32 numbers are further apart than rounding explains; a NaN is."""
    return ~(np.abs(ours - theirs) <= FLOAT32 * np.maximum(1.0, np.abs(theirs)))


def compare_all(comparisons: Iterable[LedgerComparison], steps: int) -> tuple[int, int, Counter[str]]:
    """Run them; return how many steps were compared, how many were skipped after near ties, and what happened."""
    compared = skipped = 0
    counts: Counter[str] = Counter()
    for comparison in comparisons:
        comparison.run(steps)
        compared += comparison.compared
        skipped += comparison.skipped
        counts.update(comparison.counts)
    return compared, skipped, counts
