"""A run folder that is damaged, or was made by somebody hostile, is a sentence: never code, a crash or a hang.

Whoever changes a checkpoint can compute its hash again, so the hash proves nothing here: each one below is sealed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from tests.outside.strangers import bound_by_modes
from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from velodrome import cli
from velodrome.errors import CheckpointError, RunError, VelodromeError
from velodrome.evaluation.result import Evaluation
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs.evaluate import evaluate
from velodrome.runs.run import Run, resume

SHORT: dict[str, Any] = {"steps": 64, "evaluation.every_steps": None, "evaluation.seeds": 1}
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 10**6, 10**12, 10**30, -(10**12), 1e308, math.nan, math.inf, 0.5, 2**63, [], {}, [[]]),
    *("", "x", "../../x", "\x1b[31m", "9" * 5000, ["a"], {"a": 1}, [1] * 1000),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run with one checkpoint and an evaluation."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = small_run(tmp_path_factory.mktemp("whole"), evaluate=True, **SHORT)
    for path in checkpoints.checkpoints(run.path)[:-1]:
        shutil.rmtree(path)
    return run.path


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / whole.name))


def last(folder: Path) -> Path:
    found = checkpoints.latest_checkpoint(folder)
    assert found is not None
    return found


def plain_of(folder: Path) -> dict[str, Any]:
    return json.loads((last(folder) / checkpoints.STATE).read_text())["plain"]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return copies: what safetensors loads is the file itself, which is written again."""
    return {name: tensor.clone() for name, tensor in load_file(last(folder) / checkpoints.TENSORS).items()}


def seal(folder: Path, plain: Any = None, tensors: bytes | None = None, **top: Any) -> None:
    """Write a checkpoint's content with the hashes that belong to it."""
    path = last(folder)
    if tensors is not None:
        (path / checkpoints.TENSORS).write_bytes(tensors)
    state = {"format": 1, "steps": checkpoints.checkpoint_steps(path)}
    state["tensors_sha256"] = checkpoints._hash_of_file(path / checkpoints.TENSORS)
    state |= {"plain": plain_of(folder) if plain is None else plain, **top}
    sealed = json.dumps({**state, "state_sha256": checkpoints._hash_of_state(state)})
    (path / checkpoints.STATE).write_text(sealed)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands in nested lists and mappings."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*at, key)
        yield from places(part, (*at, key))


def changed(value: Any, draw: random.Random) -> Any:
    """Return nested lists and mappings with something else in one to three places."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 3))):
        *way, name = draw.choice(list(places(value)))
        inner = value
        for key in way:
            inner = inner[key]
        if draw.random() < 0.15:
            del inner[name]
        else:
            inner[name] = copy.deepcopy(draw.choice(VALUES))
    return value


def sentence_or_nothing(use: Callable[[], Any]) -> None:
    """Use a folder; what goes wrong must be an error of ours, in words."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(VelodromeError):
        use()


several = pytest.mark.parametrize("count", [25, pytest.param(400, marks=pytest.mark.slow)])  # changes that are tried


# The checkpoint


@several
def test_what_a_checkpoint_says_of_its_agent_is_checked(folder, count):
    plain, run = plain_of(folder), Run.open(folder)
    for seed in range(count):
        seal(folder, changed(plain, random.Random(seed)))
        sentence_or_nothing(run.load_policy)


@several
def test_the_whole_state_is_checked(folder, count):
    plain, run = plain_of(folder), Run.open(folder)
    for seed in range(count):
        state = changed({"format": 1, "steps": 64, "tensors_sha256": "0" * 64, "plain": plain}, random.Random(seed))
        seal(folder, **{"plain": plain, **state})
        sentence_or_nothing(run.load_policy)


@pytest.mark.parametrize("entry", [{"values": 10**11}, {"windows": [[10**9, 10**9]]}, {"windows": [["x", 10**10]]}])
def test_a_number_in_a_checkpoint_costs_no_memory(folder, entry):
    plain = plain_of(folder)
    plain["agent"] |= entry
    seal(folder, plain)
    with pytest.raises(CheckpointError, match=r"not those of the network that it describes|does not fit the run"):
        evaluate(folder)


