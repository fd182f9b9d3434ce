"""The forecaster of a market: fitted to its training split, and the policy that trades what it expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.forecast.halves import half_of_the_blocks, runs_of
from velodrome.evaluation.forecast.inputs import Gathered, Inputs, lag_choices, rows_to_fit
from velodrome.evaluation.forecast.regression import BLOCKS, ROWS_AT_ONCE, Model, Regression
from velodrome.evaluation.forecast.threshold import Rule, Stakes, best_rule
from velodrome.tables.basket import Basket
from velodrome.tables.market import AnyMarket, Market, WindowedRows
from velodrome.tables.scaling import TRAIN
from velodrome.vector.compile.playing import Plan

FEWEST_ROWS = 120  # to fit to
KINDS = ("ridge", "logistic")  # of regression, the one to use unless another is clearly better first
MARGIN = (
    1.0  # standard errors that a refined rule must have earned after costs; of noise, one in three earns more than 0
)
MOST_ROWS = 100_000  # the latest ones, from which the length of windows is chosen
TOO_LITTLE = f"not playable: it needs windows, and a training split of {FEWEST_ROWS} bars or more to be fitted to"


class Fitted:
    """Regressions of the next return on what the windows show, fitted to one split of a market.

    gains: [T, members] what one unit held from a row's fill to the next row's gains; NaN where it is not known.
    refined: on means over the latest rows or on the rows themselves, with adaptive penalties. It foresees better
        from few bars and long windows than what a textbook has, which is what agents are measured by.
    half: seed that says which half of the rows weights are fitted to in the end; None: to all.
    """

    def __init__(
        self,
        market: WindowedRows,
        trained_on: str,
        gains: NDArray[np.float64],
        refined: bool = False,
        half: int | None = None,
    ) -> None:
        self.members = gains.shape[1]
        self.refined, self.inputs = refined, Inputs(market, self.members, means=refined)
        part = market.split(trained_on)
        # The gain of a row is known two rows later, which must lie in the split as well.
        stretches = [np.arange(begin, max(end - 2, begin)) for begin, end in zip(part.begin, part.end, strict=True)]
        self.rows = np.concatenate(stretches)
        self.first = np.zeros(len(self.rows), bool)  # the first row of a stretch: nothing is held before it
        self.first[np.cumsum([0, *map(len, stretches[:-1])])[[bool(len(own)) for own in stretches]]] = True
        edges = np.quantile(market.time[self.rows], np.arange(1, BLOCKS) / BLOCKS, method="lower")
        block, later = (np.searchsorted(edges, market.time[rows], side="right") for rows in (self.rows, self.rows + 2))
        # A gain that ends in the next block would tell the models before it something about it.
        self.gains = np.where((block == later)[:, None], gains[self.rows], np.nan)
        self.lags = self.inputs.most_lags()
        usable = np.isfinite(self.gains).ravel()
        self.counts: NDArray[np.int64] | None = None  # how often each row is fitted to
        if half is not None:
            self.counts = half_of_the_blocks(runs_of(np.cumsum(self.first), block), half)
        x, block = rows_to_fit(self.inputs, self.rows, self.lags, usable), np.repeat(block, self.members)[usable]
        counts = None if self.counts is None else np.repeat(self.counts, self.members)[usable]
        self.fitted_rows = len(block) if counts is None else int((counts > 0).sum())
        choices, others = self.inputs.choices(self.lags)
        first, second = ([own.places for own in group] for group in (choices, others))
        self.regression = Regression(x, self.gains.ravel()[usable], block, first, second, refined, counts)
        self.usable, self.chosen = usable, [*choices, *others][self.regression.choice]

    def unseen(self, model: Model) -> NDArray[np.float64]:
        """Return what a model's like said about rows that they had not seen, [rows, members]; NaN elsewhere."""
        found = np.full(self.gains.size, np.nan)
        found[self.usable] = model.unseen
        return found.reshape(self.gains.shape)

    def expected(self, model: Model, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the next returns that a model expects at some rows, [rows, members]."""
        pieces = (rows[begin : begin + ROWS_AT_ONCE] for begin in range(0, len(rows), ROWS_AT_ONCE))
        parts = [model.expected(Gathered(self.inputs, own, self.lags)) for own in pieces]
        return np.concatenate(parts).reshape(len(rows), self.members)


class Part(NamedTuple, Generic[AnyMarket]):
    """Where something that is fitted acts: on a split of a market, having seen the market's training split."""

    market: AnyMarket
    split: str

    @property
    def can_fit(self) -> bool:
        """Whether there are windows to forecast from, and enough rows to fit to."""
        if not len(self.market.windows.length) or TRAIN not in self.market.splits:
            return False
        part = self.market.split(TRAIN)
        return int(np.maximum(part.end - part.begin - 2, 0).sum()) >= FEWEST_ROWS

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that it acts on."""
        part = self.market.split(self.split)
        return np.concatenate([np.arange(begin, end) for begin, end in zip(part.begin, part.end, strict=True)])


def fill_gains(prices: NDArray[np.float64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what one unit gains from a row's fill to the next row's; `prices` [T, …] are those of the fills.

    begin, end: of the stretches of rows; nothing is gained from one to the next.
    """
    gains = np.full(prices.shape, np.nan)
    for low, high in zip(begin.tolist(), end.tolist(), strict=True):
        own = prices[low:high]
        with np.errstate(divide="ignore", invalid="ignore"):
            gains[low : high - 1] = np.where(own[:-1] > 0.0, own[1:] / own[:-1] - 1.0, np.nan)
    return gains


def rows_that_help(market: Market | Basket) -> int | None:
    """Return how many of the latest rows of the windows help to foresee the next return inside the training split.

    Of 1, 2, 4 … and all rows these are the ones from which the regression that agents begin as foresaw best there, by
    walk-forward. None: there are no windows, or too few bars to say.
    """
    if not Part(market, TRAIN).can_fit:
        return None
    prices = market.ohlc[:, :1] if isinstance(market, Market) else market.open
    ahead = np.concatenate([prices[1:], np.full((1, prices.shape[1]), np.nan)])  # an order is filled at the next open
    gains = fill_gains(ahead, market.begin, market.end - 1)
    latest = tuple((max(begin, end - MOST_ROWS // len(market.begin)), end) for begin, end in market.splits[TRAIN])
    return Fitted(replace(market, splits={TRAIN: latest}), TRAIN, gains, refined=True).chosen.lags


def describe(model: Model, fitted: Fitted) -> str:
    """Return what was fitted to what, for people."""
    chosen = fitted.chosen
    latest = "row" if chosen.lags == 1 else f"{chosen.lags} rows"
    spans = ", ".join(map(str, lag_choices(chosen.lags)[:-1]))
    seen = f"means over the latest {spans} and {chosen.lags} rows" if chosen.means else f"of the latest {latest}"
    half = "" if fitted.counts is None else ", one half of them"
    return (
        f"{model.name} regression of the next return on {model.inputs:,} inputs ({seen} of the "
        f"windows), fitted to {fitted.fitted_rows:,} rows of the training split{half}"
    )


def forecast_alone(fitted: Fitted, stakes: Stakes, kinds: Sequence[str] = KINDS) -> tuple[Model, Rule, str]:
    """Return a regression of the first kind with its threshold, on instruments by themselves, and what was done.

    Another kind takes its place if it would have earned more after costs by one standard error, on rows of the training
    split that were not fitted to.
    """
    (model, rule), *others = (_traded(fitted, getattr(fitted.regression, kind)(), stakes) for kind in kinds)
    for other, its_rule in others:
        more = its_rule.earned - rule.earned
        if len(more) > 1 and more.mean() > more.std(ddof=1) / np.sqrt(len(more)):
            model, rule = other, its_rule
    about = f"{describe(model, fitted)}; inputs, penalty and threshold by walk-forward inside it"
    if np.isinf(rule.threshold):
        return model, rule, f"{about}; no threshold gained anything there after costs, so it stays flat"
    return model, rule, f"{about}; it changes sides where the forecast passes {rule.threshold:.3%}"


def _traded(fitted: Fitted, model: Model, stakes: Stakes) -> tuple[Model, Rule]:
    """Return a model with its best threshold."""
    said = fitted.unseen(model)[:, 0]
    there = np.isfinite(said)
    margin = MARGIN if fitted.refined and stakes.cost > 0.0 else 0.0
    return model, best_rule(said[there], fitted.gains[there, 0], _first_there(fitted.first, there), stakes, margin)


def in_all_parts(notes: Sequence[str]) -> str:
    """Return what was done in one part or several, for people."""
    return notes[-1] if len(notes) == 1 else f"fitted again for each of {len(notes)} parts; the last one: {notes[-1]}"


def _first_there(first: NDArray[np.bool_], there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of the rows that are there is the first of its stretch."""
    stretch = np.cumsum(first)[there]
    return np.r_[True, stretch[1:] != stretch[:-1]] if len(stretch) else np.zeros(0, bool)


class FollowForecast:
    """Takes the side of the last forecast beyond the threshold; `actions` are those for short, flat and long."""

    def __init__(self, bars: int, actions: NDArray) -> None:
        """Make a policy that expects nothing on any bar yet."""
        self.expected = np.full(bars, np.nan)  # the next return
        self.threshold = np.full(bars, np.inf)
        self.actions = actions
        self._sides = np.zeros(0, np.int64)

    def begin(self, num_envs: int) -> None:
        """Start on neither side."""
        self._sides = np.zeros(num_envs, np.int64)

    def act(self, observation: Any) -> NDArray:
        """Return the action of every environment."""
        bars = np.asarray(observation["cursor"])
        expected = self.expected[bars]
        beyond = np.abs(expected) > self.threshold[bars]
        self._sides = np.where(beyond, np.sign(expected), self._sides).astype(np.int64)
        return self.actions[self._sides + 1]

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan:
        """Return the side of every row whose forecast is beyond the threshold, from neither side on."""
        within = ~(np.abs(self.expected) > self.threshold)
        sides = np.where(within, 0.0, np.sign(self.expected)).astype(np.int64)
        return Plan(self.actions[self._sides + 1], self.actions[sides + 1].reshape(len(sides), -1), within)

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Go back to neither side in these environments."""
        self._sides[ended] = 0
