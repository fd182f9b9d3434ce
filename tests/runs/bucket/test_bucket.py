"""Runs in folders by URL: what is sent, what is fetched elsewhere, and what is told when it cannot be."""

from __future__ import annotations

import builtins
import json
import shutil

import fsspec
import pytest
import torch

from tests.runs.small_runs import tiny
from velodrome import cli
from velodrome.errors import BucketError, ConfigError, MissingDependencyError, RunError, RunLockedError
from velodrome.runs import checkpoint
from velodrome.runs.bucket import place, upload
from velodrome.runs.bucket.place import SCRATCH, Bucket, here, url_of
from velodrome.runs.config.files import load_run_config
from velodrome.runs.evaluate import evaluate
from velodrome.runs.folder import RunFolder
from velodrome.runs.run import Run, resume, train
from velodrome.runs.session import Session
from velodrome.runs.walk_forward import walk_forward
from velodrome.service.executors.named import executor_named
from velodrome.tune.champions.registry import Registry

URL = "memory://bucket/runs"


class Machines:
    """Folders that stand for URLs, as machines without a common one have them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch

    def be(self, name):
        self.monkeypatch.setenv(SCRATCH, str(self.folder / name))


@pytest.fixture
def machines(tmp_path, monkeypatch):
    system = fsspec.filesystem("memory")
    system.store.clear()
    made = Machines(tmp_path, monkeypatch)
    made.be("first")
    return made


def trained(**changed) -> Run:
    return train("smoke", mode="quiet", evaluate=False, **tiny(URL, **changed))


def files_there(run: Run) -> dict[str, bytes]:
    system = fsspec.filesystem("memory")
    root = f"/bucket/runs/{run.path.name}"
    return {path.removeprefix(f"{root}/"): system.cat_file(path) for path in system.find(root)}


def files_here(run: Run) -> dict[str, bytes]:
    found = {str(path.relative_to(run.path)): path for path in run.path.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "lock" and "/." not in f"/{name}"}


def stop_after(monkeypatch, steps: int, error: type[BaseException] = RuntimeError) -> None:
    iterate = Session._iterate

    def stopping(self: Session) -> None:
        iterate(self)
        if self.learner.steps >= steps:
            raise error("stopped by the test")

    monkeypatch.setattr(Session, "_iterate", stopping)


def test_what_is_a_url_and_what_a_path(tmp_path):
    assert [url_of(one) for one in ("runs", "./a:b", "/tmp/x", "C:/x")] == [None, None, None, None]
    from pathlib import Path

    assert url_of(Path("s3://bucket/runs/")) == "s3://bucket/runs"
    assert url_of(Path("file:///tmp/x")) == "file:///tmp/x"
    assert here(tmp_path) == tmp_path
    assert Bucket.behind(tmp_path) is None


def test_a_run_on_a_url_lies_there_as_it_lies_here_and_goes_on_elsewhere(machines, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        stop_after(patch, 320)
        with pytest.raises(RuntimeError, match="stopped by the test"):
            trained()
    (left,) = (RunFolder.open("latest", URL),)
    there = files_there(Run.of(left))
    assert there["run.json"] == (left.path / "run.json").read_bytes()
    last = checkpoint.latest_checkpoint(left.path)
    assert f"checkpoints/{last.name}/state.json" in there
    machines.be("second")
    run = resume("latest", root=URL, mode="quiet", evaluate=False)
    assert run.path != left.path
    assert run.path.is_relative_to(tmp_path / "second")
    assert run.status == "finished"
    assert run.config.logging.folder == URL
    assert run.resume_command == f"velodrome train --resume {URL}/{run.path.name}"
    own = train("smoke", mode="quiet", evaluate=False, **tiny(tmp_path / "local"))
    ends = [checkpoint.latest_valid(one.path) for one in (run, own)]
    assert ends[0].plain["learner"] == ends[1].plain["learner"]
    assert all(torch.equal(tensor, ends[1].tensors[name]) for name, tensor in ends[0].tensors.items())
    # All of it is there, and nothing else: old checkpoints are removed there as they are here.
    there, writer = files_there(run), place.WRITER
    assert json.loads(there.pop(writer))["host"]
    assert there == files_here(run)
    machines.be("third")
    evaluation = evaluate(f"{URL}/{run.path.name}")
    assert evaluation.metrics
    assert any(name.startswith("evaluation/") for name in files_there(run))
    assert cli.run(["runs", "list", "--folder", URL]) == 0
    assert cli.run(["runs", "show", "latest", "--folder", URL]) == 0


@pytest.mark.slow
def test_who_looks_fetches_no_tensors(machines, capsys):
    run = trained()
    machines.be("second")
    assert cli.run(["runs", "list", "--folder", URL, "--json"]) == 0
    assert run.folder.id in capsys.readouterr().out
    assert not list(here(URL).rglob("*.safetensors"))
    assert list(here(URL).rglob("state.json"))


def test_half_an_upload_is_a_run_of_the_checkpoint_before(machines, monkeypatch):
    """The bucket is lost at each of the writes of an upload in turn: what is there can always be continued."""
    system = fsspec.filesystem("memory")
    run = trained()
    whole = files_there(run)
    steps = sorted(int(name.split("/")[1]) for name in whole if name.endswith("state.json"))
    names = sorted(whole, key=lambda name: place.LAST.get(name.rpartition("/")[2], 0))
    last = [name for name in names if name.startswith(f"checkpoints/{steps[-1]:012d}/")]
    assert [name.rpartition("/")[2] for name in last][-1] == "state.json"
    for number in range(len(last)):
        for name in last[number:]:
            system.rm(f"/bucket/runs/{run.path.name}/{name}")
        machines.be(f"half-{number}")
        folder = RunFolder.open("latest", URL)
        assert checkpoint.latest_valid(folder.path).steps == steps[-2]
        for name in last:
            system.pipe_file(f"/bucket/runs/{run.path.name}/{name}", whole[name])


def test_files_are_sent_in_an_order_in_which_every_moment_can_be_continued(machines, monkeypatch):
    system = fsspec.filesystem("memory")
    sent = []
    put = type(system).put
    monkeypatch.setattr(type(system), "put", lambda self, here, there: (sent.append(there), put(self, here, there))[1])
    run = trained()
    flat = [path.removeprefix(f"/bucket/runs/{run.path.name}/") for group in sent for path in group]
    for name in (name for name in set(flat) if name.endswith("tensors.safetensors")):
        assert flat.index(name) < flat.index(name.replace("tensors.safetensors", "state.json"))
    assert flat[-1] == "status.json"
    assert flat.count("config.yaml") == 1  # what did not change is sent once


def test_a_bucket_that_is_away_holds_nobody_up_and_lacks_nothing_in_the_end(machines, monkeypatch):
    monkeypatch.setattr(upload, "RETRY_SECONDS", 0.05)
    send, failed = Bucket._send, []

    def sometimes(self, system, folder, there, removes):
        if len(checkpoint.checkpoints(folder)) > 1 and len(failed) < 3:
            failed.append(1)
            raise OSError("connection reset")
        send(self, system, folder, there, removes)

    monkeypatch.setattr(Bucket, "_send", sometimes)
    run = trained()
    assert len(failed) == 3
    assert files_there(run)["status.json"] == (run.path / "status.json").read_bytes()


def test_what_was_not_sent_in_the_end_is_an_error_and_is_sent_by_the_same_machine_later(machines, monkeypatch):
    monkeypatch.setattr(upload, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(upload.Upload.__init__, "__defaults__", (0.2,))
    with monkeypatch.context() as patch:
        send = Bucket._send

        def never(self, system, folder, there, removes):
            if checkpoint.checkpoints(folder):
                raise PermissionError("Access Denied")
            send(self, system, folder, there, removes)

        patch.setattr(Bucket, "_send", never)
        with pytest.raises(BucketError, match=r"Access Denied.*lacks the last of .* has it.*--resume memory://"):
            trained()
    run = resume("latest", root=URL, mode="quiet", evaluate=False)
    assert files_there(run)["status.json"] == (run.path / "status.json").read_bytes()
    assert "finished" in files_there(run)["status.json"].decode()


def test_a_run_that_went_on_elsewhere_stops_here(machines, monkeypatch):
    iterate, taken = Session._iterate, []

    def iterating(self: Session) -> None:
        iterate(self)
        if self.learner.steps >= 192 and not taken:
            taken.append(1)
            machines.be("second")
            folder = RunFolder.open("latest", URL)
            Bucket.behind(folder.path).take(folder.path)
            machines.be("first")

    monkeypatch.setattr(Session, "_iterate", iterating)
    with pytest.raises(RunLockedError, match="has been continued on"):
        trained()


@pytest.mark.slow
def test_bars_of_a_program_go_with_the_run(machines, tmp_path):
    from velodrome.bars.synthetic import synthetic_bars

    told = tiny(URL, **{"market.source": "x"})
    del told["market.source"]
    run = train("smoke", mode="quiet", evaluate=False, bars=synthetic_bars("ar1", 300, 0), **told)
    machines.be("second")
    shutil.rmtree(tmp_path / "first")
    again = resume(f"{URL}/{run.path.name}", mode="quiet", steps=704)
    assert again.status == "finished"


@pytest.mark.slow
def test_a_group_of_seeds_goes_to_its_url(machines):
    run = trained(seeds=2)
    machines.be("second")
    found = Run.open("latest", URL)
    assert [member.status for member in found.members] == ["finished", "finished"]
    assert all(checkpoint.latest_valid(member.path) for member in found.members)
    assert found.folder.id == run.folder.id


def test_no_driver_no_protocol_and_no_access_are_told_in_a_sentence(machines, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="Protocol not known"):
        train("smoke", mode="quiet", **tiny("nowhere://bucket/runs"))
    importing = builtins.__import__

    def missing(name, *arguments, **options):
        if name.partition(".")[0] in ("s3fs",):
            raise ImportError(f"No module named {name!r}")
        return importing(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependencyError, match="For s3:// pip install s3fs"):
        train("smoke", mode="quiet", **tiny("s3://bucket/runs"))
    with pytest.raises(RunError, match="there is no run"):
        Run.open(f"{URL}/nobody")
    closed = tmp_path / "closed"
    closed.write_text("a file where a folder is asked for")
    with pytest.raises(BucketError, match="cannot be read or written"):
        train("smoke", mode="quiet", **tiny(f"file://{closed}/runs"))


def test_what_does_not_go_to_a_bucket_is_refused(machines):
    with pytest.raises(ConfigError, match="folds in time lie in a folder of a machine"):
        walk_forward(load_run_config("smoke", tiny(URL)), 2)
    with pytest.raises(ConfigError, match="champions lie in a folder of a machine"):
        Registry(URL)
    with pytest.raises(ConfigError, match="with --executor slurm it is a folder that all machines see"):
        executor_named("slurm", URL, cores=1)


def test_a_name_that_leads_out_of_the_folder_is_not_followed(machines, monkeypatch):
    run = trained()
    system = type(fsspec.filesystem("memory"))
    find = system.find
    about = {"size": 1, "created": "now"}
    evil = f"/bucket/runs/{run.path.name}/../../../evil.txt"
    monkeypatch.setattr(system, "find", lambda self, path, **options: find(self, path, **options) | {evil: about})
    machines.be("second")
    with pytest.raises(BucketError, match="leads out of the folder"):
        Run.open(f"{URL}/{run.path.name}")


def test_a_note_in_a_strangers_folder_sends_and_fetches_nothing(machines, tmp_path):
    run = train("smoke", mode="quiet", evaluate=False, **tiny(tmp_path / "given"))
    note = json.dumps({"url": URL, "token": "a stranger's"})
    for folder in (run.path, run.path.parent):
        (folder / place.NOTE).write_text(note)
    assert Bucket.behind(run.path) is None
    evaluate(Run.open(run.path), report=False)
    assert fsspec.filesystem("memory").find("/bucket") == []
