"""Where metrics go: a file of JSON lines, which is the record of the run, and copies for TensorBoard and W&B.

The store is filled from the file: see `mirror`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import polars as pl

from velodrome.errors import ConfigError, MissingDependencyError, RunError
from velodrome.outside.extras import install
from velodrome.outside.files import MOST_LINE, UNFIT, open_regular, parse_json
from velodrome.runs.folder import RunFolder
from velodrome.runs.metrics import Entry, MetricsError, Sink
from velodrome.runs.store.store import METRICS
from velodrome.writing import replace_text, sync_path

if TYPE_CHECKING:
    from velodrome.runs.config.run_config import RunConfig

BLOCK = 2**16  # bytes that are read at once from the end of a file
# Numbers that JSON has no way to write are texts, as in the JSON form of protocol buffers; `float` reads them.
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def sinks_of_run(folder: RunFolder, config: RunConfig, resume_step: int | None) -> list[Sink]:
    """Return the sinks that a run's configuration asks for; a resumed run continues from `resume_step` in each."""
    chosen = config.logging
    sinks: list[Sink] = [JsonLinesSink(folder.metrics_path, resume_step)]
    if chosen.tensorboard:
        sinks.append(TensorBoardSink(folder.path / "tensorboard", resume_step))
    if chosen.wandb:
        named = {"project": chosen.wandb_project, "name": folder.path.name, "group": chosen.wandb_group}
        how: dict[str, Any] = {"mode": chosen.wandb_mode, "tags": chosen.wandb_tags, **named}
        sinks.append(WandbSink(folder.path, folder.id, config=config.content(), **how))
    return sinks


class JsonLinesSink:
    """A line `{"step": 8192, "time": 1700000000.0, "values": {"loss/policy": 0.1}}` for each entry.

    Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". A line that a kill cut short is
    removed; with `resume_step`, so are those of later steps.
    """

    is_copy = False

    def __init__(self, path: Path, resume_step: int | None = None):
        self.name = str(path)
        self._path = Path(path)
        if self._path.exists():
            _cut_last_line(self._path)
            if resume_step is not None:
                replace_text(path, "".join(_line(entry) for entry in read_lines(path) if entry.step <= resume_step))
        self._file = self._path.open("ab", buffering=0)
        sync_path(self._path.parent)

    def write(self, entries: Sequence[Entry]) -> None:
        content = memoryview("".join(map(_line, entries)).encode())
        end = os.fstat(self._file.fileno()).st_size
        try:
            while content:
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), end)  # these entries come again
            raise

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path, begin: int = 0, naming: str = "") -> Iterator[Entry]:
    """Read what a JsonLinesSink wrote, from a byte on as far as its last whole line.

    naming: a metric; lines in which it is not named are passed over.
    """
    named = json.dumps(naming).encode() if naming else b""
    with open(open_regular(Path(path)), "rb") as file:
        file.seek(begin)
        while line := file.readline(MOST_LINE):
            if not line.endswith(b"\n") and len(line) < MOST_LINE:
                return
            if named not in line:
                continue
            try:
                found = parse_json(line.decode())
                values = {name: float(value) for name, value in found["values"].items()}
                entry = Entry(int(found["step"]), float(found["time"]), values)
                if not 0 <= entry.step < 1 << 63:
                    raise ValueError(f"step = {entry.step}")
            except UNFIT as error:
                raise RunError(
                    f"{path}: the line that ends at byte {file.tell()} is damaged ({type(error).__name__}: {error}). "
                    "Remove it, or restore the file from a copy."
                ) from error
            yield entry


def end_of_lines(path: Path) -> int:
    """Return how many bytes the whole lines of a file have."""
    with Path(path).open("rb") as file:
        return _begin_of_line(file, file.seek(0, os.SEEK_END))


def last_entry(path: Path) -> Entry | None:
    """Return the last whole line of a file of metrics; None if it has none."""
    if not (end := end_of_lines(path) if Path(path).is_file() else 0):
        return None
    with Path(path).open("rb") as file:
        return next(read_lines(path, _begin_of_line(file, end - 1)), None)


def _begin_of_line(file: BinaryIO, end: int) -> int:
    """Return where the line begins that goes on at a byte of a file."""
    while end > 0:
        begin = max(0, end - BLOCK)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def metrics_frame(path: Path, only: str = "") -> pl.DataFrame:
    """Return the numbers in a file of metrics as `SqlStore.metrics` returns a run's; none if there is no file.

    only: the one metric that is wanted.
    """
    columns: dict[str, list[Any]] = {name: [] for name in METRICS}
    for step, moment, found in read_lines(path, naming=only) if Path(path).is_file() else ():
        values = {name: value for name, value in found.items() if name == only} if only else found
        columns["step"] += [step] * len(values)
        columns["name"] += values.keys()
        columns["value"] += values.values()
        columns["time"] += [moment] * len(values)
    frame = pl.DataFrame(columns, schema=METRICS)
    return frame.unique(["step", "name"], keep="last", maintain_order=True).sort("step", "name")


def _line(entry: Entry) -> str:
    values = {name: value if math.isfinite(value) else NOT_FINITE[str(value)] for name, value in entry.values.items()}
    return json.dumps({"step": entry.step, "time": entry.time, "values": values}) + "\n"


def _cut_last_line(path: Path) -> None:
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


class TensorBoardSink:
    """Event files for `tensorboard --logdir`; with `resume_step`, TensorBoard hides what came after that step."""

    is_copy = True

    def __init__(self, folder: Path, resume_step: int | None = None):
        try:
            import tensorboard  # noqa: F401
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError(
                f"logging to TensorBoard needs a package that is not installed ({error.name}): {install('tensorboard')}"
            ) from error
        self.name = "TensorBoard"
        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            for name, value in entry.values.items():
                self._writer.add_scalar(name, value, entry.step, entry.time)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A run of Weights & Biases; `offline` writes below the folder, and `wandb sync` sends that later.

    Weights & Biases takes steps in rising order only: what a resumed run does again is not drawn twice there.
    `named` is what it shows: `project` ("velodrome" if not given), `name`, and `group`.
    """

    is_copy = True

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        config: dict[str, Any] | None = None,
        mode: str = "offline",
        tags: Sequence[str] = (),
        **named: str | None,
    ):
        if mode not in ("offline", "online"):
            raise ConfigError(f"wandb mode {mode!r}: it is offline or online.")
        try:
            import wandb
        except ImportError as error:
            raise MissingDependencyError(f"logging to Weights & Biases needs wandb: {install('wandb')}") from error
        self.name = "Weights & Biases"
        # wandb would otherwise write to a temporary folder, which nobody would find.
        Path(folder).mkdir(parents=True, exist_ok=True)
        # The terminal is ours, and so is watching the machine.
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, save_code=False, disable_git=True)
        try:
            about: dict[str, Any] = {"project": "velodrome", "id": run, "dir": str(folder), "config": config, **named}
            about |= {
                "mode": mode,
                "tags": list(tags) or None,
                "resume": "allow" if mode == "online" else None,
                "reinit": "create_new",
            }
            self._run = wandb.init(settings=quiet, **about)
        except wandb.Error as error:
            raise MetricsError(
                f"Weights & Biases did not start: {str(error).rstrip('.')}. Without an account or a network use mode "
                "offline, and send it later: wandb sync."
            ) from error

    def write(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._run.log(entry.values, step=entry.step)

    def close(self) -> None:
        self._run.finish()
