"""FinRL 0.3.7's stock trading environments under Stable-Baselines3's DummyVecEnv, as its tutorials run them.

`StockTradingEnv` is the one of the tutorials, over a pandas frame; the one of the same name over NumPy arrays is what
its own `train` uses. Both observe one bar: cash, each close, each holding, and the features of each instrument.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.options import Peer
from velodrome.bench.peers.vectorisers import sb3_envs
from velodrome.bench.timing import Batch
from velodrome.errors import MissingDependencyError

SHARES = 100  # of each instrument that an action of 1 buys: `hmax` and `max_stock`
FEE = 0.001  # fraction of notional, on both sides
CASH = 1e6  # at the start of an episode
SMALLEST = 10  # shares; the NumPy environment drops orders of no more: `min_stock_rate` of `max_stock`


class StockData(NamedTuple):
    """Closes and features of some instruments, bar by bar."""

    closes: NDArray[np.float64]  # [T, K]
    features: NDArray[np.float32]  # [T, K, F]

    @property
    def instruments(self) -> int:
        """Their number."""
        return self.closes.shape[1]

    def frame(self) -> Any:
        """Return a DataFrame as FinRL wants it: a row for each instrument of each day, with the day as index."""
        import pandas  # type: ignore[import-untyped]

        bars, instruments, count = self.features.shape
        days = np.repeat(np.arange(bars), instruments)
        dates = pandas.date_range("2000-01-01", periods=bars, freq="D").strftime("%Y-%m-%d")
        symbols = np.tile([f"stock_{k}" for k in range(instruments)], bars)
        columns = {"date": np.repeat(dates, instruments), "tic": symbols, "close": self.closes.ravel()}
        features = self.features.reshape(-1, count).astype(np.float64)
        columns |= {name: features[:, place] for place, name in enumerate(feature_names(count))}
        return pandas.DataFrame(columns, index=days)


def feature_names(count: int) -> list[str]:
    """Return the columns of the features."""
    return [f"feature_{place}" for place in range(count)]


@cache
def finrl_module(name: str) -> Any:
    """Return one of FinRL's modules of stock environments, without those of brokers and data that FinRL imports first.

    FinRL imports the clients of a dozen services as soon as anything of it is imported; its environments need none.
    """
    package = importlib.util.find_spec("finrl")
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        raise MissingDependencyError(f"FinRL is not installed: {INSTALL}")
    path = Path(folders[0]) / "meta" / "env_stock_trading" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"finrl_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def env_maker(name: str, data: StockData, cash: float = CASH, training: bool = True) -> Callable[[], Any]:
    """Return what makes one of the environments; those that it makes share their data.

    training: whether episodes of the NumPy environment begin with random shares and cash, as in FinRL's `train`.
    """
    count, features = data.instruments, data.features.shape[2]
    if name == "finrl_numpy":
        bars = len(data.closes)
        arrays = {
            "price_array": data.closes,
            "tech_array": data.features.reshape(bars, -1),
            "turbulence_array": np.zeros(bars),
            "if_train": training,
        }
        given = {"initial_capital": cash, "max_stock": SHARES, "buy_cost_pct": FEE, "sell_cost_pct": FEE}
        return partial(finrl_module("env_stocktrading_np").StockTradingEnv, arrays, **given)
    return partial(
        finrl_module("env_stocktrading").StockTradingEnv,
        df=data.frame(),
        stock_dim=count,
        hmax=SHARES,
        initial_amount=cash,
        num_stock_shares=[0] * count,
        buy_cost_pct=[FEE] * count,
        sell_cost_pct=[FEE] * count,
        reward_scaling=1e-4,
        state_space=1 + 2 * count + features * count,
        action_space=count,
        tech_indicator_list=feature_names(features),
        print_verbosity=10**9,  # episodes between two that are printed
    )


def account(env: Any, instruments: int) -> tuple[float, Any]:
    """Return the equity and the shares that an environment holds."""
    if hasattr(env, "stocks"):
        return env.total_asset, env.stocks
    return env.asset_memory[-1], env.state[1 + instruments : 1 + 2 * instruments]


def open_finrl(name: str, data: StockData, num_envs: int) -> Batch:
    """Return a batch of one of the environments under DummyVecEnv, which starts the next episode where one ends."""
    envs = sb3_envs("DummyVecEnv", [env_maker(name, data)] * num_envs)
    step, space = (lambda actions: envs.step(actions)[:3]), envs.action_space
    return Batch(lambda seed: envs.reset(), step, envs.close, envs, space)


INSTALL = "pip install --no-deps finrl==0.3.7, beside pandas, matplotlib and stable-baselines3"
# A frame of 100 instruments makes a step of 64 environments take about a second.
NEEDS: dict[str, Any] = {"modules": ("finrl",), "install": INSTALL, "largest": 64, "own_problem": True}
FINRL = Peer("FinRL StockTradingEnv", partial(open_finrl, "finrl"), **NEEDS)
FINRL_NUMPY = Peer("FinRL, NumPy variant", partial(open_finrl, "finrl_numpy"), **NEEDS)
