"""Files are written whole or not at all: by one way in the whole package, which survives a kill at any moment."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from velodrome import writing
from velodrome.errors import VelodromeError, WriteError
from velodrome.writing import new_folder, replace_text, replacing, write_frame

PACKAGE = Path(__file__).parents[1] / "velodrome"


# No way around it

WRITERS = {
    *("write_text", "write_bytes", "savefig", "write_image", "write_html", "write_parquet", "write_csv", "write_ipc"),
    *("write_json", "write_ndjson", "write_excel", "sink_parquet", "sink_csv", "to_csv", "to_parquet", "to_pickle"),
    *("savez", "savez_compressed", "savetxt", "tofile", "save", "save_file", "dump", "export", "export_chrome_trace"),
    *("copyfile", "copy2", "copytree", "NamedTemporaryFile", "mkstemp", "extractall", "write_frame"),
}
WAYS = {"replacing", "new_folder"}
# Who may write a file where it lies, and why. Each is found, or its line goes.
JUSTIFIED = {
    ("writing.py", "replacing", "open"): "makes the new file",
    ("writing.py", "write_text", "open"): "writes the new file",
    ("bench/result/timeline.py", "learn", "open"): "/dev/null",
    ("bench/hosts/host.py", "serve", "open"): "/dev/null",
    ("bars/files.py", "write_bars", "write_frame"): "into a `new_folder`",
    ("writing.py", "write_frame", "write_csv"): "into memory",
    ("writing.py", "write_frame", "write_parquet"): "into memory",
    ("writing.py", "write_frame", "write_bytes"): "called within `replacing` or `new_folder`",
    ("compat/intraday_jules.py", "_train_with_sb3", "save"): "SB3 writes its own file, under a name that is new",
    ("dashboard/login.py", "_new", "open"): "a file of the user alone, which gets its name when it is whole",
    ("dashboard/server.py", "open_browser", "open"): "a file of the moment, of the user alone",
    ("dashboard/api/evaluations.py", "trades_file", "write_csv"): "into memory",
    ("dashboard/api/runs.py", "rows", "write_csv"): "into memory",
    ("learn/policy_files.py", "write", "export"): "called within `replacing`",
    ("learn/policy_files.py", "write", "save"): "called within `replacing`",
    ("runs/checkpoint.py", "save_checkpoint", "write_text"): "into a folder that gets its name when it is whole",
    ("runs/checkpoint.py", "pin_checkpoint", "write_text"): "an empty file, which is there or not",
    ("runs/checkpoint.py", "_write_tensors", "save_file"): "into a folder that gets its name when it is whole",
    ("runs/evaluate.py", "evaluate", "save"): "Evaluation.save, which replaces",
    ("runs/report/folds.py", "write_folds", "save"): "Evaluation.save, which replaces",
    ("service/executors/parcels.py", "_alone", "open"): "an empty file, which is there to be locked",
    ("service/worker/nursery.py", "_fork", "open"): "what processes print is appended to; /dev/null",
    ("tune/champions/frozen.py", "freeze", "save"): "into memory",
    ("tune/champions/registry.py", "_locked", "open"): "an empty file, which is there to be locked",
    ("tune/paper/feed.py", "_copy_whole_lines", "write_bytes"): "into a folder of the moment",
    ("tune/paper/memory.py", "__init__", "open"): "log.jsonl is appended to; an empty file is there to be locked",
    ("tune/paper/tape.py", "_append", "open"): "bars.jsonl is appended to",
    ("tune/paper/tape.py", "_read", "open"): "takes back half a line of bars.jsonl",
    ("outside/screen.py", "drop_output", "open"): "/dev/null",
    ("outside/code.py", "trust", "open"): "the list of trusted code is appended to, a line in one write",
    ("runs/store/sinks.py", "__init__", "open"): "metrics.jsonl is appended to",
    ("vector/fleet/episode_file.py", "__init__", "open"): "monitor.csv is appended to; half a header is begun anew",
    ("vector/fleet/episode_file.py", "_continued", "open"): "takes back half a line of monitor.csv",
}


def writes(tree: ast.AST, function: str = "", whole: bool = False) -> Iterator[tuple[str, str, int]]:
    """Yield the function, the call and the line of each write that is not within one of the WAYS."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else function
        within = whole or (isinstance(node, ast.With) and any(name_of(call) in WAYS for call in calls_of_with(node)))
        if isinstance(node, ast.Call) and not within:
            name = name_of(node)
            if name in WRITERS or (name == "open" and opens_to_write(node)):
                yield inside, name, node.lineno
        yield from writes(node, inside, within)


