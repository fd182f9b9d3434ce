"""Numbers as files write them, to float64: decimal commas, thousands separators and the spellings of a missing one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

MISSING_SPELLINGS = ("", "nan", "null", "none", "na", "n/a", "#n/a", "<na>", "-", ".")
THOUSANDS_COMMAS = r"^[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$"  # 1,234,567.89
THOUSANDS_POINTS = r"^[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?$"  # 1.234.567,89


@dataclass(frozen=True)
class ParsedNumbers:
    """A column's values, and which rows hold text that is not a number."""

    value: NDArray[np.float64]  # NaN where missing or unreadable
    unreadable: NDArray[np.bool_]


def parse_numbers(column: pl.Series, separator: str | None) -> ParsedNumbers:
    """Return the column as float64. In a file with semicolons between the fields a comma is the decimal sign."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == pl.Boolean:
        value = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return ParsedNumbers(value, np.zeros(len(value), np.bool_))
    if dtype.is_temporal() or dtype.is_nested():
        return ParsedNumbers(np.full(len(column), np.nan), column.is_not_null().to_numpy())
    text = column.cast(pl.String).str.strip_chars()
    number = text.cast(pl.Float64, strict=False)
    if number.null_count() > text.null_count():
        text = text.str.strip_prefix("$")
        missing = text.is_null() | text.str.to_lowercase().is_in(MISSING_SPELLINGS)
        number = plain_decimals(text, separator).cast(pl.Float64, strict=False)
        unreadable = (number.is_null() & ~missing).to_numpy()
    else:
        unreadable = np.zeros(len(number), np.bool_)
    return ParsedNumbers(number.fill_null(float("nan")).to_numpy(), unreadable)


def plain_decimals(text: pl.Series, separator: str | None) -> pl.Series:
    """Return the numbers with a decimal point and without thousands separators."""
    has_comma = text.str.contains(",", literal=True)
    if not has_comma.any():
        return text
    column = pl.col("text")
    if separator == ";":
        # A comma after which a point follows is a thousands separator even here: 1,234.56.
        english = column.str.contains(r",\d{3}.*\.")
        pointless = pl.when(column.str.contains(THOUSANDS_POINTS)).then(column.str.replace_all(".", "", literal=True))
        decimal_point = pointless.otherwise(column).str.replace(",", ".", literal=True)
        plain = pl.when(english).then(column.str.replace_all(",", "", literal=True)).otherwise(decimal_point)
    elif separator == ",":
        without = column.str.replace_all(",", "", literal=True)
        plain = pl.when(column.str.contains(THOUSANDS_COMMAS)).then(without).otherwise(column)
    else:
        return text
    return text.alias("text").to_frame().select(plain).to_series()
