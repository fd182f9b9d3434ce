"""The arithmetic logarithms against the library's: within one unit in the last place, everywhere they are used."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from velodrome.tables.logarithm import logarithm, logarithm_of_growth

LOGARITHMS = pytest.mark.parametrize("function", [logarithm, logarithm_of_growth])


@LOGARITHMS
@given(x=st.floats(5e-324, 1.7e308))
@example(x=1.0)
@example(x=5e-324)
@example(x=1.7e308)
def test_any_positive_number(function, x):
    assert abs(function(x) - math.log(x)) <= 2.0 * np.spacing(abs(math.log(x)))


@LOGARITHMS
@given(f=st.floats(-0.07, 0.07))
@example(f=0.0625)
@example(f=-0.0625)
@example(f=np.nextafter(0.0625, 1.0))
def test_growth_of_a_bar(function, f):
    x = 1.0 + f
    assert abs(function(x) - math.log(x)) <= 2.0 * np.spacing(abs(math.log(x)))


@LOGARITHMS
def test_no_growth_is_nothing(function):
    assert function(1.0) == 0.0
