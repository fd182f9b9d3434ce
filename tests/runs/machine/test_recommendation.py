"""`vd.recommend` without a number of environments: found by measuring, for rules and for others, and for a learner."""

from __future__ import annotations

import pytest

import velodrome as vd
from tests.runs.own_env import MyEnv
from velodrome.errors import ConfigError
from velodrome.runs.machine import recommendation

SECONDS = 0.2


def test_a_rules_number_is_the_fewest_that_are_about_as_fast_as_any(monkeypatch):
    rates = {16: 100.0, 32: 180.0, 64: 300.0, 128: 310.0, 256: 305.0, 512: 320.0}
    monkeypatch.setattr(recommendation, "_rate", lambda envs, seconds: rates[envs.num_envs])
    found = vd.recommend("template")
    assert (found.backend, found.num_envs, found.workers) == ("native", 64, 0)
    assert found.measured["native, 64"] == 300.0
    assert set(found.measured) == {f"native, {size}" for size in rates}  # three in a row were no faster
    assert "64 environments: steps per second by number: 16: 100, 32: 180, 64: 300" in found.reason


def test_memory_is_a_limit(monkeypatch):
    monkeypatch.setattr(recommendation, "_rate", lambda envs, seconds: float(envs.num_envs))
    each = vd.make_vec("template", 16).buffers.bytes_per_environment
    monkeypatch.setattr(recommendation, "free_memory", lambda: 200 * each)  # half of it may be taken
    assert vd.recommend("template").num_envs in (16, 32, 64)


def test_it_is_measured():
    found = vd.recommend("template", seconds=SECONDS)
    assert found.num_envs >= 16
    assert all(rate > 0 for rate in found.measured.values())


def test_others_have_a_number_too(monkeypatch):
    monkeypatch.setattr(recommendation.autotune, "available_cores", lambda: 1)
    monkeypatch.setattr(recommendation, "available_cores", lambda: 1)
    found = vd.recommend(MyEnv, seconds=SECONDS)
    assert found.backend == "serial"
    assert 1 <= found.num_envs <= recommendation.MOST_FOREIGN
    assert f"{found.num_envs} environments: steps per second by number, by the model" in found.reason


def test_a_number_that_is_given_stays():
    assert vd.recommend("template", 7).num_envs == 7
    assert vd.recommend("template", num_envs=3).num_envs == 3


def test_with_a_learner_its_samples_count(monkeypatch):
    chosen = {}

    def with_num_envs(config, market):
        chosen.update(algorithm=config.algorithm, steps=config.steps, market=market)
        return config.with_num_envs(192), "num_envs = 192 (auto), which needs 1 MiB of memory."

    monkeypatch.setattr(recommendation.plan, "with_num_envs", with_num_envs)
    found = vd.recommend("template", learner="ppo", steps=1_000_000)
    assert found.num_envs == 192
    assert "192 (auto)" in found.reason
    assert chosen == {"algorithm": "ppo", "steps": 1_000_000, "market": None}
    with pytest.raises(ConfigError, match="give learner, such as 'ppo', too"):
        vd.recommend("template", steps=5)
