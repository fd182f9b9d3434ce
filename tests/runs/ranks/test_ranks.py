"""One training in several ranks: the same numbers as in one, one buffer a minibatch, checkpoints of any of them."""

from __future__ import annotations

import ast
import math

import pytest
import torch

from tests.runs.ranks.several import (
    fail_here,
    go_on_here,
    in_ranks,
    only_run,
    part_here,
    refuse_here,
    train_here,
    train_own,
)
from tests.runs.small_runs import last_tensors, lines, one_thread, small_run  # noqa: F401
from velodrome.runs.run import Run, resume

NORMALISED = {"ppo.normalise_observations": True, "ppo.normalise_rewards": True, "ppo.epochs": 2, "steps": 320}
RECURRENT = {**NORMALISED, "network.kind": "gru", "network.dropout": 0.2, "ppo.minibatches": 2, "steps": 192}


def assert_alike(run: Run, reference: Run, tolerance: float = 2e-4) -> None:
    """Check that two runs have the same curves and the same last checkpoint, but for the rounding of sums."""
    # The monitor of foreign environments watches those of the first rank.
    ours, theirs = ([row for row in lines(each) if not row[1].startswith("monitor/")] for each in (run, reference))
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    for (step, name, value), (_, _, wanted) in zip(ours, theirs, strict=True):
        assert math.isclose(value, wanted, rel_tol=tolerance, abs_tol=tolerance), (step, name, value, wanted)
    found, expected = last_tensors(run), last_tensors(reference)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.shape == expected[name].shape, name
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name], rtol=tolerance, atol=tolerance)
        elif not name.startswith("torch."):  # its own generators are each rank's
            assert torch.equal(tensor, expected[name]) or name == "worlds.blocks", name  # accounts are rounded, too


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Run:
    return small_run(tmp_path_factory.mktemp("alone"), **NORMALISED)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("two")
    assert in_ranks(2, train_here, folder, NORMALISED) == [0, 0]
    return only_run(folder)


def test_two_ranks_learn_what_one_learns(of_two, alone):
    assert of_two.status == "finished"
    assert_alike(of_two, alone)


def test_gradients_go_around_in_one_buffer_a_minibatch(of_two):
    weights = sum(tensor.numel() for name, tensor in last_tensors(of_two).items() if name.startswith("policy."))
    updates = 320 // 64 * 2 * of_two.config.learner.minibatches
    for rank in range(2):
        sizes = ast.literal_eval((of_two.path.parent / f"sizes-{rank}").read_text())
        assert sum(size >= weights for size in sizes) == updates
        assert len(sizes) - updates == 2 * 320 // 64  # an iteration's episodes, and what else is reported of it


def test_a_run_goes_on_in_another_number_of_ranks(of_two, alone, tmp_path):
    half = tmp_path / "half"
    half.mkdir()
    assert in_ranks(2, train_here, half, NORMALISED | {"steps": 128}) == [0, 0]
    path = only_run(half).path
    assert in_ranks(3, go_on_here, path, {"steps": 192}) == [0, 0, 0]  # 8 environments: 2, 3 and 3
    resume(path, mode="quiet", evaluate=False, steps=320)
    found, wanted = last_tensors(Run.open(path)), last_tensors(alone)
    for name, tensor in found.items():
        if name.startswith(("policy.", "moments.", "scale.")):
            torch.testing.assert_close(tensor, wanted[name], rtol=2e-4, atol=2e-4)
    assert torch.equal(found["learner.generator"], wanted["learner.generator"])


def test_a_rank_that_dies_stops_the_others_with_a_sentence_and_the_run_goes_on(tmp_path, alone):
    codes = in_ranks(2, fail_here, tmp_path, NORMALISED)
    assert codes == [0, 9]
    told = (tmp_path / "told-0").read_text()
    assert told.startswith("RunError: Rank 0 of 2 has lost another one")
    assert "velodrome train --resume" in told
    run = only_run(tmp_path)
    assert run.status == "failed"
    finished = resume(run, mode="quiet", evaluate=False)
    assert finished.status == "finished"
    mean, wanted = (last_tensors(each)["moments.mean"] for each in (finished, alone))
    torch.testing.assert_close(mean, wanted, rtol=2e-4, atol=2e-4)


def test_ranks_part_at_their_end_and_on_gpus_not_after_an_error(tmp_path):
    assert in_ranks(2, part_here, tmp_path) == [0, 0]
    assert [(tmp_path / f"joined-{rank}").read_text() for rank in range(2)] == ["[True, False, False]"] * 2


def test_what_ranks_cannot_share_is_refused_before_there_is_a_folder(tmp_path):
    assert in_ranks(2, refuse_here, tmp_path, {"num_envs": 1, "ppo.minibatches": 1}) == [0, 0]
    assert "num_envs = 1 for 2 ranks" in (tmp_path / "told-0").read_text()
    assert (tmp_path / "told-1").read_text() == "SystemExit: 1"  # the first has told
    assert not list(tmp_path.glob("*/run.json"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_learning_curves_of_one_two_and_four_ranks_agree(seed, tmp_path):
    settings = NORMALISED | {"seed": seed, "num_envs": 64, "steps": 64 * 8 * 20, "network.hidden": (32,)}
    reference = small_run(tmp_path / "one", **settings)
    for count in (2, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        assert in_ranks(count, train_here, folder, settings) == [0] * count
        assert_alike(only_run(folder), reference, 5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_recurrent_networks_with_dropout_and_plain_autograd_agree(engine, tmp_path):
    settings = (RECURRENT if engine == "auto" else NORMALISED) | {"ppo.engine": engine}
    reference = small_run(tmp_path / "one", **settings)
    folder = tmp_path / "two"
    folder.mkdir()
    assert in_ranks(2, train_here, folder, settings) == [0, 0]
    assert_alike(only_run(folder), reference)


@pytest.mark.slow
def test_environments_of_other_libraries_are_seeded_by_their_number_among_all(tmp_path):
    settings = {"env": "CartPole-v1", "vector": {"env_type": "serial", "num_envs": 8}, "steps": 320, "device": "cpu"}
    settings |= {"ppo": {"rollout_length": 8}, "network": {"hidden": [8]}, "evaluation": {"episodes": 2}}
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        assert in_ranks(count, train_own, tmp_path / str(count), settings) == [0] * count
    assert_alike(only_run(tmp_path / "2"), only_run(tmp_path / "1"))
