"""DQN: its targets sample by sample, bootstrapping, exploration and target network. See also test_dqn_contract."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from tests.learn.learner_cases import DQN_CASES, NORMALISED, iterated, make_dqn
from tests.learn.learners import Bandit, Endless, foreign_worlds, trading_worlds
from velodrome.errors import ConfigError
from velodrome.learn.acting import TrainedPolicy
from velodrome.rollout.observation import Observation

# Resuming


def test_a_learner_saved_before_its_first_gradient_step_resumes_too():
    whole, first, resumed = (make_dqn(learning_starts=60, prioritised=True) for _ in range(3))
    metrics = iterated(whole, 4)
    iterated(first, 1)
    resumed.load_state(*first.state())
    assert iterated(resumed, 3) == metrics[1:]


def test_environments_that_cannot_be_saved_begin_anew_and_nothing_joins_across():
    def make():
        return foreign_worlds(partial(Endless, 50, terminates=True), 2)

    first = make_dqn(make(), n_step=3, learning_starts=8, normalise_rewards=True)
    iterated(first, 3)
    resumed = make_dqn(make(), n_step=3, learning_starts=8, normalise_rewards=True)
    resumed.load_state(*first.state())
    assert resumed.steps == 24
    iterated(resumed, 1)
    drawn = resumed.replay.sample(512, resumed.generator)
    begin, end = (part.values.argmax(1) for part in (drawn.observation, drawn.following))
    # In these environments time goes by one a step; a jump back would join two episodes.
    assert ((end > begin) & (end <= begin + 3)).all()
    assert set(begin[end < begin + 3].tolist()) == {10, 11}  # those that the resumption cut short


# Parts of batches


@pytest.mark.parametrize("case", [case for case in DQN_CASES if case != "batch norm"])
def test_the_gradients_of_parts_add_up_to_the_same_steps(case):
    network, config = DQN_CASES[case]
    whole, parts = (make_dqn(network=network, **config) for _ in range(2))
    parts._split(3)  # of 10, 11 and 11 transitions
    for expected, found in zip(iterated(whole, 4), iterated(parts, 4), strict=True):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    resumed = make_dqn(network=network, **config)
    resumed.load_state(*parts.state())
    assert resumed.parts == 3


def test_batches_are_split_as_far_as_that_saves_memory():
    learner = make_dqn(batch_size=256)
    assert [learner.split_minibatches() for _ in range(3)] == [2, 4, None]
    assert make_dqn(network={"kind": "mlp_batch_norm"}, batch_size=256).split_minibatches() is None


# Targets


def by_hand(learner, batch):
    """What every transition's action turned out to be worth."""
    found = []
    for k in range(len(batch.actions)):
        seen = batch.following.values[k : k + 1]
        if learner.moments is not None:
            seen = learner.moments.normalise(seen)
        observation = Observation(seen, batch.following.cursor[k : k + 1])
        own = learner.policy.eval()(observation, learner.worlds.bank)[0]
        other = learner.target(observation, learner.worlds.bank)[0]
        value = other[int(own.argmax())] if learner.config.double else other.max()
        scale = 1.0 if learner.scale is None else float((learner.scale.moments.variance + 1e-8) ** -0.5)
        found.append(float(batch.rewards[k]) * scale + float(batch.discount[k]) * float(value))
    return torch.tensor(found)


@pytest.mark.parametrize("case", ["mlp", "single, plain, linear", "three steps, normalised", "batch norm"])
def test_targets_are_those_made_by_hand(case):
    network, config = DQN_CASES[case]
    worlds = trading_worlds(6, seed=3, max_drawdown=0.02)  # most episodes terminate
    learner = make_dqn(worlds, network, **{**config, "target_every": 1000})
    iterated(learner, 6)
    batch = learner.replay.sample(64, learner.generator)
    assert 0 < int((batch.discount == 0.0).sum()) < 64
    torch.testing.assert_close(learner._wanted(batch), by_hand(learner, batch), rtol=1e-4, atol=1e-5)
    own, other = (network.action_head.weight for network in (learner.policy, learner.target))
    assert not torch.equal(own, other)


