"""`doctor`: what this machine has, whether each backend works on it, and what to do where something does not.

Every probe stands alone: whatever is missing or broken becomes a row of the report, never an exception.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from velodrome.runs.versions import cpu_model
from velodrome.vector.cores import available_cores

Status = Literal["ok", "note", "problem"]

PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
ENVIRONMENTS = 128  # of the kernel smoke test: two blocks, and enough for the parallel kernel
STEPS = 100
FEW = 4  # environments of the smoke test with workers
PROCESS_SECONDS = 120.0  # a cold compile on a busy core stays well below
LOW_MEMORY = 2e9  # bytes; torch and a compile need about half of that

# Package of each extra -> the extra that brings it, and what it is for.
OPTIONAL = {
    "numba-cuda": ("cuda", "the cuda backend"),
    "stable-baselines3": ("sb3", "vd.to_sb3, and comparison with Stable-Baselines3"),
    "torchrl": ("torchrl", "vd.to_torchrl"),
    "matplotlib": ("plot", "plots as files"),
    "plotext": ("plot", "plots in the terminal"),
    "torchtrade": ("torchtrade", "comparison with TorchTrade"),
    "pytest": ("dev", "tests"),
}

# What the second process runs: the same kernels, and how many of them came from the cache.
SECOND_PROCESS = """
import velodrome as vd
from velodrome.vector.compile.cpu_loops import compiled_functions
envs = vd.make_vec("template", num_envs=1, backend="native", seed=0)
envs.reset()
envs.step([0])
stats = [function.stats for function in compiled_functions()]
print(sum(sum(s.cache_hits.values()) for s in stats), sum(sum(s.cache_misses.values()) for s in stats))
"""


@dataclass(frozen=True)
class Row:
    """One thing that was looked at."""

    section: str
    name: str
    status: Status
    value: str
    advice: str = ""  # what to do; empty where there is nothing to do


@dataclass(frozen=True)
class DoctorReport:
    """Everything that was looked at, in order."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem; notes are none."""
        return all(row.status != "problem" for row in self.rows)

    def of(self, section: str) -> dict[str, Row]:
        """Return the rows of one section by name."""
        return {row.name: row for row in self.rows if row.section == section}

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps({"ok": self.ok, "rows": [asdict(row) for row in self.rows]}, indent=2, ensure_ascii=False)


def doctor() -> DoctorReport:
    """Look at everything; the kernels of the smallest environment are compiled if they were not before."""
    sections: dict[str, Callable[[str], Iterator[Row]]] = {
        "machine": _machine,
        "packages": _packages,
        "CUDA": _cuda,
        "backends": _backends,
        "other environments": _workers,
        "kernel cache": _cache,
        "threads": _threads,
        "optional packages": _optional,
    }
    rows: list[Row] = []
    for section, probe in sections.items():
        try:
            rows.extend(probe(section))
        except Exception as error:  # a probe met what nobody thought of: say so and go on
            rows.append(Row(section, "check", "problem", _told(error), "this check itself failed; report it"))
    return DoctorReport(tuple(rows))


