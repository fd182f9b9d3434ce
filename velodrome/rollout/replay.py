"""The replay buffer: a ring of rows, each one step of all environments, from which single transitions are drawn.

A row keeps what was seen before a step and after it; where an episode ended, that is its true last observation. A
truncated episode is bootstrapped from the state it was cut off in, a terminated one never. Windows are stored as
cursors. The position in the ring is on the device, so that storing and drawing can be part of a CUDA graph.

When the number of environments changes, rows change their width, and what is stored is laid out again, oldest first.
The steps of one environment are then no longer a column: each transition says how many places further its next step is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from velodrome.errors import ConfigError
from velodrome.rollout.observation import Observation
from velodrome.rollout.sum_tree import SumTree
from velodrome.rollout.worlds import Worlds

LEAST_ERROR = 1e-6  # added to errors, so that a transition without any error can still be drawn


class Transitions(NamedTuple):
    """m transitions of up to n steps; fewer where the episode ended."""

    observation: Observation
    actions: Tensor  # [m] int64, or [m, size] float32
    rewards: Tensor  # [m] discounted sum over the steps
    following: Observation  # after the last of the steps
    discount: Tensor  # [m] of the value of that: gamma to the number of steps, 0 where the episode terminated
    weights: Tensor | None  # [m] that correct for unequal chances, at most 1; None if chances are equal
    places: Tensor  # [m] in the buffer, for `set_errors`

    def between(self, first: int, end: int) -> Transitions:
        """Return some of them."""

        def cut(part: Tensor | None) -> Any:
            return None if part is None else part[first:end]

        seen, following = (Observation(*map(cut, side)) for side in (self.observation, self.following))
        others = {name: cut(getattr(self, name)) for name in ("actions", "rewards", "discount", "weights", "places")}
        return self._replace(observation=seen, following=following, **others)


class ReplayBuffer:
    """The last `capacity // num_envs` steps of all environments; after a change of their number, as many transitions.

    Transitions of n steps begin at every stored step but the latest n − 1 of each environment, whose rewards are not
    all known: none reaches across the head of the ring from the newest row into the oldest.
    """

    def __init__(
        self,
        capacity: int,
        worlds: Worlds,
        *,
        gamma: float,
        n_step: int = 1,
        priority_exponent: float | None = None,
        numbers: tuple[int, ...] = (),
        section: str = "dqn",
    ) -> None:
        """Make an empty buffer.

        priority_exponent: draw by error to this power; None: all have the same chance. numbers: shape of an action of
        numbers; (): it is a choice. section: of the configuration in which its settings are, for messages.
        """
        n, device = worlds.num_envs, worlds.device
        self.capacity, self.n_step, self.section = capacity, n_step, section
        rows = self.rows_for(n)

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((rows, n, *shape), dtype=dtype, device=device)

        self.rows, self.num_envs = rows, n
        self.stored = {
            "values": empty(worlds.shape.values),
            "next_values": empty(worlds.shape.values),
            "actions": empty(*numbers) if numbers else empty(dtype=torch.int32),
            "reward": empty(),
            "terminated": empty(dtype=torch.bool),
            "truncated": empty(dtype=torch.bool),
        }
        if worlds.bank is not None:
            self.stored |= {"cursor": empty(dtype=torch.int32), "next_cursor": empty(dtype=torch.int32)}
        if n_step > 1:
            self.stored["stride"] = empty(dtype=torch.int32)  # places to the next step of the same environment
        self.head = torch.zeros(1, dtype=torch.int64, device=device)  # row that is written next
        self.filled = torch.zeros(1, dtype=torch.int64, device=device)  # rows written, at most all
        self.gap = torch.zeros(1, dtype=torch.int64, device=device)  # places at the front of the oldest that are empty
        self.recent = torch.zeros(1, dtype=torch.int64, device=device)  # rows written since the last change of width
        self.steps = torch.arange(n_step, device=device)
        self.powers = gamma ** torch.arange(n_step + 1, dtype=torch.float64, device=device)  # of gamma, from 0 up
        self.environments = torch.arange(n, device=device)
        self.priority_exponent = priority_exponent
        self.tree = None if priority_exponent is None else SumTree(rows * n, device)
        self.highest = torch.ones(1, dtype=torch.float64, device=device)  # mass that new transitions get
        self.ranked = False  # whether any error is known

    def rows_for(self, num_envs: int) -> int:
        """Return how many steps of this many environments fit, or refuse if that is too few."""
        rows = self.capacity // num_envs
        if rows < self.n_step:
            raise ConfigError(
                f"{self.section}.buffer_size = {self.capacity:,} holds {rows} steps of {num_envs:,} environments, and "
                f"transitions have {self.n_step}; set it to at least {self.n_step * num_envs:,}."
            )
        return rows

    # Write

    def see(self, observation: Observation) -> None:
        """Store what is seen before a step, as the environments gave it."""
        self._put("values", observation.values)
        if observation.cursor is not None:
            self._put("cursor", observation.cursor)

    def store(self, actions: Tensor, worlds: Worlds) -> None:
        """Store what was done and what it led to, and move on to the next row."""
        ended = worlds.terminated | worlds.truncated
        self._put("actions", actions)
        self._put("reward", worlds.reward)
        self._put("terminated", worlds.terminated)
        self._put("truncated", worlds.truncated)
        self._put("next_values", torch.where(ended.unsqueeze(1), worlds.final.values, worlds.observation.values))
        if worlds.final.cursor is not None and worlds.observation.cursor is not None:
            self._put("next_cursor", torch.where(ended, worlds.final.cursor, worlds.observation.cursor))
        if self.n_step > 1:
            self.stored["stride"].index_fill_(0, self.head, self.num_envs)
        self.gap.mul_(self.filled < self.rows)  # if the buffer is full, this row takes the place of the oldest
        self.filled.add_(1).clamp_(max=self.rows)
        self.recent.add_(1)
        if self.tree is not None:
            self._admit(self.tree)
        self.head.add_(1).remainder_(self.rows)

    def _put(self, name: str, row: Tensor) -> None:
        stored = self.stored[name]
        stored.index_copy_(0, self.head, row.to(stored.dtype).unsqueeze(0))

    def _admit(self, tree: SumTree) -> None:
        """Give the highest mass to the transitions whose n steps are now known, and none to the newest."""
        entering = (self.head - (self.n_step - 1)).remainder(self.rows) * self.num_envs + self.environments
        # Until then, the place is empty or from before a change of width.
        mass = torch.where(self.recent >= self.n_step, self.highest, tree.leaves[entering])
        if self.n_step > 1:
            newest = self.head * self.num_envs + self.environments
            entering, mass = torch.cat([newest, entering]), torch.cat([torch.zeros_like(mass), mass])
        tree.set(entering, mass)

    def cut(self) -> None:
        """Truncate the running episodes at the last step: what is stored next belongs to other episodes."""
        newest = (self.head - 1).remainder(self.rows)
        self.stored["truncated"][newest] |= self.recent > 0

    def resize(self, num_envs: int) -> None:
        """Go on with steps of this many environments. What is stored stays, except what does not fill a row.

        Running episodes are cut in the buffer: n steps do not reach across the change.
        """
        if num_envs == self.num_envs:
            return
        rows = self.rows_for(num_envs)
        self.cut()
        device, old = self.head.device, self.num_envs
        count = int(self.filled) * old - int(self.gap)
        kept = min(count, rows * num_envs)
        # Places of what is kept, oldest first, before and after. Only the oldest row may be incomplete.
        filled = -(-kept // num_envs)
        gap = filled * num_envs - kept
        source = (int(self.head) * old - kept + torch.arange(kept, device=device)) % (self.rows * old)
        for name, stored in self.stored.items():
            laid_out = torch.zeros((rows * num_envs, *stored.shape[2:]), dtype=stored.dtype, device=device)
            laid_out[gap : gap + kept] = stored.flatten(0, 1).index_select(0, source)
            self.stored[name] = laid_out.unflatten(0, (rows, num_envs))
        if self.tree is not None:
            masses = self.tree.leaves.index_select(0, source)
            # Transitions that waited for later steps are complete now that they are cut.
            opened = min(int(self.recent), self.n_step - 1) * old
            masses[max(kept - opened, 0) :] = self.highest
            self.tree = SumTree(rows * num_envs, device)
            if kept:
                self.tree.set(torch.arange(gap, gap + kept, device=device), masses)
        self.rows, self.num_envs = rows, num_envs
        self.environments = torch.arange(num_envs, device=device)
        self.head.fill_(filled % rows)
        self.filled.fill_(filled)
        self.gap.fill_(gap)
        self.recent.zero_()

    # Draw

    def sample(self, count: int, generator: torch.Generator, correction: Tensor | None = None) -> Transitions:
        """Draw transitions, with replacement; at least `n_step` rows must be stored.

        correction: if drawn by error, the power (a tensor, 0 to 1) of the weights that correct for unequal chances.
        """
        uniform = torch.rand(count, dtype=torch.float64, device=self.head.device, generator=generator)
        size = self.rows * self.num_envs
        still_open = self.recent.clamp(max=self.n_step - 1)  # rows
        beginnings = (self.filled - still_open) * self.num_envs - self.gap
        weights = None
        if self.tree is None:
            oldest = (self.head - self.filled) * self.num_envs + self.gap
            places = (oldest + (uniform * beginnings).long()).remainder(size)
        else:
            places, probability = self.tree.draw(uniform)
            if correction is not None:
                weights = (beginnings * probability) ** -correction
                weights = (weights / weights.amax()).float()
        rewards, last, at = self._reward(places, size)
        discount = self.powers.index_select(0, last + 1) * ~self._take("terminated", at)
        return Transitions(
            Observation(self._take("values", places), self._cursor("cursor", places)),
            self._actions(places),
            rewards,
            Observation(self._take("next_values", at), self._cursor("next_cursor", at)),
            discount.float(),
            weights,
            places,
        )

    def _reward(self, places: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the discounted rewards of n steps (fewer if an episode ends), the index of the last, and its place."""
        if self.n_step == 1:
            return self._take("reward", places), torch.zeros_like(places), places
        # All episodes were cut when the width changed, so the first step's stride holds for all steps that count.
        stride = self._take("stride", places).long()
        steps = (places.unsqueeze(1) + self.steps * stride.unsqueeze(1)).remainder(size)
        every = steps.flatten()  # [m · n]
        ended = (self._take("terminated", every) | self._take("truncated", every)).view_as(steps)
        before = ended.cumsum(1) - ended.long()  # ends before each step
        counted = before == 0
        rewards = self._take("reward", every).view_as(steps) * counted * self.powers[:-1].float()
        last = counted.sum(1) - 1
        return rewards.sum(1), last, (places + last * stride).remainder(size)

    def _take(self, name: str, places: Tensor) -> Tensor:
        return self.stored[name].flatten(0, 1).index_select(0, places)

    def _actions(self, places: Tensor) -> Tensor:
        taken = self._take("actions", places)
        return taken if taken.is_floating_point() else taken.long()

    def _cursor(self, name: str, places: Tensor) -> Tensor | None:
        return self._take(name, places) if name in self.stored else None

    def set_errors(self, places: Tensor, errors: Tensor) -> None:
        """Say how wrong the values of some transitions were, which decides how often they are drawn."""
        if self.tree is None or self.priority_exponent is None:
            return
        masses = (errors.abs().double() + LEAST_ERROR) ** self.priority_exponent
        largest = masses.amax().view(1)
        if self.ranked:
            torch.maximum(self.highest, largest, out=self.highest)
        else:
            # Until now all masses were 1, whatever the size of errors; they must not outweigh the known ones.
            self.tree.scale(largest)
            self.highest.copy_(largest)
            self.ranked = True
        self.tree.set(places, masses)

    # Save

    def state(self) -> dict[str, Tensor]:
        """Return what is stored, by name: the rows written so far, and the position."""
        filled = int(self.filled)
        found = {name: stored[:filled] for name, stored in self.stored.items()}
        position = (self.rows, self.n_step, self.head, filled, self.ranked, self.gap, self.recent)
        found["position"] = torch.tensor([int(number) for number in position])
        if self.tree is not None:
            found |= {"highest": self.highest, **self.tree.state()}
        return found

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        rows, n_step, head, filled, ranked, *further = tensors["position"].tolist()
        gap, recent = further or (0, filled)  # buffers saved by older versions lack these numbers
        shapes = {name: tuple(stored.shape[1:]) for name, stored in self.stored.items() if name != "stride"}
        given = {name: tuple(tensors[name].shape[1:]) for name in shapes if name in tensors}
        if rows != self.rows or given != shapes:
            raise ConfigError(
                f"The saved replay buffer holds {rows} rows of {given}; this one {self.rows} rows of {shapes}. Resume "
                f"with the same environment, num_envs and {self.section}.buffer_size."
            )
        if n_step != self.n_step or (self.tree is not None) != ("highest" in tensors):
            raise ConfigError(
                f"The saved replay buffer is of n_step = {n_step}, prioritised = {'highest' in tensors}; this one of "
                f"{self.n_step} and {self.tree is not None}. Resume with the same."
            )
        if not (0 <= head < rows and 0 <= filled <= rows and 0 <= gap <= filled * self.num_envs and recent >= 0):
            position = f"{head}, {filled}, {gap}, {recent}"
            raise ConfigError(f"The saved replay buffer of {rows} rows is damaged: its position is {position}.")
        for name, stored in self.stored.items():
            # If no stride was saved, the width of rows had never changed.
            stored[:filled] = tensors.get(name, self.num_envs)
        self.head.fill_(head)
        self.filled.fill_(filled)
        self.gap.fill_(gap)
        self.recent.fill_(recent)
        if self.tree is not None:
            self.highest.copy_(tensors["highest"])
            self.tree.load_state(tensors)
            self.ranked = bool(ranked)
