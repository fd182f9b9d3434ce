"""Ridge and logistic regression of the next return, with everything that is chosen chosen by walk-forward.

Rows come in blocks of time. A choice is judged by what models fitted to the blocks before one say about it. All that
ridge regression needs of a block are sums, so that every penalty and every number of inputs is tried without reading
the rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.evaluation.forecast.inputs import ALL, Held, Places, Rows
from velodrome.evaluation.play import one_thread
from velodrome.vector.cores import available_cores

BLOCKS = 6  # of time; a choice is judged on all but the first
# Penalties, over the variance of an input and the number of rows. With the largest, nothing but the mean is left.
PENALTIES = np.logspace(-3.0, 4.0, 22)
ROWS_AT_ONCE = 8192
MOST_KEPT = 2**24  # standardised values, 128 MB
MOST_MEASURED = 2**19  # rows from which mean and variance of the inputs are known well enough
MOST_WALKED = 2**20  # rows that logistic regression, which reads them thirty times, is fitted to
FIRST_PENALTY = 0.1  # of the regression whose weights say how relevant inputs are
STEPS = 25  # of logistic regression at most; it takes about five where returns are hard to foresee
CONVERGED = 1e-7  # change of a weight
Values = NDArray[np.float64]


def on_all_cores(function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
    """Return what a function makes of each of some arguments, several at a time, each on one thread of torch."""
    with one_thread(), ThreadPoolExecutor(available_cores()) as threads:
        return list(threads.map(function, *arguments))


def product(a: Values, b: Values) -> Values:
    """Return the product of two matrices, or of one and a vector.

    NumPy would share it among threads of its own, for which calls from several threads wait in turn: where other
    programs had the cores, that took four times the processor time and four times as long.
    """
    return (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()


class Sums(NamedTuple):
    """What ridge regression has to know of some rows; inputs x are standardised."""

    rows: float
    x: Values  # [W]
    y: float
    xx: Values  # [W, W]
    xy: Values  # [W]
    yy: float

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both."""
        x, xx, xy = self.x + other.x, self.xx + other.xx, self.xy + other.xy
        return Sums(self.rows + other.rows, x, self.y + other.y, xx, xy, self.yy + other.yy)

    def of(self, inputs: Places) -> Sums:
        """Return the sums of some of the inputs."""
        return self._replace(x=self.x[inputs], xx=self.xx[np.ix_(inputs, inputs)], xy=self.xy[inputs])

    def covariances(self) -> tuple[Values, Values]:
        """Return those of the inputs with each other, [W, W], and with the return, [W]."""
        mean = self.x / self.rows
        return self.xx / self.rows - np.outer(mean, mean), self.xy / self.rows - mean * (self.y / self.rows)

    def squared_error(self, intercept: Values, weights: Values) -> Values:
        """Return the squared error of several models [M] on these rows; weights [M, W]."""
        squares = np.einsum("mw,mw->m", weights @ self.xx, weights) + self.yy + self.rows * intercept**2
        return squares - 2.0 * (weights @ self.xy + intercept * self.y - intercept * (weights @ self.x))


class Linear(NamedTuple):
    """A linear function of standardised inputs."""

    intercept: float
    weights: Values  # [W]

    def of(self, x: Values) -> Values:
        """Return its value for each row [n, W]."""
        return self.intercept + x @ self.weights


class Model(NamedTuple):
    """A fitted model of the next return, and what its like said about rows that they had not seen."""

    name: str
    expected: Callable[[NDArray | Rows], Values]  # the next return [n], of inputs [n, W]
    unseen: Values  # [n] of every row fitted to, by the model of the blocks before it; NaN in the first block
    inputs: int  # how many are used
    penalty: float


