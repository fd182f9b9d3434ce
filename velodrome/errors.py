"""The errors Velodrome raises on purpose. Each message says what was received, what is legal and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VelodromeError(Exception):
    """Base of every error that Velodrome raises on purpose."""


class DataError(VelodromeError, ValueError):
    """Price data that would corrupt a result: names the file, the row and the column."""


class ConfigError(VelodromeError, ValueError):
    """A parameter that is unknown, out of range, or contradicts another."""


class LeakError(VelodromeError):
    """A feature or window that used data from after the moment it describes."""


class ConfigTypeError(ConfigError, TypeError):
    """A parameter of a type that no legal value has."""


class ActionError(VelodromeError, ValueError):
    """An action outside its space."""


class ActionTypeError(ActionError, TypeError):
    """Something that is no batch of actions at all, such as one number."""


class BackendError(VelodromeError, RuntimeError):
    """A backend that cannot serve: says why, and which one can."""


class SpaceError(BackendError, TypeError, ValueError):
    """A space whose values are no arrays of a fixed size. Gymnasium raises either of the two."""


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
