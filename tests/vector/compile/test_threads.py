"""The loop over parts, for all cores, calls the loop for one core and is compiled once for all rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velodrome.envs._template import template_world
from velodrome.envs.contract import LANES
from velodrome.vector import batch
from velodrome.vector.compile import cpu_loops
from velodrome.vector.compile.assemble import rebuild
from velodrome.vector.native import NativeVectorEnv

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
    monkeypatch.setattr(cpu_loops, "_inlined", {})
    monkeypatch.setattr(cpu_loops, "_compiled", {})

    def loops(length: int, **options) -> set[str]:
        envs = NativeVectorEnv(template_world(length=length), 2 * LANES, seed=0, specialise=True, **options)
        envs.reset()
        envs.step(np.zeros(2 * LANES, np.int64))
        return {function.__name__ for function in cpu_loops.compiled_functions() if function.signatures}

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


def ended(length: int, threads: int) -> tuple[list[int], NativeVectorEnv]:
    """Return how many episodes ended in each step, and the environments."""
    world = template_world(length=length)
    envs = NativeVectorEnv(world, 2 * LANES, seed=0, specialise=True, threads=threads)
    envs.reset()
    return [int(envs.step(np.zeros(2 * LANES, np.int64))[3].sum()) for _ in range(9)], envs


@pytest.mark.slow
@needs_cores
def test_a_loop_that_has_the_name_of_another_is_not_taken_for_it(tmp_path, monkeypatch):
    """Numba names loops by a count of its own, which starts again in every process that compiles one."""
    lengths = (6, 7)
    program = "import sys; from tests.vector.compile.test_threads import ended; ended(int(sys.argv[1]), 1)"
    for length in lengths:
        subprocess.run(
            [sys.executable, "-c", program, str(length)], check=True, timeout=300, cwd=Path(__file__).parents[3],
            env={**os.environ, "VELODROME_CACHE": str(tmp_path / str(length))},
        )  # fmt: skip
        shutil.copytree(tmp_path / str(length), tmp_path / "both", dirs_exist_ok=True)
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "both"))
    monkeypatch.setattr(cpu_loops, "_inlined", {})
    monkeypatch.setattr(cpu_loops, "_compiled", {})
    alone = {length: ended(length, 1) for length in lengths}
    results = [result for _, envs in alone.values() for result in envs._step_part.overloads.values()]
    assert len(results) == 2
    assert len({result.fndesc.llvm_func_name for result in results}) == 1
    for length, (counts, _) in alone.items():
        assert counts.index(2 * LANES) == length - 1
        assert ended(length, 2)[0] == counts


@needs_cores
@pytest.mark.parametrize("environments", [1, LANES, LANES + 1, 5 * LANES])
def test_batches_of_fewer_blocks_than_cores_are_stepped_whole(environments):
    world = template_world(length=5)
    records = []
    for threads in (1, 2):
        envs = NativeVectorEnv(world, environments, seed=3, threads=threads, copy=True)
        envs.reset()
        records.append([envs.step(np.ones(environments, np.int64))[:4] for _ in range(12)])
    for alone, together in zip(*records, strict=True):
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one, other)


@needs_cores
def test_actions_that_cannot_be_written_are_stepped_on_all_cores():
    """To Numba they are of another type; the loop for one core is compiled for those that can."""
    envs = NativeVectorEnv(template_world(length=5), 2 * LANES, seed=0, threads=2)
    envs.reset()
    actions = np.zeros(2 * LANES, np.int64)
    rewards = envs.step(actions)[1].copy()
    actions.flags.writeable = False
    envs.reset(seed=0)
    np.testing.assert_array_equal(envs.step(actions)[1], rewards)
    assert len(envs._step_part.signatures) == 1
