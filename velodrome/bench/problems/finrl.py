"""FinRL's stock trading beside Velodrome's portfolio with the same rule, as far as it can be had.

Whole shares, a fee of 0.1 % on each side, one bar of features observed, episodes from the first bar to the last. While
there is cash enough for every order the accounts are equal, which is proven before anything is timed. Where it runs
short, FinRL fills the largest purchases first and Velodrome those of the first instruments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.bench.parity import compare
from velodrome.bench.peers.finrl import CASH, FEE, FINRL, FINRL_NUMPY, SHARES, SMALLEST, StockData, account, env_maker
from velodrome.bench.report import OURS, Comparison, Parity
from velodrome.bench.timing import Contender, action_ring
from velodrome.tables.basket import Basket, per_instrument
from velodrome.vector.make import make_vec

if TYPE_CHECKING:
    from velodrome.bench.step import StepBenchmark

PEERS = {"finrl": FINRL, "finrl_numpy": FINRL_NUMPY}
PRICE = 100.0  # first close of every instrument, so that an action is as many shares of each
RULE: dict[str, Any] = {
    "action": "orders",
    "reference": "first_bar",
    "fee": FEE,
    "lot": 1.0,
    "buy_safety": 1.0,
    "bankrupt_at": 0.0,
    "account_values": "raw",
    "start": "first",
    "episode_length": None,
}
# An order of ten shares and a fraction is one of ten there, and dropped.
RULES: dict[str, dict[str, Any]] = {
    "finrl": {**RULE, "fill": "close"},
    "finrl_numpy": {**RULE, "fill": "next_close", "min_quantity": SMALLEST + 1 - 1e-6},
}
VARIANTS = {"": {}, ", specialised": {"specialise": True}}
PARITY_STEPS = 200
# Of the equity. The NumPy environment keeps prices in float32, and with NumPy 2 its cash too.
ALLOWED = {"finrl": 1e-9, "finrl_numpy": 1e-5}
TOLD = (
    "Compared: equity and holdings at every step, with cash enough for every order. Not compared, because they differ: "
    "who is filled first where cash runs short; rewards (FinRL's is the gain times a constant, Velodrome's the log "
    "return); observations, of which FinRL's hold the closes, too. StockTradingEnv fills at the observed close and "
    "ends an episode with one more step in which nothing happens; the NumPy variant fills at the next close, drops "
    "orders of ten shares and fewer, and begins with random shares."
)


def finrl_groups(benchmark: StepBenchmark, instruments: int) -> list[tuple[Comparison, list[Contender]]]:
    """Prove that accounts are equal; return who takes turns, for each number of environments."""
    options = benchmark.options
    peers = {name: peer for name, peer in PEERS.items() if name in benchmark.peers}
    if not peers:
        return []
    basket = at_one_price(benchmark.market(instruments, window=1))
    data = stock_data(basket)
    floats = {OURS: 1 + instruments + data.features[0].size, "finrl": 1 + 2 * instruments + data.features[0].size}
    floats["finrl_numpy"] = floats["finrl"] + 2 + instruments
    comparison = benchmark.report.begin(
        f"FinRL, K = {instruments}", f"FinRL's rule, K = {instruments}: steps per second, one bar observed"
    )
    comparison.parity = check_finrl(basket, data, list(peers), options.seed)
    comparison.lines.append(TOLD)
    space = gymnasium.spaces.Box(-1.0, 1.0, (instruments,), np.float32)
    found = []
    for size in options.sizes:
        actions = cache(lambda size=size: action_ring(space, size, options.seed, benchmark.ring))
        group = []
        for threads in benchmark.thread_counts(size):
            for end, given in VARIANTS.items():
                values = {"market": basket, **rule_of("finrl", CASH), **given, "threads": threads}
                row = benchmark.row(OURS, OURS + end, size, threads=threads, kind="flat", floats=floats[OURS])
                group.append(Contender(row, partial(benchmark.open_native, size, values, actions)))
        for name, peer in peers.items():
            if size <= peer.largest:
                row = benchmark.row(name, peer.label, size, floats=floats[name])
                group.append(Contender(row, partial(benchmark.open_batch, partial(peer.open, data, size), actions)))
        found.append((comparison, group))
    return found


def at_one_price(basket: Basket) -> Basket:
    """Return a basket with every instrument's prices times what makes its first close the same."""
    factors = PRICE / basket.close[0]
    return replace(basket, open=basket.open * factors, close=basket.close * factors)


def stock_data(basket: Basket) -> StockData:
    """Return the rows of a basket on which there are decisions, and the last, as FinRL's environments take them."""
    first, last = int(basket.begin[0]), int(basket.end[0])
    length, width = int(basket.windows.length[0]), int(basket.windows.width[0])
    rows = basket.windows.values.reshape(-1, width)[length:][first:last]
    features = per_instrument(rows[:, None, :], basket.close.shape[1])[:, :, 0]
    return StockData(basket.close[first:last], features)


def rule_of(peer: str, cash: float) -> dict[str, Any]:
    """Return a rule of FinRL as parameters of the portfolio environment."""
    return {**RULES[peer], "initial_cash": cash, "order_scale": cash / (SHARES * PRICE)}


# Parity


def check_finrl(basket: Basket, data: StockData, peers: Sequence[str], seed: int) -> Parity:
    """Play the same orders in FinRL's environments and here; raise ParityError where accounts differ."""
    steps = min(PARITY_STEPS, len(data.closes) - 2)
    cash = steps * data.instruments * SHARES * 2.0 * PRICE  # enough to buy all of everything in every step
    generator = np.random.default_rng(seed)
    shares = generator.integers(-SHARES, SHARES, (steps, data.instruments))
    # Half a share more than whole ones: nothing rounds up in one precision and down in another.
    actions = ((shares + 0.5) / SHARES).astype(np.float32)
    for name in peers:
        reference, allowed = f"native with {name}'s rule", {"equity": (ALLOWED[name], 0.0)}
        other = (PEERS[name].label, finrl_accounts(name, data, actions, cash))
        compare(reference, native_accounts(basket, rule_of(name, cash), actions), [other], allowed)
    labels = [PEERS[name].label for name in peers]
    return Parity(
        contenders=labels, reference="native", steps=steps * len(peers), counts={"orders": actions.size * len(peers)}
    )


def native_accounts(basket: Basket, rule: dict[str, Any], actions: NDArray) -> Iterator[dict[str, NDArray]]:
    """Yield the account of one environment here after each step."""
    envs = make_vec("portfolio", 1, backend="native", threads=1, market=basket, **rule)
    envs.reset()
    for chosen in actions:
        envs.step(chosen[None])
        yield {"the equity": envs.column("equity"), "the holdings": envs.column("units").T}
    envs.close()


def finrl_accounts(name: str, data: StockData, actions: NDArray, cash: float) -> Iterator[dict[str, NDArray]]:
    """Yield the account of one environment of FinRL after each step."""
    env = env_maker(name, data, cash, training=False)()
    env.reset()
    for chosen in actions:
        env.step(chosen)
        equity, holdings = account(env, data.instruments)
        yield {"the equity": np.array([equity], float), "the holdings": np.array([holdings], float)}
