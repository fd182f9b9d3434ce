"""What docs/add_an_environment.md says, done from outside the package with the files that the page shows."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from rich.console import Console

import velodrome as vd
from velodrome.envs.catalog import CATALOG
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.evaluator import Evaluator
from velodrome.evaluation.validation import validate
from velodrome.rollout.observation import WindowBank
from velodrome.runs.config.explain import help_text
from velodrome.runs.config.files import load_run_config
from velodrome.runs.walk_forward import walk_forward

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add_an_environment.md").read_text(encoding="utf-8")
WITH, OUT, AGAINST = 0, 1, 2
SMALL = {
    "steps": 256,
    "num_envs": 8,
    "ppo.rollout_length": 8,
    "market.length": 400,
    "evaluation.every_steps": 128,
    "evaluation.bootstrap_samples": 20,
}


def file_of(name: str, language: str = "python") -> str:
    """Return a file that the page shows, by the name in its first line."""
    (text,) = re.findall(rf"```{language}\n# {re.escape(name)}[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    return text


@pytest.fixture(scope="module")
def outside(tmp_path_factory) -> Path:
    """A folder with the page's module in it, not on the path yet."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "fade.py").write_text(file_of("fade.py"), encoding="utf-8")
    return folder


@pytest.fixture
def fade(outside, monkeypatch):
    """The module, registered for one test."""
    monkeypatch.syspath_prepend(str(outside))
    monkeypatch.setattr(CATALOG, "_entries", dict(CATALOG._entries))
    module = importlib.import_module("fade")
    vd.register_env("fade", module.fade_world, parameters=module.FadeConfig, data="market")
    return module


@pytest.fixture(scope="module")
def market():
    bars = vd.synthetic_bars("ar1", 1200, seed=0, symbols=["A", "B"])
    return vd.build_market(bars, features=["log_return"], windows=4, check_leaks=False)


def growth_by_hand(market, split: str, side: float, fee: float, stake: float) -> float:
    """Return the mean over instruments of equity over start equity, for an account that never changes sides."""
    grown = []
    for low, high in market.splits[split]:
        close = market.ohlc[low:high, 3]
        gains = stake * side * (close[1:] / close[:-1] - 1.0)
        gains[0] -= fee * stake * abs(side)
        grown.append(np.prod(1.0 + gains))
    return float(np.mean(grown))


def test_a_registered_environment_is_made_by_name(fade, market):
    env = vd.make("fade", market=market, split="train", episode_length=5, seed=0)
    observation, _ = env.reset()
    assert observation.shape == (4 + 2,)
    envs = vd.make_vec("fade", 8, market=market, seed=1, stake=0.25)
    envs.reset()
    assert envs.step(np.zeros(8, np.int64))[1].shape == (8,)
    assert "share of equity that is staked" in help_text("params", "fade")
    with pytest.raises(ConfigError, match=r"unknown parameter 'staek'.*Did you mean 'stake'"):
        vd.make("fade", market=market, staek=1.0)


def test_presets_of_an_entry_need_nothing_of_its_world(fade, market):
    presets = {"bold": {"stake": 1.0, "fee": 0.0}}
    given = {"parameters": fade.FadeConfig, "data": "market", "presets": presets}
    vd.register_env("fade", fade.fade_world, **given, replace=True)
    params = CATALOG.get("fade").make_world(market=market, preset="bold", fee=0.01).params
    assert (params.stake, params.fee) == (1.0, 0.01)
    with pytest.raises(ConfigError, match=r"unknown preset 'bald'; there are bold\. Did you mean 'bold'\?"):
        vd.make("fade", market=market, preset="bald")


@pytest.mark.parametrize(("action", "side"), [(WITH, 1.0), (OUT, 0.0), (AGAINST, -1.0)])
def test_it_is_evaluated_by_its_own_rule(fade, market, action, side):
    params = {"fee": 0.002, "stake": 0.4, "episode_length": 16}
    found = evaluate_policy(
        ConstantPolicy(action), market, "test", params, env="fade", samples=20, random_seeds=2, seeds=1
    )
    expected = growth_by_hand(market, "test", side, 0.002, 0.4)
    assert found.row("return").value == pytest.approx(expected - 1.0, abs=1e-12)
    assert found.information["environment"] == "fade"
    assert found.kind == "backtest"
    assert found.row("turnover").value == pytest.approx(0.4 * abs(side))
    assert found.baseline_names == ("random",)
    assert dict(found.actions) == {str(k): float(k == action) for k in range(3)}
    assert not {"trades", "win_rate", "spread_and_slippage"} & set(found.metrics), "it says nothing about those"
    assert found.bars["symbol"].unique(maintain_order=True).to_list() == ["A", "B"]


