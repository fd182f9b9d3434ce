"""Checkpoints: one folder each, whole or absent. A crash, a kill or a full disk leaves the older ones as they were.

checkpoints/000000123456/    named for the steps done so far
    tensors.safetensors
    state.json               format, steps, everything that is not a tensor, and a hash of both files
    pinned                   only if it stays when older ones are removed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import CheckpointError, ConfigError, DamagedCheckpointError, VelodromeError
from velodrome.outside.files import UNFIT, open_regular, read_json
from velodrome.writing import NO_SPACE, sync_path, write_text

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

FORMAT = 1
TENSORS, STATE, PINNED = "tensors.safetensors", "state.json", "pinned"
WRITING = ".writing-"  # start of the name of a folder that is not finished
REPLACED = ".replaced"  # end of the name of one that makes room for another of the same step

log = logging.getLogger("velodrome.runs")


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to continue from where it was taken."""

    steps: int  # environment steps done
    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any]
    path: Path


def save_checkpoint(
    folder: Path, steps: int, tensors: Tensors, plain: dict[str, Any], keep: int = 3, pinned: bool = False
) -> Path:
    """Write a checkpoint below a run's folder and return its path.

    Once it is safe on the disk, all but the newest `keep` are removed; pinned ones stay. It replaces a checkpoint of
    the same step.
    """
    if keep < 1:
        raise ConfigError(f"keep {keep} checkpoints: the last one is needed to resume; keep 1 or more.")
    if steps < 0:
        raise ConfigError(f"a checkpoint after {steps} steps: the number of steps done is 0 or more.")
    _refuse_what_json_changes(plain, "plain")
    home = checkpoint_home(folder)
    target = home / f"{steps:012d}"
    writing = home / f"{WRITING}{target.name}-{secrets.token_hex(4)}"
    try:
        _prepare(home)
        writing.mkdir()
        _write_tensors(tensors, writing / TENSORS)
        state = {"format": FORMAT, "steps": steps, "tensors_sha256": _hash_of_file(writing / TENSORS), "plain": plain}
        write_text(writing / STATE, json.dumps({**state, "state_sha256": _hash_of_state(state)}, indent=1))
        if pinned or (target / PINNED).exists():
            write_text(writing / PINNED, "")
        sync_path(writing)
        _put_in_place(writing, target)
    except BaseException as error:
        shutil.rmtree(writing, ignore_errors=True)
        told = _why_not_written(error, target)
        if told is None:
            raise
        raise CheckpointError(told) from error
    _remove_old(home, target, keep)
    return target