@pytest.mark.parametrize("prioritised", [False, True])
def test_the_loss_is_that_of_huber_weighted_against_unequal_chances(prioritised):
    learner = make_dqn(prioritised=prioritised, priority_exponent=1.0, target_every=1000)
    iterated(learner, 4)
    learner.correction.fill_(0.7)
    before = learner.generator.get_state()
    batch = learner.replay.sample(32, learner.generator, learner.correction)
    learner.generator.set_state(before)
    # Some errors beyond 1, where the loss goes on in a straight line.
    learner.replay.stored["reward"] *= 20.0
    batch = batch._replace(rewards=batch.rewards * 20.0)
    values = learner.policy(batch.observation, learner.worlds.bank).detach()
    errors = (values.gather(1, batch.actions.unsqueeze(1)).squeeze(1) - by_hand(learner, batch)).tolist()
    assert max(map(abs, errors)) > 1.0
    losses = [0.5 * error**2 if abs(error) < 1.0 else abs(error) - 0.5 for error in errors]
    weights = [1.0] * 32 if batch.weights is None else batch.weights.tolist()
    assert (len(set(weights)) > 5) == prioritised
    learner.report.zero_()
    learner.learn()
    expected = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / 32
    assert float(learner.report[0]) == pytest.approx(expected, rel=1e-4)


def test_per_bar_encodings_lead_to_the_same_weights():
    learners = [make_dqn(per_bar=way, gamma=0.5) for way in ("never", "always")]
    assert learners[0].target_bars is None
    assert learners[1].target_bars is not None
    for learner in learners:
        iterated(learner, 5)
    # The targets' encodings are made anew with every copy.
    torch.testing.assert_close(
        learners[1].target_bars.table, learners[1].target.encode_bars(learners[1].worlds.bank).table
    )
    for one, other in zip(learners[0].policy.parameters(), learners[1].policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("terminates", "n_step"),
    [(False, 3), (True, 1), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((False, 1), (True, 3)))],
)
def test_a_cut_off_episode_is_worth_what_would_have_come_and_a_terminated_one_is_not(terminates, n_step):
    worlds = foreign_worlds(partial(Endless, 5, terminates=terminates, shows_time=terminates), 4)
    learner = make_dqn(
        worlds, {"hidden": (32,), "activation": "relu"}, total_steps=1200, n_step=n_step, updates=16, target_every=16,
        learning_rate=1e-2, buffer_size=600, epsilon_end=1.0, max_gradient_norm=10.0, schedule="linear",
    )  # fmt: skip
    while learner.steps < learner.total_steps:
        learner.iterate()
    first = Observation(torch.eye(6)[:1])
    wanted = sum(0.9**k for k in range(5)) if terminates else 10.0
    assert learner.policy(first).detach().squeeze(0).tolist() == pytest.approx([wanted] * 2, rel=0.03)


# Around it


def test_the_target_is_a_copy_of_the_network_as_it_was_at_the_last_multiple():
    learner = make_dqn(updates=1, learning_starts=0, network={"kind": "mlp_batch_norm"})
    kept = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    for iteration in range(1, 10):
        learner.iterate()
        if iteration % 4 == 0:
            kept = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
        for name, tensor in learner.target.state_dict().items():
            assert torch.equal(tensor, kept[name]), (iteration, name)
    assert not torch.equal(kept["action_head.weight"], learner.policy.action_head.weight)


def test_exploration_falls_over_its_part_of_the_run_and_actions_follow_it():
    learner = make_dqn(
        total_steps=480, epsilon_start=0.8, epsilon_end=0.1, epsilon_fraction=0.5, learning_starts=10_000
    )
    found = [learner.iterate()["policy/epsilon"] for _ in range(16)]
    assert found == pytest.approx([0.8 - 0.07 * k for k in range(10)] + [0.1] * 6)
    greedy = torch.zeros(60_000, dtype=torch.int64)
    learner.epsilon.fill_(0.3)
    counts = torch.bincount(learner._explore(greedy)) / 60_000
    assert counts.tolist() == pytest.approx([0.8, 0.1, 0.1], abs=0.006)


def test_nothing_is_learned_before_enough_is_collected():
    learner = make_dqn(learning_starts=60)
    first = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    metrics = [learner.iterate() for _ in range(2)]
    assert not any(name.startswith("loss/") for one in metrics for name in one)
    assert all(torch.equal(tensor, first[name]) for name, tensor in learner.policy.state_dict().items())
    assert "loss/value" in learner.iterate()
    assert learner.updates == 3


def test_the_learning_rate_falls_and_the_correction_rises_over_the_run():
    learner = make_dqn(schedule="linear", prioritised=True)
    for _ in range(5):
        metrics = learner.iterate()
    assert metrics["optimiser/learning_rate"] == pytest.approx(3e-3 * (1.0 - 96 / 1000))
    assert float(learner.correction) == pytest.approx(0.4 + 0.6 * 96 / 1000)


