"""The bound: operations counted by hand against torch's own counter, and the rate of sgemm from its clock."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from velodrome.bench import sgemm
from velodrome.bench.sgemm import operations_per_step, sgemm_rate


def counted(networks: list[list[tuple[int, int]]], samples: int, *, learn: bool) -> int:
    """What torch counts when it runs the networks on some samples."""
    inputs = torch.rand(samples, networks[0][0][0])
    modules = [
        torch.nn.Sequential(*(part for layer in layers for part in (torch.nn.Linear(*layer), torch.nn.Tanh())))
        for layers in networks
    ]
    with FlopCounterMode(display=False) as counter:
        loss = sum(module(inputs).sum() for module in modules)
        if learn:
            loss.backward()  # type: ignore[union-attr]
    return counter.get_total_flops()


@pytest.mark.parametrize(("floats", "hidden", "epochs"), [(264, (64, 64), 4), (10, (7,), 1), (5, (6, 7, 8), 3)])
def test_operations_are_those_that_torch_counts(floats: int, hidden: tuple[int, ...], epochs: int) -> None:
    networks = [list(itertools.pairwise((floats, *hidden, outputs))) for outputs in (3, 1)]
    operations = operations_per_step(floats, hidden, (3, 1), epochs)
    samples = 4
    assert operations.acting * samples == counted(networks, samples, learn=False)
    assert operations.update * samples == epochs * counted(networks, samples, learn=True)


def test_the_setting_that_is_promised_takes_827904_operations_a_step() -> None:
    assert operations_per_step(264, (64, 64), (3, 1), 4).total == 827_904


def test_the_best_product_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three products of 5, 2 and 4 seconds.
    ticks = itertools.chain([0.0, 5.0, 10.0, 12.0, 20.0, 24.0])
    monkeypatch.setattr(sgemm.time, "perf_counter", lambda: next(ticks))
    products: list[Any] = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, **named: products.append(multiply(*given, **named)))
    assert sgemm_rate(size=8, products=3) == 2 * 8**3 / 2.0
    assert [product.shape for product in products] == [(8, 8)] * 3
