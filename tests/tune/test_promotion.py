"""Promotion: what chance must not pass and skill must, and what becomes of a run, its files and the store."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest

from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from tests.runs.test_portfolio_runs import TINY as PORTFOLIO
from tests.service.pretending import PretendingExecutor, begin, keep, pretending, score
from tests.tune.conftest import GOOD
from velodrome import cli
from velodrome.envs.catalog import CATALOG
from velodrome.envs.parameters import with_preset
from velodrome.errors import ChampionError, ConfigError, RunError
from velodrome.evaluation.intervals import Interval
from velodrome.evaluation.sharpe import Trials, deflated_sharpe, moments, probabilistic_sharpe
from velodrome.runs.evaluate import evaluate
from velodrome.runs.run import Run, train
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import open_store
from velodrome.tune import promotion
from velodrome.tune.champions.frozen import Champion
from velodrome.tune.champions.hooks import Hooks
from velodrome.tune.champions.registry import Registry, enter
from velodrome.tune.promotion import Evidence, _Trial, costs_of, judge, lead_over, looks_of, overfitting_of, promote

TRIALS, BARS = 500, 400


def chosen_of(validation: np.ndarray) -> Evidence:
    ratios = [moments(column).sharpe for column in validation.T]
    return Evidence(Trials.of(ratios), overfitting_of(validation), ("all that were tried",))


def repeat(seed: int, skill: float = 0.0) -> bool:
    """Choose the best of many strategies by the one half of the bars, and judge it on the other."""
    rng = np.random.default_rng(seed)
    returns = rng.normal(0.0, 0.01, (2 * BARS, TRIALS))
    returns[:, 17] += skill
    market = rng.normal(0.0, 0.01, (BARS, 1))
    validation, test = returns[:BARS], returns[BARS:]
    best = int(np.argmax(validation.mean(axis=0) / validation.std(axis=0)))
    own = test[:, [best]]
    leads = {"buy and hold": lead_over(np.log1p(own), np.log1p(market))}
    return all(check.passed for check in judge(chosen_of(validation), own, leads))


def test_the_best_of_500_random_strategies_is_refused():
    """A few of the repeats of the slow test, which makes the claim."""
    assert sum(repeat(seed) for seed in range(3)) == 0


@pytest.mark.slow
def test_the_best_of_500_random_strategies_is_refused_in_95_of_100_repeats():
    assert sum(not repeat(seed) for seed in range(100)) >= 95
    assert sum(repeat(1000 + seed, skill=0.004) for seed in range(20)) >= 19


def test_a_planted_strategy_is_accepted():
    assert repeat(1000, skill=0.004)


def test_each_check_refuses_by_itself():
    rng = np.random.default_rng(3)
    validation = rng.normal(0.0, 0.01, (BARS, 20))
    validation[:, 0] += 0.005
    chosen = chosen_of(validation)
    good, ahead = rng.normal(0.005, 0.01, (BARS, 1)), Interval(0.5, 0.2, 0.8)

    def failed(chosen=chosen, returns=good, margin=0.0, **leads: Interval) -> list[str]:
        found = judge(chosen, returns, leads or {"hold": ahead}, margin)
        return [check.name for check in found if not check.passed]

    assert failed() == []
    assert failed(returns=rng.normal(0.0, 0.01, (BARS, 1))) == ["the deflated Sharpe ratio"]
    assert failed(returns=np.zeros((BARS, 1))) == ["the deflated Sharpe ratio"]
    centred = validation - validation.mean(axis=0)
    assert failed(Evidence(chosen.trials, overfitting_of(centred), ())) == ["the probability of overfitting"]
    assert failed(Evidence(chosen.trials, overfitting_of(validation[:10]), ())) == ["the probability of overfitting"]
    assert failed(Evidence(Trials(1, 0.0), None, ())) == []
    assert failed(Evidence(chosen.trials, None, (), no_choice="all trials played the same")) == []
    assert overfitting_of(validation[:, [0, 0, 0]]) is None
    assert overfitting_of(validation[:, [0, 1, 0, 2]]).trials == 3
    assert failed(margin=0.3) == ["its lead over hold"]
    assert failed(champion=Interval(0.1, -0.1, 0.3), hold=ahead) == ["its lead over champion"]
    assert failed(hold=Interval(0.1, float("nan"), float("nan"))) == ["its lead over hold"]


def test_a_lead_holds_the_chance_of_bars_and_of_training_seeds():
    rng = np.random.default_rng(4)
    market = rng.normal(0.0, 0.01, (BARS, 1))
    one = market + rng.normal(0.001, 0.002, (BARS, 1))
    found = lead_over(one, market)
    assert found.value == pytest.approx(float((one - market).sum()))
    assert found.low < 0.4 < found.high
    apart = np.concatenate([one, one - 0.001, one + 0.001], axis=1)  # the same bars, other agents
    assert lead_over(apart, market).low < found.low
    assert np.isnan(lead_over(np.full((BARS, 1), -np.inf), market).low)


# Runs


@pytest.fixture(scope="module")
def folder(good_run, fresh_folder):
    return fresh_folder(good_run)


@pytest.fixture(scope="module")
def promoted(folder, good_run):
    """The good run as the champion, told to a command that keeps what it is told."""
    keeper = f'{sys.executable} -c \'import sys; open("{folder}/told.json", "w").write(sys.stdin.read())\''
    return promote(good_run.path.name, root=folder, hooks=Hooks(command=keeper))


def rows(folder, table: str) -> list:
    known = getattr(tables(), table)
    with open_store(folder) as store:
        return store.read(lambda connection: connection.execute(known.select()).all())


def test_a_good_run_becomes_the_champion_with_its_lineage(folder, promoted, good_run):
    assert promoted.promoted, promoted.reasons
    assert promoted.said[0].startswith("1 trial: the test data is looked at for the first time")
    champion = Registry(folder).champion("trading")
    assert {path.name for path in champion.path.iterdir()} == {"champion.json", "config.yaml", "policy-0.safetensors"}
    assert champion.about["lineage"]["run"] == good_run.folder.id
    assert champion.about["lineage"]["data_hash"] == good_run.market.content_hash
    assert champion.about["lineage"]["config_hash"] == good_run.config.hash
    assert [check["passed"] for check in champion.about["evaluation"]["checks"]] == [True] * 3
    (row,) = rows(folder, "champions")
    assert (row.name, row.number, row.run, row.current) == ("trading", 1, good_run.folder.id, True)
    assert row.policy_hash == champion.hash
    (event,) = rows(folder, "events")
    assert (event.kind, event.run, event.data["hash"]) == ("promoted", good_run.folder.id, champion.hash)
    told = json.loads((folder / "told.json").read_text())
    assert (told["kind"], told["name"], told["hash"]) == ("promoted", "trading", champion.hash)


def test_a_champion_acts_as_its_run_and_keeps_no_optimiser(folder, promoted, good_run):
    from velodrome.rollout.observation import WindowBank

    champion = Registry(folder).champion("trading")
    market = champion.lay_out(good_run.market_settings.bars())
    assert np.array_equal(market.windows.values, good_run.market.windows.values)
    bank = WindowBank(market.windows)
    observation = {"account": np.zeros((50, 8), np.float32), "cursor": np.arange(100, 150)}
    mine, its = (one.with_bank(bank).act(observation) for one in (champion.policy(), good_run.policy))
    assert np.array_equal(mine, its)
    from safetensors.numpy import load_file

    kept = load_file(champion.path / "policy-0.safetensors")
    assert {name.split(".")[0] for name in kept} <= {"policy", "moments", "scale"}


def test_a_worse_run_is_refused_and_says_which_checks(folder, promoted):
    other = {name: value for name, value in GOOD.items() if not name.startswith("teacher")}
    run = small_run(folder, seed=5, **other)
    before = Registry(folder).record("trading")
    verdict = promote(run)
    assert not verdict.promoted
    assert any("deflated Sharpe ratio" in reason for reason in verdict.reasons)
    assert any("lead over the champion 'trading'" in reason for reason in verdict.reasons)
    assert Registry(folder).record("trading") == before
    event = rows(folder, "events")[-1]
    assert (event.kind, event.run, event.data["reasons"]) == ("not promoted", run.folder.id, list(verdict.reasons))


def test_the_champion_does_not_lead_over_itself(folder, promoted, good_run):
    verdict = promote(good_run.path.name, root=folder)
    assert [reason.split(" is ")[0] for reason in verdict.reasons] == ["its lead over the champion 'trading'"]
    assert "+0.00% in log return (95% interval +0.00% … +0.00%)" in verdict.reasons[0]
    # The run that was refused before has looked at the same data, and its curve is known.
    assert verdict.said[0].startswith("2 trials: look number 2 at this test data")
    assert "slope" in verdict.checks[1].found


def test_the_champion_pays_what_the_candidate_pays(folder, promoted, good_run, tmp_path):
    """Of a champion that differs in its costs alone, be it by a preset's, nobody is ahead."""
    shutil.copytree(folder / "champions", tmp_path / "champions")
    champion = Registry(tmp_path).champion("trading")
    costly = {"preset": "intraday", "flat_at_session_end": False, "cooldown": 0, "daily_drawdown": 0.0, "funding": 1e-4}
    own = {key: value for key, value in champion.config.params.items() if key != "fee"}
    vars(champion)["config"] = champion.config.model_copy(update={"params": {**own, **costly}})
    trial = _Trial(good_run, None)
    played = trial._beside(champion, "trading")
    assert np.array_equal(played.curve.log_returns, trial.agents[0].curve.log_returns)


