"""Whole splits in compiled loops and bar by bar, and episodes in any vector environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.evaluation.backtests import backtest
from tests.learn.policies import Recorded, split_market
from tests.learn.portfolios import factors_basket
from velodrome.errors import ActionError, ConfigError
from velodrome.evaluation import play
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.breakdown import Replay
from velodrome.evaluation.evaluator import evaluator_for
from velodrome.evaluation.play import Recording, play_episodes, play_split
from velodrome.evaluation.validation import cut
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.ensembles import ensemble_of
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.observation import ObservationShape, WindowBank

MARKET, BASKET = split_market(bars=150, jump=0.03), factors_basket(600)
COSTS = {"fee": 0.001, "slippage": 0.001, "max_drawdown": 0.05}


def cartpole(count: int, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count, autoreset_mode=mode)


def test_episodes_of_a_gymnasium_environment_equal_those_played_one_by_one():
    envs = cartpole(3)
    found = play_episodes(ConstantPolicy(1), envs, 5, seed=3)
    assert len(found) == 6, "as many for each environment"
    for index in range(3):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=3 + index)
        for episode in range(2):
            if episode:
                env.reset()
            total, ended = 0.0, False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(1)
                total += float(reward)
                ended = terminated or truncated
            assert found.returns.reshape(2, 3)[episode, index] == total
    assert np.array_equal(found.returns, found.lengths)
    assert found.actions.tolist() == [0, found.lengths.sum()]


def test_memory_of_ended_episodes_is_forgotten():
    policy = Recorded(np.ones((500, 2), np.int64))
    play_episodes(policy, cartpole(2), 4)
    assert policy.calls[0] == ("begin", 2)
    forgotten = sum(mask for name, mask in policy.calls[1:] if name == "forget")
    assert (forgotten >= 2).all()


def test_an_environment_that_resets_a_step_later_is_refused():
    with pytest.raises(ConfigError, match="SAME_STEP"):
        play_episodes(ConstantPolicy(1), cartpole(1, AutoresetMode.NEXT_STEP), 1)


def test_no_episodes_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        play_episodes(ConstantPolicy(1), cartpole(1), 0)


# Whole splits


class BarByBar:
    """Hides everything from a policy's caller but how to act."""

    def __init__(self, policy) -> None:
        self.begin, self.act, self.forget, self.policy = policy.begin, policy.act, policy.forget, policy

    @property
    def disagreement(self) -> np.ndarray | None:
        return getattr(self.policy, "disagreement", None)


def trained(world, market, seed: int = 1) -> TrainedPolicy:
    """Return a policy with random weights that acts in a world."""
    torch.manual_seed(seed)
    shape = ObservationShape(len(world.observed), world.window_shapes, world.instruments)
    kind = "mlp" if world.instruments is None else "instruments"
    network = ActorCritic(shape, world.action_space, NetworkConfig(kind=kind, hidden=(16, 8)))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return TrainedPolicy(network, shape, world.action_space, bank=WindowBank(market.windows))


def every_policy(market, params):
    """Yield policies of all kinds, each with the parameters that it plays with."""
    evaluator = evaluator_for(None, market, "test", params)
    agent = trained(evaluator.world(), market)
    yield agent, params
    yield ensemble_of([agent, *(trained(evaluator.world(), market, seed) for seed in (2, 3))]), params
    played = evaluator.play("agent", agent, (0, 3), 2, None)
    for baseline in evaluator.baselines(played, 0):
        if baseline.policy is not None:
            yield baseline.policy, params if baseline.params is None else baseline.params
    taken = np.concatenate([played.backtest.tracks[0].actions] * len(played.backtest.tracks), axis=1)
    yield Replay(taken), params


@pytest.mark.parametrize(("market", "params"), [(MARKET, COSTS), (BASKET, {"fee": 0.001, "slippage": 0.001})])
def test_a_split_comes_out_the_same_in_a_compiled_loop_as_bar_by_bar(market, params, monkeypatch):
    looped = []
    compiled = play._play_compiled
    monkeypatch.setattr(play, "_play_compiled", lambda *given: looped.append(given[0].decide) or compiled(*given))
    monkeypatch.setattr(play, "BETWEEN_NEWS", 7)
    ended = False
    for policy, own in every_policy(market, params):
        looped.clear()
        slow, fast = (backtest(one, market, "test", own, (0, 3)) for one in (BarByBar(policy), policy))
        assert len(looped) == 1, f"{type(policy).__name__} was not played in a compiled loop"
        # torch rounds the numbers that a network asks for in another order.
        near = 1e-4 if isinstance(policy, TrainedPolicy) and market is BASKET else 0.0
        assert (fast.tracks[0].disagreement is None) == (not hasattr(policy, "disagreement"))
        for ours, theirs in zip(fast.tracks, slow.tracks, strict=True):
            ended = ended or bool(ours.ended_early.any())
            assert np.array_equal(ours.bars, theirs.bars)
            both = zip(recorded(ours).items(), recorded(theirs).values(), strict=True)
            for (name, found), expected in both:
                np.testing.assert_allclose(found, expected, near, 10 * near, err_msg=f"{name} of {type(policy)}")
    assert ended == (market is MARKET)


def recorded(track) -> dict[str, np.ndarray]:
    apart = {} if track.disagreement is None else {"disagreement": track.disagreement.astype(np.float32)}
    return {"actions": track.actions, "rewards": track.rewards, **track.columns, **track.notes, **apart}


def test_more_pieces_than_a_block_has_lanes_come_out_the_same_too():
    evaluator = evaluator_for(None, MARKET, "test", COSTS)
    policy = trained(evaluator.world(), MARKET)
    ways, wanted = cut(evaluator.part, 140), Recording(("equity", "units", "order_code"), ("code_counts",), 1)
    assert len(ways.first) > 64
    slow, fast = (
        play_split(one, evaluator.world(), evaluator.part, (0,), wanted, pieces=ways)
        for one in (BarByBar(policy), policy)
    )
    for ours, theirs in zip(fast, slow, strict=True):
        for (name, found), expected in zip(recorded(ours).items(), recorded(theirs).values(), strict=True):
            assert np.array_equal(found, expected), name


def test_a_planned_action_outside_its_space_is_refused():
    with pytest.raises(ActionError, match="outside Discrete"):
        backtest(ConstantPolicy(3), MARKET, "test", COSTS)


def test_a_policy_without_a_number_is_refused():
    policy = trained(evaluator_for(None, MARKET, "test", COSTS).world(), MARKET)
    with torch.no_grad():
        policy.network.policy_head.bias[0] = np.inf
    for one in (policy, BarByBar(policy)):
        with pytest.raises(ConfigError, match="No action for environment 0: the policy gives NaN or infinity"):
            backtest(one, MARKET, "test", COSTS)


def test_progress_is_told_until_the_end():
    told = []
    backtest(ConstantPolicy(1), MARKET, "test", COSTS, progress=lambda *where: told.append(where))
    assert told[0] == (0, 49)
    assert told[-1] == (49, 49)