@pytest.mark.parametrize(("action", "side"), [(WITH, 1.0), (AGAINST, -1.0)])
def test_it_is_validated_by_its_own_rule(fade, market, action, side):
    found = validate(ConstantPolicy(action), "fade", market, "validation", {"fee": 0.0, "stake": 0.4}, pieces=8)
    parts = [market.ohlc[low:high, 3] for low, high in market.splits["validation"]]
    grown = np.mean([np.prod(1.0 + 0.4 * side * (close[1:] / close[:-1] - 1.0)) for close in parts])
    assert found["return"] == pytest.approx(grown - 1.0)
    assert found["turnover"] == pytest.approx(4 * 0.4)  # of one account: each has four pieces


def test_a_mirrored_rule_is_validated_selected_and_evaluated_by_its_own_rule(fade, monkeypatch, tmp_path):
    """Whatever the one rule earns by an action, its mirror image earns by the opposite one."""

    plain_step = fade.step

    def mirrored_step(i, action, state, tables, params):
        return plain_step(i, 2 - action, state, tables, params)

    def mirrored_world(market, split=None, **values):
        world = fade.fade_world(market, split, **values)
        return replace(world, name="mirrored", rule=world.rule._replace(step=mirrored_step))

    vd.register_env("mirrored", mirrored_world, parameters=fade.FadeConfig, data="market")
    settings = {**SMALL, "env": "mirrored", "logging.folder": str(tmp_path)}
    run = vd.train("smoke", mode="quiet", evaluate=False, **settings)
    told = run.metrics.filter(pl.col("name") == "evaluation/validation/return")
    named = vd.evaluate(run, "validation", report=False).policy.agents[0]
    assert named.step == told.sort("value")["step"].to_list()[-1], "the best by its own rule is chosen"
    assert named.candidates == told.height == 2
    policy = run.policy.with_bank(WindowBank(run.market.windows))
    best = validate(policy, "mirrored", run.market, "validation", {}, run.config.evaluation.episodes)
    assert best["return"] == told["value"].max()
    quick = {"samples": 1, "random_seeds": 1, "seeds": 1}
    for own, opposite in ((WITH, AGAINST), (AGAINST, WITH)):
        played = [
            {
                **validate(policy, env, run.market, "validation", {}),
                **evaluate_policy(policy, run.market, "test", {}, env=env, **quick).metrics,
            }
            for env, policy in (("mirrored", ConstantPolicy(own)), ("fade", ConstantPolicy(opposite)))
        ]
        assert played[0] == pytest.approx(played[1], nan_ok=True)
        assert played[0]["return"] != 0.0


def test_an_evaluator_of_its_own_says_what_is_played_for_validation_too(fade, market):
    class ByRewards(Evaluator):
        has_equity = False

    given = {"parameters": fade.FadeConfig, "data": "market", "evaluator": ByRewards, "replace": True}
    vd.register_env("fade", fade.fade_world, **given)
    params = {"episode_length": 16}
    assert set(validate(ConstantPolicy(WITH), "fade", market, "validation", params, 8)) == {"return", "length"}
    found = evaluate_policy(ConstantPolicy(WITH), market, "test", params, env="fade", samples=2, random_seeds=1)
    assert found.kind == "episodes"


def test_walk_forward_plays_its_tests_by_its_own_rule(fade, tmp_path):
    settings = {**SMALL, "evaluation.every_steps": None, "logging.folder": str(tmp_path), "market.length": 600}
    config = load_run_config("smoke", {"env": "fade", "params.episode_length": 32, **settings})
    walked = walk_forward(config, 2, console=Console(file=io.StringIO()))
    assert walked.joined.information["environment"] == "fade"
    text = Console(width=200, file=io.StringIO(), record=True)
    text.print(walked.table())
    assert "2 folds" in text.export_text()


