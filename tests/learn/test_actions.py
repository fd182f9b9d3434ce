"""Distributions over actions are those of torch.distributions, and are sampled as they say."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from velodrome.errors import ConfigError
from velodrome.learn.actions import EDGE, Categorical, Dirichlet, Gaussian, MultiCategorical, distribution_for


def numbers(seed, *shape, scale=3.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def concentrations(parameters):
    """0.2 and what grows with the parameters, from exp(-2) at 0: exponentially up to exp(5), then linearly."""
    raised = parameters - 2.0
    return 0.2 + torch.where(raised < 5.0, raised.clamp(max=5.0).exp(), math.exp(5.0) * (raised - 4.0))


def reference(kind, parameters, log_std):
    """The same distribution by torch, as a list of independent ones over the columns of an action."""
    if kind.kind == "dirichlet":
        return [torch.distributions.Dirichlet(concentrations(parameters), validate_args=False)]
    if kind.kind == "gaussian":
        normal = torch.distributions.Normal(parameters, log_std.exp().expand_as(parameters))
        return [torch.distributions.Independent(normal, 1)]
    return [torch.distributions.Categorical(logits=own) for own in parameters.split(list(kind.counts), 1)]


def columns(kind, actions):
    return list(actions.unbind(1)) if kind.kind == "multi_categorical" else [actions]


KINDS = [
    Categorical(1), Categorical(4), MultiCategorical((3, 2, 5)), Gaussian(1), Gaussian(3), MultiCategorical((3, 3)),
    Dirichlet(2), Dirichlet(8),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.kind}-{kind.width}")
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 6))
def test_log_probability_and_entropy_are_those_of_torch(kind, seed, rows):
    parameters = numbers(seed, rows, kind.width).requires_grad_()
    log_std = numbers(seed + 1, kind.width, scale=0.5).requires_grad_() if kind.kind == "gaussian" else None
    with torch.no_grad():
        actions = kind.sample(parameters.float(), None if log_std is None else log_std.float(), torch.Generator())
    assert actions.dtype == kind.dtype
    assert actions.shape == (rows, *kind.shape)
    if actions.is_floating_point():
        actions = actions.double()
        actions = actions / actions.sum(1, keepdim=True) if kind.kind == "dirichlet" else actions
    log_prob, entropy = kind.evaluate(parameters, log_std, actions)
    every = reference(kind, parameters, log_std)
    expected = sum(one.log_prob(column) for one, column in zip(every, columns(kind, actions), strict=True))
    torch.testing.assert_close(log_prob, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(entropy, sum(one.entropy() for one in every), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kind.log_prob(parameters, log_std, actions), log_prob, rtol=0, atol=0)
    wanted = [parameters] if log_std is None else [parameters, log_std]
    ours = torch.autograd.grad((log_prob + 0.3 * entropy).sum(), wanted)
    total = expected.sum() + 0.3 * sum(one.entropy() for one in every).sum()
    for own, other in zip(ours, torch.autograd.grad(total, wanted), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "kind", [Categorical(4), MultiCategorical((3, 2)), MultiCategorical((3, 3))], ids=lambda kind: str(kind.counts)
)
def test_discrete_actions_are_drawn_with_their_probabilities(kind):
    draws = 40_000
    logits = numbers(3, 1, kind.width, scale=1.0).float()
    actions = kind.sample(logits.expand(draws, -1), None, torch.Generator().manual_seed(0))
    every = reference(kind, logits, None)
    for one, column in zip(every, columns(kind, actions), strict=True):
        chances = one.probs[0].numpy()
        shares = np.bincount(column.numpy(), minlength=len(chances)) / draws
        deviations = np.sqrt(chances * (1 - chances) / draws)
        assert (np.abs(shares - chances) < 4.5 * deviations).all(), (shares, chances)


def test_the_choices_of_a_multiple_action_are_drawn_independently():
    actions = MultiCategorical((2, 2)).sample(torch.zeros(40_000, 4), None, torch.Generator().manual_seed(0))
    assert abs(np.corrcoef(actions.numpy().T)[0, 1]) < 0.02


def test_continuous_actions_are_drawn_with_their_mean_and_deviation():
    mean, log_std = torch.tensor([[1.0, -2.0]]), torch.tensor([0.5, -1.0])
    actions = Gaussian(2).sample(mean.expand(40_000, -1), log_std, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(actions.mean(0).numpy(), mean[0].numpy(), atol=0.04)
    np.testing.assert_allclose(actions.std(0).numpy(), log_std.exp().numpy(), rtol=0.02)


@pytest.mark.parametrize("kind", KINDS[:-2], ids=lambda kind: f"{kind.kind}-{kind.width}")
def test_the_mode_is_the_likeliest_action(kind):
    parameters = numbers(7, 50, kind.width).float()
    log_std = torch.zeros(kind.width) if kind.kind == "gaussian" else None
    best = kind.log_prob(parameters, log_std, kind.mode(parameters))
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        assert (kind.log_prob(parameters, log_std, kind.sample(parameters, log_std, generator)) <= best + 1e-6).all()


@pytest.mark.parametrize("kind", [*KINDS[1:3], *KINDS[4:6], KINDS[7]], ids=lambda kind: f"{kind.kind}-{kind.width}")
def test_the_same_generator_draws_the_same_actions(kind):
    parameters, log_std = numbers(7, 50, kind.width).float(), torch.zeros(kind.width)
    one, same, other = (
        kind.sample(parameters, log_std, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )  # fmt: skip
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_very_unlikely_actions_are_not_nan():
    logits = torch.tensor([[0.0, -1e4]])
    log_prob, entropy = Categorical(2).evaluate(logits, None, torch.tensor([1]))
    assert log_prob.tolist() == [-1e4]
    assert entropy.tolist() == [0.0]


def test_deviations_may_be_shared_by_the_first_values():
    means, log_std = numbers(1, 5, 4), numbers(2, 2, scale=0.5)
    each = torch.cat([log_std[:1].expand(3), log_std[1:]])
    tied, free = Gaussian(4, tied=3), Gaussian(4)
    assert (tied.deviations, free.deviations) == (2, 4)
    actions = numbers(3, 5, 4)
    for found, expected in zip(
        tied.evaluate(means, log_std, actions), free.evaluate(means, each, actions), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    drawn = [kind.sample(means, own, torch.Generator().manual_seed(1)) for kind, own in ((tied, log_std), (free, each))]
    assert torch.equal(*drawn)


# Weights that add up to 1


@given(seed=st.integers(0, 10_000), size=st.integers(2, 12), scale=st.sampled_from([0.1, 3.0, 30.0]))
def test_density_and_entropy_of_weights_are_those_of_scipy(seed, size, scale):
    parameters = numbers(seed, 1, size, scale=scale)
    concentration = concentrations(parameters)[0].numpy()
    kind = Dirichlet(size)
    actions = kind.sample(parameters, None, torch.Generator().manual_seed(seed)).double()
    actions /= actions.sum()
    log_prob, entropy = kind.evaluate(parameters, None, actions)
    expected = stats.dirichlet.logpdf(actions[0].numpy(), concentration)
    assert float(log_prob) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert float(entropy) == pytest.approx(stats.dirichlet.entropy(concentration), rel=1e-9, abs=1e-9)


def test_weights_are_drawn_with_their_mean_and_spread():
    parameters = torch.tensor([[2.0, -1.0, 0.0, 4.0]], dtype=torch.float64)
    concentration = concentrations(parameters)[0].numpy()
    total = concentration.sum()
    drawn = Dirichlet(4).sample(parameters.expand(40_000, -1), None, torch.Generator().manual_seed(0)).numpy()
    mean = concentration / total
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.005)
    np.testing.assert_allclose(drawn.var(0), mean * (1.0 - mean) / (total + 1.0), rtol=0.05)


@given(
    st.lists(st.one_of(st.floats(-1e4, 1e4), st.sampled_from([-1e4, -120.0, -15.0, 0.0, 1e4])), min_size=2, max_size=6),
    st.integers(0, 100),
)
def test_the_most_extreme_parameters_give_points_of_the_simplex_and_finite_gradients(parameters, seed):
    kind = Dirichlet(len(parameters))
    given_ = torch.tensor([parameters], dtype=torch.float32, requires_grad=True)
    with torch.no_grad():
        drawn = kind.sample(given_, None, torch.Generator().manual_seed(seed))
        likeliest = kind.mode(given_)
    for actions in (drawn, likeliest):
        assert float(actions.sum()) == pytest.approx(1.0, abs=1e-6)
        assert (actions >= 0.0).all()
        assert (actions <= 1.0).all()
    assert (drawn >= 0.9 * EDGE).all()
    for actions in (drawn, likeliest, torch.eye(len(parameters))[:1]):  # also at a corner, where nothing is drawn
        log_prob, entropy = kind.evaluate(given_, None, actions)
        assert torch.isfinite(log_prob).all()
        assert torch.isfinite(entropy).all()
        (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), given_)
        assert torch.isfinite(gradient).all()


def test_the_weights_played_are_in_the_proportions_of_what_grows():
    parameters = numbers(5, 20, 6)
    growth = concentrations(parameters) - 0.2
    expected = growth / growth.sum(1, keepdim=True)
    np.testing.assert_allclose(Dirichlet(6).mode(parameters).numpy(), expected.numpy(), rtol=1e-5, atol=1e-7)
    # Where all concentrations are the smallest to the last digit, the proportions are still those.
    tiny = torch.tensor([[-200.0, -201.0]])
    np.testing.assert_allclose(Dirichlet(2).mode(tiny).numpy(), [[0.731059, 0.268941]], rtol=1e-5)


# Which distribution


def test_the_distribution_follows_from_the_action_space():
    spaces = gymnasium.spaces
    assert distribution_for(spaces.Discrete(3)).counts == (3,)
    assert distribution_for(spaces.MultiDiscrete([2, 4])).counts == (2, 4)
    box = distribution_for(spaces.Box(-1.0, 1.0, (2,)))
    assert (box.kind, box.width, box.shape) == ("gaussian", 2, (2,))


@pytest.mark.parametrize(
    "space",
    [gymnasium.spaces.Discrete(3, start=1), gymnasium.spaces.MultiDiscrete([[2, 2], [3, 3]]),
     gymnasium.spaces.MultiDiscrete([2, 2], start=[0, 1]), gymnasium.spaces.Box(0.0, 1.0, (2, 2)),
     gymnasium.spaces.Box(0, 5, (2,), np.int32),
     gymnasium.spaces.MultiBinary(3)],
    ids=str,
)  # fmt: skip
def test_other_action_spaces_are_refused(space):
    with pytest.raises(ConfigError, match=r"(?s)action space is .*learners take .*Wrap the environment"):
        distribution_for(space)


@pytest.mark.parametrize(
    "space",
    [gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Box(0.0, 1.0, (1,)),
     gymnasium.spaces.Box(0.0, 1.0, (2, 2)), gymnasium.spaces.Box(0.0, 2.0, (3,)), gymnasium.spaces.Discrete(3)],
    ids=str,
)  # fmt: skip
def test_weights_that_add_up_to_1_need_places_from_0_to_1(space):
    with pytest.raises(ConfigError, match=r"head = 'dirichlet' .* Box from 0 to 1 .* weighting = 'simplex'"):
        distribution_for(space, "dirichlet")


def test_the_head_asked_for_is_taken():
    box = gymnasium.spaces.Box(0.0, 1.0, (4,))
    assert isinstance(distribution_for(box, "dirichlet"), Dirichlet)
    assert isinstance(distribution_for(box, "gaussian"), Gaussian)
    assert isinstance(distribution_for(box), Gaussian)
    with pytest.raises(ConfigError, match="head = 'gaussian' draws from a Box, and the action space is Discrete"):
        distribution_for(gymnasium.spaces.Discrete(3), "gaussian")
