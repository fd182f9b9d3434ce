"""`velodrome bench step --env portfolio`: steps per second of the portfolio, after checking it against plain NumPy."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from rich.console import Console

from velodrome.bars import synthetic_bars
from velodrome.bench.machine import machine_stamp
from velodrome.bench.parity import ParityError
from velodrome.bench.portfolio_peer import PlainPortfolioEnv, PortfolioTables
from velodrome.bench.process_peers import measure_process_peer
from velodrome.bench.rates import RING, RateOptions, RateReport, Row, native_row, run_rate_benchmark, thread_choices
from velodrome.bench.timing import Stepper
from velodrome.envs.portfolio.config import portfolio_config
from velodrome.tables import build_basket
from velodrome.tables.basket import Basket
from velodrome.vector.make import make_vec

PARITY_ENVS, PARITY_STEPS = 8, 400
TOLERANCE = 1e-9  # of initial cash
LARGEST_IN_PROCESS = 1_024
LARGEST_SUBPROC = 64  # processes
TARGET_SIZE, TARGET_INSTRUMENTS = 1_024, 7
TARGETS = {"windows": 2e6, "no windows": 6e6}
TARGET_RATIO = 200.0
FEATURES = (
    "log_return", "range", "rsi_14", "macd_hist_relative", "bollinger_20", "volatility_20", "volume_z_50",
    "sma_distance_50", "log_return_5", "log_return_20", "rsi_30",
)  # fmt: skip
WARM_UP = 49  # bars until all of them have a value


class PortfolioOptions(RateOptions):
    """What to measure."""

    PEER_NAMES = ("dummy", "subproc")
    QUICK = MappingProxyType({"seconds": 0.2, "repeats": 2, "sizes": (1, 1_024)})

    sizes: tuple[int, ...] = Field((1, 8, 64, 1_024, 16_384), description="environments in a batch")
    instruments: tuple[int, ...] = Field((7, 100), description="instruments of the basket")
    bars: int = Field(5_000, ge=500, le=10_000_000, description="bars of each instrument")
    window: int = Field(5, ge=1, le=1_000, description="bars in an observation")
    features: int = Field(11, ge=1, le=len(FEATURES), description="features of each bar and instrument")
    episode_length: int = Field(500, ge=1, le=1_000_000, description="decisions in an episode")

    @field_validator("instruments")
    @classmethod
    def _instruments_are_legal(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if not counts or not all(2 <= count <= 1_000 for count in counts):
            raise ValueError("needs one or more whole numbers from 2 to 1,000")
        return tuple(sorted(set(counts)))

    @model_validator(mode="after")
    def _an_episode_fits(self) -> PortfolioOptions:
        needed = self.episode_length + WARM_UP + self.window
        if self.bars < needed:
            raise ValueError(
                f"bars = {self.bars:,} are too few: an episode of {self.episode_length:,} decisions after {WARM_UP} "
                f"bars of warm-up and a window of {self.window} needs {needed:,}; give more bars or a shorter "
                "episode_length"
            )
        return self


class PortfolioReport(RateReport):
    """Everything that a run of this benchmark found out."""

    kind: str = "step, portfolio"
    observation_floats: dict[int, int] = Field(default_factory=dict, description="by number of instruments")

    def conclude(self) -> None:
        """Judge by what was promised for 7 instruments, and how the cost of a step grows with their number."""
        start = f"K = {TARGET_INSTRUMENTS}: "
        for shown, wanted in TARGETS.items():
            name = f"steps per second, K = {TARGET_INSTRUMENTS}, {TARGET_SIZE:,} environments, {shown}"
            self.judge(name, self.best(f"{start}velodrome, {shown}", TARGET_SIZE), wanted)
        ours, dummy = self.best(f"{start}velodrome, windows", TARGET_SIZE), self.best(f"{start}Dummy", TARGET_SIZE)
        if ours and dummy:
            self.judge(f"times the NumPy environment in DummyVecEnv, K = {TARGET_INSTRUMENTS}", ours / dummy,
                       TARGET_RATIO)  # fmt: skip
        counts = sorted(self.observation_floats)
        if len(counts) > 1:
            few, many = counts[0], counts[-1]
            for shown in TARGETS:
                small = self.best(f"K = {few}: velodrome, {shown}", TARGET_SIZE)
                large = self.best(f"K = {many}: velodrome, {shown}", TARGET_SIZE)
                if small and large:
                    name = f"instrument steps per second of K = {many} over those of K = {few}, {shown}"
                    self.judge(name, (large * many) / (small * few), 1.0)


@dataclass(frozen=True)
class PortfolioProblem:
    """A basket and the parameters of the portfolio environment over it."""

    basket: Basket
    parameters: dict[str, Any]

    @property
    def peer_tables(self) -> PortfolioTables:
        """The same for the plain environment."""
        basket, config = self.basket, portfolio_config(**self.parameters)
        length, width = int(basket.windows.length[0]), int(basket.windows.width[0])
        # The native layout precedes the bars by `length` rows of zeros; the peer reads the bars alone.
        features = basket.windows.values.reshape(-1, width)[length:]
        numbers = {name: getattr(config, name) for name in PortfolioTables._fields[-8:]}
        first, last = int(basket.begin[0]), int(basket.end[0])
        return PortfolioTables(
            basket.open, basket.close, features, length, first, last, config.episode_lengths[0], **numbers
        )

    def actions(self, seed: int, num_envs: int) -> list[NDArray[np.float32]]:
        """Return the ring of action batches: the same for every contender of this size."""
        rng = np.random.default_rng((seed, num_envs))
        return [rng.uniform(-1.0, 1.0, (num_envs, len(self.basket.symbols))).astype(np.float32) for _ in range(RING)]


def portfolio_problem(options: PortfolioOptions, instruments: int) -> PortfolioProblem:
    """Return synthetic one-minute bars under the preset `crypto`, with cash and units as they are observed there."""
    bars = synthetic_bars("gbm", options.bars, options.seed, symbols=instruments)
    basket = build_basket(bars, FEATURES[: options.features], options.window, check_leaks=False, name="bench")
    values = {"preset": "crypto", "account_values": "raw", "episode_length": options.episode_length}
    return PortfolioProblem(basket, values)


def run_portfolio_benchmark(options: PortfolioOptions, console: Console | None = None) -> PortfolioReport:
    """Check, measure, show and write; Ctrl-C ends the measuring and keeps what there is."""
    options = options.resolved()
    report = PortfolioReport(machine=machine_stamp(), options=options.model_dump(mode="json"))
    installed = importlib.util.find_spec("stable_baselines3") is not None
    reason = None if installed else "not installed: pip install 'velodrome[sb3]'"
    report.note_missing((peer, reason) for peer in options.peers)
    peers = report.active_peers(options)
    problem_of = cache(lambda count: portfolio_problem(options, count))
    for count in options.instruments:
        report.observation_floats[count] = problem_of(count).basket.window_floats + 1 + count

    def contenders(size: int) -> list[Row]:
        return [
            row
            for count in options.instruments
            for row in rows_of(f"K = {count}: ", problem_of(count), size, options, peers)
        ]

    run_rate_benchmark(
        "Portfolio", options, report, console or Console(stderr=True),
        lambda: "; ".join(check_parity(problem_of(count), options.seed) for count in options.instruments), contenders,
    )  # fmt: skip
    return report


def check_parity(problem: PortfolioProblem, seed: int) -> str:
    """Play the same actions in plain NumPy and in the compiled rule; raise if observations or rewards differ."""
    tables = problem.peer_tables
    rng = np.random.default_rng(seed)
    starts = rng.integers(tables.begin, tables.end - tables.episode_length, PARITY_ENVS)
    plain = [PlainPortfolioEnv(tables) for _ in range(PARITY_ENVS)]
    compiled = make_vec("portfolio", PARITY_ENVS, market=problem.basket, autoreset=False, **problem.parameters)
    compiled.reset(seed=seed, options={"cursor": starts})
    for env, start in zip(plain, starts, strict=True):
        env.reset(options={"cursor": start})
    steps = min(PARITY_STEPS, tables.episode_length)
    windows = problem.basket.window_floats
    for k in range(steps):
        actions = rng.uniform(-1.0, 1.0, (PARITY_ENVS, len(problem.basket.symbols))).astype(np.float32)
        actions[rng.random(PARITY_ENVS) < 0.5] = 0.0  # so that positions grow old
        ours = compiled.step(actions)
        theirs = [env.step(action) for env, action in zip(plain, actions, strict=True)]
        equity = np.array([env.equity for env in plain])
        same = (
            np.abs(compiled.column("equity") - equity).max() <= TOLERANCE * tables.initial_cash
            and np.allclose(ours[1], [step[1] for step in theirs], rtol=1e-5, atol=1e-9)
            and np.allclose(ours[0], np.stack([step[0] for step in theirs]), rtol=1e-5, atol=1e-6)
            and np.array_equal(ours[0][:, :windows], np.stack([step[0][:windows] for step in theirs]))
            and np.array_equal(ours[3], [step[3] for step in theirs])
        )
        if not same:
            raise ParityError(f"the compiled portfolio and the plain NumPy one differ in step {k}")
    compiled.close()
    count = len(problem.basket.symbols)
    return f"K = {count}: compiled rule and plain NumPy agree over {PARITY_ENVS * steps:,} steps"


def rows_of(
    start: str, problem: PortfolioProblem, size: int, options: PortfolioOptions, peers: tuple[str, ...]
) -> list[Row]:
    """Return who is measured at a size with one number of instruments."""
    actions = problem.actions(options.seed, size)
    given = {"market": problem.basket, "seed": options.seed, **problem.parameters}
    rows = [
        native_row(f"{start}velodrome, {shown}{', specialised' * special}", "portfolio", size, actions, threads,
                   observation=observation, specialise=special, **given)
        for threads in thread_choices(size)
        for shown, observation, special in (
            ("windows", "flat", False), ("windows", "flat", True),
            ("no windows", "cursor", False), ("no windows", "cursor", True),
        )
    ]  # fmt: skip
    if "dummy" in peers and size <= LARGEST_IN_PROCESS:
        rows.append(Row(f"{start}DummyVecEnv", 1, lambda stack: _dummy(stack, problem, size, options.seed, actions)))
    if "subproc" in peers and 1 < size <= LARGEST_SUBPROC:
        rows.append(
            Row(f"{start}SubprocVecEnv", 1, apart=lambda: measure_process_peer(
                "subproc", size, problem.peer_tables, seconds=options.seconds, repeats=options.repeats,
                seed=options.seed,
            ))
        )  # fmt: skip
    return rows


def _dummy(stack: ExitStack, problem: PortfolioProblem, size: int, seed: int, actions: list) -> Stepper:
    from stable_baselines3.common.vec_env import DummyVecEnv

    tables = problem.peer_tables
    envs = DummyVecEnv([lambda: PlainPortfolioEnv(tables)] * size)
    stack.callback(envs.close)
    envs.seed(seed)
    envs.reset()
    return Stepper(lambda k: envs.step(actions[k % len(actions)]))
