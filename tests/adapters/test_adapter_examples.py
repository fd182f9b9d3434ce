"""What an example script learns; that each runs at all is for tests/test_examples.py."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_torchrl_learns_cartpole(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["torchrl_ppo.py", "--env", "cartpole", "--steps", "10000"])
    runpy.run_path(str(EXAMPLES / "torchrl_ppo.py"), run_name="__main__")
    first, last = capsys.readouterr().out.split("mean return ")[1].split(" at first, ")
    assert float(last.split()[0]) > 2.0 * float(first)