class Regression:
    """Rows of inputs x [n, W] and next returns y [n] in blocks of time, and models that are fitted to them.

    choices: the sets of inputs to choose from, fewer first.
    others: further ones, which have to be better than all of these by one standard error.
    adaptive: penalise an input the more, the less it weighs in a first regression on the same rows (Grandvalet, 1998):
        of many inputs, the few that tell something then keep nearly all of their weight.
    counts: [n] how often each row is there in the fit of the final weights; None: once. All that is chosen, penalties
        and relevance too, and what is said about rows that were not seen, comes from every row once all the same.
    """

    def __init__(
        self,
        x: NDArray[np.float32] | Rows,
        y: Values,
        block: Places,
        choices: Sequence[Places],
        others: Sequence[Places] = (),
        adaptive: bool = False,
        counts: Places | None = None,
    ) -> None:
        self.x: Rows = Held(x) if isinstance(x, np.ndarray) else x
        self.y, self.adaptive, self.counts = y, adaptive, counts
        self.members = [np.flatnonzero(block == own) for own in range(int(block.max()) + 1)]
        self.inputs = np.zeros(0, np.int64)  # chosen below
        # A part at a time: a table of as many floats of double width would be new memory.
        begins = range(0, len(y), ROWS_AT_ONCE)
        parts = [slice(begin, begin + ROWS_AT_ONCE) for begin in begins[:: -(-len(y) // MOST_MEASURED)]]
        count = sum(len(y[part]) for part in parts)
        self.mean = sum(on_all_cores(lambda part: self.x.some(part).sum(axis=0, dtype=np.float64), parts)) / count
        squares = on_all_cores(lambda part: np.square(self.x.some(part) - self.mean).sum(axis=0), parts)
        spread = np.sqrt(sum(squares) / count)
        self.scale = np.where(spread > 1e-12 * (1.0 + np.abs(self.mean)), spread, np.inf)  # a constant says nothing
        self.sums = on_all_cores(self._sum, self.members)
        self.known = list(accumulate(self.sums, Sums.plus))  # all blocks up to each
        self.choice, self.place, errors = self._choose(choices)
        if others:
            choice, place, fewer = self._choose(others)
            gained = errors - fewer
            if gained.sum() > gained.std(ddof=1) * np.sqrt(len(gained)):
                self.choice, self.place = len(choices) + choice, place
        self.inputs = [*choices, *others][self.choice]

    def standardised(self, x: NDArray | Rows, inputs: Places | slice = ALL, rows: Places | slice = ALL) -> Values:
        """Return some inputs with a mean of 0 and a variance of 1 over the rows that are fitted to."""
        if inputs is self.inputs and len(inputs) == inputs[-1] + 1:  # the first so many
            inputs = slice(len(inputs))
        found = (Held(x) if isinstance(x, np.ndarray) else x).some(rows, inputs) - self.mean[inputs]
        found /= self.scale[inputs]
        return found

    def _parts(self, rows: Places, inputs: Places | slice = ALL) -> Iterator[tuple[Places, Values]]:
        """Yield some of the rows at a time, and their inputs."""
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[begin : begin + ROWS_AT_ONCE]
            # Neighbours, as the rows of one instrument are, need not be gathered.
            places = slice(part[0], part[-1] + 1) if part[-1] - part[0] == len(part) - 1 else part
            kept = inputs is self.inputs and self.keeps
            yield part, self.kept[places] if kept else self.standardised(self.x, inputs, places)

    @property
    def keeps(self) -> bool:
        """Whether the chosen inputs are few enough to be kept as they are fitted to."""
        return len(self.y) * len(self.inputs) <= MOST_KEPT

    @cached_property
    def kept(self) -> Values:
        """The chosen inputs of all rows, standardised: logistic regression looks at them thirty times."""
        return self.standardised(self.x, self.inputs)

    def _sum(self, rows: Places, counts: Places | None = None) -> Sums:
        """Return the sums over some rows; counts: how often each of all rows is there."""
        width = self.x.shape[1]
        total = Sums(0.0, np.zeros(width), 0.0, np.zeros((width, width)), np.zeros(width), 0.0)
        for part, x in self._parts(rows):
            y = self.y[part]
            if counts is None:
                products = (product(x.T, x), product(x.T, y), float(y @ y))
                found = Sums(float(len(part)), x.sum(0), float(y.sum()), *products)
            else:
                often = counts[part].astype(np.float64)
                own, returns = x * often[:, None], y * often
                products = (product(own.T, x), product(x.T, returns), float(returns @ y))
                found = Sums(float(often.sum()), own.sum(0), float(returns.sum()), *products)
            total = total.plus(found)
        return total

    def _relevance(self, known: Sums) -> Values:
        """Return by how much each input is stretched before it is penalised, [W]; their mean square is 1."""
        if not self.adaptive:
            return np.ones(len(known.x))
        inputs, returns = known.covariances()
        found = np.abs(np.linalg.solve(inputs + FIRST_PENALTY * np.eye(len(returns)), returns))
        return found / max(float(np.sqrt(np.mean(found**2))), np.finfo(float).tiny)

    def _ridge_path(self, known: Sums, stretch: Values | None = None) -> tuple[Values, Values]:
        """Return intercepts [P] and weights [P, W] for every penalty; stretch: of inputs, if not by their relevance."""
        stretch = self._relevance(known) if stretch is None else stretch
        inputs, returns = known.covariances()
        values, vectors = np.linalg.eigh(stretch[:, None] * inputs * stretch)
        along = vectors.T @ (stretch * returns)
        weights = stretch * ((along / (np.maximum(values, 0.0) + PENALTIES[:, None])) @ vectors.T)
        return (known.y - weights @ known.x) / known.rows, weights

    def _errors(self, inputs: Places) -> Values:
        """Return the squared error on each block but the first, by the models of the blocks before it, [blocks, P]."""
        pairs = zip(self.known, self.sums[1:], strict=False)
        return np.array([after.of(inputs).squared_error(*self._ridge_path(known.of(inputs))) for known, after in pairs])

    def _choose(self, choices: Sequence[Places]) -> tuple[int, int, Values]:
        """Return the places of the inputs and of the penalty with the least error on new blocks, and these errors."""
        chosen, least = (0, len(PENALTIES) - 1), np.full(1, np.inf)
        for choice, inputs in enumerate(choices):
            errors = self._errors(inputs)
            # Of equal ones the larger penalty, and fewer inputs.
            place = len(PENALTIES) - 1 - int(np.argmin(errors.sum(axis=0)[::-1]))
            if errors[:, place].sum() < least.sum():
                chosen, least = (choice, place), errors[:, place]
        return *chosen, least

    def ridge(self) -> Model:
        """Return ridge regression: the return itself."""

        def solve(known: Sums, blocks: int, counts: Places | None = None) -> Callable[[Values], Values]:
            stretch = None if counts is None else self._relevance(self.known[-1].of(self.inputs))
            intercepts, weights = self._ridge_path(known.of(self.inputs), stretch)
            return Linear(float(intercepts[self.place]), weights[self.place]).of

        return self._model("adaptive ridge" if self.adaptive else "ridge", solve)

    def logistic(self) -> Model:
        """Return logistic regression: the chance of a rise, times the mean size of a move."""

        def solve(known: Sums, blocks: int, counts: Places | None = None) -> Callable[[Values], Values]:
            rows = np.concatenate(self.members[:blocks])
            size = float(np.average(np.abs(self.y[rows]), weights=None if counts is None else counts[rows]))
            chance = self._chance(known.of(self.inputs), rows, counts)
            return lambda x: size * np.tanh(0.5 * chance.of(x))

        return self._model("logistic", solve)

    def _chance(self, known: Sums, rows: Places, counts: Places | None) -> Linear:
        """Return the log odds of a rise.

        Each step divides by a bound of the curvature, a quarter of the inputs' variance (Böhning and Lindsay, 1988):
        close to the curvature itself where odds are close to even, and the same in every step.
        """
        penalty, rows = PENALTIES[self.place], rows[:: -(-len(rows) // MOST_WALKED)]
        count = float(len(rows) if counts is None else counts[rows].sum())
        every = known if counts is None else self.known[-1].of(self.inputs)
        mean, stretch = known.x / known.rows, self._relevance(every)
        values, vectors = np.linalg.eigh(stretch[:, None] * known.covariances()[0] * stretch)
        shrunk = vectors / (np.maximum(values, 0.0) + penalty)
        intercept, weights = 0.0, np.zeros(len(mean))
        for _ in range(STEPS):
            up, along = 0.0, -0.25 * penalty * weights
            for part, x in self._parts(rows, self.inputs):
                own = (x - mean) * stretch
                missed = (self.y[part] > 0.0) - 0.5 * (1.0 + np.tanh(0.5 * (intercept + product(own, weights))))
                if counts is not None:
                    missed *= counts[part]
                up += float(missed.sum()) / count
                along += product(own.T, missed) / count
            change = 4.0 * (shrunk @ (vectors.T @ along))
            intercept, weights = intercept + 4.0 * up, weights + change
            if max(abs(up), float(np.abs(change).max())) < CONVERGED:
                break
        weights = stretch * weights
        return Linear(float(intercept - weights @ mean), weights)

    def _model(self, name: str, solve: Callable[..., Callable[[Values], Values]]) -> Model:
        unseen = np.full(len(self.y), np.nan)
        if self.keeps:
            self.kept  # noqa: B018 (here, and not by each thread)
        *before, final = on_all_cores(solve, self.known, range(1, len(self.known) + 1))
        for fitted, rows in zip(before, self.members[1:], strict=True):
            for part, x in self._parts(rows, self.inputs):
                unseen[part] = fitted(x)
        if self.counts is not None:
            final = solve(self._sum(np.arange(len(self.y)), self.counts), len(self.members), self.counts)
        penalty = float(PENALTIES[self.place])
        return Model(name, lambda x: final(self.standardised(x, self.inputs)), unseen, len(self.inputs), penalty)