@pytest.mark.parametrize(
    ("env", "params", "found"),
    [
        ("trading", {"preset": "intraday"}, {"fee": 0.001, "half_spread": 0.0, "funding": 0.0, "funding_column": None}),
        ("trading", {"preset": "intraday", "fee": 0.002}, {"fee": 0.002}),
        ("trading", {"slippage": 0.01, "funding_side": "perpetual"}, {"slippage": 0.01, "funding_side": "perpetual"}),
        ("portfolio", {"preset": "crypto"}, {"fee": None, "buy_fee": 0.0025, "sell_fee": 0.0025, "fee_tiers": ()}),
        ("portfolio", {"fee": 0.001}, {"fee": 0.001, "buy_fee": 0.001, "sell_fee": 0.001}),
    ],
)
def test_costs_are_those_of_preset_and_defaults_too(env, params, found):
    class Asked:
        """An evaluator, as far as its costs go."""

        entry, config = CATALOG.get(env), None

    Asked.params = params
    costs = costs_of(Asked)
    assert {name: costs[name] for name in found} == found
    # All are named, so that nothing of another preset is left over.
    model = CATALOG.get(env).parameter_model()
    other = {"preset": {"trading": "intraday", "portfolio": "crypto"}[env], **costs}
    whole = model.create(**with_preset(CATALOG.get(env).parameter_presets(), other.pop("preset"), other, model))
    assert {name: getattr(whole, name) for name in costs} == costs


