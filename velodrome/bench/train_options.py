"""What `velodrome bench train` can be asked for."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from velodrome.bench.benchmark import BenchmarkOptions


class TrainPeer(NamedTuple):
    """Somebody else's PPO, and what it needs."""

    label: str
    num_envs: int
    module: str
    extra: str
    processes: int = 0  # worker processes
    threads: int | None = None  # of torch; none: all cores


TRAIN_PEERS: dict[str, TrainPeer] = {
    "dummy": TrainPeer("SB3 DummyVecEnv", 8, "stable_baselines3", "sb3"),
    "dummy_1_thread": TrainPeer("SB3 DummyVecEnv, 1 thr.", 8, "stable_baselines3", "sb3", threads=1),
    "dummy64": TrainPeer("SB3 DummyVecEnv", 64, "stable_baselines3", "sb3"),
    "subproc": TrainPeer("SB3 SubprocVecEnv", 8, "stable_baselines3", "sb3", 8),
    "torchrl": TrainPeer("TorchRL SerialEnv", 8, "torchrl", "torchrl"),
}
# Ratios are about the faster of these: matrices this small are often multiplied faster by one thread.
YARDSTICKS = ("dummy", "dummy_1_thread")
QUICK: dict[str, Any] = {
    "against": ("dummy", "dummy_1_thread", "dummy64"), "seconds": 1.5, "repeats": 3, "bars": 50_000,
    "race_seconds": 6.0, "race_seeds": 1,
}  # fmt: skip


class TrainBenchmarkOptions(BenchmarkOptions):
    """How the speed of training is measured."""

    PEER_NAMES = tuple(TRAIN_PEERS)
    QUICK = QUICK

    sizes: tuple[int, ...] = Field(
        (256, 1024), description="numbers of environments of Velodrome's PPO; what is promised is about the first"
    )
    seconds: float = Field(
        10.0, gt=0.0, le=600.0,
        description="seconds of training per contender, all repeats; one iteration per repeat at least",
    )  # fmt: skip
    repeats: int = Field(5, ge=3, le=100, description="rounds in which contenders take turns; medians count")
    batch: int = Field(8192, ge=64, le=1_000_000, multiple_of=64, description="steps in a rollout, all environments")
    epochs: int = Field(4, ge=1, le=100, description="passes over a rollout in an update")
    minibatches: int = Field(4, ge=1, le=64, description="parts of a rollout, each one gradient step")
    hidden: tuple[int, ...] = Field((64, 64), description="widths of the hidden layers of actor and critic, each")
    fraction: float = Field(0.8, gt=0.0, lt=1.0, description="share of the known optimum that is to be learned")
    race_seconds: float = Field(
        120.0, ge=0.0, le=86_400.0, description="seconds of training to learn it in, each contender; 0: not measured"
    )
    race_seeds: int = Field(3, ge=1, le=100, description="how often learning is timed, with a new seed each time")
    evaluate_every: int = Field(2, ge=1, le=1000, description="iterations between two evaluations while learning")
    bars: int = Field(100_000, ge=10_000, le=10_000_000, description="bars of the market, 80 % of them to train on")
    episode_length: int = Field(1000, ge=1, le=2000, description="decisions in an episode")

    @field_validator("hidden")
    @classmethod
    def _widths_are_legal(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not widths or not all(1 <= width <= 65536 for width in widths):
            raise ValueError("needs one or more widths from 1 to 65536")
        return widths

    @model_validator(mode="after")
    def _sizes_divide_the_batch(self) -> TrainBenchmarkOptions:
        if not self.sizes or not all(size >= 1 and self.batch % size == 0 for size in self.sizes):
            raise ValueError(f"sizes {self.sizes}: needs one or more numbers that divide the batch of {self.batch}")
        if self.batch % self.minibatches:
            raise ValueError(f"{self.minibatches} minibatches do not divide the batch of {self.batch}")
        return self


def missing_train_peer(peer: str) -> str | None:
    """Return why a peer cannot be measured here, or None."""
    wanted = TRAIN_PEERS[peer]
    if importlib.util.find_spec(wanted.module) is not None:
        return None
    return f"not installed: pip install 'velodrome[{wanted.extra}]'"
