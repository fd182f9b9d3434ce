"""A run from elsewhere imports no code before a person says so; runs of one's own never ask."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.outside.strangers import as_root, give_away
from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from velodrome import cli
from velodrome.errors import RunError, VelodromeError
from velodrome.outside import code
from velodrome.runs.evaluate import evaluate
from velodrome.runs.run import Run, resume, train
from velodrome.runs.walk_forward import walk_forward

CODE = """
from pathlib import Path
import torch
Path(__file__).with_name("imported").touch()

class Net(torch.nn.Module):
    out_features = 8
    def __init__(self, windows, values):
        super().__init__()
        self.layer = torch.nn.Linear(sum(rows * features for rows, features in windows) + values, 8)
    def forward(self, windows, values):
        return self.layer(torch.cat([*(window.flatten(1) for window in windows), values], 1))
"""
SHORT: dict[str, Any] = {"steps": 64, "evaluation.every_steps": None}


@pytest.fixture
def nobody_knows(tmp_path, monkeypatch) -> None:
    """A user who has trained nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(code, "_now", set())


@pytest.fixture
def someones_code(tmp_path, monkeypatch) -> Path:
    """A module that leaves a mark when it is imported; the mark is returned."""
    home = tmp_path / "code"
    home.mkdir()
    (home / "someones_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.delitem(sys.modules, "someones_code", raising=False)
    yield home / "imported"
    sys.modules.pop("someones_code", None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """A run that names no code."""
    return small_run(tmp_path_factory.mktemp("plain"), **SHORT).path


@pytest.fixture
def foreign(plain, tmp_path) -> Path:
    """The same run, come from elsewhere and changed to name code."""
    folder = Path(shutil.copytree(plain, tmp_path / "received" / plain.name))
    change(folder, network={"kind": "someones_code:Net"})
    return folder


def change(folder: Path, **settings: Any) -> None:
    reader = YAML(typ="safe")
    content = reader.load(folder / "config.yaml")
    for key, value in settings.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    reader.dump(content, folder / "config.yaml")


USES = {
    "evaluate": lambda folder: evaluate(folder, report=False),
    "policy": lambda folder: Run.open(folder).policy,
    "resume": lambda folder: resume(folder, ["steps=128"], mode="quiet"),
    "train": lambda folder: train(folder / "config.yaml", mode="quiet"),
    "walk forward": lambda folder: walk_forward(folder, folds=2),
    "walk its configuration forward": lambda folder: walk_forward(folder / "config.yaml", folds=2),
}


@pytest.mark.usefixtures("nobody_knows")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_no_use_of_a_run_from_elsewhere_imports_the_code_that_it_names(use, foreign, someones_code):
    with pytest.raises(RunError, match=r"network.kind = someones_code:Net .*someones_code.py.* --trust"):
        use(foreign)
    assert "someones_code" not in sys.modules
    assert not someones_code.exists()


@pytest.mark.usefixtures("nobody_knows")
@pytest.mark.parametrize(
    "words", ["eval {0}", "train --resume {0}", "runs export {0} {0}/policy.pt", "eval {0} --walk-forward --folds 2"]
)
def test_no_command_imports_it_either(words, plain, foreign, someones_code, capsys):
    shutil.copy(plain.parent / "velodrome.db", foreign.parent)
    place = ["--folder", str(foreign.parent)] if words.startswith("runs") else []
    assert cli.run([*words.format(foreign).split(), *place]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not someones_code.exists()


@pytest.mark.usefixtures("nobody_knows")
@pytest.mark.parametrize("words", ["runs list", "runs show {0}", "runs export {0} {1}/metrics.csv"])
def test_to_look_at_a_run_imports_no_code_and_needs_no_word(words, foreign, tmp_path, someones_code, capsys):
    change(foreign, env="someones_code:Env-v0")
    assert cli.run([*words.format(foreign, tmp_path).split(), "--folder", str(foreign.parent)]) == 0
    assert not someones_code.exists()


@pytest.mark.usefixtures("nobody_knows")
def test_ones_own_runs_never_ask_wherever_they_lie_and_those_of_others_once(tmp_path, monkeypatch, someones_code):
    own = small_run(tmp_path / "runs", **SHORT, **{"network.kind": "someones_code:Net"})
    copied = Path(shutil.copytree(own.path, tmp_path / "elsewhere" / own.path.name))
    someones_code.unlink()
    sys.modules.pop("someones_code")
    code._now.clear()  # as in another process
    assert Run.open(copied).policy is not None
    # On another machine, or for another user, nothing is known of it.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other_state"))
    code._now.clear()
    with pytest.raises(RunError, match="--trust"):
        evaluate(copied, report=False)
    assert evaluate(copied, report=False, trust=True).rows
    code._now.clear()
    assert evaluate(copied, report=False).rows
    assert (tmp_path / "other_state" / "velodrome" / "trusted_code").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("nobody_knows")
def test_a_trusted_name_that_leads_to_another_file_is_another_name(tmp_path, monkeypatch, someones_code):
    code.trust(["network.kind = someones_code:Net"])
    assert code.untrusted(["network.kind = someones_code:Net"]) == []
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "someones_code.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "planted"))
    assert code.untrusted(["network.kind = someones_code:Net"]) == ["network.kind = someones_code:Net"]


@pytest.mark.usefixtures("nobody_knows")
def test_a_checkpoint_cannot_name_code_that_its_run_does_not(plain, tmp_path, someones_code):
    from velodrome.runs.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint

    folder = Path(shutil.copytree(plain, tmp_path / plain.name))
    found = load_checkpoint(latest_checkpoint(folder))
    found.plain["agent"]["network"]["kind"] = "someones_code:Net"
    save_checkpoint(folder, found.steps, found.tensors, found.plain)
    with pytest.raises(VelodromeError, match="its network is 'someones_code:Net', and that of its run 'mlp'"):
        evaluate(folder, report=False, trust=True)
    assert not someones_code.exists()


@pytest.mark.usefixtures("nobody_knows")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"env": "someones_code:Env-v0"}, ["env = someones_code:Env-v0"]),
        ({"env": "CartPole-v1"}, []),
        ({"env": "CartPole-v1", "params": {"sutton_barto_reward": True}}, []),
        ({"env": "GymV26Environment-v0", "params": {"env_id": "someones_code:X"}}, ["params.env_id of GymV26"]),
        ({"env": "CartPole-v1", "params": {"deep": [[{"a": "someones_code:X"}]]}}, ["params.deep of CartPole-v1"]),
        ({"logging.store": "postgresql://me:secret@host/runs"}, ["logging.store = postgresql"]),
        ({"env": "cage2"}, []),
        ({}, []),
    ],
)
def test_what_names_code(settings, named):
    from velodrome.runs.config.files import load_run_config

    found = load_run_config({}, settings).code_names()
    assert len(found) == len(named)
    assert all(one.startswith(start) for one, start in zip(found, named, strict=True))
    code.trust(found)
    assert code.untrusted(found) == []
    listed = code.trusted_list().read_text() if named else ""
    assert "secret" not in listed  # what is not code may be a password


