"""Whose is a folder: everything by which another user could put code there is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.outside.strangers import STRANGER, as_root, give_away
from velodrome.outside.folders import make_private_folder, why_not_own_files, why_not_private


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "above" / "cache"
    make_private_folder(made)
    return made


def test_a_new_folder_is_private_whatever_the_umask_is(tmp_path):
    before = os.umask(0)
    try:
        make_private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("a", "a/b")] == ["0o700", "0o700"]
    assert why_not_private(tmp_path / "a" / "b") is None


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o777, 0o1777, 0o2775])
def test_a_folder_that_others_can_write_is_found(folder, mode):
    folder.chmod(mode)
    assert f"{folder} can be written by" in str(why_not_private(folder))


@pytest.mark.parametrize(("mode", "fine"), [(0o757, False), (0o777, False), (0o1777, True), (0o755, True)])
def test_above_it_only_who_could_exchange_it_matters(folder, mode, fine):
    folder.parent.chmod(mode)
    assert (why_not_private(folder) is None) is fine


@as_root
def test_the_group_of_others_matters_above_it_and_a_group_of_ones_own_does_not(folder):
    folder.parent.chmod(0o775)
    assert why_not_private(folder) is None  # root's own group has nobody else
    assert "can be written by the group" in str(why_not_private(folder, own=2))
    os.chown(folder.parent, 0, STRANGER)
    assert f"{folder.parent} can be written by the group {STRANGER}" in str(why_not_private(folder))


@as_root
@pytest.mark.parametrize("place", ["above", "above/cache"])
def test_the_folder_of_another_user_is_found(folder, place):
    stranger = folder.parents[1] / place
    give_away(stranger)
    assert f"{stranger} belongs to the user {STRANGER}" in str(why_not_private(folder))


@as_root
def test_a_link_that_another_user_can_turn_elsewhere_is_found(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert why_not_private(tmp_path / "link") is None
    give_away(tmp_path / "link")
    assert f"link is a link of the user {STRANGER}" in str(why_not_private(tmp_path / "link"))


def test_what_a_link_leads_to_is_looked_at(folder, tmp_path):
    (tmp_path / "link").symlink_to(Path("above", "..", "above", "cache"))
    assert why_not_private(tmp_path / "link") is None
    folder.chmod(0o777)
    assert f"{folder} can be written by everybody" in str(why_not_private(tmp_path / "link"))


def test_links_in_a_circle_come_to_an_end(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert "is a link" in str(why_not_private(tmp_path / "one"))


def test_links_among_the_files_and_open_folders_are_found(folder):
    (folder / "inner").mkdir(mode=0o755)
    (folder / "inner" / "index").write_text("mine")
    assert why_not_own_files(folder) is None
    (folder / "inner" / "data").symlink_to("/etc/passwd")
    assert "data is no regular file" in str(why_not_own_files(folder))
    (folder / "inner" / "data").unlink()
    (folder / "inner").chmod(0o777)
    assert "inner can be written by everybody" in str(why_not_own_files(folder))


def test_a_file_that_others_can_reach_by_another_name_is_found(folder, tmp_path):
    (folder / "index").write_text("mine")
    (folder / "index").chmod(0o666)  # what a umask of 0 makes; nobody else can get there
    assert why_not_own_files(folder) is None
    os.link(folder / "index", tmp_path / "other_name")
    assert "has a second name" in str(why_not_own_files(folder))


@as_root
def test_a_file_of_another_user_is_found(folder):
    (folder / "inner").mkdir()
    (folder / "inner" / "index").write_text("planted")
    give_away(folder / "inner" / "index")
    assert f"index belongs to the user {STRANGER}" in str(why_not_own_files(folder))
