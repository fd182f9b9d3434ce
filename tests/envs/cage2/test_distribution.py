"""CAGE-2 with its own draws: returns as recorded from the original (test C of FORMAT.md), and the draws themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

import velodrome as vd
from tests.oracles import cage2_machine as oracle
from tests.shared_data import shared_folder
from velodrome.envs import cage2

FOLDER = shared_folder("data/cage2/public")
EPISODES = 20_000
LENGTHS = (30, 50, 100)
LARGEST_Z = 3.5
SMALLEST_P = 1e-4  # the seeds are fixed: a test that passes once passes for ever
USER0 = 8
SLEEP, ANALYSE, REMOVE, RESTORE = 0, 2, 15, 132

Policy = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def sleep(observations: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


def random(observations: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 145, len(observations))


def first_compromised(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest host but User0 that is shown as compromised, and how (c0 + 2 c1); 0 where there is none."""
    bits = observations.reshape(-1, 13, 4)
    shown = (bits[:, :, 2] + 2 * bits[:, :, 3]).astype(np.int64)
    shown[:, USER0] = 0
    host = (shown > 0).argmax(axis=1)
    return host, shown[np.arange(len(shown)), host]


def react_restore(observations: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    host, shown = first_compromised(observations)
    return np.where(shown > 0, RESTORE + host, SLEEP)


def react_remove(observations: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    host, shown = first_compromised(observations)
    unknown = ANALYSE if step % 2 else RESTORE
    return np.select([shown == 2, shown == 3, shown == 1], [REMOVE + host, RESTORE + host, unknown + host], SLEEP)


POLICIES: dict[str, Policy] = {
    "sleep": sleep, "random": random, "react_restore": react_restore, "react_remove": react_remove,
}  # fmt: skip


def returns(red_agent: str, policy: Policy, seed: int) -> dict[int, np.ndarray]:
    """Return the returns of EPISODES episodes up to each length."""
    envs = vd.make_vec("cage2", EPISODES, seed=seed, red_agent=red_agent, episode_length=100)
    rng = np.random.default_rng(seed)
    observations, _ = envs.reset()
    sums, found = np.zeros(EPISODES), {}
    for step in range(100):
        observations, rewards, _, truncated, infos = envs.step(policy(observations, step, rng))
        sums += rewards
        if step + 1 in LENGTHS:
            found[step + 1] = sums.copy()
    assert truncated.all()
    np.testing.assert_allclose(infos["statistics"]["reward"], sums, atol=1e-3)
    return found


@pytest.mark.skipif(FOLDER is None, reason="no recorded returns: ../shared/data/cage2 is not there")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("red_agent", ["B_line", "Meander", "Sleep"])
def test_c_mean_returns_are_those_of_the_original(red_agent, policy):
    summary = json.loads((FOLDER / "summary.json").read_text())["data"][f"{red_agent}/{policy}"]
    ours = returns(red_agent.lower(), POLICIES[policy], seed=11)
    for length in LENGTHS:
        theirs = summary[f"steps_{length}"]
        error = np.hypot(ours[length].std() / np.sqrt(EPISODES), theirs["se"])
        difference = ours[length].mean() - theirs["mean"]
        if error == 0.0:
            assert difference == 0.0
        else:
            assert abs(difference / error) < LARGEST_Z, (length, ours[length].mean(), theirs)


class Watched:
    """What a plain agent of the oracle says about the choices of an environment's Red."""

    def __init__(self, red_agent: str, envs: int, steps: int, seed: int) -> None:
        self.exploits: Counter[tuple[str, tuple[str, ...]]] = (
            Counter()
        )  # (chosen, options with the preferred one first)
        self.detections: Counter[bool] = Counter()
        self.targets: Counter[tuple[int, int]] = Counter()  # (number of candidates, place of the chosen one)
        self.green: Counter[int] = Counter()
        batch = vd.make_vec("cage2", envs, seed=seed, red_agent=red_agent, green=True, episode_length=steps + 1)
        batch.reset()
        rng = np.random.default_rng(seed)
        machines = [oracle.Machine() for _ in range(envs)]
        minds: list[Any] = [oracle.AGENTS[red_agent]() for _ in range(envs)]
        for _ in range(steps):
            actions = rng.integers(0, 145, envs)
            batch.step(actions)
            names = ("exploit", "detected", "red_target", "green")
            self.columns = {name: batch.column(name) for name in names}
            for k, (machine, mind) in enumerate(zip(machines, minds, strict=True)):
                self.k = k
                red = mind.choose(machine, self)
                green = int(self.columns["green"][k])
                self.green[green] += 1
                _, mind.success = machine.step(
                    int(actions[k]), cage2.HOSTS[green] if green >= 0 else None, red, self
                )  # fmt: skip

    def exploit(self, preferred: str, others: list[str]) -> str:
        chosen = cage2.EXPLOITS[int(self.columns["exploit"][self.k])]
        self.exploits[chosen, (preferred, *others)] += 1
        return chosen

    def detected(self) -> bool:
        seen = int(self.columns["detected"][self.k])
        assert seen in (0, 1)
        self.detections[seen == 1] += 1
        return seen == 1

    def target(self, candidates: list[str]) -> str:
        chosen = cage2.HOSTS[int(self.columns["red_target"][self.k])]
        if len(candidates) > 1:
            self.targets[len(candidates), candidates.index(chosen)] += 1
        return chosen


@pytest.fixture(scope="module")
def meander() -> Watched:
    return Watched("meander", envs=600, steps=100, seed=3)


def test_detection_has_its_probability(meander):
    total = meander.detections.total()
    assert total > 3_000
    assert binomtest(meander.detections[True], total, 0.95).pvalue > SMALLEST_P


def test_three_of_four_exploits_are_the_preferred_one_and_the_others_are_even(meander):
    sets = {options for _, options in meander.exploits}
    assert {len(options) for options in sets} >= {2, 3, 4, 5}
    observed, expected = [], []
    for options in sorted(sets):
        counts = [meander.exploits[name, options] for name in options]
        shares = [0.75, *[0.25 / (len(options) - 1)] * (len(options) - 1)]
        if sum(counts) >= 100:
            observed += counts
            expected += [sum(counts) * share for share in shares]
    groups = sum(1 for options in sets if sum(meander.exploits[name, options] for name in options) >= 100)
    assert groups >= 5
    assert chisquare(observed, expected, ddof=groups - 1).pvalue > SMALLEST_P
    preferred = sum(count for (name, options), count in meander.exploits.items() if name == options[0])
    assert binomtest(preferred, meander.exploits.total(), 0.75).pvalue > SMALLEST_P


def test_every_candidate_is_as_likely_a_target(meander):
    sizes = sorted({size for size, _ in meander.targets})
    assert set(range(2, 9)) <= set(sizes)
    for size in sizes:
        counts = [meander.targets[size, place] for place in range(size)]
        if sum(counts) >= 10 * size:
            assert chisquare(counts).pvalue > SMALLEST_P, size


def test_green_scans_in_half_of_the_steps_each_host_alike(meander):
    assert binomtest(meander.green[-1], meander.green.total(), 0.5).pvalue > SMALLEST_P
    scanned = {host: number for host, number in meander.green.items() if host >= 0}
    assert set(scanned) == {1, 2, 3, 8, 9, 10, 11, 12}
    assert chisquare(list(scanned.values())).pvalue > SMALLEST_P


def test_b_line_begins_with_each_user_host_alike():
    envs = vd.make_vec("cage2", 8_000, seed=4, red_agent="b_line")
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(8_000, np.int64))
    hosts, counts = np.unique(envs.column("red_target"), return_counts=True)
    assert hosts.tolist() == [9, 10, 11, 12]
    assert chisquare(counts).pvalue > SMALLEST_P


def test_meander_scans_the_user_hosts_in_any_order_and_then_escalates_its_foothold():
    envs = vd.make_vec("cage2", 12_000, seed=4, red_agent="meander")
    envs.reset()
    order = []
    for _ in range(8):
        envs.step(np.zeros(12_000, np.int64))
        order.append(envs.column("red_target"))
    _, counts = np.unique(np.stack(order[1:6]), axis=1, return_counts=True)
    assert len(counts) == 120
    assert chisquare(counts).pvalue > SMALLEST_P
    assert (order[0] == 2).all()
    assert (order[6] == USER0).all()
    assert chisquare(np.unique(order[7], return_counts=True)[1]).pvalue > SMALLEST_P


def test_a_mixture_has_its_probabilities_and_the_statistics_say_who_it_was():
    shares = np.array([0.5, 0.3, 0.2])
    envs = vd.make_vec("cage2", 6_000, seed=4, red_agent="mixture", mixture=tuple(shares), episode_length=1)
    envs.reset()
    agents = envs.column("agent")
    _, _, _, truncated, infos = envs.step(np.zeros(6_000, np.int64))
    assert truncated.all()
    np.testing.assert_array_equal(infos["statistics"]["red_agent"], agents)
    assert chisquare(np.bincount(agents, minlength=3), 6_000 * shares).pvalue > SMALLEST_P


def test_a_mixture_leaves_out_whom_it_gives_no_probability():
    envs = vd.make_vec("cage2", 2_000, seed=4, red_agent="mixture", mixture=(0.7, 0.3 - 5e-7, 0.0))
    envs.reset()
    assert set(np.unique(envs.column("agent"))) == {0, 1}
