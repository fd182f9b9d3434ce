"""How each vectoriser is opened, stepped and asked for a trajectory. All of this runs in a host."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, flatdim
from numpy.typing import NDArray

from velodrome.bench.hosts.environments import environment_source, straggler_sources
from velodrome.bench.peers import pufferlib
from velodrome.bench.peers.pufferlib import PUFFERLIB
from velodrome.bench.peers.vectorisers import VECTORISERS, gymnasium_batch
from velodrome.bench.report import OURS, Measurement
from velodrome.bench.timing import RING, Batch, Source, Stepper, action_ring
from velodrome.errors import ConfigError
from velodrome.vector.space_arrays import nested_arrays, take_rows
from velodrome.vector.workers.env_maker import environment_makers

HIDDEN = 64  # width of both hidden layers of the policy
PEERS = {**VECTORISERS, **PUFFERLIB}


@dataclass(frozen=True)
class BatchSpec:
    """One way to step a batch, as its host is told."""

    peer: str  # "velodrome" or the name of a peer
    env: str
    num_envs: int
    kind: str = ""  # of Velodrome's backends: serial, process or async
    workers: int = 0  # of these, or of a peer that is told
    received: int | None = None  # environments that one recv waits for; None: all step
    straggler: bool = False  # the first environment is many times slower than the rest
    policy: str = "none"
    seed: int = 0
    pickled: bytes | None = None  # what makes the environment, if it has no name that a host could find

    @property
    def label(self) -> str:
        """The contender's name, for people."""
        start = f"{self.num_envs} × {self.env}, " if self.straggler else f"{OURS} "
        name = start + self.kind if self.peer == OURS else PEERS[self.peer].label
        return name + (f", {self.received} of {self.num_envs}" if self.received else "")

    def row(self, **more: Any) -> Measurement:
        """Return a measurement that has no rounds yet. Peers with processes have one for each environment."""
        received = self.received if self.peer == OURS else None  # a peer's call goes once around
        sizes = {"num_envs": self.num_envs, "steps_per_call": received or self.num_envs}
        processes = self.num_envs if self.peer != OURS and PEERS[self.peer].processes else self.workers
        return Measurement(peer=self.peer, label=self.label, kind=self.kind, processes=processes, **sizes, **more)

    def source(self) -> Any:
        """Return what makes the environments, as `make_vec` takes it."""
        if self.pickled is not None:
            return pickle.loads(self.pickled)
        return straggler_sources(self.env, self.num_envs) if self.straggler else environment_source(self.env)


def open_batch(spec: BatchSpec) -> Batch:
    """Make the environments of a contender."""
    if spec.peer == OURS:
        from velodrome.vector.make import make_vec  # takes a while, and peers have no use for it

        return gymnasium_batch(make_vec(spec.source(), spec.num_envs, backend=spec.kind, workers=spec.workers or None))
    # Without Gymnasium's checks of single environments, which Velodrome makes of the first only.
    (maker,) = environment_makers(spec.source(), {})
    makers = [partial(maker, checked=False)] * spec.num_envs
    return PEERS[spec.peer].open(Source(makers, spec.seed, workers=spec.workers, received=spec.received))


def trajectory(batch: Batch, spec: BatchSpec, steps: int) -> list[dict[str, NDArray]]:
    """Return what the environments give for known seeds and actions, step by step."""
    actions = action_ring(batch.action_space, spec.num_envs, spec.seed)
    if spec.peer in PUFFERLIB:
        return pufferlib.trajectory(batch.envs, spec.seed, actions, steps, row_sums)
    found = [{"the first observation": row_sums(batch.reset(spec.seed))}]
    for step in range(steps):
        observations, rewards, ended = batch.step(actions[step % RING])
        given = {"the reward": np.array(rewards, np.float64), "ended": np.array(ended, bool)}
        found.append({**given, "the observation": row_sums(observations)})
    return found


def row_sums(observations: Any) -> NDArray[np.float64]:
    """Return one number for each environment's observation, in which a changed value shows."""
    parts = [np.asarray(part).reshape(len(part), -1).astype(np.float64) for part in nested_arrays(observations)]
    return np.sum([part @ np.arange(1.0, part.shape[1] + 1.0) for part in parts], axis=0)