@pytest.mark.parametrize("entry", [{"hidden": [64] * 100_000}, {"kind": "conv", "channels": [1] * 100_000}])
def test_a_hundred_thousand_layers_are_not_made(folder, entry):
    plain = plain_of(folder)
    plain["agent"]["network"] |= entry
    seal(folder, plain)
    with pytest.raises(CheckpointError, match=r"more layers|its network is 'conv'"):
        evaluate(folder)


def headers(content: bytes) -> Iterator[bytes]:
    """Yield files of tensors whose first part, which says what lies where, is not true."""
    size = int.from_bytes(content[:8], "little")
    head, body = content[8 : 8 + size], content[8 + size :]
    for length in (0, 7, 10**8, 10**12, 2**63 - 1):
        yield length.to_bytes(8, "little") + head + body
    exchanged = (
        (b"F32", b"F64"),
        (b"F32", b"F8_E4M3"),
        (b"F32", b"NONE"),
        (b"[8", b"[999999999999"),
        (b'"dtype"', b'"x"'),
    )
    for before, after in (*exchanged, (b"data_offsets", b"data_offset"), (b'"policy', b'"../../policy')):
        new = head.replace(before, after, 1)
        yield len(new).to_bytes(8, "little") + new + body
    for new in (b"[" * 20_000, b'{"a":' * 20_000, b"{}", b"null", b'{"__metadata__": 3}'):
        yield len(new).to_bytes(8, "little") + new + body
    for seed in range(30):
        draw, damaged = random.Random(seed), bytearray(content)
        for _ in range(draw.choice((1, 5, 50))):
            damaged[draw.randrange(min(len(damaged), size + 64))] ^= 1 << draw.randrange(8)
        yield bytes(damaged[: draw.randrange(len(damaged))] if seed % 5 == 0 else damaged)


def test_a_file_of_tensors_is_read_or_refused(folder):
    run = Run.open(folder)
    for content in headers((last(folder) / checkpoints.TENSORS).read_bytes()):
        seal(folder, tensors=content)
        sentence_or_nothing(run.load_policy)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(folder, value):
    tensors = tensors_of(folder)
    name = next(name for name in tensors if name.startswith("policy"))
    tensors[name].fill_(value)
    seal(folder, tensors=save(tensors))
    with pytest.raises(CheckpointError, match="are not all numbers"):
        evaluate(folder)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_the_saved_state_of_environments_cannot_lead_compiled_code_astray(folder, byte):
    """A cursor beyond the data would let it read, and write, what is not the environments': it crashed."""
    tensors = tensors_of(folder)
    tensors["worlds.blocks"].fill_(byte)
    seal(folder, tensors=save(tensors))
    with pytest.raises(VelodromeError, match="The saved state of the environments has the state column"):
        resume(folder, ["steps=128"], mode="quiet", evaluate=False)


@pytest.mark.parametrize("cursor", [-1, 10**6])
def test_a_saved_cursor_must_be_one_of_the_market(folder, cursor):
    tensors = tensors_of(folder)
    tensors["worlds.cursors"].fill_(cursor)
    seal(folder, tensors=save(tensors))
    with pytest.raises(VelodromeError, match="a cursor at"):
        resume(folder, ["steps=128"], mode="quiet", evaluate=False)


@pytest.mark.slow
def test_tensors_of_other_kinds_are_a_sentence_when_a_run_goes_on(folder, monkeypatch):
    from velodrome.runs.session import Session

    # What it does once its checkpoint is read takes long and is not what is asked here.
    monkeypatch.setattr(
        Session, "_iterate", lambda session: (_ for _ in ()).throw(CheckpointError("read without a word"))
    )
    tensors = tensors_of(folder)
    names = sorted(tensors)
    for number, name in enumerate(names):
        other = (torch.zeros(0), tensors[name].reshape(-1)[:1].clone(), torch.zeros(1 << 12))[number % 3]
        seal(folder, tensors=save({**tensors, name: other}))
        sentence_or_nothing(lambda: resume(folder, ["steps=128"], mode="quiet", evaluate=False))


