"""`doctor`: what this machine has, whether each backend works on it, and what to do where something does not.

Every probe stands alone: whatever is missing or broken becomes a row of the report, never an exception.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

from velodrome.outside.extras import install
from velodrome.runs.versions import cpu_model, installed_version
from velodrome.vector.cores import available_cores, free_memory

Status = Literal["ok", "note", "problem"]

PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
ENVIRONMENTS = 128  # of the kernel smoke test: two blocks, and enough for the parallel kernel
STEPS = 100
FEW = 4  # environments of the smoke test with workers
PROCESS_SECONDS = 120.0  # a cold compile on a busy core stays well below
REPORT_IT = "do not use this backend; report it with `velodrome doctor --json`"
ROCM = (
    "device=cuda learns on an AMD GPU by autograd, with environments on the CPU (native); what is NVIDIA's does not "
    "run: the cuda backend, its compiled engine and CUDA graphs. device=auto is the CPU"
)
WIDE = 120  # columns of a terminal from which on the report is a table
NAMES = 18  # columns of the names of what was examined, in a narrow terminal
STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
LOW_MEMORY = 2e9  # bytes; torch and a compile need about half of that

# Package of each extra -> the extra that brings it, and what it is for.
OPTIONAL = {
    "numba-cuda": ("cuda", "the cuda backend"),
    "stable-baselines3": ("sb3", "vd.to_sb3, and comparison with Stable-Baselines3"),
    "torchrl": ("torchrl", "vd.to_torchrl"),
    "optuna": ("tune", "velodrome tune"),
    "starlette": ("dashboard", "velodrome serve in a browser"),
    "ray": ("ray", "trainings on a cluster"),
    "pyinstrument": ("profile", "flame graphs of velodrome profile"),
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
    """One thing that was examined."""

    section: str
    name: str
    status: Status
    value: str
    advice: str = ""  # what to do; empty where there is nothing to do


def _ok(name: str, value: str) -> Row:
    return Row("", name, "ok", value)


def _note(name: str, value: str, advice: str) -> Row:
    return Row("", name, "note", value, advice)


def _problem(name: str, value: str, advice: str) -> Row:
    return Row("", name, "problem", value, advice)


@dataclass(frozen=True)
class DoctorReport:
    """Everything that was examined, in order."""

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
    """Examine everything; the kernels of the smallest environment are compiled if they were not before."""
    sections: dict[str, Callable[[], Iterator[Row]]] = {
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
            rows.extend(replace(row, section=section) for row in probe())
        except Exception as error:  # a probe met something unforeseen: report it and carry on
            rows.append(Row(section, "check", "problem", _told(error), "this check itself failed; report it"))
    return DoctorReport(tuple(rows))


def rich_table(report: DoctorReport) -> Any:
    """Return a rich renderable: a row for each thing, then the verdict."""
    from rich.console import Group
    from rich.text import Text

    from velodrome.outside.screen import ByWidth

    problems = sum(row.status == "problem" for row in report.rows)
    found = f"{problems} problem{'s' if problems != 1 else ''}" if problems else "No problem"
    return Group(ByWidth(_table(report), _list(report), WIDE), Text(f"{found} found.", style="bold"))


def _list(report: DoctorReport) -> Any:
    """Return the rows for a narrow terminal: what was found, and below it what to do."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = []
    for section in dict.fromkeys(row.section for row in report.rows):
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(no_wrap=True, min_width=len("problem"))
        rows.add_column(min_width=NAMES, max_width=NAMES)
        rows.add_column(overflow="fold")
        for row in report.of(section).values():
            told = f"{row.value}\nto do: {row.advice}" if row.advice else row.value
            rows.add_row(Text(row.status, style=STYLES[row.status]), Text(row.name), Text(told))
        parts += [Text(section, style="bold"), rows, ""]
    return Group(*parts)


