"""When a training validates: where steps are counted, at the same ones each time."""

from __future__ import annotations

import pytest

from tests.runs.small_runs import small_run
from tests.runs.test_resume import interrupted_run
from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config
from velodrome.runs.evaluate import VALIDATION_IN_STEPS, final_in_validations, split_bars, steps_between_validations
from velodrome.runs.run import resume
from velodrome.runs.setup import build_market

AUTO = {"evaluation.every_steps": "auto"}


def validated(run) -> list[int]:
    metrics = run.metrics
    return metrics.filter(metrics["name"] == "evaluation/validation/return")["step"].to_list()


def market_of(**settings):
    config = load_run_config("smoke", {**AUTO, **settings})
    return config, config.market.build()


def test_validations_take_their_share_of_the_counted_work():
    config, market = market_of(**{"steps": 10**9, "evaluation.share": 0.1})
    for device, (once, each) in VALIDATION_IN_STEPS.items():
        every = steps_between_validations(config, market, device)
        work = once + each * split_bars(market, "validation")
        assert work / every == pytest.approx(0.1, rel=1e-3)
    assert steps_between_validations(config, market, "cuda:1") > 100 * steps_between_validations(config, market, "cpu")


def test_there_are_at_least_four_and_what_is_asked_for_goes_before():
    config, market = market_of(steps=1000)
    assert steps_between_validations(config, market, "cpu") == 250
    assert steps_between_validations(load_run_config(config, {"evaluation.fewest": 10}), market, "cpu") == 100
    for asked in (300, None):
        config = load_run_config(config, {"evaluation.every_steps": asked})
        assert steps_between_validations(config, market, "cpu") == asked
    with pytest.raises(ConfigError, match=r"every_steps = 0: not legal; it takes: whole number ≥ 1, auto, or null"):
        load_run_config(config, {"evaluation.every_steps": 0})


MARKETS = {"demo": 10, "trading": 10, "demo_portfolio": 8, "portfolio": 16, "demo_dqn": 10, "dqn": 20, "ou": 10}


PRESETS = [(name, fewest, device) for name, fewest in MARKETS.items() for device in ("cpu", "cuda")]
PRESETS += [("gpu", 10, "cuda"), ("portfolio_gpu", 3, "cuda")]


@pytest.mark.parametrize(("preset", "fewest", "device"), PRESETS)
def test_a_presets_short_run_has_enough_to_choose_among_and_a_long_one_validates_its_share(preset, fewest, device):
    own_files = {} if preset.startswith("demo") else {"market.source": "prices.csv"}
    config = load_run_config(preset, {"device": "cpu", **own_files})
    market = build_market(load_run_config("demo_portfolio" if "portfolio" in preset else "demo"))
    assert steps_between_validations(config, market, device) == config.steps // fewest
    assert config.evaluation.patience, "a longer training ends when validation has stopped improving"
    every = steps_between_validations(load_run_config(config, {"steps": 100_000 * config.steps}), market, device)
    once, each = VALIDATION_IN_STEPS[device]
    assert (once + each * split_bars(market, "validation")) / every == pytest.approx(0.05, rel=1e-3)


def test_environments_without_bars_have_a_number_for_each_kind_of_device():
    cage2 = load_run_config("cage2", {**AUTO, "steps": 10**9})
    assert [steps_between_validations(cage2, None, device) for device in ("cpu", "cuda:1")] == [250_000, 20_000_000]
    short = load_run_config(cage2, {"steps": 40_000_000})
    assert steps_between_validations(short, None, "cuda") == 10_000_000, "at least four"
    elsewhere = load_run_config("cartpole", AUTO)
    assert steps_between_validations(elsewhere, None, "cuda") == 250_000, "it steps on the host"


def test_the_evaluation_at_the_end_is_known_in_validations():
    config, market = market_of()
    bars = split_bars(market, "test") / split_bars(market, "validation")
    assert final_in_validations(config, market) == pytest.approx(20 * bars)
    assert final_in_validations(load_run_config(config, {"evaluation.final_split": None}), market) is None


def test_a_run_that_is_stopped_and_resumed_validates_at_the_same_steps(tmp_path, monkeypatch):
    reference = small_run(tmp_path / "reference", **AUTO)
    assert validated(reference) == [192, 320, 512, 640], "the iterations in which a multiple of 160 is passed"
    run = interrupted_run(tmp_path / "runs", monkeypatch, **AUTO)
    resume(run, mode="quiet", evaluate=False)
    assert validated(run) == validated(reference)
