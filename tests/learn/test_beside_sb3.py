"""DQN, SAC and PPO beside those of Stable-Baselines3: the same update from the same weights and samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import pytest
import torch

from tests.learn.learners import foreign_worlds
from velodrome.learn.config import DQNConfig, NetworkConfig, PPOConfig, SACConfig
from velodrome.learn.dqn import DQN
from velodrome.learn.ppo import PPO
from velodrome.learn.sac import SAC
from velodrome.rollout.observation import Observation
from velodrome.rollout.replay import Transitions

pytest.importorskip("stable_baselines3")
import stable_baselines3
from stable_baselines3.common.vec_env import DummyVecEnv

HIDDEN, BATCH, GAMMA, RATE, CLIP = (48, 32), 32, 0.97, 3e-3, 0.4  # gradients are longer than that at first


def short_cartpole() -> gymnasium.Env:
    """Episodes are often cut off."""
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


def their_dqn(**options: Any) -> Any:
    settings = {"learning_rate": RATE, "gamma": GAMMA, "batch_size": BATCH, "max_grad_norm": CLIP, **options}
    policy = {"net_arch": list(HIDDEN)}
    return stable_baselines3.DQN("MlpPolicy", short_cartpole(), policy_kwargs=policy, seed=0, device="cpu", **settings)


def our_dqn(**options: Any) -> DQN:
    settings = {"learning_rate": RATE, "gamma": GAMMA, "batch_size": BATCH, "max_gradient_norm": CLIP, **options}
    config = DQNConfig(**{"double": False, "duelling": False, **settings})
    network = NetworkConfig(hidden=HIDDEN, activation="relu")
    return DQN(foreign_worlds(short_cartpole, 1), network, config, total_steps=1_000, seed=0)


def layers_of(network: torch.nn.Module) -> list[torch.Tensor]:
    """Weights and biases in the order of the layers, which is that of their declaration in both libraries."""
    return [tensor.detach() for tensor in network.parameters()]


def as_transitions(batch: Any) -> Transitions:
    """What they drew, as our buffer would give it."""
    discount = GAMMA * (1.0 - batch.dones.squeeze(1))
    seen, following = Observation(batch.observations), Observation(batch.next_observations)
    actions = batch.actions if batch.actions.is_floating_point() else batch.actions.squeeze(1).long()
    places = torch.zeros(len(actions), dtype=torch.int64)
    return Transitions(seen, actions, batch.rewards.squeeze(1), following, discount, None, places)


def test_a_gradient_step_of_dqn_is_theirs(monkeypatch):
    theirs, ours = their_dqn(learning_starts=400), our_dqn()
    theirs.learn(300)  # collects only
    for own, other in zip(layers_of(ours.policy), layers_of(theirs.q_net), strict=True):
        own.copy_(other)
    ours._copy_to_target()
    batches = [theirs.replay_buffer.sample(BATCH) for _ in range(20)]
    drawn, replayed = iter(batches), iter(batches)
    monkeypatch.setattr(theirs.replay_buffer, "sample", lambda *_, **__: next(drawn))
    monkeypatch.setattr(ours.replay, "sample", lambda *_, **__: as_transitions(next(replayed)))
    for _ in range(4):
        theirs.train(gradient_steps=5, batch_size=BATCH)
        theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
        for _ in range(5):
            ours.learn()
        ours._copy_to_target()
    for own, other in zip(layers_of(ours.policy), layers_of(theirs.q_net), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_the_network_of_dqn_starts_as_theirs():
    ours = our_dqn().policy
    theirs = their_dqn().q_net.q_net
    for own, other in zip(layers_of(ours), layers_of(theirs), strict=True):
        if own.numel() <= 2:  # the head's biases: too few to compare
            continue
        bounds = [float(tensor.abs().max()) for tensor in (own, other)]
        assert bounds[0] == pytest.approx(bounds[1], rel=0.15)
        assert float(own.std()) == pytest.approx(float(other.std()), rel=0.3)


def test_gradient_steps_of_sac_are_theirs(monkeypatch):
    target_share = 0.05
    settings = {"learning_rate": RATE, "gamma": GAMMA, "batch_size": BATCH, "tau": target_share}
    make = partial(gymnasium.make, "Pendulum-v1")
    policy = {"net_arch": list(HIDDEN)}
    theirs = stable_baselines3.SAC(
        "MlpPolicy", make(), policy_kwargs=policy, seed=0, device="cpu", learning_starts=400, **settings
    )
    theirs.learn(300)  # collects only
    config = SACConfig(
        learning_rate=RATE,
        gamma=GAMMA,
        batch_size=BATCH,
        target_share=target_share,
        max_gradient_norm=1e9,
        entropy_start=1.0,
        normalise_rewards=False,
    )
    network = NetworkConfig(hidden=HIDDEN, activation="relu")
    ours = SAC(foreign_worlds(make, 1), network, config, total_steps=1_000, seed=0)
    for own, other in zip(ours_of_sac(ours), theirs_of_sac(theirs), strict=True):
        own.copy_(other)
    ours.targets.load_state_dict(ours.critics.state_dict())
    batches = [theirs.replay_buffer.sample(BATCH) for _ in range(20)]
    assert all(float(batch.actions.abs().max()) <= 1.0 for batch in batches)  # theirs are stored from -1 to 1
    drawn, replayed = iter(batches), iter(batches)
    monkeypatch.setattr(theirs.replay_buffer, "sample", lambda *_, **__: next(drawn))

    def sample(*_: Any) -> Transitions:
        found = as_transitions(next(replayed))
        return found._replace(actions=ours.acts_by.placed(found.actions))

    monkeypatch.setattr(ours.replay, "sample", sample)
    ours.generator = torch.default_generator  # from which they draw
    torch.manual_seed(1)
    theirs.train(gradient_steps=20, batch_size=BATCH)
    torch.manual_seed(1)
    for _ in range(20):
        ours.learn()
    for own, other in zip(ours_of_sac(ours), theirs_of_sac(theirs), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
    for own, other in zip(critics_of(ours.targets), layers_of(theirs.critic_target), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
    assert float(ours.entropy.logarithm.detach()) == pytest.approx(float(theirs.log_ent_coef.detach()), rel=1e-4)


def ours_of_sac(learner: SAC) -> list[torch.Tensor]:
    return [*layers_of(learner.policy), *critics_of(learner.critics)]


def critics_of(critics: Any) -> list[torch.Tensor]:
    pairs = zip(critics.trunks, critics.heads, strict=True)
    return [tensor for trunk, head in pairs for tensor in (*layers_of(trunk), *layers_of(head))]


def theirs_of_sac(model: Any) -> list[torch.Tensor]:
    actor = model.actor
    parts = (actor.latent_pi, actor.mu, actor.log_std, model.critic)
    return [tensor for part in parts for tensor in layers_of(part)]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_an_update_of_ppo_is_theirs(env):
    envs, steps, epochs = 2, 32, 3
    shared = {"learning_rate": RATE, "gamma": GAMMA}
    # One minibatch, so that the order of samples does not matter; deviations of advantages are corrected in one only.
    their_settings = {"n_steps": steps, "batch_size": envs * steps, "n_epochs": epochs, "normalize_advantage": False}
    policy = {"net_arch": list(HIDDEN)}
    make = DummyVecEnv([lambda: gymnasium.make(env)] * envs)
    theirs = stable_baselines3.PPO(
        "MlpPolicy", make, seed=0, device="cpu", policy_kwargs=policy, ent_coef=0.01, **shared, **their_settings
    )
    theirs.learn(envs * steps)  # its rollout is kept, with the values and probabilities from before the update
    old = stable_baselines3.PPO("MlpPolicy", make, seed=0, device="cpu", policy_kwargs=policy).policy
    config = PPOConfig(
        rollout_length=steps,
        epochs=epochs,
        minibatches=1,
        value_weight=1.0,
        entropy=0.01,
        normalise_advantages=False,
        **shared,
    )
    network = NetworkConfig(hidden=HIDDEN, activation="tanh")
    ours = PPO(foreign_worlds(lambda: gymnasium.make(env), envs), network, config, total_steps=1_000, seed=0)
    for own, other in zip(ours_of(ours.policy), theirs_of(old), strict=True):
        own.copy_(other)
    stored, rollout = theirs.rollout_buffer, ours.rollout
    # After an update their buffer is flat, environment by environment.
    for own, name in (
        (rollout.values, "observations"),
        (rollout.actions, "actions"),
        (rollout.log_prob, "log_probs"),
        (rollout.value, "values"),
        (rollout.advantage, "advantages"),
        (rollout.returns, "returns"),
    ):
        flat = torch.as_tensor(getattr(stored, name))
        own.copy_(flat.view(envs, steps, -1).transpose(0, 1).reshape(own.shape))
    ours.engine.begin_update()
    for _ in range(epochs):
        ours.epoch()
    for own, other in zip(ours_of(ours.policy), theirs_of(theirs.policy), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def ours_of(policy: Any) -> list[torch.Tensor]:
    parts = (policy.actor, policy.critic, policy.policy_head, policy.value_head)
    deviation = [] if policy.log_std is None else [policy.log_std.detach()]
    return [tensor for part in parts for tensor in layers_of(part)] + deviation


def theirs_of(policy: Any) -> list[torch.Tensor]:
    body = policy.mlp_extractor
    parts = (body.policy_net, body.value_net, policy.action_net, policy.value_net)
    deviation = [policy.log_std.detach()] if hasattr(policy, "log_std") else []
    return [tensor for part in parts for tensor in layers_of(part)] + deviation
