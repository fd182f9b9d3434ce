"""All parameters of a network in one aligned buffer, with their gradients and Adam's moments in others like it.

One pass over a buffer then serves every parameter, and parameters that are used together (the first layers of an actor
and a critic) are one matrix. The modules keep working: their parameters become views of the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from velodrome.errors import BackendError

# 64 bytes: MKL chooses its code by the alignment of a matrix, so equal bits need equal alignment.
ALIGNMENT = 16  # floats


def round_up(count: int, multiple: int = ALIGNMENT) -> int:
    """Return the smallest multiple that is not below a count."""
    return -(-count // multiple) * multiple


class FlatParameters:
    """Parameters in groups; within a group they lie side by side without a gap, so that they can be one matrix."""

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        self._parameters = [parameter for group in groups for parameter in group]
        self._offsets: dict[int, int] = {}  # by identity of the parameter
        end = 0
        for group in groups:
            end = round_up(end)
            for parameter in group:
                self._offsets[id(parameter)] = end
                end += parameter.numel()
        self.size = round_up(end)
        self.values = torch.zeros(self.size)
        self.gradient = torch.zeros(self.size)
        self.moments = torch.zeros(self.size), torch.zeros(self.size)  # Adam's first and second
        for parameter in self._parameters:
            view = self.view(self.values, (parameter,), tuple(parameter.shape))
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.view(self.gradient, (parameter,), tuple(parameter.shape))
        # The same memory for compiled code, in the order in which `kernels.adam` takes it.
        buffers = (self.values, self.gradient, *self.moments)
        self.arrays = tuple(buffer.numpy() for buffer in buffers)
        self.gradient_array = self.arrays[1]
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]

    def offset(self, parameter: torch.Tensor) -> int:
        """Return where a parameter begins in the buffers."""
        return self._offsets[id(parameter)]

    def view(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """Return neighbours of one group as one array of a buffer that is laid out like this one."""
        first = self.offset(parameters[0])
        return buffer[first : first + sum(parameter.numel() for parameter in parameters)].view(shape)

    def check(self) -> None:
        """Refuse to go on once a parameter lives elsewhere: it would no longer see the updates."""
        if [parameter.data_ptr() for parameter in self._parameters] != self._addresses:
            raise BackendError(
                "a parameter was moved or replaced after FusedActorCritic was built on it (module.to, a new .data); "
                "copy into it instead (load_state_dict, copy_), or build FusedActorCritic again"
            )
