"""Studies over the queue: exactly the trials that were asked for, once each, whoever is killed or frozen meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.contracts.executor import waited_for
from tests.runs.small_runs import TINY
from tests.service.pretending import PretendingExecutor, begin, keep, pretending, rows, score
from velodrome import cli
from velodrome.service.queue import Choice
from velodrome.service.studies import StudyKeeper, job_id
from velodrome.service.tuning import _more, stop, tune
from velodrome.tune.beginning import check_same
from velodrome.tune.listing import list_table, mark_of, show_view, told_line
from velodrome.tune.report import write_report
from velodrome.tune.study import Studies, StudyError, loaded
from velodrome.tune.view import StudyView

TRIALS = 16


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A study that nobody disturbed: its rows, the service, and which trainings were begun."""
    executor = PretendingExecutor(score)
    service = pretending(tmp_path_factory.mktemp("undisturbed") / "runs", executor)
    study = begin(service, TRIALS)
    assert keep(service, study)
    yield rows(service, study), service, study, executor
    service.close()


def test_a_study_has_exactly_its_trials_each_training_once_and_a_winner(undisturbed):
    found, service, study, executor = undisturbed
    assert [row[0] for row in found] == list(range(TRIALS))
    assert {row[2] for row in found} == {"complete", "pruned"}
    assert len(executor.started) == len(set(executor.started)) == len(service.queue.of_study(study.id))
    course = loaded(Studies(service.store), study)
    assert course.winner is not None
    assert course.fresh_mean(course.winner) > course.fresh_mean(course.trials[0])  # better than the configuration
    jobs = service.queue.of_study(study.id)
    assert {job.trial for job in jobs.values()} == set(range(TRIALS))
    seeds = {service.queue.job(job_id(study, 0, step)).config["seed"] for step in range(6)}
    assert seeds == {0, 1, 2, 1000, 1001, 1002}


def test_lost_trainings_and_keepers_that_are_killed_or_frozen_leave_the_same_study(tmp_path, undisturbed, monkeypatch):
    """Every other training is lost with its process, and keepers are replaced, or go on with what they knew before."""
    monkeypatch.setattr("velodrome.service.job.FIRST_PAUSE", 0.0)
    monkeypatch.setattr(
        "velodrome.service.job.ENDS", {**_ends(), "machine_lost": _ends()["machine_lost"]._replace(retries=99)}
    )
    executor = PretendingExecutor(score, lost=0.3, seed=1)
    service = pretending(tmp_path / "runs", executor)
    study = begin(service, TRIALS)
    chance = random.Random(4)
    keepers = [StudyKeeper(service, study) for _ in range(3)]
    deadline = time.monotonic() + 240.0
    while not keep(service, study, chance.choice(keepers), turns=chance.randrange(1, 4)):
        assert time.monotonic() < deadline
        if chance.random() < 0.2:  # a keeper is killed, and another begins with the rows alone
            keepers[chance.randrange(3)] = StudyKeeper(service, study)
    for keeper in keepers:  # those that slept wake up
        keeper.advance()
    assert rows(service, study) == undisturbed[0]
    jobs = service.queue.of_study(study.id).values()
    assert {job.status for job in jobs} == {"finished"}
    ends = [event.data["end"] for job in jobs for event in service.queue.events(job.id) if event.kind == "ended"]
    assert ends.count("finished") == len(jobs)
    assert "machine_lost" in ends
    service.close()


def _ends():
    from velodrome.service.job import ENDS

    return ENDS


def test_a_write_that_failed_is_done_again(tmp_path, undisturbed, monkeypatch):
    service = pretending(tmp_path / "runs", PretendingExecutor(score))
    study = begin(service, TRIALS)
    keeper = StudyKeeper(service, study)
    keep(service, study, keeper, turns=12)
    entering, failures = Studies.enter, []

    def fail(self, *arguments):
        failures.append(1)
        raise StoreErrorOfTest("the disk is full")

    from velodrome.errors import StoreError

    class StoreErrorOfTest(StoreError):
        pass

    monkeypatch.setattr(Studies, "enter", fail)
    for _ in range(3):
        try:
            keep(service, study, keeper, turns=3)
        except StoreErrorOfTest:
            continue
    assert failures
    monkeypatch.setattr(Studies, "enter", entering)
    assert keep(service, study, keeper)
    assert rows(service, study) == undisturbed[0]
    service.close()


