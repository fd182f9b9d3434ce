"""Stable-Baselines3 on Velodrome's environments: PPO and DQN, on a market and on CartPole.

docs/adapters.md says how much faster that is, and which line moves a training to Velodrome's own learners.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy

import velodrome as vd


def make_envs(name: str, num_envs: int, seed: int) -> Any:
    if name == "cartpole":
        # The same for any Gymnasium environment: an id, a class or a function that makes one.
        return vd.make_vec("CartPole-v1", num_envs, backend="serial", seed=seed)
    # Returns that lean towards the one before: there is something to learn.
    market = vd.build_market(vd.synthetic_bars("ar1", 5_000, seed=1), windows=8)
    return vd.make_vec("trading", num_envs, market=market, episode_length=100, seed=seed)


def make_model(algorithm: str, envs: Any) -> Any:
    if algorithm == "ppo":
        return PPO("MlpPolicy", envs, n_steps=64, batch_size=256, learning_rate=1e-3, seed=0, device="cpu")
    return DQN("MlpPolicy", envs, learning_rate=1e-3, learning_starts=500, exploration_fraction=0.5, train_freq=4,
               batch_size=64, gradient_steps=16, target_update_interval=200, seed=0, device="cpu")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", nargs="+", choices=["trading", "cartpole"], default=["trading", "cartpole"])
    parser.add_argument("--algorithm", nargs="+", choices=["ppo", "dqn"], default=["ppo", "dqn"])
    parser.add_argument("--steps", type=int, default=4_000, help="of all environments together")
    parser.add_argument("--num-envs", type=int, default=8)
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # for networks as small as these, a second one costs more than it brings
    for name in chosen.env:
        for algorithm in chosen.algorithm:
            # All that changes: vd.make_vec in place of make_vec_env, and vd.to_sb3 around it.
            envs = vd.to_sb3(make_envs(name, chosen.num_envs, seed=0))
            model = make_model(algorithm, envs)
            began = time.perf_counter()
            model.learn(chosen.steps)
            seconds = time.perf_counter() - began
            held_out = vd.to_sb3(make_envs(name, chosen.num_envs, seed=1_000))
            mean, deviation = evaluate_policy(model, held_out, n_eval_episodes=2 * chosen.num_envs)
            episodes = len(model.ep_info_buffer)
            print(
                f"{algorithm} on {name}: {chosen.steps / seconds:,.0f} steps a second, {episodes} episodes logged, "
                f"mean return {mean:+.4g} ± {deviation:.2g} afterwards"
            )
            envs.close()
            held_out.close()


if __name__ == "__main__":
    main()
