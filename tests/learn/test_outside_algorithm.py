"""docs/add_an_algorithm.md is true to the letter: its example, in a package of its own, trains, evaluates, reports."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import velodrome as vd
from tests.runs.small_runs import tiny
from velodrome.errors import ConfigError
from velodrome.learn.catalog import ALGORITHMS, AlgorithmEntry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/add_an_algorithm.md").read_text(encoding="utf-8")
MODULE = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class Reinforce(" in block)
SETTINGS = {"algorithm": "reinforce", "reinforce.entropy": 0.02, "reinforce.rollout_length": 8}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package that is not Velodrome's, with the module of the page in it."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "reinforce.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    yield folder
    sys.modules.pop("reinforce", None)


def test_a_registered_algorithm_trains_evaluates_and_reports(package, tmp_path):
    import reinforce

    vd.register_algorithm(reinforce.ENTRY)
    settings = tiny(tmp_path, **SETTINGS)
    run = vd.train("smoke", mode="quiet", **settings)
    assert run.config.learner == reinforce.ReinforceConfig(entropy=0.02, rollout_length=8)
    assert run.status == "finished"
    assert (run.path / "report.html").is_file()
    result = vd.evaluate(run)
    assert result.split == "test"
    policy = run.load_policy("latest")
    assert type(policy.network).__name__ == "ActorCritic"


def test_its_section_is_checked_by_its_model(package, tmp_path):
    import reinforce

    vd.register_algorithm(reinforce.ENTRY)
    with pytest.raises(ConfigError, match=r"reinforce\.entropy"):
        vd.train("smoke", mode="quiet", **tiny(tmp_path, **{**SETTINGS, "reinforce.entropy": -1.0}))
    with pytest.raises(ConfigError, match="entropy"):
        vd.train("smoke", mode="quiet", **tiny(tmp_path, **{**SETTINGS, "reinforce.entrpy": 0.1}))


def test_an_installed_package_is_found_by_its_entry_point(package, tmp_path):
    toml = re.search(r'\[project\.entry-points\."velodrome\.algorithms"\]\n(.*?)```', PAGE, re.DOTALL)
    assert toml is not None
    name, reference = re.fullmatch(r'(\w+) = "(.+)"\n', toml[1]).groups()
    facts = package / "reinforce-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: reinforce\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[velodrome.algorithms]\n{name} = {reference}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "velodrome", "train", "smoke"]
    settings = {**tiny(tmp_path, **SETTINGS), "market.features": "[return]", "network.hidden": "[8]"}
    command += [f"{key}={value}" for key, value in settings.items()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*/report.html"))


def test_an_action_space_that_an_algorithm_does_not_take_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'dqn' takes Discrete actions .* algorithm = 'ppo'"):
        vd.train("smoke", mode="quiet", **tiny(tmp_path, algorithm="dqn", **{"params.action": "continuous"}))


def test_an_entry_that_saves_what_its_config_lacks_is_refused():
    entry = AlgorithmEntry("mine", "velodrome.learn.config:PPOConfig", dict, dict, saved=("duelling",))
    with pytest.raises(ConfigError, match="saved names duelling, which PPOConfig has not"):
        vd.register_algorithm(entry)


def files_of(path: str) -> list[str]:
    """The files in the page's table of a path."""
    table = PAGE.partition(path)[2].partition("\n\n")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\S+\.py)` \|", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("path", "most_lines", "most_files"), [("The plain path", 800, 4), ("The default path", 1300, 8)]
)
def test_one_update_of_ppo_is_short_enough_to_follow(path, most_lines, most_files):
    files = files_of(path)
    assert 1 < len(files) <= most_files
    lines = [len((ROOT / "velodrome" / name).read_text(encoding="utf-8").splitlines()) for name in files]
    assert sum(lines) <= most_lines, dict(zip(files, lines, strict=True))


@pytest.mark.parametrize("path", ["The plain path", "The default path"])
def test_what_a_path_imports_and_leaves_out_is_named_on_the_page(path):
    section = PAGE.partition("## Follow one update of PPO")[2].partition("\n## ")[0]
    for file in files_of(path):
        for node in ast.walk(ast.parse((ROOT / "velodrome" / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and re.match(r"velodrome\.(learn|rollout)\b", node.module or ""):
                folder = ROOT / node.module.replace(".", "/")
                # Modules, also where a folder is imported from.
                modules = [folder / name.name for name in node.names] if folder.is_dir() else [folder]
                assert [name.name for name in modules if f"{name.name}.py`" not in section] == [], file
