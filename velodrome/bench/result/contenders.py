"""Who learns: Velodrome by its presets, Stable-Baselines3's PPO, and PPO in JAX."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from velodrome.bench.options import Peer
from velodrome.bench.parity import ParityError
from velodrome.bench.peers.jax_ppo import JaxMarket, JaxPpo, Settings
from velodrome.bench.peers.numpy_trading import BatchedTradingEnv
from velodrome.bench.peers.plain_markets import MarketTables
from velodrome.bench.peers.vectorisers import NEEDS_SB3
from velodrome.bench.problems.ar1 import Act
from velodrome.bench.report import OURS
from velodrome.bench.result.problems import PROBLEMS, Given
from velodrome.envs.trading.config import trading_config
from velodrome.runs import setup
from velodrome.vector.make import make_vec

ZOO_ENVS, ZOO_STEPS = 8, 256  # where the zoo's settings for PPO begin; the rest are the library's defaults
CLOSE = 1e-4  # rewards and observations of two rules that are the same but for the width of their floats
COMPARED_ENVS, COMPARED_STEPS = 64, 200
REHEARSED = 3  # iterations; the third captures graphs


class Learning(NamedTuple):
    """A training on its way, whoever's it is."""

    iterate: Callable[[], object]  # learns a little
    policy: Callable[[], Act]  # as it is now
    steps: Callable[[], int]  # of environments so far
    total: float  # steps after which it is over; infinite: never
    about: str  # its settings, for people


class Entrant(NamedTuple):
    """Somebody who learns."""

    peer: str  # as in a `Measurement`
    label: str
    open: Callable[..., Any]  # (given, stack, folder) -> Learning
    device: str = "cpu"  # whose preset says what is learnt
    taught: bool = False  # as the preset has it; else nobody teaches it


def open_ours(given: Given, stack: contextlib.ExitStack, folder: Path) -> Learning:
    """Return what `velodrome train` does, without what it writes; a lesson of its teacher, if any, comes first.

    Some iterations are rehearsed and taken back: what is loaded, compiled or captured in the first ones belongs to the
    start, as the compilation of JAX does.
    """
    import torch

    from velodrome.learn.acting import TrainedPolicy

    config, device = given.config, given.config.usable_device()
    worlds = stack.enter_context(setup.learning_worlds(config, given.market, device))
    learner = setup.make_learner(config, worlds)
    state = learner.state()
    for _ in range(REHEARSED):
        learner.iterate()
    learner.load_state(*state)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    lessons = [lambda: setup.teach(config, given.market, learner)] if config.teacher.policy else []

    def iterate() -> None:
        if lessons:
            lessons.pop()()
        else:
            learner.iterate()
        if device.startswith("cuda"):
            torch.cuda.synchronize()  # else work that is under way would not be on the clock

    def policy() -> Act:
        return TrainedPolicy.of(getattr(learner, "acting", learner.policy), learner.worlds, learner.moments).act

    taught = ", taught by the forecaster" if config.teacher.policy else ""
    about = f"{config.num_envs:,} environments, {config.steps:,} steps{taught}"
    return Learning(iterate, policy, lambda: learner.steps, config.steps, about)