def test_two_looks_of_a_run_are_two_curves_and_one_that_is_gone_is_said(good_run, fresh_folder, monkeypatch):
    folder = fresh_folder(good_run)
    other = small_run(folder, **{**GOOD, "seed": 5, "steps": 192, "evaluation.margin": 9.0})
    best, latest = (other.find_checkpoint(which).steps for which in ("best", "latest"))
    assert best != latest
    for which in ("best", "latest"):
        evaluate(other, checkpoint=which, report=False)
    trial, seen = _Trial(Run.open(folder / good_run.path.name), None), []

    def keep(curves):
        seen.append(curves)
        return overfitting_of(curves)

    monkeypatch.setattr(promotion, "overfitting_of", keep)

    def found():
        with open_store(folder) as store:
            return looks_of(trial.run, store, trial)

    whole = found()
    assert seen[0].shape[1] == whole.trials.count == 3
    assert len({curve.tobytes() for curve in seen[0].T}) == 3
    assert len(whole.said) == 1
    for path in (other.path / "evaluation").glob(f"test-latest-{latest}*"):
        path.unlink()
    part = found()
    assert seen[1].shape[1] == 2
    assert part.trials.count == 3
    assert "the curves of 1 of them are gone" in part.said[1]
    # A promotion keeps the curve of its own checkpoint, and not that of another.
    with open_store(folder) as store:
        _Trial(other, None).keep_look(store)
    assert found().said == part.said


