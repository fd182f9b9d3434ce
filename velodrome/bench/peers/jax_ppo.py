"""PPO in JAX, in the manner of PureJaxRL: environments, rollout and update in one compiled function.

The trading rule is that of `numpy_trading` with `jax.numpy`: all accounts as arrays, every branch a mask; money is
float32 here. A truncated episode counts as terminated, as it does there. JAX alone is needed, neither Flax nor Optax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers.plain_markets import LEVELS, MarketTables

Array = Any  # of jax.numpy
WIPED_OUT = -10.0  # the reward for losing everything


class Settings(NamedTuple):
    """What PPO is told; the names are those of `velodrome config ppo`."""

    num_envs: int
    rollout_length: int
    epochs: int
    minibatches: int
    learning_rate: float  # falls to 0 over `steps`
    gamma: float
    gae_lambda: float
    clip: float
    entropy: float
    value_weight: float
    max_gradient_norm: float
    hidden: tuple[int, ...]
    steps: int

    @property
    def batch(self) -> int:
        """Steps of all environments in a rollout."""
        return self.num_envs * self.rollout_length


class Accounts(NamedTuple):
    """One row per environment."""

    cursor: Array
    start: Array
    last: Array
    held: Array
    cash: Array
    units: Array
    entry: Array
    equity: Array
    peak: Array
    level: Array  # that was asked for last; NaN: none


class JaxMarket:
    """The rule as pure functions over `Accounts`."""

    def __init__(self, tables: MarketTables) -> None:
        import jax.numpy as jnp

        self.tables, self.jnp = tables, jnp
        self.prices = jnp.asarray(tables.prices, jnp.float32)
        self.features = jnp.asarray(tables.features)
        self.levels = jnp.asarray(LEVELS, jnp.float32)
        self.cash, self.fee = float(tables.parameters.initial_cash), float(tables.parameters.fee)
        self.liquidated_at = 2.0 - float(tables.parameters.maintenance_margin)  # times the entry of a short
        self.bankrupt_below = float(tables.parameters.bankrupt_at) * self.cash

    def begin(self, starts: Array) -> Accounts:
        """Return flat accounts at these bars."""
        jnp = self.jnp
        whole, money = jnp.zeros_like(starts), jnp.zeros(starts.shape, jnp.float32)
        last = jnp.minimum(self.tables.end - 1, starts + self.tables.episode_length)
        cash = money + self.cash
        return Accounts(starts, starts, last, whole, cash, money, money, cash, cash, money + jnp.nan)

    def draw_starts(self, key: Array, count: int) -> Array:
        """Return first bars of episodes that end before the data does."""
        import jax

        end = self.tables.end - self.tables.episode_length
        return jax.random.randint(key, (count,), self.tables.begin, end)

    def observe(self, a: Accounts) -> Array:
        """Return the window and the account's values, [n, floats]."""
        jnp = self.jnp
        rows = a.cursor[:, None] + jnp.arange(1 - self.tables.window, 1)
        price, side, solvent = self.prices[a.cursor, 3], jnp.sign(a.units), a.equity > 0.0
        distance = jnp.maximum(0.0, (a.entry * self.liquidated_at - price) / price)
        account = (
            jnp.where(solvent, jnp.abs(a.units) * price / jnp.where(solvent, a.equity, 1.0), 0.0),
            side,
            side * (price - a.entry) / jnp.where(a.units != 0.0, a.entry, 1.0),
            a.held.astype(jnp.float32),
            jnp.ones_like(price),
            jnp.where(a.units < 0.0, distance, 1.0),
            1.0 - a.equity / a.peak,
            (a.last - a.cursor) / jnp.maximum(1, a.last - a.start),
        )
        return jnp.concatenate([self.features[rows].reshape(len(rows), -1), jnp.stack(account, 1)], 1)

    def step(self, a: Accounts, actions: Array) -> tuple[Accounts, Array, Array]:
        """Return the accounts at the next close, the rewards, and who has ended; nobody begins anew."""
        jnp = self.jnp
        cursor = a.cursor + 1
        opened, high, _, close = self.prices[cursor].T
        dropped = (a.units < 0.0) & (opened >= a.entry * self.liquidated_at)
        now = self._order(self._liquidate(a, dropped, opened), self.levels[actions], opened, ~dropped)
        now = self._liquidate(now, (now.units < 0.0) & (high >= now.entry * self.liquidated_at), opened)
        equity = now.cash + jnp.abs(now.units) * now.entry + (close - now.entry) * now.units
        held = jnp.where(now.units == 0.0, 0, jnp.where(now.units * a.units > 0.0, a.held + 1, 1))
        now = now._replace(cursor=cursor, equity=equity, peak=jnp.maximum(a.peak, equity), held=held)
        rewards = jnp.where(equity > 0.0, jnp.log(jnp.where(equity > 0.0, equity, 1.0) / a.equity), WIPED_OUT)
        return now, rewards, (equity < self.bankrupt_below) | (cursor >= a.last)

    def _order(self, a: Accounts, levels: Array, prices: Array, allowed: Array) -> Accounts:
        jnp = self.jnp
        asked = allowed & ~((a.units != 0.0) & (levels == a.level))
        a = self._close(a._replace(level=jnp.where(asked, levels, a.level)), asked & (a.units != 0.0), prices)
        notional = a.cash / (1.0 + self.fee)
        opens = asked & (levels != 0.0) & (notional > 0.0)
        return a._replace(
            units=jnp.where(opens, levels * notional / prices, a.units),
            entry=jnp.where(opens, prices, a.entry),
            cash=jnp.where(opens, 0.0, a.cash),
        )

    def _close(self, a: Accounts, chosen: Array, prices: Array) -> Accounts:
        jnp, size = self.jnp, self.jnp.abs(a.units)
        gain = (prices - a.entry) * a.units - size * prices * self.fee
        return a._replace(
            cash=jnp.where(chosen, jnp.maximum(0.0, a.cash + gain + size * a.entry), a.cash),
            units=jnp.where(chosen, 0.0, a.units),
            entry=jnp.where(chosen, 0.0, a.entry),
        )

    def _liquidate(self, a: Accounts, chosen: Array, opened: Array) -> Accounts:
        bankruptcy = a.entry * 2.0 / (1.0 + self.fee)
        return self._close(
            a, chosen, self.jnp.minimum(self.jnp.maximum(opened, a.entry * self.liquidated_at), bankruptcy)
        )


