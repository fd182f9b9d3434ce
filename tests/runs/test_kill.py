"""`kill -9` at any moment: what is left resumes to the bits of a run that was left alone."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.small_runs import assert_equal_runs, command_line, ended, one_thread, start, tiny  # noqa: F401
from velodrome.runs import checkpoint
from velodrome.runs.folder import run_folders
from velodrome.runs.run import Run

VARIANTS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "gru": {"network.kind": "gru", "network.memory": 8},
    "normalised": {
        "ppo.normalise_observations": True, "ppo.normalise_rewards": True, "ppo.schedule": "linear",
        "ppo.engine": "autograd", "params.slippage": 0.001, "logging.log_every": 2,
    },
    "dqn": {
        "algorithm": "dqn", "dqn.rollout_length": 8, "dqn.updates": 2, "dqn.batch_size": 32, "dqn.buffer_size": 512,
        "dqn.learning_starts": 128, "dqn.prioritised": True, "dqn.n_step": 2, "dqn.target_every": 5,
    },
}  # fmt: skip
KILLS = 5  # of each variant: 20 together
OPERATION_KILLS = 14
MOST_KILLS = 30


class Attempts:
    """Trains a run in processes that may be killed, and looks after each at where it went on."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, tiny(folder, **settings)
        self.output = folder.with_name(f"{folder.name}.txt")
        self.continued: list[int] = []  # steps from which it was resumed
        self.logged = 0  # lines of the log that were read

    @property
    def run(self) -> Run | None:
        found = run_folders(self.folder)
        assert len(found) <= 1
        return Run(found[0]) if found else None

    def attempt(self, stop: Callable[[Any], None], kill_at: int | None = None) -> int:
        """Start or resume, let `stop` do what it does to the process, and return the exit code."""
        saved = None if self.run is None else checkpoint.latest_checkpoint(self.run.path)
        process = start(command_line(self.folder, self.settings), self.output, kill_at)
        stop(process)
        code = ended(process)
        assert code in (0, -signal.SIGKILL), self.output.read_text()
        if self.run is not None and self.run.folder.log_path.exists():
            for line in self.run.folder.log_path.read_text().splitlines()[self.logged :]:
                self.logged += 1
                if found := re.search(r"resumed at step (\d+)", line):
                    self.continued.append(int(found[1]))
                    assert self.continued[-1] == (0 if saved is None else checkpoint.checkpoint_steps(saved))
        return code


def finish(folder: Path, settings: dict[str, Any]) -> tuple[Run, float]:
    """Train without a kill; return the run and the seconds that it took."""
    attempts, seconds = Attempts(folder, settings), 0.0

    def wait(process: Any) -> None:
        nonlocal seconds
        begin = time.monotonic()
        ended(process)
        seconds = time.monotonic() - begin

    assert attempts.attempt(wait) == 0
    assert attempts.run is not None
    return attempts.run, seconds


def kill_until(
    tmp_path: Path, settings: dict[str, Any], reference: Run, wanted: int, kill: Callable[[Attempts], int]
) -> list[int]:
    """Kill until it is enough, compare every run that came to its end, and return the steps that were resumed from."""
    kills, number, continued = 0, 0, []
    while kills < wanted or not any(continued):
        assert kills < MOST_KILLS
        attempts = Attempts(tmp_path / f"killed-{number}", settings)
        number += 1
        while (kills < wanted or not any(attempts.continued)) and kills < MOST_KILLS and kill(attempts) != 0:
            kills += 1
        if attempts.run is None or attempts.run.status != "finished":
            assert attempts.attempt(lambda process: None) == 0
        assert attempts.run is not None
        assert attempts.run.status == "finished"
        assert_equal_runs(attempts.run, reference)
        continued += attempts.continued
    return continued


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_at_random_moments_resumes_to_the_same_bits(variant, tmp_path):
    settings = VARIANTS[variant]
    reference, seconds = finish(tmp_path / "reference", settings)
    chance = random.Random(variant)

    def kill(attempts: Attempts) -> int:
        def after_a_while(process: Any) -> None:
            process.join(chance.uniform(0.1, 0.8) * seconds)
            process.kill()

        return attempts.attempt(after_a_while)

    continued = kill_until(tmp_path, settings, reference, KILLS, kill)
    assert any(0 < steps < reference.config.steps for steps in continued)


def test_a_run_killed_between_any_two_changes_to_its_files_resumes_to_the_same_bits(tmp_path):
    reference, _ = finish(tmp_path / "reference", {})
    chance = random.Random(3)

    def kill(attempts: Attempts) -> int:
        return attempts.attempt(lambda process: None, kill_at=chance.randint(1, 45))

    assert len(kill_until(tmp_path, {}, reference, OPERATION_KILLS, kill)) >= OPERATION_KILLS // 2


def test_a_run_killed_before_its_first_row_begins_again(tmp_path):
    reference, _ = finish(tmp_path / "reference", {})
    attempts = Attempts(tmp_path / "killed", {})
    operation = 0
    # The first moment at which there is a run to resume.
    while attempts.run is None:
        operation += 1
        attempts.attempt(lambda process: None, kill_at=operation)
    assert checkpoint.checkpoints(attempts.run.path) == []
    assert attempts.attempt(lambda process: None) == 0
    assert_equal_runs(attempts.run, reference)