def test_settings_are_not_blamed_for_a_training_that_somebody_cancelled(tmp_path):
    """Whatever happens while it stops: else the study would end with its first trial."""
    service = pretending(tmp_path / "runs", PretendingExecutor(score))
    study = begin(service, 4)
    StudyKeeper(service, study).advance()
    first = job_id(study, 0, 0)
    service.queue.claim("s", "m", lambda waiting: [Choice(job) for job in waiting.jobs if job.id == first])
    service.cancel(first)
    service.queue.end(first, 1, "out_of_memory", "it took 2 GiB", 0, most_memory=2**40)
    assert keep(service, study)
    outcome = loaded(Studies(service.store), study).trials[0].outcomes[0]
    assert (outcome.kind, outcome.reason) == ("cancelled", "cancelled: out of memory: it took 2 GiB")
    assert Studies(service.store).refreshed(study).status == "finished"
    service.close()


def test_a_configuration_that_breaks_ends_the_study_and_a_trial_that_breaks_does_not(tmp_path):
    def broken(config):
        if config["ppo.clip"] == 0.2 or not everything:
            raise ValueError("the loss is not a number")
        return score(config)

    for everything, status in ((True, "failed"), (False, "failed")):
        service = pretending(tmp_path / f"runs-{everything}", PretendingExecutor(broken))
        study = begin(service, 6)
        assert keep(service, study)
        found = rows(service, study)
        assert Studies(service.store).refreshed(study).status == status
        assert found[0][2] == "failed"
        assert "the loss is not a number" in found[0][4]
        service.close()

    def bold(config):
        if config["ppo.clip"] > 0.3:
            raise ValueError("the loss is not a number")
        return score(config)

    service = pretending(tmp_path / "runs-bold", PretendingExecutor(bold))
    study = begin(service, 10)
    assert keep(service, study)
    assert Studies(service.store).refreshed(study).status == "finished"
    statuses = [row[2] for row in rows(service, study)]
    assert "failed" in statuses
    assert len(statuses) == 10
    service.close()


def test_more_trials_go_on_and_fewer_than_were_begun_are_refused(tmp_path, undisturbed):
    service = pretending(tmp_path / "runs", PretendingExecutor(score))
    study = begin(service, 8)
    keep(service, study, turns=6)
    studies = Studies(service.store)
    with pytest.raises(StudyError, match="has begun"):
        _more(service, studies, study, 1)
    study = _more(service, studies, study, TRIALS)
    assert keep(service, study)
    assert rows(service, study) == undisturbed[0]  # as if so many had been asked for at once
    service.close()


def test_a_study_that_is_replaced_gives_its_name_free(tmp_path):
    service = pretending(tmp_path / "runs", PretendingExecutor(score, lost=1.0))
    study = begin(service, 8)
    keep(service, study, turns=3)
    stopped = stop(service, study)
    assert stopped.status == "replaced"
    assert Studies(service.store).find("pretended") is None
    assert all(job.is_over or job.wanted == "cancel" for job in service.queue.of_study(study.id).values())
    Studies(service.store).create(replace(study, id="other"))
    service.close()


