"""What a trial's training is worth: by its best checkpoint, or by what it learnt where that is what it was taught."""

from __future__ import annotations

import polars as pl
import pytest

from tests.runs.small_runs import one_thread  # noqa: F401
from velodrome.rollout.observation import WindowBank
from velodrome.runs import checkpoint
from velodrome.runs.evaluate import play_validation
from velodrome.runs.run import Run
from velodrome.tune import outcome


@pytest.mark.parametrize("kept", [True, False])
def test_a_training_that_keeps_what_it_was_taught_is_judged_by_what_it_learnt(good_run, fresh_folder, kept):
    run = Run.open(fresh_folder(good_run) / good_run.path.name)
    for path in checkpoint.checkpoints(run.path):
        checkpoint.pin_checkpoint(path, pinned=(checkpoint.checkpoint_steps(path) == 0) is kept)
    steps = {checkpoint.checkpoint_steps(path) for path in checkpoint.checkpoints(run.path)}
    assert {0, 64} <= steps
    outcome.record(run, good_run.market)
    found = outcome.read(run.path, "return", run.folder.id)
    bank = WindowBank(good_run.market.windows)

    def played(path):
        policy = run.policy_of(checkpoint.load_checkpoint(path)).with_bank(bank)
        return play_validation(policy, run.config, good_run.market).figures["return"]

    taught, *_, learnt = map(played, checkpoint.checkpoints(run.path))
    assert learnt != taught
    assert found.value == pytest.approx(learnt)
    assert (outcome.KEPT in found.figures) is kept
    assert 0.0 < found.figures[outcome.SECONDS] < 60.0
    # Without a validation that chose one, the last checkpoint is what there is, and nothing was kept.
    for path in checkpoint.checkpoints(run.path):
        checkpoint.pin_checkpoint(path, pinned=False)
    assert not outcome.keeps_what_it_was_taught(run)


def test_the_time_of_a_training_is_that_of_its_iterations():
    rows = [(100, outcome.SPEED, 50.0), (100, "loss/value", 9.0), (400, outcome.SPEED, 600.0)]
    metrics = pl.DataFrame(rows, schema=["step", "name", "value"], orient="row")
    assert outcome.training_seconds(metrics) == pytest.approx(2.5)
    assert outcome.training_seconds(metrics.clear()) == 0.0