def open_sb3(given: Given, stack: contextlib.ExitStack, folder: Path, zoo: bool) -> Learning:
    """Return PPO of Stable-Baselines3 on our environments, which are faster than its own, rewards normalised.

    zoo: with the settings that its zoo begins from; else with those of our preset.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecNormalize

    from velodrome.adapters.sb3 import to_sb3

    config, told = given.config, given.config.ppo
    count = ZOO_ENVS if zoo else config.num_envs
    data: dict[str, Any] = {} if given.market is None else {"market": given.market.split("train")}
    if zoo:  # one thread multiplies matrices this small faster
        torch.set_num_threads(1)
    envs = make_vec(config.env, count, seed=given.seed, threads=1, **data, **config.params)
    stack.callback(envs.close)
    wrapped = VecNormalize(to_sb3(envs, monitor=False), norm_obs=False, gamma=0.99 if zoo else told.gamma)
    model: Any = None

    def rate(_: float) -> float:
        return told.learning_rate * max(0.0, 1.0 - (0 if model is None else model.num_timesteps) / config.steps)

    batch = ZOO_ENVS * ZOO_STEPS if zoo else count * told.rollout_length
    same: dict[str, Any] = {
        "learning_rate": rate,
        "n_steps": told.rollout_length,
        "batch_size": batch // told.minibatches,
        "n_epochs": told.epochs,
        "gamma": told.gamma,
        "gae_lambda": told.gae_lambda,
        "clip_range": told.clip,
        "ent_coef": told.entropy,
        "vf_coef": told.value_weight / 2,  # its value loss is the whole mean squared error
        "max_grad_norm": told.max_gradient_norm,
        "policy_kwargs": {"net_arch": list(config.network.hidden)},
    }
    model = PPO(
        "MlpPolicy", wrapped, seed=given.seed, device="cpu", verbose=0, **({"n_steps": ZOO_STEPS} if zoo else same)
    )
    whose = "its zoo's settings" if zoo else "our preset's settings, not taught"
    return Learning(
        lambda: model.learn(batch, log_interval=10**9, reset_num_timesteps=False),
        lambda: lambda observations: model.predict(observations, deterministic=True)[0],
        lambda: model.num_timesteps,
        float("inf") if zoo else config.steps,
        f"{count:,} environments, {whose}, torch on the CPU with threads={torch.get_num_threads()}",
    )


def open_jax(given: Given, stack: contextlib.ExitStack, folder: Path) -> Learning:
    """Return PPO in JAX with our preset's settings; programs are kept where JAX is told to, or in the folder."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    tables, config, told = market_tables(given), given.config, given.config.ppo
    shared = told.model_dump(include=set(Settings._fields))
    settings = Settings(**shared, num_envs=config.num_envs, hidden=tuple(config.network.hidden), steps=config.steps)
    trainer = JaxPpo(tables, settings, given.seed)
    about = f"{config.num_envs:,} environments, our preset's settings, not taught, on {jax.devices()[0].device_kind}"
    return Learning(trainer.iterate, lambda: trainer.act, lambda: trainer.steps, config.steps, about)


def market_tables(given: Given) -> MarketTables:
    """Return the training split as environments of others read it."""
    assert given.market is not None
    return MarketTables.of(given.market.split("train"), given.market.ohlc, trading_config(**given.config.params))


def check_jax(given: Given) -> int:
    """Compare the rule in JAX with the one in NumPy, which `bench step` compares with ours; return how many steps."""
    import jax
    import numpy as np

    tables = market_tables(given)
    generator = np.random.default_rng(given.seed)
    starts = tables.random_starts(generator, COMPARED_ENVS)
    wanted, rule = BatchedTradingEnv(tables, COMPARED_ENVS, choose_starts=lambda rows: starts[rows]), JaxMarket(tables)
    accounts, observe, step = rule.begin(jax.numpy.asarray(starts)), jax.jit(rule.observe), jax.jit(rule.step)
    wanted.reset()
    for number in range(min(COMPARED_STEPS, tables.episode_length - 1)):
        actions = generator.integers(0, 3, COMPARED_ENVS)
        accounts, rewards, _ = step(accounts, actions)
        seen, expected, *_ = wanted.step(actions)
        for name, one, other in (("reward", rewards, expected), ("observation", observe(accounts), seen)):
            apart = float(np.abs(np.asarray(one) - other).max())
            if not apart <= CLOSE:
                raise ParityError(f"the rule in JAX differs by {apart:.2g} in the {name} of step {number}")
    return COMPARED_ENVS * number


PEERS: dict[str, Peer] = {
    "sb3": Peer("SB3 PPO, zoo", partial(open_sb3, zoo=True), **NEEDS_SB3),
    "sb3_same": Peer("SB3 PPO, our settings", partial(open_sb3, zoo=False), **NEEDS_SB3),
    "jax": Peer("JAX PPO", open_jax, ("jax",), "pip install jax"),
}
ONLY_ON = {"jax": "ar1"}  # nobody has written CAGE-2 in JAX


def entrants(problem: str, peers: Mapping[str, Peer], devices: Sequence[str]) -> list[Entrant]:
    """Return everybody: Velodrome on every device, as its preset is and without its teacher, and the peers."""
    found = []
    for device in devices:
        label = f"{OURS}, {'GPU' if device == 'cuda' else 'CPU'}"
        found.append(Entrant(OURS, label, open_ours, device, taught=True))
        if PROBLEMS[problem].is_taught(device):
            found.append(Entrant(OURS, f"{label}, untaught", open_ours, device))
    for name, peer in peers.items():
        if ONLY_ON.get(name, problem) == problem:
            found.append(Entrant(name, peer.label, peer.open))
    return found
