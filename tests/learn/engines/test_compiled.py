"""Machine code on disk is used again, and not after a change of any file that was compiled into it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import velodrome
from velodrome.learn.engines.cpu import compiled, kernels, losses

CALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from velodrome.learn.engines.cpu.kernels import tanh_forward
row = np.ones((1, 1), np.float32)
tanh_forward(row, row[:0], np.zeros(1, np.float32), 1)
print(json.dumps([float(row[0, 0]), sum(tanh_forward.stats.cache_hits.values())]))
"""


def called(folder: Path) -> list[float]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-c", CALL, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_loop_is_compiled_again_after_a_change_of_what_it_calls(tmp_path):
    package = Path(velodrome.__file__).parent
    shutil.copytree(package, tmp_path / "velodrome", ignore=shutil.ignore_patterns("__pycache__"))
    (value, hits), (again, hits_again) = called(tmp_path), called(tmp_path)
    assert value == again
    assert (hits, hits_again) == (0, 1)
    changed = tmp_path / "velodrome/learn/engines/cpu/elementary.py"
    text = changed.read_text()
    assert text.count("    return x * p / q\n") == 1
    changed.write_text(text.replace("    return x * p / q\n", "    return x * p / q + ONE\n"))
    assert called(tmp_path) == [value + 1.0, 0]


def test_the_hash_covers_every_module_that_is_compiled_into_a_loop(monkeypatch):
    for module, inside in {
        losses.__name__: ("engines.formulas", "cpu.elementary"),
        kernels.__name__: ("compile.memcpy",),
    }.items():
        before = compiled.sources_hash.__wrapped__(module)
        for name in inside:
            with monkeypatch.context() as patch:
                source = compiled.inspect.getsource
                patch.setattr(
                    compiled.inspect, "getsource", lambda of, s=source, n=name: s(of) + "#" * of.__name__.endswith(n)
                )
                assert compiled.sources_hash.__wrapped__(module) != before, name
