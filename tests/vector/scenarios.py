"""What every backend is asked to do alike: worlds, options and a course of resets, steps and refusals.

`record` plays a scenario on one backend and keeps all that can be seen of it; records of two backends must be the same
bits. The CUDA backend is played in a subprocess (`simulated_cuda.py`) or on a GPU (`test_cuda_missing.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

import velodrome as vd
from tests.contracts.comparison import as_numpy, random_actions
from tests.markets import small_market
from velodrome.envs._template import template_world
from velodrome.envs.contract import World, state_columns
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ActionError, VelodromeError

SEED = 7


def reward_with_a_memory_of_the_peak(old, new):
    """Look like the reward of tests/envs/trading/test_contract.py, so that both find one another's compiled loops."""
    return (new.equity - old.equity) / new.peak - 0.1 * new.turnover


@dataclass(frozen=True)
class Scenario:
    """A world, how its environments are made, and what happens to them."""

    world: Callable[[], World]
    num_envs: int = 3
    steps: int = 8
    options: dict[str, Any] = field(default_factory=dict)  # of make_vec
    resets: dict[int, dict[str, Any]] = field(default_factory=dict)  # before this step: arguments of reset()
    reset_ended_after: int | None = None  # from this step on episodes that ended are reset by mask; None: never
    illegal: int | None = None  # before this step illegal actions are tried, and refused

    def make(self, backend: str) -> Any:
        return vd.make_vec(self.world(), self.num_envs, **{"backend": backend, "seed": SEED, **self.options})


