"""What all benchmarks share: options, what a report holds, and the warning about a busy machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from velodrome.bench.machine import MachineStamp
from velodrome.errors import did_you_mean

BUSY_SHARE = 0.5  # load average over cores from which numbers are doubtful


class BenchmarkOptions(BaseModel):
    """Options that every benchmark has; it says which peers there are and what a quick run sets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    PEER_NAMES: ClassVar[tuple[str, ...]] = ()
    QUICK: ClassVar[Mapping[str, Any]] = {}

    against: tuple[str, ...] = Field(("all",), description="peers to measure: all, none, or some of them")
    seed: int = Field(0, ge=0, description="of the problem, the environments and the actions")
    json_path: Path | None = Field(None, description="file for everything that was measured, as JSON")
    plot_path: Path | None = Field(None, description="file for a plot, as PNG")
    quick: bool = Field(False, description="a coarse run; other options still win where given")

    @field_validator("against")
    @classmethod
    def _peers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        legal = ("all", "none", *cls.PEER_NAMES)
        for name in names:
            if name not in legal:
                raise ValueError(f"no peer {name!r}; there are {', '.join(legal)}.{did_you_mean(name, legal)}")
        return names

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers that are asked for, in their own order."""
        if "all" in self.against:
            return self.PEER_NAMES
        return tuple(name for name in self.PEER_NAMES if name in self.against)

    def resolved(self) -> Self:
        """Return the options with those of a quick run in place of every default, if it is one."""
        if not self.quick:
            return self
        coarse = {name: value for name, value in self.QUICK.items() if name not in self.model_fields_set}
        return self.model_copy(update=coarse)


class MissingPeer(BaseModel):
    """A peer that was asked for and not measured."""

    peer: str
    reason: str


class Target(BaseModel):
    """What the product promises, and what this run reached."""

    name: str
    wanted: float
    reached: float
    met: bool


class BenchmarkReport(BaseModel):
    """What every benchmark writes down."""

    schema_version: int = 1
    kind: str
    machine: MachineStamp
    options: dict[str, Any] = Field(description="what the run was asked for, defaults filled in")
    missing: list[MissingPeer] = []
    notes: list[str] = []
    interrupted: bool = Field(False, description="stopped by a person; holds what was measured until then")
    load_average_after: tuple[float, float, float] | None = None
    seconds: float = Field(0.0, description="duration of the run")
    targets: list[Target] = []

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2) + "\n")

    def conclude(self) -> None:
        """Fill in what follows from the measurements."""

    def note_missing(self, peers: Iterable[tuple[str, str | None]]) -> None:
        """Write down which peers cannot be measured, (name, reason) each; None as a reason: it can."""
        self.missing += [MissingPeer(peer=peer, reason=reason) for peer, reason in peers if reason is not None]

    def note_load(self, consequence: str) -> None:
        """Write down that the machine was busy when the run began, and what that means for its numbers."""
        busy = self.machine.load_average[0]
        if busy > BUSY_SHARE * self.machine.cores:
            self.notes.append(
                f"The machine was busy when this began (load {busy:.1f} on {self.machine.cores} cores): speeds are "
                f"low, {consequence}. Measure again when it is idle."
            )

    def active_peers(self, options: BenchmarkOptions) -> tuple[str, ...]:
        """Return the peers that are asked for and can be measured."""
        missing = {peer.peer for peer in self.missing}
        return tuple(peer for peer in options.peers if peer not in missing)
