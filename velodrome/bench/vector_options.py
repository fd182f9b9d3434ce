"""What `velodrome bench vector` can be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from velodrome.errors import ConfigError, did_you_mean

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


class VectorBenchmarkOptions(BaseModel):
    """How vectorisers are measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str | None = Field(
        None, description="Gymnasium id, module:Class, module:function, trading-plain, burn:20us or sleep:2ms"
    )
    num_envs: int = Field(16, ge=1, le=1024, description="environments of every contender")
    against: tuple[str, ...] = Field(
        ("all",), description=f"peers to measure: all, none, or of {', '.join(VECTOR_PEERS)}"
    )
    policy: Literal["none", "cpu", "cuda"] = Field(
        "none", description="where a small network computes the actions; none: a ring of sampled ones"
    )
    seconds: float = Field(3.0, gt=0.0, le=600.0, description="seconds of stepping per contender, all repeats")
    repeats: int = Field(7, ge=1, le=100, description="rounds in which contenders take turns; medians count")
    seed: int = Field(0, ge=0, description="of the environments and the actions")
    sweep: bool = Field(False, description="measure process with every sensible number of workers")
    straggler: bool = Field(False, description="measure async beside process where one environment is 10 × slower")
    suite: bool = Field(False, description=f"measure {', '.join(SUITE)} and the straggler, and judge what is promised")
    json_path: Path | None = Field(None, description="file for everything that was measured, as JSON")
    plot_path: Path | None = Field(None, description="file for a plot, as PNG")
    quick: bool = Field(False, description="a coarse run; other options still win where given")

    @field_validator("against")
    @classmethod
    def _peers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        legal = ("all", "none", *VECTOR_PEERS)
        for name in names:
            if name not in legal:
                raise ValueError(f"no peer {name!r}; there are {', '.join(legal)}.{did_you_mean(name, legal)}")
        return names

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers that are asked for, in the order of VECTOR_PEERS."""
        if "all" in self.against:
            return tuple(VECTOR_PEERS)
        return tuple(name for name in VECTOR_PEERS if name in self.against)

    @property
    def environments(self) -> tuple[str, ...]:
        """Names of the environments to measure."""
        if self.suite:
            return SUITE
        return (self.env,) if self.env is not None else ()

    def resolved(self) -> VectorBenchmarkOptions:
        """Return the options, those of a quick run in place of every default if it is one; refuse contradictions."""
        if self.suite and self.env is not None:
            raise ConfigError(f"--suite measures environments of its own; leave out {self.env}, or --suite")
        if not (self.environments or self.straggler):
            raise ConfigError("nothing to measure: name an environment, such as CartPole-v1, or --suite or --straggler")
        if not self.quick:
            return self
        coarse = {name: value for name, value in QUICK.items() if name not in self.model_fields_set}
        return self.model_copy(update=coarse)
