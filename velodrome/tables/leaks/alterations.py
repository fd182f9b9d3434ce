"""Other bars at the same times, to be put in the place of true ones: what follows a row must not change the row."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import BAR_COLUMNS, PRICE_COLUMNS, Series, read_only

SMALLEST, LARGEST = 0.002, 0.5  # changes of a price, as logarithms: leaks may show by small moves or by large ones only
SHAKEN = (0.5, 6.0)  # changes for the test with random signs, in deviations of a bar's return


class Alterations:
    """Variants of an instrument's bars, always the same for the same bars; every bar of a variant is a legal one."""

    def __init__(self, series: Series) -> None:
        self.series = series

    def _draws(self, name: str) -> np.random.Generator:
        """Return random numbers for a variant: the same whichever variants were made before."""
        return np.random.default_rng([len(self.series), *name.encode()])

    def forget(self, name: str) -> None:
        """Free the memory of a variant; it is made again, the same, where it is needed."""
        self.__dict__.pop(name, None)

    @cached_property
    def pair(self) -> tuple[Series, Series]:
        """Two variants; where one is higher, the other is lower."""
        draws = self._draws("pair")
        size = np.exp(draws.uniform(np.log(SMALLEST), np.log(LARGEST), len(self.series)))
        up = draws.random(len(self.series)) < 0.5
        return tuple(self._moved(np.where(up, size, -size) * sign, sign) for sign in (1, -1))  # type: ignore[return-value]

    @cached_property
    def shaken(self) -> tuple[Series, Series]:
        """Two variants near the true bars, one higher everywhere."""
        moves = np.abs(np.diff(np.log(np.maximum(self.series.close, 1e-300)), prepend=np.nan))
        usual = np.nanmedian(moves) / 0.67 if len(moves) > 1 else 0.0
        size = max(usual, 1e-6) * np.exp(
            self._draws("shaken").uniform(np.log(SHAKEN[0]), np.log(SHAKEN[1]), len(self.series))
        )
        return self._moved(size, 1), self._moved(-size, -1)

    @cached_property
    def fresh(self) -> Series:
        """Bars that have nothing to do with the true ones but their times: moves in another order, of random sign."""
        series, draws = self.series, self._draws("fresh")
        order = draws.permutation(len(series))
        logs = np.log(np.maximum(series.close, 1e-300))
        moves = np.diff(logs, prepend=logs[:1])[order] * draws.choice([-1.0, 1.0], len(order))
        close = np.exp(logs[0] + np.cumsum(moves) - moves[0]) if len(order) else logs
        scale = close / series.close[order]
        prices = {name: getattr(series, name)[order] * scale for name in PRICE_COLUMNS}
        return self._like(**prices, volume=series.volume[order], extra={n: c[order] for n, c in series.extra.items()})

    def put(self, rows: Any, variant: Series) -> Series:
        """Return the true bars with some rows (numbers or a slice) of a variant in their place."""

        def changed(true: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
            column = true.copy()
            column[rows] = other[rows]
            return column

        extra = {name: changed(column, variant.extra[name]) for name, column in self.series.extra.items()}
        return self._like(
            **{name: changed(getattr(self.series, name), getattr(variant, name)) for name in BAR_COLUMNS}, extra=extra
        )

    def mixed(self, signs: NDArray[np.bool_], begin: int = 0) -> Series:
        """Return the true bars and, from a row on, those of the upper or the lower shaken variant, bar by bar."""
        upper, lower = self.shaken
        tail = slice(begin, begin + len(signs))

        def chosen(name: str, get: Any) -> NDArray[np.float64]:
            mixture = np.where(signs, get(upper, name)[tail], get(lower, name)[tail])
            return np.concatenate([get(self.series, name)[:begin], mixture])

        end = begin + len(signs)
        columns = {name: chosen(name, getattr) for name in BAR_COLUMNS}
        extra = {name: chosen(name, lambda series, name: series.extra[name]) for name in self.series.extra}
        return self._like(time=self.series.time[:end], **columns, extra=extra)

    def _moved(self, size: NDArray[np.float64], sign: int) -> Series:
        """Return bars with prices multiplied by exp(size), wider where they are higher, and other volumes."""
        series, factor = self.series, np.exp(size)
        prices = {name: getattr(series, name) * factor for name in PRICE_COLUMNS}
        if not series.close_only:
            wide = np.exp(np.where(size > 0, np.abs(size), 0.25 * np.abs(size)) * 0.5)
            prices["high"], prices["low"] = prices["high"] * wide, prices["low"] / wide
            prices["open"] = prices["open"] * np.where(size > 0, 1.0, np.sqrt(wide))
            prices["high"] = np.maximum(prices["high"], prices["open"])
        usual = np.median(series.volume) if len(series) else 0.0
        volume = np.where(series.volume == 0, usual * (sign > 0), series.volume * np.exp(np.sign(size) * 0.7))
        extra = {name: self._other(column, sign) for name, column in series.extra.items()}
        return self._like(**prices, volume=volume, extra=extra)

    def _other(self, column: NDArray[np.float64], sign: int) -> NDArray[np.float64]:
        """Return a further column with values that it has elsewhere, so that codes stay codes."""
        other = column.copy()
        known = np.flatnonzero(np.isfinite(column))
        order = known[np.argsort(column[known], kind="stable")]
        if sign > 0:
            other[order] = column[order[::-1]]
        else:
            other[known] = column[self._draws("other").permutation(known)]
        return other

    def _like(self, **columns: Any) -> Series:
        for name, column in columns.items():
            if name != "extra":
                column.flags.writeable = False
        columns["extra"] = {name: read_only(column) for name, column in columns["extra"].items()}
        return replace(self.series, **columns)