def test_the_mean_reward_is_that_of_the_environments_whatever_is_normalised():
    learner = make_dqn(**NORMALISED)
    for _ in range(3):
        metrics = learner.iterate()
        rows = (learner.replay.head - 1 - torch.arange(4)) % learner.replay.rows
        assert metrics["episode/mean_reward"] == pytest.approx(float(learner.replay.stored["reward"][rows].mean()))


def test_errors_decide_what_is_replayed():
    learner = make_dqn(prioritised=True, priority_exponent=1.0)
    iterated(learner, 4)
    masses = learner.replay.tree.leaves[: 16 * 6]
    assert len(masses.unique()) > 20


def test_compiled_networks_learn_the_same(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda network: compiled.append(network) or network)
    learner, other = make_dqn(compile=True), make_dqn()
    assert compiled == [learner.policy, learner.target]
    assert iterated(learner, 3) == iterated(other, 3)


def test_its_policy_acts_for_evaluation():
    learner = make_dqn(**NORMALISED)
    iterated(learner, 3)
    worlds = learner.worlds
    policy = TrainedPolicy.of(learner.policy, worlds, learner.moments)
    policy.begin(6)
    chosen = policy.act({"account": worlds.observation.values.numpy(), "cursor": worlds.observation.cursor.numpy()})
    values = learner.policy(learner.seen(worlds.observation), worlds.bank)
    assert chosen.tolist() == values.argmax(1).tolist()
    with pytest.raises(ConfigError, match="cannot draw"):
        policy.act({"account": worlds.observation.values.numpy(), "cursor": worlds.observation.cursor.numpy()}, False)


def test_a_checkpoint_of_another_size_is_refused_because_of_its_buffer():
    tensors, plain = make_dqn().state()
    with pytest.raises(ConfigError, match="replay buffer"):
        make_dqn(buffer_size=1000).load_state(tensors, plain)
    del plain["num_envs"]  # as in checkpoints of before the number of environments could change
    with pytest.raises(ConfigError, match="replay buffer"):
        make_dqn(trading_worlds(5)).load_state(tensors, plain)


@pytest.mark.parametrize("config", [{}, {"prioritised": True, "n_step": 2}, {"normalise_observations": True}])
def test_a_bandit_is_solved(config):
    worlds = foreign_worlds(partial(Bandit, gymnasium.spaces.Discrete(2)), 8)
    learner = make_dqn(
        worlds, {"hidden": (32,)}, total_steps=2000, updates=8, batch_size=64, buffer_size=2000, gamma=0.5,
        schedule="linear", learning_rate=1e-2, **config,
    )  # fmt: skip
    while learner.steps < 2000:
        metrics = learner.iterate()
    rewards = [learner.iterate()["episode/mean_reward"] for _ in range(20)]
    assert np.mean(rewards) > -0.1  # 5 % of the actions are random, half of them wrong; −0.5 is chance
    assert metrics["policy/epsilon"] == pytest.approx(0.05)


# Rounds


def test_an_iteration_of_several_rounds_learns_what_as_many_iterations_do():
    alone, together = (make_dqn(learning_starts=60, prioritised=True, rounds=rounds, **NORMALISED) for rounds in (1, 3))
    each = iterated(alone, 6)
    metrics = iterated(together, 2)
    assert together.steps == alone.steps
    (tensors, plain), (expected, counts) = together.state(), alone.state()
    assert plain == counts
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name
    for name in ("episode/mean_reward", "action/0", "loss/value"):
        assert metrics[1][name] == pytest.approx(np.mean([one[name] for one in each[3:]]), rel=1e-5), name
    assert metrics[1]["episode/count"] == sum(one["episode/count"] for one in each[3:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "config", [{}, {"rounds": 3}, {"prioritised": True, "n_step": 3, **NORMALISED}, {"per_bar": "always"}]
)
def test_cuda_graphs_give_what_eager_kernels_give(config):
    import velodrome as vd
    from tests.markets import small_market
    from velodrome.rollout.worlds import make_worlds

    def make(graphs):
        envs = vd.make_vec("trading", 256, backend="cuda", market=small_market(bars=60, seed=1), observation="cursor",
                           seed=0, episode_length=(3, 9))  # fmt: skip
        return make_dqn(make_worlds(envs), cuda_graphs=graphs, buffer_size=5000, batch_size=512, **config)

    ours, theirs = (iterated(make(graphs), 12) for graphs in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
