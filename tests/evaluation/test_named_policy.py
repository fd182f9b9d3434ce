"""Which policy a result is about: its line for people and its JSON."""

from __future__ import annotations

import json

import pytest

from velodrome.evaluation.named_policy import NamedPolicy, TrainedAgent

BEST = NamedPolicy("best", (TrainedAgent("1a2b3c4d", 7, 106_496, 507_904, 31),), "validation")


def agents(*seeds: int, candidates: int = 31) -> tuple[TrainedAgent, ...]:
    return tuple(TrainedAgent(f"run{k}", seed, 100_000 + k, 500_000, candidates) for k, seed in enumerate(seeds))


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (BEST, "best of 31 on validation: step 106,496 of 507,904; one training seed (7)"),
        (
            NamedPolicy("latest", (TrainedAgent("1a2b3c4d", 7, 507_904, 507_904),)),
            "latest checkpoint: step 507,904 of 507,904; one training seed (7)",
        ),
        (
            NamedPolicy("best", (TrainedAgent("1a2b3c4d", 7, 507_904, 507_904),)),
            "latest checkpoint (no best one is kept): step 507,904 of 507,904; one training seed (7)",
        ),
        (
            NamedPolicy("best", agents(0, 1, 2), "validation"),
            "3 agents, best of 31 on validation: step 100,000 to 100,002 of 500,000; 3 training seeds (0, 1, 2)",
        ),
        (
            NamedPolicy("best", agents(5, 5), "validation"),
            "2 agents, best of 31 on validation: step 100,000 to 100,001 of 500,000; one training seed (5)",
        ),
    ],
)
def test_the_line_says_which_checkpoint_of_how_many_and_how_many_training_seeds(policy: NamedPolicy, told: str) -> None:
    assert policy.text == told


@pytest.mark.parametrize("policy", [BEST, NamedPolicy("latest", agents(0, 1))])
def test_json_holds_everything_and_comes_back(policy: NamedPolicy) -> None:
    plain = json.loads(json.dumps(policy.to_dict()))
    assert plain["text"] == policy.text
    assert plain["training_seeds"] == list(policy.seeds)
    assert NamedPolicy.from_dict(plain) == policy


def test_files_of_different_checkpoints_have_different_names() -> None:
    latest = NamedPolicy("latest", (TrainedAgent("1a2b3c4d", 7, 507_904, 507_904),))
    assert BEST.file_name == "best-106496"
    assert latest.file_name == "latest-507904"
    assert NamedPolicy("best", agents(0, 1, 2)).file_name == "best-3-agents-100002"
