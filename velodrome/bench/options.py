"""What `velodrome bench step` can be asked for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from velodrome.bench.benchmark import BenchmarkOptions

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


class StepBenchmarkOptions(BenchmarkOptions):
    """How the stepping speed is measured."""

    PEER_NAMES = tuple(PEERS)
    QUICK = QUICK

    env: Literal["trading"] = Field("trading", description="environment to step")
    sizes: tuple[int, ...] = Field((64, 1024, 16384), description="numbers of environments in a batch")
    seconds: float = Field(2.0, gt=0.0, le=600.0, description="seconds of stepping per measurement, all repeats")
    repeats: int = Field(5, ge=1, le=100, description="repeats per measurement; the median counts")
    bars: int = Field(100_000, ge=2_500, le=10_000_000, description="bars of the market")
    window: int = Field(32, ge=1, le=1024, description="bars in an observation")
    features: int = Field(8, ge=1, le=8, description="features of each bar in an observation")
    episode_length: int = Field(1000, ge=1, description="decisions in an episode")
    processes: tuple[int, ...] = Field((8, 32), description="worker processes tried for process-based peers")
    threads: int | None = Field(None, ge=1, description="threads of the 'all threads' rows; if not given, all")

    @field_validator("sizes", "processes")
    @classmethod
    def _counts_are_legal(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if not counts or not all(1 <= count <= 1_000_000 for count in counts):
            raise ValueError("needs one or more whole numbers from 1 to 1,000,000")
        return tuple(sorted(set(counts)))
