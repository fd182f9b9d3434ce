"""The pages of docs/migrate: every block of code and every command on them runs as it is written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from velodrome.bench import options

PAGES = sorted((Path(__file__).parents[2] / "docs" / "migrate").glob("*.md"))
FACADES = (*("cappuccino", "drl_trading", "intraday_jules", "workflow_rl"), "torchtrade")
NEEDS = {"torchtrade": "torchrl", "cappuccino": "elegantrl", "drl_trading": "stable_baselines3"}
MOST_LINES = 1_500
# Appended, so that what is not the point takes no time.
SMALL = ("evaluation.episodes=2", "device=cpu", "--quiet")


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_door_has_a_page_in_the_navigation():
    assert {path.stem for path in PAGES} == {"index", *FACADES}
    navigation = (PAGES[0].parents[2] / "mkdocs.yml").read_text()
    for path in PAGES:
        assert f"migrate/{path.name}" in navigation


def test_every_page_has_a_measurement_by_a_command_of_ours():
    for path in PAGES:
        if path.stem != "index":
            text = path.read_text(encoding="utf-8").partition("## Measured")[2]
            assert "velodrome bench step" in text, path
            assert "| " in text, f"{path} has no table of what was measured"


def test_the_facades_stay_thin():
    """Everything in compat counts but replays of recordings: the modules that have `replay`, and what they share."""
    folder = Path(options.__file__).parents[1] / "compat"
    replays = {folder / name for name in ("recordings.py", "alpaca_crypto.py", "torchtrade/replays.py")}
    assert all(path.is_file() for path in replays)
    files = set(folder.rglob("*.py")) - replays
    assert {file.stem for file in files} >= {*FACADES[:-1], "envs", "history", "layout", "settings"}
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python")], ids=lambda path: path.stem)
def test_the_code_of_a_page_runs(path, tmp_path):
    """As one script, in a process of its own: a service starts others, which import the main module."""
    pytest.importorskip(NEEDS.get(path.stem, "stable_baselines3"))
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(path, "python")))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "bash")], ids=lambda path: path.stem)
def test_the_commands_of_a_page_run(path, tmp_path):
    for block in blocks(path, "bash"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            command = [sys.executable, "-m", "velodrome", *words[1:], *SMALL]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr[-4000:]
