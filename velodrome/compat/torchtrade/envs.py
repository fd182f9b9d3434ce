"""TorchTrade's environments as classes of TorchRL, with TensorDicts in and out, over the compiled trading rule."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from velodrome.adapters.library_class import with_base
from velodrome.adapters.torchrl import Shown, SingleVelodromeEnv, VelodromeEnv
from velodrome.bars.dataframes import is_frame
from velodrome.bars.timeframe import UNIT_OF_SPELLING, parse_timeframe
from velodrome.compat.torchtrade.history import HistoryTracker, Recorder, Rewarded, checked_reward
from velodrome.compat.torchtrade.layout import OF_BRACKETS, OHLCV, SAME, Frame, torchtrade_market, trading_parameters
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError, DataError, reworded
from velodrome.tables.market import Market
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.make import make_vec

WORDS = {ours: theirs for theirs, ours in {**SAME, **OF_BRACKETS}.items()}  # in what is refused
WORDS |= {"levels": "action_levels", "take_profit": "takeprofit_levels", "episode_length": "max_traj_length"}
FEATURE_PREFIX = "features_"
UNITS = {"m": "Minute", "h": "Hour", "d": "Day"}  # as they are written in observation keys


@dataclass
class SequentialTradingEnvConfig:
    """What an environment is told; names and defaults are TorchTrade's."""

    symbol: str = "BTC/USD"
    time_frames: Any = "1Hour"
    window_sizes: list[int] | int = 10
    execute_on: Any = "1Hour"
    initial_cash: tuple[float, float] | float = 10000
    transaction_fee: float = 0.0
    slippage: float = 0.0
    bankrupt_threshold: float = 0.1
    seed: int | None = 42
    include_base_features: bool = False
    max_traj_length: int | None = None
    random_start: bool = True
    action_levels: list[float] | None = field(default_factory=lambda: [-1.0, 0.0, 1.0])
    leverage: int = 1
    margin_mode: Any = "isolated"
    maintenance_margin_rate: float = 0.004

    def __post_init__(self) -> None:
        """Refuse what no market can be laid out for."""
        if self.include_base_features:
            raise ConfigError("include_base_features=True: offline environments show none; leave it out.")
        mode = str(getattr(self.margin_mode, "value", self.margin_mode)).lower()
        if mode != "isolated":
            raise ConfigError(f"margin_mode = {mode!r}: offline environments have isolated margin.")
        self.frames()

    def frames(self) -> tuple[list[str], list[int]]:
        """Return the time frames and the window size of each."""
        listed = isinstance(self.time_frames, Sequence) and not isinstance(self.time_frames, str)
        frames = [frame_text(each) for each in (self.time_frames if listed else [self.time_frames])]
        sizes = self.window_sizes if isinstance(self.window_sizes, Sequence) else [self.window_sizes] * len(frames)
        if len(frames) != len(sizes):
            raise ConfigError(f"{len(frames)} time_frames but {len(sizes)} window_sizes; give one for each.")
        return frames, [checked_count("window_sizes", size) for size in sizes]


@dataclass
class SequentialTradingEnvSLTPConfig(SequentialTradingEnvConfig):
    """The same with orders that carry a stop loss and a take profit."""

    stoploss_levels: Sequence[float] = (-0.025, -0.05, -0.1)
    takeprofit_levels: Sequence[float] = (0.05, 0.1, 0.2)
    include_hold_action: bool = True
    include_close_action: bool = False
    lock_position_until_sltp: bool = False
    trade_mode: Any = "fractional"
    position_fraction: float = 1.0
    quantity_per_trade: float = 0.001

    def __post_init__(self) -> None:
        """Refuse stops on the wrong side, too."""
        if not all(level < 0 for level in self.stoploss_levels):
            raise ConfigError(f"stoploss_levels = {self.stoploss_levels}: needs negative fractions, such as -0.025.")
        super().__post_init__()


