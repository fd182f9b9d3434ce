"""The suite of the queue: subclass it and say which store it lies in. Its promises are about who may change what."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from velodrome.errors import JobError, LeaseLostError
from velodrome.runs.folder import LEASE
from velodrome.runs.machine.disk import NO_ROOM
from velodrome.runs.store.rows import MetricRow, RunRecord
from velodrome.runs.store.store import SqlStore
from velodrome.service.job import ENDS, LONGEST_PAUSE, Job
from velodrome.service.queue import Choice, Queue, Waiting

HERE = "here|boot|pid"


def job(identity: str = "ab12cd34", **about: Any) -> Job:
    """Return a job that waits."""
    told: dict[str, Any] = {"created": 100.0, "updated": 100.0, "config": {"steps": 640}, "folder": f"x-{identity}"}
    return Job(**{"id": identity, "name": "first", "owner": "alice", "directory": "/", **told, **about})


def claim(queue: Queue, machine: str = HERE) -> list[Job]:
    """Take all that waits."""
    return queue.claim("service", machine, lambda waiting: [Choice(each) for each in waiting.jobs])


class QueueContract:
    """What holds in every store."""

    def open(self, tmp_path: Path) -> SqlStore:
        """Return a store that is empty, or was opened with this folder before."""
        raise NotImplementedError

    @pytest.fixture
    def queue(self, tmp_path) -> Iterator[Queue]:
        store = self.open(tmp_path)
        yield Queue(store)
        store.close()

    @pytest.fixture
    def begun(self, queue) -> Job:
        """The job of an attempt that runs."""
        queue.submit(job())
        (found,) = claim(queue)
        return queue.attach(found.id, found.attempt, "7:1")

    def test_a_job_comes_back_as_it_was_submitted(self, queue):
        queue.submit(job(priority=3, memory=2**40, study="s", trial=4))
        assert queue.job("ab12cd34") == job(priority=3, memory=2**40, study="s", trial=4)

    def test_jobs_are_found_by_the_start_of_their_id_by_name_and_as_the_latest(self, queue):
        queue.submit(job("ab12cd34"))
        queue.submit(job("ab99ffff", name="second", created=200.0))
        assert {queue.job(text).id for text in ("ab1", "first", "ab12cd34")} == {"ab12cd34"}
        assert queue.job("latest").id == queue.job("second").id == "ab99ffff"
        queue.submit(job("cd000000", name="ab9", created=50.0))
        assert queue.job("ab9").id == "cd000000"  # its name, though another's id begins like that
        for text, said in (("ab", "means 2 jobs"), ("", "no job ''"), ("secnd", "Did you mean 'second'")):
            with pytest.raises(JobError, match=said):
                queue.job(text)

    def test_without_jobs_it_is_said_how_to_submit_one(self, queue):
        with pytest.raises(JobError, match="velodrome submit"):
            queue.job("latest")

    def test_a_claim_counts_the_attempt_and_is_made_once(self, queue, begun):
        assert (begun.status, begun.attempt, begun.machine) == ("running", 1, HERE)
        assert claim(queue) == []

    def test_of_two_services_that_claim_at_once_each_job_goes_to_one(self, queue, tmp_path):
        for number in range(20):
            queue.submit(job(f"{number:08d}"))
        taken: list[str] = []
        stores = [self.open(tmp_path) for _ in range(4)]

        def work(store: SqlStore) -> None:
            own = Queue(store)
            while found := own.claim("s", HERE, lambda waiting: [Choice(each) for each in waiting.jobs[:2]]):
                taken.extend(each.id for each in found)

        threads = [threading.Thread(target=work, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in stores:
            store.close()
        assert sorted(taken) == [f"{number:08d}" for number in range(20)]

    @pytest.mark.parametrize(("ask", "status"), [("cancel", "cancelled"), ("pause", "paused")])
    def test_who_is_cancelled_or_paused_while_a_service_claims_it_does_not_begin(self, queue, tmp_path, ask, status):
        """What is asked between the look of the claim and its write is kept; on SQLite it has to wait for the claim."""
        queue.submit(job("00000001"))
        queue.submit(job("00000002"))
        store = self.open(tmp_path)
        asking = threading.Thread(target=getattr(Queue(store), ask), args=("00000001",))
        looks: list[int] = []

        def choose(waiting: Waiting) -> list[Choice]:
            looks.append(len(waiting.jobs))
            if len(looks) == 2:  # the first is before the transaction
                asking.start()
                asking.join(0.5)
            return [Choice(each) for each in waiting.jobs]

        begun = queue.claim("service", HERE, choose)
        asking.join()
        store.close()
        found = queue.job("00000001")
        asked_first = "00000001" not in [each.id for each in begun]
        assert (found.status, found.wanted) == ((status, "") if asked_first else ("running", ask))
        started = [event.job for event in queue.events(kind="started")]
        assert started == [each.id for each in begun]
        assert queue.job("00000002").status == "running"

    # The lease

    def test_signs_of_life_are_counted_and_bring_back_what_is_wanted(self, queue, begun):
        assert queue.beat(begun.id, 1, steps=64) == ""
        queue.pause(begun.id)
        assert queue.beat(begun.id, 1, steps=128) == "pause"
        assert (queue.job(begun.id).beat, queue.job(begun.id).steps) == (2, 128)

    def test_an_attempt_that_is_over_changes_nothing_any_more(self, queue, begun):
        queue.end(begun.id, 1, "machine_lost", "gone", 0)
        waiting = queue.job(begun.id)
        for late in (
            lambda: queue.beat(begun.id, 1, steps=999),
            lambda: queue.attach(begun.id, 1, "8:1"),
            lambda: queue.end(begun.id, 1, "finished", "", 999),
        ):
            with pytest.raises(LeaseLostError, match="attempt 1 is over"):
                late()
        assert queue.job(begun.id) == waiting
        queue.resume(begun.id)
        (again,) = claim(queue)
        assert again.attempt == 2
        with pytest.raises(LeaseLostError, match="is running, at attempt 2"):
            queue.end(begun.id, 1, "finished", "", 999)

    def test_rows_of_a_run_are_fenced_by_the_attempt(self, queue, begun, tmp_path, monkeypatch):
        queue.store.create_run(RunRecord(begun.id, "first", "/nowhere"))
        monkeypatch.setenv(LEASE, f"{begun.id}:1")
        with self.open(tmp_path) as fenced:
            fenced.add_metrics(begun.id, [MetricRow(1, "a", 1.0, 1.0)])
            queue.end(begun.id, 1, "stalled", "frozen", 0)
            for late in (
                lambda: fenced.add_metrics(begun.id, [MetricRow(2, "a", 2.0, 1.0)]),
                lambda: fenced.put_run(RunRecord(begun.id, "other", "/elsewhere")),
                lambda: fenced.at_once(lambda: fenced.forget_metrics(begun.id)),
            ):
                with pytest.raises(LeaseLostError, match="what attempt 1 writes is refused"):
                    late()
            queue.resume(begun.id)
            claim(queue)
            with pytest.raises(LeaseLostError, match="at attempt 2"):
                fenced.add_metrics(begun.id, [MetricRow(2, "a", 2.0, 1.0)])
        assert queue.store.metrics(begun.id).rows() == [(1, "a", 1.0, 1.0)]
        assert queue.store.run(begun.id).name == "first"

    def test_a_process_that_woke_up_in_between_is_not_given_up(self, queue, begun):
        queue.beat(begun.id, 1)
        with pytest.raises(LeaseLostError, match="is alive"):
            queue.end(begun.id, 1, "machine_lost", "silent", 0, beat=begun.beat)
        assert queue.job(begun.id).status == "running"

    # Ends and retries

    @pytest.mark.parametrize("kind", [kind for kind, end in ENDS.items() if end.retries])
    def test_the_faults_of_machines_are_retried_with_growing_pauses_and_counted(self, queue, kind):
        queue.submit(job(memory_used=1))
        pauses = []
        for attempt in range(1, ENDS[kind].retries + 1):
            claim(queue)
            after = queue.end("ab12cd34", attempt, kind, "again", 0, most_memory=2**50)
            assert (after.status, after.ended, after.retries) == ("waiting", kind, {kind: attempt})
            pauses.append(after.not_before - time.time())
            assert claim(queue) == []  # it waits
            queue.store.write(_ready)
        claim(queue)
        after = queue.end("ab12cd34", attempt + 1, kind, "again.", 0, most_memory=2**50)
        assert (after.status, after.ended) == ("failed", kind)
        assert after.message == f"again. Tried {attempt + 1} times."
        growing = [min(1.5 * pause, 0.9 * LONGEST_PAUSE) for pause in pauses]
        assert all(later > least > 0 for least, later in zip(growing, pauses[1:], strict=False))

    @pytest.mark.parametrize("kind", ["error", "not_a_number"])
    def test_the_faults_of_code_are_not_retried(self, queue, begun, kind):
        after = queue.end(begun.id, 1, kind, "ZeroDivisionError: division by zero", 0)
        assert (after.status, after.ended, after.message) == ("failed", kind, "ZeroDivisionError: division by zero")

    def test_a_training_that_came_further_has_all_its_retries_again(self, queue):
        queue.submit(job())
        for attempt in range(1, 12):
            queue.store.write(_ready)
            claim(queue)
            after = queue.end("ab12cd34", attempt, "machine_lost", "gone", attempt * 64)
            assert (after.status, after.retries) == ("waiting", {"machine_lost": 1})

    def test_preempted_ones_wait_for_nothing_and_are_retried_for_ever(self, queue):
        queue.submit(job())
        for attempt in range(1, 30):
            (found,) = claim(queue)
            assert queue.end(found.id, attempt, "stopped", "", 0).ended == "preempted"

    def test_a_retry_after_memory_ran_out_has_more_up_to_the_budget(self, queue):
        queue.submit(job(memory=100, memory_used=150))
        for attempt, wanted in ((1, 300), (2, 500)):
            claim(queue)
            assert queue.end("ab12cd34", attempt, "out_of_memory", "", 0, most_memory=500).memory == wanted
            queue.store.write(_ready)
        claim(queue)
        assert queue.end("ab12cd34", 3, "out_of_memory", "", 0, most_memory=500).status == "failed"

    # What people ask for

    def test_who_waits_is_paused_resumed_and_cancelled_at_once(self, queue):
        queue.submit(job())
        assert queue.pause("ab1").status == "paused"
        assert claim(queue) == []
        assert queue.resume("ab1").status == "waiting"
        assert queue.cancel("ab1").status == "cancelled"
        assert claim(queue) == []

    def test_who_runs_is_asked_and_ends_as_was_wanted(self, queue, begun):
        assert (queue.pause(begun.id).status, queue.job(begun.id).wanted) == ("running", "pause")
        assert queue.end(begun.id, 1, "stopped", "", 64).status == "paused"
        queue.resume(begun.id)
        claim(queue)
        queue.cancel(begun.id)
        assert queue.end(begun.id, 2, "machine_lost", "killed", 64).status == "cancelled"

    @pytest.mark.parametrize("kind", [*(kind for kind in ENDS if kind != "finished"), "stopped"])
    @pytest.mark.parametrize(("ask", "status"), [("cancel", "cancelled"), ("pause", "paused")])
    def test_a_person_s_word_holds_however_the_training_ends(self, queue, begun, ask, status, kind):
        getattr(queue, ask)(begun.id)
        after = queue.end(begun.id, 1, kind, "what happened", 64, most_memory=2**50)
        stopped = {"cancel": "cancelled", "pause": "preempted"}[ask]
        ended = stopped if kind in ("stopped", "preempted") else kind
        assert (after.status, after.wanted, after.ended) == (status, "", ended)
        assert after.message == "what happened"
        assert queue.events(begun.id)[-1].data == {"attempt": 1, "end": ended, "steps": 64}
        queue.store.write(_ready)
        assert claim(queue) == []

    @pytest.mark.parametrize("ask", ["cancel", "pause"])
    def test_who_finishes_while_somebody_cancels_or_pauses_has_finished(self, queue, begun, ask):
        getattr(queue, ask)(begun.id)
        after = queue.end(begun.id, 1, "finished", "", 640)
        assert (after.status, after.ended) == ("finished", "finished")

    def test_who_ran_out_of_memory_while_it_was_paused_has_more_when_it_goes_on(self, queue):
        queue.submit(job(memory=100, memory_used=150))
        claim(queue)
        queue.pause("ab12cd34")
        assert queue.end("ab12cd34", 1, "out_of_memory", "too much", 0, most_memory=500).memory == 300
        assert queue.resume("ab12cd34").status == "waiting"
        assert [found.memory for found in claim(queue)] == [300]

    def test_a_failed_one_is_tried_again_when_asked(self, queue, begun):
        queue.end(begun.id, 1, "error", "oh", 0)
        assert queue.resume(begun.id).status == "waiting"
        assert [found.attempt for found in claim(queue)] == [2]

    def test_what_cannot_be_asked_is_refused_in_a_sentence(self, queue, begun):
        queue.cancel(begun.id)
        with pytest.raises(JobError, match="is being cancelled already"):
            queue.cancel(begun.id)
        queue.end(begun.id, 1, "stopped", "", 0)
        for ask in (queue.cancel, queue.pause, queue.resume, lambda one: queue.set_priority(one, 3)):
            with pytest.raises(JobError, match="was cancelled already"):
                ask(begun.id)
        queue.submit(job("00000001", name="second"))
        with pytest.raises(JobError, match="waits for its turn"):
            queue.resume("second")

    def test_who_waits_says_that_there_is_no_room_as_long_as_there_is_none(self, queue):
        for number, about in enumerate(({}, {"status": "paused"}, {"message": "its process is gone"})):
            queue.submit(job(f"{number:08d}", **about))
        full = f"{NO_ROOM}/runs has less than 256 MiB left."
        queue.hold(full)
        mark = queue.waiting_mark()
        queue.hold(full)  # changes nothing, so that nobody looks again
        assert queue.waiting_mark() == mark
        assert {each.id: each.message for each in queue.jobs()} == {"00000000": full, "00000001": "", "00000002": full}
        assert [each.lacks_room for each in sorted(queue.jobs(), key=lambda one: one.id)] == [True, False, True]
        queue.submit(job("00000003", message="its process is gone"))
        queue.hold("")
        assert sorted(each.message for each in queue.jobs()) == ["", "", "", "its process is gone"]

    def test_who_ended_for_want_of_room_says_so_until_there_is_some(self, queue, begun):
        queue.end(begun.id, 1, "no_room", "OSError: [Errno 28] No space left on device", 0)
        assert queue.job(begun.id).lacks_room
        queue.hold("")
        assert (queue.job(begun.id).lacks_room, queue.job(begun.id).message) == (False, "")

    def test_draining_asks_all_that_run_and_is_an_event(self, queue, begun):
        first = queue.last_event
        assert [found.id for found in queue.drain()] == [begun.id]
        assert queue.job(begun.id).wanted == "drain"
        assert [event.kind for event in queue.events(after=first, kind="drain")] == ["drain"]
        assert queue.end(begun.id, 1, "stopped", "", 0).status == "waiting"

    def test_what_happened_is_told_in_order(self, queue, begun):
        queue.set_priority(begun.id, 5)
        queue.end(begun.id, 1, "error", "ValueError: no", 64)
        told = [(event.kind, event.text) for event in queue.events(begun.id)]
        assert told == [
            ("submitted", "by alice"),
            ("started", "attempt 1"),
            ("priority", "5"),
            ("ended", "ValueError: no"),
        ]
        assert queue.events(begun.id)[-1].data == {"attempt": 1, "end": "error", "steps": 64}

    def test_a_clock_that_is_put_back_delays_no_retry_and_keeps_no_service_that_is_gone(
        self, queue, begun, monkeypatch
    ):
        queue.enter_service("one", HERE, "7:1", {"cores": 2})
        queue.end(begun.id, 1, "machine_lost", "gone", 0)
        assert claim(queue) == []
        before = time.time() - 86_400.0
        monkeypatch.setattr("velodrome.service.queue.time.time", lambda: before)
        assert queue.services() == []
        assert [found.attempt for found in claim(queue)] == [2]

    def test_services_are_known_while_they_live(self, queue):
        queue.enter_service("one", HERE, "7:1", {"cores": 2})
        queue.enter_service("one", HERE, "7:1", {"cores": 3})
        assert [service["budget"] for service in queue.services()] == [{"cores": 3}]
        queue.leave_service("one")
        assert queue.services() == []


def _ready(connection: Any) -> None:
    """Let what waits for a retry be tried now."""
    connection.exec_driver_sql("UPDATE jobs SET not_before = 0")
