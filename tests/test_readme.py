"""What the README and the docs show works: every command and every block of Python in them is run here."""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from pathlib import Path

import polars as pl
import pytest

import velodrome as vd
from velodrome import cli

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "index.md", ROOT / "docs" / "tour.md")  # run from top to bottom
SESSIONS = [path for path in sorted((ROOT / "docs").glob("*.md")) if ">>> " in path.read_text(encoding="utf-8")]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(path: Path) -> list[str]:
    lines = [line.partition("  #")[0].strip() for block in blocks(path, "bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory) -> Path:
    """A folder with the `prices` that the README speaks of: hourly, of as many symbols as other tests' portfolios."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "prices").mkdir()
    for symbol, seed in (("BTCUSD", 1), ("ETHUSD", 2), ("SOLUSD", 3)):
        series = vd.synthetic_bars("gbm", 3_000, seed, timeframe="1h", symbols=[symbol], volatility=0.005)[symbol]
        columns = {name: series.column(name) for name in ("open", "high", "low", "close", "volume")}
        frame = pl.DataFrame({"time": series.time.astype("datetime64[ns]"), **columns})
        frame.write_csv(folder / "prices" / f"{symbol}.csv")
    # The run that commands such as `velodrome eval latest` speak of; each command may be run by itself.
    vd.train("smoke", mode="quiet", evaluate=False, **{"logging.folder": str(folder / "runs")})
    return folder


@pytest.fixture(scope="module")
def defender(tmp_path_factory) -> Path:
    """A folder in which the latest run is one of CAGE-2."""
    folder = tmp_path_factory.mktemp("defender")
    small = {"steps": 4096, "num_envs": 64, "evaluation.every_steps": None, "logging.folder": str(folder / "runs")}
    vd.train("cage2", mode="quiet", evaluate=False, **small)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, newcomer, monkeypatch, capsys):
    monkeypatch.chdir(newcomer)
    namespace: dict = {"__name__": page.stem}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, Python block {number + 1}", "exec"), namespace)
    capsys.readouterr()


# Commands that measure take their time; tests/bench and tests/runs run shorter ones.
MEASURING = ("velodrome bench", "velodrome profile")
# Words that are added to commands which would take half a minute: fewer trainings make sure of the winner.
SHORTER = {"tune": ("--confirm", "1", "--confirm-seeds", "1", "--final-seeds", "1", "steps=1024")}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if command.startswith(MEASURING) else ())
        for command in dict.fromkeys(command for page in PAGES for command in commands(page))
    ],
)
def test_a_command_that_a_page_shows_works(command, newcomer, defender, monkeypatch, capsys):
    words = shlex.split(command)
    folder = defender if "--official" in words else newcomer
    if words[0] == "make":
        assert set(words[1:]) <= make_targets()
    elif words[0] == "pip":
        assert words[1] == "install"
        extras = re.findall(r"\[(.*?)\]", command)
        assert all(
            extra in PYPROJECT["project"]["optional-dependencies"] for extra in ",".join(extras).split(",") if extra
        )
    elif words[0] == "velodrome":
        # In this process, which has everything imported and compiled: some forty commands would each begin at nothing.
        monkeypatch.chdir(folder)
        code = cli.run([*words[1:], *SHORTER.get(words[1], ())])
        assert code == 0, capsys.readouterr().err
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()  # run by tests/test_examples.py
    else:
        pytest.fail(f"a page shows a command that no test knows how to check: {command}")


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.name)
def test_the_sessions_of_a_page_print_what_they_show(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=flags)
    session = "\n".join(blocks(path, "python"))
    test = parser.get_doctest(session, {}, path.name, str(path), 0)
    told: list[str] = []
    runner.run(test, out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


@pytest.mark.parametrize("path", [README, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))], ids=str)
def test_paths_and_links_that_a_page_names_exist(path):
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    missing = [link for link in links if not (path.parent / link).exists()]
    # The site of the docs reaches files outside them by their address in the repository.
    elsewhere = re.findall(r"\]\(https://github.com/velodrome-rl/velodrome/blob/main/([^)#]+)\)", text)
    assert missing + [link for link in elsewhere if not (ROOT / link).exists()] == []


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_docs_hold_every_page_that_they_promise():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {"data_path.md", "add_an_environment.md", "add_a_backend.md", "trading.md"} <= pages