def rich_table(report: DoctorReport) -> Any:
    """Return a rich renderable: a row for each thing, then the verdict."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    style = {"ok": "green", "note": "yellow", "problem": "bold red"}
    table = Table(title="velodrome doctor")
    for heading in ("", "what", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    section = ""
    for row in report.rows:
        if row.section != section and section:
            table.add_section()
        label = row.section if row.section != section else ""
        section = row.section
        table.add_row(
            label, escape(row.name), Text(row.status, style=style[row.status]), escape(row.value), escape(row.advice)
        )
    problems = sum(row.status == "problem" for row in report.rows)
    found = f"{problems} problem{'s' if problems != 1 else ''}" if problems else "No problem"
    return Group(table, Text(f"{found} found.", style="bold"))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


# Machine and packages


def _machine(section: str) -> Iterator[Row]:
    supported = sys.version_info[:2] in PYTHON_VERSIONS
    legal = ", ".join(f"{major}.{minor}" for major, minor in PYTHON_VERSIONS)
    yield Row(
        section, "Python", "ok" if supported else "problem", f"{platform.python_version()} ({sys.executable})",
        "" if supported else f"use one of {legal}",
    )  # fmt: skip
    yield Row(section, "system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Row(section, "CPU", "ok", f"{cpu_model()}, {available_cores()} cores for this process")
    import psutil

    memory = psutil.virtual_memory()
    low = memory.available < LOW_MEMORY
    yield Row(
        section, "memory", "note" if low else "ok",
        f"{_gigabytes(memory.total)}, {_gigabytes(memory.available)} available",
        "close other programs, or make fewer environments" if low else "",
    )  # fmt: skip


def _packages(section: str) -> Iterator[Row]:
    from velodrome import __version__

    yield Row(section, "velodrome", "ok", f"{__version__} ({Path(__file__).parent})")
    for name in ("numpy", "numba", "llvmlite", "torch", "gymnasium", "polars"):
        version = _version(name)
        try:
            module = importlib.import_module(name)
        except Exception as error:
            found = f"{version} does not import ({_told(error)})" if version else "not installed"
            yield Row(section, name, "problem", found, f"pip install --force-reinstall {name}")
            continue
        # A package that lies on the path without having been installed has no metadata.
        version = version or str(getattr(module, "__version__", "version unknown"))
        yield Row(section, name, "ok", f"{version}, {_torch_build(module)}" if name == "torch" else version)


def _torch_build(torch: Any) -> str:
    if torch.version.cuda:
        return f"built for CUDA {torch.version.cuda}"
    return f"built for ROCm {torch.version.hip}" if getattr(torch.version, "hip", None) else "CPU build"


# CUDA


def driver_cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA that the installed driver serves, or None without a driver."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
        number = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def _driver_name() -> str:
    """Return the driver's own version as nvidia-smi tells it, or ''."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout.strip() else ""


def _simulated() -> bool:
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def _cuda(section: str) -> Iterator[Row]:
    simulated = _simulated()
    served = driver_cuda_version()
    if served is None:
        yield Row(section, "driver", "note", "none found", "for a GPU: install NVIDIA's driver")
    else:
        name = _driver_name()
        yield Row(section, "driver", "ok", f"{name + ', ' if name else ''}serves CUDA up to {served[0]}.{served[1]}")
    built = yield from _torch_devices(section, served is not None)
    toolkit = yield from _numba_cuda(section, served is not None)
    for who, needed in (("torch", built), ("numba-cuda", toolkit)):
        if served is None or needed is None:
            continue
        # Within a major version a driver serves newer minor versions of the toolkit too.
        fits = served[0] >= int(needed.split(".")[0])
        advice = "" if fits else f"update the driver, or install {who} built for CUDA {served[0]}"
        agree = "agree" if fits else "disagree"
        value = f"driver (CUDA {served[0]}.{served[1]}) and {who} (CUDA {needed}) {agree}"
        yield Row(section, f"driver and {who}", "ok" if fits else "problem", value, advice)
    yield Row(
        section, "simulator", "note" if simulated else "ok", "NUMBA_ENABLE_CUDASIM is set" if simulated else "off",
        "kernels run as Python, very slowly; unset NUMBA_ENABLE_CUDASIM to use a GPU" if simulated else "",
    )  # fmt: skip


def _torch_devices(section: str, driver: bool) -> Generator[Row, None, str | None]:
    """Tell what torch sees; return the CUDA version that it was built for."""
    try:
        import torch
    except Exception:  # told under packages
        return None
    built = torch.version.cuda
    if not torch.cuda.is_available():
        advice = "for a GPU: install a CUDA build of torch" if built is None else "for a GPU: check nvidia-smi"
        status: Status = "problem" if driver and built is not None else "note"
        yield Row(section, "devices", status, "torch sees none", advice)
        return built
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        value = f"{found.name}, {_gigabytes(found.total_memory)}, compute capability {found.major}.{found.minor}"
        yield Row(section, f"device {index}", "ok", value)
    return built


