"""What policies were taught, kept on a shelf: trainings that begin alike are taught the same, which is worked out once.

The trials of a study differ in how they learn, seldom in how they are taught. A lesson is found by everything that goes
into it: the first weights, the data, the rules, the teacher and the seed. So what comes from the shelf is what teaching
would have come to, to the bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from velodrome.learn.learner import Learner, Taught, nested, only
from velodrome.writing import replacing

if TYPE_CHECKING:
    from velodrome.evaluation.forecast.teaching import Lesson
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

ABOUT = "about"  # in a file's metadata: what the teacher was fitted to, for people


class Shelf:
    """A folder of lessons; any number of processes put there and take what others have put."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(
        self,
        learner: Learner,
        teacher: str,
        env: str,
        market: Market | Basket,
        params: Mapping[str, Any],
        lesson: Lesson,
    ) -> Path:
        """Return where a lesson lies, or will. How firmly it is held on to later is no part of it."""
        told = [teacher, env, market.content_hash, dict(params), *lesson._replace(hold=0.0)]
        told += [str(learner.worlds.device), version("velodrome"), torch.__version__]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode())
        for name, tensor in sorted(_state(learner).items()):
            digest.update(f"|{name} {tuple(tensor.shape)} {tensor.dtype}|".encode())
            digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return self.folder / f"{digest.hexdigest()[:32]}.safetensors"

    def take(self, place: Path, learner: Learner, hold: float) -> str | None:
        """Let a learner begin as a lesson has it; return what its teacher was fitted to, None if there is none."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(place, "pt") as file:
                about = (file.metadata() or {}).get(ABOUT)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):  # nobody has put it there, or a disk has lost it: it is taught
            return None
        if about is None or tensors.keys() != _state(learner).keys():
            return None
        learner.policy.load_state_dict(only(tensors, "policy"))
        if learner.moments is not None:
            learner.moments.load_state(only(tensors, "moments"))
        learner.taught = Taught(learner.policy, hold) if hold else None
        return about

    def put(self, place: Path, learner: Learner, about: str) -> None:
        """Keep what a learner was taught."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(place) as new:
            save_file(_state(learner), new, {ABOUT: about})


def _state(learner: Learner) -> dict[str, torch.Tensor]:
    moments = {} if learner.moments is None else learner.moments.state()
    return nested({"policy": learner.policy.state_dict(), "moments": moments})
