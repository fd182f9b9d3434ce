"""`VectorizedEnvConfig`: the one configuration of how many environments are played at once, where and how safely."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velodrome.errors import ConfigError
from velodrome.vector.workers.options import SPELLINGS, TIMEOUT, backend_name

MEBIBYTE = 2**20
EnvType = Literal["auto", "native", "cuda", "python", "serial", "process", "async"]
FOR_RULES = ("native", "cuda", "python")
FOR_OTHERS = ("serial", "process", "async")
# Fields that only environments of other libraries have a use for.
WORKER_FIELDS = ("workers", "start_method", "on_fault", "max_restarts", "timeout", "worker_memory", "enable_monitoring")


class VectorizedEnvConfig(BaseModel):
    """How many environments are played at once, where, and what happens when one fails."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_type: EnvType = Field(
        "auto", description="backend: rules of Velodrome run on native (CPU) or cuda, and python for debuggers; other "
        "environments on serial, process or async; auto measures",
        json_schema_extra={"legal": "one of auto, native, cuda, python, serial, process, async; "
                           f"{', '.join(SPELLINGS)} are understood"},
    )  # fmt: skip
    num_envs: int = Field(256, ge=1, le=10_000_000, description="environments that are played at once")
    max_concurrent_envs: int | None = Field(
        None, ge=1, description="environments of all trainings in this process together; one that would exceed it "
        "waits until others have ended; null: no limit",
    )  # fmt: skip
    enable_monitoring: bool = Field(
        True, description="write monitor.csv, measure step times and count restarts; rules of Velodrome report their "
        "episodes in any case",
    )  # fmt: skip
    workers: int | None = Field(
        None, ge=1, le=1024, description="processes that step environments; null: measured by auto, else one each core"
    )
    start_method: Literal["forkserver", "spawn"] = Field("forkserver", description="how processes are started")
    on_fault: Literal["raise", "restart", "drop"] = Field(
        "raise", description="what to do about an environment that raises, hangs, returns nonsense or dies: stop, "
        "replace it by a new one, or go on without it (not in training)",
    )  # fmt: skip
    max_restarts: int = Field(10, ge=0, description="replacements of one environment before it is given up")
    timeout: float | None = Field(
        TIMEOUT, gt=0.0, description="seconds that one call of an environment in a process may take; null: for ever"
    )
    worker_memory: int | None = Field(
        None, ge=1, description="MiB that one process may use before it is replaced; null: no limit"
    )
    autoscale: bool = Field(
        False, description="grow and shrink num_envs between min_envs and max_envs while training, following throughput"
    )
    min_envs: int = Field(1, ge=1, description="environments that autoscale keeps at least")
    max_envs: int = Field(65_536, ge=1, le=10_000_000, description="environments that autoscale goes up to")
    max_memory: int | None = Field(
        None, ge=1, description="MiB of this process and its workers that autoscale stays below; null: no limit"
    )

    @field_validator("env_type", mode="before")
    @classmethod
    def _spelling(cls, name: Any) -> Any:
        return backend_name(name) if isinstance(name, str) else name

    @model_validator(mode="after")
    def _fields_agree(self) -> VectorizedEnvConfig:
        if self.max_concurrent_envs is not None and self.num_envs > self.max_concurrent_envs:
            raise ConfigError(
                f"num_envs = {self.num_envs:,} is more than max_concurrent_envs = {self.max_concurrent_envs:,} and "
                "could never begin; make one smaller or the other larger."
            )
        self._refuse_idle(self.env_type == "serial", ("workers", "start_method", "timeout", "worker_memory"),
                          "vector.env_type is serial, which has no worker processes")  # fmt: skip
        self._refuse_idle(not self.autoscale, ("min_envs", "max_envs", "max_memory"), "vector.autoscale is off")
        if self.autoscale and not self.min_envs <= self.num_envs <= self.max_envs:
            raise ConfigError(
                f"num_envs = {self.num_envs:,} is where autoscale begins, and lies outside min_envs = "
                f"{self.min_envs:,} … max_envs = {self.max_envs:,}."
            )
        return self

    def _refuse_idle(self, idle: bool, names: tuple[str, ...], reason: str) -> None:
        """Refuse settings that would have no effect."""
        for name in names if idle else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(f"vector.{name} is set and would have no effect: {reason}. Leave it out.")

    def check(self, env: Any, foreign: bool) -> None:
        """Refuse a backend that cannot serve an environment, which is foreign if it is no rule of Velodrome."""
        legal = FOR_OTHERS if foreign else FOR_RULES
        if self.env_type not in ("auto", *legal):
            kind = "no rule of Velodrome" if foreign else "a rule of Velodrome"
            raise ConfigError(
                f"vector.env_type = {self.env_type!r}: {env} is {kind}, which runs on {', '.join(legal)} (or auto)."
            )

    def foreign_options(self) -> dict[str, Any]:
        """Return what `make_vec` takes for an environment of another library."""
        memory = None if self.worker_memory is None else self.worker_memory * MEBIBYTE
        return {
            "backend": self.env_type, "workers": self.workers, "start_method": self.start_method,
            "on_fault": self.on_fault, "max_restarts": self.max_restarts, "timeout": self.timeout,
            "memory_limit": memory,
        }  # fmt: skip

    def make(self, env: Any, *, seed: int | None = None, **params: Any) -> Any:
        """Return `num_envs` environments of a kind as this says, monitored if it says so."""
        from velodrome.vector.make import make_vec
        from velodrome.vector.workers.make_foreign import is_foreign

        foreign = is_foreign(env)
        self.check(env, foreign)
        if not foreign:
            return make_vec(env, self.num_envs, backend=self.env_type, seed=seed, **params)
        envs = make_vec(env, self.num_envs, seed=seed, **self.foreign_options(), **params)
        if not self.enable_monitoring:
            return envs
        from velodrome.vector.fleet.monitor import VecMonitor

        return VecMonitor(envs)
