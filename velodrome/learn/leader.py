"""The first rank's learner, which the learners of other ranks follow: each call that all must make is announced.

Checkpoints hold the state of all environments, however many ranks there are; each rank takes its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from velodrome.envs.contract import LANES, state_dtype
from velodrome.errors import ConfigError
from velodrome.rollout.ranks import ANEW, END, ITERATE, STATE, TAKE, Ranks, joined, together
from velodrome.rollout.worlds import Worlds

BLOCKS = "worlds.blocks"  # the environments' own state: bytes of blocks of LANES of them
ROWS = ("worlds.observations", "worlds.cursors", "scale.returns", "learner.memory", "learner.starts")  # one for each
OF_ENVIRONMENTS = (BLOCKS, *ROWS)


class Leader:
    """A learner in the first rank. What is not here is the learner's own."""

    def __init__(self, learner: Any, ranks: Ranks) -> None:
        self.own, self.ranks = learner, ranks
        self._whole: dict[str, Any] | None = None  # the environments' state of all ranks that was loaded
        self._are_alike = False  # whether the other ranks know what this one has

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def iterate(self) -> dict[str, float]:
        """Learn once, all ranks together; return what happened in all of them."""
        self._share()
        self.ranks.tell(ITERATE)
        with together(self.ranks):
            return self.own.iterate()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of all ranks, as one with all environments would have it."""
        self._share()
        self.ranks.tell(STATE)
        tensors, plain = self.own.state()
        parts = self.ranks.gathered({name: tensors[name] for name in OF_ENVIRONMENTS if name in tensors})
        found = joined_parts(parts, self.ranks.counts, self.worlds)
        return {**tensors, **found}, described(plain, self.ranks.total)

    def load_state(self, tensors: dict[str, Any], plain: dict[str, Any]) -> list[str]:
        """Take over what `state` returned, of any number of ranks."""
        saved, ranks = int(plain.get("num_envs", self.ranks.total)), self.ranks
        if saved != ranks.total:
            raise ConfigError(
                f"The checkpoint has {saved:,} environments, and the ranks have {ranks.total:,} together."
            )
        self._whole, self._are_alike = tensors, False
        mine = {**tensors, **part_of(tensors, ranks.first, ranks.count, self.worlds)}
        return self.own.load_state(mine, described(plain, ranks.count))

    def begin_anew(self) -> None:
        """Go on in new episodes and with the seed's own random numbers; what was learnt stays."""
        self._share()
        self.ranks.tell(ANEW)
        self.own.begin_anew()

    def resize(self, num_envs: int) -> None:
        """Refuse another number of environments: it belongs to all ranks."""
        if num_envs != self.ranks.total:
            raise ConfigError(
                f"The ranks have {self.ranks.total:,} environments together, which cannot become {num_envs:,} while "
                "they learn. Leave vector.autoscale and num_envs as they are, or train a new run."
            )

    def split_minibatches(self) -> None:
        """Refuse to learn in parts: other ranks would not."""

    def _share(self) -> None:
        """Let the other ranks have what this one has, after it was made, loaded or taught."""
        if self._are_alike:
            return
        self.ranks.tell(TAKE)
        tensors, plain = self.own.state()
        whole = self._whole and {name: self._whole[name] for name in OF_ENVIRONMENTS if name in self._whole}
        self.ranks.sent((without_environments(tensors), plain, whole))
        self._are_alike, self._whole = True, None


def lead(learner: Any) -> Any:
    """Return a learner as all ranks have it: in the first one it leads the others."""
    ranks = joined()
    if ranks is None:
        return learner
    if any(isinstance(part, BatchNorm) for part in learner.policy.modules()):
        raise ConfigError(
            "The network has batch norms, whose statistics would be each rank's own. Use network.layer_norm=true, or "
            "train in one process."
        )
    torch.manual_seed(learner.seed + ranks.rank)  # of networks that draw numbers themselves: others in every rank
    return Leader(learner, ranks) if ranks.leads else learner


def obey(learner: Any, ranks: Ranks) -> None:
    """Do with a learner what the first rank does with its own, until that is closed."""
    while (told := ranks.hear()) != END:
        if told == ITERATE:
            with together(ranks):
                learner.iterate()
        elif told == STATE:
            tensors, _ = learner.state()
            ranks.gathered({name: tensors[name] for name in OF_ENVIRONMENTS if name in tensors})
        elif told == ANEW:
            learner.begin_anew()
        else:
            assert told == TAKE
            tensors, plain, whole = ranks.sent()
            kept = learner.state()[0] if whole is None else whole
            first = 0 if whole is None else ranks.first
            mine = part_of(kept, first, ranks.count, learner.worlds)
            learner.load_state({**tensors, **mine}, described(plain, ranks.count))


# The state in parts


def without_environments(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what all ranks have alike."""
    return {name: tensor for name, tensor in tensors.items() if name not in OF_ENVIRONMENTS}


def part_of(tensors: Mapping[str, Tensor], first: int, count: int, worlds: Worlds) -> dict[str, Tensor]:
    """Return what belongs to some environments, of the state of all."""
    found = {name: tensors[name][first : first + count] for name in ROWS if name in tensors}
    if BLOCKS in tensors:
        rows = np.arange(count)
        found[BLOCKS] = _moved([(tensors[BLOCKS], rows + first, rows)], count, worlds)
    return found


def joined_parts(parts: Sequence[Mapping[str, Tensor]], counts: Sequence[int], worlds: Worlds) -> dict[str, Tensor]:
    """Return what belongs to all environments, given each rank's part and how many it has."""
    found = {name: torch.cat([part[name] for part in parts]) for name in ROWS if name in parts[0]}
    if BLOCKS in parts[0]:
        ends = np.cumsum([0, *counts])
        moves = [
            (part[BLOCKS], np.arange(count), np.arange(count) + first)
            for part, count, first in zip(parts, counts, ends, strict=False)
        ]
        found[BLOCKS] = _moved(moves, int(ends[-1]), worlds)
    return found


def _moved(moves: Sequence[tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]], count: int, worlds: Worlds) -> Tensor:
    """Return blocks of so many environments. moves: blocks, rows of environments there, and their rows here."""
    world: Any = worlds.envs
    dtype = state_dtype(world.world.state_type)
    target = np.zeros(-(-count // LANES), dtype)
    for blocks, here, there in moves:
        source = blocks.numpy().reshape(-1).view(dtype)
        for column in dtype.names or ():
            target[column][there // LANES, ..., there % LANES] = source[column][here // LANES, ..., here % LANES]
    return torch.from_numpy(target.view(np.uint8))


def described(plain: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return what JSON holds of a learner, for another number of environments."""
    return {**plain, "num_envs": num_envs}
