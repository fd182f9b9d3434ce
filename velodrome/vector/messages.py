"""What is said to people while a program runs."""

from __future__ import annotations

import math
import sys


def tell(message: str) -> None:
    """Say something to a person, apart from the program's own output."""
    sys.stderr.write(f"velodrome: {message}\n")


def seconds_text(seconds: float) -> str:
    """Write a time for people, such as 12 µs."""
    if math.isnan(seconds):
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:  # three digits of 999.6 ms are 1 s
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