def _numba_cuda(section: str, driver: bool) -> Generator[Row, None, str | None]:
    """Tell of numba-cuda and the libraries that it compiles with; return the CUDA version of those."""
    version = _version("numba-cuda")
    missing: Status = "problem" if driver else "note"
    if version is None and importlib.util.find_spec("numba_cuda") is not None:
        version = "found, version unknown"
    if version is None:
        yield Row(section, "numba-cuda", "note", "not installed", "for a GPU: pip install 'velodrome[cuda]'")
        return None
    yield Row(section, "numba-cuda", "ok", version)
    for library, title in (("nvvm", "NVVM"), ("nvJitLink", "nvJitLink")):
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            yield Row(section, title, "ok", str(load_nvidia_dynamic_lib(library).abs_path))
        except Exception as error:
            found = str(error).strip().splitlines()
            value = f"not found ({type(error).__name__}{': ' + found[0] if found else ''})"
            yield Row(section, title, missing, value, "pip install 'velodrome[cuda]'")
    for distribution in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu13", "nvidia-cuda-nvcc-cu12", "cuda-bindings"):
        toolkit = _version(distribution)
        if toolkit is not None:
            return ".".join(toolkit.split(".")[:2])
    return None


# Backends


def smoke_test(backend: str, **options: Any) -> Any:
    """Step the template environment and return its observations and rewards, [steps, n, values], on the host."""
    import numpy as np

    import velodrome as vd

    envs = vd.make_vec("template", num_envs=ENVIRONMENTS, backend=backend, seed=7, length=40, **options)
    observations, _ = envs.reset()
    actions = np.random.default_rng(7).integers(0, 2, (STEPS, ENVIRONMENTS))
    trace = []
    for chosen in actions:
        if backend == "cuda":
            import torch

            chosen = torch.as_tensor(chosen, device=observations.device)
        observations, rewards, _, _, _ = envs.step(chosen)
        trace.append(np.column_stack([_on_host(observations), _on_host(rewards)]))
    envs.close()
    return np.stack(trace)


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy().copy() if hasattr(values, "detach") else values.copy()


def _backends(section: str) -> Iterator[Row]:
    import numpy as np

    try:
        reference = smoke_test("python")
    except Exception as error:
        yield Row(section, "python", "problem", _told(error), "reinstall velodrome")
        return
    yield Row(section, "python", "ok", f"{STEPS} steps of {ENVIRONMENTS} environments: the reference")
    cores = _threads_available()
    for name, options in (("native", {"threads": 1}), ("native, all cores", {"threads": cores}), ("cuda", {})):
        if name == "native, all cores" and cores < 2:
            continue
        try:
            same = np.array_equal(smoke_test(name.split(",")[0], **options), reference)
        except Exception as error:
            yield _backend_failed(section, name, error)
            continue
        value = "the same numbers as python" if same else "other numbers than python"
        if name == "cuda" and _simulated():
            value += ", in the simulator"
        advice = "" if same else "do not use this backend; report it with `velodrome doctor --json`"
        yield Row(section, name, "ok" if same else "problem", value, advice)


def _backend_failed(section: str, name: str, error: Exception) -> Row:
    from velodrome.errors import BackendError

    if name != "cuda":
        return Row(
            section, name, "problem", _told(error), "reinstall numba; VELODROME_CACHE=/tmp/x rules out the cache"
        )
    absent = isinstance(error, BackendError | ImportError)
    if absent and driver_cuda_version() is None:
        advice = "for a GPU: NVIDIA's driver, a CUDA build of torch, and pip install 'velodrome[cuda]'"
        return Row(section, name, "note", f"no device: {error}", advice)
    if isinstance(error, ImportError) or _version("numba-cuda") is None:
        return Row(section, name, "note", str(error), "pip install 'velodrome[cuda]'")
    return Row(section, name, "problem", _told(error), "see the rows under CUDA")


def _workers(section: str) -> Iterator[Row]:
    """Tell whether environments of other libraries run in this process and in workers, with the same numbers."""
    import numpy as np

    reference = _gymnasium_smoke_test("serial")
    yield Row(section, "serial", "ok", f"{STEPS} steps of {FEW} CartPole-v1: the reference")
    for name in ("process", "async"):
        try:
            same = np.array_equal(_gymnasium_smoke_test(name, workers=2, timeout=PROCESS_SECONDS), reference)
        except Exception as error:
            yield Row(
                section, name, "problem", _told(error), "use backend='serial'; are processes and memfd allowed here?"
            )
            continue
        value = "the same numbers as serial" if same else "other numbers than serial"
        yield Row(section, name, "ok" if same else "problem", value, "" if same else "use backend='serial'; report it")


