"""What may go wrong in a foreign environment, what is then done, and the record of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.workers.options import TIMEOUT

Policy = Literal["raise", "restart", "drop"]
POLICIES = ("raise", "restart", "drop")
Kind = Literal["raised", "wrong value", "hung", "died", "memory", "lost with its worker"]


class Fault(NamedTuple):
    """One environment that was lost: exactly one record for each."""

    environment: int  # row
    worker: int | None  # None: no worker, it ran in this process
    kind: Kind
    message: str  # one line
    traceback: str = ""
    moment: str = "step"  # make, reset, step, or a method's name

    def __str__(self) -> str:
        where = "" if self.worker is None else f" (worker {self.worker})"
        text = f"environment {self.environment}{where} {self.kind} in {self.moment}: {self.message}"
        return f"{text}\n{self.traceback.rstrip()}" if self.traceback else text


class EnvironmentFaultError(BackendError):
    """An environment that failed. `faults` are the records; the others are unharmed, and reset() makes it anew."""

    def __init__(self, faults: list[Fault], advice: str) -> None:
        self.faults = faults
        told = "\n".join(map(str, faults[:3]))
        more = f"\n… and {len(faults) - 3} more" if len(faults) > 3 else ""
        super().__init__(f"{told}{more}\n{advice}")


RAISE_ADVICE = (
    "The other environments are unharmed; reset() makes this one anew. "
    'on_fault="restart" goes on with a new environment instead, on_fault="drop" without it.'
)
LIMIT_ADVICE = (
    "It was restarted {count} times, as often as max_restarts allows. The environment is broken rather than unlucky: "
    "mend it, or raise max_restarts."
)


@dataclass(frozen=True)
class FaultSettings:
    """What is done about faults."""

    policy: Policy = "raise"
    max_restarts: int = 10  # of one environment
    timeout: float | None = TIMEOUT  # seconds that one call of an environment may take; None: for ever
    memory_limit: int | None = None  # bytes of one worker

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(
                f"on_fault = {self.policy!r}; legal: {', '.join(POLICIES)}.{did_you_mean(str(self.policy), POLICIES)}"
            )
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts = {self.max_restarts}: needs a whole number of at least 0")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"timeout = {self.timeout}: needs seconds above 0, or None to wait for ever")
        if self.memory_limit is not None and self.memory_limit < 1:
            raise ConfigError(f"memory_limit = {self.memory_limit}: needs bytes above 0, or None for no limit")
