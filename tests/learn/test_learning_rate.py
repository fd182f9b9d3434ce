"""The learning rate and the weight of the entropy bonus over a run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.learn.learners import make_ppo, trading_worlds
from velodrome.learn.config import PPOConfig


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1.0, 1.0, 1.0, 1.0]), ("linear", [1.0, 0.75, 0.5, 0.0]), ("cosine", [1.0, 0.853553, 0.5, 0.0])],
)
def test_factors_at_the_begin_a_quarter_half_and_the_end(schedule, expected):
    config = PPOConfig(learning_rate=0.25, schedule=schedule)
    found = [config.rate_at(done) for done in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx([0.25 * factor for factor in expected], abs=1e-7)


@given(st.floats(-1.0, 3.0), st.floats(-1.0, 3.0), st.sampled_from(["constant", "linear", "cosine"]))
def test_a_rate_never_rises_and_stays_between_0_and_the_first(one, other, schedule):
    config = PPOConfig(learning_rate=1e-3, schedule=schedule)
    early, late = (config.rate_at(done) for done in sorted((one, other)))
    assert 1e-3 >= early >= late >= 0.0


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_learner_falls_to_0_and_says_the_rate_it_used(engine):
    worlds = trading_worlds(4)
    learner = make_ppo(worlds, schedule="linear", learning_rate=1e-2, total_steps=4 * 8 * 4, engine=engine)
    assert [learner.iterate()["optimiser/learning_rate"] for _ in range(5)] == pytest.approx(
        [1e-2, 0.75e-2, 0.5e-2, 0.25e-2, 0.0]
    )
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    learner.iterate()
    assert all(tensor.equal(before[name]) for name, tensor in learner.policy.state_dict().items())


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_weight_of_entropy_that_falls_is_that_weight(engine):
    """The first update of one that falls from 0.6 is that of a constant 0.6, the second of two that of 0.3."""
    settings = {"total_steps": 2 * 8 * 4, "engine": engine, "entropy": 0.6}
    falling, constant = (
        make_ppo(trading_worlds(4), entropy_schedule=schedule, **settings) for schedule in ("linear", "constant")
    )
    first = falling.iterate()
    assert (first["optimiser/entropy_weight"], "optimiser/entropy_weight" in constant.iterate()) == (0.6, False)
    assert all(map(torch.equal, falling.policy.parameters(), constant.policy.parameters()))
    halved = make_ppo(trading_worlds(4), **{**settings, "entropy": 0.3})
    halved.load_state(*falling.state())
    assert falling.iterate()["optimiser/entropy_weight"] == pytest.approx(0.3)
    halved.iterate()
    torch.testing.assert_close(tuple(falling.policy.parameters()), tuple(halved.policy.parameters()))
    constant.iterate()
    assert not all(map(torch.equal, falling.policy.parameters(), constant.policy.parameters()))
