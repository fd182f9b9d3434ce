"""On a GPU: a learner in CUDA graphs gives what the same learner gives eagerly, and what autograd gives."""

from __future__ import annotations

import itertools

import pytest
import torch

import velodrome as vd
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.ppo import PPO
from velodrome.rollout.worlds import make_worlds

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def learner(network: dict | None = None, action: str = "levels", **config) -> PPO:
    # Sessions by gap instead of by day: days need polars, which the machine with the GPU may not have.
    market = vd.build_market(vd.synthetic_bars("ar1", 5_000, seed=0), windows=8, session="6h", check_leaks=False)
    envs = vd.make_vec(
        "trading", 128, market=market, split="train", backend="cuda", observation="cursor", seed=0, episode_length=32,
        check_actions=False, action=action,
    )  # fmt: skip
    settings = PPOConfig(rollout_length=16, normalise_rewards=True, learning_rate=1e-3, entropy=0.01, **config)
    return PPO(make_worlds(envs), NetworkConfig(**(network or {})), settings, total_steps=10**6, seed=0)


def portfolio_learner(head: str, action: str = "weights", **config) -> PPO:
    bars = vd.synthetic_bars("gbm", 5_000, seed=0, symbols=5, volatility=0.01)
    basket = vd.build_basket(bars, features=["log_return"], windows=8, check_leaks=False)
    envs = vd.make_vec(
        "portfolio", 128, market=basket, backend="cuda", observation="cursor", seed=0, episode_length=32,
        check_actions=False, action=action, weighting="simplex",
    )  # fmt: skip
    network = NetworkConfig(kind="instruments", hidden=(16, 16), head=head)
    settings = PPOConfig(rollout_length=16, normalise_rewards=True, learning_rate=1e-3, entropy=0.01, **config)
    return PPO(make_worlds(envs), network, settings, total_steps=10**6, seed=0)


def numbers(ppo: PPO, iterations: int = 6) -> list[dict[str, float]]:
    return [
        {name: value for name, value in ppo.iterate().items() if not name.startswith("time/")}
        for _ in range(iterations)
    ]


@pytest.mark.parametrize(
    ("network", "action", "config"),
    [
        ({}, "levels", {}),
        ({"shared": True, "activation": "relu"}, "continuous", {}),
        ({"kind": "gru", "hidden": (16,), "memory": 16}, "levels", {}),
        ({"kind": "conv"}, "levels", {}),
        ({}, "levels", {"target_kl": 1e-3}),
        ({}, "levels", {"normalise_observations": True, "value_clip": 0.2}),
    ],
)
def test_graphs_give_what_eager_kernels_give(network, action, config):
    captured, eager = (numbers(learner(network, action, cuda_graphs=flag, **config)) for flag in (True, False))
    for left, right in zip(captured, eager, strict=True):
        assert left == pytest.approx(right, rel=2e-2, abs=2e-4)


def test_the_engine_of_our_own_gives_what_autograd_gives():
    ours, torchs = (numbers(learner(engine=engine, cuda_graphs=False), 3) for engine in ("auto", "autograd"))
    # Actions are drawn by other numbers, so only the losses of similar rollouts can be compared.
    for name in ("loss/value", "policy/entropy"):
        assert ours[-1][name] == pytest.approx(torchs[-1][name], rel=0.2)


def test_a_run_on_a_gpu_goes_on_from_its_state():
    one, other = learner(), learner()
    for _ in range(4):
        one.iterate()
    other.load_state(*one.state())
    left, right = numbers(one, 3), numbers(other, 3)
    for before, after in zip(left, right, strict=True):
        assert after == pytest.approx(before, rel=2e-2, abs=2e-4)


@pytest.mark.parametrize(("head", "action"), [("dirichlet", "weights"), ("auto", "weights"), ("auto", "discrete")])
def test_graphs_of_portfolios_give_what_eager_kernels_give(head, action):
    captured, eager = (numbers(portfolio_learner(head, action, cuda_graphs=flag)) for flag in (True, False))
    for left, right in zip(captured, eager, strict=True):
        assert left == pytest.approx(right, rel=2e-2, abs=2e-4)


def test_weights_drawn_in_a_graph_are_new_ones_each_time():
    learner = portfolio_learner("dirichlet")
    drawn = []
    for _ in range(6):
        learner.iterate()
        drawn.append(learner.rollout.actions.clone())
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(drawn))
    torch.testing.assert_close(drawn[-1].sum(2), torch.ones_like(drawn[-1][:, :, 0]))
