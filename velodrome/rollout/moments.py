"""Running mean and variance of a stream of batches (Chan, Golub and LeVeque), for observations and rewards."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from velodrome.rollout import ranks
from velodrome.rollout.advantages import write_discounted
from velodrome.rollout.storage import resized

LIMIT = 10.0  # deviations at which normalised values are cut


class RunningMoments:
    """Mean and variance of all values seen; 0 and 1 before the first batch.

    alike: places of values of one kind, such as one value of each instrument; they share their moments.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu", alike: Iterable[range] = ()) -> None:
        self.alike = tuple(alike)
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.variance = torch.ones(size, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, batch: Tensor) -> None:
        """Take in a batch, [n, size]; one with more columns than there are moments is of values of one kind."""
        batch = batch.double()
        rows = batch.numel() // len(self.mean)
        mean, variance = batch.mean(0), batch.var(0, correction=0)
        for places in self.alike:
            run = slice(places.start, places.stop)
            mean[run], variance[run] = _pooled(mean[run], variance[run])
        if len(mean) > len(self.mean):
            mean, variance = _pooled(mean, variance)
        mean, variance, rows = ranks.pooled(mean, variance, rows)
        total = self.count + rows
        difference = mean - self.mean
        # Before the first batch the initial variance must not count.
        spread = torch.where(self.count > 0, self.variance * self.count, torch.zeros_like(self.variance))
        self.variance.copy_((spread + variance * rows + difference.square() * self.count * rows / total) / total)
        self.mean.add_(difference * (rows / total))
        self.count.copy_(total)

    @property
    def scale(self) -> Tensor:
        """One over the deviation, float32."""
        return (self.variance + 1e-8).rsqrt().float()

    def normalise(self, values: Tensor, limit: float = LIMIT) -> Tensor:
        """Return values minus the mean, divided by the deviation, clipped at ± limit."""
        return ((values - self.mean.float()) * self.scale).clamp(-limit, limit)

    def state(self) -> dict[str, Tensor]:
        """Return the moments by name."""
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue with the moments that `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(tensors[name])


def _pooled(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance, [1], of all columns together, given those of each."""
    centre = mean.mean(0, keepdim=True)
    return centre, (variance + (mean - centre).square()).mean(0, keepdim=True)


class RewardScale:
    """Divides rewards by the deviation of the discounted return, so that values are about one."""

    def __init__(self, num_envs: int, gamma: float, device: torch.device | str = "cpu") -> None:
        self.gamma = gamma
        self.returns = torch.zeros(num_envs, device=device)  # discounted, of the running episodes
        self.moments = RunningMoments(1, device)

    def scale(self, reward: Tensor, terminated: Tensor, truncated: Tensor) -> None:
        """Take in the rewards of a rollout, [steps, environments], and scale them in place."""
        returns = torch.empty_like(reward)
        write_discounted(reward, terminated, truncated, self.gamma, self.returns, returns)
        # By columns: torch adds up one long column in an order that depends on the number of threads.
        self.moments.update(returns)
        reward.mul_(self.moments.scale).clamp_(-LIMIT, LIMIT)

    def resize(self, num_envs: int) -> None:
        """Go on with this many environments: the first are in their episodes, new ones at the start of theirs."""
        self.returns = resized(self.returns, num_envs)

    def state(self) -> dict[str, Tensor]:
        """Return everything by name."""
        return {"returns": self.returns, **self.moments.state()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue with what `state` returned."""
        self.returns.copy_(tensors["returns"])
        self.moments.load_state(tensors)