def forward(layers: Any, values: Array) -> Array:
    """Return what a perceptron with tanh between its layers makes of some rows."""
    import jax.numpy as jnp

    for weight, bias in layers[:-1]:
        values = jnp.tanh(values @ weight + bias)
    weight, bias = layers[-1]
    return values @ weight + bias


class JaxPpo:
    """Everything that is trained, and the compiled function that trains it. To make one compiles it."""

    def __init__(self, tables: MarketTables, settings: Settings, seed: int) -> None:
        import jax
        import jax.numpy as jnp

        self.market, self.settings, self.steps = JaxMarket(tables), settings, 0
        self.jax, self.jnp = jax, jnp
        key, starts = jax.random.split(jax.random.key(seed))
        accounts = self.market.begin(self.market.draw_starts(starts, settings.num_envs))
        floats = int(self.market.observe(accounts).shape[1])
        key, actor, critic = jax.random.split(key, 3)
        weights = {
            "actor": self._layers(actor, floats, len(LEVELS), 0.01),
            "critic": self._layers(critic, floats, 1, 1.0),
        }
        zeros = jax.tree.map(jnp.zeros_like, weights)
        # Discounted returns, and their count, mean and sum of squares, by which rewards are scaled.
        scale = (jnp.zeros(settings.num_envs), jnp.array(1e-4), jnp.array(0.0), jnp.array(0.0))
        self.state = (weights, zeros, jax.tree.map(jnp.zeros_like, weights), jnp.array(0), accounts, scale, key)
        self._update = jax.jit(self._train).lower(self.state).compile()
        self._best = jax.jit(lambda weights, seen: forward(weights["actor"], seen).argmax(1))

    def _layers(self, key: Array, inputs: int, outputs: int, last: float) -> list[tuple[Array, Array]]:
        import jax
        from jax.nn.initializers import orthogonal

        widths = (inputs, *self.settings.hidden, outputs)
        scales = [*(2.0**0.5 for _ in self.settings.hidden), last]
        keys = jax.random.split(key, len(scales))
        shapes = zip(keys, scales, widths[:-1], widths[1:], strict=True)
        return [(orthogonal(scale)(own, (into, out)), self.jnp.zeros(out)) for own, scale, into, out in shapes]

    def iterate(self) -> None:
        """Collect one rollout and learn from it."""
        self.state = self.jax.block_until_ready(self._update(self.state))
        self.steps += self.settings.batch

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the likeliest actions, [n]."""
        return np.asarray(self._best(self.state[0], observations)).astype(np.int64)

    # What is compiled

    def _train(self, state: Any) -> Any:
        weights, first, second, count, accounts, scale, key = state
        (accounts, scale, key), seen = self.jax.lax.scan(
            lambda carry, _: self._act_and_step(weights, carry),
            (accounts, scale, key),
            length=self.settings.rollout_length,
        )
        advantages = self._advantages(seen, forward(weights["critic"], self.market.observe(accounts))[:, 0])
        samples = {
            **{name: seen[name] for name in ("observation", "action", "log_probability")},
            "advantage": advantages,
            "target": advantages + seen["value"],
        }
        flat = {name: part.reshape(self.settings.batch, *part.shape[2:]) for name, part in samples.items()}
        carry = (weights, first, second, count, key)
        carry, _ = self.jax.lax.scan(lambda c, _: self._epoch(c, flat), carry, length=self.settings.epochs)
        *learnt, key = carry
        return (*learnt, accounts, scale, key)

    def _act_and_step(self, weights: Any, carry: Any) -> Any:
        jax, jnp = self.jax, self.jnp
        accounts, scale, key = carry
        key, choose, draw = jax.random.split(key, 3)
        observation = self.market.observe(accounts)
        logits = jax.nn.log_softmax(forward(weights["actor"], observation))
        actions = jax.random.categorical(choose, logits)
        after, rewards, ended = self.market.step(accounts, actions)
        fresh = self.market.begin(self.market.draw_starts(draw, self.settings.num_envs))
        accounts = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after)
        scale, scaled = self._scaled(scale, rewards, ended)
        seen = {
            "observation": observation,
            "action": actions,
            "log_probability": jnp.take_along_axis(logits, actions[:, None], 1)[:, 0],
            "value": forward(weights["critic"], observation)[:, 0],
            "reward": scaled,
            "ended": ended,
        }
        return (accounts, scale, key), seen

    def _scaled(self, scale: Any, rewards: Array, ended: Array) -> Any:
        """Divide rewards by the deviation of the discounted return so far."""
        jnp = self.jnp
        returns, count, mean, squares = scale
        returns = returns * self.settings.gamma + rewards
        added = len(rewards)
        shift, total = returns.mean() - mean, count + added
        squares = squares + ((returns - returns.mean()) ** 2).sum() + shift**2 * count * added / total
        scale = (jnp.where(ended, 0.0, returns), total, mean + shift * added / total, squares)
        return scale, rewards / jnp.sqrt(squares / total + 1e-8)

    def _advantages(self, seen: Any, last: Array) -> Array:
        gamma, decay = self.settings.gamma, self.settings.gae_lambda

        def back(carry: Any, row: Any) -> Any:
            advantage, following = carry
            goes_on = 1.0 - row["ended"]
            surprise = row["reward"] + gamma * following * goes_on - row["value"]
            advantage = surprise + gamma * decay * goes_on * advantage
            return (advantage, row["value"]), advantage

        return self.jax.lax.scan(back, (self.jnp.zeros_like(last), last), seen, reverse=True)[1]

    def _epoch(self, carry: Any, flat: Any) -> Any:
        *learnt, key = carry
        key, draw = self.jax.random.split(key)
        order = self.jax.random.permutation(draw, self.settings.batch).reshape(self.settings.minibatches, -1)
        learnt, _ = self.jax.lax.scan(
            lambda c, rows: (self._gradient_step(c, {name: part[rows] for name, part in flat.items()}), None),
            tuple(learnt),
            order,
        )
        return (*learnt, key), None

    def _gradient_step(self, carry: Any, batch: Any) -> Any:
        """Adam with gradients cut to a length, and a learning rate that falls to 0."""
        jax, jnp, told = self.jax, self.jnp, self.settings
        weights, first, second, count = carry
        gradient = jax.grad(self._loss)(weights, batch)
        length = jnp.sqrt(sum((part**2).sum() for part in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(
            lambda part: part * jnp.minimum(1.0, told.max_gradient_norm / (length + 1e-6)), gradient
        )
        first = jax.tree.map(lambda old, part: 0.9 * old + 0.1 * part, first, gradient)
        second = jax.tree.map(lambda old, part: 0.999 * old + 0.001 * part**2, second, gradient)
        done = count // (told.epochs * told.minibatches) * told.batch / told.steps
        rate = told.learning_rate * jnp.maximum(0.0, 1.0 - done)
        count = count + 1
        sizes = 1.0 - 0.9**count, 1.0 - 0.999**count
        moved = jax.tree.map(
            lambda weight, mean, square: weight - rate * mean / sizes[0] / (jnp.sqrt(square / sizes[1]) + 1e-5),
            weights,
            first,
            second,
        )
        return moved, first, second, count

    def _loss(self, weights: Any, batch: Any) -> Array:
        jax, jnp, told = self.jax, self.jnp, self.settings
        logits = jax.nn.log_softmax(forward(weights["actor"], batch["observation"]))
        chosen = jnp.take_along_axis(logits, batch["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(chosen - batch["log_probability"])
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
        cut = jnp.clip(ratio, 1.0 - told.clip, 1.0 + told.clip)
        policy = -jnp.minimum(ratio * advantage, cut * advantage).mean()
        value = 0.5 * ((forward(weights["critic"], batch["observation"])[:, 0] - batch["target"]) ** 2).mean()
        entropy = -(jnp.exp(logits) * logits).sum(1).mean()
        return policy + told.value_weight * value - told.entropy * entropy