def test_the_same_policy_trained_twice_is_one_trial(good_run, fresh_folder):
    folder = fresh_folder(good_run)
    again = small_run(folder, **GOOD)
    evaluate(again, report=False)
    trial = _Trial(Run.open(folder / good_run.path.name), None)
    with open_store(folder) as store:
        found = looks_of(trial.run, store, trial)
    assert (found.trials.count, found.overfitting) == (1, None)
    assert found.said[1] == "1 of them played the same as another, to the bit, and counts as one with it"
    (check,) = [one for one in judge(found, trial.returns, {}, 0.0) if "overfitting" in one.name]
    assert check.passed


def test_a_run_that_a_study_made_is_judged_among_the_trials_of_that_study(good_run, fresh_folder):
    """Named by its run, the winner of a study must not pass for the only one that was ever tried."""
    folder = fresh_folder(good_run)
    service = pretending(folder, PretendingExecutor(score))
    study = begin(service, 12)
    assert keep(service, study)
    service.close()
    with open_store(folder) as store:
        jobs = tables().jobs
        first = jobs.select().with_only_columns(jobs.c.id).where(jobs.c.study == study.id, jobs.c.trial == 3).limit(1)
        made = store.read(lambda connection: connection.execute(first).scalar())
        renamed = jobs.update().where(jobs.c.id == made).values(id=good_run.folder.id)
        store.write(lambda connection: connection.execute(renamed))
    verdict = promote(good_run.path.name, root=folder)
    assert not verdict.promoted
    assert verdict.said[0].startswith(f"trial 3 of study {study.name!r}")
    assert "the winner among 12 trials" in verdict.said[1]
    (overfitting,) = (check for check in verdict.checks if check.name == "the probability of overfitting")
    assert not overfitting.passed  # the curves of pretended trials are not there


def test_a_look_at_bars_that_overlap_deflates_and_is_no_choice(good_run, fresh_folder, monkeypatch):
    """Who trains again when some bars have been added is not refused for what was looked at before."""
    folder = fresh_folder(good_run)
    settings = dict(GOOD)
    fewer = small_run(folder, **{**settings, "market.length": settings["market.length"] - 2, "seed": 5})
    evaluate(fewer, report=False)
    trial = _Trial(Run.open(folder / good_run.path.name), None)
    with open_store(folder) as store:
        found = looks_of(trial.run, store, trial)
    assert found.trials.count == 2
    (own,) = trial.returns.T
    assert deflated_sharpe(moments(own), found.trials) < probabilistic_sharpe(moments(own))
    (check,) = [one for one in judge(found, trial.returns, {}, 0.0) if "overfitting" in one.name]
    assert check.passed
    assert check.found == "none: no other policy was played on these very bars"


# The commands


