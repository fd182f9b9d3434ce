"""One network for every instrument: what exchanging instruments does, what it costs, and where it serves."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.baskets import small_basket
from tests.learn.learners import (
    assert_the_first_encodes_and_both_learn_alike,
    make_ppo,
    parameters_of,
    portfolio_worlds,
    trading_worlds,
    without_times,
)
from velodrome.envs.contract import InstrumentLayout
from velodrome.errors import ConfigError
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks import layers
from velodrome.learn.networks.q_network import QNetwork
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank
from velodrome.tables.basket import per_instrument

SMALL = {"kind": "instruments", "hidden": (8, 6)}
WINDOWS = {"none": (), "one": ((4, 2),), "several": ((4, 2), (3, 1))}  # [rows, features of one instrument]
LAYOUTS = {"shares": (3, 3), "raw": (1, 1), "windows only": (0, 2)}  # kinds of own values, shared values
ACTIONS = ("softmax", "dirichlet", "signed", "discrete")


def make_shape(count: int, windows: str = "several", layout: str = "shares") -> ObservationShape:
    kinds, shared = LAYOUTS[layout]
    own = tuple(1 + kind * count for kind in range(kinds))
    shapes = tuple((rows, features * count) for rows, features in WINDOWS[windows])
    return ObservationShape(kinds * count + shared, shapes, InstrumentLayout(count, own))


def make_space(action: str, count: int) -> gymnasium.Space:
    return {
        "softmax": gymnasium.spaces.Box(-1.0, 1.0, (count + 1,)),
        "dirichlet": gymnasium.spaces.Box(0.0, 1.0, (count + 1,)),
        "signed": gymnasium.spaces.Box(-1.0, 1.0, (count,)),
        "discrete": gymnasium.spaces.MultiDiscrete([3] * count),
    }[action]


def make_policy(shape: ObservationShape, action: str = "softmax", seed: int = 0, **config: Any) -> ActorCritic:
    torch.manual_seed(seed)
    assert shape.instruments is not None
    settings = NetworkConfig(**{**SMALL, "head": "dirichlet" if action == "dirichlet" else "auto", **config})
    policy = ActorCritic(shape, make_space(action, shape.instruments.count), settings)
    with torch.no_grad():
        for parameter in policy.parameters():  # first outputs are close to 0, and biases are 0
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return policy


def observation(shape: ObservationShape, rows: int = 5, seed: int = 1) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    windows = torch.randn(rows, shape.window_floats, generator=generator) if shape.windows else None
    return Observation(torch.randn(rows, shape.values, generator=generator), None, windows)


def exchanged(seen: Observation, shape: ObservationShape, order: torch.Tensor) -> Observation:
    """Return an observation in which the instruments stand in another order."""
    assert shape.instruments is not None
    count = shape.instruments.count
    values = seen.values.clone()
    for first in shape.instruments.own:
        values[:, first : first + count] = seen.values[:, first + order]
    if seen.windows is None:
        return Observation(values)
    parts, at = [], 0
    for rows, features in shape.windows:
        window = seen.windows[:, at : at + rows * features].reshape(-1, rows, count, features // count)
        parts.append(window[:, :, order].reshape(len(values), -1))
        at += rows * features
    return Observation(values, None, torch.cat(parts, 1))


CASES = [
    *itertools.product(ACTIONS, (7,), WINDOWS, ("shares",), (False,)),
    *itertools.product(("softmax", "discrete"), (2, 100), ("several",), LAYOUTS, (True,)),
]


@pytest.mark.parametrize(("action", "count", "windows", "layout", "shared"), CASES)
def test_exchanged_instruments_have_exchanged_outputs_and_the_same_value(action, count, windows, layout, shared):
    shape = make_shape(count, windows, layout)
    policy = make_policy(shape, action, shared=shared).double()
    seen = Observation(*(None if part is None else part.double() for part in observation(shape)))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before, after = policy(seen), policy(exchanged(seen, shape, order))
    size = 3 if action == "discrete" else 1
    each = before.parameters[:, : size * count].unflatten(1, (count, size))
    assert float((each[:, 1:] - each[:, :1]).abs().max()) > 1e-3  # they are not all the same
    expected = torch.cat([each[:, order].flatten(1), before.parameters[:, size * count :]], 1)
    torch.testing.assert_close(after.parameters, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after.value, before.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hidden", [(8,), (8, 6), (8, 6, 5)])
@pytest.mark.parametrize("action", ACTIONS)
def test_every_output_depends_on_every_instrument(action, hidden):
    """What one instrument shows reaches the others and the cash through the context."""
    shape = make_shape(4)
    policy = make_policy(shape, action, hidden=hidden)
    seen = observation(shape, rows=1)
    windows = seen.windows.clone().requires_grad_()
    outputs = policy(seen._replace(windows=windows))
    for output in (*outputs.parameters[0], outputs.value[0]):
        (gradient,) = torch.autograd.grad(output, windows, retain_graph=True)
        first = gradient[0, :32].reshape(4, 4, 2).abs().sum((0, 2))  # by instrument, of the first window
        assert (first > 0.0).all()


@pytest.mark.parametrize("action", ACTIONS)
def test_there_are_as_many_parameters_for_any_number_of_instruments(action):
    few, many = (make_policy(make_shape(count), action) for count in (2, 100))
    assert {name: tensor.shape for name, tensor in few.state_dict().items()} == {
        name: tensor.shape for name, tensor in many.state_dict().items()
    }


def test_an_instrument_is_encoded_by_its_own_windows_and_values():
    shape = make_shape(3)
    policy = make_policy(shape)
    seen = observation(shape)
    first = policy.actor.first
    joined = first.join(first.encode(seen.windows), seen.values)
    long, short = seen.windows[:, :24].reshape(5, 4, 6), seen.windows[:, 24:].reshape(5, 3, 3)
    for k in range(3):
        own = [per_instrument(window.numpy(), 3)[:, k].reshape(5, -1) for window in (long, short)]
        values = seen.values[:, [1 + k, 4 + k, 7 + k]].numpy()
        shared = seen.values[:, [0, 10, 11]].numpy()
        inputs = torch.from_numpy(np.concatenate([*own, values, shared], 1))
        torch.testing.assert_close(joined[:, k], first.layer(inputs), rtol=1e-5, atol=1e-6)


# Each bar once


def gradients_of(way: str, shared: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Outputs and gradients in double precision, the windows read in one of several ways."""
    basket = small_basket(bars=40, instruments=3)
    shape = ObservationShape(12, ((4, 6),), InstrumentLayout(3, (1, 4, 7)))
    policy = make_policy(shape, shared=shared).double()
    bank = WindowBank(basket.windows, ((3, 40),), dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    cursor = torch.randint(3, 40, (24,), generator=generator)
    values = torch.randn(24, 12, generator=generator, dtype=torch.float64)
    encoding = None
    if way != "direct":
        encoding = policy.encode_bars(bank)
        assert encoding[0].table.shape == (37, 3 * 8)
    seen = Observation(values, None, bank.gather(cursor)) if way == "direct" else Observation(values, cursor)
    # Heads as in `forward`, without its float32.
    features = policy.actor(seen, bank, None if encoding is None else encoding[0])
    critic = features if shared else policy.critic(seen, bank, None if encoding is None else encoding[1])
    outputs = torch.cat([policy.policy_head(features), policy.value_head(critic)], 1)
    outputs.square().sum().backward()
    return outputs.detach(), {name: one.grad for name, one in policy.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("shared", [False, True])
def test_encoding_each_bar_once_is_exact(shared):
    outputs, gradients = gradients_of("all bars", shared)
    expected, expected_gradients = gradients_of("direct", shared)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("action", [{}, {"action": "discrete"}])
def test_training_per_bar_is_training_per_sample_to_the_rounding(action):
    learners = [
        make_ppo(portfolio_worlds(6, **action), SMALL, per_bar=way, learning_rate=1e-3) for way in ("always", "never")
    ]
    assert_the_first_encodes_and_both_learn_alike(*learners)


def test_pieces_of_the_bars_give_the_encoding_of_all(monkeypatch):
    shape = ObservationShape(12, ((4, 6),), InstrumentLayout(3, (1, 4, 7)))
    policy = make_policy(shape)
    bank = WindowBank(small_basket(bars=40, instruments=3).windows, ((3, 40),))
    with torch.no_grad():
        whole = policy.encode_bars(bank)[0].table
        monkeypatch.setattr(layers, "PIECE", 24 * 7)  # windows of seven bars
        pieces = policy.encode_bars(bank)[0].table
    torch.testing.assert_close(pieces, whole, rtol=1e-6, atol=1e-6)
    assert policy.encode_bars(bank)[0].table.requires_grad  # not cut where gradients are wanted


def test_encodings_of_too_many_bars_are_not_kept(monkeypatch):
    def encodes(**config: Any) -> bool:
        return make_ppo(portfolio_worlds(20), SMALL, rollout_length=16, minibatches=1, **config).engine.encode_once

    assert encodes()
    monkeypatch.setattr(layers, "MOST_ENCODED", 76 * 2 * 3 * 8)
    assert not encodes()  # 77 bars have whole windows
    assert encodes(per_bar="always")


# Where it serves


PORTFOLIOS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "simplex": {"weighting": "simplex"},
    "dirichlet": {"weighting": "simplex"},
    "signed": {"weighting": "signed", "allow_short": True},
    "orders": {"action": "orders"},
    "discrete": {"action": "discrete"},
    "raw": {"account_values": "raw", "cash_unit": 1e-4},
}


@pytest.mark.parametrize("kind", ["instruments", "mlp"])
@pytest.mark.parametrize("name", PORTFOLIOS)
def test_portfolios_of_every_kind_of_action_are_learnt_on(name, kind):
    head = "dirichlet" if name == "dirichlet" else "auto"
    worlds = portfolio_worlds(6, **PORTFOLIOS[name])
    learner = make_ppo(worlds, {**SMALL, "kind": kind, "head": head}, learning_rate=1e-2)
    before = parameters_of(learner)
    for _ in range(3):
        metrics = learner.iterate()
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(not torch.equal(tensor, before[key]) for key, tensor in parameters_of(learner).items())
    assert learner.engine.name == ("fused" if kind == "mlp" and head == "auto" else "autograd")
    if name == "dirichlet":
        torch.testing.assert_close(learner.rollout.actions.sum(2), torch.ones(8, 6))
        assert 0.0 < metrics["action/std"] < 0.5
    policy = TrainedPolicy.of(learner.policy, worlds)
    for deterministic in (True, False):
        actions = policy.act({"account": worlds.observation.values, "cursor": worlds.observation.cursor}, deterministic)
        assert worlds.action_space.contains(actions[0])


@pytest.mark.slow
def test_a_hundred_instruments_are_learnt_on():
    learner = make_ppo(portfolio_worlds(4, 100, action="discrete"), SMALL)
    metrics = learner.iterate()
    assert all(np.isfinite(value) for value in metrics.values())


def test_why_a_faster_engine_does_not_serve_is_told(caplog):
    with caplog.at_level("INFO", "velodrome"):
        make_ppo(portfolio_worlds(4, weighting="simplex"), {"head": "dirichlet"})
        make_ppo(portfolio_worlds(4), SMALL)
    assert "network.head = dirichlet; this engine has discrete and Gaussian actions" in caplog.text
    assert "the network is not a plain perceptron" in caplog.text


def test_a_portfolio_says_how_it_divides():
    shape = portfolio_worlds(2, 3).shape
    assert shape.instruments == InstrumentLayout(3, (1, 4, 7))
    assert shape.instruments.shared(shape.values) == ((0, 1), (10, 12))
    raw = portfolio_worlds(2, 3, account_values="raw").shape
    assert raw.instruments == InstrumentLayout(3, (1,))
    assert trading_worlds(2).shape.instruments is None


def test_environments_without_instruments_are_refused():
    with pytest.raises(ConfigError, match=r"do not divide by instrument .* use 'mlp'"):
        make_ppo(trading_worlds(2), SMALL)


def test_observations_that_show_nothing_of_an_instrument_are_refused():
    shape = ObservationShape(2, (), InstrumentLayout(3))
    with pytest.raises(ConfigError, match="neither windows nor values of single instruments"):
        ActorCritic(shape, make_space("softmax", 3), NetworkConfig(**SMALL))


@pytest.mark.parametrize(
    "space",
    [gymnasium.spaces.Discrete(5), gymnasium.spaces.Box(-1.0, 1.0, (2,)), gymnasium.spaces.MultiDiscrete([3, 3, 2])],
    ids=str,
)
def test_actions_that_do_not_divide_by_instrument_are_refused(space):
    with pytest.raises(ConfigError, match="needs one component of the same size for each"):
        ActorCritic(make_shape(3), space, NetworkConfig(**SMALL))


def test_further_choices_come_from_the_context():
    space = gymnasium.spaces.MultiDiscrete([3, 3, 3, 5])
    policy = ActorCritic(make_shape(3), space, NetworkConfig(**SMALL))
    assert policy(observation(make_shape(3))).parameters.shape == (5, 14)


@pytest.mark.parametrize(("kind", "shared"), [("instruments", True), ("mlp", False)])
def test_instruments_that_are_looked_at_alike_are_normalised_alike(kind, shared):
    worlds = portfolio_worlds(6)
    learner = make_ppo(worlds, {"kind": kind}, normalise_observations=True)
    learner.iterate()
    layout = worlds.shape.instruments
    assert learner.moments is not None
    assert layout is not None
    assert layout.own
    for first in layout.own:
        moments = {
            (float(learner.moments.mean[k]), float(learner.moments.variance[k]))
            for k in range(first, first + layout.count)
        }
        assert (len(moments) == 1) == shared


def test_q_learning_is_refused():
    with pytest.raises(ConfigError, match="DQN chooses one of several actions, which does not divide by instrument"):
        QNetwork(make_shape(3), gymnasium.spaces.Discrete(3), NetworkConfig(**SMALL))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("head", ["auto", "dirichlet"])
def test_compiled_networks_and_losses_learn_what_eager_ones_do(head):
    learners = [
        make_ppo(portfolio_worlds(6, weighting="simplex"), {**SMALL, "head": head}, compile=flag)
        for flag in (True, False)
    ]
    for _ in range(2):
        compiled, eager = (without_times(learner.iterate()) for learner in learners)
    assert compiled == pytest.approx(eager, rel=1e-3, abs=1e-5)
