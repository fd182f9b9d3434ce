"""What every benchmark can be asked for, and the peers that it may be asked to measure."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from velodrome.errors import did_you_mean

PICTURES = (".png", ".svg", ".pdf")
LARGEST = 1_024  # plain Python environments in one process; more of them give no more steps per second


class Peer(NamedTuple):
    """Another way to do what Velodrome does. Its file in `peers/` says how it is opened."""

    label: str
    open: Callable[..., Any]
    modules: tuple[str, ...] = ()  # any one of them is enough; none: always there
    install: str = ""  # how to get it
    largest: int = LARGEST  # environments in a batch
    own_problem: bool = False  # is compared on a problem of its own
    processes: bool = False  # has one for each environment, so that it needs an interpreter of its own

    def missing(self) -> str | None:
        """Return why it cannot be measured here, or None."""
        if not self.modules or any(is_installed(module) for module in self.modules):
            return None
        return f"not installed: {self.install}"


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


class BenchmarkOptions(BaseModel):
    """Options that every benchmark has; it says which peers there are and what a quick run sets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    PEERS: ClassVar[Mapping[str, Peer]] = {}
    QUICK: ClassVar[Mapping[str, Any]] = {"seconds": 0.3, "repeats": 3}

    against: tuple[str, ...] = Field(("all",), description="peers to measure: all, none, or some of them")
    seconds: float = Field(2.0, gt=0.0, le=600.0, description="seconds per measurement, all repeats together")
    repeats: int = Field(5, ge=1, le=100, description="rounds in which contenders take turns; the median counts")
    seed: int = Field(0, ge=0, description="of the problem, the environments and the actions")
    json_path: Path | None = Field(None, description="file for everything that was measured, as JSON")
    plot_path: Path | None = Field(None, description="file for a plot: .png, .svg or .pdf")
    quick: bool = Field(False, description="a coarse run; other options still win where given")

    @field_validator("against")
    @classmethod
    def _peers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        legal = ("all", "none", *cls.PEERS)
        for name in names:
            if name not in legal:
                raise ValueError(f"no peer {name!r}; there are {', '.join(legal)}.{did_you_mean(name, legal)}")
        return names

    @field_validator("json_path", "plot_path")
    @classmethod
    def _file_can_be_written(cls, path: Path | None) -> Path | None:
        if path is None:
            return None
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file in it")
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if not above.is_dir():
            raise ValueError(f"{path}: {above} is a file, not a folder; name another file")
        if not path.exists() and not os.access(above, os.W_OK):
            raise ValueError(f"{path}: nothing may be written in {above}; name another file")
        return path

    @field_validator("plot_path")
    @classmethod
    def _plot_is_a_picture(cls, path: Path | None) -> Path | None:
        if path is not None and path.suffix.lower() not in PICTURES:
            raise ValueError(f"{path} is no picture by its ending; legal: {', '.join(PICTURES)}")
        return path

    @property
    def peers(self) -> dict[str, Peer]:
        """The peers that are asked for, in their own order."""
        return {name: peer for name, peer in self.PEERS.items() if "all" in self.against or name in self.against}

    def resolved(self) -> Self:
        """Return the options with those of a quick run in place of every default, if it is one."""
        if not self.quick:
            return self
        coarse = {name: value for name, value in self.QUICK.items() if name not in self.model_fields_set}
        return self.model_copy(update=coarse)