# Other files


USES: dict[str, Callable[[Path], Any]] = {
    "run.json": lambda folder: Run.open(folder).folder.candidate,
    "status.json": lambda folder: Run.open(folder).folder.state,
    "evaluation": lambda folder: Evaluation.load(folder, "test"),
}


@several
@pytest.mark.parametrize("name", USES)
def test_other_json_files_are_read_or_refused(folder, name, count):
    file = next((folder / "evaluation").glob("*.json")) if name == "evaluation" else folder / name
    whole = file.read_text()
    texts = [json.dumps(changed(json.loads(whole), random.Random(seed))) for seed in range(count)]
    texts += ["[" * 100_000, '{"a":' * 100_000, "", "null", "[]", "{}", "\0", whole[: len(whole) // 2], "9" * 10_000]
    for text in texts:
        file.write_text(text)
        sentence_or_nothing(lambda: USES[name](folder))
    sentence_or_nothing(lambda: repr(Run.open(folder)))


LINES = (
    *(b"[" * 100_000, b"null", b"\xff", b"x" * (2 << 20)),
    *(b'{"step": 1e400, "time": 1, "values": {}}', b'{"step": -1, "time": 1, "values": {}}'),
    *(b'{"step": 1, "time": "x", "values": {}}', b'{"step": 1, "time": 1, "values": {"a": "x"}}'),
)


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_line_of_metrics_is_read_or_refused(folder, line):
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(RunError, match="is damaged"):
        _ = Run.open(folder).metrics


@pytest.mark.parametrize(
    "name", ["run.json", "config.yaml", "metrics.jsonl", "lock", "state.json", "tensors.safetensors"]
)
def test_nobody_waits_at_a_pipe(folder, name):
    path = folder / name if name not in (checkpoints.STATE, checkpoints.TENSORS) else last(folder) / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for use in ("policy", "status", "metrics"):
        sentence_or_nothing(lambda use=use: getattr(Run.open(folder), use))


def test_the_name_of_a_checkpoint_is_a_number_that_can_be_one(folder):
    (folder / "checkpoints" / ("9" * 200)).mkdir()
    assert checkpoints.latest_checkpoint(folder) == last(folder)
    assert len(checkpoints.checkpoints(folder)) == 1


def test_names_in_a_run_folder_cannot_write_on_the_terminal_or_into_the_page(folder, capsys):
    file = folder / "run.json"
    hostile = "\x1b[2J\u202e<script>alert(1)</script>\nfake"
    file.write_text(json.dumps({**json.loads(file.read_text()), "name": hostile}))
    moved = folder.rename(folder.with_name(f"{folder.name}<b>\u202e"))
    for words in (["runs", "list", "--folder", str(moved.parent)], ["runs", "show", str(moved)], ["eval", str(moved)]):
        cli.run(words)
        shown = capsys.readouterr()
        assert "\x1b[2J" not in shown.out + shown.err
        assert "\u202e" not in shown.out + shown.err
    page = next(moved.glob("report*.html")).read_text()
    assert "\u202e" not in page
    assert "<b>" not in page.partition("</header>")[0].partition("<header")[2]


# A folder that cannot be written


def test_a_folder_that_cannot_be_written_is_a_sentence_or_no_obstacle(whole, tmp_path, capsys):
    root = Path(shutil.copytree(whole.parent, tmp_path / "runs"))
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    run = str(root / whole.name)
    try:
        with bound_by_modes():
            for words, code, told in (
                (["runs", "list", "--folder", str(root)], 0, "may not be written"),
                (["runs", "show", run, "--folder", str(root)], 0, "may not be written"),
                (["eval", run], 2, "cannot be written (Permission denied), and its evaluation is kept there"),
                (["train", "--resume", run, "steps=128"], 2, "cannot be written (Permission denied), and a run that"),
            ):
                assert cli.run(words) == code, words
                shown = capsys.readouterr()
                assert told in shown.err
                assert whole.name.rpartition("-")[2] in shown.out + shown.err
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)
