"""Budgets of episodes beside steps: when a run ends, what it goes on to, and where their length is not known."""

from __future__ import annotations

import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import one_thread, small_run, tiny  # noqa: F401
from velodrome.errors import ConfigError
from velodrome.runs import checkpoint
from velodrome.runs.config.files import load_run_config

LENGTH = {"params.episode_length": 8}


def steps_of(run):
    return checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path))


def test_a_run_ends_with_its_episodes_and_goes_on_to_more(tmp_path):
    console = Console(record=True, width=200)
    settings = {**tiny(tmp_path), **LENGTH, "evaluation.every_steps": None}
    del settings["steps"]
    run = vd.train("smoke", mode="plain", console=console, evaluate=False, episodes=5, steps=100_000, **settings)
    number = run.config.num_envs
    last = checkpoint.latest_valid(run.path)
    assert run.status == "finished"
    assert last.plain["learner"]["episodes"] >= 5
    assert last.steps <= number * (8 + run.config.ppo.rollout_length)
    assert "episodes have ended (episodes)" in console.export_text()
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"  # nothing is left to do
    assert steps_of(run) == last.steps
    more = last.plain["learner"]["episodes"] + 3 * number
    vd.resume(run, mode="quiet", evaluate=False, episodes=more)
    assert checkpoint.latest_valid(run.path).plain["learner"]["episodes"] >= more


def test_steps_are_as_many_as_the_episodes_can_take():
    config = load_run_config("cage2", {"episodes": 1_000})
    assert config.steps == 2 * 512 * 100  # two for each of 512 environments
    assert load_run_config("cage2", {"episodes": 1_000, "steps": 70_000}).steps == 70_000
    assert load_run_config("cage2", {"episodes": 1}).steps == 512 * 100
    assert load_run_config(None, {"env": "CartPole-v1", "episodes": 10, "num_envs": 2}).steps == 5 * 2 * 500
    assert load_run_config("cage2", ["episodes=10"]).with_num_envs(4).steps == 3 * 4 * 100
    assert load_run_config(config).steps == config.steps


def test_a_run_without_such_a_budget_has_the_hash_it_had():
    plain = load_run_config("cage2")
    assert plain.episodes is None
    assert plain.hash == load_run_config("cage2", {"episodes": None}).hash
    assert plain.hash != load_run_config("cage2", {"episodes": 1_000, "steps": plain.steps}).hash


def test_where_no_length_is_known_steps_are_asked_for():
    with pytest.raises(ConfigError, match="how many steps an episode of trading can take is not known"):
        load_run_config({"env": "trading", "episodes": 5})
    assert load_run_config({"env": "trading", "episodes": 5, "steps": 50_000}).steps == 50_000
    with pytest.raises(ConfigError, match="episodes = 0"):
        load_run_config("cage2", ["episodes=0"])
