"""The replay buffer against a slow list of transitions: episode ends, wrap-around, steps ahead, priorities."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.errors import ConfigError
from velodrome.rollout.observation import Observation, ObservationShape
from velodrome.rollout.replay import LEAST_ERROR, ReplayBuffer

GAMMA = 0.9
RUNS, TERMINATES, IS_CUT, BOTH = range(4)


@dataclass
class Step:
    """One step of one environment; observations are known by a number that no other has."""

    seen: int
    action: int
    reward: float
    following: int
    terminated: bool
    truncated: bool


@dataclass
class Answer:
    """What the buffer must return for a transition."""

    action: int
    reward: float
    following: int
    discount: float


def answer_of(steps: list[Step]) -> Answer:
    """Return the transition that begins with the first of some steps and goes to the last, or to an earlier end."""
    reward, discount = 0.0, 1.0
    for step in steps:
        reward += discount * step.reward
        discount *= GAMMA
        if step.terminated or step.truncated:
            break
    return Answer(steps[0].action, reward, step.following, 0.0 if step.terminated else discount)


class Story:
    """Environments that live through a given history, and the list of everything that happened, by environment."""

    def __init__(self, num_envs: int, windows: bool = True) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.shape = ObservationShape(2)
        self.bank = SimpleNamespace() if windows else None
        self.steps: list[list[Step]] = [[] for _ in range(num_envs)]
        self.numbers = 0
        self.now = self._new_numbers()
        self.observation = self._observation(self.now)
        self.final = self._observation(np.full(num_envs, -1))
        self.reward = torch.zeros(num_envs)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool)
        self.truncated = torch.zeros(num_envs, dtype=torch.bool)

    def _new_numbers(self) -> np.ndarray:
        found = np.arange(self.numbers, self.numbers + self.num_envs)
        self.numbers += self.num_envs
        return found

    def _observation(self, numbers: np.ndarray) -> Observation:
        values = torch.from_numpy(np.stack([numbers, -numbers], 1).astype(np.float32))
        return Observation(values, None if self.bank is None else torch.from_numpy(numbers.astype(np.int32)))

    def live(self, buffer: ReplayBuffer, ends: Any) -> None:
        """Take a step in all environments, which end as `ends` says, and store it."""
        buffer.see(self.observation)
        reached, last = self._new_numbers(), self.now.copy()
        ends = np.asarray(ends)
        over = ends != RUNS
        following = np.where(over, self._new_numbers(), reached)
        actions = (self.now * 7) % 5
        self.reward = torch.from_numpy((np.cos(self.now) + 2.0).astype(np.float32))
        self.terminated = torch.from_numpy((ends == TERMINATES) | (ends == BOTH))
        self.truncated = torch.from_numpy((ends == IS_CUT) | (ends == BOTH))
        # What `final` holds of environments that did not end is left over from before and must not be read.
        self.final = self._observation(np.where(over, following, -99))
        self.now, self.observation = reached, self._observation(reached)
        for i, steps in enumerate(self.steps):
            steps.append(
                Step(int(last[i]), int(actions[i]), float(self.reward[i]), int(following[i]), bool(self.terminated[i]),
                     bool(self.truncated[i]))
            )  # fmt: skip
        buffer.store(torch.from_numpy(actions), self)  # type: ignore[arg-type]

    def answers(self, rows: int, n_step: int) -> dict[int, Answer]:
        """Return by the first observation what the transitions are that a buffer with this many rows holds."""
        found = {}
        for steps in self.steps:
            kept = steps[-rows:]
            for begin in range(len(kept) - n_step + 1):
                found[kept[begin].seen] = answer_of(kept[begin : begin + n_step])
        return found


histories = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(st.sampled_from([RUNS, RUNS, RUNS, TERMINATES, IS_CUT, BOTH]), min_size=n, max_size=n),
                       min_size=1, max_size=24)
)  # fmt: skip


@given(histories, st.integers(1, 5), st.integers(0, 4), st.booleans(), st.booleans())
@settings(max_examples=100)
def test_what_is_drawn_is_what_happened(history, n_step, further_rows, windows, prioritised):
    num_envs, rows = len(history[0]), n_step + further_rows
    story = Story(num_envs, windows)
    buffer = ReplayBuffer(
        rows * num_envs + num_envs - 1, story, gamma=GAMMA, n_step=n_step,
        priority_exponent=0.5 if prioritised else None,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for number, ends in enumerate(history):
        story.live(buffer, ends)
        wanted = story.answers(rows, n_step)
        if not wanted or (number % 3 and number + 1 < len(history)):
            continue
        drawn = buffer.sample(1024, generator, torch.tensor(1.0))
        assert set(drawn.observation.values[:, 0].long().tolist()) == set(wanted)
        for k in range(0, 1024, 16):
            seen = int(drawn.observation.values[k, 0])
            answer, (row, environment) = wanted[seen], divmod(int(drawn.places[k]), num_envs)
            assert int(buffer.stored["values"][row, environment, 0]) == seen
            assert drawn.observation.values[k, 1] == -seen
            assert drawn.actions[k] == answer.action
            assert float(drawn.rewards[k]) == pytest.approx(answer.reward, rel=1e-5)
            assert float(drawn.discount[k]) == pytest.approx(answer.discount, rel=1e-6)
            assert drawn.following.values[k].tolist() == [answer.following, -answer.following]
            if windows:
                assert drawn.observation.cursor is not None
                assert drawn.following.cursor is not None
                assert (drawn.observation.cursor[k], drawn.following.cursor[k]) == (seen, answer.following)
            else:
                assert drawn.observation.cursor is None
                assert drawn.following.cursor is None


def lived(rows=6, num_envs=3, n_step=2, steps=10, **options):
    """Return a story with a few episode ends, and the buffer that heard it."""
    story = Story(num_envs)
    buffer = ReplayBuffer(rows * num_envs, story, gamma=GAMMA, n_step=n_step, **options)
    for step in range(steps):
        story.live(buffer, [(step + 2 * i) % 4 if (step + i) % 3 == 0 else RUNS for i in range(num_envs)])
    return story, buffer


def test_all_transitions_are_drawn_equally_often():
    _, buffer = lived()
    drawn = buffer.sample(60_000, torch.Generator().manual_seed(1))
    counts = np.bincount(drawn.places.numpy())
    counts = counts[counts > 0]
    assert len(counts) == 15  # 6 rows less one, 3 environments
    assert counts == pytest.approx(4000, rel=0.06)  # four deviations
    assert drawn.weights is None


def test_transitions_are_drawn_by_their_error_and_weighted_against_it():
    _, buffer = lived(n_step=1, steps=6, priority_exponent=0.7)
    places = torch.arange(18)
    errors = torch.linspace(-3.0, 1.0, 18)
    buffer.set_errors(places, errors)
    chances = (errors.abs().double() + LEAST_ERROR) ** 0.7
    chances /= chances.sum()
    drawn = buffer.sample(100_000, torch.Generator().manual_seed(2), torch.tensor(0.5, dtype=torch.float64))
    counts = np.bincount(drawn.places.numpy(), minlength=18)
    assert np.abs(counts - 100_000 * chances.numpy()).max() < 4 * np.sqrt(100_000 * 0.1)
    weights = (18 * chances) ** -0.5
    assert drawn.weights is not None
    torch.testing.assert_close(
        drawn.weights, (weights[drawn.places] / weights[drawn.places].max()).float(), rtol=1e-6, atol=0.0
    )


def test_new_transitions_get_the_highest_priority_and_those_still_open_none():
    story, buffer = lived(rows=6, num_envs=2, n_step=3, steps=5, priority_exponent=1.0)
    assert buffer.tree is not None
    masses = buffer.tree.leaves[:12].view(6, 2)
    assert masses.tolist() == [[1.0, 1.0]] * 3 + [[0.0, 0.0]] * 3
    # The first errors set the scale for those of which none is known.
    buffer.set_errors(torch.tensor([0, 3]), torch.tensor([0.25, -0.5]))
    assert masses[:3].flatten().tolist() == pytest.approx([0.25, 0.5, 0.5, 0.5, 0.5, 0.5], abs=2e-6)
    buffer.set_errors(torch.tensor([1]), torch.tensor([2.0]))
    story.live(buffer, [RUNS, RUNS])  # row 5; the transitions that begin in row 3 are complete
    assert masses[3].tolist() == pytest.approx([2.0, 2.0], abs=2e-6)
    story.live(buffer, [RUNS, RUNS])  # row 0 is overwritten
    assert masses[[0, 5]].tolist() == [[0.0, 0.0]] * 2
    assert masses[4].tolist() == pytest.approx([2.0, 2.0], abs=2e-6)
    buffer.set_errors(torch.tensor([3]), torch.tensor([0.0]))
    assert masses[1, 1] == LEAST_ERROR


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("steps", [4, 6, 17])
def test_a_loaded_buffer_goes_on_with_the_same_bits(steps, prioritised):
    options: dict[str, Any] = {"priority_exponent": 0.6} if prioritised else {}
    story, buffer = lived(steps=steps, **options)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    beta = torch.tensor(0.4)
    drawn = buffer.sample(32, generators[0], beta)
    buffer.set_errors(drawn.places, drawn.rewards)
    generators[1].set_state(generators[0].get_state())
    saved = {name: tensor.clone() for name, tensor in buffer.state().items()}
    assert len(saved["values"]) == min(steps, 6)
    _, loaded = lived(steps=9, **options)
    loaded.load_state(saved)
    for round_ in range(3):
        ends = [[RUNS, IS_CUT, TERMINATES][(round_ + i) % 3] for i in range(3)]
        story.live(buffer, ends)
        loaded.see(Observation(buffer.stored["values"][buffer.head - 1].squeeze(0), _row(buffer, "cursor")))
        loaded.store(_row(buffer, "actions"), story)  # type: ignore[arg-type]
        one, other = (each.sample(64, own, beta) for each, own in zip((buffer, loaded), generators, strict=True))
        for ours, theirs in zip(_flat(one), _flat(other), strict=True):
            assert torch.equal(ours, theirs)
        for each in (buffer, loaded):
            each.set_errors(one.places, one.rewards)


def _row(buffer: ReplayBuffer, name: str) -> torch.Tensor:
    return buffer.stored[name][buffer.head - 1].squeeze(0)


def _flat(drawn):
    parts = [*drawn.observation, *drawn.following, drawn.actions, drawn.rewards, drawn.discount, drawn.weights,
             drawn.places]  # fmt: skip
    return [part for part in parts if part is not None]


def test_after_a_cut_no_transition_joins_what_came_before_with_what_comes_after():
    story, buffer = lived(n_step=3, rows=8, steps=5)
    buffer.cut()
    for steps in story.steps:
        steps[-1].truncated = True
    for _ in range(2):
        story.live(buffer, [RUNS] * 3)
    wanted = story.answers(8, 3)
    drawn = buffer.sample(1024, torch.Generator().manual_seed(0))
    for seen, following, reward in zip(
        drawn.observation.values[:, 0].tolist(), drawn.following.values[:, 0].tolist(), drawn.rewards, strict=True
    ):
        assert following == wanted[int(seen)].following
        assert float(reward) == pytest.approx(wanted[int(seen)].reward, rel=1e-5)


def test_a_buffer_too_small_for_its_steps_is_refused():
    with pytest.raises(ConfigError, match=r"buffer_size = 11 holds 2 steps of 4 environments.*at least 12"):
        ReplayBuffer(11, Story(4), gamma=GAMMA, n_step=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 5}, "holds 6 rows"),
        ({"num_envs": 2}, "same environment, num_envs"),
        ({"n_step": 1}, "n_step = 2"),
        ({"priority_exponent": 0.5}, "prioritised = False"),
    ],
)
def test_a_buffer_of_other_settings_is_not_loaded(options, message):
    saved = lived()[1].state()
    with pytest.raises(ConfigError, match=message):
        lived(**options)[1].load_state(saved)
