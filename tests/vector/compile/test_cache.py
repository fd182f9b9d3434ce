"""Compiled loops are kept on disk: the second start is fast, and changed code never meets what was compiled before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from velodrome.vector.compile.assemble import fingerprint
from velodrome.vector.compile.playing import as_planned, play_bars

REPOSITORY = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("changed_rewards.py")
# Places of a weight in `changed_rewards.py`.
CHANGED = ("the_code", "a_constant", "a_closure", "one_of_two_closures", "a_compiled_helper", "a_module")
COMPILED_AGAIN = ("a_closure", "a_module")  # of those: the others would show the same, a second of compiling each
UNUSUAL = ("a_function_in_a_closure", "a_constant_named_like_a_part_of_the_rule", "a_module_named_math_something")


def user() -> Any:
    return os.getuid() if hasattr(os, "getuid") else "user"


def start(arguments: list[str], **environment: str) -> subprocess.CompletedProcess:
    """Run Python on some arguments in a fresh process."""
    # Numba would keep what it compiles elsewhere, where Velodrome does not look for it.
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    answer = subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, env={**inherited, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer


def start_rewards(weight: float, names: tuple[str, ...], **environment: str) -> tuple[dict[str, Any], str]:
    """Return ({name: [compiled rewards, plain rewards]}, what was said on stderr) of one process."""
    answer = start([str(SCRIPT), str(weight), *names], **environment)
    return json.loads(answer.stdout), answer.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of this module, empty at first; also what the fallback beside it would be called."""
    return tmp_path_factory.mktemp("temporary") / f"velodrome-{user()}"


@pytest.fixture(scope="module")
def first(cache: Path) -> tuple[dict[str, Any], str]:
    return start_rewards(2.0, CHANGED, VELODROME_CACHE=str(cache))


@pytest.fixture(scope="module")
def second(cache: Path, first: tuple[dict[str, Any], str]) -> tuple[dict[str, Any], str]:
    """The same process again, on the same cache, with nothing but the weight changed."""
    return start_rewards(3.0, (*COMPILED_AGAIN, *UNUSUAL), VELODROME_CACHE=str(cache))


def test_the_first_start_says_that_it_compiles(first, cache):
    _, said = first
    assert "velodrome: compiling small (step_part); the next start is faster" in said
    assert "velodrome: compiling small (reset_all" in said
    assert list((cache / "kernels").rglob("*.nbi"))


def test_one_loop_of_a_rule_is_compiled_once_for_all_rewards(first):
    """The reset loop does not call the reward."""
    _, said = first
    assert said.count("(reset_all") == 1
    assert said.count("(step_part") == len(CHANGED)


def test_the_second_start_compiles_nothing_and_gives_the_same(first, cache):
    found, said = start_rewards(2.0, ("the_code",), VELODROME_CACHE=str(cache))
    assert "compiling" not in said
    assert found["the_code"] == first[0]["the_code"]


@pytest.mark.parametrize("name", CHANGED)
def test_compiled_rewards_are_those_of_plain_python(name, first):
    compiled, plain = first[0][name]
    assert compiled == plain


@pytest.mark.parametrize("name", [*CHANGED, *UNUSUAL])
def test_a_changed_reward_has_another_fingerprint_and_so_another_folder(name, first, second):
    assert first[0]["fingerprints"][name] != second[0]["fingerprints"][name]


@pytest.mark.parametrize("name", COMPILED_AGAIN)
def test_a_changed_reward_never_meets_the_old_one(name, first, second):
    (_, old), (compiled, plain) = first[0][name], second[0][name]
    assert plain == pytest.approx([1.5 * value for value in old], rel=1e-6)
    assert compiled == plain


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_runs_as_plain_python_also_compiles(name, second):
    compiled, plain = second[0][name]
    _, expected = second[0]["a_closure"]
    assert plain == expected
    assert compiled == expected


def test_two_rewards_side_by_side_keep_apart(first, second, cache):
    """Both are cached by now; made in turns in one process."""
    answer = start([str(SCRIPT), "2.0", "in_turns"], VELODROME_CACHE=str(cache))
    assert "compiling" not in answer.stderr
    two, three, two_again, three_again = json.loads(answer.stdout)
    assert two == two_again == first[0]["a_closure"][1]
    assert three == three_again == second[0]["a_closure"][1]


def test_a_function_that_moves_to_another_module_is_compiled_again():
    def reward(equity: float) -> float:
        return equity

    before = fingerprint(reward, {})
    reward.__module__ = "somewhere.else"
    assert fingerprint(reward, {}) != before


WEIGHT = 1.0


def weighted(*_):
    """Stands for a user's function that refers to something that may change."""
    return WEIGHT


@pytest.mark.parametrize(("function", "substitutions"), [(weighted, {}), (play_bars, {"decide": weighted})])
def test_what_a_users_function_refers_to_is_looked_at_each_time(function, substitutions, monkeypatch):
    before = fingerprint(function, substitutions)
    assert fingerprint(function, substitutions) == before
    monkeypatch.setitem(globals(), "WEIGHT", 2.0)
    assert fingerprint(function, substitutions) != before


def test_what_is_velodromes_own_has_one_fingerprint_however_it_is_asked_for():
    given = {"decide": as_planned}
    assert fingerprint(play_bars, given) == fingerprint(play_bars, dict(given)) != fingerprint(play_bars, {})


def test_a_folder_that_cannot_be_written_falls_back_and_says_where(first, cache, tmp_path):
    """A folder below a file cannot be made, even by root. The fallback lies in the folder for temporary files."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    found, said = start_rewards(
        2.0, ("the_code",), VELODROME_CACHE=str(blocked / "cache"), TMPDIR=str(cache.parent)
    )  # fmt: skip
    assert f"velodrome: the cache folder {blocked / 'cache'} cannot be written (" in said
    assert f"compiled kernels are kept in {cache}" in said
    assert found["the_code"] == first[0]["the_code"]
    # What lies in the fallback is used too.
    assert "compiling" not in said


def test_the_users_cache_folder_is_used_when_none_is_named(first, cache, tmp_path):
    """$XDG_CACHE_HOME/velodrome: here a link to the folder that the other tests have filled."""
    (tmp_path / "velodrome").symlink_to(cache, target_is_directory=True)
    found, said = start_rewards(2.0, ("the_code",), VELODROME_CACHE="", XDG_CACHE_HOME=str(tmp_path))
    assert said == ""
    assert found["the_code"] == first[0]["the_code"]


TRADING_START = """
import velodrome as vd, sys, time
started = time.process_time()
import numpy as np
from tests.markets import small_market
envs = vd.make_vec("trading", 1024, market=small_market(), episode_length=50, seed=1)
envs.reset()
envs.step(np.zeros(1024, np.int64))
print(time.process_time() - started)
for _ in range(int(sys.argv[1])):
    envs.step(np.zeros(1024, np.int64))
"""


def test_a_second_start_steps_a_thousand_trading_environments_within_three_seconds():
    """CPU time after `import velodrome`; the usual cache, because compiling the trading rule takes most of a minute."""
    # Further steps: the loop over parts, for all cores, is compiled in the second one, when it is first tried.
    start(["-c", TRADING_START, "3"])
    answer = start(["-c", TRADING_START, "0"])
    assert "compiling" not in answer.stderr
    assert float(answer.stdout) < 3.0
