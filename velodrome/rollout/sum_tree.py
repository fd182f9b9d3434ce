"""A sum tree on a device: leaves are drawn in proportion to their mass, many at once and without a loop over them.

A node has WIDTH children instead of two, so a draw takes a few wide steps rather than many narrow ones. When a child
changes, its parent's sum is computed from all children again, so no rounding error builds up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from velodrome.errors import ConfigError

WIDTH = 32
BELOW_ONE = 1.0 - 2.0**-53


class SumTree:
    """Masses of `size` leaves, 0 at first, and the sums above them; all in float64."""

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.levels: list[Tensor] = []  # from the leaves up to the WIDTH nodes under the root, each padded with 0
        while not self.levels or size > 1:
            groups = -(-size // WIDTH)
            self.levels.append(torch.zeros(groups * WIDTH, dtype=torch.float64, device=device))
            size = groups

    @property
    def leaves(self) -> Tensor:
        """The leaves' masses, padded."""
        return self.levels[0]

    @property
    def total(self) -> Tensor:
        """The mass of all leaves."""
        return self.levels[-1].sum()

    def set(self, leaves: Tensor, masses: Tensor) -> None:
        """Give some leaves new masses; if a leaf is named several times, the largest counts."""
        # A maximum does not depend on the order in which a device writes; a plain assignment would.
        self.leaves.scatter_reduce_(0, leaves, masses, "amax", include_self=False)
        nodes = leaves
        for children, sums in zip(self.levels, self.levels[1:], strict=False):
            nodes = nodes // WIDTH
            sums[nodes] = children.view(-1, WIDTH).index_select(0, nodes).sum(1)

    def scale(self, factor: Tensor) -> None:
        """Multiply all masses."""
        for level in self.levels:
            level.mul_(factor)

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return the leaves at some fractions, [m] in [0, 1), of the total mass, and their probabilities.

        A leaf without mass is never drawn, whatever the rounding, as long as any leaf has some.
        """
        total = self.total
        node = torch.zeros_like(uniform, dtype=torch.int64)
        mass = uniform
        for level in reversed(self.levels):
            children = level.view(-1, WIDTH).index_select(0, node)  # [m, WIDTH]
            ends = children.cumsum(1).masked_fill_(children <= 0.0, 0.0)
            place = uniform * ends.amax(1)  # below the largest end, so at least one child qualifies
            child = (ends > place.unsqueeze(1)).byte().argmax(1, keepdim=True)
            mass = children.gather(1, child).squeeze(1)
            begin = ends.gather(1, child).squeeze(1) - mass
            uniform = ((place - begin) / mass).clamp(0.0, BELOW_ONE)
            node = node * WIDTH + child.squeeze(1)
        return node, mass / total

    def state(self) -> dict[str, Tensor]:
        """Return all masses by name."""
        return {f"level_{depth}": level for depth, level in enumerate(self.levels)}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue with what `state` returned."""
        for name, level in self.state().items():
            level.copy_(tensors[name])
        # A mass where there is no leaf below would be drawn, and lead beyond the end.
        below = (len(level) // WIDTH for level in self.levels)
        beyond = [level[real:].any() for real, level in zip(below, self.levels[1:], strict=False)]
        if any(beyond) or not all((level.isfinite() & (level >= 0.0)).all() for level in self.levels):
            raise ConfigError("The saved replay buffer is damaged: its priorities are not masses of its leaves.")
