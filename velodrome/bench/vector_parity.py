"""Proof that the contenders step the same environments in the same way, before any of them is timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.parity import ParityError
from velodrome.bench.vector_host import Host
from velodrome.bench.vector_report import TrajectoryParity

# Relative and absolute: SB3 keeps rewards as float32.
TOLERANCE = 1e-5
SECONDS = 0.6  # of stepping for each contender's trajectory
FEWEST, MOST = 10, 2_000  # steps of the batch


def steps_to_compare(step_seconds: float, num_envs: int) -> int:
    """Return for how many steps of the batch to compare, given the time of one environment's."""
    return int(np.clip(SECONDS / (num_envs * max(step_seconds, 1e-6)), FEWEST, MOST))


def check_trajectories(reference: Host, hosts: list[Host], steps: int, folder: Path) -> TrajectoryParity:
    """Compare every contender's rewards, ends and observations with the reference's; raise ParityError if they differ.

    An environment that does not repeat itself for the same seeds cannot be compared.
    """
    wanted = read_trajectory(reference, steps, folder)
    assert reference.contender is not None
    environments = reference.contender.num_envs
    again = read_trajectory(reference, steps, folder)
    episodes = int(wanted["ends"].sum())
    if difference(wanted, again) is not None:
        return TrajectoryParity(contenders=[], steps=0, episodes=0, reproducible=False)
    compared = []
    for host in hosts:
        if host is reference:
            continue
        assert host.contender is not None
        label = host.contender.label
        found = difference(wanted, read_trajectory(host, steps, folder))
        if found is not None:
            raise ParityError(f"{label} does not step as gymnasium SyncVectorEnv does: {found}. Nothing was timed.")
        compared.append(label)
    total = steps * environments
    return TrajectoryParity(contenders=compared, steps=total, episodes=episodes, reproducible=True)


def read_trajectory(host: Host, steps: int, folder: Path) -> dict[str, NDArray]:
    """Have a contender step, and return what it gave."""
    path = folder / "trajectory.npz"
    host.ask("trajectory", SECONDS, steps=steps, path=str(path))
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def difference(wanted: dict[str, NDArray], found: dict[str, NDArray]) -> str | None:
    """Return in words where two trajectories first differ, None if they do not."""
    for name, values in wanted.items():
        agree = np.isclose(values, found[name], TOLERANCE, TOLERANCE, equal_nan=True)
        if not agree.all():
            step, environment = (int(axis[0]) for axis in np.nonzero(~agree))
            ours, theirs = found[name][step, environment], values[step, environment]
            return f"{name} at step {step} of environment {environment}: {ours!r} instead of {theirs!r}"
    return None