def _table(report: DoctorReport) -> Any:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(title="velodrome doctor")
    for heading in ("", "what", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for section in dict.fromkeys(row.section for row in report.rows):
        table.add_section()
        for label, row in zip(chain([section], repeat("")), report.of(section).values(), strict=False):
            status = Text(row.status, style=STYLES[row.status])
            table.add_row(label, escape(row.name), status, escape(row.value), escape(row.advice))
    return table


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


# Machine and packages


def _machine() -> Iterator[Row]:
    supported = sys.version_info[:2] in PYTHON_VERSIONS
    legal = ", ".join(f"{major}.{minor}" for major, minor in PYTHON_VERSIONS)
    python = f"{platform.python_version()} ({sys.executable})"
    yield _ok("Python", python) if supported else _problem("Python", python, f"use one of {legal}")
    yield _ok("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield _ok("CPU", f"{cpu_model()}, {available_cores()} cores for this process")
    import psutil

    free = free_memory()
    found = f"{_gigabytes(psutil.virtual_memory().total)}, {_gigabytes(free)} available"
    low = free < LOW_MEMORY
    yield _note("memory", found, "close other programs, or make fewer environments") if low else _ok("memory", found)


def _packages() -> Iterator[Row]:
    from velodrome import __version__

    yield _ok("velodrome", f"{__version__} ({Path(__file__).parent})")
    for name in ("numpy", "numba", "llvmlite", "torch", "gymnasium", "polars", "matplotlib"):
        version = installed_version(name)
        try:
            module = importlib.import_module(name)
        except Exception as error:
            found = f"{version} does not import ({_told(error)})" if version else "not installed"
            yield _problem(name, found, f"pip install --force-reinstall {name}")
            continue
        # A package that lies on the path without having been installed has no metadata.
        version = version or str(getattr(module, "__version__", "version unknown"))
        yield _ok(name, f"{version}, {_torch_build(module)}" if name == "torch" else version)


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
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout.strip() else ""


def _simulated() -> bool:
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def _cuda() -> Iterator[Row]:
    served = driver_cuda_version()
    if served is None:
        yield _note("driver", "none found", "for a GPU: install NVIDIA's driver")
    else:
        name = _driver_name()
        yield _ok("driver", f"{name + ', ' if name else ''}serves CUDA up to {served[0]}.{served[1]}")
    built = yield from _torch_devices(served is not None)
    toolkit = yield from _numba_cuda(served is not None)
    for who, needed in (("torch", built), ("numba-cuda", toolkit)):
        if served is None or needed is None:
            continue
        # Within a major version a driver serves newer minor versions of the toolkit too.
        fits = served[0] >= int(needed.split(".")[0])
        name = f"driver and {who}"
        value = f"driver (CUDA {served[0]}.{served[1]}) and {who} (CUDA {needed}) {'agree' if fits else 'disagree'}"
        advice = f"update the driver, or install {who} built for CUDA {served[0]}"
        yield _ok(name, value) if fits else _problem(name, value, advice)
    if _simulated():
        advice = "kernels run as Python, very slowly; unset NUMBA_ENABLE_CUDASIM to use a GPU"
        yield _note("simulator", "NUMBA_ENABLE_CUDASIM is set", advice)
    else:
        yield _ok("simulator", "off")


def _torch_devices(driver: bool) -> Generator[Row, None, str | None]:
    """Report what torch sees; return the CUDA version that it was built for."""
    try:
        import torch
    except Exception:  # told under packages
        return None
    built = torch.version.cuda
    if getattr(torch.version, "hip", None) is not None:
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        value = f"built for ROCm {torch.version.hip}, {seen} device{'' if seen == 1 else 's'}"
        yield _note("torch", value, ROCM)
        return None
    if not torch.cuda.is_available():
        advice = "for a GPU: install a CUDA build of torch" if built is None else "for a GPU: check nvidia-smi"
        missing = _problem if driver and built is not None else _note
        yield missing("devices", "torch sees none", advice)
        return built
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        value = f"{found.name}, {_gigabytes(found.total_memory)}, compute capability {found.major}.{found.minor}"
        yield _ok(f"device {index}", value)
    return built


def _numba_cuda(driver: bool) -> Generator[Row, None, str | None]:
    """Report numba-cuda and the libraries that it compiles with; return the CUDA version of those."""
    version = installed_version("numba-cuda")
    missing = _problem if driver else _note
    if version is None and importlib.util.find_spec("numba_cuda") is not None:
        version = "found, version unknown"
    if version is None:
        yield _note("numba-cuda", "not installed", f"for a GPU: {install('cuda')}")
        return None
    yield _ok("numba-cuda", version)
    for library, title in (("nvvm", "NVVM"), ("nvJitLink", "nvJitLink")):
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            yield _ok(title, str(load_nvidia_dynamic_lib(library).abs_path))
        except Exception as error:
            found = str(error).strip().splitlines()
            value = f"not found ({type(error).__name__}{': ' + found[0] if found else ''})"
            yield missing(title, value, install("cuda"))
    for distribution in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu13", "nvidia-cuda-nvcc-cu12", "cuda-bindings"):
        toolkit = installed_version(distribution)
        if toolkit is not None:
            return ".".join(toolkit.split(".")[:2])
    return None


# Backends


def smoke_test(backend: str, env: str = "template", num_envs: int = ENVIRONMENTS, **options: Any) -> Any:
    """Step an environment and return its observations and rewards, [steps, n, values], on the host."""
    import numpy as np

    import velodrome as vd

    if env == "template":
        options["length"] = 40  # so that episodes end
    envs = vd.make_vec(env, num_envs, backend=backend, seed=7, **options)
    observations, _ = envs.reset()
    actions = np.random.default_rng(7).integers(0, 2, (STEPS, num_envs))
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


def _backends() -> Iterator[Row]:
    import numpy as np

    try:
        reference = smoke_test("python")
    except Exception as error:
        yield _problem("python", _told(error), "reinstall velodrome")
        return
    yield _ok("python", f"{STEPS} steps of {ENVIRONMENTS} environments: the reference")
    cores = _threads_available()
    threads: dict[str, dict[str, Any]] = {"native": {"threads": 1}, "native, all cores": {"threads": cores}, "cuda": {}}
    for name, options in threads.items():
        if name == "native, all cores" and cores < 2:
            continue
        try:
            same = np.array_equal(smoke_test(name.split(",")[0], **options), reference)
        except Exception as error:
            yield _backend_failed(name, error)
            continue
        value = "the same numbers as python" if same else "other numbers than python"
        if name == "cuda" and _simulated():
            value += ", in the simulator"
        yield _ok(name, value) if same else _problem(name, value, REPORT_IT)
    yield _compilation()
    if not _simulated():
        yield from _money_on_a_gpu()


def _compilation() -> Row:
    """Report whether this Numba has the private names that fast compilation builds on."""
    from velodrome.vector.compile.taught import lessons

    if lessons():
        return _ok("compilation", "functions are inlined, batches run on all cores")
    known = "use a version of numba that Velodrome knows (pip install -c constraints.txt numba)"
    return _note("compilation", "the ordinary way, on one core: this Numba has other private names", known)


def _money_on_a_gpu() -> Iterator[Row]:
    """Report whether an account on the GPU has the same bits as on the CPU: compared once for each numba-cuda."""
    import numpy as np

    import velodrome as vd
    from velodrome.vector.cuda import unavailable_reason

    if unavailable_reason() is not None:  # told under cuda
        return
    import torch

    from velodrome.vector.compile.numba_cuda import remember_parity, remembered_parity

    known = remembered_parity()
    if known is None or not known.get("same"):
        market = vd.build_market(vd.synthetic_bars("gbm", length=1000, seed=7))
        trading: dict[str, Any] = {"env": "trading", "market": market, "fee": 0.001, "slippage": 0.001}
        first, second = (smoke_test(backend, episode_length=30, **trading) for backend in ("python", "cuda"))
        remember_parity(np.array_equal(first, second), torch.cuda.get_device_name())
        known = remembered_parity() or {}
    compared = f"compared {known.get('when')} on {known.get('device')}, numba-cuda {installed_version('numba-cuda')}"
    if known.get("same"):
        yield _ok("cuda, money", f"the same bits as python ({compared})")
    else:
        yield _problem("cuda, money", f"other bits than python ({compared})", REPORT_IT)


def _backend_failed(name: str, error: Exception) -> Row:
    from velodrome.errors import BackendError

    if name != "cuda":
        return _problem(name, _told(error), "reinstall numba; VELODROME_CACHE=/tmp/x rules out the cache")
    absent = isinstance(error, BackendError | ImportError)
    if absent and driver_cuda_version() is None:
        advice = f"for a GPU: NVIDIA's driver, a CUDA build of torch, and {install('cuda')}"
        return _note(name, f"no device: {error}", advice)
    if isinstance(error, ImportError) or installed_version("numba-cuda") is None:
        return _note(name, str(error), install("cuda"))
    return _problem(name, _told(error), "see the rows under CUDA")


def _workers() -> Iterator[Row]:
    """Report whether environments of other libraries run in this process and in workers, with the same numbers."""
    import numpy as np

    cartpole: dict[str, Any] = {"env": "CartPole-v1", "num_envs": FEW}
    reference = smoke_test("serial", **cartpole)
    yield _ok("serial", f"{STEPS} steps of {FEW} CartPole-v1: the reference")
    for name in ("process", "async"):
        try:
            same = np.array_equal(smoke_test(name, **cartpole, workers=2, timeout=PROCESS_SECONDS), reference)
        except Exception as error:
            yield _problem(name, _told(error), "use backend='serial'; are processes and memfd allowed here?")
            continue
        other = _problem(name, "other numbers than serial", "use backend='serial'; report it")
        yield _ok(name, "the same numbers as serial") if same else other


# Cache, threads, optional packages


def _cache() -> Iterator[Row]:
    from velodrome.errors import ConfigError
    from velodrome.vector.compile.kernel_cache import CACHE_VARIABLE, cache_folder

    try:
        folder = cache_folder()
    except ConfigError as error:
        yield _problem("folder", str(error), f"name a folder of your own: {CACHE_VARIABLE}=~/.cache/velodrome")
        return
    named = os.environ.get(CACHE_VARIABLE)
    wanted = named is None or Path(named).resolve() in folder.resolve().parents
    advice = f"{CACHE_VARIABLE}={named} cannot be written; name another folder"
    yield _ok("folder", f"{folder} (writable)") if wanted else _note("folder", f"{folder} (writable)", advice)
    files = [path for path in folder.rglob("*") if path.is_file()]
    kernels = sum(path.suffix == ".nbi" for path in files)
    size = sum(path.stat().st_size for path in files)
    yield _ok("contents", f"{kernels} kernels, {size / 1e6:.1f} MB")
    yield _second_process()


def _second_process() -> Row:
    """Report whether another process finds the kernels that this one compiled."""
    name = "second process"
    try:
        command = [sys.executable, "-c", SECOND_PROCESS]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_SECONDS)
        hits, misses = map(int, answer.stdout.split()[-2:])
    except subprocess.TimeoutExpired:
        return _problem(name, f"no answer in {PROCESS_SECONDS:g} s", "is the machine busy?")
    except (OSError, ValueError):
        last = answer.stderr.strip().splitlines()[-1:] if "answer" in locals() else []
        return _problem(name, f"failed: {' '.join(last)}", "run `velodrome doctor` again")
    if misses or not hits:
        advice = "every start compiles for half a minute; put VELODROME_CACHE on a local disk that can be written"
        return _note(name, f"compiled again ({misses} of {hits + misses} kernels)", advice)
    return _ok(name, f"found {hits} of {hits} kernels")


def _threads_available() -> int:
    try:
        import numba

        return int(numba.config.NUMBA_NUM_THREADS)
    except Exception:  # told under packages
        return 1


def _threads() -> Iterator[Row]:
    cores = available_cores()
    yield _ok("cores", f"{cores} for this process, {os.cpu_count()} in the machine")
    threads = _threads_available()
    value = f"{threads}{'' if 'NUMBA_NUM_THREADS' in os.environ else ' (not set: one a core)'}"
    advice = f"more threads than cores; set NUMBA_NUM_THREADS={cores}"
    if threads < cores:
        advice = f"cores are left idle; set NUMBA_NUM_THREADS={cores} or unset it"
    yield _ok("NUMBA_NUM_THREADS", value) if threads == cores else _note("NUMBA_NUM_THREADS", value, advice)
    try:
        import numba

        yield _ok("threading layer", str(numba.threading_layer()))
    except Exception as error:
        yield _note("threading layer", f"none in use ({_told(error)})", "one core needs none")
    yield _ok("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "not set"))
    try:
        import torch

        yield _ok("torch", f"{torch.get_num_threads()} threads")
    except Exception as error:
        yield _note("torch", _told(error), "see packages")


def _optional() -> Iterator[Row]:
    for name, (extra, purpose) in OPTIONAL.items():
        version = installed_version(name)
        advice = f"for {purpose}: {install(extra)}"
        yield _ok(name, version) if version else _note(name, "not installed", advice)