def checkpoint_home(folder: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return Path(folder) / "checkpoints"


def checkpoints(folder: Path) -> list[Path]:
    """Return a run's whole checkpoints, oldest step first."""
    home = checkpoint_home(folder)
    found: dict[int, Path] = {}
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        name = path.name.removesuffix(REPLACED)
        if re.fullmatch(r"\d{12,18}", name) and path.is_dir():
            found.setdefault(int(name), path)  # the plain name sorts before the one that it replaced
    return [found[steps] for steps in sorted(found)]


def checkpoint_steps(path: Path) -> int:
    """Return the steps in a checkpoint's name."""
    return int(path.name.removesuffix(REPLACED))


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the most steps, readable or not; None if there is none."""
    found = checkpoints(folder)
    return found[-1] if found else None


def latest_valid(folder: Path) -> Checkpoint | None:
    """Load the newest checkpoint that is as it was written, or None if the run has none at all.

    Each damaged one on the way is a warning in the log; if all are damaged, that is an error.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        try:
            return load_checkpoint(path)
        except DamagedCheckpointError as error:
            log.warning("%s Looking for the one before it.", error)
    if found:
        raise CheckpointError(
            f"{checkpoint_home(folder)}: all {len(found)} checkpoints are damaged, so there is nothing to continue "
            "from. Restore one from a copy, or start a new run."
        )
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, its tensors on the CPU; one that is not as it was written is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    state = _read_state(path)
    try:
        if _hash_of_file(path / TENSORS) != state["tensors_sha256"]:
            raise DamagedCheckpointError(f"{path / TENSORS}: its content is not what was written (hash differs).")
        tensors = load_file(path / TENSORS)
    except DamagedCheckpointError:
        raise
    except (OSError, SafetensorError, *UNFIT) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise  # the file may be as it was written
        raise DamagedCheckpointError(f"{path / TENSORS}: cannot be read ({_told(error)}).") from error
    return Checkpoint(state["steps"], tensors, state["plain"], path)


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn what goes wrong with content that no run has written, though its hash is right, into a sentence."""
    try:
        yield
    except VelodromeError:
        raise
    except UNFIT as error:
        raise DamagedCheckpointError(
            f"{path}: its content does not fit the run ({_told(error)}). Use a checkpoint that this run wrote."
        ) from error


def pinned_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that stay when older ones are removed, oldest step first; a run pins its best."""
    return [path for path in checkpoints(folder) if is_pinned(path)]


def is_pinned(path: Path) -> bool:
    """Return whether a checkpoint stays when older ones are removed."""
    return (path / PINNED).exists()


def pin_checkpoint(path: Path, pinned: bool = True) -> None:
    """Make a checkpoint stay when older ones are removed, or let it go again."""
    if not (path / STATE).exists():
        raise CheckpointError(f"{path}: there is no checkpoint to pin.")
    if pinned:
        write_text(path / PINNED, "")
    else:
        (path / PINNED).unlink(missing_ok=True)
    sync_path(path)


def pin_only_the_last(folder: Path) -> None:
    """Unpin all but the last of the pinned checkpoints."""
    for path in pinned_checkpoints(folder)[:-1]:
        pin_checkpoint(path, False)


def tidy(folder: Path, steps: int, keep: int) -> None:
    """Remove what a kill left: half, old and later checkpoints than `steps`, the pin of a best that was surpassed."""
    for path in checkpoints(folder):
        if checkpoint_steps(path) > steps:
            _remove(path)
    for last in checkpoints(folder)[-1:]:
        _remove_old(last.parent, last, keep)
    for path in checkpoint_home(folder).glob(f"{WRITING}*"):
        shutil.rmtree(path)
    pin_only_the_last(folder)


# Writing


def _write_tensors(tensors: Tensors, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(_separate(tensors), path)
    sync_path(path)


def _separate(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors on the CPU, dense, each with memory of its own: views and shared ones are copied."""
    import torch

    separate: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise CheckpointError(f"tensor {name!r} is a {kind}: a checkpoint holds dense torch tensors only.")
        if tensor.dtype == torch.complex128 or name == "__metadata__":
            what = "its dtype complex128" if tensor.dtype == torch.complex128 else "this name"
            raise CheckpointError(f"tensor {name!r}: the safetensors format has no place for {what}; save another.")
        whole = tensor.detach().cpu().contiguous()
        storage = whole.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != whole.nbytes:
            whole = whole.clone()
            storage = whole.untyped_storage()
        if storage.nbytes():
            taken.add(storage.data_ptr())
        separate[name] = whole
    return separate


def _put_in_place(writing: Path, target: Path) -> None:
    """Give a finished folder its name; one of the same step makes room, found by its other name meanwhile."""
    replaced = target.with_name(target.name + REPLACED)
    if target.exists():
        target.rename(replaced)
    writing.rename(target)
    sync_path(target.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


def _prepare(home: Path) -> None:
    """Make the folder and remove what killed writers left; a run has one writer at a time (`RunFolder.lock`)."""
    if not home.is_dir():
        home.mkdir()  # not those above: a run whose folder is gone must not come back
        sync_path(home.parent)
    for path in home.glob(f"{WRITING}*"):
        shutil.rmtree(path)
    for path in home.glob(f"*{REPLACED}"):
        original = path.with_name(path.name.removesuffix(REPLACED))
        if original.exists():
            shutil.rmtree(path)
        else:
            path.rename(original)


def _remove_old(home: Path, newest: Path, keep: int) -> None:
    older = [path for path in checkpoints(home.parent) if path != newest]
    for path in older[: max(0, len(older) - (keep - 1))]:
        if not is_pinned(path):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint; it loses its name first, so that half of one is never found."""
    doomed = path.with_name(f"{WRITING}{path.name}-{secrets.token_hex(4)}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _refuse_what_json_changes(value: Any, place: str) -> None:
    """Refuse what would come back as something else: tuples, keys that are not text, arrays, objects."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{place} has the key {key!r}: the keys of a checkpoint's state are text.")
            _refuse_what_json_changes(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_what_json_changes(inner, f"{place}[{index}]")
    elif type(value) not in (int, float, str, bool, type(None)):
        raise CheckpointError(
            f"{place} is a {type(value).__name__}, which would not come back as one: a checkpoint's state is made of "
            "int, float, str, bool, None, list and dict; arrays belong to its tensors."
        )


# Reading


def _read_state(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such checkpoint{_neighbours(path)}.")
    file = path / STATE
    try:
        state = read_json(file)
        version, written = state["format"], state.pop("state_sha256")
    except (OSError, *UNFIT) as error:
        raise DamagedCheckpointError(f"{file}: cannot be read ({_told(error)}).") from error
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"{file}: format {version}, and this Velodrome reads up to {FORMAT}; it was written by a newer one. "
            "Upgrade: pip install --upgrade velodrome."
        )
    if _hash_of_state(state) != written:
        raise DamagedCheckpointError(f"{file}: its content is not what was written (hash differs).")
    kinds = {"steps": int, "tensors_sha256": str, "plain": dict}
    wrong = [name for name, kind in kinds.items() if type(state.get(name)) is not kind]
    if wrong or state["steps"] < 0:
        raise DamagedCheckpointError(f"{file}: {wrong[0] if wrong else 'steps'} is not what a checkpoint has there.")
    return state


def _neighbours(path: Path) -> str:
    others = checkpoints(path.parent.parent) if path.parent.name == "checkpoints" else []
    return f"; there are {', '.join(other.name for other in others)}" if others else ""


def _hash_of_state(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _hash_of_file(path: Path) -> str:
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Telling


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _why_not_written(error: BaseException, target: Path) -> str | None:
    """Return what to say of a checkpoint that the system would not take; None for an error of another kind."""
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        reason, full = error.strerror or str(error), error.errno in NO_SPACE
    elif isinstance(error, SafetensorError):  # gives the number as text only
        reason, full = str(error), any(f"(os error {number})" in str(error) for number in NO_SPACE)
    else:
        return None
    home = target.parent
    older = checkpoints(home.parent)
    kept = "There is no older one."
    if older:
        kept = f"The older ones are as they were (the last is of step {checkpoint_steps(older[-1]):,})."
    advice = "Make sure that the folder can be written."
    if full:
        free = shutil.disk_usage(home if home.exists() else home.parent).free / 1e6
        advice = f"{free:,.1f} MB are free there: make room, or keep fewer checkpoints."
    return f"{target}: could not be written: {reason}. {kept} {advice}"