def test_the_commands_promote_list_show_and_roll_back(good_run, fresh_folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder = fresh_folder(good_run)
    there = ["--folder", str(folder)]

    def said(*words: str, code: int = 0) -> str:
        assert cli.run([*words, *there]) == code
        told = capsys.readouterr()
        assert max(map(len, told.out.splitlines()), default=0) <= 80 or "--folder" in told.out
        return " ".join((told.out + told.err).split())

    assert "no champions in" in said("champions", "list")
    told = said("promote", good_run.path.name)
    assert "promoted: champion trading is now promotion 1" in told
    assert "warning: trades cost nothing here" in told  # fee, spread and slippage of this run are 0
    assert f"velodrome paper trading --feed PATH --folder {folder}" in told
    first = Registry(folder).champion("trading")
    refused = said("promote", good_run.path.name, code=1)
    assert "not promoted: its lead over the champion 'trading' is +0.00%" in refused
    plain = json.loads(capture(capsys, ["promote", good_run.path.name, "--json", *there], 1))
    assert (plain["promoted"], len(plain["reasons"]), plain["run"]) == (False, 1, good_run.folder.id)
    assert "promotion 1 was its first; there is none before" in said("champions", "rollback", "trading", code=2)
    before = content(first)
    new = second(Registry(folder))
    listed = said("champions", "list")
    assert "2 of 2" in listed
    assert new.hash[:16] in listed
    shown = said("champions", "show", "trading")
    for part in ("promotion 2 of 2", "history", first.hash[:16], new.hash[:16]):
        assert part in shown
    assert "champion trading is promotion 1 again" in said("champions", "rollback", "trading")
    assert content(Registry(folder).champion("trading")) == before
    assert [(row.number, row.current) for row in rows(folder, "champions")] == [(1, True), (2, False)]
    (entry,) = json.loads(capture(capsys, ["champions", "list", "--json", *there]))
    assert (entry["name"], entry["number"], entry["hash"]) == ("trading", 1, first.hash)
    about = json.loads(capture(capsys, ["champions", "show", "trading", "--json", *there]))
    assert (about["current"], about["about"]["lineage"]["run"]) == (1, good_run.folder.id)
    assert "no champion 'tradin'" in said("champions", "show", "tradin", code=2)
    assert "no promotion 9; there are 1, 2" in said("champions", "rollback", "trading", "--to", "9", code=2)


def capture(capsys, words: list[str], code: int = 0) -> str:
    capsys.readouterr()
    assert cli.run(words) == code
    return capsys.readouterr().out


# Names, hashes, rollback: on files that any run would have


@pytest.fixture
def registry(folder, promoted, tmp_path):
    """A registry of its own with one champion."""
    shutil.copytree(folder / "champions", tmp_path / "champions")
    return Registry(tmp_path)


def second(registry: Registry) -> Champion:
    """Make another champion of the first, with other content, and promote it."""
    first = registry.champion("trading")
    place = first.path.with_name("another")
    shutil.copytree(first.path, place)
    about = place / "champion.json"
    about.chmod(0o644)
    about.write_text(json.dumps({**first.about, "created": 1.0}))
    found = Champion.open(place)
    registry.add("trading", found, registry.record("trading").current, "second", run="b" * 8)
    return found


def content(champion: Champion) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in champion.path.iterdir()}


def test_rollback_restores_the_former_champion_byte_for_byte(registry):
    first = registry.champion("trading")
    before = content(first)
    new = second(registry)
    assert registry.champion("trading").hash == new.hash
    record = registry.roll_back("trading")
    assert (record.current, [change.kind for change in record.changes]) == (1, ["promoted", "promoted", "rolled back"])
    restored = registry.champion("trading")
    assert (restored.hash, content(restored)) == (first.hash, before)
    assert registry.roll_back("trading", to=2).now.hash == new.hash
    registry.roll_back("trading")
    with pytest.raises(ChampionError, match="was its first"):
        registry.roll_back("trading")
    with pytest.raises(ChampionError, match="no promotion 9; there are 1, 2"):
        registry.roll_back("trading", to=9)
    with pytest.raises(ChampionError, match="in use already"):
        registry.roll_back("trading", to=1)


def test_a_champion_whose_files_changed_is_refused_and_not_rolled_back_to(registry):
    first = registry.champion("trading")
    second(registry)
    weights = first.path / "policy-0.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ChampionError, match="not the files that were promoted"):
        registry.roll_back("trading")
    assert registry.record("trading").current == 2
    shutil.rmtree(first.path)
    with pytest.raises(ChampionError, match="cannot be read"):
        registry.roll_back("trading")


def test_a_promotion_that_came_too_late_is_refused(registry):
    second(registry)
    with pytest.raises(ChampionError, match="has changed while the candidate was compared"):
        registry.add("trading", registry.champion("trading"), 1, "late", run="c" * 8)


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "a" * 101])
def test_what_is_no_name_is_refused(registry, name):
    with pytest.raises(ConfigError, match="a name is made of"):
        registry.record(name)


def test_an_unknown_champion_is_named_with_those_there_are(registry, tmp_path):
    with pytest.raises(ChampionError, match=r"no champion 'tradng'.*known are trading\. Did you mean 'trading'"):
        registry.record("tradng")
    with pytest.raises(ChampionError, match="nothing was promoted yet"):
        Registry(tmp_path / "nowhere").record("trading")


def test_the_store_catches_up_with_what_a_crash_kept_from_it(registry, tmp_path):
    second(registry)
    registry.roll_back("trading")
    record = registry.record("trading")
    with open_store(tmp_path) as store:
        for _ in range(2):  # to say it again changes nothing
            enter(store, record)
    assert [(row.number, row.current) for row in rows(tmp_path, "champions")] == [(1, True), (2, False)]
    assert [event.kind for event in rows(tmp_path, "events")] == ["promoted", "promoted", "rolled back"]


