"""How each vectoriser is opened, stepped and asked for a trajectory. All of this runs in a host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.bench.hosts.environments import environment_source, straggler_sources
from velodrome.bench.options import Peer
from velodrome.bench.peers.gymnasium import ASYNC, SYNC, gymnasium_batch
from velodrome.bench.peers.sb3 import DUMMY, SUBPROC
from velodrome.bench.report import OURS, Measurement
from velodrome.bench.timing import RING, Batch, Source, Stepper, action_ring
from velodrome.errors import ConfigError
from velodrome.vector.space_arrays import nested_arrays, take_rows
from velodrome.vector.workers.env_maker import EnvMaker, environment_makers

VECTORISERS: dict[str, Peer] = {"dummy": DUMMY, "subproc": SUBPROC, "sync": SYNC, "async": ASYNC}
HIDDEN = 64  # width of both hidden layers of the policy


@dataclass(frozen=True)
class BatchSpec:
    """One way to step a batch, as its host is told."""

    peer: str  # "velodrome" or the name of a peer
    env: str
    num_envs: int
    kind: str = ""  # of Velodrome's backends: serial, process or async
    workers: int = 0  # processes
    received: int | None = None  # environments that one recv of async waits for; None: all step
    straggler: bool = False  # the first environment is many times slower than the rest
    policy: str = "none"
    seed: int = 0

    @property
    def label(self) -> str:
        """The contender's name, for people."""
        if self.peer != OURS:
            return VECTORISERS[self.peer].label
        return f"velodrome {self.kind}" + (f", {self.received} of {self.num_envs}" if self.received else "")

    def row(self) -> Measurement:
        """Return a measurement that has no rounds yet."""
        sizes = {"num_envs": self.num_envs, "steps_per_call": self.received or self.num_envs}
        return Measurement(peer=self.peer, label=self.label, kind=self.kind, processes=self.workers, **sizes)


def peer_spec(peer: str, **shared: Any) -> BatchSpec:
    """Return a peer; those with processes have one for each environment, as they are made."""
    workers = shared["num_envs"] if VECTORISERS[peer].processes else 0
    return BatchSpec(peer=peer, workers=workers, **shared)


def own_spec(kind: str, workers: int = 0, received: int | None = None, **shared: Any) -> BatchSpec:
    """Return one of Velodrome's backends."""
    return BatchSpec(peer=OURS, kind=kind, workers=workers, received=received, **shared)


def open_batch(spec: BatchSpec, folder: Path) -> Batch:
    """Make the environments of a contender."""
    number = spec.num_envs
    named = straggler_sources(spec.env, number) if spec.straggler else environment_source(spec.env, folder)
    makers = environment_makers(named, {})
    if spec.peer == OURS:
        return _open_own(spec, makers)
    # Without Gymnasium's checks of single environments, which Velodrome makes of the first only.
    unchecked = [_unchecked(makers[row % len(makers)]) for row in range(number)]
    return VECTORISERS[spec.peer].open(Source(unchecked, spec.seed))


def _unchecked(maker: EnvMaker) -> Callable[[], gymnasium.Env]:
    return lambda: maker(checked=False)


def _open_own(spec: BatchSpec, makers: list[EnvMaker]) -> Batch:
    from velodrome.vector.workers.asynchronous import AsyncVectorEnv
    from velodrome.vector.workers.options import WorkerOptions
    from velodrome.vector.workers.process import ProcessVectorEnv
    from velodrome.vector.workers.serial import SerialVectorEnv

    if spec.kind == "serial":
        return gymnasium_batch(SerialVectorEnv(makers, spec.num_envs))
    kind = AsyncVectorEnv if spec.kind == "async" else ProcessVectorEnv
    return gymnasium_batch(kind(makers, spec.num_envs, options=WorkerOptions(workers=spec.workers)))


def trajectory(batch: Batch, spec: BatchSpec, steps: int) -> dict[str, NDArray]:
    """Return what the environments give for known seeds and actions: arrays of [steps, environments]."""
    actions = action_ring(batch.action_space, spec.num_envs, spec.seed)
    first = row_sums(batch.reset(spec.seed))
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


def stepper_of(batch: Batch, spec: BatchSpec) -> Stepper:
    """Return what steps a batch that was reset once more, with sampled actions or a policy's."""
    ring = action_ring(batch.action_space, spec.num_envs, spec.seed)
    observations = batch.reset(spec.seed)
    policy = None
    if spec.policy != "none":
        policy = Policy(batch.action_space, observations, spec.policy, spec.seed)
    if spec.received is not None:
        stepper = AsyncStepper(batch, spec, ring, policy, observations)
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

    Environments go on stepping while it is another contender's turn. What they finish meanwhile must not count, so each
    turn begins with nothing sent; what is unfinished when it ends does not count either.
    """

    def __init__(
        self, batch: Batch, spec: BatchSpec, ring: list[Any], policy: Policy | None, observations: Any
    ) -> None:
        self.envs, self.ring, self.policy, self.wanted = batch.envs, ring, policy, spec.received
        # One action for each environment that is received, whichever these are.
        self.parts = action_ring(batch.action_space, int(spec.received or 0), spec.seed)
        self.observations = observations  # of all environments, while nothing is sent
        self.sent = False

    def settle(self) -> None:
        """Wait until nothing is stepping."""
        if self.sent:
            observations, *_, ids = self.envs.recv()
            # Those received before have been sent again, so all are outstanding, in the order in which they ended.
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
        first, second, last = (
            torch.nn.Linear(*shape) for shape in ((width, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, self._outputs()))
        )
        self.network = torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last).to(device)

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
