"""What people install: the wheel holds everything that a training needs, and the documentation builds."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import velodrome as vd

ROOT = Path(__file__).parents[1]


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command prints; its failure fails the test with all of that."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)], folder)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_file_of_the_package(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = run(["git", "ls-files", "velodrome"], ROOT).split()
    assert [name for name in tracked if name not in packed] == []


def installed(wheel: Path, home: Path, work: Path) -> Path:
    """Install the wheel into an empty environment and return the folder of its commands."""
    work.mkdir()
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], work).strip())
    # Its dependencies are those of the tests: downloading torch again would take minutes and show nothing more.
    (site / "dependencies.pth").write_text(shared_site_packages())
    installer = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    run([*installer, "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)], work)
    where = run([str(python), "-c", "import velodrome; print(velodrome.__file__)"], work)
    assert where.startswith(str(home))
    return home / "bin"


# What an evaluation needs would be compiled again beside the installed files, 10 s; that its files are there is tested
# above.
@pytest.mark.parametrize("evaluated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_wheel_trains_in_an_empty_environment_outside_the_clone(wheel, tmp_path, evaluated):
    work = tmp_path / "work"
    commands = installed(wheel, tmp_path / "environment", work)
    # The loops of the default engine, and of further features, would be compiled again beside the installed files.
    chosen = ["ppo.engine=autograd", "market.features=[log_return]", *([] if evaluated else ["--no-evaluation"])]
    run([str(commands / "velodrome"), "train", "smoke", *chosen], work, OMP_NUM_THREADS="1")
    assert len(list(work.glob("runs/*/checkpoints/*"))) > 1
    assert len(list(work.glob("runs/*/report.html"))) == evaluated


@pytest.mark.slow
def test_the_wheel_serves_a_first_page_in_an_empty_folder(wheel, tmp_path):
    """Everything that the first page asks for comes from the wheel; Ctrl-C ends both processes."""
    work, token = tmp_path / "work", "a-token-for-this-test-0123456789-abcdef"
    commands = installed(wheel, tmp_path / "environment", work)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["VELODROME_TOKEN"] = token
    command = [str(commands / "velodrome"), "serve", "--no-open", "--port", "0"]
    server = subprocess.Popen(command, cwd=work, env=variables, stdout=subprocess.PIPE, text=True)

    def ask(path: str) -> bytes:
        request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    try:
        assert server.stdout is not None
        link = next(line for line in server.stdout if "dashboard: " in line).split()[1]
        assert "serving" in next(server.stdout)  # the scheduler is there, and so is the web server by now
        address = link.partition("?")[0]
        page = ask("").decode()
        linked = re.findall(r'(?:src|href)="(static/[^"]+)"', page)
        assert linked
        for path in linked:
            assert ask(path)
        overview = json.loads(ask("api/overview"))
        assert overview["empty"]
        assert overview["first_command"] == "velodrome train demo"
        until = time.monotonic() + 60.0
        while not json.loads(ask("api/overview"))["service"]["running"]:  # it says so in its first look at the store
            assert time.monotonic() < until
            time.sleep(0.2)
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(120)
    assert code == 130
    assert work.joinpath("runs", "velodrome.db").is_file()


def shared_site_packages() -> str:
    """The folders that the packages of this interpreter lie in, a line each."""
    folders = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    return "\n".join(dict.fromkeys(folders)) + "\n"


@pytest.mark.skipif(find_spec("zensical") is None, reason="the extra `docs` is not installed")
def test_the_documentation_builds_without_a_warning(tmp_path):
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), encoding="utf-8")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "velodrome").symlink_to(ROOT / "velodrome")
    run([sys.executable, "-m", "zensical", "build", "--strict"], tmp_path)
    reference = (tmp_path / "build" / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert [name for name in vd.__all__ if name != "__version__" and f'id="velodrome.{name}"' not in reference] == []
