"""The ledger of looks: data that shares bars is the same data, however its split was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

import velodrome as vd
from tests.runs.small_runs import TINY, one_thread, small_run  # noqa: F401
from velodrome.runs.config.files import load_run_config
from velodrome.runs.store.looks import Look, SeenBars, add_looks, looks_at, overlap, told_looks
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import open_store, whole_address
from velodrome.tables.hashing import bars_of

DATA = (SeenBars("A", 100, 199), SeenBars("B", 100, 199))


def look(data_hash: str, run: str, *bars: tuple[str, int, int], step: int = 1, time: float = 0.0) -> Look:
    return Look(data_hash, run, step, "test", time, tuple(SeenBars(*own) for own in bars))


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as opened:
        yield opened


def test_looks_count_that_overlap_in_time_on_a_shared_symbol(store):
    others = [
        look("same", "r1", *DATA, time=1.0),
        look("shorter", "r2", ("A", 100, 189), ("B", 100, 189), time=2.0),
        look("one symbol", "r3", ("B", 150, 400), ("C", 0, 400), time=3.0),
        look("before", "r4", ("A", 0, 99), ("B", 0, 99), time=4.0),
        look("another symbol", "r5", ("C", 100, 199), time=5.0),
        look("older", "r6", time=6.0),  # its bars are not known
    ]
    add_looks(store, others)
    found = looks_at(store, "same", DATA)
    assert [(own.run, own.overlap) for own in found] == [("r1", 1.0), ("r2", 0.9), ("r3", 0.25)]
    assert [own.run for own in looks_at(store, "older", ())] == ["r6"]
    assert [own.run for own in looks_at(store, "new", (SeenBars("A", 0, 50),))] == ["r4"]


def test_who_knows_the_hash_alone_finds_the_same(store):
    add_looks(store, [look("same", "r1", *DATA), look("shorter", "r2", ("A", 100, 150), time=1.0)])
    assert [own.run for own in looks_at(store, "same")] == ["r1", "r2"]


def test_a_policy_that_saw_two_cuts_of_the_data_counts_once(store):
    add_looks(store, [look("part", "r1", ("A", 100, 150)), look("same", "r1", *DATA, time=1.0)])
    add_looks(store, [look("same", "r1", *DATA, step=2, time=2.0)])
    assert [(own.step, own.overlap) for own in looks_at(store, "same", DATA)] == [(1, 1.0), (2, 1.0)]


def test_pieces_overlap_by_what_both_have():
    pieces = (SeenBars("A", 0, 9), SeenBars("A", 20, 29))
    assert overlap(pieces, (SeenBars("A", 5, 24),)) == 0.5
    assert overlap((SeenBars("A", 5, 24),), pieces) == 0.5
    assert overlap(pieces, (SeenBars("A", 10, 19),)) == 0.0


def test_the_sentence_says_how_much_they_overlap():
    assert "for the first time" in told_looks(0, "test")
    assert "overlap" not in told_looks(2, "test", (1.0, 1.0))
    assert "played on it before, on bars that overlap with these by 99.9%, and" in told_looks(1, "test", (0.99999,))
    assert "on bars that overlap with these by 25.0% to 100.0%" in told_looks(2, "test", (0.25, 1.0))


def test_a_store_from_before_learns_the_bars_of_new_looks(tmp_path):
    with open_store(tmp_path) as store:
        add_looks(store, [look("same", "r1")])
        store.write(lambda connection: tables().tested.drop(connection))
    with open_store(tmp_path) as store:
        assert [own.run for own in looks_at(store, "same", DATA)] == ["r1"]
        add_looks(store, [look("same", "r1", *DATA)])  # evaluated again
        assert [own.run for own in looks_at(store, "other", (SeenBars("A", 150, 250),))] == ["r1"]


def test_a_test_split_that_ends_a_little_earlier_is_no_new_data(tmp_path):
    notes = []
    for share in (0.15, 0.15, 0.14):
        run = small_run(tmp_path, **{"market.splits": {"train": 0.7, "validation": 0.15, "test": share}})
        found = vd.evaluate(run, report=False)
        notes.append(next(note for note in found.notes if "looked at" in note or "look number" in note))
        assert found.information["look"]["bars"] == [list(own) for own in bars_of(run.market, "test")]
    assert "for the first time" in notes[0]
    assert notes[1].startswith("look number 2 at this test data: 1 other policy was played on it before, and")
    assert notes[2].startswith("look number 3 at this test data: 2 other policies were played on it before")


def test_test_data_under_another_name_is_looked_at_all_the_same(tmp_path):
    """A run that tests nothing at its end, and is then played on the bars that others are tested on."""
    shares = {"train": 0.7, "validation": 0.15}
    peeking = small_run(tmp_path, **{"market.splits": {**shares, "later": 0.15}, "evaluation.final_split": None})
    assert vd.evaluate(peeking, "later", report=False).information["look"]["before"] == 0
    assert "look" not in vd.evaluate(peeking, "validation", report=False).information
    run = small_run(tmp_path, **{"market.splits": {**shares, "test": 0.15}, "seed": 5})
    assert vd.evaluate(run, report=False).information["look"]["before"] == 1


def test_a_store_by_a_relative_address_is_the_same_from_every_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = vd.train("smoke", mode="quiet", evaluate=False, **{**TINY, "logging.store": "sqlite:///rows.db"})
    with vd.AgentTrainingService("runs", "sqlite:///rows.db") as service:
        assert service.placed(load_run_config("smoke", {"logging.store": "sqlite:///rows.db"}))
        monkeypatch.chdir(tmp_path / "elsewhere")
        look_at = vd.evaluate(run.path).information["look"]
        assert look_at["before"] == 0
        assert len(looks_at(service.store, look_at["data_hash"])) == 1
    assert list(Path().iterdir()) == []
    assert service.url == run.config.logging.store == f"sqlite:///{tmp_path}/rows.db"


def test_only_the_path_of_a_file_is_made_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert whole_address("sqlite:///a b/../x.db?timeout=3") == f"sqlite:///{tmp_path}/x.db?timeout=3"
    for url in ("sqlite:////x.db", "sqlite://", "sqlite:///:memory:", "postgresql://u:p@h/db", "nonsense"):
        assert whole_address(url) == url
