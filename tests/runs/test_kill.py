"""`kill -9` at any moment: what is left resumes to the bits of a run that was left alone, and results are whole."""

from __future__ import annotations

import functools
import random
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.small_runs import (
    AfterIterations,
    AtFileOperation,
    End,
    WhenAFileGrows,
    assert_equal_runs,
    command_line,
    ended,
    small_run,
    start,
    tiny,
)
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
    "sac": {
        "algorithm": "sac", "params.action": "continuous", "sac.rollout_length": 8, "sac.updates": 2,
        "sac.batch_size": 32, "sac.buffer_size": 512, "sac.learning_starts": 128,
    },
}  # fmt: skip
KILLS = 5  # of each variant: 25 together
OPERATION_KILLS = 6
MOST_KILLS = 40


class Attempts:
    """Trains a run in processes that may be killed, and looks after each at where it went on."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, tiny(folder, **settings)
        self.output = folder.with_name(f"{folder.name}.txt")
        self.continued: list[int] = []  # steps from which it was resumed
        self.kills = 0
        self.logged = 0  # lines of the log that were read

    @property
    def run(self) -> Run | None:
        found = run_folders(self.folder)
        assert len(found) <= 1
        return Run(found[0]) if found else None

    def go(self, end: End | None = None) -> bool:
        """Start or resume, wait for the end, and return whether the process came to its own."""
        saved = None if self.run is None else checkpoint.latest_checkpoint(self.run.path)
        code = ended(start(command_line(self.folder, self.settings), self.output, end))
        assert code in (0, -signal.SIGKILL), self.output.read_text()
        self.kills += code != 0
        if self.run is not None and self.run.folder.log_path.exists():
            for line in self.run.folder.log_path.read_text().splitlines()[self.logged :]:
                self.logged += 1
                if found := re.search(r"resumed at step (\d+)", line):
                    self.continued.append(int(found[1]))
                    assert self.continued[-1] == (0 if saved is None else checkpoint.checkpoint_steps(saved))
        return code == 0

    @property
    def finished(self) -> bool:
        """Whether the run came to its end; its process may have been killed after that."""
        if self.run is None:
            return False
        assert self.run.status in ("killed", "finished")
        return self.run.status == "finished"

    def finish(self) -> Run:
        assert self.go()
        assert self.finished
        assert self.run is not None
        return self.run


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory) -> Callable[[str], Run]:
    """Returns the run of a variant that nobody killed, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("reference")
    return functools.cache(lambda variant: Attempts(folder / variant, VARIANTS[variant]).finish())


def kill_and_compare(
    tmp_path: Path, settings: dict[str, Any], reference: Run, wanted: int, when: Callable[[], End]
) -> list[int]:
    """Kill so many processes; every run that they were training comes to its end and equals one that was left alone.

    Returns the steps from which runs were resumed.
    """
    kills, continued = 0, []
    for number in range(MOST_KILLS):
        attempts = Attempts(tmp_path / f"killed-{number}", settings)
        while not attempts.finished and kills + attempts.kills < wanted:
            attempts.go(when())
        kills += attempts.kills
        if not attempts.finished:
            attempts.finish()
        assert attempts.run is not None
        assert_equal_runs(attempts.run, reference)
        continued += attempts.continued
        if kills >= wanted:
            break
    assert kills == wanted
    return continued


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name == "mlp" else pytest.mark.slow) for name in VARIANTS]
)
def test_a_run_killed_at_random_moments_resumes_to_the_same_bits(variant, left_alone, tmp_path):
    chance = random.Random(variant)

    def when() -> End:
        return AfterIterations(chance.randint(0, 5), chance.uniform(0.0, 0.1))

    continued = kill_and_compare(tmp_path, VARIANTS[variant], left_alone(variant), KILLS, when)
    assert any(continued)


def test_a_run_killed_between_any_two_changes_to_its_files_resumes_to_the_same_bits(left_alone, tmp_path):
    chance = random.Random(3)

    def when() -> End:
        return AtFileOperation(chance.randint(1, 45))

    continued = kill_and_compare(tmp_path, {}, left_alone("mlp"), OPERATION_KILLS, when)
    assert any(continued)


def test_a_run_killed_before_its_first_row_begins_again(left_alone, tmp_path):
    attempts = Attempts(tmp_path / "killed", {})
    operation = 4  # folders are made first
    while attempts.run is None:  # until the first moment at which there is a run to resume
        operation += 1
        assert not attempts.go(AtFileOperation(operation))
    assert checkpoint.checkpoints(attempts.run.path) == []
    assert_equal_runs(attempts.finish(), left_alone("mlp"))


# Results


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> dict[Path, bytes]:
    """The files that an evaluation leaves, and what is in them."""
    run = small_run(tmp_path_factory.mktemp("evaluated") / "runs", evaluate=True, steps=128)
    paths = [run.folder.report_path, *run.folder.evaluation_path.iterdir()]
    return content_of(paths)


def content_of(paths: Iterable[Path]) -> dict[Path, bytes]:
    """Return what is in files, but for the moment at which the data was looked at."""
    return {path: re.sub(rb'"time": \d+\.\d+', b'"time": 0', path.read_bytes()) for path in paths}


def evaluate_and_die(evaluated: dict[Path, bytes], tmp_path: Path, end: End) -> int:
    """Evaluate the run again, over files of which each says that it is old; return the exit code.

    Each file is then old or new, and what the kill left is gone after the next evaluation.
    """
    folder = min(evaluated, key=lambda path: len(path.parts)).parent
    for path in evaluated:
        path.write_bytes(b"old")
    code = ended(start(["eval", str(folder)], tmp_path / "output.txt", end))
    found = content_of(evaluated)
    torn = [path.name for path, content in found.items() if content not in (b"old", evaluated[path])]
    assert torn == []
    assert len(hidden(folder)) <= 7  # the JSON file, three tables, a CSV file are written side by side
    return code


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@pytest.mark.parametrize("size", [100, 1_000_000])  # in the JSON file; in the report, 4 MB
def test_an_evaluation_killed_while_it_writes_leaves_each_file_old_or_new(evaluated, tmp_path, size):
    assert evaluate_and_die(evaluated, tmp_path, WhenAFileGrows(size)) == -signal.SIGXFSZ


@pytest.mark.slow
def test_an_evaluation_killed_anywhere_leaves_each_file_old_or_new_and_nothing_that_piles_up(evaluated, tmp_path):
    folder = min(evaluated, key=lambda path: len(path.parts)).parent
    sizes = sorted({len(content) for content in evaluated.values()})
    for size in sizes:
        assert evaluate_and_die(evaluated, tmp_path, WhenAFileGrows(size - 1)) == -signal.SIGXFSZ
    codes = [evaluate_and_die(evaluated, tmp_path, AtFileOperation(number)) for number in range(1, 60, 3)]
    assert codes.count(-signal.SIGKILL) > 10
    assert ended(start(["eval", str(folder)], tmp_path / "output.txt")) == 0
    assert content_of(evaluated) == evaluated
    assert hidden(folder) == []