def _gymnasium_smoke_test(backend: str, **options: Any) -> Any:
    import numpy as np

    import velodrome as vd

    envs = vd.make_vec("CartPole-v1", FEW, backend=backend, seed=7, copy=True, **options)
    envs.reset()
    actions = np.random.default_rng(7).integers(0, 2, (STEPS, FEW))
    trace = np.stack([envs.step(chosen)[0] for chosen in actions])
    envs.close()
    return trace


# Cache, threads, optional packages


def _cache(section: str) -> Iterator[Row]:
    from velodrome.vector.compile.kernel_cache import CACHE_VARIABLE, cache_folder

    folder = cache_folder()
    named = os.environ.get(CACHE_VARIABLE)
    wanted = named is None or Path(named).resolve() in folder.resolve().parents
    yield Row(
        section, "folder", "ok" if wanted else "note", f"{folder} (writable)",
        "" if wanted else f"{CACHE_VARIABLE}={named} cannot be written; name another folder",
    )  # fmt: skip
    files = [path for path in folder.rglob("*") if path.is_file()]
    kernels = sum(path.suffix == ".nbi" for path in files)
    size = sum(path.stat().st_size for path in files)
    yield Row(section, "contents", "ok", f"{kernels} kernels, {size / 1e6:.1f} MB")
    yield _second_process(section)


def _second_process(section: str) -> Row:
    """Tell whether another process finds the kernels that this one compiled."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", SECOND_PROCESS], capture_output=True, text=True, timeout=PROCESS_SECONDS
        )  # fmt: skip
        hits, misses = map(int, answer.stdout.split()[-2:])
    except subprocess.TimeoutExpired:
        return Row(section, "second process", "problem", f"no answer in {PROCESS_SECONDS:g} s", "is the machine busy?")
    except (OSError, ValueError):
        last = answer.stderr.strip().splitlines()[-1:] if "answer" in locals() else []
        return Row(section, "second process", "problem", f"failed: {' '.join(last)}", "run `velodrome doctor` again")
    if misses or not hits:
        return Row(
            section, "second process", "note", f"compiled again ({misses} of {hits + misses} kernels)",
            "every start compiles for half a minute; put VELODROME_CACHE on a local disk that can be written",
        )  # fmt: skip
    return Row(section, "second process", "ok", f"found {hits} of {hits} kernels")


def _threads_available() -> int:
    try:
        import numba

        return int(numba.config.NUMBA_NUM_THREADS)
    except Exception:  # told under packages
        return 1


def _threads(section: str) -> Iterator[Row]:
    cores = available_cores()
    yield Row(section, "cores", "ok", f"{cores} for this process, {os.cpu_count()} in the machine")
    threads = _threads_available()
    value = f"{threads}{'' if 'NUMBA_NUM_THREADS' in os.environ else ' (not set: one a core)'}"
    advice = "" if threads <= cores else f"more threads than cores; set NUMBA_NUM_THREADS={cores}"
    if threads < cores:
        advice = f"cores are left idle; set NUMBA_NUM_THREADS={cores} or unset it"
    yield Row(section, "NUMBA_NUM_THREADS", "ok" if threads == cores else "note", value, advice)
    try:
        import numba

        yield Row(section, "threading layer", "ok", str(numba.threading_layer()))
    except Exception as error:
        yield Row(section, "threading layer", "note", f"none in use ({_told(error)})", "one core needs none")
    yield Row(section, "OMP_NUM_THREADS", "ok", os.environ.get("OMP_NUM_THREADS", "not set"))
    try:
        import torch

        yield Row(section, "torch", "ok", f"{torch.get_num_threads()} threads")
    except Exception as error:
        yield Row(section, "torch", "note", _told(error), "see packages")


def _optional(section: str) -> Iterator[Row]:
    for name, (extra, purpose) in OPTIONAL.items():
        version = _version(name)
        advice = "" if version else f"for {purpose}: pip install 'velodrome[{extra}]'"
        yield Row(section, name, "ok" if version else "note", version or "not installed", advice)
