"""Compiled kernels are code: a cache that somebody else can write is refused, and nothing in it is loaded."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path

import numba
import pytest

from tests.outside.strangers import as_root, give_away
from velodrome.errors import ConfigError
from velodrome.outside.kernels import cached_njit
from velodrome.vector.compile import kernel_cache
from velodrome.vector.compile.cpu_loops import compiled_function
from velodrome.vector.compile.kernel_cache import cache_folder, kernel_folder
from velodrome.vector.compile.packing import pack_arguments


def doubled(value: float) -> float:
    return 2.0 * value


class Planted:
    """What an attacker puts into an index: unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


@pytest.fixture
def named(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "named"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("VELODROME_CACHE", str(folder))
    return folder


def test_the_folder_is_made_for_its_user_alone(named):
    before = os.umask(0)
    try:
        folder = kernel_folder("some", doubled, "double", {})
    finally:
        os.umask(before)
    assert cache_folder() == named / "kernels"
    made = (named / "kernels", folder, folder / "__pycache__")
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o700"] * 3


@pytest.mark.parametrize("variable", ["VELODROME_CACHE", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("mode", [0o775, 0o777])
def test_a_named_folder_that_others_can_write_is_refused(named, monkeypatch, variable, mode):
    monkeypatch.delenv("VELODROME_CACHE")
    monkeypatch.setenv(variable, str(named))
    refused = named if variable == "VELODROME_CACHE" else named / "velodrome"
    refused.mkdir(exist_ok=True)
    refused.chmod(mode)
    with pytest.raises(ConfigError, match=f"{variable}={named}: .* can be written by .*name another folder"):
        cache_folder()


@as_root
@pytest.mark.parametrize("place", ["above", "above/named"])
def test_the_folder_of_another_user_is_refused(tmp_path, monkeypatch, place):
    (tmp_path / "above" / "named").mkdir(parents=True)
    give_away(tmp_path / place)
    monkeypatch.setenv("VELODROME_CACHE", str(tmp_path / "above" / "named"))
    with pytest.raises(ConfigError, match="belongs to the user"):
        compiled_function("some", doubled, "double")


@as_root
def test_an_index_that_another_user_planted_is_not_loaded(named, tmp_path):
    """What was reported: the folder is one's own, and an index in it is not."""
    assert compiled_function("some", doubled, "planted")(1.0) == 2.0
    (index,) = named.rglob("*.nbi")
    version = pickle.loads(index.read_bytes())
    index.write_bytes(pickle.dumps(version) + pickle.dumps(Planted(tmp_path / "mark")))
    give_away(index)
    with pytest.raises(ConfigError, match=r"\.nbi belongs to the user"):
        compiled_function("some", doubled, "planted")
    assert not (tmp_path / "mark").exists()


@as_root
def test_the_default_folder_is_left_for_a_temporary_one_of_ones_own(tmp_path, monkeypatch, capsys):
    """As with `sudo` in the home of another user: nobody asked for that folder, so that work goes on elsewhere."""
    (tmp_path / "home").mkdir()
    give_away(tmp_path / "home")
    for name in ("VELODROME_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kernel_cache.temporary_folder.cache_clear()
    try:
        assert cache_folder() == tmp_path / f"velodrome-{os.getuid()}" / "kernels"
    finally:
        kernel_cache.temporary_folder.cache_clear()
    assert "is not used" in capsys.readouterr().err


def test_numbas_own_folder_is_refused_where_others_can_write_it(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba").chmod(0o777)
    with pytest.raises(ConfigError, match=r"NUMBA_CACHE_DIR=.*can be written by everybody"):
        cached_njit(doubled)


def test_a_file_in_the_present_folder_does_not_say_where_code_is_loaded_from(tmp_path, monkeypatch):
    """Numba reads .numba_config.yaml there, which may have come with somebody's run."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "came_with_a_run"))
    with pytest.raises(ConfigError, match="and not by you"):
        cached_njit(doubled)


def test_no_name_gets_into_the_generated_source():
    """A class may have any name; the source of `unpack` has none of them."""
    hostile = type("x(0); import os; os.mkdir('/tmp/mark')\n", (tuple,), {"_fields": ("a",)})
    _, unpack = pack_arguments((hostile((1,)),))
    assert set(unpack.__code__.co_names) <= {"name_2", "carray", "pointer"}
