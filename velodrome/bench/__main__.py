"""`python -m velodrome.bench`: the step benchmark, with every field of its options as a flag."""

from __future__ import annotations

from typing import Annotated

import cyclopts
from rich.console import Console

from velodrome.bench import StepBenchmarkOptions, run_step_benchmark

app = cyclopts.App(name="python -m velodrome.bench", help="Measure environment steps per second.")


@app.default
def step(options: Annotated[StepBenchmarkOptions, cyclopts.Parameter(name="*")] = StepBenchmarkOptions()) -> None:  # noqa: B008
    """Measure environment steps per second."""
    run_step_benchmark(options, Console())


if __name__ == "__main__":
    app()
