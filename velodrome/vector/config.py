"""`VectorizedEnvConfig`: the one configuration of how many environments are played at once, where and how safely."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velodrome.errors import ConfigError
from velodrome.turns import PolicyName
from velodrome.vector.messages import tell
from velodrome.vector.workers.options import (
    DEFAULTS,
    OPTIONS,
    PROCESS_OPTIONS,
    SPELLINGS,
    CheckedValues,
    FaultPolicy,
    StartMethod,
    backend_name,
)

MEBIBYTE = 2**20
EnvType = Literal["auto", "native", "cuda", "python", "serial", "process", "async", "ray"]
FOR_RULES = ("native", "cuda", "python")
FOR_OTHERS = ("serial", "process", "async", "ray")
# What a rule's native loop stands in for: SB3's names, and what Velodrome calls the same.
NATIVE_FOR = {"serial": "DummyVecEnv", "process": "SubprocVecEnv"}


def field_name(option: str) -> str:
    """Return what the configuration calls an option of workers: memory is counted in MiB there."""
    return "worker_memory" if option == "memory_limit" else option


# Fields that mean something only for environments of other libraries.
WORKER_FIELDS = (*(field_name(name) for name in OPTIONS if name != "check_values"), "enable_monitoring")


def _worker_field(name: str) -> Any:
    """Return an option of workers as a field of the configuration."""
    option = OPTIONS[name]
    legal: dict[str, Any] = (
        {"json_schema_extra": {"legal": "true, false, finite or null"}} if name == "check_values" else {}
    )
    return Field(DEFAULTS[name], description=option.meaning.replace("bytes", "MiB"), **option.bounds, **legal)


class VectorizedEnvConfig(BaseModel):
    """How many environments are played at once, where, and what happens when one fails."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_type: EnvType = Field(
        "auto",
        description="backend: rules of Velodrome run on native (CPU) or cuda, and python for debuggers; other "
        "environments on serial, process, async or ray (actors on many machines); auto measures",
        json_schema_extra={"legal": f"one of {', '.join(get_args(EnvType))}; {', '.join(SPELLINGS)} are understood"},
    )
    num_envs: Annotated[int, Field(ge=1, le=10_000_000)] | Literal["auto"] = Field(
        256,
        description="environments that are played at once; auto: the fastest number that fits into free memory, which "
        "is measured when a training begins",
        json_schema_extra={"legal": "whole number 1 … 10,000,000, or auto"},
    )
    max_concurrent_envs: int | None = Field(
        None,
        ge=1,
        description="environments of all trainings in this process together; one that would exceed it waits until "
        "others have ended; null: no limit",
    )
    enable_monitoring: bool = Field(
        True,
        description="write monitor.csv, measure step times and count restarts; in a training, rules of Velodrome "
        "report their episodes in any case",
    )
    workers: int | None = _worker_field("workers")
    start_method: StartMethod = _worker_field("start_method")
    on_fault: FaultPolicy = _worker_field("on_fault")
    check_values: CheckedValues = _worker_field("check_values")
    max_restarts: int = _worker_field("max_restarts")
    timeout: float | None = _worker_field("timeout")
    worker_memory: int | None = _worker_field("memory_limit")
    placement: PolicyName = _worker_field("placement")
    autoscale: bool = Field(
        False, description="grow and shrink num_envs between min_envs and max_envs while training, following throughput"
    )
    min_envs: int = Field(1, ge=1, description="environments that autoscale and num_envs = auto keep at least")
    max_envs: int = Field(65_536, ge=1, le=10_000_000, description="environments that both go up to")
    max_memory: int | None = Field(
        None,
        ge=1,
        description="MiB that a training may take, of the host's memory, on a GPU of the GPU's: autoscale (which "
        "counts worker processes, too) and num_envs = auto stay below it, and what needs more is refused; what workers "
        "of other environments will take is not known before; null: what is free",
    )

    @field_validator("env_type", mode="before")
    @classmethod
    def _spelling(cls, name: Any) -> Any:
        return backend_name(name) if isinstance(name, str) else name

    @model_validator(mode="after")
    def _fields_agree(self) -> VectorizedEnvConfig:
        number = self.min_envs if self.num_envs == "auto" else self.num_envs
        if self.max_concurrent_envs is not None and number > self.max_concurrent_envs:
            raise ConfigError(
                f"num_envs = {number:,} is more than max_concurrent_envs = {self.max_concurrent_envs:,} and "
                "could never begin; make one smaller or the other larger."
            )
        without_processes = tuple(map(field_name, PROCESS_OPTIONS)) if self.env_type == "serial" else ()
        self._refuse_idle(without_processes, "vector.env_type is serial, which has no worker processes")
        fixed = () if self.autoscale or self.num_envs == "auto" else ("min_envs", "max_envs")
        self._refuse_idle(fixed, "vector.autoscale is off and vector.num_envs is a number")
        if not fixed and not self.min_envs <= number <= self.max_envs:
            raise ConfigError(
                f"num_envs = {number:,} is where autoscale begins, and lies outside min_envs = "
                f"{self.min_envs:,} … max_envs = {self.max_envs:,}."
            )
        return self

    def _refuse_idle(self, names: tuple[str, ...], reason: str) -> None:
        """Refuse settings that would have no effect."""
        for name in names:
            if self._is_chosen(name):
                raise ConfigError(f"vector.{name} is set and would have no effect: {reason}. Leave it out.")

    def _is_chosen(self, name: str) -> bool:
        # Not `model_fields_set`: the configuration that a run keeps names every field.
        return getattr(self, name) != type(self).model_fields[name].default

    def for_env(self, env: Any, foreign: bool) -> VectorizedEnvConfig:
        """Return the same for an environment; `foreign` says that it is no rule of Velodrome.

        DummyVecEnv and SubprocVecEnv mean native for a rule, and a note says why. Other backends that cannot serve this
        environment are refused.
        """
        if not foreign and self.env_type in NATIVE_FOR:
            note_native(str(env), self.env_type)
            return self.model_copy(update={"env_type": "native"})
        legal = FOR_OTHERS if foreign else FOR_RULES
        if self.env_type not in ("auto", *legal):
            kind = "no rule of Velodrome" if foreign else "a rule of Velodrome"
            raise ConfigError(
                f"vector.env_type = {self.env_type!r}: {env} is {kind}, which runs on {', '.join(legal)} (or auto)."
            )
        return self

    def foreign_options(self) -> dict[str, Any]:
        """Return what `make_vec` takes for an environment of another library: the backend and what was chosen."""
        chosen = {name: getattr(self, field_name(name)) for name in OPTIONS if self._is_chosen(field_name(name))}
        if "memory_limit" in chosen:
            chosen["memory_limit"] *= MEBIBYTE
        return {"backend": self.env_type, **chosen}

    def make(self, env: Any, *, seed: int | None = None, **params: Any) -> Any:
        """Return `num_envs` environments made as this configuration says, with a monitor if it says so.

        With max_concurrent_envs they are on loan from the pool that all of this process share: this waits for room
        there, and to close them gives them back.
        """
        from velodrome.vector.make import make_vec
        from velodrome.vector.workers.env_maker import is_foreign

        foreign = is_foreign(env)
        chosen = self.for_env(env if isinstance(env, str) else "this", foreign)
        if self.num_envs == "auto":
            raise ConfigError("num_envs = 'auto' is measured when a training begins (vd.train); give a number here.")
        own = {"backend": chosen.env_type, "check_values": self.check_values}
        options = {**(self.foreign_options() if foreign else own), **params}
        if self.max_concurrent_envs is None:
            envs = make_vec(env, self.num_envs, seed=seed, **options)
        else:
            from velodrome.vector.fleet.pool import shared_pool

            if "timeout" in options:
                options["step_timeout"] = options.pop("timeout")
            envs = shared_pool(self.max_concurrent_envs).lease(env, self.num_envs, seed=seed, **options).on_close()
        if not self.enable_monitoring:
            return envs
        from velodrome.vector.fleet.monitor import VecMonitor

        return VecMonitor(envs)


@functools.cache
def note_native(env: str, env_type: str) -> None:
    """Say once why a rule has no environments one by one."""
    tell(
        f"env_type {NATIVE_FOR[env_type]} ({env_type}) means native here: {env} is a rule of Velodrome, compiled into "
        "one loop over all environments, which neither a Python loop nor processes can beat."
    )
