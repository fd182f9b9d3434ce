"""Metrics as files: long and wide, CSV and Parquet, whole or not at all."""

from __future__ import annotations

import csv
import math

import polars as pl
import pytest

from tests.contracts.store import RUN
from velodrome.errors import ConfigError, WriteError
from velodrome.runs.store.metrics_file import export_metrics, widened
from velodrome.runs.store.schema import StoreError
from velodrome.runs.store.store import MetricRow, open_store

ROWS = [
    MetricRow(10, "b", 0.1, 100.0),
    MetricRow(10, "a", 1e-300, 101.0),
    MetricRow(20, "b", math.nan, 102.0),
    MetricRow(30, "a", -math.inf, 103.0),
]


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    store.create_run(RUN)
    store.add_metrics(RUN.id, ROWS)
    yield store
    store.close()


def test_a_long_file_has_a_row_for_each_number(store, tmp_path):
    path = export_metrics(store, RUN.id, tmp_path / "out.parquet", layout="long")
    assert pl.read_parquet(path).equals(store.metrics(RUN.id))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_wide_file_has_a_row_for_each_step(store, tmp_path, suffix):
    path = export_metrics(store, RUN.id, str(tmp_path / f"out{suffix}"))
    found = pl.read_csv(path) if suffix == ".csv" else pl.read_parquet(path)
    assert found.columns == ["step", "time", "a", "b"]
    assert found["step"].to_list() == [10, 20, 30]
    assert found["time"].to_list() == [101.0, 102.0, 103.0]
    assert found["a"].to_list() == [1e-300, None, -math.inf]
    assert found["b"].is_null().to_list() == [False, False, True]
    assert found["b"][0] == 0.1
    assert math.isnan(found["b"][1])


def test_wide_holds_what_a_loop_over_the_rows_finds(store):
    slow: dict[int, dict[str, float]] = {}
    for step, name, value, _ in ROWS:
        slow.setdefault(step, {})[name] = value
    for row in widened(store.metrics(RUN.id)).iter_rows(named=True):
        for name in "ab":
            assert (row[name] is None) == (name not in slow[row["step"]])
            assert row[name] is None or row[name] == pytest.approx(slow[row["step"]][name], abs=0, nan_ok=True)


def test_a_csv_is_read_by_other_programs(store, tmp_path):
    path = export_metrics(store, RUN.id, tmp_path / "out.csv", layout="long", names=["b"])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["step"]), row["name"]) for row in rows] == [(10, "b"), (20, "b")]
    assert float(rows[0]["value"]) == 0.1
    assert math.isnan(float(rows[1]["value"]))


def test_a_file_that_is_there_is_replaced(store, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("old")
    export_metrics(store, RUN.id, path)
    assert path.read_text().startswith("step,time,a,b\n")
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "out.xlsx"}, r"\.csv or \.parquet"),
        ({"path": "out.parqet"}, r"Did you mean '\.parquet'"),
        ({"path": "out"}, r"\.csv or \.parquet"),
        ({"layout": "wyde"}, "Did you mean 'wide'"),
        ({"names": ["c"]}, "no metrics of these names to write. It has a, b"),
        ({"path": "nowhere/out.csv"}, "cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_told(store, tmp_path, options, told):
    path = tmp_path / options.pop("path", "out.csv")
    with pytest.raises((ConfigError, WriteError), match=told):
        export_metrics(store, RUN.id, path, **options)
    assert not path.exists()


def test_an_unknown_run_is_told(store, tmp_path):
    with pytest.raises(StoreError, match="no run 'ab12cd35'"):
        export_metrics(store, "ab12cd35", tmp_path / "out.csv")
