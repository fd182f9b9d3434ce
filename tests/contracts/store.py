"""The suite that every store inherits: subclass it and say how to open one.

class TestMine(StoreContract):
    def open(self, tmp_path):
        return MyStore(...)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velodrome.errors import ConfigError, VelodromeError
from velodrome.runs.store.outlines import Outline, read_outline
from velodrome.runs.store.rows import CheckpointRow, EvaluationRow, LineageRow, MetricRow, PolicyRow, RunRecord
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore
from velodrome.tune.champions.registry import Change, Promotion, Record, enter

RUN = RunRecord(
    "ab12cd34", "first", "/somewhere/first", env="trading", algorithm="ppo", config={"steps": 10, "ppo": {"clip": 0.2}},
    config_hash="c0ffee", data_hash="d" * 64, seed=2**62, versions={"python": "3.11"}, created=100.0, updated=100.0,
)  # fmt: skip
numbers = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324])
metric_rows = st.lists(
    st.tuples(st.integers(0, 2**62), st.sampled_from(["loss/policy", "a", "é 漢"]), numbers, st.floats(0, 2e9)).map(
        lambda row: MetricRow(*row)
    ),
    max_size=12,
)


class StoreContract:
    """What holds for every store."""

    def open(self, tmp_path: Path) -> SqlStore:
        """Return a store that is empty, or was opened with this folder before."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path) -> Iterator[SqlStore]:
        store = self.open(tmp_path)
        yield store
        store.close()

    def test_a_run_comes_back_as_it_was_written(self, store):
        store.create_run(RUN)
        assert store.run(RUN.id) == RUN

    def test_an_id_is_taken_once(self, store):
        store.create_run(RUN)
        with pytest.raises(VelodromeError, match="already has a run 'ab12cd34'"):
            store.create_run(RUN)

    def test_what_is_written_is_there_for_who_opens_it_next(self, store, tmp_path):
        store.create_run(RUN)
        store.add_metrics(RUN.id, [MetricRow(5, "a", 1.5, 9.0)])
        store.close()
        again = self.open(tmp_path)
        assert again.run(RUN.id).steps == 5
        assert again.metrics(RUN.id).rows() == [(5, "a", 1.5, 9.0)]
        again.close()

    def test_fields_of_a_run_change(self, store):
        store.create_run(RUN)
        store.update_run(RUN.id, status="failed", error="no space", steps=7, config={"steps": 11})
        found = store.run(RUN.id)
        assert found.updated > RUN.updated
        assert found == replace(
            RUN, status="failed", error="no space", steps=7, config={"steps": 11}, updated=found.updated
        )

    def test_what_a_run_does_not_have_is_refused(self, store):
        store.create_run(RUN)
        with pytest.raises(ConfigError, match="Did you mean 'status'"):
            store.update_run(RUN.id, statos="failed")
        with pytest.raises(ConfigError, match="Did you mean 'finished'"):
            store.update_run(RUN.id, status="finish")
        with pytest.raises(ConfigError, match="no field 'id'"):
            store.update_run(RUN.id, id="other")
        assert store.run(RUN.id) == RUN

    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.run("ab12cd35"),
            lambda store: store.update_run("ab12cd35", steps=1),
            lambda store: store.add_metrics("ab12cd35", [MetricRow(1, "a", 1.0, 1.0)]),
            lambda store: store.add_evaluations("ab12cd35", [EvaluationRow(1, "test", "return", 1.0)]),
            lambda store: store.set_checkpoints("ab12cd35", []),
            lambda store: store.forget_after("ab12cd35", 0),
        ],
        ids=["run", "update", "metrics", "evaluations", "checkpoints", "forget"],
    )
    def test_an_unknown_run_is_refused_and_the_nearest_named(self, store, call):
        store.create_run(RUN)
        with pytest.raises(VelodromeError, match=r"no run 'ab12cd35'\. Did you mean 'ab12cd34'"):
            call(store)

    def test_runs_are_listed_newest_first_and_by_their_fields(self, store):
        runs = [
            replace(RUN, id=f"{index:08x}", created=float(index), env=env, status=status)
            for index, (env, status) in enumerate([("trading", "finished"), ("ou", "running"), ("trading", "running")])
        ]
        for run in (runs[1], runs[0], runs[2]):
            store.create_run(run)
        assert [run.id[-1] for run in store.runs()] == ["2", "1", "0"]
        assert [run.id[-1] for run in store.runs(env="trading")] == ["2", "0"]
        assert [run.id[-1] for run in store.runs(env="trading", status="running")] == ["2"]
        assert [run.id[-1] for run in store.runs(limit=2)] == ["2", "1"]
        assert store.runs(algorithm="dqn") == store.runs(name="other") == []
        assert len(store.runs(name="first", algorithm="ppo")) == 3

    def test_metrics_come_back_in_order_with_every_value(self, store):
        store.create_run(RUN)
        store.add_metrics(
            RUN.id, [MetricRow(20, "b", math.nan, 2.0), MetricRow(10, "b", math.inf, 1.0), MetricRow(10, "a", 0.1, 1.0)]
        )
        found = store.metrics(RUN.id)
        assert found.schema == {"step": pl.Int64, "name": pl.String, "value": pl.Float64, "time": pl.Float64}
        assert found.select("step", "name").rows() == [(10, "a"), (10, "b"), (20, "b")]
        assert found["value"][:2].to_list() == [0.1, math.inf]
        assert math.isnan(found["value"][2])
        assert store.run(RUN.id).steps == 20

    def test_metrics_are_chosen_by_name_and_step(self, store):
        store.create_run(RUN)
        store.add_metrics(RUN.id, [MetricRow(step, name, 1.0, 1.0) for step in (0, 1, 2) for name in "abc"])
        assert store.metrics(RUN.id, names=["a", "c"], since=1).select("step", "name").rows() == [
            (1, "a"), (1, "c"), (2, "a"), (2, "c"),
        ]  # fmt: skip
        assert store.metrics(RUN.id, names=[]).is_empty()
        assert store.metrics(RUN.id, since=3).is_empty()
        assert store.metrics(RUN.id, since=3).columns == ["step", "name", "value", "time"]

    def test_the_last_of_each_metric(self, store):
        store.create_run(RUN)
        store.create_run(replace(RUN, id="other"))
        store.add_metrics("other", [MetricRow(99, "a", 9.0, 1.0)])
        store.add_metrics(
            RUN.id, [MetricRow(1, "a", 1.0, 1.0), MetricRow(2, "a", 2.0, 1.0), MetricRow(1, "b", 3.0, 1.0)]
        )
        assert store.last_metrics(RUN.id) == {"a": 2.0, "b": 3.0}
        assert store.last_metrics(RUN.id, ["b", "c"]) == {"b": 3.0}

    def test_a_number_written_again_replaces_the_first(self, store):
        store.create_run(RUN)
        store.add_metrics(RUN.id, [MetricRow(1, "a", 1.0, 1.0), MetricRow(1, "a", 2.0, 2.0)])
        store.add_metrics(RUN.id, [MetricRow(1, "a", 3.0, 3.0), MetricRow(1, "b", 4.0, 3.0)])
        assert store.metrics(RUN.id).rows() == [(1, "a", 3.0, 3.0), (1, "b", 4.0, 3.0)]

    # One store serves all examples, which empty it themselves; several classes inherit this test, as is meant.
    @settings(
        max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(batches=st.lists(metric_rows, max_size=4), cut=st.none() | st.integers(0, 2**62))
    def test_metrics_are_what_a_dictionary_would_hold(self, store, batches, cut):
        if store.find(RUN.id) is None:
            store.create_run(RUN)
        store.forget_after(RUN.id, -1)
        expected: dict[tuple[int, str], tuple[float, float]] = {}
        for batch in batches:
            store.add_metrics(RUN.id, batch)
            expected.update({(row.step, row.name): (row.value, row.time) for row in batch})
        if cut is not None:
            store.forget_after(RUN.id, cut)
            expected = {key: value for key, value in expected.items() if key[0] <= cut}
        found = {(step, name): (value, moment) for step, name, value, moment in store.metrics(RUN.id).iter_rows()}
        assert found.keys() == expected.keys()
        for key, (value, moment) in expected.items():
            assert found[key] == pytest.approx((value, moment), rel=0, abs=0, nan_ok=True)

    def test_evaluations_come_back_with_their_intervals(self, store):
        store.create_run(RUN)
        store.add_evaluations(
            RUN.id, [EvaluationRow(9, "test", "return", 0.1, -0.2, 0.3), EvaluationRow(9, "test", "sharpe", math.nan)]
        )
        store.add_evaluations(RUN.id, [EvaluationRow(9, "test", "return", 0.2, -0.1, 0.4)])
        found = store.evaluations(RUN.id)
        assert found.columns == ["step", "split", "name", "value", "low", "high"]
        assert found.row(0) == (9, "test", "return", 0.2, -0.1, 0.4)
        assert all(math.isnan(number) for number in found.row(1)[3:])

    def test_evaluations_of_other_checkpoints_and_splits_stay_beside_each_other_with_their_policies(self, store):
        store.create_run(RUN)
        said = [PolicyRow(9, "test", "best", {"text": "nine"}, "test"), PolicyRow(9, "test", "latest", {}, "test")]
        said += [PolicyRow(9, "validation", "best", {}, "validation (used for selection)")]
        said += [PolicyRow(30, "test", "latest", {"text": "thirty"}, "test")]
        for policy in said:
            store.add_evaluations(RUN.id, [EvaluationRow(policy.step, policy.split, "return", policy.step)], policy)
        assert store.policies(RUN.id) == said
        assert store.evaluations(RUN.id)["value"].to_list() == [9.0, 9.0, 30.0]
        store.forget_after(RUN.id, 20)
        assert store.policies(RUN.id) == said[:3]

    def test_checkpoints_are_those_said_last(self, store):
        store.create_run(RUN)
        first, second = CheckpointRow(2, "/two", False, 1.0), CheckpointRow(1, "/one", True, 1.0)
        store.set_checkpoints(RUN.id, [first, second])
        assert store.checkpoints(RUN.id) == [second, first]
        store.set_checkpoints(RUN.id, [first])
        assert store.checkpoints(RUN.id) == [first]
        store.set_checkpoints(RUN.id, [])
        assert store.checkpoints(RUN.id) == []

    def test_a_run_has_its_lineage_and_its_children(self, store):
        store.create_run(RUN)
        store.create_run(replace(RUN, id="child"))
        begun = LineageRow(0, 10, RUN.id, {"seed": [0, 7]})
        store.set_lineage("child", [begun])
        longer = LineageRow(1, 10, None, {"steps": [10, 20]})
        store.set_lineage("child", [begun, longer])
        assert store.lineage("child") == [("child", begun), ("child", longer)]
        assert store.lineage(parent=RUN.id) == [("child", begun)]
        assert store.lineage(RUN.id) == []

    def test_a_group_has_its_members_by_seed_and_their_metrics(self, store):
        store.create_run(RUN)
        for seed in (4, 3):
            store.create_run(replace(RUN, id=f"seed{seed}", seed=seed))
            store.add_member(RUN.id, f"seed{seed}")
            store.add_metrics(f"seed{seed}", [MetricRow(10, "a", 0.0, 1.0), MetricRow(20, "a", float(seed), 1.0)])
        store.add_member(RUN.id, "seed3")  # again
        assert [run.id for run in store.members(RUN.id)] == ["seed3", "seed4"]
        assert store.groups() == {"seed3": RUN.id, "seed4": RUN.id}
        assert store.metrics(RUN.id, since=20).select("seed", "value").rows() == [(3, 3.0), (4, 4.0)]
        assert store.last_metrics(RUN.id) == {"a": 3.5}
        assert store.members("seed3") == []

    def test_a_resumed_run_forgets_what_came_after_its_checkpoint(self, store):
        store.create_run(RUN)
        store.create_run(replace(RUN, id="other"))
        for run in (RUN.id, "other"):
            store.add_metrics(run, [MetricRow(step, "a", 1.0, 1.0) for step in (10, 20, 30)])
            store.add_evaluations(run, [EvaluationRow(step, "test", "return", 1.0) for step in (10, 20, 30)])
            store.set_checkpoints(run, [CheckpointRow(step, "/x", False, 1.0) for step in (10, 20, 30)])
        store.forget_after(RUN.id, 20)
        assert store.metrics(RUN.id)["step"].to_list() == [10, 20]
        assert store.evaluations(RUN.id)["step"].to_list() == [10, 20]
        assert [row.step for row in store.checkpoints(RUN.id)] == [10, 20]
        assert store.run(RUN.id).steps == 20
        assert store.metrics("other").height == store.evaluations("other").height == 3

    def test_a_run_that_is_not_there_is_found_as_none(self, store):
        assert store.find(RUN.id) is None
        store.create_run(RUN)
        assert store.find(RUN.id) == RUN

    def test_a_batch_that_fails_leaves_nothing_of_itself(self, store):
        store.create_run(RUN)

        def rows():
            yield MetricRow(1, "a", 1.0, 1.0)
            raise RuntimeError("the source of the rows failed")

        with pytest.raises(RuntimeError):
            store.add_metrics(RUN.id, rows())
        assert store.metrics(RUN.id).is_empty()
        assert store.run(RUN.id).steps == 0

    def test_what_is_done_at_once_is_kept_whole_or_not_at_all(self, store):
        def half() -> None:
            store.put_run(RUN)
            assert store.run(RUN.id) == RUN
            raise ZeroDivisionError

        def whole() -> None:
            store.put_run(RUN)
            store.add_metrics(RUN.id, [MetricRow(1, "a", 1.0, 1.0)])
            store.put_run(replace(RUN, steps=5))

        with pytest.raises(ZeroDivisionError):
            store.at_once(half)
        assert store.find(RUN.id) is None
        store.at_once(whole)
        assert (store.run(RUN.id).steps, store.metrics_extent(RUN.id)) == (5, (1, 0))
        store.forget_metrics(RUN.id)
        assert store.metrics_extent(RUN.id) == (-1, 0)

    def test_champions_are_as_their_record_says_and_each_change_is_one_event(self, store):
        """What a crash kept from the store is entered by whoever promotes next; to say it again changes nothing."""
        known = tables()
        checks = {"checks": [{"name": "lead", "passed": True}]}
        first = Promotion(1, "a" * 64, "a" * 16, "run-a", 10.0, None, "study", 4, "d" * 64, checks)
        second = Promotion(2, "b" * 64, "b" * 16, "run-b", 20.0, 1)
        told = [Change("promoted", 1, 10.0, "first"), Change("promoted", 2, 20.0, "second")]
        before = Record("trading", 1, (first,), tuple(told[:1]))
        after = Record("trading", 2, (first, second), tuple(told))
        back = Record("trading", 1, (first, second), (*told, Change("rolled back", 1, 30.0, "back")))
        enter(store, replace(before, name="other"))  # another name has nothing to do with it
        for record in (before, after, after, back, back):
            enter(store, record)

        def rows(connection):
            mine = (
                known.champions.select().where(known.champions.c.name == "trading").order_by(known.champions.c.number)
            )
            return connection.execute(mine).all(), connection.execute(known.events.select()).all()

        champions, events = store.read(rows)
        assert [(row.number, row.run, row.current) for row in champions] == [(1, "run-a", True), (2, "run-b", False)]
        assert (champions[0].study, champions[0].trial, champions[0].evaluation) == ("study", 4, checks)
        assert [row.policy_hash for row in champions] == ["a" * 64, "b" * 64]
        own = [(event.kind, event.data["number"]) for event in events if event.data["name"] == "trading"]
        assert own == [("promoted", 1), ("promoted", 2), ("rolled back", 1)]

    def test_many_rows_at_once(self, store):
        store.create_run(RUN)
        store.add_metrics(RUN.id, (MetricRow(step, "a", float(step), 1.0) for step in range(12_345)))
        assert store.metrics(RUN.id)["value"].sum() == sum(range(12_345))

    # Outlines: what a picture of a long curve needs

    def test_every_whole_block_of_a_long_curve_has_an_outline_with_its_extremes(self, store):
        store.create_run(RUN)
        values = [math.sin(step / 90) for step in range(1300)]
        values[600], values[700], values[900] = 50.0, -50.0, math.nan
        for begin in range(0, 1300, 100):
            store.add_metrics(RUN.id, [MetricRow(s, "loss", values[s], 0.0) for s in range(begin, begin + 100)])
        found = outline_of(store)
        assert (found.first, found.last, found.rows) == (0, 1023, 1024)
        assert 1024 // 8 <= len(found.steps) < 1024 // 4
        shown = dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))
        assert math.isnan(shown.pop(900))
        assert shown.items() <= {step: value for step, value in enumerate(values) if step != 900}.items()
        assert (shown[600], shown[700]) == (50.0, -50.0)
        assert {0, 511, 512, 1023} <= shown.keys()
        assert outline_of(store, begin=1).first == 512
        assert outline_of(store, begin=1, end=1022) is None

    def test_an_outline_is_of_the_rows_that_there_are(self, store):
        """Rows are written again, come late, are forgotten: never does an outline show one that is not there."""
        store.create_run(RUN)

        def add(steps, value):
            store.add_metrics(RUN.id, [MetricRow(step, "loss", value, 0.0) for step in steps])

        add(range(0, 3000, 2), 1.0)
        assert outline_of(store).rows == 1024
        add([701], 9.0)  # belongs into the first block
        found = outline_of(store)
        assert found is None or 9.0 in found.values
        add(range(3000, 4200, 2), 1.0)
        add([4200], 1.0)  # a few blocks at a time: it catches up
        found = outline_of(store)
        assert 9.0 in found.values
        assert found.rows == 2048
        store.forget_after(RUN.id, 1500)
        assert outline_of(store).last <= 1500
        store.forget_metrics(RUN.id)
        assert outline_of(store) is None
        add(range(600), 3.0)
        assert set(outline_of(store).values) == {3.0}

    def test_a_row_that_is_written_again_leaves_no_block_without_an_outline(self, store):
        store.create_run(RUN)
        for first in range(0, 1024, 256):
            store.add_metrics(RUN.id, [MetricRow(step, "loss", 1.0, 1.0) for step in range(first, first + 256)])
        store.add_metrics(RUN.id, [MetricRow(1023, "loss", 5.0, 2.0)])
        found = outline_of(store)
        assert (found.rows, found.values[-1]) == (1024, 5.0)

    def test_a_store_of_version_2_is_taken_over_and_its_curves_are_outlined_when_there_is_time(self, store, tmp_path):
        store.create_run(RUN)
        rows = [MetricRow(step, name, float(step), 0.0) for step in range(5000) for name in ("loss", "other")]
        store.add_metrics(RUN.id, rows)
        with store._engine.begin() as connection:
            tables().metadata.drop_all(connection, tables=[tables().outlines])
            connection.execute(tables().schema.update().values(version=2))
        store.close()
        with self.open(tmp_path) as again:
            assert again.metrics(RUN.id, ["loss"]).height == 5000
            assert outline_of(again) is None
            looks = 0
            while again.outline(RUN.id):
                looks += 1
            assert looks == 2
            assert outline_of(again).rows == outline_of(again, "other").rows == 4608


def outline_of(store: SqlStore, name: str = "loss", begin: int = 0, end: int = 2**62) -> Outline | None:
    return store.read(lambda connection: read_outline(connection, RUN.id, name, begin, end))
