"""Writing what a benchmark measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from velodrome.errors import MissingDependencyError


def write_files(options: Any, report: Any, draw: Callable[[Any, Path], None], console: Console) -> None:
    """Write the JSON and the plot that were asked for; `draw` makes the plot of a report."""
    if options.json_path:
        report.write(options.json_path)
        console.print(f"Everything: {options.json_path}")
    if options.plot_path:
        try:
            draw(report, options.plot_path)
            console.print(f"Plot: {options.plot_path}")
        except MissingDependencyError as error:
            console.print(f"Plot: {error}")
