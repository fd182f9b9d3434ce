"""The command that installs an extra names the place that this installation came from."""

from __future__ import annotations

import json

import pytest

from velodrome.outside import extras


@pytest.fixture(autouse=True)
def _asked_anew():
    extras._source.cache_clear()
    yield
    extras._source.cache_clear()


def noted(monkeypatch, content):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return content

    monkeypatch.setattr(extras, "distribution", lambda name: Installed())


@pytest.mark.parametrize(("editable", "begins"), [(True, "pip install -e '"), (False, "pip install '")])
def test_a_clone_is_named(tmp_path, monkeypatch, editable, begins):
    folder = tmp_path / "my clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    noted(monkeypatch, json.dumps({"dir_info": {"editable": editable}, "url": folder.as_uri()}))
    assert extras.install("tune", "dashboard") == f"{begins}{folder}[tune,dashboard]'"


@pytest.mark.parametrize(
    "content",
    [None, "no JSON", '{"dir_info": {}, "url": "file:///gone"}', '{"archive_info": {}, "url": "file:///x.whl"}'],
)
def test_from_anywhere_else_it_is_the_package(monkeypatch, content):
    noted(monkeypatch, content)
    assert extras.install("tune") == "pip install 'velodrome[tune]'"


def test_without_an_installation_it_is_the_package(monkeypatch):
    def missing(name):
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.install("cuda") == "pip install 'velodrome[cuda]'"