def record(envs: Any, scenario: Scenario) -> list[dict[str, np.ndarray]]:
    """Return all that can be seen of a scenario, one entry for each thing that happens in it."""
    entries: list[dict[str, np.ndarray]] = []
    returned: list[tuple[Any, dict[str, np.ndarray]]] = []  # what came back, and what it held when it did

    def see(observations: Any, **further: np.ndarray) -> None:
        values = parts("observations", observations)
        returned.append((observations, values))
        columns = {name: envs.column(name) for name in state_columns(envs.world.state_type)}
        entries.append({**columns, **values, **further})

    see(envs.reset()[0])
    ended = np.zeros(scenario.num_envs, bool)
    for number, actions in enumerate(random_actions(envs.single_action_space, scenario.num_envs, scenario.steps, 17)):
        if number in scenario.resets:
            see(envs.reset(**scenario.resets[number])[0])
        if scenario.reset_ended_after is not None and number >= scenario.reset_ended_after and ended.any():
            see(envs.reset(options={"reset_mask": ended})[0])
        if scenario.illegal == number:
            see(returned[-1][0], refused=np.array([refused(envs, bad) for bad in illegal_actions(envs)]))
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        flags = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        seen = {name: as_numpy(values).copy() for name, values in flags.items()}
        ended = seen["terminated"] | seen["truncated"]
        if ended.any():
            # Entries of environments whose episode goes on are leftovers, which nobody may read.
            for name, values in parts("final", infos["final_obs"]).items():
                seen[name] = np.where(ended.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
            for name, values in infos["statistics"].items():
                seen[f"statistics {name}"] = np.where(ended, as_numpy(values), 0.0)
            seen["_final_obs"] = as_numpy(infos["_final_obs"]).copy()
            seen["_statistics"] = as_numpy(infos["_statistics"]).copy()
        see(observations, **seen)
    entries.append(whether_overwritten(returned))
    return entries


def parts(name: str, observations: Any) -> dict[str, np.ndarray]:
    """Return copies of the parts of an observation by name."""
    if isinstance(observations, dict):
        return {f"{name} {key}": as_numpy(part).copy() for key, part in observations.items()}
    return {name: as_numpy(observations).copy()}


def whether_overwritten(returned: list[tuple[Any, dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Tell of every returned observation whether it has been overwritten since."""
    changed = []
    for observations, values in returned:
        now = parts("observations", observations)
        changed.append(any(not np.array_equal(now[name], values[name], equal_nan=True) for name in values))
    return {"overwritten": np.array(changed)}


def illegal_actions(envs: Any) -> list[np.ndarray]:
    """Return batches in which only the last environment's action is illegal, and one of the wrong shape."""
    n = envs.num_envs
    space = envs.single_action_space
    if np.issubdtype(space.dtype, np.integer):
        batches = [np.zeros((n, *space.shape), np.int64) for _ in range(2)]
        batches[0][-1], batches[1][-1] = -1, space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
        return [*batches, np.zeros((n, *space.shape), np.float32), np.zeros((n + 1, *space.shape), np.int64)]
    batches = [np.zeros((n, *space.shape), np.float32) for _ in range(3)]
    for batch, value in zip(batches, (space.high + 0.5, space.low - 0.5, np.nan), strict=True):
        batch[-1] = value
    return [*batches, np.zeros((n + 1, *space.shape), np.float32)]


def refused(envs: Any, actions: np.ndarray) -> str:
    """Return the beginning of the message with which actions are refused."""
    try:
        envs.step(actions)
    except ActionError as error:
        # Backends write the value itself differently: 1.5 is np.float32(1.5) in one and array([1.5]) in another.
        return str(error).split(" is ")[0].split(" and type ")[0]
    except VelodromeError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def assert_identical(ours: list[dict[str, np.ndarray]], theirs: list[dict[str, np.ndarray]]) -> None:
    """Compare two records to the bit: types, shapes and signs of zeros too. NaN equals NaN."""
    assert len(ours) == len(theirs)
    for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
        assert left.keys() == right.keys(), number
        for name in left:
            where = f"{name} in entry {number}"
            assert left[name].dtype == right[name].dtype, where
            np.testing.assert_array_equal(left[name], right[name], err_msg=where)
            if left[name].dtype.kind == "f":
                numbers = ~np.isnan(left[name])
                signs = np.signbit(left[name][numbers]), np.signbit(right[name][numbers])
                np.testing.assert_array_equal(*signs, err_msg=f"sign of zero: {where}")


def trading(market: dict[str, Any] | None = None, **values: Any) -> Callable[[], World]:
    """Return what makes a trading world over a small market."""
    return lambda: trading_world(small_market(**{"bars": 80, **(market or {})}), **values)


def drawn(seed: int) -> Scenario:
    """Return a scenario whose parameters, market and options were drawn; the same for the same seed."""
    rng = np.random.default_rng(seed)
    action = str(rng.choice(["levels", "continuous", "brackets"]))
    ranges = {
        "fee": tuple(np.sort(rng.uniform(0.0, 0.01, 2)).tolist()),
        "leverage": tuple(np.sort(rng.uniform(1.0, 40.0, 2)).tolist()),
        "cooldown": (0, int(rng.integers(1, 4))),
    }
    values: dict[str, Any] = {
        "action": action,
        "slippage": float(rng.uniform(0.0, 0.01)),
        "half_spread": float(rng.uniform(0.0, 0.002)),
        "slippage_atr": float(rng.choice([0.0, 0.1])),
        "funding": float(rng.uniform(-0.01, 0.01)),
        "maintenance_margin": float(rng.uniform(0.0, 0.02)),
        "rebalance_band": float(rng.uniform(0.0, 0.3)),
        "turnover_cap": float(rng.choice([0.0, 20.0])),
        "daily_drawdown": float(rng.choice([0.0, 0.2])),
        "turnover_penalty": float(rng.uniform(0.0, 0.1)),
        "fill": str(rng.choice(["next_open", "close"])),
        "funding_side": str(rng.choice(["holder", "perpetual"])),
        "trade_mode": str(rng.choice(["fractional", "notional", "quantity"])),
        "quantity_per_trade": float(rng.uniform(1.0, 50.0)),
        "allow_short": bool(rng.integers(2)),
        "flat_at_session_end": bool(rng.integers(2)),
        "reward": str(rng.choice(["log_return", "return", "differential_sharpe", "drawdown"])),
        "start": str(rng.choice(["random", "first"])),
        "episode_length": (3, int(rng.integers(4, 9))),
        **(ranges if rng.integers(2) else {}),
    }
    market = {"seed": seed, "instruments": int(rng.integers(1, 4)), "session": int(rng.integers(3, 9)), "jump": 0.1}
    options = {"observation": str(rng.choice(["flat", "dict", "cursor"])), "autoreset": bool(rng.integers(3))}
    return Scenario(
        trading(market, **values), num_envs=int(rng.integers(2, 6)), options=options, reset_ended_after=6, illegal=3
    )


SHORT_EPISODES = {"episode_length": 4, "fee": 1e-3}
SCENARIOS: dict[str, Scenario] = {
    "template": Scenario(lambda: template_world(length=4), steps=10, illegal=3),
    # More than one block of state (64 environments) and more than one block of threads (128).
    "template, several blocks": Scenario(
        lambda: template_world(length=3),
        num_envs=131,
        steps=5,
        resets={3: {"options": {"reset_mask": np.arange(131) % 3 == 0}}},
    ),
    "template, no autoreset": Scenario(
        lambda: template_world(length=3), steps=9, options={"autoreset": False}, reset_ended_after=6
    ),
    "levels": Scenario(trading({"instruments": 2}, **SHORT_EPISODES), steps=10, illegal=4),
    # 150 and 168 floats: the gather kernel copies them four to a thread, with and without a rest.
    "levels, long windows": Scenario(trading({"windows": ((50, 3), (21, 8), (1, 1))}, **SHORT_EPISODES), steps=6),
    "levels, dict, no autoreset": Scenario(
        trading(**SHORT_EPISODES), steps=10, options={"autoreset": False, "observation": "dict"}, reset_ended_after=7
    ),
    "continuous, cursor": Scenario(
        trading(action="continuous", leverage=5.0, slippage=1e-3, **SHORT_EPISODES),
        options={"observation": "cursor"},
        illegal=2,
    ),
    "continuous, ranges, dict": Scenario(
        trading(
            {"instruments": 2},
            action="continuous",
            fee=(0.0, 0.01),
            leverage=(1.0, 20.0),
            initial_cash=(100.0, 1e5),
            slippage=1e-3,
            half_spread=1e-4,
            funding=1e-4,
            cooldown=(0, 2),
            episode_length=(3, 6),
        ),
        steps=10,
        options={"observation": "dict"},
    ),
    "brackets": Scenario(
        trading(
            {"session": 5, "jump": 0.2},
            action="brackets",
            leverage=10.0,
            episode_length=6,
            start="sequential",
            reward="differential_sharpe",
            flat_at_session_end=True,
            funding_column="funding_rate",
        ),
        steps=10,
        illegal=1,
    ),
    "brackets, cursor, copies, no autoreset": Scenario(
        trading(action="brackets", fill="close", lock_position=True, **SHORT_EPISODES),
        steps=10,
        options={"observation": "cursor", "copy": True, "autoreset": False},
        reset_ended_after=8,
    ),
    "first and own seeds": Scenario(
        trading({"instruments": 3}, start="first", **SHORT_EPISODES), resets={2: {"seed": [5, 5, None]}}
    ),
    "own reward, copies": Scenario(
        trading(reward=reward_with_a_memory_of_the_peak, **SHORT_EPISODES), options={"copy": True}
    ),
    "resets of every kind": Scenario(
        trading({"instruments": 2}, episode_length=20, slippage=1e-3),
        num_envs=4,
        steps=10,
        resets={
            2: {"options": {"reset_mask": [True, False, False, True]}},
            4: {"options": {"cursor": [20, 30, 90, 100], "last": [22, 40, 91, 100]}},
            6: {"options": {"reset_mask": [False, True, True, False], "cursor": 50}},
            7: {"seed": [5, None, 7, 5]},
            8: {"seed": 11, "options": {"reset_mask": [False, True, True, True]}},
        },
        illegal=5,
    ),
    **{f"drawn {seed}": drawn(seed) for seed in (1, 2, 3)},
}
