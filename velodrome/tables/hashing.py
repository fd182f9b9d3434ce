"""The content hash of a market: equal exactly when every array and every choice that made it is equal."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from velodrome.tables.market import WindowedRows


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of nested mappings, sequences, arrays, numbers, texts and functions as 64 hex digits."""
    digest = hashlib.sha256()
    _feed(digest, content)
    return digest.hexdigest()


def price_hash(market: WindowedRows, *splits: str) -> str:
    """Return a hash of the bars of some splits, whatever an agent is shown of them: names, times and prices."""
    ranges = [pair for split in splits for pair in market.splits[split]]
    rows = np.concatenate([np.arange(low, high) for low, high in ranges] or [np.empty(0, np.int64)])
    names = ("ohlc", "open", "close")
    prices = [getattr(market, name)[rows] for name in names if hasattr(market, name)]
    return content_hash({"symbols": market.symbols, "time": market.time[rows], "prices": prices})


def bars_of(market: WindowedRows, split: str) -> list[tuple[str, int, int]]:
    """Return symbol, first and last open time (nanoseconds UTC) of every piece of a split."""
    part = market.split(split)
    ends = zip(part.members, part.time[part.begin].tolist(), part.time[part.end - 1].tolist(), strict=True)
    return [(symbol, first, last) for members, first, last in ends for symbol in members]


def _feed(digest: Any, value: Any) -> None:
    """Add a value with its kind and length, so that no two different contents feed the same bytes."""
    if isinstance(value, np.ndarray):
        # Little-endian whatever the machine.
        stored = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        digest.update(f"array {stored.dtype.str} {stored.shape};".encode())
        digest.update(stored.reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)};".encode())
        for key in value:
            _feed(digest, key)
            _feed(digest, value[key])
    elif isinstance(value, frozenset | set):
        # The order of a set changes from process to process.
        _feed(digest, sorted(repr(item) for item in value))
    elif isinstance(value, tuple | list):
        digest.update(f"sequence {len(value)};".encode())
        for item in value:
            _feed(digest, item)
    elif isinstance(value, str | bytes | int | float | complex | bool | None | np.generic):
        text = repr(value.item() if isinstance(value, np.generic) else value).encode()
        digest.update(f"{type(value).__name__ if isinstance(value, str | bytes) else 'scalar'} {len(text)};".encode())
        digest.update(text)
    elif isinstance(value, types.CodeType):
        _feed(digest, ("code", value.co_code, value.co_consts, value.co_names, value.co_varnames))
    elif callable(value):
        _feed_function(digest, value)
    else:
        # An object of another kind may print its address; its type is all that is the same on every machine.
        _feed(digest, ("object", type(value).__module__, type(value).__qualname__))


def _feed_function(digest: Any, function: Any) -> None:
    """Add what a function does: its bytecode, constants, defaults and the values it closes over."""
    if isinstance(function, functools.partial):
        _feed(digest, ("partial", function.func, function.args, sorted(function.keywords.items())))
        return
    plain = getattr(function, "py_func", function)  # of a Numba function
    if isinstance(plain, types.MethodType):
        plain = plain.__func__
    code = getattr(plain, "__code__", None)
    if code is None:
        call = vars(type(plain)).get("__call__")
        if isinstance(call, types.FunctionType):
            _feed(digest, ("instance", call, sorted(vars(plain).items()) if hasattr(plain, "__dict__") else ()))
        else:
            _feed(digest, ("built in", getattr(plain, "__module__", ""), getattr(plain, "__qualname__", "")))
        return
    closed = []
    for cell in plain.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            content = None
        closed.append("itself" if content is plain else content)
    _feed(digest, ("function", code, plain.__defaults__, plain.__kwdefaults__, closed))
