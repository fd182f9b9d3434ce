"""The memory of one rollout, [steps, environments], allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from velodrome.rollout.launch import on_device
from velodrome.rollout.observation import Observation
from velodrome.rollout.worlds import Worlds


def resized(rows: Tensor, count: int, fill: bool | float = 0) -> Tensor:
    """Return a tensor with this many rows: the first as they were, new ones filled."""
    found = torch.full((count, *rows.shape[1:]), fill, dtype=rows.dtype, device=rows.device)
    kept = min(count, len(rows))
    found[:kept] = rows[:kept]
    return found


class Rollout:
    """What happened in `steps` steps of all environments. Windows are stored as cursors."""

    def __init__(
        self, steps: int, worlds: Worlds, action_shape: tuple[int, ...], action_type: torch.dtype, memory: int = 0
    ) -> None:
        n, device = worlds.num_envs, worlds.device

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((steps, n, *shape), dtype=dtype, device=device)

        self.steps, self.num_envs = steps, n
        self.values = empty(worlds.shape.values)  # as the network saw them, perhaps normalised
        self.cursor = empty(dtype=torch.int32) if worlds.bank is not None else None
        self.starts = empty(dtype=torch.bool)  # the step is the first of its episode
        self.actions = empty(*action_shape, dtype=action_type)
        self.log_prob = empty()
        self.value = empty()
        self.reward = empty()
        self.terminated = empty(dtype=torch.bool)
        self.truncated = empty(dtype=torch.bool)
        # Where an episode ended in a step; elsewhere they are old.
        self.final_values = empty(worlds.shape.values)
        self.final_cursor = empty(dtype=torch.int32) if worlds.bank is not None else None
        self.final_memory = empty(memory)
        self.final_value = empty()  # value of the state in which a truncated episode was cut off; else unused
        self.first_memory = torch.zeros((n, memory), device=device)  # before the first step
        self.last_value = torch.zeros(n, device=device)  # of the state after the last step
        self.no_cursor = empty(dtype=torch.int32) if worlds.bank is None else torch.zeros(0)
        self.advantage = empty()
        self.returns = empty()

    def let_go(self) -> None:
        """Give the memory back; nothing can be stored afterwards."""
        for name, tensor in vars(self).items():
            if isinstance(tensor, Tensor):
                setattr(self, name, tensor.new_empty(0))

    @property
    def samples(self) -> int:
        """Steps of all environments together."""
        return self.steps * self.num_envs

    def see(self, t: int, observation: Observation, starts: Tensor) -> None:
        """Store what is seen before step t."""
        self.values[t] = observation.values
        self.starts[t] = starts
        if self.cursor is not None and observation.cursor is not None:
            self.cursor[t] = observation.cursor

    def store(self, t: int, worlds: Worlds, memory: Tensor, starts: Tensor) -> None:
        """Store what step t led to; `memory` is the policy's after the step, `starts` is set where episodes ended."""
        cursor, final_cursor = self.final_cursor, worlds.final.cursor
        if on_device(self.reward):
            if cursor is None or final_cursor is None:
                cursor, final_cursor = self.no_cursor, self.no_cursor[0]
            from velodrome.rollout.cuda_rows import store_row

            seen = (worlds.reward, worlds.terminated, worlds.truncated, worlds.final.values, final_cursor)
            kept = (self.reward[t], self.terminated[t], self.truncated[t], self.final_values[t], cursor[t])
            store_row(self.num_envs, *seen, *kept, starts)
        else:
            self.reward[t] = worlds.reward
            self.terminated[t], self.truncated[t] = worlds.terminated, worlds.truncated
            self.final_values[t] = worlds.final.values
            if cursor is not None and final_cursor is not None:
                cursor[t] = final_cursor
            torch.logical_or(worlds.terminated, worlds.truncated, out=starts)
        if memory.shape[1]:
            self.final_memory[t] = memory

    def observations(self) -> Observation:
        """Return all observations, flat as [steps · environments]."""
        return Observation(self.values.flatten(0, 1), None if self.cursor is None else self.cursor.flatten())

    def final_observations(self) -> Observation:
        """Return the last observations of ended episodes, flat as [steps · environments]."""
        cursor = None if self.final_cursor is None else self.final_cursor.flatten()
        return Observation(self.final_values.flatten(0, 1), cursor)
