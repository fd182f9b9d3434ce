"""The errors Velodrome raises on purpose. Each message says what was received, what is legal and what to do."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

# Control and format characters (terminal commands, marks that reverse a line), halves of surrogates, line separators.
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str, kept: str = "\n\t") -> str:
    """Return a text for people to read: characters that are not seen but obeyed, but for those kept, are escaped."""
    return text if text.isprintable() else "".join(one if one in kept else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in UNSEEN:
        return character
    # What JSON does not escape by itself is written in its way, so that printed JSON stays legal.
    named, code = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}, ord(character)
    form = f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return named.get(character, form)


class VelodromeError(Exception):
    """Base of every error that Velodrome raises on purpose. Names in its message may be anybody's: it is escaped."""

    def __init__(self, *details: object) -> None:
        super().__init__(*(printable(each) if isinstance(each, str) else each for each in details))


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


class WriteError(VelodromeError, OSError):
    """A file that cannot be written: says why, and what became of the one before. It has the system's number."""

    def __init__(self, message: str, cause: OSError) -> None:
        super().__init__(message)
        self.errno, self.strerror = cause.errno, cause.strerror

    def __str__(self) -> str:
        return str(self.args[0])


class RunError(VelodromeError):
    """A run that cannot be found, opened or continued."""


class RunLockedError(RunError):
    """A run that another process is training."""


class OutOfMemoryError(RunError):
    """A run that memory has no room for, also with as little as it can go on with."""


class BucketError(RunError):
    """A folder by URL that cannot be read or written."""


class StoreError(VelodromeError):
    """A store that cannot be opened, read or written."""


class DamagedStoreError(StoreError):
    """A store whose file is no database, or a damaged one."""


class LeaseLostError(StoreError):
    """What a process writes whose training was given to another."""


class JobError(VelodromeError):
    """A job that cannot be found, or that cannot be done what was asked with."""


class ChampionError(VelodromeError):
    """There is no such champion, or its files are not those that were promoted."""


class MetricsError(VelodromeError):
    """Metrics that a sink could not take."""


class CheckpointError(VelodromeError):
    """A checkpoint that cannot be written or read."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose content is not what was written."""


class MissingDependencyError(VelodromeError, ImportError):
    """An optional package that is not installed: names the extra that brings it."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def did_you_mean(received: str, legal: Iterable[str]) -> str:
    """Return ' Did you mean …?' when one of the legal names is close to the received one, else ''."""
    close = difflib.get_close_matches(received, list(legal), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


@contextmanager
def reworded(names: Mapping[str, str]) -> Iterator[None]:
    """Raise what is refused about a parameter under the name that the caller's users know. names: ours -> theirs."""
    try:
        yield
    except (ConfigError, DataError) as error:
        named = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        told = re.sub(rf"(?<![\w.])(?:{named})(?= =|:| is\b)", lambda found: names[found[0]], str(error))
        error.args = (told,)  # not a new one: some are made from more than their text
        raise


def sentence(text: object) -> str:
    """Return a text with a full stop, unless it ends as a sentence does: a suggestion ends with a question mark."""
    told = str(text)
    return told if told.endswith((".", "?", "!")) else f"{told}."
