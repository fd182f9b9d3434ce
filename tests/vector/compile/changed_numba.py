"""Steps the template where Numba's private names have changed; prints whether the numbers are those of Python, and
whether learning does without its own loops.

Run as `python changed_numba.py`, in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numba.core.caching
import numba.core.ccallback
import numba.core.codegen

sys.path.insert(0, str(Path(__file__).parents[3]))

if __name__ == "__main__":
    # Numba has taken these from where they are; whoever comes later does not find them.
    del numba.core.codegen.JITCodeLibrary
    del numba.core.caching.FunctionCache
    from velodrome.doctor import smoke_test
    from velodrome.learn.engines import choice

    same = (smoke_test("native", num_envs=130) == smoke_test("python", num_envs=130)).all()
    sys.stdout.write(f"{same} {choice.NUMBA_CHANGED}\n")
