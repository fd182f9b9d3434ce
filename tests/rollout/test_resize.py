"""Worlds and replay buffers that change their number of environments lose nothing and mix nothing up."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.learn.learners import Endless, foreign_worlds, trading_worlds
from tests.rollout.test_replay import GAMMA, IS_CUT, RUNS, TERMINATES, Answer, Story, answer_of
from tests.rollout.test_worlds import random_actions
from velodrome.errors import BackendError, ConfigError
from velodrome.rollout.replay import ReplayBuffer
from velodrome.rollout.worlds import ForeignWorlds, Worlds, make_worlds
from velodrome.vector.seeding import spread_seeds

# Rule environments


def test_rule_environments_that_stay_go_on_to_the_bit():
    worlds, steady = trading_worlds(4, seed=2), trading_worlds(4, seed=2)
    generator = torch.Generator().manual_seed(0)
    for each in (worlds, steady):
        each.reset(11)
    counts = [0.0, 0.0]
    for size in (4, 9, 2):
        worlds.resize(size)
        assert worlds.num_envs == size
        stay = min(size, 4)
        for _ in range(12):
            for ours, theirs in zip(worlds.observation, steady.observation, strict=True):
                if ours is None:
                    assert theirs is None
                    continue
                assert len(ours) == size
                assert torch.equal(ours[:stay], theirs[:stay])
            actions = random_actions(worlds.action_space, 9, generator)
            worlds.step(actions[:size])
            steady.step(actions[:4])
            for name in ("reward", "terminated", "truncated"):
                assert torch.equal(getattr(worlds, name)[:stay], getattr(steady, name)[:stay])
            ended = worlds.terminated | worlds.truncated
            counts[0] += float(ended.sum())
            counts[1] += float(ended.sum() * (size == 2))
    assert (
        worlds.mean_episode(worlds.take_sums().tolist())["episode/count"] == counts[0] > counts[1] > 2
    )  # also of those that are gone


def test_a_loaded_state_does_not_change_the_seed_of_environments_to_come():
    worlds, resumed = trading_worlds(3), trading_worlds(3)
    for each in (worlds, resumed):
        each.reset(11)
    worlds.step(torch.zeros(3, dtype=torch.int64))
    resumed.load_state(worlds.state())
    for each in (worlds, resumed):
        each.resize(5)
    assert torch.equal(worlds.state()["blocks"], resumed.state()["blocks"])


def test_a_kind_of_worlds_has_to_say_what_it_does():
    with pytest.raises(TypeError, match="abstract"):
        Worlds(None, None, None, ())  # type: ignore[abstract, arg-type]


# Foreign environments


class Counter(gymnasium.Env):
    """Shows the seed's number and how many steps it took; the episode's length follows from the number."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def _observation(self):
        return np.array([self.number, self.count], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.count = int(self.np_random.integers(100)), 0
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        return self._observation(), float(self.number + action), self.count == 3 + self.number % 4, False, {}


def test_foreign_environments_that_stay_go_on_with_their_episodes():
    worlds, steady = (ForeignWorlds(vd.make_vec(Counter, 4, backend="serial", seed=1)) for _ in range(2))
    for each in (worlds, steady):
        each.reset(5)
    generator = torch.Generator().manual_seed(0)
    ended, returned = 0, 0.0
    running = np.zeros(9)
    for size in (4, 9, 2):
        before = worlds.num_envs
        worlds.resize(size)
        running[before:size] = 0.0
        stay = min(size, 4)
        assert worlds.observation.values.shape == (size, 2)
        for _ in range(12):
            assert torch.equal(worlds.observation.values[:stay], steady.observation.values[:stay])
            actions = torch.randint(0, 2, (9,), generator=generator)
            worlds.step(actions[:size])
            steady.step(actions[:4])
            over = worlds.terminated
            assert torch.equal(worlds.reward[:stay], steady.reward[:stay])
            assert torch.equal(worlds.final.values[:stay][over[:stay]], steady.final.values[:stay][over[:stay]])
            assert (worlds.final.values[over, 1] == 3 + worlds.final.values[over, 0] % 4).all()
            assert (worlds.observation.values[over, 1] == 0).all()
            running[:size] += worlds.reward.numpy()
            ended, returned = ended + int(over.sum()), returned + running[:size][over.numpy()].sum()
            running[:size][over.numpy()] = 0.0
    found = worlds.mean_episode(worlds.take_sums().tolist())
    assert found["episode/count"] == ended > 20
    assert found["episode/return"] == pytest.approx(returned / ended)


def test_foreign_environments_are_seeded_apart():
    """Of runs with neighbouring seeds no environments are the same."""
    seen = []
    for seed in (5, 6):
        worlds = ForeignWorlds(vd.make_vec(Counter, 8, backend="serial"))
        worlds.reset(seed)
        seen.append(worlds.observation.values[:, 0].tolist())
        expected = [np.random.Generator(np.random.PCG64(own)).integers(100) for own in spread_seeds(seed, 8)]
        assert seen[-1] == expected
    assert seen[0][1:] != seen[1][:-1]


@pytest.mark.parametrize("wrap", [lambda envs: envs, RecordEpisodeStatistics])
def test_environments_of_gymnasium_cannot_be_resized_and_say_who_can(wrap):
    envs = wrap(SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    worlds = make_worlds(envs)
    worlds.reset(0)
    with pytest.raises(BackendError, match=r"cannot change.* from 2 to 4; .*serial"):
        worlds.resize(4)
    worlds.step(torch.zeros(2, dtype=torch.int64))


def test_a_wrapper_that_would_keep_the_old_size_is_refused_before_anything_changes():
    worlds = ForeignWorlds(RecordEpisodeStatistics(vd.make_vec(Counter, 2, backend="serial")))
    worlds.reset(0)
    with pytest.raises(BackendError, match="RecordEpisodeStatistics cannot change"):
        worlds.resize(4)
    assert worlds.envs.num_envs == 2


def test_foreign_environments_have_no_state_to_continue_from():
    worlds = foreign_worlds(lambda: Endless(3, terminates=True), 2)
    assert worlds.state() == {}
    with pytest.raises(BackendError, match="cannot be saved"):
        worlds.load_state({})


def test_final_observations_that_come_as_a_batch_are_read_too():
    """So rule environments have them, below a wrapper."""
    worlds = ForeignWorlds(RecordEpisodeStatistics(vd.make_vec("template", 3, seed=0, length=4)))
    steady = vd.make_vec("template", 3, seed=0, length=4)
    worlds.reset(1)
    steady.reset(seed=spread_seeds(1, 3))
    for _ in range(8):
        worlds.step(torch.ones(3, dtype=torch.int64))
        _, _, terminated, truncated, infos = steady.step(np.ones(3, np.int64))
        ended = terminated | truncated
        if ended.any():
            np.testing.assert_array_equal(worlds.final.values.numpy()[ended], infos["final_obs"][ended])
    assert ended.any()


# The replay buffer


class ResizedStory(Story):
    """A story in which the number of environments changes; `chapters` are what happened before, cut at the end."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.order: list[tuple[int, int, int]] = []  # chapter, row, environment of each transition as it was stored
        self.chapters = [self.steps]

    def live(self, buffer: ReplayBuffer, ends: list[int]) -> None:
        super().live(buffer, ends)
        self.order += [(len(self.chapters) - 1, len(self.steps[0]) - 1, i) for i in range(self.num_envs)]

    def resize(self, buffer: ReplayBuffer, num_envs: int) -> None:
        if num_envs == self.num_envs:
            return
        buffer.resize(num_envs)
        for steps in self.steps:
            if steps:
                steps[-1].truncated = True
        self.num_envs = num_envs
        self.steps = [[] for _ in range(num_envs)]
        self.chapters.append(self.steps)
        self.now = self._new_numbers()
        self.observation = self._observation(self.now)

    def complete(self, held: int, n_step: int) -> dict[int, Answer]:
        """Return what the newest `held` transitions are, less those whose n steps are not all known."""
        found = {}
        for chapter, row, environment in self.order[len(self.order) - held :]:
            steps = self.chapters[chapter][environment]
            if chapter == len(self.chapters) - 1 and row > len(steps) - n_step:
                continue
            found[steps[row].seen] = answer_of(steps[row : row + n_step])
        return found


chapters = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=6)


@given(chapters, st.integers(1, 4), st.integers(0, 40), st.booleans(), st.integers(0, 100))
@settings(max_examples=75)
def test_what_is_drawn_after_resizes_is_what_happened(course, n_step, further, prioritised, seed):
    capacity = 6 * n_step + further
    rng = np.random.default_rng(seed)
    story = ResizedStory(course[0][0])
    buffer = ReplayBuffer(capacity, story, gamma=GAMMA, n_step=n_step, priority_exponent=0.5 if prioritised else None)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    held = 0  # transitions that the buffer must have, or more
    for num_envs, steps in course:
        story.resize(buffer, num_envs)
        rows = capacity // num_envs
        held = min(held, rows * num_envs)
        for _ in range(steps):
            story.live(buffer, rng.choice([RUNS, RUNS, RUNS, TERMINATES, IS_CUT], num_envs).tolist())
            # A row takes the place of the oldest once all rows are in use, though that one may be filled in part.
            used = -(-held // num_envs)
            held = held + num_envs if used < rows else rows * num_envs
        assert int(buffer.filled) * num_envs - int(buffer.gap) == held
        wanted = story.complete(held, n_step)
        if not wanted:
            continue
        drawn = buffer.sample(2048, generator, torch.tensor(1.0))
        assert set(drawn.observation.values[:, 0].long().tolist()) == set(wanted)
        for k in range(0, 2048, 32):
            answer = wanted[int(drawn.observation.values[k, 0])]
            assert drawn.actions[k] == answer.action
            assert float(drawn.rewards[k]) == pytest.approx(answer.reward, rel=1e-5)
            assert float(drawn.discount[k]) == pytest.approx(answer.discount, rel=1e-6)
            assert drawn.following.values[k].tolist() == [answer.following, -answer.following]
            assert drawn.following.cursor is not None
            assert drawn.following.cursor[k] == answer.following


def buffer_of(
    num_envs: int, n_step: int = 2, capacity: int = 40, **options: float
) -> tuple[ResizedStory, ReplayBuffer]:
    story = ResizedStory(num_envs)
    return story, ReplayBuffer(capacity, story, gamma=GAMMA, n_step=n_step, **options)  # type: ignore[arg-type]


def test_growing_and_shrinking_at_once_keeps_every_transition():
    story, buffer = buffer_of(4)
    for _ in range(5):
        story.live(buffer, [RUNS] * 4)
    for size in (7, 3, 20, 1, 4):
        story.resize(buffer, size)
        drawn = buffer.sample(1024, torch.Generator().manual_seed(0))
        assert len(set(drawn.observation.values[:, 0].tolist())) == 20


def test_priorities_follow_their_transitions():
    story, buffer = buffer_of(4, n_step=1, priority_exponent=1.0)
    for _ in range(5):
        story.live(buffer, [RUNS] * 4)
    buffer.set_errors(torch.arange(20), torch.arange(20) / 10.0)
    story.resize(buffer, 3)
    assert buffer.tree is not None
    numbers = buffer.stored["values"].flatten(0, 1)[:, 0]
    masses = {int(number): float(mass) for number, mass in zip(numbers, buffer.tree.leaves, strict=False) if mass > 0}
    # Observations were numbered as they were stored, with as many numbers for last observations in between.
    expected = {
        step.seen: (4 * row + i) / 10.0 for i, steps in enumerate(story.chapters[0]) for row, step in enumerate(steps)
    }
    assert masses == pytest.approx(expected, abs=2e-6)
    assert float(buffer.tree.total) == pytest.approx(19.0, abs=1e-4)
    story.live(buffer, [RUNS] * 3)
    assert buffer.tree.leaves[21:24].tolist() == pytest.approx([1.9] * 3, abs=2e-6)


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_buffer_that_was_resized_is_saved_and_goes_on_with_the_same_bits(prioritised):
    options = {"priority_exponent": 0.6} if prioritised else {}
    story, buffer = buffer_of(4, **options)
    for _ in range(9):
        story.live(buffer, [RUNS, RUNS, IS_CUT, TERMINATES])
    story.resize(buffer, 7)
    story.live(buffer, [RUNS] * 7)
    _, loaded = buffer_of(7, **options)
    loaded.load_state({name: tensor.clone() for name, tensor in buffer.state().items()})
    for _ in range(4):
        one, other = (each.sample(64, torch.Generator().manual_seed(3), torch.tensor(0.4)) for each in (buffer, loaded))
        assert torch.equal(one.places, other.places)
        assert torch.equal(one.rewards, other.rewards)
        assert torch.equal(one.following.values, other.following.values)
        observation = story.observation
        story.live(buffer, [RUNS] * 7)
        loaded.see(observation)
        loaded.store(torch.zeros(7, dtype=torch.int64), story)  # type: ignore[arg-type]


def test_a_buffer_saved_before_sizes_could_change_is_loaded():
    story, buffer = buffer_of(4)
    for _ in range(7):
        story.live(buffer, [RUNS] * 4)
    saved = {name: tensor.clone() for name, tensor in buffer.state().items() if name != "stride"}
    saved["position"] = saved["position"][:5]
    _, loaded = buffer_of(4)
    loaded.load_state(saved)
    one, other = (each.sample(64, torch.Generator().manual_seed(3)) for each in (buffer, loaded))
    assert torch.equal(one.rewards, other.rewards)
    assert torch.equal(one.following.values, other.following.values)


def test_a_number_of_environments_that_does_not_fit_is_refused_and_nothing_changes():
    story, buffer = buffer_of(4)
    story.live(buffer, [RUNS] * 4)
    with pytest.raises(ConfigError, match=r"buffer_size = 40 holds 1 steps of 21 environments.*at least 42"):
        buffer.resize(21)
    story.live(buffer, [RUNS] * 4)
    assert not buffer.stored["truncated"].any()
