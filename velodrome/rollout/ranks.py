"""Several processes, ranks, that learn one policy together, each in environments of its own.

torch.distributed moves the numbers: NCCL between GPUs, gloo between CPUs. Whatever is random is drawn for the
environments of all ranks, and each takes its own rows, so that any number of ranks does what one would do, to the
rounding of sums. Every function here passes its argument through unless it is called inside `together`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from velodrome.errors import ConfigError, RunError
from velodrome.vector.cores import is_rank

NCCL_SECONDS = 60.0  # after which a rank that does not answer is given up; a closed connection is noticed at once
PATIENT_SECONDS = 86_400.0  # for what the first rank does alone: it reads data, validates, evaluates
ITERATE, STATE, TAKE, ANEW, END = range(5)  # what the first rank tells the others to do


class Ranks:
    """This process among those that `torchrun` started together."""

    def __init__(self) -> None:
        from torch import distributed

        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.distributed = distributed
        self.groups: dict[str, Any] = {}  # by kind of device
        self.first = self.count = self.total = 0  # of the environments: this rank's first, how many, those of all
        self.counts: list[int] = []  # by rank
        self.weights: dict[Any, Tensor] = {}  # the part of all that each has, by type and device
        self.are_busy = False  # with a training, of which a program may begin several one after the other
        self.are_learning = False  # the others wait for what this one tells, and not for what it sends
        self.are_at_rest = True  # no training of theirs is under way, or was cut off
        with self._answered():
            patience = timedelta(seconds=PATIENT_SECONDS)
            store, _, _ = next(distributed.rendezvous("env://", timeout=patience))
            # torchrun's store outlives its ranks, with the addresses of those that it has started anew since.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            own = distributed.PrefixStore(f"velodrome-{attempt}", store)
            distributed.init_process_group("gloo", store=own, rank=self.rank, world_size=self.size, timeout=patience)
        atexit.register(self.leave)

    def leave(self) -> None:
        """Close the connections before Python goes: a thread of gloo's that then asks for it would abort the process.

        Those between GPUs wait for the other ranks, which after an error may not be there.
        """
        ends_well = self.are_at_rest or "cuda" not in self.groups
        if ends_well and self.distributed.is_initialized():  # a program may have parted itself
            self.groups.clear()
            self.distributed.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes, validates and is spoken to."""
        return self.rank == 0

    def share(self, total: int, device: str | torch.device) -> tuple[int, int]:
        """Take a share of some environments: return the number of its first one, and how many there are."""
        if total < self.size:
            raise ConfigError(
                f"num_envs = {total} for {self.size} ranks; each needs an environment at least. Give num_envs="
                f"{self.size} or more, or start fewer ranks."
            )
        ends = [total * rank // self.size for rank in range(self.size + 1)]
        self.counts = [after - before for before, after in itertools.pairwise(ends)]
        self.first, self.count, self.total = ends[self.rank], self.counts[self.rank], total
        self.weights.clear()
        self._group(torch.device(device).type)
        return self.first, self.count

    def tell(self, number: int) -> None:
        """Tell the other ranks what to do next."""
        with self._answered():
            self.distributed.broadcast(torch.tensor([number]), 0)

    def hear(self) -> int:
        """Return what the first rank tells, whenever it does."""
        heard = torch.zeros(1, dtype=torch.int64)
        with self._answered():
            self.distributed.broadcast(heard, 0)
        return int(heard)

    def sent(self, content: Any = None) -> Any:
        """Return an object that the first rank gives."""
        box = [content]
        with self._answered():
            self.distributed.broadcast_object_list(box, 0)
        return box[0]

    def gathered(self, content: Any) -> list[Any]:
        """Return the objects that all ranks give, in the first rank; elsewhere nothing."""
        found: list[Any] = [None] * self.size
        with self._answered():
            self.distributed.gather_object(content, found if self.leads else None, 0)
        return found if self.leads else []

    def add_up(self, numbers: Tensor) -> Tensor:
        """Replace numbers by their sum over all ranks, which is the same to the bit in each; return them."""
        with self._answered():
            self.distributed.all_reduce(numbers, group=self._group(numbers.device.type))
        return numbers

    def of_all(self, numbers: Tensor) -> Tensor:
        """Return what all ranks have, [ranks, …]."""
        found = numbers.new_empty((self.size, *numbers.shape))
        with self._answered():
            self.distributed.all_gather(
                list(found.unbind()), numbers.contiguous(), group=self._group(numbers.device.type)
            )
        return found

    def _group(self, kind: str) -> Any:
        """Return what moves tensors of one kind of device; ranks ask for it the first time all together."""
        if kind not in self.groups:
            backend, seconds = ("nccl", NCCL_SECONDS) if kind == "cuda" else ("gloo", PATIENT_SECONDS)
            with self._answered():
                self.groups[kind] = self.distributed.new_group(backend=backend, timeout=timedelta(seconds=seconds))
        return self.groups[kind]

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        """Say in a sentence that other ranks do not answer."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # torch's own kinds are among them
            raise RunError(
                f"Rank {self.rank} of {self.size} has lost another one, which has ended or does not answer; what that "
                "one printed says why. The training goes on from its last checkpoint, with any number of ranks: "
                f"velodrome train --resume latest ({_shortened(str(error))})"
            ) from error


def _shortened(said: str) -> str:
    """Return what torch says of a lost connection, without where in its code and to whom to write."""
    first = said.strip().partition("\n")[0]
    return re.sub(r"\[/\S+\] ?", "", first).partition(". This is")[0].partition(", remote=")[0][:120].rstrip(". ")


@functools.cache
def joined() -> Ranks | None:
    """Return this process among its ranks; None if it was not started by torchrun."""
    return Ranks() if is_rank() else None


_now: Ranks | None = None  # while all ranks do the same


@contextlib.contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """Let what is done inside be done by all ranks at once."""
    global _now
    _now = ranks
    try:
        yield
    finally:
        _now = None


def drawn(draw: Callable[[int], Tensor], count: int) -> Tensor:
    """Return as many rows as this rank has environments; draw: makes so many. The random numbers are those of one rank
    with all environments.
    """
    return draw(count) if _now is None else draw(_now.total)[_now.first : _now.first + count]


def sampled(distribution: Any, parameters: Tensor, log_std: Tensor | None, generator: torch.Generator) -> Tensor:
    """Draw actions of this rank's environments from a distribution."""
    if _now is None:
        return distribution.sample(parameters, log_std, generator)
    if distribution.kind == "dirichlet" and generator.device.type == "cpu":
        # How many numbers it draws depends on what it draws, so that ranks would no longer draw the same afterwards.
        seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
        own = torch.Generator(generator.device).manual_seed(seed + _now.rank)
        return distribution.sample(parameters, log_std, own)

    def sample(count: int) -> Tensor:
        whole = parameters.new_zeros((count, *parameters.shape[1:]))
        whole[_now.first : _now.first + len(parameters)] = parameters
        return distribution.sample(whole, log_std, generator)

    return drawn(sample, len(parameters))


def pooled(mean: Tensor, variance: Tensor, rows: int) -> tuple[Tensor, Tensor, int]:
    """Return means, variances and the number of rows of all ranks, given this one's."""
    if _now is None:
        return mean, variance, rows
    found = _now.of_all(torch.stack([mean, variance]))  # [ranks, 2, …]
    weights = _weights(found)
    centre = (weights * found[:, 0]).sum(0)
    spread = (weights * (found[:, 1] + (found[:, 0] - centre).square())).sum(0)
    return centre, spread, rows // _now.count * _now.total


def _weights(like: Tensor) -> Tensor:
    """Return the part of all environments that each rank has, [ranks, 1 …]."""
    assert _now is not None
    key = (like.dtype, like.device)
    if key not in _now.weights:  # nothing may be copied from the host while a CUDA graph is captured
        _now.weights[key] = torch.tensor(_now.counts, dtype=like.dtype, device=like.device) / _now.total
    return _now.weights[key].view(-1, *[1] * (like.ndim - 2))


def variance_of(numbers: Tensor) -> Tensor:
    """Return the variance of the numbers of all ranks."""
    if _now is None:
        return numbers.var(correction=0)
    _, variance, _ = pooled(numbers.mean().view(1), numbers.var(correction=0).view(1), 1)
    return variance[0]


def summed(numbers: Tensor) -> Tensor:
    """Return the sum of numbers over all ranks."""
    return numbers if _now is None else _now.add_up(numbers.clone())


def averaged(numbers: Tensor) -> Tensor:
    """Return the mean of each number over the environments of all ranks."""
    return numbers if _now is None else _now.add_up(numbers * (_now.count / _now.total))


class Share(NamedTuple):
    """What a rank must know of a minibatch of which it has some rows."""

    whole: float  # rows that all ranks have of it
    advantages: tuple[Tensor, Tensor] | None  # mean and deviation over all of them, if they are wanted

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and deviation of the advantages, as numbers."""
        assert self.advantages is not None
        return float(self.advantages[0]), float(self.advantages[1])

    def add_up(self, gradients: Sequence[Tensor], report: Tensor) -> Tensor:
        """Add gradients up over all ranks, in place, and return the sum of numbers to report: all in one buffer."""
        assert _now is not None
        flat = _now.add_up(torch.cat([*(gradient.reshape(-1) for gradient in gradients), report.to(gradients[0])]))
        parts = flat.split([gradient.numel() for gradient in gradients] + [report.numel()])
        sums = [part.view_as(gradient) for gradient, part in zip(gradients, parts, strict=False)]
        torch._foreach_copy_(list(gradients), sums)  # one kernel
        return parts[-1]


def minibatches(
    count: int, parts: int, generator: torch.Generator, advantage: Tensor | None
) -> Iterator[tuple[Tensor, Share | None]]:
    """Yield the rows of each minibatch of an epoch: samples, or environments, of which this rank has `count`.

    On a CPU the rows of all ranks are shuffled as one would shuffle them. A CUDA graph needs the same number of rows
    every time, so on a GPU each rank shuffles its own, all alike. advantage: [steps, environments], if its mean and
    deviation over each minibatch are wanted; those of all minibatches go around at once.
    """
    if _now is None:
        yield from ((rows, None) for rows in shuffled(count, generator).tensor_split(parts))
        return
    own, total, first = _now.count, _now.total, _now.first
    if generator.device.type == "cuda":
        found = list(shuffled(count, generator).tensor_split(parts))
        wholes = [len(rows) * total / own for rows in found]
    else:
        chunks = shuffled(count // own * total, generator).tensor_split(parts)
        wholes = [float(len(chunk)) for chunk in chunks]
        mine = (chunk[(chunk % total >= first) & (chunk % total < first + own)] for chunk in chunks)
        found = [chunk // total * own + chunk % total - first for chunk in mine]
    moments = None if advantage is None else _moments(advantage, found, count == own != advantage.numel())
    nothing = torch.zeros(1, dtype=torch.int64, device=generator.device)
    for k, rows in enumerate(found):
        # A rank that has no row of a minibatch takes part with one that does not count.
        whole = wholes[k] if len(rows) else math.inf
        share = Share(whole, None if moments is None else (moments[0][k], moments[1][k]))
        yield rows if len(rows) else nothing, share


def _moments(advantage: Tensor, minibatches: Sequence[Tensor], are_environments: bool) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation of the advantages of each minibatch over all ranks, [minibatches] each."""
    assert _now is not None
    sums = []
    for rows in minibatches:
        own = (advantage[:, rows] if are_environments else advantage.reshape(-1)[rows]).reshape(-1)
        own = own if own.is_cuda else own.double()
        variance, mean = torch.var_mean(own, correction=0) if len(own) else (own.new_zeros(()), own.new_zeros(()))
        sums.append(torch.stack([own.new_full((), own.numel()), mean, variance]))
    counts, means, variances = _now.of_all(torch.stack(sums)).unbind(2)  # [ranks, minibatches] each
    shares = counts / counts.sum(0)
    mean = (shares * means).sum(0)
    variance = (shares * (variances + (means - mean).square())).sum(0)
    return mean.float(), variance.sqrt().float() + 1e-8


def shuffled(count: int, generator: torch.Generator) -> Tensor:
    """Return the numbers below `count` in random order."""
    if generator.device.type == "cpu":
        return torch.randperm(count, generator=generator)
    # Sorting random keys is legal inside a CUDA graph.
    return torch.rand(count, generator=generator, device=generator.device).argsort()
