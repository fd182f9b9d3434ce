"""SAC: its density, its targets sample by sample, and who learns from which loss. See also test_sac_contract."""

from __future__ import annotations

import math
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import velodrome as vd
from tests.learn.learner_cases import NORMALISED, SAC_CASES, iterated, make_sac
from tests.learn.learners import Bandit, Endless, foreign_worlds, parameters_of, portfolio_worlds, trading_worlds
from tests.markets import small_market
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.networks.soft_actor_critic import LOG_STD_RANGE, SquashedGaussian, squashed_for
from velodrome.rollout.observation import Observation, split_windows
from velodrome.rollout.worlds import make_worlds

# Actions


def box(low, high):
    return gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


def test_drawn_actions_lie_in_their_range_and_their_density_is_that_of_torch():
    squashed = squashed_for(box([-2.0, 0.0, 5.0], [2.0, 1.0, 5.0]))  # the last has no choice
    parameters = torch.randn((4000, 6), generator=torch.Generator().manual_seed(1)).clamp(max=LOG_STD_RANGE[1])
    generator = torch.Generator().manual_seed(2)
    actions, log_prob = squashed.draw(parameters, generator)
    assert actions.shape == (4000, 3)
    assert (actions >= squashed.middle - squashed.reach).all()
    assert (actions <= squashed.middle + squashed.reach).all()
    assert (actions[:, 2] == 5.0).all()
    mean, log_std = parameters.chunk(2, 1)
    noise = torch.empty_like(mean).normal_(generator=generator.manual_seed(2))
    value = (mean + noise * log_std.exp()).double()
    theirs = TransformedDistribution(Normal(mean.double(), log_std.double().exp()), TanhTransform(cache_size=1))
    inside = value.abs().amax(1) < 6.0  # farther out tanh rounds to 1, where torch's way gives infinity
    assert int(inside.sum()) > 3500
    expected = theirs.log_prob(torch.tanh(value)).sum(1)
    torch.testing.assert_close(log_prob[inside].double(), expected[inside], rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(squashed.spread(actions)[:, :2], torch.tanh(value).float()[:, :2], rtol=0, atol=1e-5)


def test_the_density_of_an_action_adds_up_to_one_and_stays_finite_far_out():
    squashed = SquashedGaussian(torch.tensor([-1.0]), torch.tensor([1.0]))
    values = torch.linspace(-12.0, 12.0, 200_001, dtype=torch.float64)
    mean, log_std = 0.3, -0.2
    log_normal = Normal(mean, math.exp(log_std)).log_prob(values)
    log_slope = 2.0 * (math.log(2.0) - values - torch.nn.functional.softplus(-2.0 * values))
    edges = torch.tanh(values)
    density = (log_normal - log_slope).exp()
    assert float(torch.trapezoid(density, edges)) == pytest.approx(1.0, abs=1e-4)
    far = torch.tensor([[300.0, LOG_STD_RANGE[1] + 9.0]])
    action, log_prob = squashed.draw(far, torch.Generator().manual_seed(0))
    assert float(action) == 1.0
    assert math.isfinite(float(log_prob))
    assert float(squashed.parts(far)[1]) == LOG_STD_RANGE[1]


def test_what_is_played_is_the_squashed_mean_and_random_actions_fill_the_range():
    squashed = squashed_for(box([-2.0, 0.0], [2.0, 10.0]))
    played = squashed.mode(torch.tensor([[0.0, 0.5, 1.0, -3.0]]))
    torch.testing.assert_close(played, torch.tensor([[0.0, 5.0 + 5.0 * math.tanh(0.5)]]))
    drawn = squashed.uniform(5000, torch.Generator().manual_seed(0))
    ends = torch.stack([drawn.amin(0), drawn.amax(0)])
    torch.testing.assert_close(ends, torch.tensor([[-2.0, 0.0], [2.0, 10.0]]), rtol=0, atol=0.02)


def test_actions_are_random_until_learning_starts():
    learner = make_sac(learning_starts=200, rollout_length=8)
    low, high = learner.worlds.low, learner.worlds.high
    with torch.no_grad():
        learner.policy.policy_head.weight.zero_()
        learner.policy.deviation_head.weight.zero_()
        learner.policy.policy_head.bias.fill_(9.0)  # always the upper end
        learner.policy.deviation_head.bias.fill_(-9.0)
    shares = []
    for _ in range(6):
        learner.iterate()
        shares.append(float((learner.actions > high - 0.1 * (high - low)).float().mean()))
    assert max(shares[:5]) < 0.5
    assert shares[5] == 1.0


# Targets and losses


def by_hand(learner, batch, weight, noise):
    """What every transition's action turned out to be worth."""
    found = []
    for k in range(len(batch.rewards)):
        seen = batch.following.values[k : k + 1]
        if learner.moments is not None:
            seen = learner.moments.normalise(seen)
        observation = Observation(seen, batch.following.cursor[k : k + 1])
        bank = learner.worlds.bank
        mean, log_std = learner.policy(observation, bank)[0].double().tolist()
        value = mean + noise[k] * math.exp(log_std)
        action = math.tanh(value)
        density = math.exp(-0.5 * noise[k] ** 2) / math.sqrt(2.0 * math.pi) / math.exp(log_std) / (1.0 - action**2)
        placed = learner.acts_by.placed(torch.tensor([[action]], dtype=torch.float32))
        worth = min(float(one) for one in learner.targets(observation, placed, bank))
        scale = 1.0 if learner.scale is None else float((learner.scale.moments.variance + 1e-8) ** -0.5)
        future = float(batch.discount[k]) * (worth - weight * math.log(density))
        found.append(float(batch.rewards[k]) * scale + future)
    return torch.tensor(found)


@pytest.mark.parametrize("case", ["mlp", "normalised, linear", "conv, layer norm, given weight"])
def test_targets_are_those_made_by_hand(case):
    network, config = SAC_CASES[case]
    worlds = trading_worlds(6, seed=3, action="continuous", max_drawdown=0.02)  # most episodes terminate
    learner = make_sac(worlds, network, **config)
    iterated(learner, 6)
    batch = learner.replay.sample(48, learner.generator)
    assert 0 < int((batch.discount == 0.0).sum()) < 48
    before = learner.generator.get_state()
    noise = torch.empty((48, 1)).normal_(generator=learner.generator)[:, 0].tolist()
    learner.generator.set_state(before)
    expected = by_hand(learner, batch, float(learner.entropy.weight()), noise)
    shown = batch._replace(following=learner._shown(batch.following))
    torch.testing.assert_close(learner._wanted(shown, learner.entropy.weight()), expected, rtol=1e-3, atol=1e-4)
    own, other = learner.critics.heads[0].weight, learner.targets.heads[0].weight
    assert not torch.equal(own, other)


def test_targets_follow_the_critics_by_their_share():
    learner = make_sac(target_share=0.25)
    iterated(learner, 2)
    before = [tensor.clone() for tensor in learner.targets.parameters()]
    learner.learn()
    for old, new, critic in zip(before, learner.targets.parameters(), learner.critics.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * critic.detach())


def test_the_policy_learns_from_the_critics_and_they_do_not_learn_from_it():
    learner = make_sac(learning_rate=1e-2)
    iterated(learner, 2)
    learner.optimisers["critics"].set_rate(0.0)
    critics = [tensor.clone() for tensor in learner.critics.parameters()]
    policy = parameters_of(learner)
    learner.learn()
    assert all(torch.equal(old, new) for old, new in zip(critics, learner.critics.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in learner.critics.parameters())
    moved = parameters_of(learner)
    assert all(not torch.equal(tensor, moved[name]) for name, tensor in policy.items())


@pytest.mark.parametrize(("target", "grows"), [(5.0, True), (-20.0, False)])
def test_the_weight_of_the_entropy_grows_where_there_is_less_than_the_target(target, grows):
    learner = make_sac(entropy_target=target, entropy_start=0.5)
    weights = [found["policy/entropy_weight"] for found in iterated(learner, 8)]
    steps = np.diff([0.5, *weights])
    assert (steps > 0.0).all() if grows else (steps < 0.0).all()


def test_a_given_weight_stays_as_it_is():
    learner = make_sac(entropy=0.3)
    assert [found["policy/entropy_weight"] for found in iterated(learner, 4)] == pytest.approx([0.3] * 4)
    assert learner.optimisers["entropy"].state() == {}


class Continuous(Endless):
    """The endless environment, with an action that changes nothing."""

    def __init__(self, length: int, *, terminates: bool) -> None:
        super().__init__(length, terminates=terminates, shows_time=terminates)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


@pytest.mark.parametrize("terminates", [True, False])
def test_cut_off_episodes_are_worth_what_would_have_come_and_ended_ones_nothing(terminates):
    gamma, length = 0.8, 4
    learner = make_sac(
        foreign_worlds(partial(Continuous, length, terminates=terminates), 8),
        {"hidden": (32,)},
        gamma=gamma, entropy=0.0, batch_size=128, buffer_size=2_000, updates=16, learning_rate=5e-3, target_share=0.05,
    )  # fmt: skip
    iterated(learner, 90)
    shown = torch.eye(length + 1)[:length] if terminates else torch.eye(length + 1)[:1]
    values = learner.critics(Observation(shown), torch.zeros((len(shown), 1))).mean(0)
    left = torch.arange(length, 0, -1) if terminates else torch.tensor([1e9])
    torch.testing.assert_close(values, (1.0 - gamma**left) / (1.0 - gamma), rtol=0.05, atol=0.05)


# One network for all instruments


def test_swapping_instruments_swaps_their_actions_and_leaves_values_as_they_are():
    learner = make_sac(portfolio_worlds(4, 3), {"kind": "instruments"}, buffer_size=200)
    iterated(learner, 3)
    layout, size = learner.worlds.shape.instruments, learner.worlds.shape.values
    assert layout is not None
    order = torch.tensor([2, 0, 1])
    values = torch.randn((5, size))
    windows = torch.randn((5, learner.worlds.shape.window_floats))
    swapped = values.clone()
    for first in layout.own:
        swapped[:, first : first + 3] = values[:, first + order]
    parts = [
        part.unflatten(2, (3, -1))[:, :, order].flatten(1)
        for part in split_windows(windows, learner.worlds.bank.shapes)
    ]
    before, after = Observation(values, None, windows), Observation(swapped, None, torch.cat(parts, 1))
    numbers = learner.acts_by.shape[0]
    places = torch.cat([order, torch.arange(3, numbers)])  # what belongs to no instrument stays
    means, deviations = (part[:, places] for part in learner.policy(before).chunk(2, 1))
    torch.testing.assert_close(learner.policy(after), torch.cat([means, deviations], 1), rtol=1e-4, atol=1e-5)
    actions = learner.acts_by.uniform(5, None)
    expected = learner.critics(before, actions)
    torch.testing.assert_close(learner.critics(after, actions[:, places]), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(learner.critics(after, actions), expected, rtol=1e-3)


# What it is good for


def test_the_right_action_is_learnt():
    learner = make_sac(
        foreign_worlds(partial(Bandit, gymnasium.spaces.Box(-1.0, 2.0, (2,), np.float32)), 32),
        {"hidden": (64, 64), "activation": "relu"},
        gamma=0.0, batch_size=256, buffer_size=20_000, updates=16, learning_rate=3e-3, entropy_target=-4.0,
    )  # fmt: skip
    iterated(learner, 60)
    policy = TrainedPolicy.of(learner.policy, learner.worlds, learner.moments)
    shown = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    policy.begin(500)
    wrong = np.abs(policy.act(shown) - (shown[:, :2] > 0.0))
    assert wrong.mean() < 0.15  # near 0 of what is shown the right action jumps
    policy.begin(500)
    drawn = policy.act(shown, deterministic=False)
    assert 0.0 < np.abs(drawn - policy.act(shown)).mean() < 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("config", [{}, {"rounds": 3, **NORMALISED}, {"entropy": 0.1}])
def test_cuda_graphs_give_what_eager_kernels_give(config):
    def make(graphs):
        envs = vd.make_vec("trading", 256, backend="cuda", market=small_market(bars=60, seed=1), observation="cursor",
                           action="continuous", seed=0, episode_length=(3, 9))  # fmt: skip
        return make_sac(make_worlds(envs), cuda_graphs=graphs, buffer_size=5000, batch_size=512, **config)

    ours, theirs = (iterated(make(graphs), 12) for graphs in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-2, abs=1e-3)