def calls_of_with(node: ast.With) -> Iterator[ast.Call]:
    """The calls of a with statement's head, and what its block enters into a stack."""
    for item in node.items:
        yield from (found for found in ast.walk(item) if isinstance(found, ast.Call))
    for found in ast.walk(node):
        if isinstance(found, ast.Call) and name_of(found) == "enter_context":
            yield from (inner for inner in ast.walk(found) if isinstance(inner, ast.Call))


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def opens_to_write(call: ast.Call) -> bool:
    texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    flags = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)]
    modes = [text for text in texts if text and set(text) <= set("rwxab+t")]
    return any(set(mode) & set("wxa+") for mode in modes) or bool({"O_WRONLY", "O_RDWR", "O_CREAT"} & set(flags))


def test_every_file_of_the_package_is_replaced_whole():
    paths = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").glob("*.py")]
    texts = {os.path.relpath(path, PACKAGE): path.read_text(encoding="utf-8") for path in paths}
    suspicious = re.compile(rf"\b({'|'.join(WRITERS)}|open)\(")  # reading all as trees would take a second
    found = {
        (path, function, name): line
        for path, text in texts.items()
        if suspicious.search(text)
        for function, name, line in writes(ast.parse(text))
    }
    around = {place: line for place, line in found.items() if place not in JUSTIFIED}
    assert around == {}, "write through velodrome.writing.replacing (or replace_text, new_folder)"
    assert set(JUSTIFIED) <= set(found), "an exception that is needed no more"


@pytest.mark.parametrize(
    "line",
    [
        "path.write_text('x')", "open(path, 'w')", "path.open('wb')", "path.open(mode='r+')", "json.dump(x, file)",
        "np.savez(path, x)", "figure.write_image(path)", "frame.write_parquet(path)", "open(path, 'a')",
        "os.open(path, os.O_WRONLY | os.O_CREAT)", "with other(path) as new: new.write_text('x')",
    ],
)  # fmt: skip
def test_a_write_around_it_is_found(line):
    assert [function for function, _, _ in writes(ast.parse(f"def f():\n    {line}"))] == ["f"]


@pytest.mark.parametrize(
    "line", ["with replacing(path) as new: frame.write_csv(new)", "path.read_text()", "open(path)", "open(path, 'rb')"]
)
def test_what_goes_through_it_or_only_reads_is_not(line):
    assert list(writes(ast.parse(line))) == []


# Killed at any moment