# Timing


def stepper_of(batch: Batch, spec: BatchSpec) -> Stepper:
    """Return what steps a batch that was reset once more, with sampled actions or a policy's."""
    observations = batch.reset(spec.seed)
    policy = Policy(batch.action_space, observations, spec.policy, spec.seed) if spec.policy != "none" else None

    def chosen(count: int) -> Callable[[int, Any], Any]:
        """Return what chooses actions for some environments, in the k-th call, given what they show."""
        ring = action_ring(batch.action_space, count, spec.seed)
        return lambda k, shown: ring[k % RING] if policy is None else policy(shown)

    if spec.peer in PUFFERLIB:
        return pufferlib.stepper_of(batch.envs, observations, chosen(spec.received or spec.num_envs))
    choose, step = chosen(spec.num_envs), batch.step
    if spec.received is not None:
        return async_stepper(batch.envs, spec.received, observations, choose, chosen(spec.received))
    latest = [observations]

    def step_all(k: int) -> None:
        latest[0] = step(choose(k, latest[0]))[0]

    return Stepper(step_all)


def async_stepper(
    envs: Any, received: int, observations: Any, choose_all: Callable[..., Any], choose: Callable[..., Any]
) -> Stepper:
    """Return what receives some environments and sends them their next actions.

    Environments go on stepping while it is another contender's turn. What they finish meanwhile must not count, so each
    turn begins with nothing sent; what is unfinished when it ends does not count either.
    """
    shown = [observations]  # by all environments, while nothing is sent
    sent = [False]

    def settle() -> None:
        if sent[0]:
            found, *_, ids = envs.recv()
            # Those received before have been sent again, so all are outstanding, in the order in which they ended.
            shown[0], sent[0] = take_rows(found, np.argsort(ids)), False

    def step(k: int) -> None:
        if not sent[0]:
            envs.send(choose_all(k, shown[0]))
            sent[0] = True
        found, *_, ids = envs.recv(received)
        envs.send(choose(k, found), ids)

    return Stepper(step, settle)


class Policy:
    """A network of two hidden layers that chooses actions; its weights are the same for every contender."""

    def __init__(self, space: gymnasium.Space, observations: Any, device: str, seed: int) -> None:
        import torch
        from torch.nn import Linear, Sequential, Tanh

        if not isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
            legal = "Box, Discrete, MultiDiscrete, MultiBinary"
            raise ConfigError(f"--policy: no actions of {space}; legal spaces: {legal}")
        self.torch, self.device, self.space = torch, device, space
        torch.set_num_threads(1)  # a network this small is not faster on more, and they would take the workers' cores
        torch.manual_seed(seed)
        inputs, outputs = flat_rows(observations).shape[1], flatdim(space)
        layers = (Linear(inputs, HIDDEN), Tanh(), Linear(HIDDEN, HIDDEN), Tanh(), Linear(HIDDEN, outputs))
        self.network = Sequential(*layers).to(device)

    def __call__(self, observations: Any) -> NDArray:
        """Return actions for some environments."""
        torch, space = self.torch, self.space
        with torch.inference_mode():
            found = self.network(torch.from_numpy(flat_rows(observations)).to(self.device)).cpu().numpy()
        shape = (len(found), *(space.shape or ()))
        if isinstance(space, Discrete | MultiDiscrete):
            choices = space.n if isinstance(space, Discrete) else space.nvec
            parts = np.split(found, np.cumsum(choices)[:-1], axis=1)
            return np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(shape) + space.start
        if isinstance(space, MultiBinary):
            return (found.reshape(shape) > 0.0).astype(space.dtype)
        return np.clip(found.reshape(shape), space.low, space.high).astype(space.dtype)


def flat_rows(observations: Any) -> NDArray[np.float32]:
    """Return all that each environment shows as one row."""
    parts = [np.asarray(part, np.float32).reshape(len(part), -1) for part in nested_arrays(observations)]
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))
