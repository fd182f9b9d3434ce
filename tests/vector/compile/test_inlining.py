"""Functions inside a compiled loop have no machine code of their own, and loops share them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import velodrome as vd
from tests.markets import small_market
from velodrome.envs._template import template_world
from velodrome.envs.contract import Float64, state_dtype
from velodrome.vector.compile import cpu_loops
from velodrome.vector.compile.inlining import InlinedLibrary


def test_what_is_inlined_is_neither_optimised_nor_generated_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_loops, "_inlined", {})
    monkeypatch.setattr(cpu_loops, "_compiled", {})
    envs = vd.make_vec("template", 3, seed=0, threads=1, length=7)
    envs.reset()
    (known,) = cpu_loops._inlined.values()
    after_reset = dict(known)
    envs.step(np.zeros(3, np.int64))
    inner = [function for function in known.values() if getattr(function, "overloads", None)]
    libraries = [result.library for function in inner for result in function.overloads.values()]
    assert {type(library) for library in libraries} == {InlinedLibrary}
    # What both loops call is compiled for the first of them only.
    assert any(".reset " in key or ".observe " in key for key in after_reset)
    for key, function in after_reset.items():
        assert known[key] is function
        assert len(function.overloads) <= 1


@pytest.mark.slow
def test_the_terms_of_an_episode_are_read_by_one_compiled_function(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_loops, "_inlined", {})
    monkeypatch.setattr(cpu_loops, "_compiled", {})
    envs = vd.make_vec("trading", 3, market=small_market(), seed=0, threads=1)
    envs.reset()
    envs.step(np.zeros(3, np.int64))
    (found,) = (
        function
        for key, function in cpu_loops._inlined[state_dtype(envs.world.state_type)].items()
        if ".episode_terms " in key
    )
    assert 1 <= len(found.overloads) <= 4


def test_a_state_with_further_columns_is_compiled_on_its_own():
    """Numba takes such a record for a kind of the shorter one, and would call what was compiled for that."""
    world = template_world(length=9)
    longer = type("State", (world.state_type,), {"__annotations__": {"more": Float64}, "__module__": __name__})
    for chosen in (world, replace(world, state_type=longer)):
        envs = vd.make_vec(chosen, 3, seed=0, threads=1)
        envs.reset()
        envs.step(np.zeros(3, np.int64))
    known = [cpu_loops._inlined[state_dtype(state)] for state in (world.state_type, longer)]
    assert not {id(function) for function in known[0].values()} & {id(function) for function in known[1].values()}
