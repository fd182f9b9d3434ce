"""A terminal on which names are shown and never obeyed: control characters in them arrive escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from velodrome.errors import printable


class Screen(Console):
    """Rich's console. What it prints comes from files of others too: names of columns, instruments and runs."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Yield the parts of what is to be printed; the console's own commands to the terminal stay as they are."""
        for part in super().render(renderable, options):
            yield part if part.control or part.text.isprintable() else Segment(printable(part.text), part.style)