@dataclass
class VectorizedSequentialTradingEnvConfig(SequentialTradingEnvConfig):
    """What many environments are told."""

    num_envs: int = 64

    def __post_init__(self) -> None:
        """Refuse no environments at all, too."""
        checked_count("num_envs", self.num_envs)
        super().__post_init__()


@dataclass
class VectorizedSequentialTradingEnvSLTPConfig(VectorizedSequentialTradingEnvConfig, SequentialTradingEnvSLTPConfig):
    """What many environments with a stop loss and a take profit are told."""


CLASSES = tuple(f"{many}SequentialTradingEnv{kind}" for many in ("", "Vectorized") for kind in ("", "SLTP"))
NAMES = (*CLASSES, *(f"{name}Config" for name in CLASSES), HistoryTracker.__name__)


def frame_text(frame: Any) -> str:
    """Return a time frame as TorchTrade writes it in observation keys: 5Minute, 1Hour, 1Day."""
    text = frame.obs_key_freq() if hasattr(frame, "obs_key_freq") else str(frame)
    parse_timeframe(text)
    count, unit = re.fullmatch(r"(\d*)\s*([A-Za-z]+)", text.strip()).groups()  # type: ignore[union-attr]
    known = UNIT_OF_SPELLING[unit.lower()]
    if known not in UNITS:
        raise ConfigError(f"time frame {text!r}: TorchTrade has minutes, hours and days, such as 5Min, 1Hour or 1Day.")
    return f"{count or 1}{UNITS[known]}"


def market_of(df: Any, config: SequentialTradingEnvConfig, preprocess: Any = None) -> Market:
    """Return the market that a DataFrame and a configuration make."""
    if not is_frame(df):
        raise ConfigError(f"df is a {type(df).__name__}; needs a DataFrame of pandas or Polars.")
    missing = [name for name in ("timestamp", *OHLCV) if name not in df.columns]
    if missing:
        raise DataError(f"DataFrame missing required columns: {missing}. Got columns: {list(df.columns)}.")
    frame = df.sort_values("timestamp") if hasattr(df, "sort_values") else df.sort("timestamp")
    time = np.asarray(frame["timestamp"].to_numpy()).astype("datetime64[ns]").astype(np.int64)
    data = {"timestamp": time, **{name: np.asarray(frame[name].to_numpy(), np.float64) for name in OHLCV}}
    frames, sizes = config.frames()
    functions = preprocess if isinstance(preprocess, Sequence) else [preprocess] * len(frames)
    if len(functions) != len(frames):
        raise ConfigError(f"{len(functions)} feature_preprocessing_fn, {len(frames)} time_frames; give one for each.")
    by_frame = dict(zip(frames, functions, strict=True))
    names = [f"market_data_{name}_{size}" for name, size in zip(frames, sizes, strict=True)]
    features = functools.partial(_processed, by_frame) if preprocess is not None else None
    return torchtrade_market(data, frames, sizes, frame_text(config.execute_on), features, names)


def _processed(functions: dict[str, Callable[..., Any]], name: str, bars: Frame) -> Any:
    """Return what a function of the user's makes of the bars of a time frame: its columns features_…"""
    import pandas  # type: ignore[import-untyped]

    index = pandas.Index(bars.start.astype("datetime64[ns]"), name="timestamp")
    given = pandas.DataFrame(bars.ohlcv.astype(np.float64), columns=list(OHLCV), index=index)
    found = functions[name](given)
    columns = [column for column in found.columns if str(column).startswith(FEATURE_PREFIX)]
    if not columns:
        raise ConfigError(
            f"feature_preprocessing_fn for {name} made no columns that begin with '{FEATURE_PREFIX}'; it made "
            f"{list(found.columns)}."
        )
    labels = (found["timestamp"] if "timestamp" in found.columns else found.index).to_numpy()
    values = np.ascontiguousarray(found[columns].to_numpy(np.float32))
    return labels.astype("datetime64[ns]").astype(np.int64), values, tuple(columns)


