"""The loop over parts, for all cores, calls the loop for one core and is compiled once for all rules."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velodrome.envs._template import template_world
from velodrome.envs.contract import LANES
from velodrome.vector import batch, native
from velodrome.vector.assemble import rebuild

needs_cores = pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="there is one core and no choice")


@given(environments=st.integers(1, 40 * LANES), parts=st.integers(1, 9))
def test_parts_are_equal_in_size_and_make_up_the_whole(environments, parts):
    seen: list[int] = []

    def step_block(block, actions, autoreset, pack):
        seen.append(block)
        return 1

    step_part = rebuild(batch.step_part, {"step_block": step_block})
    sizes = [step_part(part, parts, np.zeros(environments), True, None) for part in range(parts)]
    assert seen == list(range(-(-environments // LANES)))
    assert max(sizes) - min(sizes) <= 1


@needs_cores
def test_more_cores_compile_neither_the_rule_again_nor_their_loop_for_another_rule(tmp_path, monkeypatch):
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "_inlined", {})
    monkeypatch.setattr(native, "_compiled", {})

    def loops(length: int, **options) -> set[str]:
        envs = native.NativeVectorEnv(template_world(length=length), 2 * LANES, seed=0, specialise=True, **options)
        envs.reset()
        envs.step(np.zeros(2 * LANES, np.int64))
        return {function.__name__ for function in native.compiled_functions() if function.signatures}

    def kept() -> int:
        return len(list(tmp_path.rglob("*.nbc")))

    assert loops(5, threads=1) == {"reset_all", "first_illegal", "step_part"}
    before = kept()
    assert loops(5, threads=2) == {"reset_all", "first_illegal", "step_part", "step_parts"}
    assert kept() == before + 1
    loops(6, threads=1)
    before = kept()
    loops(6, threads=2)
    assert kept() == before


@needs_cores
@pytest.mark.parametrize("environments", [1, LANES, LANES + 1, 5 * LANES])
def test_batches_of_fewer_blocks_than_cores_are_stepped_whole(environments):
    world = template_world(length=5)
    records = []
    for threads in (1, 2):
        envs = native.NativeVectorEnv(world, environments, seed=3, threads=threads, copy=True)
        envs.reset()
        records.append([envs.step(np.ones(environments, np.int64))[:4] for _ in range(12)])
    for alone, together in zip(*records, strict=True):
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one, other)


@needs_cores
def test_actions_that_cannot_be_written_are_stepped_on_all_cores():
    """To Numba they are of another type; the loop for one core is compiled for those that can."""
    envs = native.NativeVectorEnv(template_world(length=5), 2 * LANES, seed=0, threads=2)
    envs.reset()
    actions = np.zeros(2 * LANES, np.int64)
    rewards = envs.step(actions)[1].copy()
    actions.flags.writeable = False
    envs.reset(seed=0)
    np.testing.assert_array_equal(envs.step(actions)[1], rewards)
    assert len(envs._step_part.signatures) == 1
