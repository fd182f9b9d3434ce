"""`import velodrome` is cheap, and every public name is there when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import velodrome as vd

HEAVY = ("torch", "numba", "polars", "gymnasium", "numpy", "pydantic", "stable_baselines3")


def fresh_process(code: str) -> dict:
    """Run code in a new interpreter and return what it prints as JSON."""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(answer.stdout)


def test_import_takes_less_than_a_second_and_loads_nothing_heavy():
    found = fresh_process(
        "import json, sys, time\n"
        "before = time.process_time()\n"
        "import velodrome\n"
        "seconds = time.process_time() - before\n"
        f"print(json.dumps({{'seconds': seconds, 'loaded': [m for m in {HEAVY!r} if m in sys.modules]}}))"
    )
    assert found["seconds"] < 1.0
    assert found["loaded"] == []


def test_the_command_line_starts_without_what_its_commands_need():
    found = fresh_process(
        "import json, sys\n"
        "import velodrome.cli\n"
        f"print(json.dumps({{'loaded': [m for m in {HEAVY!r} if m in sys.modules]}}))"
    )
    assert found["loaded"] == []


def test_making_and_stepping_environments_does_not_import_torch():
    found = fresh_process(
        "import json, sys\n"
        "import velodrome as vd\n"
        "env = vd.make('template', backend='python', seed=0)\n"
        "env.reset(), env.step(0)\n"
        "print(json.dumps({'torch': 'torch' in sys.modules}))"
    )
    assert not found["torch"]


@pytest.mark.parametrize("name", vd.__all__)
def test_every_public_name_resolves(name):
    assert getattr(vd, name) is not None
    assert name in dir(vd)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'make_vecs'"):
        _ = vd.make_vecs