def run_outside(folder: Path, *words: str, path: Path) -> str:
    """Run Python in another process that finds modules and packages in one more folder; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check_run(folder: Path) -> None:
    """Check that a run of it was validated, evaluated by its own rule and reported."""
    (run,) = (path for path in (folder / "runs").iterdir() if path.is_dir())
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert any("evaluation/validation/max_drawdown" in str(row) for row in metrics)
    (kept,) = (run / "evaluation").glob("test-best-*.json")
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert found["information"]["environment"] == "fade"
    assert "trades" not in {row["name"] for row in found["rows"]}
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "fade:" in page
    assert "The agent made no trade" not in page
    assert kept.with_name(f"{kept.stem}-equity.png").is_file()


def test_the_program_of_the_page_registers_trains_evaluates_and_reports_it(outside, tmp_path):
    (tmp_path / "train_fade.py").write_text(file_of("train_fade.py"), encoding="utf-8")
    run_outside(tmp_path, "train_fade.py", path=outside)
    check_run(tmp_path)


def test_an_installed_package_is_found_by_every_process(outside, tmp_path):
    site = tmp_path / "site"
    about = site / "fade-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "fade.py").write_text((outside / "fade.py").read_text(encoding="utf-8"), encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fade\nVersion: 1.0\n", encoding="utf-8")
    declared = tomllib.loads(file_of("pyproject.toml", "toml"))["project"]["entry-points"]
    text = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in declared.items())
    (about / "entry_points.txt").write_text(text, encoding="utf-8")
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    train = ("train", "smoke", "env=fade", "--no-evaluation")
    run_outside(tmp_path, "-m", "velodrome", *train, *settings, path=site)
    found = json.loads(run_outside(tmp_path, "-m", "velodrome", "eval", "latest", "--json", path=site))
    assert found["information"]["environment"] == "fade"
    check_run(tmp_path)


def test_names_that_are_taken_are_refused(fade):
    with pytest.raises(ConfigError, match="'trading' is Velodrome's own; choose another name"):
        vd.register_env("trading", fade.fade_world, data="market", replace=True)
    with pytest.raises(ConfigError, match="'fade' is registered already; replace=True takes its place"):
        vd.register_env("fade", fade.fade_world, data="market")
    assert vd.register_env("fade", fade.fade_world, data="market", replace=True).parameters is None
    with pytest.raises(ConfigError, match=r"'CartPole-v1' is Gymnasium's, which would be hidden"):
        vd.register_env("CartPole-v1", fade.fade_world)
    with pytest.raises(ConfigError, match=r"env = 'fode': there is no such environment.*Did you mean 'fade'"):
        vd.make("fode")


@pytest.mark.parametrize("world", [5, "nowhere", ":name", None])
def test_what_makes_no_world_is_refused(world):
    with pytest.raises(ConfigError, match=r"world = .*must be a function that returns a World"):
        vd.register_env("mine", world)
    assert "mine" not in CATALOG


def test_an_environment_of_gymnasium_needs_no_registration():
    with pytest.raises(ConfigError, match=r"CartPoleEnv makes no World.*vd.make_vec\(MyEnv, 8\)"):
        vd.register_env("mine", CartPoleEnv)


@pytest.mark.parametrize(
    ("world", "told"),
    [(lambda: 3, r"returned int, which is no .*World"), ("nomod:x", "world = 'nomod:x' cannot be imported: No module")],
)
def test_what_turns_out_to_make_no_world_is_told_by_its_name(world, told, monkeypatch):
    monkeypatch.setattr(CATALOG, "_entries", dict(CATALOG._entries))
    vd.register_env("mine", world)
    with pytest.raises(ConfigError, match=f"environment 'mine': .*{told}"):
        vd.make("mine")


def test_a_package_that_cannot_be_loaded_is_named_and_takes_nothing_else_with_it(tmp_path, monkeypatch):
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[velodrome.envs]\nbroken = not_there:ENTRY\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(CATALOG, "_looked", False)
    with pytest.warns(
        RuntimeWarning, match=r"entry point broken = 'not_there:ENTRY' of velodrome.envs cannot be loaded"
    ):
        names = CATALOG.names()
    assert "trading" in names
    assert "broken" not in names
