"""The template inherits the contract, as every copy of it will."""

from __future__ import annotations

import pytest

from tests.contracts.environment import EnvironmentContract
from velodrome.envs._template import template_world
from velodrome.errors import ConfigError


class TestTemplate(EnvironmentContract):
    def world(self):
        return template_world(length=12)


def test_momentum_makes_the_next_step_predictable():
    import velodrome as vd

    envs = vd.make_vec("template", 200, momentum=0.9, seed=0)
    observations, _ = envs.reset()
    total = 0.0
    for _ in range(100):
        observations, rewards, *_ = envs.step((observations[:, 0] > 0).astype(int))
        total += float(rewards.mean())
    assert total / 100 == pytest.approx(0.8, abs=0.02)


def test_an_unknown_parameter_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown parameter .momentun.\. Did you mean 'momentum'"):
        template_world(momentun=0.5)