@pytest.mark.usefixtures("nobody_knows")
def test_no_store_is_opened_that_a_run_from_elsewhere_names(plain, tmp_path):
    folder = Path(shutil.copytree(plain, tmp_path / plain.name))
    change(folder, logging={"store": f"sqlite:///{tmp_path / 'anywhere.db'}"})
    with pytest.raises(RunError, match=r"logging.store = sqlite.*--trust"):
        Run.open(folder).store()
    assert not (tmp_path / "anywhere.db").exists()


@as_root
@pytest.mark.usefixtures("nobody_knows")
def test_a_list_that_others_can_write_is_not_believed(tmp_path, caplog):
    code.trust(["env = some:Env"])
    give_away(tmp_path / "state" / "velodrome")
    code._now.clear()
    assert code.untrusted(["env = some:Env"])
    code.trust(["env = some:Env"])
    assert "is not remembered" in caplog.text
    assert not code.untrusted(["env = some:Env"])  # in this process


@pytest.mark.parametrize("name", ["report.html", "lock", "log.txt", "evaluation/test.json", "checkpoints/000000000999"])
def test_a_link_out_of_a_runs_folder_is_refused(plain, tmp_path, name):
    folder = Path(shutil.copytree(plain, tmp_path / "received" / plain.name))
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(mine)
    for use in (USES["evaluate"], USES["resume"]):
        with pytest.raises(RunError, match="leads out of the run's folder"):
            use(folder)
    assert mine.read_text() == "precious"
