"""What `velodrome bench step` can be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from velodrome.errors import did_you_mean

# By name: what a person calls it, and the module and the extra that it needs (none: always there).
PEERS: dict[str, tuple[str, str | None, str | None]] = {
    "numpy": ("NumPy-batched", None, None),
    "sync": ("gymnasium SyncVectorEnv", None, None),
    "async": ("gymnasium AsyncVectorEnv", None, None),
    "dummy": ("SB3 DummyVecEnv", "stable_baselines3", "sb3"),
    "subproc": ("SB3 SubprocVecEnv", "stable_baselines3", "sb3"),
    "torchtrade": ("TorchTrade vectorised", "torchtrade", "torchtrade"),
}
LARGEST_IN_PROCESS = 1024  # plain Python environments in one process; more of them give no more steps per second
QUICK: dict[str, Any] = {"sizes": (64, 1024), "seconds": 0.3, "repeats": 3, "bars": 20_000, "processes": (4,)}


class StepBenchmarkOptions(BaseModel):
    """How the stepping speed is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: Literal["trading"] = Field("trading", description="environment to step")
    sizes: tuple[int, ...] = Field((64, 1024, 16384), description="numbers of environments in a batch")
    seconds: float = Field(2.0, gt=0.0, le=600.0, description="seconds of stepping per measurement, all repeats")
    repeats: int = Field(5, ge=1, le=100, description="repeats per measurement; the median counts")
    against: tuple[str, ...] = Field(("all",), description=f"peers to measure: all, none, or of {', '.join(PEERS)}")
    bars: int = Field(100_000, ge=2_500, le=10_000_000, description="bars of the market")
    window: int = Field(32, ge=1, le=1024, description="bars in an observation")
    features: int = Field(8, ge=1, le=8, description="features of each bar in an observation")
    episode_length: int = Field(1000, ge=1, description="decisions in an episode")
    processes: tuple[int, ...] = Field((8, 32), description="worker processes tried for process-based peers")
    threads: int | None = Field(None, ge=1, description="threads of the 'all threads' rows; if not given, all")
    seed: int = Field(0, ge=0, description="of the market, the actions and the starts")
    json_path: Path | None = Field(None, description="file for everything that was measured, as JSON")
    plot_path: Path | None = Field(None, description="file for a plot, as PNG")
    quick: bool = Field(False, description="a coarse run of under half a minute; other options still win where given")

    @field_validator("sizes", "processes")
    @classmethod
    def _counts_are_legal(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if not counts or not all(1 <= count <= 1_000_000 for count in counts):
            raise ValueError("needs one or more whole numbers from 1 to 1,000,000")
        return tuple(sorted(set(counts)))

    @field_validator("against")
    @classmethod
    def _peers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        legal = ("all", "none", *PEERS)
        for name in names:
            if name not in legal:
                raise ValueError(f"no peer {name!r}; there are {', '.join(legal)}.{did_you_mean(name, legal)}")
        return names

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers that are asked for, in the order of PEERS."""
        if "all" in self.against:
            return tuple(PEERS)
        return tuple(name for name in PEERS if name in self.against)

    def resolved(self) -> StepBenchmarkOptions:
        """Return the options with those of a quick run in place of every default, if it is one."""
        if not self.quick:
            return self
        coarse = {name: value for name, value in QUICK.items() if name not in self.model_fields_set}
        return self.model_copy(update=coarse)