def test_a_hook_that_fails_is_said_and_changes_nothing():
    failing = Hooks(command=f"{sys.executable} -c 'raise SystemExit(3)'", webhook="http://127.0.0.1:9/")
    told = list(failing.tell({"kind": "promoted"}))
    assert [sentence.split()[1] for sentence in told] == ["command", "webhook"]
    assert "exit code 3" in told[0]
    assert all("The promotion stands" in sentence for sentence in told)
    assert list(Hooks(command="no-such-program-anywhere").tell({}))
    for wrong in ({"command": "'"}, {"command": ""}, {"webhook": "ftp://host/x"}, {"webhook": "nonsense"}):
        with pytest.raises(ConfigError):
            Hooks(**wrong)


def test_what_cannot_be_promoted_says_why(folder, good_run, tmp_path):
    with pytest.raises(RunError):
        promote("no-such-run", root=folder)
    with pytest.raises(ConfigError, match="margin = -1"):
        promote(good_run.path.name, root=folder, margin=-1.0)
    shutil.copytree(good_run.path, tmp_path / good_run.path.name)
    status = tmp_path / good_run.path.name / "status.json"
    status.write_text(status.read_text().replace("finished", "interrupted"))
    with pytest.raises(RunError, match="is interrupted: a run is promoted when it has finished"):
        promote(Run.open(tmp_path / good_run.path.name))


@pytest.mark.slow
def test_several_training_seeds_are_judged_together_and_an_ensemble_as_one(tmp_path):
    taught = {**GOOD, "teacher.samples": 8192, "teacher.epochs": 16}
    group = small_run(tmp_path, seeds=5, **taught)
    verdict = promote(group, name="group")
    assert verdict.promoted, verdict.reasons
    assert "5 training seeds" in verdict.said[1]
    champion = Registry(tmp_path).champion("group")
    best = max(group.members, key=lambda run: run.find_checkpoint("best").plain["best"])
    assert champion.about["lineage"]["run"] == group.folder.id
    assert champion.about["lineage"]["policy_of"] == best.folder.id
    assert len(champion.about["members"]) == 1
    other = tmp_path / "other"  # a store that has seen no look: two agents that hardly differ would count as a choice
    ensemble = small_run(other, ensemble=2, **taught)
    verdict = promote(ensemble, name="ensemble", root=other)
    assert verdict.promoted, verdict.reasons
    champion = Registry(other).champion("ensemble")
    assert len(champion.about["members"]) == 2
    assert champion.policy().members == 2


@pytest.mark.slow
def test_looks_of_other_runs_at_the_same_split_are_trials(tmp_path):
    runs = [small_run(tmp_path, evaluate=True, seed=seed, **GOOD) for seed in range(3)]
    verdict = promote(runs[0], root=tmp_path)
    assert verdict.said[0].startswith("3 trials: look number 3 at this test data: 2 other policies were played on it")
    overfitting = next(check for check in verdict.checks if "overfitting" in check.name)
    assert "slope" in overfitting.found


@pytest.mark.slow
def test_a_portfolio_is_promoted_by_its_lead_over_equal_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # its words in one line of the table
    taught = {"teacher.policy": "forecast", "teacher.samples": 8192, "teacher.epochs": 8, "market.length": 12_000}
    told = {**PORTFOLIO, **taught, "steps": 128, "params.buy_fee": 1e-5, "logging.folder": str(tmp_path)}
    run = train(mode="quiet", evaluate=False, **told)
    there = ["--folder", str(tmp_path)]
    assert cli.run(["promote", run.path.name, *there]) == 0, capsys.readouterr().out
    told = " ".join(capsys.readouterr().out.split())
    assert "lead over equal, rebalanced" in told
    assert "trades cost nothing" not in told
    champion = Registry(tmp_path).champion("portfolio")
    assert champion.kind == "basket"
    assert list(champion.symbols) == list(run.market.symbols)
    assert cli.run(["champions", "show", "portfolio", *there]) == 0
    assert champion.symbols[-1] in capsys.readouterr().out
    assert cli.run(["promote", run.path.name, *there]) == 1
    assert "its lead over the champion 'portfolio' is +0.00%" in " ".join(capsys.readouterr().out.split())
