"""Who is measured by the vector benchmark, and how each is opened, stepped and asked for a trajectory.

All of this runs in an interpreter that a contender has for itself (`vector_host.py`).
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from velodrome.bench.timing import Stepper
from velodrome.bench.vector_envs import environment_source, straggler_sources
from velodrome.bench.vector_options import VECTOR_PEERS
from velodrome.errors import ConfigError
from velodrome.vector.space_arrays import nested_arrays, take_rows
from velodrome.vector.workers.env_maker import EnvMaker, environment_makers

RING = 64  # batches of actions that are cycled through
HIDDEN = 64  # width of both hidden layers of the policy
Kind = Literal["serial", "process", "async", "dummy", "subproc", "sync", "gymnasium_async"]


class Contender(BaseModel):
    """One way to step a batch, as its interpreter is told."""

    model_config = ConfigDict(frozen=True)

    peer: str = Field(description="'velodrome' or the name of a peer")
    kind: Kind
    label: str
    env: str = Field(description="name of the environment")
    num_envs: int
    workers: int = Field(0, description="worker processes; 0: none")
    received: int | None = Field(None, description="environments that one recv of async waits for; none: all step")
    straggler: bool = Field(False, description="the first environment is many times slower than the rest")
    policy: str = "none"
    seed: int = 0

    @property
    def steps_per_call(self) -> int:
        """Environment steps of one call."""
        return self.received or self.num_envs


def missing_reason(peer: str) -> str | None:
    """Return why a peer cannot be measured here, or None."""
    _, module, extra = VECTOR_PEERS[peer]
    if module is None or importlib.util.find_spec(module) is not None:
        return None
    return f"not installed: pip install 'velodrome[{extra}]'"


def peer_contender(peer: str, **shared: Any) -> Contender:
    """Return a peer; those with processes have one for each environment, as they are made."""
    kind: Any = "gymnasium_async" if peer == "async" else peer
    workers = shared["num_envs"] if peer in ("subproc", "async") else 0
    return Contender(peer=peer, kind=kind, label=VECTOR_PEERS[peer][0], workers=workers, **shared)


def own_contender(kind: Any, workers: int = 0, received: int | None = None, **shared: Any) -> Contender:
    """Return one of Velodrome's backends."""
    label = f"velodrome {kind}"
    if received is not None:
        label += f", {received} of {shared['num_envs']}"
    return Contender(peer="velodrome", kind=kind, label=label, workers=workers, received=received, **shared)


# In the contender's own interpreter


class Batch(NamedTuple):
    """A batch that is open: one way to use all vectorisers."""

    reset: Callable[[int], Any]  # seed -> observations
    step: Callable[[Any], tuple[Any, NDArray, NDArray]]  # actions -> observations, rewards, done
    close: Callable[[], Any]
    envs: Any
    action_space: gymnasium.Space  # of one environment


def travel_by_value() -> None:
    """Have the benchmark's environments sent to workers as they are, so that these need not load the benchmark."""
    import cloudpickle

    for name in ("peers", "problem", "vector_envs"):
        cloudpickle.register_pickle_by_value(importlib.import_module(f"velodrome.bench.{name}"))


def open_batch(contender: Contender, folder: Path) -> Batch:
    """Make the environments of a contender."""
    number = contender.num_envs
    if contender.straggler:
        makers = environment_makers(straggler_sources(contender.env, number), {})
    else:
        makers = environment_makers(environment_source(contender.env, folder), {})
    if contender.peer == "velodrome":
        return _open_own(contender, makers)
    # Without Gymnasium's checks of single environments, which Velodrome makes of the first only.
    functions = [_unchecked(makers[row % len(makers)]) for row in range(number)]
    if contender.kind in ("dummy", "subproc"):
        return _open_sb3(contender.kind, functions)
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    mode = AutoresetMode.SAME_STEP
    envs: Any
    if contender.kind == "sync":
        envs = SyncVectorEnv(functions, copy=False, autoreset_mode=mode)
    else:
        envs = AsyncVectorEnv(functions, shared_memory=True, copy=False, context="fork", autoreset_mode=mode)
    return _gymnasium_batch(envs)


def _unchecked(maker: EnvMaker) -> Callable[[], gymnasium.Env]:
    return lambda: maker(checked=False)


def _open_own(contender: Contender, makers: list[EnvMaker]) -> Batch:
    from velodrome.vector.workers.asynchronous import AsyncVectorEnv
    from velodrome.vector.workers.options import WorkerOptions
    from velodrome.vector.workers.process import ProcessVectorEnv
    from velodrome.vector.workers.serial import SerialVectorEnv

    travel_by_value()
    if contender.kind == "serial":
        return _gymnasium_batch(SerialVectorEnv(makers, contender.num_envs))
    kind = AsyncVectorEnv if contender.kind == "async" else ProcessVectorEnv
    return _gymnasium_batch(kind(makers, contender.num_envs, options=WorkerOptions(workers=contender.workers)))


def _gymnasium_batch(envs: Any) -> Batch:
    def step(actions: Any) -> tuple[Any, NDArray, NDArray]:
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        return observations, rewards, terminated | truncated

    return Batch(lambda seed: envs.reset(seed=seed)[0], step, envs.close, envs, envs.single_action_space)


def _open_sb3(kind: str, functions: list[Callable[[], gymnasium.Env]]) -> Batch:
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

    envs: VecEnv = DummyVecEnv(functions) if kind == "dummy" else SubprocVecEnv(functions, start_method="fork")

    def reset(seed: int) -> Any:
        envs.seed(seed)  # of the next reset; environment i has seed + i, as in Gymnasium
        return envs.reset()

    return Batch(reset, lambda actions: envs.step(actions)[:3], envs.close, envs, envs.action_space)