def rule_parameters(config: SequentialTradingEnvConfig, market: Market, brackets: bool) -> dict[str, Any]:
    """Return the parameters of the trading environment on a market."""
    found = trading_parameters(asdict(config), "sltp" if brackets else "base")
    found["slippage"] = config.slippage
    found["start"] = "random" if config.random_start else "first"
    if config.max_traj_length is not None:
        # Theirs counts the bars of an episode, ours its decisions. A longer one than there are bars has them all.
        bars = min(int(config.max_traj_length), int(market.end[0] - market.begin[0]))
        found["episode_length"] = max(bars - 1, 1)
    return found


class _Told(Shown):
    """What one environment and many are told. TensorDicts have TorchTrade's keys."""

    KEYS: ClassVar = {"account": "account_state"}
    Config: ClassVar[type[SequentialTradingEnvConfig]]
    BRACKETS: ClassVar[bool]
    _open: Callable[..., None]  # of what makes the environments, and the reward function

    def __init__(
        self,
        df: Any,
        config: SequentialTradingEnvConfig,
        feature_preprocessing_fn: Any = None,
        reward_function: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(config, self.Config):
            raise ConfigError(f"config is a {type(config).__name__}; this one takes a {self.Config.__name__}.")
        self.config = config
        self.market = market_of(df, config, feature_preprocessing_fn)
        with reworded(WORDS):
            world = trading_world(self.market, **rule_parameters(config, self.market, self.BRACKETS))
        options: Any = {"backend": "native", "observation": "dict", "seed": config.seed}
        self._open(functools.partial(make_vec, world, **options), reward_function)


class _Vectorized(_Told, VelodromeEnv):
    """Many trading environments in one compiled loop.

    reward_function: of the portfolio values before and after a step, tensors [num_envs]; rewards are then computed in
        Python. None: the change of the value's logarithm, by the rule itself.
    """

    config: VectorizedSequentialTradingEnvConfig

    def _open(self, make: Callable[..., Any], function: Callable[..., Any] | None) -> None:
        envs = make(num_envs=self.config.num_envs)
        VelodromeEnv.__init__(self, envs if function is None else Rewarded(envs, function))


class _Single(_Told, SingleVelodromeEnv):
    """One trading environment, with TensorDicts of no batch, which remembers its episode as `history`.

    reward_function: of the history so far. None: the change of the portfolio value's logarithm, by the rule itself.
    """

    def _open(self, make: Callable[..., Any], function: Callable[..., Any] | None) -> None:
        SingleVelodromeEnv.__init__(self, make(num_envs=1, autoreset=False))
        self.reward_function = function and checked_reward(function, many=False)
        base: Any = self.envs.unwrapped
        shorts = bool(base.world.params.allow_short)
        self.recorder = Recorder(self.envs, self.market, self.BRACKETS, shorts)

    @property
    def history(self) -> HistoryTracker:
        """What happened in the episode so far."""
        return self.recorder.history

    def render_history(self, return_fig: bool = False, plot_bh_baseline: bool = True) -> Any:
        """Draw prices, the portfolio and the exposure of the episode; return the figure, or show it."""
        from velodrome.runs.report.episode import episode_figure
        from velodrome.runs.report.images import draw, show

        past, held_with = self.history, float(self.config.leverage) if plot_bh_baseline else None
        figure = episode_figure(past.base_prices, past.portfolio_values, past.positions, held_with)
        drawing = draw(figure, "episode")
        return drawing if return_fig else show(drawing)

    def _reward(self, reward: float) -> float:
        return self.recorder.step(reward, self.reward_function)

    def _reset(self, tensordict: Any = None, **options: Any) -> Any:
        begun = super()._reset(tensordict, **options)
        self.recorder.begin()
        return begun


@functools.cache
def env_class(name: str) -> Any:
    """Return a class of TorchTrade by its name; imports TorchRL."""
    ours = _Vectorized if name.startswith("Vectorized") else _Single
    made = with_base(ours, "torchrl.envs", "EnvBase", "TorchRL", "to_torchrl")
    told = {"Config": globals()[f"{name}Config"], "BRACKETS": name.endswith("SLTP")}
    return type(name, (made,), {"__doc__": made.__doc__, "__module__": __package__, **told})
