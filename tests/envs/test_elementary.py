"""Elementary functions that have the same bits everywhere."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import velodrome as vd
from tests.contracts.comparison import assert_same_bits, run
from velodrome.envs import _template
from velodrome.envs.contract import Rule
from velodrome.envs.elementary import exponential, sine_and_cosine
from velodrome.envs.rng import uniform

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
UNIT = 2.0**-52  # in the last place of 1


@given(st.floats(-750.0, 0.0))
def test_the_exponential_is_the_librarys_but_for_its_last_bit(x):
    assert math.isclose(exponential(x), math.exp(max(x, -700.0)), rel_tol=4e-16)


@given(st.floats(-1e6, 1e6) | st.integers(-4096, 4096).map(lambda eighth: eighth * math.pi / 8.0))
def test_sine_and_cosine_are_the_librarys_but_for_their_last_bit(angle):
    sine, cosine = sine_and_cosine(angle)
    assert abs(sine - math.sin(angle)) <= UNIT
    assert abs(cosine - math.cos(angle)) <= UNIT


def test_a_sine_of_almost_nothing_is_the_angle():
    for angle in (0.0, -0.0, 5e-324, -1e-300, 1e-9):
        assert sine_and_cosine(angle) == (angle, 1.0)
        assert math.copysign(1.0, sine_and_cosine(angle)[0]) == math.copysign(1.0, angle)


def swing(i: int, action: Any, state: Any, tables: Any, params: Any) -> tuple[float, bool, bool]:
    sine, cosine = sine_and_cosine(1000.0 * (uniform(i, state) - 0.5))
    state.direction[i], state.position[i] = sine, cosine
    state.score[i] += exponential(-abs(sine))
    state.cursor[i] += 1
    return sine * cosine, False, state.cursor[i] >= params.length


@pytest.mark.parametrize("backend", ["native", pytest.param("cuda", marks=ON_A_GPU)])
def test_a_rule_of_angles_has_the_bits_of_plain_python(backend):
    rule = Rule(_template.reset, swing, _template.observe, _template.finish)
    world = replace(_template.template_world(length=30), rule=rule)
    plain, other = (run(vd.make_vec(world, 5, backend=kind, seed=3), 40) for kind in ("python", backend))
    assert_same_bits(other, plain)
