"""Each kind of file that is replaced, by the function that replaces it, killed in the middle: the old one stays."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from pathlib import Path

import polars as pl
import pytest

from tests.runs.small_runs import TIMEOUT, WhenAFileGrows, one_thread, processes, small_run  # noqa: F401
from velodrome.bench.plot import write_plot
from velodrome.bench.report import Measurement, Report
from velodrome.evaluation.result import Evaluation
from velodrome.learn import policy_files
from velodrome.runs.config import explain
from velodrome.runs.folder import RunState
from velodrome.runs.report.images import write_images
from velodrome.runs.report.report import write_report
from velodrome.runs.run import Run
from velodrome.runs.store import metrics_file
from velodrome.vector.compile import numba_cuda

FRAME = pl.DataFrame({"step": range(3000), "value": [0.1 * k for k in range(3000)]})


def evaluation(run: Path) -> Evaluation:
    return Evaluation.load(run, "test")


def benchmark() -> Report:
    stamp = {"cpu": "a processor", "cores": 2, "time": "2026-01-01T00:00:00", "velodrome": "0"}
    report = Report(kind="made up", machine=stamp, options={})
    report.begin("first", "the first").measurements.extend(
        Measurement(peer=peer, label=peer, num_envs=8, rounds=[1.0, 2.0]) for peer in ("velodrome", "other")
    )
    return report


def remember_parity(run: Path) -> None:
    os.environ["VELODROME_CACHE"] = str(run / "cache")
    numba_cuda.remember_parity(True, "a device")


# By name: what writes, and the files that it replaces, in a run's folder.
WRITERS = {
    "evaluation": (lambda run: evaluation(run).save(run), "evaluation/test-best-*[!g]"),
    "report": (lambda run: write_report(evaluation(run), run / "report.html", "title"), "report.html"),
    "charts": (lambda run: write_images(evaluation(run), run / "evaluation"), "evaluation/*.png"),
    "metrics as CSV": (lambda run: metrics_file._write(FRAME, run / "metrics.csv"), "metrics.csv"),
    "metrics as Parquet": (lambda run: metrics_file._write(FRAME, run / "metrics.parquet"), "metrics.parquet"),
    "policy": (lambda run: policy_files.export_torchscript(Run.open(run).policy, run / "policy.pt"), "policy.pt"),
    "status": (lambda run: Run.open(run).folder.note_state(RunState("failed", 1.0, "x" * 500)), "status.json"),
    "run": (lambda run: Run.open(run).folder._change(data="x" * 500), "run.json"),
    "benchmark": (lambda run: benchmark().write(run / "bench.json"), "bench.json"),
    "plot": (lambda run: write_plot(benchmark(), "title", run / "bench.png"), "bench.png"),
    "tables of the docs": (lambda run: explain.main([str(run / "page.md")]), "page.md"),
    "parity": (remember_parity, "cache/kernels/parity-*"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = small_run(tmp_path_factory.mktemp("runs"), evaluate=True, steps=128).path
    (path / "page.md").write_text(f"{explain.TABLES_BEGIN}\n{explain.TABLES_END}\n")
    return path


def without_time(content: bytes) -> bytes:
    return re.sub(rb"\d\d:\d\d", b"", content)


def write(name: str, run: str, size: int | None) -> None:
    if size is not None:
        WhenAFileGrows(size).arrange()
    WRITERS[name][0](Path(run))
    os._exit(0)


def written(name: str, run: Path, size: int | None) -> int:
    context: multiprocessing.context.BaseContext = processes()
    process = context.Process(target=write, args=(name, str(run), size))
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_kill_in_the_middle_of_a_write_leaves_each_file_as_it_was(name, run):
    assert written(name, run, None) == 0
    files = {path: path.read_bytes() for path in run.glob(WRITERS[name][1])}
    assert files
    largest = max(map(len, files.values()))
    for size in (0, 100, largest // 2, largest - 1):
        assert written(name, run, size) == -signal.SIGXFSZ
        for path, content in files.items():  # whole, whether it is old or new; a policy's file has its own name inside
            found = path.read_bytes()
            assert len(found) == len(content) if name == "policy" else without_time(found) == without_time(content)
    assert written(name, run, None) == 0
    assert [path.name for path in run.rglob(".velodrome-*")] == []
