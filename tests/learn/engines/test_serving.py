"""What the fused update refuses, and in which words."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.learn.engines.fused_reference import make_parts, make_rollout
from velodrome.errors import ConfigError
from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.cpu.network import FusedActorCritic
from velodrome.learn.engines.cpu.perceptrons import Perceptrons
from velodrome.learn.engines.cpu.reading import WindowedObservations
from velodrome.tables.windows import no_windows


def linear(*widths: int) -> list[nn.Linear]:
    return [nn.Linear(before, after) for before, after in itertools.pairwise(widths)]


def frozen() -> list[nn.Linear]:
    layers = linear(4, 8, 3)
    layers[0].weight.requires_grad_(False)
    return layers


def hooked() -> list[nn.Linear]:
    layers = linear(4, 8, 3)
    layers[0].register_forward_hook(lambda *_: None)
    return layers


class Doubled(nn.Linear):
    """Not what its base class computes."""


TIED = linear(4, 8, 3)
REASONS = {
    "needs a hidden layer": (linear(4, 3), linear(4, 1)),
    "BatchNorm1d": ([nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)], linear(4, 8, 1)),
    "GRUCell": ([nn.GRUCell(4, 8), nn.Linear(8, 3)], linear(4, 8, 1)),
    "Doubled": ([Doubled(4, 8), nn.Linear(8, 3)], linear(4, 8, 1)),
    "no bias": ([nn.Linear(4, 8, bias=False), nn.Linear(8, 3)], linear(4, 8, 1)),
    "hooks": (hooked(), linear(4, 8, 1)),
    "float64": ([nn.Linear(4, 8).double(), nn.Linear(8, 3)], linear(4, 8, 1)),
    "on meta": ([nn.Linear(4, 8, device="meta"), nn.Linear(8, 3)], linear(4, 8, 1)),
    "frozen": (frozen(), linear(4, 8, 1)),
    "the layer before gives 7": ([nn.Linear(4, 7), nn.Linear(8, 3)], linear(4, 8, 1)),
    "observes 4 floats and the critic 5": (linear(4, 8, 3), linear(5, 8, 1)),
    "3 layers and the critic 2": (linear(4, 8, 8, 3), linear(4, 8, 1)),
    "2 outputs instead of 1": (linear(4, 8, 3), linear(4, 8, 2)),
    "some hidden layers but not all": (TIED[:1] + linear(8, 8, 3), [TIED[0], *linear(8, 8, 1)]),
    "a layer appears twice": ([(square := nn.Linear(4, 4)), square, nn.Linear(4, 3)], linear(4, 8, 8, 1)),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_network_that_cannot_be_served_is_told_why(reason):
    actor, critic = REASONS[reason]
    parts = Perceptrons(actor, critic, sizes=[3])
    assert reason in (parts.cannot_be_served() or "")
    with pytest.raises(ConfigError, match=reason):
        FusedActorCritic(parts)


def test_shared_last_layer_and_shared_parameters():
    single = linear(4, 8, 1)
    assert "last layer" in (Perceptrons(single, single, sizes=[1]).cannot_be_served() or "")
    actor, critic = linear(4, 8, 3), linear(4, 8, 1)
    critic[0].weight = actor[0].weight
    assert "share a parameter" in (Perceptrons(actor, critic, sizes=[3]).cannot_be_served() or "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"activation": "tan", "sizes": [3]}, "Did you mean 'tanh'"),
        ({"activation": "tanh"}, "one of the two"),
        ({"activation": "tanh", "sizes": [3], "log_std": nn.Parameter(torch.zeros(3))}, "one of the two"),
        ({"activation": "tanh", "sizes": [2, 2]}, "add up to the actor's 3 outputs"),
        ({"activation": "tanh", "sizes": []}, "add up"),
        ({"activation": "tanh", "log_std": torch.zeros(3)}, "must be a parameter"),
        ({"activation": "tanh", "log_std": nn.Parameter(torch.zeros(2))}, "3 float32 numbers"),
        ({"activation": "tanh", "log_std": nn.Parameter(torch.zeros(3), requires_grad=False)}, "trainable"),
    ],
)
def test_activations_and_actions_that_cannot_be_served(options, reason):
    assert reason in (Perceptrons(linear(4, 8, 3), linear(4, 8, 1), **options).cannot_be_served() or "")


def test_what_can_be_served_has_no_reason_against_it():
    assert Perceptrons(linear(4, 8, 3), linear(4, 8, 1), "gelu", [3]).cannot_be_served() is None


PARTS = make_parts(6, (8, 8), sizes=[3])
ROLLOUT = make_rollout(PARTS, 20)


def windowed(cursor: int, values: int = 6) -> WindowedObservations:
    return WindowedObservations(no_windows(10), torch.full((20,), cursor), torch.zeros(20, values))


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (torch.tensor([0, 20]), {}, r"row 20 was asked for, but there are rows 0 … 19"),
        (torch.tensor([-1]), {}, "row -1"),
        (torch.tensor([], dtype=torch.int64), {}, "at least one row"),
        (torch.tensor([0.0]), {}, "int64"),
        (torch.arange(20), {"actions": torch.full((20,), 3)}, r"action of sample 0 is \[3\]"),
        (torch.arange(20), {"actions": torch.full((20,), -1)}, "action of sample 0"),
        (torch.arange(20), {"actions": torch.zeros(20, 2, dtype=torch.int64)}, r"actions must be .* \[20, 1\]"),
        (torch.arange(20), {"returns": torch.zeros(19)}, r"returns must be a tensor \[20\] of float32"),
        (torch.arange(20), {"returns": torch.zeros(20).double()}, "received .* float64"),
        (torch.arange(20), {"returns": torch.zeros(40)[::2]}, "contiguous"),
        (torch.arange(20), {"returns": [0.0] * 20}, "received list"),
        (torch.arange(20), {"observations": torch.zeros(20, 5)}, r"observations must be a tensor \[20, 6\]"),
        (torch.arange(20), {"observations": windowed(10)}, r"cursor of observation 0 is 10; .* bars 0 … 9"),
        (torch.arange(20), {"observations": windowed(-1)}, "cursor of observation 0 is -1"),
        (torch.tensor([20]), {"observations": windowed(1)}, "row 20"),
        (torch.arange(20), {"observations": windowed(1, values=5)}, r"values must be a tensor \[20, 6\]"),
    ],
)
def test_a_rollout_that_does_not_fit_is_refused(rows, changes, message):
    fused = PARTS.fused()
    with pytest.raises(ConfigError, match=message):
        fused.update_minibatch(rows, ROLLOUT._replace(**changes), PPOConfig())


def test_noise_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match=r"noise must be a tensor \[20, 1\]"):
        PARTS.fused().sample(ROLLOUT.observations, torch.zeros(20))