def test_a_study_that_nobody_goes_on_with_is_told_so(tmp_path, capsys):
    service = pretending(tmp_path / "runs", PretendingExecutor(score))
    begin(service, 2)
    service.close()
    for words in (["studies", "list"], ["studies", "show", "pretended", "--no-report"]):
        assert cli.run([*words, "--folder", str(tmp_path / "runs")]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "nothing is trained for pretended; go on: velodrome tune --study pretended --folder" in told
    with (service := pretending(tmp_path / "runs", PretendingExecutor(score))).store:
        assert keep(service, Studies(service.store).find("pretended"))
    assert cli.run(["studies", "list", "--folder", str(tmp_path / "runs")]) == 0
    assert "nothing is trained" not in capsys.readouterr().out


def test_what_is_shown_of_a_study(undisturbed):
    from io import StringIO

    from rich.console import Console

    _, service, study, _ = undisturbed
    view = StudyView.of(Studies(service.store), Studies(service.store).refreshed(study), service.folder)
    out = StringIO()
    console = Console(file=out, width=80)
    console.print(show_view(view))
    console.print(list_table([view]))
    text = out.getvalue()
    assert "16 of 16 trials" in text
    assert "as configured" in text
    assert "winner: trial" in text
    assert "chance of beating it is" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "trials an hour" in told_line(view)
    assert mark_of(view)[2] == TRIALS
    page = write_report(view).read_text(encoding="utf-8")
    assert "Parallel coordinates" in page
    assert "chance of beating it is" in page
    assert {path.name for path in (service.folder / "studies" / "pretended").glob("*.png")} >= {
        "history.png",
        "parallel.png",
    }
    content = view.to_dict()
    assert len(content["trials"]) == TRIALS
    assert content["winner"] == view.winner.number
    assert repr(view).startswith("Study pretended: finished, 16 of 16 trials")


@pytest.mark.parametrize("text", ["nothing", "", "xyz"])
def test_an_unknown_study_is_told(undisturbed, text):
    with pytest.raises(StudyError, match="no study"):
        Studies(undisturbed[1].store).get(text)


def test_a_study_is_named_by_its_name_its_start_or_latest(undisturbed):
    studies = Studies(undisturbed[1].store)
    assert {studies.get(text).id for text in ("pretended", "pret", "abcd", "latest")} == {"abcd1234"}


@pytest.mark.slow
def test_five_hundred_trivial_trials_cost_little(tmp_path):
    """A tenth of a second a trial, beyond the trials: choosing, queue, rows. CPU time, because machines are busy."""
    service = pretending(tmp_path / "runs", PretendingExecutor(score))
    study = begin(service, 500, seeds=1, pruning=False)
    begun = time.process_time()
    assert keep(service, study)
    each = (time.process_time() - begun) / 500
    assert each < 0.1, f"{each:.4f} s"
    service.close()


def test_the_public_name_can_be_called_whatever_was_imported_before():
    """`velodrome.tune` is a folder, too, which Python sets in place of the function when a module of it is imported."""
    import velodrome as vd
    import velodrome.tune.course
    from velodrome.errors import ConfigError

    for found in (vd.tune, velodrome.tune, sys.modules["velodrome.tune"]):
        with pytest.raises(ConfigError, match="workers = 0"):
            found("smoke", 1, workers=0)


def test_a_study_is_not_continued_with_what_is_anothers(undisturbed):
    study = undisturbed[2]
    check_same(study, replace(study, trials=99))
    searched = {**study.space, "dimensions": [{**study.space["dimensions"][0], "high": 0.5}]}
    others = {
        "has another configuration: steps is": {"config": {**study.config, "steps": 1}},
        "searches another space: ppo.clip is 0.1:0.4 there and not searched here": {"space": searched},
        "searches in another way: seeds is 3 there and 4 here": {"settings": {**study.settings, "seeds": 4}},
        "was begun on other data": {"data_hash": "another"},
    }
    for told, changed in others.items():
        with pytest.raises(StudyError, match=told):
            check_same(study, replace(study, **changed))


# Stopping and going on


def tuned(folder, executor: PretendingExecutor, **options):
    """Carry out a study of the preset smoke by `vd.tune`, with trainings that pretend; return its rows, and how."""
    service = pretending(folder, executor)
    told = {"search": ["ppo.learning_rate=1e-5:1e-2:log", "ppo.clip=0.1:0.4"], "search_only": True}
    own = {} if options.pop("continued", False) else {**told, "config": "smoke", "trials": 6}
    wanted = {"seeds": 2, "test": False, "confirm": 1, "confirm_seeds": 1, "window": 3}
    view = tune(study="told", settings={} if not own else wanted, service=service, mode="quiet", **{**own, **options})
    found = [(row[:5], {step: one.value for step, one in row[5].items()}) for row in rows(service, view.study)]
    service.close()
    return view, found


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A study by `vd.tune` that was not stopped."""
    view, found = tuned(tmp_path_factory.mktemp("straight") / "runs", PretendingExecutor(score))
    assert view.study.status == "finished"
    return found


def test_ctrl_c_stops_a_study_and_the_same_call_goes_on(tmp_path, straight, monkeypatch):
    executor = PretendingExecutor(score)
    start = executor.start

    def struck(task):
        start(task)
        if len(executor.started) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(executor, "start", struck)
    view, found = tuned(tmp_path / "runs", executor)
    assert view.study.status == "running"
    assert 0 < sum(len(outcomes) for _, outcomes in found) < sum(len(outcomes) for _, outcomes in straight)
    view, found = tuned(tmp_path / "runs", executor, continued=True)
    assert view.study.status == "finished"
    assert found == straight
    assert len(executor.started) == len(set(executor.started))  # nothing was done twice


def test_a_study_that_is_out_of_time_stops_and_goes_on(tmp_path, straight):
    executor = PretendingExecutor(score)
    view, found = tuned(tmp_path / "runs", executor, hours=1e-9)
    assert view.study.status == "running"
    assert len(found) < 6
    view, found = tuned(tmp_path / "runs", executor, continued=True, hours=1.0)
    assert view.study.status == "finished"
    assert found == straight


def test_the_command_that_continues_a_study_says_where_it_is(tmp_path, capsys):
    folder = tmp_path / "my runs"
    words = ["smoke", "--trials", "2", "--study", "first", "--hours", "1e-9", "--quiet", "--folder", str(folder)]
    assert cli.run(["tune", *words]) == 130
    assert capsys.readouterr().err.endswith(f"continue with: velodrome tune --study first --folder '{folder}'\n")


def test_a_study_of_accounts_that_trade_for_nothing_says_so(tmp_path, capsys):
    view, _ = tuned(tmp_path / "free", PretendingExecutor(score))
    assert "warning: trades cost nothing here" in capsys.readouterr().err
    assert view.study.is_free
    view, _ = tuned(tmp_path / "paid", PretendingExecutor(score), **{"params.fee": 0.001})
    assert capsys.readouterr().err == ""
    assert not view.study.is_free


def test_a_study_from_before_there_was_a_model_goes_on_as_it_began(undisturbed):
    study = undisturbed[2]
    old = replace(study, settings={key: value for key, value in study.settings.items() if key != "sampler"})
    assert study.told.sampler == "model"
    assert old.told.sampler == "tpe"
    check_same(old, replace(old, settings=old.told.model_dump()))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("smoke", "how many trials? Give their number"),
        ("smoke --trials 0", "trials = 0: a study has 1 to 1,000,000 trials"),
        ("smoke --trials 2 --workers 0", "workers = 0: at least one training"),
        ("smoke --trials 2 --hours nan", "hours = nan: give a time above 0"),
        ("smoke --trials 2 --folds 1", "folds = 1: Input should be greater than or equal to 2"),
        ("smoke --trials 2 --folds 100 market.length=300", "bars before the test split are too few"),
        ("smoke --trials 2 --folds 3 --seeds 2", "seeds = 2 has no effect beside folds = 3"),
        ("smoke --trials 2 --no-test --auto-promote", "auto_promote = True has no effect without the test"),
        ("env=CartPole-v1 --trials 2 --folds 3", "'CartPole-v1' has no data to cut into folds"),
        ("smoke --trials 2 --sampler best", "sampler = 'best': Input should be 'model' or 'tpe'"),
        ("smoke --trials 2 --score profit", "score = 'profit': trials of 'trading' are compared by sharpe, return"),
        ("smoke --trials 2 --study ../up", "study = '../up': a name has letters"),
        ("smoke --trials 2 evaluation.final_split=validation", "the winner is tested on a split that no trial was"),
        ("smoke --trials 2 seeds=3", "seeds = 3: a study trains one agent at a time"),
        ("--study nothing", "no study 'nothing': there is none in"),
    ],
)
def test_what_cannot_be_begun_is_told_in_a_sentence_and_leaves_nothing(tmp_path, capsys, words, problem):
    assert cli.run(["tune", *words.split(), "--folder", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert problem in told.err
    assert told.err.count("\n") == 1
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.slow
def test_the_command_with_folds_is_stopped_by_ctrl_c_and_goes_on_to_the_same_study(tmp_path):
    """Real processes and trainings, on walk-forward folds, to the winner's test."""
    words = ["--trials", "4", "--study", "folded", "--workers", "2", "--folds", "2", "--confirm", "1", "--startup", "2"]
    words += ["--final-seeds", "2", "--search", "ppo.learning_rate=1e-5:1e-2:log", "--search-only", "--json"]
    taught = {"teacher.policy": "forecast", "teacher.samples": 512, "teacher.epochs": 1, "market.length": 1200}
    settings = {**TINY, **taught}.items()
    words += [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in settings]

    def begun(folder, *told):
        command = [sys.executable, "-m", "velodrome", "tune", *told, "--folder", str(folder)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def over(process, code):
        out, error = process.communicate(timeout=400)
        assert process.returncode == code, error
        return json.loads(out)

    def values(content):
        trials = content["trials"]
        return [(one["params"], one["status"], [each["value"] for each in one["outcomes"]]) for one in trials]

    straight = over(begun(tmp_path / "straight", "smoke", *words), 0)
    assert (straight["over"], straight["status"]) == (4, "finished")
    assert straight["test"]["study"]["trials"] == 4
    folder = tmp_path / "stopped"
    process = begun(folder, "smoke", *words)
    waited_for(lambda: len(list(folder.glob("folded-*/trial.json"))) >= 2)
    assert len(list((folder / "studies").glob(".taught-*/*.safetensors"))) in (1, 2)  # one of each fold, for all trials
    process.send_signal(signal.SIGINT)
    stopped = over(process, 130)
    assert stopped["status"] == "running"
    finished = over(begun(folder, "--study", "folded", "--workers", "2", "--json"), 0)
    assert finished["status"] == "finished"
    assert not list((folder / "studies").glob(".taught-*"))
    assert values(finished) == values(straight)
