"""What `velodrome bench vector` can be asked for."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from velodrome.bench.benchmark import BenchmarkOptions
from velodrome.errors import ConfigError

# By name: what a person calls it, and the module and the extra that it needs (none: always there).
VECTOR_PEERS: dict[str, tuple[str, str | None, str | None]] = {
    "dummy": ("SB3 DummyVecEnv", "stable_baselines3", "sb3"),
    "subproc": ("SB3 SubprocVecEnv", "stable_baselines3", "sb3"),
    "sync": ("gymnasium SyncVectorEnv", None, None),
    "async": ("gymnasium AsyncVectorEnv", None, None),
}
SUITE = ("trading-plain", "burn:20us", "burn:200us", "burn:2ms", "sleep:2ms")
CHEAP = ("trading-plain", "burn:20us")  # what is promised of these is more than not to be slower
QUICK: dict[str, Any] = {"seconds": 0.5, "repeats": 3}


class VectorBenchmarkOptions(BenchmarkOptions):
    """How vectorisers are measured."""

    PEER_NAMES = tuple(VECTOR_PEERS)
    QUICK = QUICK

    env: str | None = Field(
        None, description="Gymnasium id, module:Class, module:function, trading-plain, burn:20us or sleep:2ms"
    )
    num_envs: int = Field(16, ge=1, le=1024, description="environments of every contender")
    policy: Literal["none", "cpu", "cuda"] = Field(
        "none", description="where a small network computes the actions; none: a ring of sampled ones"
    )
    seconds: float = Field(3.0, gt=0.0, le=600.0, description="seconds of stepping per contender, all repeats")
    repeats: int = Field(7, ge=1, le=100, description="rounds in which contenders take turns; medians count")
    sweep: bool = Field(False, description="measure process with every sensible number of workers")
    straggler: bool = Field(False, description="measure async beside process where one environment is 10 × slower")
    suite: bool = Field(False, description=f"measure {', '.join(SUITE)} and the straggler, and judge what is promised")

    @property
    def environments(self) -> tuple[str, ...]:
        """Names of the environments to measure."""
        if self.suite:
            return SUITE
        return (self.env,) if self.env is not None else ()

    def resolved(self) -> Self:
        """Return the options, those of a quick run in place of every default if it is one; refuse contradictions."""
        if self.suite and self.env is not None:
            raise ConfigError(f"--suite measures environments of its own; leave out {self.env}, or --suite")
        if not (self.environments or self.straggler):
            raise ConfigError("nothing to measure: name an environment, such as CartPole-v1, or --suite or --straggler")
        return super().resolved()
