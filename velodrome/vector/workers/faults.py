"""What may go wrong in an environment of another library, and the record that is kept of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from velodrome.errors import BackendError

Kind = Literal["raised", "wrong value", "hung", "died", "memory", "lost with its worker"]


class Fault(NamedTuple):
    """One environment that was lost. There is exactly one record for each."""

    environment: int  # row
    worker: int | None  # None: it ran in this process
    kind: Kind
    message: str  # one line
    traceback: str = ""
    moment: str = "step"  # make, reset, step, or a method's name

    def __str__(self) -> str:
        where = "" if self.worker is None else f" (worker {self.worker})"
        text = f"environment {self.environment}{where} {self.kind} in {self.moment}: {self.message}"
        return f"{text}\n{self.traceback.rstrip()}" if self.traceback else text


class EnvironmentFaultError(BackendError):
    """An environment failed. `faults` holds the records; the others are unharmed, and reset() makes a new one."""

    def __init__(self, faults: list[Fault], advice: str) -> None:
        self.faults = faults
        told = "\n".join(map(str, faults[:3]))
        more = f"\n… and {len(faults) - 3} more" if len(faults) > 3 else ""
        super().__init__(f"{told}{more}\n{advice}")


RAISE_ADVICE = (
    "The other environments are unharmed; reset() replaces this one. "
    'on_fault="restart" goes on with a new environment instead, on_fault="drop" without it.'
)
LIMIT_ADVICE = (
    "It was restarted {count} times, as often as max_restarts allows. The environment is broken rather than unlucky: "
    "mend it, or raise max_restarts."
)