def forked(work: Callable[[], None]) -> int:
    """Do work in a forked process; return its exit code, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_before_call(number: int) -> None:
    """Let this process die before its n-th call that opens, syncs, locks, names or removes a file."""
    left = number

    def deadly(operation: Callable) -> Callable:
        def call(*arguments, **named):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **named)

        return call

    for module, names in (
        (os, ("open", "fsync", "replace", "rename", "mkdir", "unlink", "close", "scandir", "chmod")),
        (writing.fcntl, ("flock",)),
        (Path, ("write_text",)),
    ):
        for name in names:
            setattr(module, name, deadly(getattr(module, name)))


def unfinished(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("before", ["old", None])
def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one_and_nothing_that_piles_up(tmp_path, before):
    path = tmp_path / "report.html"
    seen = set()
    for number in range(1, 100):
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_text(before)

        def work(number=number) -> None:
            die_before_call(number)
            replace_text(path, "new" * 10_000)

        code = forked(work)
        content = path.read_text() if path.exists() else None
        assert content in (before, "new" * 10_000)
        assert len(unfinished(tmp_path)) <= 1  # of this kill; the one before has been removed
        seen.add(content)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert number > 8
    assert seen == {before, "new" * 10_000}
    replace_text(tmp_path / "another.txt", "x")
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("limit", [0, 1, 70_000])
def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file(tmp_path, limit):
    path = tmp_path / "evaluation.json"
    path.write_text("old")

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        replace_text(path, "new" * 100_000)

    assert forked(work) == -signal.SIGXFSZ
    assert path.read_text() == "old"
    (left,) = unfinished(tmp_path)
    assert (tmp_path / left).stat().st_size == limit


def test_a_folder_has_its_name_when_it_is_whole(tmp_path):
    place = tmp_path / "bars" / "0123"
    for number in range(1, 100):

        def work(number=number) -> None:
            die_before_call(number)
            with new_folder(place) as folder:
                for name in ("a", "b"):
                    writing.write_text(folder / name, name)

        code = forked(work)
        if place.exists():
            assert sorted(path.name for path in place.iterdir()) == ["a", "b"]
        if code == 0:
            break
    assert number > 8
    with new_folder(place) as folder:  # another process was quicker
        (folder / "other").write_text("x")
    assert sorted(path.name for path in place.iterdir()) == ["a", "b"]
    assert unfinished(place.parent) == []


def test_what_another_process_is_writing_stays(tmp_path):
    with replacing(tmp_path / "a") as first:
        first.write_text("first")
        assert forked(lambda: replace_text(tmp_path / "b", "second")) == 0
        assert first.exists()
    assert (tmp_path / "a").read_text() == "first"
    assert (tmp_path / "b").read_text() == "second"


# What it takes the place of


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as new:
            new.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert unfinished(tmp_path) == []


def test_a_link_and_the_rights_of_a_file_stay(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "target"
    target.write_text("old")
    target.chmod(0o640)
    (tmp_path / "link").symlink_to(target)
    replace_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    replace_text(tmp_path / "first", "x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "first").stat().st_mode) == 0o666 & ~mask


def test_a_device_or_a_pipe_is_written_and_not_replaced(tmp_path):
    before = os.stat("/dev/null")
    replace_text("/dev/null", "x")
    assert os.stat("/dev/null").st_rdev == before.st_rdev
    program = "from velodrome.writing import replace_text; replace_text('/dev/stdout', 'told')"
    with (tmp_path / "out").open("w") as out:  # a file that a shell has opened
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "told"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "told"


def test_the_longest_name_and_its_ending_can_be_written(tmp_path):
    path = tmp_path / ("漢" * 83 + ".csv")
    with replacing(path) as new:
        assert new.suffix == ".csv"
        new.write_text("x")
    assert path.read_text() == "x"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere/a", r"nowhere/a: cannot be written: No such file or directory\. Make the folder .*nowhere first"),
        (".", "cannot be written: .*"),
    ],
)
def test_what_cannot_be_written_is_a_sentence(tmp_path, name, told):
    with pytest.raises(WriteError, match=told) as caught:
        replace_text(tmp_path / name, "x")
    assert isinstance(caught.value, VelodromeError)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path):
    (tmp_path / "a").write_text("old")

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        with pytest.raises(WriteError, match=r"File too large\. Make room; what was there before is as it was"):
            replace_text(tmp_path / "a", "new" * 1000)

    assert forked(work) == 0
    assert (tmp_path / "a").read_text() == "old"
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_disk_that_is_too_full_for_a_frame_says_so(tmp_path, suffix):
    full = tmp_path / f"full{suffix}"
    full.symlink_to("/dev/full")
    told = r"cannot be written: No space left on device\. Make room"
    with pytest.raises(WriteError, match=told), replacing(full) as new:
        write_frame(pl.DataFrame({"value": [1.0, 2.0]}), new)
