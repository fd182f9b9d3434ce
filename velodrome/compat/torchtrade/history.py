"""What TorchTrade's reward functions are given, and what its single environments remember of an episode.

Both are Python after every compiled step: rewards of many environments are a function of the portfolio values before
and after, those of one a function of its history.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import VectorWrapper

from velodrome.compat.torchtrade.replays import event_labels
from velodrome.errors import ConfigError
from velodrome.tables.market import Market
from velodrome.vector.messages import tell

SIGNS = {"buy": 1, "long": 1, "sell": -1, "short": -1}  # of what is done; 0 for anything else
GIVES = {
    True: "many environments give it (old_pvs, new_pvs), tensors of portfolio values.",
    False: "one environment gives it (history), the HistoryTracker of its episode.",
}


def checked_reward(function: Callable[..., Any], many: bool) -> Callable[..., Any]:
    """Return a reward function that takes what the environments give it, or refuse it."""
    try:
        inspect.signature(function).bind(*range(2 if many else 1))
    except (TypeError, ValueError) as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"reward_function = {name}: {GIVES[many]}") from error
    return function


@functools.cache
def note_python() -> None:
    """Say once what a function costs."""
    tell(
        "reward_function runs in Python after every step of the environments; vd.make_vec('trading', reward=…) "
        "compiles a function of two accounts into the rule (docs/trading.md)."
    )


class Rewarded(VectorWrapper):
    """Environments whose rewards are a function of TorchTrade's: of the portfolio values [n] before and after."""

    env: Any

    def __init__(self, envs: Any, function: Callable[..., Any]) -> None:
        super().__init__(envs)
        self.function = checked_reward(function, many=True)
        note_python()

    def reset(self, **given: Any) -> Any:
        """Begin episodes."""
        found = self.env.reset(**given)
        self._remember()
        return found

    def _remember(self) -> None:
        self._before, self._initial = (self.env.column(name) for name in ("equity", "initial"))

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        import torch

        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        values, initial = self._before, self._initial
        self._remember()
        # Where an episode ended, the account is that of the next one already.
        ended = terminated | truncated
        after = self._before
        if ended.any():
            after = np.where(ended, (1.0 + infos["statistics"]["return"]) * initial, after)
        # The function may write into what it is given, but not into what the next step begins with.
        found = torch.as_tensor(self.function(torch.from_numpy(values), torch.tensor(after)))
        if found.shape != rewards.shape:
            raise ConfigError(
                f"reward_function returned {tuple(found.shape)}; needs {tuple(rewards.shape)}, one number for each of "
                f"the environments."
            )
        return observations, found.detach().numpy().astype(np.float32), terminated, truncated, infos


@dataclass
class HistoryTracker:
    """An episode so far, with an entry for its beginning and for every step."""

    base_prices: list[float] = field(default_factory=list)
    actions: list[float] = field(default_factory=list)  # 1: bought, −1: sold, 0: neither
    rewards: list[float] = field(default_factory=list)
    portfolio_values: list[float] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    action_types: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the lists by name."""
        return asdict(self)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.base_prices)


class Recorder:
    """Keeps the history of the episode that the first of some environments plays."""

    def __init__(self, envs: Any, market: Market, brackets: bool, shorts: bool) -> None:
        self.closes, self.brackets, self.shorts = market.ohlc[:, 3], brackets, shorts
        names = ("cursor", "equity", "units", "order_code", "exit_code")
        self.cells = {name: envs.buffers.blocks[name][0, :1] for name in names}  # views, [1] each
        self.history = HistoryTracker()

    def begin(self) -> None:
        """Begin a history."""
        self.history = HistoryTracker()
        self._add("hold", 0.0)

    def step(self, reward: float, function: Callable[[HistoryTracker], float] | None) -> float:
        """Add the step that was just taken; return its reward, which a function of the history may compute."""
        self._add(event_labels(self.cells, self.brackets, self.shorts)[0], 0.0 if function else reward)
        if function is not None:
            self.history.rewards[-1] = float(function(self.history))
        return self.history.rewards[-1]

    def _add(self, action_type: str, reward: float) -> None:
        cursor, value, units = (self.cells[name].item() for name in ("cursor", "equity", "units"))
        entry = (self.closes[cursor].item(), SIGNS.get(action_type, 0), reward, value, units, action_type)
        for kept, part in zip(vars(self.history).values(), entry, strict=True):
            kept.append(part)
