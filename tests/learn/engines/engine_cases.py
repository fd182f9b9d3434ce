"""Rollouts of random numbers, on which engines are compared with the one that is plain autograd."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor

from tests.markets import small_market
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.engines.autograd import AutogradEngine, Task
from velodrome.learn.policy import ActorCritic
from velodrome.learn.ppo import ppo_loss
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank
from velodrome.rollout.storage import Rollout

SPACES = {
    "discrete": gymnasium.spaces.Discrete(3),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([2, 4]),
    "gaussian": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
}
STEPS, ENVIRONMENTS, VALUES = 3, 5, 4
ODD_WINDOWS, EVEN_WINDOWS = ((5, 3), (2, 2)), ((3, 4), (2, 2))  # rows of 3 floats do not fit whole 8-byte words
LATER_ENTROPY = 0.3  # its weight where it changes over a run
FILLED = ("values", "cursor", "actions", "log_prob", "advantage", "returns", "value")


class Case(NamedTuple):
    """What to compare engines on."""

    space: str
    shared: bool
    activation: str
    windows: tuple[tuple[int, int], ...] = ODD_WINDOWS
    config: dict[str, Any] = {}  # noqa: RUF012

    @property
    def name(self) -> str:
        further = [str(self.windows), *(f"{key}={value}" for key, value in self.config.items())]
        return " ".join([self.space, "shared" if self.shared else "separate", self.activation, *further])


CASES = [
    *(Case(*parts) for parts in itertools.product(SPACES, (False, True), ("relu", "tanh"))),
    *(
        Case(
            space,
            True,
            "tanh",
            EVEN_WINDOWS,
            {"value_clip": 0.1, "entropy": 0.05, "kl_penalty": 0.7, "weight_decay": 3.0, "entropy_schedule": "linear"},
        )
        for space in SPACES
    ),
    *(Case(space, False, "relu", (), {"normalise_advantages": False, "max_gradient_norm": 1e-2}) for space in SPACES),
]


class Setting(NamedTuple):
    """Everything that an engine is made of."""

    policy: ActorCritic
    bank: WindowBank | None
    rollout: Rollout
    config: PPOConfig
    activation: str

    @property
    def task(self) -> Task:
        return Task(self.policy, self.bank, self.config, self.activation, ppo_loss)

    def autograd(self) -> AutogradEngine:
        return AutogradEngine(self.task, self.rollout)


def make_setting(case: Case) -> Setting:
    """Return the same policy for the same case, and an empty rollout."""
    torch.manual_seed(0)
    bank = WindowBank(small_market(bars=30, windows=case.windows).windows) if case.windows else None
    shape = ObservationShape(VALUES, case.windows)
    space = SPACES[case.space]
    network = NetworkConfig(hidden=(16, 12), shared=case.shared, activation=case.activation)
    policy = ActorCritic(shape, space, network)
    with torch.no_grad():
        for parameter in policy.parameters():  # a first policy, close to uniform, would be too easy
            parameter.add_(0.3 * torch.randn(parameter.shape))
    worlds: Any = SimpleNamespace(num_envs=ENVIRONMENTS, device=torch.device("cpu"), shape=shape, bank=bank)
    distribution = policy.distribution
    rollout = Rollout(STEPS, worlds, distribution.shape, distribution.dtype)
    return Setting(
        policy, bank, rollout, PPOConfig(rollout_length=STEPS, minibatches=1, **case.config), case.activation
    )


def observations(setting: Setting) -> list[Observation]:
    """Return what is seen at every step."""
    generator = torch.Generator().manual_seed(1)
    return [
        Observation(
            torch.randn(ENVIRONMENTS, VALUES, generator=generator),
            None if setting.bank is None else torch.randint(4, 30, (ENVIRONMENTS,), generator=generator).int(),
        )
        for _ in range(STEPS)
    ]


def disturb(*settings: Setting) -> None:
    """Write other numbers into windows, in place, as `worlds.renew` does before each rollout."""
    for setting in settings:
        if setting.bank is not None:
            setting.bank.is_disturbed = True
            size = setting.bank.table.shape
            setting.bank.table.copy_(torch.randn(size, generator=torch.Generator().manual_seed(4)))


@torch.no_grad()
def fill(setting: Setting, engine: Any) -> None:
    """Let an engine act for a rollout, then set the outcome, so that ratios lie on both sides of the clipping."""
    generator = torch.Generator().manual_seed(2)
    starts = torch.zeros(ENVIRONMENTS, dtype=torch.bool)
    memory = torch.zeros(ENVIRONMENTS, 0)
    engine.begin_rollout()
    for t, seen in enumerate(observations(setting)):
        setting.rollout.see(t, seen, starts)
        engine.act(t, seen, memory, generator)


@torch.no_grad()
def surprise(setting: Setting) -> None:
    """Give a rollout an outcome, and a policy that has moved on since it acted."""
    generator = torch.Generator().manual_seed(3)
    rollout = setting.rollout

    def noise() -> Tensor:
        return torch.randn(rollout.reward.shape, generator=generator)

    rollout.log_prob += 0.3 * noise()
    rollout.advantage.copy_(2.0 * noise() + 0.5)
    rollout.returns.copy_(rollout.value + noise())
    rollout.value += 0.3 * noise()


def learned(setting: Setting, engine: Any, rows: Tensor) -> dict[str, Tensor]:
    """Take one gradient step and return everything that came of it."""
    if setting.config.entropy_schedule != "constant":
        engine.set_entropy_weight(LATER_ENTROPY)
    report = engine.learn(rows)
    found = {"report": report.detach().clone()}
    for name, parameter in setting.policy.named_parameters():
        found[f"parameter {name}"] = parameter.detach().clone()
        if parameter.grad is not None:
            found[f"gradient {name}"] = parameter.grad.clone()
    return found


def copy_rollout(source: Rollout, target: Rollout) -> None:
    for name in FILLED:
        tensor = getattr(source, name)
        if tensor is not None:
            getattr(target, name).copy_(tensor)


ROWS = torch.tensor([14, 3, 0, 7, 8, 2, 11, 5, 1])
