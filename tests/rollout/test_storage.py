"""A rollout holds what was seen, done and got, and the last observation of every episode that ended."""

from __future__ import annotations

import torch

from tests.learn.learners import Endless, foreign_worlds, trading_worlds
from velodrome.rollout.storage import Rollout


def played(worlds, steps=12, memory=0):
    """A rollout of random actions, and what came back in each step, copied."""
    rollout = Rollout(steps, worlds, (), torch.int64, memory)
    starts = torch.ones(worlds.num_envs, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    log = []
    worlds.reset(5)
    for t in range(steps):
        before = [part.clone() for part in worlds.observation if part is not None]
        rollout.see(t, worlds.observation, starts)
        first = starts.clone()
        rollout.actions[t] = torch.randint(0, int(worlds.action_space.n), (worlds.num_envs,), generator=generator)
        worlds.step(rollout.actions[t])
        rollout.store(t, worlds, torch.full((worlds.num_envs, memory), float(t)), starts)
        after = [part.clone() for part in worlds.final if part is not None]
        flags = (worlds.reward.clone(), worlds.terminated.clone(), worlds.truncated.clone())
        log.append((before, first, flags, after))
    return rollout, starts, log


def test_what_happened_is_stored_by_step_and_environment():
    rollout, starts, log = played(trading_worlds(5))
    assert rollout.samples == 60
    for t, (before, first, (reward, terminated, truncated), _) in enumerate(log):
        assert torch.equal(rollout.values[t], before[0])
        assert torch.equal(rollout.cursor[t], before[1])
        assert torch.equal(rollout.starts[t], first)
        assert torch.equal(rollout.reward[t], reward)
        assert torch.equal(rollout.terminated[t], terminated)
        assert torch.equal(rollout.truncated[t], truncated)
    ended = rollout.terminated | rollout.truncated
    assert rollout.truncated.any()
    assert rollout.starts[0].all()
    assert torch.equal(rollout.starts[1:], ended[:-1])
    assert torch.equal(starts, ended[-1])


def test_final_observations_are_those_before_the_next_episode_began():
    rollout, _, log = played(trading_worlds(5))
    final = rollout.final_observations()
    ends = 0
    for t, (_, _, (_, terminated, truncated), after) in enumerate(log):
        for i in (terminated | truncated).nonzero().flatten().tolist():
            row = final.select(torch.tensor([t * 5 + i]))
            assert torch.equal(row.values[0], after[0][i])
            assert int(row.cursor) == int(after[1][i])
            # The step before showed the bar before.
            assert int(row.cursor) == int(rollout.cursor[t, i]) + 1
            ends += 1
    assert ends > 5


def test_rows_run_over_environments_first():
    rollout, _, _ = played(trading_worlds(5))
    every = rollout.observations()
    assert torch.equal(every.values[3 * 5 + 2], rollout.values[3, 2])
    assert every.cursor[3 * 5 + 2] == rollout.cursor[3, 2]


def test_the_memory_after_each_step_is_kept():
    rollout, _, _ = played(trading_worlds(5), memory=3)
    assert rollout.final_memory.shape == (12, 5, 3)
    assert rollout.final_memory[:, 0, 0].tolist() == [float(t) for t in range(12)]


def test_environments_without_windows_have_no_cursor():
    rollout, _, _ = played(foreign_worlds(lambda: Endless(4, terminates=False), 3))
    assert rollout.cursor is None
    assert rollout.final_cursor is None
    assert rollout.observations().cursor is None
    # The fifth state, which a rollout of steps would never show.
    assert rollout.final_values[3].tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]] * 3