def action_ring(space: gymnasium.Space, num_envs: int, seed: int, count: int = RING) -> list[Any]:
    """Return batches of sampled actions, the same for every contender."""
    batched = gymnasium.vector.utils.batch_space(space, num_envs)
    batched.seed(seed)
    return [batched.sample() for _ in range(count)]


def trajectory(batch: Batch, contender: Contender, steps: int) -> dict[str, NDArray]:
    """Return what the environments give for known seeds and actions: arrays of [steps, environments]."""
    actions = action_ring(batch.action_space, contender.num_envs, contender.seed)
    first = row_sums(batch.reset(contender.seed))
    rewards, done, sums = [], [], [first]
    for step in range(steps):
        observations, reward, ended = batch.step(actions[step % RING])
        rewards.append(np.array(reward, np.float64))
        done.append(np.array(ended, bool))
        sums.append(row_sums(observations))
    return {"rewards": np.array(rewards), "ends": np.array(done), "observations": np.array(sums)}


def row_sums(observations: Any) -> NDArray[np.float64]:
    """Return one number for each environment's observation, in which a changed value shows."""
    parts = [np.asarray(part).reshape(len(part), -1).astype(np.float64) for part in nested_arrays(observations)]
    return np.sum([part @ np.arange(1.0, part.shape[1] + 1.0) for part in parts], axis=0)


# Timing


def stepper_of(batch: Batch, contender: Contender) -> Stepper:
    """Return what steps a batch that was reset once more, with sampled actions or a policy's."""
    ring = action_ring(batch.action_space, contender.num_envs, contender.seed)
    observations = batch.reset(contender.seed)
    policy = None
    if contender.policy != "none":
        policy = Policy(batch.action_space, observations, contender.policy, contender.seed)
    if contender.received is not None:
        stepper = AsyncStepper(batch, contender, ring, policy, observations)
        return Stepper(stepper.step, stepper.settle)
    step = batch.step
    if policy is None:
        return Stepper(lambda k: step(ring[k % RING]))
    latest = [observations]

    def step_with_policy(k: int) -> None:
        latest[0] = step(policy(latest[0]))[0]

    return Stepper(step_with_policy)


class AsyncStepper:
    """Receives some environments and sends them their next actions.

    Environments go on stepping while it is another contender's turn. What they finish meanwhile must not count, so that
    each turn begins with nothing sent; what is unfinished when it ends does not count either.
    """

    def __init__(
        self, batch: Batch, contender: Contender, ring: list[Any], policy: Policy | None, observations: Any
    ) -> None:
        self.envs, self.ring, self.policy, self.wanted = batch.envs, ring, policy, contender.received
        # One action for each environment that is received, whichever these are.
        self.parts = action_ring(batch.action_space, int(contender.received or 0), contender.seed)
        self.observations = observations  # of all environments, while nothing is sent
        self.sent = False

    def settle(self) -> None:
        """Wait until nothing is stepping."""
        if self.sent:
            observations, *_, ids = self.envs.recv()
            # Those that were received before have been sent again: all are outstanding, in the order of their ends.
            self.observations = take_rows(observations, np.argsort(ids))
            self.sent = False

    def step(self, k: int) -> None:
        """Receive the first that are ready and send them on."""
        envs, policy = self.envs, self.policy
        if not self.sent:
            envs.send(self.ring[k % RING] if policy is None else policy(self.observations))
            self.sent = True
        found, _, _, _, _, ids = envs.recv(self.wanted)
        envs.send(self.parts[k % RING] if policy is None else policy(found), ids)


class Policy:
    """A network of two hidden layers that chooses actions; its weights are the same for every contender."""

    def __init__(self, space: gymnasium.Space, observations: Any, device: str, seed: int) -> None:
        import torch

        self.torch, self.device, self.space = torch, device, space
        torch.set_num_threads(1)  # a network this small is not faster on more, and they would take the workers' cores
        torch.manual_seed(seed)
        width = sum(int(np.prod(np.shape(part)[1:])) for part in nested_arrays(observations))
        self.network = torch.nn.Sequential(
            torch.nn.Linear(width, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh(),
            torch.nn.Linear(HIDDEN, self._outputs()),
        ).to(device)  # fmt: skip

    def _outputs(self) -> int:
        space = self.space
        if isinstance(space, gymnasium.spaces.Discrete):
            return int(space.n)
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            return int(space.nvec.sum())
        if isinstance(space, gymnasium.spaces.Box | gymnasium.spaces.MultiBinary):
            return int(np.prod(space.shape))
        raise ConfigError(f"--policy: no actions of {space}; legal spaces: Box, Discrete, MultiDiscrete, MultiBinary")

    def __call__(self, observations: Any) -> NDArray:
        """Return actions for some environments."""
        torch, space = self.torch, self.space
        parts = [np.asarray(part, np.float32).reshape(len(part), -1) for part in nested_arrays(observations)]
        flat = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        with torch.inference_mode():
            found = self.network(torch.from_numpy(np.ascontiguousarray(flat)).to(self.device)).cpu().numpy()
        if isinstance(space, gymnasium.spaces.Discrete):
            return found.argmax(axis=1) + space.start
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            cuts = itertools.pairwise([0, *np.cumsum(space.nvec.ravel())])
            chosen = np.stack([found[:, begin:end].argmax(axis=1) for begin, end in cuts], axis=1)
            return chosen.reshape(len(found), *space.shape) + space.start
        found = found.reshape(len(found), *(space.shape or ()))
        if isinstance(space, gymnasium.spaces.MultiBinary):
            return (found > 0.0).astype(space.dtype)
        assert isinstance(space, gymnasium.spaces.Box)
        return np.clip(found, space.low, space.high).astype(space.dtype)
