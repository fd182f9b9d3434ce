"""What is said about environments that failed; the records of what went wrong in them are in `velodrome/errors.py`."""

from __future__ import annotations

from velodrome.errors import EnvironmentFaultError, Fault, FaultKind

__all__ = ["LIMIT_ADVICE", "RAISE_ADVICE", "EnvironmentFaultError", "Fault", "FaultKind"]

RAISE_ADVICE = (
    "All others are unharmed; reset() replaces what was lost. on_fault='restart' (of a training: "
    "vector.on_fault=restart) goes on with a new environment instead; vd.make_vec takes on_fault='drop', too, which "
    "goes on without it."
)
LIMIT_ADVICE = (
    "It was restarted {count} times, as often as max_restarts allows. The environment is broken rather than unlucky: "
    "mend it, or raise max_restarts."
)
