"""What every learner has: environments, random numbers, scales of observations and rewards, a clock, a state.

An algorithm's own page has what it does; its class takes from here what surrounds that. `iterate` and the four methods
at the end are what it supplies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from velodrome.learn.config import LearnerConfig
from velodrome.rollout.launch import Captured, takes_kernels
from velodrome.rollout.moments import RewardScale, RunningMoments
from velodrome.rollout.observation import Observation
from velodrome.rollout.phases import PhaseClock
from velodrome.rollout.ranks import averaged
from velodrome.rollout.worlds import CudaWorlds, Worlds
from velodrome.vector.argument_checks import checked_count

OWN_MODULES = ("torch.", "velodrome.")  # of networks that draw no random numbers
Named = tuple[Sequence[str], Tensor]  # names, and a number for each, on the learner's device
MOST_ACTIONS_SHOWN = 32  # shares of more actions than this are not counted


class Acting(Protocol):
    """How a policy acts: a distribution that PPO learns, or what another algorithm or an ensemble has."""

    kind: str
    dtype: torch.dtype
    width: int  # parameters
    counts: tuple[int, ...]  # of each choice, how many actions
    shape: tuple[int, ...]  # of an action

    def sample(self, parameters: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw actions."""

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the actions to take if none are drawn."""


class Learner:
    """One policy and its environments."""

    policy: nn.Module
    collect: Callable[[], None]  # plays a rollout; perhaps a CUDA graph
    same_on_any_threads = False  # whether another number of threads gives the same bits
    total_episodes: int | None = None  # of the run, if it ends after so many
    splitting: Any = None  # what has `parts`, `can_split` and `split`, if minibatches can be learnt from in parts

    def __init__(
        self, worlds: Worlds, config: LearnerConfig, total_steps: int, seed: int, alike: Sequence[range] = ()
    ) -> None:
        """alike: ranges of observed values that are normalised by the same moments."""
        self.worlds, self.config, self.total_steps, self.seed = worlds, config, total_steps, seed
        device = worlds.device
        torch.manual_seed(seed)  # of the first weights
        self.generator = torch.Generator(device).manual_seed(seed)  # of everything that is drawn later
        self.moments = RunningMoments(worlds.shape.values, device, alike) if config.normalise_observations else None
        self.scale = RewardScale(worlds.num_envs, config.gamma, device) if config.normalise_rewards else None
        self.mean_reward = torch.zeros((), device=device)  # per step of a rollout, as the environments gave it
        self.clock = PhaseClock(device)
        self.seconds_of_steps: float | None = None  # of a rollout's environments in a CUDA graph, once measured
        self.average: Average | None = None  # of the policy's weights, where that is asked for
        self.taught: Taught | None = None  # what the policy is drawn back to, where that is asked for
        self.steps = self.episodes = 0

    @property
    def acting(self) -> nn.Module:
        """What is validated, kept and used: the mean of the weights where that is asked for, else the latest ones."""
        return self.average.network if self.average is not None and self.average.updates else self.policy

    @property
    def done(self) -> float:
        """The part of the run that is over."""
        by_steps = self.steps / self.total_steps
        return max(by_steps, self.episodes / self.total_episodes) if self.total_episodes else by_steps

    def seen(self, observation: Observation) -> Observation:
        """Return an observation as the network sees it."""
        if self.moments is None:
            return observation
        return observation._replace(values=self.moments.normalise(observation.values))

    def phase(self) -> Any:
        """Return what times a phase; inside a CUDA graph nothing can be timed."""
        capturing = self.worlds.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return (lambda name: nullcontext()) if capturing else self.clock

    def captures_steps(self) -> bool:
        """Whether a rollout can be a CUDA graph: it is wanted, and the environments step on the device."""
        return self.captures_updates() and isinstance(self.worlds, CudaWorlds)

    def captures_updates(self) -> bool:
        """Whether updates can be CUDA graphs."""
        return self.config.cuda_graphs and takes_kernels(self.worlds.device)

    def follow_schedules(self, engine: Any, began: float) -> None:
        """Tell an engine what changes over a run. began: the part of the run that is over."""
        scheduled = self.config.scheduled(began)
        engine.set_learning_rate(scheduled["learning_rate"])
        if "entropy_weight" in scheduled:
            engine.set_entropy_weight(scheduled["entropy_weight"])

    def hold_and_average(self) -> None:
        """Draw the policy back to what it was taught and take it into the mean of weights, where that is asked for."""
        if self.taught is not None:
            self.taught.draw_back(self.policy)
        if self.average is not None:
            self.average.take(self.policy)

    def metrics(
        self, actions: Tensor, distribution: Acting, began: float, reward: float | Tensor, own: Named | None = None
    ) -> dict[str, float]:
        """Return what all learners report of an iteration: of its actions, [steps, environments, …], the environments'
        episodes, and where the time went.

        began: the part of the run that was over before it. reward: per step, as the environments gave it. own: what
        the algorithm has to report itself, still on the device.
        """
        names, mix = action_mix(actions, distribution)
        mean = torch.as_tensor(reward, dtype=torch.float64, device=mix.device).view(1)
        common = averaged(torch.cat([mean, mix]))
        own_names, numbers = own if own is not None else ((), mix[:0])
        # One copy from the device for all numbers: each copy would wait for it anew.
        sums = self.worlds.take_sums().to(mix.device)
        read = iter(torch.cat([numbers.double(), common, sums]).tolist())
        found = {name: next(read) for name in own_names}
        shared = {name: next(read) for name in ("episode/mean_reward", *names)}
        rates = ("learning_rate", "entropy_weight")  # what else is scheduled is reported by whom it belongs to
        scheduled = self.config.scheduled(began)
        found |= {f"optimiser/{name}": scheduled[name] for name in rates if name in scheduled}
        found |= self.worlds.mean_episode(list(read))
        self.episodes += int(found["episode/count"])
        found |= shared
        seconds = self._seconds(actions)
        samples = actions.shape[0] * self.worlds.all_envs
        found["time/steps_per_second"] = found["time/sps_total"] = samples / seconds.pop("total")
        collecting = seconds["environment"] + seconds["inference"]
        if collecting > 0.0:
            found["time/sps_collecting"] = samples / collecting
        return found | {f"time/{name}": value for name, value in seconds.items()}

    def _seconds(self, actions: Tensor) -> dict[str, float]:
        """Return the time of each phase. A graph cannot be timed inside: its steps are timed once, by themselves."""
        seconds = self.clock.take()
        captured = isinstance(self.collect, Captured) and self.collect.graph is not None
        if captured and isinstance(self.worlds, CudaWorlds):
            if self.seconds_of_steps is None:
                self.seconds_of_steps = self.worlds.seconds_of_steps(actions)
                self.clock.take()
            seconds["environment"] = min(self.seconds_of_steps, seconds["inference"])
            seconds["inference"] -= seconds["environment"]
        return seconds

    def resize(self, num_envs: int) -> None:
        """Go on with another number of environments, between two iterations: the first keep their episodes, new ones
        begin. What was learnt, the moments and the count of steps stay.
        """
        if checked_count("num_envs", num_envs) == self.worlds.num_envs:
            return
        self.check_size(num_envs)
        self.worlds.resize(num_envs)
        if self.scale is not None:
            self.scale.resize(num_envs)
        self.seconds_of_steps = None
        self._prepare()  # graphs, then buffers, give back what they hold before other room is made
        owners: list[Any] = [getattr(self, name, None) for name in ("engine", "rollout")]
        for owner in owners:
            if hasattr(owner, "let_go"):
                owner.let_go()
        self.make_room()

    def split_minibatches(self) -> int | None:
        """Learn from minibatches in twice as many parts, whose gradients are added up: the same steps in less memory.

        Return the number of parts, None if that cannot be.
        """
        if not hasattr(self.splitting, "can_split") or not self.splitting.can_split():
            return None
        self._split(2 * self.splitting.parts)
        return self.splitting.parts

    def _split(self, parts: int) -> None:
        self._prepare()  # first, so that graphs let go of what they hold
        self.splitting.split(parts)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that a bit-identical continuation needs: tensors, and what JSON can hold."""
        tensors, plain = self.own_state()
        parts = {
            "policy": self.policy.state_dict(),
            "worlds": self.worlds.state(),
            "moments": {} if self.moments is None else self.moments.state(),
            "scale": {} if self.scale is None else self.scale.state(),
            **tensors,
            "learner": {"generator": self.generator.get_state(), **tensors.get("learner", {})},
            "torch": self._torch_generators(),
        }
        if self.average is not None and self.average.updates:
            parts["average"] = self.average.network.state_dict()
            plain = {**plain, "averaged_updates": self.average.updates}
        if self.taught is not None:
            parts["taught"] = self.taught.network.state_dict()
            plain = {**plain, "held": self.taught.share}
        counts = {
            "steps": self.steps,
            "episodes": self.episodes,
            "num_envs": self.worlds.num_envs,
            "threads": torch.get_num_threads(),
        }
        split = getattr(self.splitting, "parts", 1)
        return nested(parts), {**counts, **plain, **({"parts": split} if split > 1 else {})}

    def _torch_generators(self) -> dict[str, Tensor]:
        """Return the state of torch's own generators, from which dropout and other random modules draw."""
        found = {"cpu": torch.get_rng_state()}
        if self.worlds.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.worlds.device)
        return found

    def load_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> list[str]:
        """Continue from what `state` returned, with as many environments as there were.

        Return in sentences for people why the continuation may differ from one without a stop, if it may.
        """
        notes = self._differences(tensors, plain)
        for name, tensor in tensors.items():
            if name.endswith("cursor"):  # of transitions in a replay buffer
                self.worlds.check_cursors(tensor)
        self.resize(int(plain.get("num_envs", self.worlds.num_envs)))
        split = int(plain.get("parts", 1))
        if split != getattr(self.splitting, "parts", split):
            self._split(split)
        self.load_own_state(tensors, plain)
        self.policy.load_state_dict(only(tensors, "policy"))
        if self.average is not None:
            self.average.updates = int(plain.get("averaged_updates", 0))
            if saved := only(tensors, "average"):
                self.average.network.load_state_dict(saved)
        if saved := only(tensors, "taught"):
            self.taught = Taught(self.policy, float(plain["held"]))
            self.taught.network.load_state_dict(saved)
        if self.moments is not None:
            self.moments.load_state(only(tensors, "moments"))
        if self.scale is not None:
            self.scale.load_state(only(tensors, "scale"))
        self.steps, self.episodes = int(plain["steps"]), int(plain.get("episodes", 0))
        self._load_generators(tensors)
        worlds = only(tensors, "worlds")
        if worlds:
            self.worlds.load_state(worlds)
            return notes
        self._begin_episodes()  # of environments that cannot be saved
        return notes

    def begin_anew(self) -> None:
        """Go on in new episodes and with the seed's own random numbers; what was learnt stays."""
        torch.manual_seed(self.seed)
        self.generator.manual_seed(self.seed)
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        """Begin new episodes, from seeds not used before."""
        self.worlds.reset(self.seed + self.steps)
        if self.scale is not None:
            self.scale.returns.zero_()
        self.forget_episodes()

    def _load_generators(self, tensors: dict[str, Tensor]) -> None:
        generator, own = tensors["learner.generator"].cpu(), self.generator.get_state()
        if len(generator) == len(own):
            self.generator.set_state(generator)
        else:  # of another kind of device
            self.generator.manual_seed(self.seed + self.steps)
        random = only(tensors, "torch")
        if "cpu" in random:
            torch.set_rng_state(random["cpu"])
        if "cuda" in random and self.worlds.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.worlds.device)

    def _differences(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> list[str]:
        """Return why going on from a state may not give the bits that an uninterrupted run has."""
        told, threads = [], torch.get_num_threads()
        before = int(plain.get("threads", threads))
        if len(tensors["learner.generator"]) != len(self.generator.get_state()):
            told.append(
                f"it goes on on {self.worlds.device.type}, another device than before, with other random numbers"
            )
        elif before != threads and self.worlds.device.type == "cpu" and not self.same_on_any_threads:
            told.append(
                f"it goes on on {threads} threads, and the checkpoint was written on {before}: torch adds up in "
                f"another order, so the last bits may differ. OMP_NUM_THREADS={before} gives the same"
            )
        foreign = [type(part) for part in self.policy.modules() if not type(part).__module__.startswith(OWN_MODULES)]
        if foreign and not only(tensors, "torch"):
            told.append(
                "the checkpoint was written before torch's generators were part of it: if "
                f"{foreign[0].__name__} draws random numbers (dropout), they are others than without a stop"
            )
        return told

    # What a learner says of its own

    def check_size(self, num_envs: int) -> None:
        """Refuse a number of environments, before anything has changed."""

    def _prepare(self) -> None:
        """Decide which parts of an iteration are CUDA graphs, anew; what older graphs held is given back."""

    def make_room(self) -> None:
        """Make what depends on the number of environments, after it has changed; CUDA graphs are captured again."""

    def own_state(self) -> tuple[dict[str, Mapping[str, Tensor]], dict[str, Any]]:
        """Return what else belongs to the state: tensors by part and name, and what JSON can hold."""
        return {}, {}

    def load_own_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Take over what `own_state` returned; `only(tensors, part)` picks a part."""

    def bytes_to_come(self) -> int:
        """Return by how much larger the state will be once everything is filled that fills up."""
        return 0

    def forget_episodes(self) -> None:
        """Forget what belongs to the episodes that were being played: new ones have begun."""


class Average:
    """The mean of a network's weights after all updates so far, each weighted by its number (Shamir and Zhang, 2013).

    Learning jumps about; the mean of where it was holds better on data that was never seen.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def take(self, network: nn.Module) -> None:
        """Take in the weights after an update."""
        self.updates += 1
        share = 2.0 / (self.updates + 1.0)
        for mean, new in zip(self.network.state_dict().values(), network.state_dict().values(), strict=True):
            mean.lerp_(new, share) if mean.is_floating_point() else mean.copy_(new)


class Taught:
    """The weights that a policy was taught, to which it goes a share of the way back after every update.

    That is the decay towards the first weights of Li, Grandvalet and Davoine (2018): few data cannot lead it far away.
    """

    def __init__(self, network: nn.Module, share: float) -> None:
        self.network, self.share = copy.deepcopy(network).requires_grad_(False), share

    @torch.no_grad()
    def draw_back(self, network: nn.Module) -> None:
        """Draw what the policy acts by; the critic is not taught."""
        for (name, own), taught in zip(network.named_parameters(), self.network.parameters(), strict=True):
            if not name.startswith(("critic.", "value_head.")):
                own.lerp_(taught, self.share)


@contextmanager
def unchanged(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put parameters back as they were, in place, in the end."""
    before = [(parameter, parameter.detach().clone()) for parameter in parameters]
    yield
    with torch.no_grad():
        for parameter, old in before:
            parameter.copy_(old)


def nested(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join dictionaries as `part.name`; tensors are copied to the host, so that training may go on."""
    return {
        f"{part}.{name}": tensor.detach().to("cpu", copy=True)
        for part, own in parts.items()
        for name, tensor in own.items()
    }


def only(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return what `nested` stored under one name."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def action_mix(actions: Tensor, distribution: Acting) -> Named:
    """Return the share of every discrete action, or mean and deviation of continuous ones."""
    if distribution.dtype.is_floating_point:
        return ("action/mean", "action/std"), torch.stack([actions.mean(), actions.std(correction=0)]).double()
    if distribution.kind == "multi_categorical" or distribution.width > MOST_ACTIONS_SHOWN:
        return (), torch.zeros(0, dtype=torch.float64, device=actions.device)
    legal = torch.arange(distribution.width, device=actions.device)
    counts = (actions.flatten() == legal.unsqueeze(1)).sum(1)
    return [f"action/{action}" for action in range(distribution.width)], counts.double() / actions.numel()
