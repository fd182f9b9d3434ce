"""The errors Velodrome raises on purpose. Each message says what was received, what is legal and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal, NamedTuple


class VelodromeError(Exception):
    """Base of every error that Velodrome raises on purpose."""


class DataError(VelodromeError, ValueError):
    """Price data that would corrupt a result: names the file, the row and the column."""


class ConfigError(VelodromeError, ValueError):
    """A parameter that is unknown, out of range, or contradicts another."""


class LeakError(VelodromeError):
    """A feature or window that used data from after the moment it describes."""


class ActionError(VelodromeError, ValueError):
    """An action outside its space."""


class BackendError(VelodromeError, RuntimeError):
    """A backend that cannot serve: says why, and which one can."""


FaultKind = Literal["raised", "wrong value", "hung", "died", "memory", "lost with its worker"]


class Fault(NamedTuple):
    """One environment that was lost. There is exactly one record for each."""

    environment: int  # row
    worker: int | None  # None: it ran in this process
    kind: FaultKind
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


class LearningError(VelodromeError, RuntimeError):
    """A training that cannot go on: the loss is not a number, or an environment broke its word."""


class RunError(VelodromeError):
    """A run that cannot be found, opened or continued."""


class StoreError(VelodromeError):
    """A store that cannot be opened, read or written."""


class MetricsError(VelodromeError):
    """Metrics that a sink could not take."""


class CheckpointError(VelodromeError):
    """A checkpoint that cannot be written or read."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose content is not what was written."""


class MissingDependencyError(VelodromeError, ImportError):
    """An optional package that is not installed: names the extra that brings it."""


def did_you_mean(received: str, legal: Iterable[str]) -> str:
    """Return ' Did you mean …?' when one of the legal names is close to the received one, else ''."""
    close = difflib.get_close_matches(received, list(legal), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
