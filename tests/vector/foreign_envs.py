"""Small Gymnasium environments for the tests of foreign backends. They are importable: workers can make them too."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

from tests.vector.kinds_of_infos import INFOS, one_info

# Spaces

SPACES: dict[str, gymnasium.Space] = {
    "floats": Box(-1.0, 1.0, (3,), np.float32),
    "doubles": Box(-np.inf, np.inf, (2, 2), np.float64),
    "image": Box(0, 255, (6, 5, 3), np.uint8),
    "number": Discrete(5, start=-2),
    "numbers": MultiDiscrete(np.array([[3, 4], [2, 7]]), start=np.array([[0, -1], [5, 0]])),
    "bits": MultiBinary((2, 3)),
    "named": Dict(
        {
            "half": Box(-1.0, 1.0, (2,), np.float16),
            "point": Box(0.0, 1.0, (), np.float32),
            "inner": Dict({"number": Discrete(3), "deeper": Dict({"whole": Box(-9, 9, (2,), np.int64)})}),
        }
    ),
    "tuple": Tuple((Box(0.0, 1.0, (2,), np.float32), Discrete(4, start=1), MultiBinary(3))),
    "named tuples": Dict(
        {
            "pair": Tuple((Discrete(6), Dict({"narrow": Box(-8, 7, (3,), np.int8)}))),
            "rest": Tuple((MultiDiscrete([2, 3]),)),
        }
    ),
}
SPACE_KINDS = tuple(SPACES)
# Each kind of observation with another kind of action, so that every kind is both once.
ACTION_KINDS = dict(zip(SPACE_KINDS, SPACE_KINDS[3:] + SPACE_KINDS[:3], strict=True))


def new_space(kind: str) -> gymnasium.Space:
    """Return a space of its own: environments that share one would share its generator."""
    return deepcopy(SPACES[kind])


def draw(space: gymnasium.Space, rng: np.random.Generator) -> Any:
    """Return an element of a space from a given generator; `sample` draws from the space's own."""
    if isinstance(space, Dict):
        return {key: draw(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(draw(part, rng) for part in space.spaces)
    if isinstance(space, Discrete):
        return space.start + rng.integers(space.n)
    if isinstance(space, MultiDiscrete):
        return space.start + rng.integers(space.nvec)
    if isinstance(space, MultiBinary):
        return rng.integers(0, 2, space.shape, space.dtype)
    assert isinstance(space, Box)
    if space.dtype.kind in "iu":
        return rng.integers(space.low, space.high, space.shape, space.dtype, endpoint=True)
    if np.isinf(space.high).any():
        return rng.normal(size=space.shape).astype(space.dtype)
    return np.asarray(rng.uniform(space.low, space.high), space.dtype)


def batch(space: gymnasium.Space, values: Sequence[Any]) -> Any:
    """Return elements of a space as one element of the batched space."""
    return concatenate(space, values, create_empty_array(space, len(values)))


def draw_actions(space: gymnasium.Space, num_envs: int, steps: int, seed: int) -> list[Any]:
    """Return batched actions for each step."""
    rng = np.random.default_rng(seed)
    return [batch(space, [draw(space, rng) for _ in range(num_envs)]) for _ in range(steps)]


def digest(value: Any) -> int:
    """Return 32 bits over the structure, types, shapes and bytes of a value: a changed bit changes them."""
    if isinstance(value, dict):
        text = b"{" + b",".join(key.encode() + b"%d" % digest(part) for key, part in sorted(value.items()))
    elif isinstance(value, tuple):
        text = b"(" + b",".join(b"%d" % digest(part) for part in value)
    else:
        array = np.asarray(value)
        text = f"{array.dtype}{array.shape}".encode() + array.tobytes()
    return zlib.crc32(text)


# Environments that behave


class Open(gymnasium.Env):
    """An environment that refuses to be used once it is closed."""

    closed = False

    def check_open(self) -> None:
        if self.closed:
            raise RuntimeError(f"{type(self).__name__} was closed")

    def close(self) -> None:
        self.closed = True


class Counting(Open):
    """Counts its steps; known rewards and ends.

    The observation is the number of steps in this episode and of episodes before it. Step k of an episode is worth k
    plus a tenth of the action. `length` steps end an episode by `ending`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 30}

    def __init__(
        self, length: int = 3, ending: Literal["terminated", "truncated"] = "terminated", reuse_buffer: bool = False,
        render_mode: str | None = None,
    ) -> None:  # fmt: skip
        self.observation_space = Box(-1.0, np.inf, (2,), np.float32)
        self.action_space = Discrete(5)
        self.length, self.ending, self.render_mode = length, ending, render_mode
        self.count, self.episode = 0, -1
        self.label = "new"
        self.options: Any = None
        # One array that every observation is written into, as many environments do to save allocations.
        self.buffer = np.zeros(2, np.float32) if reuse_buffer else None

    def observe(self) -> np.ndarray:
        if self.buffer is None:
            return np.array([self.count, self.episode], np.float32)
        self.buffer[:] = self.count, self.episode
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.check_open()
        self.count, self.episode, self.options = 0, self.episode + 1, options
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.check_open()
        self.count += 1
        ended = self.count >= self.length
        terminated, truncated = (ended, False) if self.ending == "terminated" else (False, ended)
        return self.observe(), self.count + int(action) / 10, terminated, truncated, {}

    def render(self) -> Any:
        if self.render_mode == "rgb_array":
            return np.full((4, 6, 3), self.count, np.uint8)
        return f"{self.label} {self.count}" if self.render_mode == "ansi" else None

    def combine(self, first: Any, *rest: Any, suffix: str = "") -> str:
        """Stand in for a method that a user calls: positional, further and named arguments."""
        return f"{first}{''.join(map(str, rest))}{suffix} of {self.label} at {self.count}"


class Drawn(Open):
    """Observations, lengths, kinds of ends and infos are drawn from the environment's generator.

    The reward is a digest of the action and of the one before, which is kept as it came: an environment that punishes
    changes of its action does so, and a backend must not overwrite what it handed over.
    """

    def __init__(
        self, observations: str = "floats", actions: str = "number", lengths: tuple[int, int] = (2, 8),
        infos: str = "none",
    ) -> None:  # fmt: skip
        self.observation_space = new_space(observations)
        self.action_space = new_space(actions)
        self.lengths = lengths
        self.info = one_info if infos == "one" else INFOS[infos]
        self.told: dict[str, Any] = {"row": np.zeros(2), "inner": {}}
        self.count = self.length = 0
        self.received: Any = None
        self.before: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.check_open()
        self.count = 0
        self.length = int(self.np_random.integers(*self.lengths, endpoint=True))
        self.before = None
        return draw(self.observation_space, self.np_random), self.info(self, "reset")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.check_open()
        reward = digest((action,) if self.before is None else (action, self.before)) / 2**16
        self.before = self.received = action
        self.count += 1
        ended = self.count >= self.length
        terminated = ended and bool(self.np_random.integers(2))
        observation = draw(self.observation_space, self.np_random)
        return observation, reward, terminated, ended and not terminated, self.info(self, "step")


class Sloppy(Open):
    """Legal, and careless: lists and other types than its spaces say, keys in another order, values out of bounds.

    Rewards are of every type that is a number, NaN and infinity among them; episodes of 7 steps end in both ways.
    """

    rewards = (1, np.float32(0.1), np.array(0.25), True, float("nan"), np.int8(-3), float("inf"))

    def __init__(self) -> None:
        self.observation_space = Dict(
            {"box": Box(-1.0, 1.0, (2,), np.float32), "number": Discrete(9), "bits": MultiBinary(2),
             "whole": Box(0, 5, (2,), np.int64)}
        )  # fmt: skip
        self.action_space = Discrete(2)
        self.count = 0

    def observe(self) -> dict[str, Any]:
        box = [self.count / 3, np.nan] if self.count % 2 else np.array([self.count / 3, -7.0])
        whole = np.array([self.count, 100], np.int32)
        return {"whole": whole, "bits": [self.count % 2 == 0, True], "number": self.count, "box": box}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        reward = self.rewards[self.count]
        self.count += 1
        ended = self.count == len(self.rewards)
        return self.observe(), reward, np.bool_(ended), int(ended), {}


class Unsteady(Counting):
    """Gives its label as an info, whatever that is: each environment and each step may have another type."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"said": self.label}


class Slow(Counting):
    """Takes `seconds` for each step: asleep, or (`burn`) computing."""

    def __init__(self, seconds: float, burn: bool = False, reset_seconds: float = 0.0, **values: Any) -> None:
        super().__init__(**values)
        self.seconds, self.burn, self.reset_seconds = seconds, burn, reset_seconds

    def spend(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        if not self.burn:
            time.sleep(seconds)
        while time.perf_counter() < end:
            pass

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.spend(self.reset_seconds)
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.spend(self.seconds)
        return super().step(action)


class Gated(Counting):
    """Waits in every step, reset and `pass_gate` until the file `gate` exists; without one it does not wait."""

    gate: str | None = None

    def pass_gate(self) -> int:
        while self.gate is not None and not Path(self.gate).exists():
            time.sleep(0.002)
        return self.count

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.pass_gate()
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.pass_gate()
        return super().step(action)


# Environments that do not behave


def claim_number(folder: str | Path) -> int:
    """Return how many calls there were before, in whatever process: each call claims one file of the folder."""
    number = 0
    while True:
        try:
            os.close(os.open(Path(folder) / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number


class Marking(Counting):
    """Leaves a file in `folder`/made when it is made and one in `folder`/closed when it is closed."""

    def __init__(self, folder: str, **values: Any) -> None:
        super().__init__(**values)
        self.folder = folder
        claim_number(Path(folder) / "made")

    def close(self) -> None:
        if not self.closed:
            claim_number(Path(self.folder) / "closed")
        super().close()


class Unlike(Counting):
    """The first one made has other spaces than all that follow; `folder` counts across processes."""

    def __init__(self, folder: str, which: Literal["observation_space", "action_space"]) -> None:
        super().__init__()
        if claim_number(folder) == 0:
            setattr(self, which, Box(0.0, 7.0, (3,), np.float32))


class StrangeSpace(gymnasium.Space):
    """A space of text that no backend knows, as Gymnasium allows users to write."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "sampled"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StrangeSpace)

    __hash__ = None  # type: ignore[assignment]


class Strange(gymnasium.Env):
    """Speaks text."""

    def __init__(self) -> None:
        self.observation_space = StrangeSpace()
        self.action_space = StrangeSpace()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "reset", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"step {action}", 0.0, False, False, {}


class UnpicklableError(Exception):
    """An error that cannot travel between processes, as those of many C extensions cannot."""

    def __reduce__(self) -> Any:
        raise TypeError("this error cannot be pickled")


def raise_error(env: Faulty) -> None:
    raise ValueError(f"a fault on purpose in step {env.steps}")


def raise_unpicklable(env: Faulty) -> None:
    raise UnpicklableError(f"a fault on purpose in step {env.steps}")


def raise_exit(env: Faulty) -> None:
    sys.exit("the environment wants to stop everything")


def hang(env: Faulty) -> None:
    while True:
        pass


def sleep_forever(env: Faulty) -> None:
    while True:
        time.sleep(3600)


def hang_in_c(env: Faulty) -> None:
    """One call of C that holds the interpreter's lock and looks at no signal."""
    sum(itertools.repeat(0))


def exit_at_once(env: Faulty) -> None:
    os._exit(3)


def kill_itself(env: Faulty) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def grow(env: Faulty) -> None:
    """Grow by `growth` bytes that are really there: zeros would be promised by the system and not given."""
    env.hoard.append(b"x" * env.growth)


def behave(env: Faulty) -> None:
    """The fault is in what is returned."""


FAULTS: dict[str, Callable[[Faulty], None]] = {
    "raise": raise_error, "raise unpicklable": raise_unpicklable, "raise exit": raise_exit, "hang": hang,
    "sleep": sleep_forever, "hang in C": hang_in_c, "exit": exit_at_once, "kill": kill_itself, "grow": grow,
    "wrong shape": behave, "wrong tuple": behave, "wrong type": behave,
    "wrong info": behave,
}  # fmt: skip
HARMLESS = ("grow",)  # legal as such


class Faulty(Counting):
    """Does something wrong, of `kind` (one of FAULTS, or several to draw from), in `where`.

    It happens in call number `at` of this environment (from 0, over all episodes), or when it is reset with `seed`, or
    with `probability` in each call, drawn from its generator; without any of them always. In the constructor, `at`
    counts the environments made in any process and needs a `folder`.
    """

    def __init__(
        self, kind: str | tuple[str, ...] = "raise", where: Literal["step", "reset", "constructor"] = "step",
        at: int | None = None, seed: int | None = None, probability: float | None = None, folder: str | None = None,
        growth: int = 1 << 20, **values: Any,
    ) -> None:  # fmt: skip
        super().__init__(**values)
        self.kinds = (kind,) if isinstance(kind, str) else tuple(kind)
        if unknown := [kind for kind in self.kinds if kind not in FAULTS]:
            raise ValueError(f"unknown faults {unknown}; there are {list(FAULTS)}")
        self.where, self.at, self.fault_seed, self.probability, self.growth = where, at, seed, probability, growth
        self.steps = self.resets = -1  # number of the call in progress, or of the last one
        self.last_seed: int | None = None
        self.hoard: list[bytes] = []
        if where == "constructor" and (at is None or claim_number(str(folder)) == at):
            FAULTS[self.kinds[0]](self)

    def due(self, where: str, call: int) -> str | None:
        """Return the kind of fault that this call has, None if it has none."""
        if self.where != where:
            return None
        if self.probability is not None and not self.np_random.random() < self.probability:
            return None
        if self.at is not None and call != self.at:
            return None
        if self.fault_seed is not None and self.last_seed != self.fault_seed:
            return None
        return self.kinds[0] if len(self.kinds) == 1 else str(self.np_random.choice(self.kinds))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self.resets += 1
        self.last_seed = seed if seed is not None else self.last_seed
        kind = self.due("reset", self.resets)
        if kind is not None:
            FAULTS[kind](self)
        return (observation,) if kind == "wrong tuple" else (spoiled(observation, kind), info)  # type: ignore[return-value]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        kind = self.due("step", self.steps)
        if kind is not None:
            FAULTS[kind](self)
        if kind == "wrong tuple":
            return observation, reward, terminated, info  # type: ignore[return-value]
        if kind == "wrong info":
            info = np.ones(2)  # type: ignore[assignment]
        return spoiled(observation, kind), reward, terminated, truncated, info


def spoiled(observation: Any, kind: str | None) -> Any:
    if kind == "wrong shape":
        return np.zeros(7, np.float32)
    return "no array at all" if kind == "wrong type" else observation


class Valued(gymnasium.Env):
    """Says in all kinds of spaces how many steps it has made, or in its next call something else.

    `instead`: what is returned in place of one value, by its name: a part of the observation, "observation", "reward",
    "terminated" or "truncated"; `where`: the call, "step", "end" (a step that ends the episode) or "reset".
    """

    observation_space = Dict(
        {"free": Box(-np.inf, np.inf, (2, 2), np.float32), "bound": Box(np.array([-1.0, 1.0]), 2.0, dtype=np.float64),
         "number": Discrete(5, start=1), "pair": Tuple((MultiBinary(2), MultiDiscrete([2, 9]))),
         "whole": Box(0, 9, (1,), np.int32), "byte": Box(0, 255, (2,), np.uint8)}
    )  # fmt: skip
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.count = 0
        self.instead: dict[str, Any] = {}
        self.where = "step"

    def observe(self) -> dict[str, Any]:
        count = self.count
        return {
            "free": np.full((2, 2), count, np.float32), "bound": np.array([-1.0, 1.0 + count / 10]),
            "number": 1 + count % 5, "pair": (np.ones(2, np.int8), np.array([1, count])),
            "whole": np.array([count], np.int32), "byte": np.full(2, count, np.uint8),
        }  # fmt: skip

    def returned(self, where: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        values = {**self.observe(), "reward": 1.0, "terminated": where == "end", "truncated": False}
        if where == self.where:
            values |= self.instead
            self.instead = {}
        reward, terminated, truncated = (values.pop(name) for name in ("reward", "terminated", "truncated"))
        return values.pop("observation", values), reward, terminated, truncated, {"count": self.count}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        observation, *_, info = self.returned("reset")
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.returned("end" if self.where == "end" and self.instead else "step")


def drawn_maker(kind: str, infos: str = "none") -> Callable[[], gymnasium.Env]:
    """Return what makes an environment with observations of a kind, and with actions of the kind that goes with it."""
    return partial(Drawn, observations=kind, actions=ACTION_KINDS[kind], infos=infos)


class Plain(gymnasium.Env):
    """Observes how many steps it took, as four floats or one number; `wrong` replaces what it returns once, by name."""

    def __init__(self, kind: str = "floats") -> None:
        self.action_space = gymnasium.spaces.Discrete(2)
        self.floats = kind == "floats"
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float32)
        self.observation_space = box if self.floats else gymnasium.spaces.Discrete(100, start=0)
        self.wrong: dict[str, Any] = {}
        self.count = 0

    def observed(self, name: str) -> Any:
        count = self.count if name == "observation" else 0
        return self.wrong.pop(name, np.full((2, 2), count, np.float32) if self.floats else count)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.count = 0
        return self.observed("first"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.count += 1
        return self.observed("observation"), self.wrong.pop("reward", 1.0), self.wrong.pop("ended", False), False, {}
