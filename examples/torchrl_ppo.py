"""TorchRL's PPO on Velodrome's environments: a collector, GAE and the clipped loss, on a market and on CartPole."""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical

import velodrome as vd

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what TorchRL says about itself when it is imported
    from torchrl.collectors import Collector
    from torchrl.envs import Compose, InitTracker, RewardSum, TransformedEnv
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE


def make_envs(name: str, num_envs: int, device: str) -> Any:
    if name == "cartpole":
        # The same for any Gymnasium environment: an id, a class or a function that makes one.
        return vd.make_vec("CartPole-v1", num_envs, backend="serial", seed=0)
    # Returns that lean towards the one before: there is something to learn. On "cuda" nothing ever leaves the device.
    market = vd.build_market(vd.synthetic_bars("ar1", 5_000, seed=1), windows=8)
    backend = "cuda" if device == "cuda" else "native"
    return vd.make_vec("trading", num_envs, market=market, episode_length=100, backend=backend, seed=0)


def network(inputs: int, outputs: int, device: torch.device) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs)).to(device)


def train(name: str, steps: int, num_envs: int, device: str) -> None:
    torch.manual_seed(0)
    env = TransformedEnv(vd.to_torchrl(make_envs(name, num_envs, device)), Compose(InitTracker(), RewardSum()))
    inputs, actions = env.observation_spec["observation"].shape[-1], env.action_spec.space.n
    logits = TensorDictModule(network(inputs, actions, env.device), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, ["logits"], spec=env.action_spec, distribution_class=Categorical, return_log_prob=True
    )
    critic = ValueOperator(network(inputs, 1, env.device), ["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)
    frames = 64 * num_envs
    collector = Collector(env, actor, frames_per_batch=frames, total_frames=-(-steps // frames) * frames)
    returns: list[torch.Tensor] = []
    began = time.perf_counter()
    for batch in collector:
        returns.append(batch["next", "episode_reward"][batch["next", "done"]])
        for _ in range(4):
            with torch.no_grad():
                advantage(batch)
            flat = batch.reshape(-1)
            for rows in torch.randperm(len(flat), device=env.device).chunk(4):
                losses = loss(flat[rows])
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimiser.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
    seconds = time.perf_counter() - began
    ended = [part for part in returns if len(part)]
    first, last = float(ended[0].mean()), float(ended[-1].mean())
    print(
        f"ppo on {name}: {len(returns) * frames / seconds:,.0f} steps a second, {sum(map(len, ended))} episodes, "
        f"mean return {first:+.4g} at first, {last:+.4g} in the end"
    )
    collector.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", nargs="+", choices=["trading", "cartpole"], default=["trading", "cartpole"])
    parser.add_argument("--steps", type=int, default=8_000, help="of all environments together")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the market's environments")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # for networks as small as these, a second one costs more than it brings
    for name in chosen.env:
        train(name, chosen.steps, chosen.num_envs, chosen.device)


if __name__ == "__main__":
    main()
